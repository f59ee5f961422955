//! The control plane's one reading of the wall clock.
//!
//! Watches and changes no state: everything that depends on time takes it as an argument, and
//! the callers at the edge get it here.

use std::time::{SystemTime, UNIX_EPOCH};

/// The current wall-clock time.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Whole seconds since the epoch; 0 for a clock set before 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
