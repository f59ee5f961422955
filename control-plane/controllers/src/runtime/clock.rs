//! Wall-clock time as a value that is passed in, so that decisions can be replayed.

use std::sync::Arc;

use jiff::Timestamp;

/// Tells the time written into objects. Delays use tokio's clock instead.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The host's clock.
    pub(crate) fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}
