//! Removes pods nobody else will: those bound to a node that no longer exists, those being deleted
//! that were never bound or whose node is out of service, and finished ones beyond a number.
//!
//! Watches: Pods and Nodes. Changes: deletes Pods, those that had not finished as Failed. Who reacts
//! next: the pods' controllers, which make new ones.
//!
//! One delayed key per pod of a node that is missing; no other timer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use pintle_api::client::{Client, DeleteParams, Informer, InformerEvent, Patch, object_key};
use serde_json::json;

use crate::NodeLife;
use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, pods};

const NAME: &str = "pod-garbage-collector";
/// Taint an operator puts on a node that was shut down and will not tell of its pods.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The key that stands for the finished pods as a whole; no pod has it.
const FINISHED: &str = "";

/// The controller; see the module documentation.
pub(crate) struct PodGc {
    client: Client,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    /// Keys of the pods that have finished.
    finished: Mutex<BTreeSet<String>>,
    rules: NodeLife,
    clock: Clock,
    queue: WorkQueue,
}

/// Why a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Its node does not exist any more.
    Orphaned,
    /// It is being deleted, and its node is out of service.
    OutOfService,
    /// It is being deleted and no node has it.
    Unscheduled,
}

impl PodGc {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host, rules: NodeLife) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            pods: client.informer(),
            nodes: client.informer(),
            finished: Mutex::default(),
            rules,
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| controller.on_pod(&event));
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.nodes, move |event| controller.on_node(&event));
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.pods.synced().await;
            controller.nodes.synced().await;
        });
    }

    fn on_pod(&self, event: &InformerEvent<Pod>) {
        let (old, new) = objects::sides(event);
        let Some(pod) = new.or(old) else { return };
        let key = object_key(&pod.metadata);
        self.count(&key, new.is_some_and(pods::is_terminal));
        let Some(pod) = new else { return };
        match pods::node_name(pod) {
            Some(node) => match self.nodes.get(node) {
                // Only when it is new or newly bound: later the node's own events tell.
                None if old.and_then(pods::node_name) != Some(node) => {
                    self.queue.add_after(key, self.rules.quarantine);
                }
                Some(node) if pods::is_terminating(pod) && is_out_of_service(&node) => {
                    self.queue.add(key);
                }
                _ => {}
            },
            None if pods::is_terminating(pod) => self.queue.add(key),
            None => {}
        }
    }

    fn on_node(&self, event: &InformerEvent<Node>) {
        let (old, new) = objects::sides(event);
        let delay = match (old, new) {
            (Some(_), None) => self.rules.quarantine,
            (_, Some(node)) if is_out_of_service(node) => Duration::ZERO,
            _ => return,
        };
        let name = new.or(old).and_then(|node| node.metadata.name.as_deref());
        for pod in self.pods.list() {
            if pods::node_name(&pod) == name && (new.is_none() || pods::is_terminating(&pod)) {
                self.queue.add_after(object_key(&pod.metadata), delay);
            }
        }
    }

    /// Counts the finished pods.
    fn count(&self, key: &str, finished: bool) {
        if self.rules.terminated_pods == 0 {
            return;
        }
        let mut all = self.finished.lock();
        if !finished {
            all.remove(key);
        } else if !all.contains(key)
            && all.insert(key.to_owned())
            && all.len() > self.rules.terminated_pods
        {
            self.queue.add(FINISHED.to_owned());
        }
    }

    /// Removes finished pods beyond the number that is kept.
    async fn prune(&self) -> Result<(), ReconcileError> {
        let mut finished = self.pods.list();
        finished.retain(|pod| pods::is_terminal(pod));
        for pod in excess(finished, self.rules.terminated_pods) {
            tracing::info!(pod = object_key(&pod.metadata), "deleting a finished pod");
            self.delete(&pod).await?;
        }
        Ok(())
    }

    /// Whether the pod goes, and why.
    async fn cause(&self, pod: &Pod) -> Result<Option<Cause>, ReconcileError> {
        let Some(node) = pods::node_name(pod) else {
            return Ok(pods::is_terminating(pod).then_some(Cause::Unscheduled));
        };
        match self.client.get::<Node>(None, node).await {
            Ok(node) => Ok((pods::is_terminating(pod) && is_out_of_service(&node))
                .then_some(Cause::OutOfService)),
            Err(error) if error.is_not_found() => Ok(Some(Cause::Orphaned)),
            Err(error) => Err(error.into()),
        }
    }

    /// A pod that is taken away from outside ends as Failed, so that its controllers count it so.
    async fn fail(&self, pod: &Pod, cause: Cause) -> Result<(), ReconcileError> {
        if pods::is_terminal(pod) {
            return Ok(());
        }
        let mut status = json!({"phase": "Failed"});
        if cause == Cause::Orphaned {
            status["conditions"] = json!([{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
                "lastTransitionTime": Time(self.clock.now()),
            }]);
        }
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
        let patched = self
            .client
            .patch::<Pod>(
                pod.metadata.namespace.as_deref(),
                objects::name(&pod.metadata),
                &Patch::Strategic(patch),
                Some("status"),
            )
            .await;
        match patched {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn delete(&self, pod: &Pod) -> Result<(), ReconcileError> {
        let deleted = self
            .client
            .delete::<Pod>(
                pod.metadata.namespace.as_deref(),
                objects::name(&pod.metadata),
                &DeleteParams {
                    grace_period_seconds: Some(0),
                    precondition_uid: pod.metadata.uid.clone(),
                    ..DeleteParams::default()
                },
            )
            .await;
        match deleted {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Reconcile for PodGc {
    const NAME: &'static str = "pod-gc";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        if key == FINISHED {
            return self.prune().await;
        }
        let Some(pod) = self.pods.get(key) else {
            return Ok(());
        };
        let Some(cause) = self.cause(&pod).await? else {
            return Ok(());
        };
        tracing::info!(pod = key, ?cause, "deleting a pod that nobody else will");
        self.fail(&pod, cause).await?;
        self.delete(&pod).await
    }
}

/// Whether the node is down for good, as its operator says.
fn is_out_of_service(node: &Node) -> bool {
    let tainted = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .any(|taint| taint.key == OUT_OF_SERVICE);
    let ready = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    tainted && !ready
}

/// The finished pods that go so that `threshold` stay: first those evicted by their node, then the
/// oldest.
fn excess(mut finished: Vec<Arc<Pod>>, threshold: usize) -> Vec<Arc<Pod>> {
    let excess = finished.len().saturating_sub(threshold);
    finished.sort_by_cached_key(|pod| {
        let evicted = pod.status.as_ref().is_some_and(|status| {
            status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted")
        });
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (!evicted, created, objects::name(&pod.metadata).to_owned())
    });
    finished.truncate(excess);
    finished
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(taint: &str, ready: &str) -> Node {
        serde_json::from_value(json!({
            "spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .expect("a node")
    }

    fn pod(name: &str, created: &str, reason: &str) -> Arc<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created},
            "status": {"phase": "Failed", "reason": reason},
        }));
        Arc::new(pod.expect("a pod"))
    }

    #[test]
    fn a_node_is_out_of_service_when_it_is_tainted_and_not_ready() {
        assert!(is_out_of_service(&node(OUT_OF_SERVICE, "Unknown")));
        assert!(!is_out_of_service(&node(OUT_OF_SERVICE, "True")));
        assert!(!is_out_of_service(&node("gpu", "Unknown")));
    }

    #[test]
    fn evicted_pods_go_first_then_the_oldest() {
        let finished = vec![
            pod("new", "2026-01-03T00:00:00Z", ""),
            pod("old", "2026-01-01T00:00:00Z", ""),
            pod("evicted", "2026-01-02T00:00:00Z", "Evicted"),
        ];
        let names = |threshold| -> Vec<String> {
            excess(finished.clone(), threshold)
                .iter()
                .map(|pod| objects::name(&pod.metadata).to_owned())
                .collect()
        };
        assert_eq!(names(1), ["evicted", "old"]);
        assert_eq!(names(3), Vec::<String>::new());
    }
}
