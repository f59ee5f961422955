//! Replicated, versioned, watchable key-value store.

mod config;
mod data_dir;
mod error;
mod failure;
mod health;
mod keeper;
mod key_value;
mod lease;
mod mvcc;
mod raft;
mod request;
mod store;
mod wal;
mod watch;

pub use config::StoreConfig;
pub use error::{Rejection, StoreError};
pub use health::{SYNC_BUCKETS_MICROS, StoreHealth, SyncHistogram};
pub use key_value::{
    ALL_KEYS_END, Compare, CompareOp, CompareTarget, KeyValue, LeaseId, Op, OpResponse,
    RangeRequest, RangeResponse, Revision, Txn, TxnResponse, prefix_end,
};
pub use store::Store;
pub use watch::{EventKind, WatchBatch, WatchError, WatchEvent, WatchRequest, Watcher};
