//! The garbage collector: deletes what its owners left behind, and carries out foreground and orphan
//! deletion.
//!
//! Watches: the metadata of every resource that can be deleted (events aside). Changes: deletes
//! objects, removes owner references and the finalizers `foregroundDeletion` and `orphan`. Who
//! reacts next: whoever watches the deleted objects; for pods, their node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use pintle_api::client::{
    Client, DeleteParams, ListParams, ObjectEventKind, Patch, PropagationPolicy, ResourceInfo,
};
use pintle_kube_types::{GroupVersion, Object, Status};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;

mod graph;

use graph::{FOREGROUND, Graph, Identity, Item, ORPHAN, Observed, Work};

const NAME: &str = "generic-garbage-collector";
const WORKERS: usize = 8;
/// After a watch broke off; the next one begins with a full list.
const WATCH_RETRY: Duration = Duration::from_millis(200);

/// The controller; see the module documentation.
pub(crate) struct GarbageCollector {
    client: Client,
    graph: Mutex<Graph>,
    /// Resource by (group, kind).
    resources: HashMap<(String, String), ResourceInfo>,
    queue: WorkQueue,
}

/// All the collector reads of an object.
#[derive(Deserialize)]
struct MetaOnly {
    metadata: ObjectMeta,
}

/// How one owner reference stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bond {
    /// The owner is there.
    Solid,
    /// It does not exist.
    Dangling,
    /// It is there but waits for its dependents to be deleted.
    Waiting,
}

impl GarbageCollector {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let watched: Vec<ResourceInfo> = client
            .resources()
            .into_iter()
            .filter(|resource| {
                ["list", "watch", "delete"]
                    .iter()
                    .all(|verb| resource.verbs.contains(verb))
                    && resource.gvr.resource != "events"
            })
            .collect();
        let resources = client
            .resources()
            .into_iter()
            .map(|resource| {
                let key = (resource.gvr.group.to_string(), resource.kind.clone());
                (key, resource)
            })
            .collect();
        let this = Arc::new(Self {
            client,
            graph: Mutex::default(),
            resources,
            queue: queue.clone(),
        });
        let count = watched.len();
        let (synced, mut ready) = mpsc::channel(count.max(1));
        for resource in watched {
            let controller = Arc::clone(&this);
            let synced = synced.clone();
            host.spawn(async move { controller.follow(resource, synced).await });
        }
        host.work(&this, &queue, WORKERS, async move {
            for _ in 0..count {
                if ready.recv().await.is_none() {
                    break;
                }
            }
        });
    }

    /// Carries one resource's changes into the graph, for ever.
    async fn follow(&self, resource: ResourceInfo, synced: mpsc::Sender<()>) {
        let mut known: HashMap<String, String> = HashMap::new();
        let mut told = false;
        loop {
            let watch = self
                .client
                .watch_raw(&resource.gvr, None, &ListParams::default())
                .await;
            let mut watch = match watch {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::warn!(resource = %resource.gvr, %error, "cannot watch");
                    tokio::time::sleep(WATCH_RETRY).await;
                    continue;
                }
            };
            let mut present: Option<HashSet<String>> = Some(HashSet::new());
            loop {
                let event = match watch.next().await {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => {
                        tracing::debug!(resource = %resource.gvr, %error, "watch ended");
                        break;
                    }
                    None => return,
                };
                match event.kind {
                    ObjectEventKind::Bookmark => {}
                    ObjectEventKind::InitialEventsEnd => {
                        if let Some(present) = present.take() {
                            // Deleted while nobody watched.
                            let lost: Vec<String> = known
                                .extract_if(|key, _| !present.contains(key))
                                .map(|(_, uid)| uid)
                                .collect();
                            for uid in lost {
                                self.add_all(self.graph.lock().gone(&uid));
                            }
                        }
                        if !told {
                            told = true;
                            let _full_or_closed = synced.try_send(()).is_err();
                        }
                    }
                    ObjectEventKind::Deleted => {
                        if let Some(uid) = known.remove(event.key()) {
                            self.add_all(self.graph.lock().gone(&uid));
                        }
                    }
                    ObjectEventKind::Added | ObjectEventKind::Modified => {
                        if let Some(present) = &mut present {
                            present.insert(event.key().to_owned());
                        }
                        let Ok(MetaOnly { metadata }) = serde_json::from_slice(&event.object())
                        else {
                            continue;
                        };
                        let uid = metadata.uid.clone().unwrap_or_default();
                        let former = known.insert(event.key().to_owned(), uid.clone());
                        if let Some(former) = former.filter(|former| *former != uid) {
                            self.add_all(self.graph.lock().gone(&former));
                        }
                        let seen = observed(&resource, metadata);
                        let work = self.graph.lock().observe(seen);
                        self.add_all(work);
                    }
                }
            }
            tokio::time::sleep(WATCH_RETRY).await;
        }
    }

    fn add_all(&self, work: Vec<Work>) {
        for work in work {
            self.queue.add(match work {
                Work::Delete(uid) => format!("delete/{uid}"),
                Work::Orphan(uid) => format!("orphan/{uid}"),
            });
        }
    }

    fn resource(&self, api_version: &str, kind: &str) -> Option<&ResourceInfo> {
        let group = GroupVersion::parse(api_version)?.group.into_owned();
        self.resources.get(&(group, kind.to_owned()))
    }

    fn resource_of(&self, identity: &Identity) -> Option<&ResourceInfo> {
        self.resource(&identity.api_version, &identity.kind)
    }

    async fn live(&self, identity: &Identity) -> Result<Option<Object>, Status> {
        let Some(resource) = self.resource_of(identity) else {
            return Ok(None);
        };
        let namespace = identity
            .namespace
            .as_deref()
            .filter(|_| resource.namespaced);
        match self
            .client
            .dyn_get(&resource.gvr, namespace, &identity.name)
            .await
        {
            Ok(object) if object.uid() == Some(&identity.uid) => Ok(Some(object)),
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Decides on one object; see Kubernetes' `attemptToDeleteItem`.
    async fn consider(&self, uid: &str) -> Result<(), ReconcileError> {
        let Some(item) = self.graph.lock().get(uid).cloned() else {
            return Ok(());
        };
        if item.deleting && !item.deleting_dependents {
            return Ok(());
        }
        if self.resource_of(&item.identity).is_none() {
            // An owner of a kind nobody serves: nothing can be said about it.
            return Ok(());
        }
        let Some(live) = self.live(&item.identity).await? else {
            let work = self.graph.lock().gone(uid);
            self.add_all(work);
            return Ok(());
        };
        if item.deleting_dependents {
            return self.finish_foreground(&item, &live).await;
        }
        let owners = live.owner_references();
        if owners.is_empty() {
            return Ok(());
        }
        let mut bonds = Vec::with_capacity(owners.len());
        for owner in &owners {
            bonds.push(self.bond(owner, item.identity.namespace.as_deref()).await?);
        }
        let waiting = bonds.contains(&Bond::Waiting);
        if bonds.contains(&Bond::Solid) {
            let keep: Vec<&OwnerReference> = owners
                .iter()
                .zip(&bonds)
                .filter(|(_, bond)| **bond == Bond::Solid)
                .map(|(owner, _)| owner)
                .collect();
            if keep.len() != owners.len() {
                self.patch(&item, &live, json!({"ownerReferences": keep}))
                    .await?;
            }
            return Ok(());
        }
        let policy = if waiting && !item.dependents.is_empty() {
            self.break_circle(&item, &live, &owners).await?;
            PropagationPolicy::Foreground
        } else if live.finalizers().contains(&ORPHAN) {
            PropagationPolicy::Orphan
        } else if live.finalizers().contains(&FOREGROUND) {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        };
        self.delete(&item, policy).await
    }

    async fn bond(
        &self,
        owner: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Bond, ReconcileError> {
        let Some(resource) = self.resource(&owner.api_version, &owner.kind) else {
            return Ok(Bond::Solid);
        };
        if resource.namespaced && namespace.is_none() {
            // A cluster-wide object cannot be owned by one in a namespace: not ours to judge.
            return Ok(Bond::Solid);
        }
        let identity = Identity {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: namespace.map(str::to_owned),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        };
        Ok(match self.live(&identity).await? {
            None => Bond::Dangling,
            Some(live)
                if live.deletion_timestamp().is_some()
                    && live.finalizers().contains(&FOREGROUND) =>
            {
                Bond::Waiting
            }
            Some(_) => Bond::Solid,
        })
    }

    /// Two objects that own each other would wait for each other for ever: if a dependent already
    /// waits for its own dependents, this one no longer blocks its owners.
    async fn break_circle(
        &self,
        item: &Item,
        live: &Object,
        owners: &[OwnerReference],
    ) -> Result<(), ReconcileError> {
        let circle = self
            .graph
            .lock()
            .dependents(&item.identity.uid)
            .iter()
            .any(|dependent| dependent.deleting_dependents);
        let blocking = owners
            .iter()
            .any(|owner| owner.block_owner_deletion == Some(true));
        if circle && blocking {
            let mut owners = owners.to_vec();
            for owner in &mut owners {
                owner.block_owner_deletion = Some(false);
            }
            self.patch(item, live, json!({"ownerReferences": owners}))
                .await?;
        }
        Ok(())
    }

    /// Foreground deletion: the owner goes when no blocking dependent is left.
    async fn finish_foreground(&self, item: &Item, live: &Object) -> Result<(), ReconcileError> {
        let uid = &item.identity.uid;
        let blocking: Vec<Item> = self
            .graph
            .lock()
            .dependents(uid)
            .into_iter()
            .filter(|dependent| {
                dependent
                    .owners
                    .iter()
                    .any(|owner| owner.uid == *uid && owner.block_owner_deletion == Some(true))
            })
            .collect();
        if blocking.is_empty() {
            return self.remove_finalizer(item, live, FOREGROUND).await;
        }
        for dependent in blocking {
            if !dependent.deleting_dependents {
                self.queue.add(format!("delete/{}", dependent.identity.uid));
            }
        }
        Ok(())
    }

    /// Orphan deletion: takes the owner out of every dependent, then lets the owner go.
    async fn orphan(&self, uid: &str) -> Result<(), ReconcileError> {
        let (item, dependents) = {
            let graph = self.graph.lock();
            let Some(item) = graph.get(uid).cloned() else {
                return Ok(());
            };
            (item, graph.dependents(uid))
        };
        let Some(live) = self.live(&item.identity).await? else {
            return Ok(());
        };
        for dependent in dependents {
            let Some(object) = self.live(&dependent.identity).await? else {
                continue;
            };
            let owners = object.owner_references();
            let left: Vec<&OwnerReference> =
                owners.iter().filter(|owner| owner.uid != uid).collect();
            if left.len() != owners.len() {
                self.patch(&dependent, &object, json!({"ownerReferences": left}))
                    .await?;
            }
        }
        self.remove_finalizer(&item, &live, ORPHAN).await
    }

    async fn remove_finalizer(
        &self,
        item: &Item,
        live: &Object,
        finalizer: &str,
    ) -> Result<(), ReconcileError> {
        let present = live.finalizers();
        let left: Vec<&str> = present
            .iter()
            .copied()
            .filter(|name| *name != finalizer)
            .collect();
        if left.len() == present.len() {
            return Ok(());
        }
        self.patch(item, live, json!({"finalizers": left})).await
    }

    /// Merges metadata into exactly the object that was looked at.
    async fn patch(
        &self,
        item: &Item,
        live: &Object,
        mut metadata: serde_json::Value,
    ) -> Result<(), ReconcileError> {
        let Some(resource) = self.resource_of(&item.identity) else {
            return Ok(());
        };
        if let Some(fields) = metadata.as_object_mut() {
            fields.insert("uid".to_owned(), json!(item.identity.uid));
            fields.insert("resourceVersion".to_owned(), json!(live.resource_version()));
        }
        let patched = self
            .client
            .dyn_patch(
                &resource.gvr,
                item.identity
                    .namespace
                    .as_deref()
                    .filter(|_| resource.namespaced),
                &item.identity.name,
                &Patch::Merge(json!({"metadata": metadata})),
                None,
            )
            .await;
        match patched {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&self, item: &Item, policy: PropagationPolicy) -> Result<(), ReconcileError> {
        let Some(resource) = self.resource_of(&item.identity) else {
            return Ok(());
        };
        let deleted = self
            .client
            .dyn_delete(
                &resource.gvr,
                item.identity
                    .namespace
                    .as_deref()
                    .filter(|_| resource.namespaced),
                &item.identity.name,
                &DeleteParams {
                    propagation_policy: Some(policy),
                    precondition_uid: Some(item.identity.uid.clone()),
                    ..DeleteParams::default()
                },
            )
            .await;
        match deleted {
            Ok(()) => Ok(()),
            // Gone, or replaced by another of that name.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconcile for GarbageCollector {
    const NAME: &'static str = "garbage-collector";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        match key.split_once('/') {
            Some(("orphan", uid)) => self.orphan(uid).await,
            Some((_, uid)) => self.consider(uid).await,
            None => Ok(()),
        }
    }
}

fn observed(resource: &ResourceInfo, metadata: ObjectMeta) -> Observed {
    Observed {
        identity: Identity {
            api_version: resource.gvr.api_version(),
            kind: resource.kind.clone(),
            namespace: metadata.namespace,
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
        },
        owners: metadata.owner_references.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.unwrap_or_default(),
    }
}
