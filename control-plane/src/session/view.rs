//! What one node has been told, and the difference to what it should know.
//!
//! Pure: looks at the current objects through [`Source`] and at the keys that may have changed,
//! and gives the [`Delta`] that brings the node up to date. [`super::feed`] feeds it from the
//! informers; the agent applies what it says.
//!
//! Keys, never objects, are queued: a key that changes ten times before the node can take the
//! next delta is sent once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use pintle_proto::node::{Change, Delta, Resource};

use super::references::References;

/// A kind of object a node is sent, in the order of a delta: what pods need comes before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Watched {
    /// The node's own object.
    Node,
    /// The other nodes, as far as routes to their pods need them.
    PeerNode,
    /// Every Service.
    Service,
    /// Every EndpointSlice.
    EndpointSlice,
    /// ConfigMaps its pods use.
    ConfigMap,
    /// Secrets its pods use.
    Secret,
    /// Pods bound to it.
    Pod,
}

impl Watched {
    fn resource(self) -> Resource {
        match self {
            Self::Node => Resource::Node,
            Self::PeerNode => Resource::PeerNode,
            Self::Service => Resource::Service,
            Self::EndpointSlice => Resource::EndpointSlice,
            Self::ConfigMap => Resource::ConfigMap,
            Self::Secret => Resource::Secret,
            Self::Pod => Resource::Pod,
        }
    }
}

/// An object as it is now.
pub(super) struct Current {
    /// Names this state uniquely: uid and metadata.resourceVersion, or all that is sent.
    pub(super) version: String,
    /// JSON.
    pub(super) object: Bytes,
}

/// Where the view looks up the present state.
pub(super) trait Source {
    /// The pod of this key if it is bound to the node.
    fn pod(&self, key: &str) -> Option<Arc<Pod>>;
    /// Any object; pods of other nodes are as good as absent.
    fn current(&self, kind: Watched, key: &str) -> Option<Current>;
    /// The name of a node, shared by all views: each of n nodes is told of n others.
    fn name(&self, key: &str) -> Arc<str>;
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct View {
    sent: HashMap<(Watched, String), String>,
    /// The same for other nodes, with a hash of the version.
    peers: HashMap<Arc<str>, u64>,
    dirty: BTreeSet<(Watched, String)>,
    pods: HashMap<String, References>,
    /// How many of the node's pods use a ConfigMap or Secret.
    uses: BTreeMap<(Watched, String), usize>,
    revision: u64,
}

impl View {
    /// Revision of the last delta; what the agent names when it resumes.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether there may be something to send.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Notes that an object changed, came or went.
    pub(super) fn touch(&mut self, kind: Watched, key: &str, source: &dyn Source) {
        let entry = (kind, key.to_owned());
        let relevant = match kind {
            Watched::ConfigMap | Watched::Secret => self.uses.contains_key(&entry),
            Watched::Pod => self.sent.contains_key(&entry) || source.pod(key).is_some(),
            Watched::Node | Watched::PeerNode | Watched::Service | Watched::EndpointSlice => true,
        };
        if relevant {
            self.dirty.insert(entry);
        }
    }

    /// Makes everything the node knows subject to comparison: used when a session resumes.
    pub(super) fn touch_all_sent(&mut self) {
        self.dirty.extend(self.sent.keys().cloned());
        let peers = self.peers.keys();
        self.dirty
            .extend(peers.map(|name| (Watched::PeerNode, name.to_string())));
    }

    /// Notes what the node is told; false when it knows that already. `None` is a deletion.
    fn tell(
        &mut self,
        kind: Watched,
        key: &str,
        version: Option<String>,
        source: &dyn Source,
    ) -> bool {
        match (kind, version) {
            (Watched::PeerNode, Some(version)) => {
                let mut hasher = DefaultHasher::new();
                version.hash(&mut hasher);
                let version = hasher.finish();
                self.peers.insert(source.name(key), version) != Some(version)
            }
            (Watched::PeerNode, None) => self.peers.remove(key).is_some(),
            (_, Some(version)) => {
                let sent = self.sent.entry((kind, key.to_owned())).or_default();
                let is_news = *sent != version;
                *sent = version;
                is_news
            }
            (_, None) => self.sent.remove(&(kind, key.to_owned())).is_some(),
        }
    }

    /// The difference, with `store_revision` as the revision unless that would not advance.
    /// A snapshot is always given, other deltas only when they hold a change.
    pub(super) fn compose(
        &mut self,
        source: &dyn Source,
        store_revision: u64,
        snapshot: bool,
    ) -> Option<Delta> {
        self.update_references(source);
        let mut changes = Vec::new();
        for (kind, key) in std::mem::take(&mut self.dirty) {
            let wanted = match kind {
                Watched::ConfigMap | Watched::Secret => {
                    self.uses.contains_key(&(kind, key.clone()))
                }
                _ => true,
            };
            let current = if wanted {
                source.current(kind, &key)
            } else {
                None
            };
            let (version, object) = match current {
                Some(current) => (Some(current.version), current.object),
                None => (None, Bytes::new()),
            };
            if !self.tell(kind, &key, version, source) {
                continue;
            }
            changes.push(Change {
                resource: kind.resource().into(),
                key,
                object,
            });
        }
        if changes.is_empty() && !snapshot {
            return None;
        }
        self.revision = store_revision.max(self.revision + 1);
        Some(Delta {
            revision: self.revision,
            snapshot,
            changes,
        })
    }

    fn update_references(&mut self, source: &dyn Source) {
        let pods: Vec<String> = self
            .dirty
            .iter()
            .filter(|(kind, _)| *kind == Watched::Pod)
            .map(|(_, key)| key.clone())
            .collect();
        for key in pods {
            let new = source
                .pod(&key)
                .map(|pod| References::of(&pod))
                .unwrap_or_default();
            let old = self.pods.remove(&key).unwrap_or_default();
            if new == old {
                if new != References::default() {
                    self.pods.insert(key, new);
                }
                continue;
            }
            for entry in entries(&new) {
                *self.uses.entry(entry.clone()).or_default() += 1;
                self.dirty.insert(entry);
            }
            for entry in entries(&old) {
                if let Some(count) = self.uses.get_mut(&entry) {
                    *count -= 1;
                    if *count == 0 {
                        self.uses.remove(&entry);
                        self.dirty.insert(entry);
                    }
                }
            }
            if new != References::default() {
                self.pods.insert(key, new);
            }
        }
    }
}

fn entries(references: &References) -> impl Iterator<Item = (Watched, String)> + '_ {
    let config_maps = references
        .config_maps
        .iter()
        .map(|key| (Watched::ConfigMap, key.clone()));
    let secrets = references
        .secrets
        .iter()
        .map(|key| (Watched::Secret, key.clone()));
    config_maps.chain(secrets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct World {
        pods: HashMap<String, Arc<Pod>>,
        others: HashMap<(Watched, String), String>,
    }

    impl World {
        fn set_pod(&mut self, key: &str, version: &str, secret: Option<&str>) {
            let (namespace, name) = key.split_once('/').unwrap();
            let volumes: Vec<_> = secret
                .map(|s| json!({"name": "v", "secret": {"secretName": s}}))
                .into_iter()
                .collect();
            let pod = serde_json::from_value(json!({
                "metadata": {"namespace": namespace, "name": name, "resourceVersion": version},
                "spec": {"containers": [], "volumes": volumes},
            }))
            .unwrap();
            self.pods.insert(key.to_owned(), Arc::new(pod));
        }

        fn set(&mut self, kind: Watched, key: &str, version: &str) {
            self.others
                .insert((kind, key.to_owned()), version.to_owned());
        }
    }

    impl Source for World {
        fn pod(&self, key: &str) -> Option<Arc<Pod>> {
            self.pods.get(key).cloned()
        }

        fn current(&self, kind: Watched, key: &str) -> Option<Current> {
            let version = if kind == Watched::Pod {
                self.pods.get(key)?.metadata.resource_version.clone()?
            } else {
                self.others.get(&(kind, key.to_owned()))?.clone()
            };
            Some(Current {
                object: Bytes::from(version.clone()),
                version,
            })
        }

        fn name(&self, key: &str) -> Arc<str> {
            key.into()
        }
    }

    #[test]
    fn peers_are_told_once_and_their_end_too_after_a_resume() {
        let (mut world, mut view) = (World::default(), View::default());
        world.set(Watched::PeerNode, "b", "1");
        view.touch(Watched::PeerNode, "b", &world);
        assert_eq!(shown(view.compose(&world, 1, true)), ["b=1"]);
        view.touch(Watched::PeerNode, "b", &world);
        assert_eq!(view.compose(&world, 2, false), None);
        world.others.clear();
        view.touch_all_sent();
        assert_eq!(shown(view.compose(&world, 3, false)), ["b="]);
    }

    fn shown(delta: Option<Delta>) -> Vec<String> {
        delta
            .into_iter()
            .flat_map(|d| d.changes)
            .map(|c| format!("{}={}", c.key, String::from_utf8_lossy(&c.object)))
            .collect()
    }

    #[test]
    fn a_secret_travels_with_the_first_pod_and_leaves_with_the_last() {
        let (mut world, mut view) = (World::default(), View::default());
        world.set(Watched::Secret, "a/s", "5");
        view.touch(Watched::Secret, "a/s", &world);
        assert!(!view.is_dirty(), "nobody uses it yet");

        world.set_pod("a/p1", "1", Some("s"));
        world.set_pod("a/p2", "2", Some("s"));
        view.touch(Watched::Pod, "a/p1", &world);
        view.touch(Watched::Pod, "a/p2", &world);
        let delta = view.compose(&world, 7, true);
        assert_eq!(delta.as_ref().unwrap().revision, 7);
        assert_eq!(shown(delta), ["a/s=5", "a/p1=1", "a/p2=2"]);

        world.pods.remove("a/p1");
        view.touch(Watched::Pod, "a/p1", &world);
        assert_eq!(shown(view.compose(&world, 8, false)), ["a/p1="]);

        world.set_pod("a/p2", "3", None);
        view.touch(Watched::Pod, "a/p2", &world);
        assert_eq!(shown(view.compose(&world, 9, false)), ["a/s=", "a/p2=3"]);
        view.touch(Watched::Secret, "a/s", &world);
        assert!(!view.is_dirty());
    }

    #[test]
    fn changes_coalesce_and_repetitions_are_not_sent() {
        let (mut world, mut view) = (World::default(), View::default());
        world.set(Watched::Service, "a/web", "1");
        view.touch(Watched::Service, "a/web", &world);
        world.set(Watched::Service, "a/web", "2");
        view.touch(Watched::Service, "a/web", &world);
        assert_eq!(shown(view.compose(&world, 1, false)), ["a/web=2"]);
        view.touch(Watched::Service, "a/web", &world);
        assert_eq!(view.compose(&world, 1, false), None);
        view.touch(Watched::Pod, "a/elsewhere", &world);
        assert!(!view.is_dirty());
    }

    #[test]
    fn a_resumed_session_hears_what_it_missed_with_a_higher_revision() {
        let (mut world, mut view) = (World::default(), View::default());
        world.set(Watched::Service, "a/web", "1");
        world.set(Watched::Service, "a/gone", "1");
        view.touch(Watched::Service, "a/web", &world);
        view.touch(Watched::Service, "a/gone", &world);
        let first = view.compose(&world, 10, true).unwrap().revision;
        world
            .others
            .remove(&(Watched::Service, "a/gone".to_owned()));
        view.touch_all_sent();
        let second = view.compose(&world, 10, false).unwrap();
        assert!(second.revision > first);
        assert_eq!(shown(Some(second)), ["a/gone="]);
    }
}
