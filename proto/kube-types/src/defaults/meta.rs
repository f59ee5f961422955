//! Defaults of Secrets, Namespaces and Nodes.
//!
//! A Namespace's finalizer and a node's conditions are set by the API and the agent, not here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{default, object_at, str_of};
use crate::object::object_entry;

/// A Secret: its type, and plain text moved into `data`.
pub(super) fn secret(root: &mut Map<String, Value>) {
    if let Some(Value::Object(plain)) = root.remove("stringData")
        && !plain.is_empty()
    {
        let data = object_entry(root, "data");
        for (key, value) in plain {
            let text = value.as_str().unwrap_or("");
            data.insert(key, STANDARD.encode(text).into());
        }
    }
    default(root, "type", "Opaque");
}

/// A Namespace: the label with its own name.
pub(super) fn namespace(root: &mut Map<String, Value>) {
    let Some(metadata) = object_at(root, "metadata") else {
        return;
    };
    let name = str_of(metadata, "name").to_owned();
    if !name.is_empty() {
        object_entry(metadata, "labels")
            .insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

/// A Node: what it can allocate is what it has, until the agent says otherwise.
pub(super) fn node(root: &mut Map<String, Value>) {
    if let Some(status) = object_at(root, "status")
        && status.get("allocatable").is_none_or(Value::is_null)
        && let Some(capacity) = status.get("capacity").filter(|c| !c.is_null()).cloned()
    {
        status.insert("allocatable".to_owned(), capacity);
    }
}
