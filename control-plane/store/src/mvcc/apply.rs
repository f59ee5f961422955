//! Applying committed entries: the deterministic core.
//!
//! Watches the entries the Raft engine hands over; changes every table in one transaction and
//! then announces the events. The same entries give the same tables on every member: no clock,
//! no randomness, no I/O other than the tables.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use redb::{Durability, ReadableTable, Table, WriteTransaction};

use super::read::{all_hold, check_revision, encode_membership, end_of, range};
use super::tables::{
    CHANGE_DELETE, CHANGE_PUT, CHANGES, HISTORY, LATEST, LEASE_KEYS, LEASES, META, REMOVED,
    StateRow, TOMBSTONE, VersionHead, corrupted, ids,
};
use super::{Machine, StoredMembership};
use crate::error::{Rejection, StoreError};
use crate::key_value::{
    ALL_KEYS_END, KeyValue, LeaseId, Op, OpResponse, Revision, Txn, TxnResponse,
};
use crate::request::{MAX_DEPTH, Outcome, Reply, Request};
use crate::wal::frame::Position;
use crate::watch::hub::Change;
use crate::watch::{EventKind, WatchEvent};

/// Longest key.
pub(crate) const MAX_KEY_BYTES: usize = 4096;
/// Largest transaction.
pub(crate) const MAX_TXN_BYTES: usize = 16 << 20;

/// A committed entry, decoded.
#[derive(Debug)]
pub(crate) enum Command {
    /// Nothing but a new position.
    Blank,
    /// The group's members changed; those that left never come back.
    Membership { body: Bytes, removed: Vec<u64> },
    /// Requests, in order.
    Requests(Arc<[Request]>),
}

impl Machine {
    /// Applies entries in order and answers, per entry, one outcome per request. Not on disk
    /// before the next checkpoint; the log is.
    pub(crate) fn apply(
        &self,
        entries: Vec<(Position, Command)>,
    ) -> Result<Vec<Vec<Outcome>>, StoreError> {
        let mut effects = Effects::default();
        let mut outcomes = Vec::with_capacity(entries.len());
        let failed = |error: redb::Error| StoreError::Database {
            operation: "apply",
            source: Box::new(error),
        };
        let txn = self.begin_write(Durability::None)?;
        let state = {
            let mut batch = Batch::open(&txn).map_err(failed)?;
            for (position, command) in entries {
                outcomes.push(
                    batch
                        .entry(position, command, &mut effects)
                        .map_err(failed)?,
                );
            }
            batch.close().map_err(failed)?
        };
        txn.commit()
            .map_err(|error| self.commit_error("apply", error))?;
        self.publish_state(&state);
        if effects.compacted {
            self.scrub.store(true, Ordering::Release);
        }
        self.removed.lock().extend(effects.removed);
        if !effects.leases.is_empty() {
            let mut leases = self.leases.lock();
            for change in effects.leases {
                match change {
                    LeaseChange::Granted(id, ttl) => leases.grant(id, ttl),
                    LeaseChange::Ended(id) => leases.end(id),
                }
            }
        }
        self.hub.publish(effects.changes);
        self.announce();
        Ok(outcomes)
    }
}

/// What others are told after the commit.
#[derive(Debug, Default)]
struct Effects {
    changes: Vec<Arc<Change>>,
    leases: Vec<LeaseChange>,
    compacted: bool,
    removed: Vec<u64>,
}

#[derive(Debug)]
enum LeaseChange {
    Granted(LeaseId, Duration),
    Ended(LeaseId),
}

/// The tables of one write transaction.
struct Batch<'txn> {
    latest: Table<'txn, &'static [u8], &'static [u8]>,
    history: Table<'txn, (&'static [u8], u64), &'static [u8]>,
    changes: Table<'txn, (u64, u32), &'static [u8]>,
    leases: Table<'txn, u64, u64>,
    lease_keys: Table<'txn, (u64, &'static [u8]), ()>,
    meta: Table<'txn, &'static str, &'static [u8]>,
    state: StateRow,
}

type Applied<T> = Result<T, redb::Error>;

/// Which branches a transaction takes: its own, and those of the transactions inside that
/// branch, in order.
#[derive(Debug, Default)]
struct Path {
    succeeded: bool,
    inner: Vec<Path>,
}

impl<'txn> Batch<'txn> {
    fn open(txn: &'txn WriteTransaction) -> Applied<Self> {
        let meta = txn.open_table(META)?;
        let state = StateRow::load(&meta)?;
        Ok(Self {
            latest: txn.open_table(LATEST)?,
            history: txn.open_table(HISTORY)?,
            changes: txn.open_table(CHANGES)?,
            leases: txn.open_table(LEASES)?,
            lease_keys: txn.open_table(LEASE_KEYS)?,
            meta,
            state,
        })
    }

    fn close(mut self) -> Applied<StateRow> {
        self.meta.insert("state", self.state.encode().as_slice())?;
        Ok(self.state)
    }

    fn entry(
        &mut self,
        position: Position,
        command: Command,
        effects: &mut Effects,
    ) -> Applied<Vec<Outcome>> {
        let outcomes = match command {
            Command::Blank => Vec::new(),
            Command::Membership { body, removed } => {
                if !removed.is_empty() {
                    let mut all = ids(&self.meta, REMOVED)?;
                    all.extend(&removed);
                    all.sort_unstable();
                    all.dedup();
                    let row: Vec<u8> = all.iter().flat_map(|id| id.to_le_bytes()).collect();
                    self.meta.insert(REMOVED, row.as_slice())?;
                    effects.removed.extend(removed);
                }
                let row = encode_membership(&StoredMembership {
                    position: Some(position),
                    body,
                });
                self.meta.insert("membership", row.as_slice())?;
                Vec::new()
            }
            Command::Requests(requests) => requests
                .iter()
                .map(|request| self.request(request, effects))
                .collect::<Applied<Vec<Outcome>>>()?,
        };
        self.state.applied = Some(position);
        Ok(outcomes)
    }

    fn request(&mut self, request: &Request, effects: &mut Effects) -> Applied<Outcome> {
        match request {
            Request::Txn(txn) => self.txn(txn, effects),
            Request::Compact(revision) => Ok(self.compact(*revision, effects)),
            Request::LeaseGrant { id, ttl_millis } => {
                if self.leases.get(*id)?.is_some() {
                    return Ok(Err(Rejection::LeaseExists { id: *id }));
                }
                self.leases.insert(*id, *ttl_millis)?;
                let ttl = Duration::from_millis(*ttl_millis);
                effects.leases.push(LeaseChange::Granted(*id, ttl));
                Ok(Ok(Reply::Done))
            }
            Request::LeaseRevoke { id } => self.revoke(*id, effects),
        }
    }

    fn compact(&mut self, revision: Revision, effects: &mut Effects) -> Outcome {
        if revision <= self.state.compacted && self.state.compacted > 0 {
            return Err(Rejection::Compacted {
                requested: revision,
                compacted: self.state.compacted,
            });
        }
        if revision > self.state.revision {
            return Err(Rejection::FutureRevision {
                requested: revision,
                current: self.state.revision,
            });
        }
        self.state.compacted = revision;
        effects.compacted = true;
        Ok(Reply::Done)
    }

    fn revoke(&mut self, id: LeaseId, effects: &mut Effects) -> Applied<Outcome> {
        if self.leases.remove(id)?.is_none() {
            return Ok(Err(Rejection::LeaseNotFound { id }));
        }
        let mut keys = Vec::new();
        for row in self
            .lease_keys
            .range((id, &[][..])..(id.saturating_add(1), &[][..]))?
        {
            let (at, _) = row?;
            keys.push(at.value().1.to_vec());
        }
        let mut change = Change::new(self.state.revision + 1);
        for key in keys {
            self.delete_key(&key, &mut change)?;
        }
        self.finish(change, effects);
        effects.leases.push(LeaseChange::Ended(id));
        Ok(Ok(Reply::Done))
    }

    fn txn(&mut self, txn: &Txn, effects: &mut Effects) -> Applied<Outcome> {
        if let Err(rejection) = validate(txn) {
            return Ok(Err(rejection));
        }
        let path = match self.choose(txn)? {
            Ok(path) => path,
            Err(rejection) => return Ok(Err(rejection)),
        };
        // From here on nothing is refused, so that a transaction is all or nothing.
        let mut change = Change::new(self.state.revision + 1);
        let response = self.run(txn, path, &mut change)?;
        self.finish(change, effects);
        Ok(Ok(Reply::Txn(response)))
    }

    /// Decides all conditions, and what depends on the state and could refuse a branch, before
    /// anything is written.
    fn choose(&self, txn: &Txn) -> Applied<Result<Path, Rejection>> {
        let succeeded = all_hold(&self.latest, &txn.compares)?;
        let mut inner = Vec::new();
        for op in txn.branch(succeeded) {
            let refused = match op {
                Op::Put { lease, .. } => self.check_lease(*lease)?,
                Op::Update { key, lease, .. } => {
                    if self.latest.get(&key[..])?.is_none() {
                        let key = String::from_utf8_lossy(key).into_owned();
                        Err(Rejection::KeyNotFound { key })
                    } else {
                        self.check_lease(lease.unwrap_or(0))?
                    }
                }
                Op::Range(request) => check_revision(request.revision, &self.state),
                Op::Txn(txn) => self.choose(txn)?.map(|path| inner.push(path)),
                Op::Delete { .. } => Ok(()),
            };
            if let Err(rejection) = refused {
                return Ok(Err(rejection));
            }
        }
        Ok(Ok(Path { succeeded, inner }))
    }

    fn check_lease(&self, id: LeaseId) -> Applied<Result<(), Rejection>> {
        Ok(if id != 0 && self.leases.get(id)?.is_none() {
            Err(Rejection::LeaseNotFound { id })
        } else {
            Ok(())
        })
    }

    fn run(&mut self, txn: &Txn, path: Path, change: &mut Change) -> Applied<TxnResponse> {
        let ops = txn.branch(path.succeeded);
        let mut paths = path.inner.into_iter();
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            responses.push(self.op(op, &mut paths, change)?);
        }
        Ok(TxnResponse {
            succeeded: path.succeeded,
            revision: self.seen_revision(change),
            responses,
        })
    }

    /// The revision a transaction is at: its own once it has changed something.
    fn seen_revision(&self, change: &Change) -> Revision {
        if change.events.is_empty() {
            self.state.revision
        } else {
            change.revision
        }
    }

    /// Runs one operation; `paths` are those of the transactions inside the branch.
    fn op(
        &mut self,
        op: &Op,
        paths: &mut impl Iterator<Item = Path>,
        change: &mut Change,
    ) -> Applied<OpResponse> {
        Ok(match op {
            Op::Put { key, value, lease } => OpResponse::Put {
                prev: self.put(key, Some(value), Some(*lease), change)?,
            },
            Op::Update { key, value, lease } => OpResponse::Put {
                prev: self.put(key, value.as_ref(), *lease, change)?,
            },
            Op::Txn(txn) => {
                // `choose` has found one path for each.
                let path = paths.next().unwrap_or_default();
                OpResponse::Txn(self.run(txn, path, change)?)
            }
            Op::Delete { start, end } => {
                let mut keys = Vec::new();
                if end.is_empty() {
                    keys.push(start.to_vec());
                } else if start < end {
                    for row in self.latest.range::<&[u8]>(&start[..]..&end[..])? {
                        let (key, _) = row?;
                        keys.push(key.value().to_vec());
                    }
                }
                let mut prev = Vec::new();
                for key in keys {
                    prev.extend(self.delete_key(&key, change)?);
                }
                OpResponse::Delete { prev }
            }
            Op::Range(request) => OpResponse::Range(range(
                &self.latest,
                &self.history,
                request,
                self.seen_revision(change),
            )?),
        })
    }

    fn put(
        &mut self,
        key: &Bytes,
        value: Option<&Bytes>,
        lease: Option<LeaseId>,
        change: &mut Change,
    ) -> Applied<Option<KeyValue>> {
        let prev = self.supersede(key)?;
        let value = value.or(prev.as_ref().map(|kv| &kv.value));
        let value = value.cloned().unwrap_or_default();
        let lease = lease.or(prev.as_ref().map(|kv| kv.lease)).unwrap_or(0);
        let head = VersionHead {
            create_revision: prev
                .as_ref()
                .map_or(change.revision, |kv| kv.create_revision),
            mod_revision: change.revision,
            version: prev.as_ref().map_or(0, |kv| kv.version) + 1,
            lease,
        };
        self.latest
            .insert(&key[..], head.encode(&value).as_slice())?;
        let bound = prev.as_ref().map_or(0, |kv| kv.lease);
        if bound != lease {
            if bound != 0 {
                self.lease_keys.remove((bound, &key[..]))?;
            }
            if lease != 0 {
                self.lease_keys.insert((lease, &key[..]), ())?;
            }
        }
        self.record(key, CHANGE_PUT, change)?;
        change.events.push(WatchEvent {
            kind: EventKind::Put,
            kv: head.with(key.clone(), value),
            prev: prev.clone(),
        });
        Ok(prev)
    }

    fn delete_key(&mut self, key: &[u8], change: &mut Change) -> Applied<Option<KeyValue>> {
        let Some(prev) = self.supersede(key)? else {
            return Ok(None);
        };
        self.latest.remove(key)?;
        self.history.insert((key, change.revision), TOMBSTONE)?;
        if prev.lease != 0 {
            self.lease_keys.remove((prev.lease, key))?;
        }
        self.record(key, CHANGE_DELETE, change)?;
        let head = VersionHead {
            mod_revision: change.revision,
            ..VersionHead::default()
        };
        change.events.push(WatchEvent {
            kind: EventKind::Delete,
            kv: head.with(prev.key.clone(), Bytes::new()),
            prev: Some(prev.clone()),
        });
        Ok(Some(prev))
    }

    /// Copies the newest version of a key into the history.
    fn supersede(&mut self, key: &[u8]) -> Applied<Option<KeyValue>> {
        let Some(row) = self.latest.get(key)? else {
            return Ok(None);
        };
        let prev =
            VersionHead::key_value(key, row.value(), false).ok_or_else(|| corrupted("latest"))?;
        self.history.insert((key, prev.mod_revision), row.value())?;
        Ok(Some(prev))
    }

    fn record(&mut self, key: &[u8], kind: u8, change: &Change) -> Applied<()> {
        let mut row = Vec::with_capacity(key.len() + 1);
        row.push(kind);
        row.extend_from_slice(key);
        let nth = u32::try_from(change.events.len()).unwrap_or(u32::MAX);
        self.changes
            .insert((change.revision, nth), row.as_slice())?;
        Ok(())
    }

    /// The revision counts only when something happened at it.
    fn finish(&mut self, change: Change, effects: &mut Effects) {
        if !change.events.is_empty() {
            self.state.revision = change.revision;
            effects.changes.push(Arc::new(change));
        }
    }
}

/// What can be refused without looking at the state.
pub(crate) fn validate(txn: &Txn) -> Result<(), Rejection> {
    validate_txn(txn, 0).map(drop)
}

/// What a branch may write.
#[derive(Default)]
struct Writes<'a> {
    puts: Vec<&'a [u8]>,
    deletes: Vec<(&'a [u8], Vec<u8>)>,
}

fn validate_txn(txn: &Txn, depth: usize) -> Result<[Writes<'_>; 2], Rejection> {
    if depth > MAX_DEPTH {
        return Err(Rejection::TooDeep { limit: MAX_DEPTH });
    }
    let success = validate_branch(&txn.success, depth)?;
    let failure = validate_branch(&txn.failure, depth)?;
    Ok([success, failure])
}

/// No key is put twice, or put and deleted, on any path through the branch. The two branches of
/// a transaction inside exclude each other, so they may write the same.
fn validate_branch(ops: &[Op], depth: usize) -> Result<Writes<'_>, Rejection> {
    let mut all = Writes::default();
    for op in ops {
        match op {
            Op::Put { key, .. } | Op::Update { key, .. } => {
                if key.is_empty() || key.len() > MAX_KEY_BYTES || &key[..] >= ALL_KEYS_END {
                    return Err(Rejection::KeyLength {
                        length: key.len(),
                        limit: MAX_KEY_BYTES,
                    });
                }
                all.puts.push(key);
            }
            Op::Delete { start, end } => all.deletes.push((start, end_of(start, end))),
            Op::Range(_) | Op::Txn(_) => {}
        }
    }
    all.puts.sort_unstable();
    if let Some(pair) = all.puts.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(duplicate(pair[0]));
    }
    all.check_deletes(&all.deletes)?;
    for op in ops {
        let Op::Txn(txn) = op else { continue };
        let inner = validate_txn(txn, depth + 1)?;
        for branch in &inner {
            for key in &branch.puts {
                if all.puts.binary_search(key).is_ok() {
                    return Err(duplicate(key));
                }
            }
            branch.check_deletes(&all.deletes)?;
            all.check_deletes(&branch.deletes)?;
        }
        let [success, failure] = inner;
        for branch in [success, failure] {
            all.puts.extend(branch.puts);
            all.deletes.extend(branch.deletes);
        }
        all.puts.sort_unstable();
        all.puts.dedup();
    }
    Ok(all)
}

impl Writes<'_> {
    /// Refuses deletes that would meet one of the puts, which are sorted.
    fn check_deletes(&self, deletes: &[(&[u8], Vec<u8>)]) -> Result<(), Rejection> {
        for (start, end) in deletes {
            let first = self.puts.partition_point(|key| key < start);
            if let Some(key) = self.puts.get(first)
                && *key < end.as_slice()
            {
                return Err(duplicate(key));
            }
        }
        Ok(())
    }
}

fn duplicate(key: &[u8]) -> Rejection {
    Rejection::DuplicateKey {
        key: String::from_utf8_lossy(key).into_owned(),
    }
}
