//! Authorisation: what a user may do.
//!
//! Members of `system:masters` may do everything, the control plane's own components what
//! their work takes, a node's agent what concerns its node (as Kubernetes' node authoriser),
//! and nobody else anything but discovery. Watches nothing; reads the hub's pods to know what
//! concerns a node.

use pintle_kube_types::gvk::GroupResource;
use pintle_kube_types::status::Status;
use serde_json::Value;

use super::{GROUP_AUTHENTICATED, GROUP_MASTERS, SERVICE_ACCOUNT_PREFIX, UserInfo};
use crate::pipeline::{Attributes, Core, Verb};
use crate::storage::key;

/// Service accounts of kube-system that the controllers act as.
const CONTROLLERS: &[&str] = &[
    "attachdetach-controller",
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemon-set-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoint-controller",
    "endpointslice-controller",
    "endpointslicemirroring-controller",
    "ephemeral-volume-controller",
    "generic-garbage-collector",
    "horizontal-pod-autoscaler",
    "job-controller",
    "namespace-controller",
    "node-controller",
    "persistent-volume-binder",
    "pod-garbage-collector",
    "replicaset-controller",
    "replication-controller",
    "resourcequota-controller",
    "root-ca-cert-publisher",
    "route-controller",
    "service-account-controller",
    "service-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-controller",
];

/// Whether the user may do what the request asks, or 403.
pub(crate) fn authorize(core: &Core, attributes: &Attributes) -> Result<(), Status> {
    let user = &*attributes.user;
    let allowed = user.in_group(GROUP_MASTERS)
        || is_controller(user)
        || (user.name == "system:kube-scheduler" && scheduler_may(attributes))
        || user
            .node_name()
            .is_some_and(|node| node_may(core, attributes, node));
    if allowed {
        return Ok(());
    }
    Err(forbidden(attributes))
}

/// Whether the user may use a path that is no resource (discovery, health, metrics).
pub(crate) fn authorize_path(user: &UserInfo, verb: &str, path: &str) -> Result<(), Status> {
    let open = [
        "/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz",
    ];
    let public = open
        .iter()
        .any(|prefix| path == *prefix || path.starts_with(&format!("{prefix}/")));
    if user.in_group(GROUP_MASTERS)
        || (verb == "get" && public && user.in_group(GROUP_AUTHENTICATED))
    {
        return Ok(());
    }
    Err(Status::forbidden(
        &GroupResource::new("", ""),
        "",
        format!("User {:?} cannot {verb} path {path:?}", user.name),
    ))
}

fn forbidden(attributes: &Attributes) -> Status {
    let resource = &attributes.resource;
    let full = match &attributes.subresource {
        Some(subresource) => format!("{}/{subresource}", resource.plural),
        None => resource.plural.to_string(),
    };
    let scope = match &attributes.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    Status::forbidden(
        &resource.group_resource(),
        attributes.name.as_deref().unwrap_or_default(),
        format!(
            "User {:?} cannot {} resource {full:?} in API group {:?} {scope}",
            attributes.user.name,
            attributes.verb.as_str(),
            resource.group,
        ),
    )
}

fn is_controller(user: &UserInfo) -> bool {
    user.name == "system:kube-controller-manager"
        || user
            .name
            .strip_prefix(SERVICE_ACCOUNT_PREFIX)
            .and_then(|rest| rest.strip_prefix("kube-system:"))
            .is_some_and(|name| CONTROLLERS.contains(&name))
}

fn reads(verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Watch)
}

fn scheduler_may(attributes: &Attributes) -> bool {
    let resource = attributes.resource.plural.as_ref();
    match (resource, attributes.subresource.as_deref()) {
        ("secrets", _) => false,
        (_, None) if reads(attributes.verb) => true,
        ("pods", Some("binding")) => attributes.verb == Verb::Create,
        ("pods", Some("status")) => matches!(attributes.verb, Verb::Update | Verb::Patch),
        ("pods", None) => attributes.verb == Verb::Delete,
        ("events", None) => matches!(attributes.verb, Verb::Create | Verb::Update | Verb::Patch),
        ("leases", None) => matches!(attributes.verb, Verb::Create | Verb::Update | Verb::Patch),
        _ => false,
    }
}

/// What the agent of `node` may do.
fn node_may(core: &Core, attributes: &Attributes, node: &str) -> bool {
    let verb = attributes.verb;
    let writes = matches!(verb, Verb::Create | Verb::Update | Verb::Patch);
    let name = attributes.name.as_deref();
    match (
        attributes.resource.plural.as_ref(),
        attributes.subresource.as_deref(),
    ) {
        ("nodes", None | Some("status")) => {
            reads(verb) || (writes && name.is_none_or(|name| name == node))
        }
        ("pods", None) => match verb {
            Verb::List | Verb::Watch | Verb::Create => true,
            Verb::Get | Verb::Delete => on_node(core, attributes, node),
            _ => false,
        },
        ("pods", Some("status")) => {
            matches!(verb, Verb::Get | Verb::Update | Verb::Patch)
                && on_node(core, attributes, node)
        }
        ("pods", Some("eviction")) => verb == Verb::Create && on_node(core, attributes, node),
        ("services" | "endpoints" | "endpointslices", None) => reads(verb),
        ("events", None) => writes,
        ("leases", None) => {
            attributes.namespace.as_deref() == Some("kube-node-lease")
                && (writes || verb == Verb::Get)
                && name.is_none_or(|name| name == node)
        }
        ("secrets" | "configmaps", None) => {
            verb == Verb::Get && name.is_some_and(|name| used(core, attributes, node, name))
        }
        ("serviceaccounts", None) => {
            verb == Verb::Get && name.is_some_and(|name| used(core, attributes, node, name))
        }
        ("serviceaccounts", Some("token")) => {
            verb == Verb::Create && name.is_some_and(|name| used(core, attributes, node, name))
        }
        _ => false,
    }
}

fn pod_prefix() -> String {
    key::resource("", "pods")
}

fn on_node(core: &Core, attributes: &Attributes, node: &str) -> bool {
    let Some(name) = attributes.name.as_deref() else {
        return false;
    };
    let key = key::object(&pod_prefix(), attributes.namespace.as_deref(), name);
    // A pod that is gone concerns nobody: let the request find that out.
    match core.read(&key) {
        Ok(Some(pod)) => pod
            .object()
            .is_ok_and(|pod| pod.str_at(&["spec", "nodeName"]) == Some(node)),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Whether a pod on the node uses the object the request names.
fn used(core: &Core, attributes: &Attributes, node: &str, name: &str) -> bool {
    let scope = key::scope(&pod_prefix(), attributes.namespace.as_deref());
    let kind = attributes.resource.kind.as_ref();
    core.hub()
        .resource(&pod_prefix())
        .snapshot(&scope)
        .entries
        .iter()
        .filter_map(|entry| entry.value().object().ok())
        .filter(|pod| pod.str_at(&["spec", "nodeName"]) == Some(node))
        .any(|pod| {
            pod_uses(
                &pod.get_path(&["spec"]).cloned().unwrap_or_default(),
                kind,
                name,
            )
        })
}

/// Whether a pod's spec names an object: where does not matter, for every place a Secret,
/// ConfigMap or ServiceAccount can be named in is one the kubelet reads.
fn pod_uses(spec: &Value, kind: &str, name: &str) -> bool {
    let references: &[(&str, &str)] = match kind {
        "Secret" => &[
            ("secretRef", "name"),
            ("secretKeyRef", "name"),
            ("secret", "secretName"),
            ("secret", "name"),
            ("imagePullSecrets", "name"),
        ],
        "ConfigMap" => &[
            ("configMapRef", "name"),
            ("configMapKeyRef", "name"),
            ("configMap", "name"),
        ],
        _ => return spec.get("serviceAccountName").and_then(Value::as_str) == Some(name),
    };
    walk(spec, "", references, name)
}

fn walk(value: &Value, under: &str, references: &[(&str, &str)], name: &str) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(field, value)| {
            (value.as_str() == Some(name)
                && references
                    .iter()
                    .any(|(parent, child)| *parent == under && child == field))
                || walk(value, field, references, name)
        }),
        Value::Array(list) => list.iter().any(|item| walk(item, under, references, name)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_uses_what_its_spec_names() {
        let spec = json!({
            "serviceAccountName": "builder",
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"name": "a", "configMap": {"name": "settings"}},
                {"name": "b", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
            ],
            "containers": [{"name": "c", "env": [
                {"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "x"}}},
            ]}],
        });
        for (kind, name, used) in [
            ("Secret", "registry", true),
            ("Secret", "projected", true),
            ("Secret", "keys", true),
            ("Secret", "settings", false),
            ("ConfigMap", "settings", true),
            ("ConfigMap", "a", false),
            ("ServiceAccount", "builder", true),
            ("ServiceAccount", "default", false),
        ] {
            assert_eq!(pod_uses(&spec, kind, name), used, "{kind} {name}");
        }
    }
}
