//! The runtime's own vocabulary: states, events, sessions and errors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use pintle_shim::protocol::{CallError, Exit};
use pintle_shim::spec::SandboxSpec;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::cgroup::{CgroupError, CgroupStats, CgroupTree};
use crate::sys::Terminal;

/// What [`super::Runtime`] needs.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// Instance run directory; sandboxes live under `pods/`.
    pub run_dir: PathBuf,
    /// Program and first arguments that become a shim, normally
    /// `/proc/self/exe shim`.
    pub shim_command: Vec<OsString>,
    /// The instance's cgroups.
    pub cgroups: CgroupTree,
}

/// A running sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Pod UID.
    pub pod_uid: String,
    /// Process id of the shim.
    pub shim_pid: i32,
    /// `/proc/PID/ns/net` of the shim.
    pub netns: PathBuf,
    /// The pod's cgroup.
    pub cgroup: PathBuf,
}

/// A container as it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// Process id of its first process.
    pub pid: i32,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
}

/// A sandbox as the runtime knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxState {
    /// As it was asked for.
    pub spec: SandboxSpec,
    /// Present while the shim lives.
    pub sandbox: Option<Sandbox>,
    /// The shim lives and answers.
    pub alive: bool,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Containers, exited ones included until removed.
    pub containers: Vec<ContainerState>,
}

/// One container of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    /// Id.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// Image of the spec.
    pub image: String,
    /// Process id of the first process while it runs.
    pub pid: i32,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
    /// Whether it runs or how it ended.
    pub state: ContainerStatus,
    /// Log file.
    pub log_path: PathBuf,
    /// Labels of the spec.
    pub labels: BTreeMap<String, String>,
}

/// Whether a container runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerStatus {
    /// Its first process runs.
    Running,
    /// It ended.
    Exited(Exit),
}

/// Something that happened without being asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// A container ended and its output is in the log.
    ContainerExited {
        /// Pod.
        pod_uid: String,
        /// Container.
        container_id: String,
        /// How it ended.
        exit: Exit,
    },
    /// A shim died unasked; its containers have been killed.
    SandboxGone {
        /// Pod.
        pod_uid: String,
    },
}

/// A process started by [`super::Runtime::exec`].
#[derive(Debug)]
pub struct ExecSession {
    /// Its id in the sandbox.
    pub exec_id: String,
    /// Process id.
    pub pid: i32,
    /// Its standard input; drop to close. None without `stdin` or on a terminal.
    pub stdin: Option<pipe::Sender>,
    /// Its standard output.
    pub stdout: Option<pipe::Receiver>,
    /// Its standard error.
    pub stderr: Option<pipe::Receiver>,
    /// Its terminal, instead of the three.
    pub terminal: Option<Terminal>,
    /// How it ended; closed without a value when the shim died.
    pub exit: oneshot::Receiver<Exit>,
}

/// The streams of a running container.
#[derive(Debug)]
pub struct AttachSession {
    /// Standard input, when the container keeps one open.
    pub stdin: Option<pipe::Sender>,
    /// Output from now on (all of it, on a terminal).
    pub stdout: Option<pipe::Receiver>,
    /// Standard error from now on.
    pub stderr: Option<pipe::Receiver>,
    /// For input and resizing, when the container has a terminal. Output still
    /// comes on `stdout`.
    pub terminal: Option<Terminal>,
}

/// Usage of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodStats {
    /// The pod as a whole.
    pub pod: CgroupStats,
    /// Its containers by id.
    pub containers: BTreeMap<String, CgroupStats>,
}

/// Why a runtime operation failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// No such sandbox.
    #[error("no sandbox for pod {pod_uid}")]
    SandboxNotFound {
        /// Pod asked for.
        pod_uid: String,
    },
    /// A pod UID, container id or similar that cannot be a file name.
    #[error("{what} {value:?} is not usable as a file name")]
    BadName {
        /// What it names.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// The sandbox's directory could not be made, read or removed.
    #[error("cannot {operation} {path}")]
    Directory {
        /// `create`, `write`, ….
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The cgroups of a pod or container could not be made or removed.
    #[error("cgroup of pod {pod_uid}")]
    Cgroup {
        /// Pod.
        pod_uid: String,
        /// What failed.
        source: CgroupError,
    },
    /// The shim's program could not be started.
    #[error("cannot start the shim for pod {pod_uid}")]
    SpawnShim {
        /// Pod.
        pod_uid: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The shim started and gave up.
    #[error("the shim for pod {pod_uid} failed: {message}")]
    ShimFailed {
        /// Pod.
        pod_uid: String,
        /// Its words.
        message: String,
    },
    /// The shim is gone or does not answer.
    #[error("lost the shim of pod {pod_uid}")]
    ShimGone {
        /// Pod.
        pod_uid: String,
    },
    /// Talking to the shim failed.
    #[error("cannot talk to the shim of pod {pod_uid}")]
    Connection {
        /// Pod.
        pod_uid: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The shim answered something that makes no sense.
    #[error("unexpected answer of the shim of pod {pod_uid}")]
    Protocol {
        /// Pod.
        pod_uid: String,
    },
    /// The shim refused; its words are fit for a pod's status.
    #[error(transparent)]
    Refused(CallError),
}
