//! `meta.k8s.io/v1` Table: the columns `kubectl get` prints.
//!
//! Pure: objects in, a Table out. One [`Printer`] per kind holds Kubernetes' own columns (its
//! `pkg/printers/internalversion` is the reference); every column is always sent, those with a
//! priority above 0 are shown by `-o wide` only. A kind without a printer shows name and age of
//! creation.

mod cluster;
mod format;
mod node;
mod pod;
mod service;
mod workload;

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

/// One column.
struct Column {
    name: &'static str,
    type_: &'static str,
    format: &'static str,
    description: &'static str,
    priority: i32,
}

const fn column(name: &'static str, type_: &'static str, description: &'static str) -> Column {
    Column {
        name,
        type_,
        format: "",
        description,
        priority: 0,
    }
}

/// A column that only `-o wide` shows.
const fn wide(name: &'static str, type_: &'static str, description: &'static str) -> Column {
    Column {
        priority: 1,
        ..column(name, type_, description)
    }
}

const NAME: Column = Column {
    format: "name",
    ..column(
        "Name",
        "string",
        "Name of the object, unique within its namespace.",
    )
};
const AGE: Column = column("Age", "string", "Time since the object was created.");

/// How one kind is shown.
struct Printer {
    columns: &'static [Column],
    cells: fn(&Object, Timestamp) -> Vec<Value>,
    /// `conditions` of the row.
    conditions: fn(&Object) -> Option<Value>,
}

fn no_conditions(_: &Object) -> Option<Value> {
    None
}

static DEFAULT: Printer = Printer {
    columns: &[
        NAME,
        column("Created At", "date", "Time the object was created."),
    ],
    cells: |object, _| {
        vec![
            json!(object.name().unwrap_or_default()),
            json!(object.creation_timestamp()),
        ]
    },
    conditions: no_conditions,
};

fn printer(group: &str, kind: &str) -> &'static Printer {
    match (group, kind) {
        ("", "Pod") => &pod::POD,
        ("", "Service") => &service::SERVICE,
        ("", "Endpoints") => &service::ENDPOINTS,
        ("discovery.k8s.io", "EndpointSlice") => &service::ENDPOINT_SLICE,
        ("apps", "Deployment") => &workload::DEPLOYMENT,
        ("apps", "ReplicaSet") => &workload::REPLICA_SET,
        ("apps", "ControllerRevision") => &workload::CONTROLLER_REVISION,
        ("policy", "PodDisruptionBudget") => &workload::DISRUPTION_BUDGET,
        ("", "Node") => &node::NODE,
        ("coordination.k8s.io", "Lease") => &node::LEASE,
        ("", "Namespace") => &cluster::NAMESPACE,
        ("", "ConfigMap") => &cluster::CONFIG_MAP,
        ("", "Secret") => &cluster::SECRET,
        ("", "ServiceAccount") => &cluster::SERVICE_ACCOUNT,
        ("" | "events.k8s.io", "Event") => &cluster::EVENT,
        _ => &DEFAULT,
    }
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
    let printer = printer(&resource.group, &resource.kind);
    let columns: Vec<Value> = printer
        .columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.type_,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| row(printer, object, include, now))
        .collect();
    let mut table = json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "columnDefinitions": columns,
        "rows": rows,
    });
    table["metadata"] = list_metadata;
    table
}

fn row(printer: &Printer, object: &Object, include: IncludeObject, now: Timestamp) -> Value {
    let mut row = json!({ "cells": (printer.cells)(object, now) });
    if let Some(conditions) = (printer.conditions)(object) {
        row["conditions"] = conditions;
    }
    match include {
        IncludeObject::None => {}
        IncludeObject::Metadata => {
            row["object"] = json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object.metadata(),
            });
        }
        IncludeObject::Object => row["object"] = object.to_value(),
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        let registry = Registry::builtin();
        for resource in registry.resources() {
            let object = Object::from_value(json!({
                "apiVersion": resource.api_version(),
                "kind": resource.kind,
                "metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
            }))
            .unwrap();
            let table = render(
                resource,
                &[Arc::new(object)],
                IncludeObject::default(),
                json!({"resourceVersion": "1"}),
                Timestamp::UNIX_EPOCH,
            );
            let columns = table["columnDefinitions"].as_array().unwrap();
            let row = &table["rows"][0];
            assert_eq!(
                columns.len(),
                row["cells"].as_array().unwrap().len(),
                "{}",
                resource.kind
            );
            assert_eq!(row["object"]["metadata"]["name"], "x");
            assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
        }
    }

    #[test]
    fn include_object_none_leaves_it_out() {
        let registry = Registry::builtin();
        let resource = registry.lookup("", "v1", "configmaps").unwrap();
        let object = json!({"metadata": {"name": "x"}, "data": {"a": "1"}});
        let objects = [Arc::new(Object::from_value(object).unwrap())];
        let shown = |include| {
            render(
                &resource,
                &objects,
                include,
                json!({}),
                Timestamp::UNIX_EPOCH,
            )["rows"][0]
                .clone()
        };
        assert_eq!(shown(IncludeObject::None).get("object"), None);
        assert_eq!(shown(IncludeObject::Object)["object"]["data"]["a"], "1");
    }
}
