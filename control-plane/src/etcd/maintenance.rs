//! The Maintenance service: how this member is doing, alarms, hashes, snapshots.
//!
//! Watches the store's health; changes nothing.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use pintle_proto::etcd::etcdserverpb as pb;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::error::from_store;
use super::{Etcd, VERSION, snapshot};
use pb::alarm_request::AlarmAction;

/// A client that takes nothing of a snapshot for so long is given up: the versions it is made of
/// cannot be freed.
const STALL: Duration = Duration::from_mins(1);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl pb::maintenance_server::Maintenance for Etcd {
    type SnapshotStream = BoxStream<'static, Result<pb::SnapshotResponse, Status>>;

    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Answer<pb::AlarmResponse> {
        let request = request.into_inner();
        let member = self.store().member_id();
        let about_this = request.member_id == 0 || request.member_id == member;
        let mut alarms = self.alarms();
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => {}
            Ok(AlarmAction::Deactivate) => {
                let wanted = pb::AlarmType::try_from(request.alarm);
                let stands = |alarm: &pb::AlarmMember| {
                    about_this
                        && wanted.is_ok_and(|it| it == pb::AlarmType::None || it == alarm.alarm())
                };
                if alarms.iter().any(stands) {
                    return Err(Status::failed_precondition(
                        "etcdserver: the alarm stands while its cause does: free disk space or \
                         repair the disk, then restart this member",
                    ));
                }
                alarms.clear();
            }
            Ok(AlarmAction::Activate) | Err(_) => {
                return Err(Status::unimplemented(
                    "etcdserver: alarms are raised by the store itself, not by clients",
                ));
            }
        }
        Ok(Response::new(pb::AlarmResponse {
            header: Some(self.header_now()),
            alarms,
        }))
    }

    async fn status(&self, _request: Request<pb::StatusRequest>) -> Answer<pb::StatusResponse> {
        let health = self.store().health();
        let bytes = self.store().state_bytes();
        let bytes = bytes.map_err(|error| from_store(&error))?;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(Response::new(pb::StatusResponse {
            header: Some(self.header(health.revision)),
            version: VERSION.to_owned(),
            db_size: bytes,
            leader: health.leader.unwrap_or(0),
            raft_index: health.log_index,
            raft_term: health.term,
            raft_applied_index: health.applied_index,
            errors: health.failure.into_iter().collect(),
            // Free pages are used again before the file grows.
            db_size_in_use: bytes,
            is_learner: self.is_learner(),
        }))
    }

    /// Succeeds without doing anything: the state database uses free pages again, so there is
    /// nothing to gain that would be worth blocking writes for.
    async fn defragment(
        &self,
        _request: Request<pb::DefragmentRequest>,
    ) -> Answer<pb::DefragmentResponse> {
        Ok(Response::new(pb::DefragmentResponse {
            header: Some(self.header_now()),
        }))
    }

    async fn hash(&self, _request: Request<pb::HashRequest>) -> Answer<pb::HashResponse> {
        Err(Status::unimplemented(
            "etcdserver: the hash of a member's whole database means nothing to other members; \
             use `etcdctl endpoint hashkv`",
        ))
    }

    async fn hash_kv(&self, request: Request<pb::HashKvRequest>) -> Answer<pb::HashKvResponse> {
        let revision = u64::try_from(request.into_inner().revision).unwrap_or(0);
        let store = self.store().clone();
        let hash =
            tokio::task::spawn_blocking(move || store.hash((revision > 0).then_some(revision)));
        let (hash, at) = hash
            .await
            .map_err(|_ended| super::error::stopped())?
            .map_err(|error| from_store(&error))?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(self.header(at)),
            hash,
            compact_revision: self.store().compacted_revision().cast_signed(),
        }))
    }

    async fn snapshot(
        &self,
        _request: Request<pb::SnapshotRequest>,
    ) -> Answer<Self::SnapshotStream> {
        let (sender, answers) = mpsc::channel(snapshot::CHUNKS);
        let (etcd, runtime) = (self.clone(), Handle::current());
        let tasks = &self.inner.tasks;
        let sent = tasks.spawn_blocking(move || snapshot::send(&etcd, &sender, STALL, &runtime));
        // Only a whole snapshot ends without an error.
        let end = stream::once(sent).filter_map(async |sent| match sent {
            Ok(Ok(())) => None,
            Ok(Err(status)) => Some(Err(status)),
            Err(_ended) => Some(Err(Status::internal("etcdserver: the snapshot broke off"))),
        });
        let answers = ReceiverStream::new(answers).map(Ok).chain(end);
        Ok(Response::new(answers.boxed()))
    }

    async fn move_leader(
        &self,
        _request: Request<pb::MoveLeaderRequest>,
    ) -> Answer<pb::MoveLeaderResponse> {
        Err(Status::unimplemented(
            "etcdserver: leadership cannot be handed to a chosen member",
        ))
    }

    async fn downgrade(
        &self,
        _request: Request<pb::DowngradeRequest>,
    ) -> Answer<pb::DowngradeResponse> {
        Err(Status::unimplemented(
            "etcdserver: the store's format has no older version to go back to",
        ))
    }
}

impl Etcd {
    /// Whether this member follows without a vote.
    fn is_learner(&self) -> bool {
        let own = self.store().member_id();
        let members = self.store().members();
        members.iter().any(|it| it.id == own && !it.voter)
    }

    fn alarms(&self) -> Vec<pb::AlarmMember> {
        let health = self.store().health();
        let full = health
            .failure
            .is_some_and(|failure| failure.contains("no space left"));
        full.then(|| pb::AlarmMember {
            member_id: self.store().member_id(),
            alarm: pb::AlarmType::Nospace.into(),
        })
        .into_iter()
        .collect()
    }
}
