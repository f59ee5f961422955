//! End-to-end tests: the real `pintle` binary, the real kubectl, real namespaces, as root.
//!
//! One module per story. They run one after another (see `harness::node`) and clean up, so a
//! second run sees the same machine.

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

mod bad_input;
mod crash;
mod drain;
mod etcdctl;
mod host;
mod journey;
mod life_cycle;

/// What the stories share.
#[path = "../harness"]
mod harness {
    pub mod http;
    pub mod maps;
    pub mod node;
}
