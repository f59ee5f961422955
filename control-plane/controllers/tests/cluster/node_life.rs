//! Nodes that fall silent, come back or go for good, and what becomes of their pods; and budgets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use pintle_api::client::{DeleteParams, Patch};
use pintle_controllers::NodeLife;
use serde_json::json;

use super::Cluster;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Little patience; more than a busy machine's hiccups all the same.
fn hasty() -> NodeLife {
    NodeLife {
        grace: Duration::from_secs(4),
        quarantine: Duration::from_millis(500),
        ..NodeLife::default()
    }
}

impl Cluster {
    /// A cluster of two nodes that beat.
    async fn start_hasty() -> Self {
        let cluster = Self::start_with(hasty()).await;
        cluster.add_node("node2").await;
        for node in ["node1", "node2"] {
            cluster.start_beating(node).await;
        }
        cluster
    }

    /// A deployment on both nodes that stays on a lost one for as long as that.
    async fn create_spread(&self, toleration_seconds: u64) {
        let tolerations: Vec<_> = ["not-ready", "unreachable"]
            .iter()
            .map(|taint| {
                json!({
                    "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": toleration_seconds,
                })
            })
            .collect();
        self.create_web(4).await;
        self.patch::<k8s_openapi::api::apps::v1::Deployment>(
            "web",
            json!({"spec": {"template": {"spec": {"tolerations": tolerations}}}}),
        )
        .await;
        self.until("4 pods on both nodes", || {
            self.web_is_complete(4)
                && self.all::<Pod>().len() == 4
                && self.pods_on("node1").len() == 2
                && self.pods_on("node2").len() == 2
        })
        .await;
    }

    async fn start_beating(&self, node: &str) {
        self.create::<Lease>(json!({
            "metadata": {"name": node, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": node, "renewTime": "2026-01-01T00:00:00.000000Z"},
        }))
        .await;
        self.alive.lock().unwrap().insert(node.to_owned());
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.all::<Pod>();
        pods.retain(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
        });
        pods
    }

    fn taints(&self, node: &str) -> BTreeSet<(String, String)> {
        self.get::<Node>(node)
            .and_then(|node| node.spec.clone()?.taints)
            .into_iter()
            .flatten()
            .map(|taint| (taint.key, taint.effect))
            .collect()
    }

    /// Status, reason and message of the node's Ready condition.
    fn readiness(&self, node: &str) -> (String, String, String) {
        self.get::<Node>(node)
            .and_then(|node| node.status.clone()?.conditions)
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready")
            .map(|ready| {
                (
                    ready.status,
                    ready.reason.unwrap_or_default(),
                    ready.message.unwrap_or_default(),
                )
            })
            .unwrap_or_default()
    }
}

fn both(effects: [&str; 2]) -> BTreeSet<(String, String)> {
    effects
        .iter()
        .map(|effect| (UNREACHABLE.to_owned(), (*effect).to_owned()))
        .collect()
}

fn says(pod: &Pod, type_: &str, status: &str, reason: &str) -> bool {
    pod.status.as_ref().is_some_and(|found| {
        found.conditions.iter().flatten().any(|condition| {
            condition.type_ == type_
                && condition.status == status
                && condition.reason.as_deref().unwrap_or_default() == reason
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_of_a_lost_node_are_replaced_and_end_when_it_returns() {
    let cluster = Cluster::start_hasty().await;
    cluster
        .create::<Service>(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        }))
        .await;
    cluster.create_spread(0).await;
    cluster
        .until("4 endpoints", || cluster.ready_endpoints().len() == 4)
        .await;
    cluster.alive.lock().unwrap().remove("node2");
    cluster
        .until("no endpoints on node2", || {
            let lost: BTreeSet<String> = cluster
                .pods_on("node2")
                .iter()
                .filter_map(|pod| pod.status.clone()?.pod_ip)
                .collect();
            let ready = cluster.ready_endpoints();
            !ready.is_empty() && ready.is_disjoint(&lost)
        })
        .await;
    cluster
        .until("node2 unknown and without its pods", || {
            cluster.readiness("node2").0 == "Unknown"
                && cluster.taints("node2") == both(["NoSchedule", "NoExecute"])
                && cluster.pods_on("node2").iter().all(|pod| {
                    pod.metadata.deletion_timestamp.is_some()
                        && says(pod, "Ready", "False", "")
                        && says(pod, "DisruptionTarget", "True", "DeletionByTaintManager")
                })
        })
        .await;
    assert_eq!(
        cluster.readiness("node2"),
        (
            "Unknown".to_owned(),
            "NodeStatusUnknown".to_owned(),
            "Kubelet stopped posting node status.".to_owned()
        )
    );
    cluster
        .until("all on node1", || {
            cluster.web_is_complete(4) && cluster.pods_on("node1").len() == 4
        })
        .await;
    assert_eq!(
        cluster.pods_on("node2").len(),
        2,
        "nobody there has ended them"
    );
    cluster
        .until("the events", || {
            let said = |reason: &str, message: &str| {
                cluster.messages(reason).contains(&message.to_owned())
            };
            said("NodeNotReady", "Node node2 status is now: NodeNotReady")
                && said("NodeNotReady", "Node is not ready")
                && said(
                    "RegisteredNode",
                    "Node node2 event: Registered Node node2 in Controller",
                )
                && cluster
                    .messages("TaintManagerEviction")
                    .iter()
                    .any(|message| message.starts_with("Marking for deletion Pod default/web-"))
        })
        .await;

    cluster.alive.lock().unwrap().insert("node2".to_owned());
    let now = cluster
        .client
        .now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let ready = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now},
    ]}});
    cluster
        .client
        .patch::<Node>(None, "node2", &Patch::Strategic(ready), Some("status"))
        .await
        .unwrap();
    cluster.catch_up("node2").await;
    cluster
        .until("node2 empty and open", || {
            cluster.pods_on("node2").is_empty() && cluster.taints("node2").is_empty()
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_evicted_while_every_node_is_silent() {
    let cluster = Cluster::start_hasty().await;
    // One may be seen to be silent before the other; once both are, its taint goes again.
    cluster.create_spread(60).await;
    cluster.alive.lock().unwrap().clear();
    cluster
        .until("both unknown", || {
            ["node1", "node2"].iter().all(|node| {
                cluster.readiness(node).0 == "Unknown"
                    && cluster.taints(node) == both(["NoSchedule", "NoSchedule"])
                    && cluster
                        .pods_on(node)
                        .iter()
                        .all(|pod| says(pod, "Ready", "False", ""))
            })
        })
        .await;
    assert!(
        cluster
            .all::<Pod>()
            .iter()
            .all(|pod| pod.metadata.deletion_timestamp.is_none()),
        "{}",
        cluster.dump()
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_nodes_that_will_not_return_is_removed() {
    let cluster = Cluster::start_hasty().await;
    cluster.create_spread(0).await;
    cluster.alive.lock().unwrap().remove("node2");
    cluster
        .until("pods that wait for their node", || {
            cluster
                .pods_on("node2")
                .iter()
                .all(|pod| pod.metadata.deletion_timestamp.is_some())
        })
        .await;
    let out = json!({"spec": {"taints": [{
        "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute",
    }]}});
    cluster
        .client
        .patch::<Node>(None, "node2", &Patch::Strategic(out), None)
        .await
        .unwrap();
    cluster
        .until("no pods", || cluster.pods_on("node2").is_empty())
        .await;

    cluster.add_node("node3").await;
    cluster.start_beating("node3").await;
    cluster
        .patch::<k8s_openapi::api::apps::v1::Deployment>("web", json!({"spec": {"replicas": 6}}))
        .await;
    cluster
        .until("pods on node3", || {
            cluster.web_is_complete(6) && !cluster.pods_on("node3").is_empty()
        })
        .await;
    cluster.alive.lock().unwrap().remove("node3");
    cluster
        .client
        .delete::<Node>(None, "node3", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until("its pods elsewhere", || {
            cluster.pods_on("node3").is_empty()
                && cluster.web_is_complete(6)
                && cluster
                    .messages("RemovingNode")
                    .contains(&"Node node3 event: Removing Node node3 from Controller".to_owned())
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_knows_what_it_can_spare() {
    let cluster = Cluster::start().await;
    cluster
        .create::<PodDisruptionBudget>(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"maxUnavailable": "34%", "selector": {"matchLabels": {"app": "web"}}},
        }))
        .await;
    // Expected, healthy, desired, allowed, and the condition's status.
    let figures = || {
        cluster
            .get::<PodDisruptionBudget>("default/web")
            .and_then(|budget| budget.status.clone())
            .map(|status| {
                let condition = status.conditions.unwrap_or_default().pop();
                (
                    status.expected_pods,
                    status.current_healthy,
                    status.desired_healthy,
                    status.disruptions_allowed,
                    condition.map(|condition| (condition.status, condition.reason)),
                )
            })
    };
    let condition = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
    cluster
        .until("an empty budget", || {
            figures()
                == Some((
                    Some(0),
                    Some(0),
                    Some(0),
                    Some(0),
                    condition("False", "InsufficientPods"),
                ))
        })
        .await;
    cluster.create_web(3).await;
    cluster
        .until("a full budget", || {
            figures()
                == Some((
                    Some(3),
                    Some(3),
                    Some(1),
                    Some(2),
                    condition("True", "SufficientPods"),
                ))
        })
        .await;
    let bare = json!({
        "metadata": {"name": "bare", "namespace": "default", "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "example.com/v1", "kind": "Flock", "name": "f",
                "uid": "u", "controller": true}]},
        "spec": {"containers": [{"name": "c", "image": "nginx:1.27"}]},
    });
    cluster.create::<Pod>(bare).await;
    cluster
        .until("a budget without figures", || {
            figures()
                == Some((
                    Some(3),
                    Some(3),
                    Some(1),
                    Some(0),
                    condition("False", "SyncFailed"),
                ))
        })
        .await;
    // The Event is written beside the status, so it may come after it.
    cluster
        .until("the Event that says why", || {
            !cluster
                .messages("CalculateExpectedPodCountFailed")
                .is_empty()
        })
        .await;
    cluster.stop().await;
}
