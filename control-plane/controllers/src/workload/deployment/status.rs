//! What a deployment says about itself: counts, and the conditions Available, Progressing and
//! ReplicaFailure with the reasons and messages that `kubectl rollout status` and people read.
//! Pure: status and time in, status out.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::rolling;

pub(crate) const AVAILABLE: &str = "Available";
pub(crate) const PROGRESSING: &str = "Progressing";
pub(crate) const REPLICA_FAILURE: &str = "ReplicaFailure";

pub(crate) const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
pub(crate) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(crate) const PAUSED: &str = "DeploymentPaused";
pub(crate) const RESUMED: &str = "DeploymentResumed";
pub(crate) const UPDATED: &str = "ReplicaSetUpdated";
pub(crate) const CREATED: &str = "NewReplicaSetCreated";
pub(crate) const FOUND: &str = "FoundNewReplicaSet";
pub(crate) const CREATE_ERROR: &str = "ReplicaSetCreateError";

/// Whether the deployment wants its progress watched.
pub(crate) fn progress_deadline(deployment: &Deployment) -> Option<i32> {
    deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.progress_deadline_seconds)
        .filter(|seconds| *seconds != i32::MAX)
}

/// A condition by type.
pub(crate) fn find<'a>(
    status: Option<&'a DeploymentStatus>,
    type_: &str,
) -> Option<&'a DeploymentCondition> {
    status?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// A condition that changes now.
pub(crate) fn condition(
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Sets a condition. One with the same status and reason is left as it is; one with the same status
/// keeps its transition time.
pub(crate) fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(current) = find(Some(status), &condition.type_) {
        if current.status == condition.status && current.reason == condition.reason {
            return;
        }
        if current.status == condition.status {
            condition.last_transition_time = current.last_transition_time.clone();
        }
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

/// Removes a condition.
pub(crate) fn remove(status: &mut DeploymentStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != type_);
    }
}

fn or_none(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// The counts and the Available condition, from the replica sets' own reports.
pub(crate) fn calculate<R: AsRef<ReplicaSet>>(
    deployment: &Deployment,
    all: &[R],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let current = deployment.status.as_ref();
    let total: i32 = all
        .iter()
        .map(|rs| rolling::status_replicas(rs.as_ref()))
        .sum();
    let available: i32 = all
        .iter()
        .map(|rs| rolling::available_replicas(rs.as_ref()))
        .sum();
    let ready: i32 = all
        .iter()
        .filter_map(|rs| rs.as_ref().status.as_ref()?.ready_replicas)
        .sum();
    // Known only when every replica set tells it.
    let terminating: Option<i32> = all
        .iter()
        .map(|rs| {
            rs.as_ref()
                .status
                .as_ref()
                .and_then(|status| status.terminating_replicas)
        })
        .sum();
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: or_none(total),
        updated_replicas: or_none(new.map_or(0, rolling::status_replicas)),
        ready_replicas: or_none(ready),
        available_replicas: or_none(available),
        unavailable_replicas: or_none((total - available).max(0)),
        terminating_replicas: terminating,
        collision_count: current.and_then(|status| status.collision_count),
        conditions: current.and_then(|status| status.conditions.clone()),
    };
    let enough =
        available >= rolling::desired(deployment) - rolling::bounds(deployment).unavailable;
    let next = if enough {
        condition(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".to_owned(),
            now,
        )
    } else {
        condition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".to_owned(),
            now,
        )
    };
    set(&mut status, next);
    status
}

/// Whether the rollout is over: everything updated and available, nothing old left.
pub(crate) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let replicas = rolling::desired(deployment);
    status.updated_replicas.unwrap_or(0) == replicas
        && status.replicas.unwrap_or(0) == replicas
        && status.available_replicas.unwrap_or(0) == replicas
        && status.observed_generation >= deployment.metadata.generation
}

fn is_progressing(current: Option<&DeploymentStatus>, next: &DeploymentStatus) -> bool {
    let count = |value: Option<i32>| value.unwrap_or(0);
    let of = |pick: fn(&DeploymentStatus) -> Option<i32>| count(current.and_then(pick));
    let updated = of(|status| status.updated_replicas);
    let old = of(|status| status.replicas) - updated;
    let next_old = count(next.replicas) - count(next.updated_replicas);
    count(next.updated_replicas) > updated
        || next_old < old
        || count(next.ready_replicas) > of(|status| status.ready_replicas)
        || count(next.available_replicas) > of(|status| status.available_replicas)
}

fn has_timed_out(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> bool {
    let Some(deadline) = progress_deadline(deployment) else {
        return false;
    };
    let Some(progressing) = find(Some(status), PROGRESSING) else {
        return false;
    };
    match progressing.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => progressing.last_update_time.as_ref().is_some_and(|from| {
            now.duration_since(from.0) > SignedDuration::from_secs(i64::from(deadline))
        }),
    }
}

fn failure<R: AsRef<ReplicaSet>>(
    all: &[R],
    new: Option<&ReplicaSet>,
) -> Option<DeploymentCondition> {
    let of = |rs: &ReplicaSet| -> Option<ReplicaSetCondition> {
        rs.status
            .as_ref()?
            .conditions
            .as_ref()?
            .iter()
            .find(|condition| condition.type_ == REPLICA_FAILURE)
            .cloned()
    };
    let found = new
        .and_then(of)
        .or_else(|| all.iter().find_map(|rs| of(rs.as_ref())))?;
    Some(DeploymentCondition {
        type_: found.type_,
        status: found.status,
        reason: found.reason,
        message: found.message,
        last_update_time: found.last_transition_time.clone(),
        last_transition_time: found.last_transition_time,
    })
}

/// The status of a rollout under way, with the Progressing condition.
pub(crate) fn rollout<R: AsRef<ReplicaSet>>(
    deployment: &Deployment,
    all: &[R],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let mut status = calculate(deployment, all, new, now);
    let current = find(deployment.status.as_ref(), PROGRESSING);
    if progress_deadline(deployment).is_none() {
        remove(&mut status, PROGRESSING);
    }
    let finished_before = status.replicas == status.updated_replicas
        && current.is_some_and(|condition| condition.reason.as_deref() == Some(NEW_AVAILABLE));
    if progress_deadline(deployment).is_some() && !finished_before {
        let subject = match new.and_then(|rs| rs.metadata.name.as_deref()) {
            Some(name) => format!("ReplicaSet \"{name}\""),
            None => format!(
                "Deployment \"{}\"",
                deployment.metadata.name.as_deref().unwrap_or_default()
            ),
        };
        if is_complete(deployment, &status) {
            let message = format!("{subject} has successfully progressed.");
            set(
                &mut status,
                condition(PROGRESSING, "True", NEW_AVAILABLE, message, now),
            );
        } else if is_progressing(deployment.status.as_ref(), &status) {
            let message = format!("{subject} is progressing.");
            let mut next = condition(PROGRESSING, "True", UPDATED, message, now);
            // Replaced even when it says the same: its update time is what the deadline counts from.
            if let Some(current) = current {
                if current.status == "True" {
                    next.last_transition_time
                        .clone_from(&current.last_transition_time);
                }
                remove(&mut status, PROGRESSING);
            }
            set(&mut status, next);
        } else if has_timed_out(deployment, &status, now) {
            let message = format!("{subject} has timed out progressing.");
            set(
                &mut status,
                condition(PROGRESSING, "False", TIMED_OUT, message, now),
            );
        }
    }
    match failure(all, new) {
        Some(condition) => set(&mut status, condition),
        None => remove(&mut status, REPLICA_FAILURE),
    }
    status
}

/// When the progress deadline must be looked at again: `None` if it does not matter now.
pub(crate) fn deadline_check(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<std::time::Duration> {
    let deadline = progress_deadline(deployment)?;
    let current = find(Some(status), PROGRESSING)?;
    if is_complete(deployment, status) || current.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    let due =
        current.last_update_time.as_ref()?.0 + SignedDuration::from_secs(i64::from(deadline) + 1);
    let left = due.duration_since(now);
    Some(std::time::Duration::try_from(left).unwrap_or(std::time::Duration::from_millis(10)))
}

/// The condition change that pausing or resuming brings, if any.
pub(crate) fn pause_condition(
    deployment: &Deployment,
    now: Timestamp,
) -> Option<DeploymentCondition> {
    progress_deadline(deployment)?;
    let paused = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.paused)
        .unwrap_or(false);
    let reason = find(deployment.status.as_ref(), PROGRESSING)
        .and_then(|condition| condition.reason.as_deref());
    match (paused, reason) {
        (_, Some(TIMED_OUT)) | (true, Some(PAUSED)) => None,
        (true, _) => Some(condition(
            PROGRESSING,
            "Unknown",
            PAUSED,
            "Deployment is paused".to_owned(),
            now,
        )),
        (false, Some(PAUSED)) => Some(condition(
            PROGRESSING,
            "Unknown",
            RESUMED,
            "Deployment is resumed".to_owned(),
            now,
        )),
        (false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSetStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or_default()
    }

    fn deployment(replicas: i32) -> Deployment {
        Deployment {
            metadata: ObjectMeta {
                name: Some("web".into()),
                generation: Some(1),
                ..ObjectMeta::default()
            },
            spec: Some(DeploymentSpec {
                replicas: Some(replicas),
                progress_deadline_seconds: Some(600),
                ..DeploymentSpec::default()
            }),
            ..Deployment::default()
        }
    }

    fn set_with(replicas: i32, ready: i32) -> Arc<ReplicaSet> {
        Arc::new(ReplicaSet {
            metadata: ObjectMeta {
                name: Some("web-abc".into()),
                ..ObjectMeta::default()
            },
            status: Some(ReplicaSetStatus {
                replicas,
                ready_replicas: Some(ready),
                available_replicas: Some(ready),
                terminating_replicas: Some(0),
                ..ReplicaSetStatus::default()
            }),
            ..ReplicaSet::default()
        })
    }

    fn reason_of<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<&'a str> {
        find(Some(status), type_)?.reason.as_deref()
    }

    #[test]
    fn a_rollout_goes_from_created_over_updated_to_available() {
        let mut web = deployment(2);
        let new = set_with(2, 0);
        let first = rollout(&web, &[&new], Some(&new), at(10));
        assert_eq!(
            reason_of(&first, AVAILABLE),
            Some("MinimumReplicasUnavailable")
        );
        assert_eq!(reason_of(&first, PROGRESSING), Some(UPDATED));
        assert_eq!(first.unavailable_replicas, Some(2));
        assert_eq!(first.terminating_replicas, Some(0));
        web.status = Some(first.clone());

        let unchanged = rollout(&web, &[&new], Some(&new), at(20));
        assert_eq!(unchanged, first, "nothing moved, nothing is written");

        let new = set_with(2, 2);
        let done = rollout(&web, &[&new], Some(&new), at(30));
        assert!(is_complete(&web, &done));
        assert_eq!(reason_of(&done, PROGRESSING), Some(NEW_AVAILABLE));
        let progressing = find(Some(&done), PROGRESSING);
        assert_eq!(
            progressing.and_then(|c| c.message.as_deref()),
            Some("ReplicaSet \"web-abc\" has successfully progressed.")
        );
        assert_eq!(
            progressing.and_then(|c| c.last_transition_time.clone()),
            Some(Time(at(10))),
            "True stays True"
        );
        assert_eq!(
            progressing.and_then(|c| c.last_update_time.clone()),
            Some(Time(at(30)))
        );
        assert_eq!(
            reason_of(&done, AVAILABLE),
            Some("MinimumReplicasAvailable")
        );
        web.status = Some(done.clone());
        assert_eq!(deadline_check(&web, &done, at(30)), None);

        let lost = rollout(&web, &[&set_with(2, 1)], Some(&set_with(2, 1)), at(40));
        assert_eq!(
            reason_of(&lost, PROGRESSING),
            Some(NEW_AVAILABLE),
            "a finished rollout stays finished when a pod fails later"
        );
    }

    #[test]
    fn the_deadline_is_watched() {
        let mut web = deployment(2);
        let new = set_with(2, 0);
        let status = rollout(&web, &[&new], Some(&new), at(10));
        web.status = Some(status.clone());
        assert_eq!(
            deadline_check(&web, &status, at(100)),
            Some(std::time::Duration::from_secs(511))
        );
        let late = rollout(&web, &[&new], Some(&new), at(611));
        assert_eq!(reason_of(&late, PROGRESSING), Some(TIMED_OUT));
        assert_eq!(
            find(Some(&late), PROGRESSING).map(|c| c.status.as_str()),
            Some("False")
        );
        web.status = Some(late.clone());
        assert_eq!(deadline_check(&web, &late, at(700)), None);
    }

    #[test]
    fn pausing_and_resuming() {
        let mut web = deployment(2);
        assert_eq!(pause_condition(&web, at(1)), None);
        if let Some(spec) = &mut web.spec {
            spec.paused = Some(true);
        }
        let paused = pause_condition(&web, at(1));
        assert_eq!(
            paused.as_ref().and_then(|c| c.reason.as_deref()),
            Some(PAUSED)
        );
        let mut status = DeploymentStatus::default();
        if let Some(condition) = paused {
            set(&mut status, condition);
        }
        web.status = Some(status);
        assert_eq!(pause_condition(&web, at(2)), None);
        if let Some(spec) = &mut web.spec {
            spec.paused = Some(false);
        }
        assert_eq!(
            pause_condition(&web, at(3)).and_then(|c| c.reason),
            Some(RESUMED.to_owned())
        );
    }
}
