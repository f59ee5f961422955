//! The scheduler's picture of the cluster: nodes, what runs on them, and what it has decided but not
//! yet seen come true. Updated change by change; the core reads it while it decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm};

use crate::resources::{self, Resources};

/// Labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// A port of the host that a pod takes: address (empty for all), protocol, number.
pub(crate) type HostPort = (String, String, i32);

/// A pod with what deciding about it needs, computed once.
#[derive(Debug, Clone)]
pub(crate) struct PodInfo {
    pub(crate) pod: Arc<Pod>,
    pub(crate) requests: Resources,
    /// CPU and memory for scoring.
    pub(crate) weight: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
}

impl PodInfo {
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        let requests = resources::pod_requests(&pod);
        let weight = resources::pod_weight(&pod);
        let ports = host_ports(&pod);
        Self {
            pod,
            requests,
            weight,
            ports,
        }
    }

    pub(crate) fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn labels(&self) -> Option<&Labels> {
        self.pod.metadata.labels.as_ref()
    }

    /// The terms by which this pod keeps others away from its node.
    pub(crate) fn required_anti_affinity(&self) -> &[PodAffinityTerm] {
        self.pod
            .spec
            .as_ref()
            .and_then(|spec| spec.affinity.as_ref())
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|anti| {
                anti.required_during_scheduling_ignored_during_execution
                    .as_deref()
            })
            .unwrap_or_default()
    }

    /// The uid of the object that manages the pod.
    pub(crate) fn controller(&self) -> Option<&str> {
        self.pod
            .metadata
            .owner_references
            .as_ref()?
            .iter()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.as_str())
    }
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = match port.host_ip.as_deref() {
                None | Some("" | "0.0.0.0" | "::") => String::new(),
                Some(address) => address.to_owned(),
            };
            let protocol = port.protocol.as_deref().unwrap_or("TCP").to_owned();
            Some((address, protocol, number))
        })
        .collect()
}

/// A node and what is on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeInfo {
    /// Absent while only pods of it are known.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) allocatable: Resources,
    pub(crate) max_pods: i64,
    pub(crate) pods: BTreeMap<String, Arc<PodInfo>>,
    pub(crate) requested: Resources,
    pub(crate) weight: (i64, i64),
}

impl NodeInfo {
    fn set_node(&mut self, node: Arc<Node>) {
        let allocatable = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref());
        self.allocatable = Resources::from_list(allocatable);
        self.max_pods = Resources::pods_of(allocatable);
        self.node = Some(node);
    }

    fn add(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.weight.0 += pod.weight.0;
        self.weight.1 += pod.weight.1;
        self.pods.insert(pod.uid().to_owned(), pod);
    }

    fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        self.requested.subtract(&pod.requests);
        self.weight.0 -= pod.weight.0;
        self.weight.1 -= pod.weight.1;
        Some(pod)
    }

    pub(crate) fn labels(&self) -> Option<&Labels> {
        self.node.as_ref()?.metadata.labels.as_ref()
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels()?.get(key).map(String::as_str)
    }

    /// Whether the image is on the node, and how large it is.
    pub(crate) fn image(&self, name: &str) -> Option<i64> {
        self.node
            .as_ref()?
            .status
            .as_ref()?
            .images
            .as_ref()?
            .iter()
            .find(|image| image.names.iter().flatten().any(|known| known == name))
            .map(|image| image.size_bytes.unwrap_or(0))
    }
}

/// The picture; see the module documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cluster {
    nodes: BTreeMap<String, NodeInfo>,
    /// Which node each placed pod is on, by uid.
    placed: HashMap<String, String>,
    /// Placed by us, not yet seen bound.
    assumed: HashSet<String>,
    /// Placed pods with required anti-affinity: the only ones that keep others away.
    repelling: HashMap<String, String>,
    namespaces: BTreeMap<String, Labels>,
}

impl Cluster {
    /// The nodes that exist, by name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&String, &NodeInfo)> {
        self.nodes.iter().filter(|(_, info)| info.node.is_some())
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).filter(|info| info.node.is_some())
    }

    /// Every placed pod, with its node.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (&NodeInfo, &Arc<PodInfo>)> {
        self.nodes()
            .flat_map(|(_, info)| info.pods.values().map(move |pod| (info, pod)))
    }

    /// The placed pods that keep others away, with their nodes.
    pub(crate) fn repelling(&self) -> impl Iterator<Item = (&NodeInfo, &Arc<PodInfo>)> {
        self.repelling.iter().filter_map(|(uid, node)| {
            let info = self.node(node)?;
            Some((info, info.pods.get(uid)?))
        })
    }

    /// Labels of a namespace.
    pub(crate) fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    pub(crate) fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        match labels {
            Some(labels) => {
                self.namespaces.insert(name.to_owned(), labels);
            }
            None => {
                self.namespaces.remove(name);
            }
        }
    }

    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        self.nodes.entry(name).or_default().set_node(node);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(info) = self.nodes.get_mut(name) {
            info.node = None;
            info.allocatable = Resources::default();
            info.max_pods = 0;
            if info.pods.is_empty() {
                self.nodes.remove(name);
            }
        }
    }

    /// Puts a pod on a node, replacing what was known of it.
    pub(crate) fn place(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove_pod(pod.uid());
        let uid = pod.uid().to_owned();
        if !pod.required_anti_affinity().is_empty() {
            self.repelling.insert(uid.clone(), node.to_owned());
        }
        self.placed.insert(uid, node.to_owned());
        self.nodes.entry(node.to_owned()).or_default().add(pod);
    }

    /// Puts a pod on a node because we decided so.
    pub(crate) fn assume(&mut self, pod: Arc<PodInfo>, node: &str) {
        let uid = pod.uid().to_owned();
        self.place(pod, node);
        self.assumed.insert(uid);
    }

    /// Takes back a decision; does nothing once the pod was seen bound.
    pub(crate) fn forget(&mut self, uid: &str) {
        if self.assumed.contains(uid) {
            self.remove_pod(uid);
        }
    }

    pub(crate) fn is_assumed(&self, uid: &str) -> bool {
        self.assumed.contains(uid)
    }

    /// A pod is gone, or has ended. Returns whether it was on a node.
    pub(crate) fn remove_pod(&mut self, uid: &str) -> bool {
        self.assumed.remove(uid);
        self.repelling.remove(uid);
        let Some(node) = self.placed.remove(uid) else {
            return false;
        };
        if let Some(info) = self.nodes.get_mut(&node) {
            info.remove(uid);
            if info.node.is_none() && info.pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_objects::{node, pod};

    proptest! {
        /// Whatever order changes come in, what a node has promised is the sum over its pods.
        #[test]
        fn sums_stay_right(steps in prop::collection::vec((0_u8..5, 0_usize..6, 0_usize..3), 0..80)) {
            let mut cluster = Cluster::default();
            for (action, pod_number, node_number) in steps {
                let name = format!("n{node_number}");
                let info = Arc::new(PodInfo::new(Arc::new(pod(&format!("p{pod_number}")).cpu("100m").build())));
                match action {
                    0 => cluster.set_node(Arc::new(node(&name).build())),
                    1 => cluster.remove_node(&name),
                    2 => cluster.place(info, &name),
                    3 => cluster.assume(info, &name),
                    _ => { cluster.remove_pod(info.uid()); }
                }
                for info in cluster.nodes.values() {
                    let pods = i64::try_from(info.pods.len()).unwrap_or(0);
                    prop_assert_eq!(info.requested.milli_cpu, 100 * pods);
                    prop_assert!(info.node.is_some() || !info.pods.is_empty());
                }
                let placed: usize = cluster.nodes.values().map(|info| info.pods.len()).sum();
                prop_assert_eq!(placed, cluster.placed.len());
            }
        }
    }
}
