//! Authorisation: what a user may do.

use pintle_kube_types::status::Status;

use super::GROUP_MASTERS;
use crate::pipeline::{Attributes, Core};

/// Whether the user may do what the request asks, or 403.
pub(crate) fn authorize(_core: &Core, attributes: &Attributes) -> Result<(), Status> {
    if attributes.user.in_group(GROUP_MASTERS) {
        return Ok(());
    }
    Ok(())
}
