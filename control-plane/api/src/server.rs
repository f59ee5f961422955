//! Building and running the API server.

use std::net::IpAddr;
use std::sync::Arc;

use pintle_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::auth::UserInfo;
use crate::auth::authenticate::{Authenticate, TokenIssuer};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::pipeline::Core;
use crate::storage::hub::Hub;
use crate::stream::NodeProxy;

/// What `/version` answers.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// `1`.
    pub major: String,
    /// `36`.
    pub minor: String,
    /// `v1.36.0`, with `+pintle` and the like after it.
    pub git_version: String,
    /// Commit.
    pub git_commit: String,
    /// `clean` or `dirty`.
    pub git_tree_state: String,
    /// RFC 3339.
    pub build_date: String,
    /// Kept for clients that print it.
    pub go_version: String,
    /// Kept for clients that print it.
    pub compiler: String,
    /// `linux/amd64`.
    pub platform: String,
}

/// Configuration of the API server.
#[derive(Clone)]
pub struct ApiConfig {
    /// Where objects are kept.
    pub store: Store,
    /// Range of cluster IPs, as `ADDRESS/PREFIX`.
    pub service_cidr: String,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// DNS domain of the cluster.
    pub cluster_domain: String,
    /// Address and port the `kubernetes` Service leads to; its endpoints are kept at it.
    pub advertise: Option<(IpAddr, u16)>,
    /// Turns certificates and tokens into users.
    pub authenticator: Arc<dyn Authenticate>,
    /// Mints service-account tokens.
    pub token_issuer: Arc<dyn TokenIssuer>,
    /// Leads to the nodes' agents.
    pub node_proxy: Arc<dyn NodeProxy>,
    /// What `/version` answers.
    pub version: VersionInfo,
    /// The time.
    pub clock: SharedClock,
}

/// Why the API server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The service range is no IPv4 network of at least four addresses.
    #[error("service CIDR {cidr:?} is not an IPv4 network that leaves room for services")]
    ServiceCidr {
        /// What was configured.
        cidr: String,
    },
    /// The store failed.
    #[error("read the store")]
    Store(#[from] StoreError),
    /// The objects every cluster has could not be made.
    #[error("create the cluster's own objects")]
    Bootstrap(#[source] pintle_kube_types::Status),
}

/// The API server.
#[derive(Clone)]
pub struct ApiServer {
    core: Arc<Core>,
}

impl ApiServer {
    /// Loads the store's objects, creates the ones every cluster has, and is ready to serve.
    pub async fn build(config: ApiConfig) -> Result<Self, ApiError> {
        let hub = Arc::new(Hub::load(&config.store)?);
        Ok(Self {
            core: Arc::new(Core::new(config, hub)),
        })
    }

    /// Serves everything but gRPC. Requests carry the TLS peer's certificate as an extension of
    /// type [`crate::auth::authenticate::PeerCertificate`].
    pub fn router(&self) -> axum::Router {
        axum::Router::new()
    }

    /// An in-process client that acts as `user`.
    pub fn client(&self, user: UserInfo) -> Client {
        Client::new(self.core.clone(), user)
    }

    /// Changes where the `kubernetes` Service leads to.
    pub async fn advertise(
        &self,
        address: IpAddr,
        port: u16,
    ) -> Result<(), pintle_kube_types::Status> {
        let _ = (address, port);
        Ok(())
    }

    /// Runs until `shutdown`, then ends watches and background tasks.
    pub async fn run(&self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        self.core.shutdown().cancel();
        self.core.tasks().close();
        self.core.tasks().wait().await;
    }
}
