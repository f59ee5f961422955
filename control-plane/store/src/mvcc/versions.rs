//! Every kept version of a range of keys, in the order they were written.
//!
//! Watches and changes nothing; the etcd API makes its snapshots of it. The tables lie in key
//! order, so the order of revisions comes from an external sort of what is small: heads and keys,
//! not values. It takes a few megabytes of memory however much there is; what does not fit goes
//! to a file without a name beside the state database.
//!
//! ```text
//!   latest, history ──▶ runs (sorted, in memory or in the file) ──▶ merge ──▶ versions
//!        ▲                                                                      │
//!        └──────────────────────────── value, one by one ◀──────────────────────┘
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use redb::ReadOnlyTable;

use super::Machine;
use super::read::View;
use super::tables::{HISTORY, LATEST, StateRow, VersionHead, corrupted, value_of};
use crate::error::StoreError;
use crate::key_value::{LeaseId, Revision};

/// Bytes sorted in memory at once.
const RUN_BYTES: usize = 4 << 20;
/// Bytes of a run that are read ahead of the merge.
const READ_AHEAD: usize = 32 << 10;
/// Bytes of a record before its key.
const RECORD_HEAD: usize = 39;
/// Rows between two looks at whether the result is still wanted.
const PATIENCE: usize = 256;

/// One kept version, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Whose version it is.
    pub key: Bytes,
    /// When it was written.
    pub mod_revision: Revision,
    /// When the key was created.
    pub create_revision: Revision,
    /// Writes since the creation.
    pub version: u64,
    /// The lease it is bound to, or 0.
    pub lease: LeaseId,
    /// Bytes of the value.
    pub value_bytes: usize,
    /// The key was deleted then; there is no more to it.
    pub deleted: bool,
    /// There is a newer one.
    superseded: bool,
}

/// The kept versions of a range, as of one revision.
pub struct Versions {
    latest: ReadOnlyTable<&'static [u8], &'static [u8]>,
    history: ReadOnlyTable<(&'static [u8], u64), &'static [u8]>,
    state: StateRow,
    leases: Vec<(LeaseId, Duration)>,
    runs: Vec<Run>,
    file: Option<File>,
    path: PathBuf,
}

impl Machine {
    /// Gathers and sorts the versions of `start..end`, until `wanted` says no, which ends it with
    /// [`StoreError::Closed`].
    pub(crate) fn versions(
        &self,
        start: &[u8],
        end: &[u8],
        wanted: &dyn Fn() -> bool,
    ) -> Result<Versions, StoreError> {
        Versions::gather(&self.view()?, self.path(), (start, end), RUN_BYTES, wanted)
    }
}

impl Versions {
    fn gather(
        view: &View,
        beside: &Path,
        (start, end): (&[u8], &[u8]),
        run_bytes: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Self, StoreError> {
        let read = |error: redb::Error| StoreError::database("read versions", error);
        let latest = view
            .txn()
            .open_table(LATEST)
            .map_err(|error| read(error.into()))?;
        let history = view
            .txn()
            .open_table(HISTORY)
            .map_err(|error| read(error.into()))?;
        let mut sorter = Sorter::new(beside, run_bytes);
        let mut rows = 0;
        let mut goes_on = || {
            rows += 1;
            if rows % PATIENCE == 0 && !wanted() {
                return Err(StoreError::Closed);
            }
            Ok(())
        };
        let all = latest.range(start..end);
        for row in all.map_err(|error| read(error.into()))? {
            goes_on()?;
            let (key, row) = row.map_err(|error| read(error.into()))?;
            let head = VersionHead::decode(row.value());
            let head = head.ok_or_else(|| read(corrupted("latest").into()))?;
            let value = value_of(row.value()).len();
            sorter.push(&Record::new(key.value(), head, value, 0))?;
        }
        let all = history.range((start, 0)..(end, 0));
        for row in all.map_err(|error| read(error.into()))? {
            goes_on()?;
            let (at, row) = row.map_err(|error| read(error.into()))?;
            let ((key, mod_revision), row) = (at.value(), row.value());
            let (head, flags) = if row.is_empty() {
                let head = VersionHead {
                    mod_revision,
                    ..VersionHead::default()
                };
                (Some(head), SUPERSEDED | DELETED)
            } else {
                (VersionHead::decode(row), SUPERSEDED)
            };
            let head = head.ok_or_else(|| read(corrupted("history").into()))?;
            sorter.push(&Record::new(key, head, value_of(row).len(), flags))?;
        }
        let (runs, file) = sorter.finish()?;
        Ok(Self {
            latest,
            history,
            state: view.state()?,
            leases: view.leases()?,
            runs,
            file,
            path: beside.to_path_buf(),
        })
    }

    /// The newest revision when they were gathered.
    pub fn revision(&self) -> Revision {
        self.state.revision
    }

    /// The oldest readable revision then.
    pub fn compacted(&self) -> Revision {
        self.state.compacted
    }

    /// Index and term of the log's last entry in it.
    pub fn applied(&self) -> (u64, u64) {
        let applied = self.state.applied;
        applied.map_or((0, 0), |at| (at.index, at.term))
    }

    /// All leases and their time to live, in order.
    pub fn leases(&self) -> &[(LeaseId, Duration)] {
        &self.leases
    }

    /// Goes through them by revision and, within one, by key. May be called again.
    pub fn in_order(&self) -> Result<VersionIter<'_>, StoreError> {
        let mut merge = VersionIter {
            versions: self,
            readers: Vec::with_capacity(self.runs.len()),
            heap: BinaryHeap::with_capacity(self.runs.len()),
        };
        for run in &self.runs {
            merge.readers.push(match (run, &self.file) {
                (Run::File { start, end }, Some(file)) => {
                    let section = Section {
                        file,
                        at: *start,
                        end: *end,
                    };
                    Reader::File(BufReader::with_capacity(READ_AHEAD, section))
                }
                (Run::Memory { arena, order }, _) => Reader::Memory(arena, order.iter()),
                (Run::File { .. }, None) => return Err(StoreError::Closed),
            });
        }
        for at in 0..merge.readers.len() {
            merge.advance(at)?;
        }
        Ok(merge)
    }

    /// The value of one of them.
    pub fn value(&self, of: &Version) -> Result<Bytes, StoreError> {
        if of.deleted {
            return Ok(Bytes::new());
        }
        let key = &of.key[..];
        let row = if of.superseded {
            self.history.get((key, of.mod_revision))
        } else {
            self.latest.get(key)
        };
        let row = row.map_err(|error| StoreError::database("read a version", error))?;
        // The view is the one they were gathered from.
        let row = row.ok_or_else(|| {
            let error = corrupted(if of.superseded { "history" } else { "latest" });
            StoreError::database("read a version", error)
        })?;
        Ok(Bytes::copy_from_slice(value_of(row.value())))
    }
}

impl std::fmt::Debug for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Versions")
            .field("revision", &self.state.revision)
            .finish_non_exhaustive()
    }
}

/// Set in a record's flags for a version that has a newer one.
const SUPERSEDED: u8 = 1;
/// Set for a deletion.
const DELETED: u8 = 2;

/// What is sorted, as bytes: revision, length of the key, key, the rest.
struct Record<'a> {
    key: &'a [u8],
    head: VersionHead,
    value_bytes: usize,
    flags: u8,
}

impl<'a> Record<'a> {
    fn new(key: &'a [u8], head: VersionHead, value_bytes: usize, flags: u8) -> Self {
        Self {
            key,
            head,
            value_bytes,
            flags,
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.put_u64(self.head.mod_revision);
        // Keys and values are far shorter than these numbers hold.
        to.put_u16(u16::try_from(self.key.len()).unwrap_or(u16::MAX));
        to.put_u64(self.head.create_revision);
        to.put_u64(self.head.version);
        to.put_u64(self.head.lease);
        to.put_u32(u32::try_from(self.value_bytes).unwrap_or(u32::MAX));
        to.put_u8(self.flags);
        to.put_slice(self.key);
    }
}

/// Length of the whole record that starts here.
fn record_length(record: &[u8]) -> usize {
    RECORD_HEAD + usize::from(u16::from_be_bytes([record[8], record[9]]))
}

/// What records are sorted by.
fn order_of(record: &[u8]) -> (&[u8], &[u8]) {
    (&record[..8], &record[RECORD_HEAD..record_length(record)])
}

fn decode(mut head: &[u8], key: Bytes) -> Version {
    let mod_revision = head.get_u64();
    head.advance(2);
    let (create_revision, version, lease) = (head.get_u64(), head.get_u64(), head.get_u64());
    let value_bytes = head.get_u32() as usize;
    let flags = head.get_u8();
    Version {
        key,
        mod_revision,
        create_revision,
        version,
        lease,
        value_bytes,
        deleted: flags & DELETED != 0,
        superseded: flags & SUPERSEDED != 0,
    }
}

/// Sorted records.
enum Run {
    /// Records, and where each starts in the order they are sorted to.
    Memory { arena: Vec<u8>, order: Vec<u32> },
    /// A stretch of the file.
    File { start: u64, end: u64 },
}

struct Sorter<'a> {
    beside: &'a Path,
    run_bytes: usize,
    arena: Vec<u8>,
    order: Vec<u32>,
    runs: Vec<Run>,
    file: Option<File>,
    written: u64,
}

impl<'a> Sorter<'a> {
    fn new(beside: &'a Path, run_bytes: usize) -> Self {
        Self {
            beside,
            run_bytes,
            arena: Vec::new(),
            order: Vec::new(),
            runs: Vec::new(),
            file: None,
            written: 0,
        }
    }

    fn push(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        if self.arena.len() >= self.run_bytes {
            self.spill()?;
        }
        // The arena ends soon after the limit of a run.
        self.order
            .push(u32::try_from(self.arena.len()).unwrap_or(u32::MAX));
        record.write(&mut self.arena);
        Ok(())
    }

    fn sort(&mut self) {
        let arena = &self.arena;
        let record = |at: &u32| order_of(&arena[*at as usize..]);
        self.order
            .sort_unstable_by(|one, other| record(one).cmp(&record(other)));
    }

    /// Writes what is in memory to the file, as one run.
    fn spill(&mut self) -> Result<(), StoreError> {
        self.sort();
        let failed = |source| StoreError::io("sort versions beside", self.beside, source);
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let dir = self.beside.parent().unwrap_or(self.beside);
                none.insert(tempfile::tempfile_in(dir).map_err(failed)?)
            }
        };
        let mut out = BufWriter::with_capacity(READ_AHEAD, file);
        for at in &self.order {
            let record = &self.arena[*at as usize..];
            out.write_all(&record[..record_length(record)])
                .map_err(failed)?;
        }
        out.flush().map_err(failed)?;
        drop(out);
        let start = self.written;
        self.written += self.arena.len() as u64;
        self.runs.push(Run::File {
            start,
            end: self.written,
        });
        self.arena.clear();
        self.order.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(Vec<Run>, Option<File>), StoreError> {
        if self.runs.is_empty() {
            self.sort();
            self.runs.push(Run::Memory {
                arena: self.arena,
                order: self.order,
            });
        } else if !self.order.is_empty() {
            self.spill()?;
        }
        Ok((self.runs, self.file))
    }
}

/// A stretch of a file, to be read from its start.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(into.len());
        let read = self.file.read_at(&mut into[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

enum Reader<'a> {
    Memory(&'a [u8], std::slice::Iter<'a, u32>),
    File(BufReader<Section<'a>>),
}

impl Reader<'_> {
    fn next(&mut self) -> io::Result<Option<Version>> {
        match self {
            Self::Memory(arena, order) => Ok(order.next().map(|at| {
                let record = &arena[*at as usize..];
                let key = &record[RECORD_HEAD..record_length(record)];
                decode(record, Bytes::copy_from_slice(key))
            })),
            Self::File(file) => {
                let section = file.get_ref();
                if section.at >= section.end && file.buffer().is_empty() {
                    return Ok(None);
                }
                let mut head = [0; RECORD_HEAD];
                file.read_exact(&mut head)?;
                let mut key = vec![0; record_length(&head) - RECORD_HEAD];
                file.read_exact(&mut key)?;
                Ok(Some(decode(&head, key.into())))
            }
        }
    }
}

/// Goes through [`Versions`].
pub struct VersionIter<'a> {
    versions: &'a Versions,
    readers: Vec<Reader<'a>>,
    heap: BinaryHeap<Reverse<Head>>,
}

/// The next version of a run.
struct Head {
    version: Version,
    reader: usize,
}

impl Head {
    fn order(&self) -> (Revision, &[u8]) {
        (self.version.mod_revision, &self.version.key)
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl VersionIter<'_> {
    fn advance(&mut self, reader: usize) -> Result<(), StoreError> {
        let next = self.readers[reader].next();
        let next = next.map_err(|source| {
            StoreError::io("sort versions beside", &self.versions.path, source)
        })?;
        self.heap
            .extend(next.map(|version| Reverse(Head { version, reader })));
        Ok(())
    }
}

impl Iterator for VersionIter<'_> {
    type Item = Result<Version, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse(head) = self.heap.pop()?;
        Some(self.advance(head.reader).map(|()| head.version))
    }
}

impl std::fmt::Debug for VersionIter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionIter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key_value::{Op, Txn};
    use crate::mvcc::apply::Command;
    use crate::request::Request;
    use crate::wal::frame::Position;
    use crate::watch::hub::{Hub, HubLimits};

    fn machine(dir: &Path) -> Machine {
        let limits = HubLimits {
            ring_events: 1,
            ring_bytes: 1,
            buffer: 1,
        };
        Machine::open(&dir.join("state.redb"), 1 << 20, Arc::new(Hub::new(limits))).unwrap()
    }

    fn apply(machine: &Machine, index: u64, success: Vec<Op>) {
        let txn = Txn {
            success,
            ..Txn::default()
        };
        let position = Position {
            term: 3,
            node: 1,
            index,
        };
        let requests = Command::Requests(vec![Request::Txn(txn)].into());
        machine.apply(vec![(position, requests)]).unwrap();
    }

    #[test]
    fn versions_come_by_revision_from_memory_and_from_runs() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let mut written = Vec::new();
        for index in 1..=300_u64 {
            // In an order that is not the keys'.
            let key = format!("k/{:03}", index * 37 % 101);
            let value = "x".repeat(usize::try_from(index).unwrap());
            let ops = if index % 7 == 0 {
                vec![Op::delete(key.clone().into_bytes())]
            } else {
                vec![
                    Op::put(key.clone().into_bytes(), value.clone().into_bytes()),
                    Op::put(format!("other/{index}").into_bytes(), "not of the range"),
                ]
            };
            let before = machine.revision();
            let deleted = index % 7 == 0;
            apply(&machine, index, ops);
            if machine.revision() > before {
                written.push((
                    machine.revision(),
                    key,
                    if deleted { String::new() } else { value },
                ));
            }
        }
        let view = machine.view().unwrap();
        for run_bytes in [RUN_BYTES, 1000, 1] {
            let range = (&b"k/"[..], &b"k0"[..]);
            let versions =
                Versions::gather(&view, machine.path(), range, run_bytes, &|| true).unwrap();
            assert_eq!(versions.runs.len() == 1, run_bytes == RUN_BYTES);
            assert_eq!(versions.revision(), machine.revision());
            assert_eq!(versions.applied(), (300, 3));
            // Twice, as a snapshot does.
            for _ in 0..2 {
                let found: Vec<_> = versions
                    .in_order()
                    .unwrap()
                    .map(|version| {
                        let version = version.unwrap();
                        let value = versions.value(&version).unwrap();
                        assert_eq!(value.len(), version.value_bytes);
                        assert_eq!(version.deleted, value.is_empty());
                        (
                            version.mod_revision,
                            String::from_utf8(version.key.to_vec()).unwrap(),
                            String::from_utf8(value.to_vec()).unwrap(),
                        )
                    })
                    .collect();
                assert_eq!(found, written);
            }
        }
        let unwanted = Versions::gather(&view, machine.path(), (b"", b"z"), 1, &|| false);
        assert!(matches!(unwanted, Err(StoreError::Closed)));
    }
}
