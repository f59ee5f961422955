//! Reading past events back from the tables, for watchers that start before the hub's ring.
//!
//! Watches and changes nothing; [`crate::watch::Watcher`] asks until it has caught up.

use std::sync::Arc;

use redb::ReadableTable;

use super::Machine;
use super::read::contains;
use super::tables::{
    CHANGE_DELETE, CHANGES, HISTORY, LATEST, META, StateRow, VersionHead, corrupted,
};
use crate::error::StoreError;
use crate::key_value::Revision;
use crate::watch::hub::Change;
use crate::watch::{EventKind, WatchEvent};
use bytes::Bytes;

/// A stretch of the past.
#[derive(Debug)]
pub(crate) struct Stretch {
    /// Changes with events in the range asked for, in order.
    pub(crate) changes: Vec<Arc<Change>>,
    /// Where to go on.
    pub(crate) next: Revision,
}

/// Why the past cannot be read.
#[derive(Debug)]
pub(crate) enum PastError {
    /// It is gone.
    Compacted(Revision),
    /// The database failed.
    Store(StoreError),
}

impl Machine {
    /// Reads events at or after `from` for keys in `start..end`, whole revisions, about
    /// `limit` events. `next` is past what is readable now when there is no more.
    pub(crate) fn past(
        &self,
        from: Revision,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Stretch, PastError> {
        let view = self.view().map_err(PastError::Store)?;
        let load = || -> Result<Result<Stretch, Revision>, redb::Error> {
            let txn = view.txn();
            let state = StateRow::load(&txn.open_table(META)?)?;
            if state.compacted > 0 && from <= state.compacted {
                return Ok(Err(state.compacted));
            }
            let latest = txn.open_table(LATEST)?;
            let history = txn.open_table(HISTORY)?;
            let changes = txn.open_table(CHANGES)?;
            let mut found: Vec<Change> = Vec::new();
            let mut events = 0;
            let mut scanned = 0;
            for row in changes.range((from, 0)..)? {
                let (at, row) = row?;
                let revision = at.value().0;
                let new = found
                    .last()
                    .is_none_or(|change| change.revision != revision);
                scanned += 1;
                if new && (events >= limit || scanned > limit * 64) {
                    let next = revision;
                    return Ok(Ok(Stretch::new(found, next)));
                }
                let Some((kind, key)) = row.value().split_first() else {
                    return Err(corrupted("changes").into());
                };
                if !contains(start, end, key) {
                    continue;
                }
                if new {
                    found.push(Change::new(revision));
                }
                let event = event(&latest, &history, key, revision, *kind == CHANGE_DELETE)?;
                if let Some(change) = found.last_mut() {
                    change.events.push(event);
                }
                events += 1;
            }
            Ok(Ok(Stretch::new(found, state.revision + 1)))
        };
        match load() {
            Ok(Ok(stretch)) => Ok(stretch),
            Ok(Err(compacted)) => Err(PastError::Compacted(compacted)),
            Err(error) => Err(PastError::Store(StoreError::Database {
                operation: "read history",
                source: Box::new(error),
            })),
        }
    }
}

impl Stretch {
    fn new(changes: Vec<Change>, next: Revision) -> Self {
        Self {
            changes: changes.into_iter().map(Arc::new).collect(),
            next,
        }
    }
}

fn event<L, H>(
    latest: &L,
    history: &H,
    key: &[u8],
    revision: Revision,
    deleted: bool,
) -> Result<WatchEvent, redb::Error>
where
    L: ReadableTable<&'static [u8], &'static [u8]>,
    H: ReadableTable<(&'static [u8], u64), &'static [u8]>,
{
    let prev = match history.range((key, 0)..(key, revision))?.next_back() {
        Some(row) => {
            let (_, row) = row?;
            VersionHead::key_value(key, row.value(), false)
        }
        None => None,
    };
    if deleted {
        let head = VersionHead {
            mod_revision: revision,
            ..VersionHead::default()
        };
        return Ok(WatchEvent {
            kind: EventKind::Delete,
            kv: head.with(Bytes::copy_from_slice(key), Bytes::new()),
            prev,
        });
    }
    let newest = latest.get(key)?;
    let newest = newest
        .as_ref()
        .map(redb::AccessGuard::value)
        .filter(|row| VersionHead::decode(row).is_some_and(|head| head.mod_revision == revision));
    let kv = match newest {
        Some(row) => VersionHead::key_value(key, row, false),
        None => history
            .get((key, revision))?
            .and_then(|row| VersionHead::key_value(key, row.value(), false)),
    };
    Ok(WatchEvent {
        kind: EventKind::Put,
        kv: kv.ok_or_else(|| corrupted("history"))?,
        prev,
    })
}
