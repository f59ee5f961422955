//! `pintle up --join`: this machine as another server of a cluster that runs elsewhere.
//!
//! The token pins the cluster's CA; over that connection the server gets its place in the group
//! and the keys every server has. They are kept in one step ([`Joined`]), and only after the
//! cluster said yes: a refused join leaves nothing behind, and one that was interrupted is
//! repeated with the same command.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use pintle_agent::session::join::connect;
use pintle_agent::session::pin;
use pintle_control_plane::ControlPlaneConfig;
use pintle_control_plane::joined::{Joined, JoinedError};
use pintle_proto::node::JoinServerRequest;
use pintle_proto::node::server_join_client::ServerJoinClient;
use pintle_proto::token::{JoinToken, TokenFormatError};

/// The cluster changes its group before it answers.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why this machine cannot be the server it is to be. Each names the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error(
        "--data-dir {}: this machine is a server of a cluster of its own, which --join would end; start it without --join, or delete that cluster with `pintle reset` first", .0.display()
    )]
    OwnCluster(PathBuf),
    #[error(
        "this machine is a server of the cluster of {0} already, and the token is for another one; `pintle member remove` it there and `pintle reset` here first"
    )]
    OtherCluster(String),
    #[error("--join {0}: give --token too; `pintle token create --role server` there prints it")]
    NoToken(String),
    #[error(
        "--token: give --join HOST:PORT too; `pintle token create --role server` on a server prints both"
    )]
    NoServer,
    #[error("--token")]
    Token(#[source] TokenFormatError),
    #[error("--raft-port {port}: cannot listen on {address}")]
    RaftPort {
        port: u16,
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("the cluster refused this server: {0}")]
    Refused(String),
    #[error(
        "the server at {0} did not answer within {PATIENCE:?}; see its log, then give the same command again"
    )]
    Slow(String),
    #[error("cannot keep what the cluster answered")]
    Keep(#[from] JoinedError),
}

/// What the data directory says of an earlier join, refused where it is not what is asked for.
pub(crate) fn present(
    data_dir: &Path,
    server: Option<&str>,
    token: Option<&JoinToken>,
) -> Result<Option<Joined>, JoinError> {
    let joined = Joined::load(data_dir)?;
    match (&joined, server, token) {
        (None, Some(_), _) if Joined::is_server(data_dir) => {
            Err(JoinError::OwnCluster(data_dir.to_owned()))
        }
        (Some(joined), _, Some(token)) if ca_hash(data_dir) != Some(token.ca_hash) => {
            Err(JoinError::OtherCluster(joined.joined_at.clone()))
        }
        (None, Some(server), None) => Err(JoinError::NoToken(server.to_owned())),
        (None, None, Some(_)) => Err(JoinError::NoServer),
        _ => Ok(joined),
    }
}

/// Reads `--token`.
pub(crate) fn token(text: Option<&str>) -> Result<Option<JoinToken>, JoinError> {
    text.map(str::parse).transpose().map_err(JoinError::Token)
}

/// Joins, and keeps what the server needs from then on.
pub(crate) async fn join(
    server: &str,
    token: &JoinToken,
    config: &ControlPlaneConfig,
) -> Result<Joined> {
    let own = SocketAddr::new(config.bind, config.raft_port);
    // Found out before anybody waits for a server that cannot be reached.
    TcpListener::bind(own)
        .map(drop)
        .map_err(|source| JoinError::RaftPort {
            port: config.raft_port,
            address: own,
            source,
        })?;
    let (channel, _ca) = connect(server, token).await?;
    let request = JoinServerRequest {
        token: token.credential(),
        node_name: config.node_name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        raft_address: SocketAddr::new(config.raft_address(), config.raft_port).to_string(),
        api_port: config.port.into(),
    };
    let mut client = ServerJoinClient::new(channel);
    let answer = tokio::time::timeout(PATIENCE, client.join_server(request))
        .await
        .map_err(|_elapsed| JoinError::Slow(server.to_owned()))?
        .map_err(|status| JoinError::Refused(status.message().to_owned()))?
        .into_inner();
    let joined = Joined::keep(server, &answer, &config.data_dir).map_err(JoinError::Keep)?;
    tracing::info!(
        server,
        member = joined.member_id,
        "joined the cluster as a server"
    );
    Ok(joined)
}

fn ca_hash(data_dir: &Path) -> Option<[u8; 32]> {
    let pem = std::fs::read_to_string(data_dir.join("control-plane/pki/ca.pem")).ok()?;
    pin::key_hash(&pin::certificate(&pem)?)
}
