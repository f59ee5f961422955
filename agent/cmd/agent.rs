//! `pintle agent`: this machine as a node of a cluster that runs elsewhere.
//!
//! The first start joins: the token pins the cluster's CA, the key is made here, the cluster
//! signs it. What a node needs from then on is written only after the cluster said yes; a
//! refused join leaves nothing behind. Later starts read it and need neither token nor server.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use pintle_agent::session::identity::IdentityStore;
use pintle_agent::session::join::{JoinConfig, join};
use pintle_agent::session::membership::Membership;
use pintle_agent::session::pin;
use pintle_agent::{Agent, AgentConfig};
use pintle_proto::token::{JoinToken, TokenFormatError};

use crate::cli::{Agent as Args, Instance};
use crate::config::{ConfigFile, Settings};
use crate::node::{self, RunDir};
use crate::notify;

/// Why this machine cannot be the node it is to be. Each names the way out.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error(
        "--data-dir {}: this machine is a server of a cluster of its own; start it with `pintle up`, or delete that cluster with `pintle reset`", .0.display()
    )]
    IsServer(PathBuf),
    #[error(
        "this machine has not joined a cluster: give --join HOST:PORT and --token TOKEN; `pintle token create` on a server prints both"
    )]
    NotJoined,
    #[error("--join {0}: give --token too; `pintle token create` on a server prints it")]
    NoToken(String),
    #[error("--token: give --join HOST:PORT too; `pintle token create` on a server prints both")]
    NoServer,
    #[error("--token")]
    Token(#[source] TokenFormatError),
    #[error(
        "this machine is a node of the cluster of {0} already, and the token is for another one; make it leave with `pintle reset` first"
    )]
    OtherCluster(String),
    #[error(
        "this machine joined its cluster as node {joined:?}; to give it the name {given:?}, `pintle reset` and join again"
    )]
    OtherName { joined: String, given: String },
}

/// Runs until a signal or `pintle down`.
pub(crate) async fn run(instance: Instance, args: Args, ready: notify::Ready) -> Result<()> {
    let started_at = SystemTime::now();
    let file = ConfigFile::of_agent(args.config.as_deref())?;
    let token = args
        .token
        .as_deref()
        .map(str::parse::<JoinToken>)
        .transpose()
        .map_err(AgentError::Token)?;
    let host = pintle_agent::preflight::check(file.cgroup_parent())?;
    node::check_node_ip(args.node_ip)?;
    let data_dir = std::path::absolute(&instance.data_dir)?;
    if data_dir.join("control-plane").exists() {
        return Err(AgentError::IsServer(data_dir).into());
    }
    let run_dir = RunDir::take(&std::path::absolute(&instance.run_dir)?).await?;
    let agent_dir = data_dir.join("agent");
    let membership = match Box::pin(member(&args, &file, token, &agent_dir)).await {
        Ok(membership) => membership,
        Err(error) => {
            run_dir.undo();
            return Err(error);
        }
    };
    let mut settings = Settings::of_member(&instance, &args, file, &membership)?;
    settings.node_ip = settings.node_ip.or_else(|| address_towards(&membership));
    settings.save()?;
    let config = agent_config(&settings, &membership, host.cgroup_root)?;
    let agent = Agent::build(config).await?;
    node::serve(settings, None, agent, started_at, ready).await
}

/// The membership of an earlier join, or of one now.
async fn member(
    args: &Args,
    file: &ConfigFile,
    token: Option<JoinToken>,
    agent_dir: &Path,
) -> Result<Membership> {
    let present = Membership::load(agent_dir)?;
    let given_name = file.given_node_name(args.node_name.as_deref());
    if let Some(membership) = &present {
        if let Some(token) = &token
            && ca_hash(&membership.ca_pem) != Some(token.ca_hash)
        {
            return Err(AgentError::OtherCluster(membership.joined_at.clone()).into());
        }
        if let Some(given) = given_name.filter(|given| *given != membership.node_name) {
            return Err(AgentError::OtherName {
                joined: membership.node_name.clone(),
                given: given.to_owned(),
            }
            .into());
        }
    }
    match (present, args.join.clone(), token) {
        (Some(membership), Some(server), Some(token)) if !has_identity(agent_dir, &membership)? => {
            let name = membership.node_name;
            enrol(server, token, name, agent_dir).await
        }
        (Some(membership), ..) => Ok(membership),
        (None, Some(server), Some(token)) => {
            let name = file.node_name(args.node_name.as_deref())?;
            enrol(server, token, name, agent_dir).await
        }
        (None, Some(server), None) => Err(AgentError::NoToken(server).into()),
        (None, None, Some(_)) => Err(AgentError::NoServer.into()),
        (None, None, None) => Err(AgentError::NotJoined.into()),
    }
}

async fn enrol(
    server: String,
    token: JoinToken,
    node_name: String,
    agent_dir: &Path,
) -> Result<Membership> {
    let config = JoinConfig {
        server,
        token,
        node_name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let membership = join(&config, agent_dir).await?;
    tracing::info!(
        node = membership.node_name,
        server = membership.joined_at,
        "joined the cluster"
    );
    Ok(membership)
}

/// Whether the node has a certificate that is good now.
fn has_identity(agent_dir: &Path, membership: &Membership) -> Result<bool> {
    let store = IdentityStore::new(
        agent_dir.join("identity"),
        membership.node_name.clone(),
        membership.ca_pem.clone(),
    );
    let now = pintle_agent::clock::Clock::system().now();
    Ok(store
        .load()?
        .is_some_and(|(_, validity)| validity.holds(now)))
}

fn ca_hash(ca_pem: &str) -> Option<[u8; 32]> {
    pin::key_hash(&pin::certificate(ca_pem)?)
}

/// The address this machine reaches the cluster from: asked of the kernel by connecting a
/// datagram socket, which sends nothing.
fn address_towards(membership: &Membership) -> Option<IpAddr> {
    let server = membership.joined_at.to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if server.is_ipv4() {
        IpAddr::from([0, 0, 0, 0])
    } else {
        IpAddr::from([0_u16; 8])
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(server).ok()?;
    let address = socket.local_addr().ok()?.ip();
    Some(address).filter(|address| !address.is_loopback())
}

fn agent_config(
    settings: &Settings,
    membership: &Membership,
    cgroup_root: PathBuf,
) -> Result<AgentConfig> {
    let cluster_dns = membership
        .cluster_dns
        .parse()
        .with_context(|| format!("the cluster's DNS address {:?}", membership.cluster_dns))?;
    Ok(AgentConfig {
        servers: membership.addresses(),
        is_member: true,
        ca_pem: membership.ca_pem.clone(),
        cluster_dns,
        ..node::offline_agent_config(settings, cgroup_root)
    })
}
