//! Replication: the only place that knows openraft.
//!
//! Watches proposals and other members; changes the log and, through committed entries, the
//! state machine; the proposer's callers react to the outcome. [`Engine`] is what the rest of
//! the store sees, and it speaks only of requests, outcomes and leadership.
//!
//! ```text
//!   propose ──▶ openraft core ──▶ log.rs ──▶ wal/      append, one sync
//!                    │ committed
//!                    └──────────▶ machine.rs ──▶ mvcc/ apply
//! ```
//! openraft syncs once per write it is given, so batching is done before it: the proposer
//! gathers what waits while the batch before is being synced (see [`propose`]).

pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod network;
pub(crate) mod propose;
#[cfg(test)]
mod suite;
pub(crate) mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, RaftError};
use openraft::metrics::RaftServerMetrics;
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use tokio::sync::watch;

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::failure::{Failure, chain};
use crate::keeper::Wake;
use crate::mvcc::Machine;
use log::LogStore;
use machine::Applier;
use network::Peers;
use types::TypeConfig;

/// How long a member that is the whole group may take to replay its log.
const REPLAY_LIMIT: Duration = Duration::from_mins(10);

/// One member of the Raft group.
#[derive(Clone)]
pub(crate) struct Engine {
    raft: Raft<TypeConfig>,
    node_id: u64,
    machine: Arc<Machine>,
    log: LogStore,
    failure: Arc<Failure>,
    /// This member leads and is the whole group: nobody else can have acknowledged anything.
    alone: Arc<AtomicBool>,
}

/// Who leads, as this member knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Leadership {
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
}

impl Engine {
    /// Starts the member. A member that is the whole group leads, and has applied its whole
    /// log, when this returns.
    pub(crate) async fn start(
        config: &StoreConfig,
        cluster_id: &str,
        log: LogStore,
        machine: Arc<Machine>,
        wake: Arc<Wake>,
        failure: Arc<Failure>,
    ) -> Result<Self, StoreError> {
        let start = |cause: String| StoreError::Start { cause };
        let raft_config = Config {
            cluster_name: cluster_id.to_owned(),
            // A group of one has nobody to send heartbeats to and elects itself below, so the
            // clock may tick slowly and nothing listens to it.
            heartbeat_interval: 30_000,
            election_timeout_min: 60_000,
            election_timeout_max: 90_000,
            enable_tick: false,
            // The keeper decides when to checkpoint; see `machine.rs` for what a snapshot is.
            snapshot_policy: SnapshotPolicy::Never,
            // Nobody follows, so nothing before a checkpoint is needed.
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let raft_config = raft_config
            .validate()
            .map_err(|error| start(chain(&error)))?;
        let applier = Applier::new(Arc::clone(&machine), wake, Arc::clone(&failure));
        let raft = Raft::new(
            config.node_id,
            Arc::new(raft_config),
            Peers,
            log.clone(),
            applier,
        )
        .await
        .map_err(|error| match failure.text() {
            Some(_) => failure.error(),
            None => start(chain(&error)),
        })?;
        let engine = Self {
            raft,
            node_id: config.node_id,
            machine,
            log,
            failure,
            alone: Arc::new(AtomicBool::new(false)),
        };
        engine.lead(&config.peer_address).await?;
        Ok(engine)
    }

    /// Forms the group if there is none, and leads it if it is this member alone.
    async fn lead(&self, address: &str) -> Result<(), StoreError> {
        let initialized = self
            .raft
            .is_initialized()
            .await
            .map_err(|error| self.stopped(&error))?;
        if !initialized {
            let member = BasicNode {
                addr: address.to_owned(),
            };
            self.raft
                .initialize(BTreeMap::from([(self.node_id, member)]))
                .await
                .map_err(|error| self.stopped(&error))?;
        }
        let metrics = self.raft.server_metrics().borrow().clone();
        if !self.is_whole_group(&metrics) {
            return Ok(());
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
        Ok(())
    }

    fn is_whole_group(&self, metrics: &RaftServerMetrics<u64, BasicNode>) -> bool {
        metrics.membership_config.voter_ids().eq([self.node_id])
    }

    /// Takes over who leads now.
    pub(crate) fn refresh(&self) -> Leadership {
        let metrics = self.raft.server_metrics().borrow().clone();
        let leads = metrics.current_leader == Some(self.node_id);
        self.alone
            .store(leads && self.is_whole_group(&metrics), Ordering::Release);
        Leadership {
            leader: metrics.current_leader,
            term: metrics.vote.leader_id().term,
        }
    }

    /// Announces when [`Engine::refresh`] may answer something else.
    pub(crate) fn changes(&self) -> Changes {
        Changes {
            receiver: self.raft.server_metrics(),
        }
    }

    /// Waits until the local state holds everything acknowledged before the call.
    pub(crate) async fn read_barrier(&self) -> Result<(), StoreError> {
        if self.alone.load(Ordering::Acquire) && self.failure.text().is_none() {
            return Ok(());
        }
        match self.raft.ensure_linearizable().await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                Err(StoreError::NotLeader {
                    leader: forward.leader_id,
                })
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                Err(StoreError::NotLeader { leader: None })
            }
            Err(RaftError::Fatal(_)) => Err(self.failure.error()),
        }
    }

    /// Puts the state on disk, then purges the log before it.
    pub(crate) async fn checkpoint(&self) -> Result<(), StoreError> {
        self.log.checkpointing();
        self.raft
            .trigger()
            .snapshot()
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

    /// Stops the engine's tasks. The state machine applies nothing afterwards.
    pub(crate) async fn stop(&self) {
        self.alone.store(false, Ordering::Release);
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

/// Announces changes of leadership.
pub(crate) struct Changes {
    receiver: watch::Receiver<RaftServerMetrics<u64, BasicNode>>,
}

impl Changes {
    /// Waits for the next one; for ever once the engine has stopped. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
