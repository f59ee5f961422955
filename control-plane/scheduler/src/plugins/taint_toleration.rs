//! Filter and score: a pod goes to a tainted node only if it tolerates the taints, and rather not
//! where a taint says so softly.

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};

use super::{Plugin, Rejection};
use crate::cluster::{NodeInfo, PodInfo};

fn tolerated_by(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |text: Option<&str>| text.is_none_or(str::is_empty);
    if !empty(toleration.effect.as_deref())
        && toleration.effect.as_deref() != Some(taint.effect.as_str())
    {
        return false;
    }
    if !empty(toleration.key.as_deref()) && toleration.key.as_deref() != Some(taint.key.as_str()) {
        return false;
    }
    let value = taint.value.as_deref().unwrap_or_default();
    let wanted = toleration.value.as_deref().unwrap_or_default();
    let compare = |test: fn(i64, i64) -> bool| {
        value
            .parse()
            .ok()
            .zip(wanted.parse().ok())
            .is_some_and(|(value, wanted)| test(value, wanted))
    };
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => !empty(toleration.key.as_deref()) && value == wanted,
        Some("Lt") => compare(|value, wanted| value < wanted),
        Some("Gt") => compare(|value, wanted| value > wanted),
        Some(_) => false,
    }
}

/// Whether one of the pod's tolerations covers the taint.
pub(crate) fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.spec
        .iter()
        .flat_map(|spec| spec.tolerations.iter().flatten())
        .any(|toleration| tolerated_by(toleration, taint))
}

/// The first taint that keeps the pod away.
pub(crate) fn untolerated<'a>(pod: &Pod, node: &'a NodeInfo) -> Option<&'a Taint> {
    node.node
        .as_ref()?
        .spec
        .as_ref()?
        .taints
        .iter()
        .flatten()
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .find(|taint| !tolerates(pod, taint))
}

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    let taint = untolerated(&pod.pod, node)?;
    let value = taint.value.as_deref().unwrap_or_default();
    Some(Rejection::new(
        Plugin::TaintToleration,
        format!("node(s) had untolerated taint {{{}: {value}}}", taint.key),
        false,
    ))
}

/// How many soft taints the pod does not tolerate; fewer is better.
pub(crate) fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let count = node
        .node
        .iter()
        .filter_map(|node| node.spec.as_ref())
        .flat_map(|spec| spec.taints.iter().flatten())
        .filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(&pod.pod, taint))
        .count();
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: some(key),
            operator: some(operator),
            value: some(value),
            effect: some(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn tolerations() {
        let taint = Taint {
            key: "gpu".into(),
            value: Some("5".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        };
        let covers = |key, operator, value, effect| {
            tolerated_by(&toleration(key, operator, value, effect), &taint)
        };
        assert!(covers("gpu", "Exists", "", ""));
        assert!(covers("", "Exists", "", ""));
        assert!(covers("gpu", "", "5", "NoSchedule"));
        assert!(!covers("gpu", "Equal", "6", ""));
        assert!(!covers("gpu", "Exists", "", "NoExecute"));
        assert!(!covers("cpu", "Exists", "", ""));
        assert!(covers("gpu", "Gt", "4", ""));
        assert!(!covers("gpu", "Lt", "4", ""));
    }
}
