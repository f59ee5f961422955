//! Fan-out of applied changes to watchers.
//!
//! Watches what the state machine publishes; changes the queues of subscriptions; watchers
//! wake and react. Watchers of the same range form one group, so that a change is matched once
//! per distinct range and not once per watcher.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::WatchEvent;
use crate::key_value::Revision;
use crate::mvcc::read::contains;

/// All events of one revision.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    /// In the order they happened, each with its previous version.
    pub(crate) events: Vec<WatchEvent>,
}

impl Change {
    /// A change without events so far.
    pub(crate) fn new(revision: Revision) -> Self {
        Self {
            revision,
            events: Vec::new(),
        }
    }

    fn bytes(&self) -> usize {
        let of = |event: &WatchEvent| {
            let prev = event.prev.as_ref().map_or(0, |kv| kv.value.len() + 64);
            event.kv.key.len() + event.kv.value.len() + prev + 192
        };
        self.events.iter().map(of).sum()
    }
}

/// Sizes of the hub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HubLimits {
    /// Events kept for watchers that start in the recent past.
    pub(crate) ring_events: usize,
    /// Bytes they may take.
    pub(crate) ring_bytes: usize,
    /// Events a watcher may have waiting.
    pub(crate) buffer: usize,
}

/// The meeting point of the state machine and watchers.
#[derive(Debug)]
pub(crate) struct Hub {
    limits: HubLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All changes after `floor`, up to `last`.
    ring: VecDeque<Arc<Change>>,
    ring_events: usize,
    ring_bytes: usize,
    floor: Revision,
    last: Revision,
    groups: HashMap<Range, Vec<Arc<Subscription>>>,
    closed: bool,
}

/// A range of keys; an empty `end` means just `start`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    pub(crate) start: Bytes,
    pub(crate) end: Bytes,
}

impl Range {
    /// Whether the key is in it.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        contains(&self.start, &self.end, key)
    }
}

/// A watcher's end of the hub.
#[derive(Debug)]
pub(crate) struct Subscription {
    range: Range,
    progress: bool,
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    changes: VecDeque<Arc<Change>>,
    events: usize,
    /// Changes before this are not delivered.
    from: Revision,
    bookmark: Option<Revision>,
    /// The last revision taken, or bookmarked.
    seen: Revision,
    end: Option<End>,
}

/// Why nothing more comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The watcher was too slow.
    Slow,
    /// The store closed.
    Closed,
}

/// What a subscription had waiting.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Changes, in order; only some of their events are in the range.
    Changes(Vec<Arc<Change>>),
    /// Nothing happened in the range up to here.
    Bookmark(Revision),
    /// Nothing more comes.
    End(End),
    /// Wait for [`Subscription::woken`].
    Nothing,
}

impl Hub {
    /// A hub that has seen nothing.
    pub(crate) fn new(limits: HubLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    /// The state was opened or replaced, and is at `revision`. Open watchers end: what lies
    /// between is not known.
    pub(crate) fn reset(&self, revision: Revision) {
        let mut state = self.state.lock();
        state.ring.clear();
        state.ring_events = 0;
        state.ring_bytes = 0;
        state.floor = revision;
        state.last = revision;
        for subscription in state.groups.drain().flat_map(|(_, group)| group) {
            subscription.end(End::Slow);
        }
    }

    /// Announces changes, in revision order.
    pub(crate) fn publish(&self, changes: Vec<Arc<Change>>) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let mut cut = false;
        for change in changes {
            state.last = change.revision;
            for (range, group) in &state.groups {
                let matching = change
                    .events
                    .iter()
                    .filter(|event| range.contains(&event.kv.key))
                    .count();
                if matching > 0 {
                    for subscription in group {
                        cut |= subscription.push(&change, matching, self.limits.buffer);
                    }
                }
            }
            state.keep(change, &self.limits);
        }
        if cut {
            state.groups.retain(|_, group| {
                group.retain(|subscription| subscription.queue.lock().end.is_none());
                !group.is_empty()
            });
        }
    }

    /// Lets a watcher in that has seen everything before `from`; `None` starts now. Answers
    /// `None` when the ring does not reach back that far. With `bookmark` the watcher learns at
    /// once how far it has seen.
    pub(crate) fn subscribe(
        &self,
        range: &Range,
        from: Option<Revision>,
        progress: bool,
        bookmark: bool,
    ) -> Option<Arc<Subscription>> {
        let mut state = self.state.lock();
        let from = from.unwrap_or(state.last + 1);
        if from <= state.floor {
            return None;
        }
        let mut queue = Queue {
            from,
            seen: if bookmark { 0 } else { from - 1 },
            bookmark: bookmark.then_some(state.last),
            end: state.closed.then_some(End::Closed),
            ..Queue::default()
        };
        let first = state.ring.partition_point(|change| change.revision < from);
        for change in state.ring.range(first..) {
            let matching = change
                .events
                .iter()
                .filter(|event| range.contains(&event.kv.key))
                .count();
            if matching > 0 {
                queue.changes.push_back(Arc::clone(change));
            }
        }
        let subscription = Arc::new(Subscription {
            range: range.clone(),
            progress,
            queue: Mutex::new(queue),
            wake: Notify::new(),
        });
        if !state.closed {
            state
                .groups
                .entry(range.clone())
                .or_default()
                .push(Arc::clone(&subscription));
        }
        Some(subscription)
    }

    /// A watcher leaves.
    pub(crate) fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut state = self.state.lock();
        if let Some(group) = state.groups.get_mut(&subscription.range) {
            group.retain(|other| !Arc::ptr_eq(other, subscription));
            if group.is_empty() {
                state.groups.remove(&subscription.range);
            }
        }
    }

    /// Sends bookmarks to the watchers that asked for them and have not seen the newest
    /// revision, which it answers.
    pub(crate) fn progress(&self) -> Revision {
        let state = self.state.lock();
        for subscription in state.groups.values().flatten() {
            if subscription.progress {
                subscription.bookmark(state.last);
            }
        }
        state.last
    }

    /// Open subscriptions.
    pub(crate) fn watchers(&self) -> usize {
        self.state.lock().groups.values().map(Vec::len).sum()
    }

    /// Ends all watchers, now and later ones.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for subscription in state.groups.drain().flat_map(|(_, group)| group) {
            subscription.end(End::Closed);
        }
    }
}

impl State {
    fn keep(&mut self, change: Arc<Change>, limits: &HubLimits) {
        self.ring_events += change.events.len();
        self.ring_bytes += change.bytes();
        self.ring.push_back(change);
        while (self.ring_events > limits.ring_events || self.ring_bytes > limits.ring_bytes)
            && let Some(oldest) = self.ring.pop_front()
        {
            self.ring_events -= oldest.events.len();
            self.ring_bytes -= oldest.bytes();
            self.floor = oldest.revision;
        }
    }
}

impl Subscription {
    /// Queues a change; answers whether that cut the watcher off.
    fn push(&self, change: &Arc<Change>, matching: usize, buffer: usize) -> bool {
        let mut queue = self.queue.lock();
        if queue.end.is_some() || change.revision < queue.from {
            return false;
        }
        // One change larger than the buffer must still be deliverable.
        if queue.events > 0 && queue.events + matching > buffer {
            queue.changes = VecDeque::new();
            queue.events = 0;
            queue.end = Some(End::Slow);
        } else {
            queue.events += matching;
            queue.changes.push_back(Arc::clone(change));
        }
        let cut = queue.end.is_some();
        drop(queue);
        self.wake.notify_one();
        cut
    }

    fn bookmark(&self, revision: Revision) {
        let mut queue = self.queue.lock();
        if queue.seen < revision {
            queue.bookmark = Some(revision);
            drop(queue);
            self.wake.notify_one();
        }
    }

    fn end(&self, end: End) {
        let mut queue = self.queue.lock();
        if end == End::Slow {
            queue.changes = VecDeque::new();
        }
        queue.end.get_or_insert(end);
        drop(queue);
        self.wake.notify_one();
    }

    /// Takes what is waiting, about `limit` events of it.
    pub(crate) fn take(&self, limit: usize) -> Taken {
        let mut queue = self.queue.lock();
        if !queue.changes.is_empty() {
            let mut taken = Vec::new();
            let mut events = 0;
            while events < limit
                && let Some(change) = queue.changes.pop_front()
            {
                events += change.events.len();
                queue.seen = change.revision;
                taken.push(change);
            }
            if queue.changes.is_empty() {
                queue.events = 0;
            } else {
                let matching = taken
                    .iter()
                    .flat_map(|change| &change.events)
                    .filter(|event| self.range.contains(&event.kv.key))
                    .count();
                queue.events = queue.events.saturating_sub(matching);
            }
            return Taken::Changes(taken);
        }
        if let Some(revision) = queue.bookmark.take()
            && revision > queue.seen
        {
            queue.seen = revision;
            return Taken::Bookmark(revision);
        }
        queue.end.map_or(Taken::Nothing, Taken::End)
    }

    /// Waits until [`Subscription::take`] may answer something else.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}
