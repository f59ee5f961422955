//! Filter: two pods on one node cannot have the same port of the host.

use super::{Plugin, Rejection};
use crate::cluster::{HostPort, NodeInfo, PodInfo};

fn clash(a: &HostPort, b: &HostPort) -> bool {
    a.1 == b.1 && a.2 == b.2 && (a.0.is_empty() || b.0.is_empty() || a.0 == b.0)
}

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    if pod.ports.is_empty() {
        return None;
    }
    let taken = node
        .pods
        .values()
        .flat_map(|other| &other.ports)
        .any(|taken| pod.ports.iter().any(|wanted| clash(wanted, taken)));
    taken.then(|| {
        Rejection::new(
            Plugin::NodePorts,
            "node(s) didn't have free ports for the requested pod ports",
            true,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_clash_by_protocol_number_and_address() {
        let port = |address: &str, protocol: &str, number| {
            (address.to_owned(), protocol.to_owned(), number)
        };
        assert!(clash(&port("", "TCP", 80), &port("10.0.0.1", "TCP", 80)));
        assert!(!clash(
            &port("10.0.0.2", "TCP", 80),
            &port("10.0.0.1", "TCP", 80)
        ));
        assert!(!clash(&port("", "UDP", 80), &port("", "TCP", 80)));
        assert!(!clash(&port("", "TCP", 81), &port("", "TCP", 80)));
    }
}
