//! The Kubernetes REST API: everything under `/api` and `/apis`, over the store.
//!
//! Owns: the shape of requests and responses, who may do what, what an object must look
//! like before it is stored, and how stored revisions are listed and watched. It must not
//! know how controllers reconcile, how pods run, or how the store replicates.
//!
//! ```text
//!  kubectl ──HTTP──▶ http ─▶ request ─┐
//!                                     ├─▶ authenticate ─▶ authorise ─▶ admit ─▶ validate ─▶ persist ─▶ store
//!  controllers, scheduler ──▶ client ─┘                                                       │
//!                              ▲                                                              ▼
//!                              └── informers ◀── storage::hub (one watch of the whole store) ◀┘
//!                                     HTTP watches ◀──┘
//! ```
//!
//! A write becomes visible to watchers only after the store acknowledged it, because the
//! hub learns of it from the store's own watch.

pub mod admission;
pub mod auth;
pub mod client;
pub mod clock;
pub mod discovery;
mod http;
pub mod openapi;
mod pipeline;
pub mod registry;
pub mod request;
pub mod server;
pub mod storage;
pub mod stream;
pub mod table;
#[cfg(test)]
mod tests;
