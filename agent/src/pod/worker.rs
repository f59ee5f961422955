//! One task per pod: performs what the machine asks for.
//!
//! Watches its inbox (the Pod object, exits of its containers, changes of what its volumes are
//! made of) and the answers of the actions under way; changes sandbox, containers, volumes
//! and network of the one pod, the pod's record on disk, its status, its Events. Reacts next:
//! the status publisher.
//!
//! The order within a round is fixed: the machine decides, the record is written, then the
//! actions begin. Whatever a crash interrupts is found in the record and asked for again.

mod actions;
mod exits;
mod image;
mod listen;
mod start;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub use table::{ContainerEntry, PodEntry, PodTable};

use super::environment::Downward;
use super::machine::{Action, Event, Machine, ProbeKind, Teardown, Termination};
use super::record::{self, Record, RecordError};
use super::seams::{Images, Networks, Sandboxes};
use crate::clock::Clock;
use crate::describe;
use crate::runtime::Exit;
use crate::session::{ClusterState, ControlPlane};
use crate::status::{EventSink, StatusPublisher, pod_status};
use crate::volume::{Prepared, VolumeError, Volumes};

/// What all workers share.
pub struct Rooms {
    /// Sandboxes and containers.
    pub sandboxes: Arc<dyn Sandboxes>,
    /// Images.
    pub images: Arc<dyn Images>,
    /// Pod networking.
    pub networks: Arc<dyn Networks>,
    /// Volumes.
    pub volumes: Volumes,
    /// Where statuses go.
    pub status: StatusPublisher,
    /// Where Events go.
    pub events: EventSink,
    /// The control plane.
    pub control_plane: Arc<dyn ControlPlane>,
    /// The session's copy of the cluster state.
    pub state: ClusterState,
    /// The time.
    pub clock: Clock,
    /// What others may know about the pods.
    pub table: PodTable,
    /// The node.
    pub host: HostFacts,
    /// `agent/pods`.
    pub pods_dir: PathBuf,
    /// `agent/logs`.
    pub logs_dir: PathBuf,
    /// Seccomp profiles (`localhostProfile`).
    pub seccomp_dir: PathBuf,
    /// Domain of cluster names.
    pub cluster_domain: String,
    /// Processes a pod may have at most.
    pub pod_pids_limit: Option<u64>,
}

/// What pods can ask about the node.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// Addresses, the primary one first.
    pub ips: Vec<IpAddr>,
    /// Memory in bytes.
    pub memory: u64,
    /// CPUs in thousandths.
    pub milli_cpu: u64,
}

/// What a worker is told.
#[derive(Clone, Debug)]
pub enum Message {
    /// The object appeared or changed.
    Spec(Arc<Pod>),
    /// The object is gone.
    Gone,
    /// A ConfigMap or Secret of the pod's namespace changed.
    Source {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A container ended.
    Exited {
        /// Id of the run.
        id: String,
        /// How.
        exit: Exit,
    },
    /// The sandbox died.
    SandboxGone,
    /// Something steps may have waited for is there.
    Retry,
}

/// An answer of an action under way.
enum Answer {
    Event(Event),
    /// Volumes are in place, or are not.
    Volumes {
        /// This was the first time, which the machine waits for.
        asked: bool,
        result: Result<Prepared, VolumeError>,
    },
}

/// The task of one pod.
pub struct Worker {
    rooms: Arc<Rooms>,
    uid: String,
    machine: Machine,
    record: Record,
    inbox: mpsc::UnboundedReceiver<Message>,
    answers: mpsc::UnboundedReceiver<Answer>,
    answer: mpsc::UnboundedSender<Answer>,
    tasks: JoinSet<()>,
    pulls: HashMap<String, AbortHandle>,
    probes: HashMap<(String, ProbeKind), AbortHandle>,
    stops: HashMap<String, AbortHandle>,
    /// When a token of a volume must be renewed.
    refresh_at: Option<Timestamp>,
    /// The volumes have been prepared once.
    prepared: bool,
    published: Option<PodStatus>,
    /// The pod ended before this agent knew it; its status is not ours to write.
    silent: bool,
    /// Actions that go with taking the pod up.
    first: Vec<Action>,
}

impl Worker {
    /// Takes a pod up: from its record and what the runtime has, or as new.
    pub fn build(
        rooms: Arc<Rooms>,
        pod: &Arc<Pod>,
        inbox: mpsc::UnboundedReceiver<Message>,
    ) -> Result<Self, RecordError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let directory = rooms.pods_dir.join(&uid);
        let (_, facts) = record::read(&directory);
        let record = Record::open(directory)?;
        let now = rooms.clock.now();
        let observed = exits::observe(&rooms, pod);
        let facts = facts.unwrap_or_else(|| {
            let mut facts = Machine::new(pod.clone(), now).facts().clone();
            if has_ended(pod) && observed.shim_pid.is_none() {
                facts.terminal = true;
                facts.teardown = Teardown::Done;
            }
            facts
        });
        let silent = has_ended(pod) && facts.never_ran();
        let (machine, first) = Machine::resume(pod.clone(), facts, &observed, now);
        let (answer, answers) = mpsc::unbounded_channel();
        Ok(Self {
            rooms,
            uid,
            machine,
            record,
            inbox,
            answers,
            answer,
            tasks: JoinSet::new(),
            pulls: HashMap::new(),
            probes: HashMap::new(),
            stops: HashMap::new(),
            refresh_at: None,
            prepared: false,
            published: None,
            silent,
            first,
        })
    }

    /// Runs until nothing is left of the pod, or until `shutdown`, which leaves it running.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let first = std::mem::take(&mut self.first);
        self.carry_out(first);
        while !self.machine.is_finished() {
            let wake = self.wake();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(answer) = self.answers.recv() => self.answered(answer),
                message = self.inbox.recv() => match message {
                    Some(message) => self.told(message),
                    None => return,
                },
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!(pod = self.uid, %error, "an action panicked");
                    }
                }
                () = wait(wake) => self.timer(),
            }
        }
        self.rooms.status.forget(&self.uid);
        self.rooms.table.remove(&self.uid);
    }

    /// How long until something is due.
    fn wake(&self) -> Option<std::time::Duration> {
        let due = [self.machine.next_timer(), self.refresh_at]
            .into_iter()
            .flatten()
            .min()?;
        // A timer never rings early.
        Some(self.rooms.clock.until(due) + std::time::Duration::from_millis(1))
    }

    fn timer(&mut self) {
        let now = self.rooms.clock.now();
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh_at = None;
            self.prepare_volumes(false);
        }
        self.apply(Event::Tick);
    }

    fn told(&mut self, message: Message) {
        match message {
            Message::Spec(pod) => {
                let labels_changed = self.machine.pod().metadata.labels != pod.metadata.labels
                    || self.machine.pod().metadata.annotations != pod.metadata.annotations;
                let stored = pod.status.clone();
                self.apply(Event::Spec(pod));
                if let Some(stored) = stored {
                    self.rooms.status.compare(&self.uid, &stored);
                }
                if labels_changed && self.prepared && !self.machine.must_end() {
                    self.prepare_volumes(false);
                }
            }
            Message::Gone => self.apply(Event::Gone),
            Message::Source { kind, name } => {
                let used = crate::volume::references(self.machine.pod())
                    .get(kind)
                    .is_some_and(|names| names.contains(&name));
                if used && self.prepared && !self.machine.must_end() {
                    self.prepare_volumes(false);
                }
                self.apply(Event::Retry);
            }
            Message::Exited { id, exit } => {
                let exit = self.termination(&id, &exit);
                self.apply(Event::ContainerExited { id, exit });
            }
            Message::SandboxGone => self.apply(Event::SandboxGone),
            Message::Retry => self.apply(Event::Retry),
        }
    }

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Event(event) => self.apply(event),
            Answer::Volumes { asked, result } => match result {
                Ok(prepared) => {
                    self.prepared = true;
                    self.refresh_at = prepared.refresh_at;
                    if asked {
                        self.apply(Event::VolumesReady);
                    }
                }
                Err(error) => {
                    let message = volume_words(&error);
                    if asked {
                        self.apply(Event::VolumesFailed { message });
                    } else {
                        tracing::warn!(pod = self.uid, message, "volumes are not up to date");
                    }
                }
            },
        }
    }

    fn apply(&mut self, event: Event) {
        tracing::trace!(pod = self.uid, ?event, "event");
        let actions = self.machine.apply(self.rooms.clock.now(), event);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        self.publish();
        if self.machine.is_finished() {
            // The record went with the pod's directory.
            return;
        }
        if let Err(error) = self.record.keep(self.machine.pod(), self.machine.facts()) {
            tracing::error!(
                pod = self.uid,
                error = describe::chain(&error),
                "the pod's record is not up to date; a crash now may leave something behind"
            );
        }
        for action in actions {
            tracing::debug!(pod = self.uid, ?action, "action");
            self.perform(action);
        }
    }

    /// Tells the status when it changed.
    fn publish(&mut self) {
        let pod = self.machine.pod().clone();
        let host = &self.rooms.host.ips;
        let status = pod_status(&self.machine, host, self.rooms.clock.now());
        self.rooms
            .table
            .update(&self.uid, &self.machine, &status, &self.rooms.logs_dir);
        if self.published.as_ref() == Some(&status) {
            return;
        }
        self.machine
            .set_conditions(status.conditions.clone().unwrap_or_default());
        self.published = Some(status.clone());
        if self.silent || self.machine.facts().gone {
            return;
        }
        let meta = &pod.metadata;
        self.rooms.status.publish(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
            &self.uid,
            status,
        );
    }

    fn downward(&self) -> Downward {
        Downward {
            pod_ips: self.machine.facts().ips.clone(),
            host_ips: self.rooms.host.ips.clone(),
            node_milli_cpu: self.rooms.host.milli_cpu,
            node_memory: self.rooms.host.memory,
        }
    }

    fn termination(&self, id: &str, exit: &Exit) -> Termination {
        let container = self
            .machine
            .containers()
            .find(|(_, facts)| self.machine.run_id(&facts.name, facts.attempt) == id);
        exits::termination(
            &self.rooms,
            self.machine.pod(),
            container.map(|(spec, facts)| (spec, facts.attempt)),
            id,
            exit,
        )
    }
}

/// Waits for a timer, or for ever.
async fn wait(wake: Option<std::time::Duration>) {
    match wake {
        Some(wake) => tokio::time::sleep(wake).await,
        None => std::future::pending().await,
    }
}

/// Whether the API says that the pod is over.
fn has_ended(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
}

/// `MountVolume.SetUp failed for volume "v" : configmap "m" not found`.
fn volume_words(error: &VolumeError) -> String {
    describe::chain(error)
}
