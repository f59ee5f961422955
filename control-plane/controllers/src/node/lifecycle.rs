//! Watches over the nodes' heartbeats, says so when one stops, and takes its pods away.
//!
//! Watches: Nodes, their Leases in `kube-node-lease`, and Pods. Changes: a silent Node's conditions
//! (to Unknown), the taints that follow from a node's conditions, and the Ready condition of pods on
//! a silent node. Who reacts next: the scheduler and the taint eviction (taints), the endpoint
//! controllers (pods).
//!
//! `NoSchedule` taints follow the conditions at once; `NoExecute` taints, which cost pods, come at
//! the pace of the node's zone ([`super::zones`]).
//!
//! One delayed key per node, moved ahead by each heartbeat; no other timer.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use pintle_api::client::{Client, EventRecorder, Informer, InformerEvent, Patch};
use serde_json::json;
use tokio::time::Instant;

use super::zones::{Member, Shift, Turn, Zones};
use crate::NodeLife;
use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, pods};

const NAME: &str = "node-controller";
const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
/// Label of a node that says nothing about its zone, such as one that may be taken away any time.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// The controller; see the module documentation.
pub(crate) struct NodeLifecycle {
    client: Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    recorder: EventRecorder,
    rules: NodeLife,
    /// When we last heard of a node, by our own clock: a lease that was old when we started says
    /// nothing about the node.
    heard: Mutex<HashMap<String, Instant>>,
    zones: Mutex<Zones>,
    clock: Clock,
    queue: WorkQueue,
}

impl NodeLifecycle {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host, rules: NodeLife) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            nodes: client.informer(),
            pods: client.informer(),
            recorder: host.recorder(NAME, NAME),
            rules,
            heard: Mutex::default(),
            zones: Mutex::new(Zones::new(rules)),
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
            host.watch(&leases, move |event| controller.on_lease(&event));
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| controller.on_pod(&event));
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.nodes.synced().await;
            controller.pods.synced().await;
            let nodes = controller.nodes.list();
            let members = nodes
                .iter()
                .map(|node| (objects::name(&node.metadata).to_owned(), membership(node)));
            controller.zones.lock().begin(members, Instant::now());
        });
    }

    fn heard_from(&self, node: &str) {
        self.heard.lock().insert(node.to_owned(), Instant::now());
    }

    fn on_lease(&self, event: &InformerEvent<Lease>) {
        let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let (old, new) = objects::sides(event);
        if let Some(lease) = new
            && objects::namespace(&lease.metadata) == LEASES
            && old.is_none_or(|old| renewed(old) != renewed(lease))
        {
            self.heard_from(objects::name(&lease.metadata));
        }
    }

    fn on_node(&self, event: &InformerEvent<Node>) {
        let (old, new) = objects::sides(event);
        let Some(node) = new else {
            if let Some(old) = old {
                let name = objects::name(&old.metadata);
                self.heard.lock().remove(name);
                let shift = self.zones.lock().remove(name, Instant::now());
                self.follow(&shift);
                self.about(old, "RemovingNode", "Removing", "from");
            }
            return;
        };
        let name = objects::name(&node.metadata);
        if old.is_none() {
            self.about(node, "RegisteredNode", "Registered", "in");
        }
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

    /// A pod that arrives on a node that is silent already.
    fn on_pod(&self, event: &InformerEvent<Pod>) {
        let (old, new) = objects::sides(event);
        if let Some(pod) = new
            && let Some(node) = pods::node_name(pod)
            && old.and_then(pods::node_name) != Some(node)
            && self
                .nodes
                .get(node)
                .is_some_and(|node| ready_status(&node) == Some("Unknown"))
        {
            self.queue.add(node.to_owned());
        }
    }

    fn about(&self, node: &Node, reason: &str, what: &str, preposition: &str) {
        let name = objects::name(&node.metadata);
        self.recorder.record(
            objects::reference(node),
            "Normal",
            reason,
            format!("Node {name} event: {what} Node {name} {preposition} Controller"),
        );
    }

    /// Looks again at the nodes a change of the zones is about.
    fn follow(&self, shift: &Shift) {
        if shift.stopped {
            tracing::info!("no node is ready: no pods are taken off any");
        }
        if shift.resumed {
            tracing::info!("some nodes are ready again");
            let now = Instant::now();
            for heard in self.heard.lock().values_mut() {
                *heard = now;
            }
        }
        if shift.stopped || shift.resumed {
            for node in self.nodes.list() {
                self.queue.add(objects::name(&node.metadata).to_owned());
            }
        }
        for node in &shift.again {
            self.queue.add(node.clone());
        }
    }

    /// How long until the node counts as silent; zero when it does.
    fn patience(&self, node: &Node) -> std::time::Duration {
        let grace = if ready_status(node).is_some() {
            self.rules.grace
        } else {
            self.rules.startup_grace
        };
        let quiet = self
            .heard
            .lock()
            .entry(objects::name(&node.metadata).to_owned())
            .or_insert_with(Instant::now)
            .elapsed();
        grace.saturating_sub(quiet)
    }

    /// Says on a silent node that nothing is known of it; gives the node as it is then.
    async fn silence(&self, node: &Node) -> Result<Node, ReconcileError> {
        let name = objects::name(&node.metadata);
        let mut next = node.clone();
        let was_ready = ready_status(node) == Some("True");
        if !mark_unknown(&mut next, self.clock.now()) {
            return Ok(next);
        }
        let next = self.client.update_status(&next).await?;
        tracing::warn!(node = name, "the node is silent");
        if was_ready {
            self.recorder.record(
                objects::reference(node),
                "Normal",
                "NodeNotReady",
                format!("Node {name} status is now: NodeNotReady"),
            );
        }
        Ok(next)
    }

    /// Which `NoExecute` taint the node is to have now.
    fn no_execute(&self, node: &Node) -> Option<&'static str> {
        let name = objects::name(&node.metadata);
        let mut zones = self.zones.lock();
        let wanted = match ready_status(node) {
            Some("False") => NOT_READY,
            Some("Unknown") => UNREACHABLE,
            _ => {
                zones.settled(name);
                return None;
            }
        };
        if !zones.are_stopped() && has_no_execute(node) {
            zones.settled(name);
            return Some(wanted);
        }
        match zones.ask(name, Instant::now()) {
            Turn::Now => Some(wanted),
            Turn::At(turn) => {
                self.queue.add_after(
                    name.to_owned(),
                    turn.saturating_duration_since(Instant::now()),
                );
                None
            }
            Turn::Later => None,
        }
    }

    async fn sync_taints(&self, node: &Node) -> Result<(), ReconcileError> {
        let current = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        let next = taints(node, &current, self.no_execute(node), self.clock.now());
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
        let left = self.patience(&node);
        let silent = left.is_zero();
        let node = if silent {
            Arc::new(self.silence(&node).await?)
        } else {
            self.queue.add_after(key.to_owned(), left);
            node
        };
        let shift = self
            .zones
            .lock()
            .observe(key, membership(&node), Instant::now());
        self.follow(&shift);
        self.sync_taints(&node).await?;
        if silent {
            self.mark_pods(key).await?;
        }
        Ok(())
    }
}

/// The node's place among the zones.
fn membership(node: &Node) -> Member {
    let label = |names: [&str; 2]| {
        let labels = node.metadata.labels.as_ref()?;
        names.iter().find_map(|name| labels.get(*name)).cloned()
    };
    let region = label([
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/region",
    ]);
    let zone = label([
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/zone",
    ]);
    Member {
        zone: match (region, zone) {
            (None, None) => String::new(),
            (region, zone) => format!(
                "{}/{}",
                region.unwrap_or_default(),
                zone.unwrap_or_default()
            ),
        },
        ready: ready_status(node) == Some("True"),
        counts: label([EXCLUDED, EXCLUDED]).is_none(),
    }
}

fn has_no_execute(node: &Node) -> bool {
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .any(|taint| {
            taint.effect == "NoExecute" && matches!(taint.key.as_str(), NOT_READY | UNREACHABLE)
        })
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

/// The taints a node should have: those that follow from its conditions, the `NoExecute` one that is
/// its turn, and all that are not ours.
fn taints(
    node: &Node,
    current: &[Taint],
    no_execute: Option<&'static str>,
    now: Timestamp,
) -> Vec<Taint> {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = conditions
        .iter()
        .filter_map(|condition| {
            let key = match (condition.type_.as_str(), condition.status.as_str()) {
                ("Ready", "False") => NOT_READY,
                ("Ready", "Unknown") => UNREACHABLE,
                ("MemoryPressure", "True") => MEMORY_PRESSURE,
                ("DiskPressure", "True") => DISK_PRESSURE,
                ("PIDPressure", "True") => PID_PRESSURE,
                ("NetworkUnavailable", "True") => NETWORK_UNAVAILABLE,
                _ => return None,
            };
            Some((key, "NoSchedule"))
        })
        .collect();
    wanted.extend(no_execute.map(|key| (key, "NoExecute")));
    if node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
    {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    // A node that has not reported at all stays as it registered.
    let reported = !conditions.is_empty();
    let ours = |taint: &Taint| {
        matches!(
            (taint.key.as_str(), taint.effect.as_str()),
            (NOT_READY | UNREACHABLE, "NoSchedule" | "NoExecute")
                | (
                    MEMORY_PRESSURE
                        | DISK_PRESSURE
                        | PID_PRESSURE
                        | NETWORK_UNAVAILABLE
                        | UNSCHEDULABLE,
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
            taints(&node(&[]), &before, None, now),
            before,
            "nothing reported yet"
        );
        let ready = taints(&node(&[("Ready", "True")]), &before, None, now);
        assert_eq!(keys(&ready), [("gpu", "NoSchedule")]);
        let unknown = node(&[("Ready", "Unknown")]);
        let silent = taints(&unknown, &ready, None, now);
        assert_eq!(
            keys(&silent),
            [("gpu", "NoSchedule"), (UNREACHABLE, "NoSchedule")],
            "its turn has not come"
        );
        let evicted = taints(&unknown, &silent, Some(UNREACHABLE), now);
        assert_eq!(
            keys(&evicted),
            [
                ("gpu", "NoSchedule"),
                (UNREACHABLE, "NoSchedule"),
                (UNREACHABLE, "NoExecute")
            ]
        );
        assert_eq!(taints(&unknown, &evicted, Some(UNREACHABLE), now), evicted);
        let failing = node(&[("Ready", "False"), ("DiskPressure", "True")]);
        assert_eq!(
            keys(&taints(&failing, &evicted, Some(NOT_READY), now)),
            [
                ("gpu", "NoSchedule"),
                (NOT_READY, "NoSchedule"),
                (DISK_PRESSURE, "NoSchedule"),
                (NOT_READY, "NoExecute")
            ]
        );
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
