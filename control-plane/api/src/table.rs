//! `meta.k8s.io/v1` Table: the columns `kubectl get` prints.

use std::sync::Arc;

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::{Value, json};

use crate::registry::Resource;

/// What each row carries besides its cells (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata (the default).
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// Renders objects of one resource as a Table.
///
/// `list_metadata` is the `metadata` of the list (`resourceVersion`, `continue`,
/// `remainingItemCount`), or of the table of a single object or watch event.
pub fn render(
    resource: &Resource,
    objects: &[Arc<Object>],
    include: IncludeObject,
    list_metadata: Value,
    now: Timestamp,
) -> Value {
    let _ = (resource, now);
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({"cells": [object.name().unwrap_or_default()]});
            match include {
                IncludeObject::None => {}
                IncludeObject::Metadata => {
                    row["object"] = json!({
                        "kind": "PartialObjectMetadata",
                        "apiVersion": "meta.k8s.io/v1",
                        "metadata": object.metadata(),
                    });
                }
                IncludeObject::Object => row["object"] = Value::Object(object.0.clone()),
            }
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [{"name": "Name", "type": "string", "format": "name",
            "description": "Name must be unique within a namespace.", "priority": 0}],
        "rows": rows,
    })
}
