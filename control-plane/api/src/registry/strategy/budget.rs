//! Disruption budgets: what one allows, and what an eviction takes from it.
//!
//! Pure. The disruption controller computes the status; between two of its looks evictions spend
//! what it allowed, here, so that two of them cannot spend the same disruption.

use pintle_kube_types::status::{Cause, Status};
use pintle_kube_types::{GroupResource, LabelSelector, Object};
use serde_json::{Value, json};

use super::pod;

/// Most pods a budget may list as being evicted (`MaxDisruptedPodSize` of Kubernetes).
const DISRUPTED_PODS_MAX: usize = 2000;
const CANNOT_EVICT: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// After how many seconds a client asks again when the controller has not looked yet.
const STALE_RETRY_SECONDS: i32 = 10;
const CONDITION: &str = "DisruptionAllowed";

/// The status of a budget that no controller has looked at.
pub(super) fn initial_status() -> Value {
    json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
}

/// Whether the budget is about the pod: a missing selector selects nothing, an empty one everything,
/// as `policy/v1` promises.
pub(crate) fn covers(budget: &Object, pod: &Object) -> bool {
    let Some(selector) = budget
        .get_path(&["spec", "selector"])
        .and_then(|selector| serde_json::from_value(selector.clone()).ok())
        .and_then(|selector| LabelSelector::from_typed(Some(&selector)).ok())
    else {
        return false;
    };
    let labels = pod.labels();
    selector.matches_by(|key| labels.get(key).copied())
}

/// Whether a pod goes without asking its budget: it serves nothing yet, or not any more.
pub(crate) fn need_not_ask(pod: &Object) -> bool {
    pod.deletion_timestamp().is_some()
        || matches!(
            pod.str_at(&["status", "phase"]),
            Some("Succeeded" | "Failed" | "Pending")
        )
}

/// What a budget answers to the eviction of a pod it covers.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The pod does not count: it goes, provided it is still as it was looked at.
    Free,
    /// It counts: this is the budget with one disruption less.
    Spent(Box<Object>),
}

/// Asks a budget for a running pod; an error where it does not allow the disruption.
pub(crate) fn ask(budget: &Object, pod: &Object, now: &str) -> Result<Answer, Status> {
    let number = |field: &str| {
        budget
            .get_path(&["status", field])
            .and_then(Value::as_i64)
            .unwrap_or(0)
    };
    let (healthy, desired) = (number("currentHealthy"), number("desiredHealthy"));
    if !pod::is_ready(pod) {
        let always = budget.str_at(&["spec", "unhealthyPodEvictionPolicy"]) == Some("AlwaysAllow");
        if always || (healthy >= desired && desired > 0) {
            return Ok(Answer::Free);
        }
    }
    let name = budget.name().unwrap_or_default();
    if number("observedGeneration") < budget.generation() {
        return Err(refused(
            Status::too_many_requests(CANNOT_EVICT, STALE_RETRY_SECONDS),
            format!("The disruption budget {name} is still being processed by the server."),
        ));
    }
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return Err(corrupt(
            name,
            "pdb disruptions allowed is negative",
            "pdb disruptions allowed is negative",
        ));
    }
    let disrupted = budget
        .get_path(&["status", "disruptedPods"])
        .and_then(Value::as_object)
        .map_or(0, serde_json::Map::len);
    if disrupted > DISRUPTED_PODS_MAX {
        return Err(corrupt(
            name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            "too many pending evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(refused(
            Status::too_many_requests(CANNOT_EVICT, 0),
            exhausted(budget, name, healthy, desired),
        ));
    }
    Ok(Answer::Spent(Box::new(spend(
        budget,
        pod.name().unwrap_or_default(),
        allowed - 1,
        now,
    ))))
}

fn refused(mut status: Status, message: String) -> Status {
    if let Some(details) = &mut status.details {
        details.causes.push(Cause {
            reason: "DisruptionBudget".to_owned(),
            message,
            field: String::new(),
        });
    }
    status
}

fn corrupt(name: &str, why: &str, cause: &str) -> Status {
    refused(
        Status::forbidden(
            &GroupResource::new("policy", "poddisruptionbudget"),
            name,
            why,
        ),
        format!("The disruption budget {name} does not allow evicting pods currently: {cause}"),
    )
}

/// Why nothing is left.
fn exhausted(budget: &Object, name: &str, healthy: i64, desired: i64) -> String {
    let condition = budget
        .get_path(&["status", "conditions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == CONDITION && condition["status"] == "False");
    let text = |field: &str| {
        condition
            .and_then(|condition| condition[field].as_str())
            .unwrap_or_default()
    };
    let (reason, message) = (text("reason"), text("message"));
    // After a failure the numbers say nothing.
    if reason == "SyncFailed" && !message.is_empty() {
        format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        )
    } else if healthy <= desired {
        format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        )
    } else if message.is_empty() {
        format!("The disruption budget {name} does not allow evicting pods currently")
    } else {
        format!(
            "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
        )
    }
}

/// The budget after one of its disruptions went to `pod`.
fn spend(budget: &Object, pod: &str, left: i64, now: &str) -> Object {
    let mut spent = budget.clone();
    spent.set_path(&["status", "disruptionsAllowed"], json!(left));
    spent.set_path(&["status", "disruptedPods", pod], json!(now));
    if left == 0 {
        let mut conditions = match spent.get_path(&["status", "conditions"]) {
            Some(Value::Array(list)) => list.clone(),
            _ => Vec::new(),
        };
        let mut fresh = json!({
            "type": CONDITION,
            "status": "False",
            "observedGeneration": spent.get_path(&["status", "observedGeneration"]),
            "lastTransitionTime": now,
            "reason": "InsufficientPods",
            "message": "",
        });
        match conditions
            .iter_mut()
            .find(|condition| condition["type"] == CONDITION)
        {
            Some(condition) => {
                if condition["status"] == "False" {
                    fresh["lastTransitionTime"] = condition["lastTransitionTime"].clone();
                }
                *condition = fresh;
            }
            None => conditions.push(fresh),
        }
        spent.set_path(&["status", "conditions"], Value::Array(conditions));
    }
    spent
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    fn pod(ready: &str) -> Object {
        object(json!({
            "metadata": {"name": "web-1", "labels": {"app": "web"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }))
    }

    fn budget(status: &Value) -> Object {
        object(json!({
            "metadata": {"name": "web", "generation": 1},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
            "status": status,
        }))
    }

    #[test]
    fn a_budget_covers_what_its_selector_names() {
        let pod = pod("True");
        assert!(covers(&budget(&json!({})), &pod));
        assert!(covers(&object(json!({"spec": {"selector": {}}})), &pod));
        for spec in [
            json!({}),
            json!({"selector": {"matchLabels": {"app": "other"}}}),
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}),
        ] {
            let budget = object(json!({"spec": spec}));
            assert!(!covers(&budget, &pod), "{}", budget.to_value());
        }
    }

    #[test]
    fn the_last_disruption_is_spent_once() {
        let status = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3,
            "desiredHealthy": 2, "expectedPods": 3});
        let Answer::Spent(spent) = ask(&budget(&status), &pod("True"), NOW).expect("allowed")
        else {
            panic!("a ready pod counts");
        };
        assert_eq!(spent.pointer("/status/disruptionsAllowed"), Some(&json!(0)));
        assert_eq!(
            spent.pointer("/status/disruptedPods/web-1"),
            Some(&json!(NOW))
        );
        assert_eq!(
            spent.pointer("/status/conditions/0/reason"),
            Some(&json!("InsufficientPods"))
        );
        let refused = ask(&spent, &pod("True"), NOW).expect_err("429");
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (429, CANNOT_EVICT)
        );
        let details = refused.details.expect("details");
        assert_eq!(details.retry_after_seconds, 0);
        assert_eq!(
            details.causes[0].message,
            "The disruption budget web does not allow evicting pods currently"
        );
    }

    #[test]
    fn refusals_say_why() {
        let cause = |status: Value| {
            let refused = ask(&budget(&status), &pod("True"), NOW).expect_err("refused");
            let details = refused.details.expect("details");
            (
                refused.code,
                details.retry_after_seconds,
                details.causes[0].message.clone(),
            )
        };
        assert_eq!(
            cause(json!({})),
            (
                429,
                10,
                "The disruption budget web is still being processed by the server.".to_owned()
            )
        );
        assert_eq!(
            cause(json!({"observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 2})),
            (
                429,
                0,
                "The disruption budget web needs 2 healthy pods and has 2 currently".to_owned()
            )
        );
        assert_eq!(
            cause(json!({"observedGeneration": 1, "conditions": [
                {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no scale"},
            ]})),
            (
                429,
                0,
                "The disruption budget web does not allow evicting pods currently because it failed sync: no scale"
                    .to_owned()
            )
        );
        assert_eq!(
            cause(json!({"observedGeneration": 1, "disruptionsAllowed": -1})).0,
            403
        );
    }

    #[test]
    fn a_pod_that_is_not_ready_goes_when_the_others_suffice() {
        let enough = json!({"observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 2});
        assert_eq!(
            ask(&budget(&enough), &pod("False"), NOW).expect("allowed"),
            Answer::Free
        );
        let few = json!({"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 2});
        let mut budget = budget(&few);
        assert!(ask(&budget, &pod("False"), NOW).is_err());
        budget.set_path(
            &["spec", "unhealthyPodEvictionPolicy"],
            json!("AlwaysAllow"),
        );
        assert_eq!(
            ask(&budget, &pod("False"), NOW).expect("allowed"),
            Answer::Free
        );
    }
}
