//! The Join service: a bootstrap token and a signing request become a node's certificate.
//!
//! Watches nothing and stores nothing: the certificate it hands out is what the node session
//! ([`crate::session`]) later authenticates the node by.

use std::sync::Arc;

use pintle_proto::node::join_server::Join;
use pintle_proto::node::{ClusterSettings, JoinRequest, JoinResponse};
use tonic::{Request, Response, Status};

use crate::clock;
use crate::config::is_dns_subdomain;
use crate::pki::{Pki, PkiError};
use crate::token::BootstrapTokens;

/// Prefix of a node's user name.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// Group of every node.
pub const NODES_GROUP: &str = "system:nodes";

/// Serves Join.
#[derive(Debug, Clone)]
pub struct JoinServer {
    /// Signs the certificates.
    pub pki: Arc<Pki>,
    /// Decides who may join.
    pub tokens: Arc<BootstrapTokens>,
    /// Handed to the node with its certificate.
    pub settings: ClusterSettings,
}

#[tonic::async_trait]
impl Join for JoinServer {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let request = request.into_inner();
        let now = clock::now();
        if !self.tokens.accepts(&request.token, now) {
            return Err(Status::unauthenticated(
                "the bootstrap token is unknown or expired",
            ));
        }
        if !is_dns_subdomain(&request.node_name) {
            return Err(Status::invalid_argument(format!(
                "node name {:?} is no lowercase RFC 1123 subdomain",
                request.node_name
            )));
        }
        let user = format!("{NODE_USER_PREFIX}{}", request.node_name);
        let certificate_pem = self
            .pki
            .sign_client(&request.csr_pem, &user, &[NODES_GROUP], now)
            .map_err(|error| match error {
                PkiError::SigningRequest(_) => Status::invalid_argument(
                    "the certificate signing request is no valid PKCS#10 in PEM",
                ),
                other => {
                    tracing::error!(
                        error = &other as &dyn std::error::Error,
                        "sign node certificate"
                    );
                    Status::internal("the certificate could not be signed")
                }
            })?;
        tracing::info!(node = request.node_name, "node joined");
        Ok(Response::new(JoinResponse {
            certificate_pem,
            ca_pem: self.pki.ca_pem().to_owned(),
            settings: Some(self.settings.clone()),
        }))
    }
}
