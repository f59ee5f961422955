//! JSON merge patch (RFC 7396), `application/merge-patch+json`.
//!
//! Pure; the result goes through defaults and validation like an update.

use serde_json::{Map, Value};

use super::{PatchError, json_type};

/// Applies a merge patch to an object; null removes, objects merge, all else replaces.
pub fn merge_patch(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::NotAnObject {
            found: json_type(patch),
        });
    };
    let mut value = current.clone();
    merge_into(&mut value, patch);
    Ok(value)
}

fn merge_into(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(inner) => {
                merge_into(target.entry(name.clone()).or_insert(Value::Null), inner);
            }
            other => {
                target.insert(name.clone(), other.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_removes_and_replaces() {
        let current = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        let patch = json!({"a": {"b": null, "d": {"x": null, "y": 1}}, "l": [3]});
        assert_eq!(
            merge_patch(&current, &patch).expect("applies"),
            json!({"a": {"c": 2, "d": {"y": 1}}, "l": [3]})
        );
        assert!(merge_patch(&current, &json!([1])).is_err());
    }
}
