//! The hub: one watch of the whole store, shared by every watcher and informer.
//!
//! It watches every key, and keeps per resource the present objects (as stored bytes) and a
//! bounded history of events. Watchers own nothing but a position in that history, so a slow
//! one costs no memory: when the history has moved past its position it is told so and must
//! list again. Informers, HTTP watches and node sessions react next.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_store::{
    ALL_KEYS_END, EventKind, RangeRequest, Store, StoreError, WatchError, WatchEvent, WatchRequest,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::key;
use super::value::Encoded;
use crate::registry::Resource;

/// Most events kept per resource.
const HISTORY_EVENTS: usize = 4096;
/// Most bytes of old revisions kept per resource.
const HISTORY_BYTES: usize = 3 << 20;
/// Most events a cursor takes at a time.
const BATCH: usize = 512;

/// What selectors look at, taken from an object once per revision.
#[derive(Debug, Default)]
pub struct Selectable {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// The resource's selectable fields and their values.
    pub fields: BTreeMap<String, String>,
}

/// One revision of an object.
#[derive(Debug)]
pub struct Entry {
    key: Bytes,
    /// Length of the resource's prefix in `key`.
    prefix: usize,
    value: Encoded,
    revision: u64,
    selectable: OnceLock<Selectable>,
}

impl Entry {
    pub(crate) fn new(key: Bytes, prefix: usize, value: Encoded, revision: u64) -> Self {
        Self {
            key,
            prefix,
            value,
            revision,
            selectable: OnceLock::new(),
        }
    }

    /// The same object at a later revision: how a deletion shows the last state.
    fn at(&self, revision: u64) -> Self {
        Self::new(self.key.clone(), self.prefix, self.value.clone(), revision)
    }

    /// `"namespace/name"` or `"name"`.
    pub fn object_key(&self) -> &str {
        std::str::from_utf8(&self.key[self.prefix..]).unwrap_or_default()
    }

    /// The store's key.
    pub fn store_key(&self) -> &Bytes {
        &self.key
    }

    /// The revision, which is the resourceVersion.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The encoded object.
    pub fn value(&self) -> &Encoded {
        &self.value
    }

    /// The object's JSON with its resourceVersion.
    pub fn json(&self) -> Bytes {
        self.value.json(self.revision)
    }

    /// Decodes the object, with its resourceVersion.
    pub fn object_with_version(&self) -> Result<Object, Status> {
        let mut object = self
            .value
            .object()
            .map_err(|error| Status::internal_error(error.to_string()))?;
        object.set_resource_version(Some(&self.revision.to_string()));
        Ok(object)
    }

    /// Labels and selectable fields, decoded at first use.
    pub fn selectable(&self, resource: &Resource) -> &Selectable {
        self.selectable.get_or_init(|| match self.value.object() {
            Ok(object) => Selectable {
                labels: object
                    .labels()
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
                fields: resource.field_values(&object),
            },
            Err(error) => {
                tracing::error!(key = %self.object_key(), %error, "stored object does not decode");
                Selectable::default()
            }
        })
    }
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// Whether the object was deleted; `entry` is then its last state at the revision of the
    /// deletion.
    pub deleted: bool,
    entry: Arc<Entry>,
    prev: Option<Arc<Entry>>,
}

impl Event {
    pub(crate) fn new(deleted: bool, entry: Arc<Entry>, prev: Option<Arc<Entry>>) -> Self {
        Self {
            deleted,
            entry,
            prev,
        }
    }

    /// The object after the change.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The object before the change.
    pub fn prev(&self) -> Option<&Arc<Entry>> {
        self.prev.as_ref()
    }

    /// The object before the change, at the revision of the change.
    pub fn prev_at_change(&self) -> Option<Arc<Entry>> {
        self.prev
            .as_ref()
            .map(|prev| Arc::new(prev.at(self.entry.revision)))
    }
}

/// The objects of a resource at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// In the order of keys.
    pub entries: Vec<Arc<Entry>>,
    /// The revision.
    pub revision: u64,
}

/// What a cursor found.
#[derive(Debug)]
pub enum Change {
    /// Events after the position, in order.
    Events {
        /// The events; whole revisions only.
        events: Vec<Arc<Event>>,
        /// The revision up to which this resource's changes are now delivered.
        revision: u64,
    },
    /// The history no longer reaches back to the position.
    Lost,
    /// The hub ended.
    Closed,
}

/// Objects and recent events of one resource.
#[derive(Debug)]
pub struct ResourceCache {
    inner: RwLock<Cached>,
    changed: watch::Sender<u64>,
    hub: watch::Receiver<u64>,
}

#[derive(Debug)]
struct Cached {
    objects: BTreeMap<Bytes, Arc<Entry>>,
    history: VecDeque<Arc<Event>>,
    history_bytes: usize,
    /// Every event with a revision above this one is in `history`.
    floor: u64,
    /// Revision of the last event.
    last: u64,
}

impl ResourceCache {
    fn new(floor: u64, hub: watch::Receiver<u64>) -> Self {
        Self {
            inner: RwLock::new(Cached {
                objects: BTreeMap::new(),
                history: VecDeque::new(),
                history_bytes: 0,
                floor,
                last: floor,
            }),
            changed: watch::Sender::new(floor),
            hub,
        }
    }

    /// The revision of the objects here, given the lock on them.
    fn revision(&self, cached: &Cached) -> u64 {
        (*self.hub.borrow()).max(cached.last)
    }

    /// The objects whose keys start with `scope`.
    pub fn snapshot(&self, scope: &str) -> Snapshot {
        let cached = self.inner.read();
        let revision = self.revision(&cached);
        let entries = cached
            .objects
            .range::<[u8], _>((Bound::Included(scope.as_bytes()), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(scope.as_bytes()))
            .map(|(_, entry)| entry.clone())
            .collect();
        Snapshot { entries, revision }
    }

    /// One object.
    pub fn get(&self, key: &[u8]) -> Option<Arc<Entry>> {
        self.inner.read().objects.get(key).cloned()
    }

    /// A position at the present revision.
    pub fn cursor(self: &Arc<Self>) -> Cursor {
        let position = self.revision(&self.inner.read());
        Cursor {
            cache: self.clone(),
            changed: self.changed.subscribe(),
            position,
        }
    }

    /// A position after `revision`, when the history reaches back to it.
    pub fn cursor_at(self: &Arc<Self>, revision: u64) -> Option<Cursor> {
        let cached = self.inner.read();
        (revision >= cached.floor).then(|| Cursor {
            cache: self.clone(),
            changed: self.changed.subscribe(),
            position: revision,
        })
    }

    /// Applies the changes of whole revisions, objects and history under one lock, so that a
    /// snapshot never shows half a transaction.
    fn apply(&self, changes: Vec<WatchEvent>) {
        let last = {
            let mut cached = self.inner.write();
            for change in changes {
                if let Some(event) = cached.change(change) {
                    cached.history_bytes += event.entry.value.len();
                    cached.last = event.entry.revision;
                    cached.history.push_back(Arc::new(event));
                }
            }
            while cached.history.len() > HISTORY_EVENTS || cached.history_bytes > HISTORY_BYTES {
                let Some(oldest) = cached.history.pop_front() else {
                    break;
                };
                cached.history_bytes -= oldest.entry.value.len();
                cached.floor = oldest.entry.revision;
            }
            cached.last
        };
        self.changed.send_replace(last);
    }
}

impl Cached {
    /// Updates the objects by one change of the store, and says what it was.
    fn change(&mut self, change: WatchEvent) -> Option<Event> {
        match change.kind {
            EventKind::Put => {
                let entry = Arc::new(decode_entry(
                    change.kv.key,
                    change.kv.value,
                    change.kv.mod_revision,
                )?);
                let prev = self.objects.insert(entry.key.clone(), entry.clone());
                Some(Event::new(false, entry, prev))
            }
            EventKind::Delete => {
                let prev = self.objects.remove(&change.kv.key)?;
                let entry = Arc::new(prev.at(change.kv.mod_revision));
                Some(Event::new(true, entry, Some(prev)))
            }
        }
    }
}

/// A watcher's position in a resource's history.
#[derive(Debug)]
pub struct Cursor {
    cache: Arc<ResourceCache>,
    changed: watch::Receiver<u64>,
    position: u64,
}

impl Cursor {
    /// The present objects; the cursor then continues after them.
    pub fn snapshot(&mut self) -> Snapshot {
        self.snapshot_of("")
    }

    /// The present objects below a prefix; the cursor then continues after them.
    pub fn snapshot_of(&mut self, scope: &str) -> Snapshot {
        let snapshot = self.cache.snapshot(scope);
        self.position = snapshot.revision;
        snapshot
    }

    /// Revision up to which the hub has seen everything; a bookmark may name it once the
    /// cursor has delivered what it holds.
    pub fn hub_revision(&self) -> u64 {
        *self.cache.hub.borrow()
    }

    /// Events already there.
    pub fn take(&mut self) -> Option<Change> {
        self.changed.borrow_and_update();
        let cached = self.cache.inner.read();
        if self.position < cached.floor {
            return Some(Change::Lost);
        }
        let start = cached
            .history
            .partition_point(|event| event.entry.revision <= self.position);
        if start == cached.history.len() {
            return None;
        }
        let mut end = (start + BATCH).min(cached.history.len());
        let last = cached.history[end - 1].entry.revision;
        while end < cached.history.len() && cached.history[end].entry.revision == last {
            end += 1;
        }
        self.position = last;
        Some(Change::Events {
            events: cached.history.range(start..end).cloned().collect(),
            revision: last,
        })
    }

    /// The next events; waits while there are none. Cancelling the future loses nothing.
    pub async fn next_batch(&mut self) -> Change {
        loop {
            if let Some(change) = self.take() {
                return change;
            }
            if self.changed.changed().await.is_err() {
                return Change::Closed;
            }
        }
    }
}

/// The hub.
#[derive(Debug)]
pub struct Hub {
    resources: RwLock<HashMap<String, Arc<ResourceCache>>>,
    revision: watch::Sender<u64>,
    /// Revision of the initial load.
    loaded: u64,
    /// Whether it stopped following the store although nobody asked it to.
    failed: AtomicBool,
}

impl Hub {
    /// Loads every object of the store.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let response = store.range(&RangeRequest {
            start: Bytes::from_static(key::REGISTRY.as_bytes()),
            end: pintle_store::prefix_end(key::REGISTRY.as_bytes()),
            ..RangeRequest::default()
        })?;
        let hub = Self {
            resources: RwLock::default(),
            revision: watch::Sender::new(response.revision),
            loaded: response.revision,
            failed: AtomicBool::new(false),
        };
        for kv in response.kvs {
            let Some(entry) = decode_entry(kv.key, kv.value, kv.mod_revision) else {
                continue;
            };
            let cache = hub.resource(&String::from_utf8_lossy(&entry.key[..entry.prefix]));
            cache
                .inner
                .write()
                .objects
                .insert(entry.key.clone(), Arc::new(entry));
        }
        Ok(hub)
    }

    /// The cache of the resource with this key prefix.
    pub fn resource(&self, prefix: &str) -> Arc<ResourceCache> {
        if let Some(cache) = self.resources.read().get(prefix) {
            return cache.clone();
        }
        self.resources
            .write()
            .entry(prefix.to_owned())
            .or_insert_with(|| Arc::new(ResourceCache::new(self.loaded, self.revision.subscribe())))
            .clone()
    }

    /// The revision up to which the caches are complete.
    pub fn revision(&self) -> u64 {
        *self.revision.borrow()
    }

    /// Waits until the caches hold `revision`; false when that takes longer than `timeout`.
    pub async fn reached(&self, revision: u64, timeout: Duration) -> bool {
        if self.revision() >= revision {
            return true;
        }
        let mut reached = self.revision.subscribe();
        matches!(
            tokio::time::timeout(timeout, reached.wait_for(|now| *now >= revision)).await,
            Ok(Ok(_))
        )
    }

    /// Whether watchers no longer hear of changes: a reason not to be ready.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Follows the store until it closes or `shutdown` is cancelled.
    pub async fn run(&self, store: Store, shutdown: CancellationToken) {
        self.follow(&store, &shutdown).await;
        if !shutdown.is_cancelled() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    async fn follow(&self, store: &Store, shutdown: &CancellationToken) {
        loop {
            let mut watcher = match store.watch(WatchRequest {
                // Every key, so that every revision is seen and none is waited for in vain.
                start: Bytes::from_static(key::FIRST),
                end: Bytes::from_static(ALL_KEYS_END),
                from_revision: Some(self.revision() + 1),
                progress: false,
                prev_kv: false,
            }) {
                Ok(watcher) => watcher,
                Err(StoreError::Compacted { .. }) => {
                    if let Err(error) = self.reload(store) {
                        tracing::error!(%error, "the watch hub cannot read the store");
                        return;
                    }
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "the watch hub cannot watch the store");
                    return;
                }
            };
            loop {
                let next = tokio::select! {
                    next = watcher.next() => next,
                    () = shutdown.cancelled() => return,
                };
                match next {
                    Some(Ok(batch)) => self.apply(batch.revision, batch.events),
                    Some(Err(WatchError::Closed)) | None => return,
                    // Opened again at the next revision; the store's history has what was missed.
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the watch hub fell behind the store");
                        break;
                    }
                }
            }
        }
    }

    fn apply(&self, revision: u64, events: Vec<WatchEvent>) {
        let mut by_resource: Vec<(Arc<ResourceCache>, Vec<WatchEvent>)> = Vec::new();
        for event in events {
            let Some(prefix) = key::resource_of(&event.kv.key) else {
                continue;
            };
            let cache = self.resource(prefix);
            match by_resource
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, &cache))
            {
                Some((_, changes)) => changes.push(event),
                None => by_resource.push((cache, vec![event])),
            }
        }
        for (cache, changes) in by_resource {
            cache.apply(changes);
        }
        self.revision.send_if_modified(|known| {
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
    }

    /// After the store compacted away what the hub had not yet seen: compares the objects.
    fn reload(&self, store: &Store) -> Result<(), StoreError> {
        let fresh = Self::load(store)?;
        let revision = fresh.revision();
        let mut prefixes: Vec<String> = self.resources.read().keys().cloned().collect();
        prefixes.extend(fresh.resources.read().keys().cloned());
        prefixes.sort();
        prefixes.dedup();
        for prefix in prefixes {
            let cache = self.resource(&prefix);
            let now = fresh.resource(&prefix).snapshot("").entries;
            let mut cached = cache.inner.write();
            cached.objects = now
                .into_iter()
                .map(|entry| (entry.key.clone(), entry))
                .collect();
            // Every cursor is behind the new floor, so each takes a new snapshot.
            cached.history.clear();
            cached.history_bytes = 0;
            cached.floor = revision;
            cached.last = revision;
            drop(cached);
            cache.changed.send_replace(revision);
        }
        self.revision.send_replace(revision);
        Ok(())
    }
}

/// An entry from a stored key and value; one that cannot be read is reported and left out.
pub(crate) fn decode_entry(store_key: Bytes, value: Bytes, revision: u64) -> Option<Entry> {
    let prefix = key::resource_of(&store_key)?.len();
    match Encoded::from_stored(value) {
        Ok(value) => Some(Entry::new(store_key, prefix, value, revision)),
        Err(error) => {
            tracing::error!(key = %String::from_utf8_lossy(&store_key), %error, "stored value is unreadable");
            None
        }
    }
}
