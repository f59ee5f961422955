//! How messages reach other members.
//!
//! Watches and changes nothing: the seam between the group and the network. [`super::grpc`]
//! carries messages over mutual TLS; tests carry them through memory, with every fault a network
//! has. Who sends must know one thing of a failure: whether the message may have arrived, for
//! only then may it not be sent again to another member.

use futures_util::future::BoxFuture;
use pintle_proto::raft::{RaftRequest, RaftResponse};

/// Another member, and where to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its id within the group.
    pub id: u64,
    /// `HOST:PORT`, as recorded in the membership.
    pub address: String,
}

/// Why a message got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// It never left: the member is not reachable.
    #[error("member {id} at {address:?} is not reachable: {cause}")]
    Unsent {
        /// The member.
        id: u64,
        /// Its address.
        address: String,
        /// The network's reason.
        cause: String,
    },
    /// It left, and no answer came: it may have been acted on.
    #[error("member {id} at {address:?} did not answer: {cause}")]
    Unanswered {
        /// The member.
        id: u64,
        /// Its address.
        address: String,
        /// The network's reason.
        cause: String,
    },
}

impl TransportError {
    /// A message that never left.
    pub fn unsent(peer: &Peer, cause: impl Into<String>) -> Self {
        Self::Unsent {
            id: peer.id,
            address: peer.address.clone(),
            cause: cause.into(),
        }
    }

    /// A message without an answer.
    pub fn unanswered(peer: &Peer, cause: impl Into<String>) -> Self {
        Self::Unanswered {
            id: peer.id,
            address: peer.address.clone(),
            cause: cause.into(),
        }
    }
}

/// Carries messages to other members.
pub trait Transport: Send + Sync + 'static {
    /// Carries one message to `peer` and brings its answer. Dropping the future gives the
    /// answer up, not necessarily the message.
    fn call(
        &self,
        peer: Peer,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, TransportError>>;
}

/// No transport: for a store that is alone in its group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unconnected;

impl Transport for Unconnected {
    fn call(
        &self,
        peer: Peer,
        _request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, TransportError>> {
        Box::pin(async move {
            Err(TransportError::unsent(
                &peer,
                "this member was started without an address for other members",
            ))
        })
    }
}
