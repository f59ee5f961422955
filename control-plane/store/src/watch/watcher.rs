//! One subscription.

use super::{WatchBatch, WatchError};

/// One subscription; dropping it ends it.
#[derive(Debug)]
pub struct Watcher {}

impl Watcher {
    /// The next batch. `Some(Err(_))` is the last thing a watcher says; afterwards `None`.
    /// Cancel safe.
    #[expect(clippy::unused_async, reason = "signature")]
    pub async fn next(&mut self) -> Option<Result<WatchBatch, WatchError>> {
        None
    }
}
