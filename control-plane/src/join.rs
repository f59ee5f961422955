//! The Join service: a join token and a signing request become a node's certificate, and a
//! certificate that nears its end becomes a new one.
//!
//! Watches nothing; changes which keys a node has ([`crate::node_keys`]). The certificate is
//! what the node session ([`crate::session`]) and the API later authenticate the node by.
//! Everything that can be refused is checked before anything is written.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pintle_api::auth::authenticate::{PeerCertificate, certificate_user};
use pintle_proto::node::join_server::Join;
use pintle_proto::node::{ClusterSettings, JoinRequest, JoinResponse, RenewRequest, RenewResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::clock;
use crate::config::is_dns_subdomain;
use crate::node_keys::{ClaimError, KeyHash, NodeKeys};
use crate::pki::{Pki, PkiError, SignedClient, key_hash};
use crate::token::{JoinTokens, Role, TokenRefusal};
use crate::version_skew;

/// Prefix of a node's user name.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// Group of every node.
pub const NODES_GROUP: &str = "system:nodes";

/// Serves Join.
#[derive(Debug, Clone)]
pub(crate) struct JoinServer {
    /// Signs the certificates.
    pub(crate) pki: Arc<Pki>,
    /// Decides who may join.
    pub(crate) tokens: Arc<JoinTokens>,
    /// Who has which name.
    pub(crate) keys: NodeKeys,
    /// Name of the node of this process, which nobody else may have.
    pub(crate) own_node: String,
    /// Handed to the node with its certificate.
    pub(crate) settings: ClusterSettings,
    /// Handed to the node with its certificate.
    pub(crate) servers: watch::Receiver<Vec<String>>,
    /// How long a node's certificate lives.
    pub(crate) certificate_life: Duration,
}

#[tonic::async_trait]
impl Join for JoinServer {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let request = request.into_inner();
        let now = clock::now();
        let is_own = self.tokens.is_own(&request.token);
        if !is_own {
            let id = self
                .tokens
                .check(&request.token, Role::Agent, now)
                .await
                .map_err(refused_token)?;
            tracing::debug!(
                token = id,
                node = request.node_name,
                "a machine asks to join"
            );
        }
        if !is_dns_subdomain(&request.node_name) {
            return Err(Status::invalid_argument(format!(
                "node name {:?} is no lowercase RFC 1123 subdomain; give another one with --node-name",
                request.node_name
            )));
        }
        version_skew::check(&request.agent_version)
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        let signed = self.sign(&request.csr_pem, &request.node_name, now)?;
        let (node, key) = (request.node_name.as_str(), &signed.key_hash);
        if is_own {
            self.keys.seize(node, key, now).await.map_err(unavailable)?;
        } else if node == self.own_node {
            return Err(refused_name(ClaimError::Taken(node.to_owned())));
        } else {
            self.keys
                .claim(node, key, now)
                .await
                .map_err(refused_name)?;
        }
        tracing::info!(node, "node joined");
        Ok(Response::new(JoinResponse {
            certificate_pem: signed.certificate_pem,
            ca_pem: self.pki.ca_pem().to_owned(),
            settings: Some(self.settings.clone()),
            servers: self.servers.borrow().clone(),
        }))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let (node, current) = peer_node(&request)?;
        if !admits(&self.keys, &node, &current).await? {
            return Err(replaced(&node));
        }
        let signed = self.sign(&request.into_inner().csr_pem, &node, clock::now())?;
        self.keys
            .add(&node, &current, &signed.key_hash)
            .await
            .map_err(unavailable)?;
        tracing::info!(node, "node's certificate renewed");
        Ok(Response::new(RenewResponse {
            certificate_pem: signed.certificate_pem,
        }))
    }
}

impl JoinServer {
    fn sign(&self, csr_pem: &str, node: &str, now: SystemTime) -> Result<SignedClient, Status> {
        let user = format!("{NODE_USER_PREFIX}{node}");
        self.pki
            .sign_client(csr_pem, &user, &[NODES_GROUP], self.certificate_life, now)
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
            })
    }
}

/// The node whose certificate the connection was made with, and its key.
pub(crate) fn peer_node<T>(request: &Request<T>) -> Result<(String, KeyHash), Status> {
    request
        .extensions()
        .get::<PeerCertificate>()
        .and_then(|peer| {
            let node = certificate_user(peer)?.node_name()?.to_owned();
            let (_, certificate) = X509Certificate::from_der(&peer.der).ok()?;
            Some((node, key_hash(certificate.public_key().raw)))
        })
        .ok_or_else(|| Status::unauthenticated("a node's client certificate is needed"))
}

/// Whether the key may (still) act as the node.
pub(crate) async fn admits(keys: &NodeKeys, node: &str, key: &KeyHash) -> Result<bool, Status> {
    keys.admits(node, key).await.map_err(unavailable)
}

/// What a machine hears whose name was given away.
pub(crate) fn replaced(node: &str) -> Status {
    Status::permission_denied(format!(
        "the name {node:?} belongs to another machine now, which joined after the old node was deleted; to join this machine again: `pintle reset`, then `pintle agent --join … --token … --node-name ANOTHER`"
    ))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
pub(crate) fn refused_token(refusal: TokenRefusal) -> Status {
    match refusal {
        TokenRefusal::Lookup(_) => Status::unavailable(refusal.to_string()),
        TokenRefusal::Role { .. } => Status::permission_denied(refusal.to_string()),
        _ => Status::unauthenticated(refusal.to_string()),
    }
}

pub(crate) fn refused_name(error: ClaimError) -> Status {
    match error {
        ClaimError::Api(status) => unavailable(status),
        taken => Status::already_exists(taken.to_string()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn unavailable(status: pintle_kube_types::status::Status) -> Status {
    Status::unavailable(format!("the cluster's state is not available: {status}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;
    use tonic::Code;

    use super::*;
    use crate::pki::ServingNames;
    use crate::testing::TestApi;

    const DAY: Duration = Duration::from_hours(24);

    fn server(api: &TestApi) -> JoinServer {
        let names = ServingNames::new("cluster.local", "own", &[], &[]);
        let pki = Pki::open(&api.directory().join("pki"), names, clock::now()).unwrap();
        JoinServer {
            tokens: Arc::new(JoinTokens::new(api.client(), pki.ca_hash())),
            pki: Arc::new(pki),
            keys: NodeKeys::new(api.client()),
            own_node: "own".to_owned(),
            settings: ClusterSettings::default(),
            servers: watch::channel(vec!["192.0.2.1:6443".to_owned()]).1,
            certificate_life: DAY,
        }
    }

    fn csr(key: &KeyPair) -> String {
        let params = CertificateParams::default();
        params.serialize_request(key).unwrap().pem().unwrap()
    }

    fn request(token: &str, node: &str, key: &KeyPair) -> JoinRequest {
        JoinRequest {
            token: token.to_owned(),
            node_name: node.to_owned(),
            csr_pem: csr(key),
            agent_version: version_skew::PROGRAM_VERSION.to_owned(),
        }
    }

    async fn refusal(server: &JoinServer, request: JoinRequest) -> Status {
        server.join(Request::new(request)).await.unwrap_err()
    }

    fn with_peer<T>(message: T, certificate_pem: &str) -> Request<T> {
        let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).unwrap();
        let mut request = Request::new(message);
        request.extensions_mut().insert(PeerCertificate {
            der: der.to_vec().into(),
        });
        request
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_refused_join_leaves_nothing_behind() {
        let api = TestApi::start().await;
        let server = server(&api);
        let (key, now) = (KeyPair::generate().unwrap(), clock::now());
        let create = |life| server.tokens.create(Role::Agent, life, "", now);
        let token = create(DAY).await.unwrap().credential();

        let said = refusal(&server, request("nonsense", "a", &key)).await;
        assert_eq!(said.code(), Code::Unauthenticated);
        let revoked = create(DAY).await.unwrap();
        server.tokens.revoke(&revoked.id).await.unwrap();
        let said = refusal(&server, request(&revoked.credential(), "a", &key)).await;
        assert!(said.message().contains("was revoked"), "{said}");

        let said = refusal(&server, request(&token, "Bad_Name", &key)).await;
        assert_eq!(said.code(), Code::InvalidArgument);
        let old = JoinRequest {
            agent_version: "99.0.0".to_owned(),
            ..request(&token, "a", &key)
        };
        let said = refusal(&server, old).await;
        assert_eq!(said.code(), Code::FailedPrecondition);
        let said = refusal(&server, request(&token, "own", &key)).await;
        assert_eq!(said.code(), Code::AlreadyExists);
        let bad = JoinRequest {
            csr_pem: "nonsense".to_owned(),
            ..request(&token, "a", &key)
        };
        assert_eq!(refusal(&server, bad).await.code(), Code::InvalidArgument);

        // So the name is still free, for any key.
        let other = KeyPair::generate().unwrap();
        server
            .join(Request::new(request(&token, "a", &other)))
            .await
            .unwrap();
        let said = refusal(&server, request(&token, "a", &key)).await;
        assert_eq!(said.code(), Code::AlreadyExists);
        assert!(said.message().contains("--node-name"), "{said}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_certificate_is_renewed_for_a_new_key_only_by_its_node() {
        let api = TestApi::start().await;
        let server = server(&api);
        let (first, second) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let token = server
            .tokens
            .create(Role::Agent, DAY, "", clock::now())
            .await
            .unwrap();
        let joined = server
            .join(Request::new(request(&token.credential(), "a", &first)))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(joined.servers, ["192.0.2.1:6443"]);

        let renewal = RenewRequest {
            csr_pem: csr(&second),
        };
        let anonymous = server.renew(Request::new(renewal.clone())).await;
        assert_eq!(anonymous.unwrap_err().code(), Code::Unauthenticated);
        let renewed = server
            .renew(with_peer(renewal.clone(), &joined.certificate_pem))
            .await
            .unwrap()
            .into_inner();
        let (node, key) = peer_node(&with_peer((), &renewed.certificate_pem)).unwrap();
        assert_eq!(node, "a");
        assert!(server.keys.admits("a", &key).await.unwrap());
        let late = server
            .renew(with_peer(renewal, &joined.certificate_pem))
            .await;
        assert_eq!(late.unwrap_err().code(), Code::PermissionDenied);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_own_agent_has_its_name_whatever_was_before() {
        let api = TestApi::start().await;
        let server = server(&api);
        let key = KeyPair::generate().unwrap();
        let token = server.tokens.issue_own().credential();
        server
            .join(Request::new(request(&token, "own", &key)))
            .await
            .unwrap();
        let again = KeyPair::generate().unwrap();
        server
            .join(Request::new(request(&token, "own", &again)))
            .await
            .unwrap();
    }
}
