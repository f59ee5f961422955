//! Strategic merge patch, `application/strategic-merge-patch+json`.
//!
//! Like a merge patch, but lists with a merge key merge by that key, and `$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList/…` and `$setElementOrder/…` steer it. Pure; the result goes through
//! defaults and validation like an update.

use serde_json::{Map, Value};

use super::{PatchError, json_type};
use crate::schema::{Field, Schema};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch with the merge keys of `schema`.
pub fn strategic_merge(
    current: &Value,
    patch: &Value,
    schema: &Schema,
) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::NotAnObject {
            found: json_type(patch),
        });
    };
    let current = current.as_object().cloned().unwrap_or_default();
    Ok(Value::Object(merge_map(current, patch, Some(schema), "")?))
}

/// How a member of a map merges.
#[derive(Clone, Copy)]
struct Member<'a> {
    schema: Option<&'a Schema>,
    field: Option<&'a Field>,
}

impl<'a> Member<'a> {
    fn of(schema: Option<&'a Schema>, name: &str) -> Self {
        Self {
            schema: schema.and_then(|s| s.member(name)),
            field: schema.and_then(|s| s.field(name)),
        }
    }

    fn merges(self) -> bool {
        self.field.is_some_and(|f| f.patch.merge)
    }

    fn merge_key(self) -> Option<&'a str> {
        self.field?.patch.merge_key.as_deref()
    }

    fn items(self) -> Option<&'a Schema> {
        self.schema?.items()
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn merge_map(
    mut current: Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Option<&Schema>,
    path: &str,
) -> Result<Map<String, Value>, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(strip_map(patch, schema)),
            Some("delete") => Ok(Map::new()),
            Some("merge") => {
                let mut rest = patch.clone();
                rest.remove(DIRECTIVE);
                merge_map(current, &rest, schema, path)
            }
            _ => Err(PatchError::Directive {
                path: path.to_owned(),
                directive: directive.to_string(),
            }),
        };
    }
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        retain_keys(&mut current, patch, keys, path)?;
    }
    for (name, value) in patch {
        if name == RETAIN_KEYS {
            continue;
        }
        if let Some(field) = name.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(&mut current, field, value);
            continue;
        }
        if let Some(field) = name.strip_prefix(ELEMENT_ORDER) {
            // Beside a patch of the list it steers that merge; alone it only reorders.
            if !patch.contains_key(field) {
                reorder_only(&mut current, field, value, schema, path)?;
            }
            continue;
        }
        let member = Member::of(schema, name);
        match value {
            Value::Null => {
                current.remove(name);
            }
            Value::Object(inner) => {
                let old = match current.remove(name) {
                    Some(Value::Object(old)) => old,
                    _ => Map::new(),
                };
                let deletes = inner.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
                let merged = merge_map(old, inner, member.schema, &join(path, name))?;
                if !deletes {
                    current.insert(name.clone(), Value::Object(merged));
                }
            }
            Value::Array(list) if member.merges() => {
                let old = match current.remove(name) {
                    Some(Value::Array(old)) => old,
                    _ => Vec::new(),
                };
                let order = patch.get(&format!("{ELEMENT_ORDER}{name}"));
                let merged = merge_list(&old, list, order, member, &join(path, name))?;
                current.insert(name.clone(), Value::Array(merged));
            }
            Value::Array(list) => {
                let list = list
                    .iter()
                    .map(|item| strip(item, member.items()))
                    .collect();
                current.insert(name.clone(), Value::Array(list));
            }
            other => {
                current.insert(name.clone(), other.clone());
            }
        }
    }
    Ok(current)
}

/// Removes directives and nulls from what is taken over as a whole.
fn strip(value: &Value, schema: Option<&Schema>) -> Value {
    match value {
        Value::Object(map) => Value::Object(strip_map(map, schema)),
        Value::Array(list) => {
            let items = schema.and_then(Schema::items);
            Value::Array(list.iter().map(|item| strip(item, items)).collect())
        }
        other => other.clone(),
    }
}

fn strip_map(map: &Map<String, Value>, schema: Option<&Schema>) -> Map<String, Value> {
    map.iter()
        .filter(|(name, value)| {
            !value.is_null()
                && name.as_str() != DIRECTIVE
                && name.as_str() != RETAIN_KEYS
                && !name.starts_with(DELETE_PRIMITIVES)
                && !name.starts_with(ELEMENT_ORDER)
        })
        .map(|(name, value)| {
            let member = Member::of(schema, name);
            let value = match value {
                // Elements to delete delete nothing here.
                Value::Array(list) if member.merges() => Value::Array(
                    list.iter()
                        .filter(|item| item.get(DIRECTIVE).is_none())
                        .map(|item| strip(item, member.items()))
                        .collect(),
                ),
                other => strip(other, member.schema),
            };
            (name.clone(), value)
        })
        .collect()
}

fn retain_keys(
    current: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    keys: &Value,
    path: &str,
) -> Result<(), PatchError> {
    let error = |why| PatchError::RetainKeys {
        path: path.to_owned(),
        why,
    };
    let keys: Option<Vec<&str>> = keys
        .as_array()
        .and_then(|list| list.iter().map(Value::as_str).collect());
    let keys = keys.ok_or_else(|| error("it must be a list of field names"))?;
    let all_listed = patch.iter().all(|(name, value)| {
        name.starts_with('$') || value.is_null() || keys.contains(&name.as_str())
    });
    if !all_listed {
        return Err(error("it must hold every field of the patch"));
    }
    current.retain(|name, _| keys.contains(&name.as_str()));
    Ok(())
}

fn delete_primitives(current: &mut Map<String, Value>, field: &str, values: &Value) {
    if let (Some(Value::Array(list)), Value::Array(values)) = (current.get_mut(field), values) {
        list.retain(|item| !values.contains(item));
    }
}

fn reorder_only(
    current: &mut Map<String, Value>,
    field: &str,
    order: &Value,
    schema: Option<&Schema>,
    path: &str,
) -> Result<(), PatchError> {
    let member = Member::of(schema, field);
    if let Some(Value::Array(list)) = current.get_mut(field) {
        let old = std::mem::take(list);
        let server: Vec<Value> = old.clone();
        *list = reorder(old, &server, order, member, &join(path, field))?;
    }
    Ok(())
}

fn merge_list(
    current: &[Value],
    patch: &[Value],
    order: Option<&Value>,
    member: Member<'_>,
    path: &str,
) -> Result<Vec<Value>, PatchError> {
    let merged = match member.merge_key() {
        Some(key) => merge_by_key(current.to_vec(), patch, key, member, path)?,
        None => merge_primitives(current.to_vec(), patch),
    };
    match order {
        Some(order) => {
            check_order(patch, order, member, path)?;
            reorder(merged, current, order, member, path)
        }
        None => Ok(merged),
    }
}

fn merge_primitives(mut current: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    for item in patch {
        if !current.contains(item) {
            current.push(item.clone());
        }
    }
    current
}

/// The value of the merge key; `null` never identifies.
fn key_of<'a>(item: &'a Value, key: &str) -> Option<&'a Value> {
    item.get(key).filter(|value| !value.is_null())
}

fn require_key<'a>(item: &'a Value, key: &str) -> Result<&'a Value, PatchError> {
    key_of(item, key).ok_or_else(|| PatchError::NoMergeKey {
        element: item.to_string(),
        key: key.to_owned(),
    })
}

fn merge_by_key(
    mut current: Vec<Value>,
    patch: &[Value],
    key: &str,
    member: Member<'_>,
    path: &str,
) -> Result<Vec<Value>, PatchError> {
    for item in patch {
        if !item.is_object() {
            return Err(PatchError::ListElement {
                path: path.to_owned(),
                found: json_type(item),
            });
        }
    }
    // `- $patch: replace` replaces the list by the other elements.
    let replaces = patch
        .iter()
        .any(|item| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace"));
    if replaces {
        return Ok(patch
            .iter()
            .filter(|item| item.get(DIRECTIVE).is_none())
            .map(|item| strip(item, member.items()))
            .collect());
    }
    for item in patch {
        let Value::Object(map) = item else { continue };
        let id = require_key(item, key)?;
        match map.get(DIRECTIVE).map(Value::as_str) {
            Some(Some("delete")) => {
                current.retain(|old| key_of(old, key) != Some(id));
                continue;
            }
            None | Some(Some("merge")) => {}
            Some(_) => {
                return Err(PatchError::Directive {
                    path: path.to_owned(),
                    directive: map.get(DIRECTIVE).map(Value::to_string).unwrap_or_default(),
                });
            }
        }
        let position = current.iter().position(|old| key_of(old, key) == Some(id));
        let items = member.items();
        match position.and_then(|i| current.get_mut(i)) {
            Some(slot) => {
                let old = match slot.take() {
                    Value::Object(old) => old,
                    _ => Map::new(),
                };
                *slot = Value::Object(merge_map(old, map, items, path)?);
            }
            None => current.push(Value::Object(merge_map(Map::new(), map, items, path)?)),
        }
    }
    Ok(current)
}

/// What identifies an element in `$setElementOrder`: its key, or the scalar itself.
fn identity<'a>(item: &'a Value, member: Member<'_>) -> Option<&'a Value> {
    match member.merge_key() {
        Some(key) => key_of(item, key),
        None => Some(item),
    }
}

fn check_order(
    patch: &[Value],
    order: &Value,
    member: Member<'_>,
    path: &str,
) -> Result<(), PatchError> {
    let error = |why| PatchError::ElementOrder {
        path: path.to_owned(),
        why,
    };
    let order = order.as_array().ok_or_else(|| error("it must be a list"))?;
    let mut position = 0;
    for item in patch {
        if item.get(DIRECTIVE).is_some() {
            continue;
        }
        let Some(id) = identity(item, member) else {
            continue;
        };
        let found = order
            .iter()
            .skip(position)
            .position(|o| identity(o, member) == Some(id));
        match found {
            Some(step) => position += step + 1,
            None => {
                return Err(error(
                    "it must hold every element of the patch in the same order",
                ));
            }
        }
    }
    Ok(())
}

/// Puts the elements named in `order` into that order; those only the server has keep their place
/// relative to their neighbours.
fn reorder(
    merged: Vec<Value>,
    server: &[Value],
    order: &Value,
    member: Member<'_>,
    path: &str,
) -> Result<Vec<Value>, PatchError> {
    let order = order.as_array().ok_or_else(|| PatchError::ElementOrder {
        path: path.to_owned(),
        why: "it must be a list",
    })?;
    let rank = |item: &Value| {
        let id = identity(item, member)?;
        order.iter().position(|o| identity(o, member) == Some(id))
    };
    let server_rank = |item: &Value| {
        let id = identity(item, member)?;
        server.iter().position(|s| identity(s, member) == Some(id))
    };
    let (mut listed, only_server): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| rank(item).is_some());
    listed.sort_by_key(|item| rank(item));
    let mut result = Vec::with_capacity(listed.len() + only_server.len());
    let mut rest = only_server.into_iter().peekable();
    for item in listed {
        // An element of the server's goes before the first listed one it preceded there.
        if let Some(at) = server_rank(&item) {
            while let Some(next) = rest.peek() {
                match server_rank(next) {
                    Some(place) if place < at => result.extend(rest.next()),
                    _ => break,
                }
            }
        }
        result.push(item);
    }
    result.extend(rest);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::DeepMerge;
    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::gvk::GroupVersionKind;
    use crate::schema::schema_for;

    fn pod_schema() -> Arc<Schema> {
        schema_for(&GroupVersionKind::of("", "v1", "Pod")).expect("built in")
    }

    fn patched(current: &Value, patch: &Value) -> Value {
        strategic_merge(current, patch, &pod_schema()).expect("applies")
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers write the value in place"
    )]
    fn pod(containers: Value) -> Value {
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn lists_merge_by_key() {
        let current = pod(json!([
            {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}]},
            {"name": "b", "image": "b:1"},
        ]));
        let patch = pod(json!([
            {"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "$patch": "delete"}]},
            {"name": "c", "image": "c:1"},
        ]));
        assert_eq!(
            patched(&current, &patch),
            pod(json!([
                {"name": "a", "image": "a:1", "env": [{"name": "Y", "value": "2"}]},
                {"name": "b", "image": "b:1"},
                {"name": "c", "image": "c:1"},
            ]))
        );
    }

    #[test]
    fn atomic_lists_and_arguments_are_replaced() {
        let current = json!({"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "a", "args": ["1"]}]}});
        let patch = json!({"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "a", "args": ["2"]}]}});
        assert_eq!(patched(&current, &patch), patch);
    }

    #[test]
    fn directives() {
        let current = pod(json!([{"name": "a"}, {"name": "b"}]));
        assert_eq!(
            patched(
                &current,
                &pod(json!([{"$patch": "replace"}, {"name": "c"}]))
            ),
            pod(json!([{"name": "c"}]))
        );
        assert_eq!(
            patched(&current, &pod(json!([{"name": "a", "$patch": "delete"}]))),
            pod(json!([{"name": "b"}]))
        );
        let current = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
        assert_eq!(
            patched(
                &current,
                &json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}})
            ),
            json!({"metadata": {"labels": {"c": "3"}}})
        );
        assert_eq!(
            patched(&current, &json!({"metadata": {"labels": {"a": null}}})),
            json!({"metadata": {"labels": {"b": "2"}}})
        );
        assert_eq!(
            patched(
                &current,
                &json!({"metadata": {"labels": {"$patch": "delete"}}})
            ),
            json!({"metadata": {}})
        );
        assert!(strategic_merge(&current, &json!({"$patch": "explode"}), &pod_schema()).is_err());
    }

    #[test]
    fn retain_keys_empties_unions() {
        let current = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
        let patch = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}});
        assert_eq!(
            patched(&current, &patch),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}})
        );
        let bad = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "hostPath": {"path": "/x"}}]}});
        assert!(strategic_merge(&current, &bad, &pod_schema()).is_err());
    }

    #[test]
    fn primitive_lists_merge_as_sets() {
        let current = json!({"metadata": {"finalizers": ["a", "b"]}});
        assert_eq!(
            patched(
                &current,
                &json!({"metadata": {"finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"]}})
            ),
            json!({"metadata": {"finalizers": ["b", "c"]}})
        );
    }

    #[test]
    fn element_order() {
        let current = pod(json!([{"name": "a"}, {"name": "s"}, {"name": "b"}]));
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}],
            "containers": [{"name": "n", "image": "x"}],
        }});
        assert_eq!(
            patched(&current, &patch),
            pod(json!([{"name": "s"}, {"name": "b"}, {"name": "n", "image": "x"}, {"name": "a"}]))
        );
        let alone =
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}});
        assert_eq!(
            patched(&current, &alone),
            pod(json!([{"name": "s"}, {"name": "b"}, {"name": "a"}]))
        );
        let wrong = json!({"spec": {
            "$setElementOrder/containers": [{"name": "b"}],
            "containers": [{"name": "n"}],
        }});
        assert!(strategic_merge(&current, &wrong, &pod_schema()).is_err());
    }

    #[test]
    fn elements_need_their_key() {
        let error = strategic_merge(
            &pod(json!([])),
            &pod(json!([{"image": "x"}])),
            &pod_schema(),
        )
        .expect_err("no name");
        assert_eq!(
            error.to_string(),
            r#"map: {"image":"x"} does not contain declared merge key: name"#
        );
    }

    fn containers() -> impl Strategy<Value = Value> {
        let env = proptest::collection::btree_map("[A-C]", "[0-9]", 0..3);
        let container = (proptest::option::of("[a-z]:[0-9]"), env).prop_map(|(image, env)| {
            let mut map = Map::new();
            if let Some(image) = image {
                map.insert("image".into(), image.into());
            }
            if !env.is_empty() {
                let env: Vec<Value> = env
                    .into_iter()
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect();
                map.insert("env".into(), env.into());
            }
            map
        });
        proptest::collection::btree_map("[a-d]", container, 1..4).prop_map(|map| {
            map.into_iter()
                .map(|(name, mut container)| {
                    container.insert("name".into(), name.into());
                    Value::Object(container)
                })
                .collect::<Vec<_>>()
                .into()
        })
    }

    proptest! {
        #[test]
        fn merging_is_idempotent_and_agrees_with_deep_merge(a in containers(), b in containers()) {
            let (current, patch) = (pod(a), pod(b));
            let once = patched(&current, &patch);
            prop_assert_eq!(&patched(&once, &patch), &once);
            // A patch without directives is a deep merge of the typed objects.
            let mut oracle: Pod = serde_json::from_value(current).expect("a pod");
            oracle.merge_from(serde_json::from_value(patch).expect("a pod"));
            let ours: Pod = serde_json::from_value(once).expect("a pod");
            prop_assert_eq!(ours, oracle);
        }

        #[test]
        fn the_empty_patch_changes_nothing(a in containers()) {
            let current = pod(a);
            prop_assert_eq!(&patched(&current, &json!({})), &current);
        }
    }
}
