//! Clusters of several machines: network namespaces on one link, real `pintle` processes in
//! them, the real kubectl, as root.
//!
//! They run one after another (see `harness::node`) and clean up, so a second run sees the same
//! machine.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::missing_panics_doc,
    reason = "a test binary has no users"
)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic and print"
)]
#![allow(dead_code, reason = "the harness serves other tests too")]

mod drama;
mod joining;
mod servers;

/// What the stories share.
#[path = "../harness"]
mod harness {
    pub mod http;
    pub mod node;
}
