//! Small questions about any object: its key, its uid, a reference to it for events, and the
//! metadata on either side of an informer event.

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api::client::{InformerEvent, Kind};

/// The key of a name in the same namespace as `meta`.
pub(crate) fn sibling(meta: &ObjectMeta, name: &str) -> String {
    match meta.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    }
}

/// The object's name, empty if it has none.
pub(crate) fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// The object's namespace, empty if it has none.
pub(crate) fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

/// The object's uid, empty if it has none.
pub(crate) fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// The revision the object was last changed at.
pub(crate) fn revision(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// What an event says it is about.
pub(crate) fn reference<K>(object: &K) -> ObjectReference
where
    K: k8s_openapi::Resource + Metadata<Ty = ObjectMeta>,
{
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// The object before and after the change.
pub(crate) fn sides<K: Kind>(event: &InformerEvent<K>) -> (Option<&K>, Option<&K>) {
    match event {
        InformerEvent::Added(object) => (None, Some(object.as_ref())),
        InformerEvent::Updated { old, new } => (Some(old.as_ref()), Some(new.as_ref())),
        InformerEvent::Deleted(object) => (Some(object.as_ref()), None),
        InformerEvent::Synced => (None, None),
    }
}

/// The object as it is now, or was last.
pub(crate) fn latest<K: Kind>(event: &InformerEvent<K>) -> Option<&K> {
    let (old, new) = sides(event);
    new.or(old)
}
