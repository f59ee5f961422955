//! The port on which the store's members reach each other.
//!
//! Watches nothing; binds the port when the group has, or is to get, more than one member - a
//! single server has no such port - and hands what arrives to the store, which reacts. The
//! address it is reached at is made known to the group.

use std::io;
use std::net::{IpAddr, SocketAddr};

use pintle_store::{Store, StoreError, serve_peers};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server;

/// Why the port could not be opened, or the group not be told of it.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The port cannot be bound.
    #[error("--raft-port {port}: cannot listen on {address}")]
    Listen {
        /// Its value.
        port: u16,
        /// What was tried.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Another server is there.
    #[error(
        "{address} is the address of member {id} of the group; if that server is gone for good, remove it first: pintle member remove {id}"
    )]
    Taken {
        /// The address.
        address: String,
        /// Whose it is.
        id: u64,
    },
    /// The group does not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// See the module.
pub(crate) struct PeerListener {
    store: Store,
    tls: rustls::ServerConfig,
    bind: SocketAddr,
    advertise: IpAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Where others reach it, once it is open.
    address: tokio::sync::Mutex<Option<SocketAddr>>,
}

impl PeerListener {
    /// Opens nothing yet.
    pub(crate) fn new(
        store: Store,
        tls: rustls::ServerConfig,
        bind: SocketAddr,
        advertise: IpAddr,
    ) -> Self {
        Self {
            store,
            tls,
            bind,
            advertise,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            address: tokio::sync::Mutex::new(None),
        }
    }

    /// Opens the port if it is not, and answers where others reach it.
    pub(crate) async fn open(&self) -> Result<SocketAddr, PeerError> {
        let mut open = self.address.lock().await;
        if let Some(address) = *open {
            return Ok(address);
        }
        let failed = |source| PeerError::Listen {
            port: self.bind.port(),
            address: self.bind,
            source,
        };
        let listener = server::bind(self.bind, false).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let address = SocketAddr::new(self.advertise, port);
        self.tasks.spawn(serve_peers(
            listener,
            self.tls.clone(),
            self.store.peer_service(),
            self.stop.clone(),
        ));
        tracing::info!(%address, "other servers reach this one's store");
        *open = Some(address);
        Ok(address)
    }

    /// Opens the port and makes its address known to the group.
    pub(crate) async fn advertise(&self) -> Result<(), PeerError> {
        let address = self.open().await?;
        Ok(self.store.advertise(&address.to_string()).await?)
    }

    /// Closes the port.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for PeerListener {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
