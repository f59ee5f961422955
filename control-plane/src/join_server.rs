//! The ServerJoin service: a token of the role server becomes a place in the group that keeps
//! the cluster's state, and what every server has: the CA and the key of service accounts.
//!
//! Watches nothing; adds a member to the store's group. The new server's store is then fed by
//! the leader, and [`crate::run`] there has it vote. Everything that can be refused is checked
//! before the group is changed.

use std::net::SocketAddr;
use std::sync::Arc;

use pintle_proto::node::server_join_server::ServerJoin;
use pintle_proto::node::{ClusterSettings, JoinServerRequest, JoinServerResponse};
use tonic::{Request, Response, Status};

use crate::clock;
use crate::config::is_dns_subdomain;
use crate::join::{refused_name, refused_token};
use crate::node_keys::{ClaimError, NodeKeys};
use crate::pki::Pki;
use crate::run::ControlPlane;
use crate::token::{JoinTokens, Role};
use crate::version_skew;

/// Serves ServerJoin.
#[derive(Debug, Clone)]
pub(crate) struct ServerJoiner {
    /// Changes the group.
    pub(crate) control_plane: ControlPlane,
    /// Has the keys that are handed over.
    pub(crate) pki: Arc<Pki>,
    /// Decides who may join.
    pub(crate) tokens: Arc<JoinTokens>,
    /// Who has which name.
    pub(crate) keys: NodeKeys,
    /// Name of the node of this process, which nobody else may have.
    pub(crate) own_node: String,
    /// Port of this server's API.
    pub(crate) api_port: u16,
    /// Handed over.
    pub(crate) settings: ClusterSettings,
}

#[tonic::async_trait]
impl ServerJoin for ServerJoiner {
    async fn join_server(
        &self,
        request: Request<JoinServerRequest>,
    ) -> Result<Response<JoinServerResponse>, Status> {
        let request = request.into_inner();
        let token = self
            .tokens
            .check(&request.token, Role::Server, clock::now())
            .await
            .map_err(refused_token)?;
        let address = self.check(&request)?;
        if request.node_name == self.own_node {
            return Err(refused_name(ClaimError::Taken(request.node_name)));
        }
        self.keys
            .check_free(&request.node_name, clock::now())
            .await
            .map_err(refused_name)?;
        let joins = self
            .control_plane
            .add_member(&address.to_string())
            .await
            .map_err(|error| Status::failed_precondition(words(&error)))?;
        tracing::info!(
            token,
            node = request.node_name,
            member = joins.member_id,
            %address,
            "a server joined; it votes once it has caught up"
        );
        Ok(Response::new(JoinServerResponse {
            member_id: joins.member_id,
            ca_pem: self.pki.ca_with_key().map_err(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "read the CA");
                Status::internal("the cluster's CA cannot be read; see this server's log")
            })?,
            service_account_key_pem: self.pki.service_account_key().serialize_pem(),
            settings: Some(self.settings.clone()),
        }))
    }
}

impl ServerJoiner {
    /// What needs no look at the cluster's state.
    fn check(&self, request: &JoinServerRequest) -> Result<SocketAddr, Status> {
        if !is_dns_subdomain(&request.node_name) {
            return Err(Status::invalid_argument(format!(
                "node name {:?} is no lowercase RFC 1123 subdomain; give another one with --node-name",
                request.node_name
            )));
        }
        version_skew::check(&request.version)
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        let address: SocketAddr = request.raft_address.parse().map_err(|_unparsed| {
            Status::invalid_argument(format!(
                "{:?} is no address and port that the other servers could reach the new one's store at; give an address with --raft-advertise",
                request.raft_address
            ))
        })?;
        if address.ip().is_unspecified() || address.port() == 0 {
            return Err(Status::invalid_argument(format!(
                "{address} is no address that the other servers could reach the new one's store at; give one with --raft-advertise"
            )));
        }
        if address.ip().is_loopback() != self.control_plane.is_loopback_only() {
            return Err(Status::failed_precondition(if address.ip().is_loopback() {
                format!(
                    "the new server's store would be at {address}, where the others cannot reach it; start it with --bind ADDRESS"
                )
            } else {
                "this server listens on loopback only, where the new one could not reach it; restart it with `pintle up --bind ADDRESS`".to_owned()
            }));
        }
        if request.api_port != u32::from(self.api_port) {
            return Err(Status::failed_precondition(format!(
                "--port {}: the API of this cluster's servers is at port {}; give the same",
                request.api_port, self.api_port
            )));
        }
        Ok(address)
    }
}

/// An error and its causes in one line.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
