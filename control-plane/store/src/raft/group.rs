//! What this member knows of its group beyond what openraft does.
//!
//! Watches nothing; [`super::pulse`], [`super::inbox`] and the callers of [`super::Engine`]
//! change it and read it: whether a quorum answered the leader lately, when a follower last
//! heard its leader, whether leadership is being handed over, whether the group refused this
//! member.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// A leader sends a heartbeat this often.
pub(crate) const BEAT: Duration = Duration::from_millis(60);
/// A follower that heard its leader within this time elects no other, and a leader that no
/// quorum answered within it does not lead. Both measure on their own monotonic clock.
pub(crate) const LEASE: Duration = Duration::from_millis(300);
/// How long openraft waits for one answer. Long enough for a slow disk, shorter than the lease.
pub(crate) const ANSWER: Duration = Duration::from_millis(280);
/// How long a caller waits for a leader, and a leader for a quorum.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Group {
    /// This member leads and is a quorum by itself: nobody else can acknowledge anything.
    alone: AtomicBool,
    /// There are other members, learners included.
    peers: AtomicBool,
    /// The members are being changed: this one may be no quorum by itself any more.
    changing: AtomicBool,
    /// As leader: a quorum answered within the lease.
    fresh: watch::Sender<bool>,
    /// As follower: when the leader was last heard, or this member started.
    contact: Mutex<Instant>,
    /// As leader: until when nothing is proposed, so that another member can take over.
    handover: watch::Sender<Option<Instant>>,
    /// The sentence of whoever refused this member.
    refused: Mutex<Option<String>>,
    /// Tests with a clock of their own sync on the thread that would wait.
    #[cfg(test)]
    pub(crate) sync_here: bool,
    /// Tests that let a member crash: it stops without a last checkpoint.
    #[cfg(test)]
    pub(crate) crashed: AtomicBool,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            alone: AtomicBool::new(false),
            peers: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            fresh: watch::Sender::new(false),
            contact: Mutex::new(Instant::now()),
            handover: watch::Sender::new(None),
            refused: Mutex::new(None),
            #[cfg(test)]
            sync_here: false,
            #[cfg(test)]
            crashed: AtomicBool::new(false),
        }
    }
}

impl Group {
    /// Whether this member decides by itself.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }

    /// Whether there are other members.
    pub(crate) fn has_peers(&self) -> bool {
        self.peers.load(Ordering::Acquire)
    }

    /// The membership or the leadership changed.
    pub(crate) fn set_shape(&self, alone: bool, peers: bool) {
        self.peers.store(peers, Ordering::SeqCst);
        self.alone.store(alone, Ordering::SeqCst);
        if self.changing.load(Ordering::SeqCst) {
            self.alone.store(false, Ordering::SeqCst);
        }
    }

    /// A change of members begins, or has ended.
    pub(crate) fn set_changing(&self, changing: bool) {
        self.changing.store(changing, Ordering::SeqCst);
        if changing {
            self.alone.store(false, Ordering::SeqCst);
        }
    }

    /// Whether a quorum answered lately.
    pub(crate) fn is_fresh(&self) -> bool {
        *self.fresh.borrow()
    }

    /// Announces changes of [`Group::is_fresh`].
    pub(crate) fn freshness(&self) -> watch::Receiver<bool> {
        self.fresh.subscribe()
    }

    /// A quorum answered within the lease, or did not.
    pub(crate) fn set_fresh(&self, fresh: bool) {
        self.fresh
            .send_if_modified(|seen| std::mem::replace(seen, fresh) != fresh);
    }

    /// The leader was heard.
    pub(crate) fn heard(&self) {
        *self.contact.lock() = Instant::now();
        let mut refused = self.refused.lock();
        if refused.is_some() {
            *refused = None;
        }
    }

    /// When the leader was last heard.
    pub(crate) fn contact(&self) -> Instant {
        *self.contact.lock()
    }

    /// Whether the leader was heard within the lease.
    pub(crate) fn hears_leader(&self) -> bool {
        self.contact().elapsed() <= LEASE
    }

    /// Nothing is proposed, and no heartbeat sent, until then.
    pub(crate) fn hand_over(&self, until: Option<Instant>) {
        self.handover.send_replace(until);
    }

    /// Whether leadership is being handed over.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.handover
            .borrow()
            .is_some_and(|until| Instant::now() < until)
    }

    /// Another member refused this one.
    pub(crate) fn refuse(&self, cause: &str) {
        let mut refused = self.refused.lock();
        if refused.as_deref() != Some(cause) {
            tracing::error!(cause, "the group refuses this member");
            *refused = Some(cause.to_owned());
        }
    }

    /// Why the group refuses this member.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refused.lock().clone()
    }
}
