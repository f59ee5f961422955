//! Filter and score: spread pods over zones, nodes or whatever label the pod names; and, for pods
//! that say nothing, over nodes and zones among the pods of the same controller.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use pintle_kube_types::LabelSelector;

use super::{MAX_SCORE, Plugin, Rejection, node_affinity, taint_toleration};
use crate::cluster::{Cluster, NodeInfo, PodInfo};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Which pods are spread.
enum Group {
    Selected(LabelSelector),
    /// Those with the same controller.
    Siblings,
}

struct Constraint {
    key: String,
    max_skew: i64,
    min_domains: i64,
    group: Group,
    honour_affinity: bool,
    honour_taints: bool,
}

impl Constraint {
    fn new(constraint: &TopologySpreadConstraint, pod: &PodInfo) -> Self {
        let mut selector = constraint.label_selector.clone();
        for key in constraint.match_label_keys.iter().flatten() {
            if let Some(value) = pod.labels().and_then(|labels| labels.get(key)) {
                selector
                    .get_or_insert_default()
                    .match_labels
                    .get_or_insert_default()
                    .insert(key.clone(), value.clone());
            }
        }
        let honours = |policy: Option<&str>, default: bool| {
            policy.map_or(default, |policy| policy == "Honor")
        };
        Self {
            key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            group: Group::Selected(
                LabelSelector::from_typed(selector.as_ref())
                    .unwrap_or_else(|_| LabelSelector::nothing()),
            ),
            honour_affinity: honours(constraint.node_affinity_policy.as_deref(), true),
            honour_taints: honours(constraint.node_taints_policy.as_deref(), false),
        }
    }

    fn sibling(key: &str, max_skew: i64) -> Self {
        Self {
            key: key.to_owned(),
            max_skew,
            min_domains: 1,
            group: Group::Siblings,
            honour_affinity: true,
            honour_taints: false,
        }
    }

    fn counts_node(&self, pod: &PodInfo, name: &str, node: &NodeInfo) -> bool {
        (!self.honour_affinity || node_affinity::allows(&pod.pod, name, node))
            && (!self.honour_taints || taint_toleration::untolerated(&pod.pod, node).is_none())
    }

    fn counts_pod(&self, pod: &PodInfo, other: &PodInfo) -> bool {
        if other.namespace() != pod.namespace() || other.pod.metadata.deletion_timestamp.is_some() {
            return false;
        }
        match &self.group {
            Group::Selected(selector) => selector.matches_labels(other.labels()),
            Group::Siblings => pod.controller().is_some() && pod.controller() == other.controller(),
        }
    }

    fn count(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let count = node
            .pods
            .values()
            .filter(|other| self.counts_pod(pod, other))
            .count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }
}

fn constraints(pod: &PodInfo, when: &str) -> Vec<Constraint> {
    pod.pod
        .spec
        .iter()
        .flat_map(|spec| spec.topology_spread_constraints.iter().flatten())
        .filter(|constraint| constraint.when_unsatisfiable == when)
        .map(|constraint| Constraint::new(constraint, pod))
        .collect()
}

struct Hard {
    constraint: Constraint,
    /// Pods per value of the label.
    counts: BTreeMap<String, i64>,
    least: i64,
    itself: i64,
}

/// The hard constraints of one pod, counted once for all nodes.
pub(crate) struct Prepared(Vec<Hard>);

pub(crate) fn prepare(cluster: &Cluster, pod: &PodInfo) -> Prepared {
    let constraints = constraints(pod, "DoNotSchedule");
    let keys: Vec<String> = constraints.iter().map(|c| c.key.clone()).collect();
    let hard = constraints
        .into_iter()
        .map(|constraint| {
            let mut counts: BTreeMap<String, i64> = BTreeMap::new();
            for (name, node) in cluster.nodes() {
                let complete = keys.iter().all(|key| node.label(key).is_some());
                if let Some(value) = node.label(&constraint.key)
                    && complete
                    && constraint.counts_node(pod, name, node)
                {
                    *counts.entry(value.to_owned()).or_default() += constraint.count(pod, node);
                }
            }
            let domains = i64::try_from(counts.len()).unwrap_or(i64::MAX);
            let least = if domains < constraint.min_domains {
                0
            } else {
                counts.values().copied().min().unwrap_or(0)
            };
            let itself = i64::from(constraint.counts_pod(pod, pod));
            Hard {
                constraint,
                counts,
                least,
                itself,
            }
        })
        .collect();
    Prepared(hard)
}

impl Prepared {
    pub(crate) fn filter(&self, node: &NodeInfo) -> Option<Rejection> {
        const REASON: &str = "node(s) didn't match pod topology spread constraints";
        for hard in &self.0 {
            let Some(value) = node.label(&hard.constraint.key) else {
                let reason = format!("{REASON} (missing required label)");
                return Some(Rejection::new(Plugin::PodTopologySpread, reason, false));
            };
            let count = hard.counts.get(value).copied().unwrap_or(0);
            if count + hard.itself - hard.least > hard.constraint.max_skew {
                return Some(Rejection::new(Plugin::PodTopologySpread, REASON, true));
            }
        }
        None
    }
}

/// Scores of the feasible nodes; more is better.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a score is a rough figure"
)]
pub(crate) fn scores(cluster: &Cluster, pod: &PodInfo, nodes: &[(&str, &NodeInfo)]) -> Vec<i64> {
    let said = pod
        .pod
        .spec
        .as_ref()
        .and_then(|spec| spec.topology_spread_constraints.as_ref())
        .is_some_and(|constraints| !constraints.is_empty());
    let soft = if said {
        constraints(pod, "ScheduleAnyway")
    } else if pod.controller().is_some() {
        vec![
            Constraint::sibling(HOSTNAME, 3),
            Constraint::sibling(ZONE, 5),
        ]
    } else {
        Vec::new()
    };
    if soft.is_empty() {
        return vec![0; nodes.len()];
    }
    let missing = |node: &NodeInfo| said && soft.iter().any(|c| node.label(&c.key).is_none());
    let mut totals = vec![0.0_f64; nodes.len()];
    for constraint in &soft {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for (name, node) in cluster.nodes() {
            if let Some(value) = node.label(&constraint.key)
                && !missing(node)
                && constraint.counts_node(pod, name, node)
            {
                *counts.entry(value).or_default() += constraint.count(pod, node);
            }
        }
        let domains: HashSet<&str> = nodes
            .iter()
            .filter(|(_, node)| !missing(node))
            .filter_map(|(_, node)| node.label(&constraint.key))
            .collect();
        let weight = ((domains.len() + 2) as f64).ln();
        for (total, (_, node)) in totals.iter_mut().zip(nodes) {
            if let Some(value) = node.label(&constraint.key) {
                let count = counts.get(value).copied().unwrap_or(0);
                *total += count as f64 * weight + (constraint.max_skew - 1) as f64;
            }
        }
    }
    let rounded: Vec<i64> = totals.iter().map(|total| total.round() as i64).collect();
    let counted = || {
        rounded
            .iter()
            .zip(nodes)
            .filter(|(_, (_, node))| !missing(node))
            .map(|(total, _)| *total)
    };
    let (Some(least), Some(most)) = (counted().min(), counted().max()) else {
        return vec![0; nodes.len()];
    };
    rounded
        .iter()
        .zip(nodes)
        .map(|(total, (_, node))| {
            if missing(node) {
                0
            } else if most == 0 {
                MAX_SCORE
            } else {
                MAX_SCORE * (most + least - total) / most
            }
        })
        .collect()
}
