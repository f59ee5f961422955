//! Waits until a container that serves a Service listens.
//!
//! A container without a readiness probe is ready as soon as it runs. Elsewhere the second
//! that the kubelet takes to notice covers the moment until its program listens; here the
//! endpoints would be faster than the program, and connections be refused. So a container
//! whose pod a Service selects counts as started when its ports listen, or after a while.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::sync::Semaphore;

/// How long a container may take to listen; after that it counts as started all the same.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between the first two looks: the kernel tells nobody that a socket listens.
const PERIOD: Duration = Duration::from_millis(4);
/// Between two looks, at most; each pause is twice the one before.
const LONGEST_PERIOD: Duration = Duration::from_millis(64);
/// One look at a time: the kernel walks all its sockets for each, which takes milliseconds,
/// and many pods may start at once.
static LOOKING: Semaphore = Semaphore::const_new(1);

/// Waits, when there is anything to wait for.
pub(super) async fn wait(
    pod: &Pod,
    container: &Container,
    services: &[Arc<Service>],
    shim_pid: i32,
) {
    if container.readiness_probe.is_some() || container.startup_probe.is_some() {
        return;
    }
    let wanted = target_ports(pod, services);
    if wanted.is_empty() {
        return;
    }
    let listening = async {
        let mut period = PERIOD;
        while let Ok(turn) = LOOKING.acquire().await {
            let look = tokio::task::spawn_blocking(move || listening(shim_pid)).await;
            match look {
                Ok(Some(ports)) if !wanted.is_subset(&ports) => {}
                _ => return,
            }
            drop(turn);
            tokio::time::sleep(period).await;
            period = (period * 2).min(LONGEST_PERIOD);
        }
    };
    if tokio::time::timeout(PATIENCE, listening).await.is_err() {
        tracing::debug!(pod = ?pod.metadata.name, ?wanted, "does not listen yet");
    }
}

/// The TCP ports at which Services expect the pod.
fn target_ports(pod: &Pod, services: &[Arc<Service>]) -> BTreeSet<u16> {
    services
        .iter()
        .filter(|service| service.metadata.namespace == pod.metadata.namespace)
        .filter_map(|service| service.spec.as_ref())
        .filter(|spec| {
            let labels = pod.metadata.labels.as_ref();
            spec.selector.as_ref().is_some_and(|selector| {
                !selector.is_empty()
                    && selector.iter().all(|(key, value)| {
                        labels.and_then(|labels| labels.get(key)) == Some(value)
                    })
            })
        })
        .flat_map(|spec| spec.ports.iter().flatten())
        .filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP")
        .filter_map(|port| target_port(pod, port))
        .collect()
}

fn target_port(pod: &Pod, port: &ServicePort) -> Option<u16> {
    let number = match &port.target_port {
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            pod.spec
                .as_ref()?
                .containers
                .iter()
                .flat_map(|container| container.ports.iter().flatten())
                .find(|port| port.name.as_deref() == Some(name))?
                .container_port
        }
        None => port.port,
    };
    u16::try_from(number).ok()
}

/// Ports that listen in a process's network namespace; `None` when that has gone.
fn listening(pid: i32) -> Option<BTreeSet<u16>> {
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    let mut ports = parse(&table("tcp").ok()?);
    // There may be no IPv6.
    ports.extend(parse(&table("tcp6").unwrap_or_default()));
    Some(ports)
}

/// Local ports of the sockets in state LISTEN (0A) of proc_net_tcp(5).
fn parse(table: &str) -> BTreeSet<u16> {
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
            let port = local.rsplit(':').next()?;
            (state == "0A").then(|| u16::from_str_radix(port, 16).ok())?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn listening_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 00000000:0050 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:1F90 0100007F:C350 01 00000000:00000000\n";
        assert_eq!(parse(table), [80].into());
    }

    #[test]
    fn ports_of_the_services_that_select_the_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]}
        }))
        .unwrap();
        let service = |namespace: &str, selector: serde_json::Value, port: serde_json::Value| {
            Arc::new(
                serde_json::from_value::<Service>(json!({
                    "metadata": {"namespace": namespace}, "spec": {"selector": selector, "ports": [port]}
                }))
                .unwrap(),
            )
        };
        let services = [
            service(
                "ns",
                json!({"app": "web"}),
                json!({"port": 80, "targetPort": "http"}),
            ),
            service("ns", json!({"app": "web"}), json!({"port": 90})),
            service(
                "ns",
                json!({"app": "web"}),
                json!({"port": 53, "protocol": "UDP"}),
            ),
            service("ns", json!({"app": "db"}), json!({"port": 1})),
            service("ns", json!({}), json!({"port": 2})),
            service("other", json!({"app": "web"}), json!({"port": 3})),
        ];
        assert_eq!(target_ports(&pod, &services), [90, 8080].into());
    }
}
