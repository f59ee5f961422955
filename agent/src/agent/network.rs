//! Brings up what pods are connected by: pod network, Service data path, DNS.
//!
//! Watches the Node for its PodCIDR, the other nodes, and the session's Services and
//! EndpointSlices; builds the network once the range is known, keeps the routes to other nodes
//! and hands changes to the data path and DNS. Reacts next: the pod workers, whose sandboxes
//! wait for the network, and the heartbeat.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Agent, AgentError, Inner};
use crate::describe;
use crate::dns::{Dns, DnsConfig, DnsHandle};
use crate::network::{Cidr, LinkMonitor, Network, NetworkConfig, PeerRoute};
use crate::pod::worker::Message;
use crate::service::{DataPath, ServiceHandle, ServiceProxy};
use crate::session::PodChange;
use crate::supervisor::{Kind, Supervisor};

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(10);

fn cidr(option: &'static str, text: &str) -> Result<Cidr, AgentError> {
    text.parse()
        .map_err(|source| AgentError::Cidr { option, source })
}

impl Agent {
    /// The pod network, as soon as the node's range is known.
    pub(super) fn start_network(
        &self,
        service: &ServiceProxy,
        supervisor: &Supervisor,
        news: mpsc::UnboundedSender<Message>,
    ) -> Result<(), AgentError> {
        let config = &self.inner.config;
        let ranges = Ranges {
            cluster: cidr("pod-cidr", &config.cluster_cidr)?,
            service: cidr("service-cidr", &config.service_cidr)?,
        };
        let own = match &config.pod_cidr {
            Some(text) => Some(cidr("pod-cidr", text)?),
            None => None,
        };
        let (inner, data_path) = (self.inner.clone(), service.data_path());
        let shutdown = supervisor.shutdown();
        supervisor.spawn("network", Kind::Work, async move {
            let build = build_network(&inner, &ranges, own, data_path);
            if shutdown
                .run_until_cancelled(Box::pin(build))
                .await
                .is_some()
                && news.send(Message::Retry).is_err()
            {
                tracing::debug!("the pod manager has stopped");
            }
            if let Some(network) = inner.network.get() {
                let peers = follow_peers(&inner, &network);
                shutdown.run_until_cancelled(Box::pin(peers)).await;
            }
            // The manager takes the end of this channel for nothing more than silence.
            shutdown.cancelled().await;
        });
        Ok(())
    }

    /// The Service data path and DNS, fed by one subscription.
    pub(super) fn start_services(&self, service: ServiceProxy, supervisor: &Supervisor) {
        let inner = self.inner.clone();
        let handle = service.handle();
        let shutdown = supervisor.shutdown();
        supervisor.spawn("data path", Kind::Essential, service.run(shutdown.clone()));
        let (health, mut status) = (inner.health.clone(), handle.status());
        let stop = shutdown.clone();
        supervisor.spawn("data path status", Kind::Essential, async move {
            loop {
                let problem = status.borrow_and_update().problem.clone();
                health.set("data path", problem.unwrap_or_default());
                match stop.run_until_cancelled(status.changed()).await {
                    Some(Ok(())) => {}
                    Some(Err(_)) | None => break,
                }
            }
            stop.cancelled().await;
        });
        let tasks = supervisor.clone();
        supervisor.spawn("cluster changes", Kind::Essential, async move {
            let feed = feed(inner, handle, tasks, shutdown.clone());
            shutdown.run_until_cancelled(Box::pin(feed)).await;
        });
    }
}

struct Ranges {
    cluster: Cidr,
    service: Cidr,
}

/// The node's range from its object.
async fn assigned(inner: &Inner) -> Cidr {
    let mut changes = inner.state.subscribe_pods();
    while let Some(change) = changes.recv().await {
        let PodChange::Node(Some(node)) = change else {
            continue;
        };
        let Some(text) = node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone()) else {
            continue;
        };
        match text.parse() {
            Ok(range) => return range,
            Err(error) => {
                let error: crate::network::CidrError = error;
                inner
                    .health
                    .set("network", format!("PodCIDR `{text}`: {error}"));
            }
        }
    }
    std::future::pending().await
}

async fn build_network(inner: &Inner, ranges: &Ranges, own: Option<Cidr>, data_path: DataPath) {
    let pod_cidr = match own {
        Some(own) => own,
        None => assigned(inner).await,
    };
    let config = NetworkConfig {
        instance_id: inner.config.instance_id.clone(),
        pod_cidr,
        cluster_cidr: ranges.cluster,
        service_cidr: Some(ranges.service),
        cluster_dns: match inner.config.cluster_dns {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        },
        state_dir: inner.config.agent_dir().join("ipam"),
        mtu: None,
    };
    let mut wait = FIRST_RETRY;
    loop {
        match connect(inner, config.clone(), data_path.clone()).await {
            Ok(network) => {
                tracing::info!(%pod_cidr, "pod network is up");
                inner.network.set(network);
                inner.health.set("network", String::new());
                return;
            }
            Err(error) => {
                let words = describe::chain(&error);
                tracing::error!("pod network: {words}");
                inner.health.set("network", words);
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
    }
}

/// Keeps the routes to the other nodes' pods: when nodes come, go or move, and when a link of
/// this node went away with the routes over it and is back.
async fn follow_peers(inner: &Inner, network: &Network) {
    let mut peers = inner.state.watch_peers();
    let mut links = match LinkMonitor::open(&inner.config.instance_id) {
        Ok(links) => Some(links),
        Err(error) => {
            tracing::warn!(%error, "cannot hear of links that come and go");
            None
        }
    };
    loop {
        peers.borrow_and_update();
        // Before the first delta nothing is known, which is not the same as no peers.
        if inner.state.revision() > 0 {
            let routes = peer_routes(&inner.state.peers());
            tracing::debug!(?routes, "routes to other nodes");
            if let Err(error) = network.set_peers(routes).await {
                tracing::error!("routes to other nodes: {}", describe::chain(&error));
            }
        }
        let heard = async {
            match &mut links {
                Some(links) => links.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = peers.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            heard = heard => {
                if let Err(error) = heard {
                    tracing::warn!(%error, "cannot hear of links any more");
                    links = None;
                }
            }
        }
    }
}

/// The ways to the pods of other nodes.
fn peer_routes(peers: &[Arc<Node>]) -> Vec<PeerRoute> {
    let mut routes = Vec::new();
    for node in peers {
        let addresses = node
            .status
            .iter()
            .flat_map(|status| status.addresses.iter().flatten());
        let address = addresses
            .filter(|address| address.type_ == "InternalIP")
            .find_map(|address| address.address.parse::<Ipv4Addr>().ok());
        let (Some(address), Some(spec)) = (address, &node.spec) else {
            continue;
        };
        let ranges = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
        let ranges: BTreeSet<Cidr> = ranges.filter_map(|range| range.parse().ok()).collect();
        routes.extend(ranges.into_iter().map(|pods| PeerRoute {
            name: node.metadata.name.clone().unwrap_or_default(),
            pods,
            address,
        }));
    }
    routes
}

/// Builds the network and removes what pods had that are no more, before any pod is connected.
async fn connect(
    inner: &Inner,
    config: NetworkConfig,
    data_path: DataPath,
) -> Result<Network, crate::network::NetworkError> {
    let network = Network::build(config, Some(data_path)).await?;
    let mut live: Vec<String> = inner
        .state
        .pods()
        .iter()
        .filter_map(|pod| pod.metadata.uid.clone())
        .collect();
    live.extend(
        inner
            .runtime
            .list()
            .into_iter()
            .map(|state| state.spec.pod_uid),
    );
    network.reconcile(&live).await?;
    Ok(network)
}

/// Hands Services and EndpointSlices to the data path and to DNS.
async fn feed(
    inner: Arc<Inner>,
    service: ServiceHandle,
    supervisor: Supervisor,
    shutdown: CancellationToken,
) {
    let mut changes = inner.state.subscribe_cluster();
    let dns = start_dns(&inner, &supervisor, shutdown).await;
    while let Some(change) = changes.recv().await {
        dns.apply(change.clone());
        service.apply(change);
    }
}

/// Binds and runs the DNS server, however long that takes.
async fn start_dns(
    inner: &Inner,
    supervisor: &Supervisor,
    shutdown: CancellationToken,
) -> DnsHandle {
    let upstreams = inner.config.dns_upstreams.clone();
    let config = DnsConfig {
        cluster_domain: inner.config.cluster_domain.clone(),
        listen: SocketAddr::new(inner.config.cluster_dns, 53),
        service_cidr: inner.config.service_cidr.parse().ok(),
        cluster_cidr: inner.config.cluster_cidr.parse().ok(),
        upstreams: (!upstreams.is_empty()).then_some(upstreams),
    };
    let mut wait = FIRST_RETRY;
    loop {
        match Dns::build(config.clone()).await {
            Ok(dns) => {
                let handle = dns.handle();
                let health = inner.health.clone();
                health.set("dns", String::new());
                supervisor.spawn("dns", Kind::Essential, async move {
                    if let Err(error) = Box::pin(dns.run(shutdown)).await {
                        health.set("dns", describe::chain(&error));
                    }
                });
                return handle;
            }
            Err(error) => {
                let words = describe::chain(&error);
                tracing::error!("dns: {words}");
                inner.health.set("dns", words);
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
    }
}
