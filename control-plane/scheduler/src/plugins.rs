//! The checks and preferences a decision is made of, one file each, in the order they are asked.

use std::fmt;

pub(crate) mod balanced_allocation;
pub(crate) mod image_locality;
pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
pub(crate) mod node_name;
pub(crate) mod node_ports;
pub(crate) mod node_resources_fit;
pub(crate) mod node_unschedulable;
pub(crate) mod pod_topology_spread;
pub(crate) mod taint_toleration;

/// A check that can reject a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Plugin {
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    PodTopologySpread,
    InterPodAffinity,
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Why a node does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) plugin: Plugin,
    pub(crate) reasons: Vec<String>,
    /// Whether removing other pods from the node could help.
    pub(crate) preemption_helps: bool,
}

impl Rejection {
    pub(crate) fn new(plugin: Plugin, reason: impl Into<String>, preemption_helps: bool) -> Self {
        Self {
            plugin,
            reasons: vec![reason.into()],
            preemption_helps,
        }
    }
}

/// The greatest score of a plugin for a node.
pub(crate) const MAX_SCORE: i64 = 100;

/// Stretches scores so that the greatest becomes [`MAX_SCORE`]; `reverse` turns them over.
pub(crate) fn normalise(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = match (max, reverse) {
            (0, true) => MAX_SCORE,
            (0, false) => 0,
            (max, true) => MAX_SCORE - *score * MAX_SCORE / max,
            (max, false) => *score * MAX_SCORE / max,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_stretched() {
        let mut scores = [1, 2, 0];
        normalise(&mut scores, false);
        assert_eq!(scores, [50, 100, 0]);
        normalise(&mut scores, true);
        assert_eq!(scores, [50, 0, 100]);
        let mut zero = [0, 0];
        normalise(&mut zero, true);
        assert_eq!(zero, [100, 100]);
    }
}
