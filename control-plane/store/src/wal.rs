//! The write-ahead log: segmented, checksummed, one sync per batch.
//!
//! Watches nothing. Changes the files of `wal/`, on behalf of the Raft log storage, which
//! reacts when a sync is done. Knows nothing of Raft beyond positions and votes.
//!
//! ```text
//!   wal/0000000001.wal   header frame frame frame      full: synced, never written again
//!   wal/0000000002.wal   header frame frame            active: appended to
//! ```
//! Entries, votes, truncations and purges are all frames appended to the active segment, so
//! the newest one wins and nothing is rewritten. A segment is deleted as a whole when no entry
//! in it is needed; each segment's header repeats the vote and positions before it.

pub(crate) mod frame;
mod recover;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::error::StoreError;
use frame::{Entry, FRAME_HEAD, Header, Position, Record, Vote};

/// Where an entry's frame lies.
#[derive(Debug, Clone, Copy)]
struct Location {
    position: Position,
    segment: u64,
    offset: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    path: PathBuf,
    bytes: u64,
}

/// What is to be synced, apart from the log so that another thread can do it.
#[derive(Debug, Clone)]
pub(crate) struct SyncTarget {
    file: Arc<File>,
    path: PathBuf,
}

impl SyncTarget {
    /// Waits until everything written so far is on disk.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.file
            .sync_data()
            .map_err(|source| StoreError::io("sync log segment", &self.path, source))
    }
}

/// The log of one member.
#[derive(Debug)]
pub(crate) struct Wal {
    dir: PathBuf,
    segment_bytes: u64,
    /// Never empty; the last one is active.
    segments: VecDeque<Segment>,
    active: Arc<File>,
    locations: VecDeque<Location>,
    vote: Option<Vote>,
    purged: Option<Position>,
    committed: Option<u64>,
    next_sequence: u64,
    /// A write failed half-way: what follows on disk is unknown, so nothing may follow.
    broken: bool,
}

impl Wal {
    /// Opens the log in `dir`, which exists, and recovers it.
    pub(crate) fn open(dir: &Path, segment_bytes: u64, salvage: bool) -> Result<Self, StoreError> {
        let found = recover::recover(dir, salvage)?;
        let mut segments = found.segments;
        if segments.is_empty() {
            let header = Header {
                number: 1,
                first_sequence: found.next_sequence,
                ..Header::default()
            };
            segments.push_back(create_segment(dir, &header)?);
        }
        let active = segments
            .back()
            .map_or_else(PathBuf::new, |segment| segment.path.clone());
        let active = OpenOptions::new()
            .append(true)
            .read(true)
            .open(&active)
            .map_err(|source| StoreError::io("open log segment", &active, source))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            segment_bytes,
            segments,
            active: Arc::new(active),
            locations: found.locations,
            vote: found.vote,
            purged: found.purged,
            committed: found.committed,
            next_sequence: found.next_sequence,
            broken: false,
        })
    }

    /// The vote last saved.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.vote
    }

    /// The last entry purged.
    pub(crate) fn purged(&self) -> Option<Position> {
        self.purged
    }

    /// The last entry, or the last one purged when there is none.
    pub(crate) fn last(&self) -> Option<Position> {
        self.locations
            .back()
            .map_or(self.purged, |at| Some(at.position))
    }

    /// The last entry known to be committed, as far as the log was told.
    pub(crate) fn committed(&self) -> Option<Position> {
        let index = self.committed?;
        match self.locations.front() {
            Some(first) if index >= first.position.index => {
                let at = usize::try_from(index - first.position.index).ok()?;
                self.locations
                    .get(at)
                    .or(self.locations.back())
                    .map(|at| at.position)
            }
            _ => self.purged,
        }
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// The first entry to be kept so that the newest segments of about `bytes` are.
    pub(crate) fn keep_from(&self, bytes: u64) -> u64 {
        let mut kept = 0;
        let mut oldest = self.active_number();
        for segment in self.segments.iter().rev() {
            kept += segment.bytes;
            if kept > bytes {
                break;
            }
            oldest = segment.number;
        }
        self.locations
            .iter()
            .find(|at| at.segment >= oldest)
            .map_or(0, |at| at.position.index)
    }

    /// What [`SyncTarget::sync`] makes durable what was appended so far.
    pub(crate) fn sync_target(&self) -> SyncTarget {
        SyncTarget {
            file: Arc::clone(&self.active),
            path: self.active_path().to_path_buf(),
        }
    }

    /// Remembers how far entries are committed; written with the next entries.
    pub(crate) fn set_committed(&mut self, index: Option<u64>) {
        self.committed = self.committed.max(index);
    }

    /// Writes entries; they are durable after a sync, and readable at once.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> Result<(), StoreError> {
        let positions: Vec<Position> = entries.iter().map(|entry| entry.position).collect();
        let record = Record::Entries {
            committed: self.committed,
            entries,
        };
        let (segment, offset) = self.write(&record)?;
        self.locations
            .extend(positions.into_iter().map(|position| Location {
                position,
                segment,
                offset,
            }));
        Ok(())
    }

    /// Saves the vote durably.
    pub(crate) fn save_vote(&mut self, vote: Vote) -> Result<(), StoreError> {
        self.write(&Record::Vote(vote))?;
        self.vote = Some(vote);
        self.sync_target().sync()
    }

    /// Drops entries from `index` on, durably.
    pub(crate) fn truncate(&mut self, index: u64) -> Result<(), StoreError> {
        self.write(&Record::Truncate(index))?;
        while self
            .locations
            .back()
            .is_some_and(|at| at.position.index >= index)
        {
            self.locations.pop_back();
        }
        self.sync_target().sync()
    }

    /// Forgets entries up to `position`, durably, and deletes the segments none needs.
    pub(crate) fn purge(&mut self, position: Position) -> Result<(), StoreError> {
        if self.purged >= Some(position) {
            return Ok(());
        }
        self.write(&Record::Purge(position))?;
        self.sync_target().sync()?;
        self.purged = Some(position);
        while self
            .locations
            .front()
            .is_some_and(|at| at.position.index <= position.index)
        {
            self.locations.pop_front();
        }
        let needed = self.locations.front().map_or(u64::MAX, |at| at.segment);
        let mut deleted = false;
        while self.segments.len() > 1
            && self
                .segments
                .front()
                .is_some_and(|segment| segment.number < needed)
            && let Some(segment) = self.segments.pop_front()
        {
            fs::remove_file(&segment.path)
                .map_err(|source| StoreError::io("delete log segment", &segment.path, source))?;
            deleted = true;
        }
        if deleted {
            sync_directory(&self.dir)?;
        }
        Ok(())
    }

    /// Reads the entries with `start <= index < end` that exist, at least one if any does,
    /// and no more once they exceed `max_bytes`.
    pub(crate) fn read(
        &self,
        start: u64,
        end: u64,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let Some(first) = self.locations.front().map(|at| at.position.index) else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut index = start.max(first);
        while index < end && (bytes == 0 || bytes < max_bytes) {
            let at = usize::try_from(index - first)
                .ok()
                .and_then(|at| self.locations.get(at));
            let Some(at) = at else { break };
            // A frame's entries are all wanted, except those truncated or purged since.
            let (length, frame) = self.read_frame(at)?;
            bytes += length;
            for entry in frame {
                if entry.position.index == index && index < end {
                    entries.push(entry);
                    index += 1;
                }
            }
        }
        Ok(entries)
    }

    fn read_frame(&self, at: &Location) -> Result<(usize, Vec<Entry>), StoreError> {
        let path = segment_path(&self.dir, at.segment);
        let failed = |source| StoreError::io("read log segment", &path, source);
        let active = at.segment == self.active_number();
        let opened;
        let file = if active {
            &*self.active
        } else {
            opened = File::open(&path).map_err(failed)?;
            &opened
        };
        let mut head = [0; FRAME_HEAD];
        file.read_exact_at(&mut head, at.offset).map_err(failed)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let mut bytes = vec![0; FRAME_HEAD + length.min(frame::MAX_BODY)];
        file.read_exact_at(&mut bytes, at.offset).map_err(failed)?;
        let corrupt = |detail: String| StoreError::Corrupt {
            path: path.clone(),
            offset: Some(at.offset),
            detail,
            way_out: "stop this member and check its disk",
        };
        let (_, body) = frame::check_frame(&Bytes::from(bytes), 0)
            .map_err(|error| corrupt(error.to_string()))?;
        match frame::decode_body(body).map_err(|error| corrupt(error.to_string()))? {
            Record::Entries { entries, .. } => Ok((length, entries)),
            other => Err(corrupt(format!("{other:?} where entries belong"))),
        }
    }

    fn write(&mut self, record: &Record) -> Result<(u64, u64), StoreError> {
        if self.broken {
            return Err(StoreError::Failed {
                cause: "an earlier write to the log failed".to_owned(),
            });
        }
        if self
            .segments
            .back()
            .is_some_and(|segment| segment.bytes >= self.segment_bytes)
        {
            self.rotate()?;
        }
        let frame = frame::encode_frame(self.next_sequence, record);
        let written = (&*self.active).write_all(&frame);
        if let Err(source) = written {
            self.broken = true;
            return Err(StoreError::io(
                "write log segment",
                self.active_path(),
                source,
            ));
        }
        self.next_sequence += 1;
        let Some(segment) = self.segments.back_mut() else {
            return Err(StoreError::Closed);
        };
        let offset = segment.bytes;
        segment.bytes += frame.len() as u64;
        Ok((segment.number, offset))
    }

    fn rotate(&mut self) -> Result<(), StoreError> {
        // A later segment promises that the earlier ones are whole.
        self.sync_target().sync()?;
        let header = Header {
            number: self.active_number() + 1,
            first_sequence: self.next_sequence,
            vote: self.vote,
            purged: self.purged,
            last: self.last(),
        };
        let segment = create_segment(&self.dir, &header)?;
        let file = OpenOptions::new()
            .append(true)
            .read(true)
            .open(&segment.path)
            .map_err(|source| StoreError::io("open log segment", &segment.path, source))?;
        self.active = Arc::new(file);
        self.segments.push_back(segment);
        Ok(())
    }

    fn active_number(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.number)
    }

    fn active_path(&self) -> &Path {
        self.segments
            .back()
            .map_or(&self.dir, |segment| &segment.path)
    }
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:010}.wal"))
}

/// Makes a segment whose header, and whose name, are on disk when this returns.
fn create_segment(dir: &Path, header: &Header) -> Result<Segment, StoreError> {
    let path = segment_path(dir, header.number);
    let bytes = frame::encode_header(header);
    let create = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    create().map_err(|source| StoreError::io("create log segment", &path, source))?;
    sync_directory(dir)?;
    Ok(Segment {
        number: header.number,
        path,
        bytes: bytes.len() as u64,
    })
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(|source| StoreError::io("sync directory", dir, source))
}
