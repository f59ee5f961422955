//! Validation: whether an object (or a change of one) is allowed, in Kubernetes' words.
//!
//! Runs after decoding and defaults, before anything is stored.

use crate::field::ErrorList;
use crate::gvk::GroupVersionKind;
use crate::object::Object;

/// Whether a new object is valid.
pub fn validate_create(gvk: &GroupVersionKind, object: &Object) -> ErrorList {
    let _ = (gvk, object);
    ErrorList::new()
}

/// Whether `new` may take the place of `old`.
pub fn validate_update(gvk: &GroupVersionKind, new: &Object, old: &Object) -> ErrorList {
    let _ = (gvk, new, old);
    ErrorList::new()
}

/// Whether the status of `new` may take the place of that of `old`.
pub fn validate_status_update(gvk: &GroupVersionKind, new: &Object, old: &Object) -> ErrorList {
    let _ = (gvk, new, old);
    ErrorList::new()
}
