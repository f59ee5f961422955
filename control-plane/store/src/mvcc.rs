//! The versioned state: every key's versions, in one redb database.
//!
//! Watches the committed log entries ([`Machine::apply`]); changes `state.redb` without a sync
//! and, at a [`Machine::checkpoint`], with one; the watch hub and the lease keeper react to
//! what was applied.
//!
//! ```text
//!   latest       key            -> newest version          a get is one lookup
//!   history      (key, rev)     -> superseded version or tombstone
//!   changes      (rev, n)       -> which key rev touched   watches from the past, compaction
//!   leases       id             -> time to live
//!   lease_keys   (id, key)      -> ()
//!   meta         "state"        -> revision, compacted, last applied entry
//! ```
//! A version is stored once: in `latest` until it is superseded, then in `history` until it is
//! compacted. All tables change in one redb transaction per batch of entries, together with the
//! position of the last entry, so after a crash the log is replayed from exactly there.

pub(crate) mod apply;
pub(crate) mod compact;
pub(crate) mod history;
pub(crate) mod read;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
pub(crate) mod versions;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::{Database, Durability, ReadTransaction, ReadableDatabase, TableError, WriteTransaction};
use tokio::sync::watch;

use crate::error::StoreError;
use crate::key_value::{KeyValue, RangeRequest, RangeResponse, Revision};
use crate::lease::LeaseBook;
use crate::raft::snapshot::discard;
use crate::wal::frame::Position;
use crate::wal::sync_directory;
use crate::watch::hub::Hub;
use tables::{META, StateRow};

/// Newest format of `state.redb` this program writes and reads.
pub(crate) const FORMAT: u64 = 1;

/// The members of the Raft group as last applied; opaque here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredMembership {
    /// The entry that set it.
    pub(crate) position: Option<Position>,
    /// Encoded by the Raft side.
    pub(crate) body: Bytes,
}

/// The state machine of one member.
#[derive(Debug)]
pub(crate) struct Machine {
    /// `None` once closed, so that a forgotten watcher does not keep the file locked.
    database: RwLock<Option<Database>>,
    path: PathBuf,
    cache_bytes: usize,
    hub: Arc<Hub>,
    leases: Mutex<LeaseBook>,
    revision: AtomicU64,
    compacted: AtomicU64,
    /// Index of the last applied entry, plus one.
    applied: AtomicU64,
    /// The same, as far as it is on disk.
    durable: AtomicU64,
    /// Superseded versions remain that compaction has promised to remove.
    scrub: AtomicBool,
    /// Announces [`Machine::applied_next`].
    progress: watch::Sender<u64>,
    /// Index after the last entry of a snapshot that is about to be installed, or 0.
    installing: AtomicU64,
    /// Members that were removed.
    removed: Mutex<BTreeSet<u64>>,
    /// Held by whoever writes, so that a task waits instead of the thread.
    writer: tokio::sync::Mutex<()>,
}

impl Machine {
    /// Opens or creates the database at `path`.
    pub(crate) fn open(path: &Path, cache_bytes: usize, hub: Arc<Hub>) -> Result<Self, StoreError> {
        let database = open_database(path, cache_bytes)?;
        let machine = Self {
            database: RwLock::new(Some(database)),
            path: path.to_path_buf(),
            cache_bytes,
            hub,
            leases: Mutex::new(LeaseBook::default()),
            revision: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            scrub: AtomicBool::new(false),
            progress: watch::Sender::new(0),
            installing: AtomicU64::new(0),
            removed: Mutex::default(),
            writer: tokio::sync::Mutex::default(),
        };
        discard(&machine.incoming())?;
        machine.check_format()?;
        machine.reload()?;
        Ok(machine)
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> Revision {
        self.revision.load(Ordering::Acquire)
    }

    /// The oldest readable revision.
    pub(crate) fn compacted(&self) -> Revision {
        self.compacted.load(Ordering::Acquire)
    }

    /// Index after the last applied entry.
    pub(crate) fn applied_next(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Index after the last entry whose effect is on disk.
    pub(crate) fn durable_next(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Announces [`Machine::applied_next`].
    pub(crate) fn progress(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    /// Index after the last entry of the snapshot installed last.
    pub(crate) fn installed_next(&self) -> u64 {
        self.view()
            .and_then(|view| view.installed_next())
            .unwrap_or(0)
    }

    /// A snapshot up to before `next` is about to be installed; 0: none any more.
    pub(crate) fn expect_install(&self, next: u64) {
        self.installing.store(next, Ordering::Release);
        self.announce();
    }

    /// Index after the last entry of the snapshot that is about to be installed.
    pub(crate) fn installing(&self) -> u64 {
        self.installing.load(Ordering::Acquire)
    }

    /// Whether a member was removed from the group.
    pub(crate) fn is_removed(&self, id: u64) -> bool {
        self.removed.lock().contains(&id)
    }

    /// Where a snapshot is received.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.path.with_file_name("incoming.redb")
    }

    /// Held by whoever writes.
    pub(crate) fn writer(&self) -> &tokio::sync::Mutex<()> {
        &self.writer
    }

    fn announce(&self) {
        self.progress.send_replace(self.applied_next());
    }

    /// The leases.
    pub(crate) fn leases(&self) -> &Mutex<LeaseBook> {
        &self.leases
    }

    /// Where watchers subscribe.
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The database file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The last applied entry and the membership, as one consistent pair.
    pub(crate) fn applied_state(
        &self,
    ) -> Result<(Option<Position>, Option<StoredMembership>), StoreError> {
        let view = self.view()?;
        Ok((view.state()?.applied, view.membership()?))
    }

    /// A consistent view of the newest applied state.
    pub(crate) fn view(&self) -> Result<read::View, StoreError> {
        Ok(read::View::new(self.begin_read()?))
    }

    /// The newest version of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        self.view()?.get(key)
    }

    /// Reads a range.
    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        let newest_of_one = request.end.is_empty() && request.revision.is_none();
        if !newest_of_one || request.keys_only || request.count_only {
            return self.view()?.range(request);
        }
        // The most common read needs one table of the view instead of three. The revision from
        // before the view is one at which the key was as it is, or the key says a later one; a
        // watch from there misses nothing.
        let before = self.revision();
        let found = self.view()?.get(&request.start)?;
        Ok(RangeResponse {
            revision: found
                .as_ref()
                .map_or(before, |kv| kv.mod_revision.max(before)),
            count: found.is_some().into(),
            kvs: found.into_iter().collect(),
            more: false,
        })
    }

    /// Puts everything applied so far on disk.
    pub(crate) fn checkpoint(&self) -> Result<(), StoreError> {
        let txn = self.begin_write(Durability::Immediate)?;
        // Writers are excluded, so this is what the commit makes durable.
        let applied = self.applied_next();
        txn.commit()
            .map_err(|error| self.commit_error("checkpoint", error))?;
        self.durable.fetch_max(applied, Ordering::AcqRel);
        Ok(())
    }

    /// Takes over positions and leases from the database after it was opened or replaced.
    pub(crate) fn reload(&self) -> Result<(), StoreError> {
        let view = self.view()?;
        let state = view.state()?;
        let applied = state.applied.map_or(0, |position| position.index + 1);
        self.revision.store(state.revision, Ordering::Release);
        self.compacted.store(state.compacted, Ordering::Release);
        self.applied.store(applied, Ordering::Release);
        self.durable.store(applied, Ordering::Release);
        self.scrub.store(state.compacted > 0, Ordering::Release);
        let mut leases = LeaseBook::default();
        for (id, ttl) in view.leases()? {
            leases.grant(id, ttl);
        }
        *self.leases.lock() = leases;
        *self.removed.lock() = view.removed()?.into_iter().collect();
        self.hub.reset(state.revision);
        self.announce();
        Ok(())
    }

    /// Closes the database; everything fails with [`StoreError::Closed`] afterwards.
    pub(crate) fn close(&self) {
        drop(self.database.write().take());
    }

    /// Replaces everything by what a view, of another member's state, holds; durably.
    pub(crate) fn install(&self, view: &read::View) -> Result<(), StoreError> {
        let txn = self.begin_write(Durability::Immediate)?;
        tables::replace(&txn, view.txn()).map_err(|error| StoreError::Database {
            operation: "install snapshot",
            source: Box::new(error),
        })?;
        txn.commit()
            .map_err(|error| self.commit_error("install snapshot", error))?;
        self.reload()
    }

    /// Replaces everything by the complete state that was received at `from`. A crash leaves
    /// the old state or the new one.
    pub(crate) fn install_received(&self, from: &Path) -> Result<(), StoreError> {
        {
            let mut database = self.database.write();
            drop(database.take().ok_or(StoreError::Closed)?);
            std::fs::rename(from, &self.path)
                .map_err(|source| StoreError::io("install snapshot", &self.path, source))?;
            if let Some(directory) = self.path.parent() {
                sync_directory(directory)?;
            }
            *database = Some(open_database(&self.path, self.cache_bytes)?);
        }
        self.reload()
    }

    fn begin_read(&self) -> Result<ReadTransaction, StoreError> {
        let database = self.database.read();
        let database = database.as_ref().ok_or(StoreError::Closed)?;
        database
            .begin_read()
            .map_err(|error| StoreError::database("begin read", error))
    }

    fn begin_write(&self, durability: Durability) -> Result<WriteTransaction, StoreError> {
        let database = self.database.read();
        let database = database.as_ref().ok_or(StoreError::Closed)?;
        let failed = |error: redb::Error| StoreError::Database {
            operation: "begin write",
            source: Box::new(error),
        };
        let mut txn = database
            .begin_write()
            .map_err(|error| failed(error.into()))?;
        // Opening after a crash then needs no walk through the whole file.
        txn.set_quick_repair(matches!(durability, Durability::Immediate));
        txn.set_durability(durability)
            .map_err(|error| failed(error.into()))?;
        Ok(txn)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let failed = |error: redb::Error| StoreError::Database {
            operation: "read format",
            source: Box::new(error),
        };
        let txn = self.begin_read()?;
        let found = match txn.open_table(META) {
            Ok(meta) => meta
                .get("format")
                .map_err(|error| failed(error.into()))?
                .and_then(|row| <[u8; 8]>::try_from(row.value()).ok())
                .map(u64::from_le_bytes),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(failed(error.into())),
        };
        match found {
            Some(FORMAT) => Ok(()),
            Some(found) if found > FORMAT => Err(StoreError::FormatTooNew {
                path: self.path.clone(),
                found,
                supported: FORMAT,
            }),
            Some(found) => Err(StoreError::Corrupt {
                path: self.path.clone(),
                offset: None,
                detail: format!("format {found} never existed"),
                way_out: "restore the directory from a copy",
            }),
            None => {
                drop(txn);
                let txn = self.begin_write(Durability::Immediate)?;
                tables::create(&txn).map_err(failed)?;
                txn.commit()
                    .map_err(|error| self.commit_error("create tables", error))
            }
        }
    }

    fn commit_error(&self, operation: &'static str, error: redb::CommitError) -> StoreError {
        match error {
            redb::CommitError::Storage(redb::StorageError::Io(source)) => {
                StoreError::io(operation, &self.path, source)
            }
            error => StoreError::database(operation, error),
        }
    }

    fn publish_state(&self, state: &StateRow) {
        self.compacted.store(state.compacted, Ordering::Release);
        self.revision.store(state.revision, Ordering::Release);
        let applied = state.applied.map_or(0, |position| position.index + 1);
        self.applied.store(applied, Ordering::Release);
    }
}

fn open_database(path: &Path, cache_bytes: usize) -> Result<Database, StoreError> {
    Database::builder()
        .set_cache_size(cache_bytes)
        .create(path)
        .map_err(|error| open_error(path, error))
}

fn open_error(path: &Path, error: redb::DatabaseError) -> StoreError {
    let corrupt = |detail: String| StoreError::Corrupt {
        path: path.to_path_buf(),
        offset: None,
        detail,
        way_out: "restore the directory from a copy",
    };
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse {
            path: path.to_path_buf(),
        },
        redb::DatabaseError::Storage(redb::StorageError::Corrupted(detail)) => corrupt(detail),
        redb::DatabaseError::Storage(redb::StorageError::Io(source))
            if matches!(
                source.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
            ) =>
        {
            corrupt(source.to_string())
        }
        redb::DatabaseError::Storage(redb::StorageError::Io(source)) => {
            StoreError::io("open state database", path, source)
        }
        error => StoreError::database("open", error),
    }
}
