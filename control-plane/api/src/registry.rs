//! The registry: which resources are served, and what is particular to each.
//!
//! A [`Resource`] is data (names, scope, verbs, subresources, selectable fields) plus a
//! [`strategy::Strategy`] for what Kubernetes does to that kind alone. Everything else about
//! a request is the same for every kind.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pintle_kube_types::Object;
use pintle_kube_types::gvk::{GroupKind, GroupResource, GroupVersionKind, GroupVersionResource};
use serde_json::Value;

mod kinds;
pub(crate) mod strategy;

use strategy::Strategy;

/// A subresource of a [`Resource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// The path segment: `status`, `scale`, `log`, …
    pub name: &'static str,
    /// Group of the kind it takes and gives.
    pub group: &'static str,
    /// Version of that kind.
    pub version: &'static str,
    /// That kind: `Pod`, `Scale`, `PodExecOptions`, …
    pub kind: &'static str,
    /// Verbs as discovery lists them.
    pub verbs: &'static [&'static str],
}

/// A field that field selectors may name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SelectableField {
    /// Its name in selectors.
    pub(crate) name: &'static str,
    /// Where its value is.
    pub(crate) path: &'static [&'static str],
    /// Its value when there is none there.
    pub(crate) missing: &'static str,
}

/// One served resource.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// API version.
    pub version: Cow<'static, str>,
    /// Plural name, as in paths.
    pub plural: Cow<'static, str>,
    /// Singular name.
    pub singular: Cow<'static, str>,
    /// Kind of one object.
    pub kind: Cow<'static, str>,
    /// Kind of a list.
    pub list_kind: Cow<'static, str>,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Short names for kubectl.
    pub short_names: Vec<Cow<'static, str>>,
    /// Categories: `all`.
    pub categories: Vec<Cow<'static, str>>,
    /// Verbs of the resource itself.
    pub verbs: Vec<&'static str>,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    pub(crate) fields: &'static [SelectableField],
    pub(crate) strategy: Strategy,
    /// Prefix of the objects' keys in the store.
    pub(crate) prefix: String,
}

impl Resource {
    /// Group, version and plural name.
    pub fn gvr(&self) -> GroupVersionResource {
        GroupVersionResource::new(
            self.group.clone(),
            self.version.clone(),
            self.plural.clone(),
        )
    }

    /// Group, version and kind.
    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind::new(self.group.clone(), self.version.clone(), self.kind.clone())
    }

    /// Group and kind, as in the message of an invalid object.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.group.clone(), self.kind.clone())
    }

    /// Group and plural name, as in most messages.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.clone(), self.plural.clone())
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone().into_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Whether the resource supports a verb.
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// A subresource by its path segment.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources
            .iter()
            .find(|subresource| subresource.name == name)
    }

    /// Fields that field selectors may name.
    pub fn selectable_fields(&self) -> Vec<&'static str> {
        let mut names = vec!["metadata.name"];
        if self.namespaced {
            names.push("metadata.namespace");
        }
        names.extend(self.fields.iter().map(|field| field.name));
        names
    }

    /// The values field selectors compare with.
    pub(crate) fn field_values(&self, object: &Object) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        values.insert(
            "metadata.name".to_owned(),
            object.name().unwrap_or_default().to_owned(),
        );
        if self.namespaced {
            values.insert(
                "metadata.namespace".to_owned(),
                object.namespace().unwrap_or_default().to_owned(),
            );
        }
        for field in self.fields {
            let value = match object.get_path(field.path) {
                None | Some(Value::Null) => field.missing.to_owned(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            values.insert(field.name.to_owned(), value);
        }
        values
    }
}

/// Every served resource.
#[derive(Debug, Default)]
pub struct Registry {
    ordered: Vec<Arc<Resource>>,
    by_name: HashMap<(String, String, String), Arc<Resource>>,
}

impl Registry {
    /// The built-in resources.
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        for resource in kinds::builtin() {
            registry.add(resource);
        }
        registry
    }

    fn add(&mut self, resource: Resource) {
        let resource = Arc::new(resource);
        self.by_name.insert(
            (
                resource.group.to_string(),
                resource.version.to_string(),
                resource.plural.to_string(),
            ),
            resource.clone(),
        );
        self.ordered.push(resource);
    }

    /// Every resource, in the order discovery lists them.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.ordered.iter()
    }

    /// The resource of a group, version and plural name.
    pub fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.by_name
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            .cloned()
    }

    /// The resource of a kind.
    pub fn lookup_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.ordered
            .iter()
            .find(|resource| {
                resource.group == group && resource.version == version && resource.kind == kind
            })
            .cloned()
    }

    /// Every group and version, in the order of first appearance.
    pub fn group_versions(&self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for resource in &self.ordered {
            let gv = (resource.group.to_string(), resource.version.to_string());
            if !found.contains(&gv) {
                found.push(gv);
            }
        }
        found
    }
}
