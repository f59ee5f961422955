//! A new agent takes up a pod where an earlier one left it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::{
    Action, ContainerFacts, Facts, Finalize, Image, Life, Machine, ProbeKind, Running, Step,
    Teardown, Termination, take::lost,
};

/// What the runtime has of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Process of the shim, when it lives.
    pub shim_pid: Option<i32>,
    /// Its containers.
    pub containers: Vec<ObservedContainer>,
}

/// What the runtime has of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    /// Id of the run.
    pub id: String,
    /// Its name in the pod.
    pub name: String,
    /// Number of the run.
    pub attempt: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// How it ended; `None`: it runs.
    pub exit: Option<Termination>,
}

impl Machine {
    /// A machine that knows what an earlier one wrote down and what the runtime has now, and
    /// the actions that go with it. What runs is left alone.
    pub fn resume(
        pod: Arc<Pod>,
        facts: Facts,
        observed: &Observed,
        now: Timestamp,
    ) -> (Self, Vec<Action>) {
        let mut machine = Self {
            pod: pod.clone(),
            specs: Vec::new(),
            facts,
        };
        machine.set_pod(pod, now);
        let mut out = Vec::new();
        machine.undo_unanswered();
        machine.meet(observed, now, &mut out);
        machine.step(now, &mut out);
        (machine, out)
    }

    /// Actions whose answer the earlier agent did not live to see are asked for again; each
    /// is idempotent.
    fn undo_unanswered(&mut self) {
        let facts = &mut self.facts;
        // Mounts and files are checked again after every start.
        facts.volumes = Step::Absent;
        facts.network = Step::Absent;
        if facts.sandbox.step.is_working() {
            facts.sandbox.step = Step::Absent;
            facts.sandbox.remains = true;
        }
        if facts.teardown == Teardown::Working {
            facts.teardown = Teardown::Pending;
        }
        if matches!(facts.finalize, Finalize::Working) {
            facts.finalize = Finalize::Pending;
        }
        if facts.finalize == Finalize::Removing {
            facts.finalize = Finalize::Done;
        }
        for container in &mut facts.containers {
            if container.image == Image::Pulling {
                container.image = Image::Unknown;
            }
        }
    }

    fn meet(&mut self, observed: &Observed, now: Timestamp, out: &mut Vec<Action>) {
        if self.facts.teardown == Teardown::Done {
            return;
        }
        match observed.shim_pid {
            Some(pid) => {
                self.facts.sandbox.step = Step::Ready;
                self.facts.sandbox.shim_pid = pid;
                self.facts.sandbox.remains = false;
            }
            None if self.facts.sandbox.step == Step::Ready => {
                // Runs that ended before the sandbox died are better known than lost.
                self.adopt(observed, now, out);
                self.sandbox_gone(now, out);
                return;
            }
            None => {}
        }
        self.adopt(observed, now, out);
    }

    fn adopt(&mut self, observed: &Observed, now: Timestamp, out: &mut Vec<Action>) {
        for index in 0..self.facts.containers.len() {
            let container = &self.facts.containers[index];
            let found = observed
                .containers
                .iter()
                .filter(|found| found.name == container.name && found.attempt >= container.attempt)
                .max_by_key(|found| found.attempt);
            match found {
                None => self.facts.containers[index].miss(now),
                Some(found) => {
                    self.facts.containers[index].find(found);
                    self.resume_container(index, out);
                }
            }
        }
    }

    /// Probes and hooks of a container that runs.
    fn resume_container(&mut self, index: usize, out: &mut Vec<Action>) {
        let has_startup = self.probe(index, ProbeKind::Startup).is_some();
        let has_readiness = self.probe(index, ProbeKind::Readiness).is_some();
        let Life::Running(running) = &mut self.facts.containers[index].life else {
            return;
        };
        // A post-start hook that was under way is not run twice.
        running.hooked = true;
        // A stop that was under way is begun again by the next step.
        running.stopping = None;
        if !running.started && !has_startup {
            running.started = true;
            running.ready = !has_readiness;
        }
        if running.started {
            self.start_probe(index, ProbeKind::Liveness, out);
            self.start_probe(index, ProbeKind::Readiness, out);
        } else {
            self.start_probe(index, ProbeKind::Startup, out);
        }
    }
}

impl ContainerFacts {
    /// The runtime does not know this run.
    fn miss(&mut self, now: Timestamp) {
        match &self.life {
            Life::Running(running) => {
                self.life = Life::Exited {
                    exit: lost(&running.id, Some(running.started_at), now),
                    announced: false,
                };
            }
            Life::Creating => self.life = Life::Waiting,
            Life::Waiting | Life::Exited { .. } => {}
        }
    }

    /// The runtime has this run, or a later one.
    fn find(&mut self, found: &ObservedContainer) {
        if found.attempt > self.attempt {
            self.attempt = found.attempt;
            self.life = Life::Waiting;
        }
        match (&found.exit, &self.life) {
            // What the earlier agent saw of the end stays.
            (Some(_), Life::Exited { .. }) => {}
            (Some(exit), _) => {
                self.life = Life::Exited {
                    exit: exit.clone(),
                    announced: false,
                };
            }
            (None, Life::Running(running)) if running.id == found.id => {}
            (None, _) => {
                self.failure = None;
                self.life = Life::Running(Running {
                    id: found.id.clone(),
                    started_at: found.started_at,
                    hooked: true,
                    started: false,
                    ready: false,
                    stopping: None,
                    stop_failure: None,
                });
            }
        }
    }
}
