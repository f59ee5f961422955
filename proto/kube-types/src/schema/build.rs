//! Builds compact [`Schema`]s from generated JSON schemas.
//!
//! Each definition is built once per process and shared by all kinds that use it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value};

use super::{Field, ListType, PatchStrategy, Schema, Shape, keys, kinds};
use crate::gvk::GroupVersionKind;

/// Where references to definitions point.
pub(super) const REFERENCE: &str = "#/components/schemas/";

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Cache {
    definitions: HashMap<String, Arc<Schema>>,
}

/// A generator whose references point to `#/components/schemas/`.
pub(super) fn generator() -> SchemaGenerator {
    SchemaSettings::openapi3().into_generator()
}

/// The schema of a built-in kind.
pub(super) fn schema_for(gvk: &GroupVersionKind) -> Option<Arc<Schema>> {
    let kind = kinds::find(&gvk.group, &gvk.version, &gvk.kind)?;
    let name = (kind.definition)();
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(schema) = cache.definitions.get(name.as_ref()) {
        return Some(Arc::clone(schema));
    }
    let mut generator = generator();
    (kind.generate)(&mut generator);
    let definitions = generator.take_definitions(true);
    let mut builder = Builder {
        source: &definitions,
        built: &mut cache.definitions,
        open: Vec::new(),
    };
    Some(builder.definition(name.as_ref()))
}

/// Builds a schema from an OpenAPI v3 schema with the `x-kubernetes-*` extensions of CRDs.
pub(super) fn from_openapi(source: &Value) -> Arc<Schema> {
    let empty = Map::new();
    let mut built = HashMap::new();
    Builder {
        source: &empty,
        built: &mut built,
        open: Vec::new(),
    }
    .anonymous(source)
}

/// `core.v1.PodSpec` of `io.k8s.api.core.v1.PodSpec`: how `keys` names a definition.
pub(super) fn short_name(definition: &str) -> &str {
    definition
        .strip_prefix("io.k8s.apimachinery.pkg.apis.")
        .or_else(|| definition.strip_prefix("io.k8s.api."))
        .unwrap_or(definition)
}

/// How a field merges, from the table.
pub(super) fn merge_row(definition: &str, field: &str) -> Option<(&'static str, &'static str)> {
    let name = short_name(definition);
    keys::MERGE
        .iter()
        .find(|(t, f, _, _)| *t == name && *f == field)
        .map(|(_, _, patch, list)| (*patch, *list))
}

fn parse_patch(text: &str) -> PatchStrategy {
    let (strategies, key) = text.split_once(':').unwrap_or((text, ""));
    PatchStrategy {
        merge: strategies.split(',').any(|s| s == "merge"),
        retain_keys: strategies.split(',').any(|s| s == "retainKeys"),
        merge_key: (!key.is_empty()).then(|| key.into()),
    }
}

fn parse_list(text: &str) -> ListType {
    match text.split_once(':') {
        Some(("map", keys)) => ListType::Map(keys.split(',').map(Into::into).collect()),
        _ if text == "set" => ListType::Set,
        _ => ListType::Atomic,
    }
}

struct Builder<'a> {
    source: &'a Map<String, Value>,
    built: &'a mut HashMap<String, Arc<Schema>>,
    /// Definitions being built, to stop at recursive ones.
    open: Vec<String>,
}

impl Builder<'_> {
    fn definition(&mut self, name: &str) -> Arc<Schema> {
        if let Some(schema) = self.built.get(name) {
            return Arc::clone(schema);
        }
        let any = |name: &str| {
            Arc::new(Schema {
                name: name.into(),
                shape: Shape::Any,
                atomic: true,
            })
        };
        if self.open.iter().any(|n| n == name) {
            return any(name);
        }
        let Some(source) = self.source.get(name) else {
            return any(name);
        };
        self.open.push(name.to_owned());
        let shape = self.shape(name, source);
        self.open.pop();
        let schema = Arc::new(Schema {
            name: name.into(),
            shape,
            atomic: merge_row(name, "").is_some_and(|(_, list)| list == "atomic"),
        });
        self.built.insert(name.to_owned(), Arc::clone(&schema));
        schema
    }

    fn anonymous(&mut self, source: &Value) -> Arc<Schema> {
        let reference = source
            .get("$ref")
            .or_else(|| source.pointer("/allOf/0/$ref"))
            .and_then(Value::as_str)
            .and_then(|r| r.strip_prefix(REFERENCE));
        if let Some(name) = reference {
            return self.definition(name);
        }
        Arc::new(Schema {
            name: Box::default(),
            shape: self.shape("", source),
            atomic: extension(source) == "atomic",
        })
    }

    fn shape(&mut self, name: &str, source: &Value) -> Shape {
        match name.rsplit('.').next().unwrap_or("") {
            "Quantity" => return Shape::Quantity,
            "MicroTime" => return Shape::MicroTime,
            "Time" => return Shape::Time,
            "FieldsV1" | "RawExtension" => return Shape::Any,
            _ => {}
        }
        let flag = |name: &str| source.get(name).and_then(Value::as_bool) == Some(true);
        if flag("x-kubernetes-int-or-string") {
            return Shape::IntOrString;
        }
        let format = source.get("format").and_then(Value::as_str).unwrap_or("");
        let kind = match source.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            // `["string", "null"]`
            Some(Value::Array(kinds)) => kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|k| *k != "null")
                .unwrap_or(""),
            _ => "",
        };
        match (kind, format) {
            ("string", "byte") => Shape::Bytes,
            ("string", "date-time") => Shape::Time,
            ("string", _) => Shape::String,
            ("integer", "int32") => Shape::Int32,
            ("integer", _) => Shape::Int64,
            ("number", _) => Shape::Float,
            ("boolean", _) => Shape::Bool,
            ("array", _) => match source.get("items") {
                Some(items) => Shape::List(self.anonymous(items)),
                None => Shape::Any,
            },
            ("object", _) => self.object(name, source),
            _ if source.get("properties").is_some() => self.object(name, source),
            _ => Shape::Any,
        }
    }

    fn object(&mut self, name: &str, source: &Value) -> Shape {
        if source.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
            return Shape::Any;
        }
        if let Some(properties) = source.get("properties").and_then(Value::as_object) {
            let required: Vec<&str> = source
                .get("required")
                .and_then(Value::as_array)
                .map(|list| list.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            let fields: BTreeMap<Box<str>, Field> = properties
                .iter()
                .map(|(field, source)| {
                    let schema = self.anonymous(source);
                    let (patch, list) = match merge_row(name, field) {
                        Some((patch, list)) => (patch.to_owned(), list.to_owned()),
                        None => (String::new(), extension(source)),
                    };
                    let atomic = list == "atomic" || schema.atomic;
                    let field_schema = Field {
                        schema,
                        required: required.contains(&field.as_str()),
                        patch: parse_patch(&patch),
                        list: parse_list(&list),
                        atomic,
                    };
                    (field.as_str().into(), field_schema)
                })
                .collect();
            return Shape::Struct(fields);
        }
        match source.get("additionalProperties") {
            Some(values @ Value::Object(_)) => Shape::Map(self.anonymous(values)),
            _ => Shape::Any,
        }
    }
}

/// The list or map type of a CRD's schema in the form of the table.
fn extension(source: &Value) -> String {
    let text = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or("");
    if text("x-kubernetes-map-type") == "atomic" {
        return "atomic".to_owned();
    }
    match text("x-kubernetes-list-type") {
        "map" => {
            let keys: Vec<&str> = source
                .get("x-kubernetes-list-map-keys")
                .and_then(Value::as_array)
                .map(|list| list.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            format!("map:{}", keys.join(","))
        }
        other => other.to_owned(),
    }
}
