//! Which API servers there are: told to agents, and kept as the endpoints of the `kubernetes`
//! Service.
//!
//! Each server has a key `/pintle/servers/ADDRESS:PORT` bound to a lease of its own, which it
//! keeps alive: the server that is gone is gone from the list [`LIFE`] later, as with
//! kube-apiserver's master leases. (Keeping a lease alive is not written to the log.) Every
//! server watches the keys; agents hear of the list through their sessions
//! ([`crate::session`]), and the leader of the group writes it into the Service's endpoints,
//! which the data path follows.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use pintle_api::server::ApiServer;
use pintle_store::{
    EventKind, LeaseId, Op, RangeRequest, Store, StoreError, Txn, WatchEvent, WatchRequest,
    prefix_end,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PREFIX: &str = "/pintle/servers/";
/// How long a server that does not say anything is taken to be there.
const LIFE: Duration = Duration::from_secs(15);
/// How often it says so.
const BEAT: Duration = Duration::from_secs(5);
/// Pause before something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The servers that are there now, and this one.
pub(crate) fn known(store: &Store, own: SocketAddr) -> Result<BTreeSet<SocketAddr>, StoreError> {
    let range = store.range(&RangeRequest::prefix(PREFIX))?;
    Ok(range
        .kvs
        .iter()
        .filter_map(|kv| address(&kv.key))
        .chain([own])
        .collect())
}

/// As agents are told: this server first, at the address `public`.
pub(crate) fn in_order(
    public: SocketAddr,
    own: SocketAddr,
    servers: &BTreeSet<SocketAddr>,
) -> Vec<String> {
    let others = servers.iter().filter(|server| **server != own);
    std::iter::once(&public)
        .chain(others)
        .map(ToString::to_string)
        .collect()
}

/// Keeps this server's key alive until `shutdown`, then removes it.
pub(crate) async fn announce(store: Store, own: SocketAddr, shutdown: CancellationToken) {
    let mut lease = None;
    loop {
        let kept = match lease {
            Some(lease) => store.keep_lease_alive(lease).await.map(|_left| lease),
            None => register(&store, own).await,
        };
        let pause = match kept {
            Ok(kept) => {
                lease = Some(kept);
                BEAT
            }
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "announce this server"
                );
                lease = None;
                RETRY
            }
        };
        let pause = shutdown.run_until_cancelled(tokio::time::sleep(pause));
        if pause.await.is_none() {
            break;
        }
    }
    // A single server is there again at its next start, before anybody could mind.
    if store.members().len() > 1
        && let Some(lease) = lease
        && let Ok(Err(error)) = tokio::time::timeout(RETRY, store.revoke_lease(lease)).await
    {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "take this server off the list"
        );
    }
}

async fn register(store: &Store, own: SocketAddr) -> Result<LeaseId, StoreError> {
    let lease = store.grant_lease(0, LIFE).await?;
    let put = Op::Put {
        key: Bytes::from(format!("{PREFIX}{own}")),
        value: Bytes::new(),
        lease,
    };
    let txn = Txn {
        success: vec![put],
        ..Txn::default()
    };
    store.txn(txn).await?;
    Ok(lease)
}

/// What [`follow`] works with.
pub(crate) struct Following {
    /// Has the keys.
    pub(crate) store: Store,
    /// Writes the endpoints.
    pub(crate) api: ApiServer,
    /// Where machines reach this server.
    pub(crate) public: SocketAddr,
    /// This server's place in the endpoints.
    pub(crate) own: SocketAddr,
    /// What agents are told.
    pub(crate) servers: watch::Sender<Vec<String>>,
}

/// Follows the keys until `shutdown`: into the list for agents on every server, into the
/// endpoints of the `kubernetes` Service on the one that leads.
pub(crate) async fn follow(following: Following, shutdown: CancellationToken) {
    let work = async {
        loop {
            if let Err(error) = following.once().await {
                tracing::warn!(error, "follow the list of servers");
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    shutdown.run_until_cancelled(work).await;
}

impl Following {
    /// Follows the keys until something fails.
    async fn once(&self) -> Result<(), String> {
        let failed = |error: StoreError| error.to_string();
        let mut leads = self.store.leadership();
        let mut written = None;
        let seen = self.store.revision();
        let mut now = known(&self.store, self.own).map_err(failed)?;
        let request = WatchRequest {
            start: Bytes::from_static(PREFIX.as_bytes()),
            end: prefix_end(PREFIX.as_bytes()),
            from_revision: Some(seen + 1),
            ..WatchRequest::default()
        };
        let mut watcher = self.store.watch(request).map_err(failed)?;
        loop {
            let list = in_order(self.public, self.own, &now);
            self.servers.send_if_modified(|old| {
                let is_news = *old != list;
                *old = list;
                is_news
            });
            if !*leads.borrow_and_update() {
                written = None;
            } else if written.as_ref() != Some(&now) {
                self.write(&now).await?;
                written = Some(now.clone());
            }
            tokio::select! {
                batch = watcher.next() => {
                    let batch = batch.ok_or("the watch ended")?;
                    for event in batch.map_err(|error| error.to_string())?.events {
                        self.take(&mut now, &event);
                    }
                }
                changed = leads.changed() => changed.map_err(|_closed| "the store is closed")?,
            }
        }
    }

    fn take(&self, now: &mut BTreeSet<SocketAddr>, event: &WatchEvent) {
        match (address(&event.kv.key), event.kind) {
            (Some(server), EventKind::Put) => {
                now.insert(server);
            }
            (Some(server), EventKind::Delete) if server != self.own => {
                now.remove(&server);
            }
            _ => {}
        }
    }

    /// Endpoints have one port for all addresses, which joining sees to.
    async fn write(&self, servers: &BTreeSet<SocketAddr>) -> Result<(), String> {
        let port = self.own.port();
        let addresses: Vec<_> = servers
            .iter()
            .filter(|server| server.port() == port)
            .map(SocketAddr::ip)
            .collect();
        let written = self.api.advertise(&addresses, port).await;
        written.map_err(|status| status.to_string())
    }
}

fn address(key: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(key).ok()?;
    text.strip_prefix(PREFIX)?.parse().ok()
}
