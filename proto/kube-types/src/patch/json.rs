//! JSON patch (RFC 6902), `application/json-patch+json`.
//!
//! Pure; the result goes through defaults and validation like an update.

use serde_json::Value;

use super::PatchError;

/// As many operations as the API accepts in one patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// Applies a JSON patch: all operations, or none.
pub fn apply_json_patch(current: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let patch: json_patch::Patch = serde_json::from_slice(patch).map_err(PatchError::Decode)?;
    if patch.0.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations {
            limit: MAX_OPERATIONS,
            actual: patch.0.len(),
        });
    }
    let mut value = current.clone();
    json_patch::patch(&mut value, &patch).map_err(PatchError::Operation)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_or_nothing() {
        let current = json!({"spec": {"replicas": 1}});
        let patched = apply_json_patch(
            &current,
            br#"[{"op":"replace","path":"/spec/replicas","value":3}]"#,
        )
        .expect("applies");
        assert_eq!(patched, json!({"spec": {"replicas": 3}}));
        let error = apply_json_patch(
            &current,
            br#"[{"op":"replace","path":"/spec/replicas","value":3},{"op":"test","path":"/spec/replicas","value":4}]"#,
        )
        .expect_err("the test fails");
        assert!(error.is_unprocessable());
        let error = apply_json_patch(&current, b"{}").expect_err("no list");
        assert!(!error.is_unprocessable());
    }
}
