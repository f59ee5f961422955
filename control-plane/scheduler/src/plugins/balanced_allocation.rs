//! Score: rather a node whose CPU and memory would be used evenly than one that runs out of one of
//! them while the other lies idle.

use super::MAX_SCORE;
use crate::cluster::{NodeInfo, PodInfo};

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a score is a rough figure"
)]
pub(crate) fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let fraction = |used: i64, has: i64| {
        if has <= 0 {
            1.0
        } else {
            (used as f64 / has as f64).min(1.0)
        }
    };
    let cpu = fraction(
        node.requested.milli_cpu + pod.requests.milli_cpu,
        node.allocatable.milli_cpu,
    );
    let memory = fraction(
        node.requested.memory + pod.requests.memory,
        node.allocatable.memory,
    );
    let deviation = (cpu - memory).abs() / 2.0;
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
