//! While the pod is to run: prepare, start, restart.

use k8s_openapi::jiff::Timestamp;

use super::{Action, Image, Life, Machine, Role, Step};
use crate::pod::backoff;

impl Machine {
    pub(super) fn step_run(&mut self, now: Timestamp, out: &mut Vec<Action>) {
        if self.is_complete() {
            self.facts.terminal = true;
            return;
        }
        if self.facts.volumes.begin(now) {
            out.push(Action::PrepareVolumes);
        }
        if self.is_settled() && self.facts.sandbox.step.begin(now) {
            out.push(Action::StartSandbox {
                replace: self.facts.sandbox.remains,
            });
        }
        if self.facts.sandbox.step == Step::Ready && self.facts.network.begin(now) {
            out.push(Action::AttachNetwork);
        }
        for index in self.eligible() {
            self.advance(index, now, out);
        }
        if !self.facts.initialized && self.first_incomplete_init().is_none() {
            self.facts.initialized = true;
            for index in self.eligible() {
                if self.facts.containers[index].role != Role::Sidecar {
                    self.advance(index, now, out);
                }
            }
        }
    }

    /// Whether every container that must has ended, and none is to run again.
    fn is_complete(&self) -> bool {
        let mut mains = 0;
        for (index, container) in self.facts.containers.iter().enumerate() {
            match container.role {
                Role::Init => {
                    if container.exited().is_some_and(|exit| !exit.succeeded())
                        && !self.restarts(index)
                    {
                        return true;
                    }
                }
                Role::Main => {
                    if container.exited().is_none() || self.restarts(index) {
                        // Look on: a failed init container may still end the pod.
                        mains += 1;
                    }
                }
                Role::Sidecar | Role::Ephemeral => {}
            }
        }
        mains == 0
            && self
                .facts
                .containers
                .iter()
                .any(|container| container.role == Role::Main)
    }

    fn first_incomplete_init(&self) -> Option<usize> {
        self.facts
            .containers
            .iter()
            .position(|container| match container.role {
                Role::Init => !container
                    .exited()
                    .is_some_and(super::Termination::succeeded),
                Role::Sidecar => !container.running().is_some_and(|running| running.started),
                Role::Main | Role::Ephemeral => false,
            })
    }

    /// The containers whose turn it is: init containers one after the other, then all.
    pub(super) fn eligible(&self) -> Vec<usize> {
        let last = if self.facts.initialized {
            None
        } else {
            self.first_incomplete_init()
        };
        self.facts
            .containers
            .iter()
            .enumerate()
            .filter(|(index, container)| match last {
                Some(last) => *index <= last && container.role != Role::Main,
                None => container.role != Role::Init,
            })
            .map(|(index, _)| index)
            .collect()
    }

    /// Brings one container a step nearer to running.
    fn advance(&mut self, index: usize, now: Timestamp, out: &mut Vec<Action>) {
        if let Life::Exited { .. } = self.facts.containers[index].life {
            self.restart(index, now, out);
        }
        match &self.facts.containers[index].life {
            Life::Waiting => self.start(index, now, out),
            Life::Running(running) if running.stopping.is_none() => {
                let reference = self.specs[index].image.as_deref().unwrap_or_default();
                if self.facts.containers[index].image_reference != reference {
                    let message = format!(
                        "Container {} definition changed, will be restarted",
                        self.facts.containers[index].name
                    );
                    let grace = self.spec_grace();
                    self.kill(index, grace, message, out);
                }
            }
            _ => {}
        }
    }

    /// Takes an ended container to its next run, when policy and back-off allow.
    fn restart(&mut self, index: usize, now: Timestamp, out: &mut Vec<Action>) {
        if !self.restarts(index) {
            return;
        }
        let container = &self.facts.containers[index];
        let Life::Exited { exit, announced } = &container.life else {
            return;
        };
        let (exit, announced) = (exit.clone(), *announced);
        let drifted =
            container.image_reference != self.specs[index].image.as_deref().unwrap_or_default();
        if !drifted
            && let Some(due) = container.backoff.due(exit.finished_at)
            && due > now
        {
            if !announced {
                let message = format!(
                    "Back-off restarting failed container {} in pod {}",
                    container.name,
                    self.full_name()
                );
                self.announce(out, Some(index), true, "BackOff", message);
                if let Life::Exited { announced, .. } = &mut self.facts.containers[index].life {
                    *announced = true;
                }
            }
            return;
        }
        let container = &mut self.facts.containers[index];
        out.push(Action::RemoveContainer {
            container: container.name.clone(),
            id: exit.id.clone(),
            attempt: container.attempt,
        });
        if !drifted {
            container.backoff.advance(now);
        }
        container.last = Some(exit);
        container.attempt += 1;
        container.life = Life::Waiting;
        container.image = Image::Unknown;
        container.failure = None;
    }

    /// What is still under way in a dead sandbox is answered before there is a new one.
    fn is_settled(&self) -> bool {
        !self.facts.network.is_working()
            && self
                .facts
                .containers
                .iter()
                .all(|container| container.life != Life::Creating)
    }

    fn is_prepared(&self) -> bool {
        self.facts.volumes == Step::Ready
            && self.facts.sandbox.step == Step::Ready
            && self.facts.network == Step::Ready
    }

    fn start(&mut self, index: usize, now: Timestamp, out: &mut Vec<Action>) {
        let prepared = self.is_prepared();
        let reference = self.specs[index].image.clone().unwrap_or_default();
        let container = &mut self.facts.containers[index];
        if container.image_reference != reference {
            container.image_reference = reference;
            if container.image != Image::Pulling {
                container.image = Image::Unknown;
            }
        }
        if container
            .failure
            .as_ref()
            .is_some_and(|failure| failure.retry_at > now)
        {
            return;
        }
        match &mut container.image {
            Image::Unknown => {
                container.image = Image::Pulling;
                out.push(Action::PullImage {
                    container: container.name.clone(),
                });
            }
            Image::Pulling => {}
            Image::Failed {
                retry_at,
                announce_at,
                ..
            } => {
                if *retry_at <= now {
                    container.image = Image::Pulling;
                    out.push(Action::PullImage {
                        container: container.name.clone(),
                    });
                } else if announce_at.is_some_and(|at| at <= now) {
                    *announce_at = None;
                    let reference = container.image_reference.clone();
                    let message = format!("Back-off pulling image \"{reference}\"");
                    self.announce(out, Some(index), false, "BackOff", message);
                    let message = "Error: ImagePullBackOff".to_owned();
                    self.announce(out, Some(index), true, "Failed", message);
                }
            }
            Image::Ready { id } => {
                if prepared {
                    let image_id = id.clone();
                    container.life = Life::Creating;
                    let (name, attempt) = (container.name.clone(), container.attempt);
                    out.push(Action::StartContainer {
                        id: self.run_id(&name, attempt),
                        container: name,
                        attempt,
                        image_id,
                    });
                }
            }
        }
    }

    pub(super) fn run_timer(&self) -> Option<Timestamp> {
        let network = (self.facts.sandbox.step == Step::Ready)
            .then(|| self.facts.network.timer())
            .flatten();
        let sandbox = self
            .is_settled()
            .then(|| self.facts.sandbox.step.timer())
            .flatten();
        let steps = [
            self.deadline(),
            self.facts.volumes.timer(),
            sandbox,
            network,
        ];
        let containers = self
            .eligible()
            .into_iter()
            .filter_map(|index| self.container_timer(index));
        steps.into_iter().flatten().chain(containers).min()
    }

    fn container_timer(&self, index: usize) -> Option<Timestamp> {
        let container = &self.facts.containers[index];
        match &container.life {
            Life::Exited { exit, .. } if self.restarts(index) => Some(
                container
                    .backoff
                    .due(exit.finished_at)
                    .unwrap_or(exit.finished_at),
            ),
            Life::Waiting => {
                let image = match &container.image {
                    Image::Failed {
                        retry_at,
                        announce_at,
                        ..
                    } => announce_at.map_or(Some(*retry_at), |at| Some(at.min(*retry_at))),
                    _ => None,
                };
                let failure = container.failure.as_ref().map(|failure| failure.retry_at);
                match (failure, image) {
                    // The failure is waited out before the image is looked at.
                    (Some(failure), Some(image)) => Some(backoff_max(failure, image)),
                    (Some(failure), None) => match container.image {
                        Image::Ready { .. } => self.is_prepared().then_some(failure),
                        Image::Unknown => Some(failure),
                        Image::Pulling | Image::Failed { .. } => None,
                    },
                    (None, image) => image,
                }
            }
            _ => None,
        }
    }
}

fn backoff_max(first: Timestamp, second: Timestamp) -> Timestamp {
    if backoff::elapsed(first, second).is_zero() {
        first
    } else {
        second
    }
}
