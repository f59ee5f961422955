//! Removes pods nobody else will: those bound to a node that no longer exists, and those being
//! deleted that were never bound.
//!
//! Watches: Pods and Nodes. Changes: deletes Pods. Who reacts next: the pods' controllers, which
//! make new ones.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_api::client::{Client, DeleteParams, Informer, InformerEvent, Patch, object_key};
use serde_json::json;

use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, pods};

const NAME: &str = "pod-garbage-collector";
/// How long a node must be missing: it may only have been deleted to register anew.
const QUARANTINE: Duration = Duration::from_secs(40);

/// The controller; see the module documentation.
pub(crate) struct PodGc {
    client: Client,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    clock: Clock,
}

impl PodGc {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            pods: client.informer(),
            nodes: client.informer(),
            clock: host.clock(),
            client,
        });
        {
            let (controller, queue) = (Arc::clone(&this), queue.clone());
            host.watch(&this.pods, move |event| {
                let (old, Some(pod)) = objects::sides(&event) else {
                    return;
                };
                let key = object_key(&pod.metadata);
                match pods::node_name(pod) {
                    // Only when it is new or newly bound: later the node's own events tell.
                    Some(node)
                        if old.and_then(pods::node_name) != Some(node)
                            && controller.nodes.get(node).is_none() =>
                    {
                        queue.add_after(key, QUARANTINE);
                    }
                    None if pods::is_terminating(pod) => queue.add(key),
                    _ => {}
                }
            });
        }
        {
            let (controller, queue) = (Arc::clone(&this), queue.clone());
            host.watch(&this.nodes, move |event| {
                let InformerEvent::Deleted(node) = event else {
                    return;
                };
                for pod in controller.pods.list() {
                    if pods::node_name(&pod) == node.metadata.name.as_deref() {
                        queue.add_after(object_key(&pod.metadata), QUARANTINE);
                    }
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.pods.synced().await;
            controller.nodes.synced().await;
        });
    }

    /// A pod that is taken away from outside ends as Failed, so that its controllers count it so.
    async fn fail(&self, pod: &Pod) -> Result<(), ReconcileError> {
        if pods::is_terminal(pod) {
            return Ok(());
        }
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.clock.now());
        let patch = json!({
            "metadata": {"uid": pod.metadata.uid},
            "status": {
                "phase": "Failed",
                "conditions": [{
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                    "lastTransitionTime": now,
                }],
            },
        });
        self.client
            .patch::<Pod>(
                pod.metadata.namespace.as_deref(),
                objects::name(&pod.metadata),
                &Patch::Strategic(patch),
                Some("status"),
            )
            .await?;
        Ok(())
    }
}

impl Reconcile for PodGc {
    const NAME: &'static str = "pod-gc";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(pod) = self.pods.get(key) else {
            return Ok(());
        };
        match pods::node_name(&pod) {
            Some(node) => {
                match self.client.get::<Node>(None, node).await {
                    Ok(_) => return Ok(()),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error.into()),
                }
                tracing::info!(pod = key, node, "deleting a pod of a node that is gone");
                self.fail(&pod).await?;
            }
            None if pods::is_terminating(&pod) => {}
            None => return Ok(()),
        }
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
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}
