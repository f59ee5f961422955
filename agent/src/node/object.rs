//! Facts and health → the Node object, as the kubelet writes it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeSpec, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

use super::health::HealthReport;
use super::host::{HostInfo, Pressure};

/// Images named in the status, at most (the kubelet's `nodeStatusMaxImages`).
const IMAGES: usize = 50;
/// The condition that names missing cgroup controllers.
pub const LIMITS_CONDITION: &str = "ResourceLimitsUnavailable";

/// What the object is made of.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: String,
    /// Labels from the configuration.
    pub labels: BTreeMap<String, String>,
    /// The machine.
    pub host: HostInfo,
    /// Pods at most.
    pub max_pods: u32,
    /// Version of the program.
    pub version: String,
    /// Kubernetes version whose behaviour it has.
    pub kubernetes_version: String,
    /// Wanted controllers that are not on cgroup v2.
    pub missing_controllers: Vec<&'static str>,
}

/// What to do about missing controllers.
pub fn limits_message(missing: &[&str]) -> String {
    let names = match missing {
        [] => return String::new(),
        [one] => format!("{one} controller is"),
        [first @ .., last] => format!("{} and {last} controllers are", first.join(", ")),
    };
    format!(
        "the {names} not on cgroup v2, so these limits of pods are not enforced; boot with \
         systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all) to move them"
    )
}

/// Labels of Kubernetes' own domains that a node may give itself.
const OWN_LABELS: &[&str] = &[
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Whether a node may give itself this label. The API refuses others of Kubernetes' own domains
/// (`NodeRestriction`), for workloads are kept off nodes by them; an administrator sets those.
pub fn may_label(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let is_kubernetes = within("kubernetes.io") || within("k8s.io");
    !is_kubernetes
        || OWN_LABELS.contains(&label)
        || within("kubelet.kubernetes.io")
        || within("node.kubernetes.io")
}

/// The object to register.
pub fn node(facts: &NodeFacts, status: NodeStatus) -> Node {
    let mut labels = facts.labels.clone();
    let own = [
        ("kubernetes.io/hostname", facts.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", facts.host.architecture.as_str()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", facts.host.architecture.as_str()),
    ];
    for (key, value) in own {
        labels.insert(key.to_owned(), value.to_owned());
    }
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(status),
    }
}

/// The status at `now`; `before` gives the transition times.
pub fn status(
    facts: &NodeFacts,
    report: &HealthReport,
    pressure: Pressure,
    images: Vec<ContainerImage>,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let resources = resources(facts);
    let mut addresses: Vec<NodeAddress> = facts
        .host
        .addresses
        .iter()
        .map(|address| NodeAddress {
            type_: "InternalIP".to_owned(),
            address: address.to_string(),
        })
        .collect();
    addresses.push(NodeAddress {
        type_: "Hostname".to_owned(),
        address: facts.name.clone(),
    });
    NodeStatus {
        capacity: Some(resources.clone()),
        allocatable: Some(resources),
        addresses: Some(addresses),
        conditions: Some(conditions(facts, report, pressure, before, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: 10250 }),
        }),
        images: Some(images.into_iter().take(IMAGES).collect()),
        node_info: Some(NodeSystemInfo {
            architecture: facts.host.architecture.clone(),
            boot_id: facts.host.boot_id.clone(),
            container_runtime_version: format!("pintle://{}", facts.version),
            kernel_version: facts.host.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: facts.kubernetes_version.clone(),
            machine_id: facts.host.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: facts.host.os_image.clone(),
            system_uuid: facts.host.system_uuid.clone(),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    }
}

fn resources(facts: &NodeFacts) -> BTreeMap<String, Quantity> {
    [
        ("cpu", facts.host.cpus.to_string()),
        ("memory", format!("{}Ki", facts.host.memory / 1024)),
        ("pods", facts.max_pods.to_string()),
        ("ephemeral-storage", format!("{}Ki", facts.host.disk / 1024)),
        ("hugepages-1Gi", "0".to_owned()),
        ("hugepages-2Mi", "0".to_owned()),
    ]
    .into_iter()
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
    .collect()
}

fn conditions(
    facts: &NodeFacts,
    report: &HealthReport,
    pressure: Pressure,
    before: Option<&NodeStatus>,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let make = |type_: &str, holds: bool, reason: &str, message: String| {
        let status = if holds { "True" } else { "False" };
        let since = before
            .and_then(|status| status.conditions.as_ref())
            .and_then(|conditions| {
                conditions
                    .iter()
                    .find(|known| known.type_ == type_ && known.status == status)
            })
            .and_then(|known| known.last_transition_time.clone());
        NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: since.or_else(|| Some(now.clone())),
        }
    };
    let (memory, disk, pids) = (
        if pressure.memory {
            (
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            )
        } else {
            (
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            )
        },
        if pressure.disk {
            ("KubeletHasDiskPressure", "kubelet has disk pressure")
        } else {
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        },
        if pressure.pids {
            (
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
            )
        } else {
            (
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
            )
        },
    );
    let problems = report.problems();
    let mut list = Vec::new();
    if report.has_network() {
        list.push(make(
            "NetworkUnavailable",
            false,
            "PodNetworkReady",
            "pods of this node are connected".to_owned(),
        ));
    } else {
        let words = report
            .rooms
            .get("network")
            .filter(|words| !words.is_empty());
        list.push(make(
            "NetworkUnavailable",
            true,
            "PodNetworkNotReady",
            words
                .cloned()
                .unwrap_or_else(|| "waiting for a PodCIDR".to_owned()),
        ));
    }
    if !facts.missing_controllers.is_empty() {
        list.push(make(
            LIMITS_CONDITION,
            true,
            "ControllersNotOnCgroupV2",
            limits_message(&facts.missing_controllers),
        ));
    }
    list.push(make(
        "MemoryPressure",
        pressure.memory,
        memory.0,
        memory.1.to_owned(),
    ));
    list.push(make(
        "DiskPressure",
        pressure.disk,
        disk.0,
        disk.1.to_owned(),
    ));
    list.push(make(
        "PIDPressure",
        pressure.pids,
        pids.0,
        pids.1.to_owned(),
    ));
    list.push(if problems.is_empty() {
        make(
            "Ready",
            true,
            "KubeletReady",
            "kubelet is posting ready status".to_owned(),
        )
    } else {
        make("Ready", false, "KubeletNotReady", problems.join("; "))
    });
    list
}

/// Whether somebody else wrote that nothing is known of the node.
pub fn is_thought_lost(status: &NodeStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

/// Whether two statuses say the same but for their heartbeat times.
pub fn same_news(one: &NodeStatus, other: &NodeStatus) -> bool {
    let strip = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    strip(one) == strip(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(missing: Vec<&'static str>) -> NodeFacts {
        NodeFacts {
            name: "n1".into(),
            labels: BTreeMap::new(),
            host: HostInfo {
                cpus: 2,
                memory: 4 << 30,
                ..HostInfo::default()
            },
            max_pods: 110,
            version: "0.1.0".into(),
            kubernetes_version: "v1.36.0-pintle".into(),
            missing_controllers: missing,
        }
    }

    fn find<'a>(status: &'a NodeStatus, type_: &str) -> Option<&'a NodeCondition> {
        status
            .conditions
            .as_ref()?
            .iter()
            .find(|condition| condition.type_ == type_)
    }

    #[test]
    fn ready_needs_every_room() {
        let facts = facts(vec!["cpu", "memory", "pids"]);
        let mut report = HealthReport::default();
        let at = Timestamp::UNIX_EPOCH;
        let made = status(&facts, &report, Pressure::default(), vec![], None, at);
        assert_eq!(
            find(&made, "Ready").map(|c| c.status.as_str()),
            Some("False")
        );
        for room in super::super::health::ROOMS {
            report.rooms.insert(room, String::new());
        }
        let later = status(
            &facts,
            &report,
            Pressure::default(),
            vec![],
            Some(&made),
            at,
        );
        assert_eq!(
            find(&later, "Ready").map(|c| c.status.as_str()),
            Some("True")
        );
        let limits = find(&later, LIMITS_CONDITION).and_then(|c| c.message.clone());
        assert!(
            limits.is_some_and(|text| text.contains("cpu, memory and pids controllers")
                && text.contains("systemd.unified_cgroup_hierarchy=1"))
        );
    }

    #[test]
    fn heartbeat_alone_is_no_news() {
        let facts = facts(vec![]);
        let report = HealthReport::default();
        let first = status(
            &facts,
            &report,
            Pressure::default(),
            vec![],
            None,
            Timestamp::UNIX_EPOCH,
        );
        let later = Timestamp::from_second(60).unwrap_or_default();
        let second = status(
            &facts,
            &report,
            Pressure::default(),
            vec![],
            Some(&first),
            later,
        );
        assert!(same_news(&first, &second));
        assert_ne!(first, second);
    }
}
