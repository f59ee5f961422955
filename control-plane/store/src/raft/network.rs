//! Calls to other members.
//!
//! Watches and changes nothing so far: this program forms groups of one, and a group of one
//! calls nobody. Should the log name other members - it was written by a program that can talk
//! to them - they are unreachable, and the error says so by name.

use std::future::Future;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, Snapshot, Vote};

use super::types::TypeConfig;

/// Finds members.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peers;

/// One other member.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    error: PeerError,
}

/// Why a member cannot be called.
#[derive(Debug, Clone, thiserror::Error)]
#[error("member {id} at {address:?} is unreachable: this program replicates to no other member")]
struct PeerError {
    id: u64,
    address: String,
}

impl Peer {
    fn unreachable(&self) -> Unreachable {
        Unreachable::new(&self.error)
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer {
            error: PeerError {
                id: target,
                address: node.addr.clone(),
            },
        }
    }
}

type RpcResult<T> = Result<T, RPCError<u64, BasicNode, RaftError<u64>>>;

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<u64>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<u64>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote<u64>,
        _snapshot: Snapshot<TypeConfig>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        Err(self.unreachable().into())
    }
}
