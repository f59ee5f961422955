//! The node's session with the control plane.
//!
//! Watches this node's share of the API (pods bound here, Services and EndpointSlices,
//! the Secrets and ConfigMaps the pods use, the Node itself) and keeps a local copy.
//! Changes nothing itself: it carries the requests of `status`, `node` and `pod`. Who reacts
//! next: the pod manager, the service data path and DNS, each by its own subscription.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

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
