//! One pod's connection: a veth pair between its namespace and the host.
//!
//! ```text
//!   pod: eth0  <ip>/32, default via <gateway>, gateway's hardware address fixed
//!     │  veth
//!   host: pt<instance><hash>  route <ip>/32 from <gateway>, pod's hardware address fixed
//! ```
//!
//! Nobody ever asks for a hardware address, so no broadcast is needed and none is answered.
//! Changes links, addresses, routes and neighbours at both ends; every step may have been done
//! already.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::NetworkError;
use super::cidr::Cidr;
use super::netlink::{Link, Mac, Netlink, NetlinkError, Route, VethPair, Via};
use super::netns;
use super::node::set_sysctl;

/// Interface in the pod.
const INSIDE: &str = "eth0";
const DEFAULT_ROUTE: u8 = 0;

/// What is needed to connect a pod.
pub(super) struct PodPlan<'a> {
    pub(super) name: &'a str,
    pub(super) alias: &'a str,
    pub(super) address: Ipv4Addr,
    pub(super) gateway: Ipv4Addr,
    pub(super) mtu: u32,
}

/// First part of the names of an instance's links.
pub(super) fn link_prefix(instance: &str) -> String {
    let short: String = instance.chars().take(4).collect();
    format!("pt{short}")
}

/// Name of the host side of a pod's veth: the same for the same pod, 15 characters at most.
pub(super) fn link_name(instance: &str, uid: &str) -> String {
    let hash = hex::encode(Sha256::digest(uid.as_bytes()));
    format!("{}{}", link_prefix(instance), &hash[..9])
}

/// Mark on the host side of a pod's veth.
pub(super) fn link_alias(instance: &str, uid: &str) -> String {
    format!("pintle:{instance}:{uid}")
}

/// Hardware address in the pod: locally administered, unique by the pod's address.
pub(super) fn pod_mac(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    [0x0a, 0x70, a, b, c, d]
}

/// Hardware address of the host side.
pub(super) fn host_mac(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    [0x0a, 0x71, a, b, c, d]
}

impl PodPlan<'_> {
    /// Connects the namespace and returns the index of the host side and the cookie of the
    /// namespace.
    pub(super) fn connect(
        &self,
        host: &mut Netlink,
        path: &Path,
    ) -> Result<(u32, u64), NetworkError> {
        let namespace_error = |source| NetworkError::Namespace {
            path: path.to_owned(),
            source,
        };
        let netns = File::open(path).map_err(namespace_error)?;
        let mut inside = netns::within(&netns, Netlink::open).map_err(namespace_error)??;
        let link = self.host_link(host, &mut inside, &netns)?;
        netns::within(&netns, || self.set_up_inside(&mut inside)).map_err(namespace_error)??;
        self.set_up_host(host, &link)?;
        Ok((link.index, inside.namespace()?))
    }

    /// The host side, with its other end in the pod: the one that is there, else a new one.
    fn host_link(
        &self,
        host: &mut Netlink,
        inside: &mut Netlink,
        netns: &File,
    ) -> Result<Link, NetworkError> {
        if let Some(link) = host.link(self.name)? {
            let is_ours = inside.link(INSIDE)?.is_some_and(|eth| {
                eth.peer == Some(link.index) && eth.address == Some(pod_mac(self.address))
            });
            if is_ours {
                return Ok(link);
            }
            // Its other end is in a namespace this pod no longer has.
            host.delete_link(link.index)?;
        }
        if let Some(stale) = inside.link(INSIDE)? {
            inside.delete_link(stale.index)?;
        }
        host.add_veth(&VethPair {
            host_name: self.name,
            host_mac: host_mac(self.address),
            pod_name: INSIDE,
            pod_mac: pod_mac(self.address),
            pod_netns: netns.as_raw_fd(),
            mtu: self.mtu,
        })?;
        host.link(self.name)?
            .ok_or_else(|| NetworkError::LinkGone(self.name.to_owned()))
    }

    fn set_up_inside(&self, inside: &mut Netlink) -> Result<(), NetworkError> {
        if let Some(loopback) = inside.link("lo")? {
            inside.set_up(loopback.index)?;
        }
        let eth = inside
            .link(INSIDE)?
            .ok_or_else(|| NetworkError::LinkGone(INSIDE.to_owned()))?;
        // Without an IPv6 address from the cluster there is nothing to say on the link.
        quiet_ipv6(INSIDE);
        inside.set_up(eth.index)?;
        inside.add_address(eth.index, self.address)?;
        inside.add_neighbour(eth.index, self.gateway, host_mac(self.address))?;
        inside.add_route(&Route {
            destination: Cidr::around(self.gateway, 32),
            via: Via::Link(eth.index),
            source: Some(self.address),
        })?;
        inside.add_route(&Route {
            destination: Cidr::around(Ipv4Addr::UNSPECIFIED, DEFAULT_ROUTE),
            via: Via::Gateway(self.gateway, eth.index),
            source: Some(self.address),
        })?;
        Ok(())
    }

    fn set_up_host(&self, host: &mut Netlink, link: &Link) -> Result<(), NetworkError> {
        if link.alias.as_deref() != Some(self.alias) {
            host.set_alias(link.index, self.alias)?;
        }
        quiet_ipv6(self.name);
        host.add_neighbour(link.index, self.address, pod_mac(self.address))?;
        host.add_route(&host_route(self.address, self.gateway, link.index))?;
        Ok(())
    }
}

/// The host's way to a pod.
pub(super) fn host_route(address: Ipv4Addr, gateway: Ipv4Addr, index: u32) -> Route {
    Route {
        destination: Cidr::around(address, 32),
        via: Via::Link(index),
        source: Some(gateway),
    }
}

/// Keeps IPv6 from announcing itself on a link; a kernel without IPv6 needs no such thing.
pub(super) fn quiet_ipv6(interface: &str) {
    let setting = format!("net/ipv6/conf/{interface}/disable_ipv6");
    if let Err(error) = set_sysctl(&setting, "1") {
        tracing::debug!(%error, "IPv6 stays on");
    }
}

/// Removes a link by name; one that is not there is removed already.
pub(super) fn remove_link(host: &mut Netlink, name: &str) -> Result<(), NetlinkError> {
    match host.link(name)? {
        Some(link) => host.delete_link(link.index),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_an_interface_and_differ() {
        let name = link_name("0a1b2c3d", "5f0e4c1a-8f0a-4f0e-9d0c-6f9a6f1b2c3d");
        assert_eq!(name.len(), 15);
        assert!(name.starts_with("pt0a1b"));
        assert_ne!(name, link_name("0a1b2c3d", "other"));
        assert_ne!(
            name,
            link_name("1a1b2c3d", "5f0e4c1a-8f0a-4f0e-9d0c-6f9a6f1b2c3d")
        );
    }

    #[test]
    fn hardware_addresses_are_local_and_unicast() {
        let address = Ipv4Addr::new(10, 244, 0, 2);
        for mac in [pod_mac(address), host_mac(address)] {
            assert_eq!(mac[0] & 0b11, 0b10);
        }
        assert_ne!(pod_mac(address), host_mac(address));
    }
}
