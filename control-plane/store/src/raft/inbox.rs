//! Messages of other members, as they arrive.
//!
//! Watches what a listener hands to [`PeerService`]; checks whose it is - this cluster, this
//! member, a sender that was not removed - and gives it to openraft, the proposer or the
//! snapshot being received; answers what came of it. Nothing is done for a message that is
//! refused, and the refusal is a sentence with a way out.

use bytes::Bytes;
use openraft::Snapshot;
use openraft::raft::{AppendEntriesResponse, VoteResponse};
use pintle_proto::raft::{Kind, RaftRequest, RaftResponse, Reason, Refusal};

use super::Engine;
use super::message::{self, MessageError, Meta, SnapshotStep};
use super::propose::Failed;
use super::reads::Unready;
use super::snapshot::{Sink, discard};
use super::types::{SnapshotData, position};
use crate::error::StoreError;
use crate::failure::chain;
use crate::request;

/// Answers messages of other members; a listener hands them in. Clones share the store.
#[derive(Clone)]
pub struct PeerService {
    engine: Engine,
}

impl std::fmt::Debug for PeerService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerService")
            .field("member", &self.engine.node_id)
            .finish_non_exhaustive()
    }
}

impl PeerService {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// Does what a message says and answers it.
    pub async fn handle(&self, request: RaftRequest) -> RaftResponse {
        match self.engine.receive(request).await {
            Ok(body) => RaftResponse {
                body,
                refusal: None,
            },
            Err(refusal) => RaftResponse {
                body: Bytes::new(),
                refusal: Some(refusal),
            },
        }
    }
}

/// A snapshot being received.
pub(crate) struct Receiving {
    transfer: u64,
    sink: Sink,
}

fn refusal(reason: Reason, text: impl Into<String>) -> Refusal {
    Refusal {
        reason: reason.into(),
        text: text.into(),
        leader: 0,
    }
}

impl From<MessageError> for Refusal {
    fn from(error: MessageError) -> Self {
        refusal(
            Reason::Invalid,
            format!("the message cannot be understood: {}", chain(&error)),
        )
    }
}

impl Engine {
    /// Checks whose a message is and does what it says.
    async fn receive(&self, request: RaftRequest) -> Result<Bytes, Refusal> {
        let RaftRequest {
            cluster_id,
            target,
            sender,
            body,
            ..
        } = &request;
        let own = &*self.mail.cluster_id;
        if cluster_id != own {
            return Err(refusal(
                Reason::ForeignCluster,
                format!(
                    "member {sender} belongs to cluster {cluster_id}, and this is a member of \
                     cluster {own}: check the addresses it was given"
                ),
            ));
        }
        if *target != self.node_id {
            return Err(refusal(
                Reason::WrongMember,
                format!(
                    "this is member {}, and the message is for member {target}: check the \
                     address of member {target}",
                    self.node_id
                ),
            ));
        }
        if self.machine.is_removed(*sender) {
            return Err(refusal(
                Reason::Removed,
                format!(
                    "member {sender} was removed from cluster {own}: stop it, delete its data \
                     directory and let it join anew"
                ),
            ));
        }
        if self.failure.text().is_some() {
            return Err(self.stopped_refusal());
        }
        let (body, sender) = (body.clone(), *sender);
        match request.kind() {
            Kind::Append => self.receive_append(body).await,
            Kind::Vote => {
                let rpc = message::decode_vote(body)?;
                let voted = self.raft.vote(rpc).await;
                let voted = voted.map_err(|_error| self.stopped_refusal())?;
                Ok(message::encode_voted(&voted))
            }
            Kind::PreVote => {
                let rpc = message::decode_vote(body)?;
                let granted = self.would_vote(&rpc);
                let vote = self.server_metrics().vote;
                Ok(message::encode_voted(&VoteResponse::new(
                    vote, None, granted,
                )))
            }
            Kind::Snapshot => self.receive_snapshot(body).await,
            Kind::Propose => {
                let requests = request::decode(body).map_err(MessageError::from)?;
                match self.write_here(requests.into()).await {
                    Ok(written) => Ok(message::encode_proposed(written.index, &written.outcomes)),
                    Err(failed) => Err(self.failed_refusal(failed)),
                }
            }
            Kind::ReadIndex => match self.lead_index().await {
                Ok(index) => Ok(message::encode_number(index)),
                Err(unready) => Err(self.unready_refusal(unready)),
            },
            Kind::KeepAlive => {
                let id = message::decode_number(body)?;
                match self.keep_alive_here(id).await {
                    Ok(Some(ttl)) => Ok(message::encode_number(
                        u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
                    )),
                    Ok(None) => Err(refusal(
                        Reason::NoSuchLease,
                        format!("lease {id:x} not found"),
                    )),
                    Err(unready) => Err(self.unready_refusal(unready)),
                }
            }
            Kind::ChangeMembers => {
                let change = message::decode_change(body)?;
                match self.change_here(&change).await {
                    Ok(()) => Ok(Bytes::new()),
                    Err(StoreError::NotLeader { leader }) => {
                        Err(self.failed_refusal(Failed::Untouched { leader }))
                    }
                    Err(StoreError::OutcomeUnknown { cause }) => {
                        Err(refusal(Reason::OutcomeUnknown, cause))
                    }
                    Err(error) => Err(refusal(Reason::Members, chain(&error))),
                }
            }
            Kind::TakeOver => {
                tracing::info!(from = sender, "taking over the leadership");
                let taken = self.raft.trigger().elect().await;
                taken.map_err(|_error| self.stopped_refusal())?;
                Ok(Bytes::new())
            }
            Kind::Unspecified => Err(refusal(
                Reason::Invalid,
                format!(
                    "message kind {} is unknown here: members of a group run versions that are \
                     at most one apart",
                    request.kind
                ),
            )),
        }
    }

    async fn receive_append(&self, body: Bytes) -> Result<Bytes, Refusal> {
        let rpc = message::decode_append(body)?;
        let appended = self.raft.append_entries(rpc).await;
        let appended = appended.map_err(|_error| self.stopped_refusal())?;
        if !matches!(appended, AppendEntriesResponse::HigherVote(_)) {
            self.group.heard();
        }
        Ok(message::encode_appended(&appended))
    }

    /// As leader, the index that a read which begins now must have applied: found together with
    /// the reads of this member.
    async fn lead_index(&self) -> Result<u64, Unready> {
        if !self.is_leader() {
            return Err(Unready::NoLeader(self.leader().map(|leader| leader.id)));
        }
        if self.group.is_alone() {
            return Ok(self.machine.applied_next().saturating_sub(1));
        }
        self.confirm_leading().await
    }

    async fn receive_snapshot(&self, body: Bytes) -> Result<Bytes, Refusal> {
        let step = message::decode_snapshot(body)?;
        let mut receiving = self.receiving.lock().await;
        let broken = |error: &StoreError| {
            refusal(
                Reason::Failed,
                format!("the snapshot cannot be stored: {}", chain(error)),
            )
        };
        match step {
            SnapshotStep::Begin { transfer, .. } => {
                if let Some(now) = receiving.as_ref().filter(|now| now.transfer == transfer) {
                    return Ok(message::encode_number(now.sink.offset()));
                }
                // What a transfer before this one left goes first: it has the file open.
                drop(receiving.take());
                let path = self.machine.incoming();
                let sink = blocking(move || Sink::create(path)).await;
                let sink = sink.map_err(|error| broken(&error))?;
                *receiving = Some(Receiving { transfer, sink });
                Ok(message::encode_number(0))
            }
            SnapshotStep::Chunk {
                transfer,
                offset,
                crc,
                data,
            } => {
                let Some(mut now) = receiving.take().filter(|now| now.transfer == transfer) else {
                    return Err(refusal(
                        Reason::Invalid,
                        "no such snapshot is being received",
                    ));
                };
                if offset == now.sink.offset() {
                    if crc32c::crc32c(&data) != crc {
                        let text = format!("the chunk at {offset} of a snapshot is damaged");
                        *receiving = Some(now);
                        return Err(refusal(Reason::Invalid, text));
                    }
                    let written = blocking(move || {
                        now.sink.write(data)?;
                        Ok(now)
                    });
                    now = written.await.map_err(|error| broken(&error))?;
                }
                let wanted = now.sink.offset();
                *receiving = Some(now);
                Ok(message::encode_number(wanted))
            }
            SnapshotStep::Finish {
                transfer,
                vote,
                meta,
                bytes,
            } => {
                let Some(now) = receiving.take().filter(|now| now.transfer == transfer) else {
                    return Err(refusal(
                        Reason::Invalid,
                        "no such snapshot is being received",
                    ));
                };
                if now.sink.offset() != bytes {
                    return Err(refusal(
                        Reason::Invalid,
                        format!(
                            "the snapshot has {bytes} bytes, and {} arrived",
                            now.sink.offset()
                        ),
                    ));
                }
                let last = meta.last_log_id.map(position);
                let path = blocking(move || now.sink.finish(last)).await;
                path.map_err(|error| broken(&error))?;
                self.install(vote, meta).await
            }
        }
    }

    /// Puts the received state in the place of this member's, unless that is newer.
    async fn install(&self, vote: openraft::Vote<u64>, meta: Meta) -> Result<Bytes, Refusal> {
        let path = self.machine.incoming();
        let next = meta.last_log_id.map_or(0, |last| last.index + 1);
        tracing::info!(snapshot = meta.snapshot_id, "installing a snapshot");
        self.machine.expect_install(next);
        let snapshot = Snapshot {
            meta,
            snapshot: Box::new(SnapshotData::Received(path.clone())),
        };
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        self.machine.expect_install(0);
        let installed = installed.map_err(|_error| self.stopped_refusal())?;
        if let Err(error) = discard(&path) {
            tracing::warn!(error = chain(&error), "a superfluous snapshot stays");
        }
        Ok(message::encode_installed(&installed))
    }

    fn stopped_refusal(&self) -> Refusal {
        refusal(
            Reason::Failed,
            format!("member {}: {}", self.node_id, self.failure.error()),
        )
    }

    fn failed_refusal(&self, failed: Failed) -> Refusal {
        match failed {
            Failed::Untouched { leader } => Refusal {
                reason: Reason::NotLeader.into(),
                text: format!("member {} does not lead", self.node_id),
                leader: leader.unwrap_or(0),
            },
            Failed::Unknown { cause } => refusal(Reason::OutcomeUnknown, cause),
            Failed::Refused { cause } => refusal(Reason::Removed, cause),
            Failed::Stopped => self.stopped_refusal(),
        }
    }

    fn unready_refusal(&self, unready: Unready) -> Refusal {
        match unready {
            Unready::NoLeader(leader) => self.failed_refusal(Failed::Untouched { leader }),
            Unready::Refused(cause) => refusal(Reason::Removed, cause),
            Unready::Stopped => self.stopped_refusal(),
        }
    }
}

/// Runs what waits for the disk off the threads that serve.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(StoreError::Failed {
                cause: format!("receiving a snapshot: {error}"),
            })
        })
}

impl Engine {
    /// The service that answers other members.
    pub(crate) fn service(&self) -> PeerService {
        PeerService::new(self.clone())
    }
}
