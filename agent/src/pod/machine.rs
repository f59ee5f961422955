//! A pod's whole life as a pure state machine: state × event → actions.
//!
//! Watches the events the worker hands in; changes nothing but its own [`Facts`]. It looks
//! for the difference between what the Pod asks for and what is there, and asks the worker
//! for the actions that close it. Reacts next: the worker, which performs the actions and
//! answers each with an event.
//!
//! ```text
//!             ┌── volumes ──┐
//!  new ──────▶├── images ───┼─▶ init containers ─▶ containers ─▶ (restart with back-off)
//!             └── sandbox ──┤                                      │
//!                   network ┘                     deletion, deadline, completion, eviction
//!                                                                  ▼
//!     gone ◀─ remove data ◀─ finalize ◀─ tear down ◀─ stop containers (hook, TERM, grace, KILL)
//! ```
//!
//! The machine is level-triggered: an event only updates facts, and `step` asks for
//! whatever is missing and not on its way. So it does not matter in which order events come,
//! and a machine built from the facts an earlier agent wrote carries on where that one was.

mod event;
mod facts;
mod resume;
mod run;
mod stop;
mod take;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Probe};
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest, Sha256};

pub use event::{Action, Announcement, Event, ImageFailure, ProbeKind, StartFailure, Termination};
pub use facts::{
    ContainerFacts, Facts, Failure, Finalize, Image, Life, Role, Running, Sandbox, Step, Stop,
    Teardown,
};
pub use resume::{Observed, ObservedContainer};

use super::backoff;

/// Waits between tries of a failed step: 1 s doubling to 16 s.
const STEP_RETRY: Duration = Duration::from_secs(1);
const STEP_RETRY_MAX: Duration = Duration::from_secs(16);
/// Wait before a container that could not be configured or created is tried again.
const FAILURE_RETRY: Duration = Duration::from_secs(10);
/// How long `ErrImagePull` is shown before it becomes `ImagePullBackOff`.
const PULL_ERROR_SHOWN: Duration = Duration::from_secs(2);
/// Wait before the control plane is asked again to remove an object.
const FINALIZE_RETRY: Duration = Duration::from_secs(1);

/// The life of one pod.
#[derive(Clone, Debug)]
pub struct Machine {
    pod: Arc<Pod>,
    specs: Vec<Container>,
    facts: Facts,
}

impl Machine {
    /// A pod nobody has begun with.
    pub fn new(pod: Arc<Pod>, now: Timestamp) -> Self {
        let mut machine = Self {
            pod: pod.clone(),
            specs: Vec::new(),
            facts: Facts::new(now),
        };
        machine.set_pod(pod, now);
        machine
    }

    /// Takes an event in and says what is to be done.
    pub fn apply(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.take(now, event, &mut actions);
        self.step(now, &mut actions);
        actions
    }

    /// The Pod as last seen.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// What is known.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Keeps the conditions just published, for the transition times of the next ones.
    pub fn set_conditions(&mut self, conditions: Vec<k8s_openapi::api::core::v1::PodCondition>) {
        self.facts.conditions = conditions;
    }

    /// The spec of a container, and what is known of it.
    pub fn containers(&self) -> impl Iterator<Item = (&Container, &ContainerFacts)> {
        self.specs.iter().zip(&self.facts.containers)
    }

    /// The spec of the container with this name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.specs.iter().find(|spec| spec.name == name)
    }

    /// Nothing is left of the pod.
    pub fn is_finished(&self) -> bool {
        self.facts.finalize == Finalize::Removed
    }

    /// When a [`Event::Tick`] is due.
    pub fn next_timer(&self) -> Option<Timestamp> {
        if self.must_end() {
            return self.stop_timer();
        }
        self.run_timer()
    }

    /// Whether the containers must go, for whatever reason.
    pub fn must_end(&self) -> bool {
        self.facts.stop.is_some() || self.facts.terminal
    }

    fn step(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.check_deadline(now);
        if !self.must_end() {
            self.step_run(now, out);
        }
        // Running may have found that the pod is complete.
        if self.must_end() {
            self.step_stop(now, out);
        }
    }

    /// `activeDeadlineSeconds`, as the kubelet's active deadline handler.
    fn check_deadline(&mut self, now: Timestamp) {
        if self.deadline().is_some_and(|deadline| deadline <= now) && !self.must_end() {
            self.facts.stop = Some(Stop {
                since: now,
                grace: self.spec_grace(),
                reason: Some("DeadlineExceeded".to_owned()),
                message: Some(
                    "Pod was active on the node longer than the specified deadline".to_owned(),
                ),
            });
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.spec()?.active_deadline_seconds?;
        let seconds = u64::try_from(seconds).unwrap_or_default();
        Some(backoff::add(
            self.facts.start_time,
            Duration::from_secs(seconds),
        ))
    }

    /// Adopts a Pod object: its containers become facts, in order.
    fn set_pod(&mut self, pod: Arc<Pod>, now: Timestamp) {
        self.specs.clear();
        let Some(spec) = pod.spec.as_ref() else {
            self.pod = pod;
            return;
        };
        let mut roles = Vec::new();
        for container in spec.init_containers.iter().flatten() {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            roles.push(if sidecar { Role::Sidecar } else { Role::Init });
            self.specs.push(container.clone());
        }
        for container in &spec.containers {
            roles.push(Role::Main);
            self.specs.push(container.clone());
        }
        for ephemeral in spec.ephemeral_containers.iter().flatten() {
            // An EphemeralContainer has the fields of a Container, and one more.
            match serde_json::to_value(ephemeral).and_then(serde_json::from_value) {
                Ok(container) => {
                    roles.push(Role::Ephemeral);
                    self.specs.push(container);
                }
                Err(error) => tracing::warn!(name = ephemeral.name, %error, "ephemeral container"),
            }
        }
        let mut known = std::mem::take(&mut self.facts.containers);
        for (container, role) in self.specs.iter().zip(roles) {
            let old = known
                .iter()
                .position(|facts| facts.name == container.name)
                .map(|index| known.swap_remove(index));
            self.facts
                .containers
                .push(old.unwrap_or_else(|| new_container(container, role)));
        }
        self.pod = pod;
        if let Some(meta) = Some(&self.pod.metadata)
            && meta.deletion_timestamp.is_some()
        {
            let grace = meta
                .deletion_grace_period_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or_else(|| self.spec_grace(), Duration::from_secs);
            self.stop_within(now, grace);
        }
    }

    /// Asks for an end within `grace`, or sooner when that is already asked for.
    fn stop_within(&mut self, now: Timestamp, grace: Duration) {
        let grace = grace.max(Duration::from_secs(1));
        match &mut self.facts.stop {
            None => {
                self.facts.stop = Some(Stop {
                    since: now,
                    grace,
                    reason: None,
                    message: None,
                });
            }
            Some(stop) => {
                let total = backoff::elapsed(stop.since, now) + grace;
                stop.grace = stop.grace.min(total);
            }
        }
    }

    fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// `terminationGracePeriodSeconds`.
    fn spec_grace(&self) -> Duration {
        self.spec()
            .and_then(|spec| spec.termination_grace_period_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(Duration::from_secs(30), Duration::from_secs)
            .max(Duration::from_secs(1))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.facts
            .containers
            .iter()
            .position(|container| container.name == name)
    }

    fn position_of_run(&self, id: &str) -> Option<usize> {
        self.facts
            .containers
            .iter()
            .position(|container| container.running().is_some_and(|running| running.id == id))
    }

    /// The id of a container's run: 64 hex digits that follow from the pod, the name and the
    /// attempt, so that a run begun just before a crash is found again after it.
    pub fn run_id(&self, name: &str, attempt: u32) -> String {
        let mut hash = Sha256::new();
        hash.update(self.uid());
        hash.update([0]);
        hash.update(name);
        hash.update([0]);
        hash.update(attempt.to_le_bytes());
        hex::encode(hash.finalize())
    }

    /// `name_namespace(uid)`, as the kubelet's messages name a pod.
    fn full_name(&self) -> String {
        let meta = &self.pod.metadata;
        format!(
            "{}_{}({})",
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            self.uid()
        )
    }

    fn field_path(&self, index: usize) -> Option<String> {
        let container = self.facts.containers.get(index)?;
        let list = match container.role {
            Role::Init | Role::Sidecar => "initContainers",
            Role::Main => "containers",
            Role::Ephemeral => "ephemeralContainers",
        };
        Some(format!("spec.{list}{{{}}}", container.name))
    }

    fn announce(
        &self,
        out: &mut Vec<Action>,
        index: Option<usize>,
        warning: bool,
        reason: &'static str,
        message: String,
    ) {
        out.push(Action::Announce(Announcement {
            warning,
            reason,
            message,
            field_path: index.and_then(|index| self.field_path(index)),
        }));
    }

    fn has_post_start(&self, index: usize) -> bool {
        self.specs[index]
            .lifecycle
            .as_ref()
            .is_some_and(|lifecycle| lifecycle.post_start.is_some())
    }

    fn has_pre_stop(&self, index: usize) -> bool {
        self.specs[index]
            .lifecycle
            .as_ref()
            .is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
    }

    fn probe(&self, index: usize, kind: ProbeKind) -> Option<&Probe> {
        let spec = &self.specs[index];
        match kind {
            ProbeKind::Startup => spec.startup_probe.as_ref(),
            ProbeKind::Liveness => spec.liveness_probe.as_ref(),
            ProbeKind::Readiness => spec.readiness_probe.as_ref(),
        }
    }

    /// Whether a container that ended is to run again, were it not for back-off.
    fn restarts(&self, index: usize) -> bool {
        let container = &self.facts.containers[index];
        let Some(exit) = container.exited() else {
            return false;
        };
        let spec = &self.specs[index];
        if container.role != Role::Ephemeral
            && let Some(action) = matching_rule(spec, exit.exit_code)
        {
            return action == "Restart" || action == "RestartAllContainers";
        }
        let policy = match container.role {
            Role::Sidecar => return true,
            Role::Ephemeral => return false,
            Role::Init | Role::Main => spec
                .restart_policy
                .as_deref()
                .or_else(|| self.spec().and_then(|pod| pod.restart_policy.as_deref())),
        };
        match policy {
            Some("Never") => false,
            Some("OnFailure") => !exit.succeeded(),
            // An init container that succeeded is done, whatever the policy.
            _ => container.role == Role::Main || !exit.succeeded(),
        }
    }
}

/// The action of the first `restartPolicyRules` entry that an exit code matches.
fn matching_rule(spec: &Container, code: i32) -> Option<&str> {
    spec.restart_policy_rules
        .iter()
        .flatten()
        .find(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                let listed = codes.values.iter().flatten().any(|value| *value == code);
                match codes.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            })
        })
        .map(|rule| rule.action.as_str())
}

fn new_container(spec: &Container, role: Role) -> ContainerFacts {
    ContainerFacts {
        name: spec.name.clone(),
        role,
        image: Image::Unknown,
        life: Life::Waiting,
        attempt: 0,
        last: None,
        backoff: backoff::Backoff::default(),
        pull_backoff: backoff::Backoff::default(),
        failure: None,
        image_reference: spec.image.clone().unwrap_or_default(),
    }
}

/// When a step that failed for the `failures`-th time is tried again.
fn retry_at(now: Timestamp, failures: u32) -> Timestamp {
    let wait = STEP_RETRY * 2u32.saturating_pow(failures.saturating_sub(1).min(8));
    backoff::add(now, wait.min(STEP_RETRY_MAX))
}
