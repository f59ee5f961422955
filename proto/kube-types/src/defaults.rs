//! Defaults: what Kubernetes fills in where a client said nothing.
//!
//! Runs on every object before validation, and on objects read from old versions; idempotent.

use crate::gvk::GroupVersionKind;
use crate::object::Object;

/// Fills in the defaults of a kind; unknown kinds are left alone.
pub fn apply_defaults(gvk: &GroupVersionKind, object: &mut Object) {
    let _ = (gvk, object);
}
