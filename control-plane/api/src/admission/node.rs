//! `NodeRestriction`: a node's agent writes its own node and the pods on it, nothing else. And
//! `TaintNodesByCondition`: no pod is placed on a node before it is ready.

use std::collections::BTreeSet;

use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use serde_json::{Value, json};

use super::display_name;
use crate::pipeline::Attributes;
use crate::registry::strategy::Strategy;

/// Annotation of a pod that mirrors a static one.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Taint of a node that is not ready; the node life cycle takes it away.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// A new node waits for its first report: without the taint it could get pods before anybody has
/// looked at it.
pub(super) fn taint_new(node: &mut Object) {
    let mut taints = match node.get_path(&["spec", "taints"]) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    let tainted = taints
        .iter()
        .any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule");
    if !tainted {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        node.set_path(&["spec", "taints"], Value::Array(taints));
    }
}

pub(super) fn restrict_create(attributes: &Attributes, object: &Object) -> Result<(), Status> {
    let Some(node) = attributes.user.node_name() else {
        return Ok(());
    };
    let refuse = |why: String| {
        Err(Status::forbidden(
            &attributes.resource.group_resource(),
            display_name(object),
            why,
        ))
    };
    match attributes.resource.strategy {
        Strategy::Node if object.name() != Some(node) => refuse(format!(
            "node {node:?} is not allowed to modify node {:?}",
            object.name().unwrap_or_default()
        )),
        Strategy::Node => {
            let labels = forbidden_labels(object, None);
            if labels.is_empty() {
                return Ok(());
            }
            refuse(format!(
                "node {node:?} is not allowed to set the following labels: {}",
                labels.join(", ")
            ))
        }
        Strategy::Pod if object.annotation(MIRROR).is_none() => refuse(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        )),
        Strategy::Pod if object.str_at(&["spec", "nodeName"]) != Some(node) => refuse(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        )),
        Strategy::Pod if object.str_at(&["spec", "serviceAccountName"]).is_some() => refuse(
            format!("node {node:?} can not create pods that reference a service account"),
        ),
        Strategy::Lease if object.name() != Some(node) => refuse(format!(
            "node {node:?} can only access leases in the \"kube-node-lease\" namespace with the same name as the node"
        )),
        _ => Ok(()),
    }
}

pub(super) fn restrict_update(
    attributes: &Attributes,
    object: &Object,
    old: &Object,
) -> Result<(), Status> {
    let Some(node) = attributes.user.node_name() else {
        return Ok(());
    };
    if attributes.resource.strategy != Strategy::Node {
        return Ok(());
    }
    let refuse = |why: String| {
        Err(Status::forbidden(
            &attributes.resource.group_resource(),
            display_name(object),
            why,
        ))
    };
    let tainted = attributes.subresource.is_none()
        && object.get_path(&["spec", "taints"]) != old.get_path(&["spec", "taints"]);
    if tainted {
        return refuse(format!("node {node:?} is not allowed to modify taints"));
    }
    let labels = forbidden_labels(object, Some(old));
    if !labels.is_empty() {
        return refuse(format!(
            "is not allowed to modify labels: {}",
            labels.join(", ")
        ));
    }
    Ok(())
}

/// A token that a node asks for must be bound to a pod on it.
pub(crate) fn restrict_token(
    attributes: &Attributes,
    bound: Option<&(String, String, String)>,
    reference_uid: &str,
    pod_node: Option<&str>,
) -> Result<(), Status> {
    let Some(node) = attributes.user.node_name() else {
        return Ok(());
    };
    let why = match bound {
        Some((kind, _, _)) if kind == "Pod" => {
            if reference_uid.is_empty() {
                "node requested token with a pod binding without a uid"
            } else if pod_node == Some(node) {
                return Ok(());
            } else {
                "node requested token bound to a pod scheduled on a different node"
            }
        }
        _ => "node requested token not bound to a pod",
    };
    Err(Status::forbidden(
        &attributes.resource.group_resource(),
        attributes.name.as_deref().unwrap_or_default(),
        why,
    ))
}

/// Labels an agent may set although they are of Kubernetes' own domains.
const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Labels that were set, changed or removed and are not an agent's to touch: workloads that
/// must not run on a node that was broken into are kept away by them.
fn forbidden_labels(object: &Object, old: Option<&Object>) -> Vec<String> {
    let (new, old) = (object.labels(), old.map(Object::labels).unwrap_or_default());
    let names: BTreeSet<&str> = new.keys().chain(old.keys()).copied().collect();
    names
        .into_iter()
        .filter(|name| new.get(name) != old.get(name) && !is_agents(name))
        .map(str::to_owned)
        .collect()
}

fn is_agents(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    let is_kubernetes = within("kubernetes.io") || within("k8s.io");
    !is_kubernetes
        || KUBELET_LABELS.contains(&label)
        || within("kubelet.kubernetes.io")
        || within("node.kubernetes.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_is_tainted_once() {
        let mut node = Object::default();
        node.set_path(
            &["spec", "taints"],
            json!([{"key": "gpu", "effect": "NoExecute"}]),
        );
        taint_new(&mut node);
        taint_new(&mut node);
        assert_eq!(
            node.get_path(&["spec", "taints"]),
            Some(&json!([
                {"key": "gpu", "effect": "NoExecute"},
                {"key": NOT_READY, "effect": "NoSchedule"},
            ]))
        );
    }

    #[test]
    fn labels_of_kubernetes_own_domains_are_mostly_not_an_agents() {
        for (label, may) in [
            ("disk", true),
            ("example.com/rack", true),
            ("kubernetes.io/hostname", true),
            ("node.kubernetes.io/anything", true),
            ("a.kubelet.kubernetes.io/b", true),
            ("xkubernetes.io/b", true),
            ("node-role.kubernetes.io/control-plane", false),
            ("node-restriction.kubernetes.io/pci", false),
            ("example.com.node-restriction.kubernetes.io/fips", false),
            ("k8s.io/a", false),
        ] {
            assert_eq!(is_agents(label), may, "{label}");
        }
    }
}
