//! Rules of what nodes report: Nodes, Leases and Events.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, NodeSpec, Taint};
use k8s_openapi::api::events::v1 as events_v1;

use super::{Rules, invalid_each, not_negative, one_of_or_none};
use crate::field::{ErrorList, FieldError, Path};
use crate::names;
use crate::quantity::Quantity;

/// Nodes.
pub(super) const NODE: Rules<Node> = Rules {
    create: |new, errors| node(new, errors),
    update: |new, old, errors| {
        node(new, errors);
        node_update(new, old, errors);
    },
    status: |new, _, errors| {
        let capacity = new
            .status
            .iter()
            .flat_map(|s| [("capacity", &s.capacity), ("allocatable", &s.allocatable)]);
        for (field, list) in capacity {
            for (name, quantity) in list.iter().flatten() {
                let path = Path::new("status").child(field).key(name);
                invalid_each(errors, &path, name, names::qualified_name(name));
                if Quantity::try_from(quantity).is_ok_and(|q| q.is_negative()) {
                    errors.push(FieldError::invalid(&path, quantity, super::NOT_NEGATIVE));
                }
            }
        }
    },
};

/// Leases.
pub(super) const LEASE: Rules<Lease> = Rules {
    create: |new, errors| lease(new, errors),
    update: |new, _, errors| lease(new, errors),
    status: |_, _, _| {},
};

/// Events of the core group.
pub(super) const EVENT: Rules<Event> = Rules {
    create: |new, errors| event(new, errors),
    update: |new, _, errors| event(new, errors),
    status: |_, _, _| {},
};

/// Events of `events.k8s.io`.
pub(super) const EVENT_V1: Rules<events_v1::Event> = Rules {
    create: |new, errors| event_v1(new, errors),
    update: |_, _, _| {},
    status: |_, _, _| {},
};

fn node(node: &Node, errors: &mut ErrorList) {
    let Some(spec) = &node.spec else { return };
    let path = Path::new("spec");
    taints(
        spec.taints.as_deref().unwrap_or_default(),
        &path.child("taints"),
        errors,
    );
    let cidrs = spec.pod_cidrs.as_deref().unwrap_or_default();
    for (i, cidr) in cidrs.iter().enumerate() {
        if !is_cidr(cidr) {
            errors.push(FieldError::invalid(
                &path.child("podCIDRs").index(i),
                cidr,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ));
        }
    }
    if cidrs.len() > 2 {
        errors.push(FieldError::invalid(
            &path.child("podCIDRs"),
            cidrs,
            "may specify no more than one CIDR for each IP family",
        ));
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let max = match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= max)
}

fn taints(taints: &[Taint], path: &Path, errors: &mut ErrorList) {
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        invalid_each(
            errors,
            &path.child("key"),
            &taint.key,
            names::qualified_name(&taint.key),
        );
        if let Some(value) = &taint.value {
            invalid_each(
                errors,
                &path.child("value"),
                value,
                names::label_value(value),
            );
        }
        if taint.effect.is_empty() {
            errors.push(FieldError::required(&path.child("effect"), ""));
        } else {
            one_of_or_none(
                errors,
                &path.child("effect"),
                Some(&taint.effect),
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            );
        }
        let duplicate = taints
            .iter()
            .take(i)
            .any(|t| t.key == taint.key && t.effect == taint.effect);
        if duplicate {
            let mut error = FieldError::duplicate(&path, taint);
            "taints must be unique by key and effect pair".clone_into(&mut error.detail);
            errors.push(error);
        }
    }
}

fn node_update(new: &Node, old: &Node, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let none = NodeSpec::default();
    let (new, old) = (
        new.spec.as_ref().unwrap_or(&none),
        old.spec.as_ref().unwrap_or(&none),
    );
    let set = |text: &Option<String>| text.as_deref().is_some_and(|t| !t.is_empty());
    if old.pod_cidrs.as_ref().is_some_and(|c| !c.is_empty()) && new.pod_cidrs != old.pod_cidrs {
        errors.push(FieldError::forbidden(
            &path.child("podCIDRs"),
            "node updates may not change podCIDR except from \"\" to valid",
        ));
    }
    if set(&old.provider_id) && new.provider_id != old.provider_id {
        errors.push(FieldError::forbidden(
            &path.child("providerID"),
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
}

fn lease(lease: &Lease, errors: &mut ErrorList) {
    let Some(spec) = &lease.spec else { return };
    let path = Path::new("spec");
    if let Some(seconds) = spec.lease_duration_seconds
        && seconds <= 0
    {
        errors.push(FieldError::invalid(
            &path.child("leaseDurationSeconds"),
            seconds,
            "must be greater than 0",
        ));
    }
    if let Some(transitions) = spec.lease_transitions {
        not_negative(errors, &path.child("leaseTransitions"), transitions.into());
    }
}

fn event(event: &Event, errors: &mut ErrorList) {
    same_namespace(
        event.metadata.namespace.as_deref(),
        event.involved_object.namespace.as_deref(),
        "involvedObject.namespace",
        errors,
    );
}

fn same_namespace(own: Option<&str>, involved: Option<&str>, field: &str, errors: &mut ErrorList) {
    let (own, involved) = (own.unwrap_or(""), involved.unwrap_or(""));
    // Events about objects outside of namespaces live in `default`.
    let fits = if involved.is_empty() {
        matches!(own, "default" | "kube-system" | "")
    } else {
        own == involved
    };
    if !fits {
        errors.push(FieldError::invalid(
            &Path::new(field),
            involved,
            "does not match event.namespace",
        ));
    }
}

fn event_v1(event: &events_v1::Event, errors: &mut ErrorList) {
    same_namespace(
        event.metadata.namespace.as_deref(),
        event
            .regarding
            .as_ref()
            .and_then(|r| r.namespace.as_deref()),
        "regarding.namespace",
        errors,
    );
    if event.event_time.is_none() {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    let mut text = |field: &str, value: Option<&str>, max: usize| {
        let path = Path::new(field);
        match value {
            None | Some("") => errors.push(FieldError::required(&path, "")),
            Some(value) if value.len() > max => errors.push(FieldError::invalid(
                &path,
                "",
                format!("can have at most {max} characters"),
            )),
            Some(_) => {}
        }
    };
    text(
        "reportingController",
        event.reporting_controller.as_deref(),
        128,
    );
    text(
        "reportingInstance",
        event.reporting_instance.as_deref(),
        128,
    );
    text("action", event.action.as_deref(), 128);
    text("reason", event.reason.as_deref(), 128);
    if event.note.as_ref().is_some_and(|n| n.len() > 1024) {
        errors.push(FieldError::invalid(
            &Path::new("message"),
            "",
            "can have at most 1024 characters",
        ));
    }
    match event.type_.as_deref().unwrap_or("") {
        "Normal" | "Warning" => {}
        other => errors.push(FieldError::invalid(
            &Path::new("type"),
            "",
            format!("has invalid value: {other}"),
        )),
    }
}
