//! The node's DNS server: names of the cluster from this node's own copy of the Services,
//! everything else from the host's own servers, cached.
//!
//! Watches Services and EndpointSlices, as [`ClusterChange`]s. Changes nothing but what it
//! answers. Who reacts next: the programs in pods, and on the host when asked for by address.
//!
//! ```text
//! query ──▶ handler ──▶ zone (pure)             <domain>, in-addr.arpa of the cluster
//!              └──────▶ forward ──▶ upstreams   everything else
//! ```

mod forward;
mod handler;
mod resolv;
mod zone;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_server::Server;
use hickory_server::net::NetError;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpSocket, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::network::Cidr;
use crate::session::ClusterChange;
use forward::Forwarder;
use handler::Handler;
use resolv::Upstreams;
use zone::Zone;

/// Changes taken at once.
const BATCH: usize = 1_024;
/// A TCP client that says nothing for so long is cut off.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Answers that wait for one slow TCP client.
const TCP_BACKLOG: usize = 32;

/// What the DNS server of one node is built from.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// Domain of the cluster's names, usually `cluster.local`.
    pub cluster_domain: String,
    /// Address and port to answer at, usually the tenth address of the Service range, port 53.
    /// The address need not exist yet.
    pub listen: SocketAddr,
    /// Addresses of all Services, for reverse look-ups.
    pub service_cidr: Option<Cidr>,
    /// Addresses of all pods, for reverse look-ups and pod names.
    pub cluster_cidr: Option<Cidr>,
    /// Servers to forward to; `None`: those in /etc/resolv.conf.
    pub upstreams: Option<Vec<SocketAddr>>,
}

/// Why there is no DNS server.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The cluster domain is no domain name.
    #[error("`{0}` is no domain name")]
    Domain(String),
    /// The address cannot be listened at.
    #[error("cannot answer DNS at {address}; hint: another program may use that port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The server stopped by itself.
    #[error("the DNS server stopped")]
    Stopped(#[source] Box<NetError>),
}

/// The room as a whole; [`run`](Self::run) it.
#[derive(Debug)]
pub struct Dns {
    udp: UdpSocket,
    tcp: TcpListener,
    address: SocketAddr,
    zone: Arc<RwLock<Zone>>,
    upstreams: Upstreams,
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
    #[expect(
        clippy::unused_async,
        reason = "the sockets belong to the runtime that builds"
    )]
    pub async fn build(config: DnsConfig) -> Result<Self, DnsError> {
        let zone = Zone::new(&config)?;
        let bind_error = |source| DnsError::Bind {
            address: config.listen,
            source,
        };
        let udp = bind_udp(config.listen).map_err(bind_error)?;
        // Port 0 gives one number to both.
        let address = udp.local_addr().map_err(bind_error)?;
        let tcp = bind_tcp(address).map_err(bind_error)?;
        let upstreams = match config.upstreams {
            Some(servers) => Upstreams::fixed(servers),
            None => Upstreams::from_host(address),
        };
        let (sender, changes) = mpsc::unbounded_channel();
        Ok(Self {
            udp,
            tcp,
            address,
            zone: Arc::new(RwLock::new(zone)),
            upstreams,
            handle: DnsHandle { changes: sender },
            changes,
        })
    }

    /// The feeding end.
    pub fn handle(&self) -> DnsHandle {
        self.handle.clone()
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown`. Names of the cluster wait for the first
    /// [`ClusterChange::Synced`] for a moment, so that a restart answers nothing wrong.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), DnsError> {
        let synced = watch::Sender::new(false);
        let handler = Handler::new(
            self.zone.clone(),
            synced.subscribe(),
            Forwarder::new(self.upstreams),
        );
        let mut server = Server::new(handler);
        server.register_socket(self.udp);
        server.register_listener(self.tcp, TCP_IDLE, TCP_BACKLOG);
        let mut batch = Vec::new();
        let result = loop {
            batch.clear();
            tokio::select! {
                () = shutdown.cancelled() => break server.shutdown_gracefully().await,
                ended = server.block_until_done() => break ended,
                taken = self.changes.recv_many(&mut batch, BATCH) => if taken == 0 {
                    break server.shutdown_gracefully().await;
                },
            }
            let is_synced = batch
                .iter()
                .any(|change| matches!(change, ClusterChange::Synced));
            let mut zone = self.zone.write();
            for change in batch.drain(..) {
                zone.apply(change);
            }
            drop(zone);
            if is_synced {
                synced.send_replace(true);
            }
        };
        result.map_err(|source| DnsError::Stopped(Box::new(source)))
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
pub fn default_address(service_cidr: Cidr) -> Option<Ipv4Addr> {
    service_cidr.nth(10)
}

fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(family, SockType::Datagram, flags, None)?;
    if address.is_ipv4() {
        socket::setsockopt(&socket, sockopt::IpFreebind, &true)?;
    }
    socket::bind(
        std::os::fd::AsRawFd::as_raw_fd(&socket),
        &SockaddrStorage::from(address),
    )?;
    UdpSocket::from_std(std::net::UdpSocket::from(socket))
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    if address.is_ipv4() {
        socket::setsockopt(&socket, sockopt::IpFreebind, &true)?;
    }
    socket.bind(address)?;
    socket.listen(1_024)
}

#[cfg(test)]
mod tests;
