//! What an agent is told before it starts.
//!
//! Watches and changes nothing; `agent/cmd` fills it from flags and the config file, and
//! [`Agent::build`](crate::Agent::build) hands each room its part.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// Configuration of one node agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the Node object.
    pub node_name: String,
    /// First eight hex digits of the hash of the run directory: the mark on everything this
    /// agent makes on the host.
    pub instance_id: String,
    /// Version of the program, for `nodeInfo` and the session's Hello.
    pub version: String,
    /// Domain of the cluster's DNS names, usually `cluster.local`.
    pub cluster_domain: String,
    /// Address at which pods ask for names.
    pub cluster_dns: IpAddr,
    /// This node's share of the pod addresses; `None`: taken from `spec.podCIDR` of the Node
    /// object once the control plane has assigned it.
    pub pod_cidr: Option<String>,
    /// Addresses of all pods of the cluster.
    pub cluster_cidr: String,
    /// Addresses of all Services of the cluster.
    pub service_cidr: String,
    /// HOST:PORT of the API servers, e.g. `127.0.0.1:6443`, the one to try first first.
    pub servers: Vec<String>,
    /// Whether this machine joined a cluster of other machines: its servers are then those of
    /// its [`Membership`](crate::session::membership::Membership), which follows the cluster.
    pub is_member: bool,
    /// The cluster CA, PEM, that must have signed the server's certificate.
    pub ca_pem: String,
    /// Lets a node without a client certificate ask for one.
    pub bootstrap_token: Option<String>,
    /// Root of everything that outlives a reboot; the agent uses `agent/` below it.
    pub data_dir: PathBuf,
    /// Root of sockets and mounts that do not.
    pub run_dir: PathBuf,
    /// Mount point of cgroup v2, `/sys/fs/cgroup` or `/sys/fs/cgroup/unified`.
    pub cgroup_root: PathBuf,
    /// Directory on bpffs for pinned maps and links.
    pub bpffs_dir: PathBuf,
    /// Mirrors to ask first, by registry host (`docker.io` → `http://127.0.0.1:5000`).
    pub registries: BTreeMap<String, Vec<String>>,
    /// Command line that becomes a pod's shim, normally `[/proc/self/exe, "shim"]`.
    pub shim_command: Vec<OsString>,
    /// Address of this node; `None`: the source address of the default route.
    pub node_ip: Option<IpAddr>,
    /// Labels to put on the Node object besides the well-known ones.
    pub node_labels: BTreeMap<String, String>,
    /// Pods this node takes at most.
    pub max_pods: u32,
    /// Processes a pod may have at most (`pids.max` of its cgroup); `None`: no limit.
    pub pod_pids_limit: Option<u64>,
    /// Resolvers for names outside the cluster; empty: those of the host's `/etc/resolv.conf`.
    pub dns_upstreams: Vec<std::net::SocketAddr>,
}

impl AgentConfig {
    /// Directory of the agent's durable state.
    pub fn agent_dir(&self) -> PathBuf {
        self.data_dir.join("agent")
    }

    /// Where the node's key and certificate lie.
    pub fn identity_dir(&self) -> PathBuf {
        self.agent_dir().join("identity")
    }

    /// Image content and snapshots.
    pub fn images_dir(&self) -> PathBuf {
        self.agent_dir().join("images")
    }

    /// One directory per pod: volumes, hosts file, checkpoint.
    pub fn pods_dir(&self) -> PathBuf {
        self.agent_dir().join("pods")
    }

    /// Container logs: `<namespace>_<name>_<uid>/<container>/<restart>.log`.
    pub fn logs_dir(&self) -> PathBuf {
        self.agent_dir().join("logs")
    }
}
