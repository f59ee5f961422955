//! `pintle up`: settings → checks → control plane → agent → ready → signal → drained.
//!
//! Nothing on the host changes before every check has passed. The control plane is built
//! first because the agent joins it as any node would: with a token, over its port.

use std::net::IpAddr;
use std::time::SystemTime;

use anyhow::{Result, bail};
use nix::ifaddrs::getifaddrs;
use pintle_agent::node::host;
use pintle_agent::session::membership::Membership;
use pintle_agent::{Agent, AgentConfig};
use pintle_control_plane::joined::Joined;
use pintle_control_plane::{ControlPlane, ControlPlaneConfig};
use pintle_proto::token::JoinToken;

use crate::cli::{Instance, Up};
use crate::config::Settings;
use crate::node::{self, RunDir};
use crate::{join_server, notify};

/// Runs until a signal or `pintle down`.
pub(crate) async fn run(instance: Instance, up: Up, ready: notify::Ready) -> Result<()> {
    let started_at = SystemTime::now();
    let token = join_server::token(up.token.as_deref())?;
    let data_dir = std::path::absolute(&instance.data_dir)?;
    let joined = join_server::present(&data_dir, up.join.as_deref(), token.as_ref())?;
    let mut settings = Settings::resolve(&instance, &up, joined)?;
    let host = pintle_agent::preflight::check(settings.cgroup_parent.as_deref())?;
    node::check_node_ip(settings.node_ip)?;
    if let Some(membership) = Membership::load(&settings.data_dir.join("agent"))? {
        bail!(
            "--data-dir {}: this machine is a node of the cluster of {}; start it with `pintle agent`, or make it leave with `pintle reset`",
            settings.data_dir.display(),
            membership.joined_at
        );
    }
    let run_dir = RunDir::take(&settings.run_dir).await?;
    if let (None, Some(server), Some(token)) = (&settings.joined, &up.join, &token) {
        match Box::pin(join(&settings, server, token)).await {
            Ok(joined) => settings = Settings::resolve(&instance, &up, Some(joined))?,
            Err(error) => {
                run_dir.undo();
                return Err(error);
            }
        }
    }
    node::directory("data-dir", &settings.data_dir)?;

    let control_plane = ControlPlane::build(control_plane_config(&settings)).await?;
    settings.save()?;
    let agent = Agent::build(agent_config(&settings, &control_plane, host.cgroup_root)).await?;
    node::serve(settings, Some(control_plane), agent, started_at, ready).await
}

/// Joins a cluster as another server; a refusal leaves no data directory that was not there.
async fn join(settings: &Settings, server: &str, token: &JoinToken) -> Result<Joined> {
    let is_new = !settings.data_dir.exists();
    node::directory("data-dir", &settings.data_dir)?;
    let joined = join_server::join(server, token, &control_plane_config(settings)).await;
    if is_new && joined.is_err() {
        // Only when it is empty: never what somebody put there meanwhile.
        if let Err(error) = std::fs::remove_dir(&settings.data_dir) {
            tracing::debug!(%error, "the data directory stays");
        }
    }
    joined
}

/// With `--bind 0.0.0.0` the certificate is valid for every address of this machine, and the
/// others are told the node's.
fn control_plane_config(settings: &Settings) -> ControlPlaneConfig {
    let mut config = settings.control_plane();
    if !settings.bind.is_unspecified() {
        return config;
    }
    let is_of_cluster = |address: IpAddr| {
        config.pod_cidr.contains(address) || config.service_cidr.contains(address)
    };
    let own = getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())))
    });
    let own: Vec<String> = own
        // What the data path adds while pods run is no reason for another certificate.
        .filter(|address| !is_of_cluster(*address))
        .map(|address| address.to_string())
        .collect();
    config.more_names.extend(own);
    config.advertise = config
        .advertise
        .or(settings.node_ip)
        .or_else(|| Some(host::default_address()).filter(|address| !address.is_loopback()));
    config
}

/// What the agent is told.
fn agent_config(
    settings: &Settings,
    control_plane: &ControlPlane,
    cgroup_root: std::path::PathBuf,
) -> AgentConfig {
    AgentConfig {
        servers: vec![control_plane.address().to_string()],
        ca_pem: control_plane.ca_pem().to_owned(),
        bootstrap_token: Some(control_plane.own_join_token()),
        ..node::offline_agent_config(settings, cgroup_root)
    }
}
