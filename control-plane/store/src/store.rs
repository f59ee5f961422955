//! The store as others see it, and the thread it runs on.
//!
//! Watches calls; hands writes to the proposer and reads to the state machine. Everything that
//! writes - proposer, openraft's tasks, state machine, keeper - runs on one thread of its own:
//! a put crosses threads twice, and a slow disk never blocks the callers' runtime.

#[cfg(test)]
mod crash;
#[cfg(test)]
mod group;
#[cfg(test)]
mod linearizable;
#[cfg(test)]
mod nested;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::StoreConfig;
use crate::data_dir::DataDir;
use crate::error::{Rejection, StoreError};
use crate::failure::{Failure, chain};
use crate::health::StoreHealth;
use crate::keeper::{Keeper, Wake};
use crate::key_value::{
    KeyValue, LeaseId, LeaseState, RangeRequest, RangeResponse, Revision, Txn, TxnResponse,
};
use crate::mvcc::Machine;
use crate::mvcc::apply::{MAX_TXN_BYTES, validate};
use crate::mvcc::versions::Versions;
use crate::raft::group::Group;
use crate::raft::inbox::PeerService;
use crate::raft::log::LogStore;
use crate::raft::members::Member;
use crate::raft::message::MemberChange;
use crate::raft::propose::{self, Proposer, Submitter};
use crate::raft::transport::{Transport, Unconnected};
use crate::raft::{Engine, Leadership, Start, pulse};
use crate::request::{Reply, Request, size_hint};
use crate::wal::Wal;
use crate::watch::hub::{Hub, HubLimits};
use crate::watch::{WatchRequest, Watcher};

/// Pause before the group is told this member's address again.
const ADDRESS_RETRY: Duration = Duration::from_secs(2);

/// One open member of the store. Clones share it; the last one to go closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    cluster_id: String,
    engine: Engine,
    machine: Arc<Machine>,
    submitter: Submitter,
    leadership: watch::Receiver<Leadership>,
    leads: watch::Receiver<bool>,
    stop: CancellationToken,
    /// Turns true when the thread has let go of the data directory.
    stopped: watch::Receiver<bool>,
}

impl Store {
    /// Opens the data directory of a member that is alone in its group, as
    /// [`Store::open_with`] without a way to others.
    pub async fn open(config: StoreConfig) -> Result<Self, StoreError> {
        Self::open_with(config, Arc::new(Unconnected)).await
    }

    /// Opens the data directory, recovers, and returns when this member can serve: every
    /// write acknowledged before a crash is readable again. One member of several serves what
    /// it has; [`Store::linearizable`] waits for a leader.
    pub async fn open_with(
        config: StoreConfig,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, StoreError> {
        let (ready, opened) = oneshot::channel();
        let stop = CancellationToken::new();
        let (stopped, is_stopped) = watch::channel(false);
        let thread_stop = stop.clone();
        // If the caller goes away while the store opens, it closes again.
        let guard = stop.clone().drop_guard();
        thread::Builder::new()
            .name("pintle-store".to_owned())
            .spawn(move || {
                run_thread(config, transport, thread_stop, is_stopped, ready);
                stopped.send_replace(true);
            })
            .map_err(|source| StoreError::io("start thread", "pintle-store", source))?;
        let inner = opened.await.unwrap_or(Err(StoreError::Closed))?;
        guard.disarm();
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Stops, with a last checkpoint, and releases the data directory. Later calls answer
    /// [`StoreError::Closed`].
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        let mut stopped = self.inner.stopped.clone();
        // An error means that the thread is gone, which is as good.
        drop(stopped.wait_for(|stopped| *stopped).await);
    }

    /// The cluster this data belongs to.
    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster_id
    }

    /// The newest revision applied here.
    pub fn revision(&self) -> Revision {
        self.inner.machine.revision()
    }

    /// The oldest revision that can be read.
    pub fn compacted_revision(&self) -> Revision {
        self.inner.machine.compacted()
    }

    /// The newest version of `key`, from the local state. Cheap enough for async context.
    pub fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        self.inner.machine.get(key)
    }

    /// The version of `key` at `revision`.
    pub fn get_at(&self, key: &[u8], revision: Revision) -> Result<Option<KeyValue>, StoreError> {
        let request = RangeRequest {
            revision: Some(revision),
            ..RangeRequest::key(key.to_vec())
        };
        Ok(self.inner.machine.range(&request)?.kvs.pop())
    }

    /// Reads a range of the local state, consistent at one revision.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        self.inner.machine.range(request)
    }

    /// CRC32C of every key and version at a revision, and that revision; the same on every member
    /// that has it. Reads everything: not for async context.
    pub fn hash(&self, revision: Option<Revision>) -> Result<(u32, Revision), StoreError> {
        self.inner.machine.view()?.hash(revision)
    }

    /// Every kept version of the keys in `start..end`, as of the newest revision, in the order they
    /// were written. Reads everything: not for async context. Ends with [`StoreError::Closed`]
    /// once `wanted` says no.
    pub fn versions(
        &self,
        start: &[u8],
        end: &[u8],
        wanted: &dyn Fn() -> bool,
    ) -> Result<Versions, StoreError> {
        self.inner.machine.versions(start, end, wanted)
    }

    /// Waits until the local state holds everything acknowledged anywhere before the call,
    /// and answers its revision.
    pub async fn linearizable(&self) -> Result<Revision, StoreError> {
        self.inner.engine.read_barrier().await?;
        Ok(self.revision())
    }

    /// Runs a transaction. When it returns, its writes are on disk, readable and announced.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        validate(&txn)?;
        if !txn.writes() {
            self.inner.engine.read_barrier().await?;
            return self.inner.machine.view()?.read_txn(&txn);
        }
        let request = Request::Txn(txn);
        let bytes = size_hint(&request);
        if bytes > MAX_TXN_BYTES {
            return Err(StoreError::Rejected(Rejection::TooLarge {
                bytes,
                limit: MAX_TXN_BYTES,
            }));
        }
        match self.submit(request).await? {
            Reply::Txn(response) => Ok(response),
            Reply::Done => Err(StoreError::Failed {
                cause: "a transaction was answered without a result".to_owned(),
            }),
        }
    }

    /// Starts a watch.
    pub fn watch(&self, request: WatchRequest) -> Result<Watcher, StoreError> {
        Watcher::start(&self.inner.machine, request)
    }

    /// Has every watcher that asked for bookmarks learn, after what it is still to see, that it
    /// has seen everything up to the revision this answers.
    pub fn bookmark_watchers(&self) -> Revision {
        self.inner.machine.hub().progress()
    }

    /// Forgets the versions superseded at or before `revision`. Space is freed afterwards.
    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.submit(Request::Compact(revision)).await.map(drop)
    }

    /// Makes a lease; keys put with it are deleted when it ends. `id` 0 picks one from the upper
    /// half of the numbers; the lower half is left to those who choose their own.
    pub async fn grant_lease(&self, id: LeaseId, ttl: Duration) -> Result<LeaseId, StoreError> {
        let id = if id == 0 {
            rand::random_range(1 << 63..LeaseId::MAX)
        } else {
            id
        };
        let ttl_millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.submit(Request::LeaseGrant { id, ttl_millis }).await?;
        Ok(id)
    }

    /// Ends a lease and deletes its keys.
    pub async fn revoke_lease(&self, id: LeaseId) -> Result<(), StoreError> {
        self.submit(Request::LeaseRevoke { id }).await.map(drop)
    }

    /// Starts the lease's time anew, on the leader; answers the time to live.
    pub async fn keep_lease_alive(&self, id: LeaseId) -> Result<Duration, StoreError> {
        let kept = self.inner.engine.keep_alive(id).await?;
        kept.ok_or(StoreError::Rejected(Rejection::LeaseNotFound { id }))
    }

    /// What is known of a lease: on the leader how long it still lives, on others its full
    /// time to live.
    pub fn lease(&self, id: LeaseId) -> Option<LeaseState> {
        let leases = self.inner.machine.leases().lock();
        let (ttl, left) = leases.time_to_live(id, Instant::now())?;
        Some(LeaseState { ttl, left })
    }

    /// The keys bound to a lease, in order.
    pub fn lease_keys(&self, id: LeaseId) -> Result<Vec<Bytes>, StoreError> {
        self.inner.machine.view()?.lease_keys(id)
    }

    /// All leases, in order.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.inner.machine.leases().lock().ids()
    }

    /// This member's id.
    pub fn member_id(&self) -> u64 {
        self.inner.engine.node_id()
    }

    /// The Raft term.
    pub fn term(&self) -> u64 {
        self.inner.leadership.borrow().term
    }

    /// Bytes the state database takes on disk.
    pub fn state_bytes(&self) -> Result<u64, StoreError> {
        let path = self.inner.machine.path();
        std::fs::metadata(path)
            .map(|file| file.len())
            .map_err(|source| StoreError::io("look at", path, source))
    }

    /// The members of the group, as this one knows them.
    pub fn members(&self) -> Vec<Member> {
        self.inner.engine.members()
    }

    /// Adds a member that follows and does not vote, or gives a member another address. It gets
    /// the log or a snapshot at once; [`Store::promote`] makes it a voter.
    pub async fn add_learner(&self, id: u64, address: &str) -> Result<(), StoreError> {
        let address = address.to_owned();
        self.change(MemberChange::Learner { id, address }).await
    }

    /// Adds a new member that does not vote yet, and answers the id it must be started with.
    pub async fn add_member(&self, address: &str) -> Result<u64, StoreError> {
        // At random, so that two that are added at once do not get the same.
        let id = u64::from(rand::random_range(2..=u32::MAX));
        self.add_learner(id, address).await?;
        Ok(id)
    }

    /// Makes this member known under `address`, should the group have another for it.
    pub async fn advertise(&self, address: &str) -> Result<(), StoreError> {
        self.inner.engine.advertise(address).await
    }

    /// Makes a learner a voter once it has caught up, for which it waits a little.
    pub async fn promote(&self, id: u64) -> Result<(), StoreError> {
        self.change(MemberChange::Promote { id }).await
    }

    /// Removes a member for ever; the leader hands over first. What it still sends is refused.
    pub async fn remove_member(&self, id: u64) -> Result<(), StoreError> {
        self.change(MemberChange::Remove { id }).await
    }

    async fn change(&self, change: MemberChange) -> Result<(), StoreError> {
        if *self.inner.stopped.borrow() {
            return Err(StoreError::Closed);
        }
        self.inner.engine.change(&change).await
    }

    /// What answers the messages of other members; see [`serve_peers`](crate::serve_peers).
    pub fn peer_service(&self) -> PeerService {
        self.inner.engine.service()
    }

    /// Whether this member leads; changes are announced on the receiver.
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.inner.leads.clone()
    }

    /// How this member is doing.
    pub fn health(&self) -> StoreHealth {
        let inner = &self.inner;
        let leadership = *inner.leadership.borrow();
        let log = inner.engine.log();
        StoreHealth {
            node_id: inner.engine.node_id(),
            leader: leadership.leader,
            members: inner.engine.members().len(),
            term: leadership.term,
            log_index: log.last_index(),
            applied_index: inner.machine.applied_next().saturating_sub(1),
            durable_index: inner.machine.durable_next().saturating_sub(1),
            revision: inner.machine.revision(),
            compacted_revision: inner.machine.compacted(),
            log_bytes: log.bytes(),
            watchers: inner.machine.hub().watchers(),
            sync: log.syncs(),
            refused: inner.engine.group().refusal(),
            failure: inner.engine.failure().text(),
        }
    }

    async fn submit(&self, request: Request) -> Result<Reply, StoreError> {
        self.inner
            .submitter
            .submit(request)
            .await?
            .map_err(StoreError::rejected)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("cluster_id", &self.inner.cluster_id)
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type Ready = oneshot::Sender<Result<Inner, StoreError>>;

/// The store's thread.
fn run_thread(
    config: StoreConfig,
    transport: Arc<dyn Transport>,
    stop: CancellationToken,
    stopped: watch::Receiver<bool>,
    ready: Ready,
) {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            let error = StoreError::io("start runtime", "pintle-store", source);
            drop(ready.send(Err(error)));
            return;
        }
    };
    runtime.block_on(async move {
        let running =
            match Running::start(&config, transport, Group::default(), stop, stopped).await {
                Ok((running, inner)) => {
                    // Nobody waits any more: the stop token was cancelled with that.
                    drop(ready.send(Ok(inner)));
                    running
                }
                Err(error) => {
                    drop(ready.send(Err(error)));
                    return;
                }
            };
        running.run().await;
    });
}

/// What the thread owns.
struct Running {
    engine: Engine,
    proposer: Proposer,
    keeper: Keeper,
    leadership: watch::Receiver<Leadership>,
    leads: watch::Sender<bool>,
    stop: CancellationToken,
    /// Where other members reach this one.
    address: String,
    /// Dropped last: it holds the lock.
    data_dir: DataDir,
}

impl Running {
    async fn start(
        config: &StoreConfig,
        transport: Arc<dyn Transport>,
        group: Group,
        stop: CancellationToken,
        stopped: watch::Receiver<bool>,
    ) -> Result<(Self, Inner), StoreError> {
        let data_dir = DataDir::open(config)?;
        let config = &StoreConfig {
            node_id: data_dir.identity().node_id,
            ..config.clone()
        };
        let group = Arc::new(group);
        let failure = Arc::new(Failure::default());
        let wake = Arc::new(Wake::default());
        let hub = Arc::new(Hub::new(HubLimits {
            ring_events: config.watch_ring_events,
            ring_bytes: config.watch_ring_bytes,
            buffer: config.watch_buffer,
        }));
        let salvage = data_dir.salvage();
        let wal = Wal::open(&data_dir.wal(), config.segment_bytes, salvage)?;
        let machine = Arc::new(Machine::open(&data_dir.state(), config.cache_bytes, hub)?);
        check_agreement(&data_dir, &wal, &machine, salvage)?;
        if salvage {
            data_dir.salvaged()?;
        }
        let log = LogStore::new(
            wal,
            Arc::clone(&machine),
            Arc::clone(&failure),
            Arc::clone(&wake),
            Arc::clone(&group),
            config.checkpoint_bytes,
        )?;
        let cluster_id = data_dir.identity().cluster_id.clone();
        let engine = Engine::start(Start {
            config,
            cluster_id: &cluster_id,
            joins: data_dir.identity().joined,
            log,
            machine: Arc::clone(&machine),
            wake: Arc::clone(&wake),
            failure,
            group,
            transport,
        })
        .await?;
        let (submitter, proposer) = propose::queue();
        let now = engine.refresh();
        let (leadership_sender, leadership) = watch::channel(now);
        let (leads, is_leader) = watch::channel(now.leads);
        let keeper = Keeper::new(
            engine.clone(),
            submitter.clone(),
            Arc::clone(&wake),
            leadership_sender,
            config,
        );
        let inner = Inner {
            cluster_id,
            engine: engine.clone(),
            machine,
            submitter,
            leadership: leadership.clone(),
            leads: is_leader,
            stop: stop.clone(),
            stopped,
        };
        let running = Self {
            engine,
            proposer,
            keeper,
            leadership,
            leads,
            stop,
            address: config.peer_address.clone(),
            data_dir,
        };
        Ok((running, inner))
    }

    async fn run(self) {
        let Self {
            engine,
            proposer,
            keeper,
            mut leadership,
            leads,
            stop,
            address,
            data_dir,
        } = self;
        let announce = async {
            while leadership.changed().await.is_ok() {
                let now = leadership.borrow_and_update().leads;
                leads.send_if_modified(|seen| std::mem::replace(seen, now) != now);
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = proposer.run(&engine) => {}
            () = keeper.run() => {}
            () = announce => {}
            () = pulse::run(engine.clone()) => {}
            () = announce_address(&engine, &address) => {}
        }
        leads.send_replace(false);
        #[cfg(test)]
        let crashed = engine
            .group()
            .crashed
            .load(std::sync::atomic::Ordering::SeqCst);
        #[cfg(not(test))]
        let crashed = false;
        engine.stop().await;
        let machine = engine.machine();
        machine.hub().close();
        if !crashed
            && engine.failure().text().is_none()
            && machine.durable_next() < machine.applied_next()
            && let Err(error) = machine.checkpoint()
        {
            // Nothing is lost: the log has it.
            tracing::warn!(error = chain(&error), "the last checkpoint failed");
        }
        machine.close();
        drop(data_dir);
    }
}

/// Makes the group know this member's address, should it have changed; then waits for ever.
async fn announce_address(engine: &Engine, address: &str) {
    while let Err(error) = engine.advertise(address).await {
        tracing::debug!(
            error = chain(&error),
            "the group does not know this address yet"
        );
        tokio::time::sleep(ADDRESS_RETRY).await;
    }
    std::future::pending::<()>().await;
}

/// The log and the state must belong together: the state on disk never runs ahead of the log,
/// and the log never starts after it.
fn check_agreement(
    data_dir: &DataDir,
    wal: &Wal,
    machine: &Machine,
    salvage: bool,
) -> Result<(), StoreError> {
    let applied = machine.applied_next();
    let log_next = wal.last().map_or(0, |last| last.index + 1);
    let purged_next = wal.purged().map_or(0, |purged| purged.index + 1);
    if applied < purged_next {
        return Err(StoreError::Corrupt {
            path: machine.path().to_path_buf(),
            offset: None,
            detail: format!(
                "it holds entries up to {applied}, and the log starts only at {purged_next}"
            ),
            way_out: "restore the directory from a copy",
        });
    }
    // Until the log is purged after a snapshot was installed it ends before the state.
    if log_next < applied && log_next >= machine.installed_next() && !salvage {
        return Err(StoreError::Corrupt {
            path: data_dir.wal(),
            offset: None,
            detail: format!(
                "the log ends before entry {log_next}, and the state holds entries up to {applied}"
            ),
            way_out: "restore the directory from a copy, or create an empty file named \
                `salvage` beside it and start again to go on from the state",
        });
    }
    Ok(())
}
