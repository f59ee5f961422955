//! Binds pods to nodes: a pure core and a thin loop.
//!
//! Owns the choice of a node for every pod that names this scheduler. It acts through the API like
//! any other client and must not know the store, the nodes' agents or the controllers.
//!
//! ```text
//!  informers ─▶ cache (incremental) ─▶ snapshot ─┐
//!      │                                         ├─▶ core: filter → score → decision ─▶ assume ─▶ bind
//!      └─▶ queue (active, backoff, waiting) ─ pod ┘          └─ no node: explanation, back to the queue
//! ```

use pintle_api::client::Client;
use tokio_util::sync::CancellationToken;

mod cluster;
mod core;
mod driver;
mod plugins;
mod queue;
mod resources;
#[cfg(test)]
mod test_objects;

/// What the scheduler needs to know.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// A client that may act as the scheduler.
    pub client: Client,
    /// The pods it takes: those with this `spec.schedulerName`.
    pub scheduler_name: String,
}

impl SchedulerConfig {
    /// The usual settings: every pod that asks for no other scheduler.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            scheduler_name: "default-scheduler".to_owned(),
        }
    }
}

/// Why the scheduler could not run.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A task panicked; the log tells more.
    #[error("the scheduler ended unexpectedly")]
    Panicked,
}

/// Runs the scheduler until `shutdown`; returns when its last writes have ended.
pub async fn run(
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> Result<(), SchedulerError> {
    driver::run(config, shutdown).await
}
