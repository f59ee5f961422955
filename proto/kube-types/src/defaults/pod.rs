//! Defaults of pods and pod templates.
//!
//! Called for pods and for every kind that holds a template.

use serde_json::{Map, Value, json};

use super::{default, default_nonzero, each, is_unset, object_at, str_of};
use crate::object::object_entry;

/// `0644`, as the numbers of the API are decimal.
const FILE_MODE: i64 = 0o644;

/// Defaults of a pod template.
pub(super) fn template(template: &mut Map<String, Value>) {
    if template.get("spec").is_none_or(Value::is_null) {
        template.insert("spec".to_owned(), json!({"containers": []}));
    }
    if let Some(spec) = object_at(template, "spec") {
        self::spec(spec, false);
    }
}

/// Defaults of a pod spec; a pod itself (not a template) gets a few more.
pub(super) fn spec(spec: &mut Map<String, Value>, is_pod: bool) {
    default(spec, "restartPolicy", "Always");
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    object_entry(spec, "securityContext");
    if is_pod {
        default(spec, "enableServiceLinks", true);
        requests_from_limits(spec, "containers");
        requests_from_limits(spec, "initContainers");
        pod_level_resources(spec);
    }
    // The service account's old name follows the new one.
    if is_unset(spec, "serviceAccountName") && !is_unset(spec, "serviceAccount") {
        let name = str_of(spec, "serviceAccount").to_owned();
        spec.insert("serviceAccountName".to_owned(), name.into());
    } else if !is_unset(spec, "serviceAccountName") {
        let name = str_of(spec, "serviceAccountName").to_owned();
        spec.insert("serviceAccount".to_owned(), name.into());
    }
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for item in each(spec, list) {
            container(item, is_pod && host_network);
        }
    }
    for item in each(spec, "volumes") {
        volume(item);
    }
}

fn container(container: &mut Map<String, Value>, host_network: bool) {
    if is_unset(container, "imagePullPolicy") {
        let policy = pull_policy(str_of(container, "image"));
        container.insert("imagePullPolicy".to_owned(), policy.into());
    }
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    object_entry(container, "resources");
    for port in each(container, "ports") {
        default(port, "protocol", "TCP");
        if host_network
            && super::is_zero(port, "hostPort")
            && let Some(number) = port.get("containerPort").cloned()
        {
            port.insert("hostPort".to_owned(), number);
        }
    }
    for env in each(container, "env") {
        let Some(source) = object_at(env, "valueFrom") else {
            continue;
        };
        if let Some(field) = object_at(source, "fieldRef") {
            default(field, "apiVersion", "v1");
        }
        if let Some(resource) = object_at(source, "resourceFieldRef") {
            default(resource, "divisor", "0");
        }
        if let Some(key) = object_at(source, "fileKeyRef") {
            default(key, "optional", false);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object_at(container, name) {
            default_nonzero(probe, "timeoutSeconds", 1);
            default_nonzero(probe, "periodSeconds", 10);
            default_nonzero(probe, "successThreshold", 1);
            default_nonzero(probe, "failureThreshold", 3);
            handler(probe);
            if let Some(grpc) = object_at(probe, "grpc")
                && grpc.get("service").is_none_or(Value::is_null)
            {
                grpc.insert("service".to_owned(), "".into());
            }
        }
    }
    if let Some(lifecycle) = object_at(container, "lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(hook) = object_at(lifecycle, name) {
                handler(hook);
            }
        }
    }
}

fn handler(handler: &mut Map<String, Value>) {
    if let Some(get) = object_at(handler, "httpGet") {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
}

/// `Always` for the tag `latest` or none, `IfNotPresent` for any other tag or a digest.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(n, d)| (n, Some(d)));
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = last.split_once(':').map(|(_, tag)| tag);
    match (tag, digest) {
        (Some("latest") | None, None) | (Some("latest"), Some(_)) => "Always",
        _ => "IfNotPresent",
    }
}

/// A limit without a request is a request too.
fn requests_from_limits(spec: &mut Map<String, Value>, list: &str) {
    for container in each(spec, list) {
        if let Some(resources) = object_at(container, "resources") {
            fill_requests(resources, |_| true);
        }
    }
}

fn fill_requests(resources: &mut Map<String, Value>, wanted: impl Fn(&str) -> bool) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
        return;
    };
    let missing: Vec<(String, Value)> = limits
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .filter(|(name, _)| {
            resources
                .get("requests")
                .and_then(|r| r.get(name))
                .is_none_or(Value::is_null)
        })
        .collect();
    if !missing.is_empty() {
        object_entry(resources, "requests").extend(missing);
    }
}

/// Pod-level limits imply pod-level requests for the resources no container requests.
fn pod_level_resources(spec: &mut Map<String, Value>) {
    let requested: Vec<String> = ["containers", "initContainers"]
        .into_iter()
        .filter_map(|list| spec.get(list)?.as_array())
        .flatten()
        .filter_map(|c| c.pointer("/resources/requests")?.as_object())
        .flat_map(|requests| requests.keys().cloned())
        .collect();
    if let Some(resources) = object_at(spec, "resources") {
        fill_requests(resources, |name| !requested.iter().any(|r| r == name));
    }
}

fn volume(volume: &mut Map<String, Value>) {
    let has_source = volume
        .iter()
        .any(|(name, value)| name != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".to_owned(), json!({}));
        return;
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = object_at(volume, source) {
            default(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(source) = object_at(volume, "downwardAPI") {
        downward(source);
    }
    if let Some(projected) = object_at(volume, "projected") {
        for source in each(projected, "sources") {
            if let Some(token) = object_at(source, "serviceAccountToken") {
                default(token, "expirationSeconds", 3600);
            }
            if let Some(source) = object_at(source, "downwardAPI") {
                downward(source);
            }
        }
    }
    if let Some(path) = object_at(volume, "hostPath")
        && path.get("type").is_none_or(Value::is_null)
    {
        path.insert("type".to_owned(), "".into());
    }
    if let Some(image) = object_at(volume, "image")
        && is_unset(image, "pullPolicy")
    {
        let policy = pull_policy(str_of(image, "reference"));
        image.insert("pullPolicy".to_owned(), policy.into());
    }
    if let Some(iscsi) = object_at(volume, "iscsi") {
        default(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = object_at(volume, "rbd") {
        default(rbd, "pool", "rbd");
        default(rbd, "user", "admin");
        default(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(claim) = object_at(volume, "ephemeral")
        && let Some(template) = object_at(claim, "volumeClaimTemplate")
        && let Some(spec) = object_at(template, "spec")
    {
        default(spec, "volumeMode", "Filesystem");
    }
}

fn downward(source: &mut Map<String, Value>) {
    for item in each(source, "items") {
        if let Some(field) = object_at(item, "fieldRef") {
            default(field, "apiVersion", "v1");
        }
        if let Some(resource) = object_at(item, "resourceFieldRef") {
            default(resource, "divisor", "0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policies_follow_the_tag() {
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("localhost:5000/nginx", "Always"),
            ("localhost:5000/nginx:2", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }
}
