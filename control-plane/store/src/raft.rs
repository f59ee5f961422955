//! Replication: the only place that knows openraft.
//!
//! Watches proposals and other members; changes the log and, through committed entries, the
//! state machine; the proposer's callers react to the outcome. [`Engine`] is what the rest of
//! the store sees, and it speaks only of requests, outcomes, members and leadership.
//!
//! ```text
//!   propose ──▶ openraft core ──▶ log.rs ──▶ wal/      append, one sync
//!      │             │ ▲ │ committed
//!      │             │ │ └──────▶ machine.rs ──▶ mvcc/ apply
//!      │ not leader  │ inbox ◀── messages of other members ◀─┐
//!      ▼             ▼ network                               │
//!     mail ──────▶ Transport (gRPC over mutual TLS) ─────────┘
//! ```
//! openraft syncs once per write it is given, so batching is done before it: the proposer
//! gathers what waits while the batch before is being synced (see [`propose`]).
//!
//! | module | watches | changes |
//! |---|---|---|
//! | [`propose`] | submitted requests | the log, here or on the leader |
//! | [`reads`] | linearizable reads that wait | nothing: finds how far they must have applied |
//! | [`pulse`] | silence, while there are other members | heartbeats, elections |
//! | [`members`] | calls to change the group | the membership |
//! | [`inbox`] | messages of other members | what they say, after checking whose they are |
//! | [`network`], [`transport`], [`grpc`] | openraft's calls | sends them |
//! | [`snapshot`] | - | a state's way to another member |

pub(crate) mod group;
pub(crate) mod grpc;
pub(crate) mod inbox;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod members;
pub(crate) mod message;
pub(crate) mod network;
pub(crate) mod propose;
pub(crate) mod pulse;
pub(crate) mod reads;
pub(crate) mod runtime;
pub(crate) mod snapshot;
#[cfg(test)]
mod suite;
pub(crate) mod transport;
pub(crate) mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::metrics::RaftServerMetrics;
use openraft::{BasicNode, Config, Raft, ServerState, SnapshotPolicy};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::failure::{Failure, chain};
use crate::keeper::Wake;
use crate::mvcc::Machine;
use group::Group;
use inbox::Receiving;
use log::LogStore;
use machine::Applier;
use network::{Mail, Peers};
use reads::Reads;
use transport::{Peer, Transport};
use types::TypeConfig;

/// How long a member that is the whole group may take to replay its log.
const REPLAY_LIMIT: Duration = Duration::from_mins(10);
/// How long a checkpoint may take before the log is left as it is until the next.
const CHECKPOINT_LIMIT: Duration = Duration::from_mins(1);

/// One member of the Raft group.
#[derive(Clone)]
pub(crate) struct Engine {
    raft: Raft<TypeConfig>,
    node_id: u64,
    machine: Arc<Machine>,
    log: LogStore,
    failure: Arc<Failure>,
    wake: Arc<Wake>,
    group: Arc<Group>,
    mail: Mail,
    reads: Reads,
    /// A snapshot being received; one at a time.
    receiving: Arc<tokio::sync::Mutex<Option<Receiving>>>,
    /// Changes of members are made one at a time.
    changing: Arc<tokio::sync::Mutex<()>>,
    log_keep_bytes: u64,
}

/// Who leads, as this member knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Leadership {
    /// The leader, when it was heard lately.
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
    /// This member leads, and a quorum said so lately.
    pub(crate) leads: bool,
}

/// What is needed to start a member.
pub(crate) struct Start<'a> {
    pub(crate) config: &'a StoreConfig,
    pub(crate) cluster_id: &'a str,
    /// It waits to be added to a group and never forms one.
    pub(crate) joins: bool,
    pub(crate) log: LogStore,
    pub(crate) machine: Arc<Machine>,
    pub(crate) wake: Arc<Wake>,
    pub(crate) failure: Arc<Failure>,
    pub(crate) group: Arc<Group>,
    pub(crate) transport: Arc<dyn Transport>,
}

type ServerMetrics = RaftServerMetrics<u64, BasicNode>;

impl Engine {
    /// Starts the member. A member that is the whole group leads, and has applied its whole
    /// log, when this returns.
    pub(crate) async fn start(start: Start<'_>) -> Result<Self, StoreError> {
        let failed = |cause: String| StoreError::Start { cause };
        let config = start.config;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let raft_config = Config {
            cluster_name: start.cluster_id.to_owned(),
            // `pulse` sends heartbeats and calls elections, see `runtime`. What is left of
            // openraft's timing: how long it waits for an answer, and the lease within which a
            // voter turns candidates away.
            heartbeat_interval: millis(group::ANSWER),
            election_timeout_min: millis(group::LEASE) - 1,
            election_timeout_max: millis(group::LEASE),
            enable_tick: false,
            // The keeper decides when to checkpoint; see `machine.rs` for what a snapshot is.
            snapshot_policy: SnapshotPolicy::Never,
            // And what to purge then, by size.
            max_in_snapshot_log_to_keep: u64::MAX,
            ..Config::default()
        };
        let raft_config = raft_config
            .validate()
            .map_err(|error| failed(chain(&error)))?;
        let mail = Mail {
            cluster_id: start.cluster_id.into(),
            sender: config.node_id,
            transport: start.transport,
            group: Arc::clone(&start.group),
        };
        let applier = Applier::new(
            Arc::clone(&start.machine),
            Arc::clone(&start.wake),
            Arc::clone(&start.failure),
            Arc::clone(&start.group),
        );
        let raft = Raft::new(
            config.node_id,
            Arc::new(raft_config),
            Peers { mail: mail.clone() },
            start.log.clone(),
            applier,
        )
        .await
        .map_err(|error| match start.failure.text() {
            Some(_) => start.failure.error(),
            None => failed(chain(&error)),
        })?;
        let engine = Self {
            raft,
            node_id: config.node_id,
            machine: start.machine,
            log: start.log,
            failure: start.failure,
            wake: start.wake,
            group: start.group,
            mail,
            reads: Reads::default(),
            receiving: Arc::default(),
            changing: Arc::default(),
            log_keep_bytes: config.log_keep_bytes,
        };
        if engine.lead(&config.peer_address, start.joins).await? {
            engine.advertise(&config.peer_address).await?;
        }
        Ok(engine)
    }

    /// Forms the group if there is none, and leads it if it is this member alone; answers
    /// whether it is.
    async fn lead(&self, address: &str, joins: bool) -> Result<bool, StoreError> {
        let initialized = self
            .raft
            .is_initialized()
            .await
            .map_err(|error| self.stopped(&error))?;
        if !initialized {
            if joins {
                return Ok(false);
            }
            let member = BasicNode {
                addr: address.to_owned(),
            };
            self.raft
                .initialize(BTreeMap::from([(self.node_id, member)]))
                .await
                .map_err(|error| self.stopped(&error))?;
        }
        let metrics = self.raft.server_metrics().borrow().clone();
        if !self.is_quorum(&metrics) {
            self.refresh();
            return Ok(false);
        }
        if metrics.current_leader != Some(self.node_id) {
            self.raft
                .trigger()
                .elect()
                .await
                .map_err(|error| self.stopped(&error))?;
        }
        let id = self.node_id;
        self.raft
            .wait(Some(REPLAY_LIMIT))
            .metrics(
                |metrics| {
                    metrics.current_leader == Some(id)
                        && metrics.last_log_index.is_some()
                        && metrics.last_applied.map(|applied| applied.index)
                            >= metrics.last_log_index
                },
                "lead with the whole log applied",
            )
            .await
            .map_err(|error| self.stopped(&error))?;
        self.refresh();
        Ok(true)
    }

    fn is_quorum(&self, metrics: &ServerMetrics) -> bool {
        metrics.membership_config.voter_ids().eq([self.node_id])
    }

    fn server_metrics(&self) -> ServerMetrics {
        self.raft.server_metrics().borrow().clone()
    }

    /// Takes over who leads now.
    pub(crate) fn refresh(&self) -> Leadership {
        let metrics = self.server_metrics();
        let mine =
            metrics.current_leader == Some(self.node_id) && metrics.state == ServerState::Leader;
        let alone = mine && self.is_quorum(&metrics);
        let peers = metrics
            .membership_config
            .nodes()
            .any(|(id, _)| *id != self.node_id);
        self.group.set_shape(alone, peers);
        let leads = mine && (alone || self.group.is_fresh());
        let heard = if mine {
            leads
        } else {
            metrics.current_leader != Some(self.node_id) && self.group.hears_leader()
        };
        Leadership {
            leader: metrics.current_leader.filter(|_| heard),
            term: metrics.vote.leader_id().term,
            leads,
        }
    }

    /// Announces when [`Engine::refresh`] may answer something else.
    pub(crate) fn changes(&self) -> Changes {
        Changes {
            metrics: self.raft.server_metrics(),
            fresh: self.group.freshness(),
        }
    }

    /// The member that leads as far as the log's vote says, and where to reach it; `None` when
    /// it is this one or unknown.
    fn leader(&self) -> Option<Peer> {
        let metrics = self.server_metrics();
        let id = metrics.current_leader.filter(|id| *id != self.node_id)?;
        peer(&metrics, id)
    }

    /// Whether openraft takes this member for the leader.
    fn is_leader(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow();
        metrics.current_leader == Some(self.node_id) && metrics.state == ServerState::Leader
    }

    /// Waits until the local state holds everything acknowledged before the call.
    pub(crate) async fn read_barrier(&self) -> Result<(), StoreError> {
        if self.group.is_alone() && self.failure.text().is_none() {
            return Ok(());
        }
        let index = self.reads.index(self).await?;
        self.wait_applied(index).await
    }

    /// Waits until the entry at `index` is applied here.
    async fn wait_applied(&self, index: u64) -> Result<(), StoreError> {
        if self.machine.applied_next() > index {
            return Ok(());
        }
        let mut applied = self.machine.progress();
        let reached = timeout(group::PATIENCE, applied.wait_for(|next| *next > index)).await;
        match reached {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(self.failure.error()),
            Err(_) => match self.failure.text() {
                Some(_) => Err(self.failure.error()),
                None => Err(StoreError::NotLeader {
                    leader: self.leader().map(|peer| peer.id),
                }),
            },
        }
    }

    /// Puts the state on disk, then purges the log before it: all of it when nobody else needs
    /// it, else what exceeds the size kept for members that are behind.
    pub(crate) async fn checkpoint(&self) -> Result<(), StoreError> {
        self.log.checkpointing();
        let wanted = self.machine.applied_next();
        let mut metrics = self.raft.data_metrics();
        self.raft
            .trigger()
            .snapshot()
            .await
            .map_err(|error| self.stopped(&error))?;
        let taken = metrics.wait_for(|metrics| {
            metrics.snapshot.map_or(0, |snapshot| snapshot.index + 1) >= wanted
        });
        let Ok(Ok(_)) = timeout(CHECKPOINT_LIMIT, taken).await else {
            return Ok(());
        };
        let Some(last) = wanted.checked_sub(1) else {
            return Ok(());
        };
        let upto = if self.group.has_peers() {
            let keep = self.log.keep_from(self.log_keep_bytes);
            keep.checked_sub(1).map(|before| before.min(last))
        } else {
            Some(last)
        };
        let Some(upto) = upto else { return Ok(()) };
        self.raft
            .trigger()
            .purge_log(upto)
            .await
            .map_err(|error| self.stopped(&error))
    }

    /// This member's id.
    pub(crate) fn node_id(&self) -> u64 {
        self.node_id
    }

    /// The state machine.
    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// The log.
    pub(crate) fn log(&self) -> &LogStore {
        &self.log
    }

    /// The first storage failure.
    pub(crate) fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }

    /// What this member knows of its group.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Stops the engine's tasks. The state machine applies nothing afterwards.
    pub(crate) async fn stop(&self) {
        self.group.set_shape(false, false);
        self.group.set_fresh(false);
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(
                error = chain(&error),
                "the replication engine did not stop cleanly"
            );
        }
    }

    fn stopped(&self, error: &dyn std::error::Error) -> StoreError {
        match self.failure.text() {
            Some(_) => self.failure.error(),
            None => StoreError::Start {
                cause: chain(error),
            },
        }
    }
}

/// A member of the group and its address.
fn peer(metrics: &ServerMetrics, id: u64) -> Option<Peer> {
    let node = metrics.membership_config.membership().get_node(&id)?;
    Some(Peer {
        id,
        address: node.addr.clone(),
    })
}

/// Announces changes of leadership.
pub(crate) struct Changes {
    metrics: watch::Receiver<ServerMetrics>,
    fresh: watch::Receiver<bool>,
}

impl Changes {
    /// Waits for the next one; for ever once the engine has stopped. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        let ended = tokio::select! {
            changed = self.metrics.changed() => changed.is_err(),
            changed = self.fresh.changed() => changed.is_err(),
        };
        if ended {
            std::future::pending::<()>().await;
        }
    }
}
