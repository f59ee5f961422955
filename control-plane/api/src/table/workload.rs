//! How Deployments, ReplicaSets, ControllerRevisions and PodDisruptionBudgets are shown.
//!
//! Pure.

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::Value;

use super::format::{NONE, age, containers_and_images, label_selector, name, object_number};
use super::{AGE, NAME, Printer, column, no_conditions, wide};

pub(super) static DEPLOYMENT: Printer = Printer {
    columns: &[
        NAME,
        column("Ready", "string", "Pods that are ready, of those wanted."),
        column("Up-to-date", "string", "Pods of the newest template."),
        column(
            "Available",
            "string",
            "Pods that have been ready long enough.",
        ),
        AGE,
        wide(
            "Containers",
            "string",
            "Names of the template's containers.",
        ),
        wide("Images", "string", "Images of the template's containers."),
        wide("Selector", "string", "Labels of the pods it manages."),
    ],
    cells: deployment,
    conditions: no_conditions,
};

pub(super) static REPLICA_SET: Printer = Printer {
    columns: &[
        NAME,
        column("Desired", "integer", "Pods wanted."),
        column("Current", "integer", "Pods that exist."),
        column("Ready", "integer", "Pods that are ready."),
        AGE,
        wide(
            "Containers",
            "string",
            "Names of the template's containers.",
        ),
        wide("Images", "string", "Images of the template's containers."),
        wide("Selector", "string", "Labels of the pods it manages."),
    ],
    cells: replica_set,
    conditions: no_conditions,
};

pub(super) static CONTROLLER_REVISION: Printer = Printer {
    columns: &[
        NAME,
        column("Controller", "string", "Object this is a revision of."),
        column("Revision", "string", "Number of the revision."),
        AGE,
    ],
    cells: controller_revision,
    conditions: no_conditions,
};

pub(super) static DISRUPTION_BUDGET: Printer = Printer {
    columns: &[
        NAME,
        column(
            "Min Available",
            "string",
            "Pods that must be available, as a number or a percentage.",
        ),
        column(
            "Max Unavailable",
            "string",
            "Pods that may be unavailable, as a number or a percentage.",
        ),
        column(
            "Allowed Disruptions",
            "integer",
            "Pods that may be evicted now.",
        ),
        AGE,
    ],
    cells: disruption_budget,
    conditions: no_conditions,
};

fn disruption_budget(object: &Object, now: Timestamp) -> Vec<Value> {
    let limit = |pointer: &str| match object.pointer(pointer) {
        None | Some(Value::Null) => "N/A".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(number) => number.to_string(),
    };
    vec![
        name(object),
        limit("/spec/minAvailable").into(),
        limit("/spec/maxUnavailable").into(),
        object_number(object, "/status/disruptionsAllowed").into(),
        age(object, now),
    ]
}

fn deployment(object: &Object, now: Timestamp) -> Vec<Value> {
    let (containers, images) = containers_and_images(object);
    let ready = object_number(object, "/status/readyReplicas");
    vec![
        name(object),
        format!("{ready}/{}", object_number(object, "/spec/replicas")).into(),
        object_number(object, "/status/updatedReplicas").into(),
        object_number(object, "/status/availableReplicas").into(),
        age(object, now),
        containers.into(),
        images.into(),
        label_selector(object.pointer("/spec/selector")).into(),
    ]
}

fn replica_set(object: &Object, now: Timestamp) -> Vec<Value> {
    let (containers, images) = containers_and_images(object);
    vec![
        name(object),
        object_number(object, "/spec/replicas").into(),
        object_number(object, "/status/replicas").into(),
        object_number(object, "/status/readyReplicas").into(),
        age(object, now),
        containers.into(),
        images.into(),
        label_selector(object.pointer("/spec/selector")).into(),
    ]
}

fn controller_revision(object: &Object, now: Timestamp) -> Vec<Value> {
    let owners = object.owner_references();
    let controller = owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map_or_else(
            || NONE.to_owned(),
            |owner| {
                let kind = owner.kind.to_lowercase();
                match owner.api_version.split_once('/') {
                    Some((group, _)) => format!("{kind}.{group}/{}", owner.name),
                    None => format!("{kind}/{}", owner.name),
                }
            },
        );
    vec![
        name(object),
        controller.into(),
        object_number(object, "/revision").into(),
        age(object, now),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_counts_its_pods() {
        let object = Object::from_value(json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}},
                "template": {"spec": {"containers": [
                    {"name": "a", "image": "nginx:1.27"}, {"name": "b", "image": "busybox"}]}}},
            "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
        }))
        .unwrap();
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        assert_eq!(
            deployment(&object, now),
            [
                json!("web"),
                json!("2/3"),
                json!(3),
                json!(1),
                json!("5s"),
                json!("a,b"),
                json!("nginx:1.27,busybox"),
                json!("app=web"),
            ]
        );
    }

    #[test]
    fn a_budget_shows_the_limit_it_has() {
        let object = Object::from_value(json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"maxUnavailable": "25%"}, "status": {"disruptionsAllowed": 1},
        }))
        .unwrap();
        assert_eq!(
            disruption_budget(&object, "2026-01-01T00:00:05Z".parse().unwrap()),
            [
                json!("web"),
                json!("N/A"),
                json!("25%"),
                json!(1),
                json!("5s")
            ]
        );
    }

    #[test]
    fn a_revision_names_its_controller() {
        let object = Object::from_value(json!({
            "metadata": {"name": "r", "ownerReferences": [{"apiVersion": "apps/v1",
                "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true}]},
            "revision": 4,
        }))
        .unwrap();
        let cells = controller_revision(&object, Timestamp::UNIX_EPOCH);
        assert_eq!(
            cells[1..],
            [json!("daemonset.apps/d"), json!(4), json!("<unknown>")]
        );
    }
}
