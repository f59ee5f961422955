//! The node's DNS server: names of the cluster from this node's own copy of the Services,
//! everything else from the host's own servers, cached.
//!
//! Watches Services and EndpointSlices, as [`ClusterChange`]s. Changes nothing but what it
//! answers. Who reacts next: the programs in pods, and on the host when asked for by address.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::session::ClusterChange;

/// What the DNS server of one node is built from.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// Domain of the cluster's names, usually `cluster.local`.
    pub cluster_domain: String,
    /// Address and port to answer at, usually the tenth address of the Service range, port 53.
    /// The address need not exist yet.
    pub listen: SocketAddr,
    /// Addresses of all Services, for reverse look-ups.
    pub service_cidr: Option<crate::network::Cidr>,
    /// Addresses of all pods, for reverse look-ups and pod names.
    pub cluster_cidr: Option<crate::network::Cidr>,
    /// Servers to forward to; `None`: those in /etc/resolv.conf.
    pub upstreams: Option<Vec<SocketAddr>>,
}

/// Why there is no DNS server.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The cluster domain is no domain name.
    #[error("`{0}` is no domain name")]
    Domain(String),
}

/// The room as a whole; [`run`](Self::run) it.
#[derive(Debug)]
pub struct Dns {
    handle: DnsHandle,
    changes: mpsc::UnboundedReceiver<ClusterChange>,
}

/// Feeds the server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DnsHandle {
    changes: mpsc::UnboundedSender<ClusterChange>,
}

impl Dns {
    /// Binds the sockets; nothing is answered before [`run`](Self::run).
    pub async fn build(config: DnsConfig) -> Result<Self, DnsError> {
        tracing::debug!(listen = %config.listen, "dns");
        let (sender, changes) = mpsc::unbounded_channel();
        Ok(Self {
            handle: DnsHandle { changes: sender },
            changes,
        })
    }

    /// The feeding end.
    pub fn handle(&self) -> DnsHandle {
        self.handle.clone()
    }

    /// Answers until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), DnsError> {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                change = self.changes.recv() => if change.is_none() { return Ok(()) },
            }
        }
    }
}

impl DnsHandle {
    /// Takes one change; never blocks.
    pub fn apply(&self, change: ClusterChange) {
        if self.changes.send(change).is_err() {
            tracing::debug!("the DNS server has stopped");
        }
    }
}

/// The usual address of the cluster's DNS server: the tenth of the Service range.
pub fn default_address(service_cidr: crate::network::Cidr) -> Option<Ipv4Addr> {
    service_cidr.nth(10)
}
