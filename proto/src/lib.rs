//! gRPC contracts between Pintle's parts.
//!
//! The sources are `proto/proto/*.proto`; `cargo xtask codegen` turns them into
//! `src/generated/`, which is committed so that building needs neither `protoc` nor a
//! build script. A test of `xtask` fails when the two differ.
//!
//! - [`node`]: a node's agent and the control plane (join, session, streams).
//! - [`admin`]: the `pintle` command and a running instance, over its unix socket.
//! - [`raft`]: the members of the store's Raft group.
//! - [`etcd`]: clients of etcd v3 and the store.
//! - [`token`]: the text of a join token, which both sides of Join know.

pub mod etcd;

/// Join, session and streams of a node.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "generated/pintle.node.v1.rs"]
pub mod node;

/// Administration of a running instance.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "generated/pintle.admin.v1.rs"]
pub mod admin;

/// Replication of the store.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "generated/pintle.raft.v1.rs"]
pub mod raft;

pub mod token;

/// Largest gRPC message either side accepts, in bytes: a Delta carries many objects of up
/// to 3 MiB each.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
