//! openraft's types filled in, and conversions to the log's own.
//!
//! Watches and changes nothing.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use openraft::{
    AnyError, BasicNode, CommittedLeaderId, EntryPayload, LogId, Membership, StorageIOError,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::StoreError;
use crate::failure::chain;
use crate::mvcc::read::View;
use crate::request::{self, Outcome, Request};
use crate::wal::frame::{self, Payload, Position};

openraft::declare_raft_types!(
    /// The store's Raft group.
    pub(crate) TypeConfig:
        D = Proposal,
        R = Applied,
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = SnapshotData,
        AsyncRuntime = super::runtime::Untimed,
);

/// Says whether a proposal got into this member's log.
pub(crate) type Appended = Arc<AtomicBool>;

/// What one log entry proposes: a batch of requests.
#[derive(Clone)]
pub(crate) struct Proposal {
    pub(crate) requests: Arc<[Request]>,
    /// Set by the log when it takes the entry; neither stored nor sent.
    appended: Option<Appended>,
}

impl Proposal {
    /// A batch; `appended` learns when it is in the log.
    pub(crate) fn new(requests: Arc<[Request]>, appended: Option<Appended>) -> Self {
        Self { requests, appended }
    }

    /// It is in the log.
    pub(crate) fn appended(&self) {
        if let Some(appended) = &self.appended {
            appended.store(true, Ordering::Release);
        }
    }
}

impl PartialEq for Proposal {
    fn eq(&self, other: &Self) -> bool {
        self.requests == other.requests
    }
}

impl Eq for Proposal {}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests", self.requests.len())
    }
}

impl Serialize for Proposal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&request::encode(&self.requests))
    }
}

impl<'de> Deserialize<'de> for Proposal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Bytes::deserialize(deserializer)?;
        let requests = request::decode(bytes).map_err(de::Error::custom)?;
        Ok(Self::new(requests.into(), None))
    }
}

/// What applying an entry came to: one outcome per request.
#[derive(Debug, Default)]
pub(crate) struct Applied(pub(crate) Vec<Outcome>);

impl Serialize for Applied {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Applied {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self)
    }
}

/// A snapshot.
#[derive(Default)]
pub(crate) enum SnapshotData {
    /// None yet.
    #[default]
    Empty,
    /// A consistent view of this member's state. Nothing is copied until it is sent.
    View(View),
    /// Another member's state, complete and on disk beside this member's own.
    Received(PathBuf),
}

impl fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::View(_) => "View",
            Self::Received(_) => "Received",
        })
    }
}

/// openraft's entry.
pub(crate) type RaftEntry = openraft::Entry<TypeConfig>;
/// openraft's storage error.
pub(crate) type RaftStorageError = openraft::StorageError<u64>;
/// openraft's membership.
pub(crate) type RaftMembership = Membership<u64, BasicNode>;

/// To the log's position.
pub(crate) fn position(id: LogId<u64>) -> Position {
    Position {
        term: id.leader_id.term,
        node: id.leader_id.node_id,
        index: id.index,
    }
}

/// From the log's position.
pub(crate) fn log_id(position: Position) -> LogId<u64> {
    LogId::new(
        CommittedLeaderId::new(position.term, position.node),
        position.index,
    )
}

/// To the log's entry.
pub(crate) fn encode_entry(entry: &RaftEntry) -> Result<frame::Entry, StoreError> {
    let payload = match &entry.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(proposal) => Payload::Requests(request::encode(&proposal.requests)),
        EntryPayload::Membership(membership) => Payload::Membership(encode_membership(membership)?),
    };
    Ok(frame::Entry {
        position: position(entry.log_id),
        payload,
    })
}

/// From the log's entry.
pub(crate) fn decode_entry(entry: frame::Entry) -> Result<RaftEntry, StoreError> {
    let payload = match entry.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Requests(bytes) => {
            let requests = request::decode(bytes).map_err(|error| undecodable(&error))?;
            EntryPayload::Normal(Proposal::new(requests.into(), None))
        }
        Payload::Membership(bytes) => EntryPayload::Membership(decode_membership(&bytes)?),
    };
    Ok(RaftEntry {
        log_id: log_id(entry.position),
        payload,
    })
}

/// The membership as stored.
pub(crate) fn encode_membership(membership: &RaftMembership) -> Result<Bytes, StoreError> {
    let bytes = serde_json::to_vec(membership).map_err(|error| undecodable(&error))?;
    Ok(bytes.into())
}

/// The inverse of [`encode_membership`].
pub(crate) fn decode_membership(bytes: &[u8]) -> Result<RaftMembership, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| undecodable(&error))
}

fn undecodable(error: &dyn std::error::Error) -> StoreError {
    StoreError::Failed {
        cause: format!("a log entry cannot be understood: {}", chain(error)),
    }
}

/// A store error in openraft's clothes.
pub(crate) fn storage_error(
    wrap: impl FnOnce(AnyError) -> StorageIOError<u64>,
    error: &StoreError,
) -> RaftStorageError {
    wrap(AnyError::error(chain(error))).into()
}
