//! Watches over the nodes' heartbeats and says so when one stops.
//!
//! Watches: Nodes, their Leases in `kube-node-lease`, and Pods. Changes: a silent Node's conditions
//! (to Unknown), the taints that follow from a node's conditions, and the Ready condition of pods on
//! a silent node. Who reacts next: the scheduler (taints), the endpoint controllers (pods).
//!
//! One delayed key per node, moved ahead by each heartbeat; no other timer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use pintle_api::client::{Client, EventRecorder, Informer, InformerEvent, Patch};
use serde_json::json;
use tokio::time::Instant;

use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, pods};

const NAME: &str = "node-controller";
const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The controller; see the module documentation.
pub(crate) struct NodeLifecycle {
    client: Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    recorder: EventRecorder,
    grace: Duration,
    /// When we last heard of a node, by our own clock: a lease that was old when we started says
    /// nothing about the node.
    heard: Mutex<HashMap<String, Instant>>,
    clock: Clock,
    queue: WorkQueue,
}

impl NodeLifecycle {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host, grace: Duration) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            nodes: client.informer(),
            pods: client.informer(),
            recorder: host.recorder(NAME, NAME),
            grace,
            heard: Mutex::default(),
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let controller = Arc::clone(&this);
            host.watch(&this.nodes, move |event| controller.on_node(&event));
        }
        {
            let controller = Arc::clone(&this);
            let leases: Informer<Lease> = this.client.informer();
            host.watch(&leases, move |event| {
                if let (_, Some(lease)) = objects::sides(&event)
                    && objects::namespace(&lease.metadata) == LEASES
                {
                    controller.heard_from(objects::name(&lease.metadata));
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.nodes.synced().await;
            controller.pods.synced().await;
        });
    }

    fn heard_from(&self, node: &str) {
        self.heard.lock().insert(node.to_owned(), Instant::now());
    }

    fn on_node(&self, event: &InformerEvent<Node>) {
        let (old, new) = objects::sides(event);
        let Some(node) = new else {
            if let Some(old) = old {
                self.heard.lock().remove(objects::name(&old.metadata));
            }
            return;
        };
        let name = objects::name(&node.metadata);
        // The node itself writes its heartbeat times; what we write leaves them alone.
        let beats = |node: &Node| -> Vec<Option<Time>> {
            node.status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten())
                .map(|condition| condition.last_heartbeat_time.clone())
                .collect()
        };
        if old.is_none_or(|old| beats(old) != beats(node)) {
            self.heard_from(name);
        }
        self.queue.add(name.to_owned());
    }

    async fn silence(&self, node: &Node) -> Result<(), ReconcileError> {
        let name = objects::name(&node.metadata);
        let mut next = node.clone();
        let was_ready = ready_status(node) == Some("True");
        if !mark_unknown(&mut next, self.clock.now()) {
            return Ok(());
        }
        self.client.update_status(&next).await?;
        tracing::warn!(node = name, "the node is silent");
        if was_ready {
            self.recorder.record(
                objects::reference(node),
                "Normal",
                "NodeNotReady",
                format!("Node {name} status is now: NodeNotReady"),
            );
        }
        Ok(())
    }

    async fn sync_taints(&self, node: &Node) -> Result<(), ReconcileError> {
        let current = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        let next = taints(node, &current, self.clock.now());
        if next == current {
            return Ok(());
        }
        let patch = json!({
            "metadata": {
                "uid": node.metadata.uid,
                "resourceVersion": node.metadata.resource_version,
            },
            "spec": {"taints": next},
        });
        self.client
            .patch::<Node>(
                None,
                objects::name(&node.metadata),
                &Patch::Merge(patch),
                None,
            )
            .await?;
        Ok(())
    }

    /// Takes the pods of a node that is not ready out of service.
    async fn mark_pods(&self, node: &str) -> Result<(), ReconcileError> {
        for pod in self.pods.list() {
            if pods::node_name(&pod) != Some(node) || !pods::is_ready(&pod) {
                continue;
            }
            let now = Time(self.clock.now());
            let patch = json!({
                "metadata": {"uid": pod.metadata.uid},
                "status": {"conditions": [
                    {"type": "Ready", "status": "False", "lastTransitionTime": now},
                ]},
            });
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
                Ok(_) => self.recorder.record(
                    objects::reference(pod.as_ref()),
                    "Warning",
                    "NodeNotReady",
                    "Node is not ready",
                ),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Reconcile for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(node) = self.nodes.get(key) else {
            return Ok(());
        };
        self.sync_taints(&node).await?;
        let quiet = self
            .heard
            .lock()
            .entry(key.to_owned())
            .or_insert_with(Instant::now)
            .elapsed();
        let left = self.grace.saturating_sub(quiet);
        if !left.is_zero() {
            self.queue.add_after(key.to_owned(), left);
            return Ok(());
        }
        self.silence(&node).await?;
        self.mark_pods(key).await
    }
}

fn ready_status(node: &Node) -> Option<&str> {
    node.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .map(|condition| condition.status.as_str())
}

/// Sets the conditions a node reports itself to Unknown; returns whether anything changed.
fn mark_unknown(node: &mut Node, now: Timestamp) -> bool {
    let created = node.metadata.creation_timestamp.clone();
    let conditions = node
        .status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default();
    let mut changed = false;
    for type_ in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        match conditions
            .iter_mut()
            .find(|condition| condition.type_ == type_)
        {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                "Unknown".clone_into(&mut condition.status);
                condition.reason = Some("NodeStatusUnknown".to_owned());
                condition.message = Some("Kubelet stopped posting node status.".to_owned());
                condition.last_transition_time = Some(Time(now));
                changed = true;
            }
            None => {
                conditions.push(NodeCondition {
                    type_: type_.to_owned(),
                    status: "Unknown".to_owned(),
                    reason: Some("NodeStatusNeverUpdated".to_owned()),
                    message: Some("Kubelet never posted node status.".to_owned()),
                    last_heartbeat_time: created.clone(),
                    last_transition_time: Some(Time(now)),
                });
                changed = true;
            }
        }
    }
    changed
}

/// The taints a node should have: those that follow from its conditions, and all that are not ours.
fn taints(node: &Node, current: &[Taint], now: Timestamp) -> Vec<Taint> {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let unschedulable = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or(false);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for condition in conditions {
        let keys: &[(&str, &str)] = match (condition.type_.as_str(), condition.status.as_str()) {
            ("Ready", "False") => &[(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
            ("Ready", "Unknown") => &[(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
            ("MemoryPressure", "True") => &[("node.kubernetes.io/memory-pressure", "NoSchedule")],
            ("DiskPressure", "True") => &[("node.kubernetes.io/disk-pressure", "NoSchedule")],
            ("PIDPressure", "True") => &[("node.kubernetes.io/pid-pressure", "NoSchedule")],
            ("NetworkUnavailable", "True") => {
                &[("node.kubernetes.io/network-unavailable", "NoSchedule")]
            }
            _ => &[],
        };
        wanted.extend(keys);
    }
    if unschedulable {
        wanted.push(("node.kubernetes.io/unschedulable", "NoSchedule"));
    }
    // A node that has not reported at all stays as it registered.
    let reported = !conditions.is_empty();
    let ours = |taint: &Taint| {
        matches!(
            (taint.key.as_str(), taint.effect.as_str()),
            (NOT_READY | UNREACHABLE, "NoSchedule" | "NoExecute")
                | (
                    "node.kubernetes.io/memory-pressure"
                        | "node.kubernetes.io/disk-pressure"
                        | "node.kubernetes.io/pid-pressure"
                        | "node.kubernetes.io/network-unavailable"
                        | "node.kubernetes.io/unschedulable",
                    "NoSchedule"
                )
        )
    };
    let is_wanted = |taint: &Taint| {
        wanted
            .iter()
            .any(|(key, effect)| taint.key == *key && taint.effect == *effect)
    };
    let mut next: Vec<Taint> = current
        .iter()
        .filter(|taint| !reported || !ours(taint) || is_wanted(taint))
        .cloned()
        .collect();
    for (key, effect) in wanted {
        if !next
            .iter()
            .any(|taint| taint.key == key && taint.effect == effect)
        {
            next.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(Time(now)),
            });
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeStatus;

    use super::*;

    fn node(conditions: &[(&str, &str)]) -> Node {
        Node {
            status: Some(NodeStatus {
                conditions: Some(
                    conditions
                        .iter()
                        .map(|(type_, status)| NodeCondition {
                            type_: (*type_).to_owned(),
                            status: (*status).to_owned(),
                            ..NodeCondition::default()
                        })
                        .collect(),
                ),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    fn keys(taints: &[Taint]) -> Vec<(&str, &str)> {
        taints
            .iter()
            .map(|taint| (taint.key.as_str(), taint.effect.as_str()))
            .collect()
    }

    #[test]
    fn taints_follow_conditions_and_leave_foreign_ones() {
        let now = Timestamp::UNIX_EPOCH;
        let foreign = Taint {
            key: "gpu".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let registered = Taint {
            key: NOT_READY.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let before = [foreign.clone(), registered];
        assert_eq!(
            taints(&node(&[]), &before, now),
            before,
            "nothing reported yet"
        );
        let ready = taints(&node(&[("Ready", "True")]), &before, now);
        assert_eq!(keys(&ready), [("gpu", "NoSchedule")]);
        let silent = taints(&node(&[("Ready", "Unknown")]), &ready, now);
        assert_eq!(
            keys(&silent),
            [
                ("gpu", "NoSchedule"),
                (UNREACHABLE, "NoSchedule"),
                (UNREACHABLE, "NoExecute")
            ]
        );
        assert_eq!(taints(&node(&[("Ready", "Unknown")]), &silent, now), silent);
    }

    #[test]
    fn a_silent_node_is_marked_once() {
        let now = Timestamp::UNIX_EPOCH;
        let mut silent = node(&[("Ready", "True"), ("DiskPressure", "False")]);
        assert!(mark_unknown(&mut silent, now));
        assert_eq!(ready_status(&silent), Some("Unknown"));
        let marked = silent.clone();
        assert!(!mark_unknown(&mut silent, now));
        assert_eq!(silent, marked);
    }
}
