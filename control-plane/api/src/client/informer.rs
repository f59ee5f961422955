//! Informers: the objects of a kind, decoded once per revision and shared.
//!
//! An informer watches the hub's cache of its resource and keeps one `Arc` per object, an
//! index by controlling owner, and a queue per subscriber. A queue holds at most one pending
//! change per key, so a slow subscriber costs memory in proportion to the objects, never to
//! the number of changes; it misses intermediate states but never a final one.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use super::{Kind, object_key};
use crate::pipeline::Core;
use crate::storage::hub::{Change, Cursor};

/// What happened to an object, as one subscriber sees it.
#[derive(Debug, Clone)]
pub enum InformerEvent<K> {
    /// The object is new to this subscriber.
    Added(Arc<K>),
    /// The object changed (perhaps several times) since this subscriber last heard of it.
    Updated {
        /// What this subscriber saw last.
        old: Arc<K>,
        /// What it is now.
        new: Arc<K>,
    },
    /// The object is gone; this is its last known state.
    Deleted(Arc<K>),
    /// Every object that existed at subscription (or at the initial list) was delivered.
    Synced,
}

/// The shared informer of a kind. Cheap to clone.
pub struct Informer<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K> std::fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer").finish_non_exhaustive()
    }
}

struct Inner<K> {
    state: RwLock<State<K>>,
    synced: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<Arc<str>, Arc<K>>,
    owners: HashMap<String, HashSet<Arc<str>>>,
    subscribers: Vec<Weak<Queue<K>>>,
    revision: u64,
    synced: bool,
}

impl<K: Kind> Informer<K> {
    /// Waits until the initial list is in.
    pub async fn synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The sender lives in `inner`, which `self` keeps alive: this cannot fail.
        let _closed = synced.wait_for(|synced| *synced).await.is_err();
    }

    /// Whether the initial list is in.
    pub fn has_synced(&self) -> bool {
        *self.inner.synced.borrow()
    }

    /// The object of a key (`"namespace/name"`, or `"name"`).
    pub fn get(&self, key: &str) -> Option<Arc<K>> {
        self.inner.state.read().objects.get(key).cloned()
    }

    /// Every object, in the order of keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.inner.state.read().objects.values().cloned().collect()
    }

    /// Every object of a namespace, in the order of names.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let prefix = format!("{namespace}/");
        self.inner
            .state
            .read()
            .objects
            .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&prefix))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Every object whose controlling owner has this uid.
    pub fn by_owner(&self, uid: &str) -> Vec<Arc<K>> {
        let state = self.inner.state.read();
        let mut keys: Vec<&Arc<str>> = match state.owners.get(uid) {
            Some(keys) => keys.iter().collect(),
            None => return Vec::new(),
        };
        keys.sort();
        keys.into_iter()
            .filter_map(|key| state.objects.get(key).cloned())
            .collect()
    }

    /// A queue of changes, which begins with every present object as `Added`.
    pub fn subscribe(&self) -> InformerEvents<K> {
        let queue = Arc::new(Queue {
            state: Mutex::new(QueueState {
                order: VecDeque::new(),
                pending: HashMap::new(),
            }),
            wake: Notify::new(),
        });
        let mut state = self.inner.state.write();
        for (key, object) in &state.objects {
            queue.push(key, None, Some(object));
        }
        if state.synced {
            queue.push_synced();
        }
        state.subscribers.push(Arc::downgrade(&queue));
        InformerEvents {
            queue,
            _informer: self.inner.clone(),
        }
    }

    /// The revision up to which changes are in.
    pub fn resource_version(&self) -> u64 {
        self.inner.state.read().revision
    }
}

/// One subscriber's queue.
pub struct InformerEvents<K> {
    queue: Arc<Queue<K>>,
    _informer: Arc<Inner<K>>,
}

impl<K> std::fmt::Debug for InformerEvents<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InformerEvents").finish_non_exhaustive()
    }
}

impl<K: Kind> InformerEvents<K> {
    /// The next change; waits while there is none.
    ///
    /// The `Option` lets callers write `while let Some(event)`: the queue ends only with the
    /// process. Cancelling the future loses nothing.
    pub async fn next(&mut self) -> Option<InformerEvent<K>> {
        loop {
            let woken = self.queue.wake.notified();
            if let Some(event) = self.queue.pop() {
                return Some(event);
            }
            woken.await;
        }
    }

    /// The next change when one is waiting.
    pub fn try_next(&mut self) -> Option<InformerEvent<K>> {
        self.queue.pop()
    }
}

struct Queue<K> {
    state: Mutex<QueueState<K>>,
    wake: Notify,
}

struct QueueState<K> {
    order: VecDeque<Item>,
    pending: HashMap<Arc<str>, Pending<K>>,
}

enum Item {
    Key(Arc<str>),
    Synced,
}

struct Pending<K> {
    /// What the subscriber saw last.
    seen: Option<Arc<K>>,
    now: Option<Arc<K>>,
}

impl<K: Kind> Queue<K> {
    fn push(&self, key: &Arc<str>, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        let mut state = self.state.lock();
        if let Some(pending) = state.pending.get_mut(key) {
            pending.now = new.cloned();
        } else {
            state.pending.insert(
                key.clone(),
                Pending {
                    seen: old.cloned(),
                    now: new.cloned(),
                },
            );
            state.order.push_back(Item::Key(key.clone()));
        }
        drop(state);
        self.wake.notify_one();
    }

    fn push_synced(&self) {
        self.state.lock().order.push_back(Item::Synced);
        self.wake.notify_one();
    }

    fn pop(&self) -> Option<InformerEvent<K>> {
        let mut state = self.state.lock();
        loop {
            let key = match state.order.pop_front()? {
                Item::Synced => return Some(InformerEvent::Synced),
                Item::Key(key) => key,
            };
            let Some(pending) = state.pending.remove(&key) else {
                continue;
            };
            match (pending.seen, pending.now) {
                (None, None) => {}
                (None, Some(new)) => return Some(InformerEvent::Added(new)),
                (Some(old), None) => return Some(InformerEvent::Deleted(old)),
                (Some(old), Some(new)) if old.metadata().uid == new.metadata().uid => {
                    return Some(InformerEvent::Updated { old, new });
                }
                // Deleted and made anew under the same name: two changes, in this order.
                (Some(old), Some(new)) => {
                    state.pending.insert(
                        key.clone(),
                        Pending {
                            seen: None,
                            now: Some(new),
                        },
                    );
                    state.order.push_front(Item::Key(key));
                    return Some(InformerEvent::Deleted(old));
                }
            }
        }
    }
}

impl<K: Kind> State<K> {
    fn set(&mut self, key: &Arc<str>, new: Option<&Arc<K>>) {
        let old = match new {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(key),
        };
        let old_owner = old.as_deref().and_then(controller_uid);
        let new_owner = new.and_then(|object| controller_uid(&**object));
        if old_owner != new_owner {
            if let Some(uid) = old_owner
                && let Some(keys) = self.owners.get_mut(uid)
            {
                keys.remove(key);
                if keys.is_empty() {
                    self.owners.remove(uid);
                }
            }
            if let Some(uid) = new_owner {
                self.owners
                    .entry(uid.to_owned())
                    .or_default()
                    .insert(key.clone());
            }
        }
        if old.is_none() && new.is_none() {
            return;
        }
        self.subscribers.retain(|subscriber| {
            let Some(queue) = subscriber.upgrade() else {
                return false;
            };
            queue.push(key, old.as_ref(), new);
            true
        });
    }
}

fn controller_uid<K: Kind>(object: &K) -> Option<&str> {
    object
        .metadata()
        .owner_references
        .as_ref()?
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.as_str())
}

/// The informers of a process, one per kind.
#[derive(Default)]
pub(crate) struct InformerSet {
    running: Mutex<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

impl InformerSet {
    pub(crate) fn get<K: Kind>(&self, core: &Arc<Core>) -> Informer<K> {
        let mut running = self.running.lock();
        if let Some(informer) = running
            .get(&TypeId::of::<K>())
            .and_then(|informer| informer.downcast_ref::<Informer<K>>())
        {
            return informer.clone();
        }
        let informer = Informer {
            inner: Arc::new(Inner {
                state: RwLock::new(State {
                    objects: BTreeMap::new(),
                    owners: HashMap::new(),
                    subscribers: Vec::new(),
                    revision: 0,
                    synced: false,
                }),
                synced: watch::Sender::new(false),
            }),
        };
        running.insert(TypeId::of::<K>(), Box::new(informer.clone()));
        let prefix = crate::storage::key::resource(K::GROUP, K::PLURAL);
        let cursor = core.hub().resource(&prefix).cursor();
        core.spawn(follow(informer.inner.clone(), cursor));
        informer
    }
}

/// Carries the changes of one resource into the informer, for as long as the hub runs.
async fn follow<K: Kind>(inner: Arc<Inner<K>>, mut cursor: Cursor) {
    loop {
        let snapshot = cursor.snapshot();
        {
            let mut state = inner.state.write();
            let mut gone: HashSet<Arc<str>> = state.objects.keys().cloned().collect();
            for entry in &snapshot.entries {
                let Some(object) = decode::<K>(entry) else {
                    continue;
                };
                let key: Arc<str> = object_key(object.metadata()).into();
                gone.remove(&key);
                let unchanged = state.objects.get(&key).is_some_and(|known| {
                    known.metadata().resource_version == object.metadata().resource_version
                });
                if !unchanged {
                    state.set(&key, Some(&object));
                }
            }
            for key in gone {
                state.set(&key, None);
            }
            state.revision = snapshot.revision;
            if !state.synced {
                state.synced = true;
                for queue in state.subscribers.iter().filter_map(Weak::upgrade) {
                    queue.push_synced();
                }
            }
        }
        inner.synced.send_replace(true);
        loop {
            match cursor.next_batch().await {
                // The cursor fell behind the hub's history: take a new snapshot.
                Change::Lost => break,
                Change::Closed => return,
                Change::Events { events, revision } => {
                    let mut state = inner.state.write();
                    for event in &events {
                        let key: Arc<str> = event.entry().object_key().into();
                        if event.deleted {
                            state.set(&key, None);
                        } else if let Some(object) = decode::<K>(event.entry()) {
                            state.set(&key, Some(&object));
                        }
                    }
                    state.revision = revision;
                }
            }
        }
    }
}

fn decode<K: Kind>(entry: &crate::storage::hub::Entry) -> Option<Arc<K>> {
    match serde_json::from_slice::<K>(&entry.json()) {
        Ok(object) => Some(Arc::new(object)),
        Err(error) => {
            tracing::error!(key = %entry.object_key(), kind = K::KIND, %error, "stored object does not decode");
            None
        }
    }
}
