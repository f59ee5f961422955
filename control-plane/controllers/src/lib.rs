//! Reconcile loops, one file per controller.
//!
//! Owns the controllers that make the cluster's objects come true: workloads (deployment → replica
//! set → pods), services (endpoint slices and endpoints), nodes (pod ranges, life cycle, leftover
//! pods) and metadata (namespaces, service accounts, the root certificate, garbage collection).
//! Each acts through the API with an identity of its own, under the same rules as kubectl. It must
//! not know the store, how nodes run pods, or the scheduler.
//!
//! ```text
//!            informers (one decoded object per revision, shared)
//!                │ events → keys
//!                ▼
//!   queue ──▶ workers ──▶ reconcile(key): cache → pure core → writes through the client
//!     ▲                                                            │
//!     └──────────── backoff on failure, or the event of the write ─┘
//! ```
//!
//! An idle cluster uses no CPU: nothing is resynced on a timer; what must happen later (a progress
//! deadline, a node's grace period) is a delayed key.

use std::time::Duration;

use pintle_api::client::Client;
use tokio_util::sync::CancellationToken;

mod meta;
mod node;
mod runtime;
mod service;
mod workload;

use runtime::clock::Clock;
use runtime::harness::Host;

/// What the controllers need to know about the cluster.
#[derive(Debug, Clone)]
pub struct ControllersConfig {
    /// A client that may act as any controller.
    pub client: Client,
    /// The cluster's pod range, such as `10.244.0.0/16`.
    pub pod_cidr: String,
    /// The prefix length of one node's share of it.
    pub node_cidr_mask: u8,
    /// The certificate authority pods verify the API server with, PEM.
    pub root_ca_pem: String,
    /// What becomes of nodes that fail, and of their pods.
    pub node_life: NodeLife,
}

/// What becomes of nodes that fail, and of their pods. [`Default`] is as Kubernetes has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeLife {
    /// How long a node may be silent before its conditions become Unknown.
    pub grace: Duration,
    /// The same for a node that has never said how it is.
    pub startup_grace: Duration,
    /// Nodes per second that pods are taken off, in a zone that is well or failed entirely.
    pub eviction_rate: f64,
    /// The same in a large zone that mostly failed; in a small one it is none.
    pub secondary_eviction_rate: f64,
    /// The share of failed nodes from which on a zone has mostly failed.
    pub unhealthy_zone_threshold: f64,
    /// A zone of more nodes than this is large.
    pub large_zone: usize,
    /// How long a node must have been missing before what is left of its pods is removed: it may
    /// only have been deleted to register anew.
    pub quarantine: Duration,
    /// Finished pods that are kept, in the whole cluster; 0 keeps all.
    pub terminated_pods: usize,
}

impl Default for NodeLife {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(50),
            startup_grace: Duration::from_mins(1),
            eviction_rate: 0.1,
            secondary_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_zone: 50,
            quarantine: Duration::from_secs(40),
            terminated_pods: 12_500,
        }
    }
}

impl ControllersConfig {
    /// The usual settings: /24 per node, and Kubernetes' patience with nodes.
    pub fn new(
        client: Client,
        pod_cidr: impl Into<String>,
        root_ca_pem: impl Into<String>,
    ) -> Self {
        Self {
            client,
            pod_cidr: pod_cidr.into(),
            node_cidr_mask: 24,
            root_ca_pem: root_ca_pem.into(),
            node_life: NodeLife::default(),
        }
    }
}

/// Why the controllers could not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllersError {
    /// The pod range is not usable.
    #[error("pod range `{cidr}` cannot be divided into /{mask} ranges: {reason}")]
    PodCidr {
        /// The range.
        cidr: String,
        /// The prefix length of a node's share.
        mask: u8,
        /// What is wrong.
        reason: &'static str,
    },
    /// A controller's task panicked; the log tells which.
    #[error("a controller ended unexpectedly")]
    Panicked,
}

/// Runs every controller until `shutdown`; returns when all have finished what they were doing.
pub async fn run(
    config: ControllersConfig,
    shutdown: CancellationToken,
) -> Result<(), ControllersError> {
    let ranges = node::ranges::NodeRanges::new(&config.pod_cidr, config.node_cidr_mask)?;
    let mut host = Host::new(config.client, Clock::system(), &shutdown);
    node::ipam::NodeIpam::start(&mut host, ranges);
    node::lifecycle::NodeLifecycle::start(&mut host, config.node_life);
    node::taint_eviction::TaintEviction::start(&mut host);
    node::pod_gc::PodGc::start(&mut host, config.node_life);
    meta::service_account::ServiceAccounts::start(&mut host);
    meta::root_ca::RootCa::start(&mut host, config.root_ca_pem);
    meta::namespace::Namespaces::start(&mut host);
    meta::garbage_collector::GarbageCollector::start(&mut host);
    workload::deployment::Deployments::start(&mut host);
    workload::replicaset::ReplicaSets::start(&mut host);
    workload::disruption::Disruption::start(&mut host);
    service::endpointslice::EndpointSlices::start(&mut host);
    service::endpoints::EndpointsController::start(&mut host);
    if host.join().await {
        Ok(())
    } else {
        Err(ControllersError::Panicked)
    }
}
