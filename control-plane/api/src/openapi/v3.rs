//! OpenAPI v3: one document per group and version, and their index.
//!
//! Pure.

use pintle_kube_types::gvk::GroupVersion;
use pintle_kube_types::schema;
use serde_json::{Map, Value, json};

use super::operations::{self, Endpoint, Operation, PRETTY, Parameter, Shape};
use crate::registry::Registry;

const REFERENCE: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// `/openapi/v3`: where each document is. The hash makes a cached copy recognisable.
pub(super) fn index(documents: impl Iterator<Item = (String, String)>) -> Value {
    let paths: Map<String, Value> = documents
        .map(|(path, hash)| {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({ "paths": paths })
}

/// The document of one group and version.
pub(super) fn document(registry: &Registry, gv: &GroupVersion) -> Value {
    let schemas = definitions(registry, gv);
    let paths: Map<String, Value> = operations::endpoints(registry, gv)
        .iter()
        .map(|endpoint| (endpoint.path.clone(), path_item(endpoint, gv, &schemas)))
        .collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"BearerToken": {
                "description": "Bearer Token authentication",
                "type": "apiKey", "name": "authorization", "in": "header",
            }},
        },
    })
}

/// The schemas of a group and version, with those of other groups that its subresources use.
pub(super) fn definitions(registry: &Registry, gv: &GroupVersion) -> Map<String, Value> {
    let mut all = raw_definitions(gv);
    for resource in registry.resources() {
        if resource.group != gv.group || resource.version != gv.version {
            continue;
        }
        for subresource in &resource.subresources {
            let foreign = GroupVersion::new(subresource.group, subresource.version);
            if foreign == *gv || find(&all, &foreign, subresource.kind).is_some() {
                continue;
            }
            let theirs = raw_definitions(&foreign);
            if let Some(name) = find(&theirs, &foreign, subresource.kind) {
                take_with_references(&theirs, &name, &mut all);
            }
        }
    }
    all.entry(format!("{META}.Patch")).or_insert_with(|| {
        json!({
            "description": "Patch is provided to give a concrete name and type to the \
                Kubernetes PATCH request body.",
            "type": "object",
        })
    });
    all
}

fn raw_definitions(gv: &GroupVersion) -> Map<String, Value> {
    match schema::openapi_definitions(gv) {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    }
}

/// The name of the definition of a kind.
pub(super) fn find(
    definitions: &Map<String, Value>,
    gv: &GroupVersion,
    kind: &str,
) -> Option<String> {
    definitions
        .iter()
        .find(|(_, definition)| {
            definition
                .get("x-kubernetes-group-version-kind")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .any(|gvk| {
                    gvk["kind"] == kind
                        && gvk["group"] == gv.group.as_ref()
                        && gvk["version"] == gv.version.as_ref()
                })
        })
        .map(|(name, _)| name.clone())
}

fn take_with_references(from: &Map<String, Value>, name: &str, into: &mut Map<String, Value>) {
    if into.contains_key(name) {
        return;
    }
    let Some(definition) = from.get(name) else {
        return;
    };
    into.insert(name.to_owned(), definition.clone());
    let mut references = Vec::new();
    collect_references(definition, &mut references);
    for reference in references {
        take_with_references(from, &reference, into);
    }
}

fn collect_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                found.extend(reference.strip_prefix(REFERENCE).map(str::to_owned));
            }
            for value in map.values() {
                collect_references(value, found);
            }
        }
        Value::Array(values) => {
            for value in values {
                collect_references(value, found);
            }
        }
        _ => {}
    }
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
    let parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|parameter| parameter_object(parameter, "query"))
        .collect();
    let returned = content(&operation.returns, schemas, &["application/json"]);
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
                json!({"description": description, "content": returned}),
            )
        })
        .collect();
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    let mut object = json!({
        "tags": [operations::tag(gv)],
        "description": operation.description,
        "operationId": operation.id,
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    if let Some(body) = &operation.body {
        let media_types: &[&str] = match body {
            Shape::Patch => &[
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ],
            _ => &["*/*"],
        };
        let mut request = json!({"content": content(body, schemas, media_types)});
        if *body != Shape::DeleteOptions {
            request["required"] = true.into();
        }
        object["requestBody"] = request;
    }
    object
}

fn content(shape: &Shape, schemas: &Map<String, Value>, media_types: &[&str]) -> Value {
    let name = definition_name(shape, schemas);
    let schema = match name {
        Some(name) => json!({"$ref": format!("{REFERENCE}{name}")}),
        None if *shape == Shape::Text => json!({"type": "string"}),
        None => json!({"type": "object"}),
    };
    media_types
        .iter()
        .map(|media_type| ((*media_type).to_owned(), json!({"schema": schema})))
        .collect::<Map<String, Value>>()
        .into()
}

/// The definition that describes a body, where there is one.
pub(super) fn definition_name(shape: &Shape, schemas: &Map<String, Value>) -> Option<String> {
    match shape {
        Shape::Kind {
            group,
            version,
            kind,
        } => find(
            schemas,
            &GroupVersion::new(group.clone(), version.clone()),
            kind,
        ),
        Shape::Patch => Some(format!("{META}.Patch")),
        Shape::DeleteOptions => Some(format!("{META}.DeleteOptions")),
        Shape::Status => Some(format!("{META}.Status")),
        Shape::Text => None,
    }
    .filter(|name| schemas.contains_key(name))
}

fn parameter_object(parameter: &Parameter, place: &str) -> Value {
    let mut object = json!({
        "name": parameter.name,
        "in": place,
        "description": parameter.description,
        "schema": {"type": parameter.type_, "uniqueItems": true},
    });
    if place == "path" {
        object["required"] = true.into();
    }
    object
}
