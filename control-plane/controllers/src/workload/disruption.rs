//! The disruption controller: says how many of the pods of a budget may be evicted now.
//!
//! Watches: PodDisruptionBudgets, Pods, and the ReplicaSets and Deployments that pods belong to.
//! Changes: the status of budgets; the `DisruptionTarget` condition of pods whose eviction came to
//! nothing. Who reacts next: the eviction API, which spends what the status allows.
//!
//! An eviction that was allowed but not followed by the pod's deletion counts for two minutes: one
//! delayed key per budget, no other timer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use pintle_api::client::{Client, EventRecorder, Informer, InformerEvent, Patch, object_key};
use pintle_kube_types::Status;
use serde_json::json;

use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, owner, pods};

mod figures;

use figures::Figures;

const NAME: &str = "disruption-controller";
/// How long a pod that was taken off a node's hands may say so without being deleted.
const STALE_TARGET: Duration = Duration::from_mins(2);

/// The controller; see the module documentation.
pub(crate) struct Disruption {
    client: Client,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    sets: Informer<ReplicaSet>,
    deployments: Informer<Deployment>,
    recorder: EventRecorder,
    clock: Clock,
    queue: WorkQueue,
}

/// Why the figures of a budget cannot be computed.
#[derive(Debug, thiserror::Error)]
enum FiguresError {
    #[error("found no controllers for pod {pod:?}")]
    NoController { pod: String },
}

impl Disruption {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            budgets: client.informer(),
            pods: client.informer(),
            sets: client.informer(),
            deployments: client.informer(),
            recorder: host.recorder(NAME, "controllermanager"),
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let queue = queue.clone();
            host.watch(&this.budgets, move |event| {
                if let (_, Some(budget)) = objects::sides(&event) {
                    queue.add(object_key(&budget.metadata));
                }
            });
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| controller.on_pod(&event));
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.sets, move |event| {
                let size = |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.replicas);
                let (old, new) = objects::sides(&event);
                if let Some(set) = new.or(old)
                    && old.map(size) != new.map(size)
                {
                    controller.scale_changed(objects::namespace(&set.metadata));
                }
            });
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.deployments, move |event| {
                let size = |web: &Deployment| web.spec.as_ref().and_then(|spec| spec.replicas);
                let (old, new) = objects::sides(&event);
                if let Some(deployment) = new.or(old)
                    && old.map(size) != new.map(size)
                {
                    controller.scale_changed(objects::namespace(&deployment.metadata));
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 1, async move {
            controller.budgets.synced().await;
            controller.pods.synced().await;
            controller.sets.synced().await;
            controller.deployments.synced().await;
        });
        StaleTargets::start(host);
    }

    fn on_pod(&self, event: &InformerEvent<Pod>) {
        let (old, new) = objects::sides(event);
        for pod in [old, new].into_iter().flatten() {
            for budget in self.budgets_of(pod) {
                self.queue.add(object_key(&budget.metadata));
            }
        }
        if let Some(pod) = new
            && old.is_none_or(|old| old.metadata.labels != pod.metadata.labels)
            && let [first, _, ..] = self.budgets_of(pod).as_slice()
        {
            self.recorder.record(
                objects::reference(pod),
                "Warning",
                "MultiplePodDisruptionBudgets",
                format!(
                    "Pod {:?}/{:?} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
                    objects::namespace(&pod.metadata),
                    objects::name(&pod.metadata),
                    objects::name(&first.metadata),
                ),
            );
        }
    }

    /// A limit in percent is a share of the scale.
    fn scale_changed(&self, namespace: &str) {
        for budget in self.budgets.list_namespace(namespace) {
            self.queue.add(object_key(&budget.metadata));
        }
    }

    fn budgets_of(&self, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
        let mut budgets = self
            .budgets
            .list_namespace(objects::namespace(&pod.metadata));
        budgets.retain(|budget| figures::covers(budget, pod));
        budgets
    }

    /// The pods' controllers and how many pods each is to have; also the names of the pods that have
    /// none.
    fn scales(&self, covered: &[Arc<Pod>]) -> Result<(i32, Vec<String>), FiguresError> {
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        let mut unmanaged = Vec::new();
        for pod in covered {
            let Some(owner) = owner::controller_of(&pod.metadata) else {
                unmanaged.push(objects::name(&pod.metadata).to_owned());
                continue;
            };
            if scales.contains_key(&owner.uid) {
                continue;
            }
            let namespace = objects::namespace(&pod.metadata);
            let (uid, scale) =
                self.scale_of(namespace, owner)
                    .ok_or_else(|| FiguresError::NoController {
                        pod: objects::name(&pod.metadata).to_owned(),
                    })?;
            scales.insert(uid, scale);
        }
        let sum = scales.values().copied().fold(0, i32::saturating_add);
        Ok((sum, unmanaged))
    }

    /// The scale of a replica set, or of the deployment it belongs to.
    fn scale_of(&self, namespace: &str, owner: &OwnerReference) -> Option<(String, i32)> {
        let of = |owner: &OwnerReference, kind: &str| {
            owner.kind == kind && owner.api_version.starts_with("apps/")
        };
        if !of(owner, "ReplicaSet") {
            return None;
        }
        let set = self.sets.get(&format!("{namespace}/{}", owner.name))?;
        if objects::uid(&set.metadata) != owner.uid {
            return None;
        }
        let above = owner::controller_of(&set.metadata).filter(|owner| of(owner, "Deployment"));
        let Some(above) = above else {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
            return Some((owner.uid.clone(), replicas.unwrap_or(1)));
        };
        let deployment = self
            .deployments
            .get(&format!("{namespace}/{}", above.name))?;
        (objects::uid(&deployment.metadata) == above.uid).then(|| {
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            (above.uid.clone(), replicas.unwrap_or(1))
        })
    }

    /// What the status should be, and when to look again.
    fn figure(
        &self,
        budget: &PodDisruptionBudget,
        now: Timestamp,
    ) -> Result<(Figures, Option<Duration>), FiguresError> {
        let mut covered = self
            .pods
            .list_namespace(objects::namespace(&budget.metadata));
        covered.retain(|pod| figures::covers(budget, pod));
        let about = |type_: &str, reason: &str, message: String| {
            // Once per change of the wish, not once per look.
            if !figures::has_been_seen(budget) {
                self.recorder
                    .record(objects::reference(budget), type_, reason, message);
            }
        };
        if covered.is_empty() {
            about("Normal", "NoPods", "No matching pods found".to_owned());
        }
        let count = i32::try_from(covered.len()).unwrap_or(i32::MAX);
        let (expected, desired) = if figures::needs_scale(budget) {
            let (scale, unmanaged) = self.scales(&covered)?;
            if !unmanaged.is_empty() {
                about(
                    "Warning",
                    "UnmanagedPods",
                    format!(
                        "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
                        figures::selector_text(budget),
                    ),
                );
            }
            (scale, figures::desired(budget, scale))
        } else {
            (count, figures::desired(budget, count))
        };
        let (disrupted, again) = figures::still_disrupted(budget, &covered, now, |pod| {
            let namespace = objects::namespace(&budget.metadata);
            self.recorder.record(
                objects::reference(pod),
                "Warning",
                "NotDeleted",
                format!(
                    "Pod was expected by PDB {namespace}/{} to be deleted but it wasn't",
                    objects::name(&budget.metadata)
                ),
            );
        });
        let healthy = figures::healthy(&covered, &disrupted);
        let figures = Figures {
            healthy,
            desired,
            expected,
            disrupted,
        };
        Ok((figures, again))
    }

    async fn write(&self, changed: &PodDisruptionBudget) -> Result<(), ReconcileError> {
        match self.client.update_status(changed).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconcile for Disruption {
    const NAME: &'static str = "disruption";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(budget) = self.budgets.get(key) else {
            return Ok(());
        };
        let now = self.clock.now();
        match self.figure(&budget, now) {
            Ok((figures, again)) => {
                if let Some(changed) = figures.applied_to(&budget, now) {
                    self.write(&changed).await?;
                }
                if let Some(again) = again {
                    self.queue.add_after(key.to_owned(), again);
                }
                Ok(())
            }
            Err(error) => {
                // Nobody is evicted on figures that are not known.
                let Some(changed) = figures::failed(&budget, &error.to_string(), now) else {
                    return Ok(());
                };
                self.recorder.record(
                    objects::reference(budget.as_ref()),
                    "Warning",
                    "CalculateExpectedPodCountFailed",
                    format!("Failed to calculate the number of expected pods: {error}"),
                );
                self.write(&changed).await
            }
        }
    }
}

/// Takes back what a pod says about its coming end when the end did not come.
struct StaleTargets {
    client: Client,
    pods: Informer<Pod>,
    clock: Clock,
    queue: WorkQueue,
}

impl StaleTargets {
    fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            pods: client.informer(),
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| {
                if let (_, Some(pod)) = objects::sides(&event)
                    && let Some(left) = stale_in(pod, controller.clock.now())
                {
                    controller.queue.add_after(object_key(&pod.metadata), left);
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 1, async move {
            controller.pods.synced().await;
        });
    }
}

/// How long until the pod's `DisruptionTarget` is stale; `None` when it never will be.
fn stale_in(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let target = pods::condition(pod, "DisruptionTarget")?;
    // The node's agent takes its time between saying so and the end.
    if target.status != "True"
        || target.reason.as_deref() == Some("TerminationByKubelet")
        || pods::is_terminating(pod)
        || pods::is_terminal(pod)
    {
        return None;
    }
    let since = target
        .last_transition_time
        .as_ref()
        .map_or(Duration::ZERO, |time| {
            Duration::try_from(now.duration_since(time.0)).unwrap_or(Duration::ZERO)
        });
    Some(STALE_TARGET.saturating_sub(since))
}

impl Reconcile for StaleTargets {
    const NAME: &'static str = "disruption-stale-targets";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(pod) = self.pods.get(key) else {
            return Ok(());
        };
        let now = self.clock.now();
        match stale_in(&pod, now) {
            None => return Ok(()),
            Some(left) if !left.is_zero() => {
                self.queue.add_after(key.to_owned(), left);
                return Ok(());
            }
            Some(_) => {}
        }
        let patch = json!({
            "metadata": {
                "uid": pod.metadata.uid,
                "resourceVersion": pod.metadata.resource_version,
            },
            "status": {"conditions": [{
                "type": "DisruptionTarget",
                "status": "False",
                "reason": null,
                "message": null,
                "lastTransitionTime": Time(now),
            }]},
        });
        let patched: Result<Pod, Status> = self
            .client
            .patch(
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "status": status}))
            .expect("a pod")
    }

    #[test]
    fn a_target_is_stale_after_two_minutes() {
        let now: Timestamp = "2026-01-01T00:01:30Z".parse().expect("a time");
        let at = |reason: &str, phase: &str| {
            pod(&json!({"phase": phase, "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": reason,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]}))
        };
        assert_eq!(
            stale_in(&at("EvictionByEvictionAPI", "Running"), now),
            Some(Duration::from_secs(30))
        );
        assert_eq!(stale_in(&at("TerminationByKubelet", "Running"), now), None);
        assert_eq!(stale_in(&at("EvictionByEvictionAPI", "Failed"), now), None);
        assert_eq!(stale_in(&pod(&json!({})), now), None);
    }
}
