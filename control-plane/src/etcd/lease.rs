//! The Lease service: grant, revoke, keep alive, time to live, list.
//!
//! Watches keep-alive streams; changes leases in the store, which deletes their keys when they
//! end. Leases the store gave itself are not there for clients.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_store::{Rejection, StoreError};
use tonic::{Request, Response, Status, Streaming};

use super::error::{from_store, lease_exists, lease_not_found, lease_ttl_too_large};
use super::{Etcd, keyspace};

/// The shortest lease, as in etcd with its defaults: an election must not be able to end it.
const MIN_TTL: i64 = 2;
/// The longest lease etcd gives.
const MAX_TTL: i64 = 9_000_000_000;
/// How often an id is picked anew when a lease has it already.
const PICKS: usize = 8;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl pb::lease_server::Lease for Etcd {
    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Answer<pb::LeaseGrantResponse> {
        let request = request.into_inner();
        if request.ttl > MAX_TTL {
            return Err(lease_ttl_too_large());
        }
        let seconds = request.ttl.max(MIN_TTL);
        let ttl = Duration::from_secs(seconds.unsigned_abs());
        let id = match request.id {
            0 => self.grant_any(ttl).await?,
            id => {
                let id = keyspace::lease(id).ok_or_else(|| {
                    Status::invalid_argument("etcdserver: a lease ID must be positive")
                })?;
                let granted = self.store().grant_lease(id, ttl).await;
                granted.map_err(|error| from_store(&error))?
            }
        };
        Ok(Response::new(pb::LeaseGrantResponse {
            header: Some(self.header_now()),
            id: id.cast_signed(),
            ttl: seconds,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Answer<pb::LeaseRevokeResponse> {
        let id = keyspace::lease(request.into_inner().id).ok_or_else(lease_not_found)?;
        let revoked = self.store().revoke_lease(id).await;
        revoked.map_err(|error| from_store(&error))?;
        Ok(Response::new(pb::LeaseRevokeResponse {
            header: Some(self.header_now()),
        }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        let etcd = self.clone();
        let stop = self.inner.shutdown.clone().cancelled_owned();
        let answers = request
            .into_inner()
            .take_until(stop)
            .then(move |request| keep_alive(etcd.clone(), request));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Answer<pb::LeaseTimeToLiveResponse> {
        let request = request.into_inner();
        let current = self.store().linearizable().await;
        current.map_err(|error| from_store(&error))?;
        let id = keyspace::lease(request.id);
        let Some((id, state)) = id.and_then(|id| Some((id, self.store().lease(id)?))) else {
            return Ok(Response::new(pb::LeaseTimeToLiveResponse {
                header: Some(self.header_now()),
                id: request.id,
                ttl: -1,
                ..pb::LeaseTimeToLiveResponse::default()
            }));
        };
        let keys = if request.keys {
            let keys = self.store().lease_keys(id);
            keys.map_err(|error| from_store(&error))?
        } else {
            Vec::new()
        };
        Ok(Response::new(pb::LeaseTimeToLiveResponse {
            header: Some(self.header_now()),
            id: request.id,
            ttl: seconds(state.left),
            granted_ttl: seconds(state.ttl),
            keys: keys.iter().map(keyspace::strip).collect(),
        }))
    }

    async fn lease_leases(
        &self,
        _request: Request<pb::LeaseLeasesRequest>,
    ) -> Answer<pb::LeaseLeasesResponse> {
        let current = self.store().linearizable().await;
        current.map_err(|error| from_store(&error))?;
        let leases = self.store().leases();
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: Some(self.header_now()),
            leases: leases
                .into_iter()
                .filter(|id| keyspace::is_ours(*id))
                .map(|id| pb::LeaseStatus {
                    id: id.cast_signed(),
                })
                .collect(),
        }))
    }
}

impl Etcd {
    /// Grants a lease with an id nobody has.
    async fn grant_any(&self, ttl: Duration) -> Result<u64, Status> {
        for _ in 0..PICKS {
            let id = rand::random_range(1..=i64::MAX.cast_unsigned());
            match self.store().grant_lease(id, ttl).await {
                Err(StoreError::Rejected(Rejection::LeaseExists { .. })) => {}
                granted => return granted.map_err(|error| from_store(&error)),
            }
        }
        Err(lease_exists())
    }
}

async fn keep_alive(
    etcd: Etcd,
    request: Result<pb::LeaseKeepAliveRequest, Status>,
) -> Result<pb::LeaseKeepAliveResponse, Status> {
    let id = request?.id;
    let kept = match keyspace::lease(id) {
        Some(lease) => etcd.store().keep_lease_alive(lease).await,
        None => Ok(Duration::ZERO),
    };
    let ttl = match kept {
        Ok(ttl) => seconds(ttl),
        // Not an error of the stream: clients keep many leases alive on one.
        Err(StoreError::Rejected(Rejection::LeaseNotFound { .. })) => 0,
        Err(error) => return Err(from_store(&error)),
    };
    Ok(pb::LeaseKeepAliveResponse {
        header: Some(etcd.header_now()),
        id,
        ttl,
    })
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}
