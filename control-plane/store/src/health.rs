//! How the store is doing.
//!
//! Watches the log's syncs and the state machine's positions; changes nothing; `pintle
//! status`, `/readyz` and the metrics read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::key_value::Revision;

/// Upper bounds of the buckets of [`SyncHistogram`], in microseconds; a last bucket without
/// bound follows.
pub const SYNC_BUCKETS_MICROS: [u64; 12] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000,
];

/// How long the log's syncs took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncHistogram {
    /// Syncs per bucket of [`SYNC_BUCKETS_MICROS`], and those above all of them.
    pub buckets: [u64; SYNC_BUCKETS_MICROS.len() + 1],
    /// Syncs in all.
    pub count: u64,
    /// Time in all.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

/// A snapshot of a member's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// This member.
    pub node_id: u64,
    /// The member that leads, when known.
    pub leader: Option<u64>,
    /// Members of the group, learners included.
    pub members: usize,
    /// The Raft term.
    pub term: u64,
    /// Last entry in the log.
    pub log_index: u64,
    /// Last entry applied to the state.
    pub applied_index: u64,
    /// Last entry whose effect is on disk in the state database.
    pub durable_index: u64,
    /// The newest revision.
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub compacted_revision: Revision,
    /// Bytes of log on disk.
    pub log_bytes: u64,
    /// Open watchers.
    pub watchers: usize,
    /// Log syncs.
    pub sync: SyncHistogram,
    /// Why the group refuses this member, with the way out.
    pub refused: Option<String>,
    /// The storage failure that stopped the store.
    pub failure: Option<String>,
}

/// Counts syncs without a lock.
#[derive(Debug, Default)]
pub(crate) struct SyncRecorder {
    buckets: [AtomicU64; SYNC_BUCKETS_MICROS.len() + 1],
    total_micros: AtomicU64,
    longest_micros: AtomicU64,
}

impl SyncRecorder {
    pub(crate) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = SYNC_BUCKETS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.total_micros.fetch_add(micros, Ordering::Relaxed);
        self.longest_micros.fetch_max(micros, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> SyncHistogram {
        let buckets = self
            .buckets
            .each_ref()
            .map(|bucket| bucket.load(Ordering::Relaxed));
        SyncHistogram {
            buckets,
            count: buckets.iter().sum(),
            total: Duration::from_micros(self.total_micros.load(Ordering::Relaxed)),
            longest: Duration::from_micros(self.longest_micros.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_land_in_their_bucket() {
        let recorder = SyncRecorder::default();
        recorder.record(Duration::from_micros(100));
        recorder.record(Duration::from_micros(101));
        recorder.record(Duration::from_secs(9));
        let seen = recorder.snapshot();
        assert_eq!(seen.buckets[0], 1);
        assert_eq!(seen.buckets[1], 1);
        assert_eq!(seen.buckets[SYNC_BUCKETS_MICROS.len()], 1);
        assert_eq!(seen.count, 3);
        assert_eq!(seen.longest, Duration::from_secs(9));
    }
}
