//! QoS class and limits of a pod and its containers, as the kubelet computes them. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_shim::spec::{QosClass, Resources};

const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
const SHARES_PER_CPU: u64 = 1024;
const MILLI_PER_CPU: u64 = 1000;
/// Length of a CPU period, in microseconds.
pub const PERIOD: u64 = 100_000;
const MIN_QUOTA: u64 = 1000;

/// A resource list of a spec.
type Amounts = BTreeMap<String, Quantity>;

/// A quantity in thousandths, rounded up; `None` when it is malformed.
pub fn milli(quantity: &Quantity) -> Option<u64> {
    let value = parse(&quantity.0)?;
    let milli = (value * 1000.0).ceil();
    to_u64(milli)
}

/// A quantity in whole units, rounded up; `None` when it is malformed.
pub fn whole(quantity: &Quantity) -> Option<u64> {
    to_u64(parse(&quantity.0)?.ceil())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked; amounts beyond 2^53 bytes do not occur on a node"
)]
fn to_u64(value: f64) -> Option<u64> {
    // The cast saturates.
    (value.is_finite() && value >= 0.0).then_some(value as u64)
}

/// Number and suffix of a Kubernetes quantity (the API has validated it).
fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    let scales = [
        ("Ki", 1024f64),
        ("Mi", 1024f64.powi(2)),
        ("Gi", 1024f64.powi(3)),
        ("Ti", 1024f64.powi(4)),
        ("Pi", 1024f64.powi(5)),
        ("Ei", 1024f64.powi(6)),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    for (suffix, scale) in scales {
        if let Some(number) = text.strip_suffix(suffix) {
            return number.parse::<f64>().ok().map(|number| number * scale);
        }
    }
    if let Some(number) = text.strip_suffix('E') {
        return number.parse::<f64>().ok().map(|number| number * 1e18);
    }
    text.parse().ok()
}

/// CPU shares of a request in thousandths of a CPU.
pub fn shares(milli_cpu: u64) -> u64 {
    (milli_cpu * SHARES_PER_CPU / MILLI_PER_CPU).clamp(MIN_SHARES, MAX_SHARES)
}

/// CPU time per [`PERIOD`] of a limit in thousandths of a CPU.
pub fn quota(milli_cpu: u64) -> Option<i64> {
    if milli_cpu == 0 {
        return None;
    }
    let quota = (milli_cpu * PERIOD / MILLI_PER_CPU).max(MIN_QUOTA);
    i64::try_from(quota).ok()
}

fn amount<'a>(list: Option<&'a Amounts>, name: &str) -> Option<&'a Quantity> {
    list?.get(name)
}

fn limit<'a>(resources: Option<&'a ResourceRequirements>, name: &str) -> Option<&'a Quantity> {
    amount(resources?.limits.as_ref(), name)
}

/// A request; a limit without a request is one.
fn request<'a>(resources: Option<&'a ResourceRequirements>, name: &str) -> Option<&'a Quantity> {
    let resources = resources?;
    amount(resources.requests.as_ref(), name).or_else(|| amount(resources.limits.as_ref(), name))
}

fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    })
}

/// The class of a pod.
pub fn qos(pod: &Pod) -> QosClass {
    let mut any = false;
    let mut guaranteed = true;
    let spec_level = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let levels: Vec<Option<&ResourceRequirements>> = if spec_level.is_some() {
        vec![spec_level]
    } else {
        all_containers(pod)
            .map(|container| container.resources.as_ref())
            .collect()
    };
    for resources in levels {
        for name in ["cpu", "memory"] {
            let positive = |quantity: &&Quantity| milli(quantity).unwrap_or_default() > 0;
            let request = request(resources, name).filter(positive);
            let limit = limit(resources, name).filter(positive);
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.and_then(milli) == limit.and_then(milli);
        }
    }
    if !any {
        QosClass::BestEffort
    } else if guaranteed {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// The class of a pod by name.
pub fn qos_name(pod: &Pod) -> &'static str {
    match qos(pod) {
        QosClass::Guaranteed => "Guaranteed",
        QosClass::Burstable => "Burstable",
        QosClass::BestEffort => "BestEffort",
    }
}

/// Limits of a container.
pub fn container_limits(container: &Container) -> Resources {
    let resources = container.resources.as_ref();
    let cpu_request = request(resources, "cpu")
        .and_then(milli)
        .unwrap_or_default();
    let cpu_limit = limit(resources, "cpu").and_then(milli).unwrap_or_default();
    Resources {
        cpu_shares: Some(shares(cpu_request)),
        cpu_quota: quota(cpu_limit),
        cpu_period: (cpu_limit > 0).then_some(PERIOD),
        memory_max: limit(resources, "memory")
            .and_then(whole)
            .filter(|bytes| *bytes > 0),
        pids_max: None,
    }
}

/// Limits of a pod as a whole: the sums of its containers', where all of them have one.
pub fn pod_limits(pod: &Pod, pids_max: Option<u64>) -> Resources {
    let spec_level = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let cpu_request = pod_amount(pod, spec_level, request, "cpu", milli).unwrap_or_default();
    let cpu_limit = pod_limit(pod, spec_level, "cpu", milli);
    Resources {
        cpu_shares: Some(shares(cpu_request)),
        cpu_quota: cpu_limit.and_then(quota),
        cpu_period: cpu_limit.map(|_| PERIOD),
        memory_max: pod_limit(pod, spec_level, "memory", whole).filter(|bytes| *bytes > 0),
        pids_max,
    }
}

fn pod_limit(
    pod: &Pod,
    spec_level: Option<&ResourceRequirements>,
    name: &str,
    unit: fn(&Quantity) -> Option<u64>,
) -> Option<u64> {
    if let Some(quantity) = limit(spec_level, name) {
        return unit(quantity);
    }
    let limited = pod
        .spec
        .as_ref()?
        .containers
        .iter()
        .all(|container| limit(container.resources.as_ref(), name).is_some());
    if limited {
        pod_amount(pod, None, limit, name, unit)
    } else {
        None
    }
}

/// The largest of: the sum over ordinary containers and sidecars, and each init container with
/// the sidecars before it.
fn pod_amount(
    pod: &Pod,
    spec_level: Option<&ResourceRequirements>,
    pick: for<'a> fn(Option<&'a ResourceRequirements>, &str) -> Option<&'a Quantity>,
    name: &str,
    unit: fn(&Quantity) -> Option<u64>,
) -> Option<u64> {
    if let Some(quantity) = pick(spec_level, name) {
        return unit(quantity);
    }
    let spec = pod.spec.as_ref()?;
    let of = |container: &Container| {
        pick(container.resources.as_ref(), name)
            .and_then(unit)
            .unwrap_or_default()
    };
    let mut sidecars = 0;
    let mut init_peak = 0;
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += of(container);
            init_peak = init_peak.max(sidecars);
        } else {
            init_peak = init_peak.max(sidecars + of(container));
        }
    }
    let ordinary: u64 = spec.containers.iter().map(of).sum();
    Some(init_peak.max(ordinary + sidecars))
}

/// `oom_score_adj` of a container (kubelet/qos/policy.go).
pub fn oom_score_adj(pod: &Pod, container: &Container, node_memory: u64) -> i32 {
    let critical = pod.spec.as_ref().and_then(|spec| spec.priority) >= Some(2_000_000_000);
    match qos(pod) {
        _ if critical => -997,
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = request(container.resources.as_ref(), "memory")
                .and_then(whole)
                .unwrap_or_default();
            let share = i32::try_from(1000 * request / node_memory.max(1)).unwrap_or(1000);
            // Between the guaranteed (3 = 1000 - 997) and the best-effort ones.
            (1000 - share).clamp(3, 999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: &str) -> Pod {
        serde_json::from_str(&format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{}},"spec":{{"containers":{containers}}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn quantities() {
        for (text, thousandths, units) in [
            ("100m", 100, 1),
            ("1", 1000, 1),
            ("1.5", 1500, 2),
            ("128Mi", 134_217_728_000, 134_217_728),
            ("1k", 1_000_000, 1000),
            ("2e3", 2_000_000, 2000),
        ] {
            assert_eq!(milli(&Quantity(text.into())), Some(thousandths), "{text}");
            assert_eq!(whole(&Quantity(text.into())), Some(units), "{text}");
        }
        assert_eq!(milli(&Quantity("x".into())), None);
    }

    #[test]
    fn classes() {
        for (containers, class) in [
            (r#"[{"name":"a"}]"#, QosClass::BestEffort),
            (
                r#"[{"name":"a","resources":{"requests":{"cpu":"1"}}}]"#,
                QosClass::Burstable,
            ),
            (
                r#"[{"name":"a","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]"#,
                QosClass::Guaranteed,
            ),
            (
                r#"[{"name":"a","resources":{"limits":{"cpu":"1","memory":"1Gi"}}},{"name":"b"}]"#,
                QosClass::Burstable,
            ),
        ] {
            assert_eq!(qos(&pod(containers)), class, "{containers}");
        }
    }

    #[test]
    fn limits_sum_only_when_all_have_one() {
        let both = pod(
            r#"[{"name":"a","resources":{"limits":{"cpu":"500m","memory":"64Mi"}}},{"name":"b","resources":{"limits":{"cpu":"250m"}}}]"#,
        );
        let limits = pod_limits(&both, Some(4096));
        assert_eq!(limits.cpu_quota, Some(75_000));
        assert_eq!(limits.memory_max, None);
        assert_eq!(limits.cpu_shares, Some(768));
        assert_eq!(limits.pids_max, Some(4096));
        assert_eq!(
            container_limits(&both.spec.unwrap().containers[0]).memory_max,
            Some(64 << 20)
        );
        assert_eq!(shares(0), 2);
    }

    #[test]
    fn oom_scores() {
        let node = 16 << 30;
        for (container, score) in [
            (r#"{"name":"a"}"#, 1000),
            (
                r#"{"name":"a","resources":{"requests":{"memory":"4Gi"}}}"#,
                750,
            ),
            (
                r#"{"name":"a","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}"#,
                -997,
            ),
            (r#"{"name":"a","resources":{"requests":{"cpu":"1"}}}"#, 999),
        ] {
            let pod = pod(&format!("[{container}]"));
            let spec = pod.spec.clone().unwrap();
            assert_eq!(oom_score_adj(&pod, &spec.containers[0], node), score);
        }
    }
}
