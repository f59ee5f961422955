//! Pod networking: one veth pair per pod, addresses from the node's PodCIDR.
//!
//! Watches the pods the pod manager attaches and detaches, the other nodes, and the links the
//! kernel has with this instance's mark. Changes interfaces, addresses, routes and neighbours in the host's
//! and the pods' network namespaces, the masquerade table, the pod map of the BPF data path,
//! and one lease file per pod under the state directory. Who reacts next: the pod's status,
//! which carries the address; from there EndpointSlices and the service data path.

mod cidr;
mod ipam;
mod monitor;
mod netlink;
mod netns;
mod nft;
mod node;
mod pod;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use cidr::{Cidr, CidrError};
pub use ipam::IpamError;
pub use monitor::LinkMonitor;
pub use netlink::NetlinkError;

use node::Node;

use crate::service::{DataPath, DataPathError};

/// How long a detached pod's veth may take to go with its namespace before it is removed.
const VETH_GRACE: Duration = Duration::from_secs(1);

/// What the network of one node is built from.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// The mark on everything made here: first eight hex digits of the hash of the run directory.
    pub instance_id: String,
    /// This node's share of the pod addresses; its first address is the gateway.
    pub pod_cidr: Cidr,
    /// Addresses of all pods of the cluster; traffic to them is not masqueraded.
    pub cluster_cidr: Cidr,
    /// Addresses of all Services; what no Service has is unreachable instead of leaving the node.
    pub service_cidr: Option<Cidr>,
    /// Made a local address of this node, for the DNS server.
    pub cluster_dns: Option<Ipv4Addr>,
    /// Directory of the leases.
    pub state_dir: PathBuf,
    /// MTU of the pods' interfaces; `None`: that of the interface of the default route.
    pub mtu: Option<u32>,
}

/// The addresses of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// Addresses of the pod, the primary one first.
    pub ips: Vec<IpAddr>,
    /// The pod's default gateway.
    pub gateway: IpAddr,
    /// MTU of the pod's interface.
    pub mtu: u32,
}

/// The way to the pods of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRoute {
    /// Name of the node.
    pub name: String,
    /// A share of its pods' addresses.
    pub pods: Cidr,
    /// Its address, on a link of this node.
    pub address: Ipv4Addr,
}

/// Why the network of this node or of a pod cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The PodCIDR has no room for a gateway and pods.
    #[error("the pod address range {0} is too small; hint: a node needs at least a /29")]
    TooSmall(Cidr),
    /// A pod cannot have an address.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// The kernel refused a change of interfaces, addresses, routes or neighbours.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The data path refused a pod.
    #[error(transparent)]
    DataPath(#[from] DataPathError),
    /// A pod's network namespace cannot be entered.
    #[error("cannot enter the network namespace {path}")]
    Namespace {
        /// The namespace.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A kernel setting cannot be read or written.
    #[error("cannot set {path}")]
    Sysctl {
        /// Its file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An interface vanished while it was being set up.
    #[error("the interface {0} has gone while it was being set up")]
    LinkGone(String),
    /// The thread that did the work died.
    #[error("the network task was ended")]
    Stopped(#[source] tokio::task::JoinError),
}

/// The pod network of one node. Cheap to clone; clones are the same network.
#[derive(Clone, Debug)]
pub struct Network {
    node: Arc<Node>,
}

impl Network {
    /// Prepares the node: gateway and DNS address, routes, forwarding, masquerade. With a
    /// data path, pods of this node reach each other past the kernel's routing. Pods that
    /// are connected already stay so.
    pub async fn build(
        config: NetworkConfig,
        data_path: Option<DataPath>,
    ) -> Result<Self, NetworkError> {
        let node = blocking(move || Node::build(config, data_path)).await?;
        Ok(Self {
            node: Arc::new(node),
        })
    }

    /// Connects the network namespace at `netns` for the pod; the same pod gets the same
    /// address again, and what exists already is kept.
    pub async fn attach(&self, pod_uid: &str, netns: &Path) -> Result<PodNetwork, NetworkError> {
        let node = self.node.clone();
        let (uid, netns) = (pod_uid.to_owned(), netns.to_owned());
        blocking(move || node.attach(&uid, &netns)).await
    }

    /// Gives the pod's address back. Its veth goes with its network namespace; what is left
    /// of it after a moment is removed behind.
    pub async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let node = self.node.clone();
        let uid = pod_uid.to_owned();
        let link = blocking(move || node.detach(&uid)).await?;
        if let Some(link) = link {
            let node = self.node.clone();
            tokio::spawn(async move {
                tokio::time::sleep(VETH_GRACE).await;
                let removed = blocking(move || node.remove_link(&link)).await;
                if let Err(error) = removed {
                    tracing::warn!(%error, "a veth is left until the next reconciliation");
                }
            });
        }
        Ok(())
    }

    /// Brings the routes to other nodes' pods to `peers`; those that are right already are not
    /// touched. [`problem`](Self::problem) speaks of those that cannot be made.
    pub async fn set_peers(&self, peers: Vec<PeerRoute>) -> Result<(), NetworkError> {
        let node = self.node.clone();
        blocking(move || node.set_peers(&peers)).await
    }

    /// Removes whatever belongs to pods other than `live`.
    pub async fn reconcile(&self, live: &[String]) -> Result<(), NetworkError> {
        let node = self.node.clone();
        let live: HashSet<String> = live.iter().cloned().collect();
        blocking(move || node.reconcile(&live)).await
    }

    /// Removes everything this instance made on the host, leases included.
    pub async fn teardown_all(&self) -> Result<(), NetworkError> {
        let config = self.node.config();
        cleanup(&config.instance_id, &config.state_dir).await
    }

    /// First address of the PodCIDR, a local address of the node.
    pub fn gateway(&self) -> Ipv4Addr {
        self.node.gateway()
    }

    /// What does not work although the network does, in one line for people.
    pub fn problem(&self) -> Option<String> {
        self.node.problem()
    }
}

/// What [`Network::teardown_all`] does, when no network is built: finds links, routes and
/// tables by the instance's mark.
pub async fn cleanup(instance_id: &str, state_dir: &Path) -> Result<(), NetworkError> {
    let (instance, state_dir) = (instance_id.to_owned(), state_dir.to_owned());
    blocking(move || node::cleanup(&instance, &state_dir)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(NetworkError::Stopped)?
}
