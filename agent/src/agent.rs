//! The agent put together: `AgentConfig → build() → run(shutdown)`.
//!
//! Owns the rooms and the wires between them, decides nothing itself. Who reacts next: each
//! room, on the state it watches.

mod network;
mod removal;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use pintle_proto::admin::{Check, Health as CheckHealth, PodSummary};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::cgroup::{CgroupError, CgroupTree};
use crate::clock::Clock;
use crate::config::AgentConfig;
use crate::image::{ImageConfig, ImageError, ImageStore, Mirror};
use crate::network::{CidrError, NetworkError};
use crate::node::{Health, Heartbeat, HeartbeatConfig, HostInfo, object::NodeFacts};
use crate::pod::manager::{Inputs, Manager};
use crate::pod::seams::NetworkSlot;
use crate::pod::worker::{HostFacts, PodTable, Rooms};
use crate::runtime::{Runtime, RuntimeConfig, RuntimeError};
use crate::service::{DataPathError, ServiceConfig, ServiceProxy};
use crate::session::{
    ClusterState, ControlPlane, Link, LinkBuildError, LinkConfig, SessionHandle,
    requests::StreamRequests,
};
use crate::status::{EventSink, Events, StatusPublisher};
use crate::stream::Streams;
use crate::supervisor::{Kind, Supervisor};
use crate::volume::{VolumeConfig, VolumeError, Volumes};

pub use removal::cleanup_host;

/// Kubernetes whose behaviour the node has, for `kubeletVersion`.
const KUBERNETES_VERSION: &str = "v1.36.0";

/// Why the agent cannot start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A directory the agent keeps its state in cannot be made.
    #[error("cannot create directory {path}")]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The cgroup tree cannot be made.
    #[error("cannot prepare cgroups")]
    Cgroup(#[from] CgroupError),
    /// The runtime cannot be set up, or pods cannot be adopted or removed.
    #[error("container runtime")]
    Runtime(#[from] RuntimeError),
    /// The image store cannot be opened.
    #[error("cannot open the image store")]
    Images(#[from] ImageError),
    /// The BPF programs cannot be loaded or removed.
    #[error("service data path")]
    DataPath(#[from] DataPathError),
    /// The session cannot be prepared.
    #[error(transparent)]
    Session(#[from] LinkBuildError),
    /// Volumes cannot be set up or removed.
    #[error("volumes")]
    Volume(#[from] VolumeError),
    /// What pods had on the network cannot be removed.
    #[error("pod network")]
    Network(#[from] NetworkError),
    /// An address range of the configuration is none.
    #[error("`{option}`")]
    Cidr {
        /// Which.
        option: &'static str,
        /// Why.
        source: CidrError,
    },
    /// `run` was called twice.
    #[error("the agent runs already")]
    Running,
}

/// One node agent. Cheap to clone; clones are the same agent.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

struct Inner {
    config: Arc<AgentConfig>,
    runtime: Runtime,
    images: ImageStore,
    network: NetworkSlot,
    volumes: Volumes,
    table: PodTable,
    state: ClusterState,
    health: Health,
    ready: watch::Sender<bool>,
    host: HostInfo,
    session: SessionHandle,
    /// What `run` takes.
    parts: Mutex<Option<Parts>>,
    /// Ends the rooms before the pods are removed.
    stop: CancellationToken,
    /// Told when `run` has returned.
    running: watch::Sender<bool>,
}

/// The tasks that `run` starts.
struct Parts {
    link: Link,
    service: ServiceProxy,
    events: Events,
    sink: EventSink,
    status: StatusPublisher,
    streams: StreamRequests,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Agent")
            .field("node_name", &self.inner.config.node_name)
            .finish_non_exhaustive()
    }
}

fn create_directory(path: PathBuf) -> Result<(), AgentError> {
    std::fs::create_dir_all(&path).map_err(|source| AgentError::CreateDirectory { path, source })
}

impl Agent {
    /// Prepares every room; touches no pod.
    pub async fn build(config: AgentConfig) -> Result<Self, AgentError> {
        for path in [
            config.agent_dir(),
            config.pods_dir(),
            config.logs_dir(),
            config.run_dir.clone(),
        ] {
            create_directory(path)?;
        }
        let clock = Clock::system();
        let cgroups = CgroupTree::build(&cgroup_root(&config))?;
        let runtime = Runtime::build(runtime_config(&config, cgroups))?;
        let images = ImageStore::open(image_config(&config)).await?;
        let service = ServiceProxy::build(&ServiceConfig {
            attach_cgroup: config.cgroup_root.clone(),
            bpffs_dir: config.bpffs_dir.clone(),
        })?;
        let state = ClusterState::new();
        let (link, session, streams) =
            Link::build(link_config(&config), state.clone(), clock.clone())?;
        let (sink, events) = EventSink::new(&config.node_name, clock.clone());
        let control_plane: Arc<dyn ControlPlane> = Arc::new(session.clone());
        let volumes = Volumes::build(volume_config(&config), state.clone(), control_plane, clock)?;
        let host = HostInfo::read(&config.data_dir, config.node_ip);
        Ok(Self {
            inner: Arc::new(Inner {
                config: Arc::new(config),
                runtime,
                images,
                network: NetworkSlot::default(),
                volumes,
                table: PodTable::default(),
                state,
                health: Health::default(),
                ready: watch::Sender::new(false),
                host,
                session,
                parts: Mutex::new(Some(Parts {
                    link,
                    service,
                    events,
                    sink,
                    status: StatusPublisher::new(),
                    streams,
                })),
                stop: CancellationToken::new(),
                running: watch::Sender::new(false),
            }),
        })
    }

    /// Runs until `shutdown`, then returns with all pods left running.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), AgentError> {
        let inner = &self.inner;
        let parts = inner.parts.lock().take().ok_or(AgentError::Running)?;
        inner.running.send_replace(true);
        let stop = shutdown.child_token();
        let supervisor = Supervisor::new(stop.clone());
        let result = Box::pin(self.start(parts, &supervisor)).await;
        if result.is_ok() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = inner.stop.cancelled() => {}
            }
        }
        stop.cancel();
        supervisor.drain().await;
        inner.ready.send_replace(false);
        inner.running.send_replace(false);
        if inner.stop.is_cancelled() {
            // The teardown goes on; its caller ends the process.
            shutdown.cancelled().await;
        }
        result
    }

    async fn start(&self, parts: Parts, supervisor: &Supervisor) -> Result<(), AgentError> {
        let inner = &self.inner;
        let clock = Clock::system();
        let shutdown = supervisor.shutdown();
        let control_plane: Arc<dyn ControlPlane> = Arc::new(inner.session.clone());
        // Events from before the adoption would be lost.
        let runtime_events = inner.runtime.events();
        let adopted = inner.runtime.adopt().await?;
        tracing::info!(pods = adopted.len(), "adopted running pods");
        // What an agent that was killed had prepared and never started.
        let live: Vec<String> = adopted
            .iter()
            .flat_map(|sandbox| &sandbox.containers)
            .map(|container| container.id.clone())
            .collect();
        if let Err(error) = inner.images.gc(&live).await {
            tracing::warn!(
                error = crate::describe::chain(&error),
                "cannot collect unused images"
            );
        }
        inner.health.set("runtime", String::new());
        supervisor.spawn("session", Kind::Essential, parts.link.run(shutdown.clone()));
        supervisor.spawn(
            "events",
            Kind::Essential,
            parts.events.run(control_plane.clone(), shutdown.clone()),
        );
        supervisor.spawn(
            "status",
            Kind::Essential,
            parts
                .status
                .clone()
                .run(control_plane.clone(), shutdown.clone()),
        );
        let (broadcast, news) = mpsc::unbounded_channel();
        self.start_network(&parts.service, supervisor, broadcast)?;
        self.start_services(parts.service, supervisor);
        let rooms = Arc::new(self.rooms(&parts.sink, &parts.status, control_plane.clone(), &clock));
        let runtime = inner.runtime.clone();
        let inputs = Inputs {
            changes: inner.state.subscribe_pods(),
            runtime: runtime_events,
            broadcast: news,
            list: Arc::new(move || runtime.list()),
        };
        supervisor.spawn(
            "pods",
            Kind::Essential,
            Manager::new(rooms).run(inputs, shutdown.clone()),
        );
        let streams = Streams::new(
            inner.runtime.clone(),
            inner.table.clone(),
            inner.session.clone(),
            clock.clone(),
        );
        supervisor.spawn(
            "streams",
            Kind::Essential,
            streams.run(parts.streams, shutdown.clone()),
        );
        self.start_heartbeat(&parts.sink, control_plane, supervisor, clock);
        Ok(())
    }

    fn rooms(
        &self,
        events: &EventSink,
        status: &StatusPublisher,
        control_plane: Arc<dyn ControlPlane>,
        clock: &Clock,
    ) -> Rooms {
        let inner = &self.inner;
        Rooms {
            sandboxes: Arc::new(inner.runtime.clone()),
            images: Arc::new(inner.images.clone()),
            networks: Arc::new(inner.network.clone()),
            volumes: inner.volumes.clone(),
            status: status.clone(),
            events: events.clone(),
            control_plane,
            state: inner.state.clone(),
            clock: clock.clone(),
            table: inner.table.clone(),
            host: HostFacts {
                ips: inner.host.addresses.clone(),
                memory: inner.host.memory,
                milli_cpu: inner.host.cpus * 1000,
            },
            pods_dir: inner.config.pods_dir(),
            logs_dir: inner.config.logs_dir(),
            seccomp_dir: inner.config.agent_dir().join("seccomp"),
            cluster_domain: inner.config.cluster_domain.clone(),
            pod_pids_limit: inner.config.pod_pids_limit,
        }
    }

    fn start_heartbeat(
        &self,
        events: &EventSink,
        control_plane: Arc<dyn ControlPlane>,
        supervisor: &Supervisor,
        clock: Clock,
    ) {
        let inner = &self.inner;
        let missing = inner.runtime.cgroups().missing_controllers();
        if !missing.is_empty() {
            tracing::warn!("{}", crate::node::object::limits_message(&missing));
        }
        let heartbeat = Heartbeat::new(
            HeartbeatConfig {
                facts: NodeFacts {
                    name: inner.config.node_name.clone(),
                    labels: inner.config.node_labels.clone(),
                    host: inner.host.clone(),
                    max_pods: inner.config.max_pods,
                    version: inner.config.version.clone(),
                    kubernetes_version: format!(
                        "{KUBERNETES_VERSION}-pintle{}",
                        inner.config.version
                    ),
                    missing_controllers: missing,
                },
                data_dir: inner.config.data_dir.clone(),
            },
            inner.health.clone(),
            inner.images.clone(),
            events.clone(),
            control_plane,
            inner.state.clone(),
            clock,
        );
        let shutdown = supervisor.shutdown();
        supervisor.spawn(
            "heartbeat",
            Kind::Essential,
            heartbeat.run(shutdown.clone()),
        );
        let (mut report, ready) = (inner.health.watch(), inner.ready.clone());
        supervisor.spawn("ready", Kind::Essential, async move {
            loop {
                let announced = report.borrow_and_update().announced;
                ready.send_if_modified(|known| std::mem::replace(known, announced) != announced);
                match shutdown.run_until_cancelled(report.changed()).await {
                    Some(Ok(())) => {}
                    _ => return,
                }
            }
        });
    }

    /// True while the Node is Ready.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.inner.ready.subscribe()
    }

    /// The node's images.
    pub fn images(&self) -> ImageStore {
        self.inner.images.clone()
    }

    /// What `pintle status` prints about this node.
    pub fn status(&self) -> Vec<Check> {
        let inner = &self.inner;
        let mut checks = vec![self.session_check()];
        let report = inner.health.now();
        for room in crate::node::health::ROOMS {
            let component = if room == "data path" {
                "data path"
            } else {
                "node"
            };
            let (health, detail, hint) = match report.rooms.get(room) {
                None => (
                    CheckHealth::Degraded,
                    "not ready yet".to_owned(),
                    String::new(),
                ),
                Some(words) if words.is_empty() => {
                    (CheckHealth::Ok, "ready".to_owned(), String::new())
                }
                Some(words) => (
                    CheckHealth::Failed,
                    words.clone(),
                    "see the log of `pintle up`".to_owned(),
                ),
            };
            checks.push(Check {
                component: component.to_owned(),
                name: room.to_owned(),
                health: health.into(),
                detail,
                hint,
            });
        }
        let missing = inner.runtime.cgroups().missing_controllers();
        checks.push(if missing.is_empty() {
            Check {
                component: "node".to_owned(),
                name: "resource limits".to_owned(),
                health: CheckHealth::Ok.into(),
                detail: "enforced".to_owned(),
                hint: String::new(),
            }
        } else {
            Check {
                component: "node".to_owned(),
                name: "resource limits".to_owned(),
                health: CheckHealth::Degraded.into(),
                detail: format!(
                    "{} not on cgroup v2: limits are not enforced",
                    missing.join(", ")
                ),
                hint: "boot with systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all)"
                    .to_owned(),
            }
        });
        if let Some(problem) = inner.network.get().and_then(|network| network.problem()) {
            checks.push(Check {
                component: "node".to_owned(),
                name: "pod network".to_owned(),
                health: CheckHealth::Degraded.into(),
                detail: problem,
                hint: String::new(),
            });
        }
        checks
    }

    fn session_check(&self) -> Check {
        let inner = &self.inner;
        let connected = inner.session.client().is_some();
        let (health, detail, hint) = if connected {
            let pods = inner.state.pods().len();
            (
                CheckHealth::Ok,
                format!("connected, {pods} pods"),
                String::new(),
            )
        } else {
            (
                CheckHealth::Failed,
                format!("no session with {}", inner.config.servers.join(", ")),
                "pods keep running; is the control plane up?".to_owned(),
            )
        };
        Check {
            component: "node".to_owned(),
            name: "session".to_owned(),
            health: health.into(),
            detail,
            hint,
        }
    }

    /// The pods of this node, as `pintle status` prints them.
    pub fn pods(&self) -> Vec<PodSummary> {
        self.inner.table.summaries()
    }

    /// The configuration in use.
    pub fn config(&self) -> &AgentConfig {
        &self.inner.config
    }
}

fn cgroup_root(config: &AgentConfig) -> PathBuf {
    config
        .cgroup_root
        .join(format!("pintle-{}", config.instance_id))
}

fn runtime_config(config: &AgentConfig, cgroups: CgroupTree) -> RuntimeConfig {
    RuntimeConfig {
        run_dir: config.run_dir.clone(),
        shim_command: config.shim_command.clone(),
        cgroups,
    }
}

fn image_config(config: &AgentConfig) -> ImageConfig {
    let mirrors = config
        .registries
        .iter()
        .map(|(registry, mirrors)| {
            let mirrors = mirrors.iter().map(|mirror| {
                let (plain_http, host) = match mirror.split_once("://") {
                    Some((scheme, host)) => (scheme == "http", host),
                    None => (false, mirror.as_str()),
                };
                Mirror {
                    host: host.trim_end_matches('/').to_owned(),
                    plain_http,
                }
            });
            (registry.clone(), mirrors.collect())
        })
        .collect();
    ImageConfig {
        root: config.images_dir(),
        mirrors,
    }
}

fn link_config(config: &AgentConfig) -> LinkConfig {
    LinkConfig {
        servers: config.servers.clone(),
        membership_dir: config.is_member.then(|| config.agent_dir()),
        ca_pem: config.ca_pem.clone(),
        bootstrap_token: config.bootstrap_token.clone(),
        node_name: config.node_name.clone(),
        version: config.version.clone(),
        identity_dir: config.identity_dir(),
        checkpoint: config.agent_dir().join("state.log"),
    }
}

fn volume_config(config: &AgentConfig) -> VolumeConfig {
    VolumeConfig {
        pods_dir: config.pods_dir(),
        memory_dir: config.run_dir.join("volumes"),
        cluster_domain: config.cluster_domain.clone(),
        cluster_dns: config.cluster_dns,
    }
}
