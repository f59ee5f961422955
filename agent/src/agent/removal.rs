//! Taking a node off its host: pods stopped, and no trace left but the data.
//!
//! Changes everything that carries the instance's mark. Idempotent, and in an order in which
//! nothing that is gone already is missed.

use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Agent, AgentError, cgroup_root, runtime_config, volume_config};
use crate::cgroup::CgroupTree;
use crate::config::AgentConfig;
use crate::describe;
use crate::runtime::{ContainerStatus, Runtime, SandboxState};
use crate::volume::mounted;
use crate::{network, service};

/// SIGTERM.
const TERM: i32 = 15;
/// Grace of containers when the whole node goes.
const GRACE: Duration = Duration::from_secs(10);

/// Told each step.
type Progress<'a> = &'a (dyn Fn(String) + Send + Sync);

impl Agent {
    /// Stops all pods and removes everything the agent made on the host but its data;
    /// `progress` is told each step.
    pub async fn teardown(&self, progress: Progress<'_>) -> Result<(), AgentError> {
        let inner = &self.inner;
        // The rooms stop first, or they would start again what is being removed.
        inner.stop.cancel();
        let mut running = inner.running.subscribe();
        if running.wait_for(|running| !running).await.is_err() {
            tracing::debug!("the agent is gone");
        }
        remove(&inner.config, &inner.runtime, progress).await
    }
}

/// What [`Agent::teardown`] does, when no agent runs: finds by its marks whatever an instance
/// left on the host and removes it.
pub async fn cleanup_host(config: &AgentConfig, progress: Progress<'_>) -> Result<(), AgentError> {
    let cgroups = CgroupTree::build(&cgroup_root(config))?;
    let runtime = Runtime::build(runtime_config(config, cgroups))?;
    runtime.adopt().await?;
    remove(config, &runtime, progress).await
}

async fn remove(
    config: &AgentConfig,
    runtime: &Runtime,
    progress: Progress<'_>,
) -> Result<(), AgentError> {
    let sandboxes = runtime.list();
    progress(format!("stopping {} pods", sandboxes.len()));
    stop_all(runtime, sandboxes).await;
    progress("removing sandboxes and cgroups".to_owned());
    runtime.teardown_all().await?;
    progress("removing volumes".to_owned());
    let memory = volume_config(config).memory_dir;
    for directory in [&memory, &config.pods_dir()] {
        mounted::unmount_below(directory)?;
    }
    remove_directory(&memory);
    progress("removing the pod network".to_owned());
    network::cleanup(&config.instance_id, &config.agent_dir().join("ipam")).await?;
    progress("removing the service data path".to_owned());
    service::teardown(&config.bpffs_dir)?;
    Ok(())
}

async fn stop_all(runtime: &Runtime, sandboxes: Vec<SandboxState>) {
    let mut stops = JoinSet::new();
    for sandbox in sandboxes {
        for container in sandbox.containers {
            if container.state != ContainerStatus::Running {
                continue;
            }
            let (runtime, uid) = (runtime.clone(), sandbox.spec.pod_uid.clone());
            stops.spawn(async move {
                let stopped = runtime
                    .stop_container(&uid, &container.id, TERM, GRACE)
                    .await;
                if let Err(error) = stopped {
                    tracing::debug!(uid, error = describe::chain(&error), "stop");
                }
            });
        }
    }
    while stops.join_next().await.is_some() {}
}

fn remove_directory(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove");
        }
        _ => {}
    }
}
