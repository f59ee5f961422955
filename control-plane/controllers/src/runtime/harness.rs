//! Runs controllers: feeds informer events to handlers, hands keys to a bounded number of workers,
//! retries what failed, and drains on shutdown. Also holds what every controller is built from.

use std::future::Future;
use std::sync::Arc;

use pintle_api::client::{Client, EventRecorder, Informer, InformerEvent, Kind, UserInfo};
use pintle_kube_types::Status;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::queue::WorkQueue;

/// Why a key could not be brought in line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    /// The API refused or failed.
    #[error(transparent)]
    Api(#[from] Status),
    /// Our caches do not show our own last writes yet.
    #[error("the cache is behind our own writes")]
    Stale,
    /// Something we wait for has not happened, and no event will tell.
    #[error("waiting for {what}")]
    Waiting {
        /// What we wait for.
        what: String,
    },
    /// An object could not be turned into the form needed.
    #[error("cannot encode {what}")]
    Encode {
        /// What could not be encoded.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
}

/// Brings the object of one key in line with its spec.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// The controller's name in logs.
    const NAME: &'static str;

    /// Does all that can be done for `key` now. Must be safe to repeat.
    fn reconcile(&self, key: &str) -> impl Future<Output = Result<(), ReconcileError>> + Send;
}

/// What controllers are made of, and where their tasks live.
pub(crate) struct Host {
    client: Client,
    clock: Clock,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Host {
    pub(crate) fn new(client: Client, clock: Clock, shutdown: &CancellationToken) -> Self {
        Self {
            client,
            clock,
            // Of our own, because a controller that panics stops the others too.
            shutdown: shutdown.child_token(),
            tasks: JoinSet::new(),
        }
    }

    /// A client with the identity of one controller.
    pub(crate) fn client(&self, controller: &str) -> Client {
        self.client.impersonate(UserInfo::controller(controller))
    }

    /// A recorder of events that name `component` as their source.
    pub(crate) fn recorder(&self, controller: &str, component: &str) -> EventRecorder {
        EventRecorder::new(&self.client(controller), component)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Runs a task until it ends or the host shuts down.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Calls `handle` for every change of a kind, beginning with all that exists.
    pub(crate) fn watch<K: Kind>(
        &mut self,
        informer: &Informer<K>,
        mut handle: impl FnMut(InformerEvent<K>) + Send + 'static,
    ) {
        let mut events = informer.subscribe();
        self.spawn(async move {
            while let Some(event) = events.next().await {
                handle(event);
            }
        });
    }

    /// Starts `workers` workers on a queue, once `ready` has come true. On shutdown each finishes
    /// the key it is working on.
    pub(crate) fn work<R: Reconcile>(
        &mut self,
        reconciler: &Arc<R>,
        queue: &WorkQueue,
        workers: usize,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        let shutdown = self.shutdown.clone();
        let reconciler = Arc::clone(reconciler);
        let queue = queue.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = ready => {}
            }
            let mut running = JoinSet::new();
            for _ in 0..workers {
                running.spawn(worker(Arc::clone(&reconciler), queue.clone()));
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                // Workers end only by panicking before the queue is closed.
                Some(Err(error)) = running.join_next() => {
                    tracing::error!(controller = R::NAME, %error, "a worker ended badly");
                    if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
            queue.close();
            while let Some(ended) = running.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(controller = R::NAME, %error, "a worker ended badly");
                }
            }
        });
    }

    /// Waits until every task has ended after the shutdown; `false` if one of them panicked.
    pub(crate) async fn join(mut self) -> bool {
        let mut clean = true;
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller's task ended badly");
                clean = false;
                self.shutdown.cancel();
            }
        }
        clean
    }
}

async fn worker<R: Reconcile>(reconciler: Arc<R>, queue: WorkQueue) {
    while let Some(key) = queue.get().await {
        match reconciler.reconcile(&key).await {
            Ok(()) => queue.forget(&key),
            Err(error) => {
                match &error {
                    ReconcileError::Api(status) if !status.is_conflict() => {
                        tracing::warn!(controller = R::NAME, key, %error, "will retry");
                    }
                    _ => tracing::debug!(controller = R::NAME, key, %error, "will retry"),
                }
                queue.add_rate_limited(key.clone());
            }
        }
        queue.done(&key);
    }
}
