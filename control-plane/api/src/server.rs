//! Building and running the API server.
//!
//! Watches nothing itself; at start it creates what every cluster has (the four namespaces,
//! the `kubernetes` Service and its endpoints), then the hub follows the store until
//! shutdown. The store forgets old revisions by itself (`StoreConfig::history_retention`).

use std::net::IpAddr;
use std::sync::Arc;

use pintle_kube_types::Status;
use pintle_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::auth::UserInfo;
use crate::auth::authenticate::{Authenticate, TokenIssuer};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::http;
use crate::pipeline::Core;
use crate::registry::strategy::service::{Pools, ServiceRange};
use crate::storage::hub::Hub;
use crate::stream::NodeProxy;

mod bootstrap;

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
    pub advertise: Option<(Vec<IpAddr>, u16)>,
    /// Turns certificates and tokens into users.
    pub authenticator: Arc<dyn Authenticate>,
    /// Mints service-account tokens.
    pub token_issuer: Arc<dyn TokenIssuer>,
    /// Leads to the nodes' agents.
    pub node_proxy: Arc<dyn NodeProxy>,
    /// How long pods stay on a lost node that do not say it.
    pub default_tolerations: DefaultTolerations,
    /// What `/version` answers.
    pub version: VersionInfo,
    /// The time.
    pub clock: SharedClock,
}

/// How long pods stay on a lost node that do not say it themselves (the API server's
/// `--default-not-ready-toleration-seconds` and its sibling).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultTolerations {
    /// On a node that is not ready.
    pub not_ready_seconds: i64,
    /// On a node that cannot be reached.
    pub unreachable_seconds: i64,
}

impl Default for DefaultTolerations {
    /// Five minutes, as in Kubernetes.
    fn default() -> Self {
        Self {
            not_ready_seconds: 300,
            unreachable_seconds: 300,
        }
    }
}

/// Why the API server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The service range is no IPv4 network with room for services.
    #[error("service CIDR {cidr:?} is not an IPv4 network of between /8 and /30")]
    ServiceCidr {
        /// What was configured.
        cidr: String,
    },
    /// The range of node ports is empty.
    #[error("node port range {first}-{last} is empty")]
    NodePorts {
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
    /// The store failed.
    #[error("read the store")]
    Store(#[from] StoreError),
    /// The objects every cluster has could not be made.
    #[error("create the cluster's own objects")]
    Bootstrap(#[source] Status),
}

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    core: Arc<Core>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Loads the store's objects, creates the ones every cluster has, and is ready to serve.
    pub async fn build(config: ApiConfig) -> Result<Self, ApiError> {
        let ips =
            ServiceRange::parse(&config.service_cidr).ok_or_else(|| ApiError::ServiceCidr {
                cidr: config.service_cidr.clone(),
            })?;
        let (first, last) = config.node_ports;
        if first == 0 || first > last {
            return Err(ApiError::NodePorts { first, last });
        }
        let hub = Arc::new(Hub::load(&config.store)?);
        let (store, advertise) = (config.store.clone(), config.advertise.clone());
        let pools = Pools {
            ips,
            ports: config.node_ports,
        };
        let core = Arc::new(Core::new(config, hub.clone(), pools));
        let shutdown = core.shutdown().clone();
        core.tasks()
            .spawn(async move { hub.run(store, shutdown).await });
        let server = Self { core };
        server
            .create_own_objects()
            .await
            .map_err(ApiError::Bootstrap)?;
        if let Some((addresses, port)) = advertise {
            server
                .advertise(&addresses, port)
                .await
                .map_err(ApiError::Bootstrap)?;
        }
        Ok(server)
    }

    /// Serves everything but gRPC. Requests carry the TLS peer's certificate as an extension of
    /// type [`crate::auth::authenticate::PeerCertificate`].
    pub fn router(&self) -> axum::Router {
        http::router(self.core.clone())
    }

    /// An in-process client that acts as `user`.
    pub fn client(&self, user: UserInfo) -> Client {
        Client::new(self.core.clone(), user)
    }

    /// Runs until `shutdown`, then ends watches and background tasks.
    pub async fn run(&self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        self.core.shutdown().cancel();
        self.core.tasks().close();
        self.core.tasks().wait().await;
    }
}
