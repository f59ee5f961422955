//! The node's side of the pod network.
//!
//! Owns the leases and the netlink socket of the host's namespace, and makes what all pods
//! share:
//!
//! ```text
//! pt<instance>gw   bridge without ports; carries the gateway's and the DNS server's address
//! <pod_cidr>       unreachable, unless a pod's own /32 route says otherwise
//! <service_cidr>   unreachable: what is not a Service never leaves the node
//! <podCIDR of a peer>  by way of that node's address: pods of other nodes
//! ip_forward       on (and as it was before, after teardown)
//! pintle-<instance>  nf_tables table that masquerades
//! ```

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use parking_lot::Mutex;

use super::cidr::Cidr;
use super::ipam::Ipam;
use super::netlink::{Netlink, ROUTE_PROTOCOL, Route, Via};
use super::pod::{
    PodPlan, host_mac, host_route, link_alias, link_name, link_prefix, pod_mac, quiet_ipv6,
    remove_link,
};
use super::{NetworkConfig, NetworkError, PeerRoute, PodNetwork, nft};
use crate::service::{DataPath, PodLink};

/// MTU where no default route tells one.
const USUAL_MTU: u32 = 1_500;
/// File under the state directory that holds what `ip_forward` was.
const FORWARDING_BEFORE: &str = "ip_forward.before";
const FORWARDING: &str = "net/ipv4/ip_forward";

/// The network of one node, for threads that may block.
#[derive(Debug)]
pub(super) struct Node {
    config: NetworkConfig,
    data_path: Option<DataPath>,
    gateway: Ipv4Addr,
    mtu: u32,
    problem: Option<String>,
    /// Of routes to other nodes.
    peer_problems: Mutex<Vec<String>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    netlink: Netlink,
    ipam: Ipam,
}

impl Node {
    pub(super) fn build(
        config: NetworkConfig,
        data_path: Option<DataPath>,
    ) -> Result<Self, NetworkError> {
        let gateway = config
            .pod_cidr
            .nth(1)
            .filter(|_| config.pod_cidr.size() >= 4)
            .ok_or(NetworkError::TooSmall(config.pod_cidr))?;
        let ipam = Ipam::open(&leases_dir(&config.state_dir), config.pod_cidr)?;
        let mut netlink = Netlink::open()?;
        let mtu = match config.mtu {
            Some(mtu) => mtu,
            None => uplink_mtu(&mut netlink)?,
        };
        set_forwarding(&config.state_dir)?;
        make_gateway(&mut netlink, &config, gateway)?;
        make_routes(&mut netlink, &config)?;
        let problem = masquerade(&config);
        let node = Self {
            config,
            data_path,
            gateway,
            mtu,
            problem,
            peer_problems: Mutex::default(),
            state: Mutex::new(State { netlink, ipam }),
        };
        node.adopt_pods()?;
        Ok(node)
    }

    pub(super) fn config(&self) -> &NetworkConfig {
        &self.config
    }

    pub(super) fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }

    pub(super) fn problem(&self) -> Option<String> {
        let mut problems = self.peer_problems.lock().clone();
        problems.extend(self.problem.clone());
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Tells the data path of the pods that are connected already.
    fn adopt_pods(&self) -> Result<(), NetworkError> {
        let mut state = self.state.lock();
        let State { netlink, ipam } = &mut *state;
        for (uid, address) in ipam.leases() {
            let name = link_name(&self.config.instance_id, uid);
            if let Some(link) = netlink.link(&name)? {
                netlink.add_route(&host_route(*address, self.gateway, link.index))?;
                self.attach_data_path(name, link.index, *address, None)?;
            }
        }
        Ok(())
    }

    pub(super) fn attach(&self, uid: &str, netns: &Path) -> Result<PodNetwork, NetworkError> {
        let mut state = self.state.lock();
        let State { netlink, ipam } = &mut *state;
        let is_new = ipam.get(uid).is_none();
        let address = ipam.lease(uid)?;
        let name = link_name(&self.config.instance_id, uid);
        let plan = PodPlan {
            name: &name,
            alias: &link_alias(&self.config.instance_id, uid),
            address,
            gateway: self.gateway,
            mtu: self.mtu,
        };
        let connected = plan.connect(netlink, netns).and_then(|(index, namespace)| {
            self.attach_data_path(name.clone(), index, address, Some(namespace))
        });
        if let Err(error) = connected {
            if is_new {
                ipam.release(uid)?;
            }
            return Err(error);
        }
        Ok(PodNetwork {
            ips: vec![IpAddr::V4(address)],
            gateway: IpAddr::V4(self.gateway),
            mtu: self.mtu,
        })
    }

    fn attach_data_path(
        &self,
        interface: String,
        ifindex: u32,
        address: Ipv4Addr,
        namespace: Option<u64>,
    ) -> Result<(), NetworkError> {
        if let Some(data_path) = &self.data_path {
            data_path.attach_pod(&PodLink {
                interface,
                ifindex,
                address,
                namespace,
                pod_mac: pod_mac(address),
                host_mac: host_mac(address),
            })?;
        }
        Ok(())
    }

    /// Takes the pod off the network and returns the name of a link that is still there.
    pub(super) fn detach(&self, uid: &str) -> Result<Option<String>, NetworkError> {
        let mut state = self.state.lock();
        let State { netlink, ipam } = &mut *state;
        let name = link_name(&self.config.instance_id, uid);
        let link = netlink.link(&name)?;
        if let Some(address) = ipam.get(uid) {
            if let Some(data_path) = &self.data_path {
                data_path.detach_pod(&name, address)?;
            }
            if let Some(link) = &link {
                netlink.delete_route(&host_route(address, self.gateway, link.index))?;
            }
        }
        ipam.release(uid)?;
        Ok(link.map(|link| link.name))
    }

    /// Removes a detached pod's link, unless the pod came back meanwhile.
    pub(super) fn remove_link(&self, name: &str) -> Result<(), NetworkError> {
        let mut state = self.state.lock();
        let State { netlink, ipam } = &mut *state;
        let is_back = ipam
            .leases()
            .any(|(uid, _)| link_name(&self.config.instance_id, uid) == name);
        if is_back {
            return Ok(());
        }
        Ok(remove_link(netlink, name)?)
    }

    /// Brings the routes to other nodes' pods to `peers`.
    pub(super) fn set_peers(&self, peers: &[PeerRoute]) -> Result<(), NetworkError> {
        let mut state = self.state.lock();
        let netlink = &mut state.netlink;
        let metric = route_metric(&self.config.instance_id);
        let wanted: Vec<&PeerRoute> = peers
            .iter()
            .filter(|peer| {
                // A node that claims what is not its to give would cut off this one's own pods.
                self.config.cluster_cidr.contains(peer.pods.network())
                    && peer.pods.prefix() >= self.config.cluster_cidr.prefix()
                    && !peer.pods.overlaps(&self.config.pod_cidr)
            })
            .collect();
        let mut present = Vec::new();
        for route in netlink.routes()? {
            if !is_own_route(&route, &self.config.instance_id)
                || route.header.kind != RouteType::Unicast
            {
                continue;
            }
            let found = (destination(&route), gateway_of(&route));
            let is_wanted = wanted
                .iter()
                .any(|peer| found == (peer.pods, Some(peer.address)));
            if is_wanted {
                present.push(found.0);
            } else {
                netlink.delete_listed_route(route)?;
            }
        }
        let mut problems = Vec::new();
        for peer in wanted {
            if present.contains(&peer.pods) {
                continue;
            }
            let added = netlink.add_route(&Route {
                destination: peer.pods,
                via: Via::Neighbour {
                    address: peer.address,
                    metric,
                },
                source: None,
            });
            match added {
                Ok(()) => {
                    tracing::info!(node = peer.name, pods = %peer.pods, via = %peer.address, "route to a node's pods");
                }
                Err(error) => problems.push(format!(
                    "no route to the pods of node {} ({}): the kernel does not take {} for a neighbour ({}); hint: nodes must share a link, or give each the address it has there with --node-ip",
                    peer.name, peer.pods, peer.address, error.source
                )),
            }
        }
        drop(state);
        let mut known = self.peer_problems.lock();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::warn!("{problem}");
        }
        *known = problems;
        Ok(())
    }

    pub(super) fn reconcile(&self, live: &HashSet<String>) -> Result<(), NetworkError> {
        let mut state = self.state.lock();
        let State { netlink, ipam } = &mut *state;
        let gone: Vec<String> = ipam
            .leases()
            .map(|(uid, _)| uid.clone())
            .filter(|uid| !live.contains(uid))
            .collect();
        for uid in gone {
            tracing::info!(uid, "giving back the address of a pod that is gone");
            ipam.release(&uid)?;
        }
        let instance = &self.config.instance_id;
        let kept: Vec<(String, Ipv4Addr)> = ipam
            .leases()
            .map(|(uid, address)| (link_name(instance, uid), *address))
            .collect();
        if let Some(data_path) = &self.data_path {
            data_path.retain_pods(&kept)?;
        }
        let gateway = gateway_name(instance);
        let prefix = link_prefix(instance);
        for link in netlink.links()? {
            let is_pod = link.name.starts_with(&prefix) && link.name != gateway;
            if is_pod
                && is_marked(link.alias.as_deref(), instance)
                && !kept.iter().any(|(name, _)| *name == link.name)
            {
                tracing::info!(link = link.name, "removing the veth of a pod that is gone");
                netlink.delete_link(link.index)?;
            }
        }
        Ok(())
    }
}

/// Removes everything of an instance from this network namespace, and its leases.
pub(super) fn cleanup(instance: &str, state_dir: &Path) -> Result<(), NetworkError> {
    let mut netlink = Netlink::open()?;
    let prefix = link_prefix(instance);
    for link in netlink.links()? {
        if link.name.starts_with(&prefix) && is_marked(link.alias.as_deref(), instance) {
            netlink.delete_link(link.index)?;
        }
    }
    for route in netlink.routes()? {
        if is_own_route(&route, instance) {
            netlink.delete_listed_route(route)?;
        }
    }
    if let Err(error) = nft::remove(&table_name(instance)) {
        tracing::debug!(%error, "no masquerade table removed");
    }
    restore_forwarding(state_dir)?;
    let leases = leases_dir(state_dir);
    match std::fs::remove_dir_all(&leases) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(super::IpamError::Directory {
                path: leases,
                source,
            }
            .into())
        }
        _ => Ok(()),
    }
}

/// A link without a mark is one whose making was interrupted: its name alone tells.
fn is_marked(alias: Option<&str>, instance: &str) -> bool {
    alias.is_none_or(|alias| alias.starts_with(&format!("pintle:{instance}:")))
}

fn leases_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("leases")
}

fn gateway_name(instance: &str) -> String {
    format!("{}gw", link_prefix(instance))
}

fn table_name(instance: &str) -> String {
    format!("pintle-{instance}")
}

/// Metric of the instance's unreachable routes, by which they are found again.
fn route_metric(instance: &str) -> u32 {
    u32::from_str_radix(instance, 16).unwrap_or_default() | 0x8000_0000
}

fn is_own_route(route: &RouteMessage, instance: &str) -> bool {
    let metric = route_metric(instance);
    route.header.protocol == ROUTE_PROTOCOL
        && route.attributes.iter().any(
            |attribute| matches!(attribute, RouteAttribute::Priority(value) if *value == metric),
        )
}

fn make_gateway(
    netlink: &mut Netlink,
    config: &NetworkConfig,
    gateway: Ipv4Addr,
) -> Result<(), NetworkError> {
    let name = gateway_name(&config.instance_id);
    let link = if let Some(link) = netlink.link(&name)? {
        link
    } else {
        netlink.add_bridge(&name)?;
        netlink
            .link(&name)?
            .ok_or_else(|| NetworkError::LinkGone(name.clone()))?
    };
    let alias = link_alias(&config.instance_id, "gateway");
    if link.alias.as_deref() != Some(&alias) {
        netlink.set_alias(link.index, &alias)?;
    }
    let wanted: Vec<Ipv4Addr> = [Some(gateway), config.cluster_dns]
        .into_iter()
        .flatten()
        .collect();
    for address in netlink.addresses(link.index)? {
        if !wanted.contains(&address) {
            netlink.delete_address(link.index, address)?;
        }
    }
    for address in wanted {
        netlink.add_address(link.index, address)?;
    }
    quiet_ipv6(&name);
    netlink.set_up(link.index)?;
    Ok(())
}

fn make_routes(netlink: &mut Netlink, config: &NetworkConfig) -> Result<(), NetworkError> {
    let metric = route_metric(&config.instance_id);
    let wanted: Vec<Cidr> = [Some(config.pod_cidr), config.service_cidr]
        .into_iter()
        .flatten()
        .collect();
    for route in netlink.routes()? {
        // Routes to peers stay until the peers are known: a restart breaks no connection.
        if is_own_route(&route, &config.instance_id)
            && route.header.kind == RouteType::Unreachable
            && !wanted.contains(&destination(&route))
        {
            netlink.delete_listed_route(route)?;
        }
    }
    for destination in wanted {
        netlink.add_route(&Route {
            destination,
            via: Via::Unreachable { metric },
            source: None,
        })?;
    }
    Ok(())
}

fn destination(route: &RouteMessage) -> Cidr {
    let network = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(*address),
            _ => None,
        })
        .unwrap_or(Ipv4Addr::UNSPECIFIED);
    Cidr::around(network, route.header.destination_prefix_length)
}

fn gateway_of(route: &RouteMessage) -> Option<Ipv4Addr> {
    route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(*address),
            _ => None,
        })
}

/// Returns what is wrong when the kernel has no nf_tables; pods then reach only what has a
/// route back to them.
fn masquerade(config: &NetworkConfig) -> Option<String> {
    let name = table_name(&config.instance_id);
    let error = nft::install(&name, config.pod_cidr, config.cluster_cidr).err()?;
    let problem = format!(
        "pods cannot reach addresses outside the cluster: the kernel refused the nf_tables masquerade rule ({error}); hint: it needs nf_tables and nft_masq"
    );
    tracing::warn!("{problem}");
    Some(problem)
}

/// MTU of the interface of the best default route.
fn uplink_mtu(netlink: &mut Netlink) -> Result<u32, NetworkError> {
    let default = netlink
        .routes()?
        .into_iter()
        .filter(|route| route.header.destination_prefix_length == 0)
        .filter_map(|route| {
            let mut index = None;
            let mut metric = 0;
            for attribute in &route.attributes {
                match attribute {
                    RouteAttribute::Oif(value) => index = Some(*value),
                    RouteAttribute::Priority(value) => metric = *value,
                    _ => {}
                }
            }
            Some((metric, index?))
        })
        .min();
    let Some((_, index)) = default else {
        return Ok(USUAL_MTU);
    };
    Ok(netlink
        .links()?
        .into_iter()
        .find(|link| link.index == index)
        .map_or(USUAL_MTU, |link| link.mtu))
}

fn set_forwarding(state_dir: &Path) -> Result<(), NetworkError> {
    let path = sysctl_path(FORWARDING);
    let error = |source| NetworkError::Sysctl {
        path: path.clone(),
        source,
    };
    let before = std::fs::read_to_string(&path).map_err(error)?;
    if before.trim() == "1" {
        return Ok(());
    }
    let note = state_dir.join(FORWARDING_BEFORE);
    std::fs::write(&note, &before).map_err(|source| NetworkError::Sysctl { path: note, source })?;
    set_sysctl(FORWARDING, "1")
}

fn restore_forwarding(state_dir: &Path) -> Result<(), NetworkError> {
    let note = state_dir.join(FORWARDING_BEFORE);
    let Ok(before) = std::fs::read_to_string(&note) else {
        return Ok(());
    };
    set_sysctl(FORWARDING, before.trim())?;
    std::fs::remove_file(&note).map_err(|source| NetworkError::Sysctl { path: note, source })
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

/// Sets a kernel setting of the calling thread's network namespace.
pub(super) fn set_sysctl(name: &str, value: &str) -> Result<(), NetworkError> {
    let path = sysctl_path(name);
    std::fs::write(&path, value).map_err(|source| NetworkError::Sysctl { path, source })
}

#[cfg(test)]
mod tests;
