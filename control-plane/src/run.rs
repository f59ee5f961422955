//! Builds a control plane from its configuration and runs it.
//!
//! Watches nothing itself: it starts, in this order, the listeners' sockets, the PKI, the store
//! and the API, then serves and lets controllers and the scheduler react to what is stored.
//! Nothing on the machine is changed before everything that could be refused was checked.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pintle_api::auth::UserInfo;
use pintle_api::client::Client;
use pintle_api::clock::SystemClock;
use pintle_api::server::{ApiConfig, ApiError, ApiServer, VersionInfo};
use pintle_controllers::ControllersConfig;
use pintle_proto::MAX_MESSAGE_BYTES;
use pintle_proto::admin::{Check, Health};
use pintle_proto::node::ClusterSettings;
use pintle_proto::node::join_server::JoinServer as JoinService;
use pintle_proto::node::node_session_server::NodeSessionServer;
use pintle_proto::node::server_join_server::ServerJoinServer;
use pintle_scheduler::SchedulerConfig;
use pintle_store::{GrpcTransport, Member, Store, StoreConfig, StoreError, StoreHealth};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::config::{ConfigError, ControlPlaneConfig, Joins};
use crate::etcd::{self, Etcd, EtcdListen};
use crate::identity::{BoundTokenVerifier, IdentityEndpoints, Minter};
use crate::join::JoinServer;
use crate::join_server::ServerJoiner;
use crate::kubeconfig::KubeconfigError;
use crate::leader::while_leading;
use crate::node_keys::NodeKeys;
use crate::peers::{PeerError, PeerListener};
use crate::pki::member::MemberCertificate;
use crate::pki::{ADMIN_USER, Pki, PkiError, ServingNames};
use crate::server::{self, Services};
use crate::service_account::{ServiceAccountTokens, TokenError};
use crate::session::{SessionServer, Sessions};
use crate::token::JoinTokens;
use crate::{api_servers, clock, files, kubeconfig};

/// The Kubernetes version that is served.
pub const KUBERNETES_VERSION: &str = "v1.36.0+pintle";
/// Pause before taking part in the group is tried again.
const PART_RETRY: Duration = Duration::from_secs(2);
/// How often the serving certificate is looked at.
const RENEWAL_INTERVAL: Duration = Duration::from_hours(24);

/// Why a control plane cannot be built; each says which option to change.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API cannot listen.
    #[error("{option} {value}: cannot listen on {address}")]
    Listen {
        /// The option to change.
        option: &'static str,
        /// Its value.
        value: String,
        /// What was tried.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// A file or directory cannot be used.
    #[error("{option} {path}: not usable", path = path.display())]
    Path {
        /// The option to change.
        option: &'static str,
        /// Its value.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The cluster's keys cannot be used.
    #[error("--data-dir {path}: the cluster's keys are not usable", path = path.display())]
    Pki {
        /// The data directory.
        path: PathBuf,
        /// Why.
        source: PkiError,
    },
    /// The store cannot be opened.
    #[error("--data-dir {path}: the cluster's state is not usable", path = path.display())]
    Store {
        /// The data directory.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// The port for other servers cannot be opened.
    #[error(transparent)]
    Peers(#[from] PeerError),
    /// The token signing key cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// The API cannot start.
    #[error("start the API")]
    Api(#[from] ApiError),
}

/// Why a control plane stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// TLS could not be set up.
    #[error("set up TLS")]
    Tls(#[source] PkiError),
    /// The control plane runs already, or ran.
    #[error("the control plane was started twice")]
    Started,
}

/// A control plane. Clones share it.
#[derive(Clone)]
pub struct ControlPlane {
    inner: Arc<Inner>,
}

struct Inner {
    config: ControlPlaneConfig,
    address: SocketAddr,
    /// Where other machines and pods reach the API.
    endpoint: SocketAddr,
    store: Store,
    peers: PeerListener,
    member_certificate: Arc<MemberCertificate>,
    api: ApiServer,
    pki: Arc<Pki>,
    join_tokens: Arc<JoinTokens>,
    node_keys: NodeKeys,
    /// HOST:PORT of every API server, this one first.
    servers: watch::Sender<Vec<String>>,
    tokens: Arc<ServiceAccountTokens>,
    authenticator: Arc<BoundTokenVerifier>,
    sessions: Sessions,
    settings: ClusterSettings,
    listeners: Mutex<Option<Vec<TcpListener>>>,
    etcd: Option<EtcdListen>,
    etcd_listener: Mutex<Option<TcpListener>>,
    ready: watch::Sender<bool>,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane")
            .field("address", &self.inner.address)
            .finish_non_exhaustive()
    }
}

impl ControlPlane {
    /// Checks the configuration and the machine, binds the listeners, opens keys and store,
    /// builds the API and writes the administrator's kubeconfig. Clients that connect from now
    /// on are served as soon as [`run`](Self::run) is called.
    pub async fn build(config: ControlPlaneConfig) -> Result<Self, BuildError> {
        config.check()?;
        let (address, listeners) = listen(&config)?;
        let (etcd, etcd_listener) = config.etcd_listen.map(listen_etcd).transpose()?.unzip();
        check_paths(&config)?;

        let state_dir = config.state_dir();
        files::create_private_directory(&state_dir).map_err(|source| BuildError::Path {
            option: "--data-dir",
            path: config.data_dir.clone(),
            source,
        })?;
        let names = ServingNames::new(
            &config.cluster_domain,
            &config.node_name,
            &[
                config.bind,
                config.advertise_address(),
                config.pod_gateway(),
                config.api_service_address(),
                etcd.map_or(config.bind, |etcd| etcd.address.ip()),
            ],
            &config.more_names,
        );
        let pki = Pki::open(&state_dir.join("pki"), names, clock::now()).map_err(|source| {
            BuildError::Pki {
                path: config.data_dir.clone(),
                source,
            }
        })?;
        let (store, peers, certificate) = open_store(&config, &pki).await?;
        let endpoint = SocketAddr::new(config.advertise_address(), address.port());
        let known = api_servers::known(&store, endpoint).map_err(|source| BuildError::Store {
            path: config.data_dir.clone(),
            source,
        })?;
        let tokens = Arc::new(ServiceAccountTokens::new(
            &config.cluster_domain,
            pki.service_account_key(),
        )?);
        let sessions = Sessions::default();
        let authenticator = Arc::new(BoundTokenVerifier::new(Arc::clone(&tokens)));
        let api = Box::pin(ApiServer::build(ApiConfig {
            store: store.clone(),
            service_cidr: config.service_cidr.to_string(),
            node_ports: (30000, 32767),
            cluster_domain: config.cluster_domain.clone(),
            advertise: Some((
                known
                    .iter()
                    .filter(|server| server.port() == address.port())
                    .map(SocketAddr::ip)
                    .collect(),
                address.port(),
            )),
            authenticator: authenticator.authenticator(),
            token_issuer: Arc::new(Minter(Arc::clone(&tokens))),
            node_proxy: Arc::new(sessions.clone()),
            default_tolerations: config.default_tolerations,
            version: version(),
            clock: Arc::new(SystemClock),
        }))
        .await?;
        authenticator.look_up_through(&api.client(UserInfo::apiserver()));

        let text = kubeconfig::render(
            &config.local_endpoint(address.port()).to_string(),
            pki.ca_pem(),
            ADMIN_USER,
            pki.admin(),
        );
        kubeconfig::write(&config.kubeconfig, &text).map_err(|source| BuildError::Path {
            option: "--kubeconfig",
            path: config.kubeconfig.clone(),
            source,
        })?;
        let settings = ClusterSettings {
            cluster_id: store.cluster_id().to_owned(),
            cluster_domain: config.cluster_domain.clone(),
            cluster_dns: config.cluster_dns().to_string(),
            service_cidr: config.service_cidr.to_string(),
            pod_cidr: config.pod_cidr.to_string(),
        };
        let system = api.client(UserInfo::apiserver());
        let join_tokens = JoinTokens::new(system.clone(), pki.ca_hash());
        let public = config.public_endpoint(address.port());
        let servers = api_servers::in_order(public, endpoint, &known);
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                address,
                endpoint,
                store,
                peers,
                member_certificate: certificate,
                api,
                pki: Arc::new(pki),
                join_tokens: Arc::new(join_tokens),
                node_keys: NodeKeys::new(system),
                servers: watch::Sender::new(servers),
                tokens,
                authenticator,
                sessions,
                settings,
                listeners: Mutex::new(Some(listeners)),
                etcd,
                etcd_listener: Mutex::new(etcd_listener),
                ready: watch::Sender::new(false),
            }),
        })
    }

    /// Serves until `shutdown`, then drains and closes the store.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), RunError> {
        let inner = &self.inner;
        let listeners = inner.listeners.lock().take().ok_or(RunError::Started)?;
        let tls = Arc::new(inner.pki.server_tls().map_err(RunError::Tls)?);
        let tasks = TaskTracker::new();
        let services = Services {
            rest: self.rest(),
            grpc: self.grpc(&shutdown, &tasks),
        };
        let (api, stop) = (inner.api.clone(), shutdown.clone());
        tasks.spawn(async move { api.run(stop).await });
        tasks.spawn(renew_certificates(
            Arc::clone(&inner.pki),
            Arc::clone(&inner.member_certificate),
            shutdown.clone(),
        ));
        tasks.spawn(take_part(self.clone(), shutdown.clone()));
        tasks.spawn(api_servers::announce(
            inner.store.clone(),
            inner.endpoint,
            shutdown.clone(),
        ));
        tasks.spawn(api_servers::follow(
            api_servers::Following {
                store: inner.store.clone(),
                api: inner.api.clone(),
                public: inner.config.public_endpoint(inner.address.port()),
                own: inner.endpoint,
                servers: inner.servers.clone(),
            },
            shutdown.clone(),
        ));
        self.spawn_leader_work(&shutdown, &tasks);
        self.spawn_etcd(&tls, &shutdown, &tasks);
        inner.ready.send_replace(true);
        tracing::info!(address = %inner.address, "the API is served");
        server::serve(listeners, tls, services, shutdown).await;
        inner.ready.send_replace(false);
        tasks.close();
        tasks.wait().await;
        inner.peers.close().await;
        inner.store.shutdown().await;
        Ok(())
    }

    /// True while the API is served.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.inner.ready.subscribe()
    }

    /// A client in this process, acting as `user`.
    pub fn client(&self, user: UserInfo) -> Client {
        self.inner.api.client(user)
    }

    /// Where the API listens, for clients on this machine.
    pub fn address(&self) -> SocketAddr {
        self.inner.config.local_endpoint(self.inner.address.port())
    }

    /// Where the etcd API is served.
    pub fn etcd(&self) -> Option<EtcdListen> {
        self.inner.etcd
    }

    /// The cluster's CA certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        self.inner.pki.ca_pem()
    }

    /// What the agent of this process joins with.
    pub fn own_join_token(&self) -> String {
        self.inner.join_tokens.issue_own().credential()
    }

    /// The join tokens of the cluster.
    pub fn join_tokens(&self) -> &JoinTokens {
        &self.inner.join_tokens
    }

    /// HOST:PORT at which other machines reach this server.
    pub fn public_endpoint(&self) -> String {
        let port = self.inner.address.port();
        self.inner.config.public_endpoint(port).to_string()
    }

    /// Whether no other machine can reach this server.
    pub fn is_loopback_only(&self) -> bool {
        self.inner.config.is_loopback_only()
    }

    /// A kubeconfig with a new certificate for a user of these groups.
    pub fn user_kubeconfig(
        &self,
        user: &str,
        groups: &[String],
        life: Duration,
    ) -> Result<String, KubeconfigError> {
        let (pki, server) = (&self.inner.pki, self.public_endpoint());
        kubeconfig::for_user(pki, &server, user, groups, life, clock::now())
    }

    /// The member of the store's group that this server is.
    pub fn member_id(&self) -> u64 {
        self.inner.store.member_id()
    }

    /// The servers of the cluster, as members of the store's group.
    pub fn members(&self) -> Vec<Member> {
        self.inner.store.members()
    }

    /// Adds a new server whose store will be reached at `address`, HOST:PORT; it follows at once
    /// and votes once it has caught up. It must be started with what this answers. A member at
    /// that address that has never voted is one whose joining was interrupted: it is replaced.
    pub async fn add_member(&self, address: &str) -> Result<Joins, PeerError> {
        let inner = &self.inner;
        inner.peers.advertise().await?;
        let mut members = self.members().into_iter();
        if let Some(other) = members.find(|member| member.address == address) {
            if other.voter {
                return Err(PeerError::Taken {
                    address: other.address,
                    id: other.id,
                });
            }
            inner.store.remove_member(other.id).await?;
        }
        Ok(Joins {
            member_id: inner.store.add_member(address).await?,
            cluster_id: inner.store.cluster_id().to_owned(),
        })
    }

    /// Removes a server for ever; what it still sends is refused.
    pub async fn remove_member(&self, id: u64) -> Result<(), PeerError> {
        Ok(self.inner.store.remove_member(id).await?)
    }

    /// What a node needs to know of the cluster.
    pub fn settings(&self) -> &ClusterSettings {
        &self.inner.settings
    }

    /// Names of the nodes that have a session.
    pub fn connected_nodes(&self) -> Vec<String> {
        self.inner.sessions.connected()
    }

    /// What `pintle status` shows of the control plane.
    pub fn status(&self) -> Vec<Check> {
        let serving = *self.inner.ready.borrow();
        let api = check(
            "control plane",
            "api",
            serving,
            format!(
                "https://{}, Kubernetes {KUBERNETES_VERSION}",
                self.address()
            ),
            "see the log of `pintle up` for why it stopped",
        );
        let health = self.inner.store.health();
        let store = check(
            "control plane",
            "store",
            health.failure.is_none() && health.leader.is_some(),
            store_detail(&health),
            if health.failure.is_some() {
                "free disk space or repair the disk under --data-dir, then restart `pintle up`"
            } else {
                "start the other servers: more than half of them are needed"
            },
        );
        let nodes = self.connected_nodes();
        let sessions = check(
            "control plane",
            "node sessions",
            !nodes.is_empty(),
            if nodes.is_empty() {
                "no node is connected".to_owned()
            } else {
                nodes.join(", ")
            },
            "an agent connects by itself; its log says what keeps it from doing so",
        );
        let mut checks = vec![api, store, sessions];
        if let Some(etcd) = self.inner.etcd {
            checks.push(check(
                "control plane",
                "etcd api",
                serving,
                etcd.to_string(),
                "see the log of `pintle up` for why it stopped",
            ));
        }
        checks
    }

    /// The etcd API, where it is wanted.
    fn spawn_etcd(
        &self,
        tls: &Arc<rustls::ServerConfig>,
        shutdown: &CancellationToken,
        tasks: &TaskTracker,
    ) {
        let inner = &self.inner;
        let listener = inner.etcd_listener.lock().take();
        let (Some(listen), Some(listener)) = (inner.etcd, listener) else {
            return;
        };
        let etcd = Etcd::new(
            inner.store.clone(),
            &inner.config.node_name,
            listen.to_string(),
            tasks.clone(),
            shutdown.clone(),
        );
        let tls = (!listen.plain).then(|| Arc::clone(tls));
        tracing::info!(address = %listen, "the etcd API is served");
        tasks.spawn(etcd::listen::serve(listener, tls, etcd, shutdown.clone()));
    }

    /// Controllers and scheduler, while this member leads.
    fn spawn_leader_work(&self, shutdown: &CancellationToken, tasks: &TaskTracker) {
        let store = || self.inner.store.clone();
        let (config, client) = (&self.inner.config, self.client(UserInfo::apiserver()));
        let controllers = ControllersConfig {
            node_cidr_mask: config.node_cidr_mask(),
            node_life: config.node_life,
            ..ControllersConfig::new(client, config.pod_cidr.to_string(), self.ca_pem())
        };
        tasks.spawn(while_leading(
            store(),
            shutdown.clone(),
            "controllers",
            move |stop, fence| {
                let controllers = ControllersConfig {
                    client: controllers.client.fenced(fence),
                    ..controllers.clone()
                };
                pintle_controllers::run(controllers, stop)
            },
        ));
        let scheduler = self.client(UserInfo::scheduler());
        tasks.spawn(while_leading(
            store(),
            shutdown.clone(),
            "scheduler",
            move |stop, fence| {
                pintle_scheduler::run(SchedulerConfig::new(scheduler.fenced(fence)), stop)
            },
        ));
    }

    fn rest(&self) -> axum::Router {
        let endpoints = IdentityEndpoints {
            tokens: Arc::clone(&self.inner.tokens),
            authenticator: self.inner.authenticator.authenticator(),
        };
        self.inner.api.router().merge(endpoints.router())
    }

    fn grpc(&self, shutdown: &CancellationToken, tasks: &TaskTracker) -> axum::Router {
        let join = JoinServer {
            pki: Arc::clone(&self.inner.pki),
            tokens: Arc::clone(&self.inner.join_tokens),
            keys: self.inner.node_keys.clone(),
            own_node: self.inner.config.node_name.clone(),
            settings: self.inner.settings.clone(),
            servers: self.inner.servers.subscribe(),
            certificate_life: self.inner.config.node_certificate_life,
        };
        let session = SessionServer {
            client: self.client(UserInfo::apiserver()),
            sessions: self.inner.sessions.clone(),
            tokens: Arc::clone(&self.inner.tokens),
            keys: self.inner.node_keys.clone(),
            servers: self.inner.servers.subscribe(),
            settings: self.inner.settings.clone(),
            server_version: KUBERNETES_VERSION.to_owned(),
            shutdown: shutdown.clone(),
            tasks: tasks.clone(),
        };
        let server_join = ServerJoiner {
            control_plane: self.clone(),
            pki: Arc::clone(&self.inner.pki),
            tokens: Arc::clone(&self.inner.join_tokens),
            keys: self.inner.node_keys.clone(),
            own_node: self.inner.config.node_name.clone(),
            api_port: self.inner.address.port(),
            settings: self.inner.settings.clone(),
        };
        Routes::new(JoinService::new(join))
            .add_service(ServerJoinServer::new(server_join))
            .add_service(
                NodeSessionServer::new(session)
                    .max_decoding_message_size(MAX_MESSAGE_BYTES)
                    .max_encoding_message_size(MAX_MESSAGE_BYTES),
            )
            .into_axum_router()
    }
}

/// Opens the store and, when it is one of several, the port for the others; answers when it has
/// what the API needs to start.
async fn open_store(
    config: &ControlPlaneConfig,
    pki: &Pki,
) -> Result<(Store, PeerListener, Arc<MemberCertificate>), BuildError> {
    let path = || config.data_dir.clone();
    let refused = |source| BuildError::Store {
        path: path(),
        source,
    };
    let tls = pki
        .member_tls(clock::now())
        .map_err(|source| BuildError::Pki {
            path: path(),
            source,
        })?;
    let mut store = StoreConfig {
        data_dir: config.state_dir(),
        ..StoreConfig::default()
    };
    if let Some(joins) = &config.joins {
        store.join = true;
        store.node_id = joins.member_id;
        store.cluster_id = Some(joins.cluster_id.clone());
    }
    let transport = Arc::new(GrpcTransport::new(tls.client));
    let store = Store::open_with(store, transport).await.map_err(refused)?;
    let bind = SocketAddr::new(config.bind, config.raft_port);
    let peers = PeerListener::new(store.clone(), tls.server, bind, config.raft_address());
    if config.joins.is_some() || store.members().len() != 1 {
        peers.open().await?;
        wait_for_group(&store).await.map_err(refused)?;
    }
    Ok((store, peers, tls.certificate))
}

/// Waits until a quorum of the group is there and this member has what it has.
async fn wait_for_group(store: &Store) -> Result<(), StoreError> {
    loop {
        match store.linearizable().await {
            Ok(_) => return Ok(()),
            Err(StoreError::NotLeader { .. }) => {
                tracing::warn!("waiting for more than half of the servers to be there");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes this server's address known to the group and, when it is new, has it vote.
async fn take_part(control_plane: ControlPlane, shutdown: CancellationToken) {
    let inner = &control_plane.inner;
    let id = inner.store.health().node_id;
    let once = async || -> Result<(), PeerError> {
        let members = inner.store.members();
        if members.len() > 1 {
            inner.peers.advertise().await?;
        }
        if members
            .iter()
            .any(|member| member.id == id && !member.voter)
        {
            inner.store.promote(id).await?;
            tracing::info!("this server votes in the group");
        }
        Ok(())
    };
    while let Err(error) = once().await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "taking part in the group of servers"
        );
        let pause = shutdown.run_until_cancelled(tokio::time::sleep(PART_RETRY));
        if pause.await.is_none() {
            return;
        }
    }
}

fn store_detail(health: &StoreHealth) -> String {
    if let Some(cause) = health.failure.as_ref().or(health.refused.as_ref()) {
        return cause.clone();
    }
    let (revision, log) = (health.revision, health.log_bytes / 1024);
    if health.members <= 1 {
        return format!("revision {revision}, log {log} KiB");
    }
    let leader = match health.leader {
        None => "no leader".to_owned(),
        Some(id) if id == health.node_id => "leading".to_owned(),
        Some(id) => format!("led by member {id}"),
    };
    let members = health.members;
    format!("revision {revision}, log {log} KiB, {members} members, {leader}")
}

/// Binds the API's address and, where pods could not reach that one, the pod gateway's.
fn listen(config: &ControlPlaneConfig) -> Result<(SocketAddr, Vec<TcpListener>), BuildError> {
    let wanted = SocketAddr::new(config.bind, config.port);
    let failed = |address: SocketAddr, source: io::Error| {
        let (option, value) = if source.kind() == io::ErrorKind::AddrNotAvailable {
            ("--bind", config.bind.to_string())
        } else {
            ("--port", config.port.to_string())
        };
        BuildError::Listen {
            option,
            value,
            address,
            source,
        }
    };
    let main = server::bind(wanted, false).map_err(|source| failed(wanted, source))?;
    let address = main.local_addr().map_err(|source| failed(wanted, source))?;
    let mut listeners = vec![main];
    if config.needs_gateway_listener() {
        let gateway = SocketAddr::new(config.pod_gateway(), address.port());
        listeners.push(server::bind(gateway, true).map_err(|source| failed(gateway, source))?);
    }
    Ok((address, listeners))
}

/// Binds the etcd API's address; answers it with the port that was given.
fn listen_etcd(wanted: EtcdListen) -> Result<(EtcdListen, TcpListener), BuildError> {
    let failed = |source| BuildError::Listen {
        option: "--etcd-listen",
        value: wanted.to_string(),
        address: wanted.address,
        source,
    };
    let listener = server::bind(wanted.address, false).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((EtcdListen { address, ..wanted }, listener))
}

fn check_paths(config: &ControlPlaneConfig) -> Result<(), BuildError> {
    files::check_creatable(&config.state_dir()).map_err(|source| BuildError::Path {
        option: "--data-dir",
        path: config.data_dir.clone(),
        source,
    })?;
    let unusable = |source| BuildError::Path {
        option: "--kubeconfig",
        path: config.kubeconfig.clone(),
        source,
    };
    if config.kubeconfig.is_dir() {
        return Err(unusable(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    match config.kubeconfig.parent() {
        Some(parent) => files::check_creatable(parent).map_err(unusable),
        None => Ok(()),
    }
}

async fn renew_certificates(
    pki: Arc<Pki>,
    member: Arc<MemberCertificate>,
    shutdown: CancellationToken,
) {
    while shutdown
        .run_until_cancelled(tokio::time::sleep(RENEWAL_INTERVAL))
        .await
        .is_some()
    {
        if let Err(error) = pki.renew_member(&member, clock::now()) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "renew the certificate for other servers"
            );
        }
        match pki.renew_serving(clock::now()) {
            Ok(true) => tracing::info!("the API's serving certificate was renewed"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "renew certificate"
                );
            }
        }
    }
}

pub(crate) fn version() -> VersionInfo {
    VersionInfo {
        major: "1".to_owned(),
        minor: "36".to_owned(),
        git_version: KUBERNETES_VERSION.to_owned(),
        git_commit: String::new(),
        git_tree_state: "clean".to_owned(),
        build_date: "1970-01-01T00:00:00Z".to_owned(),
        go_version: String::new(),
        compiler: "rustc".to_owned(),
        platform: format!(
            "{}/{}",
            std::env::consts::OS,
            match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            }
        ),
    }
}

fn check(component: &str, name: &str, healthy: bool, detail: String, hint: &str) -> Check {
    Check {
        component: component.to_owned(),
        name: name.to_owned(),
        health: if healthy { Health::Ok } else { Health::Failed }.into(),
        detail,
        hint: if healthy { "" } else { hint }.to_owned(),
    }
}
