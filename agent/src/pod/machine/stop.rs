//! When the pod must end: stop, tear down, finalise.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{Action, Finalize, Life, Machine, Role, Teardown};
use crate::pod::backoff;

/// What a container keeps of its grace, however late its turn comes.
const LEAST_GRACE: Duration = Duration::from_secs(2);

impl Machine {
    pub(super) fn step_stop(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        self.stop_containers(now, out);
        let busy = self
            .facts
            .containers
            .iter()
            .any(super::ContainerFacts::is_alive)
            || self.facts.sandbox.step.is_working()
            || self.facts.network.is_working()
            || self.facts.volumes.is_working();
        if busy {
            return;
        }
        let due = match &self.facts.teardown {
            Teardown::Pending => true,
            Teardown::Failed { retry_at } => *retry_at <= now,
            Teardown::Working | Teardown::Done => false,
        };
        if due {
            self.facts.teardown = Teardown::Working;
            out.push(Action::TearDown);
        }
        if self.facts.teardown == Teardown::Done {
            self.facts.terminal = true;
            self.finalize(now, out);
        }
    }

    /// Ordinary containers at once; sidecars after them, the last one first.
    fn stop_containers(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        let grace = self.remaining_grace(now);
        let ordinary_alive = self
            .facts
            .containers
            .iter()
            .any(|container| container.role != Role::Sidecar && container.is_alive());
        let last_sidecar = self
            .facts
            .containers
            .iter()
            .rposition(|container| container.role == Role::Sidecar && container.is_alive());
        for index in 0..self.facts.containers.len() {
            let container = &self.facts.containers[index];
            if container.role == Role::Sidecar && (ordinary_alive || Some(index) != last_sidecar) {
                continue;
            }
            let Some(running) = container.running() else {
                continue;
            };
            match running.stopping {
                None => {
                    let message = format!("Stopping container {}", container.name);
                    self.kill(index, grace, message, out);
                }
                Some(given) if self.is_shortened(given) => self.hurry(index, grace, out),
                Some(_) => {}
            }
        }
    }

    fn remaining_grace(&self, now: Timestamp) -> Duration {
        match &self.facts.stop {
            None => self.spec_grace(),
            Some(stop) => {
                let remaining = stop.grace.saturating_sub(backoff::elapsed(stop.since, now));
                remaining.max(LEAST_GRACE.min(stop.grace))
            }
        }
    }

    fn is_shortened(&self, given: Duration) -> bool {
        self.facts
            .stop
            .as_ref()
            .is_some_and(|stop| stop.grace < given)
    }

    /// The container is being stopped already, but now there is less time.
    fn hurry(&mut self, index: usize, grace: Duration, out: &mut Vec<Action>) {
        let total = self.facts.stop.as_ref().map(|stop| stop.grace);
        let container = &mut self.facts.containers[index];
        let name = container.name.clone();
        if let Life::Running(running) = &mut container.life {
            running.stopping = total;
            out.push(Action::StopContainer {
                container: name,
                id: running.id.clone(),
                grace,
                pre_stop: false,
            });
        }
    }

    fn finalize(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.facts.gone {
            if !matches!(
                self.facts.finalize,
                Finalize::Removing | Finalize::Removed | Finalize::Working
            ) {
                self.facts.finalize = Finalize::Removing;
                out.push(Action::RemoveData);
            }
            return;
        }
        if self.pod.metadata.deletion_timestamp.is_none() {
            return;
        }
        let due = match &self.facts.finalize {
            Finalize::Pending => true,
            Finalize::Failed { retry_at } => *retry_at <= now,
            Finalize::Working | Finalize::Done | Finalize::Removing | Finalize::Removed => false,
        };
        if due {
            self.facts.finalize = Finalize::Working;
            out.push(Action::Finalize);
        }
    }

    pub(super) fn stop_timer(&self) -> Option<Timestamp> {
        match (&self.facts.teardown, &self.facts.finalize) {
            (Teardown::Failed { retry_at }, _) => Some(*retry_at),
            (Teardown::Done, Finalize::Failed { retry_at }) if !self.facts.gone => Some(*retry_at),
            _ => None,
        }
    }
}
