//! Takes pods off nodes with `NoExecute` taints they do not tolerate, at once or when their
//! toleration ends.
//!
//! Watches: Nodes and Pods. Changes: deletes Pods, after saying on them why. Who reacts next: the
//! pods' node, and their controllers.
//!
//! One delayed key per pod whose toleration ends; no other timer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use pintle_api::client::{
    Client, DeleteParams, EventRecorder, Informer, InformerEvent, Patch, object_key,
};
use pintle_kube_types::Status;
use serde_json::json;
use tokio::time::Instant;

use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, pods};

const NAME: &str = "taint-eviction-controller";

/// The controller; see the module documentation.
pub(crate) struct TaintEviction {
    client: Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    recorder: EventRecorder,
    /// Since when a pod is exposed to taints it tolerates only for a while, by uid.
    exposed: Mutex<HashMap<String, Instant>>,
    clock: Clock,
    queue: WorkQueue,
}

/// What taints mean for a pod.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Stays,
    /// It goes this long after the taints came.
    Goes(Duration),
}

impl TaintEviction {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            nodes: client.informer(),
            pods: client.informer(),
            recorder: host.recorder(NAME, NAME),
            exposed: Mutex::default(),
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
            host.watch(&this.pods, move |event| controller.on_pod(&event));
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.nodes.synced().await;
            controller.pods.synced().await;
        });
    }

    fn on_node(&self, event: &InformerEvent<Node>) {
        let (old, new) = objects::sides(event);
        let (before, after) = (old.map(evicting), new.map(evicting));
        let Some(node) = new else {
            return;
        };
        if before.unwrap_or_default() == after.unwrap_or_default() {
            return;
        }
        for pod in self.pods.list() {
            if pods::node_name(&pod) == node.metadata.name.as_deref() {
                self.queue.add(object_key(&pod.metadata));
            }
        }
    }

    fn on_pod(&self, event: &InformerEvent<Pod>) {
        let (old, new) = objects::sides(event);
        let Some(pod) = new else {
            if let Some(old) = old {
                self.exposed.lock().remove(objects::uid(&old.metadata));
            }
            return;
        };
        let relevant = |pod: &Pod| {
            let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone());
            (pods::node_name(pod).map(str::to_owned), tolerations)
        };
        if old.map(relevant) == Some(relevant(pod)) {
            return;
        }
        let tainted = pods::node_name(pod)
            .and_then(|node| self.nodes.get(node))
            .is_some_and(|node| !evicting(&node).is_empty());
        if tainted {
            self.queue.add(object_key(&pod.metadata));
        }
    }
}

impl Reconcile for TaintEviction {
    const NAME: &'static str = "taint-eviction";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(pod) = self.pods.get(key) else {
            return Ok(());
        };
        let Some(node) = pods::node_name(&pod).and_then(|node| self.nodes.get(node)) else {
            return Ok(());
        };
        let uid = objects::uid(&pod.metadata).to_owned();
        if pods::is_terminating(&pod) {
            return Ok(());
        }
        let Verdict::Goes(after) = verdict(&pod, &evicting(&node)) else {
            if self.exposed.lock().remove(&uid).is_some() {
                self.recorder.record(
                    objects::reference(pod.as_ref()),
                    "Normal",
                    "TaintManagerEviction",
                    format!("Cancelling deletion of Pod {key}"),
                );
            }
            return Ok(());
        };
        let exposed = self
            .exposed
            .lock()
            .entry(uid.clone())
            .or_insert_with(Instant::now)
            .elapsed();
        let left = after.saturating_sub(exposed);
        if !left.is_zero() {
            self.queue.add_after(key.to_owned(), left);
            return Ok(());
        }
        self.recorder.record(
            objects::reference(pod.as_ref()),
            "Normal",
            "TaintManagerEviction",
            format!("Marking for deletion Pod {key}"),
        );
        match self.evict(&pod, uid).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl TaintEviction {
    /// Says on the pod why it goes, and deletes it.
    async fn evict(&self, pod: &Pod, uid: String) -> Result<(), Status> {
        let namespace = pod.metadata.namespace.as_deref();
        let name = objects::name(&pod.metadata);
        let patch = json!({
            "metadata": {"uid": uid},
            "status": {"conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": Time(self.clock.now()),
            }]},
        });
        let told = pods::condition(pod, "DisruptionTarget").is_some_and(|target| {
            target.status == "True" && target.reason.as_deref() == Some("DeletionByTaintManager")
        });
        if !told {
            self.client
                .patch::<Pod>(namespace, name, &Patch::Strategic(patch), Some("status"))
                .await?;
        }
        let options = DeleteParams {
            precondition_uid: Some(uid),
            ..DeleteParams::default()
        };
        self.client.delete::<Pod>(namespace, name, &options).await
    }
}

/// The taints that take pods off the node.
fn evicting(node: &Node) -> Vec<Taint> {
    node.spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| taint.effect == "NoExecute")
        .cloned()
        .collect()
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is = |wanted: Option<&str>, found: &str| {
        wanted.is_none_or(|wanted| wanted.is_empty() || wanted == found)
    };
    let value = toleration.value.as_deref().unwrap_or_default()
        == taint.value.as_deref().unwrap_or_default();
    let named = toleration.key.as_deref().is_some_and(|key| !key.is_empty());
    is(toleration.effect.as_deref(), &taint.effect)
        && is(toleration.key.as_deref(), &taint.key)
        && match toleration.operator.as_deref() {
            Some("Exists") => true,
            None | Some("" | "Equal") => named && value,
            Some(_) => false,
        }
}

/// Of the tolerations that apply, the shortest decides; to each taint the first that fits applies, as
/// in Kubernetes.
fn verdict(pod: &Pod, taints: &[Taint]) -> Verdict {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let mut shortest: Option<Duration> = None;
    for taint in taints {
        let Some(toleration) = tolerations
            .iter()
            .find(|toleration| tolerates(toleration, taint))
        else {
            return Verdict::Goes(Duration::ZERO);
        };
        if let Some(seconds) = toleration.toleration_seconds {
            let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            shortest = Some(shortest.map_or(limit, |shortest| shortest.min(limit)));
        }
    }
    shortest.map_or(Verdict::Stays, Verdict::Goes)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn pod(tolerations: Vec<Toleration>) -> Pod {
        Pod {
            spec: Some(PodSpec {
                tolerations: Some(tolerations),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn exists(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some("NoExecute".into()),
            toleration_seconds: seconds,
            value: None,
        }
    }

    fn taint(key: &str) -> Taint {
        Taint {
            key: key.into(),
            effect: "NoExecute".into(),
            ..Taint::default()
        }
    }

    #[test]
    fn the_shortest_needed_toleration_decides() {
        let goes = |seconds| Verdict::Goes(Duration::from_secs(seconds));
        let two = [taint("a"), taint("b")];
        assert_eq!(verdict(&pod(vec![]), &[]), Verdict::Stays);
        assert_eq!(verdict(&pod(vec![]), &two), goes(0));
        assert_eq!(verdict(&pod(vec![exists("a", None)]), &two), goes(0));
        assert_eq!(
            verdict(&pod(vec![exists("a", None), exists("b", None)]), &two),
            Verdict::Stays
        );
        assert_eq!(
            verdict(
                &pod(vec![exists("a", Some(300)), exists("b", Some(60))]),
                &two
            ),
            goes(60)
        );
        assert_eq!(
            verdict(
                &pod(vec![exists("a", Some(300)), exists("b", Some(60))]),
                &two[..1]
            ),
            goes(300)
        );
        assert_eq!(
            verdict(
                &pod(vec![exists("a", None), exists("a", Some(60))]),
                &two[..1]
            ),
            Verdict::Stays,
            "the first that fits applies"
        );
        assert_eq!(
            verdict(&pod(vec![exists("a", Some(-1))]), &two[..1]),
            goes(0)
        );
    }
}
