//! Removing versions that compaction has made unreadable.
//!
//! Watches the compacted revision; removes rows of `changes` and `history` in small steps,
//! so that no write waits long. The keeper calls [`Machine::scrub`] until nothing is left.
//! When rows go does not matter to any reader: they refuse compacted revisions themselves.

use std::sync::atomic::Ordering;

use redb::{Durability, ReadableTable};

use super::Machine;
use super::tables::{CHANGE_DELETE, CHANGES, HISTORY, META, StateRow, corrupted};
use crate::error::StoreError;

/// Changes removed per step.
const STEP: usize = 256;

impl Machine {
    /// Whether [`Machine::scrub`] has something to do.
    pub(crate) fn needs_scrub(&self) -> bool {
        self.scrub.load(Ordering::Acquire)
    }

    /// Removes some unreadable versions; answers whether more may be left.
    pub(crate) fn scrub(&self) -> Result<bool, StoreError> {
        if !self.scrub.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let txn = self.begin_write(Durability::None)?;
        let step = || -> Result<bool, redb::Error> {
            let removed = {
                let compacted = StateRow::load(&txn.open_table(META)?)?.compacted;
                let mut changes = txn.open_table(CHANGES)?;
                let mut history = txn.open_table(HISTORY)?;
                let mut rows = Vec::new();
                for row in changes.range(..(compacted + 1, 0))?.take(STEP) {
                    let (at, row) = row?;
                    rows.push((at.value(), row.value().to_vec()));
                }
                for (at, row) in &rows {
                    let Some((kind, key)) = row.split_first() else {
                        return Err(corrupted("changes").into());
                    };
                    // This change superseded what was before it; a tombstone itself says no
                    // more than its absence.
                    let end = at.0 + u64::from(*kind == CHANGE_DELETE);
                    let mut superseded = Vec::new();
                    for row in history.range((key, 0)..(key, end))? {
                        superseded.push(row?.0.value().1);
                    }
                    for revision in superseded {
                        history.remove((key, revision))?;
                    }
                    changes.remove(*at)?;
                }
                rows.len()
            };
            if removed == 0 {
                txn.abort()?;
            } else {
                txn.commit()?;
            }
            Ok(removed == STEP)
        };
        let more = step().map_err(|error| StoreError::Database {
            operation: "compact",
            source: Box::new(error),
        })?;
        if more {
            self.scrub.store(true, Ordering::Release);
        }
        Ok(more)
    }
}
