//! Filter and score: a pod's requests must fit into what the node has left, and rather go where
//! much is left.

use super::{MAX_SCORE, Plugin, Rejection};
use crate::cluster::{NodeInfo, PodInfo};

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    let mut reasons = Vec::new();
    let mut helps = true;
    if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= node.max_pods {
        reasons.push("Too many pods".to_owned());
    }
    let wanted = &pod.requests;
    if !wanted.is_zero() {
        let mut check = |name: &str, wanted: i64, used: i64, has: i64| {
            if wanted > 0 && wanted > has - used {
                reasons.push(format!("Insufficient {name}"));
                // More than the whole node has: nobody's leaving would help.
                helps &= wanted <= has;
            }
        };
        let (used, has) = (&node.requested, &node.allocatable);
        check("cpu", wanted.milli_cpu, used.milli_cpu, has.milli_cpu);
        check("memory", wanted.memory, used.memory, has.memory);
        check(
            "ephemeral-storage",
            wanted.ephemeral,
            used.ephemeral,
            has.ephemeral,
        );
        for (name, amount) in &wanted.scalar {
            let used = used.scalar.get(name).copied().unwrap_or(0);
            let has = has.scalar.get(name).copied().unwrap_or(0);
            check(name, *amount, used, has);
        }
    }
    (!reasons.is_empty()).then_some(Rejection {
        plugin: Plugin::NodeResourcesFit,
        reasons,
        preemption_helps: helps,
    })
}

/// The share of CPU and memory that would be left; more is better.
pub(crate) fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let left = |used: i64, has: i64| {
        (has > 0).then(|| {
            let share = i128::from((has - used).max(0)) * i128::from(MAX_SCORE) / i128::from(has);
            i64::try_from(share).unwrap_or(MAX_SCORE)
        })
    };
    let shares: Vec<i64> = [
        left(node.weight.0 + pod.weight.0, node.allocatable.milli_cpu),
        left(node.weight.1 + pod.weight.1, node.allocatable.memory),
    ]
    .into_iter()
    .flatten()
    .collect();
    match i64::try_from(shares.len()) {
        Ok(0) | Err(_) => 0,
        Ok(count) => shares.iter().sum::<i64>() / count,
    }
}
