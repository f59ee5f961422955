//! Replicated, versioned, watchable key-value store.
//!
//! It owns everything Pintle remembers: a deterministic state machine behind a Raft log, in one
//! data directory, locked for one process. It knows keys, revisions, leases and members; it must
//! not know Kubernetes, HTTP or JSON objects, and only its `raft` module may name openraft.
//!
//! - One 64-bit revision counter. A transaction that changes something takes the next revision;
//!   all its writes share it; all of them happen or none.
//! - Every version of every key is kept until compaction, so a read or a watch may start at any
//!   kept revision. Asking for an older one is a typed error.
//! - When [`Store::txn`] returns, its writes are synced in the log, readable here, and announced
//!   to watchers. What was acknowledged survives `kill -9` at any moment.
//!
//! # Write path
//!
//! ```text
//!   callers' threads          │ thread pintle-store                          │ pintle-sync
//!                             │                                              │
//!   Store::txn ──▶ queue ─────┼▶ Proposer ── batch = one log entry           │
//!        ▲                    │     │                                        │
//!        │                    │  openraft core                               │
//!        │                    │     ├─ append ─▶ Wal: frame, one fdatasync ──┼▶ (when entries
//!        │                    │     │ committed                              │   wait to apply)
//!        │                    │     └─▶ Machine::apply: one redb transaction │
//!        │                    │             │ no sync; last applied in it    │
//!        └── outcome ◀────────┼─────────────┼─▶ Hub ─▶ watchers' queues      │
//!                             │  Keeper     └─▶ lease book                   │
//!                             │     checkpoint: redb sync ─▶ purge segments  │
//! ```
//!
//! # Read path
//!
//! ```text
//!   Store::get, range ──▶ redb read transaction: latest, or latest + history at a revision
//!   Store::linearizable ──▶ leadership confirmed, everything before applied here
//!   Store::watch ──▶ hub ring (recent) ◀── joins ── changes + history tables (older)
//! ```
//!
//! # After a crash
//!
//! The state database is as of its last checkpoint and says which entry that is. The log's torn
//! tail is cut off, damage anywhere else is refused with file and offset, and the entries after
//! the checkpoint are applied again, with the same result, before [`Store::open`] returns.
//!
//! | module | watches | changes | who reacts |
//! |---|---|---|---|
//! | `raft` | proposals, members | log, via openraft | `mvcc`, submitters |
//! | `wal` | - | `wal/*.wal` | `raft` |
//! | `mvcc` | committed entries | `state.redb` | `watch`, `keeper` |
//! | `watch` | applied changes | watchers' queues | the API |
//! | `keeper` | positions, leases, leadership | checkpoints, lease ends, compaction | `raft` |

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
mod reply;
mod request;
mod store;
mod wal;
mod watch;

pub use config::StoreConfig;
pub use error::{Rejection, StoreError};
pub use health::{SYNC_BUCKETS_MICROS, StoreHealth, SyncHistogram};
pub use key_value::{
    ALL_KEYS_END, Compare, CompareOp, CompareTarget, KeyValue, LeaseId, LeaseState, Op, OpResponse,
    RangeRequest, RangeResponse, Revision, Txn, TxnResponse, prefix_end,
};
pub use mvcc::versions::{Version, VersionIter, Versions};
pub use raft::grpc::{GrpcTransport, MEMBER_NAME, serve_peers};
pub use raft::inbox::PeerService;
pub use raft::members::Member;
pub use raft::transport::{Peer, Transport, TransportError, Unconnected};
pub use store::Store;
pub use watch::{EventKind, WatchBatch, WatchError, WatchEvent, WatchRequest, Watcher};
