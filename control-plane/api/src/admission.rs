//! Admission: the third module of the pipeline. It may change an object before validation, or
//! refuse it for reasons that lie outside it.
//!
//! Watches nothing; reads the namespace, the service account and nothing else. The plugins
//! run in Kubernetes' order.

use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use pintle_store::Compare;

use crate::pipeline::{Attributes, Core};
use crate::registry::strategy::Strategy;

mod namespace;
mod node;
mod pod;
mod service_account;

pub(crate) use namespace::may_delete;
pub(crate) use node::restrict_token;

/// Admits a new object; answers the condition under which it may be written.
pub(crate) fn admit_create(
    core: &Core,
    attributes: &Attributes,
    object: &mut Object,
) -> Result<Option<Compare>, Status> {
    let condition = namespace::exists(core, attributes, object)?;
    node::restrict_create(attributes, object)?;
    if attributes.resource.strategy == Strategy::Node {
        node::taint_new(object);
    }
    if attributes.resource.strategy == Strategy::Pod {
        service_account::inject(core, attributes, object)?;
        pod::tolerate_lost_nodes(core.config().default_tolerations, object);
        pod::prioritise(attributes, object)?;
    }
    Ok(condition)
}

/// Admits a changed object.
pub(crate) fn admit_update(
    attributes: &Attributes,
    object: &Object,
    old: &Object,
) -> Result<(), Status> {
    node::restrict_update(attributes, object, old)
}

/// The name an object will be refused under: its own, or what it will be generated from.
fn display_name(object: &Object) -> &str {
    object
        .name()
        .filter(|name| !name.is_empty())
        .or(object.generate_name())
        .unwrap_or_default()
}
