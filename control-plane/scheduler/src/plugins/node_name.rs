//! Filter: a pod that names its node goes nowhere else.

use super::{Plugin, Rejection};
use crate::cluster::{NodeInfo, PodInfo};

pub(crate) fn filter(pod: &PodInfo, name: &str, _node: &NodeInfo) -> Option<Rejection> {
    let wanted = pod.pod.spec.as_ref()?.node_name.as_deref()?;
    (!wanted.is_empty() && wanted != name).then(|| {
        Rejection::new(
            Plugin::NodeName,
            "node(s) didn't match the requested node name",
            false,
        )
    })
}
