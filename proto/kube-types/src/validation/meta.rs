//! Rules of metadata: names, labels, annotations, owners, finalizers, and what may never change.
//!
//! Applies to every kind, custom resources included.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, LabelSelector, ObjectMeta, OwnerReference,
};
use serde::Deserialize;
use serde_json::Value;

use super::{IMMUTABLE, NOT_NEGATIVE, invalid_each};
use crate::field::{ErrorList, FieldError, Path};
use crate::gvk::GroupVersionKind;
use crate::names;
use crate::object::Object;

/// Finalizers that are Kubernetes' own; others are named after who takes them away.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// How a kind's objects may be called.
fn check_name(gvk: &GroupVersionKind, name: &str, prefix: bool) -> Vec<String> {
    let masked = if prefix {
        names::mask_trailing_dash(name)
    } else {
        name.to_owned()
    };
    match (gvk.group.as_ref(), gvk.kind.as_ref()) {
        ("", "Namespace") => names::dns1123_label(&masked),
        ("", "Service") => names::dns1035_label(&masked),
        ("rbac.authorization.k8s.io", _) => names::path_segment(name),
        _ => names::dns1123_subdomain(&masked),
    }
}

/// Whether a kind lives outside of namespaces; `None` where this crate does not know the kind.
fn is_cluster_wide(gvk: &GroupVersionKind) -> Option<bool> {
    let cluster_wide = matches!(
        (gvk.group.as_ref(), gvk.kind.as_ref()),
        ("", "Namespace" | "Node" | "PersistentVolume")
            | (
                "rbac.authorization.k8s.io",
                "ClusterRole" | "ClusterRoleBinding"
            )
            | ("scheduling.k8s.io", "PriorityClass")
            | ("storage.k8s.io", "StorageClass")
            | ("node.k8s.io", "RuntimeClass")
            | ("networking.k8s.io", "IngressClass")
            | ("admissionregistration.k8s.io", _)
            | ("authentication.k8s.io", "TokenReview" | "SelfSubjectReview")
            | (
                "authorization.k8s.io",
                "SelfSubjectAccessReview" | "SelfSubjectRulesReview" | "SubjectAccessReview"
            )
    );
    if cluster_wide {
        return Some(true);
    }
    crate::schema::is_known(gvk).then_some(false)
}

/// Rules of the metadata of a new object.
pub fn validate_metadata(gvk: &GroupVersionKind, object: &Object, errors: &mut ErrorList) {
    let path = Path::new("metadata");
    if let Some(prefix) = object.generate_name() {
        invalid_each(
            errors,
            &path.child("generateName"),
            prefix,
            check_name(gvk, prefix, true),
        );
    }
    match object.name() {
        Some(name) => invalid_each(
            errors,
            &path.child("name"),
            name,
            check_name(gvk, name, false),
        ),
        None => errors.push(FieldError::required(
            &path.child("name"),
            "name or generateName is required",
        )),
    }
    let namespace_path = path.child("namespace");
    match (is_cluster_wide(gvk), object.namespace()) {
        (Some(true), Some(_)) => errors.push(FieldError::forbidden(
            &namespace_path,
            "not allowed on this type",
        )),
        (Some(false), None) => errors.push(FieldError::required(&namespace_path, "")),
        (Some(false) | None, Some(namespace)) => invalid_each(
            errors,
            &namespace_path,
            namespace,
            names::dns1123_label(namespace),
        ),
        _ => {}
    }
    common(object, &path, errors);
}

fn string_map(object: &Object, field: &str) -> BTreeMap<String, String> {
    object
        .metadata()
        .and_then(|m| m.get(field))
        .and_then(|v| BTreeMap::deserialize(v).ok())
        .unwrap_or_default()
}

/// Rules of new and changed metadata alike.
fn common(object: &Object, path: &Path, errors: &mut ErrorList) {
    if object.generation() < 0 {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            object.generation(),
            NOT_NEGATIVE,
        ));
    }
    validate_labels(&string_map(object, "labels"), &path.child("labels"), errors);
    annotations(
        &string_map(object, "annotations"),
        &path.child("annotations"),
        errors,
    );
    owners(
        &object.owner_references(),
        &path.child("ownerReferences"),
        errors,
    );
    for (i, finalizer) in object.finalizers().into_iter().enumerate() {
        let path = path.child("finalizers");
        invalid_each(errors, &path, finalizer, names::qualified_name(finalizer));
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            errors.push(FieldError::invalid(
                &path.index(i),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    if let Some(fields) = object
        .metadata()
        .and_then(|m| m.get("managedFields"))
        .and_then(Value::as_array)
    {
        for (i, entry) in fields.iter().enumerate() {
            let path = path.child("managedFields").index(i);
            let operation = entry.get("operation").and_then(Value::as_str).unwrap_or("");
            if !matches!(operation, "Apply" | "Update") {
                errors.push(FieldError::invalid(
                    &path.child("operation"),
                    operation,
                    "must be `Apply` or `Update`",
                ));
            }
        }
    }
}

/// Rules of a template's metadata: labels, annotations and finalizers only.
pub(super) fn template_metadata(
    metadata: Option<&ObjectMeta>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let Some(metadata) = metadata else { return };
    if let Some(labels) = &metadata.labels {
        validate_labels(labels, &path.child("labels"), errors);
    }
    if let Some(map) = &metadata.annotations {
        annotations(map, &path.child("annotations"), errors);
    }
    for finalizer in metadata.finalizers.iter().flatten() {
        let messages = names::qualified_name(finalizer);
        invalid_each(errors, &path.child("finalizers"), finalizer, messages);
    }
}

/// Rules of labels (and of maps used as selectors).
pub fn validate_labels(labels: &BTreeMap<String, String>, path: &Path, errors: &mut ErrorList) {
    for (key, value) in labels {
        invalid_each(errors, path, key, names::qualified_name(key));
        invalid_each(errors, path, value, names::label_value(value));
    }
}

fn annotations(map: &BTreeMap<String, String>, path: &Path, errors: &mut ErrorList) {
    for key in map.keys() {
        invalid_each(
            errors,
            path,
            key,
            names::qualified_name(&key.to_lowercase()),
        );
    }
    let size: usize = map.iter().map(|(k, v)| k.len() + v.len()).sum();
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
}

fn owners(owners: &[OwnerReference], path: &Path, errors: &mut ErrorList) {
    let mut controller: Option<&OwnerReference> = None;
    for (i, owner) in owners.iter().enumerate() {
        let path = path.index(i);
        if owner.api_version.is_empty() {
            errors.push(FieldError::invalid(
                &path.child("apiVersion"),
                "",
                "version must not be empty",
            ));
        }
        for (field, value) in [
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                errors.push(FieldError::invalid(
                    &path.child(field),
                    "",
                    "must not be empty",
                ));
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            errors.push(FieldError::invalid(
                &path,
                owner,
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.controller == Some(true) {
            if let Some(first) = controller {
                errors.push(FieldError::invalid(
                    &Path::new("metadata").child("ownerReferences"),
                    owners,
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
                        first.name, owner.name
                    ),
                ));
            } else {
                controller = Some(owner);
            }
        }
    }
}

/// Rules of changed metadata.
pub fn validate_metadata_update(new: &Object, old: &Object, errors: &mut ErrorList) {
    let path = Path::new("metadata");
    if old.deletion_timestamp().is_some() {
        let known = old.finalizers();
        let added: Vec<&str> = new
            .finalizers()
            .into_iter()
            .filter(|f| !known.contains(f))
            .collect();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|f| format!("{f:?}")).collect();
            errors.push(FieldError::forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            ));
        }
    }
    if new.generation() < old.generation() {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            new.generation(),
            "must not be decremented",
        ));
    }
    let field = |object: &Object, name: &str| {
        object
            .metadata()
            .and_then(|m| m.get(name))
            .cloned()
            .unwrap_or_default()
    };
    for name in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (new, old) = (field(new, name), field(old, name));
        let unset = |v: &Value| v.is_null() || v.as_str() == Some("");
        if new != old && !(unset(&new) && unset(&old)) {
            // A missing name is empty text, a missing time is null.
            let shown = match new {
                Value::Null if matches!(name, "name" | "namespace" | "uid") => Value::from(""),
                other => other,
            };
            errors.push(FieldError::invalid(&path.child(name), shown, IMMUTABLE));
        }
    }
    if new.resource_version().is_none() {
        errors.push(FieldError::invalid(
            &path.child("resourceVersion"),
            "",
            "must be specified for an update",
        ));
    }
    common(new, &path, errors);
}

/// Rules of a label selector.
pub(super) fn label_selector(selector: &LabelSelector, path: &Path, errors: &mut ErrorList) {
    if let Some(labels) = &selector.match_labels {
        validate_labels(labels, &path.child("matchLabels"), errors);
    }
    for (i, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = expression.values.as_deref().unwrap_or_default();
        match expression.operator.as_str() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.push(FieldError::required(
                        &path.child("values"),
                        "must be specified when `operator` is 'In' or 'NotIn'",
                    ));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    errors.push(FieldError::forbidden(
                        &path.child("values"),
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    ));
                }
            }
            other => errors.push(FieldError::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        invalid_each(
            errors,
            &path.child("key"),
            &expression.key,
            names::qualified_name(&expression.key),
        );
        for (j, value) in values.iter().enumerate() {
            invalid_each(
                errors,
                &path.child("values").index(j),
                value,
                names::label_value(value),
            );
        }
    }
}

/// Longest reason of a condition.
const CONDITION_REASON_BYTES: usize = 1024;
/// Longest message of a condition.
const CONDITION_MESSAGE_BYTES: usize = 32 * 1024;

/// The `metav1.Condition`s of a status.
pub(super) fn conditions(conditions: &[Condition], path: &Path, errors: &mut ErrorList) {
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        if conditions[..index]
            .iter()
            .any(|earlier| earlier.type_ == condition.type_)
        {
            errors.push(FieldError::duplicate(&path.child("type"), &condition.type_));
        }
        invalid_each(
            errors,
            &path.child("type"),
            &condition.type_,
            names::qualified_name(&condition.type_),
        );
        if !matches!(condition.status.as_str(), "True" | "False" | "Unknown") {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                &condition.status,
                &["False", "True", "Unknown"],
            ));
        }
        if let Some(generation) = condition.observed_generation
            && generation < 0
        {
            errors.push(FieldError::invalid(
                &path.child("observedGeneration"),
                generation,
                "must be greater than or equal to zero",
            ));
        }
        condition_reason(&condition.reason, &path.child("reason"), errors);
        if condition.message.len() > CONDITION_MESSAGE_BYTES {
            errors.push(FieldError::too_long(
                &path.child("message"),
                CONDITION_MESSAGE_BYTES,
            ));
        }
    }
}

fn condition_reason(reason: &str, path: &Path, errors: &mut ErrorList) {
    if reason.is_empty() {
        errors.push(FieldError::required(path, "must be set"));
        return;
    }
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = reason.as_bytes();
    let valid = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(word)
        && bytes.iter().all(|byte| word(byte) || b",:".contains(byte));
    if !valid {
        errors.push(FieldError::invalid(
            path,
            reason,
            "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')",
        ));
    }
    if reason.len() > CONDITION_REASON_BYTES {
        errors.push(FieldError::too_long(path, CONDITION_REASON_BYTES));
    }
}
