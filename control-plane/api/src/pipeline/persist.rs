//! Persist: the last module of the pipeline, where a decision becomes a transaction.
//!
//! Every write compares the revision it was decided on, so two writers of one object cannot
//! lose each other's change. What belongs to the object but lies under keys of its own
//! (a cluster IP, a node port) is written or released in the same transaction.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pintle_kube_types::Object;
use pintle_kube_types::status::{Reason, Status};
use pintle_store::{Compare, Op, Rejection, StoreError, Txn};

use super::fence::{Fence, deposed};
use super::{Attributes, Core, Stored};
use crate::registry::Resource;
use crate::registry::strategy::Strategy;
use crate::storage::value::Encoded;

/// How long an Event is kept (the API server's `--event-ttl`).
const EVENT_TTL: Duration = Duration::from_hours(1);
/// Events written within this many seconds share a lease.
const LEASE_SHARED_SECONDS: i64 = 60;

/// An object read from the store, to decide on.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    pub(crate) key: Bytes,
    pub(crate) value: Encoded,
    pub(crate) revision: u64,
}

impl Current {
    /// The object, with its resourceVersion.
    pub(crate) fn object(&self) -> Result<Object, Status> {
        self.stored().object()
    }

    pub(crate) fn stored(&self) -> Stored {
        Stored::new(self.value.clone(), self.revision)
    }
}

/// Further conditions and operations of an object's transaction.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) compares: Vec<Compare>,
    pub(crate) ops: Vec<Op>,
}

/// The lease that Events share.
#[derive(Debug, Default)]
pub(crate) struct EventLease(tokio::sync::Mutex<Option<(u64, Timestamp)>>);

impl Core {
    /// Reads an object's newest revision.
    pub(crate) fn read(&self, key: &Bytes) -> Result<Option<Current>, Status> {
        let Some(kv) = self.store().get(key).map_err(store_failed)? else {
            return Ok(None);
        };
        let value = Encoded::from_stored(kv.value).map_err(Status::internal_error)?;
        Ok(Some(Current {
            key: kv.key,
            value,
            revision: kv.mod_revision,
        }))
    }

    /// Reads the object a request names, or 404.
    pub(crate) fn read_named(&self, attributes: &Attributes) -> Result<Current, Status> {
        let name = attributes.name()?;
        self.read(&attributes.key(name))?
            .ok_or_else(|| Status::not_found(&attributes.resource.group_resource(), name))
    }

    /// Writes a new object. `None` when a condition failed: the caller decides anew.
    pub(crate) async fn insert(
        &self,
        resource: &Resource,
        key: &Bytes,
        object: &Object,
        effects: Effects,
        dry_run: bool,
    ) -> Result<Option<Stored>, Status> {
        self.put(resource, key, object, 0, effects, dry_run).await
    }

    /// Writes an object's next revision. `None` when somebody else wrote in between.
    pub(crate) async fn replace(
        &self,
        resource: &Resource,
        current: &Current,
        object: &Object,
        effects: Effects,
        dry_run: bool,
    ) -> Result<Option<Stored>, Status> {
        self.put(
            resource,
            &current.key,
            object,
            current.revision,
            effects,
            dry_run,
        )
        .await
    }

    async fn put(
        &self,
        resource: &Resource,
        key: &Bytes,
        object: &Object,
        revision: u64,
        effects: Effects,
        dry_run: bool,
    ) -> Result<Option<Stored>, Status> {
        let value = Encoded::encode(object);
        if dry_run {
            return Ok(Some(Stored::new(value, revision)));
        }
        let lease = match resource.strategy {
            Strategy::Event => self.event_lease().await?,
            _ => 0,
        };
        let mut compares = effects.compares;
        compares.push(Compare::mod_revision(key.clone(), revision));
        let mut success = effects.ops;
        success.push(Op::Put {
            key: key.clone(),
            value: value.stored(),
            lease,
        });
        let response = self.commit(compares, success).await;
        if lease != 0
            && matches!(
                &response,
                Err(StoreError::Rejected(Rejection::LeaseNotFound { .. }))
            )
        {
            // It ended while we held on to it: the caller decides anew, with a new one.
            *self.event_lease.0.lock().await = None;
            return Ok(None);
        }
        let written = response.map_err(store_failed)?.revision()?;
        Ok(written.map(|revision| Stored::new(value, revision)))
    }

    /// Removes an object. `None` when somebody else wrote in between; otherwise the last state
    /// at the revision of the deletion.
    pub(crate) async fn remove(
        &self,
        current: &Current,
        effects: Effects,
        dry_run: bool,
    ) -> Result<Option<Stored>, Status> {
        if dry_run {
            return Ok(Some(current.stored()));
        }
        let mut compares = effects.compares;
        compares.push(Compare::mod_revision(current.key.clone(), current.revision));
        let mut success = effects.ops;
        success.push(Op::delete(current.key.clone()));
        let committed = self.commit(compares, success).await;
        let removed = committed.map_err(store_failed)?.revision()?;
        Ok(removed.map(|revision| Stored::new(current.value.clone(), revision)))
    }

    async fn commit(
        &self,
        mut compares: Vec<Compare>,
        success: Vec<Op>,
    ) -> Result<Committed, StoreError> {
        let fence = Fence::current();
        compares.extend(fence.as_ref().map(Fence::compare));
        let failure = fence.as_ref().map(Fence::read).into_iter().collect();
        let response = self
            .store()
            .txn(Txn {
                compares,
                success,
                failure,
            })
            .await?;
        if response.succeeded {
            return Ok(Committed::At(response.revision));
        }
        let is_deposed = fence
            .zip(response.responses.first())
            .is_some_and(|(fence, read)| !fence.still_stands(read));
        Ok(if is_deposed {
            Committed::Deposed
        } else {
            Committed::Outrun
        })
    }

    async fn event_lease(&self) -> Result<u64, Status> {
        let now = self.clock().now();
        let mut shared = self.event_lease.0.lock().await;
        if let Some((lease, granted)) = *shared
            && now.as_second() - granted.as_second() < LEASE_SHARED_SECONDS
        {
            return Ok(lease);
        }
        let ttl = EVENT_TTL + Duration::from_secs(LEASE_SHARED_SECONDS.unsigned_abs());
        let lease = self
            .store()
            .grant_lease(0, ttl)
            .await
            .map_err(store_failed)?;
        *shared = Some((lease, now));
        Ok(lease)
    }
}

/// What a transaction came to.
enum Committed {
    /// Written at this revision.
    At(u64),
    /// Somebody else wrote in between.
    Outrun,
    /// The writer leads no more.
    Deposed,
}

impl Committed {
    /// `None` when somebody else wrote in between.
    fn revision(self) -> Result<Option<u64>, Status> {
        match self {
            Self::At(revision) => Ok(Some(revision)),
            Self::Outrun => Ok(None),
            Self::Deposed => Err(deposed()),
        }
    }
}

/// The Status of a failure of the store.
pub(crate) fn store_failed(error: StoreError) -> Status {
    match error {
        StoreError::Rejected(Rejection::TooLarge { .. }) => {
            Status::request_entity_too_large("the object is larger than the store takes")
        }
        // 504 without a hint to retry: a client that repeats a write by itself might do it twice.
        StoreError::OutcomeUnknown { .. } => Status::timeout(error.to_string(), 0),
        StoreError::NotLeader { .. } | StoreError::Refused { .. } | StoreError::Closed => {
            Status::service_unavailable(format!("the store cannot be reached: {error}"))
        }
        StoreError::DiskFull { .. } => Status::service_unavailable(error.to_string()),
        StoreError::Compacted {
            requested,
            compacted,
        } => Status::expired(format!(
            "too old resource version: {requested} ({compacted})"
        )),
        StoreError::FutureRevision { requested, current } => {
            let mut status = Status::timeout(
                format!("Too large resource version: {requested}, current: {current}"),
                1,
            );
            if let Some(details) = &mut status.details {
                details.causes.push(pintle_kube_types::status::Cause {
                    reason: "ResourceVersionTooLarge".to_owned(),
                    message: "Too large resource version".to_owned(),
                    field: String::new(),
                });
            }
            status
        }
        other => {
            tracing::error!(error = %other, "the store failed");
            Status::internal_error(other)
        }
    }
}

/// An error without a reason of its own: 500 with just its text, as Kubernetes answers those.
pub(crate) fn plain_failure(message: &str) -> Status {
    Status::new(Reason::Unknown, message)
}
