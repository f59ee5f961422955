//! Empties namespaces that are being deleted and then lets them go.
//!
//! Watches: Namespaces, and Pods (whose end a deletion waits for). Changes: deletes everything in a
//! terminating namespace, pods first; then the Namespace's conditions and finalizers. Who reacts
//! next: the API removes a namespace whose last finalizer is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pintle_api::client::{
    Client, DeleteParams, Informer, InformerEvent, ListParams, PropagationPolicy, ResourceInfo,
};
use pintle_kube_types::{GroupVersionResource, Object};
use serde_json::json;

use crate::runtime::clock::Clock;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::objects;
use crate::runtime::queue::WorkQueue;

const NAME: &str = "namespace-controller";
const WORKERS: usize = 4;
const FINALIZER: &str = "kubernetes";
/// Pods report their end; this is only in case one never does.
const POD_WAIT: Duration = Duration::from_secs(15);

/// Whether new objects may be made in the namespace.
pub(crate) fn is_active(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_none()
        && namespace
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            != Some("Terminating")
}

/// The controller; see the module documentation.
pub(crate) struct Namespaces {
    client: Client,
    cache: Informer<Namespace>,
    clock: Clock,
    queue: WorkQueue,
}

/// What is left in a namespace after an attempt to empty it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remains {
    /// `resource.group` → how many objects.
    objects: BTreeMap<String, usize>,
    /// Finalizer → how many objects have it.
    finalizers: BTreeMap<String, usize>,
    /// What could not be deleted, and why.
    failures: Vec<String>,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty()
    }
}

impl Namespaces {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            cache: client.informer(),
            clock: host.clock(),
            queue: queue.clone(),
            client,
        });
        {
            let queue = queue.clone();
            host.watch(&this.cache, move |event| {
                if let (_, Some(namespace)) = objects::sides(&event)
                    && namespace.metadata.deletion_timestamp.is_some()
                {
                    queue.add(objects::name(&namespace.metadata).to_owned());
                }
            });
        }
        {
            let controller = Arc::clone(&this);
            let pods: Informer<Pod> = this.client.informer();
            host.watch(&pods, move |event| {
                let InformerEvent::Deleted(pod) = event else {
                    return;
                };
                let namespace = objects::namespace(&pod.metadata);
                let terminating = controller
                    .cache
                    .get(namespace)
                    .is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some());
                if terminating {
                    controller.queue.add(namespace.to_owned());
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, WORKERS, async move {
            controller.cache.synced().await;
        });
    }

    fn resources(&self) -> (Vec<ResourceInfo>, Vec<ResourceInfo>) {
        self.client
            .resources()
            .into_iter()
            .filter(|resource| {
                resource.namespaced
                    && resource.verbs.contains(&"delete")
                    && resource.verbs.contains(&"list")
            })
            .partition(|resource| resource.gvr.group.is_empty() && resource.gvr.resource == "pods")
    }

    /// Pods first, so that they end while what they use is still there; then all the rest.
    async fn empty(&self, namespace: &str) -> (Remains, bool) {
        let (pods, rest) = self.resources();
        let mut remains = Remains::default();
        for resource in &pods {
            self.empty_of(resource, namespace, &mut remains).await;
        }
        if !remains.is_empty() {
            return (remains, true);
        }
        for resource in &rest {
            self.empty_of(resource, namespace, &mut remains).await;
        }
        (remains, false)
    }

    async fn empty_of(&self, resource: &ResourceInfo, namespace: &str, remains: &mut Remains) {
        let gvr = &resource.gvr;
        let name = if gvr.group.is_empty() {
            format!("{}.", gvr.resource)
        } else {
            format!("{}.{}", gvr.resource, gvr.group)
        };
        let params = ListParams::default();
        let deleted = match self.client.dyn_list(gvr, Some(namespace), &params).await {
            Ok((objects, _)) if objects.is_empty() => return,
            Ok(_) => {
                let options = DeleteParams {
                    propagation_policy: Some(PropagationPolicy::Background),
                    ..DeleteParams::default()
                };
                self.client
                    .dyn_delete_collection(gvr, Some(namespace), &params, &options)
                    .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = deleted {
            remains.failures.push(format!("{name}: {error}"));
            return;
        }
        match self.client.dyn_list(gvr, Some(namespace), &params).await {
            Ok((left, _)) => count(&name, &left, remains),
            Err(error) => remains.failures.push(format!("{name}: {error}")),
        }
    }

    async fn finalize(&self, namespace: &Namespace) -> Result<(), ReconcileError> {
        let gvr = GroupVersionResource::of("", "v1", "namespaces");
        let name = objects::name(&namespace.metadata);
        let mut object: Object = match self.client.dyn_get(&gvr, None, name).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if object.uid() != namespace.metadata.uid.as_deref() {
            return Ok(());
        }
        let left: Vec<&String> = namespace
            .spec
            .iter()
            .flat_map(|spec| spec.finalizers.iter().flatten())
            .filter(|finalizer| *finalizer != FINALIZER)
            .collect();
        object.set_path(&["spec", "finalizers"], json!(left));
        match self
            .client
            .dyn_update(&gvr, None, name, Some("finalize"), object)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn report(&self, namespace: &Namespace, remains: &Remains) -> Result<(), ReconcileError> {
        let mut next = namespace.clone();
        let status = next.status.get_or_insert_default();
        status.phase = Some("Terminating".to_owned());
        let conditions = status.conditions.get_or_insert_default();
        let now = self.clock.now();
        for condition in conditions_of(remains, now) {
            set(conditions, condition);
        }
        if next.status == namespace.status {
            return Ok(());
        }
        match self.client.update_status(&next).await {
            Ok(_) => Ok(()),
            // The newer object brings its own event; what counts now is not the report.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconcile for Namespaces {
    const NAME: &'static str = "namespace";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(namespace) = self.cache.get(key) else {
            return Ok(());
        };
        let finalized = !namespace
            .spec
            .iter()
            .flat_map(|spec| spec.finalizers.iter().flatten())
            .any(|finalizer| finalizer == FINALIZER);
        if namespace.metadata.deletion_timestamp.is_none() || finalized {
            return Ok(());
        }
        let (remains, pods) = self.empty(key).await;
        if remains.is_empty() {
            return self.finalize(&namespace).await;
        }
        self.report(&namespace, &remains).await?;
        if pods && remains.failures.is_empty() {
            self.queue.add_after(key.to_owned(), POD_WAIT);
            return Ok(());
        }
        Err(ReconcileError::Waiting {
            what: format!("the content of namespace {key} to go"),
        })
    }
}

fn count(name: &str, left: &[Object], remains: &mut Remains) {
    if left.is_empty() {
        return;
    }
    *remains.objects.entry(name.to_owned()).or_default() += left.len();
    for object in left {
        for finalizer in object.finalizers() {
            *remains.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }
}

fn conditions_of(remains: &Remains, now: Timestamp) -> Vec<NamespaceCondition> {
    let condition = |type_: &str, bad: bool, reason: &str, message: String| NamespaceCondition {
        type_: type_.to_owned(),
        status: if bad { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(now)),
    };
    let list = |counts: &BTreeMap<String, usize>, verb: &str| {
        counts
            .iter()
            .map(|(name, count)| format!("{name} {verb} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let failed = !remains.failures.is_empty();
    vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        if failed {
            condition(
                "NamespaceDeletionContentFailure",
                true,
                "ContentDeletionFailed",
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    remains.failures.len(),
                    remains.failures.join(", ")
                ),
            )
        } else {
            condition(
                "NamespaceDeletionContentFailure",
                false,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization".to_owned(),
            )
        },
        if remains.objects.is_empty() {
            condition(
                "NamespaceContentRemaining",
                false,
                "ContentRemoved",
                "All content successfully removed".to_owned(),
            )
        } else {
            condition(
                "NamespaceContentRemaining",
                true,
                "SomeResourcesRemain",
                format!(
                    "Some resources are remaining: {}",
                    list(&remains.objects, "has")
                ),
            )
        },
        if remains.finalizers.is_empty() {
            condition(
                "NamespaceFinalizersRemaining",
                false,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished".to_owned(),
            )
        } else {
            condition(
                "NamespaceFinalizersRemaining",
                true,
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    list(&remains.finalizers, "in")
                ),
            )
        },
    ]
}

/// Sets a condition, with a new transition time only if its status changed.
fn set(conditions: &mut Vec<NamespaceCondition>, mut next: NamespaceCondition) {
    let Some(current) = conditions
        .iter_mut()
        .find(|condition| condition.type_ == next.type_)
    else {
        conditions.push(next);
        return;
    };
    if current.status == next.status {
        next.last_transition_time = current.last_transition_time.take();
    }
    *current = next;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conditions_name_what_is_left() {
        let now = Timestamp::UNIX_EPOCH;
        let mut remains = Remains::default();
        let pod = Object::from_value(json!({"metadata": {"finalizers": ["a.example/x"]}}));
        count("pods.", &pod.into_iter().collect::<Vec<_>>(), &mut remains);
        assert!(!remains.is_empty());
        let mut conditions = Vec::new();
        for condition in conditions_of(&remains, now) {
            set(&mut conditions, condition);
        }
        let message = |conditions: &[NamespaceCondition], type_: &str| {
            conditions
                .iter()
                .find(|condition| condition.type_ == type_)
                .and_then(|condition| condition.message.clone())
                .unwrap_or_default()
        };
        assert_eq!(
            message(&conditions, "NamespaceContentRemaining"),
            "Some resources are remaining: pods. has 1 resource instances"
        );
        assert_eq!(
            message(&conditions, "NamespaceFinalizersRemaining"),
            "Some content in the namespace has finalizers remaining: a.example/x in 1 resource \
             instances"
        );
        for condition in conditions_of(&Remains::default(), now) {
            set(&mut conditions, condition);
        }
        assert_eq!(conditions.len(), 5);
        assert!(
            conditions
                .iter()
                .all(|condition| condition.status == "False")
        );
    }
}
