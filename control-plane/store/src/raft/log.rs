//! openraft's log storage over the write-ahead log.
//!
//! Watches what the core appends; changes the log; the core reacts when the sync is done. The
//! sync runs right here while nothing else could (a thread hop costs as much as the rest of a
//! put), and on its own thread while entries wait to be applied, so that syncing the next batch
//! and applying the last one overlap.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogId, LogState, OptionalSend, RaftLogReader, StorageIOError, Vote};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::group::Group;
use super::types::{
    RaftEntry, RaftStorageError, TypeConfig, decode_entry, encode_entry, log_id, position,
    storage_error,
};
use crate::error::StoreError;
use crate::failure::Failure;
use crate::health::{SyncHistogram, SyncRecorder};
use crate::keeper::Wake;
use crate::mvcc::Machine;
use crate::wal::frame::Position;
use crate::wal::{SyncTarget, Wal, frame};

/// Bytes of applied entries kept in memory for followers that are only a little behind.
const CACHED_BYTES: usize = 256 << 10;
/// Bytes read from the log at once, and sent to a follower in one message.
const READ_BYTES: usize = 1 << 20;

/// The log of this member, for openraft. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    shared: Arc<Shared>,
}

struct Shared {
    wal: Mutex<Wal>,
    /// The newest entries, consecutive; at least all that are not applied.
    cache: Mutex<Cache>,
    machine: Arc<Machine>,
    failure: Arc<Failure>,
    syncs: Arc<SyncRecorder>,
    syncer: mpsc::Sender<SyncJob>,
    wake: Arc<Wake>,
    group: Arc<Group>,
    checkpoint_bytes: u64,
    /// Index after the last entry known to be committed.
    committed_next: AtomicU64,
    /// Bytes in the log when the last checkpoint was asked for, counted from the start.
    written: AtomicU64,
    checkpointed: AtomicU64,
}

#[derive(Default)]
struct Cache {
    /// Each with its size in the log.
    entries: VecDeque<(RaftEntry, usize)>,
    bytes: usize,
}

impl Cache {
    fn first(&self) -> Option<u64> {
        self.entries.front().map(|(entry, _)| entry.log_id.index)
    }

    fn last(&self) -> Option<u64> {
        self.entries.back().map(|(entry, _)| entry.log_id.index)
    }

    fn push(&mut self, entry: RaftEntry, bytes: usize) {
        if self
            .last()
            .is_some_and(|last| last + 1 != entry.log_id.index)
        {
            self.entries.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
    }

    fn pop_first(&mut self) {
        if let Some((_, bytes)) = self.entries.pop_front() {
            self.bytes -= bytes;
        }
    }

    fn pop_last(&mut self) {
        if let Some((_, bytes)) = self.entries.pop_back() {
            self.bytes -= bytes;
        }
    }
}

struct SyncJob {
    target: SyncTarget,
    callback: LogFlushed<TypeConfig>,
}

impl LogStore {
    /// Takes over the recovered log.
    pub(crate) fn new(
        wal: Wal,
        machine: Arc<Machine>,
        failure: Arc<Failure>,
        wake: Arc<Wake>,
        group: Arc<Group>,
        checkpoint_bytes: u64,
    ) -> Result<Self, StoreError> {
        let (syncer, jobs) = mpsc::channel::<SyncJob>();
        let syncs = Arc::new(SyncRecorder::default());
        let context = (Arc::clone(&failure), Arc::clone(&syncs));
        thread::Builder::new()
            .name("pintle-sync".to_owned())
            .spawn(move || {
                let (failure, syncs) = context;
                // Ends when the log, and with it the sender, is dropped.
                for job in jobs {
                    job.callback
                        .log_io_completed(sync(&job.target, &failure, &syncs));
                }
            })
            .map_err(|source| StoreError::io("start thread", "pintle-sync", source))?;
        Ok(Self {
            shared: Arc::new(Shared {
                wal: Mutex::new(wal),
                cache: Mutex::default(),
                machine,
                failure,
                syncs,
                syncer,
                wake,
                group,
                checkpoint_bytes,
                committed_next: AtomicU64::new(0),
                written: AtomicU64::new(0),
                checkpointed: AtomicU64::new(0),
            }),
        })
    }

    /// Last entry in the log.
    pub(crate) fn last_index(&self) -> u64 {
        self.shared.wal.lock().last().map_or(0, |last| last.index)
    }

    /// The last entry, or the last one purged when there is none.
    pub(crate) fn last_position(&self) -> Option<Position> {
        self.shared.wal.lock().last()
    }

    /// The first entry to be kept so that about `bytes` of log are.
    pub(crate) fn keep_from(&self, bytes: u64) -> u64 {
        self.shared.wal.lock().keep_from(bytes)
    }

    /// How long syncs took.
    pub(crate) fn syncs(&self) -> SyncHistogram {
        self.shared.syncs.snapshot()
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.wal.lock().bytes()
    }

    /// Bytes written since a checkpoint was last asked for.
    pub(crate) fn bytes_since_checkpoint(&self) -> u64 {
        let written = self.shared.written.load(Ordering::Relaxed);
        written.saturating_sub(self.shared.checkpointed.load(Ordering::Relaxed))
    }

    /// A checkpoint is being asked for.
    pub(crate) fn checkpointing(&self) {
        let written = self.shared.written.load(Ordering::Relaxed);
        self.shared.checkpointed.store(written, Ordering::Relaxed);
    }

    fn fail(
        &self,
        wrap: impl FnOnce(openraft::AnyError) -> StorageIOError<u64>,
        error: &StoreError,
    ) -> RaftStorageError {
        self.shared.failure.report(error);
        storage_error(wrap, error)
    }

    fn read(&self, start: u64, end: u64, max_bytes: usize) -> Result<Vec<RaftEntry>, StoreError> {
        let mut entries = Vec::new();
        let mut next = start;
        let cached = self.shared.cache.lock().first().unwrap_or(u64::MAX);
        while next < end.min(cached) {
            let read = self
                .shared
                .wal
                .lock()
                .read(next, end.min(cached), max_bytes)?;
            let Some(last) = read.last() else { break };
            next = last.position.index + 1;
            for entry in read {
                entries.push(decode_entry(entry)?);
            }
            if max_bytes < usize::MAX {
                return Ok(entries);
            }
        }
        let cache = self.shared.cache.lock();
        if let Some(first) = cache.first()
            && next.max(first) < end
        {
            let skip = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
            let wanted = cache.entries.iter().skip(skip).map(|(entry, _)| entry);
            entries.extend(wanted.take_while(|entry| entry.log_id.index < end).cloned());
        }
        Ok(entries)
    }
}

fn sync(target: &SyncTarget, failure: &Failure, syncs: &SyncRecorder) -> io::Result<()> {
    let started = Instant::now();
    let result = target.sync();
    syncs.record(started.elapsed());
    result.map_err(|error| {
        failure.report(&error);
        io::Error::other(error)
    })
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntry>, RaftStorageError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start, end, usize::MAX)
            .map_err(|error| self.fail(StorageIOError::read_logs, &error))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<RaftEntry>, RaftStorageError> {
        self.read(start, end, READ_BYTES)
            .map_err(|error| self.fail(StorageIOError::read_logs, &error))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, RaftStorageError> {
        let wal = self.shared.wal.lock();
        Ok(LogState {
            last_purged_log_id: wal.purged().map(log_id),
            last_log_id: wal.last().map(log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), RaftStorageError> {
        let vote = frame::Vote {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        };
        let saved = self.shared.wal.lock().save_vote(vote);
        saved.map_err(|error| self.fail(StorageIOError::write_vote, &error))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, RaftStorageError> {
        Ok(self.shared.wal.lock().vote().map(|vote| {
            if vote.committed {
                Vote::new_committed(vote.term, vote.node)
            } else {
                Vote::new(vote.term, vote.node)
            }
        }))
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<u64>>,
    ) -> Result<(), RaftStorageError> {
        let index = committed.map(|committed| committed.index);
        self.shared.wal.lock().set_committed(index);
        let next = index.map_or(0, |index| index + 1);
        self.shared
            .committed_next
            .fetch_max(next, Ordering::Release);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, RaftStorageError> {
        Ok(self.shared.wal.lock().committed().map(log_id))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), RaftStorageError>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let shared = &self.shared;
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        let (target, sizes) = {
            let encoded: Result<Vec<_>, _> = entries.iter().map(encode_entry).collect();
            let encoded = encoded.map_err(|error| self.fail(StorageIOError::write_logs, &error))?;
            let sizes: Vec<usize> = encoded.iter().map(frame::Entry::bytes).collect();
            let mut wal = shared.wal.lock();
            let before = wal.bytes();
            wal.append(encoded)
                .map_err(|error| self.fail(StorageIOError::write_logs, &error))?;
            let written = wal.bytes().saturating_sub(before);
            shared.written.fetch_add(written, Ordering::Relaxed);
            (wal.sync_target(), sizes)
        };
        if self.bytes_since_checkpoint() >= shared.checkpoint_bytes {
            shared.wake.now();
        }
        let applied = shared.machine.applied_next();
        {
            let mut cache = shared.cache.lock();
            for (entry, bytes) in entries.into_iter().zip(sizes) {
                if let EntryPayload::Normal(proposal) = &entry.payload {
                    proposal.appended();
                }
                cache.push(entry, bytes);
            }
            while cache.bytes > CACHED_BYTES && cache.first().is_some_and(|first| first < applied) {
                cache.pop_first();
            }
        }
        // Among others, heartbeats must not wait for the disk.
        let apart =
            applied < shared.committed_next.load(Ordering::Acquire) || shared.group.has_peers();
        #[cfg(test)]
        let apart = apart && !shared.group.sync_here;
        if apart {
            let job = SyncJob { target, callback };
            if let Err(mpsc::SendError(job)) = shared.syncer.send(job) {
                let result = sync(&job.target, &shared.failure, &shared.syncs);
                job.callback.log_io_completed(result);
            }
        } else {
            callback.log_io_completed(sync(&target, &shared.failure, &shared.syncs));
        }
        Ok(())
    }

    async fn truncate(&mut self, since: LogId<u64>) -> Result<(), RaftStorageError> {
        let truncated = self.shared.wal.lock().truncate(since.index);
        truncated.map_err(|error| self.fail(StorageIOError::write_logs, &error))?;
        let mut cache = self.shared.cache.lock();
        while cache.last().is_some_and(|last| last >= since.index) {
            cache.pop_last();
        }
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<(), RaftStorageError> {
        let shared = &self.shared;
        let machine = &shared.machine;
        if machine.installing() > upto.index {
            // openraft purges what a snapshot replaces while that is being installed. A crash
            // must not find the log gone and the old state.
            let mut progress = machine.progress();
            let installed = progress
                .wait_for(|applied| *applied > upto.index || machine.installing() <= upto.index);
            drop(installed.await);
            if machine.applied_next() <= upto.index {
                return Err(storage_error(
                    StorageIOError::write_logs,
                    &shared.failure.error(),
                ));
            }
        }
        // The log may go only where the state on disk takes its place.
        if machine.durable_next() <= upto.index && machine.durable_next() < machine.applied_next() {
            let _writer = machine.writer().lock().await;
            machine
                .checkpoint()
                .map_err(|error| self.fail(StorageIOError::write_state_machine, &error))?;
        }
        let purged = shared.wal.lock().purge(position(upto));
        purged.map_err(|error| self.fail(StorageIOError::write_logs, &error))?;
        let mut cache = shared.cache.lock();
        while cache.first().is_some_and(|first| first <= upto.index) {
            cache.pop_first();
        }
        Ok(())
    }
}
