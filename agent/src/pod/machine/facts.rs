//! What the machine knows about a pod: the part that survives the agent.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::event::{ImageFailure, StartFailure, Termination};
use crate::pod::backoff::Backoff;

/// Everything but the Pod object itself. Written to disk at every change, before the actions
/// that follow from it are begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// When the agent first saw the pod.
    pub start_time: Timestamp,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// The pod's connection.
    pub network: Step,
    /// Its volumes and files.
    pub volumes: Step,
    /// Its addresses; kept when the sandbox is made anew.
    pub ips: Vec<IpAddr>,
    /// In the order of the spec: init containers first, then the rest, then ephemeral ones.
    pub containers: Vec<ContainerFacts>,
    /// The init containers are done in this sandbox.
    pub initialized: bool,
    /// Why the pod must end, once it must.
    pub stop: Option<Stop>,
    /// The object is gone from the API.
    pub gone: bool,
    /// Removal of what the pod has on the host.
    pub teardown: Teardown,
    /// Removal of the object.
    pub finalize: Finalize,
    /// The pod ended by itself or was ended, and stays that way.
    pub terminal: bool,
    /// Conditions as last computed, for their transition times.
    pub conditions: Vec<PodCondition>,
}

/// A step that can fail and be tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Not begun, or undone.
    #[default]
    Absent,
    /// On its way.
    Working {
        /// Failures so far.
        failures: u32,
    },
    /// Done.
    Ready,
    /// Failed.
    Failed {
        /// Failures so far.
        failures: u32,
        /// When to try again.
        retry_at: Timestamp,
    },
}

/// The sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Whether it is there.
    pub step: Step,
    /// Process of the shim, while it is.
    pub shim_pid: i32,
    /// How many there were before.
    pub attempt: u32,
    /// It died: its remains must be removed before a new one starts.
    pub remains: bool,
}

/// Why a pod must end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// When that was decided.
    pub since: Timestamp,
    /// Time the containers have from then.
    pub grace: Duration,
    /// `status.reason`, when it is not the user who asked.
    pub reason: Option<String>,
    /// `status.message`.
    pub message: Option<String>,
}

/// Removal of what the pod has on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Teardown {
    /// Not due.
    #[default]
    Pending,
    /// On its way.
    Working,
    /// Failed.
    Failed {
        /// When to try again.
        retry_at: Timestamp,
    },
    /// Nothing is left but logs and the pod's directory.
    Done,
}

/// Removal of the object and of the pod's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finalize {
    /// Not due.
    #[default]
    Pending,
    /// The control plane has been asked.
    Working,
    /// It could not be asked.
    Failed {
        /// When to try again.
        retry_at: Timestamp,
    },
    /// The object is removed.
    Done,
    /// Directory and logs are being removed.
    Removing,
    /// Nothing is left.
    Removed,
}

/// What a container is in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Runs to completion before the next.
    Init,
    /// An init container with `restartPolicy: Always`.
    Sidecar,
    /// An ordinary container.
    Main,
    /// Added to the running pod for debugging.
    Ephemeral,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerFacts {
    /// Its name.
    pub name: String,
    /// Its place in the pod.
    pub role: Role,
    /// Its image.
    pub image: Image,
    /// The run that is, was, or will be.
    pub life: Life,
    /// Number of that run, from 0.
    pub attempt: u32,
    /// How the run before ended.
    pub last: Option<Termination>,
    /// Back-off of restarts.
    pub backoff: Backoff,
    /// Back-off of pulls.
    pub pull_backoff: Backoff,
    /// Why it could not be started last time.
    pub failure: Option<Failure>,
    /// Image reference this run was made from.
    pub image_reference: String,
}

/// Why a container could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub reason: StartFailure,
    /// Why.
    pub message: String,
    /// When to try again.
    pub retry_at: Timestamp,
}

/// The image of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Image {
    /// Not looked at for this run.
    #[default]
    Unknown,
    /// On its way.
    Pulling,
    /// On the node.
    Ready {
        /// Image id.
        id: String,
    },
    /// Not to be had.
    Failed {
        /// What kind of failure.
        reason: ImageFailure,
        /// The registry's words.
        message: String,
        /// When to say that we back off; `None`: said.
        announce_at: Option<Timestamp>,
        /// When to try again.
        retry_at: Timestamp,
    },
}

/// A run of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// To be started.
    #[default]
    Waiting,
    /// Being started.
    Creating,
    /// Running.
    Running(Running),
    /// Ended. Whether it is started again is decided from policy and back-off.
    Exited {
        /// How.
        exit: Termination,
        /// The wait before the next run has been announced.
        announced: bool,
    },
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Id of the run.
    pub id: String,
    /// When its program was executed.
    pub started_at: Timestamp,
    /// The post-start hook is done (or there is none).
    pub hooked: bool,
    /// The startup probe succeeded (or there is none).
    pub started: bool,
    /// The readiness probe succeeds (or there is none).
    pub ready: bool,
    /// It is being stopped, and has this long for it.
    pub stopping: Option<Duration>,
    /// Why it is being stopped, for the state it ends in.
    pub stop_failure: Option<String>,
}

impl Facts {
    /// A pod nobody has begun with.
    pub fn new(start_time: Timestamp) -> Self {
        Self {
            start_time,
            sandbox: Sandbox::default(),
            network: Step::Absent,
            volumes: Step::Absent,
            ips: Vec::new(),
            containers: Vec::new(),
            initialized: false,
            stop: None,
            gone: false,
            teardown: Teardown::Pending,
            finalize: Finalize::Pending,
            terminal: false,
            conditions: Vec::new(),
        }
    }

    /// Whether the pod was over before this node began with it.
    pub fn never_ran(&self) -> bool {
        self.terminal
            && self
                .containers
                .iter()
                .all(|container| container.life == Life::Waiting && container.last.is_none())
    }
}

impl Step {
    /// Failures up to now.
    pub fn failures(&self) -> u32 {
        match self {
            Self::Working { failures } | Self::Failed { failures, .. } => *failures,
            Self::Absent | Self::Ready => 0,
        }
    }

    /// Whether an action is on its way.
    pub fn is_working(&self) -> bool {
        matches!(self, Self::Working { .. })
    }

    /// Begins, when it is time to; true when the action must be sent.
    pub fn begin(&mut self, now: Timestamp) -> bool {
        match self {
            Self::Absent => {
                *self = Self::Working { failures: 0 };
                true
            }
            Self::Failed { failures, retry_at } if *retry_at <= now => {
                *self = Self::Working {
                    failures: *failures,
                };
                true
            }
            _ => false,
        }
    }

    /// When it is tried again.
    pub fn timer(&self) -> Option<Timestamp> {
        match self {
            Self::Failed { retry_at, .. } => Some(*retry_at),
            _ => None,
        }
    }
}

impl ContainerFacts {
    /// The running instance.
    pub fn running(&self) -> Option<&Running> {
        match &self.life {
            Life::Running(running) => Some(running),
            _ => None,
        }
    }

    /// How it ended, when it has.
    pub fn exited(&self) -> Option<&Termination> {
        match &self.life {
            Life::Exited { exit, .. } => Some(exit),
            _ => None,
        }
    }

    /// Whether it runs or is about to.
    pub fn is_alive(&self) -> bool {
        matches!(self.life, Life::Running(_) | Life::Creating)
    }
}
