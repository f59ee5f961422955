//! The definitions of a group and version for `/openapi/v3`, as Kubernetes publishes them.
//!
//! Made on demand with all descriptions and kept by nobody here; the API's OpenAPI handler caches the
//! bytes it serves.

use serde_json::{Map, Value, json};

use super::build::{REFERENCE, generator, merge_row};
use super::kinds::KINDS;
use crate::gvk::{GroupVersion, GroupVersionKind};

/// Which group versions have subresources of which other kinds.
const GUESTS: &[(GroupVersion, GroupVersionKind)] = &[
    (
        GroupVersion::of("apps", "v1"),
        GroupVersionKind::of("autoscaling", "v1", "Scale"),
    ),
    (
        GroupVersion::of("", "v1"),
        GroupVersionKind::of("autoscaling", "v1", "Scale"),
    ),
    (
        GroupVersion::of("", "v1"),
        GroupVersionKind::of("policy", "v1", "Eviction"),
    ),
    (
        GroupVersion::of("", "v1"),
        GroupVersionKind::of("authentication.k8s.io", "v1", "TokenRequest"),
    ),
];

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// `components.schemas` of one group and version.
pub(super) fn definitions(gv: &GroupVersion) -> Option<Value> {
    let mut generator = generator();
    let kinds: Vec<_> = KINDS
        .iter()
        .filter(|k| k.group == gv.group && k.version == gv.version)
        .collect();
    if kinds.is_empty() {
        return None;
    }
    for kind in &kinds {
        (kind.generate)(&mut generator);
    }
    // Every group version can be deleted from, listed and watched.
    for kind in ["Status", "DeleteOptions"] {
        if let Some(kind) = super::kinds::find("", "v1", kind) {
            (kind.generate)(&mut generator);
        }
    }
    // Kinds of other groups that subresources here take.
    let guests: Vec<_> = GUESTS
        .iter()
        .filter(|(host, _)| host == gv)
        .filter_map(|(_, guest)| super::kinds::find(&guest.group, &guest.version, &guest.kind))
        .collect();
    for kind in &guests {
        (kind.generate)(&mut generator);
    }
    let _ = generator.subschema_for::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta>();
    let _ = generator
        .subschema_for::<k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList>();
    let _ = generator.subschema_for::<k8s_openapi::apimachinery::pkg::runtime::RawExtension>();

    let mut definitions: Map<String, Value> = generator.take_definitions(true);
    for (name, definition) in &mut definitions {
        tidy(name, definition);
    }
    for kind in &kinds {
        let name = (kind.definition)();
        if kind.list {
            let item_description = format!("List of {}.", kind.name);
            let list_kind = format!("{}List", kind.name);
            let list_name = format!("{name}List");
            definitions.insert(
                list_name,
                list_definition(&name, &list_kind, &item_description, gv),
            );
        }
        if let Some(definition) = definitions.get_mut(name.as_ref()) {
            mark_kind(definition, gv, kind.name);
        }
    }
    for guest in &guests {
        let name = (guest.definition)();
        if let Some(definition) = definitions.get_mut(name.as_ref()) {
            let own = GroupVersion::of(guest.group, guest.version);
            mark_kind(definition, &own, guest.name);
        }
    }
    for (kind, name) in [
        ("Status", format!("{META}.Status")),
        ("DeleteOptions", format!("{META}.DeleteOptions")),
    ] {
        if let Some(Value::Object(definition)) = definitions.get_mut(&name) {
            let mut gvks = vec![gvk(&GroupVersion::of("", "v1"), kind)];
            if kind == "DeleteOptions" && !gv.group.is_empty() {
                gvks.push(gvk(gv, kind));
            }
            definition.insert("x-kubernetes-group-version-kind".into(), gvks.into());
        }
    }
    definitions.insert(format!("{META}.WatchEvent"), watch_event(gv));
    Some(Value::Object(definitions))
}

fn gvk(gv: &GroupVersion, kind: &str) -> Value {
    json!({"group": gv.group, "kind": kind, "version": gv.version})
}

fn mark_kind(definition: &mut Value, gv: &GroupVersion, kind: &str) {
    let Value::Object(definition) = definition else {
        return;
    };
    definition.insert(
        "x-kubernetes-group-version-kind".into(),
        json!([gvk(gv, kind)]),
    );
    // Metadata is where names live, but no kind requires it in its schema.
    if let Some(Value::Array(required)) = definition.get_mut("required") {
        required.retain(|r| r != "metadata");
        if required.is_empty() {
            definition.remove("required");
        }
    }
}

fn list_definition(item: &str, kind: &str, description: &str, gv: &GroupVersion) -> Value {
    json!({
        "description": format!("{kind} is a collection of objects."),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {
                "description": "APIVersion defines the versioned schema of this representation of an object.",
                "type": "string",
            },
            "items": {
                "description": description,
                "type": "array",
                "items": {"allOf": [{"$ref": format!("{REFERENCE}{item}")}], "default": {}},
            },
            "kind": {
                "description": "Kind is a string value representing the REST resource this object represents.",
                "type": "string",
            },
            "metadata": {
                "allOf": [{"$ref": format!("{REFERENCE}{META}.ListMeta")}],
                "default": {},
                "description": "Standard list metadata.",
            },
        },
        "x-kubernetes-group-version-kind": [gvk(gv, kind)],
    })
}

fn watch_event(gv: &GroupVersion) -> Value {
    json!({
        "description": "Event represents a single event to a watched resource.",
        "type": "object",
        "required": ["type", "object"],
        "properties": {
            "object": {"$ref": format!("{REFERENCE}io.k8s.apimachinery.pkg.runtime.RawExtension")},
            "type": {"type": "string", "default": ""},
        },
        "x-kubernetes-group-version-kind": [gvk(gv, "WatchEvent")],
    })
}

/// Brings a generated definition into the form Kubernetes publishes.
fn tidy(name: &str, definition: &mut Value) {
    let Value::Object(map) = definition else {
        return;
    };
    map.remove("$schema");
    map.remove("title");
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
            map.remove("x-kubernetes-int-or-string");
            map.insert(
                "oneOf".into(),
                json!([{"type": "string"}, {"type": "number"}]),
            );
            return;
        }
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
            map.remove("x-kubernetes-int-or-string");
            map.insert("format".into(), "int-or-string".into());
            map.insert(
                "oneOf".into(),
                json!([{"type": "integer"}, {"type": "string"}]),
            );
            return;
        }
        _ => {}
    }
    if merge_row(name, "").is_some_and(|(_, list)| list == "atomic") {
        map.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for (field, property) in properties {
            reference(property);
            let Value::Object(property) = property else {
                continue;
            };
            if let Some(items) = property.get_mut("items") {
                reference(items);
            }
            if let Some(values) = property.get_mut("additionalProperties") {
                reference(values);
            }
            extend(name, field, property);
        }
    }
}

/// `$ref` beside other fields becomes `allOf`: OpenAPI 3.0 ignores siblings of a reference.
fn reference(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if map.len() > 1
        && let Some(target) = map.remove("$ref")
    {
        map.insert("allOf".into(), json!([{"$ref": target}]));
    }
}

fn extend(name: &str, field: &str, property: &mut Map<String, Value>) {
    let is_list = property.get("type").and_then(Value::as_str) == Some("array");
    let (patch, list) = merge_row(name, field).unwrap_or(("", ""));
    if !patch.is_empty() {
        let (strategy, key) = patch.split_once(':').unwrap_or((patch, ""));
        property.insert("x-kubernetes-patch-strategy".into(), strategy.into());
        if !key.is_empty() {
            property.insert("x-kubernetes-patch-merge-key".into(), key.into());
        }
    }
    if let Some(keys) = list.strip_prefix("map:") {
        property.insert("x-kubernetes-list-type".into(), "map".into());
        let keys: Vec<&str> = keys.split(',').collect();
        property.insert("x-kubernetes-list-map-keys".into(), keys.into());
    } else if is_list {
        let list = if list == "set" { "set" } else { "atomic" };
        property.insert("x-kubernetes-list-type".into(), list.into());
    } else if list == "atomic" {
        property.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
}
