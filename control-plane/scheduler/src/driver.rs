//! The loop around the core: one task owns the picture of the cluster and the queue, takes changes
//! in, decides, and lets the writes (bindings, conditions) run beside it.
//!
//! Watches: Pods, Nodes, Namespaces. Changes: binds Pods; sets `PodScheduled=False` on those that
//! fit nowhere; writes the Events `Scheduled` and `FailedScheduling`. Who reacts next: the node a
//! pod was bound to.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pintle_api::client::{Client, EventRecorder, InformerEvent, InformerEvents, Patch, UserInfo};
use pintle_kube_types::Status;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, PodInfo};
use crate::core::{Decision, decide};
use crate::queue::{Change, Queue};
use crate::{SchedulerConfig, SchedulerError};

/// After so many decisions in a row the loop lets others run.
const TURN: usize = 64;

/// A write that has ended.
enum Finished {
    Bound {
        pod: Arc<PodInfo>,
        node: String,
        result: Result<(), Status>,
    },
    Reported,
}

struct Scheduler {
    client: Client,
    name: String,
    recorder: EventRecorder,
    cluster: Cluster,
    queue: Queue,
    writes: JoinSet<Finished>,
}

/// Runs the scheduler until `shutdown`; writes under way are finished.
pub(crate) async fn run(
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> Result<(), SchedulerError> {
    let client = config.client.impersonate(UserInfo::scheduler());
    let (pods, nodes, namespaces) = (
        client.informer::<Pod>(),
        client.informer::<Node>(),
        client.informer::<Namespace>(),
    );
    let mut scheduler = Scheduler {
        recorder: EventRecorder::new(&client, &config.scheduler_name),
        name: config.scheduler_name,
        client,
        cluster: Cluster::default(),
        queue: Queue::default(),
        writes: JoinSet::new(),
    };
    tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        () = async {
            nodes.synced().await;
            pods.synced().await;
            namespaces.synced().await;
        } => {}
    }
    let mut pods = pods.subscribe();
    let mut nodes = nodes.subscribe();
    let mut namespaces = namespaces.subscribe();
    loop {
        scheduler.take_in(&mut nodes, &mut namespaces, &mut pods);
        scheduler.schedule().await;
        let deadline = scheduler.queue.next_deadline();
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(event) = pods.next() => scheduler.on_pod(&event),
            Some(event) = nodes.next() => scheduler.on_node(&event),
            Some(event) = namespaces.next() => scheduler.on_namespace(&event),
            Some(finished) = scheduler.writes.join_next() => match finished {
                Ok(finished) => scheduler.on_finished(finished),
                Err(error) => {
                    tracing::error!(%error, "a write of the scheduler ended badly");
                    return Err(SchedulerError::Panicked);
                }
            },
            () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)),
                if deadline.is_some() => {}
        }
    }
    while scheduler.writes.join_next().await.is_some() {}
    Ok(())
}

impl Scheduler {
    /// Takes in all changes that are waiting, so that decisions are made on the newest picture.
    fn take_in(
        &mut self,
        nodes: &mut InformerEvents<Node>,
        namespaces: &mut InformerEvents<Namespace>,
        pods: &mut InformerEvents<Pod>,
    ) {
        while let Some(event) = namespaces.try_next() {
            self.on_namespace(&event);
        }
        while let Some(event) = nodes.try_next() {
            self.on_node(&event);
        }
        while let Some(event) = pods.try_next() {
            self.on_pod(&event);
        }
    }

    fn wake(&mut self, change: Change) {
        self.queue.wake(change, Instant::now());
    }

    fn on_namespace(&mut self, event: &InformerEvent<Namespace>) {
        match event {
            InformerEvent::Added(namespace) | InformerEvent::Updated { new: namespace, .. } => {
                let name = namespace.metadata.name.as_deref().unwrap_or_default();
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                let changed = self.cluster.namespace_labels(name) != Some(&labels);
                self.cluster.set_namespace(name, Some(labels));
                if changed {
                    self.wake(Change::NamespaceLabels);
                }
            }
            InformerEvent::Deleted(namespace) => {
                let name = namespace.metadata.name.as_deref().unwrap_or_default();
                self.cluster.set_namespace(name, None);
            }
            InformerEvent::Synced => {}
        }
    }

    fn on_node(&mut self, event: &InformerEvent<Node>) {
        match event {
            InformerEvent::Added(node) => {
                self.cluster.set_node(Arc::clone(node));
                self.wake(Change::NodeAdded);
            }
            InformerEvent::Updated { old, new } => {
                self.cluster.set_node(Arc::clone(new));
                let allocatable =
                    |node: &Node| node.status.as_ref().and_then(|s| s.allocatable.clone());
                let taints = |node: &Node| {
                    let spec = node.spec.as_ref();
                    (
                        spec.and_then(|spec| spec.taints.clone()),
                        spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
                    )
                };
                if allocatable(old) != allocatable(new) {
                    self.wake(Change::NodeAllocatable);
                }
                if old.metadata.labels != new.metadata.labels {
                    self.wake(Change::NodeLabels);
                }
                if taints(old) != taints(new) {
                    self.wake(Change::NodeTaints);
                }
            }
            InformerEvent::Deleted(node) => {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                self.cluster.remove_node(name);
                self.wake(Change::NodeGone);
            }
            InformerEvent::Synced => {}
        }
    }

    fn on_pod(&mut self, event: &InformerEvent<Pod>) {
        let (old, new) = match event {
            InformerEvent::Added(pod) => (None, pod),
            InformerEvent::Updated { old, new } => (Some(old), new),
            InformerEvent::Deleted(pod) => {
                self.pod_gone(pod.metadata.uid.as_deref().unwrap_or_default());
                return;
            }
            InformerEvent::Synced => return,
        };
        let uid = new.metadata.uid.as_deref().unwrap_or_default();
        let phase = new
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            self.pod_gone(uid);
            return;
        }
        if let Some(node) = bound_to(new) {
            self.queue.remove(uid);
            let new_here = old.is_none_or(|old| bound_to(old).is_none());
            let relabelled = old.is_some_and(|old| old.metadata.labels != new.metadata.labels);
            let resized = old.is_some_and(|old| {
                old.spec.as_ref().map(|spec| &spec.containers)
                    != new.spec.as_ref().map(|spec| &spec.containers)
            });
            let ending = old.is_some_and(|old| {
                old.metadata.deletion_timestamp.is_none()
                    && new.metadata.deletion_timestamp.is_some()
            });
            let info = Arc::new(PodInfo::new(Arc::clone(new)));
            self.cluster.place(info, node);
            if new_here {
                self.wake(Change::PodPlaced);
            }
            if relabelled || ending {
                self.wake(Change::PodLabels);
            }
            if resized {
                self.wake(Change::PodGone);
            }
            return;
        }
        if self.cluster.is_assumed(uid) {
            // Its binding is under way.
            return;
        }
        if self.is_ours(new) {
            let info = Arc::new(PodInfo::new(Arc::clone(new)));
            self.queue.upsert(info, Instant::now());
        } else {
            self.queue.remove(uid);
        }
    }

    fn pod_gone(&mut self, uid: &str) {
        self.queue.remove(uid);
        if self.cluster.remove_pod(uid) {
            self.wake(Change::PodGone);
        }
    }

    fn is_ours(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else {
            return false;
        };
        let gated = spec
            .scheduling_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty());
        spec.scheduler_name
            .as_deref()
            .unwrap_or("default-scheduler")
            == self.name
            && !gated
            && pod.metadata.deletion_timestamp.is_none()
    }

    /// Decides on every pod that is ready to be looked at.
    async fn schedule(&mut self) {
        for turn in 1.. {
            let Some(pod) = self.queue.pop(Instant::now()) else {
                return;
            };
            match decide(&self.cluster, &pod, rand::random()) {
                Decision::Place { node, scores } => {
                    tracing::debug!(pod = pod.name(), node, ?scores, "placed");
                    self.cluster.assume(Arc::clone(&pod), &node);
                    self.bind(pod, node);
                }
                Decision::Reject(failure) => {
                    let message = failure.message();
                    self.queue
                        .reject(pod.uid(), failure.plugins(), Instant::now());
                    self.report(pod, "Unschedulable", &message);
                }
            }
            if turn % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn bind(&mut self, pod: Arc<PodInfo>, node: String) {
        let client = self.client.clone();
        self.writes.spawn(async move {
            let result = client
                .bind(pod.namespace(), pod.name(), pod.uid(), &node)
                .await;
            Finished::Bound { pod, node, result }
        });
    }

    /// Says in an Event and in the pod's status why it is not scheduled.
    fn report(&mut self, pod: Arc<PodInfo>, reason: &str, message: &str) {
        self.recorder
            .record(reference(&pod.pod), "Warning", "FailedScheduling", message);
        let said = pod
            .pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .find(|condition| condition.type_ == "PodScheduled");
        let same = said.is_some_and(|condition| {
            condition.status == "False"
                && condition.reason.as_deref() == Some(reason)
                && condition.message.as_deref() == Some(message)
        });
        if same {
            return;
        }
        let mut condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
        });
        if said.is_none_or(|condition| condition.status != "False") {
            condition["lastTransitionTime"] = json!(Time(self.client.now()));
        }
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": pod.uid()},
            "status": {"conditions": [condition]},
        }));
        let client = self.client.clone();
        self.writes.spawn(async move {
            let patched = client
                .patch::<Pod>(Some(pod.namespace()), pod.name(), &patch, Some("status"))
                .await;
            if let Err(error) = patched {
                tracing::debug!(pod = pod.name(), %error, "the condition was not written");
            }
            Finished::Reported
        });
    }

    fn on_finished(&mut self, finished: Finished) {
        let Finished::Bound { pod, node, result } = finished else {
            return;
        };
        let uid = pod.uid();
        let Err(error) = result else {
            self.queue.remove(uid);
            self.recorder.record(
                reference(&pod.pod),
                "Normal",
                "Scheduled",
                format!(
                    "Successfully assigned {}/{} to {node}",
                    pod.namespace(),
                    pod.name()
                ),
            );
            return;
        };
        self.cluster.forget(uid);
        self.wake(Change::PodGone);
        if error.is_not_found() {
            self.queue.remove(uid);
            return;
        }
        tracing::warn!(pod = pod.name(), node, %error, "could not bind");
        self.queue.retry(uid, Instant::now());
        let message = format!("binding rejected: {error}");
        self.report(pod, "SchedulerError", &message);
    }
}

fn bound_to(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|node| !node.is_empty())
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        field_path: None,
    }
}
