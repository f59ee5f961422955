//! Time, as the agent sees it.
//!
//! Watches the system clocks, changes nothing. Everything in the agent that needs the time
//! takes a [`Clock`], so that tests turn the hands themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A source of wall-clock time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands at `unix_millis` until it is [advanced](Self::advance).
    pub fn manual(unix_millis: i64) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(unix_millis))))
    }

    /// Moves a manual clock; the system's clock takes no orders.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(millis) = &self.0 {
            let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
            millis.fetch_add(by, Ordering::SeqCst);
        }
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Manual(millis) => Timestamp::from_millisecond(millis.load(Ordering::SeqCst))
                .unwrap_or(Timestamp::UNIX_EPOCH),
        }
    }

    /// Now, as objects of the API carry it.
    pub fn time(&self) -> Time {
        Time(self.now())
    }

    /// Now with microseconds, as Leases and Events carry it.
    pub fn micro_time(&self) -> MicroTime {
        MicroTime(self.now())
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub fn since(&self, earlier: Timestamp) -> Duration {
        duration(self.now().duration_since(earlier))
    }

    /// How long it is until `later`; zero when that has passed.
    pub fn until(&self, later: Timestamp) -> Duration {
        duration(later.duration_since(self.now()))
    }
}

fn duration(signed: SignedDuration) -> Duration {
    Duration::try_from(signed).unwrap_or(Duration::ZERO)
}
