//! Filter and score: node selectors and node affinity.

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod};

use super::{Plugin, Rejection};
use crate::cluster::{NodeInfo, PodInfo};

fn affinity(pod: &Pod) -> Option<&NodeAffinity> {
    pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()
}

fn requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|wanted| wanted == value);
    let compare = |test: fn(i64, i64) -> bool| {
        let wanted = values.first().and_then(|wanted| wanted.parse().ok());
        value
            .and_then(|value| value.parse().ok())
            .zip(wanted)
            .is_some_and(|(value, wanted)| test(value, wanted))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, wanted| value > wanted),
        "Lt" => compare(|value, wanted| value < wanted),
        _ => false,
    }
}

/// Whether a term matches the node. An empty term matches nothing.
fn term(term: &NodeSelectorTerm, name: &str, node: &NodeInfo) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|wanted| requirement(wanted, node.label(&wanted.key)))
        && fields
            .iter()
            .all(|wanted| wanted.key == "metadata.name" && requirement(wanted, Some(name)))
}

/// Whether the pod's node selector and required affinity allow the node.
pub(crate) fn allows(pod: &Pod, name: &str, node: &NodeInfo) -> bool {
    let selected = pod
        .spec
        .iter()
        .flat_map(|spec| spec.node_selector.iter().flatten())
        .all(|(key, value)| node.label(key) == Some(value));
    let required = affinity(pod).and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    selected
        && required.is_none_or(|required| {
            required
                .node_selector_terms
                .iter()
                .any(|wanted| term(wanted, name, node))
        })
}

pub(crate) fn filter(pod: &PodInfo, name: &str, node: &NodeInfo) -> Option<Rejection> {
    (!allows(&pod.pod, name, node)).then(|| {
        Rejection::new(
            Plugin::NodeAffinity,
            "node(s) didn't match Pod's node affinity/selector",
            false,
        )
    })
}

/// The weights of the preferred terms that match; more is better.
pub(crate) fn score(pod: &PodInfo, name: &str, node: &NodeInfo) -> i64 {
    affinity(&pod.pod)
        .and_then(|affinity| {
            affinity
                .preferred_during_scheduling_ignored_during_execution
                .as_ref()
        })
        .into_iter()
        .flatten()
        .filter(|preferred| {
            let wanted = &preferred.preference;
            // Unlike a required one, an empty preferred term matches every node.
            (wanted.match_expressions.is_none() && wanted.match_fields.is_none())
                || term(wanted, name, node)
        })
        .map(|preferred| i64::from(preferred.weight))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators() {
        let check = |operator: &str, values: &[&str], value: Option<&str>| {
            requirement(
                &NodeSelectorRequirement {
                    key: "k".into(),
                    operator: operator.into(),
                    values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
                },
                value,
            )
        };
        assert!(check("In", &["a", "b"], Some("b")));
        assert!(!check("In", &["a"], None));
        assert!(check("NotIn", &["a"], None));
        assert!(check("Exists", &[], Some("")));
        assert!(check("DoesNotExist", &[], None));
        assert!(check("Gt", &["3"], Some("4")));
        assert!(!check("Gt", &["3"], Some("x")));
        assert!(check("Lt", &["3"], Some("2")));
        assert!(!check("Like", &["3"], Some("3")));
    }
}
