//! What others may know about the pods: `pintle status`, logs, exec.
//!
//! Changed by the workers only; read by the streams and the administration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::RwLock;
use pintle_proto::admin::PodSummary;
use tokio::sync::watch;

use crate::pod::machine::{Life, Machine};

/// One container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEntry {
    /// Its name.
    pub name: String,
    /// Id of its run, while it runs.
    pub running: Option<String>,
    /// Number of the newest run that has started, with its log.
    pub attempt: Option<u32>,
    /// Why it waits.
    pub waiting: Option<String>,
    /// It has a terminal.
    pub tty: bool,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct PodEntry {
    /// For `pintle status`.
    pub summary: PodSummary,
    /// Its containers.
    pub containers: Vec<ContainerEntry>,
    /// Directory of its logs.
    pub log_dir: PathBuf,
}

/// All pods by uid. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodTable(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    pods: RwLock<BTreeMap<String, PodEntry>>,
    changes: watch::Sender<u64>,
}

/// Directory of a pod's logs.
pub(super) fn log_dir(logs_dir: &Path, pod: &Pod) -> PathBuf {
    let meta = &pod.metadata;
    logs_dir.join(format!(
        "{}_{}_{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default()
    ))
}

impl PodTable {
    /// Counts changes, for those who wait for one.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// One pod.
    pub fn get(&self, uid: &str) -> Option<PodEntry> {
        self.0.pods.read().get(uid).cloned()
    }

    /// The pod with this name, when its uid is not known.
    pub fn find(&self, namespace: &str, name: &str) -> Option<(String, PodEntry)> {
        self.0
            .pods
            .read()
            .iter()
            .find(|(_, entry)| entry.summary.namespace == namespace && entry.summary.name == name)
            .map(|(uid, entry)| (uid.clone(), entry.clone()))
    }

    /// All pods, by namespace and name.
    pub fn summaries(&self) -> Vec<PodSummary> {
        let mut list: Vec<PodSummary> = self
            .0
            .pods
            .read()
            .values()
            .map(|entry| entry.summary.clone())
            .collect();
        list.sort_by(|one, other| {
            (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name))
        });
        list
    }

    pub(super) fn remove(&self, uid: &str) {
        self.0.pods.write().remove(uid);
        self.changed();
    }

    pub(super) fn update(&self, uid: &str, machine: &Machine, status: &PodStatus, logs_dir: &Path) {
        let pod = machine.pod();
        let statuses = status
            .init_container_statuses
            .iter()
            .flatten()
            .chain(status.container_statuses.iter().flatten());
        let waiting = |name: &str| {
            statuses
                .clone()
                .find(|status| status.name == name)
                .and_then(|status| status.state.as_ref())
                .and_then(|state| state.waiting.as_ref())
                .and_then(|waiting| waiting.reason.clone())
        };
        let containers: Vec<ContainerEntry> = machine
            .containers()
            .map(|(spec, facts)| ContainerEntry {
                name: facts.name.clone(),
                running: facts.running().map(|running| running.id.clone()),
                attempt: match facts.life {
                    Life::Running(_) | Life::Exited { .. } => Some(facts.attempt),
                    Life::Waiting | Life::Creating => facts.attempt.checked_sub(1),
                },
                waiting: waiting(&facts.name),
                tty: spec.tty.unwrap_or(false),
            })
            .collect();
        let message = containers
            .iter()
            .find_map(|container| {
                let reason = container.waiting.as_ref()?;
                Some(format!("{}: {reason}", container.name))
            })
            .or_else(|| status.message.clone())
            .unwrap_or_default();
        let restarts = status
            .container_statuses
            .iter()
            .flatten()
            .map(|status| u32::try_from(status.restart_count).unwrap_or_default())
            .sum();
        let summary = PodSummary {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            phase: if pod.metadata.deletion_timestamp.is_some() {
                "Terminating".to_owned()
            } else {
                status.phase.clone().unwrap_or_default()
            },
            ip: status.pod_ip.clone().unwrap_or_default(),
            shim_pid: u32::try_from(machine.facts().sandbox.shim_pid).unwrap_or_default(),
            restarts,
            message,
        };
        let entry = PodEntry {
            summary,
            containers,
            log_dir: log_dir(logs_dir, pod),
        };
        self.0.pods.write().insert(uid.to_owned(), entry);
        self.changed();
    }
}
