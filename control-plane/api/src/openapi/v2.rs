//! OpenAPI v2 (Swagger): one document of everything that is served.
//!
//! Pure. The definitions are those of v3 in the older dialect, the paths are written from the
//! same operations.

use pintle_kube_types::gvk::GroupVersion;
use serde_json::{Map, Value, json};

use super::operations::{self, Endpoint, Operation, PRETTY, Parameter, Shape};
use super::v3;
use crate::registry::Registry;

const V3_REFERENCE: &str = "#/components/schemas/";
const REFERENCE: &str = "#/definitions/";
const GVK: &str = "x-kubernetes-group-version-kind";

/// The document of these groups and versions.
pub(super) fn document(registry: &Registry, group_versions: &[GroupVersion]) -> Value {
    let mut definitions: Map<String, Value> = Map::new();
    let mut paths: Map<String, Value> = Map::new();
    for gv in group_versions {
        let schemas = v3::definitions(registry, gv);
        for endpoint in operations::endpoints(registry, gv) {
            paths.insert(endpoint.path.clone(), path_item(&endpoint, gv, &schemas));
        }
        for (name, definition) in schemas {
            let definition = older(definition);
            match definitions.get_mut(&name) {
                Some(known) => unite_kinds(known, &definition),
                None => {
                    definitions.insert(name, definition);
                }
            }
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": {
            "description": "Bearer Token authentication",
            "type": "apiKey", "name": "authorization", "in": "header",
        }},
        "security": [{"BearerToken": []}],
    })
}

/// A definition shared by groups is of each group's kinds (DeleteOptions).
fn unite_kinds(known: &mut Value, other: &Value) {
    let Some(more) = other.get(GVK).and_then(Value::as_array) else {
        return;
    };
    if let Some(kinds) = known.get_mut(GVK).and_then(Value::as_array_mut) {
        for kind in more {
            if !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
    }
}

/// A schema in the dialect of v2: no `allOf` around references, no `oneOf`, no `nullable`.
fn older(schema: Value) -> Value {
    let Value::Object(map) = schema else {
        return schema;
    };
    let mut older_map = Map::new();
    for (key, value) in map {
        match key.as_str() {
            "allOf" => {
                if let Some(reference) = value.pointer("/0/$ref").and_then(Value::as_str) {
                    older_map.insert("$ref".into(), renamed(reference));
                }
            }
            "$ref" => {
                older_map.insert(key, renamed(value.as_str().unwrap_or_default()));
            }
            // Quantity and IntOrString: text, as Kubernetes publishes them in v2.
            "oneOf" | "anyOf" => {
                older_map.insert("type".into(), "string".into());
            }
            "nullable" => {}
            "properties" => {
                let Value::Object(properties) = value else {
                    continue;
                };
                let properties: Map<String, Value> = properties
                    .into_iter()
                    .map(|(name, property)| (name, older(property)))
                    .collect();
                older_map.insert(key, properties.into());
            }
            "items" | "additionalProperties" => {
                older_map.insert(key, older(value));
            }
            _ => {
                older_map.insert(key, value);
            }
        }
    }
    if older_map.contains_key("$ref") {
        // Old clients refuse a reference with a type.
        older_map.remove("type");
    }
    Value::Object(older_map)
}

fn renamed(reference: &str) -> Value {
    let name = reference.strip_prefix(V3_REFERENCE).unwrap_or(reference);
    format!("{REFERENCE}{name}").into()
}

fn path_item(endpoint: &Endpoint, gv: &GroupVersion, schemas: &Map<String, Value>) -> Value {
    let mut item = Map::new();
    for operation in &endpoint.operations {
        item.insert(
            operation.method.to_owned(),
            operation_object(operation, gv, schemas),
        );
    }
    let parameters: Vec<Value> = endpoint
        .parameters
        .iter()
        .map(|parameter| {
            let in_query = parameter.name == PRETTY.name;
            parameter_object(parameter, if in_query { "query" } else { "path" })
        })
        .collect();
    item.insert("parameters".into(), parameters.into());
    Value::Object(item)
}

fn operation_object(
    operation: &Operation,
    gv: &GroupVersion,
    schemas: &Map<String, Value>,
) -> Value {
    let (group, version, kind) = &operation.gvk;
    let mut parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|parameter| parameter_object(parameter, "query"))
        .collect();
    if let Some(body) = &operation.body {
        let mut parameter = json!({"name": "body", "in": "body", "schema": schema(body, schemas)});
        if *body != Shape::DeleteOptions {
            parameter["required"] = true.into();
        }
        parameters.insert(0, parameter);
    }
    let returned = schema(&operation.returns, schemas);
    let mut responses: Map<String, Value> = operation
        .codes
        .iter()
        .map(|code| {
            let description = match code {
                201 => "Created",
                202 => "Accepted",
                _ => "OK",
            };
            (
                code.to_string(),
                json!({"description": description, "schema": returned}),
            )
        })
        .collect();
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    let consumes: &[&str] = if operation.body == Some(Shape::Patch) {
        &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ]
    } else {
        &["*/*"]
    };
    json!({
        "tags": [operations::tag(gv)],
        "description": operation.description,
        "operationId": operation.id,
        "consumes": consumes,
        "produces": ["application/json", "application/yaml"],
        "schemes": ["https"],
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": operation.action,
        (GVK): {"group": group, "version": version, "kind": kind},
    })
}

fn schema(shape: &Shape, schemas: &Map<String, Value>) -> Value {
    match v3::definition_name(shape, schemas) {
        Some(name) => json!({"$ref": format!("{REFERENCE}{name}")}),
        None if *shape == Shape::Text => json!({"type": "string"}),
        None => json!({"type": "object"}),
    }
}

fn parameter_object(parameter: &Parameter, place: &str) -> Value {
    let mut object = json!({
        "name": parameter.name,
        "in": place,
        "description": parameter.description,
        "type": parameter.type_,
        "uniqueItems": true,
    });
    if place == "path" {
        object["required"] = true.into();
    }
    object
}
