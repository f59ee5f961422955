//! The deployment controller: turns a deployment into replica sets, one per pod template, and moves
//! pods from the old ones to the new one.
//!
//! Watches: Deployments, their ReplicaSets, and pod deletions (for the Recreate strategy).
//! Changes: ReplicaSets (creates, scales, adopts, cleans up) and Deployment status.
//! Who reacts next: the replica set controller.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api::client::{
    Client, DeleteParams, EventRecorder, Informer, InformerEvent, Patch, object_key,
};
use pintle_kube_types::{Status, hash};

use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, owner, pods, selector};

mod revision;
mod rolling;
mod status;
mod template;

pub(crate) use rolling::scaled;

const NAME: &str = "deployment-controller";
const WORKERS: usize = 5;

/// The controller; see the module documentation.
pub(crate) struct Deployments {
    client: Client,
    cache: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
    recorder: EventRecorder,
    clock: Clock,
    queue: WorkQueue,
}

/// The replica sets of one deployment.
struct Sets {
    new: Option<Arc<ReplicaSet>>,
    /// All others, from oldest to newest.
    old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    fn all(&self) -> Vec<Arc<ReplicaSet>> {
        self.old.iter().chain(self.new.as_ref()).cloned().collect()
    }

    fn replace(&mut self, updated: ReplicaSet) {
        let updated = Arc::new(updated);
        let same = |rs: &Arc<ReplicaSet>| rs.metadata.uid == updated.metadata.uid;
        if self.new.as_ref().is_some_and(same) {
            self.new = Some(updated);
        } else if let Some(slot) = self.old.iter_mut().find(|rs| same(rs)) {
            *slot = updated;
        }
    }
}

impl Deployments {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            cache: client.informer(),
            sets: client.informer(),
            pods: client.informer(),
            recorder: host.recorder(NAME, NAME),
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let queue = queue.clone();
            host.watch(&this.cache, move |event| {
                if let Some(deployment) = objects::latest(&event) {
                    queue.add(object_key(&deployment.metadata));
                }
            });
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.sets, move |event| controller.on_replica_set(&event));
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| controller.on_pod(&event));
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, WORKERS, async move {
            controller.cache.synced().await;
            controller.sets.synced().await;
            controller.pods.synced().await;
        });
    }

    fn on_replica_set(&self, event: &InformerEvent<ReplicaSet>) {
        let (old, new) = objects::sides(event);
        let owner_key = |rs: &ReplicaSet| {
            owner::controller_of(&rs.metadata)
                .filter(|owner| owner.kind == "Deployment")
                .map(|owner| objects::sibling(&rs.metadata, &owner.name))
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
            return;
        }
        // Nobody's replica set: whoever selects it may adopt it.
        let Some(rs) = new.filter(|rs| owner::controller_of(&rs.metadata).is_none()) else {
            return;
        };
        for deployment in self.cache.list_namespace(objects::namespace(&rs.metadata)) {
            let selects = deployment.spec.as_ref().is_some_and(|spec| {
                !selector::is_empty(&spec.selector)
                    && selector::matches(&spec.selector, rs.metadata.labels.as_ref())
            });
            if selects {
                self.queue.add(object_key(&deployment.metadata));
            }
        }
    }

    /// A deployment that recreates its pods waits for the last old one to go.
    fn on_pod(&self, event: &InformerEvent<Pod>) {
        let InformerEvent::Deleted(pod) = event else {
            return;
        };
        let deployment = owner::controller_of(&pod.metadata)
            .filter(|owner| owner.kind == "ReplicaSet")
            .and_then(|owner| self.sets.get(&objects::sibling(&pod.metadata, &owner.name)))
            .and_then(|rs| {
                owner::controller_of(&rs.metadata)
                    .map(|owner| objects::sibling(&rs.metadata, &owner.name))
            })
            .and_then(|key| self.cache.get(&key));
        if let Some(deployment) = deployment
            && !rolling::is_rolling(&deployment)
        {
            self.queue.add(object_key(&deployment.metadata));
        }
    }

    async fn sync(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(cached) = self.cache.get(key) else {
            return Ok(());
        };
        let mut deployment = Deployment::clone(&cached);
        let Some(spec) = deployment.spec.clone() else {
            return Ok(());
        };
        if selector::is_empty(&spec.selector) {
            self.recorder.record(
                objects::reference(&deployment),
                "Warning",
                "SelectingAll",
                "This deployment is selecting all pods. A non-empty selector is required."
                    .to_owned(),
            );
            let observed = deployment
                .status
                .as_ref()
                .and_then(|status| status.observed_generation);
            if observed < deployment.metadata.generation {
                let mut status = deployment.status.clone().unwrap_or_default();
                status.observed_generation = deployment.metadata.generation;
                self.write_status(&mut deployment, status).await?;
            }
            return Ok(());
        }
        let owned = self.claim(&deployment).await?;
        if deployment.metadata.deletion_timestamp.is_some() {
            let sets = classify(&deployment, owned);
            return self.sync_status(&mut deployment, &sets).await;
        }
        if let Some(condition) = status::pause_condition(&deployment, self.clock.now()) {
            let mut next = deployment.status.clone().unwrap_or_default();
            status::set(&mut next, condition);
            self.write_status(&mut deployment, next).await?;
        }
        let resized = owned.iter().any(|rs| {
            rolling::spec_replicas(rs) > 0
                && revision::desired_annotation(rs)
                    .is_some_and(|desired| desired != rolling::desired(&deployment))
        });
        let mut sets = classify(&deployment, owned);
        if spec.paused.unwrap_or(false) || resized {
            self.sync_revision(&mut deployment, &mut sets, false)
                .await?;
            for step in rolling::scale_all(&deployment, &sets.old, sets.new.as_deref()) {
                self.scale(&deployment, &mut sets, &step, false).await?;
            }
            if spec.paused.unwrap_or(false) {
                self.clean_up(&deployment, &sets).await?;
            }
            return self.sync_status(&mut deployment, &sets).await;
        }
        if rolling::is_rolling(&deployment) {
            self.roll(&mut deployment, &mut sets).await
        } else {
            self.recreate(&mut deployment, &mut sets).await
        }
    }

    async fn roll(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
    ) -> Result<(), ReconcileError> {
        self.sync_revision(deployment, sets, true).await?;
        if let Some(new) = sets.new.clone() {
            let current = rolling::spec_replicas(&new);
            let desired = rolling::desired(deployment);
            let total = sets.all().iter().map(|rs| rolling::spec_replicas(rs)).sum();
            let to = if current > desired {
                desired
            } else {
                rolling::new_replicas(deployment, total, current)
            };
            if to != current {
                let step = rolling::Scale {
                    name: objects::name(&new.metadata).to_owned(),
                    to,
                };
                self.scale(deployment, sets, &step, true).await?;
                return self.sync_rollout(deployment, sets).await;
            }
        }
        let steps = rolling::shrink_old(deployment, &sets.old, sets.new.as_deref());
        if !steps.is_empty() {
            for step in &steps {
                self.scale(deployment, sets, step, true).await?;
            }
            return self.sync_rollout(deployment, sets).await;
        }
        self.finish(deployment, sets).await
    }

    async fn recreate(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
    ) -> Result<(), ReconcileError> {
        self.sync_revision(deployment, sets, false).await?;
        let active: Vec<rolling::Scale> = sets
            .old
            .iter()
            .filter(|rs| rolling::spec_replicas(rs) > 0)
            .map(|rs| rolling::Scale {
                name: objects::name(&rs.metadata).to_owned(),
                to: 0,
            })
            .collect();
        if !active.is_empty() {
            for step in &active {
                self.scale(deployment, sets, step, true).await?;
            }
            return self.sync_rollout(deployment, sets).await;
        }
        if self.old_pods_running(sets) {
            return self.sync_rollout(deployment, sets).await;
        }
        if sets.new.is_none() {
            self.sync_revision(deployment, sets, true).await?;
        }
        if let Some(new) = sets.new.clone() {
            let step = rolling::Scale {
                name: objects::name(&new.metadata).to_owned(),
                to: rolling::desired(deployment),
            };
            self.scale(deployment, sets, &step, true).await?;
        }
        self.finish(deployment, sets).await
    }

    async fn finish(&self, deployment: &mut Deployment, sets: &Sets) -> Result<(), ReconcileError> {
        let done = deployment
            .status
            .as_ref()
            .is_some_and(|status| status::is_complete(deployment, status));
        if done {
            self.clean_up(deployment, sets).await?;
        }
        self.sync_rollout(deployment, sets).await
    }

    fn old_pods_running(&self, sets: &Sets) -> bool {
        sets.old.iter().any(|rs| {
            rolling::status_replicas(rs) > 0
                || self
                    .pods
                    .by_owner(objects::uid(&rs.metadata))
                    .iter()
                    .any(|pod| !pods::is_terminal(pod))
        })
    }

    /// The deployment's replica sets: its own, and those it adopts because they match and belong to
    /// nobody. Own ones that match no more are let go.
    async fn claim(&self, deployment: &Deployment) -> Result<Vec<Arc<ReplicaSet>>, ReconcileError> {
        let meta = &deployment.metadata;
        let uid = objects::uid(meta);
        let deleting = meta.deletion_timestamp.is_some();
        let mut checked = false;
        let mut owned = Vec::new();
        for rs in self.sets.list_namespace(objects::namespace(meta)) {
            let selected = deployment
                .spec
                .as_ref()
                .is_some_and(|spec| selector::matches(&spec.selector, rs.metadata.labels.as_ref()));
            let patch = match owner::claim(&rs.metadata, uid, deleting, selected) {
                owner::Claim::Keep => {
                    owned.push(rs);
                    continue;
                }
                owner::Claim::Ignore => continue,
                owner::Claim::Release => owner::release_patch([uid], objects::uid(&rs.metadata)),
                owner::Claim::Adopt => {
                    if !checked {
                        self.check_still_there(deployment).await?;
                        checked = true;
                    }
                    let reference = owner::controller_reference(deployment);
                    owner::adopt_patch(&reference, objects::uid(&rs.metadata))
                }
            };
            let patched = self
                .client
                .patch::<ReplicaSet>(
                    rs.metadata.namespace.as_deref(),
                    objects::name(&rs.metadata),
                    &Patch::Strategic(patch),
                    None,
                )
                .await;
            match patched {
                Ok(adopted) if selected => owned.push(Arc::new(adopted)),
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(owned)
    }

    /// Adoption is decided on the live object, because a cached one may have been deleted and made
    /// anew under the same name.
    async fn check_still_there(&self, deployment: &Deployment) -> Result<(), ReconcileError> {
        let meta = &deployment.metadata;
        let live: Deployment = self
            .client
            .get(meta.namespace.as_deref(), objects::name(meta))
            .await?;
        if live.metadata.uid == meta.uid && live.metadata.deletion_timestamp.is_none() {
            Ok(())
        } else {
            Err(ReconcileError::Stale)
        }
    }

    /// Gives the new replica set the next revision, making it first if `create` says so, and the
    /// deployment the same revision.
    async fn sync_revision(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
        create: bool,
    ) -> Result<(), ReconcileError> {
        let next = 1 + sets
            .old
            .iter()
            .map(|rs| revision::revision_of(&rs.metadata))
            .max()
            .unwrap_or(0);
        if let Some(existing) = sets.new.clone() {
            return self.refresh_new(deployment, sets, &existing, next).await;
        }
        if create {
            self.create_new(deployment, sets, next).await?;
        }
        Ok(())
    }

    async fn refresh_new(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
        existing: &ReplicaSet,
        next: i64,
    ) -> Result<(), ReconcileError> {
        let mut rs = existing.clone();
        let annotated = revision::sync_annotations(deployment, &mut rs, next);
        let min_ready = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds)
            .filter(|seconds| *seconds != 0);
        let mut changed = annotated;
        if let Some(spec) = &mut rs.spec
            && spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0)
        {
            spec.min_ready_seconds = min_ready;
            changed = true;
        }
        if changed {
            rs = self.client.update(&rs).await?;
            sets.new = Some(Arc::new(rs.clone()));
        }
        let number = revision::revision_of(&rs.metadata);
        let mut status = deployment.status.clone().unwrap_or_default();
        let unknown = status::find(Some(&status), status::PROGRESSING).is_none();
        let mut write = set_revision(deployment, number);
        if status::progress_deadline(deployment).is_some() && unknown {
            let message = format!("Found new replica set \"{}\"", objects::name(&rs.metadata));
            let condition = status::condition(
                status::PROGRESSING,
                "True",
                status::FOUND,
                message,
                self.clock.now(),
            );
            status::set(&mut status, condition);
            write = true;
        }
        if write {
            self.write_status(deployment, status).await?;
        }
        Ok(())
    }

    async fn create_new(
        &self,
        deployment: &mut Deployment,
        sets: &mut Sets,
        next: i64,
    ) -> Result<(), ReconcileError> {
        let (rs, replicas) = build_new(deployment, sets, next)?;
        let name = objects::name(&rs.metadata).to_owned();
        let mut status = deployment.status.clone().unwrap_or_default();
        let (created, fresh) = match self.client.create(&rs).await {
            Ok(created) => (created, true),
            Err(error) if error.is_already_exists() => {
                let existing: ReplicaSet = self
                    .client
                    .get(rs.metadata.namespace.as_deref(), &name)
                    .await?;
                if !is_ours(deployment, &existing) {
                    // Another template has this hash: the next try takes another name.
                    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
                    self.write_status(deployment, status).await?;
                    return Err(error.into());
                }
                (existing, false)
            }
            Err(error) if is_namespace_terminating(&error) => return Ok(()),
            Err(error) => {
                let message = format!("Failed to create new replica set \"{name}\": {error}");
                if status::progress_deadline(deployment).is_some() {
                    let condition = status::condition(
                        status::PROGRESSING,
                        "False",
                        status::CREATE_ERROR,
                        message.clone(),
                        self.clock.now(),
                    );
                    status::set(&mut status, condition);
                    self.write_status(deployment, status).await?;
                }
                self.recorder.record(
                    objects::reference(deployment),
                    "Warning",
                    status::CREATE_ERROR,
                    message,
                );
                return Err(error.into());
            }
        };
        if fresh && replicas > 0 {
            self.recorder.record(
                objects::reference(deployment),
                "Normal",
                "ScalingReplicaSet",
                format!("Scaled up replica set {name} from 0 to {replicas}"),
            );
        }
        let number = revision::revision_of(&created.metadata);
        sets.new = Some(Arc::new(created));
        let mut write = set_revision(deployment, number);
        if fresh && status::progress_deadline(deployment).is_some() {
            let message = format!("Created new replica set \"{name}\"");
            let condition = status::condition(
                status::PROGRESSING,
                "True",
                status::CREATED,
                message,
                self.clock.now(),
            );
            status::set(&mut status, condition);
            write = true;
        }
        if write {
            self.write_status(deployment, status).await?;
        }
        Ok(())
    }

    /// Scales one replica set. `quiet` leaves a set of the right size alone even if its size
    /// annotations are out of date.
    async fn scale(
        &self,
        deployment: &Deployment,
        sets: &mut Sets,
        step: &rolling::Scale,
        quiet: bool,
    ) -> Result<(), ReconcileError> {
        let Some(current) = sets
            .all()
            .into_iter()
            .find(|rs| objects::name(&rs.metadata) == step.name)
        else {
            return Ok(());
        };
        let from = rolling::spec_replicas(&current);
        if quiet && from == step.to {
            return Ok(());
        }
        let mut rs = ReplicaSet::clone(&current);
        let desired = rolling::desired(deployment);
        let surge = rolling::bounds(deployment).surge;
        let annotated = revision::set_size_annotations(&mut rs, desired, desired + surge);
        if from == step.to && !annotated {
            return Ok(());
        }
        if let Some(spec) = &mut rs.spec {
            spec.replicas = Some(step.to);
        }
        let updated = self.client.update(&rs).await?;
        sets.replace(updated);
        if from != step.to {
            let direction = if from < step.to { "up" } else { "down" };
            self.recorder.record(
                objects::reference(deployment),
                "Normal",
                "ScalingReplicaSet",
                format!(
                    "Scaled {direction} replica set {} from {from} to {}",
                    step.name, step.to
                ),
            );
        }
        Ok(())
    }

    /// Deletes old replica sets beyond the history limit, the oldest revisions first.
    async fn clean_up(&self, deployment: &Deployment, sets: &Sets) -> Result<(), ReconcileError> {
        let limit = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit)
            .filter(|limit| *limit != i32::MAX)
            .and_then(|limit| usize::try_from(limit).ok());
        let Some(limit) = limit else {
            return Ok(());
        };
        let mut candidates: Vec<&Arc<ReplicaSet>> = sets
            .old
            .iter()
            .filter(|rs| rs.metadata.deletion_timestamp.is_none())
            .collect();
        let Some(excess) = candidates.len().checked_sub(limit) else {
            return Ok(());
        };
        candidates.sort_by_key(|rs| revision::revision_of(&rs.metadata));
        for rs in candidates.into_iter().take(excess) {
            let observed = rs
                .status
                .as_ref()
                .and_then(|status| status.observed_generation);
            let busy = rolling::status_replicas(rs) != 0
                || rolling::spec_replicas(rs) != 0
                || rs.metadata.generation > observed;
            if busy {
                continue;
            }
            let deleted = self
                .client
                .delete::<ReplicaSet>(
                    rs.metadata.namespace.as_deref(),
                    objects::name(&rs.metadata),
                    &DeleteParams {
                        precondition_uid: rs.metadata.uid.clone(),
                        ..DeleteParams::default()
                    },
                )
                .await;
            match deleted {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    async fn sync_status(
        &self,
        deployment: &mut Deployment,
        sets: &Sets,
    ) -> Result<(), ReconcileError> {
        let next = status::calculate(
            deployment,
            &sets.all(),
            sets.new.as_deref(),
            self.clock.now(),
        );
        if deployment.status.as_ref() != Some(&next) {
            self.write_status(deployment, next).await?;
        }
        Ok(())
    }

    async fn sync_rollout(
        &self,
        deployment: &mut Deployment,
        sets: &Sets,
    ) -> Result<(), ReconcileError> {
        let now = self.clock.now();
        let next = status::rollout(deployment, &sets.all(), sets.new.as_deref(), now);
        if let Some(wait) = status::deadline_check(deployment, &next, now) {
            self.queue.add_after(object_key(&deployment.metadata), wait);
        }
        if deployment.status.as_ref() != Some(&next) {
            self.write_status(deployment, next).await?;
        }
        Ok(())
    }

    /// Writes the status, and with it the revision annotation (as Kubernetes does: a status update
    /// may change annotations).
    async fn write_status(
        &self,
        deployment: &mut Deployment,
        status: DeploymentStatus,
    ) -> Result<(), ReconcileError> {
        deployment.status = Some(status);
        *deployment = self.client.update_status(deployment).await?;
        Ok(())
    }
}

impl Reconcile for Deployments {
    const NAME: &'static str = "deployment";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        self.sync(key).await
    }
}

fn classify(deployment: &Deployment, mut owned: Vec<Arc<ReplicaSet>>) -> Sets {
    rolling::sort_by_creation(&mut owned);
    let is_new = |rs: &Arc<ReplicaSet>| {
        let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
        let has = rs.spec.as_ref().and_then(|spec| spec.template.as_ref());
        wanted
            .zip(has)
            .is_some_and(|(wanted, has)| template::equal(wanted, has))
    };
    let new = owned
        .iter()
        .position(is_new)
        .map(|index| owned.remove(index));
    Sets { new, old: owned }
}

fn is_ours(deployment: &Deployment, rs: &ReplicaSet) -> bool {
    let owned = owner::controller_of(&rs.metadata)
        .is_some_and(|owner| owner.uid == objects::uid(&deployment.metadata));
    let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
    let has = rs.spec.as_ref().and_then(|spec| spec.template.as_ref());
    owned
        && wanted
            .zip(has)
            .is_some_and(|(wanted, has)| template::equal(wanted, has))
}

fn build_new(
    deployment: &Deployment,
    sets: &Sets,
    next: i64,
) -> Result<(ReplicaSet, i32), ReconcileError> {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    let hash = hash::template_hash(&spec.template, collisions).map_err(|source| {
        ReconcileError::Encode {
            what: "a pod template",
            source,
        }
    })?;
    let template = template::with_hash(&spec.template, &hash);
    let total = sets.old.iter().map(|rs| rolling::spec_replicas(rs)).sum();
    let replicas = rolling::new_replicas(deployment, total, 0);
    let labels = template
        .metadata
        .as_ref()
        .and_then(|meta| meta.labels.clone());
    let mut rs = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", objects::name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels,
            owner_references: Some(vec![owner::controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds.filter(|seconds| *seconds != 0),
            selector: template::selector_with_hash(&spec.selector, &hash),
            template: Some(template),
        }),
        status: None,
    };
    revision::sync_annotations(deployment, &mut rs, next);
    let desired = rolling::desired(deployment);
    let surge = rolling::bounds(deployment).surge;
    revision::set_size_annotations(&mut rs, desired, desired + surge);
    Ok((rs, replicas))
}

/// Notes the revision on the deployment; returns whether that changed it.
fn set_revision(deployment: &mut Deployment, number: i64) -> bool {
    if revision::revision_of(&deployment.metadata) == number {
        return false;
    }
    deployment
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(revision::REVISION.to_owned(), number.to_string());
    true
}

/// Whether the API refused a create because the namespace is going away; there is no point in
/// trying again.
pub(crate) fn is_namespace_terminating(error: &Status) -> bool {
    error.details.as_ref().is_some_and(|details| {
        details
            .causes
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    })
}
