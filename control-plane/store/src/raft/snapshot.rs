//! Snapshots on their way: a view of the state as a stream of bytes, and back.
//!
//! Watches nothing. [`Source`] reads a view in chunks and can go back to any chunk's start, so
//! a broken transfer resumes; [`Sink`] fills a database file beside the state that is in use,
//! and only a complete and synced one is ever put in its place.
//!
//! ```text
//!   chunk := row*        row := table:u8 key:bytes value:bytes      rows in table and key order
//! ```

use std::fs;
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use redb::{Database, Durability, Key, ReadTransaction, TableDefinition, Value, WriteTransaction};

use crate::error::StoreError;
use crate::mvcc::read::View;
use crate::mvcc::tables::{
    self, CHANGES, HISTORY, INSTALLED, LATEST, LEASE_KEYS, LEASES, META, corrupted,
};
use crate::request::{put_bytes, take_byte, take_bytes};
use crate::wal::frame::Position;

/// A chunk is closed when it reaches this size.
const CHUNK_BYTES: usize = 256 << 10;
/// Memory for pages of the database being filled.
const CACHE_BYTES: usize = 4 << 20;
/// How many tables there are.
const TABLES: u8 = 6;

fn failed(operation: &'static str) -> impl FnOnce(redb::Error) -> StoreError {
    move |error| StoreError::Database {
        operation,
        source: Box::new(error),
    }
}

/// Where a chunk starts: after this row.
#[derive(Debug, Clone, Default)]
struct Cursor {
    offset: u64,
    table: u8,
    after: Option<Vec<u8>>,
}

/// A view, read as a stream.
pub(crate) struct Source {
    view: View,
    /// The current chunk's start, and the start before it.
    current: Cursor,
    next: Cursor,
    chunk: Option<Bytes>,
}

impl Source {
    /// Reads this view.
    pub(crate) fn new(view: View) -> Self {
        Self {
            view,
            current: Cursor::default(),
            next: Cursor::default(),
            chunk: None,
        }
    }

    /// Where the current chunk starts; the stream's length at its end.
    pub(crate) fn offset(&self) -> u64 {
        self.current.offset
    }

    /// The current chunk; `None` at the end.
    pub(crate) fn chunk(&self) -> Option<Bytes> {
        self.chunk.clone()
    }

    /// Goes to the chunk that starts at `offset`, off the thread that serves writes.
    pub(crate) async fn at(self, offset: u64) -> Result<Self, StoreError> {
        tokio::task::spawn_blocking(move || self.seek(offset))
            .await
            .map_err(|error| StoreError::Failed {
                cause: format!("reading a snapshot: {error}"),
            })?
    }

    fn seek(mut self, offset: u64) -> Result<Self, StoreError> {
        if self.chunk.is_some() && self.current.offset == offset {
            return Ok(self);
        }
        if offset < self.next.offset {
            self.next = Cursor::default();
        }
        loop {
            self.current = self.next.clone();
            let (chunk, next) = self.read(&self.current)?;
            self.next = next;
            let ended = chunk.is_empty();
            self.chunk = (!ended).then_some(chunk);
            if self.current.offset == offset {
                return Ok(self);
            }
            if ended || self.current.offset > offset {
                return Err(StoreError::Failed {
                    cause: format!("a snapshot has no chunk at offset {offset}"),
                });
            }
        }
    }

    fn read(&self, from: &Cursor) -> Result<(Bytes, Cursor), StoreError> {
        let mut out = BytesMut::with_capacity(CHUNK_BYTES + (64 << 10));
        let mut at = from.clone();
        let txn = self.view.txn();
        while at.table < TABLES && out.len() < CHUNK_BYTES {
            let read = match at.table {
                0 => read_table(txn, LATEST, &mut at, &mut out),
                1 => read_table(txn, HISTORY, &mut at, &mut out),
                2 => read_table(txn, CHANGES, &mut at, &mut out),
                3 => read_table(txn, LEASES, &mut at, &mut out),
                4 => read_table(txn, LEASE_KEYS, &mut at, &mut out),
                _ => read_table(txn, META, &mut at, &mut out),
            };
            if read.map_err(failed("read snapshot"))? {
                at.table += 1;
                at.after = None;
            }
        }
        at.offset = from.offset + out.len() as u64;
        Ok((out.freeze(), at))
    }
}

/// Appends rows until the chunk is full; answers whether the table is at its end.
fn read_table<K: Key + 'static, V: Value + 'static>(
    txn: &ReadTransaction,
    table: TableDefinition<'static, K, V>,
    at: &mut Cursor,
    out: &mut BytesMut,
) -> Result<bool, redb::Error> {
    let number = at.table;
    let after = at.after.take();
    let table = txn.open_table(table)?;
    let start = match &after {
        Some(key) => Bound::Excluded(K::from_bytes(key)),
        None => Bound::Unbounded,
    };
    for row in table.range::<K::SelfType<'_>>((start, Bound::Unbounded))? {
        let (key, value) = row?;
        let key = key.value();
        let key = K::as_bytes(&key);
        out.put_u8(number);
        put_bytes(out, key.as_ref());
        put_bytes(out, V::as_bytes(&value.value()).as_ref());
        if out.len() >= CHUNK_BYTES {
            at.after = Some(key.as_ref().to_vec());
            return Ok(false);
        }
    }
    Ok(true)
}

/// A database being filled.
pub(crate) struct Sink {
    database: Database,
    path: PathBuf,
    offset: u64,
}

impl Sink {
    /// Starts an empty database at `path`; what was there is thrown away.
    pub(crate) fn create(path: PathBuf) -> Result<Self, StoreError> {
        discard(&path)?;
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(&path)
            .map_err(|error| StoreError::database("create snapshot", error))?;
        let sink = Self {
            database,
            path,
            offset: 0,
        };
        let txn = sink.begin(Durability::None)?;
        tables::create(&txn).map_err(failed("create snapshot"))?;
        txn.commit()
            .map_err(|error| StoreError::database("create snapshot", error))?;
        Ok(sink)
    }

    /// The offset wanted next.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes a chunk whose checksum was verified.
    pub(crate) fn write(&mut self, data: Bytes) -> Result<(), StoreError> {
        let length = data.len() as u64;
        let txn = self.begin(Durability::None)?;
        write_rows(&txn, data).map_err(failed("write snapshot"))?;
        txn.commit()
            .map_err(|error| StoreError::database("write snapshot", error))?;
        self.offset += length;
        Ok(())
    }

    /// Marks the state as installed up to `last`, puts it on disk and answers where it is.
    pub(crate) fn finish(self, last: Option<Position>) -> Result<PathBuf, StoreError> {
        let txn = self.begin(Durability::Immediate)?;
        tables::set_position(&txn, INSTALLED, last).map_err(failed("finish snapshot"))?;
        txn.commit()
            .map_err(|error| StoreError::database("finish snapshot", error))?;
        Ok(self.path)
    }

    fn begin(&self, durability: Durability) -> Result<WriteTransaction, StoreError> {
        let mut txn = self
            .database
            .begin_write()
            .map_err(|error| StoreError::database("begin write", error))?;
        txn.set_quick_repair(matches!(durability, Durability::Immediate));
        txn.set_durability(durability)
            .map_err(|error| StoreError::database("begin write", error))?;
        Ok(txn)
    }
}

/// Removes a snapshot that was never finished.
pub(crate) fn discard(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::io("remove unfinished snapshot", path, error))
        }
        _ => Ok(()),
    }
}

fn write_rows(txn: &WriteTransaction, mut data: Bytes) -> Result<(), redb::Error> {
    let malformed = |_error| redb::Error::from(corrupted("of a snapshot"));
    while !data.is_empty() {
        let table = take_byte(&mut data).map_err(malformed)?;
        let mut rows = Vec::new();
        let mut rest = data.clone();
        // Rows of one table lie together: open it once.
        loop {
            let key = take_bytes(&mut rest).map_err(malformed)?;
            let value = take_bytes(&mut rest).map_err(malformed)?;
            rows.push((key, value));
            data = rest.clone();
            match rest.first() {
                Some(next) if *next == table => {
                    take_byte(&mut rest).map_err(malformed)?;
                }
                _ => break,
            }
        }
        match table {
            0 => write_table(txn, LATEST, &rows)?,
            1 => write_table(txn, HISTORY, &rows)?,
            2 => write_table(txn, CHANGES, &rows)?,
            3 => write_table(txn, LEASES, &rows)?,
            4 => write_table(txn, LEASE_KEYS, &rows)?,
            5 => write_table(txn, META, &rows)?,
            _ => return Err(corrupted("of a snapshot").into()),
        }
    }
    Ok(())
}

fn write_table<K: Key + 'static, V: Value + 'static>(
    txn: &WriteTransaction,
    table: TableDefinition<'static, K, V>,
    rows: &[(Bytes, Bytes)],
) -> Result<(), redb::Error> {
    let mut table = txn.open_table(table)?;
    for (key, value) in rows {
        table.insert(K::from_bytes(key), V::from_bytes(value))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key_value::{Op, RangeRequest, Txn};
    use crate::mvcc::Machine;
    use crate::mvcc::apply::Command;
    use crate::request::Request;
    use crate::watch::hub::{Hub, HubLimits};

    fn machine(path: &Path) -> Machine {
        let hub = Arc::new(Hub::new(HubLimits {
            ring_events: 16,
            ring_bytes: 1 << 16,
            buffer: 16,
        }));
        Machine::open(path, 1 << 20, hub).unwrap()
    }

    fn position(index: u64) -> Position {
        Position {
            term: 1,
            node: 1,
            index,
        }
    }

    fn fill(machine: &Machine, keys: u64) {
        let request = |at: u64| {
            Request::Txn(Txn {
                success: vec![Op::put(format!("k{at:06}"), at.to_string().repeat(300))],
                ..Txn::default()
            })
        };
        for at in 0..keys {
            let requests = Command::Requests(vec![request(at), request(at / 2)].into());
            machine.apply(vec![(position(at), requests)]).unwrap();
        }
    }

    #[tokio::test]
    async fn a_state_survives_the_way_and_a_break() {
        let dir = tempfile::tempdir().unwrap();
        let from = machine(&dir.path().join("from.redb"));
        fill(&from, 400);
        let mut source = Source::new(from.view().unwrap());
        let mut sink = Sink::create(dir.path().join("to.redb")).unwrap();
        let mut chunks = 0;
        loop {
            source = source.at(sink.offset()).await.unwrap();
            let Some(chunk) = source.chunk() else { break };
            chunks += 1;
            if chunks == 2 {
                // Further on and back again.
                let next = source.offset() + chunk.len() as u64;
                source = source.at(next).await.unwrap();
                source = source.at(0).await.unwrap();
                source = source.at(sink.offset()).await.unwrap();
                assert_eq!(source.chunk().unwrap(), chunk);
            }
            sink.write(chunk).unwrap();
        }
        assert!(chunks > 2, "{chunks}");
        assert!(source.at(7).await.is_err());
        let path = sink.finish(Some(position(399))).unwrap();
        let to = machine(&path);
        assert_eq!(to.revision(), from.revision());
        assert_eq!(to.applied_next(), 400);
        assert_eq!(to.installed_next(), 400);
        for revision in [None, Some(150)] {
            let request = RangeRequest {
                revision,
                ..RangeRequest::prefix("k")
            };
            assert_eq!(
                to.range(&request).unwrap().kvs,
                from.range(&request).unwrap().kvs
            );
        }
    }

    #[test]
    fn hostile_rows_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = Sink::create(dir.path().join("to.redb")).unwrap();
        for bytes in [&b"\x09\x01k\x01v"[..], b"\x00\x50k", b"\x00"] {
            sink.write(Bytes::copy_from_slice(bytes)).unwrap_err();
        }
        assert_eq!(sink.offset(), 0);
    }
}
