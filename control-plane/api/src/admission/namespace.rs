//! `NamespaceLifecycle`: objects go only into namespaces that exist and are not ending, and
//! the namespaces every cluster has stay.

use pintle_kube_types::Object;
use pintle_kube_types::gvk::GroupResource;
use pintle_kube_types::status::{Cause, Status};
use pintle_store::{Compare, CompareOp, CompareTarget};

use super::display_name;
use crate::pipeline::persist::store_failed;
use crate::pipeline::{Attributes, Core};
use crate::storage::key;
use crate::storage::value::Encoded;

/// Namespaces that may not be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks the namespace of a new object; the condition is that it is still the same one when
/// the object is written, so that nothing slips into a namespace after its last object went.
pub(super) fn exists(
    core: &Core,
    attributes: &Attributes,
    object: &Object,
) -> Result<Option<Compare>, Status> {
    let Some(namespace) = &attributes.namespace else {
        return Ok(None);
    };
    let key = key::object(&key::resource("", "namespaces"), None, namespace);
    let Some(kv) = core.store().get(&key).map_err(store_failed)? else {
        return Err(Status::not_found(
            &GroupResource::new("", "namespaces"),
            namespace,
        ));
    };
    let found = Encoded::from_stored(kv.value)
        .and_then(|value| value.object())
        .map_err(Status::internal_error)?;
    let ending = found.deletion_timestamp().is_some()
        || found.str_at(&["status", "phase"]) == Some("Terminating");
    if ending {
        let mut status = Status::forbidden(
            &attributes.resource.group_resource(),
            display_name(object),
            format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            ),
        );
        if let Some(details) = &mut status.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating".to_owned(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
        }
        return Err(status);
    }
    Ok(Some(Compare {
        key,
        end: bytes::Bytes::new(),
        target: CompareTarget::CreateRevision(kv.create_revision),
        op: CompareOp::Equal,
    }))
}

/// Refuses to delete a namespace every cluster has.
pub(crate) fn may_delete(attributes: &Attributes, name: &str) -> Result<(), Status> {
    if attributes.resource.kind == "Namespace" && IMMORTAL.contains(&name) {
        return Err(Status::forbidden(
            &attributes.resource.group_resource(),
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
