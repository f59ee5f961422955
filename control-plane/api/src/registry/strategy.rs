//! What Kubernetes does to one kind alone: which fields the server owns, what a new object
//! starts with, what counts as a new generation, and when an object is gone.
//!
//! Pure: objects in, objects out. The pipeline calls it between admission and validation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pintle_kube_types::{Object, hash};
use serde_json::{Value, json};

use super::Resource;

pub(crate) mod budget;
pub(crate) mod pod;
pub(crate) mod service;

/// The kinds with behaviour of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Nothing particular.
    Plain,
    /// Deployments.
    Deployment,
    /// Endpoints.
    Endpoints,
    /// Endpoint slices.
    EndpointSlice,
    /// Events.
    Event,
    /// Leases.
    Lease,
    /// Namespaces.
    Namespace,
    /// Nodes.
    Node,
    /// Pods.
    Pod,
    /// Disruption budgets.
    PodDisruptionBudget,
    /// Replica sets.
    ReplicaSet,
    /// Secrets.
    Secret,
    /// Services.
    Service,
    /// Service accounts.
    ServiceAccount,
}

impl Strategy {
    /// Whether an update without a resourceVersion replaces whatever is there.
    pub(crate) fn unconditional_update(self) -> bool {
        !matches!(self, Strategy::Lease | Strategy::PodDisruptionBudget)
    }

    /// Whether an update of an object that does not exist creates it.
    pub(crate) fn create_on_update(self) -> bool {
        matches!(
            self,
            Strategy::Endpoints | Strategy::Event | Strategy::Lease
        )
    }

    /// Whether delete answers with the object rather than a Status.
    pub(crate) fn returns_deleted(self) -> bool {
        matches!(
            self,
            Strategy::Pod | Strategy::Service | Strategy::ServiceAccount
        )
    }

    fn has_status(self) -> bool {
        matches!(
            self,
            Strategy::Deployment
                | Strategy::Namespace
                | Strategy::Node
                | Strategy::Pod
                | Strategy::PodDisruptionBudget
                | Strategy::ReplicaSet
                | Strategy::Service
        )
    }

    fn has_generation(self) -> bool {
        matches!(
            self,
            Strategy::Deployment
                | Strategy::EndpointSlice
                | Strategy::Pod
                | Strategy::PodDisruptionBudget
                | Strategy::ReplicaSet
        )
    }
}

/// A five-letter suffix for generated names.
pub(crate) fn random_suffix() -> String {
    hash::suffix(&rand::random::<[u8; 5]>())
}

/// Fields the server owns, for a new object.
pub(crate) fn prepare_create(resource: &Resource, object: &mut Object) {
    match resource.strategy {
        Strategy::Deployment => object.set_path(&["status"], json!({})),
        Strategy::ReplicaSet => object.set_path(&["status"], json!({"replicas": 0})),
        Strategy::Pod => pod::prepare_create(object),
        Strategy::PodDisruptionBudget => object.set_path(&["status"], budget::initial_status()),
        Strategy::Service => {
            object.set_path(&["status"], json!({"loadBalancer": {}}));
            service::prepare_create(object);
        }
        Strategy::Secret => merge_string_data(object),
        Strategy::Namespace => {
            if let Some(name) = object.name().map(str::to_owned) {
                object.set_label("kubernetes.io/metadata.name", &name);
            }
            let mut finalizers = match object.get_path(&["spec", "finalizers"]) {
                Some(Value::Array(list)) => list.clone(),
                _ => Vec::new(),
            };
            if !finalizers.contains(&json!("kubernetes")) {
                finalizers.push(json!("kubernetes"));
            }
            object.set_path(&["spec", "finalizers"], Value::Array(finalizers));
            object.set_path(&["status"], json!({"phase": "Active"}));
        }
        _ => {}
    }
    if resource.strategy.has_generation() {
        object.set_generation(1);
    } else {
        object.metadata_mut().remove("generation");
    }
}

/// Fields the server owns, for a changed object or subresource.
pub(crate) fn prepare_update(
    resource: &Resource,
    subresource: Option<&str>,
    new: &mut Object,
    old: &Object,
) {
    let strategy = resource.strategy;
    match subresource {
        Some("status") => {
            keep(new, old, "spec");
            match strategy {
                Strategy::Deployment => keep_metadata(new, old, "labels"),
                Strategy::Pod => pod::prepare_status(new, old),
                _ => {}
            }
        }
        Some("finalize") => {
            let finalizers = new.get_path(&["spec", "finalizers"]).cloned();
            *new = old.clone();
            match finalizers {
                Some(finalizers) => new.set_path(&["spec", "finalizers"], finalizers),
                None => drop(new.remove_path(&["spec", "finalizers"])),
            }
        }
        _ => {
            if strategy.has_status() {
                keep(new, old, "status");
            }
            match strategy {
                Strategy::Service => service::prepare_update(new, old),
                Strategy::Secret => merge_string_data(new),
                Strategy::Namespace => keep(new, old, "spec"),
                _ => {}
            }
        }
    }
    if subresource != Some("status") && generation_grows(strategy, new, old) {
        new.set_generation(old.generation() + 1);
    }
}

fn generation_grows(strategy: Strategy, new: &Object, old: &Object) -> bool {
    let differs = |field: &str| new.0.get(field) != old.0.get(field);
    match strategy {
        Strategy::Deployment => differs("spec") || new.annotations() != old.annotations(),
        Strategy::Pod | Strategy::PodDisruptionBudget | Strategy::ReplicaSet => differs("spec"),
        Strategy::EndpointSlice => {
            differs("endpoints") || differs("ports") || new.labels() != old.labels()
        }
        _ => false,
    }
}

/// Whether a changed object is gone: it was waiting for its finalizers only.
pub(crate) fn ends(resource: &Resource, new: &Object, old: &Object) -> bool {
    if new.deletion_timestamp().is_none() || !new.finalizers().is_empty() {
        return false;
    }
    match resource.strategy {
        Strategy::Namespace => namespace_finalized(new),
        _ => old.deletion_grace_period_seconds() == Some(0),
    }
}

/// Whether nothing holds a namespace any more.
pub(crate) fn namespace_finalized(namespace: &Object) -> bool {
    match namespace.get_path(&["spec", "finalizers"]) {
        Some(Value::Array(finalizers)) => finalizers.is_empty(),
        _ => true,
    }
}

/// Takes a top-level field from the old object.
fn keep(new: &mut Object, old: &Object, field: &str) {
    match old.0.get(field) {
        Some(value) => drop(new.0.insert(field.to_owned(), value.clone())),
        None => drop(new.0.remove(field)),
    }
}

fn keep_metadata(new: &mut Object, old: &Object, field: &str) {
    match old.metadata().and_then(|metadata| metadata.get(field)) {
        Some(value) => drop(new.metadata_mut().insert(field.to_owned(), value.clone())),
        None => drop(new.metadata_mut().remove(field)),
    }
}

/// `stringData` is how clients write what `data` holds in base64.
fn merge_string_data(secret: &mut Object) {
    let Some(Value::Object(strings)) = secret.0.remove("stringData") else {
        return;
    };
    for (name, value) in strings {
        if let Value::String(text) = value {
            secret.set_path(&["data", &name], json!(STANDARD.encode(text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    fn deployments() -> std::sync::Arc<Resource> {
        Registry::builtin()
            .lookup("apps", "v1", "deployments")
            .expect("served")
    }

    #[test]
    fn a_change_of_spec_is_a_new_generation_and_keeps_the_status() {
        let old = object(json!({
            "metadata": {"name": "web", "generation": 3},
            "spec": {"replicas": 1}, "status": {"replicas": 1},
        }));
        let mut new = object(json!({
            "metadata": {"name": "web", "generation": 3}, "spec": {"replicas": 2},
        }));
        prepare_update(&deployments(), None, &mut new, &old);
        assert_eq!(new.generation(), 4);
        assert_eq!(new.pointer("/status/replicas"), Some(&json!(1)));
    }

    #[test]
    fn a_change_of_status_keeps_the_spec_and_the_generation() {
        let old = object(json!({
            "metadata": {"name": "web", "generation": 3},
            "spec": {"replicas": 1}, "status": {"replicas": 1},
        }));
        let mut new = object(json!({
            "metadata": {"name": "web", "generation": 3},
            "spec": {"replicas": 9}, "status": {"replicas": 2},
        }));
        prepare_update(&deployments(), Some("status"), &mut new, &old);
        assert_eq!(new.generation(), 3);
        assert_eq!(new.pointer("/spec/replicas"), Some(&json!(1)));
        assert_eq!(new.pointer("/status/replicas"), Some(&json!(2)));
    }

    #[test]
    fn string_data_overrides_data() {
        let mut secret = object(json!({"data": {"a": "eA=="}, "stringData": {"a": "y", "b": "z"}}));
        merge_string_data(&mut secret);
        assert_eq!(
            secret.0.get("data"),
            Some(&json!({"a": "eQ==", "b": "eg=="}))
        );
        assert_eq!(secret.0.get("stringData"), None);
    }
}
