//! What a replica set reports about its pods. Pure: pods and time in, status out.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::runtime::{pods, selector};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Why creating or deleting pods failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Whether too few pods were there (and creating failed) or too many.
    pub(crate) creating: bool,
    pub(crate) message: String,
}

fn or_none(count: usize) -> Option<i32> {
    Some(i32::try_from(count).unwrap_or(i32::MAX)).filter(|count| *count != 0)
}

/// The status for these active and terminating pods.
pub(crate) fn calculate(
    rs: &ReplicaSet,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&Failure>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let spec = rs.spec.as_ref();
    let min_ready = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let template_labels = spec
        .and_then(|spec| spec.template.as_ref())
        .and_then(|template| template.metadata.as_ref())
        .and_then(|meta| meta.labels.clone())
        .unwrap_or_default();
    let count = |test: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| test(pod)).count();
    let mut conditions: Vec<ReplicaSetCondition> = rs
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let failed = conditions
        .iter()
        .any(|condition| condition.type_ == REPLICA_FAILURE);
    match failure {
        Some(failure) if !failed => conditions.push(ReplicaSetCondition {
            type_: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(
                if failure.creating {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                }
                .to_owned(),
            ),
            message: Some(failure.message.clone()),
            last_transition_time: Some(Time(now)),
        }),
        Some(_) => {}
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
    }
    ReplicaSetStatus {
        replicas: i32::try_from(active.len()).unwrap_or(i32::MAX),
        fully_labeled_replicas: or_none(count(&|pod| {
            selector::contains_all(&template_labels, pod.metadata.labels.as_ref())
        })),
        ready_replicas: or_none(count(&pods::is_ready)),
        available_replicas: or_none(count(&|pod| {
            pods::until_available(pod, min_ready, now) == Some(Duration::ZERO)
        })),
        terminating_replicas: Some(i32::try_from(terminating).unwrap_or(i32::MAX)),
        observed_generation: rs.metadata.generation,
        conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
    }
}

/// When the next ready pod becomes available.
pub(crate) fn next_available(
    active: &[Arc<Pod>],
    min_ready: i32,
    now: Timestamp,
) -> Option<Duration> {
    active
        .iter()
        .filter_map(|pod| pods::until_available(pod, min_ready, now))
        .filter(|left| !left.is_zero())
        .min()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSetSpec;
    use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or_default()
    }

    fn ready(since: i64) -> Arc<Pod> {
        Arc::new(Pod {
            status: Some(PodStatus {
                conditions: Some(vec![PodCondition {
                    type_: "Ready".into(),
                    status: "True".into(),
                    last_transition_time: Some(Time(at(since))),
                    ..PodCondition::default()
                }]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        })
    }

    #[test]
    fn counts_and_availability() {
        let rs = ReplicaSet {
            spec: Some(ReplicaSetSpec {
                min_ready_seconds: Some(30),
                ..ReplicaSetSpec::default()
            }),
            ..ReplicaSet::default()
        };
        let pods = [ready(0), ready(80), Arc::new(Pod::default())];
        let status = calculate(&rs, &pods, 1, None, at(100));
        assert_eq!(status.replicas, 3);
        assert_eq!(status.ready_replicas, Some(2));
        assert_eq!(status.available_replicas, Some(1));
        assert_eq!(status.terminating_replicas, Some(1));
        assert_eq!(
            next_available(&pods, 30, at(100)),
            Some(Duration::from_secs(10))
        );
        assert_eq!(next_available(&pods, 0, at(100)), None);
    }

    #[test]
    fn a_failure_is_reported_until_it_is_over() {
        let mut rs = ReplicaSet::default();
        let failure = Failure {
            creating: true,
            message: "quota".into(),
        };
        let status = calculate(&rs, &[], 0, Some(&failure), at(1));
        let reasons = |status: &ReplicaSetStatus| -> Vec<Option<String>> {
            status
                .conditions
                .iter()
                .flatten()
                .map(|condition| condition.reason.clone())
                .collect()
        };
        assert_eq!(reasons(&status), [Some("FailedCreate".to_owned())]);
        rs.status = Some(status.clone());
        assert_eq!(calculate(&rs, &[], 0, Some(&failure), at(9)), status);
        assert!(reasons(&calculate(&rs, &[], 0, None, at(9))).is_empty());
    }
}
