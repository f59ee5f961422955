//! The node's copy of its share of the API.
//!
//! Watches the Deltas of the session, changes the copy, and tells subscribers what changed.
//! No I/O. Who reacts next: the pod manager ([`PodChange`]), the service data path and DNS
//! ([`ClusterChange`]), the pod network ([`ClusterState::watch_peers`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use pintle_proto::node::{Change, Delta, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use super::{ClusterChange, PodChange};

/// The copy. Cheap to clone; clones are the same copy.
#[derive(Clone, Debug, Default)]
pub struct ClusterState(Arc<Mutex<Inner>>, watch::Sender<u64>, watch::Sender<u64>);

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    synced: bool,
    pods: BTreeMap<String, Arc<Pod>>,
    services: BTreeMap<String, Arc<Service>>,
    slices: BTreeMap<String, Arc<EndpointSlice>>,
    secrets: BTreeMap<String, Arc<Secret>>,
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    nodes: BTreeMap<String, Arc<Node>>,
    /// The other nodes, as far as they are told of.
    peers: BTreeMap<String, Arc<Node>>,
    /// Counts changes of `peers`.
    peer_changes: u64,
    cluster_subscribers: Vec<mpsc::UnboundedSender<ClusterChange>>,
    pod_subscribers: Vec<mpsc::UnboundedSender<PodChange>>,
}

impl ClusterState {
    /// An empty copy that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Highest revision applied in full; 0 before the first Delta.
    pub fn revision(&self) -> u64 {
        self.0.lock().revision
    }

    /// A pod of this node.
    pub fn pod(&self, key: &str) -> Option<Arc<Pod>> {
        self.0.lock().pods.get(key).cloned()
    }

    /// All pods of this node.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().pods.values().cloned().collect()
    }

    /// A Secret, when some pod here uses it.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        self.0
            .lock()
            .secrets
            .get(&format!("{namespace}/{name}"))
            .cloned()
    }

    /// A ConfigMap, when some pod here uses it.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.0
            .lock()
            .config_maps
            .get(&format!("{namespace}/{name}"))
            .cloned()
    }

    /// The Services of a namespace.
    pub fn services(&self, namespace: &str) -> Vec<Arc<Service>> {
        let prefix = format!("{namespace}/");
        let inner = self.0.lock();
        inner
            .services
            .range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .map(|(_, service)| service.clone())
            .collect()
    }

    /// Waits until no EndpointSlice offers the pod to new connections; true when one did.
    pub async fn withdrawn(&self, pod_uid: &str) -> bool {
        let mut changes = self.1.subscribe();
        let mut waited = false;
        loop {
            changes.borrow_and_update();
            if !self.0.lock().is_offered(pod_uid) {
                return waited;
            }
            waited = true;
            if changes.changed().await.is_err() {
                return waited;
            }
        }
    }

    /// This node's object.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.0.lock().nodes.values().next().cloned()
    }

    /// The other nodes: names, InternalIPs and PodCIDRs.
    pub fn peers(&self) -> Vec<Arc<Node>> {
        self.0.lock().peers.values().cloned().collect()
    }

    /// Sees each change of [`peers`](Self::peers).
    pub fn watch_peers(&self) -> watch::Receiver<u64> {
        self.2.subscribe()
    }

    /// Follows Services and EndpointSlices.
    pub fn subscribe_cluster(&self) -> mpsc::UnboundedReceiver<ClusterChange> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut inner = self.0.lock();
        let services = inner
            .services
            .iter()
            .map(|(key, object)| ClusterChange::Service(key.clone(), Some(object.clone())));
        let slices = inner
            .slices
            .iter()
            .map(|(key, object)| ClusterChange::EndpointSlice(key.clone(), Some(object.clone())));
        let synced = inner.synced.then_some(ClusterChange::Synced);
        for change in services.chain(slices).chain(synced) {
            deliver(&sender, change);
        }
        inner.cluster_subscribers.push(sender);
        receiver
    }

    /// Follows the pods of this node and what they use.
    pub fn subscribe_pods(&self) -> mpsc::UnboundedReceiver<PodChange> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut inner = self.0.lock();
        let nodes = inner
            .nodes
            .values()
            .map(|node| PodChange::Node(Some(node.clone())));
        let pods = inner
            .pods
            .iter()
            .map(|(key, object)| PodChange::Pod(key.clone(), Some(object.clone())));
        let synced = inner.synced.then_some(PodChange::Synced);
        for change in nodes.chain(pods).chain(synced) {
            deliver(&sender, change);
        }
        inner.pod_subscribers.push(sender);
        receiver
    }

    /// Applies a batch and tells the subscribers; true when it changed anything.
    pub fn apply(&self, delta: &Delta) -> bool {
        let mut inner = self.0.lock();
        let mut cluster = Vec::new();
        let mut pods = Vec::new();
        let peers_before = inner.peer_changes;
        if delta.snapshot {
            inner.drop_missing(delta, &mut cluster, &mut pods);
        }
        for change in &delta.changes {
            inner.change(change, &mut cluster, &mut pods);
        }
        inner.revision = if delta.snapshot {
            delta.revision
        } else {
            inner.revision.max(delta.revision)
        };
        let peers = inner.peer_changes;
        let changed = !cluster.is_empty() || !pods.is_empty() || peers != peers_before;
        let endpoints_changed = cluster
            .iter()
            .any(|change| matches!(change, ClusterChange::EndpointSlice(..)));
        if !inner.synced {
            inner.synced = true;
            cluster.push(ClusterChange::Synced);
            pods.push(PodChange::Synced);
        }
        inner
            .cluster_subscribers
            .retain(|to| cluster.iter().all(|change| to.send(change.clone()).is_ok()));
        inner
            .pod_subscribers
            .retain(|to| pods.iter().all(|change| to.send(change.clone()).is_ok()));
        drop(inner);
        if endpoints_changed {
            self.1.send_modify(|count| *count += 1);
        }
        if peers != peers_before {
            self.2.send_replace(peers);
        }
        changed || delta.snapshot
    }

    /// The whole copy as one snapshot Delta.
    pub fn snapshot(&self) -> Delta {
        let inner = self.0.lock();
        let mut changes = Vec::new();
        encode(&mut changes, Resource::Node, &inner.nodes);
        encode(&mut changes, Resource::PeerNode, &inner.peers);
        encode(&mut changes, Resource::Secret, &inner.secrets);
        encode(&mut changes, Resource::ConfigMap, &inner.config_maps);
        encode(&mut changes, Resource::Service, &inner.services);
        encode(&mut changes, Resource::EndpointSlice, &inner.slices);
        encode(&mut changes, Resource::Pod, &inner.pods);
        Delta {
            revision: inner.revision,
            snapshot: true,
            changes,
        }
    }
}

/// A subscriber that went away is dropped at the next change.
fn deliver<T>(to: &mpsc::UnboundedSender<T>, change: T) {
    if to.send(change).is_err() {
        tracing::debug!("subscriber is gone");
    }
}

fn encode<T: serde::Serialize>(
    changes: &mut Vec<Change>,
    resource: Resource,
    objects: &BTreeMap<String, Arc<T>>,
) {
    for (key, object) in objects {
        match serde_json::to_vec(object.as_ref()) {
            Ok(object) => changes.push(Change {
                resource: resource.into(),
                key: key.clone(),
                object: object.into(),
            }),
            Err(error) => tracing::warn!(%key, %error, "object cannot be encoded"),
        }
    }
}

fn decode<T: DeserializeOwned>(change: &Change) -> Option<Arc<T>> {
    match serde_json::from_slice(&change.object) {
        Ok(object) => Some(Arc::new(object)),
        Err(error) => {
            tracing::warn!(key = change.key, %error, "object from the control plane cannot be decoded; the former one stays");
            None
        }
    }
}

/// Puts or removes; `None`: nothing changed, `Some(None)`: removed.
#[expect(
    clippy::option_option,
    reason = "the outer says whether, the inner what"
)]
fn put<T: DeserializeOwned + PartialEq>(
    objects: &mut BTreeMap<String, Arc<T>>,
    change: &Change,
) -> Option<Option<Arc<T>>> {
    if change.object.is_empty() {
        return objects.remove(&change.key).map(|_| None);
    }
    let object = decode::<T>(change)?;
    if objects.get(&change.key).is_some_and(|old| *old == object) {
        return None;
    }
    objects.insert(change.key.clone(), object.clone());
    Some(Some(object))
}

fn missing<T>(
    objects: &mut BTreeMap<String, Arc<T>>,
    delta: &Delta,
    resource: Resource,
) -> Vec<String> {
    let named: std::collections::BTreeSet<&str> = delta
        .changes
        .iter()
        .filter(|change| change.resource() == resource && !change.object.is_empty())
        .map(|change| change.key.as_str())
        .collect();
    let gone: Vec<String> = objects
        .keys()
        .filter(|key| !named.contains(key.as_str()))
        .cloned()
        .collect();
    for key in &gone {
        objects.remove(key);
    }
    gone
}

impl Inner {
    fn is_offered(&self, pod_uid: &str) -> bool {
        self.slices.values().any(|slice| {
            slice.endpoints.iter().flatten().any(|endpoint| {
                let ready = endpoint
                    .conditions
                    .as_ref()
                    .and_then(|conditions| conditions.ready);
                let pod = endpoint
                    .target_ref
                    .as_ref()
                    .and_then(|target| target.uid.as_deref());
                ready != Some(false) && pod == Some(pod_uid)
            })
        })
    }

    fn drop_missing(
        &mut self,
        delta: &Delta,
        cluster: &mut Vec<ClusterChange>,
        pods: &mut Vec<PodChange>,
    ) {
        for key in missing(&mut self.pods, delta, Resource::Pod) {
            pods.push(PodChange::Pod(key, None));
        }
        for key in missing(&mut self.services, delta, Resource::Service) {
            cluster.push(ClusterChange::Service(key, None));
        }
        for key in missing(&mut self.slices, delta, Resource::EndpointSlice) {
            cluster.push(ClusterChange::EndpointSlice(key, None));
        }
        for key in missing(&mut self.secrets, delta, Resource::Secret) {
            pods.push(PodChange::Secret(key));
        }
        for key in missing(&mut self.config_maps, delta, Resource::ConfigMap) {
            pods.push(PodChange::ConfigMap(key));
        }
        if !missing(&mut self.nodes, delta, Resource::Node).is_empty() {
            pods.push(PodChange::Node(None));
        }
        if !missing(&mut self.peers, delta, Resource::PeerNode).is_empty() {
            self.peer_changes += 1;
        }
    }

    fn change(
        &mut self,
        change: &Change,
        cluster: &mut Vec<ClusterChange>,
        pods: &mut Vec<PodChange>,
    ) {
        let key = change.key.clone();
        match change.resource() {
            Resource::Pod => {
                if let Some(object) = put(&mut self.pods, change) {
                    pods.push(PodChange::Pod(key, object));
                }
            }
            Resource::Service => {
                if let Some(object) = put(&mut self.services, change) {
                    cluster.push(ClusterChange::Service(key, object));
                }
            }
            Resource::EndpointSlice => {
                if let Some(object) = put(&mut self.slices, change) {
                    cluster.push(ClusterChange::EndpointSlice(key, object));
                }
            }
            Resource::Secret => {
                if put(&mut self.secrets, change).is_some() {
                    pods.push(PodChange::Secret(key));
                }
            }
            Resource::ConfigMap => {
                if put(&mut self.config_maps, change).is_some() {
                    pods.push(PodChange::ConfigMap(key));
                }
            }
            Resource::Node => {
                if let Some(object) = put(&mut self.nodes, change) {
                    pods.push(PodChange::Node(object));
                }
            }
            Resource::PeerNode => {
                if put(&mut self.peers, change).is_some() {
                    self.peer_changes += 1;
                }
            }
            Resource::Unspecified => {
                tracing::warn!(key, "change of a resource this agent does not know");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(resource: Resource, key: &str, object: &str) -> Change {
        Change {
            resource: resource.into(),
            key: key.into(),
            object: object.as_bytes().to_vec().into(),
        }
    }

    fn delta(revision: u64, snapshot: bool, changes: Vec<Change>) -> Delta {
        Delta {
            revision,
            snapshot,
            changes,
        }
    }

    const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"d","uid":"1"},"spec":{"containers":[]}}"#;
    const SERVICE: &str =
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"d"}}"#;

    #[test]
    fn subscription_replays_then_follows() {
        let state = ClusterState::new();
        let mut early = state.subscribe_pods();
        assert!(early.try_recv().is_err());
        state.apply(&delta(5, true, vec![change(Resource::Pod, "d/a", POD)]));
        assert!(matches!(
            early.try_recv().unwrap(),
            PodChange::Pod(_, Some(_))
        ));
        assert!(matches!(early.try_recv().unwrap(), PodChange::Synced));
        let mut late = state.subscribe_pods();
        assert!(matches!(
            late.try_recv().unwrap(),
            PodChange::Pod(_, Some(_))
        ));
        assert!(matches!(late.try_recv().unwrap(), PodChange::Synced));
        state.apply(&delta(6, false, vec![change(Resource::Pod, "d/a", "")]));
        assert!(matches!(late.try_recv().unwrap(), PodChange::Pod(_, None)));
        assert_eq!(state.revision(), 6);
    }

    #[test]
    fn snapshot_removes_what_it_does_not_name() {
        let state = ClusterState::new();
        let mut cluster = state.subscribe_cluster();
        state.apply(&delta(
            5,
            true,
            vec![change(Resource::Service, "d/s", SERVICE)],
        ));
        state.apply(&delta(9, true, vec![change(Resource::Pod, "d/a", POD)]));
        let mut seen = Vec::new();
        while let Ok(change) = cluster.try_recv() {
            seen.push(format!("{change:?}").split('(').next().unwrap().to_owned());
        }
        assert_eq!(seen, ["Service", "Synced", "Service"]);
        assert!(state.services("d").is_empty());
        assert_eq!(state.pods().len(), 1);
    }

    #[test]
    fn snapshot_round_trips() {
        let state = ClusterState::new();
        state.apply(&delta(
            7,
            true,
            vec![
                change(Resource::Pod, "d/a", POD),
                change(Resource::Service, "d/s", SERVICE),
            ],
        ));
        let copy = ClusterState::new();
        copy.apply(&state.snapshot());
        assert_eq!(copy.revision(), 7);
        assert_eq!(copy.pods(), state.pods());
        assert_eq!(copy.services("d"), state.services("d"));
    }

    #[test]
    fn peers_are_followed_kept_and_forgotten() {
        let state = ClusterState::new();
        let mut seen = state.watch_peers();
        let peer = r#"{"metadata":{"name":"b"},"spec":{"podCIDR":"10.244.1.0/24"}}"#;
        assert!(state.apply(&delta(1, true, vec![change(Resource::PeerNode, "b", peer)])));
        assert!(seen.has_changed().unwrap());
        seen.mark_unchanged();
        assert!(!state.apply(&delta(
            2,
            false,
            vec![change(Resource::PeerNode, "b", peer)]
        )));
        assert!(!seen.has_changed().unwrap());
        let copy = ClusterState::new();
        copy.apply(&state.snapshot());
        assert_eq!(copy.peers(), state.peers());
        state.apply(&delta(3, true, Vec::new()));
        assert!(seen.has_changed().unwrap() && state.peers().is_empty());
    }

    #[tokio::test]
    async fn a_pod_is_withdrawn_when_no_slice_offers_it() {
        let state = ClusterState::new();
        let slice = |ready: bool| {
            format!(
                r#"{{"metadata":{{"name":"s","namespace":"d"}},"addressType":"IPv4","endpoints":[{{"addresses":["10.0.0.1"],"conditions":{{"ready":{ready}}},"targetRef":{{"uid":"1"}}}}]}}"#
            )
        };
        assert!(!state.withdrawn("1").await);
        let offered = change(Resource::EndpointSlice, "d/s", &slice(true));
        state.apply(&delta(5, true, vec![offered]));
        let wait = state.withdrawn("1");
        tokio::pin!(wait);
        assert!(futures_util::poll!(&mut wait).is_pending());
        let withdrawn = change(Resource::EndpointSlice, "d/s", &slice(false));
        state.apply(&delta(6, false, vec![withdrawn]));
        assert!(wait.await);
    }

    #[test]
    fn broken_object_leaves_the_former_one() {
        let state = ClusterState::new();
        state.apply(&delta(5, true, vec![change(Resource::Pod, "d/a", POD)]));
        state.apply(&delta(6, false, vec![change(Resource::Pod, "d/a", "{")]));
        assert!(state.pod("d/a").is_some());
    }
}
