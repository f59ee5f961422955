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

/// Namespace of the nodes' Leases.
const LEASES: &str = "kube-node-lease";

/// Whether the user may do what the request asks, or 403.
pub(crate) fn authorize(core: &Core, attributes: &Attributes) -> Result<(), Status> {
    authorize_selection(core, attributes, "")
}

/// As [`authorize`], for a list or watch of what `field_selector` selects: a node may list what
/// is its own.
pub(crate) fn authorize_selection(
    core: &Core,
    attributes: &Attributes,
    field_selector: &str,
) -> Result<(), Status> {
    let user = &*attributes.user;
    let allowed = user.in_group(GROUP_MASTERS)
        || is_controller(user)
        || (user.name == "system:kube-scheduler" && scheduler_may(attributes));
    if allowed {
        return Ok(());
    }
    match user.node_name() {
        None => Err(forbidden(attributes, "")),
        Some(node) => node_may(core, attributes, node, field_selector)
            .map_err(|why| forbidden(attributes, &why)),
    }
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

fn forbidden(attributes: &Attributes, why: &str) -> Status {
    let resource = &attributes.resource;
    let full = match &attributes.subresource {
        Some(subresource) => format!("{}/{subresource}", resource.plural),
        None => resource.plural.to_string(),
    };
    let scope = match &attributes.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    };
    Status::forbidden(
        &resource.group_resource(),
        attributes.name.as_deref().unwrap_or_default(),
        format!(
            "User {:?} cannot {} resource {full:?} in API group {:?} {scope}{why}",
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

/// What the agent of `node` may do, or why not: Kubernetes' node authoriser with its
/// reasons (plugin/pkg/auth/authorizer/node).
fn node_may(
    core: &Core,
    attributes: &Attributes,
    node: &str,
    field_selector: &str,
) -> Result<(), String> {
    let verb = attributes.verb;
    let writes = matches!(verb, Verb::Create | Verb::Update | Verb::Patch);
    let name = attributes.name.as_deref();
    let plain = |allowed: bool| {
        if allowed { Ok(()) } else { Err(String::new()) }
    };
    let related = |is_related: bool| {
        if is_related {
            Ok(())
        } else {
            Err(format!(
                "no relationship found between node '{node}' and this object"
            ))
        }
    };
    match (
        attributes.resource.plural.as_ref(),
        attributes.subresource.as_deref(),
    ) {
        ("nodes", None | Some("status")) => match (verb, name) {
            // Admission sees to it that the new object is this node's.
            (Verb::Create, _) => Ok(()),
            (Verb::Get | Verb::Update | Verb::Patch, Some(name)) if name == node => Ok(()),
            (Verb::Get, Some(other)) => Err(format!(
                "node '{node}' cannot read '{other}', only its own Node object"
            )),
            (Verb::List | Verb::Watch, _) if selects(field_selector, "metadata.name", node) => {
                Ok(())
            }
            (Verb::List | Verb::Watch, _) => Err(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            (Verb::Update | Verb::Patch, Some(other)) => Err(format!(
                "node '{node}' cannot modify '{other}', only its own Node object"
            )),
            _ => plain(false),
        },
        ("pods", None) => match verb {
            // Only mirror pods of this node pass admission.
            Verb::Create => Ok(()),
            Verb::List | Verb::Watch if selects(field_selector, "spec.nodeName", node) => Ok(()),
            Verb::List | Verb::Watch => {
                Err("can only list/watch pods with spec.nodeName field selector".to_owned())
            }
            Verb::Get | Verb::Delete => related(on_node(core, attributes, node)),
            _ => plain(false),
        },
        ("pods", Some("status")) => {
            plain(matches!(verb, Verb::Get | Verb::Update | Verb::Patch))?;
            related(on_node(core, attributes, node))
        }
        ("pods", Some("eviction")) => {
            plain(verb == Verb::Create)?;
            related(on_node(core, attributes, node))
        }
        // What a kube-proxy on the node would read.
        ("services" | "endpoints" | "endpointslices", None) => plain(reads(verb)),
        ("events", None) => plain(writes),
        ("leases", None) => {
            plain(writes || matches!(verb, Verb::Get | Verb::Delete))?;
            if attributes.namespace.as_deref() != Some(LEASES) {
                return Err(format!(
                    "can only access leases in the {LEASES:?} system namespace"
                ));
            }
            if name.is_none_or(|name| name == node) {
                Ok(())
            } else {
                Err(
                    "can only access node lease with the same name as the requesting node"
                        .to_owned(),
                )
            }
        }
        ("secrets" | "configmaps" | "serviceaccounts", None) => {
            plain(verb == Verb::Get)?;
            related(name.is_some_and(|name| used(core, attributes, node, name)))
        }
        ("serviceaccounts", Some("token")) => {
            plain(verb == Verb::Create)?;
            related(name.is_some_and(|name| used(core, attributes, node, name)))
        }
        _ => plain(false),
    }
}

/// Whether a field selector lets only objects pass whose `field` is `value`.
fn selects(field_selector: &str, field: &str, value: &str) -> bool {
    field_selector.split(',').any(|term| {
        term.trim()
            .strip_prefix(field)
            .and_then(|rest| rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')))
            == Some(value)
    })
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
    fn a_selector_has_to_name_the_node() {
        for (selector, wanted) in [
            ("spec.nodeName=a", true),
            ("status.phase=Running,spec.nodeName==a", true),
            ("spec.nodeName!=a", false),
            ("spec.nodeName=ab", false),
            ("spec.nodeNames=a", false),
            ("", false),
        ] {
            assert_eq!(
                selects(selector, "spec.nodeName", "a"),
                wanted,
                "{selector}"
            );
        }
    }

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
