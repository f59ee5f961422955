//! The Cluster service: who the store's members are.
//!
//! Watches and changes nothing yet: this member is the whole cluster, and what would change that
//! is refused with words.

use pintle_proto::etcd::etcdserverpb as pb;
use tonic::{Request, Response, Status};

use super::Etcd;
use super::error::{from_store, member_not_found};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl pb::cluster_server::Cluster for Etcd {
    async fn member_add(
        &self,
        _request: Request<pb::MemberAddRequest>,
    ) -> Answer<pb::MemberAddResponse> {
        Err(Status::failed_precondition(
            "etcdserver: a member is not added through this API: a server joins by itself, with a \
             token of the cluster",
        ))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Answer<pb::MemberRemoveResponse> {
        self.known(request.into_inner().id)?;
        Err(Status::failed_precondition(
            "etcdserver: re-configuration failed due to not enough started members",
        ))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Answer<pb::MemberUpdateResponse> {
        self.known(request.into_inner().id)?;
        Err(Status::failed_precondition(
            "etcdserver: a member says itself where its peers reach it, when it starts",
        ))
    }

    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Answer<pb::MemberListResponse> {
        if request.into_inner().linearizable {
            let current = self.store().linearizable().await;
            current.map_err(|error| from_store(&error))?;
        }
        Ok(Response::new(pb::MemberListResponse {
            header: Some(self.header_now()),
            members: self.members(),
        }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Answer<pb::MemberPromoteResponse> {
        self.known(request.into_inner().id)?;
        Err(Status::failed_precondition(
            "etcdserver: can only promote a learner member",
        ))
    }
}

impl Etcd {
    fn members(&self) -> Vec<pb::Member> {
        vec![pb::Member {
            id: self.store().member_id(),
            name: self.inner.member_name.clone(),
            peer_ur_ls: Vec::new(),
            client_ur_ls: vec![self.inner.client_url.clone()],
            is_learner: false,
        }]
    }

    fn known(&self, id: u64) -> Result<(), Status> {
        let mut members = self.members().into_iter();
        members
            .any(|member| member.id == id)
            .then_some(())
            .ok_or_else(member_not_found)
    }
}
