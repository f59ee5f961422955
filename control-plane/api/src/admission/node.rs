//! `NodeRestriction`: a node's agent writes its own node and the pods on it, nothing else.

use pintle_kube_types::Object;
use pintle_kube_types::status::Status;

use super::display_name;
use crate::pipeline::Attributes;
use crate::registry::strategy::Strategy;

/// Annotation of a pod that mirrors a static one.
const MIRROR: &str = "kubernetes.io/config.mirror";

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
