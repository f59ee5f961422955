//! How Namespaces, ConfigMaps, Secrets, ServiceAccounts and Events are shown.
//!
//! Pure.

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::Value;

use super::format::{age, name, object_list, object_number, object_text, or, parse_time, since};
use super::{AGE, Column, NAME, Printer, column, no_conditions, wide};

pub(super) static NAMESPACE: Printer = Printer {
    columns: &[
        NAME,
        column(
            "Status",
            "string",
            "Whether the namespace is in use or going away.",
        ),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object_text(object, "/status/phase").into(),
            age(object, now),
        ]
    },
    conditions: no_conditions,
};

pub(super) static CONFIG_MAP: Printer = Printer {
    columns: &[NAME, column("Data", "string", "Number of entries."), AGE],
    cells: |object, now| {
        let entries = entries(object, "/data") + entries(object, "/binaryData");
        vec![name(object), entries.into(), age(object, now)]
    },
    conditions: no_conditions,
};

pub(super) static SECRET: Printer = Printer {
    columns: &[
        NAME,
        column("Type", "string", "What the secret is for."),
        column("Data", "string", "Number of entries."),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object_text(object, "/type").into(),
            entries(object, "/data").into(),
            age(object, now),
        ]
    },
    conditions: no_conditions,
};

pub(super) static SERVICE_ACCOUNT: Printer = Printer {
    columns: &[
        NAME,
        column("Secrets", "string", "Number of secrets it may use."),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object_list(object, "/secrets").len().into(),
            age(object, now),
        ]
    },
    conditions: no_conditions,
};

pub(super) static EVENT: Printer = Printer {
    columns: &[
        column("Last Seen", "string", "Time since it last happened."),
        column("Type", "string", "Normal or Warning."),
        column("Reason", "string", "What happened, in one word."),
        column("Object", "string", "What it happened to."),
        wide("Subobject", "string", "Which part of it."),
        wide("Source", "string", "Who noticed."),
        column("Message", "string", "What happened, for people."),
        wide("First Seen", "string", "Time since it first happened."),
        wide("Count", "string", "How often it happened."),
        Column {
            priority: 1,
            ..NAME
        },
    ],
    cells: event,
    conditions: no_conditions,
};

fn entries(object: &Object, pointer: &str) -> usize {
    object
        .pointer(pointer)
        .and_then(Value::as_object)
        .map_or(0, serde_json::Map::len)
}

fn event(object: &Object, now: Timestamp) -> Vec<Value> {
    let time = |pointer: &str| parse_time(object.pointer(pointer).and_then(Value::as_str));
    let first = since(time("/firstTimestamp").or_else(|| time("/eventTime")), now);
    let last = time("/lastTimestamp");
    let mut last_shown = last.map_or_else(|| first.clone(), |last| since(Some(last), now));
    let mut count = object_number(object, "/count").max(1);
    if object.pointer("/series").is_some_and(|s| !s.is_null()) {
        last_shown = since(time("/series/lastObservedTime"), now);
        count = object_number(object, "/series/count");
    }
    let kind = object_text(object, "/involvedObject/kind").to_lowercase();
    let target = match object_text(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        last_shown.into(),
        object_text(object, "/type").into(),
        object_text(object, "/reason").into(),
        target.into(),
        object_text(object, "/involvedObject/fieldPath").into(),
        source(object).into(),
        object_text(object, "/message").trim().into(),
        first.into(),
        count.into(),
        name(object),
    ]
}

fn source(object: &Object) -> String {
    let component = or(
        object_text(object, "/source/component"),
        object_text(object, "/reportingComponent"),
    );
    let host = or(
        object_text(object, "/source/host"),
        object_text(object, "/reportingInstance"),
    );
    if host.is_empty() {
        component.to_owned()
    } else {
        format!("{component}, {host}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_shown_with_times_and_target() {
        let object = Object::from_value(json!({
            "metadata": {"name": "web.1"},
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{a}"},
            "type": "Normal", "reason": "Started", "message": "Started container a\n",
            "source": {"component": "kubelet", "host": "n1"}, "count": 3,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z",
        }))
        .unwrap();
        let cells = event(&object, "2026-01-01T00:01:30Z".parse().unwrap());
        assert_eq!(
            cells,
            [
                json!("30s"),
                json!("Normal"),
                json!("Started"),
                json!("pod/web"),
                json!("spec.containers{a}"),
                json!("kubelet, n1"),
                json!("Started container a"),
                json!("90s"),
                json!(3),
                json!("web.1"),
            ]
        );
    }
}
