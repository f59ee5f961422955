//! The built-in kinds: which Rust type stands for which group, version and kind.
//!
//! A new kind of the API is one line here. Read by `schema/build.rs` and `schema/openapi.rs`.

use std::borrow::Cow;

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, authentication::v1 as authentication,
    authorization::v1 as authorization, autoscaling::v1 as autoscaling, batch::v1 as batch,
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, networking::v1 as networking, node::v1 as node, policy::v1 as policy,
    rbac::v1 as rbac, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::{JsonSchema, SchemaGenerator};

/// A built-in kind.
pub(super) struct Kind {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) name: &'static str,
    /// Whether there is a list of it.
    pub(super) list: bool,
    pub(super) definition: fn() -> Cow<'static, str>,
    pub(super) generate: fn(&mut SchemaGenerator),
}

fn generate<T: JsonSchema>(generator: &mut SchemaGenerator) {
    let _ = generator.subschema_for::<T>();
}

macro_rules! kinds {
    ($($group:literal $version:literal { $($kind:ident: $type:ty, $list:literal;)* })*) => {
        &[$($(Kind {
            group: $group,
            version: $version,
            name: stringify!($kind),
            list: $list,
            definition: <$type as JsonSchema>::schema_name,
            generate: generate::<$type>,
        },)*)*]
    };
}

/// Every kind there is a schema for.
pub(super) const KINDS: &[Kind] = kinds! {
    "" "v1" {
        Binding: core::Binding, false;
        ConfigMap: core::ConfigMap, true;
        Endpoints: core::Endpoints, true;
        Event: core::Event, true;
        LimitRange: core::LimitRange, true;
        Namespace: core::Namespace, true;
        Node: core::Node, true;
        PersistentVolume: core::PersistentVolume, true;
        PersistentVolumeClaim: core::PersistentVolumeClaim, true;
        Pod: core::Pod, true;
        PodTemplate: core::PodTemplate, true;
        ReplicationController: core::ReplicationController, true;
        ResourceQuota: core::ResourceQuota, true;
        Secret: core::Secret, true;
        Service: core::Service, true;
        ServiceAccount: core::ServiceAccount, true;
        Status: meta::Status, false;
        DeleteOptions: meta::DeleteOptions, false;
    }
    "apps" "v1" {
        ControllerRevision: apps::ControllerRevision, true;
        DaemonSet: apps::DaemonSet, true;
        Deployment: apps::Deployment, true;
        ReplicaSet: apps::ReplicaSet, true;
        StatefulSet: apps::StatefulSet, true;
    }
    "autoscaling" "v1" {
        HorizontalPodAutoscaler: autoscaling::HorizontalPodAutoscaler, true;
        Scale: autoscaling::Scale, false;
    }
    "batch" "v1" {
        CronJob: batch::CronJob, true;
        Job: batch::Job, true;
    }
    "coordination.k8s.io" "v1" {
        Lease: coordination::Lease, true;
    }
    "discovery.k8s.io" "v1" {
        EndpointSlice: discovery::EndpointSlice, true;
    }
    "events.k8s.io" "v1" {
        Event: events::Event, true;
    }
    "networking.k8s.io" "v1" {
        Ingress: networking::Ingress, true;
        IngressClass: networking::IngressClass, true;
        NetworkPolicy: networking::NetworkPolicy, true;
    }
    "node.k8s.io" "v1" {
        RuntimeClass: node::RuntimeClass, true;
    }
    "policy" "v1" {
        PodDisruptionBudget: policy::PodDisruptionBudget, true;
        Eviction: policy::Eviction, false;
    }
    "rbac.authorization.k8s.io" "v1" {
        ClusterRole: rbac::ClusterRole, true;
        ClusterRoleBinding: rbac::ClusterRoleBinding, true;
        Role: rbac::Role, true;
        RoleBinding: rbac::RoleBinding, true;
    }
    "scheduling.k8s.io" "v1" {
        PriorityClass: scheduling::PriorityClass, true;
    }
    "storage.k8s.io" "v1" {
        StorageClass: storage::StorageClass, true;
    }
    "admissionregistration.k8s.io" "v1" {
        MutatingWebhookConfiguration: admission::MutatingWebhookConfiguration, true;
        ValidatingWebhookConfiguration: admission::ValidatingWebhookConfiguration, true;
    }
    "authentication.k8s.io" "v1" {
        TokenRequest: authentication::TokenRequest, false;
        TokenReview: authentication::TokenReview, false;
        SelfSubjectReview: authentication::SelfSubjectReview, false;
    }
    "authorization.k8s.io" "v1" {
        LocalSubjectAccessReview: authorization::LocalSubjectAccessReview, false;
        SelfSubjectAccessReview: authorization::SelfSubjectAccessReview, false;
        SelfSubjectRulesReview: authorization::SelfSubjectRulesReview, false;
        SubjectAccessReview: authorization::SubjectAccessReview, false;
    }
};

/// The kind of that name, if it is built in.
pub(super) fn find(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    // Every group version knows the options of a delete.
    if kind == "DeleteOptions" {
        return KINDS.iter().find(|k| k.name == kind);
    }
    KINDS
        .iter()
        .find(|k| k.group == group && k.version == version && k.name == kind)
}
