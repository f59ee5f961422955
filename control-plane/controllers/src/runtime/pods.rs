//! Questions about a pod's state that several controllers ask.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};

/// A condition of the pod by type.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// The pod's phase, `Pending` while none is reported.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// Whether the pod has ended for good.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod is being deleted.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod counts towards a workload's replicas.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// Whether the pod's Ready condition is true.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when the pod is ready.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|ready| ready.status == "True")
        .and_then(|ready| ready.last_transition_time.as_ref())
        .map(|time| time.0)
}

/// How long until the pod has been ready for `min_ready_seconds`: zero when it is available, `None`
/// while it is not ready.
pub(crate) fn until_available(
    pod: &Pod,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    let Ok(min_ready) = u64::try_from(min_ready_seconds) else {
        return Some(Duration::ZERO);
    };
    if min_ready == 0 {
        return Some(Duration::ZERO);
    }
    let since = ready_since(pod)?;
    let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
    Some(Duration::from_secs(min_ready).saturating_sub(elapsed))
}

/// The node the pod is bound to.
pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn ready_at(second: i64) -> Pod {
        Pod {
            status: Some(PodStatus {
                conditions: Some(vec![PodCondition {
                    type_: "Ready".into(),
                    status: "True".into(),
                    last_transition_time: Timestamp::from_second(second).ok().map(Time),
                    ..PodCondition::default()
                }]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        }
    }

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let now = Timestamp::from_second(100).unwrap_or_default();
        assert_eq!(until_available(&Pod::default(), 0, now), None);
        assert_eq!(until_available(&ready_at(95), 0, now), Some(Duration::ZERO));
        assert_eq!(
            until_available(&ready_at(95), 10, now),
            Some(Duration::from_secs(5))
        );
        assert_eq!(
            until_available(&ready_at(90), 10, now),
            Some(Duration::ZERO)
        );
    }
}
