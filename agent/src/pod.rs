//! The pods of this node.
//!
//! Watches the Pods bound to this node and what happens to their sandboxes and containers;
//! changes those sandboxes, containers, volumes and addresses until they are what the Pods
//! ask for. Reacts next: [`status`](crate::status), which tells the control plane.
//!
//! - [`machine`]: one pod's life, pure.
//! - [`worker`]: one task per pod, which performs what the machine asks for.
//! - [`manager`]: starts workers, adopts what an earlier agent left, removes orphans.
//! - [`record`]: the machine's facts on disk.
//! - [`seams`]: the rooms a worker needs, as traits.
//! - [`build`], [`environment`], [`resources`]: from a Pod to what the runtime starts (pure).

pub mod backoff;
pub mod build;
pub mod environment;
pub mod hooks;
pub mod machine;
pub mod manager;
pub mod record;
pub mod resources;
pub mod seams;
pub mod worker;
