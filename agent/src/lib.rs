//! The node side: pods, images, network, services and DNS.
//!
//! State it owns: everything Pintle made on this host (shims, cgroups, veths, mounts, BPF
//! maps, images), and the node's local copy of the cluster state it needs. State it
//! watches: its node's share of the API, which the control plane sends down the
//! [`session`]. It changes the status of its pods and of its Node object, by requests on
//! the same session. Who reacts next: the controllers and `kubectl`, which see the status.
//! It must not know the store, the API server or any other crate of the control plane.
//!
//! ```text
//!              desired state (Delta)                      status, Events, Lease (Request)
//! control plane ───────────────▶ session ──▶ ClusterState ◀──────────────── status, node
//!                                   │ ClusterChange                              ▲
//!                     ┌─────────────┼──────────────────┐                         │
//!                     ▼             ▼                  ▼                         │
//!                pod::manager    service (eBPF)      dns                         │
//!                     │ one worker per pod                                       │
//!                     ▼                                                          │
//!                pod::machine ──actions──▶ image, network, volume, runtime, probe┘
//!                (pure)       ◀──events──
//! ```

pub mod agent;
pub mod cgroup;
pub mod clock;
pub mod config;
pub mod describe;
pub mod dns;
pub mod image;
pub mod network;
pub mod node;
pub mod pod;
pub mod preflight;
pub mod probe;
pub mod runtime;
pub mod service;
pub mod session;
pub mod status;
pub mod stream;
pub mod supervisor;
pub mod sys;
pub mod volume;

pub use agent::{Agent, AgentError, cleanup_host};
pub use config::AgentConfig;
