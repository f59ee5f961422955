//! An API over a store in a temporary directory, for tests of this crate.

use std::sync::Arc;

use pintle_api::auth::UserInfo;
use pintle_api::client::Client;
use pintle_api::clock::SystemClock;
use pintle_api::server::{ApiConfig, ApiServer, DefaultTolerations};
use pintle_store::{Store, StoreConfig};

use crate::identity::{BoundTokenVerifier, Minter};
use crate::run::version;
use crate::service_account::ServiceAccountTokens;
use crate::session::Sessions;

/// The API; ends with its directory.
pub(crate) struct TestApi {
    server: ApiServer,
    directory: tempfile::TempDir,
}

impl TestApi {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig {
            data_dir: directory.path().join("store"),
            ..StoreConfig::default()
        })
        .await
        .unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let tokens = Arc::new(ServiceAccountTokens::new("cluster.local", &key).unwrap());
        let server = Box::pin(ApiServer::build(ApiConfig {
            store,
            service_cidr: "10.96.0.0/16".to_owned(),
            node_ports: (30000, 32767),
            cluster_domain: "cluster.local".to_owned(),
            advertise: None,
            authenticator: Arc::new(BoundTokenVerifier::new(Arc::clone(&tokens))).authenticator(),
            token_issuer: Arc::new(Minter(tokens)),
            node_proxy: Arc::new(Sessions::default()),
            default_tolerations: DefaultTolerations::default(),
            version: version(),
            clock: Arc::new(SystemClock),
        }))
        .await
        .unwrap();
        Self { server, directory }
    }

    pub(crate) fn client(&self) -> Client {
        self.server.client(UserInfo::apiserver())
    }

    /// A place for what a test writes besides the store.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }
}
