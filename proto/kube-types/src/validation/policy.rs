//! Rules of PodDisruptionBudgets and evictions.
//!
//! The eviction API and the disruption controller rely on what passes here: a selector that parses,
//! and one of two limits, each a count or a share of at most the whole.

use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};

use super::{Rules, meta, not_negative, workload};
use crate::field::{ErrorList, FieldError, Path};

/// Who evicts pods that are not ready.
const UNHEALTHY_POLICIES: [&str; 2] = ["AlwaysAllow", "IfHealthyBudget"];

/// PodDisruptionBudgets.
pub(super) const BUDGET: Rules<PodDisruptionBudget> = Rules {
    create: |new, errors| budget(new, errors),
    update: |new, _, errors| budget(new, errors),
    status: |new, _, errors| {
        if let Some(status) = &new.status {
            budget_status(status, errors);
        }
    },
};

fn budget(budget: &PodDisruptionBudget, errors: &mut ErrorList) {
    if let Some(spec) = &budget.spec {
        budget_spec(spec, errors);
    }
}

fn budget_spec(spec: &PodDisruptionBudgetSpec, errors: &mut ErrorList) {
    let path = Path::new("spec");
    if spec.min_available.is_some() && spec.max_unavailable.is_some() {
        errors.push(FieldError::invalid(
            &path,
            spec,
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for (field, limit) in [
        ("minAvailable", &spec.min_available),
        ("maxUnavailable", &spec.max_unavailable),
    ] {
        if let Some(limit) = limit {
            let path = path.child(field);
            workload::int_or_percent(limit, &path, errors);
            workload::at_most_all(limit, &path, errors);
        }
    }
    if let Some(selector) = &spec.selector {
        meta::label_selector(selector, &path.child("selector"), errors);
    }
    if let Some(policy) = spec.unhealthy_pod_eviction_policy.as_deref()
        && !UNHEALTHY_POLICIES.contains(&policy)
    {
        errors.push(FieldError::not_supported(
            &path.child("unhealthyPodEvictionPolicy"),
            policy,
            &UNHEALTHY_POLICIES,
        ));
    }
}

fn budget_status(status: &PodDisruptionBudgetStatus, errors: &mut ErrorList) {
    let path = Path::new("status");
    meta::conditions(
        status.conditions.as_deref().unwrap_or_default(),
        &path.child("conditions"),
        errors,
    );
    for (field, value) in [
        ("disruptionsAllowed", status.disruptions_allowed),
        ("currentHealthy", status.current_healthy),
        ("desiredHealthy", status.desired_healthy),
        ("expectedPods", status.expected_pods),
    ] {
        not_negative(errors, &path.child(field), value.unwrap_or(0).into());
    }
}
