//! etcd's v3 API: its messages, and clients and servers of its services.

/// Keys, services and their messages.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "generated/etcdserverpb.rs"]
pub mod etcdserverpb;

/// Key-values and events.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "generated/mvccpb.rs"]
pub mod mvccpb;
