//! Validation: whether an object (or a change of one) is allowed, in Kubernetes' words.
//!
//! Runs after decoding and defaults, before anything is stored. Field paths and messages are those a
//! user of Kubernetes knows; the API turns the list into a 422.

mod config;
mod meta;
mod node;
mod pod;
mod policy;
mod service;
mod workload;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::field::{ErrorList, FieldError, Path};
use crate::gvk::GroupVersionKind;
use crate::object::Object;

pub use meta::{validate_labels, validate_metadata, validate_metadata_update};

/// Messages used in many places.
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const IMMUTABLE: &str = "field is immutable";

/// The rules of one kind, over its typed form.
struct Rules<T> {
    create: fn(&T, &mut ErrorList),
    update: fn(&T, &T, &mut ErrorList),
    status: fn(&T, &T, &mut ErrorList),
}

/// What is asked.
enum Question<'a> {
    Create,
    Update(&'a Object),
    Status(&'a Object),
}

impl<T: DeserializeOwned> Rules<T> {
    fn ask(&self, new: &Object, question: &Question<'_>, errors: &mut ErrorList) {
        let Some(new) = decode::<T>(new, errors) else {
            return;
        };
        match question {
            Question::Create => (self.create)(&new, errors),
            Question::Update(old) => {
                if let Some(old) = decode::<T>(old, errors) {
                    (self.update)(&new, &old, errors);
                }
            }
            Question::Status(old) => {
                if let Some(old) = decode::<T>(old, errors) {
                    (self.status)(&new, &old, errors);
                }
            }
        }
    }
}

fn decode<T: DeserializeOwned>(object: &Object, errors: &mut ErrorList) -> Option<T> {
    match object.to::<T>() {
        Ok(typed) => Some(typed),
        Err(error) => {
            let why = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            errors.push(FieldError::internal(&Path::root(), why));
            None
        }
    }
}

/// Asks the rules of the kind; kinds without rules of their own have only their metadata checked.
fn ask(gvk: &GroupVersionKind, new: &Object, question: &Question<'_>, errors: &mut ErrorList) {
    match (gvk.group.as_ref(), gvk.kind.as_ref()) {
        ("", "Pod") => pod::POD.ask(new, question, errors),
        ("", "Service") => service::SERVICE.ask(new, question, errors),
        ("", "Endpoints") => service::ENDPOINTS.ask(new, question, errors),
        ("discovery.k8s.io", "EndpointSlice") => {
            service::ENDPOINT_SLICE.ask(new, question, errors);
        }
        ("", "ConfigMap") => config::CONFIG_MAP.ask(new, question, errors),
        ("", "Secret") => config::SECRET.ask(new, question, errors),
        ("", "Namespace") => config::NAMESPACE.ask(new, question, errors),
        ("", "ServiceAccount") => config::SERVICE_ACCOUNT.ask(new, question, errors),
        ("", "Node") => node::NODE.ask(new, question, errors),
        ("coordination.k8s.io", "Lease") => node::LEASE.ask(new, question, errors),
        ("", "Event") => node::EVENT.ask(new, question, errors),
        ("events.k8s.io", "Event") => node::EVENT_V1.ask(new, question, errors),
        ("apps", "Deployment") => workload::DEPLOYMENT.ask(new, question, errors),
        ("apps", "ReplicaSet") => workload::REPLICA_SET.ask(new, question, errors),
        ("apps", "ControllerRevision") => workload::REVISION.ask(new, question, errors),
        ("autoscaling", "Scale") => workload::SCALE.ask(new, question, errors),
        ("policy", "PodDisruptionBudget") => policy::BUDGET.ask(new, question, errors),
        ("", "Binding") => pod::BINDING.ask(new, question, errors),
        _ => {}
    }
}

/// Whether a new object is valid.
pub fn validate_create(gvk: &GroupVersionKind, object: &Object) -> ErrorList {
    let mut errors = ErrorList::new();
    meta::validate_metadata(gvk, object, &mut errors);
    ask(gvk, object, &Question::Create, &mut errors);
    errors
}

/// Whether `new` may take the place of `old`.
pub fn validate_update(gvk: &GroupVersionKind, new: &Object, old: &Object) -> ErrorList {
    let mut errors = ErrorList::new();
    meta::validate_metadata_update(new, old, &mut errors);
    ask(gvk, new, &Question::Update(old), &mut errors);
    errors
}

/// Whether the status of `new` may take the place of that of `old`.
pub fn validate_status_update(gvk: &GroupVersionKind, new: &Object, old: &Object) -> ErrorList {
    let mut errors = ErrorList::new();
    meta::validate_metadata_update(new, old, &mut errors);
    ask(gvk, new, &Question::Status(old), &mut errors);
    errors
}

/// Adds an error per message of a check of names.
fn invalid_each(errors: &mut ErrorList, path: &Path, value: impl Serialize, messages: Vec<String>) {
    let value = serde_json::to_value(value).unwrap_or_default();
    for message in messages {
        errors.push(FieldError::invalid(path, &value, message));
    }
}

fn not_negative(errors: &mut ErrorList, path: &Path, value: i64) {
    if value < 0 {
        errors.push(FieldError::invalid(path, value, NOT_NEGATIVE));
    }
}

fn one_of(errors: &mut ErrorList, path: &Path, value: Option<&str>, supported: &[&str]) {
    match value {
        None | Some("") => errors.push(FieldError::required(path, "")),
        Some(value) if !supported.contains(&value) => {
            errors.push(FieldError::not_supported(path, value, supported));
        }
        Some(_) => {}
    }
}

/// Like [`one_of`], where nothing is allowed too.
fn one_of_or_none(errors: &mut ErrorList, path: &Path, value: Option<&str>, supported: &[&str]) {
    if value.is_some_and(|v| !v.is_empty()) {
        one_of(errors, path, value, supported);
    }
}

/// The field may not change.
fn immutable<T: PartialEq + Serialize>(errors: &mut ErrorList, path: &Path, new: &T, old: &T) {
    if new != old {
        errors.push(FieldError::invalid(path, new, IMMUTABLE));
    }
}

/// An IP address in the canonical or any accepted form.
fn ip_address(text: &str) -> Vec<String> {
    if text.parse::<std::net::IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

#[cfg(test)]
mod tests;
