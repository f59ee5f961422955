//! What one client sees of a resource's changes: its namespace, its selectors, and the
//! transitions of objects that start or stop matching them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pintle_kube_types::status::Status;
use pintle_kube_types::{FieldSelector, LabelSelector};
use pintle_store::{EventKind, WatchError, Watcher};

use super::hub::{Change, Cursor, Entry, Event, decode_entry};
use crate::registry::Resource;

/// What happened to an object, as one watcher sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectEventKind {
    /// The object is new, or began to match the selectors.
    Added,
    /// The object changed.
    Modified,
    /// The object is gone, or no longer matches the selectors.
    Deleted,
    /// Nothing happened up to this revision; no object.
    Bookmark,
    /// Every object that existed when the watch began was sent; no object.
    InitialEventsEnd,
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub struct ObjectEvent {
    /// What happened.
    pub kind: ObjectEventKind,
    /// At which revision; watching from it continues after this event.
    pub revision: u64,
    entry: Option<Arc<Entry>>,
}

impl ObjectEvent {
    /// `"namespace/name"` or `"name"`; empty for bookmarks.
    pub fn key(&self) -> &str {
        self.entry.as_deref().map_or("", Entry::object_key)
    }

    /// The object's JSON with its resourceVersion; empty for bookmarks.
    pub fn object(&self) -> Bytes {
        self.entry.as_deref().map(Entry::json).unwrap_or_default()
    }

    /// The object's entry.
    pub fn entry(&self) -> Option<&Arc<Entry>> {
        self.entry.as_ref()
    }
}

/// Which objects of a resource a list or watch selects.
#[derive(Debug, Clone)]
pub struct Filter {
    pub(crate) resource: Arc<Resource>,
    /// Prefix of the keys: the resource's, or that of one of its namespaces.
    pub(crate) scope: String,
    /// Whether `scope` is the key of the one object that is selected.
    pub(crate) exact: bool,
    pub(crate) labels: Option<LabelSelector>,
    pub(crate) fields: Option<FieldSelector>,
}

impl Filter {
    /// Whether an object is selected.
    pub fn matches(&self, entry: &Entry) -> bool {
        let key = entry.store_key();
        if !key.starts_with(self.scope.as_bytes()) || (self.exact && key.len() != self.scope.len())
        {
            return false;
        }
        if self.labels.is_none() && self.fields.is_none() {
            return true;
        }
        let selectable = entry.selectable(&self.resource);
        self.labels
            .as_ref()
            .is_none_or(|labels| labels.matches_labels(Some(&selectable.labels)))
            && self.fields.as_ref().is_none_or(|fields| {
                fields.matches_by(|name| selectable.fields.get(name).map(String::as_str))
            })
    }

    fn event(&self, event: &Event) -> Option<ObjectEvent> {
        let now = !event.deleted && self.matches(event.entry());
        let before = event.prev().is_some_and(|prev| self.matches(prev));
        let (kind, entry) = match (before, now) {
            (false, false) => return None,
            (false, true) => (ObjectEventKind::Added, event.entry().clone()),
            (true, true) => (ObjectEventKind::Modified, event.entry().clone()),
            (true, false) => (ObjectEventKind::Deleted, event.prev_at_change()?),
        };
        Some(ObjectEvent {
            kind,
            revision: entry.revision(),
            entry: Some(entry),
        })
    }
}

#[derive(Debug)]
enum Source {
    /// The hub's shared history.
    Hub(Cursor),
    /// The store's own history, for a watch that begins before the hub's.
    Store { watcher: Box<Watcher>, reached: u64 },
}

/// One client's watch.
#[derive(Debug)]
pub struct ObjectWatch {
    filter: Filter,
    source: Source,
    ready: VecDeque<ObjectEvent>,
    /// Why the watch ends, once what is ready was delivered.
    failure: Option<Status>,
    ended: bool,
}

impl ObjectWatch {
    pub(crate) fn from_hub(filter: Filter, cursor: Cursor) -> Self {
        Self {
            filter,
            source: Source::Hub(cursor),
            ready: VecDeque::new(),
            failure: None,
            ended: false,
        }
    }

    /// Begins with the present objects as `Added`.
    pub(crate) fn with_initial(filter: Filter, mut cursor: Cursor, mark_end: bool) -> Self {
        let snapshot = cursor.snapshot_of(&filter.scope);
        let mut ready: VecDeque<ObjectEvent> = snapshot
            .entries
            .into_iter()
            .filter(|entry| filter.matches(entry))
            .map(|entry| ObjectEvent {
                kind: ObjectEventKind::Added,
                revision: entry.revision(),
                entry: Some(entry),
            })
            .collect();
        if mark_end {
            ready.push_back(ObjectEvent {
                kind: ObjectEventKind::InitialEventsEnd,
                revision: snapshot.revision,
                entry: None,
            });
        }
        Self {
            ready,
            ..Self::from_hub(filter, cursor)
        }
    }

    /// A watch that says only why there is none: as Kubernetes, which has answered 200 by then.
    pub(crate) fn failed(filter: Filter, cursor: Cursor, failure: Status) -> Self {
        Self {
            failure: Some(failure),
            ..Self::from_hub(filter, cursor)
        }
    }

    pub(crate) fn from_store(filter: Filter, watcher: Watcher, after: u64) -> Self {
        Self {
            filter,
            source: Source::Store {
                watcher: Box::new(watcher),
                reached: after,
            },
            ready: VecDeque::new(),
            failure: None,
            ended: false,
        }
    }

    /// A bookmark for everything delivered so far.
    ///
    /// `None` while events are waiting: it would then not be true.
    pub fn bookmark(&mut self) -> Option<ObjectEvent> {
        if !self.ready.is_empty() || self.failure.is_some() || self.ended {
            return None;
        }
        let revision = match &mut self.source {
            Source::Hub(cursor) => {
                // Read before looking for events: what comes between has a later revision.
                let revision = cursor.hub_revision();
                if let Some(change) = cursor.take() {
                    self.accept(change);
                    return None;
                }
                revision
            }
            Source::Store { reached, .. } => *reached,
        };
        Some(ObjectEvent {
            kind: ObjectEventKind::Bookmark,
            revision,
            entry: None,
        })
    }

    /// The next event; waits while there is none. `None` when the server shuts down; an error
    /// is the last thing a watch says. Cancelling the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<ObjectEvent, Status>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if let Some(failure) = self.failure.take() {
                self.ended = true;
                return Some(Err(failure));
            }
            if self.ended {
                return None;
            }
            match &mut self.source {
                Source::Hub(cursor) => {
                    let change = cursor.next_batch().await;
                    self.accept(change);
                }
                Source::Store { watcher, reached } => match watcher.next().await {
                    Some(Ok(batch)) => {
                        *reached = batch.revision;
                        let prefix = self.filter.resource.prefix.len();
                        for event in batch.events {
                            if let Some(event) = stored_event(event, prefix)
                                && let Some(event) = self.filter.event(&event)
                            {
                                self.ready.push_back(event);
                            }
                        }
                    }
                    Some(Err(WatchError::Closed)) | None => self.ended = true,
                    Some(Err(WatchError::Compacted { compacted })) => {
                        self.failure = Some(too_old(*reached, compacted));
                    }
                    Some(Err(WatchError::SlowConsumer)) => self.failure = Some(too_slow()),
                },
            }
        }
    }

    fn accept(&mut self, change: Change) {
        match change {
            Change::Events { events, .. } => self
                .ready
                .extend(events.iter().filter_map(|event| self.filter.event(event))),
            Change::Lost => self.failure = Some(too_slow()),
            Change::Closed => self.ended = true,
        }
    }
}

fn stored_event(event: pintle_store::WatchEvent, prefix: usize) -> Option<Event> {
    let prev = event
        .prev
        .and_then(|kv| decode_entry(kv.key, kv.value, kv.mod_revision).map(Arc::new));
    match event.kind {
        EventKind::Put => {
            let kv = event.kv;
            let entry = decode_entry(kv.key, kv.value, kv.mod_revision)?;
            Some(Event::new(false, Arc::new(entry), prev))
        }
        EventKind::Delete => {
            let prev = prev?;
            let entry = Entry::new(
                prev.store_key().clone(),
                prefix,
                prev.value().clone(),
                event.kv.mod_revision,
            );
            Some(Event::new(true, Arc::new(entry), Some(prev)))
        }
    }
}

/// The 410 of a watch or list from a revision that is no longer kept.
pub(crate) fn too_old(requested: u64, compacted: u64) -> Status {
    Status::expired(format!(
        "too old resource version: {requested} ({compacted})"
    ))
}

fn too_slow() -> Status {
    Status::expired("too old resource version: the watcher was too slow and was cut off".to_owned())
}
