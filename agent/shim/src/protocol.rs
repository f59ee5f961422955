//! Messages between the agent and a shim, and how they are framed.
//!
//! A frame is a little-endian `u32` length and that many bytes of JSON on a
//! unix stream socket. File descriptors of a reply (exec, attach) ride as
//! `SCM_RIGHTS` on its frame; the reply says how many. The shim never speaks
//! first, except for events after `Subscribe`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::{ContainerSpec, ExecSpec};

/// Longest frame either side accepts (environments can carry whole ConfigMaps).
pub const MAX_FRAME: usize = 16 * 1024 * 1024;
/// Socket in the sandbox's directory.
pub const SOCKET: &str = "shim.sock";
/// The [`Sandbox`] the agent wrote before it started the shim.
pub const SANDBOX_FILE: &str = "sandbox.json";
/// The [`SandboxState`] the shim rewrites at every change.
pub const STATE_FILE: &str = "state.json";

/// What the agent leaves for the shim in [`SANDBOX_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The sandbox as asked for.
    pub spec: crate::spec::SandboxSpec,
    /// Absolute path of the pod's cgroup.
    pub cgroup: std::path::PathBuf,
}

/// A request with the id its reply will carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the agent, unique on its connection.
    pub id: u64,
    /// What to do.
    pub call: Call,
}

/// What the agent can ask of a shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Answered with the whole state; events follow on this connection.
    Subscribe,
    /// Answered when the container's program has been executed.
    Create {
        /// Absolute path of the container's cgroup, which exists.
        cgroup: std::path::PathBuf,
        /// The container.
        spec: Box<ContainerSpec>,
    },
    /// Answered when the program runs, with the descriptors of its streams.
    Exec {
        /// Chosen by the agent, unique in the sandbox.
        exec_id: String,
        /// Container to run in.
        container: String,
        /// The process.
        spec: ExecSpec,
    },
    /// Answered with descriptors: input (when open), output, error.
    Attach {
        /// Container to attach to.
        container: String,
    },
    /// Answered when the container has exited.
    Stop {
        /// Container to stop.
        container: String,
        /// First signal.
        signal: i32,
        /// Time until SIGKILL.
        grace_millis: u64,
    },
    /// Sends a signal to the container's first process, or to an exec's.
    Signal {
        /// Container.
        container: String,
        /// One of its exec processes instead of the first.
        exec_id: Option<String>,
        /// Signal number.
        signal: i32,
    },
    /// Forgets an exited container.
    Remove {
        /// Container to forget.
        container: String,
    },
    /// Starts a new log file, as after an outside rotation.
    ReopenLog {
        /// Container.
        container: String,
    },
    /// Kills what still runs and ends the shim; answered before it exits.
    Shutdown,
}

/// What a shim sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Answer to the request with this id.
    Reply {
        /// Id of the request.
        id: u64,
        /// Descriptors that came with this frame, in order.
        fds: Vec<FdRole>,
        /// Outcome.
        result: Result<Answer, CallError>,
    },
    /// Something happened.
    Event(Event),
}

/// What a descriptor that rides on a reply is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FdRole {
    /// Write end of the process's standard input.
    Stdin,
    /// Read end of its standard output.
    Stdout,
    /// Read end of its standard error.
    Stderr,
    /// Master side of its terminal.
    Terminal,
}

/// A successful answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done; nothing to say.
    Done,
    /// Answer to `Subscribe`.
    State(SandboxState),
    /// Answer to `Create`: the container as it runs.
    Created(ContainerState),
    /// Answer to `Exec`.
    Executing {
        /// Process id in the shim's PID namespace.
        pid: i32,
    },
    /// Answer to `Stop`.
    Stopped(Exit),
}

/// An unsolicited message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A container's program runs. Comes before the reply to `Create`, and
    /// tells agents that did not ask for it (their predecessor did).
    ContainerStarted(ContainerState),
    /// A container's first process ended and its output is in the log.
    ContainerExited {
        /// Container.
        container: String,
        /// How it ended.
        exit: Exit,
    },
    /// An exec process ended.
    ExecExited {
        /// Container it ran in.
        container: String,
        /// Its id.
        exec_id: String,
        /// How it ended.
        exit: Exit,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; 128 + signal for a process ended by a signal.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The kernel killed a process of the container's cgroup for memory.
    pub oom_killed: bool,
    /// Nanoseconds since the epoch.
    pub finished_at: i64,
}

/// Everything a shim knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxState {
    /// Pod UID.
    pub pod_uid: String,
    /// The shim's process id.
    pub shim_pid: i32,
    /// Its start time in clock ticks after boot; tells a recycled id apart.
    pub shim_start_time: u64,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Containers, exited ones included until removed.
    pub containers: BTreeMap<String, ContainerState>,
}

/// One container of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerState {
    /// Id.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// Image of the spec.
    pub image: String,
    /// Process id of the first process, in the shim's PID namespace.
    pub pid: i32,
    /// Its start time in clock ticks after boot.
    pub start_time: u64,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
    /// Set when it has ended.
    pub exit: Option<Exit>,
    /// Log file.
    pub log_path: std::path::PathBuf,
    /// Labels of the spec.
    pub labels: BTreeMap<String, String>,
}

/// Why a request failed, in words fit for a pod's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CallError {
    /// No such container or exec process.
    #[error("container {container:?} not found")]
    NotFound {
        /// Id asked for.
        container: String,
    },
    /// The id is taken.
    #[error("container {container:?} already exists")]
    Exists {
        /// Id asked for.
        container: String,
    },
    /// The container does not run (any more), or runs when it should not.
    #[error("container {container:?} is {state}")]
    WrongState {
        /// Id asked for.
        container: String,
        /// `running` or `exited`.
        state: String,
    },
    /// Setting the process up failed before its program ran.
    #[error("{step}: {message}")]
    Setup {
        /// What was being done (`mount /data`, `set user`).
        step: String,
        /// The system's words.
        message: String,
    },
    /// The program could not be executed.
    #[error("exec: {program:?}: {message}")]
    Exec {
        /// First argument.
        program: String,
        /// `executable file not found in $PATH`, `permission denied`, ….
        message: String,
    },
    /// The request was not understood.
    #[error("malformed request: {message}")]
    Malformed {
        /// What is wrong.
        message: String,
    },
}
