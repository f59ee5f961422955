//! What Kubernetes does to one kind alone.

/// The kinds with behaviour of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Nothing particular.
    Plain,
    /// Deployments.
    Deployment,
    /// Endpoints.
    Endpoints,
    /// Endpoint slices.
    EndpointSlice,
    /// Events.
    Event,
    /// Leases.
    Lease,
    /// Namespaces.
    Namespace,
    /// Nodes.
    Node,
    /// Pods.
    Pod,
    /// Replica sets.
    ReplicaSet,
    /// Secrets.
    Secret,
    /// Services.
    Service,
    /// Service accounts.
    ServiceAccount,
}
