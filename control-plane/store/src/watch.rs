//! Watching: what changed since a revision, in order, without gaps.
//!
//! Watches the transactions the state machine applied (it calls [`Hub::publish`] after each
//! commit), changes nothing but the queues of its subscribers, and those - informers, REST and
//! etcd watches - react next.
//!
//! ```text
//!   apply ─▶ Hub: ring of recent events ──▶ group per distinct range ──▶ queue per watcher
//!                                                                          │ full: cut off
//!   state.redb (changes, history) ─▶ Watcher that starts before the ring ◀─┘ joins the ring
//! ```

pub(crate) mod hub;
pub(crate) mod watcher;

use bytes::Bytes;

use crate::key_value::{KeyValue, Revision};

pub use watcher::Watcher;

/// What to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// First key, inclusive.
    pub start: Bytes,
    /// End, exclusive; empty means "just `start`".
    pub end: Bytes,
    /// Deliver events with at least this revision; `None` starts with what happens next.
    pub from_revision: Option<Revision>,
    /// Deliver an empty batch now and then, so that the watcher knows how far it has seen.
    pub progress: bool,
    /// Fill [`WatchEvent::prev`].
    pub prev_kv: bool,
}

/// Events of one or more whole revisions. Without events it is a progress bookmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// Everything up to here, inclusive, has been delivered.
    pub revision: Revision,
    /// In the order they happened.
    pub events: Vec<WatchEvent>,
}

/// Whether a key was written or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Written.
    Put,
    /// Deleted, by a transaction or by the end of its lease.
    Delete,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: EventKind,
    /// The new version; for a delete only `key` and `mod_revision` mean something.
    pub kv: KeyValue,
    /// The version before, when asked for and not compacted.
    pub prev: Option<KeyValue>,
}

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The consumer fell too far behind; list again and watch from there.
    #[error("the watcher was too slow and was cut off")]
    SlowConsumer,
    /// The revisions still to deliver were compacted; list again and watch from there.
    #[error("the revision to watch from is compacted, the oldest kept is {compacted}")]
    Compacted {
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// The store was shut down, or failed.
    #[error("the store is closed")]
    Closed,
}
