//! The bytes of the log: segment headers and frames, and how to read them back.
//!
//! Watches and changes nothing: pure encoding and checking. [`super`] writes what this
//! encodes; [`super::recover`] reads it.
//!
//! ```text
//!   segment := header frame*
//!   header  := "PNTLWAL1" format:u32 length:u32 crc32c:u32 body     (crc over format..body)
//!   frame   := length:u32 crc32c:u32 sequence:u64 body              (crc over length, sequence, body)
//! ```
//! A frame is what one sync makes durable. The next frame is written only after that, so a
//! valid frame proves that everything before it was once whole.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::request::{DecodeError, put_bytes, put_number, take_byte, take_bytes, take_number};

/// Starts every segment.
pub(crate) const MAGIC: &[u8; 8] = b"PNTLWAL1";
/// Newest format this program writes and reads.
pub(crate) const FORMAT: u32 = 1;
/// Bytes before a frame's body.
pub(crate) const FRAME_HEAD: usize = 16;
/// Bytes before a header's body.
pub(crate) const HEADER_HEAD: usize = 20;
/// Largest body of a frame.
pub(crate) const MAX_BODY: usize = 64 << 20;

/// Identifies a log entry: the leader that made it and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) index: u64,
}

/// Whom this member follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vote {
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) committed: bool,
}

/// What an entry holds; opaque to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Nothing; a new leader's first entry.
    Blank,
    /// Encoded requests.
    Requests(Bytes),
    /// Encoded membership of the group.
    Membership(Bytes),
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) position: Position,
    pub(crate) payload: Payload,
}

impl Entry {
    /// About how many bytes it takes in a frame.
    pub(crate) fn bytes(&self) -> usize {
        match &self.payload {
            Payload::Blank => 48,
            Payload::Requests(bytes) | Payload::Membership(bytes) => bytes.len() + 48,
        }
    }
}

/// One durable step of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// Entries were added; `committed` is a hint how far they were known to be committed.
    Entries {
        committed: Option<u64>,
        entries: Vec<Entry>,
    },
    /// The vote changed.
    Vote(Vote),
    /// Entries from an index on were dropped.
    Truncate(u64),
    /// Entries up to a position, inclusive, are no longer needed.
    Purge(Position),
}

/// What a segment says of the log before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Header {
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) vote: Option<Vote>,
    pub(crate) purged: Option<Position>,
    pub(crate) last: Option<Position>,
}

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("it ends early")]
    Short,
    #[error("the length {0} is impossible")]
    Length(usize),
    #[error("the checksum does not match")]
    Checksum,
    #[error("sequence {found} follows where {expected} belongs")]
    Sequence { expected: u64, found: u64 },
    #[error("it is not a log segment")]
    Magic,
    #[error("the format {0} is newer than this program")]
    Format(u32),
    #[error(transparent)]
    Body(#[from] DecodeError),
}

/// Encodes a frame.
pub(crate) fn encode_frame(sequence: u64, record: &Record) -> BytesMut {
    let hint = match record {
        Record::Entries { entries, .. } => entries.iter().map(Entry::bytes).sum(),
        _ => 48,
    };
    let mut out = BytesMut::with_capacity(FRAME_HEAD + hint + 16);
    out.put_u64_le(0);
    out.put_u64_le(sequence);
    match record {
        Record::Entries { committed, entries } => {
            out.put_u8(1);
            put_number(&mut out, committed.map_or(0, |index| index + 1));
            put_number(&mut out, entries.len() as u64);
            for entry in entries {
                put_position(&mut out, entry.position);
                match &entry.payload {
                    Payload::Blank => out.put_u8(0),
                    Payload::Requests(bytes) => {
                        out.put_u8(1);
                        put_bytes(&mut out, bytes);
                    }
                    Payload::Membership(bytes) => {
                        out.put_u8(2);
                        put_bytes(&mut out, bytes);
                    }
                }
            }
        }
        Record::Vote(vote) => {
            out.put_u8(2);
            put_vote(&mut out, *vote);
        }
        Record::Truncate(index) => {
            out.put_u8(3);
            put_number(&mut out, *index);
        }
        Record::Purge(position) => {
            out.put_u8(4);
            put_position(&mut out, *position);
        }
    }
    let length = u32::try_from(out.len() - FRAME_HEAD).unwrap_or(u32::MAX);
    let crc = frame_crc(length, &out[8..]);
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Checks the frame that starts at `offset` and answers its sequence and body.
pub(crate) fn check_frame(segment: &Bytes, offset: usize) -> Result<(u64, Bytes), FrameError> {
    let mut head = segment.slice(offset..);
    if head.len() < FRAME_HEAD {
        return Err(FrameError::Short);
    }
    let length = head.get_u32_le();
    let crc = head.get_u32_le();
    let body = length as usize;
    if body == 0 || body > MAX_BODY {
        return Err(FrameError::Length(body));
    }
    if head.len() < 8 + body {
        return Err(FrameError::Short);
    }
    head.truncate(8 + body);
    if frame_crc(length, &head) != crc {
        return Err(FrameError::Checksum);
    }
    let sequence = head.get_u64_le();
    Ok((sequence, head))
}

/// Whether a whole frame with a sequence near `expected` starts anywhere in `offset..`.
pub(crate) fn any_frame_after(segment: &Bytes, offset: usize, expected: u64) -> Option<usize> {
    let end = segment.len().checked_sub(FRAME_HEAD)?;
    (offset..=end).find(|&at| {
        let sequence = &segment[at + 8..at + 16];
        let sequence = sequence
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        sequence.wrapping_sub(expected) < 1 << 32 && check_frame(segment, at).is_ok()
    })
}

/// Decodes a frame's body.
pub(crate) fn decode_body(mut body: Bytes) -> Result<Record, DecodeError> {
    let record = match take_byte(&mut body)? {
        1 => {
            let committed = take_number(&mut body)?.checked_sub(1);
            let count = take_number(&mut body)?;
            let mut entries = Vec::new();
            for _ in 0..count {
                let position = take_position(&mut body)?;
                let payload = match take_byte(&mut body)? {
                    0 => Payload::Blank,
                    1 => Payload::Requests(take_bytes(&mut body)?),
                    2 => Payload::Membership(take_bytes(&mut body)?),
                    tag => {
                        return Err(DecodeError::Tag {
                            field: "entry",
                            tag,
                        });
                    }
                };
                entries.push(Entry { position, payload });
            }
            Record::Entries { committed, entries }
        }
        2 => Record::Vote(take_vote(&mut body)?),
        3 => Record::Truncate(take_number(&mut body)?),
        4 => Record::Purge(take_position(&mut body)?),
        tag => {
            return Err(DecodeError::Tag {
                field: "record",
                tag,
            });
        }
    };
    if body.is_empty() {
        Ok(record)
    } else {
        Err(DecodeError::Trailing { left: body.len() })
    }
}

/// Encodes a segment's header.
pub(crate) fn encode_header(header: &Header) -> BytesMut {
    let mut out = BytesMut::with_capacity(128);
    out.put_slice(MAGIC);
    out.put_u32_le(FORMAT);
    out.put_u64_le(0);
    put_number(&mut out, header.number);
    put_number(&mut out, header.first_sequence);
    match header.vote {
        None => out.put_u8(0),
        Some(vote) => {
            out.put_u8(1);
            put_vote(&mut out, vote);
        }
    }
    for position in [header.purged, header.last] {
        match position {
            None => out.put_u8(0),
            Some(position) => {
                out.put_u8(1);
                put_position(&mut out, position);
            }
        }
    }
    let length = u32::try_from(out.len() - HEADER_HEAD).unwrap_or(u32::MAX);
    out[12..16].copy_from_slice(&length.to_le_bytes());
    let crc = header_crc(FORMAT, length, &out[HEADER_HEAD..]);
    out[16..20].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes the header at the start of a segment and answers where the frames begin.
pub(crate) fn decode_header(segment: &Bytes) -> Result<(Header, usize), FrameError> {
    let mut input = segment.clone();
    if input.len() < HEADER_HEAD {
        return Err(FrameError::Short);
    }
    if input.split_to(8)[..] != MAGIC[..] {
        return Err(FrameError::Magic);
    }
    let format = input.get_u32_le();
    let length = input.get_u32_le();
    let crc = input.get_u32_le();
    if length as usize > input.len() {
        return Err(FrameError::Short);
    }
    input.truncate(length as usize);
    if header_crc(format, length, &input) != crc {
        return Err(FrameError::Checksum);
    }
    if format > FORMAT {
        return Err(FrameError::Format(format));
    }
    let number = take_number(&mut input)?;
    let first_sequence = take_number(&mut input)?;
    let vote = match take_byte(&mut input)? {
        0 => None,
        _ => Some(take_vote(&mut input)?),
    };
    let mut position = || -> Result<Option<Position>, DecodeError> {
        Ok(match take_byte(&mut input)? {
            0 => None,
            _ => Some(take_position(&mut input)?),
        })
    };
    let header = Header {
        number,
        first_sequence,
        vote,
        purged: position()?,
        last: position()?,
    };
    Ok((header, HEADER_HEAD + length as usize))
}

fn frame_crc(length: u32, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), rest)
}

fn header_crc(format: u32, length: u32, body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&format.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &length.to_le_bytes()), body)
}

/// Appends a position.
pub(crate) fn put_position(out: &mut BytesMut, position: Position) {
    put_number(out, position.term);
    put_number(out, position.node);
    put_number(out, position.index);
}

/// Takes a position.
pub(crate) fn take_position(input: &mut Bytes) -> Result<Position, DecodeError> {
    Ok(Position {
        term: take_number(input)?,
        node: take_number(input)?,
        index: take_number(input)?,
    })
}

/// Appends a vote.
pub(crate) fn put_vote(out: &mut BytesMut, vote: Vote) {
    put_number(out, vote.term);
    put_number(out, vote.node);
    out.put_u8(u8::from(vote.committed));
}

/// Takes a vote.
pub(crate) fn take_vote(input: &mut Bytes) -> Result<Vote, DecodeError> {
    Ok(Vote {
        term: take_number(input)?,
        node: take_number(input)?,
        committed: take_byte(input)? != 0,
    })
}
