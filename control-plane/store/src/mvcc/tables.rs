//! The tables of `state.redb` and the bytes in them.
//!
//! Watches nothing; [`create`] makes the tables of a new database and [`replace`] fills them
//! from another. [`super::apply`] writes rows, [`super::read`] reads them.

use bytes::{Buf, Bytes};
use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, Value, WriteTransaction};

use super::FORMAT;
use crate::key_value::{KeyValue, LeaseId, Revision};
use crate::wal::frame::Position;

/// key → newest version.
pub(crate) const LATEST: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("latest");
/// (key, revision) → superseded version, or tombstone.
pub(crate) const HISTORY: TableDefinition<'static, (&[u8], u64), &[u8]> =
    TableDefinition::new("history");
/// (revision, n) → kind and key.
pub(crate) const CHANGES: TableDefinition<'static, (u64, u32), &[u8]> =
    TableDefinition::new("changes");
/// lease → time to live in milliseconds.
pub(crate) const LEASES: TableDefinition<'static, u64, u64> = TableDefinition::new("leases");
/// (lease, key) → ().
pub(crate) const LEASE_KEYS: TableDefinition<'static, (u64, &[u8]), ()> =
    TableDefinition::new("lease_keys");
/// name → bytes.
pub(crate) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");

/// Row of [`META`]: the last entry of the snapshot that was installed last.
pub(crate) const INSTALLED: &str = "installed";
/// Row of [`META`]: ids of members that were removed.
pub(crate) const REMOVED: &str = "removed";

/// First byte of a row of [`CHANGES`] for a write.
pub(crate) const CHANGE_PUT: u8 = 0;
/// First byte of a row of [`CHANGES`] for a delete.
pub(crate) const CHANGE_DELETE: u8 = 1;
/// A row of [`HISTORY`] that says the key was deleted.
pub(crate) const TOMBSTONE: &[u8] = &[];
/// Bytes before the value in a version.
const VERSION_HEAD: usize = 32;

/// What is known of a version without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct VersionHead {
    pub(crate) create_revision: Revision,
    pub(crate) mod_revision: Revision,
    pub(crate) version: u64,
    pub(crate) lease: LeaseId,
}

impl VersionHead {
    /// Reads the head of a version; `None` when it is too short to be one.
    pub(crate) fn decode(mut row: &[u8]) -> Option<Self> {
        (row.len() >= VERSION_HEAD).then(|| Self {
            create_revision: row.get_u64_le(),
            mod_revision: row.get_u64_le(),
            version: row.get_u64_le(),
            lease: row.get_u64_le(),
        })
    }

    /// Encodes a version.
    pub(crate) fn encode(&self, value: &[u8]) -> Vec<u8> {
        let mut row = Vec::with_capacity(VERSION_HEAD + value.len());
        for number in [
            self.create_revision,
            self.mod_revision,
            self.version,
            self.lease,
        ] {
            row.extend_from_slice(&number.to_le_bytes());
        }
        row.extend_from_slice(value);
        row
    }

    /// Reads a whole version.
    pub(crate) fn key_value(key: &[u8], row: &[u8], keys_only: bool) -> Option<KeyValue> {
        let head = Self::decode(row)?;
        let value = if keys_only {
            Bytes::new()
        } else {
            Bytes::copy_from_slice(&row[VERSION_HEAD..])
        };
        Some(head.with(Bytes::copy_from_slice(key), value))
    }

    /// Completes the head.
    pub(crate) fn with(self, key: Bytes, value: Bytes) -> KeyValue {
        KeyValue {
            key,
            value,
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// The value of an encoded version.
pub(crate) fn value_of(row: &[u8]) -> &[u8] {
    row.get(VERSION_HEAD..).unwrap_or_default()
}

/// The row `meta/state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateRow {
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    pub(crate) applied: Option<Position>,
}

impl StateRow {
    /// Reads the row; an absent one is the empty store.
    pub(crate) fn load(
        meta: &impl ReadableTable<&'static str, &'static [u8]>,
    ) -> Result<Self, redb::StorageError> {
        let Some(row) = meta.get("state")? else {
            return Ok(Self::default());
        };
        let mut row = row.value();
        if row.len() != 40 {
            return Err(corrupted("meta/state"));
        }
        let revision = row.get_u64_le();
        let compacted = row.get_u64_le();
        let next = row.get_u64_le();
        let term = row.get_u64_le();
        let node = row.get_u64_le();
        Ok(Self {
            revision,
            compacted,
            applied: next
                .checked_sub(1)
                .map(|index| Position { term, node, index }),
        })
    }

    /// Encodes the row.
    pub(crate) fn encode(&self) -> [u8; 40] {
        let applied = self.applied;
        let numbers = [
            self.revision,
            self.compacted,
            applied.map_or(0, |position| position.index + 1),
            applied.map_or(0, |position| position.term),
            applied.map_or(0, |position| position.node),
        ];
        let mut row = [0; 40];
        for (at, number) in row.chunks_exact_mut(8).zip(numbers) {
            at.copy_from_slice(&number.to_le_bytes());
        }
        row
    }
}

/// Writes a position under a name of [`META`].
pub(crate) fn set_position(
    txn: &WriteTransaction,
    name: &str,
    position: Option<Position>,
) -> Result<(), redb::Error> {
    let mut row = [0; 24];
    let numbers = [
        position.map_or(0, |position| position.index + 1),
        position.map_or(0, |position| position.term),
        position.map_or(0, |position| position.node),
    ];
    for (at, number) in row.chunks_exact_mut(8).zip(numbers) {
        at.copy_from_slice(&number.to_le_bytes());
    }
    txn.open_table(META)?.insert(name, row.as_slice())?;
    Ok(())
}

/// The ids in a row of [`META`].
pub(crate) fn ids(
    meta: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
) -> Result<Vec<u64>, redb::StorageError> {
    let row = meta.get(name)?;
    let row = row
        .as_ref()
        .map(redb::AccessGuard::value)
        .unwrap_or_default();
    let numbers = row.chunks(8).map(|number| {
        let number = <[u8; 8]>::try_from(number).map_err(|_short| corrupted(name))?;
        Ok(u64::from_le_bytes(number))
    });
    numbers.collect()
}

/// A row that is not as this program writes it.
pub(crate) fn corrupted(row: &str) -> redb::StorageError {
    redb::StorageError::Corrupted(format!("row {row} is malformed"))
}

/// Makes all tables.
pub(crate) fn create(txn: &WriteTransaction) -> Result<(), redb::Error> {
    txn.open_table(LATEST)?;
    txn.open_table(HISTORY)?;
    txn.open_table(CHANGES)?;
    txn.open_table(LEASES)?;
    txn.open_table(LEASE_KEYS)?;
    txn.open_table(META)?
        .insert("format", FORMAT.to_le_bytes().as_slice())?;
    Ok(())
}

/// Replaces the rows of all tables by those of another database.
pub(crate) fn replace(txn: &WriteTransaction, from: &ReadTransaction) -> Result<(), redb::Error> {
    replace_table(txn, from, LATEST)?;
    replace_table(txn, from, HISTORY)?;
    replace_table(txn, from, CHANGES)?;
    replace_table(txn, from, LEASES)?;
    replace_table(txn, from, LEASE_KEYS)?;
    replace_table(txn, from, META)
}

fn replace_table<K: Key + 'static, V: Value + 'static>(
    txn: &WriteTransaction,
    from: &ReadTransaction,
    table: TableDefinition<'static, K, V>,
) -> Result<(), redb::Error> {
    txn.delete_table(table)?;
    let mut to = txn.open_table(table)?;
    for row in from.open_table(table)?.iter()? {
        let (key, value) = row?;
        to.insert(key.value(), value.value())?;
    }
    Ok(())
}
