//! The bodies of the messages between members.
//!
//! Watches and changes nothing: pure encoding, built from the log's own (a batch of entries
//! travels as the very frame it is stored in, checksum and all).

use bytes::{BufMut, Bytes, BytesMut};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{LogId, SnapshotMeta, StoredMembership, Vote};

use super::types::{
    TypeConfig, decode_entry, decode_membership, encode_entry, encode_membership, log_id, position,
};
use crate::error::StoreError;
use crate::failure::chain;
use crate::request::{DecodeError, put_bytes, put_number, take_byte, take_bytes, take_number};
use crate::wal::frame::{self, Record};

/// What a snapshot is: openraft's description.
pub(crate) type Meta = SnapshotMeta<u64, openraft::BasicNode>;

/// A body that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageError {
    /// Its fields.
    #[error(transparent)]
    Field(#[from] DecodeError),
    /// Its frame of entries.
    #[error("entries: {0}")]
    Frame(#[from] frame::FrameError),
    /// An entry or membership in it.
    #[error("{0}")]
    Content(String),
}

impl From<StoreError> for MessageError {
    fn from(error: StoreError) -> Self {
        Self::Content(chain(&error))
    }
}

fn put_vote(out: &mut BytesMut, vote: &Vote<u64>) {
    frame::put_vote(
        out,
        frame::Vote {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        },
    );
}

fn take_vote(input: &mut Bytes) -> Result<Vote<u64>, DecodeError> {
    let vote = frame::take_vote(input)?;
    Ok(if vote.committed {
        Vote::new_committed(vote.term, vote.node)
    } else {
        Vote::new(vote.term, vote.node)
    })
}

fn put_log_id(out: &mut BytesMut, id: Option<&LogId<u64>>) {
    match id {
        None => out.put_u8(0),
        Some(id) => {
            out.put_u8(1);
            frame::put_position(out, position(*id));
        }
    }
}

fn take_log_id(input: &mut Bytes) -> Result<Option<LogId<u64>>, DecodeError> {
    Ok(match take_byte(input)? {
        0 => None,
        _ => Some(log_id(frame::take_position(input)?)),
    })
}

fn finished<T>(input: &Bytes, value: T) -> Result<T, MessageError> {
    if input.is_empty() {
        Ok(value)
    } else {
        Err(DecodeError::Trailing { left: input.len() }.into())
    }
}

/// Entries from the leader.
pub(crate) fn encode_append(rpc: &AppendEntriesRequest<TypeConfig>) -> Result<Bytes, StoreError> {
    let entries: Vec<_> = rpc
        .entries
        .iter()
        .map(encode_entry)
        .collect::<Result<_, _>>()?;
    let record = Record::Entries {
        committed: None,
        entries,
    };
    let frame = frame::encode_frame(0, &record);
    let mut out = BytesMut::with_capacity(frame.len() + 96);
    put_vote(&mut out, &rpc.vote);
    put_log_id(&mut out, rpc.prev_log_id.as_ref());
    put_log_id(&mut out, rpc.leader_commit.as_ref());
    out.put_slice(&frame);
    Ok(out.freeze())
}

/// The inverse of [`encode_append`].
pub(crate) fn decode_append(
    mut input: Bytes,
) -> Result<AppendEntriesRequest<TypeConfig>, MessageError> {
    let vote = take_vote(&mut input)?;
    let prev_log_id = take_log_id(&mut input)?;
    let leader_commit = take_log_id(&mut input)?;
    let (_, body) = frame::check_frame(&input, 0)?;
    let Record::Entries { entries, .. } = frame::decode_body(body)? else {
        return Err(MessageError::Content("no entries where they belong".into()));
    };
    Ok(AppendEntriesRequest {
        vote,
        prev_log_id,
        entries: entries
            .into_iter()
            .map(decode_entry)
            .collect::<Result<_, _>>()?,
        leader_commit,
    })
}

/// The follower's answer.
pub(crate) fn encode_appended(response: &AppendEntriesResponse<u64>) -> Bytes {
    let mut out = BytesMut::with_capacity(40);
    match response {
        AppendEntriesResponse::Success => out.put_u8(0),
        AppendEntriesResponse::PartialSuccess(matching) => {
            out.put_u8(1);
            put_log_id(&mut out, matching.as_ref());
        }
        AppendEntriesResponse::Conflict => out.put_u8(2),
        AppendEntriesResponse::HigherVote(vote) => {
            out.put_u8(3);
            put_vote(&mut out, vote);
        }
    }
    out.freeze()
}

/// The inverse of [`encode_appended`].
pub(crate) fn decode_appended(
    mut input: Bytes,
) -> Result<AppendEntriesResponse<u64>, MessageError> {
    let response = match take_byte(&mut input)? {
        0 => AppendEntriesResponse::Success,
        1 => AppendEntriesResponse::PartialSuccess(take_log_id(&mut input)?),
        2 => AppendEntriesResponse::Conflict,
        3 => AppendEntriesResponse::HigherVote(take_vote(&mut input)?),
        tag => {
            return Err(DecodeError::Tag {
                field: "append's answer",
                tag,
            }
            .into());
        }
    };
    finished(&input, response)
}

/// A candidate asks for a vote, or whether it would get one.
pub(crate) fn encode_vote(rpc: &VoteRequest<u64>) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    put_vote(&mut out, &rpc.vote);
    put_log_id(&mut out, rpc.last_log_id.as_ref());
    out.freeze()
}

/// The inverse of [`encode_vote`].
pub(crate) fn decode_vote(mut input: Bytes) -> Result<VoteRequest<u64>, MessageError> {
    let vote = take_vote(&mut input)?;
    let last_log_id = take_log_id(&mut input)?;
    finished(&input, VoteRequest { vote, last_log_id })
}

/// The voter's answer.
pub(crate) fn encode_voted(response: &VoteResponse<u64>) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    put_vote(&mut out, &response.vote);
    out.put_u8(u8::from(response.vote_granted));
    put_log_id(&mut out, response.last_log_id.as_ref());
    out.freeze()
}

/// The inverse of [`encode_voted`].
pub(crate) fn decode_voted(mut input: Bytes) -> Result<VoteResponse<u64>, MessageError> {
    let response = VoteResponse {
        vote: take_vote(&mut input)?,
        vote_granted: take_byte(&mut input)? != 0,
        last_log_id: take_log_id(&mut input)?,
    };
    finished(&input, response)
}

/// One step of a snapshot's transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SnapshotStep {
    /// Asks where to begin: 0, or where a broken transfer of the same snapshot ended.
    Begin { transfer: u64, vote: Vote<u64> },
    /// Bytes at an offset. Answered with the offset wanted next.
    Chunk {
        transfer: u64,
        offset: u64,
        crc: u32,
        data: Bytes,
    },
    /// All was sent: install it. Answered with the follower's vote.
    Finish {
        transfer: u64,
        vote: Vote<u64>,
        meta: Meta,
        bytes: u64,
    },
}

/// Encodes a step.
pub(crate) fn encode_snapshot(step: &SnapshotStep) -> Result<Bytes, StoreError> {
    let mut out = BytesMut::with_capacity(match step {
        SnapshotStep::Chunk { data, .. } => data.len() + 48,
        _ => 256,
    });
    match step {
        SnapshotStep::Begin { transfer, vote } => {
            out.put_u8(0);
            put_number(&mut out, *transfer);
            put_vote(&mut out, vote);
        }
        SnapshotStep::Chunk {
            transfer,
            offset,
            crc,
            data,
        } => {
            out.put_u8(1);
            put_number(&mut out, *transfer);
            put_number(&mut out, *offset);
            out.put_u32_le(*crc);
            put_bytes(&mut out, data);
        }
        SnapshotStep::Finish {
            transfer,
            vote,
            meta,
            bytes,
        } => {
            out.put_u8(2);
            put_number(&mut out, *transfer);
            put_vote(&mut out, vote);
            put_log_id(&mut out, meta.last_log_id.as_ref());
            put_log_id(&mut out, meta.last_membership.log_id().as_ref());
            put_bytes(
                &mut out,
                &encode_membership(meta.last_membership.membership())?,
            );
            put_bytes(&mut out, meta.snapshot_id.as_bytes());
            put_number(&mut out, *bytes);
        }
    }
    Ok(out.freeze())
}

/// The inverse of [`encode_snapshot`].
pub(crate) fn decode_snapshot(mut input: Bytes) -> Result<SnapshotStep, MessageError> {
    let step = match take_byte(&mut input)? {
        0 => SnapshotStep::Begin {
            transfer: take_number(&mut input)?,
            vote: take_vote(&mut input)?,
        },
        1 => {
            let transfer = take_number(&mut input)?;
            let offset = take_number(&mut input)?;
            let mut crc = [0; 4];
            for byte in &mut crc {
                *byte = take_byte(&mut input)?;
            }
            SnapshotStep::Chunk {
                transfer,
                offset,
                crc: u32::from_le_bytes(crc),
                data: take_bytes(&mut input)?,
            }
        }
        2 => {
            let transfer = take_number(&mut input)?;
            let vote = take_vote(&mut input)?;
            let last_log_id = take_log_id(&mut input)?;
            let at = take_log_id(&mut input)?;
            let membership = decode_membership(&take_bytes(&mut input)?)?;
            let id = take_bytes(&mut input)?;
            SnapshotStep::Finish {
                transfer,
                vote,
                meta: Meta {
                    last_log_id,
                    last_membership: StoredMembership::new(at, membership),
                    snapshot_id: String::from_utf8_lossy(&id).into_owned(),
                },
                bytes: take_number(&mut input)?,
            }
        }
        tag => {
            return Err(DecodeError::Tag {
                field: "snapshot step",
                tag,
            }
            .into());
        }
    };
    finished(&input, step)
}

/// A number on its own.
pub(crate) fn encode_number(number: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(10);
    put_number(&mut out, number);
    out.freeze()
}

/// The inverse of [`encode_number`].
pub(crate) fn decode_number(mut input: Bytes) -> Result<u64, MessageError> {
    let number = take_number(&mut input)?;
    finished(&input, number)
}

/// The follower's vote after an installation.
pub(crate) fn encode_installed(response: &SnapshotResponse<u64>) -> Bytes {
    let mut out = BytesMut::with_capacity(24);
    put_vote(&mut out, &response.vote);
    out.freeze()
}

/// The inverse of [`encode_installed`].
pub(crate) fn decode_installed(mut input: Bytes) -> Result<SnapshotResponse<u64>, MessageError> {
    let vote = take_vote(&mut input)?;
    finished(&input, SnapshotResponse { vote })
}

/// What is to change in the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// A new member that does not vote yet, or another address of a member.
    Learner { id: u64, address: String },
    /// A member that votes from now on.
    Promote { id: u64 },
    /// A member that leaves for ever.
    Remove { id: u64 },
}

/// Encodes a change.
pub(crate) fn encode_change(change: &MemberChange) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    match change {
        MemberChange::Learner { id, address } => {
            out.put_u8(0);
            put_number(&mut out, *id);
            put_bytes(&mut out, address.as_bytes());
        }
        MemberChange::Promote { id } => {
            out.put_u8(1);
            put_number(&mut out, *id);
        }
        MemberChange::Remove { id } => {
            out.put_u8(2);
            put_number(&mut out, *id);
        }
    }
    out.freeze()
}

/// The inverse of [`encode_change`].
pub(crate) fn decode_change(mut input: Bytes) -> Result<MemberChange, MessageError> {
    let tag = take_byte(&mut input)?;
    let id = take_number(&mut input)?;
    let change = match tag {
        0 => MemberChange::Learner {
            id,
            address: String::from_utf8_lossy(&take_bytes(&mut input)?).into_owned(),
        },
        1 => MemberChange::Promote { id },
        2 => MemberChange::Remove { id },
        tag => {
            return Err(DecodeError::Tag {
                field: "change of members",
                tag,
            }
            .into());
        }
    };
    finished(&input, change)
}

/// The answer to forwarded requests: where they are in the log, and what came of them.
pub(crate) fn encode_proposed(index: u64, outcomes: &[crate::request::Outcome]) -> Bytes {
    let outcomes = crate::reply::encode(outcomes);
    let mut out = BytesMut::with_capacity(outcomes.len() + 10);
    put_number(&mut out, index);
    out.put_slice(&outcomes);
    out.freeze()
}

/// The inverse of [`encode_proposed`].
pub(crate) fn decode_proposed(
    mut input: Bytes,
) -> Result<(u64, Vec<crate::request::Outcome>), MessageError> {
    let index = take_number(&mut input)?;
    Ok((index, crate::reply::decode(input)?))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use openraft::{BasicNode, EntryPayload, Membership};
    use proptest::prelude::*;

    use super::*;
    use crate::raft::types::{Proposal, RaftEntry};
    use crate::request::Request;
    use crate::wal::frame::Position;

    fn id(index: u64) -> LogId<u64> {
        log_id(Position {
            term: 3,
            node: 2,
            index,
        })
    }

    fn membership() -> Membership<u64, BasicNode> {
        let nodes: BTreeMap<u64, BasicNode> =
            [(1, BasicNode::new("a:1")), (2, BasicNode::new("b:2"))]
                .into_iter()
                .collect();
        Membership::new(vec![BTreeSet::from([1])], nodes)
    }

    #[test]
    fn bodies_survive_the_way() {
        let rpc = AppendEntriesRequest {
            vote: Vote::new_committed(3, 2),
            prev_log_id: Some(id(4)),
            entries: vec![
                RaftEntry {
                    log_id: id(5),
                    payload: EntryPayload::Blank,
                },
                RaftEntry {
                    log_id: id(6),
                    payload: EntryPayload::Normal(Proposal::new(
                        vec![Request::Compact(5)].into(),
                        None,
                    )),
                },
                RaftEntry {
                    log_id: id(7),
                    payload: EntryPayload::Membership(membership()),
                },
            ],
            leader_commit: None,
        };
        let encoded = encode_append(&rpc).unwrap();
        let back = decode_append(encoded.clone()).unwrap();
        assert_eq!((back.vote, back.prev_log_id), (rpc.vote, rpc.prev_log_id));
        assert_eq!(back.entries, rpc.entries);
        let mut damaged = encoded.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        decode_append(damaged.into()).unwrap_err();

        for response in [
            AppendEntriesResponse::Success,
            AppendEntriesResponse::Conflict,
            AppendEntriesResponse::PartialSuccess(Some(id(9))),
            AppendEntriesResponse::HigherVote(Vote::new(9, 1)),
        ] {
            assert_eq!(
                decode_appended(encode_appended(&response)).unwrap(),
                response
            );
        }
        let vote = VoteRequest::new(Vote::new(4, 1), Some(id(8)));
        assert_eq!(decode_vote(encode_vote(&vote)).unwrap(), vote);
        let voted = VoteResponse::new(Vote::new(4, 1), None, true);
        assert_eq!(decode_voted(encode_voted(&voted)).unwrap(), voted);
        for step in [
            SnapshotStep::Begin {
                transfer: 7,
                vote: Vote::new(1, 1),
            },
            SnapshotStep::Chunk {
                transfer: 7,
                offset: 300,
                crc: 0xdead_beef,
                data: Bytes::from_static(b"rows"),
            },
            SnapshotStep::Finish {
                transfer: 7,
                vote: Vote::new_committed(1, 1),
                meta: Meta {
                    last_log_id: Some(id(70)),
                    last_membership: StoredMembership::new(Some(id(2)), membership()),
                    snapshot_id: "x".to_owned(),
                },
                bytes: 9000,
            },
        ] {
            let encoded = encode_snapshot(&step).unwrap();
            assert_eq!(decode_snapshot(encoded).unwrap(), step);
        }
        for change in [
            MemberChange::Learner {
                id: 3,
                address: "h:1".to_owned(),
            },
            MemberChange::Promote { id: 3 },
            MemberChange::Remove { id: 3 },
        ] {
            assert_eq!(decode_change(encode_change(&change)).unwrap(), change);
        }
    }

    proptest! {
        #[test]
        fn hostile_bodies_never_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let input = Bytes::from(input);
            drop(decode_append(input.clone()));
            drop(decode_appended(input.clone()));
            drop(decode_vote(input.clone()));
            drop(decode_voted(input.clone()));
            drop(decode_snapshot(input.clone()));
            drop(decode_change(input.clone()));
            drop(decode_proposed(input));
        }
    }
}
