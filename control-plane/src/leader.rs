//! What only the leader does: controllers and the scheduler.
//!
//! Watches the store's leadership; starts the work when this member leads, stops it when it does
//! not, and starts it again after a pause when it ended by itself. There is no second election:
//! who leads the store leads the cluster. Each start raises a [`Fence`] at
//! `/pintle/leader/NAME`, so that what an earlier leader still writes is refused.

use std::future::Future;
use std::time::Duration;

use pintle_api::client::Fence;
use pintle_store::{Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pause before work that ended by itself is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Keeps `work` running behind a fence while this member leads, until `shutdown`. The work must
/// end soon after its token is cancelled.
pub(crate) async fn while_leading<F, Fut, E>(
    store: Store,
    shutdown: CancellationToken,
    name: &'static str,
    work: F,
) where
    F: Fn(CancellationToken, Fence) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    let (key, own) = (
        format!("/pintle/leader/{name}"),
        store.member_id().to_string(),
    );
    let (store, key, own, work) = (&store, &key, &own, &work);
    follow(store.leadership(), shutdown, name, |stop| async move {
        let fence = Fence::raise(store, key, own).await;
        let fence = fence.map_err(Ended::Fence)?;
        work(stop, fence).await.map_err(Ended::Work)
    })
    .await;
}

/// Why work ended by itself.
#[derive(Debug, thiserror::Error)]
enum Ended<E: std::error::Error + 'static> {
    #[error("leadership cannot be claimed")]
    Fence(#[source] StoreError),
    #[error(transparent)]
    Work(E),
}

async fn follow<F, Fut, E>(
    mut leads: watch::Receiver<bool>,
    shutdown: CancellationToken,
    name: &'static str,
    work: F,
) where
    F: Fn(CancellationToken) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    loop {
        let elected = shutdown
            .run_until_cancelled(leads.wait_for(|leads| *leads))
            .await
            .is_some_and(|leads| leads.is_ok());
        if !elected {
            return;
        }
        let stop = shutdown.child_token();
        let mut deposed = leads.clone();
        let watch_leadership = async {
            // A closed channel is a closed store: the end as well.
            let _closed = deposed.wait_for(|leads| !*leads).await.is_err();
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tracing::debug!(name, "started");
        let ended = tokio::select! {
            ended = work(stop.clone()) => ended,
            () = watch_leadership => return,
        };
        if shutdown.is_cancelled() {
            return;
        }
        if stop.is_cancelled() {
            tracing::info!(name, "stopped: this member does not lead any more");
            continue;
        }
        match ended {
            Ok(()) => tracing::error!(name, "ended by itself"),
            Err(error) => {
                tracing::error!(name, error = &error as &dyn std::error::Error, "failed");
            }
        }
        let pause = tokio::time::sleep(RESTART_PAUSE);
        if shutdown.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn work_follows_leadership() {
        let (leader, leads) = watch::channel(false);
        let shutdown = CancellationToken::new();
        let (running, mut seen) = watch::channel(0_usize);
        let starts = AtomicUsize::new(0);
        let work = |stop: CancellationToken| {
            let starts = &starts;
            let running = &running;
            async move {
                starts.fetch_add(1, Ordering::Relaxed);
                running.send_modify(|n| *n += 1);
                stop.cancelled().await;
                running.send_modify(|n| *n -= 1);
                Ok::<(), Infallible>(())
            }
        };
        let drive = async {
            leader.send_replace(true);
            seen.wait_for(|n| *n == 1).await.unwrap();
            leader.send_replace(false);
            seen.wait_for(|n| *n == 0).await.unwrap();
            leader.send_replace(true);
            seen.wait_for(|n| *n == 1).await.unwrap();
            shutdown.cancel();
        };
        tokio::join!(follow(leads, shutdown.clone(), "work", work), drive);
        assert_eq!((*running.borrow(), starts.load(Ordering::Relaxed)), (0, 2));
    }
}
