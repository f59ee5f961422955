//! Rules of where a pod may run: affinity, tolerations, spreading, gates.
//!
//! The scheduler relies on selectors and operators being valid.

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint,
};

use crate::field::{ErrorList, FieldError, Path};
use crate::names;
use crate::validation::{invalid_each, meta, one_of_or_none};

/// All rules of scheduling.
pub(super) fn rules(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    if let Some(affinity) = &spec.affinity {
        self::affinity(affinity, &path.child("affinity"), errors);
    }
    for (i, item) in spec.tolerations.iter().flatten().enumerate() {
        toleration(item, &path.child("tolerations").index(i), errors);
    }
    spread(
        spec.topology_spread_constraints
            .as_deref()
            .unwrap_or_default(),
        &path.child("topologySpreadConstraints"),
        errors,
    );
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        invalid_each(
            errors,
            &path.child("readinessGates").index(i).child("conditionType"),
            &gate.condition_type,
            names::qualified_name(&gate.condition_type),
        );
    }
    let gates = spec.scheduling_gates.as_deref().unwrap_or_default();
    for (i, gate) in gates.iter().enumerate() {
        let path = path.child("schedulingGates").index(i);
        invalid_each(errors, &path, &gate.name, names::qualified_name(&gate.name));
        if gates.iter().take(i).any(|g| g.name == gate.name) {
            errors.push(FieldError::duplicate(&path, &gate.name));
        }
    }
    one_of_or_none(
        errors,
        &path.child("preemptionPolicy"),
        spec.preemption_policy.as_deref(),
        &["Never", "PreemptLowerPriority"],
    );
}

fn affinity(affinity: &Affinity, path: &Path, errors: &mut ErrorList) {
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
            let path = path
                .child("requiredDuringSchedulingIgnoredDuringExecution")
                .child("nodeSelectorTerms");
            if required.node_selector_terms.is_empty() {
                errors.push(FieldError::required(
                    &path,
                    "must have at least one node selector term",
                ));
            }
            for (i, term) in required.node_selector_terms.iter().enumerate() {
                node_term(term, &path.index(i), errors);
            }
        }
        let preferred = node
            .preferred_during_scheduling_ignored_during_execution
            .as_deref()
            .unwrap_or_default();
        for (i, term) in preferred.iter().enumerate() {
            let path = path
                .child("preferredDuringSchedulingIgnoredDuringExecution")
                .index(i);
            weight(term.weight, &path, errors);
            node_term(&term.preference, &path.child("preference"), errors);
        }
    }
    let pods = affinity.pod_affinity.as_ref().map(|a| {
        (
            "podAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let anti = affinity.pod_anti_affinity.as_ref().map(|a| {
        (
            "podAntiAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    for (field, required, preferred) in pods.into_iter().chain(anti) {
        let path = path.child(field);
        for (i, term) in required.iter().flatten().enumerate() {
            let path = path
                .child("requiredDuringSchedulingIgnoredDuringExecution")
                .index(i);
            pod_term(term, &path, errors);
        }
        for (i, term) in preferred.iter().flatten().enumerate() {
            let path = path
                .child("preferredDuringSchedulingIgnoredDuringExecution")
                .index(i);
            weight(term.weight, &path, errors);
            pod_term(
                &term.pod_affinity_term,
                &path.child("podAffinityTerm"),
                errors,
            );
        }
    }
}

fn weight(weight: i32, path: &Path, errors: &mut ErrorList) {
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(
            &path.child("weight"),
            weight,
            "must be in the range 1-100",
        ));
    }
}

fn node_term(term: &NodeSelectorTerm, path: &Path, errors: &mut ErrorList) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.push(FieldError::required(
                        &path.child("values"),
                        "must be specified when `operator` is 'In' or 'NotIn'",
                    ));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    errors.push(FieldError::forbidden(
                        &path.child("values"),
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    ));
                }
            }
            "Gt" | "Lt" => {
                if values.len() != 1 {
                    errors.push(FieldError::required(
                        &path.child("values"),
                        "must be specified single value when `operator` is 'Lt' or 'Gt'",
                    ));
                }
            }
            other => errors.push(FieldError::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        invalid_each(
            errors,
            &path.child("key"),
            &requirement.key,
            names::qualified_name(&requirement.key),
        );
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        let path = path.child("matchFields").index(i);
        if requirement.key != "metadata.name" {
            errors.push(FieldError::invalid(
                &path.child("key"),
                &requirement.key,
                "not a valid field selector key",
            ));
        }
        if !matches!(requirement.operator.as_str(), "In" | "NotIn") {
            errors.push(FieldError::invalid(
                &path.child("operator"),
                &requirement.operator,
                "not a valid selector operator",
            ));
        } else if requirement.values.as_ref().map_or(0, Vec::len) != 1 {
            errors.push(FieldError::required(
                &path.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ));
        }
    }
}

fn pod_term(term: &PodAffinityTerm, path: &Path, errors: &mut ErrorList) {
    if let Some(selector) = &term.label_selector {
        meta::label_selector(selector, &path.child("labelSelector"), errors);
    }
    if let Some(selector) = &term.namespace_selector {
        meta::label_selector(selector, &path.child("namespaceSelector"), errors);
    }
    for namespace in term.namespaces.iter().flatten() {
        let messages = names::dns1123_label(namespace);
        invalid_each(errors, &path.child("namespace"), namespace, messages);
    }
    let path = path.child("topologyKey");
    if term.topology_key.is_empty() {
        errors.push(FieldError::required(&path, "can not be empty"));
    } else {
        let messages = names::qualified_name(&term.topology_key);
        invalid_each(errors, &path, &term.topology_key, messages);
    }
}

fn toleration(toleration: &Toleration, path: &Path, errors: &mut ErrorList) {
    let key = toleration.key.as_deref().unwrap_or("");
    let operator = toleration.operator.as_deref().unwrap_or("");
    let effect = toleration.effect.as_deref().unwrap_or("");
    if !key.is_empty() {
        invalid_each(errors, &path.child("key"), key, names::qualified_name(key));
    }
    if key.is_empty() && operator != "Exists" {
        errors.push(FieldError::invalid(
            &path.child("operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        errors.push(FieldError::invalid(
            &path.child("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ));
    }
    let value = toleration.value.as_deref().unwrap_or("");
    match operator {
        "" | "Equal" => {
            let messages = names::label_value(value);
            invalid_each(errors, &path.child("operator"), value, messages);
        }
        "Exists" => {
            if !value.is_empty() {
                errors.push(FieldError::invalid(
                    &path.child("operator"),
                    toleration,
                    "value must be empty when `operator` is 'Exists'",
                ));
            }
        }
        other => errors.push(FieldError::not_supported(
            &path.child("operator"),
            other,
            &["Equal", "Exists"],
        )),
    }
    one_of_or_none(
        errors,
        &path.child("effect"),
        Some(effect),
        &["NoSchedule", "PreferNoSchedule", "NoExecute"],
    );
}

fn spread(constraints: &[TopologySpreadConstraint], path: &Path, errors: &mut ErrorList) {
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        if constraint.max_skew <= 0 {
            errors.push(FieldError::invalid(
                &path.child("maxSkew"),
                constraint.max_skew,
                "must be greater than zero",
            ));
        }
        if constraint.topology_key.is_empty() {
            errors.push(FieldError::required(
                &path.child("topologyKey"),
                "can not be empty",
            ));
        }
        if !matches!(
            constraint.when_unsatisfiable.as_str(),
            "DoNotSchedule" | "ScheduleAnyway"
        ) {
            errors.push(FieldError::not_supported(
                &path.child("whenUnsatisfiable"),
                &constraint.when_unsatisfiable,
                &["DoNotSchedule", "ScheduleAnyway"],
            ));
        }
        if let Some(domains) = constraint.min_domains {
            if domains <= 0 {
                errors.push(FieldError::invalid(
                    &path.child("minDomains"),
                    domains,
                    "must be greater than zero",
                ));
            }
            if constraint.when_unsatisfiable != "DoNotSchedule" {
                errors.push(FieldError::invalid(
                    &path.child("minDomains"),
                    domains,
                    format!(
                        "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                        constraint.when_unsatisfiable
                    ),
                ));
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            one_of_or_none(
                errors,
                &path.child(field),
                policy.as_deref(),
                &["Honor", "Ignore"],
            );
        }
        let duplicate = constraints.iter().take(i).any(|c| {
            c.topology_key == constraint.topology_key
                && c.when_unsatisfiable == constraint.when_unsatisfiable
        });
        if duplicate {
            errors.push(FieldError::duplicate(
                &path.child("{topologyKey, whenUnsatisfiable}"),
                format!(
                    "{{{}, {}}}",
                    constraint.topology_key, constraint.when_unsatisfiable
                ),
            ));
        }
        if let Some(selector) = &constraint.label_selector {
            meta::label_selector(selector, &path.child("labelSelector"), errors);
        }
    }
}
