//! Values under a schema, as server-side apply sees them: their fields, how two of them differ, merging
//! and taking away.
//!
//! Pure; `apply` puts these together. Structs and maps are granular unless atomic; lists are atomic
//! unless they are sets or keyed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fieldset::{Element, FieldSet};
use crate::schema::{Field, ListType, Schema, Shape, key_default};

/// How a value is divided.
enum Node<'a> {
    /// Not at all.
    Leaf,
    /// By field names.
    Struct(&'a BTreeMap<Box<str>, Field>),
    /// By keys.
    Map,
    /// By elements that are what they are.
    Set(&'a Schema),
    /// By elements with keys.
    Keyed(&'a Schema, &'a [Box<str>]),
}

/// A place in an object: its type, and the field it is in.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    schema: Option<&'a Schema>,
    field: Option<&'a Field>,
}

impl<'a> Place<'a> {
    /// The object itself.
    pub(super) fn root(schema: &'a Schema) -> Self {
        Self {
            schema: Some(schema),
            field: None,
        }
    }

    fn untyped() -> Self {
        Self {
            schema: None,
            field: None,
        }
    }

    fn of(schema: &'a Schema) -> Self {
        Self::root(schema)
    }

    fn node(self, value: &Value) -> Node<'a> {
        let Some(schema) = self.schema else {
            return Node::Leaf;
        };
        let atomic = self.field.map_or(schema.atomic, |f| f.atomic);
        match (&schema.shape, value) {
            (Shape::Struct(fields), Value::Object(_)) if !atomic => Node::Struct(fields),
            (Shape::Map(_), Value::Object(_)) if !atomic => Node::Map,
            (Shape::List(items), Value::Array(_)) => match self.field.map(|f| &f.list) {
                Some(ListType::Set) => Node::Set(items),
                Some(ListType::Map(keys)) => Node::Keyed(items, keys),
                _ => Node::Leaf,
            },
            _ => Node::Leaf,
        }
    }

    fn member(self, name: &str) -> Place<'a> {
        match self.schema.map(|s| &s.shape) {
            Some(Shape::Struct(fields)) => match fields.get(name) {
                Some(field) => Place {
                    schema: Some(&field.schema),
                    field: Some(field),
                },
                None => Place::untyped(),
            },
            Some(Shape::Map(values)) => Place::of(values),
            _ => Place::untyped(),
        }
    }
}

/// What identifies an element of a keyed list; absent keys count as their default.
fn keyed(item: &Value, keys: &[Box<str>]) -> Element {
    let mut found: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut defaults: Vec<(&str, Value)> = Vec::new();
    for key in keys {
        match item.get(key.as_ref()).filter(|v| !v.is_null()) {
            Some(value) => {
                found.insert(key, value);
            }
            None => {
                if let Some(value) = key_default(key) {
                    defaults.push((key, Value::from(value)));
                }
            }
        }
    }
    for (key, value) in &defaults {
        found.insert(key, value);
    }
    Element::key(&found)
}

fn element(node: &Node<'_>, item: &Value) -> Element {
    match node {
        Node::Keyed(_, keys) => keyed(item, keys),
        _ => Element::Value(item.to_string()),
    }
}

/// The elements of a list by what identifies them; of doubles the first counts.
fn index<'v>(node: &Node<'_>, list: Option<&'v Value>) -> BTreeMap<Element, &'v Value> {
    let mut map = BTreeMap::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        map.entry(element(node, item)).or_insert(item);
    }
    map
}

/// The fields of a value.
pub(super) fn field_set(place: Place<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::new();
    match (place.node(value), value) {
        (Node::Struct(fields), Value::Object(map)) => {
            for (name, value) in map {
                let mut child = field_set(place.member(name), value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                child.member |= empty || !fields.contains_key(name.as_str());
                set.children.insert(Element::Field(name.clone()), child);
            }
        }
        (Node::Map, Value::Object(map)) => {
            for (name, value) in map {
                let mut child = field_set(place.member(name), value);
                child.member = true;
                set.children.insert(Element::Field(name.clone()), child);
            }
        }
        (node @ (Node::Set(items) | Node::Keyed(items, _)), Value::Array(list)) => {
            for item in list {
                let mut child = field_set(Place::of(items), item);
                child.member = true;
                set.children.insert(element(&node, item), child);
            }
        }
        _ => set.member = true,
    }
    set.children
        .retain(|_, child| child.member || !child.children.is_empty());
    set
}

/// The first element that occurs twice in a set or keyed list, with the path of the list.
pub(super) fn duplicate(place: Place<'_>, value: &Value, path: &str) -> Option<(String, Element)> {
    match (place.node(value), value) {
        (Node::Struct(_) | Node::Map, Value::Object(map)) => {
            map.iter().find_map(|(name, value)| {
                duplicate(place.member(name), value, &format!("{path}.{name}"))
            })
        }
        (node @ (Node::Set(items) | Node::Keyed(items, _)), Value::Array(list)) => {
            let mut seen = BTreeSet::new();
            list.iter().find_map(|item| {
                let element = element(&node, item);
                if !seen.insert(element.clone()) {
                    return Some((path.to_owned(), element));
                }
                duplicate(Place::of(items), item, &format!("{path}{element}"))
            })
        }
        _ => None,
    }
}

/// How two values differ.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    /// True where they do not.
    pub(super) fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares two values.
pub(super) fn compare(place: Place<'_>, old: &Value, new: &Value) -> Comparison {
    let mut comparison = Comparison::default();
    walk(
        place,
        Some(old),
        Some(new),
        &mut Vec::new(),
        &mut comparison,
    );
    comparison
}

fn is_blank(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

fn walk(
    place: Place<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    out: &mut Comparison,
) {
    let Some(shown) = new.or(old) else { return };
    let node = place.node(shown);
    let same_kind = match (old, new) {
        (Some(old), Some(new)) => std::mem::discriminant(old) == std::mem::discriminant(new),
        _ => true,
    };
    if matches!(node, Node::Leaf) || !same_kind || (is_blank(old) && is_blank(new)) {
        match (old, new) {
            (None, Some(_)) => out.added.insert(path),
            (Some(_), None) => out.removed.insert(path),
            (Some(old), Some(new)) if old != new => out.modified.insert(path),
            _ => {}
        }
        return;
    }
    match node {
        Node::Struct(_) | Node::Map => {
            let old = old.and_then(Value::as_object);
            let new = new.and_then(Value::as_object);
            let names: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
            for name in names {
                path.push(Element::Field(name.clone()));
                walk(
                    place.member(name),
                    old.and_then(|m| m.get(name)),
                    new.and_then(|m| m.get(name)),
                    path,
                    out,
                );
                path.pop();
            }
        }
        Node::Set(items) | Node::Keyed(items, _) => {
            let (old, new) = (index(&node, old), index(&node, new));
            let elements: BTreeSet<&Element> = old.keys().chain(new.keys()).collect();
            for element in elements {
                path.push(element.clone());
                walk(
                    Place::of(items),
                    old.get(element).copied(),
                    new.get(element).copied(),
                    path,
                    out,
                );
                path.pop();
            }
        }
        Node::Leaf => {}
    }
    match (old, new) {
        (None, Some(_)) => out.added.insert(path),
        (Some(_), None) => out.removed.insert(path),
        _ => {}
    }
}

/// Puts `config` over `live`.
pub(super) fn merge(place: Place<'_>, live: &Value, config: &Value) -> Value {
    match (place.node(config), live, config) {
        (Node::Struct(_) | Node::Map, Value::Object(live), Value::Object(config)) => {
            let mut merged = live.clone();
            for (name, value) in config {
                let value = match live.get(name) {
                    Some(old) => merge(place.member(name), old, value),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (
            node @ (Node::Set(items) | Node::Keyed(items, _)),
            Value::Array(live),
            Value::Array(config),
        ) => Value::Array(merge_lists(&node, items, live, config)),
        _ => config.clone(),
    }
}

/// The order of `config`, with elements only `live` has kept before what they preceded there.
fn merge_lists(node: &Node<'_>, items: &Schema, live: &[Value], config: &[Value]) -> Vec<Value> {
    let live: Vec<(Element, &Value)> = live.iter().map(|i| (element(node, i), i)).collect();
    let wanted: BTreeSet<Element> = config.iter().map(|i| element(node, i)).collect();
    let mut result = Vec::with_capacity(live.len() + config.len());
    let mut rest = live.iter().peekable();
    let mut done: BTreeSet<&Element> = BTreeSet::new();
    for item in config {
        loop {
            match rest.peek() {
                Some((element, value)) if !wanted.contains(element) => {
                    result.push((*value).clone());
                    rest.next();
                }
                Some((element, _)) if done.contains(element) => {
                    rest.next();
                }
                _ => break,
            }
        }
        let id = element(node, item);
        match live.iter().find(|(element, _)| *element == id) {
            Some((element, old)) => {
                done.insert(element);
                result.push(merge(Place::of(items), old, item));
            }
            None => result.push(item.clone()),
        }
    }
    result.extend(
        rest.filter(|(element, _)| !wanted.contains(element))
            .map(|(_, value)| (*value).clone()),
    );
    result
}

/// Takes the fields in `set` away; what becomes empty by that goes too.
pub(super) fn remove(place: Place<'_>, value: &Value, set: &FieldSet) -> Option<Value> {
    match (place.node(value), value) {
        (Node::Struct(_) | Node::Map, Value::Object(map)) => {
            let kept: Map<String, Value> = map
                .iter()
                .filter_map(|(name, value)| {
                    let value = match set.child(&Element::Field(name.clone())) {
                        Some(child) if child.member => return None,
                        Some(child) => remove(place.member(name), value, child)?,
                        None => value.clone(),
                    };
                    Some((name.clone(), value))
                })
                .collect();
            (!kept.is_empty() || map.is_empty()).then_some(Value::Object(kept))
        }
        (node @ (Node::Set(items) | Node::Keyed(items, _)), Value::Array(list)) => {
            let kept: Vec<Value> = list
                .iter()
                .filter_map(|item| match set.child(&element(&node, item)) {
                    Some(child) if child.member => None,
                    Some(child) => remove(Place::of(items), item, child),
                    None => Some(item.clone()),
                })
                .collect();
            (!kept.is_empty() || list.is_empty()).then_some(Value::Array(kept))
        }
        _ => Some(value.clone()),
    }
}
