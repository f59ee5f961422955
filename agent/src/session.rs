//! The node's session with the control plane.
//!
//! Watches this node's share of the API (pods bound here, Services and EndpointSlices,
//! the Secrets and ConfigMaps the pods use, the Node itself) and keeps a local copy.
//! Changes nothing itself: it carries the requests of `status`, `node` and `pod`. Who reacts
//! next: the pod manager, the service data path and DNS, each by its own subscription.
//!
//! - [`identity`]: the node's key and client certificate; [`renewal`] keeps it young.
//! - [`membership`]: which cluster this machine joined, and where its servers are.
//! - [`join`]: from a token to both; [`pin`] knows the server by the token's hash.
//! - [`channel`]: the TLS connection to the API port.
//! - [`desired`]: the local copy and its subscriptions (no I/O).
//! - [`checkpoint`]: the copy on disk, so that pods are managed while the control plane is
//!   away.
//! - [`link`]: the loop that connects, resumes, and carries messages both ways.

pub mod channel;
pub mod checkpoint;
pub mod desired;
pub mod identity;
pub mod join;
pub mod link;
pub mod membership;
pub mod pin;
mod renewal;
pub mod requests;
mod servers;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

pub use desired::ClusterState;
pub use link::{Link, LinkBuildError, LinkConfig};
pub use requests::{ControlPlane, RequestError, SessionHandle};

/// A change of the cluster state that the service data path and DNS follow.
///
/// A subscription starts with everything that exists, then `Synced`, then changes as they
/// come. After a break of the session the changes missed arrive the same way; objects that
/// went away arrive as `None`. Keys are `namespace/name`.
#[derive(Clone, Debug)]
pub enum ClusterChange {
    /// A Service appeared or changed, or is gone.
    Service(String, Option<Arc<Service>>),
    /// An EndpointSlice appeared or changed, or is gone.
    EndpointSlice(String, Option<Arc<EndpointSlice>>),
    /// Everything known so far has been sent.
    Synced,
}

/// A change of the state that the pod manager and the node room follow; a subscription
/// works as that of [`ClusterChange`].
#[derive(Clone, Debug)]
pub enum PodChange {
    /// A pod of this node appeared or changed, or its object is gone.
    Pod(String, Option<Arc<Pod>>),
    /// A Secret that some pod here uses changed.
    Secret(String),
    /// A ConfigMap that some pod here uses changed.
    ConfigMap(String),
    /// This node's own object.
    Node(Option<Arc<Node>>),
    /// Everything known so far has been sent.
    Synced,
}
