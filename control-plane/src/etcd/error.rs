//! What clients of etcd are told: codes and texts they know, from the store's errors.
//!
//! Watches and changes nothing. Clients compare these texts, so they are etcd's, to the letter;
//! where etcd has none for it, the text says what is wrong and what to do.

use pintle_store::{Rejection, StoreError};
use tonic::Status;

pub(super) fn empty_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

pub(super) fn key_not_found() -> Status {
    Status::invalid_argument("etcdserver: key not found")
}

pub(super) fn value_provided() -> Status {
    Status::invalid_argument("etcdserver: value is provided")
}

pub(super) fn lease_provided() -> Status {
    Status::invalid_argument("etcdserver: lease is provided")
}

pub(super) fn too_many_ops() -> Status {
    Status::invalid_argument("etcdserver: too many operations in txn request")
}

pub(super) fn duplicate_key() -> Status {
    Status::invalid_argument("etcdserver: duplicate key given in txn request")
}

pub(super) fn invalid_sort_option() -> Status {
    Status::invalid_argument("etcdserver: invalid sort option")
}

/// The text of [`compacted`], which a canceled watch carries too.
pub(super) const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

pub(super) fn compacted() -> Status {
    Status::out_of_range(COMPACTED)
}

pub(super) fn future_revision() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
}

pub(super) fn lease_not_found() -> Status {
    Status::not_found("etcdserver: requested lease not found")
}

pub(super) fn lease_exists() -> Status {
    Status::failed_precondition("etcdserver: lease already exists")
}

pub(super) fn lease_ttl_too_large() -> Status {
    Status::out_of_range("etcdserver: too large lease TTL")
}

pub(super) fn member_not_found() -> Status {
    Status::not_found("etcdserver: member not found")
}

pub(super) fn no_leader() -> Status {
    Status::unavailable("etcdserver: no leader")
}

pub(super) fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

pub(super) fn stalled() -> Status {
    Status::deadline_exceeded(
        "etcdserver: the client took nothing of the snapshot for too long; take it again",
    )
}

/// The answer to a request the store refused or failed.
pub(super) fn from_store(error: &StoreError) -> Status {
    match error {
        StoreError::Compacted { .. } => compacted(),
        StoreError::FutureRevision { .. } => future_revision(),
        StoreError::Rejected(rejection) => rejected(rejection),
        StoreError::NotLeader { leader: None } => no_leader(),
        StoreError::NotLeader { leader: Some(_) } => {
            Status::unavailable("etcdserver: leader changed")
        }
        StoreError::Closed => stopped(),
        // Clients look whether a write happened before they repeat it, as after any time-out.
        StoreError::OutcomeUnknown { .. } => Status::unavailable("etcdserver: request timed out"),
        StoreError::Members { cause } | StoreError::Refused { cause } => {
            Status::failed_precondition(format!("etcdserver: {cause}"))
        }
        StoreError::DiskFull { .. } => {
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded")
        }
        other => {
            let error = other as &dyn std::error::Error;
            tracing::error!(error, "answer a client of the etcd API");
            Status::internal(format!("etcdserver: {other}"))
        }
    }
}

fn rejected(rejection: &Rejection) -> Status {
    match rejection {
        Rejection::DuplicateKey { .. } => duplicate_key(),
        Rejection::KeyNotFound { .. } => key_not_found(),
        Rejection::TooDeep { .. } => too_many_ops(),
        Rejection::TooLarge { .. } => Status::invalid_argument("etcdserver: request is too large"),
        Rejection::LeaseNotFound { .. } => lease_not_found(),
        Rejection::LeaseExists { .. } => lease_exists(),
        Rejection::Compacted { .. } => compacted(),
        Rejection::FutureRevision { .. } => future_revision(),
        Rejection::KeyLength { .. } => Status::invalid_argument(format!("etcdserver: {rejection}")),
    }
}
