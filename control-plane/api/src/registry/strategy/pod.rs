//! Pods: their first status, their quality of service, and how long they may take to end.

use pintle_kube_types::{Object, Quantity};
use serde_json::{Map, Value, json};

/// Resources that decide the quality of service.
const QOS_RESOURCES: [&str; 2] = ["cpu", "memory"];

/// The status a new pod starts with.
pub(super) fn prepare_create(pod: &mut Object) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(pod)});
    let gated = pod
        .get_path(&["spec", "schedulingGates"])
        .and_then(Value::as_array)
        .is_some_and(|gates| !gates.is_empty());
    if gated {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": null,
            "lastTransitionTime": null,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    pod.set_path(&["status"], status);
}

/// What a write of the status may not touch.
pub(super) fn prepare_status(new: &mut Object, old: &Object) {
    new.set_owner_references(&old.owner_references());
    if let Some(class) = old.get_path(&["status", "qosClass"]) {
        new.set_path(&["status", "qosClass"], class.clone());
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub(crate) fn qos_class(pod: &Object) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let mut weigh = |resources: Option<&Value>| {
        let list = |name: &str| {
            resources
                .and_then(|resources| resources.get(name))
                .and_then(Value::as_object)
        };
        let (requests, limits) = (list("requests"), list("limits"));
        for resource in QOS_RESOURCES {
            let limit = amount(limits, resource);
            let request = amount(requests, resource).or(limit);
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    };
    let spec = pod.get_path(&["spec"]);
    let whole = spec
        .and_then(|spec| spec.get("resources"))
        .filter(|resources| resources.as_object().is_some_and(|map| !map.is_empty()));
    if whole.is_some() {
        weigh(whole);
    } else {
        for list in ["initContainers", "containers"] {
            let containers = spec
                .and_then(|spec| spec.get(list))
                .and_then(Value::as_array);
            for container in containers.into_iter().flatten() {
                weigh(container.get("resources"));
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// A positive amount of a resource, in a form that compares by value.
fn amount(list: Option<&Map<String, Value>>, resource: &str) -> Option<Quantity> {
    let value = match list?.get(resource)? {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let quantity = Quantity::parse(&value).ok()?;
    (!quantity.is_zero()).then_some(quantity)
}

/// How long a pod may take to end, given what the request says.
pub(crate) fn grace_period(pod: &Object, requested: Option<i64>) -> i64 {
    let unscheduled = pod.str_at(&["spec", "nodeName"]).is_none_or(str::is_empty);
    let finished = matches!(
        pod.str_at(&["status", "phase"]),
        Some("Succeeded" | "Failed")
    );
    if unscheduled || finished {
        return 0;
    }
    let period = requested
        .or_else(|| {
            pod.get_path(&["spec", "terminationGracePeriodSeconds"])
                .and_then(Value::as_i64)
        })
        .unwrap_or(0);
    // As Kubernetes: a negative period means at once, but not by force.
    if period < 0 { 1 } else { period }
}

/// Sets a condition of the status; the time changes only with the value.
pub(crate) fn set_condition(pod: &mut Object, kind: &str, status: &str, now: &str) {
    put_condition(
        pod,
        json!({
            "type": kind,
            "status": status,
            "lastProbeTime": null,
            "lastTransitionTime": now,
        }),
        false,
    );
}

/// Says on the pod itself that it is about to be taken away, and why.
pub(crate) fn set_disruption_target(pod: &mut Object, reason: &str, message: &str, now: &str) {
    put_condition(
        pod,
        json!({
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }),
        true,
    );
}

/// Puts a condition in its place. One of the same status keeps its time, and itself unless the rest
/// is to be `renewed`.
fn put_condition(pod: &mut Object, mut fresh: Value, renewed: bool) {
    let mut conditions = match pod.get_path(&["status", "conditions"]) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    match conditions
        .iter_mut()
        .find(|condition| condition["type"] == fresh["type"])
    {
        Some(condition) if condition["status"] == fresh["status"] => {
            if !renewed {
                return;
            }
            fresh["lastTransitionTime"] = condition["lastTransitionTime"].clone();
            if let Some(generation) = condition.get("observedGeneration") {
                fresh["observedGeneration"] = generation.clone();
            }
            *condition = fresh;
        }
        Some(condition) => *condition = fresh,
        None => conditions.push(fresh),
    }
    pod.set_path(&["status", "conditions"], Value::Array(conditions));
}

/// Whether the pod serves.
pub(crate) fn is_ready(pod: &Object) -> bool {
    pod.get_path(&["status", "conditions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: &Value) -> Object {
        Object::from_value(json!({"spec": {"nodeName": "n", "containers": containers}}))
            .expect("an object")
    }

    #[test]
    fn quality_of_service() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}});
        for (containers, class) in [
            (json!([{"name": "a"}]), "BestEffort"),
            (
                json!([{"name": "a", "resources": {"requests": {"cpu": "1m"}}}]),
                "Burstable",
            ),
            (json!([{"name": "a", "resources": full}]), "Guaranteed"),
            (
                json!([{"name": "a", "resources": full}, {"name": "b"}]),
                "Burstable",
            ),
        ] {
            assert_eq!(qos_class(&pod(&containers)), class, "{containers}");
        }
    }

    #[test]
    fn grace_periods() {
        let mut pod = pod(&json!([]));
        pod.set_path(&["spec", "terminationGracePeriodSeconds"], json!(30));
        assert_eq!(grace_period(&pod, None), 30);
        assert_eq!(grace_period(&pod, Some(5)), 5);
        assert_eq!(grace_period(&pod, Some(-1)), 1);
        pod.set_path(&["status", "phase"], json!("Failed"));
        assert_eq!(grace_period(&pod, Some(5)), 0);
    }
}
