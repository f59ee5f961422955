//! How pods are shown, above all their Status: the one word that says what a pod is doing.
//!
//! Pure.

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::{Value, json};

use super::format::{NONE, age, name, object_list, object_text, or, parse_time, since, text};
use super::{AGE, NAME, Printer, column, wide};

pub(super) static POD: Printer = Printer {
    columns: &[
        NAME,
        column("Ready", "string", "Containers that are ready, of all."),
        column("Status", "string", "What the pod is doing."),
        column(
            "Restarts",
            "string",
            "Restarts of its containers, and when the last was.",
        ),
        AGE,
        wide("IP", "string", "Address of the pod."),
        wide("Node", "string", "Node the pod is bound to."),
        wide(
            "Nominated Node",
            "string",
            "Node on which others are evicted for the pod.",
        ),
        wide(
            "Readiness Gates",
            "string",
            "Extra conditions for readiness that are true, of all.",
        ),
    ],
    cells,
    conditions,
};

fn cells(pod: &Object, now: Timestamp) -> Vec<Value> {
    let summary = summarise(pod);
    let mut restarts = summary.restarts.to_string();
    if summary.restarts != 0 && summary.last_restart.is_some() {
        restarts = format!("{restarts} ({} ago)", since(summary.last_restart, now));
    }
    vec![
        name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod, now),
        or(object_text(pod, "/status/podIP"), NONE).into(),
        or(object_text(pod, "/spec/nodeName"), NONE).into(),
        or(object_text(pod, "/status/nominatedNodeName"), NONE).into(),
        readiness_gates(pod).into(),
    ]
}

fn conditions(pod: &Object) -> Option<Value> {
    let (reason, message) = match object_text(pod, "/status/phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{
        "type": "Completed", "status": "True", "reason": reason, "message": message,
    }]))
}

fn readiness_gates(pod: &Object) -> String {
    let gates = object_list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let met = gates
        .iter()
        .filter(|gate| condition_is_true(pod, text(gate, "/conditionType")))
        .count();
    format!("{met}/{}", gates.len())
}

fn condition<'a>(pod: &'a Object, type_: &str) -> Option<&'a Value> {
    object_list(pod, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == type_)
}

fn condition_is_true(pod: &Object, type_: &str) -> bool {
    condition(pod, type_).is_some_and(|condition| text(condition, "/status") == "True")
}

struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

/// Restarts of some containers and when the last of them was.
#[derive(Default, Clone, Copy)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += status
            .get("restartCount")
            .and_then(Value::as_i64)
            .unwrap_or_default();
        let finished = parse_time(
            status
                .pointer("/lastState/terminated/finishedAt")
                .and_then(Value::as_str),
        );
        self.last = self.last.max(finished);
    }
}

/// Kubernetes' `printPod`, step by step.
fn summarise(pod: &Object) -> Summary {
    let phase = object_text(pod, "/status/phase");
    let mut reason = or(object_text(pod, "/status/reason"), phase).to_owned();
    if condition(pod, "PodScheduled").is_some_and(|c| text(c, "/reason") == "SchedulingGated") {
        "SchedulingGated".clone_into(&mut reason);
    }

    let init_containers = object_list(pod, "/spec/initContainers");
    let is_sidecar = |name: &str| {
        init_containers.iter().any(|container| {
            text(container, "/name") == name && text(container, "/restartPolicy") == "Always"
        })
    };
    let sidecars = init_containers
        .iter()
        .filter(|container| text(container, "/restartPolicy") == "Always")
        .count();
    let total = object_list(pod, "/spec/containers").len() + sidecars;
    let mut ready = 0;
    let (mut restarts, mut sidecar_restarts) = (Restarts::default(), Restarts::default());

    let mut initializing = false;
    for (index, status) in object_list(pod, "/status/initContainerStatuses")
        .iter()
        .enumerate()
    {
        let sidecar = is_sidecar(text(status, "/name"));
        restarts.add(status);
        if sidecar {
            sidecar_restarts.add(status);
        }
        let terminated = status.pointer("/state/terminated");
        let waiting = text(status, "/state/waiting/reason");
        if terminated.is_some_and(|state| number(state, "exitCode") == 0) {
            continue;
        }
        if sidecar && status.get("started") == Some(&Value::Bool(true)) {
            if status.get("ready") == Some(&Value::Bool(true)) {
                ready += 1;
            }
            continue;
        }
        reason = if let Some(state) = terminated {
            format!("Init:{}", termination(state))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", init_containers.len())
        };
        initializing = true;
        break;
    }

    if !initializing || condition_is_true(pod, "Initialized") {
        restarts = sidecar_restarts;
        let mut any_running = false;
        for status in object_list(pod, "/status/containerStatuses").iter().rev() {
            restarts.add(status);
            let waiting = text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut reason);
            } else if let Some(state) = status.pointer("/state/terminated") {
                reason = termination(state);
            } else if status.get("ready") == Some(&Value::Bool(true))
                && status.pointer("/state/running").is_some()
            {
                any_running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && any_running {
            let ready = condition_is_true(pod, "Ready");
            if ready { "Running" } else { "NotReady" }.clone_into(&mut reason);
        }
    }

    if pod.deletion_timestamp().is_some() {
        if object_text(pod, "/status/reason") == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut reason);
        }
    }
    Summary {
        reason,
        ready,
        total,
        restarts: restarts.count,
        last_restart: restarts.last,
    }
}

fn termination(state: &Value) -> String {
    let reason = text(state, "/reason");
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match number(state, "signal") {
        0 => format!("ExitCode:{}", number(state, "exitCode")),
        signal => format!("Signal:{signal}"),
    }
}

fn number(value: &Value, field: &str) -> i64 {
    value.get(field).and_then(Value::as_i64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(spec: &Value, status: &Value, deleted: bool) -> String {
        let mut pod = Object::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec,
            "status": status,
        }))
        .unwrap();
        if deleted {
            pod.set_deletion_timestamp(Some("2026-01-01T00:01:00Z"));
        }
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        let cells = cells(&pod, now);
        let cells: Vec<&str> = cells.iter().map(|c| c.as_str().unwrap()).collect();
        cells[1..4].join(" ")
    }

    fn two() -> Value {
        json!({"containers": [{"name": "a"}, {"name": "b"}]})
    }

    fn running(ready: bool) -> Value {
        json!({"name": "a", "ready": ready, "restartCount": 0, "state": {"running": {}}})
    }

    #[test]
    fn plain_pods() {
        assert_eq!(
            shown(&two(), &json!({"phase": "Pending"}), false),
            "0/2 Pending 0"
        );
        let creating = json!({"phase": "Pending", "containerStatuses": [
            {"name": "a", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]});
        assert_eq!(shown(&two(), &creating, false), "0/2 ContainerCreating 0");
        let up = json!({"phase": "Running", "containerStatuses": [running(true), running(true)]});
        assert_eq!(shown(&two(), &up, false), "2/2 Running 0");
        assert_eq!(shown(&two(), &up, true), "2/2 Terminating 0");
        let evicted = json!({"phase": "Failed", "reason": "Evicted"});
        assert_eq!(shown(&two(), &evicted, false), "0/2 Evicted 0");
        assert_eq!(shown(&two(), &evicted, true), "0/2 Evicted 0");
    }

    #[test]
    fn restarts_say_when_the_last_was() {
        let status = json!({"phase": "Running", "containerStatuses": [
            {"name": "a", "ready": false, "restartCount": 3,
             "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:04:30Z"}}},
            running(true)]});
        assert_eq!(
            shown(&two(), &status, false),
            "1/2 CrashLoopBackOff 3 (30s ago)"
        );
    }

    #[test]
    fn finished_containers() {
        let done = |reason: Option<&str>, code: i64, signal: i64| {
            let mut state = json!({"exitCode": code, "signal": signal});
            if let Some(reason) = reason {
                state["reason"] = reason.into();
            }
            json!({"name": "a", "restartCount": 0, "state": {"terminated": state}})
        };
        let one = |s: Value| json!({"phase": "Succeeded", "containerStatuses": [s]});
        let spec = json!({"containers": [{"name": "a"}]});
        let completed = one(done(Some("Completed"), 0, 0));
        assert_eq!(shown(&spec, &completed, false), "0/1 Completed 0");
        assert_eq!(
            shown(&spec, &one(done(None, 7, 0)), false),
            "0/1 ExitCode:7 0"
        );
        assert_eq!(
            shown(&spec, &one(done(None, 137, 9)), false),
            "0/1 Signal:9 0"
        );
        let mixed = json!({"phase": "Running", "containerStatuses": [
            done(Some("Completed"), 0, 0), running(true)]});
        assert_eq!(shown(&two(), &mixed, false), "1/2 NotReady 0");
    }

    #[test]
    fn init_containers_and_sidecars() {
        let spec = json!({
            "containers": [{"name": "a"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        });
        let init = |state: Value| json!({"name": "i", "restartCount": 1, "state": state});
        let pending = |init: Value| json!({"phase": "Pending", "initContainerStatuses": [init]});
        for (state, expected) in [
            (json!({"running": {}}), "0/2 Init:0/2 1"),
            (
                json!({"waiting": {"reason": "PodInitializing"}}),
                "0/2 Init:0/2 1",
            ),
            (
                json!({"waiting": {"reason": "ImagePullBackOff"}}),
                "0/2 Init:ImagePullBackOff 1",
            ),
            (
                json!({"terminated": {"exitCode": 2, "reason": "Error"}}),
                "0/2 Init:Error 1",
            ),
            (
                json!({"terminated": {"exitCode": 2}}),
                "0/2 Init:ExitCode:2 1",
            ),
        ] {
            assert_eq!(shown(&spec, &pending(init(state)), false), expected);
        }
        let started = json!({
            "phase": "Running",
            "conditions": [{"type": "Initialized", "status": "True"}],
            "initContainerStatuses": [
                init(json!({"terminated": {"exitCode": 0}})),
                {"name": "s", "restartCount": 2, "ready": true, "started": true,
                 "state": {"running": {}}}],
            "containerStatuses": [running(true)],
        });
        assert_eq!(shown(&spec, &started, false), "2/2 Running 2");
    }
}
