//! What both endpoint controllers ask: which Services a pod change concerns, whether and how a pod
//! takes part in a Service, and what number a port name stands for. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pintle_api::client::{Informer, object_key};

use crate::runtime::{objects, pods, selector};

/// Set on slices and endpoints of a Service without a cluster address.
pub(crate) const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// Whether the Service has no cluster address.
pub(crate) fn is_headless(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref())
        == Some("None")
}

/// Whether the Service wants pods published before they are ready.
pub(crate) fn publishes_not_ready(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.publish_not_ready_addresses)
        .unwrap_or(false)
}

/// The Service's selector, when there is one and pods are to be found by it.
pub(crate) fn pod_selector(service: &Service) -> Option<&selector::Labels> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    spec.selector
        .as_ref()
        .filter(|selector| !selector.is_empty())
}

/// The keys of the Services that must be looked at again because a pod changed.
pub(crate) fn concerned(
    services: &Informer<Service>,
    old: Option<&Pod>,
    new: Option<&Pod>,
) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let Some(pod) = new.or(old) else {
        return keys;
    };
    let relabelled = match (old, new) {
        (Some(old), Some(new)) => {
            let relabelled = old.metadata.labels != new.metadata.labels;
            if !relabelled && view(old) == view(new) {
                return keys;
            }
            relabelled
        }
        _ => false,
    };
    for service in services.list_namespace(objects::namespace(&pod.metadata)) {
        let Some(wanted) = pod_selector(&service) else {
            continue;
        };
        let now = selector::contains_all(wanted, pod.metadata.labels.as_ref());
        let before = relabelled
            && old.is_some_and(|old| selector::contains_all(wanted, old.metadata.labels.as_ref()));
        if now || before {
            keys.insert(object_key(&service.metadata));
        }
    }
    keys
}

/// Everything of a pod that an endpoint shows.
fn view(pod: &Pod) -> impl PartialEq + '_ {
    let spec = pod.spec.as_ref();
    (
        addresses(pod),
        pods::is_ready(pod),
        pods::is_terminal(pod),
        pods::is_terminating(pod),
        pods::node_name(pod),
        spec.and_then(|spec| spec.hostname.as_deref()),
        spec.and_then(|spec| spec.subdomain.as_deref()),
    )
}

/// The addresses of a pod.
pub(crate) fn addresses(pod: &Pod) -> Vec<&str> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    match &status.pod_ips {
        Some(ips) if !ips.is_empty() => ips.iter().map(|ip| ip.ip.as_str()).collect(),
        _ => status.pod_ip.as_deref().into_iter().collect(),
    }
}

/// The pod's first address of a family, `IPv4` or `IPv6`.
pub(crate) fn address<'a>(pod: &'a Pod, family: &str) -> Option<&'a str> {
    addresses(pod)
        .into_iter()
        .find(|ip| !ip.is_empty() && ip.contains(':') == (family == "IPv6"))
}

/// The name under which a headless Service publishes this pod on its own.
pub(crate) fn published_hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let subdomain = spec.subdomain.as_deref()?;
    if subdomain != objects::name(&service.metadata) {
        return None;
    }
    spec.hostname
        .clone()
        .filter(|hostname| !hostname.is_empty())
}

/// The reference from an endpoint to its pod.
pub(crate) fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The container port a Service port leads to on this pod; `None` if the pod has no such port.
pub(crate) fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars = spec
                .init_containers
                .iter()
                .flatten()
                .filter(|container| container.restart_policy.as_deref() == Some("Always"));
            spec.containers
                .iter()
                .chain(sidecars)
                .find_map(|container| named_port(container, name, protocol(port)))
        }
    }
}

/// The protocol of a Service port.
pub(crate) fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn named_port(container: &Container, name: &str, protocol: &str) -> Option<i32> {
    container
        .ports
        .iter()
        .flatten()
        .find(|port| {
            port.name.as_deref() == Some(name)
                && port.protocol.as_deref().unwrap_or("TCP") == protocol
        })
        .map(|port| port.container_port)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerPort, PodIP, PodSpec, PodStatus};

    use super::*;

    #[test]
    fn names_resolve_per_pod_and_protocol() {
        let container = |restart: Option<&str>, port: i32, name: &str, protocol: &str| Container {
            restart_policy: restart.map(str::to_owned),
            ports: Some(vec![ContainerPort {
                container_port: port,
                name: Some(name.into()),
                protocol: Some(protocol.into()),
                ..ContainerPort::default()
            }]),
            ..Container::default()
        };
        let pod = Pod {
            spec: Some(PodSpec {
                containers: vec![container(None, 8080, "web", "TCP")],
                init_containers: Some(vec![
                    container(None, 1, "setup", "TCP"),
                    container(Some("Always"), 9090, "metrics", "TCP"),
                ]),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let port = |target: Option<IntOrString>, protocol: Option<&str>| ServicePort {
            port: 80,
            target_port: target,
            protocol: protocol.map(str::to_owned),
            ..ServicePort::default()
        };
        let named = |name: &str| Some(IntOrString::String(name.into()));
        assert_eq!(target_port(&pod, &port(named("web"), None)), Some(8080));
        assert_eq!(target_port(&pod, &port(named("web"), Some("UDP"))), None);
        assert_eq!(target_port(&pod, &port(named("metrics"), None)), Some(9090));
        assert_eq!(target_port(&pod, &port(named("setup"), None)), None);
        assert_eq!(
            target_port(&pod, &port(Some(IntOrString::Int(81)), None)),
            Some(81)
        );
        assert_eq!(target_port(&pod, &port(None, None)), Some(80));
    }

    #[test]
    fn addresses_by_family() {
        let pod = Pod {
            status: Some(PodStatus {
                pod_ip: Some("10.0.0.1".into()),
                pod_ips: Some(vec![
                    PodIP {
                        ip: "10.0.0.1".into(),
                    },
                    PodIP {
                        ip: "fd00::1".into(),
                    },
                ]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        };
        assert_eq!(address(&pod, "IPv4"), Some("10.0.0.1"));
        assert_eq!(address(&pod, "IPv6"), Some("fd00::1"));
        assert_eq!(address(&Pod::default(), "IPv4"), None);
    }
}
