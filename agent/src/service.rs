//! The service data path: Services and EndpointSlices become entries of BPF maps.
//!
//! Watches Services and EndpointSlices, as [`ClusterChange`]s. Looks for the difference
//! between what they ask for and what the maps hold, and writes only that, in an order that
//! never exposes half a service. Changes the pinned maps, programs and links of this instance
//! on bpffs; they work on while no agent runs. Who reacts next: the BPF programs, at the next
//! `connect` or `sendmsg` of a process.

mod bpffs;
pub(crate) mod cluster;
mod datapath;
mod desired;
mod log;
mod sync;
mod table;
#[cfg(test)]
pub(crate) mod testing;

use std::path::PathBuf;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::session::ClusterChange;

use sync::Synchroniser;

pub use datapath::{DataPath, DataPathError, PodLink};

/// Changes taken at once; several changes of one Service cost one comparison.
const BATCH: usize = 1_024;

/// What the service data path of one node is built from.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Processes below this cgroup v2 reach Services; normally the root of the hierarchy.
    pub attach_cgroup: PathBuf,
    /// Directory on bpffs for this instance's pins.
    pub bpffs_dir: PathBuf,
}

/// State of the data path, for conditions, Events and `pintle status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The maps hold what the control plane asked for.
    pub synced: bool,
    /// Addresses and ports that are translated.
    pub frontends: usize,
    /// Endpoints behind them.
    pub backends: usize,
    /// What is wrong, in one line for people.
    pub problem: Option<String>,
}

/// The room as a whole; [`run`](Self::run) it.
#[derive(Debug)]
pub struct ServiceProxy {
    data_path: DataPath,
    handle: ServiceHandle,
    changes: mpsc::UnboundedReceiver<ClusterChange>,
}

/// Feeds the data path and tells its state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServiceHandle {
    changes: mpsc::UnboundedSender<ClusterChange>,
    status: watch::Sender<ServiceStatus>,
}

impl ServiceProxy {
    /// Loads the programs, adopting maps and links that are pinned already.
    pub fn build(config: &ServiceConfig) -> Result<Self, DataPathError> {
        let data_path = DataPath::open(config)?;
        let (sender, changes) = mpsc::unbounded_channel();
        Ok(Self {
            data_path,
            handle: ServiceHandle {
                changes: sender,
                status: watch::Sender::default(),
            },
            changes,
        })
    }

    /// The feeding end.
    pub fn handle(&self) -> ServiceHandle {
        self.handle.clone()
    }

    /// The loaded programs, for the pod network.
    pub fn data_path(&self) -> DataPath {
        self.data_path.clone()
    }

    /// Applies changes until `shutdown`; the data path stays in the kernel.
    ///
    /// Nothing is written before the first [`ClusterChange::Synced`], so that what an earlier
    /// process left in the maps serves until the whole new state is known.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut synchroniser = Synchroniser::new(self.data_path.clone());
        let program_log = async {
            if let Some(log) = self.data_path.take_log() {
                log.run().await;
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(program_log);
        let mut batch = Vec::new();
        loop {
            batch.clear();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = &mut program_log => continue,
                taken = self.changes.recv_many(&mut batch, BATCH) => if taken == 0 { return },
            }
            let status = synchroniser.apply(batch.drain(..));
            self.handle.status.send_if_modified(|current| {
                if *current == status {
                    return false;
                }
                if let Some(problem) = &status.problem
                    && current.problem.as_ref() != Some(problem)
                {
                    tracing::error!(problem, "the service data path is not complete");
                }
                *current = status;
                true
            });
        }
    }
}

impl ServiceHandle {
    /// Takes one change; never blocks.
    pub fn apply(&self, change: ClusterChange) {
        if self.changes.send(change).is_err() {
            tracing::debug!("the service data path has stopped");
        }
    }

    /// Follows the state of the data path.
    pub fn status(&self) -> watch::Receiver<ServiceStatus> {
        self.status.subscribe()
    }
}

/// Removes the pins below `bpffs_dir`, which ends the data path of that instance.
pub fn teardown(bpffs_dir: &std::path::Path) -> Result<(), DataPathError> {
    datapath::remove_pins(bpffs_dir)
}
