//! The rollout arithmetic against worked examples and against its own invariants.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{
    DeploymentSpec, DeploymentStrategy, ReplicaSetSpec, ReplicaSetStatus, RollingUpdateDeployment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use proptest::prelude::*;

use super::*;

fn percent_or_number(text: &str) -> IntOrString {
    text.parse()
        .map_or_else(|_| IntOrString::String(text.to_owned()), IntOrString::Int)
}

fn deployment(replicas: i32, surge: &str, unavailable: &str) -> Deployment {
    Deployment {
        spec: Some(DeploymentSpec {
            replicas: Some(replicas),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(percent_or_number(surge)),
                    max_unavailable: Some(percent_or_number(unavailable)),
                }),
            }),
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn set(name: &str, age: i64, replicas: i32, available: i32) -> Arc<ReplicaSet> {
    Arc::new(ReplicaSet {
        metadata: ObjectMeta {
            name: Some(name.into()),
            creation_timestamp: jiff::Timestamp::from_second(1_000_000 - age).ok().map(Time),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            ..ReplicaSetSpec::default()
        }),
        status: Some(ReplicaSetStatus {
            replicas,
            available_replicas: Some(available),
            ..ReplicaSetStatus::default()
        }),
    })
}

fn sized(rs: &Arc<ReplicaSet>, desired: i32, max: i32) -> Arc<ReplicaSet> {
    let mut rs = ReplicaSet::clone(rs);
    revision::set_size_annotations(&mut rs, desired, max);
    Arc::new(rs)
}

fn plan(scales: &[Scale]) -> Vec<(&str, i32)> {
    scales
        .iter()
        .map(|scale| (scale.name.as_str(), scale.to))
        .collect()
}

#[test]
fn percentages_round_surge_up_and_unavailable_down() {
    assert_eq!(
        bounds(&deployment(3, "25%", "25%")),
        Bounds {
            surge: 1,
            unavailable: 0
        }
    );
    assert_eq!(
        bounds(&deployment(10, "25%", "25%")),
        Bounds {
            surge: 3,
            unavailable: 2
        }
    );
    assert_eq!(
        bounds(&deployment(1, "0", "0%")),
        Bounds {
            surge: 0,
            unavailable: 1
        },
        "both zero would never move"
    );
    assert_eq!(bounds(&deployment(2, "0", "100%")).unavailable, 2);
    assert_eq!(bounds(&deployment(2, "0", "5")).unavailable, 2);
}

#[test]
fn the_new_replica_set_grows_into_the_surge() {
    let three = deployment(3, "1", "0");
    assert_eq!(new_replicas(&three, 0, 0), 3, "a first rollout");
    assert_eq!(new_replicas(&three, 3, 0), 1);
    assert_eq!(new_replicas(&three, 4, 1), 1);
    assert_eq!(new_replicas(&three, 3, 1), 2);
    assert_eq!(new_replicas(&three, 3, 2), 3);
}

#[test]
fn old_pods_go_only_as_new_ones_are_available() {
    let three = deployment(3, "1", "0");
    let old = [set("old", 100, 3, 3)];
    assert!(shrink_old(&three, &old, Some(&set("new", 0, 1, 0))).is_empty());
    assert_eq!(
        plan(&shrink_old(&three, &old, Some(&set("new", 0, 1, 1)))),
        [("old", 2)]
    );
    let unavailable = deployment(10, "0", "3");
    assert_eq!(
        plan(&shrink_old(&unavailable, &[set("old", 9, 10, 10)], None)),
        [("old", 7)]
    );
}

#[test]
fn unhealthy_old_pods_go_first() {
    let four = deployment(4, "0", "1");
    let old = [set("broken", 50, 2, 0), set("good", 100, 2, 2)];
    // Minimum available is 3; two are: nothing healthy may go, one unhealthy one may.
    assert_eq!(
        plan(&shrink_old(&four, &old, Some(&set("new", 0, 0, 0)))),
        [("broken", 1)]
    );
    let older_first = [set("b", 10, 3, 0), set("a", 20, 3, 0)];
    assert_eq!(
        plan(&shrink_old(&deployment(4, "0", "100%"), &older_first, None)),
        [("a", 0), ("b", 0)]
    );
}

#[test]
fn a_lone_replica_set_follows_the_deployment() {
    let five = deployment(5, "1", "0");
    assert_eq!(
        plan(&scale_all::<Arc<ReplicaSet>>(
            &five,
            &[],
            Some(&set("new", 0, 3, 3))
        )),
        [("new", 5)]
    );
    assert!(scale_all::<Arc<ReplicaSet>>(&five, &[], Some(&set("new", 0, 5, 3))).is_empty());
    let stopped = [set("older", 9, 0, 0), set("newer", 5, 0, 0)];
    assert_eq!(plan(&scale_all(&five, &stopped, None)), [("newer", 5)]);
}

#[test]
fn scaling_in_the_middle_of_a_rollout_is_proportional() {
    // 10 → 15 with maxSurge 3 while 8 new and 5 old exist, the example of the documentation
    // (13 pods in all; 18 allowed afterwards, 5 to share out).
    let fifteen = deployment(15, "3", "2");
    let old = [sized(&set("old", 9, 8, 8), 10, 13)];
    let new = sized(&set("new", 1, 5, 0), 10, 13);
    assert_eq!(
        plan(&scale_all(&fifteen, &old, Some(&new))),
        [("old", 11), ("new", 7)]
    );
    let zero = deployment(0, "3", "2");
    assert_eq!(
        plan(&scale_all(&zero, &old, Some(&new))),
        [("old", 0), ("new", 0)]
    );
}

#[test]
fn a_saturated_new_set_drops_the_old_ones() {
    let three = deployment(3, "1", "0");
    let old = [sized(&set("old", 9, 1, 1), 3, 4)];
    let new = sized(&set("new", 1, 3, 3), 3, 4);
    assert_eq!(plan(&scale_all(&three, &old, Some(&new))), [("old", 0)]);
}

proptest! {
    /// Whatever fails on the way, a rollout never has more pods than desired + surge and never
    /// takes an available pod below desired − unavailable; with healthy pods it always ends.
    #[test]
    fn a_rollout_keeps_its_bounds_and_ends(
        replicas in 0_i32..20,
        surge in 0_i32..6,
        unavailable in 0_i32..6,
        old_sizes in prop::collection::vec(0_i32..8, 0..4),
        broken in prop::collection::vec(any::<bool>(), 4),
    ) {
        let spec = deployment(replicas, &surge.to_string(), &unavailable.to_string());
        let limits = bounds(&spec);
        let mut old: Vec<i32> = old_sizes;
        let mut new = 0;
        let mut new_available = 0;
        for _ in 0..200 {
            let sets: Vec<_> = old
                .iter()
                .enumerate()
                .map(|(index, size)| {
                    let index_age = 100 - i64::try_from(index).unwrap_or(0);
                    set(&format!("old{index}"), index_age, *size, if broken[index] { 0 } else { *size })
                })
                .collect();
            let total: i32 = old.iter().sum::<i32>() + new;
            let available: i32 = sets.iter().map(|rs| available_replicas(rs)).sum::<i32>() + new_available;
            let grown = if new > replicas { replicas } else { new_replicas(&spec, total, new) };
            if grown != new {
                prop_assert!(grown <= replicas);
                prop_assert!(grown < new || total - new + grown <= replicas + limits.surge);
                new = grown;
                continue;
            }
            let steps = shrink_old(&spec, &sets, Some(&set("new", 0, new, new_available)));
            let mut lost = 0;
            for step in &steps {
                let index: usize = step.name[3..].parse().unwrap_or(0);
                prop_assert!(step.to < old[index] && step.to >= 0);
                if !broken[index] {
                    lost += old[index] - step.to;
                }
                old[index] = step.to;
            }
            prop_assert!(lost == 0 || available - lost >= replicas - limits.unavailable);
            if steps.is_empty() && new_available == new {
                break;
            }
            new_available = new;
        }
        prop_assert_eq!(new, replicas);
        prop_assert_eq!(old.iter().sum::<i32>(), 0);
    }
}
