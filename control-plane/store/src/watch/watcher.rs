//! One subscription, from any kept revision to the newest and on.
//!
//! Watches its queue in the hub and, while it starts before the hub's ring, the tables;
//! changes nothing; its owner reacts. The hand-over from tables to ring is without gap or
//! repetition: the hub admits the watcher at the revision the tables were read up to.

use std::sync::Arc;

use super::hub::{Change, End, Range, Subscription, Taken};
use super::{WatchBatch, WatchError, WatchEvent, WatchRequest};
use crate::error::StoreError;
use crate::key_value::Revision;
use crate::mvcc::Machine;
use crate::mvcc::history::PastError;

/// Events per batch, about: a revision is never split.
const BATCH: usize = 256;

/// One subscription; dropping it ends it.
pub struct Watcher {
    machine: Arc<Machine>,
    range: Range,
    progress: bool,
    prev_kv: bool,
    phase: Phase,
}

enum Phase {
    /// Reading the tables, from this revision on.
    Past(Revision),
    /// In the hub.
    Live(Arc<Subscription>),
    /// The error was answered.
    Ended,
}

impl Watcher {
    /// Starts a watch.
    pub(crate) fn start(machine: &Arc<Machine>, request: WatchRequest) -> Result<Self, StoreError> {
        let range = Range {
            start: request.start,
            end: request.end,
        };
        let compacted = machine.compacted();
        if let Some(from) = request.from_revision
            && compacted > 0
            && from <= compacted
        {
            return Err(StoreError::Compacted {
                requested: from,
                compacted,
            });
        }
        let from = request.from_revision.map(|from| from.max(1));
        let phase = match machine
            .hub()
            .subscribe(&range, from, request.progress, false)
        {
            Some(subscription) => Phase::Live(subscription),
            None => Phase::Past(from.unwrap_or(1)),
        };
        Ok(Self {
            machine: Arc::clone(machine),
            range,
            progress: request.progress,
            prev_kv: request.prev_kv,
            phase,
        })
    }

    /// The next batch. `Some(Err(_))` is the last thing a watcher says; afterwards `None`.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Result<WatchBatch, WatchError>> {
        loop {
            match &self.phase {
                Phase::Ended => return None,
                Phase::Past(from) => {
                    let from = *from;
                    if let Some(batch) = self.read_past(from) {
                        return Some(batch);
                    }
                    // A long way without a matching event must not hold up other tasks.
                    tokio::task::yield_now().await;
                }
                Phase::Live(subscription) => match subscription.take(BATCH) {
                    Taken::Changes(changes) => return Some(Ok(self.batch(&changes))),
                    Taken::Bookmark(revision) => {
                        return Some(Ok(WatchBatch {
                            revision,
                            events: Vec::new(),
                        }));
                    }
                    Taken::End(End::Slow) => return Some(self.fail(WatchError::SlowConsumer)),
                    Taken::End(End::Closed) => return Some(self.fail(WatchError::Closed)),
                    Taken::Nothing => subscription.woken().await,
                },
            }
        }
    }

    /// One step through the tables; `None` when it led no event to light.
    fn read_past(&mut self, from: Revision) -> Option<Result<WatchBatch, WatchError>> {
        let hub = self.machine.hub();
        let progress = self.progress;
        // The stretch up to here may have been without events: nobody was told that it is past.
        if let Some(subscription) = hub.subscribe(&self.range, Some(from), progress, progress) {
            self.phase = Phase::Live(subscription);
            return None;
        }
        match self
            .machine
            .past(from, &self.range.start, &self.range.end, BATCH)
        {
            Ok(stretch) => {
                self.phase = Phase::Past(stretch.next);
                (!stretch.changes.is_empty()).then(|| Ok(self.batch(&stretch.changes)))
            }
            Err(PastError::Compacted(compacted)) => {
                Some(self.fail(WatchError::Compacted { compacted }))
            }
            Err(PastError::Store(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "watch ends");
                Some(self.fail(WatchError::Closed))
            }
        }
    }

    fn batch(&self, changes: &[Arc<Change>]) -> WatchBatch {
        let events = changes
            .iter()
            .flat_map(|change| &change.events)
            .filter(|event| self.range.contains(&event.kv.key))
            .map(|event| WatchEvent {
                kind: event.kind,
                kv: event.kv.clone(),
                prev: if self.prev_kv {
                    event.prev.clone()
                } else {
                    None
                },
            })
            .collect();
        WatchBatch {
            revision: changes.last().map_or(0, |change| change.revision),
            events,
        }
    }

    fn fail(&mut self, error: WatchError) -> Result<WatchBatch, WatchError> {
        self.leave();
        self.phase = Phase::Ended;
        Err(error)
    }

    fn leave(&self) {
        if let Phase::Live(subscription) = &self.phase {
            self.machine.hub().unsubscribe(subscription);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}
