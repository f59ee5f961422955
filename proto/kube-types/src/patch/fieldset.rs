//! Sets of fields: which paths of an object a manager owns, and `FieldsV1`, their form on the wire.
//!
//! Pure; `apply` computes with them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// A field of a struct or a key of a map.
    Field(String),
    /// An element of a keyed list: the keys and their values as canonical JSON.
    Key(String),
    /// An element of a set: the value as JSON.
    Value(String),
    /// An element by position.
    Index(usize),
}

impl Element {
    /// From the keys of a keyed list's element.
    pub fn key(keys: &BTreeMap<&str, &Value>) -> Self {
        let mut text = String::from("{");
        for (i, (name, value)) in keys.iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            text.push_str(&Value::from(*name).to_string());
            text.push(':');
            text.push_str(&value.to_string());
        }
        text.push('}');
        Self::Key(text)
    }

    fn wire(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(json) => format!("k:{json}"),
            Self::Value(json) => format!("v:{json}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn from_wire(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "k" => {
                let map: BTreeMap<String, Value> = serde_json::from_str(rest).ok()?;
                let keys = map.iter().map(|(k, v)| (k.as_str(), v)).collect();
                Some(Self::key(&keys))
            }
            "v" => {
                let value: Value = serde_json::from_str(rest).ok()?;
                Some(Self::Value(value.to_string()))
            }
            "i" => Some(Self::Index(rest.parse().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(json) => {
                let map: BTreeMap<String, Value> = serde_json::from_str(json).unwrap_or_default();
                let parts: Vec<String> = map.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(f, "[{}]", parts.join(","))
            }
            Self::Value(json) => write!(f, "[={json}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A set of paths, as a tree: a node is in the set where it is a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Whether the path to this node is in the set.
    pub member: bool,
    /// What lies below.
    pub children: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// From paths of field names.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Vec<Element> = path
                .iter()
                .map(|name| Element::Field((*name).to_owned()))
                .collect();
            set.insert(&path);
        }
        set
    }

    /// True where nothing is in the set.
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[Element]) {
        let mut node = self;
        for element in path {
            node = node.children.entry(element.clone()).or_default();
        }
        node.member = true;
    }

    /// What lies under one step.
    pub fn child(&self, element: &Element) -> Option<&Self> {
        self.children.get(element)
    }

    /// Drops branches without members.
    fn tidied(mut self) -> Self {
        self.children = self
            .children
            .into_iter()
            .map(|(element, child)| (element, child.tidied()))
            .filter(|(_, child)| child.member || !child.children.is_empty())
            .collect();
        self
    }

    /// Paths in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut result = self.clone();
        result.member |= other.member;
        for (element, child) in &other.children {
            let merged = match result.children.get(element) {
                Some(own) => own.union(child),
                None => child.clone(),
            };
            result.children.insert(element.clone(), merged);
        }
        result
    }

    /// Paths in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let children = self
            .children
            .iter()
            .filter_map(|(element, child)| {
                Some((
                    element.clone(),
                    child.intersection(other.children.get(element)?),
                ))
            })
            .collect();
        Self {
            member: self.member && other.member,
            children,
        }
        .tidied()
    }

    /// Paths in this one but not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let children = self
            .children
            .iter()
            .map(|(element, child)| {
                let rest = match other.children.get(element) {
                    Some(theirs) => child.difference(theirs),
                    None => child.clone(),
                };
                (element.clone(), rest)
            })
            .collect();
        Self {
            member: self.member && !other.member,
            children,
        }
        .tidied()
    }

    /// Like [`FieldSet::difference`], but a path takes everything below it along.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let children = self
            .children
            .iter()
            .filter_map(|(element, child)| match other.children.get(element) {
                Some(theirs) if theirs.member => None,
                Some(theirs) => Some((element.clone(), child.recursive_difference(theirs))),
                None => Some((element.clone(), child.clone())),
            })
            .collect();
        Self {
            member: self.member,
            children,
        }
        .tidied()
    }

    /// The set with every inner node of a path a member too.
    #[must_use]
    pub fn with_parents(&self) -> Self {
        Self {
            member: self.member,
            children: self
                .children
                .iter()
                .map(|(element, child)| {
                    let mut child = child.with_parents();
                    child.member = true;
                    (element.clone(), child)
                })
                .collect(),
        }
    }

    /// All paths as text: `.spec.template.spec.containers[name="web"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    fn collect(&self, prefix: &mut String, paths: &mut Vec<String>) {
        for (element, child) in &self.children {
            let length = prefix.len();
            prefix.push_str(&element.to_string());
            if child.member {
                paths.push(prefix.clone());
            }
            child.collect(prefix, paths);
            prefix.truncate(length);
        }
    }

    /// As `FieldsV1`.
    pub fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        for (element, child) in &self.children {
            let mut inner = match child.to_fields_v1() {
                Value::Object(inner) => inner,
                _ => Map::new(),
            };
            if child.member && !inner.is_empty() {
                inner.insert(".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(element.wire(), Value::Object(inner));
        }
        Value::Object(map)
    }

    /// From `FieldsV1`; `None` where it is malformed.
    pub fn from_fields_v1(value: &Value) -> Option<Self> {
        let mut set = Self::new();
        for (name, inner) in value.as_object()? {
            if name == "." {
                continue;
            }
            let mut child = Self::from_fields_v1(inner)?;
            let inner = inner.as_object()?;
            child.member = inner.is_empty() || inner.contains_key(".");
            set.children.insert(Element::from_wire(name)?, child);
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn wire_form() {
        let wire = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {"v:\"x\"": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}},
        });
        let set = FieldSet::from_fields_v1(&wire).expect("well formed");
        assert_eq!(set.to_fields_v1(), wire);
        assert_eq!(
            set.paths(),
            [
                ".metadata.finalizers[=\"x\"]",
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].port",
            ]
        );
        assert!(FieldSet::from_fields_v1(&json!({"x": {}})).is_none());
    }

    fn sets() -> impl Strategy<Value = FieldSet> {
        let path = proptest::collection::vec("[a-c]", 1..4);
        proptest::collection::vec(path, 0..8).prop_map(|paths| {
            let mut set = FieldSet::new();
            for path in paths {
                let path: Vec<Element> = path.into_iter().map(Element::Field).collect();
                set.insert(&path);
            }
            set
        })
    }

    proptest! {
        #[test]
        fn sets_behave(a in sets(), b in sets()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert_eq!(FieldSet::from_fields_v1(&a.to_fields_v1()), Some(a));
        }
    }
}
