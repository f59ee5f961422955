//! How Nodes and Leases are shown.
//!
//! Pure.

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::Value;

use super::format::{NONE, UNKNOWN, age, name, object_list, object_text, or, text};
use super::{AGE, NAME, Printer, column, no_conditions, wide};

pub(super) static NODE: Printer = Printer {
    columns: &[
        NAME,
        column("Status", "string", "Whether the node takes pods."),
        column("Roles", "string", "Roles named by its labels."),
        AGE,
        column("Version", "string", "Version of its agent."),
        wide(
            "Internal-IP",
            "string",
            "Address inside the cluster's network.",
        ),
        wide("External-IP", "string", "Address outside of it."),
        wide("OS-Image", "string", "Operating system."),
        wide("Kernel-Version", "string", "Version of its kernel."),
        wide("Container-Runtime", "string", "What runs its containers."),
    ],
    cells: node,
    conditions: no_conditions,
};

pub(super) static LEASE: Printer = Printer {
    columns: &[
        NAME,
        column("Holder", "string", "Who holds the lease."),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object_text(object, "/spec/holderIdentity").into(),
            age(object, now),
        ]
    },
    conditions: no_conditions,
};

fn node(object: &Object, now: Timestamp) -> Vec<Value> {
    let address = |type_: &str| {
        object_list(object, "/status/addresses")
            .iter()
            .find(|address| text(address, "/type") == type_)
            .map_or(NONE, |address| text(address, "/address"))
    };
    let info = |field: &str| object_text(object, &format!("/status/nodeInfo/{field}"));
    vec![
        name(object),
        status(object).into(),
        roles(object).into(),
        age(object, now),
        info("kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        or(info("osImage"), UNKNOWN).into(),
        or(info("kernelVersion"), UNKNOWN).into(),
        or(info("containerRuntimeVersion"), UNKNOWN).into(),
    ]
}

fn status(object: &Object) -> String {
    let ready = object_list(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == "Ready");
    let mut shown = match ready {
        Some(condition) if text(condition, "/status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        shown.push_str(",SchedulingDisabled");
    }
    shown
}

fn roles(object: &Object) -> String {
    let mut roles: Vec<&str> = object
        .labels()
        .into_iter()
        .filter_map(|(key, value)| match key {
            "kubernetes.io/role" => Some(value),
            _ => key.strip_prefix("node-role.kubernetes.io/"),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), NONE).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_shows_status_roles_and_addresses() {
        let object = Object::from_value(json!({
            "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": "",
                "kubernetes.io/role": "edge", "kubernetes.io/os": "linux"}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian"}},
        }))
        .unwrap();
        let cells = node(&object, Timestamp::UNIX_EPOCH);
        let cells: Vec<&str> = cells.iter().map(|c| c.as_str().unwrap()).collect();
        assert_eq!(
            cells.join(" | "),
            "n | Ready,SchedulingDisabled | control-plane,edge | <unknown> | v1.36.0 | 10.0.0.9 | \
             <none> | Debian | <unknown> | <unknown>"
        );
    }
}
