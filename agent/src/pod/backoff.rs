//! Back-off of container restarts and image pulls, as the kubelet counts it.
//!
//! Pure. The first restart is immediate; from then on the wait doubles from 10 s to 5 min,
//! and is forgotten when nothing failed for 10 min.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// First wait.
pub const INITIAL: Duration = Duration::from_secs(10);
/// Longest wait.
pub const MAXIMUM: Duration = Duration::from_mins(5);
/// After this long without a failure the count starts anew.
pub const RESET: Duration = Duration::from_mins(10);

/// How long to wait before trying again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    delay: Duration,
    updated: Option<Timestamp>,
}

impl Backoff {
    /// When the next try is due after a failure at `failed_at`; `None`: at once.
    pub fn due(&self, failed_at: Timestamp) -> Option<Timestamp> {
        let updated = self.updated?;
        if elapsed(updated, failed_at) > RESET {
            return None;
        }
        Some(add(failed_at, self.delay))
    }

    /// The wait in force.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Notes a new try at `now`.
    pub fn advance(&mut self, now: Timestamp) {
        let fresh = self
            .updated
            .is_none_or(|updated| elapsed(updated, now) > RESET);
        self.delay = if fresh {
            INITIAL
        } else {
            (self.delay * 2).min(MAXIMUM)
        };
        self.updated = Some(now);
    }
}

/// `at + by`, saturating.
pub fn add(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| at.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Time from `from` to `to`; zero when that is negative.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// A wait as Go prints a `time.Duration` of whole seconds: `10s`, `2m40s`, `5m0s`.
pub fn go_seconds(wait: Duration) -> String {
    let seconds = wait.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_five_minutes_and_resets_after_ten() {
        let mut at = Timestamp::UNIX_EPOCH;
        let mut backoff = Backoff::default();
        assert_eq!(backoff.due(at), None, "the first restart is immediate");
        let mut waits = Vec::new();
        for _ in 0..7 {
            backoff.advance(at);
            let failed = add(at, Duration::from_secs(1));
            let due = backoff.due(failed).unwrap_or(failed);
            waits.push(elapsed(failed, due).as_secs());
            at = due;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        let much_later = add(at, Duration::from_secs(601) + MAXIMUM);
        assert_eq!(backoff.due(much_later), None);
        backoff.advance(much_later);
        assert_eq!(backoff.delay(), INITIAL);
    }

    #[test]
    fn prints_as_go_does() {
        for (seconds, text) in [(10, "10s"), (80, "1m20s"), (160, "2m40s"), (300, "5m0s")] {
            assert_eq!(go_seconds(Duration::from_secs(seconds)), text);
        }
    }
}
