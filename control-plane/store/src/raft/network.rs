//! openraft's calls to other members, over a [`Transport`].
//!
//! Watches and changes nothing by itself: it turns openraft's calls into messages and answers
//! back. An append that openraft gives up waiting for goes on, and its answer is what the next
//! attempt with the same entries gets, so that entries that take longer than openraft's patience
//! still arrive. Snapshots go in chunks, from where the follower says it is.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, LogId, OptionalSend, Snapshot, Vote};
use pintle_proto::raft::{Kind, RaftRequest, Reason, Refusal};

use super::group::Group;
use super::message::{self, SnapshotStep};
use super::snapshot::Source;
use super::transport::{Peer, Transport, TransportError};
use super::types::{SnapshotData, TypeConfig};
use crate::error::StoreError;
use crate::failure::chain;

/// Pause before a member that was unreachable is tried again.
const PAUSE: Duration = Duration::from_millis(75);
/// How long one chunk of a snapshot, or its installation, may take.
const SNAPSHOT_ANSWER: Duration = Duration::from_mins(1);
/// How often one chunk is tried before the transfer is given up.
const SNAPSHOT_TRIES: usize = 20;

/// Sends messages in this member's name.
#[derive(Clone)]
pub(crate) struct Mail {
    pub(crate) cluster_id: Arc<str>,
    pub(crate) sender: u64,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) group: Arc<Group>,
}

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum MailError {
    /// The network.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The member refused.
    #[error("member {peer} refused: {}", refusal.text)]
    Refused { peer: u64, refusal: Refusal },
    /// The answer cannot be understood, or the question could not be put.
    #[error("message to member {peer}: {cause}")]
    Body { peer: u64, cause: String },
}

impl Mail {
    /// Sends a message and answers the reply's body.
    pub(crate) async fn send(
        &self,
        peer: Peer,
        kind: Kind,
        body: Bytes,
    ) -> Result<Bytes, MailError> {
        let request = RaftRequest {
            cluster_id: self.cluster_id.to_string(),
            target: peer.id,
            body,
            sender: self.sender,
            kind: kind.into(),
        };
        let id = peer.id;
        let response = self.transport.call(peer, request).await?;
        let Some(refusal) = response.refusal else {
            return Ok(response.body);
        };
        if matches!(
            refusal.reason(),
            Reason::Removed | Reason::ForeignCluster | Reason::WrongMember
        ) {
            self.group.refuse(&refusal.text);
        }
        Err(MailError::Refused { peer: id, refusal })
    }
}

/// Finds members.
#[derive(Clone)]
pub(crate) struct Peers {
    pub(crate) mail: Mail,
}

/// Another member, as openraft calls it.
pub(crate) struct Remote {
    mail: Mail,
    peer: Peer,
    /// The append that openraft may have given up waiting for.
    sending: Option<Sending>,
}

type Answer = Shared<BoxFuture<'static, Result<Bytes, MailError>>>;

struct Sending {
    vote: Vote<u64>,
    prev: Option<LogId<u64>>,
    last: LogId<u64>,
    answer: Answer,
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Remote;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Remote {
        Remote {
            mail: self.mail.clone(),
            peer: Peer {
                id: target,
                address: node.addr.clone(),
            },
            sending: None,
        }
    }
}

#[expect(clippy::result_large_err, reason = "openraft's error")]
impl Remote {
    fn decoded<T>(&self, decoded: Result<T, message::MessageError>) -> RpcResult<T> {
        decoded.map_err(|error| self.body(chain(&error)))
    }

    fn encoded(&self, encoded: Result<Bytes, StoreError>) -> RpcResult<Bytes> {
        encoded.map_err(|error| self.body(chain(&error)))
    }

    fn body(&self, cause: String) -> RPCError<u64, BasicNode, RaftError<u64>> {
        RPCError::Network(NetworkError::new(&MailError::Body {
            peer: self.peer.id,
            cause,
        }))
    }
}

type RpcResult<T> = Result<T, RPCError<u64, BasicNode, RaftError<u64>>>;

fn unreachable<E: std::error::Error + 'static>(
    error: &E,
) -> RPCError<u64, BasicNode, RaftError<u64>> {
    RPCError::Unreachable(Unreachable::new(error))
}

impl Remote {
    async fn ask(&self, kind: Kind, body: Bytes) -> Result<Bytes, MailError> {
        self.mail.send(self.peer.clone(), kind, body).await
    }

    /// Sends until the follower has everything and installed it.
    async fn transfer(
        &self,
        vote: Vote<u64>,
        snapshot: Snapshot<TypeConfig>,
    ) -> Result<SnapshotResponse<u64>, MailError> {
        let body = |cause: String| MailError::Body {
            peer: self.peer.id,
            cause,
        };
        let SnapshotData::View(view) = *snapshot.snapshot else {
            return Err(body("there is no snapshot to send".to_owned()));
        };
        let transfer = rand::random::<u64>() >> 1;
        let mut source = Source::new(view);
        let begin = SnapshotStep::Begin { transfer, vote };
        let mut wanted = self.step(&begin).await?;
        let mut tries = 0;
        loop {
            source = source
                .at(wanted)
                .await
                .map_err(|error| body(chain(&error)))?;
            let Some(data) = source.chunk() else { break };
            let step = SnapshotStep::Chunk {
                transfer,
                offset: source.offset(),
                crc: crc32c::crc32c(&data),
                data,
            };
            match self.step(&step).await {
                Ok(next) => {
                    wanted = next;
                    tries = 0;
                }
                Err(MailError::Transport(error)) if tries < SNAPSHOT_TRIES => {
                    tracing::debug!(%error, "a chunk of a snapshot is sent again");
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                    // The follower says where it is; what it has is not sent again.
                    if let Ok(next) = self.step(&begin).await {
                        wanted = next;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let finish = SnapshotStep::Finish {
            transfer,
            vote,
            meta: snapshot.meta,
            bytes: source.offset(),
        };
        let encoded = message::encode_snapshot(&finish).map_err(|error| body(chain(&error)))?;
        let installed = self.ask(Kind::Snapshot, encoded);
        let installed = tokio::time::timeout(SNAPSHOT_ANSWER, installed)
            .await
            .map_err(|_elapsed| {
                TransportError::unanswered(&self.peer, "installation took too long")
            })??;
        message::decode_installed(installed).map_err(|error| body(chain(&error)))
    }

    async fn step(&self, step: &SnapshotStep) -> Result<u64, MailError> {
        let body = |cause: String| MailError::Body {
            peer: self.peer.id,
            cause,
        };
        let encoded = message::encode_snapshot(step).map_err(|error| body(chain(&error)))?;
        let answer = tokio::time::timeout(SNAPSHOT_ANSWER, self.ask(Kind::Snapshot, encoded))
            .await
            .map_err(|_elapsed| {
                TransportError::unanswered(&self.peer, "a chunk took too long")
            })??;
        message::decode_number(answer).map_err(|error| body(chain(&error)))
    }
}

impl RaftNetwork<TypeConfig> for Remote {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<u64>> {
        let last = rpc.entries.last().map(|entry| entry.log_id);
        let answer = match (last, &self.sending) {
            (Some(last), Some(sending))
                if sending.vote == rpc.vote
                    && sending.prev == rpc.prev_log_id
                    && sending.last == last =>
            {
                sending.answer.clone()
            }
            _ => {
                let body = self.encoded(message::encode_append(&rpc))?;
                let (mail, peer) = (self.mail.clone(), self.peer.clone());
                let answer = async move { mail.send(peer, Kind::Append, body).await };
                let answer = answer.boxed().shared();
                self.sending = last.map(|last| {
                    // It goes on when openraft stops waiting.
                    tokio::spawn(answer.clone().map(drop));
                    Sending {
                        vote: rpc.vote,
                        prev: rpc.prev_log_id,
                        last,
                        answer: answer.clone(),
                    }
                });
                answer
            }
        };
        let answer = answer.await;
        self.sending = None;
        let body = answer.map_err(|error| unreachable(&error))?;
        self.decoded(message::decode_appended(body))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<u64>> {
        let body = self
            .ask(Kind::Vote, message::encode_vote(&rpc))
            .await
            .map_err(|error| unreachable(&error))?;
        self.decoded(message::decode_voted(body))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<TypeConfig>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        tracing::info!(
            member = self.peer.id,
            snapshot = snapshot.meta.snapshot_id,
            "sending a snapshot"
        );
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.transfer(vote, snapshot) => match sent {
                Ok(response) => Ok(response),
                Err(error) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
            },
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(PAUSE))
    }
}
