//! What `pintle up` and `pintle agent` share: the run directory's lock, the parts side by side,
//! ready, signal, drained.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use pintle_agent::{Agent, AgentConfig};
use pintle_control_plane::ControlPlane;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::{Role, Settings};
use crate::instance::Running;
use crate::{admin, notify};

/// How long the parts may take to end after a signal.
const DRAIN: Duration = Duration::from_secs(10);

/// How long an instance that was just killed may take to let go of its run directory: the
/// kernel frees its memory first.
const HANDOVER: Duration = Duration::from_secs(2);
/// How often that is looked at.
const HANDOVER_STEP: Duration = Duration::from_millis(20);

/// Why an instance cannot start. Each names the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "--run-dir {0}: another instance uses it; stop it with `pintle down`, or give this one a --run-dir and a --data-dir of its own"
    )]
    RunDirInUse(String),
    #[error("--node-ip {0}: no interface of this host has that address")]
    NodeIp(IpAddr, #[source] std::io::Error),
    #[error("--{option} {path}: cannot be used")]
    Directory {
        option: &'static str,
        path: String,
        source: std::io::Error,
    },
}

/// A run directory that is ours while this lives.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    is_new: bool,
    _lock: Flock<File>,
}

impl RunDir {
    /// Creates and locks it.
    pub(crate) async fn take(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        directory("run-dir", path)?;
        let lock = lock(path, HANDOVER).await?;
        Ok(Self {
            path: path.to_owned(),
            is_new,
            _lock: lock,
        })
    }

    /// Leaves no trace of a start that came to nothing.
    pub(crate) fn undo(self) {
        if !self.is_new {
            return;
        }
        let removed = std::fs::remove_file(self.path.join(LOCK))
            .and_then(|()| std::fs::remove_dir(&self.path));
        if let Err(error) = removed {
            tracing::debug!(%error, "the run directory stays");
        }
    }
}

/// Refuses an address no interface of this host has.
pub(crate) fn check_node_ip(address: Option<IpAddr>) -> Result<(), StartError> {
    let Some(address) = address else {
        return Ok(());
    };
    // Only an address of this host can be bound to (bind(2), EADDRNOTAVAIL).
    UdpSocket::bind((address, 0))
        .map(drop)
        .map_err(|error| StartError::NodeIp(address, error))
}

/// Runs the parts until a signal or `pintle down`.
pub(crate) async fn serve(
    settings: Settings,
    control_plane: Option<ControlPlane>,
    agent: Agent,
    started_at: SystemTime,
    ready: notify::Ready,
) -> Result<()> {
    let shutdown = CancellationToken::new();
    let running = Running::new(
        settings.clone(),
        control_plane.clone(),
        agent.clone(),
        started_at,
        shutdown.clone(),
    );

    // Two groups, because they end one after the other: the agent's last status must still
    // reach the control plane.
    let (mut control, mut node) = (JoinSet::new(), JoinSet::new());
    let control_stop = CancellationToken::new();
    if let Some(control_plane) = control_plane {
        let stop = control_stop.clone();
        control.spawn(async move {
            control_plane
                .run(stop)
                .await
                .context("the control plane ended")
        });
    }
    let mut node_ready = agent.ready();
    node.spawn({
        let stop = shutdown.clone();
        async move { agent.run(stop).await.context("the agent ended") }
    });
    node.spawn({
        let (run_dir, stop) = (settings.run_dir.clone(), shutdown.clone());
        async move { admin::serve(running, &run_dir, stop).await }
    });

    let mut announced = false;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let outcome = loop {
        tokio::select! {
            // No part ends on its own unless something is wrong.
            Some(ended) = control.join_next() => break ended.context("the control plane panicked").flatten(),
            Some(ended) = node.join_next() => {
                break ended.context("a part of the node panicked").flatten();
            }
            changed = node_ready.changed(), if !announced => {
                changed.context("the agent ended before the node was ready")?;
                if *node_ready.borrow_and_update() {
                    announced = true;
                    announce(&settings, ready)?;
                }
            }
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            () = shutdown.cancelled() => break Ok(()),
        }
    };
    shutdown.cancel();
    let drain = async {
        while node.join_next().await.is_some() {}
        control_stop.cancel();
        while control.join_next().await.is_some() {}
    };
    if tokio::time::timeout(DRAIN, drain).await.is_err() {
        tracing::warn!("some parts did not end within {DRAIN:?}; leaving them");
    }
    let socket = admin::socket_path(&settings.run_dir);
    if let Err(error) = std::fs::remove_file(&socket) {
        tracing::debug!(%error, "the admin socket was gone already");
    }
    outcome
}

/// The agent's settings without a control plane to join.
pub(crate) fn offline_agent_config(
    settings: &Settings,
    cgroup_root: std::path::PathBuf,
) -> AgentConfig {
    let instance_id = settings.instance_id();
    AgentConfig {
        node_name: settings.node_name.clone(),
        bpffs_dir: Path::new("/sys/fs/bpf").join(format!("pintle-{instance_id}")),
        instance_id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster_domain: settings.cluster_domain.clone(),
        cluster_dns: settings.control_plane().cluster_dns(),
        pod_cidr: None,
        cluster_cidr: settings.pod_cidr.to_string(),
        service_cidr: settings.service_cidr.to_string(),
        servers: Vec::new(),
        is_member: false,
        ca_pem: String::new(),
        bootstrap_token: None,
        data_dir: settings.data_dir.clone(),
        run_dir: settings.run_dir.clone(),
        cgroup_root,
        registries: settings.registries.clone(),
        dns_upstreams: settings.dns_upstreams.clone(),
        shim_command: vec!["/proc/self/exe".into(), "shim".into()],
        node_ip: settings.node_ip,
        node_labels: settings.node_labels.clone(),
        max_pods: settings.max_pods,
        pod_pids_limit: settings.pod_pids_limit,
    }
}

fn announce(settings: &Settings, ready: notify::Ready) -> Result<()> {
    let kubeconfig = settings.kubeconfig.display().to_string();
    let is_server = settings.role == Role::Server;
    ready.tell(if is_server { &kubeconfig } else { "" })?;
    let mut out = std::io::stdout().lock();
    if is_server && std::io::stdout().is_terminal() {
        writeln!(out, "export KUBECONFIG={kubeconfig}")?;
    } else if is_server {
        writeln!(out, "{kubeconfig}")?;
    }
    writeln!(out, "ready")?;
    out.flush()?;
    notify::release_stdout()
}

pub(crate) fn directory(option: &'static str, path: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StartError::Directory {
            option,
            path: path.display().to_string(),
            source,
        })
}

/// Name of the lock file in the run directory.
const LOCK: &str = "pintle.lock";

/// Holds the run directory for this process's life; waits at most `patience` for its last
/// holder to be gone.
async fn lock(run_dir: &Path, patience: Duration) -> Result<Flock<File>> {
    let path = run_dir.join(LOCK);
    let mut file = File::create(&path).map_err(|source| StartError::Directory {
        option: "run-dir",
        path: run_dir.display().to_string(),
        source,
    })?;
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => file,
            Err((_file, other)) => {
                return Err(
                    anyhow::Error::new(other).context(format!("locking {}", path.display()))
                );
            }
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(StartError::RunDirInUse(run_dir.display().to_string()).into());
        }
        tokio::time::sleep(HANDOVER_STEP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_run_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path(), Duration::ZERO).await.unwrap();
        let refused = lock(dir.path(), Duration::ZERO).await.unwrap_err();
        assert!(matches!(
            refused.downcast_ref(),
            Some(StartError::RunDirInUse(_))
        ));
        let path = dir.path().to_owned();
        let mut second = JoinSet::new();
        second.spawn(async move { lock(&path, HANDOVER).await.map(drop) });
        tokio::task::yield_now().await;
        drop(first);
        second.join_next().await.unwrap().unwrap().unwrap();
    }
}
