//! What may change in a pod once it exists: images, deadlines, tolerations, and little else.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration};
use serde_json::Value;

use crate::field::{ErrorList, FieldError, Path};
use crate::validation::immutable;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Rules of a changed pod.
pub(super) fn pod_update(new: &PodSpec, old: &PodSpec, errors: &mut ErrorList) {
    let path = Path::new("spec");
    super::spec(new, &path, false, errors);
    let count = |list: &Option<Vec<Container>>| list.as_ref().map_or(0, Vec::len);
    if new.containers.len() != old.containers.len() {
        errors.push(FieldError::forbidden(
            &path.child("containers"),
            "pod updates may not add or remove containers",
        ));
        return;
    }
    if count(&new.init_containers) != count(&old.init_containers) {
        errors.push(FieldError::forbidden(
            &path.child("initContainers"),
            "pod updates may not add or remove containers",
        ));
        return;
    }
    deadline(new, old, &path, errors);
    gates(new, old, &path, errors);
    tolerations(new, old, &path, errors);

    // What may change is put back; what then differs may not.
    let mut allowed = new.clone();
    for (new, old) in allowed.containers.iter_mut().zip(&old.containers) {
        new.image.clone_from(&old.image);
    }
    for (new, old) in allowed
        .init_containers
        .iter_mut()
        .flatten()
        .zip(old.init_containers.iter().flatten())
    {
        new.image.clone_from(&old.image);
    }
    allowed.active_deadline_seconds = old.active_deadline_seconds;
    allowed.tolerations.clone_from(&old.tolerations);
    allowed.scheduling_gates.clone_from(&old.scheduling_gates);
    if new.termination_grace_period_seconds == Some(1)
        && old.termination_grace_period_seconds.is_some_and(|s| s < 0)
    {
        allowed.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    let gated = old.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty());
    if gated {
        let kept = old
            .node_selector
            .iter()
            .flatten()
            .all(|(k, v)| new.node_selector.as_ref().and_then(|s| s.get(k)) == Some(v));
        if kept {
            allowed.node_selector.clone_from(&old.node_selector);
        } else {
            errors.push(FieldError::invalid(
                &path.child("nodeSelector"),
                &new.node_selector,
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
            ));
        }
    }
    if allowed != *old {
        let (allowed, old) = (
            serde_json::to_value(&allowed).unwrap_or_default(),
            serde_json::to_value(old).unwrap_or_default(),
        );
        let mut difference = String::new();
        describe(&allowed, &old, "spec", &mut difference);
        errors.push(FieldError::forbidden(
            &path,
            format!("pod updates may not change fields other than {UPDATABLE}\n{difference}"),
        ));
    }
}

/// Lines of what differs: `-` what is stored, `+` what was asked for.
fn describe(new: &Value, old: &Value, path: &str, out: &mut String) {
    match (new, old) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let (a, b) = (
                    a.get(name).unwrap_or(&Value::Null),
                    b.get(name).unwrap_or(&Value::Null),
                );
                describe(a, b, &format!("{path}.{name}"), out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                describe(a, b, &format!("{path}[{i}]"), out);
            }
        }
        (a, b) if a != b => {
            if !b.is_null() {
                out.extend(["- ", path, ": ", &b.to_string(), "\n"]);
            }
            if !a.is_null() {
                out.extend(["+ ", path, ": ", &a.to_string(), "\n"]);
            }
        }
        _ => {}
    }
}

fn deadline(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let path = path.child("activeDeadlineSeconds");
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), Some(old)) if new > old => errors.push(FieldError::invalid(
            &path,
            new,
            "must be less than or equal to previous value",
        )),
        (None, Some(_)) => errors.push(FieldError::invalid(
            &path,
            Value::Null,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
}

fn gates(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let known = old.scheduling_gates.as_deref().unwrap_or_default();
    for (i, gate) in new.scheduling_gates.iter().flatten().enumerate() {
        if !known.iter().any(|g| g.name == gate.name) {
            errors.push(FieldError::forbidden(
                &path.child("schedulingGates").index(i),
                "only deletion is allowed, but found new scheduling gate",
            ));
        }
    }
}

fn tolerations(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let list = new.tolerations.as_deref().unwrap_or_default();
    let survives = |old: &Toleration| {
        list.iter().any(|new| {
            new.key == old.key
                && new.operator == old.operator
                && new.value == old.value
                && new.effect == old.effect
        })
    };
    if !old.tolerations.iter().flatten().all(survives) {
        errors.push(FieldError::forbidden(
            &path.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

/// Rules of a changed pod status.
pub(super) fn status_update(new: &Pod, old: &Pod, errors: &mut ErrorList) {
    let path = Path::new("status");
    let (Some(new_status), Some(old_status)) = (&new.status, &old.status) else {
        return;
    };
    if let Some(name) = new_status
        .nominated_node_name
        .as_deref()
        .filter(|n| !n.is_empty())
    {
        let messages = crate::names::dns1123_subdomain(name);
        super::invalid_each(errors, &path.child("nominatedNodeName"), name, messages);
    }
    if old_status.qos_class.is_some() {
        immutable(
            errors,
            &path.child("qosClass"),
            &new_status.qos_class,
            &old_status.qos_class,
        );
    }
    // A container of a pod that never restarts stays what it ended as.
    let never = old.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("Never");
    if never {
        for old in old_status.container_statuses.iter().flatten() {
            let was_terminated = old.state.as_ref().is_some_and(|s| s.terminated.is_some());
            if !was_terminated {
                continue;
            }
            let runs = new_status
                .container_statuses
                .iter()
                .flatten()
                .find(|c| c.name == old.name)
                .is_some_and(|c| c.state.as_ref().is_some_and(|s| s.terminated.is_none()));
            if runs {
                errors.push(FieldError::forbidden(
                    &path.child("containerStatuses"),
                    format!(
                        "may not be transitioned to non-terminated state for container {:?}",
                        old.name
                    ),
                ));
            }
        }
    }
}
