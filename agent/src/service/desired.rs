//! What a Service and its EndpointSlices ask of the data path.
//!
//! Pure: reads the index of [`cluster`](super::cluster), decides which addresses are
//! translated and to what. Who reacts next: [`table`](super::table), which compares it with
//! the maps.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use pintle_ebpf_abi::{Backend, FrontendKey};

use super::cluster::ClusterServices;

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredPort {
    pub(super) id: PortId,
    /// Addresses under which it is reached; all lead to the same backends.
    pub(super) frontends: Vec<FrontendKey>,
    pub(super) backends: BTreeSet<Backend>,
}

/// Names a port within its Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PortId {
    pub(super) name: String,
    pub(super) protocol: u8,
}

/// The protocol's number, for those a socket program can translate.
pub(super) fn protocol_number(name: Option<&str>) -> Option<u8> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(6),
        "UDP" => Some(17),
        _ => None,
    }
}

/// The ports of the Service at `key`; empty when there is no such Service or it has no
/// address of its own.
pub(super) fn ports(cluster: &ClusterServices, key: &str) -> Vec<DesiredPort> {
    let Some(service) = cluster.service(key) else {
        return Vec::new();
    };
    let addresses = virtual_addresses(service);
    if addresses.is_empty() {
        return Vec::new();
    }
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    ports
        .unwrap_or_default()
        .iter()
        .filter_map(|port| {
            let protocol = protocol_number(port.protocol.as_deref())?;
            let number = u16::try_from(port.port).ok()?;
            Some(DesiredPort {
                id: PortId {
                    name: port.name.clone().unwrap_or_default(),
                    protocol,
                },
                frontends: addresses
                    .iter()
                    .map(|address| FrontendKey {
                        address: wire(*address),
                        port: number.to_be(),
                        protocol,
                        scope: 0,
                    })
                    .collect(),
                backends: backends(cluster, key, port, protocol),
            })
        })
        .collect()
}

/// An address as the maps hold it.
pub(super) fn wire(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

fn virtual_addresses(service: &Service) -> Vec<Ipv4Addr> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    let mut texts: Vec<&str> = spec
        .cluster_ips
        .iter()
        .flatten()
        .map(String::as_str)
        .collect();
    if texts.is_empty() {
        texts.extend(spec.cluster_ip.as_deref());
    }
    // "None" (headless) and IPv6 do not parse.
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// The ready endpoints; when there is none, those that still serve while they terminate, as
/// kube-proxy does.
fn backends(
    cluster: &ClusterServices,
    key: &str,
    port: &ServicePort,
    protocol: u8,
) -> BTreeSet<Backend> {
    let mut ready = BTreeSet::new();
    let mut draining = BTreeSet::new();
    for slice in cluster.slices(key) {
        if slice.address_type != "IPv4" {
            continue;
        }
        let Some(number) = port_number(slice, port, protocol) else {
            continue;
        };
        for endpoint in slice.endpoints.iter().flatten() {
            let Some(address) = address(endpoint) else {
                continue;
            };
            let backend = Backend {
                address: wire(address),
                port: number.to_be(),
                flags: 0,
            };
            match usability(endpoint) {
                Usability::Ready => ready.insert(backend),
                Usability::Draining => draining.insert(backend),
                Usability::No => false,
            };
        }
    }
    if ready.is_empty() { draining } else { ready }
}

fn address(endpoint: &Endpoint) -> Option<Ipv4Addr> {
    // Kubernetes defines only the first address.
    endpoint.addresses.first()?.parse().ok()
}

fn port_number(slice: &EndpointSlice, port: &ServicePort, protocol: u8) -> Option<u16> {
    let wanted = port.name.as_deref().unwrap_or_default();
    slice.ports.iter().flatten().find_map(|candidate| {
        let same = candidate.name.as_deref().unwrap_or_default() == wanted
            && protocol_number(candidate.protocol.as_deref()) == Some(protocol);
        same.then(|| candidate.port.and_then(|port| u16::try_from(port).ok()))?
    })
}

enum Usability {
    Ready,
    Draining,
    No,
}

fn usability(endpoint: &Endpoint) -> Usability {
    let Some(conditions) = &endpoint.conditions else {
        return Usability::Ready;
    };
    // An unknown `ready` counts as true; an unknown `serving` follows `ready`.
    let ready = conditions.ready.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(ready);
    if ready {
        Usability::Ready
    } else if serving && conditions.terminating.unwrap_or(false) {
        Usability::Draining
    } else {
        Usability::No
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::fixtures::{endpoint, service, slice};
    use super::*;

    fn cluster(changes: Vec<crate::session::ClusterChange>) -> ClusterServices {
        let mut cluster = ClusterServices::default();
        for change in changes {
            cluster.apply(change);
        }
        cluster
    }

    fn addresses(port: &DesiredPort) -> Vec<(Ipv4Addr, u16)> {
        port.backends
            .iter()
            .map(|backend| {
                (
                    Ipv4Addr::from(backend.address.to_ne_bytes()),
                    u16::from_be(backend.port),
                )
            })
            .collect()
    }

    #[test]
    fn ready_endpoints_become_backends_by_port_name() {
        let cluster = cluster(vec![
            service(
                "web",
                "10.96.0.20",
                &[("http", 80, "TCP"), ("dns", 53, "UDP"), ("s", 9, "SCTP")],
            ),
            slice(
                "web",
                &[("http", 8080, "TCP"), ("dns", 5353, "UDP")],
                vec![
                    endpoint("10.244.0.2", true, true, false),
                    endpoint("10.244.0.3", false, false, false),
                    endpoint("10.244.0.4", false, true, true),
                ],
            ),
        ]);
        let ports = ports(&cluster, "default/web");
        assert_eq!(ports.len(), 2, "SCTP is not translated");
        assert_eq!(addresses(&ports[0]), [(Ipv4Addr::new(10, 244, 0, 2), 8080)]);
        assert_eq!(addresses(&ports[1]), [(Ipv4Addr::new(10, 244, 0, 2), 5353)]);
        assert_eq!(ports[0].frontends[0].port, 80_u16.to_be());
    }

    #[test]
    fn without_ready_endpoints_the_terminating_ones_that_serve_are_used() {
        let cluster = cluster(vec![
            service("web", "10.96.0.20", &[("", 80, "TCP")]),
            slice(
                "web",
                &[("", 80, "TCP")],
                vec![
                    endpoint("10.244.0.2", false, true, true),
                    endpoint("10.244.0.3", false, false, true),
                ],
            ),
        ]);
        let ports = ports(&cluster, "default/web");
        assert_eq!(addresses(&ports[0]), [(Ipv4Addr::new(10, 244, 0, 2), 80)]);
    }

    #[test]
    fn a_service_without_endpoints_has_a_frontend_and_no_backends() {
        let cluster = cluster(vec![service("web", "10.96.0.20", &[("", 80, "TCP")])]);
        let ports = ports(&cluster, "default/web");
        assert_eq!(ports[0].frontends.len(), 1);
        assert!(ports[0].backends.is_empty());
    }

    #[test]
    fn headless_services_are_not_translated() {
        let cluster = cluster(vec![service("web", "None", &[("", 80, "TCP")])]);
        assert!(ports(&cluster, "default/web").is_empty());
        assert!(ports(&cluster, "default/other").is_empty());
    }
}
