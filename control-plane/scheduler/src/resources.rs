//! What a pod asks for and what a node offers, as numbers. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource;
use pintle_kube_types::Quantity;

/// Counted for scoring when a container asks for no CPU, so that such pods spread too.
const DEFAULT_MILLI_CPU: i64 = 100;
/// The same for memory.
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts of resources. CPU in thousandths, all else in units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral: i64,
    /// Extended resources and huge pages.
    pub(crate) scalar: BTreeMap<String, i64>,
}

type Quantities = BTreeMap<String, resource::Quantity>;

fn parsed(quantity: &resource::Quantity) -> Quantity {
    // The API lets no other quantities in.
    Quantity::parse(&quantity.0).unwrap_or_default()
}

impl Resources {
    /// From a list as objects carry it; `pods` is not a resource here.
    pub(crate) fn from_list(list: Option<&Quantities>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            let quantity = parsed(quantity);
            match name.as_str() {
                "cpu" => resources.milli_cpu = quantity.milli_value(),
                "memory" => resources.memory = quantity.value(),
                "ephemeral-storage" => resources.ephemeral = quantity.value(),
                "pods" => {}
                _ => {
                    resources.scalar.insert(name.clone(), quantity.value());
                }
            }
        }
        resources
    }

    /// The number of pods a node's list allows.
    pub(crate) fn pods_of(list: Option<&Quantities>) -> i64 {
        list.and_then(|list| list.get("pods"))
            .map_or(0, |quantity| parsed(quantity).value())
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.milli_cpu = self.milli_cpu.saturating_add(other.milli_cpu);
        self.memory = self.memory.saturating_add(other.memory);
        self.ephemeral = self.ephemeral.saturating_add(other.ephemeral);
        for (name, amount) in &other.scalar {
            let sum = self.scalar.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.milli_cpu -= other.milli_cpu;
        self.memory -= other.memory;
        self.ephemeral -= other.ephemeral;
        for (name, amount) in &other.scalar {
            *self.scalar.entry(name.clone()).or_default() -= amount;
        }
    }

    /// Raises each amount to at least that of `other`.
    fn raise(&mut self, other: &Self) {
        self.milli_cpu = self.milli_cpu.max(other.milli_cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral = self.ephemeral.max(other.ephemeral);
        for (name, amount) in &other.scalar {
            let most = self.scalar.entry(name.clone()).or_default();
            *most = (*most).max(*amount);
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral == 0
            && self.scalar.values().all(|amount| *amount == 0)
    }
}

fn requests(resources: Option<&ResourceRequirements>, defaults: bool) -> Resources {
    let list = resources.and_then(|resources| resources.requests.as_ref());
    let mut amounts = Resources::from_list(list);
    if defaults {
        let has = |name: &str| list.is_some_and(|list| list.contains_key(name));
        if !has("cpu") {
            amounts.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !has("memory") {
            amounts.memory = DEFAULT_MEMORY;
        }
    }
    amounts
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn aggregate(pod: &Pod, defaults: bool) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let mut total = Resources::default();
    for container in &spec.containers {
        total.add(&requests(container.resources.as_ref(), defaults));
    }
    // Init containers run one after another beside the sidecars started so far; the pod needs
    // whatever is more: the greatest of these moments, or all that runs in the end.
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let amounts = requests(container.resources.as_ref(), defaults);
        if is_sidecar(container) {
            total.add(&amounts);
            sidecars.add(&amounts);
            peak.raise(&sidecars);
        } else {
            let mut moment = amounts;
            moment.add(&sidecars);
            peak.raise(&moment);
        }
    }
    total.raise(&peak);
    // Requests of the pod as a whole take the place of its containers'.
    let whole = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    if let Some(list) = whole {
        let amounts = Resources::from_list(Some(list));
        if list.contains_key("cpu") {
            total.milli_cpu = amounts.milli_cpu;
        }
        if list.contains_key("memory") {
            total.memory = amounts.memory;
        }
    }
    total.add(&Resources::from_list(spec.overhead.as_ref()));
    total
}

/// What the pod needs on a node.
pub(crate) fn pod_requests(pod: &Pod) -> Resources {
    aggregate(pod, false)
}

/// What the pod counts for when nodes are compared: like its requests, with defaults where it asks
/// for nothing.
pub(crate) fn pod_weight(pod: &Pod) -> (i64, i64) {
    let amounts = aggregate(pod, true);
    (amounts.milli_cpu, amounts.memory)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn container(cpu: &str, sidecar: bool) -> Container {
        Container {
            restart_policy: sidecar.then(|| "Always".to_owned()),
            resources: Some(ResourceRequirements {
                requests: Some([("cpu".to_owned(), resource::Quantity(cpu.into()))].into()),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        }
    }

    fn cpu(containers: Vec<Container>, init: Vec<Container>) -> i64 {
        pod_requests(&Pod {
            spec: Some(PodSpec {
                containers,
                init_containers: Some(init),
                ..PodSpec::default()
            }),
            ..Pod::default()
        })
        .milli_cpu
    }

    #[test]
    fn init_containers_count_by_their_greatest_moment() {
        let two = || vec![container("100m", false), container("200m", false)];
        assert_eq!(cpu(two(), vec![]), 300);
        assert_eq!(cpu(two(), vec![container("250m", false)]), 300);
        assert_eq!(cpu(two(), vec![container("1", false)]), 1000);
        assert_eq!(cpu(two(), vec![container("100m", true)]), 400);
        assert_eq!(
            cpu(two(), vec![container("100m", true), container("1", false)]),
            1100,
            "the sidecar runs beside the later init container"
        );
        assert_eq!(
            cpu(two(), vec![container("1", false), container("100m", true)]),
            1000
        );
    }

    #[test]
    fn overhead_and_defaults_for_scoring() {
        let pod = Pod {
            spec: Some(PodSpec {
                containers: vec![Container::default(), container("1", false)],
                overhead: Some([("cpu".to_owned(), resource::Quantity("50m".into()))].into()),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        assert_eq!(pod_requests(&pod).milli_cpu, 1050);
        assert_eq!(pod_weight(&pod), (1150, 2 * DEFAULT_MEMORY));
    }
}
