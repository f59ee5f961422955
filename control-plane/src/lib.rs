//! The control plane: store, API, controllers and scheduler wired together.
//!
//! Owns what belongs to the cluster as a whole and to no single part: the certificate
//! authority, bootstrap and service-account tokens, the TLS listeners, the node sessions and the
//! endpoints of the `kubernetes` Service. Must not know anything of a node's inside: it meets
//! agents, also the one in its own process, only over gRPC.
//!
//! ```text
//!   kubectl ──REST──▶ ┌ server ┐ ──▶ pintle-api ──▶ pintle-store
//!                     │  TLS   │        ▲  ▲
//!   agent ───gRPC───▶ └────────┘        │  └── pintle-controllers, pintle-scheduler
//!      ▲                 │ join         │ api::client
//!      │                 ▼              │
//!      └──deltas── session ─────────────┘
//! ```

mod api_servers;
mod clock;
pub mod config;
pub mod etcd;
mod files;
pub mod identity;
pub mod join;
mod join_server;
pub mod joined;
pub mod kubeconfig;
mod leader;
mod node_keys;
pub mod peers;
pub mod pki;
pub mod run;
pub mod server;
pub mod service_account;
pub mod session;
#[cfg(test)]
mod testing;
pub mod token;
mod version_skew;

pub use config::{Cidr, ControlPlaneConfig, Joins};
pub use etcd::EtcdListen;
pub use pintle_api::server::DefaultTolerations;
pub use pintle_controllers::NodeLife;
pub use run::{BuildError, ControlPlane, RunError};
