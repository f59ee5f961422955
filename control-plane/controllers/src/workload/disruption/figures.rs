//! The figures of a disruption budget: how many pods it has, needs and can spare. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::runtime::{objects, pods, selector};
use crate::workload::deployment::scaled;

/// How long an eviction that was allowed counts before its pod is deleted.
const DELETION_TIMEOUT: Duration = Duration::from_mins(2);
const CONDITION: &str = "DisruptionAllowed";

/// Pods that were allowed to be evicted, with the time, by name.
type Disrupted = BTreeMap<String, Time>;

/// What is known of a budget's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) healthy: i32,
    pub(super) desired: i32,
    pub(super) expected: i32,
    pub(super) disrupted: Disrupted,
}

/// Whether the budget is about the pod: no selector selects nothing, an empty one everything.
pub(super) fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    budget
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref())
        .is_some_and(|wanted| selector::matches(wanted, pod.metadata.labels.as_ref()))
}

/// The budget's selector, for a message.
pub(super) fn selector_text(budget: &PodDisruptionBudget) -> String {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    pintle_kube_types::LabelSelector::from_typed(selector)
        .map(|selector| selector.to_string())
        .unwrap_or_default()
}

/// Whether the status is about the present wish.
pub(super) fn has_been_seen(budget: &PodDisruptionBudget) -> bool {
    let status = budget.status.as_ref();
    status.and_then(|status| status.observed_generation) == budget.metadata.generation
}

/// Whether the limit is a share of the scale of the pods' controllers, rather than a number of pods.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    budget.spec.as_ref().is_some_and(|spec| {
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
    })
}

/// How many pods must be healthy, of `expected`.
pub(super) fn desired(budget: &PodDisruptionBudget, expected: i32) -> i32 {
    let Some(spec) = &budget.spec else { return 0 };
    if spec.max_unavailable.is_some() {
        let spare = scaled(spec.max_unavailable.as_ref(), expected, true);
        expected.saturating_sub(spare).max(0)
    } else {
        scaled(spec.min_available.as_ref(), expected, true)
    }
}

/// The evictions that still count, and how long until the next of them does not. `late` hears of the
/// pods that stayed.
pub(super) fn still_disrupted(
    budget: &PodDisruptionBudget,
    covered: &[Arc<Pod>],
    now: Timestamp,
    mut late: impl FnMut(&Pod),
) -> (Disrupted, Option<Duration>) {
    let mut kept = Disrupted::new();
    let mut again: Option<Duration> = None;
    let listed = budget
        .status
        .as_ref()
        .and_then(|status| status.disrupted_pods.as_ref());
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
        return (kept, again);
    };
    for pod in covered.iter().filter(|pod| !pods::is_terminating(pod)) {
        let name = objects::name(&pod.metadata);
        let Some(time) = listed.get(name) else {
            continue;
        };
        let since = Duration::try_from(now.duration_since(time.0)).unwrap_or(Duration::ZERO);
        let left = DELETION_TIMEOUT.saturating_sub(since);
        if left.is_zero() {
            late(pod);
            continue;
        }
        again = Some(again.map_or(left, |again| again.min(left)));
        kept.insert(name.to_owned(), time.clone());
    }
    (kept, again)
}

/// How many pods are ready and not about to go.
pub(super) fn healthy(covered: &[Arc<Pod>], disrupted: &Disrupted) -> i32 {
    let count = covered
        .iter()
        .filter(|pod| {
            !pods::is_terminating(pod)
                && !disrupted.contains_key(objects::name(&pod.metadata))
                && pods::is_ready(pod)
        })
        .count();
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl Figures {
    /// How many pods may be evicted. None while there are no pods at all: the first ones appear
    /// before anybody has looked at them.
    fn allowed(&self) -> i32 {
        if self.expected <= 0 {
            return 0;
        }
        self.healthy.saturating_sub(self.desired).max(0)
    }

    /// The budget with these figures; `None` when it has them.
    pub(super) fn applied_to(
        &self,
        budget: &PodDisruptionBudget,
        now: Timestamp,
    ) -> Option<PodDisruptionBudget> {
        let old = budget.status.clone().unwrap_or_default();
        let allowed = self.allowed();
        let (value, reason) = if allowed > 0 {
            ("True", "SufficientPods")
        } else {
            ("False", "InsufficientPods")
        };
        let generation = budget.metadata.generation;
        let conditions = with_condition(
            old.conditions.clone().unwrap_or_default(),
            Condition {
                type_: CONDITION.to_owned(),
                status: value.to_owned(),
                reason: reason.to_owned(),
                message: String::new(),
                observed_generation: generation,
                last_transition_time: Time(now),
            },
        );
        let status = PodDisruptionBudgetStatus {
            conditions: Some(conditions),
            current_healthy: Some(self.healthy),
            desired_healthy: Some(self.desired),
            expected_pods: Some(self.expected),
            disruptions_allowed: Some(allowed),
            disrupted_pods: Some(self.disrupted.clone()).filter(|pods| !pods.is_empty()),
            observed_generation: generation,
        };
        changed(budget, status)
    }
}

/// The budget that allows nothing because its figures are not known; `None` when it says so.
pub(super) fn failed(
    budget: &PodDisruptionBudget,
    why: &str,
    now: Timestamp,
) -> Option<PodDisruptionBudget> {
    let old = budget.status.clone().unwrap_or_default();
    let conditions = with_condition(
        old.conditions.clone().unwrap_or_default(),
        Condition {
            type_: CONDITION.to_owned(),
            status: "False".to_owned(),
            reason: "SyncFailed".to_owned(),
            message: why.to_owned(),
            observed_generation: old.observed_generation,
            last_transition_time: Time(now),
        },
    );
    let status = PodDisruptionBudgetStatus {
        conditions: Some(conditions),
        disruptions_allowed: Some(0),
        ..old
    };
    changed(budget, status)
}

fn changed(
    budget: &PodDisruptionBudget,
    status: PodDisruptionBudgetStatus,
) -> Option<PodDisruptionBudget> {
    (budget.status.as_ref() != Some(&status)).then(|| PodDisruptionBudget {
        status: Some(status),
        ..budget.clone()
    })
}

/// The conditions with one of them renewed; its time changes only with its status.
fn with_condition(mut conditions: Vec<Condition>, mut fresh: Condition) -> Vec<Condition> {
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == fresh.type_)
    {
        Some(condition) => {
            if condition.status == fresh.status {
                fresh.last_transition_time = condition.last_transition_time.clone();
            }
            *condition = fresh;
        }
        None => conditions.push(fresh),
    }
    conditions
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:01:00Z".parse().expect("a time")
    }

    fn budget(spec: &Value, status: &Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "generation": 2}, "spec": spec, "status": status,
        }))
        .expect("a budget")
    }

    fn pod(name: &str, ready: &str) -> Arc<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }));
        Arc::new(pod.expect("a pod"))
    }

    #[test]
    fn limits_are_numbers_or_shares_rounded_up() {
        for (spec, expected, wanted) in [
            (json!({"minAvailable": 2}), 5, 2),
            (json!({"minAvailable": "50%"}), 5, 3),
            (json!({"maxUnavailable": 1}), 3, 2),
            (json!({"maxUnavailable": "30%"}), 7, 4),
            (json!({"maxUnavailable": 9}), 3, 0),
            (json!({"maxUnavailable": 0}), 3, 3),
            (json!({}), 3, 0),
        ] {
            assert_eq!(
                desired(&budget(&spec, &json!({})), expected),
                wanted,
                "{spec} of {expected}"
            );
        }
        assert!(needs_scale(&budget(
            &json!({"maxUnavailable": 1}),
            &json!({})
        )));
        assert!(!needs_scale(&budget(
            &json!({"minAvailable": 1}),
            &json!({})
        )));
    }

    #[test]
    fn a_missing_selector_covers_nothing_an_empty_one_everything() {
        let pod = pod("a", "True");
        for (spec, wanted) in [
            (json!({}), false),
            (json!({"selector": {}}), true),
            (json!({"selector": {"matchLabels": {"app": "web"}}}), true),
            (json!({"selector": {"matchLabels": {"app": "x"}}}), false),
        ] {
            assert_eq!(covers(&budget(&spec, &json!({})), &pod), wanted, "{spec}");
        }
    }

    #[test]
    fn an_eviction_counts_until_its_pod_goes_or_two_minutes_passed() {
        let budget = budget(
            &json!({"minAvailable": 1}),
            &json!({"disruptedPods": {
                "a": "2026-01-01T00:00:30Z", "late": "2025-12-31T23:58:00Z",
                "gone": "2026-01-01T00:00:30Z",
            }}),
        );
        let covered = [
            pod("a", "True"),
            pod("b", "True"),
            pod("late", "True"),
            pod("c", "False"),
        ];
        let mut late = Vec::new();
        let (disrupted, again) = still_disrupted(&budget, &covered, now(), |pod| {
            late.push(objects::name(&pod.metadata).to_owned());
        });
        assert_eq!(disrupted.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(again, Some(Duration::from_secs(90)));
        assert_eq!(late, ["late"]);
        assert_eq!(healthy(&covered, &disrupted), 2, "b and late");
    }

    #[test]
    fn the_status_is_written_once() {
        let figures = Figures {
            healthy: 3,
            desired: 2,
            expected: 3,
            disrupted: Disrupted::new(),
        };
        let zeroes = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        let before = budget(&json!({"minAvailable": 2}), &zeroes);
        let after = figures.applied_to(&before, now()).expect("a change");
        let status = after.status.clone().expect("a status");
        assert_eq!(status.disruptions_allowed, Some(1));
        assert_eq!(status.observed_generation, Some(2));
        let condition = &status.conditions.expect("conditions")[0];
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("True", "SufficientPods")
        );
        assert_eq!(figures.applied_to(&after, Timestamp::MAX), None);

        let broken = failed(&after, "no scale", now()).expect("a change");
        let status = broken.status.clone().expect("a status");
        assert_eq!(status.disruptions_allowed, Some(0));
        assert_eq!(status.current_healthy, Some(3), "the last known figure");
        assert_eq!(failed(&broken, "no scale", Timestamp::MAX), None);
    }

    #[test]
    fn nothing_is_allowed_while_there_are_no_pods() {
        let figures = Figures {
            healthy: 0,
            desired: -1,
            expected: 0,
            disrupted: Disrupted::new(),
        };
        assert_eq!(figures.allowed(), 0);
    }
}
