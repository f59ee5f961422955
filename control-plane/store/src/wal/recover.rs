//! Reading the log back after a stop or a crash.
//!
//! Watches the files of the log directory; changes only a torn tail (cut off) or, when the
//! operator asked for it, what follows damage (moved aside). [`super::Wal`] carries on from
//! what is found.
//!
//! What a crash can leave: the last frame of the last segment half-written, or a last segment
//! without a whole header. Everything else is damage, and is refused with file and offset.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::frame::{self, FRAME_HEAD, FrameError, HEADER_HEAD, Header, Position, Record, Vote};
use super::{Location, Segment, segment_path, sync_directory};
use crate::error::StoreError;

const WAY_OUT: &str = "restore the directory from a copy, or create an empty file named \
    `salvage` beside it and start again to move what follows the damage aside and go on \
    without it";

/// What recovery found.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    pub(super) segments: VecDeque<Segment>,
    pub(super) locations: VecDeque<Location>,
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<Position>,
    pub(super) last: Option<Position>,
    pub(super) committed: Option<u64>,
    pub(super) next_sequence: u64,
}

/// A place that is not as it was written.
struct Damage {
    segment: usize,
    offset: usize,
    detail: String,
}

/// Reads all segments in `dir`. With `salvage`, damage ends the log instead of failing.
pub(super) fn recover(dir: &Path, salvage: bool) -> Result<Recovered, StoreError> {
    let mut paths = list(dir)?;
    let mut found = Recovered::default();
    let mut damage = None;
    for at in 0..paths.len() {
        let (number, path) = &paths[at];
        let last = at + 1 == paths.len();
        let bytes = Bytes::from(
            fs::read(path).map_err(|source| StoreError::io("read log segment", path, source))?,
        );
        match read_segment(&mut found, *number, path, &bytes, last)? {
            End::Whole => {}
            End::TornHeader => {
                // Created but never used: the creation is repeated when it is needed.
                fs::remove_file(path)
                    .map_err(|source| StoreError::io("remove torn log segment", path, source))?;
                sync_directory(dir)?;
            }
            End::TornTail(offset) => {
                tracing::warn!(path = %path.display(), offset, "cut off the torn end of the log");
                cut(path, offset)?;
                if let Some(segment) = found.segments.back_mut() {
                    segment.bytes = offset as u64;
                }
            }
            End::Damaged { offset, detail } => {
                damage = Some(Damage {
                    segment: at,
                    offset,
                    detail,
                });
                break;
            }
        }
    }
    if let Some(damage) = damage {
        let path = paths[damage.segment].1.clone();
        if !salvage {
            return Err(corrupt(&path, damage.offset, damage.detail));
        }
        tracing::warn!(path = %path.display(), offset = damage.offset, detail = damage.detail,
            "salvage: the log ends where it is damaged");
        for (_, path) in paths.split_off(damage.segment) {
            set_aside(&path)?;
        }
        // The readable part of the damaged segment lives on in a copy.
        if found
            .segments
            .back()
            .is_some_and(|segment| segment.path == path)
        {
            let aside = aside(&path);
            fs::copy(&aside, &path)
                .map_err(|source| StoreError::io("copy log segment", &path, source))?;
            cut(&path, damage.offset)?;
            if let Some(segment) = found.segments.back_mut() {
                segment.bytes = damage.offset as u64;
            }
        }
        sync_directory(dir)?;
    }
    found.finish(dir)?;
    Ok(found)
}

enum End {
    Whole,
    TornHeader,
    TornTail(usize),
    Damaged { offset: usize, detail: String },
}

fn read_segment(
    found: &mut Recovered,
    number: u64,
    path: &Path,
    bytes: &Bytes,
    last: bool,
) -> Result<End, StoreError> {
    let first = found.segments.is_empty();
    let (header, mut offset) = match frame::decode_header(bytes) {
        Ok(read) => read,
        Err(FrameError::Format(format)) => {
            return Err(StoreError::FormatTooNew {
                path: path.to_path_buf(),
                found: u64::from(format),
                supported: u64::from(frame::FORMAT),
            });
        }
        // Frames follow only a header that was synced, so without any this one never was.
        Err(_) if last && (number == 1 || !first) && is_torn_header(bytes, found.next_sequence) => {
            return Ok(End::TornHeader);
        }
        Err(error) => {
            return Ok(End::Damaged {
                offset: 0,
                detail: format!("bad segment header, {error}"),
            });
        }
    };
    if let Some(detail) = found.admit(&header, number, first) {
        return Ok(End::Damaged { offset: 0, detail });
    }
    found.segments.push_back(Segment {
        number,
        path: path.to_path_buf(),
        bytes: bytes.len() as u64,
    });
    while offset < bytes.len() {
        let checked = frame::check_frame(bytes, offset).and_then(|(sequence, body)| {
            if sequence != found.next_sequence {
                let expected = found.next_sequence;
                return Err(FrameError::Sequence {
                    expected,
                    found: sequence,
                });
            }
            Ok((body.len(), frame::decode_body(body)?))
        });
        let (length, record) = match checked {
            Ok(read) => read,
            Err(FrameError::Short | FrameError::Length(_) | FrameError::Checksum)
                if last
                    && frame::any_frame_after(bytes, offset + 1, found.next_sequence).is_none() =>
            {
                return Ok(End::TornTail(offset));
            }
            Err(error) => {
                return Ok(End::Damaged {
                    offset,
                    detail: format!("bad frame, {error}"),
                });
            }
        };
        if let Some(detail) = found.replay(record, number, offset) {
            return Ok(End::Damaged { offset, detail });
        }
        offset += FRAME_HEAD + length;
        found.next_sequence += 1;
    }
    Ok(End::Whole)
}

/// A header that was never synced: no whole frame follows, and what is there is no longer
/// than one write of a header.
fn is_torn_header(bytes: &Bytes, next_sequence: u64) -> bool {
    bytes.len() <= HEADER_HEAD + 128
        && frame::any_frame_after(bytes, 0, next_sequence.saturating_sub(1)).is_none()
}

impl Recovered {
    /// Checks a header against what came before; answers what is wrong.
    fn admit(&mut self, header: &Header, number: u64, first: bool) -> Option<String> {
        if header.number != number {
            return Some(format!("the header says it is segment {}", header.number));
        }
        if first {
            self.vote = header.vote;
            self.purged = header.purged;
            self.last = header.last;
            self.next_sequence = header.first_sequence;
            return None;
        }
        let previous = self.segments.back().map_or(0, |segment| segment.number);
        if number != previous + 1 {
            return Some(format!("segment {} is missing before it", previous + 1));
        }
        (header.first_sequence != self.next_sequence).then(|| {
            format!(
                "the segment before it ends after frame {}, this one starts with {}",
                self.next_sequence, header.first_sequence
            )
        })
    }

    /// Does again what a record did; answers what is wrong.
    fn replay(&mut self, record: Record, segment: u64, offset: usize) -> Option<String> {
        match record {
            Record::Entries { committed, entries } => {
                for entry in entries {
                    let index = entry.position.index;
                    if let Some(last) = self.last
                        && index != last.index + 1
                    {
                        return Some(format!("entry {index} follows entry {}", last.index));
                    }
                    self.last = Some(entry.position);
                    self.locations.push_back(Location {
                        position: entry.position,
                        segment,
                        offset: offset as u64,
                    });
                }
                self.committed = self.committed.max(committed);
            }
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Truncate(index) => {
                while self
                    .locations
                    .back()
                    .is_some_and(|at| at.position.index >= index)
                {
                    self.locations.pop_back();
                }
                self.last = match self.locations.back() {
                    Some(at) => Some(at.position),
                    None => index.checked_sub(1).map(|index| match self.purged {
                        Some(purged) if purged.index == index => purged,
                        // Only the index matters here: it says what must come next.
                        _ => Position {
                            term: 0,
                            node: 0,
                            index,
                        },
                    }),
                };
            }
            Record::Purge(position) => {
                self.purged = self.purged.max(Some(position));
                if self.last.is_none_or(|last| last.index < position.index) {
                    self.last = Some(position);
                }
            }
        }
        None
    }

    fn finish(&mut self, dir: &Path) -> Result<(), StoreError> {
        let next = self.purged.map_or(0, |purged| purged.index + 1);
        while self
            .locations
            .front()
            .is_some_and(|at| at.position.index < next)
        {
            self.locations.pop_front();
        }
        if let Some(at) = self.locations.front()
            && self.purged.is_some()
            && at.position.index != next
        {
            return Err(corrupt(
                &segment_path(dir, at.segment),
                0,
                format!(
                    "the log starts with entry {}, entry {next} is missing",
                    at.position.index
                ),
            ));
        }
        if self.locations.is_empty() {
            self.last = self.purged;
        }
        Ok(())
    }
}

fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let read = |source| StoreError::io("list log directory", dir, source);
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "wal")
            && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            && let Ok(number) = stem.parse()
        {
            paths.push((number, path));
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn cut(path: &Path, offset: usize) -> Result<(), StoreError> {
    let cut = |file: File| {
        file.set_len(offset as u64)?;
        file.sync_all()
    };
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(cut)
        .map_err(|source| StoreError::io("cut log segment", path, source))
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("damaged")
}

fn set_aside(path: &Path) -> Result<(), StoreError> {
    fs::rename(path, aside(path))
        .map_err(|source| StoreError::io("move damaged log segment aside", path, source))
}

/// The refusal to read on.
fn corrupt(path: &Path, offset: usize, detail: String) -> StoreError {
    StoreError::Corrupt {
        path: path.to_path_buf(),
        offset: Some(offset as u64),
        detail,
        way_out: WAY_OUT,
    }
}
