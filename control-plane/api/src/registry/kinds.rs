//! The table of built-in resources.

use super::strategy::Strategy;
use super::{Resource, SelectableField, Subresource};
use crate::storage::key;

const STANDARD: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const GET_PATCH_UPDATE: &[&str] = &["get", "patch", "update"];

const fn field(
    name: &'static str,
    path: &'static [&'static str],
    missing: &'static str,
) -> SelectableField {
    SelectableField {
        name,
        path,
        missing,
    }
}

const fn subresource(
    name: &'static str,
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    verbs: &'static [&'static str],
) -> Subresource {
    Subresource {
        name,
        group,
        version,
        kind,
        verbs,
    }
}

struct Row {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    fields: &'static [SelectableField],
    subresources: &'static [Subresource],
    strategy: Strategy,
}

const EMPTY: Row = Row {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    namespaced: true,
    short: &[],
    categories: &[],
    fields: &[],
    subresources: &[],
    strategy: Strategy::Plain,
};

const ROWS: &[Row] = &[
    Row {
        plural: "configmaps",
        kind: "ConfigMap",
        short: &["cm"],
        ..EMPTY
    },
    Row {
        plural: "endpoints",
        kind: "Endpoints",
        short: &["ep"],
        strategy: Strategy::Endpoints,
        ..EMPTY
    },
    Row {
        plural: "events",
        kind: "Event",
        short: &["ev"],
        fields: &[
            field("involvedObject.kind", &["involvedObject", "kind"], ""),
            field(
                "involvedObject.namespace",
                &["involvedObject", "namespace"],
                "",
            ),
            field("involvedObject.name", &["involvedObject", "name"], ""),
            field("involvedObject.uid", &["involvedObject", "uid"], ""),
            field(
                "involvedObject.apiVersion",
                &["involvedObject", "apiVersion"],
                "",
            ),
            field(
                "involvedObject.resourceVersion",
                &["involvedObject", "resourceVersion"],
                "",
            ),
            field(
                "involvedObject.fieldPath",
                &["involvedObject", "fieldPath"],
                "",
            ),
            field("reason", &["reason"], ""),
            field("reportingComponent", &["reportingComponent"], ""),
            field("source", &["source", "component"], ""),
            field("type", &["type"], ""),
        ],
        strategy: Strategy::Event,
        ..EMPTY
    },
    Row {
        plural: "namespaces",
        kind: "Namespace",
        namespaced: false,
        short: &["ns"],
        fields: &[
            field("status.phase", &["status", "phase"], ""),
            field("name", &["metadata", "name"], ""),
        ],
        subresources: &[
            subresource("finalize", "", "v1", "Namespace", &["update"]),
            subresource("status", "", "v1", "Namespace", GET_PATCH_UPDATE),
        ],
        strategy: Strategy::Namespace,
        ..EMPTY
    },
    Row {
        plural: "nodes",
        kind: "Node",
        namespaced: false,
        short: &["no"],
        fields: &[field(
            "spec.unschedulable",
            &["spec", "unschedulable"],
            "false",
        )],
        subresources: &[subresource("status", "", "v1", "Node", GET_PATCH_UPDATE)],
        strategy: Strategy::Node,
        ..EMPTY
    },
    Row {
        plural: "pods",
        kind: "Pod",
        short: &["po"],
        categories: &["all"],
        fields: &[
            field("spec.nodeName", &["spec", "nodeName"], ""),
            field("spec.restartPolicy", &["spec", "restartPolicy"], ""),
            field("spec.schedulerName", &["spec", "schedulerName"], ""),
            field(
                "spec.serviceAccountName",
                &["spec", "serviceAccountName"],
                "",
            ),
            field("spec.hostNetwork", &["spec", "hostNetwork"], "false"),
            field("status.phase", &["status", "phase"], ""),
            field("status.podIP", &["status", "podIP"], ""),
            field(
                "status.nominatedNodeName",
                &["status", "nominatedNodeName"],
                "",
            ),
        ],
        subresources: &[
            subresource("attach", "", "v1", "PodAttachOptions", &["create", "get"]),
            subresource("binding", "", "v1", "Binding", &["create"]),
            subresource("eviction", "policy", "v1", "Eviction", &["create"]),
            subresource("exec", "", "v1", "PodExecOptions", &["create", "get"]),
            subresource("log", "", "v1", "Pod", &["get"]),
            subresource(
                "portforward",
                "",
                "v1",
                "PodPortForwardOptions",
                &["create", "get"],
            ),
            subresource("status", "", "v1", "Pod", GET_PATCH_UPDATE),
        ],
        strategy: Strategy::Pod,
        ..EMPTY
    },
    Row {
        plural: "secrets",
        kind: "Secret",
        fields: &[field("type", &["type"], "")],
        strategy: Strategy::Secret,
        ..EMPTY
    },
    Row {
        plural: "serviceaccounts",
        kind: "ServiceAccount",
        short: &["sa"],
        subresources: &[subresource(
            "token",
            "authentication.k8s.io",
            "v1",
            "TokenRequest",
            &["create"],
        )],
        strategy: Strategy::ServiceAccount,
        ..EMPTY
    },
    Row {
        plural: "services",
        kind: "Service",
        short: &["svc"],
        categories: &["all"],
        fields: &[
            field("spec.clusterIP", &["spec", "clusterIP"], ""),
            field("spec.type", &["spec", "type"], ""),
        ],
        subresources: &[subresource("status", "", "v1", "Service", GET_PATCH_UPDATE)],
        strategy: Strategy::Service,
        ..EMPTY
    },
    Row {
        group: "apps",
        plural: "controllerrevisions",
        kind: "ControllerRevision",
        ..EMPTY
    },
    Row {
        group: "apps",
        plural: "deployments",
        kind: "Deployment",
        short: &["deploy"],
        categories: &["all"],
        subresources: &[
            subresource("scale", "autoscaling", "v1", "Scale", GET_PATCH_UPDATE),
            subresource("status", "apps", "v1", "Deployment", GET_PATCH_UPDATE),
        ],
        strategy: Strategy::Deployment,
        ..EMPTY
    },
    Row {
        group: "apps",
        plural: "replicasets",
        kind: "ReplicaSet",
        short: &["rs"],
        categories: &["all"],
        fields: &[field("status.replicas", &["status", "replicas"], "0")],
        subresources: &[
            subresource("scale", "autoscaling", "v1", "Scale", GET_PATCH_UPDATE),
            subresource("status", "apps", "v1", "ReplicaSet", GET_PATCH_UPDATE),
        ],
        strategy: Strategy::ReplicaSet,
        ..EMPTY
    },
    Row {
        group: "policy",
        plural: "poddisruptionbudgets",
        kind: "PodDisruptionBudget",
        short: &["pdb"],
        subresources: &[subresource(
            "status",
            "policy",
            "v1",
            "PodDisruptionBudget",
            GET_PATCH_UPDATE,
        )],
        strategy: Strategy::PodDisruptionBudget,
        ..EMPTY
    },
    Row {
        group: "coordination.k8s.io",
        plural: "leases",
        kind: "Lease",
        strategy: Strategy::Lease,
        ..EMPTY
    },
    Row {
        group: "discovery.k8s.io",
        plural: "endpointslices",
        kind: "EndpointSlice",
        strategy: Strategy::EndpointSlice,
        ..EMPTY
    },
];

/// The built-in resources.
pub(super) fn builtin() -> Vec<Resource> {
    ROWS.iter()
        .map(|row| Resource {
            group: row.group.into(),
            version: row.version.into(),
            plural: row.plural.into(),
            singular: row.kind.to_lowercase().into(),
            kind: row.kind.into(),
            list_kind: format!("{}List", row.kind).into(),
            namespaced: row.namespaced,
            short_names: row.short.iter().map(|name| (*name).into()).collect(),
            categories: row.categories.iter().map(|name| (*name).into()).collect(),
            verbs: match row.kind {
                // As Kubernetes: a namespace is deleted one at a time.
                "Namespace" => STANDARD
                    .iter()
                    .copied()
                    .filter(|verb| *verb != "deletecollection")
                    .collect(),
                _ => STANDARD.to_vec(),
            },
            subresources: row.subresources.to_vec(),
            fields: row.fields,
            strategy: row.strategy,
            prefix: key::resource(row.group, row.plural),
        })
        .collect()
}
