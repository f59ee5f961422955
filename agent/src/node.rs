//! This node's own object.
//!
//! Watches what the node has (CPUs, memory, disk, kernel) and the health of the agent's rooms;
//! changes the Node's labels, status and Lease, and records its Events. Reacts next: the
//! scheduler and the node life-cycle controller.
//!
//! - [`host`]: facts of the machine, read from the kernel.
//! - [`health`]: whether the rooms a Ready node needs are up.
//! - [`object`]: facts and health → Node (pure).
//! - [`heartbeat`]: registers, refreshes, renews the Lease.

pub mod health;
pub mod heartbeat;
pub mod host;
pub mod object;

pub use health::{Health, HealthReport};
pub use heartbeat::{Heartbeat, HeartbeatConfig};
pub use host::HostInfo;
