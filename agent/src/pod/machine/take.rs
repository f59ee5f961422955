//! Events become facts.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{
    Action, Event, FAILURE_RETRY, FINALIZE_RETRY, Failure, Finalize, Image, ImageFailure, Life,
    Machine, PULL_ERROR_SHOWN, ProbeKind, Role, Running, StartFailure, Step, Stop, Teardown,
    Termination, retry_at,
};
use crate::pod::backoff;

impl Machine {
    pub(super) fn take(&mut self, now: Timestamp, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Spec(pod) => self.set_pod(pod, now),
            Event::Gone => self.gone(now),
            Event::Evict { reason, message } => self.evict(now, reason, message),
            Event::Retry => self.retry(now),
            Event::Tick => {}
            Event::SandboxStarted { shim_pid } => self.sandbox_started(shim_pid),
            Event::SandboxFailed { message } => self.sandbox_failed(now, &message, out),
            Event::SandboxGone => self.sandbox_gone(now, out),
            Event::NetworkReady { ips } => self.network_ready(ips),
            Event::NetworkFailed { message } => self.network_failed(now, &message, out),
            Event::VolumesReady => {
                if self.facts.volumes.is_working() {
                    self.facts.volumes = Step::Ready;
                }
            }
            Event::VolumesFailed { message } => self.volumes_failed(now, message, out),
            Event::ImageReady {
                container,
                image_id,
            } => self.image_ready(&container, image_id),
            Event::ImageFailed {
                container,
                reason,
                message,
            } => self.image_failed(now, &container, reason, message, out),
            Event::ContainerStarted {
                container,
                id,
                started_at,
            } => self.container_started(now, &container, id, started_at, out),
            Event::ContainerFailed {
                container,
                id,
                reason,
                message,
            } => self.container_failed(now, &container, id, reason, message, out),
            Event::ContainerExited { id, exit } => self.container_exited(&id, exit, out),
            Event::PostStartFinished { id, failure } => self.hook_finished(now, &id, failure, out),
            Event::Probe { id, probe, healthy } => self.probed(now, &id, probe, healthy, out),
            Event::TornDown => {
                if self.facts.teardown == Teardown::Working {
                    self.facts.teardown = Teardown::Done;
                    self.facts.sandbox.step = Step::Absent;
                    self.facts.sandbox.shim_pid = 0;
                    self.facts.network = Step::Absent;
                    self.facts.volumes = Step::Absent;
                }
            }
            Event::TeardownFailed { message } => {
                if self.facts.teardown == Teardown::Working {
                    self.facts.teardown = Teardown::Failed {
                        retry_at: retry_at(now, 2),
                    };
                    self.announce(out, None, true, "FailedKillPod", message);
                }
            }
            Event::Finalized => {
                if self.facts.finalize == Finalize::Working {
                    self.facts.finalize = Finalize::Done;
                }
            }
            Event::FinalizeFailed => {
                if self.facts.finalize == Finalize::Working {
                    self.facts.finalize = Finalize::Failed {
                        retry_at: backoff::add(now, FINALIZE_RETRY),
                    };
                }
            }
            Event::DataRemoved => {
                if self.facts.finalize == Finalize::Removing {
                    self.facts.finalize = Finalize::Removed;
                }
            }
        }
    }

    fn gone(&mut self, now: Timestamp) {
        self.facts.gone = true;
        let grace = self
            .pod
            .metadata
            .deletion_grace_period_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or_else(|| self.spec_grace(), Duration::from_secs);
        self.stop_within(now, grace);
    }

    fn evict(&mut self, now: Timestamp, reason: String, message: String) {
        if self.must_end() {
            return;
        }
        self.facts.stop = Some(Stop {
            since: now,
            grace: self.spec_grace(),
            reason: Some(reason),
            message: Some(message),
        });
    }

    fn retry(&mut self, now: Timestamp) {
        for step in [
            &mut self.facts.sandbox.step,
            &mut self.facts.network,
            &mut self.facts.volumes,
        ] {
            if let Step::Failed { retry_at, .. } = step {
                *retry_at = now;
            }
        }
        for container in &mut self.facts.containers {
            if let Some(failure) = &mut container.failure {
                failure.retry_at = now;
            }
        }
    }

    fn sandbox_started(&mut self, shim_pid: i32) {
        if self.facts.sandbox.step.is_working() {
            self.facts.sandbox.step = Step::Ready;
            self.facts.sandbox.shim_pid = shim_pid;
            self.facts.sandbox.remains = false;
            self.facts.network = Step::Absent;
        }
    }

    fn sandbox_failed(&mut self, now: Timestamp, message: &str, out: &mut Vec<Action>) {
        if !self.facts.sandbox.step.is_working() {
            return;
        }
        let failures = self.facts.sandbox.step.failures() + 1;
        self.facts.sandbox.remains = true;
        self.facts.sandbox.step = Step::Failed {
            failures,
            retry_at: retry_at(now, failures),
        };
        let message = format!("Failed to create pod sandbox: {message}");
        self.announce(out, None, true, "FailedCreatePodSandBox", message);
    }

    fn network_ready(&mut self, ips: Vec<IpAddr>) {
        if !self.facts.network.is_working() {
            return;
        }
        if self.facts.sandbox.step == Step::Ready {
            self.facts.network = Step::Ready;
            self.facts.ips = ips;
        } else {
            // The sandbox died while it was being connected.
            self.facts.network = Step::Absent;
        }
    }

    fn network_failed(&mut self, now: Timestamp, message: &str, out: &mut Vec<Action>) {
        if !self.facts.network.is_working() {
            return;
        }
        if self.facts.sandbox.step != Step::Ready {
            self.facts.network = Step::Absent;
            return;
        }
        let failures = self.facts.network.failures() + 1;
        self.facts.network = Step::Failed {
            failures,
            retry_at: retry_at(now, failures),
        };
        let message = format!(
            "Failed to create pod sandbox: failed to set up network for sandbox: {message}"
        );
        self.announce(out, None, true, "FailedCreatePodSandBox", message);
    }

    fn volumes_failed(&mut self, now: Timestamp, message: String, out: &mut Vec<Action>) {
        if !self.facts.volumes.is_working() {
            return;
        }
        let failures = self.facts.volumes.failures() + 1;
        self.facts.volumes = Step::Failed {
            failures,
            retry_at: retry_at(now, failures),
        };
        self.announce(out, None, true, "FailedMount", message);
    }

    /// Everything in the sandbox died with it. A new one is made when something is still to
    /// run in it; init containers then run again, as the kubelet does it.
    pub(super) fn sandbox_gone(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.facts.sandbox.step != Step::Ready {
            return;
        }
        self.facts.sandbox.step = Step::Absent;
        self.facts.sandbox.shim_pid = 0;
        self.facts.sandbox.attempt += 1;
        self.facts.sandbox.remains = true;
        if !self.facts.network.is_working() {
            self.facts.network = Step::Absent;
        }
        self.facts.initialized = false;
        for index in 0..self.facts.containers.len() {
            let Some(running) = self.facts.containers[index].running().cloned() else {
                continue;
            };
            self.exited(index, lost(&running.id, Some(running.started_at), now), out);
        }
        if self.must_end() {
            return;
        }
        for container in &mut self.facts.containers {
            if container.role == Role::Init
                && let Life::Exited { exit, .. } = &container.life
                && exit.succeeded()
            {
                container.last = Some(exit.clone());
                container.attempt += 1;
                container.life = Life::Waiting;
                container.image = Image::Unknown;
            }
        }
        let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
        self.announce(out, None, false, "SandboxChanged", message);
    }

    fn image_ready(&mut self, container: &str, id: String) {
        if let Some(index) = self.position(container)
            && self.facts.containers[index].image == Image::Pulling
        {
            let container = &mut self.facts.containers[index];
            container.image = Image::Ready { id };
            container.pull_backoff = backoff::Backoff::default();
        }
    }

    fn image_failed(
        &mut self,
        now: Timestamp,
        container: &str,
        reason: ImageFailure,
        message: String,
        out: &mut Vec<Action>,
    ) {
        let Some(index) = self.position(container) else {
            return;
        };
        if self.facts.containers[index].image != Image::Pulling {
            return;
        }
        if reason == ImageFailure::Pull {
            let reference = self.specs[index].image.as_deref().unwrap_or_default();
            let text = format!("Failed to pull image \"{reference}\": {message}");
            self.announce(out, Some(index), true, "Failed", text);
        }
        let text = format!("Error: {}", reason.reason());
        self.announce(out, Some(index), true, "Failed", text);
        let container = &mut self.facts.containers[index];
        let (announce_at, retry) = if reason == ImageFailure::Pull {
            container.pull_backoff.advance(now);
            let shown = backoff::add(now, PULL_ERROR_SHOWN);
            (
                Some(shown),
                backoff::add(now, container.pull_backoff.delay()),
            )
        } else {
            (None, backoff::add(now, FAILURE_RETRY))
        };
        container.image = Image::Failed {
            reason,
            message,
            announce_at,
            retry_at: retry,
        };
    }

    fn container_started(
        &mut self,
        now: Timestamp,
        name: &str,
        id: String,
        started_at: Timestamp,
        out: &mut Vec<Action>,
    ) {
        let Some(index) = self.position(name) else {
            return;
        };
        let expected = self.run_id(name, self.facts.containers[index].attempt);
        if self.facts.containers[index].life != Life::Creating || expected != id {
            return;
        }
        self.announce_start(index, out);
        if self.facts.sandbox.step != Step::Ready {
            // It started, and died with the sandbox before the answer came.
            self.exited(index, lost(&id, Some(started_at), now), out);
            return;
        }
        let hooked = !self.has_post_start(index);
        self.facts.containers[index].failure = None;
        self.facts.containers[index].life = Life::Running(Running {
            id: id.clone(),
            started_at,
            hooked,
            started: false,
            ready: false,
            stopping: None,
            stop_failure: None,
        });
        if hooked {
            self.hooked(index, out);
        } else {
            out.push(Action::RunPostStart {
                container: name.to_owned(),
                id,
            });
        }
    }

    fn announce_start(&self, index: usize, out: &mut Vec<Action>) {
        let name = &self.facts.containers[index].name;
        let created = format!("Created container: {name}");
        self.announce(out, Some(index), false, "Created", created);
        let started = format!("Started container {name}");
        self.announce(out, Some(index), false, "Started", started);
    }

    /// The container is past its post-start hook: probing begins.
    fn hooked(&mut self, index: usize, out: &mut Vec<Action>) {
        let has_startup = self.probe(index, ProbeKind::Startup).is_some();
        if let Life::Running(running) = &mut self.facts.containers[index].life {
            running.hooked = true;
        }
        if has_startup {
            self.start_probe(index, ProbeKind::Startup, out);
        } else {
            self.passed_startup(index, out);
        }
    }

    fn passed_startup(&mut self, index: usize, out: &mut Vec<Action>) {
        let has_readiness = self.probe(index, ProbeKind::Readiness).is_some();
        if let Life::Running(running) = &mut self.facts.containers[index].life {
            running.started = true;
            running.ready = !has_readiness;
        }
        self.start_probe(index, ProbeKind::Liveness, out);
        self.start_probe(index, ProbeKind::Readiness, out);
    }

    pub(super) fn start_probe(&self, index: usize, probe: ProbeKind, out: &mut Vec<Action>) {
        let container = &self.facts.containers[index];
        if self.probe(index, probe).is_some()
            && let Some(running) = container.running()
        {
            out.push(Action::StartProbe {
                container: container.name.clone(),
                id: running.id.clone(),
                probe,
            });
        }
    }

    fn container_failed(
        &mut self,
        now: Timestamp,
        name: &str,
        id: String,
        reason: StartFailure,
        message: String,
        out: &mut Vec<Action>,
    ) {
        let Some(index) = self.position(name) else {
            return;
        };
        let expected = self.run_id(name, self.facts.containers[index].attempt);
        if self.facts.containers[index].life != Life::Creating || expected != id {
            return;
        }
        let text = format!("Error: {message}");
        self.announce(out, Some(index), true, "Failed", text);
        let container = &mut self.facts.containers[index];
        container.failure = Some(Failure {
            reason,
            message: message.clone(),
            retry_at: backoff::add(now, FAILURE_RETRY),
        });
        container.life = if reason == StartFailure::Run {
            // The run counts: it ended before it began, and is restarted by policy.
            Life::Exited {
                exit: Termination {
                    id,
                    exit_code: 128,
                    signal: None,
                    reason: "StartError".to_owned(),
                    message: Some(message),
                    started_at: None,
                    finished_at: now,
                },
                announced: false,
            }
        } else {
            Life::Waiting
        };
    }

    fn container_exited(&mut self, id: &str, exit: Termination, out: &mut Vec<Action>) {
        if let Some(index) = self.position_of_run(id) {
            self.exited(index, exit, out);
            return;
        }
        // It may end before the answer that it started arrives.
        let creating = self.facts.containers.iter().position(|container| {
            container.life == Life::Creating
                && self.run_id(&container.name, container.attempt) == id
        });
        if let Some(index) = creating {
            self.announce_start(index, out);
            self.exited(index, exit, out);
        }
    }

    fn exited(&mut self, index: usize, mut exit: Termination, out: &mut Vec<Action>) {
        let container = &mut self.facts.containers[index];
        if let Life::Running(running) = &container.life {
            if let Some(failure) = &running.stop_failure
                && exit.message.is_none()
            {
                exit.message = Some(failure.clone());
            }
            exit.started_at = exit.started_at.or(Some(running.started_at));
        }
        container.failure = None;
        let id = exit.id.clone();
        container.life = Life::Exited {
            exit,
            announced: false,
        };
        for probe in [
            ProbeKind::Startup,
            ProbeKind::Liveness,
            ProbeKind::Readiness,
        ] {
            if self.probe(index, probe).is_some() {
                out.push(Action::StopProbe {
                    id: id.clone(),
                    probe,
                });
            }
        }
    }

    fn hook_finished(
        &mut self,
        _now: Timestamp,
        id: &str,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let Some(index) = self.position_of_run(id) else {
            return;
        };
        let Some(running) = self.facts.containers[index].running() else {
            return;
        };
        if running.hooked || running.stopping.is_some() {
            return;
        }
        match failure {
            None => self.hooked(index, out),
            Some(message) => {
                self.announce(
                    out,
                    Some(index),
                    true,
                    "FailedPostStartHook",
                    "PostStartHook failed".to_owned(),
                );
                if let Life::Running(running) = &mut self.facts.containers[index].life {
                    running.stop_failure = Some(message);
                }
                let grace = self.spec_grace();
                self.kill(index, grace, "FailedPostStartHook".to_owned(), out);
            }
        }
    }

    fn probed(
        &mut self,
        _now: Timestamp,
        id: &str,
        probe: ProbeKind,
        healthy: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(index) = self.position_of_run(id) else {
            return;
        };
        let Some(running) = self.facts.containers[index].running().cloned() else {
            return;
        };
        match (probe, healthy) {
            (ProbeKind::Readiness, _) => {
                if let Life::Running(running) = &mut self.facts.containers[index].life {
                    running.ready = healthy && running.started;
                }
            }
            (ProbeKind::Startup, true) => {
                if !running.started && running.stopping.is_none() {
                    out.push(Action::StopProbe {
                        id: id.to_owned(),
                        probe,
                    });
                    self.passed_startup(index, out);
                }
            }
            (ProbeKind::Liveness, true) => {}
            (ProbeKind::Startup | ProbeKind::Liveness, false) => {
                if running.stopping.is_none() && !self.must_end() {
                    let grace = self
                        .probe(index, probe)
                        .and_then(|probe| probe.termination_grace_period_seconds)
                        .and_then(|seconds| u64::try_from(seconds).ok())
                        .map_or_else(|| self.spec_grace(), Duration::from_secs);
                    let message = format!(
                        "Container {} failed {} probe, will be restarted",
                        self.facts.containers[index].name,
                        probe.title().to_lowercase()
                    );
                    self.kill(index, grace, message, out);
                }
            }
        }
    }

    /// Begins to stop a running container.
    pub(super) fn kill(
        &mut self,
        index: usize,
        grace: Duration,
        message: String,
        out: &mut Vec<Action>,
    ) {
        let Some(running) = self.facts.containers[index].running() else {
            return;
        };
        let id = running.id.clone();
        self.announce(out, Some(index), false, "Killing", message);
        for probe in [ProbeKind::Startup, ProbeKind::Liveness] {
            if self.probe(index, probe).is_some() {
                out.push(Action::StopProbe {
                    id: id.clone(),
                    probe,
                });
            }
        }
        let pre_stop = self.has_pre_stop(index);
        let container = &mut self.facts.containers[index];
        let name = container.name.clone();
        if let Life::Running(running) = &mut container.life {
            running.stopping = Some(grace);
        }
        out.push(Action::StopContainer {
            container: name,
            id,
            grace,
            pre_stop,
        });
    }
}

/// A run of which nothing more is known than that it is over.
pub(super) fn lost(id: &str, started_at: Option<Timestamp>, now: Timestamp) -> Termination {
    Termination {
        id: id.to_owned(),
        exit_code: 137,
        signal: None,
        reason: "ContainerStatusUnknown".to_owned(),
        message: Some("The container could not be located when the pod was terminated".to_owned()),
        started_at,
        finished_at: now,
    }
}
