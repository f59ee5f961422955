//! Filter: a cordoned node takes no new pods, except those that tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::{Plugin, Rejection, taint_toleration};
use crate::cluster::{NodeInfo, PodInfo};

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    let cordoned = node
        .node
        .as_ref()?
        .spec
        .as_ref()?
        .unschedulable
        .unwrap_or(false);
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    (cordoned && !taint_toleration::tolerates(&pod.pod, &taint)).then(|| {
        Rejection::new(
            Plugin::NodeUnschedulable,
            "node(s) were unschedulable",
            false,
        )
    })
}
