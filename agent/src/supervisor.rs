//! The one place that starts background tasks.
//!
//! Watches the tasks it started; changes nothing but their fate. A task that must live as
//! long as the agent is [`Kind::Essential`]: should it end early, the whole agent drains and
//! the process ends, because an agent that manages half a node is worse than one that is
//! restarted and adopts its pods. [`Kind::Work`] may end whenever it is done.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Runs until shutdown; ending earlier stops the agent.
    Essential,
    /// Ends when its work is done.
    Work,
}

/// Starts tasks, and waits for them at the end.
#[derive(Clone, Debug)]
pub struct Supervisor {
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Supervisor {
    /// A supervisor whose tasks stop when `shutdown` is cancelled.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            tracker: TaskTracker::new(),
            shutdown,
        }
    }

    /// The signal its tasks must obey.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Starts a task.
    pub fn spawn<F>(&self, name: &'static str, kind: Kind, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shutdown = self.shutdown.clone();
        let guard = EndGuard {
            name,
            kind,
            shutdown,
        };
        self.tracker.spawn(async move {
            let _guard = guard;
            future.await;
        });
    }

    /// Waits until every task has ended; call after cancelling the shutdown token.
    pub async fn drain(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Runs its verdict also when the task panics.
struct EndGuard {
    name: &'static str,
    kind: Kind,
    shutdown: CancellationToken,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if self.kind == Kind::Essential && !self.shutdown.is_cancelled() {
            tracing::error!(
                task = self.name,
                "essential task ended early; the agent stops"
            );
            self.shutdown.cancel();
        }
    }
}
