//! The dynamic object: what every API request carries and the store keeps.
//!
//! A thin wrapper over a JSON object that knows where metadata lives. It changes nothing by itself;
//! the API's strategies set the system fields through it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::gvk::GroupVersionKind;

/// An object that could not be read or written as asked.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The bytes are not a JSON object.
    #[error("the object is not valid JSON")]
    Parse(#[source] serde_json::Error),
    /// The object does not fit the type asked for.
    #[error("the object does not fit type {type_name}")]
    Decode {
        /// The Rust type.
        type_name: &'static str,
        /// What did not fit.
        #[source]
        source: serde_json::Error,
    },
    /// The value does not serialise to a JSON object.
    #[error("type {type_name} does not serialise to an object")]
    Encode {
        /// The Rust type.
        type_name: &'static str,
        /// Why, where serialisation itself failed.
        #[source]
        source: Option<serde_json::Error>,
    },
}

/// A Kubernetes object of any kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Map<String, Value>);

impl Object {
    /// An object with only its type set.
    pub fn of_kind(gvk: &GroupVersionKind) -> Self {
        let mut object = Self::default();
        object.set_gvk(gvk);
        object
    }

    /// Parses JSON.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, ObjectError> {
        serde_json::from_slice(bytes).map_err(ObjectError::Parse)
    }

    /// From a JSON value; `None` where it is no object.
    pub fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self(map)),
            _ => None,
        }
    }

    /// As a JSON value.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// A copy as a JSON value.
    pub fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// As compact JSON.
    pub fn to_vec(&self) -> Vec<u8> {
        // A map with string keys always serialises.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    /// `apiVersion`, or nothing.
    pub fn api_version(&self) -> &str {
        self.0
            .get("apiVersion")
            .and_then(Value::as_str)
            .unwrap_or("")
    }

    /// `kind`, or nothing.
    pub fn kind(&self) -> &str {
        self.0.get("kind").and_then(Value::as_str).unwrap_or("")
    }

    /// The type the object says it has.
    pub fn gvk(&self) -> Option<GroupVersionKind> {
        let kind = self.kind();
        if kind.is_empty() {
            return None;
        }
        GroupVersionKind::from_api_version(self.api_version(), kind)
    }

    /// Sets `apiVersion` and `kind`.
    pub fn set_gvk(&mut self, gvk: &GroupVersionKind) {
        self.0
            .insert("apiVersion".to_owned(), Value::from(gvk.api_version()));
        self.0
            .insert("kind".to_owned(), Value::from(gvk.kind.as_ref()));
    }

    /// `metadata`, where it is an object.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.0.get("metadata").and_then(Value::as_object)
    }

    /// `metadata`, made where it is missing.
    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        object_entry(&mut self.0, "metadata")
    }

    fn metadata_str(&self, field: &str) -> Option<&str> {
        self.metadata()?
            .get(field)?
            .as_str()
            .filter(|s| !s.is_empty())
    }

    fn set_metadata(&mut self, field: &str, value: Option<Value>) {
        match value {
            Some(value) => {
                self.metadata_mut().insert(field.to_owned(), value);
            }
            None => {
                if let Some(Value::Object(metadata)) = self.0.get_mut("metadata") {
                    metadata.remove(field);
                }
            }
        }
    }

    /// `metadata.name`, where it is not empty.
    pub fn name(&self) -> Option<&str> {
        self.metadata_str("name")
    }

    /// Sets `metadata.name`.
    pub fn set_name(&mut self, name: &str) {
        self.set_metadata("name", Some(name.into()));
    }

    /// `metadata.namespace`, where it is not empty.
    pub fn namespace(&self) -> Option<&str> {
        self.metadata_str("namespace")
    }

    /// Sets or removes `metadata.namespace`.
    pub fn set_namespace(&mut self, namespace: Option<&str>) {
        self.set_metadata("namespace", namespace.map(Value::from));
    }

    /// `namespace/name`, or `name` for cluster-wide objects.
    pub fn key(&self) -> String {
        let name = self.name().unwrap_or("");
        match self.namespace() {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        }
    }

    /// `metadata.uid`, where it is not empty.
    pub fn uid(&self) -> Option<&str> {
        self.metadata_str("uid")
    }

    /// Sets or removes `metadata.uid`.
    pub fn set_uid(&mut self, uid: Option<&str>) {
        self.set_metadata("uid", uid.map(Value::from));
    }

    /// `metadata.generateName`, where it is not empty.
    pub fn generate_name(&self) -> Option<&str> {
        self.metadata_str("generateName")
    }

    /// Sets or removes `metadata.generateName`.
    pub fn set_generate_name(&mut self, prefix: Option<&str>) {
        self.set_metadata("generateName", prefix.map(Value::from));
    }

    /// `metadata.resourceVersion`, where it is not empty.
    pub fn resource_version(&self) -> Option<&str> {
        self.metadata_str("resourceVersion")
    }

    /// Sets or removes `metadata.resourceVersion`.
    pub fn set_resource_version(&mut self, version: Option<&str>) {
        self.set_metadata("resourceVersion", version.map(Value::from));
    }

    /// `metadata.generation`, or zero.
    pub fn generation(&self) -> i64 {
        self.metadata()
            .and_then(|m| m.get("generation"))
            .and_then(Value::as_i64)
            .unwrap_or(0)
    }

    /// Sets `metadata.generation`; zero removes it.
    pub fn set_generation(&mut self, generation: i64) {
        self.set_metadata(
            "generation",
            (generation != 0).then(|| Value::from(generation)),
        );
    }

    fn metadata_map(&self, field: &str) -> BTreeMap<&str, &str> {
        self.metadata()
            .and_then(|m| m.get(field))
            .and_then(Value::as_object)
            .map(|map| {
                map.iter()
                    .filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
                    .collect()
            })
            .unwrap_or_default()
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> BTreeMap<&str, &str> {
        self.metadata_map("labels")
    }

    /// One label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata()?.get("labels")?.get(key)?.as_str()
    }

    /// Replaces `metadata.labels`; none removes it.
    pub fn set_labels(&mut self, labels: &BTreeMap<String, String>) {
        self.set_metadata("labels", string_map(labels));
    }

    /// Sets one label.
    pub fn set_label(&mut self, key: &str, value: &str) {
        object_entry(self.metadata_mut(), "labels").insert(key.to_owned(), value.into());
    }

    /// `metadata.annotations`.
    pub fn annotations(&self) -> BTreeMap<&str, &str> {
        self.metadata_map("annotations")
    }

    /// One annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata()?.get("annotations")?.get(key)?.as_str()
    }

    /// Replaces `metadata.annotations`; none removes it.
    pub fn set_annotations(&mut self, annotations: &BTreeMap<String, String>) {
        self.set_metadata("annotations", string_map(annotations));
    }

    /// Sets one annotation.
    pub fn set_annotation(&mut self, key: &str, value: &str) {
        object_entry(self.metadata_mut(), "annotations").insert(key.to_owned(), value.into());
    }

    /// `metadata.finalizers`.
    pub fn finalizers(&self) -> Vec<&str> {
        self.metadata()
            .and_then(|m| m.get("finalizers"))
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default()
    }

    /// Replaces `metadata.finalizers`; none removes it.
    pub fn set_finalizers<S: AsRef<str>>(&mut self, finalizers: &[S]) {
        let list: Vec<Value> = finalizers.iter().map(|f| f.as_ref().into()).collect();
        self.set_metadata("finalizers", (!list.is_empty()).then_some(list.into()));
    }

    /// `metadata.ownerReferences`; entries that do not decode are left out.
    pub fn owner_references(&self) -> Vec<OwnerReference> {
        self.metadata()
            .and_then(|m| m.get("ownerReferences"))
            .and_then(Value::as_array)
            .map(|list| {
                list.iter()
                    .filter_map(|v| OwnerReference::deserialize(v).ok())
                    .collect()
            })
            .unwrap_or_default()
    }

    /// Replaces `metadata.ownerReferences`; none removes it.
    pub fn set_owner_references(&mut self, owners: &[OwnerReference]) {
        let list: Vec<Value> = owners
            .iter()
            .filter_map(|o| serde_json::to_value(o).ok())
            .collect();
        self.set_metadata("ownerReferences", (!list.is_empty()).then_some(list.into()));
    }

    /// `metadata.deletionTimestamp`, where the object is being deleted.
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.metadata_str("deletionTimestamp")
    }

    /// Sets or removes `metadata.deletionTimestamp`.
    pub fn set_deletion_timestamp(&mut self, time: Option<&str>) {
        self.set_metadata("deletionTimestamp", time.map(Value::from));
    }

    /// `metadata.deletionGracePeriodSeconds`.
    pub fn deletion_grace_period_seconds(&self) -> Option<i64> {
        self.metadata()?.get("deletionGracePeriodSeconds")?.as_i64()
    }

    /// Sets or removes `metadata.deletionGracePeriodSeconds`.
    pub fn set_deletion_grace_period_seconds(&mut self, seconds: Option<i64>) {
        self.set_metadata("deletionGracePeriodSeconds", seconds.map(Value::from));
    }

    /// `metadata.creationTimestamp`.
    pub fn creation_timestamp(&self) -> Option<&str> {
        self.metadata_str("creationTimestamp")
    }

    /// Sets or removes `metadata.creationTimestamp`.
    pub fn set_creation_timestamp(&mut self, time: Option<&str>) {
        self.set_metadata("creationTimestamp", time.map(Value::from));
    }

    /// A value by JSON pointer (`/spec/replicas`).
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        let (first, rest) = split_pointer(pointer)?;
        self.0.get(&first)?.pointer(rest)
    }

    /// A value by JSON pointer.
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        let (first, rest) = split_pointer(pointer)?;
        self.0.get_mut(&first)?.pointer_mut(rest)
    }

    /// A value by field names.
    pub fn get_path(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter()
            .try_fold(self.0.get(*first)?, |value, name| value.get(*name))
    }

    /// A string by field names, where it is not empty.
    pub fn str_at(&self, path: &[&str]) -> Option<&str> {
        self.get_path(path)?.as_str().filter(|s| !s.is_empty())
    }

    /// Sets a value by field names; objects on the way are made, or put in the place of what is none.
    pub fn set_path(&mut self, path: &[&str], value: Value) {
        let Some((last, parents)) = path.split_last() else {
            return;
        };
        let map = parents
            .iter()
            .fold(&mut self.0, |map, name| object_entry(map, name));
        map.insert((*last).to_owned(), value);
    }

    /// Takes a value away by field names.
    pub fn remove_path(&mut self, path: &[&str]) -> Option<Value> {
        let (last, parents) = path.split_last()?;
        let mut map = &mut self.0;
        for name in parents {
            map = map.get_mut(*name)?.as_object_mut()?;
        }
        map.remove(*last)
    }

    /// Decodes into a typed object.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, ObjectError> {
        T::deserialize(&self.0).map_err(|source| ObjectError::Decode {
            type_name: std::any::type_name::<T>(),
            source,
        })
    }

    /// From a typed object.
    pub fn from_typed<T: Serialize>(value: &T) -> Result<Self, ObjectError> {
        let type_name = std::any::type_name::<T>();
        match serde_json::to_value(value) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(ObjectError::Encode {
                type_name,
                source: None,
            }),
            Err(source) => Err(ObjectError::Encode {
                type_name,
                source: Some(source),
            }),
        }
    }
}

/// The object under `name`, made where there is none.
pub(crate) fn object_entry<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> &'a mut Map<String, Value> {
    let slot = map.entry(name.to_owned()).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(map) => map,
        _ => unreachable!("the slot was made an object above"),
    }
}

fn string_map(map: &BTreeMap<String, String>) -> Option<Value> {
    (!map.is_empty()).then(|| {
        Value::Object(
            map.iter()
                .map(|(k, v)| (k.clone(), Value::from(v.as_str())))
                .collect(),
        )
    })
}

fn split_pointer(pointer: &str) -> Option<(String, &str)> {
    let path = pointer.strip_prefix('/')?;
    let end = path.find('/').unwrap_or(path.len());
    let first = path[..end].replace("~1", "/").replace("~0", "~");
    Some((first, &path[end..]))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;

    fn web() -> Object {
        Object::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default", "labels": {"a/b": "c"}, "uid": ""},
            "spec": {"replicas": 3, "selector": {}, "template": {}},
        }))
        .expect("an object")
    }

    #[test]
    fn reads_metadata() {
        let object = web();
        assert_eq!(object.key(), "default/web");
        assert_eq!(object.uid(), None);
        assert_eq!(object.label("a/b"), Some("c"));
        assert_eq!(object.labels().len(), 1);
        assert_eq!(object.generation(), 0);
        assert_eq!(
            object.gvk(),
            Some(GroupVersionKind::of("apps", "v1", "Deployment"))
        );
        assert_eq!(object.pointer("/spec/replicas"), Some(&json!(3)));
        assert_eq!(object.pointer("/metadata/labels/a~1b"), Some(&json!("c")));
    }

    #[test]
    fn sets_and_removes() {
        let mut object = web();
        object.set_path(&["status", "replicas"], json!(1));
        assert_eq!(object.get_path(&["status", "replicas"]), Some(&json!(1)));
        assert_eq!(object.remove_path(&["status", "replicas"]), Some(json!(1)));
        object.set_finalizers(&["a"]);
        assert_eq!(object.finalizers(), ["a"]);
        object.set_finalizers::<&str>(&[]);
        assert_eq!(object.get_path(&["metadata", "finalizers"]), None);
        object.set_annotation("x", "y");
        assert_eq!(object.annotation("x"), Some("y"));
    }

    #[test]
    fn converts_to_and_from_types() {
        let typed: Deployment = web().to().expect("decodes");
        assert_eq!(typed.spec.as_ref().and_then(|s| s.replicas), Some(3));
        let back = Object::from_typed(&typed).expect("encodes");
        assert_eq!(back.kind(), "Deployment");
        assert_eq!(back.api_version(), "apps/v1");
    }
}
