//! The replica set controller: keeps as many pods as the replica set asks for.
//!
//! Watches: ReplicaSets and Pods. Changes: Pods (creates, deletes, adopts, lets go) and ReplicaSet
//! status. Who reacts next: the scheduler to new pods, the node to deleted ones, the deployment
//! controller to the status.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use pintle_api::client::{
    Client, DeleteParams, EventRecorder, Informer, InformerEvent, Patch, object_key,
};
use pintle_kube_types::Status;

use super::deployment::is_namespace_terminating;
use crate::runtime::clock::Clock;
use crate::runtime::expectations::{Expectations, Seen};
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, owner, pods, selector};

mod ranking;
mod status;

use status::Failure;

const NAME: &str = "replicaset-controller";
const WORKERS: usize = 8;
/// No more pods than this are created or deleted in one go.
const BURST: usize = 500;

/// The controller; see the module documentation.
pub(crate) struct ReplicaSets {
    client: Client,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
    /// Keys of pods without a controller: the only ones that can be adopted.
    orphans: Mutex<HashSet<String>>,
    expectations: Expectations,
    recorder: EventRecorder,
    clock: Clock,
    queue: WorkQueue,
}

/// The pods of one replica set.
#[derive(Default)]
struct Claimed {
    active: Vec<Arc<Pod>>,
    terminating: usize,
}

impl ReplicaSets {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            sets: client.informer(),
            pods: client.informer(),
            orphans: Mutex::default(),
            expectations: Expectations::default(),
            recorder: host.recorder(NAME, NAME),
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let controller = Arc::clone(&this);
            host.watch(&this.sets, move |event| {
                if let Some(rs) = objects::latest(&event) {
                    controller.queue.add(object_key(&rs.metadata));
                }
            });
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| controller.on_pod(&event));
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, WORKERS, async move {
            controller.sets.synced().await;
            controller.pods.synced().await;
        });
    }

    fn on_pod(&self, event: &InformerEvent<Pod>) {
        let (old, new) = objects::sides(event);
        let owner_key = |pod: &Pod| {
            owner::controller_of(&pod.metadata)
                .filter(|owner| owner.kind == "ReplicaSet")
                .map(|owner| objects::sibling(&pod.metadata, &owner.name))
        };
        let before = old.and_then(owner_key);
        let after = new.and_then(owner_key);
        if before != after
            && let Some(key) = before
        {
            self.queue.add(key);
        }
        if let Some(key) = after {
            self.queue.add(key);
        }
        let Some(pod) = new.or(old) else {
            return;
        };
        let key = object_key(&pod.metadata);
        if new.is_none() || owner::controller_of(&pod.metadata).is_some() {
            self.orphans.lock().remove(&key);
            return;
        }
        self.orphans.lock().insert(key);
        if pods::is_terminating(pod) {
            return;
        }
        for rs in self.sets.list_namespace(objects::namespace(&pod.metadata)) {
            if selects(&rs, pod) {
                self.queue.add(object_key(&rs.metadata));
            }
        }
    }

    async fn sync(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(rs) = self.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let revision = self.pods.resource_version();
        let up_to_date = self.expectations.satisfied(key, revision, |pod| {
            self.pods.get(pod).map(|pod| Seen {
                uid: objects::uid(&pod.metadata).to_owned(),
                deleting: pods::is_terminating(&pod),
            })
        });
        let claimed = self.claim(&rs).await?;
        let mut failure = None;
        let mut failed = None;
        if up_to_date
            && rs.metadata.deletion_timestamp.is_none()
            && let Err((reason, error)) = self.manage(key, &rs, &claimed.active).await
        {
            failure = Some(reason);
            failed = Some(error);
        }
        let now = self.clock.now();
        let next = status::calculate(
            &rs,
            &claimed.active,
            claimed.terminating,
            failure.as_ref(),
            now,
        );
        self.write_status(&rs, next).await?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let min_ready = rs
            .spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds)
            .unwrap_or(0);
        if let Some(wait) = status::next_available(&claimed.active, min_ready, now) {
            self.queue.add_after(key.to_owned(), wait);
        }
        Ok(())
    }

    /// The pods of the replica set, after adopting matching orphans and letting go of owned pods
    /// that match no more.
    async fn claim(&self, rs: &ReplicaSet) -> Result<Claimed, ReconcileError> {
        let uid = objects::uid(&rs.metadata);
        let deleting = rs.metadata.deletion_timestamp.is_some();
        let prefix = format!("{}/", objects::namespace(&rs.metadata));
        let orphans: Vec<String> = self
            .orphans
            .lock()
            .iter()
            .filter(|key| key.starts_with(&prefix))
            .cloned()
            .collect();
        let candidates = self
            .pods
            .by_owner(uid)
            .into_iter()
            .chain(orphans.iter().filter_map(|key| self.pods.get(key)));
        let mut claimed = Claimed::default();
        let mut checked = false;
        for pod in candidates {
            let selected = selects(rs, &pod);
            if pods::is_terminating(&pod) {
                let ours =
                    owner::controller_of(&pod.metadata).is_some_and(|owner| owner.uid == uid);
                if ours && selected && !pods::is_terminal(&pod) {
                    claimed.terminating += 1;
                }
                continue;
            }
            if pods::is_terminal(&pod) {
                continue;
            }
            let patch = match owner::claim(&pod.metadata, uid, deleting, selected) {
                owner::Claim::Keep => {
                    claimed.active.push(pod);
                    continue;
                }
                owner::Claim::Ignore => continue,
                owner::Claim::Release => owner::release_patch([uid], objects::uid(&pod.metadata)),
                owner::Claim::Adopt => {
                    if !checked {
                        self.check_still_there(rs).await?;
                        checked = true;
                    }
                    let reference = owner::controller_reference(rs);
                    owner::adopt_patch(&reference, objects::uid(&pod.metadata))
                }
            };
            let patched = self
                .client
                .patch::<Pod>(
                    pod.metadata.namespace.as_deref(),
                    objects::name(&pod.metadata),
                    &Patch::Strategic(patch),
                    None,
                )
                .await;
            match patched {
                Ok(adopted) if selected => claimed.active.push(Arc::new(adopted)),
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(claimed)
    }

    async fn check_still_there(&self, rs: &ReplicaSet) -> Result<(), ReconcileError> {
        let live: ReplicaSet = self
            .client
            .get(
                rs.metadata.namespace.as_deref(),
                objects::name(&rs.metadata),
            )
            .await?;
        if live.metadata.uid == rs.metadata.uid && live.metadata.deletion_timestamp.is_none() {
            Ok(())
        } else {
            Err(ReconcileError::Stale)
        }
    }

    /// Creates the pods that are missing, or deletes those that are too many.
    async fn manage(
        &self,
        key: &str,
        rs: &ReplicaSet,
        active: &[Arc<Pod>],
    ) -> Result<(), (Failure, Status)> {
        let wanted = rs.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let creating = active.len() < wanted;
        let result = if creating {
            let missing = (wanted - active.len()).min(BURST);
            self.create_pods(key, rs, missing).await
        } else {
            let excess = (active.len() - wanted).min(BURST);
            self.delete_pods(key, rs, active, excess).await
        };
        result.map_err(|error| {
            let failure = Failure {
                creating,
                message: error.to_string(),
            };
            (failure, error)
        })
    }

    /// Creates pods in batches of 1, 2, 4, …, so that when the first one is refused (by a quota,
    /// say) the API is spared the others.
    async fn create_pods(&self, key: &str, rs: &ReplicaSet, count: usize) -> Result<(), Status> {
        let pod = new_pod(rs);
        let mut left = count;
        let mut batch = 1;
        while left > 0 {
            let size = batch.min(left);
            let results = join_all((0..size).map(|_| self.client.create(&pod))).await;
            let mut first_error = None;
            for result in results {
                match result {
                    Ok(created) => self.created(key, rs, &created),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            if let Some(error) = first_error {
                if is_namespace_terminating(&error) {
                    return Ok(());
                }
                self.recorder.record(
                    objects::reference(rs),
                    "Warning",
                    "FailedCreate",
                    format!("Error creating: {error}"),
                );
                return Err(error);
            }
            left -= size;
            batch *= 2;
        }
        Ok(())
    }

    fn created(&self, key: &str, rs: &ReplicaSet, pod: &Pod) {
        self.expectations.created(
            key,
            object_key(&pod.metadata),
            objects::uid(&pod.metadata).to_owned(),
            objects::revision(&pod.metadata),
        );
        self.recorder.record(
            objects::reference(rs),
            "Normal",
            "SuccessfulCreate",
            format!("Created pod: {}", objects::name(&pod.metadata)),
        );
    }

    async fn delete_pods(
        &self,
        key: &str,
        rs: &ReplicaSet,
        active: &[Arc<Pod>],
        count: usize,
    ) -> Result<(), Status> {
        if count == 0 {
            return Ok(());
        }
        let related = self.related_pods(rs);
        let victims = ranking::victims(active, &related, count, self.clock.now());
        let deletions = victims.iter().map(|pod| async move {
            let params = DeleteParams {
                precondition_uid: pod.metadata.uid.clone(),
                ..DeleteParams::default()
            };
            let name = objects::name(&pod.metadata);
            let namespace = pod.metadata.namespace.as_deref();
            (
                pod,
                self.client.delete::<Pod>(namespace, name, &params).await,
            )
        });
        let mut first_error = None;
        for (pod, result) in join_all(deletions).await {
            let name = objects::name(&pod.metadata);
            match result {
                Ok(()) => {
                    self.expectations.deleted(
                        key,
                        object_key(&pod.metadata),
                        objects::uid(&pod.metadata).to_owned(),
                    );
                    self.recorder.record(
                        objects::reference(rs),
                        "Normal",
                        "SuccessfulDelete",
                        format!("Deleted pod: {name}"),
                    );
                }
                // Gone, or replaced by another of that name: either way not ours any more.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => {
                    self.recorder.record(
                        objects::reference(rs),
                        "Warning",
                        "FailedDelete",
                        format!("Error deleting: {error}"),
                    );
                    first_error = first_error.or(Some(error));
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// The pods of all replica sets that have the same controller as this one.
    fn related_pods(&self, rs: &ReplicaSet) -> Vec<Arc<Pod>> {
        match owner::controller_of(&rs.metadata) {
            Some(owner) => self
                .sets
                .by_owner(&owner.uid)
                .iter()
                .flat_map(|sibling| self.pods.by_owner(objects::uid(&sibling.metadata)))
                .collect(),
            None => self.pods.by_owner(objects::uid(&rs.metadata)),
        }
    }

    async fn write_status(&self, rs: &ReplicaSet, next: ReplicaSetStatus) -> Result<(), Status> {
        if rs.status.as_ref() == Some(&next) {
            return Ok(());
        }
        let mut object = rs.clone();
        object.status = Some(next.clone());
        match self.client.update_status(&object).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) if error.is_conflict() => {
                // Once more on the live object: counting again would give the same counts.
                let mut live: ReplicaSet = match self
                    .client
                    .get(
                        rs.metadata.namespace.as_deref(),
                        objects::name(&rs.metadata),
                    )
                    .await
                {
                    Ok(live) => live,
                    Err(error) if error.is_not_found() => return Ok(()),
                    Err(error) => return Err(error),
                };
                if live.metadata.uid != rs.metadata.uid {
                    return Ok(());
                }
                live.status = Some(next);
                self.client.update_status(&live).await.map(|_| ())
            }
            Err(error) => Err(error),
        }
    }
}

impl Reconcile for ReplicaSets {
    const NAME: &'static str = "replicaset";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        self.sync(key).await
    }
}

fn selects(rs: &ReplicaSet, pod: &Pod) -> bool {
    rs.spec.as_ref().is_some_and(|spec| {
        !selector::is_empty(&spec.selector)
            && selector::matches(&spec.selector, pod.metadata.labels.as_ref())
    })
}

fn new_pod(rs: &ReplicaSet) -> Pod {
    let template = rs
        .spec
        .as_ref()
        .and_then(|spec| spec.template.clone())
        .unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", objects::name(&rs.metadata))),
            namespace: rs.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner::controller_reference(rs)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
