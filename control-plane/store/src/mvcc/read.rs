//! Reading the versioned state at its newest or an earlier revision.
//!
//! Watches and changes nothing; a [`View`] is one redb read transaction, so everything read
//! through it belongs together.

use std::borrow::Borrow;
use std::time::Duration;

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable};

use super::StoredMembership;
use super::tables::{
    HISTORY, INSTALLED, LATEST, LEASE_KEYS, LEASES, META, REMOVED, StateRow, VersionHead,
    corrupted, ids, value_of,
};
use crate::error::{Rejection, StoreError};
use crate::key_value::{
    ALL_KEYS_END, Compare, CompareOp, CompareTarget, KeyValue, LeaseId, Op, OpResponse,
    RangeRequest, RangeResponse, Revision, Txn, TxnResponse,
};
use crate::wal::frame::Position;

/// A consistent view of the state.
pub(crate) struct View {
    txn: ReadTransaction,
}

impl View {
    pub(super) fn new(txn: ReadTransaction) -> Self {
        Self { txn }
    }

    /// The transaction, for readers of other tables.
    pub(crate) fn txn(&self) -> &ReadTransaction {
        &self.txn
    }

    /// The positions of this view.
    pub(crate) fn state(&self) -> Result<StateRow, StoreError> {
        let load = || -> Result<StateRow, redb::Error> {
            Ok(StateRow::load(&self.txn.open_table(META)?)?)
        };
        load().map_err(failed)
    }

    /// The membership last applied.
    pub(crate) fn membership(&self) -> Result<Option<StoredMembership>, StoreError> {
        let load = || -> Result<Option<StoredMembership>, redb::Error> {
            let meta = self.txn.open_table(META)?;
            let Some(row) = meta.get("membership")? else {
                return Ok(None);
            };
            decode_membership(row.value())
                .map(Some)
                .ok_or_else(|| corrupted("meta/membership").into())
        };
        load().map_err(failed)
    }

    /// Index after the last entry of the snapshot installed last.
    pub(crate) fn installed_next(&self) -> Result<u64, StoreError> {
        let load = || -> Result<u64, redb::Error> {
            let ids = ids(&self.txn.open_table(META)?, INSTALLED)?;
            Ok(ids.first().copied().unwrap_or(0))
        };
        load().map_err(failed)
    }

    /// Members that were removed.
    pub(crate) fn removed(&self) -> Result<Vec<u64>, StoreError> {
        let load =
            || -> Result<Vec<u64>, redb::Error> { Ok(ids(&self.txn.open_table(META)?, REMOVED)?) };
        load().map_err(failed)
    }

    /// All leases and their time to live.
    pub(crate) fn leases(&self) -> Result<Vec<(LeaseId, Duration)>, StoreError> {
        let load = || -> Result<Vec<(LeaseId, Duration)>, redb::Error> {
            let table = self.txn.open_table(LEASES)?;
            let mut leases = Vec::new();
            for row in table.iter()? {
                let (id, ttl) = row?;
                leases.push((id.value(), Duration::from_millis(ttl.value())));
            }
            Ok(leases)
        };
        load().map_err(failed)
    }

    /// The keys bound to a lease, in order.
    pub(crate) fn lease_keys(&self, id: LeaseId) -> Result<Vec<Bytes>, StoreError> {
        let load = || -> Result<Vec<Bytes>, redb::Error> {
            let table = self.txn.open_table(LEASE_KEYS)?;
            let mut keys = Vec::new();
            for row in table.range((id, &[][..])..(id.saturating_add(1), &[][..]))? {
                let (at, _) = row?;
                keys.push(Bytes::copy_from_slice(at.value().1));
            }
            Ok(keys)
        };
        load().map_err(failed)
    }

    /// The newest version of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        let load = || -> Result<Option<KeyValue>, redb::Error> {
            let latest = self.txn.open_table(LATEST)?;
            let Some(row) = latest.get(key)? else {
                return Ok(None);
            };
            let found = VersionHead::key_value(key, row.value(), false);
            found.map(Some).ok_or_else(|| corrupted("latest").into())
        };
        load().map_err(failed)
    }

    /// Reads a range.
    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        let state = self.state()?;
        check_revision(request.revision, &state).map_err(StoreError::rejected)?;
        let load = || -> Result<RangeResponse, redb::Error> {
            let latest = self.txn.open_table(LATEST)?;
            let history = self.txn.open_table(HISTORY)?;
            Ok(range(&latest, &history, request, state.revision)?)
        };
        load().map_err(failed)
    }
}

impl View {
    /// CRC32C of every key and version at a revision, and that revision.
    pub(crate) fn hash(&self, revision: Option<Revision>) -> Result<(u32, Revision), StoreError> {
        let state = self.state()?;
        check_revision(revision, &state).map_err(StoreError::rejected)?;
        let request = RangeRequest {
            end: Bytes::from_static(ALL_KEYS_END),
            revision,
            ..RangeRequest::default()
        };
        let mut collector = Collector {
            request: &request,
            response: RangeResponse::default(),
            hash: Some(0),
        };
        let mut load = || -> Result<(), redb::Error> {
            let latest = self.txn.open_table(LATEST)?;
            let history = self.txn.open_table(HISTORY)?;
            let current = state.revision;
            Ok(collect(
                &latest,
                &history,
                &request,
                current,
                &mut collector,
            )?)
        };
        load().map_err(failed)?;
        let hash = collector.hash.unwrap_or_default();
        Ok((hash, revision.unwrap_or(state.revision)))
    }

    /// Runs a transaction that writes in neither branch.
    pub(crate) fn read_txn(&self, txn: &Txn) -> Result<TxnResponse, StoreError> {
        let state = self.state()?;
        let succeeded = || -> Result<bool, redb::Error> {
            Ok(all_hold(&self.txn.open_table(LATEST)?, &txn.compares)?)
        };
        let succeeded = succeeded().map_err(failed)?;
        let mut responses = Vec::new();
        for op in txn.branch(succeeded) {
            match op {
                Op::Range(request) => responses.push(OpResponse::Range(self.range(request)?)),
                Op::Txn(txn) => responses.push(OpResponse::Txn(self.read_txn(txn)?)),
                // `Txn::writes` has sent these to the log.
                Op::Put { .. } | Op::Update { .. } | Op::Delete { .. } => {}
            }
        }
        Ok(TxnResponse {
            succeeded,
            revision: state.revision,
            responses,
        })
    }
}

fn failed(error: redb::Error) -> StoreError {
    StoreError::Database {
        operation: "read",
        source: Box::new(error),
    }
}

/// Whether `revision` can be read.
pub(crate) fn check_revision(
    revision: Option<Revision>,
    state: &StateRow,
) -> Result<(), Rejection> {
    match revision {
        Some(requested) if requested < state.compacted => Err(Rejection::Compacted {
            requested,
            compacted: state.compacted,
        }),
        Some(requested) if requested > state.revision => Err(Rejection::FutureRevision {
            requested,
            current: state.revision,
        }),
        _ => Ok(()),
    }
}

/// Whether all conditions hold.
pub(crate) fn all_hold(
    latest: &impl ReadableTable<&'static [u8], &'static [u8]>,
    compares: &[Compare],
) -> Result<bool, redb::StorageError> {
    for compare in compares {
        if !holds(latest, compare)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a condition holds.
fn holds(
    latest: &impl ReadableTable<&'static [u8], &'static [u8]>,
    compare: &Compare,
) -> Result<bool, redb::StorageError> {
    if compare.end.is_empty() {
        let row = latest.get(&compare.key[..])?;
        return holds_for(row.as_ref().map(redb::AccessGuard::value), compare);
    }
    let mut rows = 0;
    if compare.key < compare.end {
        for row in latest.range::<&[u8]>(&compare.key[..]..&compare.end[..])? {
            let (_, row) = row?;
            rows += 1;
            if !holds_for(Some(row.value()), compare)? {
                return Ok(false);
            }
        }
    }
    if rows == 0 {
        return holds_for(None, compare);
    }
    Ok(true)
}

fn holds_for(row: Option<&[u8]>, compare: &Compare) -> Result<bool, redb::StorageError> {
    let head = match row {
        Some(row) => VersionHead::decode(row).ok_or_else(|| corrupted("latest"))?,
        None => VersionHead::default(),
    };
    let ordering = match &compare.target {
        CompareTarget::ModRevision(given) => head.mod_revision.cmp(given),
        CompareTarget::CreateRevision(given) => head.create_revision.cmp(given),
        CompareTarget::Version(given) => head.version.cmp(given),
        CompareTarget::Lease(given) => head.lease.cmp(given),
        CompareTarget::Value(given) => match row {
            Some(row) => value_of(row).cmp(&given[..]),
            None => return Ok(false),
        },
    };
    Ok(match compare.op {
        CompareOp::Equal => ordering.is_eq(),
        CompareOp::Greater => ordering.is_gt(),
        CompareOp::Less => ordering.is_lt(),
        CompareOp::NotEqual => ordering.is_ne(),
    })
}

/// The exclusive end of a range whose `end` may be empty for "just `start`".
pub(crate) fn end_of(start: &[u8], end: &[u8]) -> Vec<u8> {
    if end.is_empty() {
        let mut next = start.to_vec();
        next.push(0);
        next
    } else {
        end.to_vec()
    }
}

/// Reads a range from the tables, of a view or of a write in progress. The revision was
/// checked.
pub(crate) fn range<L, H>(
    latest: &L,
    history: &H,
    request: &RangeRequest,
    current: Revision,
) -> Result<RangeResponse, redb::StorageError>
where
    L: ReadableTable<&'static [u8], &'static [u8]>,
    H: ReadableTable<(&'static [u8], u64), &'static [u8]>,
{
    let mut collector = Collector {
        request,
        response: RangeResponse {
            revision: current,
            ..RangeResponse::default()
        },
        hash: None,
    };
    collect(latest, history, request, current, &mut collector)?;
    Ok(collector.response)
}

fn collect<L, H>(
    latest: &L,
    history: &H,
    request: &RangeRequest,
    current: Revision,
    collector: &mut Collector<'_>,
) -> Result<(), redb::StorageError>
where
    L: ReadableTable<&'static [u8], &'static [u8]>,
    H: ReadableTable<(&'static [u8], u64), &'static [u8]>,
{
    let start: &[u8] = &request.start;
    let end = end_of(start, &request.end);
    let end = end.as_slice();
    if start >= end {
        return Ok(());
    }
    match request.revision {
        Some(revision) if revision < current => {
            range_at(latest, history, start, end, revision, collector)?;
        }
        _ if request.end.is_empty() => {
            if let Some(row) = latest.get(start)? {
                collector.add(start, row.value())?;
            }
        }
        _ => {
            for row in latest.range(start..end)? {
                let (key, row) = row?;
                collector.add(key.value(), row.value())?;
            }
        }
    }
    Ok(())
}

struct Collector<'a> {
    request: &'a RangeRequest,
    response: RangeResponse,
    /// Versions are hashed instead of kept.
    hash: Option<u32>,
}

impl Collector<'_> {
    fn add(&mut self, key: &[u8], row: &[u8]) -> Result<(), redb::StorageError> {
        self.response.count += 1;
        if let Some(hash) = &mut self.hash {
            for part in [&(key.len() as u64).to_le_bytes()[..], key, row] {
                *hash = crc32c::crc32c_append(*hash, part);
            }
            return Ok(());
        }
        if self.request.count_only {
            return Ok(());
        }
        if self.request.limit > 0 && self.response.kvs.len() >= self.request.limit {
            self.response.more = true;
            return Ok(());
        }
        let found = VersionHead::key_value(key, row, self.request.keys_only);
        self.response
            .kvs
            .push(found.ok_or_else(|| corrupted("version"))?);
        Ok(())
    }
}

/// Merges both tables in key order: a key's version at `revision` is the newest one not after
/// it, in `latest` or else in `history`.
fn range_at<L, H>(
    latest: &L,
    history: &H,
    start: &[u8],
    end: &[u8],
    revision: Revision,
    collector: &mut Collector<'_>,
) -> Result<(), redb::StorageError>
where
    L: ReadableTable<&'static [u8], &'static [u8]>,
    H: ReadableTable<(&'static [u8], u64), &'static [u8]>,
{
    let mut past = history.range((start, 0)..(end, 0))?;
    let mut group = next_group(&mut past, None, revision)?;
    let flush = |group: &Group, collector: &mut Collector<'_>| match &group.found {
        Some(row) if !row.is_empty() => collector.add(&group.key, row),
        _ => Ok(()),
    };
    for row in latest.range(start..end)? {
        let (key, row) = row?;
        let (key, row) = (key.value(), row.value());
        while let Some(at) = group.take_if(|at| at.key.as_slice() < key) {
            flush(&at, collector)?;
            group = next_group(&mut past, at.peeked, revision)?;
        }
        let same = group.take_if(|at| at.key.as_slice() == key);
        let head = VersionHead::decode(row).ok_or_else(|| corrupted("latest"))?;
        if head.mod_revision <= revision {
            collector.add(key, row)?;
        } else if let Some(at) = &same {
            flush(at, collector)?;
        }
        if let Some(at) = same {
            group = next_group(&mut past, at.peeked, revision)?;
        }
    }
    while let Some(at) = group.take() {
        flush(&at, collector)?;
        group = next_group(&mut past, at.peeked, revision)?;
    }
    Ok(())
}

/// All superseded versions of one key, reduced to the one wanted.
struct Group {
    key: Vec<u8>,
    found: Option<Vec<u8>>,
    /// The first row of the next key.
    peeked: Option<Row>,
}

struct Row {
    key: Vec<u8>,
    revision: Revision,
    bytes: Vec<u8>,
}

fn next_group(
    rows: &mut redb::Range<'_, (&'static [u8], u64), &'static [u8]>,
    first: Option<Row>,
    revision: Revision,
) -> Result<Option<Group>, redb::StorageError> {
    let mut group: Option<Group> = first.map(|row| Group {
        found: (row.revision <= revision).then_some(row.bytes),
        key: row.key,
        peeked: None,
    });
    for row in rows {
        let (at, row) = row?;
        let (key, mod_revision) = at.value();
        match &mut group {
            Some(group) if group.key == key => {
                if mod_revision <= revision {
                    group.found = Some(row.value().to_vec());
                }
            }
            Some(group) => {
                group.peeked = Some(Row {
                    key: key.to_vec(),
                    revision: mod_revision,
                    bytes: row.value().to_vec(),
                });
                break;
            }
            None => {
                group = Some(Group {
                    key: key.to_vec(),
                    found: (mod_revision <= revision).then(|| row.value().to_vec()),
                    peeked: None,
                });
            }
        }
    }
    Ok(group)
}

/// The row `meta/membership`: the position of its entry, then the body.
pub(crate) fn encode_membership(membership: &StoredMembership) -> Vec<u8> {
    let position = membership.position;
    let mut row = Vec::with_capacity(24 + membership.body.len());
    for number in [
        position.map_or(0, |position| position.index + 1),
        position.map_or(0, |position| position.term),
        position.map_or(0, |position| position.node),
    ] {
        row.extend_from_slice(&number.to_le_bytes());
    }
    row.extend_from_slice(&membership.body);
    row
}

fn decode_membership(row: &[u8]) -> Option<StoredMembership> {
    let number = |at: usize| -> Option<u64> {
        let bytes = row.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let (next, term, node) = (number(0)?, number(8)?, number(16)?);
    Some(StoredMembership {
        position: next
            .checked_sub(1)
            .map(|index| Position { term, node, index }),
        body: Bytes::copy_from_slice(&row[24..]),
    })
}

/// Whether `key` lies in `start..end`, where an empty `end` means just `start`.
pub(crate) fn contains(start: &[u8], end: &[u8], key: impl Borrow<[u8]>) -> bool {
    let key = key.borrow();
    if end.is_empty() {
        key == start
    } else {
        start <= key && key < end
    }
}
