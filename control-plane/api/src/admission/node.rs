//! `NodeRestriction`: a node's agent writes its own node and the pods on it, nothing else. And
//! `TaintNodesByCondition`: no pod is placed on a node before it is ready.

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
    let tainted = attributes.resource.strategy == Strategy::Node
        && attributes.subresource.is_none()
        && object.get_path(&["spec", "taints"]) != old.get_path(&["spec", "taints"]);
    if tainted {
        return Err(Status::forbidden(
            &attributes.resource.group_resource(),
            display_name(object),
            format!("node {node:?} is not allowed to modify taints"),
        ));
    }
    Ok(())
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
}
