//! Rules of pods and pod templates.
//!
//! The agent runs what passes here without asking again: names are unique, references lead somewhere.

mod container;
mod probe;
mod scheduling;
mod security;
mod update;
mod volume;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Binding, Pod, PodSpec};

use super::{Rules, invalid_each, ip_address, meta, not_negative, one_of};
use crate::field::{ErrorList, FieldError, Path};
use crate::names;

/// Pods.
pub(super) const POD: Rules<Pod> = Rules {
    create: |new, errors| {
        let path = Path::new("spec");
        match &new.spec {
            Some(pod) => {
                spec(pod, &path, false, errors);
                if pod
                    .ephemeral_containers
                    .as_ref()
                    .is_some_and(|c| !c.is_empty())
                {
                    errors.push(FieldError::forbidden(
                        &path.child("ephemeralContainers"),
                        "cannot be set on create",
                    ));
                }
                if pod.node_name.as_ref().is_some_and(|n| !n.is_empty())
                    && pod.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty())
                {
                    errors.push(FieldError::forbidden(
                        &path.child("nodeName"),
                        "cannot be set until all schedulingGates have been cleared",
                    ));
                }
            }
            None => errors.push(FieldError::required(&path.child("containers"), "")),
        }
    },
    update: |new, old, errors| {
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            update::pod_update(new, old, errors);
        }
    },
    status: |new, old, errors| update::status_update(new, old, errors),
};

/// Bindings of pods to nodes.
pub(super) const BINDING: Rules<Binding> = Rules {
    create: |new, errors| binding(new, errors),
    update: |new, _, errors| binding(new, errors),
    status: |_, _, _| {},
};

fn binding(binding: &Binding, errors: &mut ErrorList) {
    let path = Path::new("target");
    let kind = binding.target.kind.as_deref().unwrap_or("");
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported(
            &path.child("kind"),
            kind,
            &["Node", "<empty>"],
        ));
    }
    if binding
        .target
        .name
        .as_ref()
        .is_none_or(std::string::String::is_empty)
    {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
}

/// Rules of a pod spec, in a pod or in a template.
pub(super) fn spec(spec: &PodSpec, path: &Path, template: bool, errors: &mut ErrorList) {
    let volumes = volume::volumes(
        spec.volumes.as_deref().unwrap_or_default(),
        &path.child("volumes"),
        errors,
    );
    container::containers(spec, &volumes, template, path, errors);
    one_of(
        errors,
        &path.child("restartPolicy"),
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    one_of(
        errors,
        &path.child("dnsPolicy"),
        spec.dns_policy.as_deref(),
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    );
    dns_config(spec, path, errors);
    if let Some(selector) = &spec.node_selector {
        meta::validate_labels(selector, &path.child("nodeSelector"), errors);
    }
    security::pod(spec, path, errors);
    for (i, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        if secret.name.is_empty() {
            errors.push(FieldError::required(
                &path.child("imagePullSecrets").index(i).child("name"),
                "",
            ));
        }
    }
    scheduling::rules(spec, path, errors);
    identity(spec, path, errors);
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.push(FieldError::invalid(
            &path.child("activeDeadlineSeconds"),
            seconds,
            format!("must be between 1 and {}, inclusive", i32::MAX),
        ));
    }
    if let Some(seconds) = spec.termination_grace_period_seconds {
        not_negative(
            errors,
            &path.child("terminationGracePeriodSeconds"),
            seconds,
        );
    }
    if template
        && spec
            .ephemeral_containers
            .as_ref()
            .is_some_and(|c| !c.is_empty())
    {
        errors.push(FieldError::forbidden(
            &path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(i);
        invalid_each(errors, &path.child("ip"), &alias.ip, ip_address(&alias.ip));
        for (j, host) in alias.hostnames.iter().flatten().enumerate() {
            invalid_each(
                errors,
                &path.child("hostnames").index(j),
                host,
                names::dns1123_subdomain(host),
            );
        }
    }
}

/// Names a pod goes by or refers to.
fn identity(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let mut check = |field: &str, value: Option<&str>, rule: fn(&str) -> Vec<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            invalid_each(errors, &path.child(field), value, rule(value));
        }
    };
    check(
        "serviceAccountName",
        spec.service_account_name.as_deref(),
        names::dns1123_subdomain,
    );
    check(
        "nodeName",
        spec.node_name.as_deref(),
        names::dns1123_subdomain,
    );
    check("hostname", spec.hostname.as_deref(), names::dns1123_label);
    check("subdomain", spec.subdomain.as_deref(), names::dns1123_label);
    check(
        "priorityClassName",
        spec.priority_class_name.as_deref(),
        names::dns1123_subdomain,
    );
    check(
        "runtimeClassName",
        spec.runtime_class_name.as_deref(),
        names::dns1123_subdomain,
    );
    check(
        "schedulerName",
        spec.scheduler_name.as_deref(),
        names::qualified_name,
    );
}

fn dns_config(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let path = path.child("dnsConfig");
    let nameservers = spec
        .dns_config
        .as_ref()
        .and_then(|c| c.nameservers.as_deref())
        .unwrap_or_default();
    if spec.dns_policy.as_deref() == Some("None") {
        if spec.dns_config.is_none() {
            errors.push(FieldError::required(
                &path,
                "must provide `dnsConfig` when `dnsPolicy` is None",
            ));
            return;
        }
        if nameservers.is_empty() {
            errors.push(FieldError::required(
                &path.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ));
        }
    }
    let Some(config) = &spec.dns_config else {
        return;
    };
    if nameservers.len() > 3 {
        errors.push(FieldError::invalid(
            &path.child("nameservers"),
            nameservers,
            "must not have more than 3 nameservers",
        ));
    }
    for (i, server) in nameservers.iter().enumerate() {
        let path = path.child("nameservers").index(i);
        invalid_each(errors, &path, server, ip_address(server));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > 32 {
        errors.push(FieldError::invalid(
            &path.child("searches"),
            searches,
            "must not have more than 32 search paths",
        ));
    }
    for (i, search) in searches.iter().enumerate() {
        let domain = search.strip_suffix('.').unwrap_or(search);
        let domain = domain.replace('_', "-");
        let path = path.child("searches").index(i);
        if !domain.is_empty() {
            invalid_each(errors, &path, search, names::dns1123_subdomain(&domain));
        }
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option
            .name
            .as_ref()
            .is_none_or(std::string::String::is_empty)
        {
            errors.push(FieldError::required(
                &path.child("options").index(i),
                "must not be empty",
            ));
        }
    }
}

/// The names of a pod's volumes, as mounts refer to them.
type VolumeNames = BTreeSet<String>;
