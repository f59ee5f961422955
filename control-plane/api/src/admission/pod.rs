//! `DefaultTolerationSeconds` and `Priority` for new pods.

use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use serde_json::{Value, json};

use super::display_name;
use crate::pipeline::Attributes;
use crate::server::DefaultTolerations;

/// The priority classes that exist without anybody making them.
const SYSTEM_CLASSES: [(&str, i64); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

/// Pods are evicted from a lost node only after a while (five minutes), unless they say otherwise.
pub(super) fn tolerate_lost_nodes(defaults: DefaultTolerations, pod: &mut Object) {
    let mut tolerations = match pod.get_path(&["spec", "tolerations"]) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    let before = tolerations.len();
    for (taint, seconds) in [
        ("node.kubernetes.io/not-ready", defaults.not_ready_seconds),
        (
            "node.kubernetes.io/unreachable",
            defaults.unreachable_seconds,
        ),
    ] {
        let tolerated = tolerations.iter().any(|toleration| {
            let key = toleration["key"].as_str().unwrap_or_default();
            let effect = toleration["effect"].as_str().unwrap_or_default();
            (key == taint || key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !tolerated {
            tolerations.push(json!({
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": seconds,
            }));
        }
    }
    if tolerations.len() > before {
        pod.set_path(&["spec", "tolerations"], Value::Array(tolerations));
    }
}

/// Resolves the priority class of a pod.
pub(super) fn prioritise(attributes: &Attributes, pod: &mut Object) -> Result<(), Status> {
    let refuse = |pod: &Object, why: String| {
        Err(Status::forbidden(
            &attributes.resource.group_resource(),
            display_name(pod),
            why,
        ))
    };
    let class = pod
        .str_at(&["spec", "priorityClassName"])
        .unwrap_or_default()
        .to_owned();
    let priority = if class.is_empty() {
        0
    } else {
        match SYSTEM_CLASSES.iter().find(|(name, _)| *name == class) {
            Some((_, priority)) => *priority,
            None => {
                return refuse(pod, format!("no PriorityClass with name {class} was found"));
            }
        }
    };
    if let Some(given) = pod.get_path(&["spec", "priority"]).and_then(Value::as_i64)
        && given != priority
    {
        return refuse(
            pod,
            format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
            ),
        );
    }
    pod.set_path(&["spec", "priority"], json!(priority));
    if pod.get_path(&["spec", "preemptionPolicy"]).is_none() {
        pod.set_path(&["spec", "preemptionPolicy"], json!("PreemptLowerPriority"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_are_added_once() {
        let mut pod = Object::default();
        pod.set_path(
            &["spec", "tolerations"],
            json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]),
        );
        tolerate_lost_nodes(DefaultTolerations::default(), &mut pod);
        tolerate_lost_nodes(DefaultTolerations::default(), &mut pod);
        let list = pod
            .get_path(&["spec", "tolerations"])
            .and_then(Value::as_array);
        assert_eq!(list.map(Vec::len), Some(2));
        let mut all = Object::default();
        all.set_path(&["spec", "tolerations"], json!([{"operator": "Exists"}]));
        tolerate_lost_nodes(DefaultTolerations::default(), &mut all);
        let list = all
            .get_path(&["spec", "tolerations"])
            .and_then(Value::as_array);
        assert_eq!(list.map(Vec::len), Some(1));
    }
}
