//! Rules of a pod's containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvFromSource, EnvVar, EnvVarSource, EphemeralContainer, PodSpec,
    ResourceRequirements, VolumeMount,
};

use super::probe::{self, Purpose};
use super::{VolumeNames, security, volume};
use crate::field::{ErrorList, FieldError, Path};
use crate::names;
use crate::quantity::Quantity;
use crate::validation::{NOT_NEGATIVE, invalid_each, one_of, one_of_or_none};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Rules of all containers of a pod.
pub(super) fn containers(
    spec: &PodSpec,
    volumes: &VolumeNames,
    template: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    let regular_path = path.child("containers");
    if spec.containers.is_empty() {
        errors.push(FieldError::required(&regular_path, ""));
    }
    let mut names = BTreeSet::new();
    for (i, item) in spec.containers.iter().enumerate() {
        let path = regular_path.index(i);
        container(item, volumes, &path, errors);
        regular(item, spec, &path, errors);
        unique(&item.name, &mut names, &path, errors);
    }
    host_ports(&spec.containers, &regular_path, errors);
    if spec.host_network == Some(true) {
        host_network(&spec.containers, template, &regular_path, errors);
    }
    let mut init_names = names.clone();
    for (i, item) in spec.init_containers.iter().flatten().enumerate() {
        let path = path.child("initContainers").index(i);
        container(item, volumes, &path, errors);
        init(item, spec, &path, errors);
        unique(&item.name, &mut init_names, &path, errors);
        host_ports(std::slice::from_ref(item), &path, errors);
    }
    for (i, item) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = path.child("ephemeralContainers").index(i);
        container(&as_container(item), volumes, &path, errors);
        unique(&item.name, &mut init_names, &path, errors);
        if let Some(target) = item
            .target_container_name
            .as_deref()
            .filter(|t| !t.is_empty())
            && !names.contains(target)
        {
            errors.push(FieldError::not_found(
                &path.child("targetContainerName"),
                target,
            ));
        }
    }
}

fn unique(name: &str, names: &mut BTreeSet<String>, path: &Path, errors: &mut ErrorList) {
    if !name.is_empty() && !names.insert(name.to_owned()) {
        errors.push(FieldError::duplicate(&path.child("name"), name));
    }
}

/// What ephemeral and other containers have in common.
fn as_container(item: &EphemeralContainer) -> Container {
    Container {
        name: item.name.clone(),
        image: item.image.clone(),
        image_pull_policy: item.image_pull_policy.clone(),
        env: item.env.clone(),
        env_from: item.env_from.clone(),
        volume_mounts: item.volume_mounts.clone(),
        security_context: item.security_context.clone(),
        termination_message_policy: item.termination_message_policy.clone(),
        ..Container::default()
    }
}

/// Rules of every container.
fn container(item: &Container, volumes: &VolumeNames, path: &Path, errors: &mut ErrorList) {
    if item.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        let messages = names::dns1123_label(&item.name);
        invalid_each(errors, &path.child("name"), &item.name, messages);
    }
    match item.image.as_deref() {
        None | Some("") => errors.push(FieldError::required(&path.child("image"), "")),
        Some(image) if image.trim() != image => errors.push(FieldError::invalid(
            &path.child("image"),
            image,
            "must not have leading or trailing whitespace",
        )),
        Some(_) => {}
    }
    one_of_or_none(
        errors,
        &path.child("terminationMessagePolicy"),
        item.termination_message_policy.as_deref(),
        &["FallbackToLogsOnError", "File"],
    );
    ports(
        item.ports.as_deref().unwrap_or_default(),
        &path.child("ports"),
        errors,
    );
    env(
        item.env.as_deref().unwrap_or_default(),
        &path.child("env"),
        errors,
    );
    env_from(
        item.env_from.as_deref().unwrap_or_default(),
        &path.child("envFrom"),
        errors,
    );
    mounts(item, volumes, &path.child("volumeMounts"), errors);
    one_of(
        errors,
        &path.child("imagePullPolicy"),
        item.image_pull_policy.as_deref(),
        &["Always", "IfNotPresent", "Never"],
    );
    if let Some(list) = &item.resources {
        resources(list, &path.child("resources"), errors);
    }
    security::container(item, path, errors);
}

/// Rules of containers that run for the pod's life.
fn regular(item: &Container, spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let grace = spec.termination_grace_period_seconds;
    if let Some(lifecycle) = &item.lifecycle {
        probe::lifecycle(lifecycle, grace, &path.child("lifecycle"), errors);
    }
    for (field, item, purpose) in [
        ("livenessProbe", &item.liveness_probe, Purpose::Liveness),
        ("readinessProbe", &item.readiness_probe, Purpose::Readiness),
        ("startupProbe", &item.startup_probe, Purpose::Startup),
    ] {
        if let Some(item) = item {
            probe::probe(item, purpose, grace, &path.child(field), errors);
        }
    }
    one_of_or_none(
        errors,
        &path.child("restartPolicy"),
        item.restart_policy.as_deref(),
        &["Always", "Never", "OnFailure"],
    );
}

/// Rules of containers that run before: probes and hooks only for sidecars.
fn init(item: &Container, spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    if item.restart_policy.as_deref() == Some("Always") {
        regular(item, spec, path, errors);
        return;
    }
    one_of_or_none(
        errors,
        &path.child("restartPolicy"),
        item.restart_policy.as_deref(),
        &["Always", "Never", "OnFailure"],
    );
    for (field, present) in [
        ("lifecycle", item.lifecycle.is_some()),
        ("livenessProbe", item.liveness_probe.is_some()),
        ("readinessProbe", item.readiness_probe.is_some()),
        ("startupProbe", item.startup_probe.is_some()),
    ] {
        if present {
            errors.push(FieldError::forbidden(
                &path.child(field),
                "may not be set for init containers without restartPolicy=Always",
            ));
        }
    }
}

/// In the host's network the host's port is the container's; templates may leave it open.
fn host_network(containers: &[Container], template: bool, path: &Path, errors: &mut ErrorList) {
    for (i, item) in containers.iter().enumerate() {
        for (j, port) in item.ports.iter().flatten().enumerate() {
            let number = port.host_port.unwrap_or(0);
            if number != port.container_port && !(template && number == 0) {
                errors.push(FieldError::invalid(
                    &path.index(i).child("ports").index(j).child("hostPort"),
                    number,
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }
}

fn ports(ports: &[ContainerPort], path: &Path, errors: &mut ErrorList) {
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let messages = names::port_name(name);
            let valid = messages.is_empty();
            invalid_each(errors, &path.child("name"), name, messages);
            if valid
                && ports
                    .iter()
                    .take(i)
                    .any(|p| p.name.as_deref() == Some(name))
            {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        if port.container_port == 0 {
            errors.push(FieldError::required(&path.child("containerPort"), ""));
        } else {
            invalid_each(
                errors,
                &path.child("containerPort"),
                port.container_port,
                names::port_number(port.container_port.into()),
            );
        }
        let host_port = port.host_port.unwrap_or(0);
        if host_port != 0 {
            let messages = names::port_number(host_port.into());
            invalid_each(errors, &path.child("hostPort"), host_port, messages);
        }
        one_of(
            errors,
            &path.child("protocol"),
            port.protocol.as_deref(),
            PROTOCOLS,
        );
    }
}

/// No two containers may want the same port of the host.
fn host_ports(containers: &[Container], path: &Path, errors: &mut ErrorList) {
    let mut taken = BTreeSet::new();
    let single = containers.len() == 1 && path.as_str().ends_with(']');
    for (i, item) in containers.iter().enumerate() {
        let path = if single { path.clone() } else { path.index(i) };
        for (j, port) in item.ports.iter().flatten().enumerate() {
            let number = port.host_port.unwrap_or(0);
            if number == 0 {
                continue;
            }
            let key = format!(
                "{}/{}/{number}",
                port.protocol.as_deref().unwrap_or(""),
                port.host_ip.as_deref().unwrap_or(""),
            );
            if !taken.insert(key.clone()) {
                errors.push(FieldError::duplicate(
                    &path.child("ports").index(j).child("hostPort"),
                    key,
                ));
            }
        }
    }
}

fn env(variables: &[EnvVar], path: &Path, errors: &mut ErrorList) {
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        if variable.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            let messages = names::env_var_name(&variable.name);
            invalid_each(errors, &path.child("name"), &variable.name, messages);
        }
        if let Some(source) = &variable.value_from {
            let has_value = variable.value.as_ref().is_some_and(|v| !v.is_empty());
            value_from(source, has_value, &path.child("valueFrom"), errors);
        }
    }
}

fn value_from(source: &EnvVarSource, has_value: bool, path: &Path, errors: &mut ErrorList) {
    const FIELDS: &[&str] = &[
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    const RESOURCES: &[&str] = &[
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let mut count = 0;
    if let Some(field) = &source.field_ref {
        count += 1;
        let path = path.child("fieldRef");
        if field
            .api_version
            .as_ref()
            .is_none_or(std::string::String::is_empty)
        {
            errors.push(FieldError::required(&path.child("apiVersion"), ""));
        }
        let text = field.field_path.as_str();
        let subscript = ["metadata.annotations['", "metadata.labels['"]
            .iter()
            .any(|prefix| text.starts_with(prefix) && text.ends_with("']"));
        if text.is_empty() {
            errors.push(FieldError::required(&path.child("fieldPath"), ""));
        } else if !subscript && !FIELDS.contains(&text) {
            errors.push(FieldError::not_supported(
                &path.child("fieldPath"),
                text,
                FIELDS,
            ));
        }
    }
    if let Some(field) = &source.resource_field_ref {
        count += 1;
        let path = path.child("resourceFieldRef");
        if field.resource.is_empty() {
            errors.push(FieldError::required(&path.child("resource"), ""));
        } else if !RESOURCES.contains(&field.resource.as_str())
            && !field.resource.contains(".hugepages-")
        {
            errors.push(FieldError::not_supported(
                &path.child("resource"),
                &field.resource,
                RESOURCES,
            ));
        }
    }
    for (field, reference) in [
        (
            "configMapKeyRef",
            source
                .config_map_key_ref
                .as_ref()
                .map(|r| (&r.name, &r.key)),
        ),
        (
            "secretKeyRef",
            source.secret_key_ref.as_ref().map(|r| (&r.name, &r.key)),
        ),
    ] {
        let Some((name, key)) = reference else {
            continue;
        };
        count += 1;
        let path = path.child(field);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        if key.is_empty() {
            errors.push(FieldError::required(&path.child("key"), ""));
        } else {
            let messages = names::config_map_key(key);
            invalid_each(errors, &path.child("key"), key, messages);
        }
    }
    if source.file_key_ref.is_some() {
        count += 1;
    }
    if count == 0 {
        errors.push(FieldError::invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ));
    }
    if has_value && count > 0 {
        errors.push(FieldError::invalid(
            path,
            "",
            "may not be specified when `value` is not empty",
        ));
    } else if count > 1 {
        errors.push(FieldError::invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        ));
    }
}

fn env_from(sources: &[EnvFromSource], path: &Path, errors: &mut ErrorList) {
    for (i, source) in sources.iter().enumerate() {
        let path = path.index(i);
        if let Some(prefix) = source.prefix.as_deref().filter(|p| !p.is_empty()) {
            let messages = names::env_var_name(prefix);
            invalid_each(errors, &path.child("prefix"), prefix, messages);
        }
        let mut count = 0;
        for (field, name) in [
            (
                "configMapRef",
                source.config_map_ref.as_ref().map(|r| &r.name),
            ),
            ("secretRef", source.secret_ref.as_ref().map(|r| &r.name)),
        ] {
            if let Some(name) = name {
                count += 1;
                if name.is_empty() {
                    errors.push(FieldError::required(&path.child(field).child("name"), ""));
                }
            }
        }
        if count == 0 {
            errors.push(FieldError::invalid(
                &path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ));
        } else if count > 1 {
            errors.push(FieldError::invalid(
                &path,
                "",
                "may not have more than one field specified at a time",
            ));
        }
    }
}

fn mounts(item: &Container, volumes: &VolumeNames, path: &Path, errors: &mut ErrorList) {
    let list: &[VolumeMount] = item.volume_mounts.as_deref().unwrap_or_default();
    for (i, mount) in list.iter().enumerate() {
        let path = path.index(i);
        if mount.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !volumes.contains(&mount.name) {
            errors.push(FieldError::not_found(&path.child("name"), &mount.name));
        }
        if mount.mount_path.is_empty() {
            errors.push(FieldError::required(&path.child("mountPath"), ""));
        } else if list
            .iter()
            .take(i)
            .any(|m| m.mount_path == mount.mount_path)
        {
            errors.push(FieldError::invalid(
                &path.child("mountPath"),
                &mount.mount_path,
                "must be unique",
            ));
        }
        let sub_path = mount.sub_path.as_deref().filter(|p| !p.is_empty());
        let expression = mount.sub_path_expr.as_deref().filter(|p| !p.is_empty());
        if let Some(text) = sub_path {
            volume::local_path(text, &path.child("subPath"), errors);
        }
        if let Some(text) = expression {
            if sub_path.is_some() {
                errors.push(FieldError::invalid(
                    &path.child("subPathExpr"),
                    text,
                    "subPathExpr and subPath are mutually exclusive",
                ));
            }
            volume::local_path(text, &path.child("subPathExpr"), errors);
        }
        let propagation = mount.mount_propagation.as_deref();
        one_of_or_none(
            errors,
            &path.child("mountPropagation"),
            propagation,
            &["Bidirectional", "HostToContainer", "None"],
        );
        let privileged = item
            .security_context
            .as_ref()
            .is_some_and(|c| c.privileged == Some(true));
        if propagation == Some("Bidirectional") && !privileged {
            errors.push(FieldError::forbidden(
                &path.child("mountPropagation"),
                "Bidirectional mount propagation is available only to privileged containers",
            ));
        }
    }
}

fn resources(list: &ResourceRequirements, path: &Path, errors: &mut ErrorList) {
    let parsed = |field: &str, errors: &mut ErrorList| {
        let map = if field == "limits" {
            &list.limits
        } else {
            &list.requests
        };
        let mut result = Vec::new();
        for (name, quantity) in map.iter().flatten() {
            let path = path.child(field).key(name);
            resource_name(name, &path, errors);
            let Ok(amount) = Quantity::try_from(quantity) else {
                continue;
            };
            if amount.is_negative() {
                errors.push(FieldError::invalid(&path, quantity, NOT_NEGATIVE));
            }
            if !overcommits(name) && !amount.is_integer() {
                errors.push(FieldError::invalid(&path, quantity, "must be an integer"));
            }
            result.push((name.as_str(), amount));
        }
        result
    };
    let limits = parsed("limits", errors);
    let requests = parsed("requests", errors);
    let limits_path = path.child("limits");
    for (name, request) in &requests {
        let limit = limits.iter().find(|(n, _)| n == name).map(|(_, q)| q);
        let path = path.child("requests");
        match limit {
            Some(limit) if !overcommits(name) && request != limit => {
                errors.push(FieldError::invalid(
                    &path,
                    request.to_string(),
                    format!("must be equal to {name} limit of {limit}"),
                ));
            }
            Some(limit) if request > limit => errors.push(FieldError::invalid(
                &path,
                request.to_string(),
                format!("must be less than or equal to {name} limit of {limit}"),
            )),
            None if !overcommits(name) => errors.push(FieldError::required(
                &limits_path,
                "Limit must be set for non overcommitable resources",
            )),
            _ => {}
        }
    }
}

/// Resources of the node itself may be promised more often than they exist.
fn overcommits(name: &str) -> bool {
    match name.split_once('/') {
        Some((prefix, _)) => prefix == "kubernetes.io" || prefix.ends_with(".kubernetes.io"),
        None => !name.starts_with("hugepages-"),
    }
}

fn resource_name(name: &str, path: &Path, errors: &mut ErrorList) {
    invalid_each(errors, path, name, names::qualified_name(name));
    if !name.contains('/')
        && !matches!(name, "cpu" | "memory" | "ephemeral-storage")
        && !name.starts_with("hugepages-")
    {
        errors.push(FieldError::invalid(
            path,
            name,
            "must be a standard resource for containers",
        ));
    }
}
