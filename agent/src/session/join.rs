//! Joining a cluster: from a token to a certificate.
//!
//! Changes `agent/identity/` and `agent/cluster.json`, and those only after the cluster has
//! said yes: a join that is refused leaves nothing behind. Reacts next: the agent, which starts
//! from what was written.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use pintle_proto::node::JoinRequest;
use pintle_proto::node::join_client::JoinClient;
use pintle_proto::token::JoinToken;

use super::channel::{self, ChannelError};
use super::identity::{self, Identity, IdentityError, IdentityStore};
use super::membership::{Membership, MembershipError};
use super::pin::{Finding, PinnedCa};

/// A server has this long to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a machine joins with.
#[derive(Clone, Debug)]
pub struct JoinConfig {
    /// HOST:PORT of a server.
    pub server: String,
    /// The token.
    pub token: JoinToken,
    /// Name the Node is to have.
    pub node_name: String,
    /// Version of this program.
    pub version: String,
}

/// Why a machine could not join; each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody answers.
    #[error(
        "cannot reach a server at {server}; does `pintle up` run there, with --bind set to an address that this machine reaches? (It listens on 127.0.0.1 only unless it is told otherwise.)"
    )]
    Unreachable {
        /// The server.
        server: String,
        /// Why.
        source: ChannelError,
    },
    /// The address is none.
    #[error("--join")]
    Address(#[source] ChannelError),
    /// Another cluster answers.
    #[error(
        "the server at {server} is not of the cluster that the token is for{found}; nothing was sent to it. Is the address right? Make the token on a server of the cluster to join"
    )]
    WrongCa {
        /// The server.
        server: String,
        /// What its CA is.
        found: String,
    },
    /// The certificate does not name the address.
    #[error(
        "the server at {server} is of the right cluster, but its certificate is not valid for that address; restart it with `pintle up --tls-san {host}`, or join at an address it has"
    )]
    WrongName {
        /// The server.
        server: String,
        /// Its host.
        host: String,
    },
    /// The certificate is not valid now.
    #[error(
        "by this machine's clock the certificate of the server at {0} is not valid now; set the clock right"
    )]
    Clock(String),
    /// The server said no.
    #[error("the cluster refused this machine: {0}")]
    Refused(String),
    /// The server did not answer in time.
    #[error("the server at {0} did not answer within {PATIENCE:?}; see its log")]
    Slow(String),
    /// The server's answer makes no sense.
    #[error("the server at {server} answered with {what}; is it of another version?")]
    Answer {
        /// The server.
        server: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The key cannot be made or the result not be kept.
    #[error("cannot make or keep this node's identity")]
    Identity(#[from] IdentityError),
    /// The result cannot be kept.
    #[error("cannot keep the membership")]
    Membership(#[from] MembershipError),
}

/// Joins, and writes down in `agent_dir` what the node needs from then on.
pub async fn join(config: &JoinConfig, agent_dir: &Path) -> Result<Membership, JoinError> {
    let identity_dir = agent_dir.join("identity");
    // A machine that joined before has its name by its key.
    let key_pem = match identity::stored_key(&identity_dir)? {
        Some(key_pem) => key_pem,
        None => identity::new_key()?,
    };
    let csr_pem = identity::signing_request(&key_pem, &config.node_name)?;
    let (channel, ca_pem) = connect(&config.server, &config.token).await?;
    let request = JoinRequest {
        token: config.token.credential(),
        node_name: config.node_name.clone(),
        csr_pem,
        agent_version: config.version.clone(),
    };
    let mut client = JoinClient::new(channel);
    let response = tokio::time::timeout(PATIENCE, client.join(request))
        .await
        .map_err(|_elapsed| JoinError::Slow(config.server.clone()))?
        .map_err(|status| JoinError::Refused(status.message().to_owned()))?
        .into_inner();
    let answer = |what| JoinError::Answer {
        server: config.server.clone(),
        what,
    };
    if identity::validity(&response.certificate_pem, &config.node_name).is_none() {
        return Err(answer("a certificate for another node"));
    }
    let settings = response.settings.ok_or_else(|| answer("no settings"))?;
    let membership = Membership {
        node_name: config.node_name.clone(),
        ca_pem,
        joined_at: config.server.clone(),
        servers: response.servers,
        ..Membership::default()
    }
    .with_settings(&settings);
    IdentityStore::new(
        identity_dir,
        config.node_name.clone(),
        membership.ca_pem.clone(),
    )
    .save(&Identity {
        key_pem,
        certificate_pem: response.certificate_pem,
    })?;
    // Last, for it says that all is there.
    membership.save(agent_dir)?;
    Ok(membership)
}

/// A connection to a server of the token's cluster, and that cluster's CA.
pub async fn connect(
    server: &str,
    token: &JoinToken,
) -> Result<(tonic::transport::Channel, String), JoinError> {
    let pinned = Mutex::new(None);
    let connected = channel::connect_pinned(server, |provider| {
        let verifier = Arc::new(PinnedCa::new(token.ca_hash, provider));
        *pinned.lock() = Some(Arc::clone(&verifier));
        verifier
    })
    .await;
    let finding = pinned.into_inner().and_then(|pinned| pinned.finding());
    match (connected, finding) {
        (Ok(channel), Some(Finding::Ca(ca))) => Ok((channel, pem(&ca))),
        (_, Some(Finding::Foreign(found))) => Err(JoinError::WrongCa {
            server: server.to_owned(),
            found: found.map_or_else(String::new, |hash| {
                format!(
                    " (its CA's key is sha256:{}, the token says sha256:{})",
                    hex::encode(hash),
                    hex::encode(token.ca_hash)
                )
            }),
        }),
        (_, Some(Finding::Name)) => Err(JoinError::WrongName {
            server: server.to_owned(),
            host: server
                .rsplit_once(':')
                .map_or(server, |(host, _port)| host)
                .trim_matches(['[', ']'])
                .to_owned(),
        }),
        (_, Some(Finding::Clock)) => Err(JoinError::Clock(server.to_owned())),
        (Err(source @ ChannelError::Address { .. }), _) => Err(JoinError::Address(source)),
        (Err(source), _) => Err(JoinError::Unreachable {
            server: server.to_owned(),
            source,
        }),
        (Ok(_), None) => Err(JoinError::Answer {
            server: server.to_owned(),
            what: "no certificate",
        }),
    }
}

/// A certificate as PEM (RFC 7468).
fn pem(certificate: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in STANDARD.encode(certificate).as_bytes().chunks(64) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
