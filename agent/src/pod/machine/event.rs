//! What the machine is told, and what it asks for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Something that happened to a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object appeared or changed.
    Spec(Arc<Pod>),
    /// The object is gone from the API.
    Gone,
    /// The node gives the pod up, e.g. under pressure.
    Evict {
        /// `status.reason`.
        reason: String,
        /// `status.message`.
        message: String,
    },
    /// Something a failed step waited for changed: try again now.
    Retry,
    /// Time passed; sent when [`next_timer`](super::Machine::next_timer) is due.
    Tick,
    /// The sandbox runs.
    SandboxStarted {
        /// Process of the shim.
        shim_pid: i32,
    },
    /// The sandbox could not be started.
    SandboxFailed {
        /// Why.
        message: String,
    },
    /// The sandbox died unasked, with everything in it.
    SandboxGone,
    /// The pod has its addresses.
    NetworkReady {
        /// The primary one first.
        ips: Vec<IpAddr>,
    },
    /// The pod could not be connected.
    NetworkFailed {
        /// Why.
        message: String,
    },
    /// All volumes, the hosts file and the rest are in place.
    VolumesReady,
    /// A volume could not be set up.
    VolumesFailed {
        /// Why, as the Event words it.
        message: String,
    },
    /// The image of a container is on the node.
    ImageReady {
        /// Name of the container.
        container: String,
        /// Image id (`status.imageID`).
        image_id: String,
    },
    /// The image of a container cannot be had.
    ImageFailed {
        /// Name of the container.
        container: String,
        /// What kind of failure.
        reason: ImageFailure,
        /// The registry's words.
        message: String,
    },
    /// A container runs.
    ContainerStarted {
        /// Name of the container.
        container: String,
        /// Id of this run.
        id: String,
        /// When its program was executed.
        started_at: Timestamp,
    },
    /// A container could not be started.
    ContainerFailed {
        /// Name of the container.
        container: String,
        /// Id of this run.
        id: String,
        /// What kind of failure.
        reason: StartFailure,
        /// Why.
        message: String,
    },
    /// A container ended.
    ContainerExited {
        /// Id of the run that ended.
        id: String,
        /// How.
        exit: Termination,
    },
    /// The post-start hook of a container is done.
    PostStartFinished {
        /// Id of the run.
        id: String,
        /// What went wrong, if anything did.
        failure: Option<String>,
    },
    /// A probe crossed one of its thresholds.
    Probe {
        /// Id of the run.
        id: String,
        /// Which probe.
        probe: ProbeKind,
        /// To which side.
        healthy: bool,
    },
    /// Sandbox, network and volumes are gone.
    TornDown,
    /// Something could not be removed.
    TeardownFailed {
        /// Why.
        message: String,
    },
    /// The control plane removed the object, or never had it.
    Finalized,
    /// The control plane could not be asked to.
    FinalizeFailed,
    /// The pod's directory and logs are gone: nothing is left.
    DataRemoved,
}

/// What the worker is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set up volumes and the pod's files; answered by `VolumesReady` or `VolumesFailed`.
    PrepareVolumes,
    /// Start the sandbox; answered by `SandboxStarted` or `SandboxFailed`.
    StartSandbox {
        /// Remove the remains of a dead one first.
        replace: bool,
    },
    /// Connect the sandbox; answered by `NetworkReady` or `NetworkFailed`.
    AttachNetwork,
    /// Get the image; answered by `ImageReady` or `ImageFailed`.
    PullImage {
        /// Name of the container.
        container: String,
    },
    /// Create and start; answered by `ContainerStarted` or `ContainerFailed`.
    StartContainer {
        /// Name of the container.
        container: String,
        /// Id of this run.
        id: String,
        /// Number of this run, from 0.
        attempt: u32,
        /// Image to run.
        image_id: String,
    },
    /// Run the post-start hook; answered by `PostStartFinished`.
    RunPostStart {
        /// Name of the container.
        container: String,
        /// Id of the run.
        id: String,
    },
    /// Begin probing.
    StartProbe {
        /// Name of the container.
        container: String,
        /// Id of the run.
        id: String,
        /// Which probe.
        probe: ProbeKind,
    },
    /// End one probe.
    StopProbe {
        /// Id of the run.
        id: String,
        /// Which probe.
        probe: ProbeKind,
    },
    /// Stop a container; its `ContainerExited` follows.
    StopContainer {
        /// Name of the container.
        container: String,
        /// Id of the run.
        id: String,
        /// Until SIGKILL, the pre-stop hook included.
        grace: Duration,
        /// Run the pre-stop hook first.
        pre_stop: bool,
    },
    /// Forget an ended run: runtime state and root file system; its log stays for
    /// `kubectl logs --previous`, the one before it goes.
    RemoveContainer {
        /// Name of the container.
        container: String,
        /// Id of the run.
        id: String,
        /// Number of the run.
        attempt: u32,
    },
    /// Remove sandbox, network, volumes and root file systems; answered by `TornDown` or
    /// `TeardownFailed`.
    TearDown,
    /// Ask the control plane to remove the object, after the last status has arrived there;
    /// answered by `Finalized` or `FinalizeFailed`.
    Finalize,
    /// Remove the pod's directory and logs; answered by `DataRemoved`.
    RemoveData,
    /// Record an Event.
    Announce(Announcement),
}

/// An Event about the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// `Warning` instead of `Normal`.
    pub warning: bool,
    /// Reason, e.g. `Started`.
    pub reason: &'static str,
    /// The words.
    pub message: String,
    /// Field path of the container it is about.
    pub field_path: Option<String>,
}

/// Why there is no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageFailure {
    /// Pulling failed.
    Pull,
    /// The reference is malformed.
    InvalidName,
    /// The policy forbids pulling, and it is not on the node.
    NeverPull,
    /// It is on the node but cannot be looked at.
    Inspect,
}

impl ImageFailure {
    /// The waiting reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Pull => "ErrImagePull",
            Self::InvalidName => "InvalidImageName",
            Self::NeverPull => "ErrImageNeverPull",
            Self::Inspect => "ImageInspectError",
        }
    }
}

/// Why a container did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailure {
    /// Its configuration cannot be built, e.g. a ConfigMap is missing.
    Config,
    /// It cannot be created.
    Create,
    /// Its program cannot be executed.
    Run,
}

impl StartFailure {
    /// The waiting reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Config => "CreateContainerConfigError",
            Self::Create => "CreateContainerError",
            Self::Run => "RunContainerError",
        }
    }
}

/// One of a container's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Holds the others back until it succeeds.
    Startup,
    /// Restarts the container when it fails.
    Liveness,
    /// Says whether the container takes traffic.
    Readiness,
}

impl ProbeKind {
    /// As it begins the message of an `Unhealthy` Event.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// How a run of a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    /// Id of the run.
    pub id: String,
    /// Exit code; 128 + signal.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, ….
    pub reason: String,
    /// Last words, from the termination log.
    pub message: Option<String>,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Timestamp,
}

impl Termination {
    /// Whether it did what it should.
    pub fn succeeded(&self) -> bool {
        self.exit_code == 0
    }
}
