//! JSON patch (RFC 6902), `application/json-patch+json`.
//!
//! Pure; the result goes through defaults and validation like an update.

use std::slice;

use json_patch::PatchOperation;
use serde_json::Value;

use super::PatchError;

/// As many operations as the API accepts in one patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// As many bytes as the copies of one patch may add, or a few of them would fill the memory.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

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
    let mut copied = 0;
    for operation in &patch.0 {
        if let PatchOperation::Copy(copy) = operation {
            copied += value.pointer(copy.from.as_str()).map_or(0, encoded_len);
            if copied > MAX_COPIED_BYTES {
                return Err(PatchError::CopiedTooMuch {
                    limit: MAX_COPIED_BYTES,
                    actual: copied,
                });
            }
        }
        json_patch::patch(&mut value, slice::from_ref(operation)).map_err(PatchError::Operation)?;
    }
    Ok(value)
}

/// How many bytes of JSON a value is.
fn encoded_len(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => text.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|item| encoded_len(item) + 1).sum::<usize>(),
        Value::Object(map) => {
            let fields = map.iter();
            2 + fields
                .map(|(name, value)| name.len() + 4 + encoded_len(value))
                .sum::<usize>()
        }
    }
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
    #[test]
    fn copies_are_bounded() {
        let mut patch = vec![json!({"op": "add", "path": "/x", "value": ["0123456789"]})];
        patch.extend(vec![
            json!({"op": "copy", "from": "/x", "path": "/x/-"});
            60
        ]);
        let body = serde_json::to_vec(&patch).expect("encodes");
        let error = apply_json_patch(&json!({}), &body).expect_err("doubles sixty times");
        assert!(matches!(error, PatchError::CopiedTooMuch { .. }), "{error}");
        assert!(error.is_unprocessable());
    }

    #[test]
    fn operations_are_bounded() {
        let patch = vec![json!({"op": "test", "path": "", "value": {}}); MAX_OPERATIONS + 1];
        let body = serde_json::to_vec(&patch).expect("encodes");
        let error = apply_json_patch(&json!({}), &body).expect_err("too many");
        assert!(error.is_too_large());
    }
}
