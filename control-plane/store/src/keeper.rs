//! What has to happen after a while: checkpoints, lease ends, compaction, bookmarks.
//!
//! Watches the state machine's positions, the leases and leadership; asks the engine for
//! checkpoints, proposes the end of leases and compactions, and sends bookmarks to watchers. It
//! sleeps until the next thing is due, and for ever when nothing is: an idle store uses no CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::failure::chain;
use crate::key_value::Revision;
use crate::raft::propose::Submitter;
use crate::raft::{Engine, Leadership};
use crate::request::Request;

/// The end of a lease is proposed again when it was not applied by then.
const LEASE_RETRY: Duration = Duration::from_secs(2);
/// Leases ended per turn.
const LEASES_AT_ONCE: usize = 256;

/// Wakes the keeper. Cheap while it is awake or has a timer running anyway.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    awake: AtomicBool,
    notify: Notify,
}

impl Wake {
    /// Something was applied.
    pub(crate) fn changed(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    /// Something may be due earlier than the keeper believes.
    pub(crate) fn now(&self) {
        self.awake.store(true, Ordering::Release);
        self.notify.notify_one();
    }
}

/// The task.
pub(crate) struct Keeper {
    engine: Engine,
    submitter: Submitter,
    wake: Arc<Wake>,
    leadership: watch::Sender<Leadership>,
    checkpoint_delay: Duration,
    checkpoint_bytes: u64,
    progress_interval: Duration,
    retention: Option<Duration>,
    checkpoint_due: Option<Instant>,
    bookmark_due: Option<Instant>,
    bookmarked: Revision,
    /// When, and up to where, history is forgotten.
    compaction: Option<(Instant, Revision)>,
    compacted: Revision,
    leads: bool,
}

impl Keeper {
    /// Makes the task.
    pub(crate) fn new(
        engine: Engine,
        submitter: Submitter,
        wake: Arc<Wake>,
        leadership: watch::Sender<Leadership>,
        config: &StoreConfig,
    ) -> Self {
        let compacted = engine.machine().compacted();
        let bookmarked = engine.machine().revision();
        Self {
            engine,
            submitter,
            wake,
            leadership,
            checkpoint_delay: config.checkpoint_delay,
            checkpoint_bytes: config.checkpoint_bytes,
            progress_interval: config.progress_interval,
            retention: config.history_retention,
            checkpoint_due: None,
            bookmark_due: None,
            bookmarked,
            compaction: None,
            compacted,
            leads: false,
        }
    }

    /// Runs until the future is dropped.
    pub(crate) async fn run(mut self) {
        let mut changes = self.engine.changes();
        // Proposals are not waited for: the next turn must come even if one hangs.
        let mut proposals = FuturesUnordered::new();
        loop {
            self.follow_leadership();
            for request in self.turn(Instant::now()).await {
                let submitter = self.submitter.clone();
                proposals.push(
                    async move { submitter.submit(request).await }.map(|outcome| {
                        if let Err(error) = outcome {
                            tracing::debug!(error = chain(&error), "keeper's proposal failed");
                        }
                    }),
                );
            }
            if self.engine.machine().needs_scrub() {
                // Between two steps writes get their turn.
                tokio::task::yield_now().await;
                continue;
            }
            if !self.is_armed() {
                // The next change must wake the keeper, so that its timers get armed; it may
                // just have been applied.
                self.wake.awake.store(false, Ordering::Release);
                if self.has_news() {
                    continue;
                }
            }
            let due = self.next_due();
            let timer = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notify.notified() => {}
                () = changes.changed() => {}
                Some(()) = proposals.next(), if !proposals.is_empty() => {}
                () = timer => {}
            }
        }
    }

    fn follow_leadership(&mut self) {
        let now = self.engine.refresh();
        self.leadership
            .send_if_modified(|seen| std::mem::replace(seen, now) != now);
        let leads = now.leads;
        if self.leads && !leads {
            self.engine.machine().leases().lock().disarm();
        }
        self.leads = leads;
    }

    /// Whether every timer runs that a change would start.
    fn is_armed(&self) -> bool {
        let compacts = self.leads && self.retention.is_some();
        self.checkpoint_due.is_some()
            && self.bookmark_due.is_some()
            && (self.compaction.is_some() || !compacts)
    }

    /// Whether a timer should run that does not.
    fn has_news(&self) -> bool {
        let machine = self.engine.machine();
        let revision = machine.revision();
        let compacts = self.leads && self.retention.is_some();
        machine.needs_scrub()
            || self.checkpoint_due.is_none() && machine.durable_next() < machine.applied_next()
            || self.bookmark_due.is_none() && revision > self.bookmarked
            || compacts && self.compaction.is_none() && revision > self.compacted
    }

    fn next_due(&self) -> Option<Instant> {
        let lease = if self.leads {
            self.engine.machine().leases().lock().next_deadline()
        } else {
            None
        };
        let compaction = self.compaction.map(|(due, _)| due);
        [self.checkpoint_due, self.bookmark_due, compaction, lease]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due and answers what is to be proposed.
    async fn turn(&mut self, now: Instant) -> Vec<Request> {
        let mut requests = Vec::new();
        if let Err(error) = self.checkpoint(now).await {
            tracing::debug!(error = chain(&error), "checkpoint was not started");
        }
        self.bookmark(now);
        if let Err(error) = self.scrub().await {
            self.engine.failure().report(&error);
        }
        if self.leads {
            requests.extend(self.compact(now));
            let mut leases = self.engine.machine().leases().lock();
            leases.arm(now);
            let mut expired = leases.expired(now, LEASE_RETRY);
            expired.truncate(LEASES_AT_ONCE);
            requests.extend(expired.into_iter().map(|id| Request::LeaseRevoke { id }));
        }
        requests
    }

    async fn checkpoint(&mut self, now: Instant) -> Result<(), StoreError> {
        let machine = self.engine.machine();
        if machine.durable_next() >= machine.applied_next() {
            self.checkpoint_due = None;
            return Ok(());
        }
        let due = *self
            .checkpoint_due
            .get_or_insert(now + self.checkpoint_delay);
        if due <= now || self.engine.log().bytes_since_checkpoint() >= self.checkpoint_bytes {
            // Looked at again after a while, should it have come to nothing.
            self.checkpoint_due = Some(now + self.checkpoint_delay);
            self.engine.checkpoint().await?;
        }
        Ok(())
    }

    fn bookmark(&mut self, now: Instant) {
        let revision = self.engine.machine().revision();
        if revision <= self.bookmarked {
            self.bookmark_due = None;
            return;
        }
        let due = *self
            .bookmark_due
            .get_or_insert(now + self.progress_interval);
        if due <= now {
            self.engine.machine().hub().progress();
            self.bookmarked = revision;
            self.bookmark_due = None;
        }
    }

    async fn scrub(&self) -> Result<(), StoreError> {
        if self.engine.failure().text().is_some() || !self.engine.machine().needs_scrub() {
            return Ok(());
        }
        let _writer = self.engine.machine().writer().lock().await;
        self.engine.machine().scrub().map(|_| ())
    }

    fn compact(&mut self, now: Instant) -> Option<Request> {
        let retention = self.retention?;
        let revision = self.engine.machine().revision();
        let request = match self.compaction {
            Some((due, target)) if due <= now => {
                self.compaction = None;
                self.compacted = target;
                (target > self.engine.machine().compacted()).then_some(Request::Compact(target))
            }
            _ => None,
        };
        if self.compaction.is_none() && revision > self.compacted {
            self.compaction = Some((now + retention, revision));
        }
        request
    }
}
