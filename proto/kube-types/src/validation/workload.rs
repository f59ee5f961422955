//! Rules of Deployments, ReplicaSets, ControllerRevisions and Scales.
//!
//! The controllers rely on what passes here: selectors match templates and never change.

use k8s_openapi::api::apps::v1::{
    ControllerRevision, Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy,
    ReplicaSet, ReplicaSetStatus,
};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Rules, immutable, meta, not_negative, pod};
use crate::field::{ErrorList, FieldError, Path};
use crate::selector;

/// Deployments.
pub(super) const DEPLOYMENT: Rules<Deployment> = Rules {
    create: |new, errors| {
        if let Some(spec) = &new.spec {
            deployment_spec(spec, errors);
        }
    },
    update: |new, old, errors| {
        if let Some(spec) = &new.spec {
            deployment_spec(spec, errors);
        }
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            immutable(
                errors,
                &Path::new("spec").child("selector"),
                &new.selector,
                &old.selector,
            );
        }
    },
    status: |new, old, errors| {
        if let Some(status) = &new.status {
            deployment_status(status, old.status.as_ref(), errors);
        }
    },
};

/// ReplicaSets.
pub(super) const REPLICA_SET: Rules<ReplicaSet> = Rules {
    create: |new, errors| replica_set(new, errors),
    update: |new, old, errors| {
        replica_set(new, errors);
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            immutable(
                errors,
                &Path::new("spec").child("selector"),
                &new.selector,
                &old.selector,
            );
        }
    },
    status: |new, _, errors| {
        if let Some(status) = &new.status {
            replica_set_status(status, errors);
        }
    },
};

/// ControllerRevisions.
pub(super) const REVISION: Rules<ControllerRevision> = Rules {
    create: |new, errors| revision(new, errors),
    update: |new, old, errors| {
        revision(new, errors);
        immutable(errors, &Path::new("data"), &new.data, &old.data);
    },
    status: |_, _, _| {},
};

/// Scales.
pub(super) const SCALE: Rules<Scale> = Rules {
    create: |new, errors| scale(new, errors),
    update: |new, _, errors| scale(new, errors),
    status: |_, _, _| {},
};

fn scale(scale: &Scale, errors: &mut ErrorList) {
    let replicas = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
    not_negative(
        errors,
        &Path::new("spec").child("replicas"),
        replicas.into(),
    );
}

fn revision(revision: &ControllerRevision, errors: &mut ErrorList) {
    if revision.data.is_none() {
        errors.push(FieldError::required(
            &Path::new("data"),
            "data is mandatory",
        ));
    }
    not_negative(errors, &Path::new("revision"), revision.revision);
}

fn optional(errors: &mut ErrorList, path: &Path, field: &str, value: Option<i32>) {
    if let Some(value) = value {
        not_negative(errors, &path.child(field), value.into());
    }
}

fn deployment_spec(spec: &DeploymentSpec, errors: &mut ErrorList) {
    let path = Path::new("spec");
    optional(errors, &path, "replicas", spec.replicas);
    check_selector(&spec.selector, &path.child("selector"), errors);
    template(
        &spec.template,
        &spec.selector,
        &path.child("template"),
        errors,
    );
    if let Some(strategy) = &spec.strategy {
        deployment_strategy(strategy, &path.child("strategy"), errors);
    }
    optional(errors, &path, "minReadySeconds", spec.min_ready_seconds);
    optional(
        errors,
        &path,
        "revisionHistoryLimit",
        spec.revision_history_limit,
    );
    if let Some(deadline) = spec.progress_deadline_seconds {
        let path = path.child("progressDeadlineSeconds");
        not_negative(errors, &path, deadline.into());
        if deadline <= spec.min_ready_seconds.unwrap_or(0) {
            errors.push(FieldError::invalid(
                &path,
                deadline,
                "must be greater than minReadySeconds",
            ));
        }
    }
}

fn replica_set(set: &ReplicaSet, errors: &mut ErrorList) {
    let Some(spec) = &set.spec else {
        errors.push(FieldError::required(
            &Path::new("spec").child("selector"),
            "",
        ));
        return;
    };
    let path = Path::new("spec");
    optional(errors, &path, "replicas", spec.replicas);
    optional(errors, &path, "minReadySeconds", spec.min_ready_seconds);
    check_selector(&spec.selector, &path.child("selector"), errors);
    match &spec.template {
        Some(pods) => template(pods, &spec.selector, &path.child("template"), errors),
        None => errors.push(FieldError::required(&path.child("template"), "")),
    }
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector
        .match_labels
        .as_ref()
        .is_none_or(std::collections::BTreeMap::is_empty)
        && selector
            .match_expressions
            .as_ref()
            .is_none_or(std::vec::Vec::is_empty)
}

fn check_selector(selector: &LabelSelector, path: &Path, errors: &mut ErrorList) {
    // The typed form cannot tell a missing selector from an empty one; Kubernetes refuses both.
    if is_empty(selector) {
        if selector.match_labels.is_none() && selector.match_expressions.is_none() {
            errors.push(FieldError::required(path, ""));
        } else {
            errors.push(FieldError::invalid(
                path,
                selector,
                "empty selector is invalid for deployment",
            ));
        }
        return;
    }
    meta::label_selector(selector, path, errors);
}

fn template(
    template: &PodTemplateSpec,
    selector: &LabelSelector,
    path: &Path,
    errors: &mut ErrorList,
) {
    if !is_empty(selector)
        && let Ok(selector) = selector::LabelSelector::from_typed(Some(selector))
    {
        let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
        if !selector.matches_labels(labels) {
            errors.push(FieldError::invalid(
                &path.child("metadata.labels"),
                labels.cloned().unwrap_or_default(),
                "`selector` does not match template `labels`",
            ));
        }
    }
    meta::template_metadata(template.metadata.as_ref(), &path.child("metadata"), errors);
    let path = path.child("spec");
    let Some(spec) = &template.spec else {
        errors.push(FieldError::required(&path.child("containers"), ""));
        return;
    };
    pod::spec(spec, &path, true, errors);
    let policy = spec.restart_policy.as_deref().unwrap_or("");
    // An unknown policy has been reported already.
    if matches!(policy, "OnFailure" | "Never") {
        errors.push(FieldError::not_supported(
            &path.child("restartPolicy"),
            policy,
            &["Always"],
        ));
    }
    if spec.active_deadline_seconds.is_some() {
        errors.push(FieldError::forbidden(
            &path.child("activeDeadlineSeconds"),
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        ));
    }
}

fn deployment_strategy(strategy: &DeploymentStrategy, path: &Path, errors: &mut ErrorList) {
    let rolling_path = path.child("rollingUpdate");
    match strategy.type_.as_deref().unwrap_or("") {
        "Recreate" => {
            if strategy.rolling_update.is_some() {
                errors.push(FieldError::forbidden(
                    &rolling_path,
                    "may not be specified when strategy `type` is 'Recreate'",
                ));
            }
        }
        "RollingUpdate" => {
            let Some(rolling) = &strategy.rolling_update else {
                errors.push(FieldError::required(
                    &rolling_path,
                    "this should be defaulted and never be nil",
                ));
                return;
            };
            let zero = IntOrString::Int(0);
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&zero);
            let surge = rolling.max_surge.as_ref().unwrap_or(&zero);
            let unavailable_path = rolling_path.child("maxUnavailable");
            let surge_path = rolling_path.child("maxSurge");
            int_or_percent(unavailable, &unavailable_path, errors);
            int_or_percent(surge, &surge_path, errors);
            if is_nothing(unavailable) && is_nothing(surge) {
                errors.push(FieldError::invalid(
                    &unavailable_path,
                    unavailable,
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            at_most_all(unavailable, &unavailable_path, errors);
        }
        _ => errors.push(FieldError::not_supported(
            path,
            strategy,
            &["Recreate", "RollingUpdate"],
        )),
    }
}

fn percent(value: &IntOrString) -> Option<u64> {
    match value {
        IntOrString::Int(_) => None,
        IntOrString::String(text) => {
            let digits = text.strip_suffix('%')?;
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            digits.parse().ok()
        }
    }
}

fn is_nothing(value: &IntOrString) -> bool {
    match value {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(_) => percent(value).unwrap_or(0) == 0,
    }
}

/// A percentage may not be more than all.
pub(super) fn at_most_all(value: &IntOrString, path: &Path, errors: &mut ErrorList) {
    if percent(value).is_some_and(|p| p > 100) {
        errors.push(FieldError::invalid(
            path,
            value,
            "must not be greater than 100%",
        ));
    }
}

/// A count, or a percentage such as `25%`.
pub(super) fn int_or_percent(value: &IntOrString, path: &Path, errors: &mut ErrorList) {
    match value {
        IntOrString::Int(number) => not_negative(errors, path, (*number).into()),
        IntOrString::String(_) if percent(value).is_none() => errors.push(FieldError::invalid(
            path,
            value,
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
        )),
        IntOrString::String(_) => {}
    }
}

fn deployment_status(
    status: &DeploymentStatus,
    old: Option<&DeploymentStatus>,
    errors: &mut ErrorList,
) {
    let path = Path::new("status");
    if let Some(generation) = status.observed_generation {
        not_negative(errors, &path.child("observedGeneration"), generation);
    }
    for (field, value) in [
        ("replicas", status.replicas),
        ("updatedReplicas", status.updated_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
        ("unavailableReplicas", status.unavailable_replicas),
        ("collisionCount", status.collision_count),
    ] {
        optional(errors, &path, field, value);
    }
    let replicas = status.replicas.unwrap_or(0);
    let ready = status.ready_replicas.unwrap_or(0);
    for (field, value) in [
        ("updatedReplicas", status.updated_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    ] {
        at_most(
            errors,
            &path.child(field),
            value,
            replicas,
            "status.replicas",
        );
    }
    let available = path.child("availableReplicas");
    at_most(
        errors,
        &available,
        status.available_replicas,
        ready,
        "readyReplicas",
    );
    if let Some(old) = old {
        let (new, old) = (
            status.collision_count.unwrap_or(0),
            old.collision_count.unwrap_or(0),
        );
        if new < old {
            errors.push(FieldError::invalid(
                &path.child("collisionCount"),
                new,
                "cannot be decremented",
            ));
        }
    }
}

fn at_most(errors: &mut ErrorList, path: &Path, value: Option<i32>, limit: i32, name: &str) {
    if let Some(value) = value
        && value > limit
    {
        errors.push(FieldError::invalid(
            path,
            value,
            format!("cannot be greater than {name}"),
        ));
    }
}

fn replica_set_status(status: &ReplicaSetStatus, errors: &mut ErrorList) {
    let path = Path::new("status");
    if let Some(generation) = status.observed_generation {
        not_negative(errors, &path.child("observedGeneration"), generation);
    }
    not_negative(errors, &path.child("replicas"), status.replicas.into());
    for (field, value) in [
        ("fullyLabeledReplicas", status.fully_labeled_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    ] {
        optional(errors, &path, field, value);
        at_most(
            errors,
            &path.child(field),
            value,
            status.replicas,
            "status.replicas",
        );
    }
    at_most(
        errors,
        &path.child("availableReplicas"),
        status.available_replicas,
        status.ready_replicas.unwrap_or(0),
        "readyReplicas",
    );
}
