//! Leases: which exist, and on the leader, when they end.
//!
//! Watches leases granted and ended by the state machine; changes nothing but deadlines; the
//! keeper asks for what expired and proposes the end, which deletes the keys. Pure: the time
//! is an argument. A member starts every deadline anew when it starts to lead, so a lease may
//! live longer than promised but never shorter.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::key_value::LeaseId;

/// All leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseBook {
    leases: HashMap<LeaseId, Lease>,
    deadlines: BTreeSet<(Instant, LeaseId)>,
    /// Granted, but without a deadline so far.
    fresh: Vec<LeaseId>,
    news: bool,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    deadline: Option<Instant>,
}

impl LeaseBook {
    /// A lease was granted.
    pub(crate) fn grant(&mut self, id: LeaseId, ttl: Duration) {
        self.leases.insert(
            id,
            Lease {
                ttl,
                deadline: None,
            },
        );
        self.fresh.push(id);
        self.news = true;
    }

    /// Whether leases were granted since this was last asked.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// A lease ended.
    pub(crate) fn end(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.remove(&id)
            && let Some(deadline) = lease.deadline
        {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// Starts a lease's time anew; answers its time to live, or `None` if there is no such.
    pub(crate) fn keep_alive(&mut self, id: LeaseId, now: Instant) -> Option<Duration> {
        let lease = self.leases.get_mut(&id)?;
        let ttl = lease.ttl;
        if let Some(deadline) = lease.deadline.replace(now + ttl) {
            self.deadlines.remove(&(deadline, id));
        }
        self.deadlines.insert((now + ttl, id));
        Some(ttl)
    }

    /// A lease's time to live and what is left of it; all of it where no deadline is known.
    pub(crate) fn time_to_live(&self, id: LeaseId, now: Instant) -> Option<(Duration, Duration)> {
        let lease = self.leases.get(&id)?;
        let left = lease
            .deadline
            .map_or(lease.ttl, |at| at.saturating_duration_since(now));
        Some((lease.ttl, left))
    }

    /// All leases, in order.
    pub(crate) fn ids(&self) -> Vec<LeaseId> {
        let mut ids: Vec<_> = self.leases.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Gives a deadline to leases without one.
    pub(crate) fn arm(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.fresh) {
            if self
                .leases
                .get(&id)
                .is_some_and(|lease| lease.deadline.is_none())
            {
                self.keep_alive(id, now);
            }
        }
    }

    /// Takes all deadlines away: this member does not lead.
    pub(crate) fn disarm(&mut self) {
        self.deadlines.clear();
        for lease in self.leases.values_mut() {
            lease.deadline = None;
        }
        self.fresh = self.leases.keys().copied().collect();
    }

    /// When the next lease ends.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Leases that have ended. Each is answered again after `retry`, should its end not have
    /// been applied by then.
    pub(crate) fn expired(&mut self, now: Instant, retry: Duration) -> Vec<LeaseId> {
        let mut expired = Vec::new();
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.deadlines.insert((now + retry, id));
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.deadline = Some(now + retry);
            }
            expired.push(id);
        }
        expired
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn expires_no_earlier_than_its_time() {
        let start = Instant::now();
        let mut book = LeaseBook::default();
        book.grant(7, 10 * SECOND);
        assert_eq!(
            book.next_deadline(),
            None,
            "only the leader gives deadlines"
        );
        book.arm(start);
        assert_eq!(book.next_deadline(), Some(start + 10 * SECOND));
        assert!(book.expired(start + 9 * SECOND, SECOND).is_empty());
        assert_eq!(book.expired(start + 10 * SECOND, SECOND), [7]);
        assert!(book.expired(start + 10 * SECOND, SECOND).is_empty());
        assert_eq!(book.expired(start + 11 * SECOND, SECOND), [7], "retried");
        book.end(7);
        assert_eq!(book.next_deadline(), None);
        assert_eq!(book.len(), 0);
    }

    #[test]
    fn keep_alive_moves_the_deadline() {
        let start = Instant::now();
        let mut book = LeaseBook::default();
        book.grant(7, 10 * SECOND);
        book.arm(start);
        assert_eq!(book.keep_alive(7, start + 5 * SECOND), Some(10 * SECOND));
        assert_eq!(book.keep_alive(8, start), None);
        assert_eq!(
            book.time_to_live(7, start + 8 * SECOND),
            Some((10 * SECOND, 7 * SECOND))
        );
        assert_eq!(book.time_to_live(8, start), None);
        assert_eq!(book.ids(), [7]);
        assert!(book.expired(start + 14 * SECOND, SECOND).is_empty());
        assert_eq!(book.expired(start + 15 * SECOND, SECOND), [7]);
    }

    #[test]
    fn a_new_leader_starts_anew() {
        let start = Instant::now();
        let mut book = LeaseBook::default();
        book.grant(7, 10 * SECOND);
        book.arm(start);
        book.disarm();
        assert_eq!(book.next_deadline(), None);
        book.arm(start + 8 * SECOND);
        assert_eq!(book.next_deadline(), Some(start + 18 * SECOND));
    }
}
