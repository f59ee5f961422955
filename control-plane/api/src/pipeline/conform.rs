//! From a decoded body to an object of the resource's kind: the strict and lenient checks of
//! `fieldValidation`, the kind, the name and the namespace.

use pintle_kube_types::status::Status;
use pintle_kube_types::{Object, patch, schema};
use serde_json::Value;

use super::{Attributes, unserved};
use crate::registry::Resource;
use crate::request::options::FieldValidation;

/// Makes a body an object of the kind a resource takes; answers it with the warnings.
pub(crate) fn conform(
    resource: &Resource,
    body: Value,
    duplicates: Vec<String>,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>), Status> {
    let gvk = resource.gvk();
    let Value::Object(map) = body else {
        return Err(Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: json: cannot unmarshal {} into Go value of type {}.{}",
            gvk.kind,
            gvk.version,
            gvk.kind,
            json_type(&body),
            gvk.version,
            gvk.kind,
        )));
    };
    let mut object = Object(map);
    check_kind(resource, &mut object)?;
    let mut warnings = Vec::new();
    if let Some(schema) = schema::schema_for(&gvk) {
        let value = object.into_value();
        let mut report = schema::check(&schema, &value);
        report.duplicate.extend(duplicates);
        if validation == FieldValidation::Ignore {
            report.unknown.clear();
            report.duplicate.clear();
        }
        warnings = report.into_result(&gvk, validation == FieldValidation::Strict)?;
        object = Object::from_value(value).unwrap_or_default();
    }
    warnings.extend(unserved::warnings(&object));
    Ok((normalise(resource, object), warnings))
}

/// Makes what came of a patch an object of the resource's kind. Where it does not fit, the 422 shows
/// the patch (a strategic one is handed in), else the result, as Kubernetes does; a wrong kind stays a
/// 400.
pub(crate) fn conform_patched(
    resource: &Resource,
    patched: Value,
    strategic: Option<&Value>,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>), Status> {
    let Some(schema) = schema::schema_for(&resource.gvk()).filter(|_| patched.is_object()) else {
        return conform(resource, patched, Vec::new(), validation);
    };
    let mut report = schema::check(&schema, &patched);
    if validation == FieldValidation::Ignore {
        report.unknown.clear();
    }
    let mut warnings = Vec::new();
    if report != schema::SchemaReport::default() {
        let shown = match strategic {
            Some(patch) => patch::go_text(patch),
            None => patched.to_string(),
        };
        warnings = report.into_patch_result(&shown, validation == FieldValidation::Strict)?;
    }
    let mut object = Object::from_value(patched).unwrap_or_default();
    check_kind(resource, &mut object)?;
    warnings.extend(unserved::warnings(&object));
    Ok((normalise(resource, object), warnings))
}

/// What decoding into Go's types and encoding again does to an object: unknown fields and
/// nulls go, quantities become canonical.
pub(crate) fn normalise(resource: &Resource, object: Object) -> Object {
    let Some(schema) = schema::schema_for(&resource.gvk()) else {
        return object;
    };
    let mut value = object.into_value();
    schema::normalise(&schema, &mut value);
    Object::from_value(value).unwrap_or_default()
}

/// How Go's decoder names the type of a JSON value.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Fills in kind and version, or refuses others than the resource's.
pub(crate) fn check_kind(resource: &Resource, object: &mut Object) -> Result<(), Status> {
    let gvk = resource.gvk();
    let (version, kind) = (object.api_version(), object.kind());
    let expected = gvk.api_version();
    if !kind.is_empty() && kind != gvk.kind {
        return Err(Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: converting ({}.{kind}) to ({}.{}): unknown conversion",
            gvk.kind,
            version.rsplit('/').next().unwrap_or_default(),
            internal_package(&gvk.group),
            gvk.kind,
        )));
    }
    if !version.is_empty() && version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    object.set_gvk(&gvk);
    Ok(())
}

/// The Go package of a group's internal types, which Kubernetes' messages name.
fn internal_package(group: &str) -> &str {
    match group.split('.').next() {
        None | Some("") => "core",
        Some(name) => name,
    }
}

/// The namespace of a new object is the request's.
pub(crate) fn check_namespace(attributes: &Attributes, object: &mut Object) -> Result<(), Status> {
    let given = object.namespace().unwrap_or_default();
    match attributes.namespace.as_deref() {
        None if attributes.resource.namespaced => Err(Status::bad_request(
            "an empty namespace may not be set during creation",
        )),
        Some(namespace) if given.is_empty() => {
            let namespace = namespace.to_owned();
            object.set_namespace(Some(&namespace));
            Ok(())
        }
        namespace if given == namespace.unwrap_or_default() => Ok(()),
        _ => Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}

/// Name and namespace of a changed object are the request's.
pub(crate) fn check_name(attributes: &Attributes, object: &mut Object) -> Result<(), Status> {
    let name = attributes.name()?;
    match object.name() {
        Some(given) if given == name => {}
        None | Some("") => {
            return Err(Status::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        Some(given) => {
            return Err(Status::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
    }
    if let Some(namespace) = &attributes.namespace {
        match object.namespace() {
            None | Some("") => object.set_namespace(Some(namespace)),
            Some(given) if given == namespace => {}
            Some(given) => {
                return Err(Status::bad_request(format!(
                    "the namespace of the object ({given}) does not match the namespace on the request ({namespace})"
                )));
            }
        }
    }
    Ok(())
}
