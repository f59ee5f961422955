//! etcd's v3 API on the store.
//!
//! Watches what clients of etcd ask; changes keys and leases of its own in the store; whoever
//! watches through it reacts. It lets operators' `etcdctl` habits and tools written for etcd work
//! on Pintle's store, and is off unless `--etcd-listen` says where to serve it.
//!
//! ```text
//!   etcdctl ──gRPC──▶ listen ──admin certificate?──▶ kv ───┐
//!                        │                           watch ├─▶ keyspace ──▶ pintle-store
//!                        └── /health, /version       lease ┘    key ↔ /etcd/key
//!                                                    cluster, maintenance ─▶ snapshot
//! ```
//!
//! # Whose keys
//!
//! Keys put through this API lie under `/etcd/` in the store, and this API sees nothing else: no
//! put, delete or transaction can reach Pintle's own objects (`/registry/`, `/ranges/`), whatever
//! key it names, and a Kubernetes API server run on this API finds the empty `/registry/` it
//! expects. Leases are told apart by their ids: those of this API are positive as `i64`, the
//! store's own are not. What is shared is the history: there is one revision counter, so
//! revisions grow also by Pintle's own writes, compacting forgets the history of both, and old
//! revisions go by themselves after the store's retention of five minutes.
//!
//! # Where it differs from etcd
//!
//! - The Auth service answers `Unimplemented`: a client is known by its certificate.
//! - Keys are at most 4 090 bytes, transactions 16 MiB.
//! - Defragmenting does nothing, because the state database reuses its free pages.
//! - A watch from exactly the compacted revision is refused, like one before it.
//! - A snapshot holds keys and leases, not members. An etcd that restores it goes on from the last
//!   revision at which a client wrote.

pub mod address;
mod cluster;
mod error;
mod keyspace;
mod kv;
mod lease;
pub(crate) mod listen;
mod maintenance;
mod range;
mod snapshot;
#[cfg(test)]
mod tests;
mod txn;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_store::{Revision, Store};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, StdError};
use tower::Service as _;

pub use address::EtcdListen;

/// Version of the API: of etcd, whose clients look at it to know what a server can, and, as build
/// metadata, Pintle's.
const VERSION: &str = concat!("3.5.13+pintle.", env!("CARGO_PKG_VERSION"));
/// Largest request: the store's largest transaction, and what protobuf adds.
const MAX_REQUEST_BYTES: usize = 17 << 20;

/// What every service needs. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    cluster_id: u64,
    member_name: String,
    client_url: String,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Etcd {
    /// Serves `store` as member `member_name`, which clients reach at `client_url`. Streams run
    /// in `tasks` and end with `shutdown`.
    pub(crate) fn new(
        store: Store,
        member_name: &str,
        client_url: String,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                cluster_id: numeric_id(store.cluster_id()),
                store,
                member_name: member_name.to_owned(),
                client_url,
                tasks,
                shutdown,
            }),
        }
    }

    /// Calls the service a request is for.
    pub(crate) fn grpc<B>(
        &self,
        request: Request<B>,
    ) -> BoxFuture<'static, Result<Response<Body>, Infallible>>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        // No router: each of the services looks at the whole path itself.
        let service = request.uri().path().split('/').nth(1).unwrap_or_default();
        match service {
            "etcdserverpb.KV" => pb::kv_server::KvServer::new(self.clone())
                .max_decoding_message_size(MAX_REQUEST_BYTES)
                .call(request),
            "etcdserverpb.Watch" => pb::watch_server::WatchServer::new(self.clone()).call(request),
            "etcdserverpb.Lease" => pb::lease_server::LeaseServer::new(self.clone()).call(request),
            "etcdserverpb.Cluster" => {
                pb::cluster_server::ClusterServer::new(self.clone()).call(request)
            }
            "etcdserverpb.Maintenance" => {
                pb::maintenance_server::MaintenanceServer::new(self.clone()).call(request)
            }
            unknown => {
                let reason = if unknown == "etcdserverpb.Auth" {
                    "users, roles and passwords are not supported: a client certificate of the \
                     group system:masters may do everything, others nothing"
                } else {
                    "etcdserver: no such service"
                };
                let answer = Status::unimplemented(reason).into_http();
                Box::pin(std::future::ready(Ok(answer)))
            }
        }
    }

    /// What etcd answers over plain HTTP to those who probe it.
    pub(crate) fn http(&self) -> Router {
        let etcd = self.clone();
        Router::new()
            .route("/health", get(async move || etcd.health()))
            .route(
                "/version",
                get(async || {
                    axum::Json(serde_json::json!({
                        "etcdserver": VERSION,
                        "etcdcluster": "3.5.0",
                    }))
                }),
            )
    }

    fn health(&self) -> (http::StatusCode, axum::Json<serde_json::Value>) {
        let health = self.store().health();
        let reason = match (&health.failure, health.leader) {
            (Some(failure), _) => failure.clone(),
            (None, None) => "no leader".to_owned(),
            (None, Some(_)) => String::new(),
        };
        let code = if reason.is_empty() {
            http::StatusCode::OK
        } else {
            http::StatusCode::SERVICE_UNAVAILABLE
        };
        let body = serde_json::json!({
            "health": reason.is_empty().to_string(),
            "reason": reason,
        });
        (code, axum::Json(body))
    }

    fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The header of an answer given at `revision`.
    fn header(&self, revision: Revision) -> pb::ResponseHeader {
        pb::ResponseHeader {
            cluster_id: self.inner.cluster_id,
            member_id: self.store().member_id(),
            revision: revision.cast_signed(),
            raft_term: self.store().term(),
        }
    }

    /// The header of an answer given now.
    fn header_now(&self) -> pb::ResponseHeader {
        self.header(self.store().revision())
    }
}

/// etcd names clusters by numbers.
fn numeric_id(name: &str) -> u64 {
    let hash = Sha256::digest(name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_be_bytes(first)
}
