//! The Cluster service: who the store's members are.
//!
//! Watches nothing; removes and promotes members through the store, whose group reacts. Adding is
//! refused with words: a new member needs a certificate of the cluster too, which it gets when it
//! joins by itself.

use pintle_proto::etcd::etcdserverpb as pb;
use pintle_store::Member;
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
        let id = request.into_inner().id;
        self.known(id)?;
        if self.store().members().len() == 1 {
            return Err(Status::failed_precondition(
                "etcdserver: re-configuration failed due to not enough started members",
            ));
        }
        let removed = self.store().remove_member(id).await;
        removed.map_err(|error| from_store(&error))?;
        Ok(Response::new(pb::MemberRemoveResponse {
            header: Some(self.header_now()),
            members: self.members(),
        }))
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
        let id = request.into_inner().id;
        self.known(id)?;
        let voter = |member: &Member| member.id == id && member.voter;
        if self.store().members().iter().any(voter) {
            return Err(Status::failed_precondition(
                "etcdserver: can only promote a learner member",
            ));
        }
        let promoted = self.store().promote(id).await;
        promoted.map_err(|error| from_store(&error))?;
        Ok(Response::new(pb::MemberPromoteResponse {
            header: Some(self.header_now()),
            members: self.members(),
        }))
    }
}

impl Etcd {
    /// The members. Only this one's name and address for clients are known here: others are shown
    /// by number, and their own member list says the rest.
    fn members(&self) -> Vec<pb::Member> {
        let own = self.store().member_id();
        let member = |member: Member| pb::Member {
            id: member.id,
            name: if member.id == own {
                self.inner.member_name.clone()
            } else {
                format!("member-{}", member.id)
            },
            peer_ur_ls: peer_urls(&member.address),
            client_ur_ls: if member.id == own {
                vec![self.inner.client_url.clone()]
            } else {
                Vec::new()
            },
            is_learner: !member.voter,
        };
        self.store().members().into_iter().map(member).collect()
    }

    fn known(&self, id: u64) -> Result<(), Status> {
        let mut members = self.members().into_iter();
        members
            .any(|member| member.id == id)
            .then_some(())
            .ok_or_else(member_not_found)
    }
}

fn peer_urls(address: &str) -> Vec<String> {
    // A member that is the whole group may have none.
    (!address.is_empty())
        .then(|| format!("https://{address}"))
        .into_iter()
        .collect()
}
