//! Table tests of the machine, one file per group of events, on a clock of their own.

mod deletion;
mod invariants;
mod probes;
mod restarts;
mod resuming;
mod starting;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::status::pod_status;

/// A machine and its clock.
struct Bench {
    machine: Machine,
    now: Timestamp,
    /// Actions nobody has answered yet.
    actions: Vec<Action>,
}

fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    let object = spec.as_object_mut().unwrap();
    object
        .entry("containers")
        .or_insert_with(|| json!([{"name": "web", "image": "nginx:1.27"}]));
    object
        .entry("restartPolicy")
        .or_insert_with(|| json!("Always"));
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

fn deleted(pod: &Pod, grace: i64) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        Timestamp::UNIX_EPOCH,
    ));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    Arc::new(pod)
}

fn exit(id: &str, code: i32, at: Timestamp) -> Termination {
    Termination {
        id: id.to_owned(),
        exit_code: code,
        signal: None,
        reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
        message: None,
        started_at: None,
        finished_at: at,
    }
}

impl Bench {
    /// A new pod, taken up.
    fn new(spec: Value) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut bench = Self {
            machine: Machine::new(Arc::new(pod(spec)), now),
            now,
            actions: Vec::new(),
        };
        bench.event(Event::Tick);
        bench
    }

    fn event(&mut self, event: Event) {
        let actions = self.machine.apply(self.now, event);
        self.actions.extend(actions);
    }

    fn pass(&mut self, seconds: u64) {
        self.now = backoff::add(self.now, Duration::from_secs(seconds));
        self.event(Event::Tick);
    }

    /// Answers every preparation with success, until nothing but waiting is left.
    fn answer_all(&mut self) {
        while let Some(index) = self
            .actions
            .iter()
            .position(|action| answer(action, self.now).is_some())
        {
            let action = self.actions.remove(index);
            let event = answer(&action, self.now).unwrap();
            self.event(event);
        }
    }

    /// A pod of which everything runs.
    fn running(spec: Value) -> Self {
        let mut bench = Self::new(spec);
        bench.answer_all();
        bench
    }

    fn take(&mut self, wanted: impl Fn(&Action) -> bool) -> Option<Action> {
        let index = self.actions.iter().position(wanted)?;
        Some(self.actions.remove(index))
    }

    fn status(&self) -> PodStatus {
        pod_status(&self.machine, &["192.0.2.1".parse().unwrap()], self.now)
    }

    fn id(&self, name: &str) -> String {
        let facts = self.machine.facts();
        let container = facts.containers.iter().find(|c| c.name == name).unwrap();
        self.machine.run_id(name, container.attempt)
    }

    fn exits(&mut self, name: &str, code: i32) {
        let id = self.id(name);
        let exit = exit(&id, code, self.now);
        self.event(Event::ContainerExited { id, exit });
    }

    fn events(&self) -> Vec<(&'static str, String)> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Announce(said) => Some((said.reason, said.message.clone())),
                _ => None,
            })
            .collect()
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.events()
            .into_iter()
            .map(|(reason, _)| reason)
            .collect()
    }

    /// `state` of a container in a word: `running`, `waiting:REASON`, `terminated:REASON`.
    fn state(&self, name: &str) -> String {
        let status = self.status();
        let all = status
            .init_container_statuses
            .iter()
            .flatten()
            .chain(status.container_statuses.iter().flatten());
        let state = all
            .filter(|status| status.name == name)
            .find_map(|status| status.state.clone())
            .unwrap();
        if state.running.is_some() {
            return "running".to_owned();
        }
        if let Some(waiting) = state.waiting {
            return format!("waiting:{}", waiting.reason.unwrap());
        }
        format!("terminated:{}", state.terminated.unwrap().reason.unwrap())
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap()
    }

    fn condition(&self, type_: &str) -> (String, Option<String>) {
        let status = self.status();
        let condition = status
            .conditions
            .unwrap()
            .into_iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        (condition.status, condition.reason)
    }

    fn restarts(&self, name: &str) -> i32 {
        self.status()
            .container_statuses
            .unwrap()
            .into_iter()
            .find(|status| status.name == name)
            .unwrap()
            .restart_count
    }
}

/// The event of success that answers an action.
fn answer(action: &Action, now: Timestamp) -> Option<Event> {
    Some(match action {
        Action::PrepareVolumes => Event::VolumesReady,
        Action::StartSandbox { .. } => Event::SandboxStarted { shim_pid: 42 },
        Action::AttachNetwork => Event::NetworkReady {
            ips: vec!["10.244.0.5".parse().ok()?],
        },
        Action::PullImage { container } => Event::ImageReady {
            container: container.clone(),
            image_id: "sha256:1".to_owned(),
        },
        Action::StartContainer { container, id, .. } => Event::ContainerStarted {
            container: container.clone(),
            id: id.clone(),
            started_at: now,
        },
        Action::RunPostStart { id, .. } => Event::PostStartFinished {
            id: id.clone(),
            failure: None,
        },
        Action::StopContainer { id, .. } => Event::ContainerExited {
            id: id.clone(),
            exit: exit(id, 0, now),
        },
        Action::TearDown => Event::TornDown,
        Action::Finalize => Event::Finalized,
        Action::RemoveData => Event::DataRemoved,
        _ => return None,
    })
}
