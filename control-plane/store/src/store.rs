//! The store as others see it.

use std::sync::Arc;
use std::time::Duration;

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::health::StoreHealth;
use crate::key_value::{
    KeyValue, LeaseId, RangeRequest, RangeResponse, Revision, Txn, TxnResponse,
};
use crate::watch::{WatchRequest, Watcher};

/// One open member of the store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    cluster_id: Arc<str>,
}

#[expect(clippy::unused_async, reason = "the signatures land first")]
impl Store {
    /// Opens the data directory, recovers, and returns when this member can serve: every
    /// write acknowledged before a crash is readable again.
    pub async fn open(config: StoreConfig) -> Result<Self, StoreError> {
        drop(config);
        Err(StoreError::Closed)
    }

    /// Stops, with a last checkpoint, and releases the data directory. Later calls answer
    /// [`StoreError::Closed`].
    pub async fn shutdown(&self) {}

    /// The cluster this data belongs to.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The newest revision applied here.
    pub fn revision(&self) -> Revision {
        0
    }

    /// The oldest revision that can be read.
    pub fn compacted_revision(&self) -> Revision {
        0
    }

    /// The newest version of `key`, from the local state. Cheap enough for async context.
    pub fn get(&self, _key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The version of `key` at `revision`.
    pub fn get_at(&self, _key: &[u8], _revision: Revision) -> Result<Option<KeyValue>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Reads a range of the local state, consistent at one revision.
    pub fn range(&self, _request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        Err(StoreError::Closed)
    }

    /// Waits until the local state holds everything acknowledged anywhere before the call,
    /// and answers its revision.
    pub async fn linearizable(&self) -> Result<Revision, StoreError> {
        Err(StoreError::Closed)
    }

    /// Runs a transaction. When it returns, its writes are on disk, readable and announced.
    pub async fn txn(&self, _txn: Txn) -> Result<TxnResponse, StoreError> {
        Err(StoreError::Closed)
    }

    /// Starts a watch.
    pub fn watch(&self, _request: WatchRequest) -> Result<Watcher, StoreError> {
        Err(StoreError::Closed)
    }

    /// Forgets the versions superseded at or before `revision`.
    pub async fn compact(&self, _revision: Revision) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Makes a lease; keys put with it are deleted when it ends. `id` 0 picks one.
    pub async fn grant_lease(&self, _id: LeaseId, _ttl: Duration) -> Result<LeaseId, StoreError> {
        Err(StoreError::Closed)
    }

    /// Ends a lease and deletes its keys.
    pub async fn revoke_lease(&self, _id: LeaseId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Starts the lease's time anew, on the leader; answers the time to live.
    pub async fn keep_lease_alive(&self, _id: LeaseId) -> Result<Duration, StoreError> {
        Err(StoreError::Closed)
    }

    /// Whether this member leads; changes are announced on the receiver.
    pub fn leadership(&self) -> tokio::sync::watch::Receiver<bool> {
        tokio::sync::watch::channel(false).1
    }

    /// How this member is doing.
    pub fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
}
