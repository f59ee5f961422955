//! How many requests are worked on at a time; more are told to come back (429).
//!
//! Only requests over HTTP count, and only while they are answered: watches and streams do
//! not. The numbers are Kubernetes' `--max-requests-inflight` and
//! `--max-mutating-requests-inflight`.

use pintle_kube_types::status::Status;
use tokio::sync::{Semaphore, SemaphorePermit};

const READS: usize = 400;
const WRITES: usize = 200;
const RETRY_AFTER_SECONDS: i32 = 1;

/// The permits that are left.
#[derive(Debug)]
pub(crate) struct Limits {
    reads: Semaphore,
    writes: Semaphore,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: Semaphore::new(READS),
            writes: Semaphore::new(WRITES),
        }
    }
}

impl Limits {
    /// A permit to read.
    pub(super) fn read(&self) -> Result<SemaphorePermit<'_>, Status> {
        permit(&self.reads)
    }

    /// A permit to write.
    pub(super) fn write(&self) -> Result<SemaphorePermit<'_>, Status> {
        permit(&self.writes)
    }
}

fn permit(semaphore: &Semaphore) -> Result<SemaphorePermit<'_>, Status> {
    semaphore.try_acquire().map_err(|error| {
        tracing::warn!(%error, "a request was turned away");
        Status::too_many_requests(
            "too many requests, please try again later.",
            RETRY_AFTER_SECONDS,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_permit_is_the_last() {
        let limits = Limits::default();
        let held: Vec<_> = (0..WRITES).map(|_| limits.write()).collect();
        assert!(held.iter().all(Result::is_ok));
        let refused = limits.write().expect_err("turned away");
        assert_eq!(refused.code, 429);
        assert!(limits.read().is_ok());
    }
}
