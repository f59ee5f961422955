//! What a sandbox and a container are, as plain data.
//!
//! The agent's pod worker builds these from a Pod and an image config; the
//! agent's runtime turns `resources` into cgroups; the shim does the rest. No
//! field needs a look at Kubernetes to be understood.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A pod's sandbox: the namespaces that its containers share.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own in a Pod"
)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSpec {
    /// Pod UID; also the name of the sandbox's directory and cgroup.
    pub pod_uid: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Host name in the pod's UTS namespace (ignored with `host_network`).
    pub hostname: String,
    /// Uses the node's network and UTS namespaces.
    pub host_network: bool,
    /// Uses the node's PID namespace.
    pub host_pid: bool,
    /// Uses the node's IPC namespace and /dev/shm.
    pub host_ipc: bool,
    /// One PID namespace for all containers of the pod (shareProcessNamespace).
    pub share_process_namespace: bool,
    /// Size of the pod's /dev/shm in bytes; 64 MiB when absent.
    pub shm_size: Option<u64>,
    /// Sysctls of the pod's namespaces, by dotted name.
    pub sysctls: BTreeMap<String, String>,
    /// QoS class and pod-level limits.
    pub cgroup: CgroupSpec,
    /// Directory of the pod's logs; made by the agent.
    pub log_dir: PathBuf,
    /// Free-form labels, given back by `Runtime::list`.
    pub labels: BTreeMap<String, String>,
}

/// Kubernetes quality-of-service class, which picks the parent cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QosClass {
    /// Directly under the instance's root.
    Guaranteed,
    /// Under `burstable`.
    Burstable,
    /// Under `besteffort`.
    #[default]
    BestEffort,
}

/// Placement and limits of a pod's cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupSpec {
    /// QoS class of the pod.
    pub qos: QosClass,
    /// Limits of the pod as a whole.
    pub resources: Resources,
}

/// Limits of one cgroup. Absent means unlimited (or the kernel's default).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// CPU shares as Kubernetes computes them from the request (2 to 262144).
    pub cpu_shares: Option<u64>,
    /// CPU time per period, in microseconds.
    pub cpu_quota: Option<i64>,
    /// Length of a period in microseconds; 100000 when absent.
    pub cpu_period: Option<u64>,
    /// Hard memory limit in bytes. Swap is always 0 when set.
    pub memory_max: Option<u64>,
    /// Most processes and threads.
    pub pids_max: Option<u64>,
}

/// Directories of a container's overlay root file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootfsSpec {
    /// Read-only layers, uppermost first.
    pub lowers: Vec<PathBuf>,
    /// The container's own writable layer.
    pub upper: PathBuf,
    /// Overlayfs' work directory, beside `upper`.
    pub work: PathBuf,
    /// Mount point; only ever mounted in the container's mount namespace.
    pub merged: PathBuf,
}

/// Mount propagation, in the terms of a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// `None`: later mounts are seen on neither side.
    #[default]
    Private,
    /// Later mounts of the host appear in the container.
    HostToContainer,
    /// Mounts appear on both sides.
    Bidirectional,
}

/// A bind mount into a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// File or directory on the host; must exist.
    pub source: PathBuf,
    /// Absolute path in the container; made when missing.
    pub target: PathBuf,
    /// Read-only, mounts below `source` included.
    pub readonly: bool,
    /// Propagation.
    pub propagation: Propagation,
}

/// A device node made in a container's /dev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Device on the host.
    pub source: PathBuf,
    /// Absolute path in the container.
    pub target: PathBuf,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// No filter; Kubernetes' default when nothing is asked for.
    #[default]
    Unconfined,
    /// The runtime's default allow-list.
    RuntimeDefault,
    /// A profile file on the node, in Docker's JSON form.
    Localhost(PathBuf),
}

/// Who a process runs as.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserSpec {
    /// `user[:group]` by name or number, as in an image config. Names are
    /// looked up in the container's own /etc/passwd and /etc/group.
    pub user: Option<String>,
    /// Overrides `user` (runAsUser).
    pub uid: Option<u32>,
    /// Overrides the primary group (runAsGroup).
    pub gid: Option<u32>,
    /// Groups on top of those that /etc/group gives the user.
    pub supplementary_groups: Vec<u32>,
    /// Ignore /etc/group memberships (supplementalGroupsPolicy: Strict).
    pub strict_groups: bool,
}

/// One container.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own in a Pod"
)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerSpec {
    /// Unique on the node; also the name of the container's cgroup.
    pub id: String,
    /// Container name in the pod.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// Image the root file system comes from; informative.
    pub image: String,
    /// Root file system.
    pub rootfs: RootfsSpec,
    /// Program and arguments.
    pub args: Vec<String>,
    /// Environment as `NAME=value`.
    pub env: Vec<String>,
    /// Working directory; made when missing. `/` when empty.
    pub cwd: PathBuf,
    /// User and groups.
    pub user: UserSpec,
    /// Bind mounts, /etc/hosts, /etc/resolv.conf and /etc/hostname included.
    pub mounts: Vec<Mount>,
    /// Devices besides the default ones.
    pub devices: Vec<Device>,
    /// cgroup limits, applied by the agent before the container starts.
    pub resources: Resources,
    /// oom_score_adj of the container's processes.
    pub oom_score_adj: Option<i32>,
    /// Capabilities added to the default set; `ALL` for all.
    pub capabilities_add: Vec<String>,
    /// Capabilities removed; `ALL` for all.
    pub capabilities_drop: Vec<String>,
    /// All capabilities and devices, nothing masked, no seccomp.
    pub privileged: bool,
    /// Root file system mounted read-only.
    pub read_only_rootfs: bool,
    /// Set no_new_privs (allowPrivilegeEscalation: false).
    pub no_new_privs: bool,
    /// System call filter.
    pub seccomp: Seccomp,
    /// Paths that read as empty; see [`default_masked_paths`].
    pub masked_paths: Vec<String>,
    /// Paths made read-only; see [`default_readonly_paths`].
    pub readonly_paths: Vec<String>,
    /// Run on a terminal.
    pub tty: bool,
    /// Keep standard input open for attach.
    pub stdin: bool,
    /// Close standard input when the first attach ends.
    pub stdin_once: bool,
    /// CRI log file; parent directories are made.
    pub log_path: PathBuf,
    /// Image's stop signal (`SIGQUIT`, `3`); SIGTERM when absent.
    pub stop_signal: Option<String>,
    /// Free-form labels, given back by `Runtime::list`.
    pub labels: BTreeMap<String, String>,
}

/// A further process in a running container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecSpec {
    /// Program and arguments.
    pub args: Vec<String>,
    /// Environment on top of the container's.
    pub env: Vec<String>,
    /// Run on a terminal of its own; stderr then comes with stdout.
    pub tty: bool,
    /// Give the process a standard input.
    pub stdin: bool,
    /// Initial terminal size as columns and rows.
    pub size: Option<(u16, u16)>,
}

/// Log rotation and defaults that belong to no single container.
pub mod limits {
    /// A log file is rotated when it would grow beyond this.
    pub const LOG_MAX_BYTES: u64 = 10 * 1024 * 1024;
    /// Log files kept per container attempt, the current one included.
    pub const LOG_MAX_FILES: u32 = 5;
    /// Longest piece of a line in one CRI log entry.
    pub const LOG_MAX_LINE: usize = 16 * 1024;
    /// Size of a pod's /dev/shm when nothing else is asked for.
    pub const SHM_DEFAULT_BYTES: u64 = 64 * 1024 * 1024;
}

/// Paths a container sees as empty unless privileged or `procMount: Unmasked`.
pub fn default_masked_paths() -> Vec<String> {
    [
        "/proc/acpi",
        "/proc/asound",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/sys/devices/virtual/powercap",
        "/sys/firmware",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Paths a container cannot write to unless privileged.
pub fn default_readonly_paths() -> Vec<String> {
    [
        "/proc/bus",
        "/proc/fs",
        "/proc/irq",
        "/proc/sys",
        "/proc/sysrq-trigger",
    ]
    .map(str::to_owned)
    .to_vec()
}
