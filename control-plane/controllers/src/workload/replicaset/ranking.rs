//! Which pods go first when a replica set shrinks: those that serve least and would be missed least.
//! Pure; the order is Kubernetes' own.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::runtime::pods;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

struct Rank {
    assigned: bool,
    phase: u8,
    ready: bool,
    cost: i32,
    neighbours: usize,
    ready_since: Option<Timestamp>,
    restarts: (i32, i32),
    created: Option<Timestamp>,
    uid: String,
}

impl Rank {
    fn of(pod: &Pod, neighbours: &HashMap<&str, usize>) -> Self {
        let node = pods::node_name(pod);
        Self {
            assigned: node.is_some(),
            phase: match pods::phase(pod) {
                "Pending" => 0,
                "Running" => 2,
                _ => 1,
            },
            ready: pods::is_ready(pod),
            cost: pod
                .metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(DELETION_COST))
                .and_then(|cost| cost.parse().ok())
                .unwrap_or(0),
            neighbours: node
                .and_then(|node| neighbours.get(node))
                .copied()
                .unwrap_or(0),
            ready_since: pods::ready_since(pod),
            restarts: restarts(pod),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        }
    }

    fn compare(&self, other: &Self, now: Timestamp) -> Ordering {
        self.assigned
            .cmp(&other.assigned)
            .then(self.phase.cmp(&other.phase))
            .then(self.ready.cmp(&other.ready))
            .then(self.cost.cmp(&other.cost))
            .then(other.neighbours.cmp(&self.neighbours))
            .then_with(|| match (self.ready_since, other.ready_since) {
                (Some(mine), Some(theirs)) if mine != theirs => by_age(mine, theirs, now),
                _ => Ordering::Equal,
            })
            .then(other.restarts.cmp(&self.restarts))
            .then_with(|| match (self.created, other.created) {
                (Some(mine), Some(theirs)) if mine != theirs => by_age(mine, theirs, now),
                _ => Ordering::Equal,
            })
            .then_with(|| self.uid.cmp(&other.uid))
    }
}

/// The most restarts of a regular container, then of a sidecar.
fn restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else {
        return (0, 0);
    };
    let regular = status
        .container_statuses
        .iter()
        .flatten()
        .map(|container| container.restart_count)
        .max()
        .unwrap_or(0);
    let sidecars: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let sidecar = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|container| sidecars.contains(&container.name.as_str()))
        .map(|container| container.restart_count)
        .max()
        .unwrap_or(0);
    (regular, sidecar)
}

/// Younger first, but only by orders of magnitude, so that among pods of about the same age it is
/// not always the newest that goes. Within one bucket the uid decides.
fn by_age(mine: Timestamp, theirs: Timestamp, now: Timestamp) -> Ordering {
    let bucket = |since: Timestamp| -> i64 {
        let age = now.duration_since(since).as_nanos();
        u128::try_from(age)
            .ok()
            .and_then(u128::checked_ilog2)
            .map_or(-1, i64::from)
    };
    bucket(mine).cmp(&bucket(theirs))
}

/// The `count` pods of `pods` to delete. `related` are the pods of all replica sets with the same
/// controller: a node that has many of them gives one up first.
pub(crate) fn victims(
    pods: &[Arc<Pod>],
    related: &[Arc<Pod>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    if count >= pods.len() {
        return pods.to_vec();
    }
    let mut neighbours: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| pods::is_active(pod)) {
        if let Some(node) = pods::node_name(pod) {
            *neighbours.entry(node).or_default() += 1;
        }
    }
    let mut ranked: Vec<(Rank, &Arc<Pod>)> = pods
        .iter()
        .map(|pod| (Rank::of(pod, &neighbours), pod))
        .collect();
    ranked.sort_by(|a, b| a.0.compare(&b.0, now));
    ranked
        .into_iter()
        .take(count)
        .map(|(_, pod)| Arc::clone(pod))
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodSpec, PodStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or_default()
    }

    fn pod(name: &str, node: Option<&str>, phase: &str, ready: Option<i64>, created: i64) -> Pod {
        Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                uid: Some(format!("uid-{name}")),
                creation_timestamp: Some(Time(at(created))),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: node.map(str::to_owned),
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                phase: Some(phase.into()),
                conditions: ready.map(|since| {
                    vec![PodCondition {
                        type_: "Ready".into(),
                        status: "True".into(),
                        last_transition_time: Some(Time(at(since))),
                        ..PodCondition::default()
                    }]
                }),
                ..PodStatus::default()
            }),
        }
    }

    fn order(pods: Vec<Pod>) -> Vec<String> {
        let mut pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
        let related = pods.clone();
        let mut names = Vec::new();
        while !pods.is_empty() {
            let next = victims(&pods, &related, 1, at(100_000));
            let name = next[0].metadata.name.clone().unwrap_or_default();
            pods.retain(|pod| pod.metadata.name.as_ref() != Some(&name));
            names.push(name);
        }
        names
    }

    #[test]
    fn least_useful_first() {
        let mut cheap = pod("cheap", Some("n1"), "Running", Some(10), 0);
        cheap.metadata.annotations = Some([(DELETION_COST.to_owned(), "-5".to_owned())].into());
        let mut restarted = pod("restarted", Some("n1"), "Running", Some(10), 0);
        if let Some(status) = &mut restarted.status {
            status.container_statuses = Some(vec![ContainerStatus {
                restart_count: 3,
                ..ContainerStatus::default()
            }]);
        }
        let names = order(vec![
            pod("old", Some("n1"), "Running", Some(10), 0),
            restarted,
            pod("fresh", Some("n1"), "Running", Some(99_990), 0),
            cheap,
            pod("unready", Some("n1"), "Running", None, 0),
            pod("starting", Some("n1"), "Pending", None, 0),
            pod("unbound", None, "Pending", None, 0),
        ]);
        assert_eq!(
            names,
            [
                "unbound",
                "starting",
                "unready",
                "cheap",
                "fresh",
                "restarted",
                "old"
            ]
        );
    }

    #[test]
    fn crowded_nodes_give_first() {
        let pods: Vec<Arc<Pod>> = [("a", "n1"), ("b", "n2"), ("c", "n2")]
            .into_iter()
            .map(|(name, node)| Arc::new(pod(name, Some(node), "Running", Some(10), 0)))
            .collect();
        let gone = victims(&pods, &pods, 1, at(1000));
        assert_eq!(gone[0].metadata.name.as_deref(), Some("b"));
    }

    #[test]
    fn about_equal_ages_are_equal() {
        assert_eq!(by_age(at(0), at(10), at(1000)), Ordering::Equal);
        assert_eq!(by_age(at(990), at(0), at(1000)), Ordering::Less);
        assert_eq!(by_age(at(1001), at(0), at(1000)), Ordering::Less);
    }

    proptest! {
        /// The order is total and does not depend on the order of the cache.
        #[test]
        fn the_choice_is_stable(
            seeds in prop::collection::vec((0_i64..3, 0_i64..2000, any::<bool>(), any::<bool>()), 1..12),
            count in 0_usize..12,
            turn in 0_usize..12,
        ) {
            let pods: Vec<Arc<Pod>> = seeds
                .iter()
                .enumerate()
                .map(|(index, (node, created, ready, bound))| {
                    let node = format!("n{node}");
                    Arc::new(pod(
                        &index.to_string(),
                        bound.then_some(node.as_str()),
                        if *bound { "Running" } else { "Pending" },
                        ready.then_some(*created),
                        *created,
                    ))
                })
                .collect();
            let mut turned = pods.clone();
            turned.rotate_left(turn % pods.len());
            let names = |picked: Vec<Arc<Pod>>| {
                let mut names: Vec<_> = picked.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
                names.sort();
                names
            };
            let first = victims(&pods, &pods, count, at(2000));
            prop_assert_eq!(first.len(), count.min(pods.len()));
            prop_assert_eq!(names(first), names(victims(&turned, &turned, count, at(2000))));
        }
    }
}
