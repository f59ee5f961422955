//! Feeds one node's [`View`] from the API's informers.
//!
//! Watches the node and the others, its pods, every Service and EndpointSlice and the Secrets and ConfigMaps of
//! its pods; gives deltas. The session's writer ([`super`]) sends them to the agent.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use pintle_api::client::{Client, Informer, InformerEvent, InformerEvents, Kind, object_key};
use pintle_proto::node::Delta;

use super::view::{Current, Source, View, Watched};

/// The objects as the informers hold them, seen by one node.
struct Objects {
    node: String,
    names: NodeNames,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    endpoint_slices: Informer<EndpointSlice>,
    config_maps: Informer<ConfigMap>,
    secrets: Informer<Secret>,
}

impl Objects {
    async fn synced(&self) {
        self.nodes.synced().await;
        self.pods.synced().await;
        self.services.synced().await;
        self.endpoint_slices.synced().await;
        self.config_maps.synced().await;
        self.secrets.synced().await;
    }

    fn revision(&self) -> u64 {
        [
            self.nodes.resource_version(),
            self.pods.resource_version(),
            self.services.resource_version(),
            self.endpoint_slices.resource_version(),
        ]
        .into_iter()
        .max()
        .unwrap_or_default()
    }
}

impl Source for Objects {
    fn pod(&self, key: &str) -> Option<Arc<Pod>> {
        self.pods.get(key).filter(|pod| {
            pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(self.node.as_str())
        })
    }

    fn current(&self, kind: Watched, key: &str) -> Option<Current> {
        match kind {
            Watched::Node => encode(self.nodes.get(key)),
            Watched::PeerNode => peer(&*self.nodes.get(key)?),
            Watched::Service => encode(self.services.get(key)),
            Watched::EndpointSlice => encode(self.endpoint_slices.get(key)),
            Watched::ConfigMap => encode(self.config_maps.get(key)),
            Watched::Secret => encode(self.secrets.get(key)),
            Watched::Pod => encode(self.pod(key)),
        }
    }

    fn name(&self, key: &str) -> Arc<str> {
        self.names.get(key)
    }
}

fn encode<K: Kind>(object: Option<Arc<K>>) -> Option<Current> {
    let object = object?;
    let metadata = object.metadata();
    let version = format!(
        "{}/{}",
        metadata.uid.as_deref().unwrap_or_default(),
        metadata.resource_version.as_deref().unwrap_or_default()
    );
    match serde_json::to_vec(object.as_ref()) {
        Ok(json) => Some(Current {
            version,
            object: Bytes::from(json),
        }),
        Err(error) => {
            tracing::error!(%error, kind = K::KIND, key = object_key(metadata), "encode object");
            None
        }
    }
}

/// The names of all nodes, one copy each. Cheap to clone; clones are the same set.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeNames(Arc<Mutex<HashSet<Arc<str>>>>);

impl NodeNames {
    fn get(&self, name: &str) -> Arc<str> {
        let mut names = self.0.lock();
        if let Some(known) = names.get(name) {
            return Arc::clone(known);
        }
        // Those that only this set holds are of nodes nobody is told of any more.
        names.retain(|known| Arc::strong_count(known) > 1);
        let new: Arc<str> = name.into();
        names.insert(Arc::clone(&new));
        new
    }
}

/// A node as its peers see it. The same however often its status is refreshed, so that a
/// heartbeat of one node is not sent to all others.
fn peer(node: &Node) -> Option<Current> {
    let spec = node.spec.as_ref()?;
    let addresses: Vec<_> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .filter(|address| address.type_ == "InternalIP")
        .collect();
    let object = serde_json::json!({
        "metadata": {"name": node.metadata.name, "uid": node.metadata.uid},
        "spec": {"podCIDR": spec.pod_cidr, "podCIDRs": spec.pod_cidrs},
        "status": {"addresses": addresses},
    })
    .to_string();
    Some(Current {
        version: object.clone(),
        object: Bytes::from(object),
    })
}

/// The feed of one session.
pub(super) struct Feed {
    objects: Objects,
    node_events: InformerEvents<Node>,
    pod_events: InformerEvents<Pod>,
    service_events: InformerEvents<Service>,
    endpoint_slice_events: InformerEvents<EndpointSlice>,
    config_map_events: InformerEvents<ConfigMap>,
    secret_events: InformerEvents<Secret>,
    view: View,
    snapshot_due: bool,
}

impl Feed {
    /// Starts from nothing, or from the view an earlier session of the node ended with.
    pub(super) async fn start(
        client: &Client,
        node: &str,
        names: NodeNames,
        resumed: Option<View>,
    ) -> Self {
        let objects = Objects {
            node: node.to_owned(),
            names,
            nodes: client.informer(),
            pods: client.informer(),
            services: client.informer(),
            endpoint_slices: client.informer(),
            config_maps: client.informer(),
            secrets: client.informer(),
        };
        objects.synced().await;
        let snapshot_due = resumed.is_none();
        let mut view = resumed.unwrap_or_default();
        view.touch_all_sent();
        let mut feed = Self {
            node_events: objects.nodes.subscribe(),
            pod_events: objects.pods.subscribe(),
            service_events: objects.services.subscribe(),
            endpoint_slice_events: objects.endpoint_slices.subscribe(),
            config_map_events: objects.config_maps.subscribe(),
            secret_events: objects.secrets.subscribe(),
            objects,
            view,
            snapshot_due,
        };
        feed.drain();
        feed
    }

    /// Waits until there may be something to send. Cancelling loses nothing.
    pub(super) async fn changed(&mut self) {
        while !self.snapshot_due && !self.view.is_dirty() {
            tokio::select! {
                Some(event) = self.node_events.next() => self.node_event(&event),
                Some(event) = self.pod_events.next() => self.touch(Watched::Pod, &event),
                Some(event) = self.service_events.next() => self.touch(Watched::Service, &event),
                Some(event) = self.endpoint_slice_events.next() => {
                    self.touch(Watched::EndpointSlice, &event);
                }
                Some(event) = self.config_map_events.next() => {
                    self.touch(Watched::ConfigMap, &event);
                }
                Some(event) = self.secret_events.next() => self.touch(Watched::Secret, &event),
            }
        }
    }

    /// The next delta, if the changes so far amount to one.
    pub(super) fn compose(&mut self) -> Option<Delta> {
        self.drain();
        let snapshot = std::mem::take(&mut self.snapshot_due);
        self.view
            .compose(&self.objects, self.objects.revision(), snapshot)
    }

    /// What the node has been told, for the session after this one.
    pub(super) fn into_view(self) -> View {
        self.view
    }

    fn drain(&mut self) {
        while let Some(event) = self.node_events.try_next() {
            self.node_event(&event);
        }
        while let Some(event) = self.service_events.try_next() {
            self.touch(Watched::Service, &event);
        }
        while let Some(event) = self.endpoint_slice_events.try_next() {
            self.touch(Watched::EndpointSlice, &event);
        }
        while let Some(event) = self.config_map_events.try_next() {
            self.touch(Watched::ConfigMap, &event);
        }
        while let Some(event) = self.secret_events.try_next() {
            self.touch(Watched::Secret, &event);
        }
        while let Some(event) = self.pod_events.try_next() {
            self.touch(Watched::Pod, &event);
        }
    }

    fn node_event(&mut self, event: &InformerEvent<Node>) {
        if key(event).as_deref() == Some(self.objects.node.as_str()) {
            self.touch(Watched::Node, event);
        } else {
            self.touch(Watched::PeerNode, event);
        }
    }

    fn touch<K: Kind>(&mut self, kind: Watched, event: &InformerEvent<K>) {
        if let Some(key) = key(event) {
            self.view.touch(kind, &key, &self.objects);
        }
    }
}

fn key<K: Kind>(event: &InformerEvent<K>) -> Option<String> {
    match event {
        InformerEvent::Added(object)
        | InformerEvent::Deleted(object)
        | InformerEvent::Updated { new: object, .. } => Some(object_key(object.metadata())),
        InformerEvent::Synced => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_peer_is_told_anew_only_when_the_way_to_it_changes() {
        let node = |version: &str, ready: &str, address: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "b", "uid": "u", "resourceVersion": version},
                "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
                "status": {
                    "addresses": [
                        {"type": "InternalIP", "address": address},
                        {"type": "Hostname", "address": "b"},
                    ],
                    "conditions": [{"type": "Ready", "status": ready}],
                },
            }))
            .unwrap()
        };
        let first = peer(&node("1", "True", "192.0.2.2")).unwrap();
        let beat = peer(&node("2", "False", "192.0.2.2")).unwrap();
        let moved = peer(&node("3", "True", "192.0.2.3")).unwrap();
        assert_eq!(first.version, beat.version);
        assert_ne!(first.version, moved.version);
        let told: Node = serde_json::from_slice(&first.object).unwrap();
        assert_eq!(told.status.unwrap().addresses.unwrap().len(), 1);
    }
}
