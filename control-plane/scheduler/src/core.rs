//! The decision: which node a pod goes to, or why none will do. Pure: the same picture of the
//! cluster, pod and tie-breaker give the same answer and the same explanation.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Cluster, NodeInfo, PodInfo};
use crate::plugins::{
    Plugin, Rejection, balanced_allocation, image_locality, inter_pod_affinity, node_affinity,
    node_name, node_ports, node_resources_fit, node_unschedulable, normalise, pod_topology_spread,
    taint_toleration,
};

/// Where a pod goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// To this node.
    Place {
        /// The node's name.
        node: String,
        /// The total of each node that would do; empty when there was only one.
        scores: BTreeMap<String, i64>,
    },
    /// Nowhere.
    Reject(Failure),
}

/// Why no node will do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Failure {
    /// Each node's reason.
    pub(crate) rejections: BTreeMap<String, Rejection>,
}

impl Failure {
    /// The plugins that rejected a node: only their changes of mind can help.
    pub(crate) fn plugins(&self) -> BTreeSet<Plugin> {
        self.rejections
            .values()
            .map(|rejection| rejection.plugin)
            .collect()
    }

    /// The explanation in Kubernetes' words.
    pub(crate) fn message(&self) -> String {
        let total = self.rejections.len();
        if total == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let reasons = histogram(
            self.rejections
                .values()
                .flat_map(|rejection| rejection.reasons.iter().map(String::as_str)),
        );
        let preemption = histogram(self.rejections.values().map(|rejection| {
            if rejection.preemption_helps {
                "No preemption victims found for incoming pod"
            } else {
                "Preemption is not helpful for scheduling"
            }
        }));
        format!(
            "0/{total} nodes are available: {reasons}. preemption: 0/{total} nodes are available: \
             {preemption}."
        )
    }
}

fn histogram<'a>(reasons: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    parts.join(", ")
}

/// Decides on one pod. Of equally good nodes `tie` picks one.
pub(crate) fn decide(cluster: &Cluster, pod: &PodInfo, tie: u64) -> Decision {
    let spread = pod_topology_spread::prepare(cluster, pod);
    let affinity = inter_pod_affinity::prepare(cluster, pod);
    let mut failure = Failure::default();
    let mut feasible: Vec<(&str, &NodeInfo)> = Vec::new();
    for (name, node) in cluster.nodes() {
        let rejection = node_unschedulable::filter(pod, node)
            .or_else(|| node_name::filter(pod, name, node))
            .or_else(|| taint_toleration::filter(pod, node))
            .or_else(|| node_affinity::filter(pod, name, node))
            .or_else(|| node_ports::filter(pod, node))
            .or_else(|| node_resources_fit::filter(pod, node))
            .or_else(|| spread.filter(node))
            .or_else(|| affinity.filter(node));
        match rejection {
            Some(rejection) => {
                failure.rejections.insert(name.clone(), rejection);
            }
            None => feasible.push((name, node)),
        }
    }
    match feasible.as_slice() {
        [] => Decision::Reject(failure),
        [(name, _)] => Decision::Place {
            node: (*name).to_owned(),
            scores: BTreeMap::new(),
        },
        _ => choose(cluster, pod, &feasible, tie),
    }
}

fn choose(cluster: &Cluster, pod: &PodInfo, nodes: &[(&str, &NodeInfo)], tie: u64) -> Decision {
    let each = |score: &dyn Fn(&str, &NodeInfo) -> i64| -> Vec<i64> {
        nodes.iter().map(|(name, node)| score(name, node)).collect()
    };
    let mut taints = each(&|_, node| taint_toleration::score(pod, node));
    normalise(&mut taints, true);
    let mut wishes = each(&|name, node| node_affinity::score(pod, name, node));
    normalise(&mut wishes, false);
    let weighted: [(i64, Vec<i64>); 7] = [
        (3, taints),
        (2, wishes),
        (2, pod_topology_spread::scores(cluster, pod, nodes)),
        (2, inter_pod_affinity::scores(cluster, pod, nodes)),
        (1, each(&|_, node| node_resources_fit::score(pod, node))),
        (1, each(&|_, node| balanced_allocation::score(pod, node))),
        (
            1,
            each(&|_, node| image_locality::score(cluster, pod, node)),
        ),
    ];
    let totals: Vec<i64> = (0..nodes.len())
        .map(|index| {
            weighted
                .iter()
                .map(|(weight, scores)| weight * scores[index])
                .sum()
        })
        .collect();
    let best = totals.iter().copied().max().unwrap_or(0);
    let tied: Vec<&str> = nodes
        .iter()
        .zip(&totals)
        .filter(|(_, total)| **total == best)
        .map(|((name, _), _)| *name)
        .collect();
    let pick = usize::try_from(tie % (tied.len().max(1) as u64)).unwrap_or(0);
    Decision::Place {
        node: tied.get(pick).copied().unwrap_or_default().to_owned(),
        scores: nodes
            .iter()
            .zip(totals)
            .map(|((name, _), total)| ((*name).to_owned(), total))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
