//! Starts and stops workers.
//!
//! Watches the Pods of this node and the runtime's events; starts a worker for every pod that
//! has none, hands each worker its news, and makes workers for what an earlier agent left
//! behind of pods that are no more. Reacts next: the workers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::record;
use super::worker::{Message, Rooms, Worker};
use crate::describe;
use crate::runtime::{ContainerStatus, RuntimeEvent, SandboxState};
use crate::session::PodChange;

/// The owner of the workers.
pub struct Manager {
    rooms: Arc<Rooms>,
    workers: HashMap<String, Handle>,
    tasks: JoinSet<String>,
    synced: bool,
}

struct Handle {
    key: String,
    inbox: mpsc::UnboundedSender<Message>,
}

/// What a manager watches.
pub struct Inputs {
    /// The Pods of this node and what they use.
    pub changes: mpsc::UnboundedReceiver<PodChange>,
    /// What happens to sandboxes and containers.
    pub runtime: broadcast::Receiver<RuntimeEvent>,
    /// News for all workers, e.g. that the network is there.
    pub broadcast: mpsc::UnboundedReceiver<Message>,
    /// Everything the runtime has, for orphans and after missed events.
    pub list: Arc<dyn Fn() -> Vec<SandboxState> + Send + Sync>,
}

impl Manager {
    /// A manager without workers.
    pub fn new(rooms: Arc<Rooms>) -> Self {
        Self {
            rooms,
            workers: HashMap::new(),
            tasks: JoinSet::new(),
            synced: false,
        }
    }

    /// Manages until `shutdown`, which leaves the pods running.
    pub async fn run(mut self, mut inputs: Inputs, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                change = inputs.changes.recv() => match change {
                    Some(change) => self.changed(change, inputs.list.as_ref(), &shutdown),
                    None => break,
                },
                event = inputs.runtime.recv() => match event {
                    Ok(event) => self.happened(event),
                    Err(RecvError::Lagged(_)) => self.reread(inputs.list.as_ref()),
                    Err(RecvError::Closed) => break,
                },
                Some(message) = inputs.broadcast.recv() => {
                    for handle in self.workers.values() {
                        tell(handle, message.clone());
                    }
                }
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.ended(ended, &shutdown);
                }
            }
        }
        // The workers see the same signal.
        while self.tasks.join_next().await.is_some() {}
    }

    fn ended(
        &mut self,
        ended: Result<String, tokio::task::JoinError>,
        shutdown: &CancellationToken,
    ) {
        match ended {
            Ok(uid) => {
                if let Some(handle) = self.workers.remove(&uid) {
                    tracing::debug!(uid, pod = handle.key, "nothing is left of the pod");
                }
            }
            Err(error) => {
                tracing::error!(%error, "a pod worker died");
                // Its pod is taken up again from the record.
                self.workers.retain(|_, handle| !handle.inbox.is_closed());
                for pod in self.rooms.state.pods() {
                    self.pod(&pod, shutdown);
                }
            }
        }
    }

    fn changed(
        &mut self,
        change: PodChange,
        list: &dyn Fn() -> Vec<SandboxState>,
        shutdown: &CancellationToken,
    ) {
        match change {
            PodChange::Pod(_, Some(pod)) => self.pod(&pod, shutdown),
            PodChange::Pod(key, None) => {
                for handle in self.workers.values().filter(|handle| handle.key == key) {
                    tell(handle, Message::Gone);
                }
            }
            PodChange::Secret(key) => self.source("Secret", &key),
            PodChange::ConfigMap(key) => self.source("ConfigMap", &key),
            PodChange::Synced => {
                if !self.synced {
                    self.synced = true;
                    self.orphans(list, shutdown);
                }
            }
            PodChange::Node(_) => {}
        }
    }

    fn pod(&mut self, pod: &Arc<Pod>, shutdown: &CancellationToken) {
        let Some(uid) = pod.metadata.uid.clone().filter(|uid| is_file_name(uid)) else {
            tracing::warn!(pod = ?pod.metadata.name, "a pod without a usable uid");
            return;
        };
        if let Some(handle) = self.workers.get(&uid) {
            tell(handle, Message::Spec(pod.clone()));
            return;
        }
        let key = key(&pod.metadata);
        // Another pod had the name: its object is gone, even if nobody said so.
        for handle in self.workers.values().filter(|handle| handle.key == key) {
            tell(handle, Message::Gone);
        }
        self.start(uid, key, pod, shutdown);
    }

    fn start(&mut self, uid: String, key: String, pod: &Arc<Pod>, shutdown: &CancellationToken) {
        let (inbox, messages) = mpsc::unbounded_channel();
        let worker = match Worker::build(self.rooms.clone(), pod, messages) {
            Ok(worker) => worker,
            Err(error) => {
                tracing::error!(
                    pod = key,
                    error = describe::chain(&error),
                    "cannot take the pod up"
                );
                return;
            }
        };
        let (name, shutdown) = (uid.clone(), shutdown.clone());
        self.tasks.spawn(async move {
            Box::pin(worker.run(shutdown)).await;
            name
        });
        self.workers.insert(uid, Handle { key, inbox });
    }

    /// Pods that are no more, but of which something is left: a record or a sandbox.
    fn orphans(&mut self, list: &dyn Fn() -> Vec<SandboxState>, shutdown: &CancellationToken) {
        let recorded = match record::list(&self.rooms.pods_dir) {
            Ok(uids) => uids,
            Err(error) => {
                tracing::warn!(
                    error = describe::chain(&error),
                    "orphans are not looked for"
                );
                return;
            }
        };
        let sandboxes = list();
        let mut uids: BTreeSet<String> = recorded.into_iter().collect();
        uids.extend(sandboxes.iter().map(|state| state.spec.pod_uid.clone()));
        for uid in uids {
            if self.workers.contains_key(&uid) || !is_file_name(&uid) {
                continue;
            }
            let (pod, _) = record::read(&self.rooms.pods_dir.join(&uid));
            let sandbox = sandboxes.iter().find(|state| state.spec.pod_uid == uid);
            let pod = Arc::new(pod.unwrap_or_else(|| remains(&uid, sandbox)));
            let key = key(&pod.metadata);
            tracing::info!(pod = key, uid, "removing what is left of a deleted pod");
            self.start(uid.clone(), key, &pod, shutdown);
            if let Some(handle) = self.workers.get(&uid) {
                tell(handle, Message::Gone);
            }
        }
    }

    fn source(&self, kind: &'static str, key: &str) {
        let Some((namespace, name)) = key.split_once('/') else {
            return;
        };
        for handle in self.workers.values() {
            if handle.key.split('/').next() == Some(namespace) {
                let name = name.to_owned();
                tell(handle, Message::Source { kind, name });
            }
        }
    }

    fn happened(&self, event: RuntimeEvent) {
        let (uid, message) = match event {
            RuntimeEvent::ContainerExited {
                pod_uid,
                container_id,
                exit,
            } => (
                pod_uid,
                Message::Exited {
                    id: container_id,
                    exit,
                },
            ),
            RuntimeEvent::SandboxGone { pod_uid } => (pod_uid, Message::SandboxGone),
        };
        if let Some(handle) = self.workers.get(&uid) {
            tell(handle, message);
        }
    }

    /// Events were missed: every end there is is told again.
    fn reread(&self, list: &dyn Fn() -> Vec<SandboxState>) {
        for state in list() {
            let Some(handle) = self.workers.get(&state.spec.pod_uid) else {
                continue;
            };
            for container in state.containers {
                if let ContainerStatus::Exited(exit) = container.state {
                    let id = container.id;
                    tell(handle, Message::Exited { id, exit });
                }
            }
            if !state.alive {
                tell(handle, Message::SandboxGone);
            }
        }
    }
}

fn tell(handle: &Handle, message: Message) {
    if handle.inbox.send(message).is_err() {
        tracing::trace!(pod = handle.key, "the worker has ended");
    }
}

fn key(meta: &ObjectMeta) -> String {
    format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    )
}

/// A uid becomes the name of directories.
fn is_file_name(uid: &str) -> bool {
    !uid.is_empty()
        && uid.len() <= 64
        && uid
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
}

/// A Pod that stands for a sandbox without a record.
fn remains(uid: &str, sandbox: Option<&SandboxState>) -> Pod {
    let spec = sandbox.map(|state| &state.spec);
    Pod {
        metadata: ObjectMeta {
            uid: Some(uid.to_owned()),
            name: Some(spec.map_or_else(|| uid.to_owned(), |spec| spec.name.clone())),
            namespace: spec.map(|spec| spec.namespace.clone()),
            deletion_grace_period_seconds: Some(1),
            ..ObjectMeta::default()
        },
        spec: Some(k8s_openapi::api::core::v1::PodSpec {
            host_network: spec.map(|spec| spec.host_network),
            ..k8s_openapi::api::core::v1::PodSpec::default()
        }),
        ..Pod::default()
    }
}
