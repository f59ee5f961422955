//! The environment of a container, as the kubelet makes it. Pure.
//!
//! From the spec, the Services of the namespace, and the ConfigMaps and Secrets that the
//! caller looks up.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector, Secret,
    Service,
};

use super::resources;

/// Why an environment cannot be made; Displayed as the waiting message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvironmentError {
    /// A ConfigMap or Secret is missing.
    #[error("{kind} \"{name}\" not found")]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// It lacks a key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// A field path that means nothing here.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// A resource that means nothing here.
    #[error("unsupported container resource: {0}")]
    Resource(String),
}

/// Where ConfigMaps and Secrets are looked up.
pub trait Sources {
    /// A ConfigMap of the pod's namespace.
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>>;
    /// A Secret of the pod's namespace.
    fn secret(&self, name: &str) -> Option<Arc<Secret>>;
}

/// What the downward API can tell about a pod besides its spec.
#[derive(Clone, Debug, Default)]
pub struct Downward {
    /// Addresses of the pod.
    pub pod_ips: Vec<IpAddr>,
    /// Addresses of the node.
    pub host_ips: Vec<IpAddr>,
    /// CPUs of the node, in thousandths.
    pub node_milli_cpu: u64,
    /// Memory of the node in bytes.
    pub node_memory: u64,
}

/// Environment of a container in the order of its definition. Service variables come first and
/// are overridden by what the spec sets.
pub fn environment(
    pod: &Pod,
    container: &Container,
    services: &[Arc<Service>],
    downward: &Downward,
    sources: &dyn Sources,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let links = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.enable_service_links)
        .unwrap_or(true);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let service_variables = service_variables(namespace, services, links);
    let mut result: Vec<(String, String)> = Vec::new();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let optional = reference.optional.unwrap_or(false);
            match sources.config_map(&reference.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        set(&mut result, format!("{prefix}{key}"), value.clone());
                    }
                }
                None if optional => {}
                None => return Err(not_found("configmap", &reference.name)),
            }
        }
        if let Some(reference) = &source.secret_ref {
            let optional = reference.optional.unwrap_or(false);
            match sources.secret(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        let value = String::from_utf8_lossy(&value.0).into_owned();
                        set(&mut result, format!("{prefix}{key}"), value);
                    }
                }
                None if optional => {}
                None => return Err(not_found("secret", &reference.name)),
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(source)) => {
                match value_from(pod, container, source, downward, sources)? {
                    Some(value) => value,
                    // An optional source that is missing sets nothing.
                    None => continue,
                }
            }
            (Some(value), None) => expand(value, |name| {
                lookup(&result, name).or_else(|| lookup(&service_variables, name))
            }),
            (None, None) => String::new(),
        };
        set(&mut result, variable.name.clone(), value);
    }
    for (name, value) in service_variables {
        if lookup(&result, &name).is_none() {
            result.push((name, value));
        }
    }
    Ok(result)
}

fn not_found(kind: &'static str, name: &str) -> EnvironmentError {
    EnvironmentError::NotFound {
        kind,
        name: name.to_owned(),
    }
}

fn lookup<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    variables
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

fn set(variables: &mut Vec<(String, String)>, name: String, value: String) {
    match variables.iter_mut().find(|(known, _)| *known == name) {
        Some((_, old)) => *old = value,
        None => variables.push((name, value)),
    }
}

fn value_from(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    downward: &Downward,
    sources: &dyn Sources,
) -> Result<Option<String>, EnvironmentError> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    if let Some(field) = &source.field_ref {
        return field_value(pod, field, downward).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_value(pod, container, field, downward).map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional.unwrap_or(false);
        let Some(map) = sources.config_map(&reference.name) else {
            return if optional {
                Ok(None)
            } else {
                Err(not_found("configmap", &reference.name))
            };
        };
        return match map.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(EnvironmentError::NoKey {
                kind: "ConfigMap",
                namespace,
                name: reference.name.clone(),
                key: reference.key.clone(),
            }),
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional.unwrap_or(false);
        let Some(secret) = sources.secret(&reference.name) else {
            return if optional {
                Ok(None)
            } else {
                Err(not_found("secret", &reference.name))
            };
        };
        return match secret
            .data
            .as_ref()
            .and_then(|data| data.get(&reference.key))
        {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None if optional => Ok(None),
            None => Err(EnvironmentError::NoKey {
                kind: "Secret",
                namespace,
                name: reference.name.clone(),
                key: reference.key.clone(),
            }),
        };
    }
    Ok(Some(String::new()))
}

/// A field of the pod, as text (fieldpath.go and kubelet_pods.go).
pub fn field_value(
    pod: &Pod,
    field: &ObjectFieldSelector,
    downward: &Downward,
) -> Result<String, EnvironmentError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let path = field.field_path.as_str();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let addresses = |list: &[IpAddr]| {
        list.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    let first = |list: &[IpAddr]| list.first().map(ToString::to_string).unwrap_or_default();
    if let Some((list, key)) = subscript(path) {
        let map = match list {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(EnvironmentError::FieldPath(path.to_owned())),
        };
        return Ok(map
            .as_ref()
            .and_then(|map| map.get(key))
            .cloned()
            .unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => spec
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.hostIP" => first(&downward.host_ips),
        "status.hostIPs" => addresses(&downward.host_ips),
        "status.podIP" => first(&downward.pod_ips),
        "status.podIPs" => addresses(&downward.pod_ips),
        _ => return Err(EnvironmentError::FieldPath(path.to_owned())),
    })
}

/// `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (list, rest) = path.split_once("['")?;
    Some((list, rest.strip_suffix("']")?))
}

/// Labels or annotations in a file: `key="escaped value"` per line.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    map.into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A request or limit of a container, in units of the divisor, rounded up.
pub fn resource_value(
    pod: &Pod,
    own: &Container,
    field: &ResourceFieldSelector,
    downward: &Downward,
) -> Result<String, EnvironmentError> {
    let named = field.container_name.as_deref().unwrap_or_default();
    let container = pod
        .spec
        .iter()
        .flat_map(|spec| {
            spec.containers
                .iter()
                .chain(spec.init_containers.iter().flatten())
        })
        .find(|container| container.name == named)
        .unwrap_or(own);
    let wrong = || EnvironmentError::Resource(field.resource.clone());
    let (kind, name) = field.resource.split_once('.').ok_or_else(wrong)?;
    let resources = container.resources.as_ref();
    let list = match kind {
        "limits" => resources.and_then(|resources| resources.limits.as_ref()),
        "requests" => resources.and_then(|resources| resources.requests.as_ref()),
        _ => return Err(wrong()),
    };
    // A limit that is not set is what the node has.
    let fallback = match (kind, name) {
        ("limits", "cpu") => downward.node_milli_cpu,
        ("limits", "memory") => downward.node_memory.saturating_mul(1000),
        (_, "cpu" | "memory" | "ephemeral-storage") => 0,
        _ if name.starts_with("hugepages-") => 0,
        _ => return Err(wrong()),
    };
    let milli = list
        .and_then(|list| list.get(name))
        .and_then(resources::milli)
        .unwrap_or(fallback);
    let divisor = field
        .divisor
        .as_ref()
        .and_then(resources::milli)
        .filter(|divisor| *divisor > 0)
        .unwrap_or(1000);
    Ok(milli.div_ceil(divisor).to_string())
}

/// `KUBERNETES_SERVICE_HOST` and the like (envvars.go). The Services of the pod's namespace
/// when `links`, and `kubernetes` of `default` always.
fn service_variables(
    namespace: &str,
    services: &[Arc<Service>],
    links: bool,
) -> Vec<(String, String)> {
    let mut result = Vec::new();
    for service in services {
        let meta = &service.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let own = meta.namespace.as_deref() == Some(namespace);
        let master = meta.namespace.as_deref() == Some("default") && name == "kubernetes";
        if !(own && links || master) {
            continue;
        }
        let Some(spec) = &service.spec else { continue };
        let Some(address) = spec
            .cluster_ip
            .as_deref()
            .filter(|address| !address.is_empty() && *address != "None")
        else {
            continue;
        };
        let Some(first) = spec.ports.as_ref().and_then(|ports| ports.first()) else {
            continue;
        };
        let prefix = name.to_uppercase().replace('-', "_");
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        set(
            &mut result,
            format!("{prefix}_SERVICE_HOST"),
            address.to_owned(),
        );
        set(
            &mut result,
            format!("{prefix}_SERVICE_PORT"),
            first.port.to_string(),
        );
        for port in spec.ports.iter().flatten() {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let name = name.to_uppercase().replace('-', "_");
                set(
                    &mut result,
                    format!("{prefix}_SERVICE_PORT_{name}"),
                    port.port.to_string(),
                );
            }
        }
        // The variables of Docker's links.
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let lower = protocol.to_lowercase();
            let url = format!("{lower}://{host}:{}", port.port);
            if index == 0 {
                set(&mut result, format!("{prefix}_PORT"), url.clone());
            }
            let stem = format!("{prefix}_PORT_{}_{protocol}", port.port);
            set(&mut result, stem.clone(), url);
            set(&mut result, format!("{stem}_PROTO"), lower);
            set(&mut result, format!("{stem}_PORT"), port.port.to_string());
            set(&mut result, format!("{stem}_ADDR"), address.to_owned());
        }
    }
    result
}

/// Replaces `$(NAME)` where NAME is known; `$$` is a dollar (third_party/forked/golang/expansion).
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            if let Some(value) = lookup(name) {
                result.push_str(value);
            } else {
                result.push_str("$(");
                result.push_str(name);
                result.push(')');
            }
            rest = after;
        } else {
            result.push('$');
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[derive(Default)]
    struct Maps {
        config: BTreeMap<String, Arc<ConfigMap>>,
        secrets: BTreeMap<String, Arc<Secret>>,
    }

    impl Sources for Maps {
        fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
            self.config.get(name).cloned()
        }
        fn secret(&self, name: &str) -> Option<Arc<Secret>> {
            self.secrets.get(name).cloned()
        }
    }

    fn pod(container: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [container]}
        }))
        .unwrap()
    }

    fn make(
        container: &serde_json::Value,
        services: &[Arc<Service>],
        maps: &Maps,
    ) -> Result<BTreeMap<String, String>, EnvironmentError> {
        let pod = pod(container);
        let downward = Downward {
            pod_ips: vec!["10.244.0.7".parse().unwrap()],
            host_ips: vec!["192.0.2.1".parse().unwrap()],
            node_milli_cpu: 2000,
            node_memory: 1 << 30,
        };
        let container = pod.spec.clone().unwrap().containers.remove(0);
        environment(&pod, &container, services, &downward, maps)
            .map(|list| list.into_iter().collect())
    }

    #[test]
    fn expansion_rules() {
        let values = [("A", "1"), ("B", "two")];
        let look = |name: &str| {
            values
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        };
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(B)", "x1ytwo"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(C)", "$(C)"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("cost: $$5", "cost: $5"),
        ] {
            assert_eq!(expand(text, look), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollars_stays(text in "[^$]*") {
            prop_assert_eq!(expand(&text, |_| None), text);
        }

        #[test]
        fn expansion_never_panics(text in ".*") {
            let _ = expand(&text, |_| Some("v"));
        }
    }

    #[test]
    fn values_and_order() {
        let made = make(
            &json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "1500m"}}, "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)-$(C)"},
                {"name": "C", "value": "3"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            ]}),
            &[],
            &Maps::default(),
        )
        .unwrap();
        for (name, value) in [
            ("A", "1"),
            ("B", "1-$(C)"),
            ("NAME", "p"),
            ("APP", "web"),
            ("IP", "10.244.0.7"),
            ("CPU", "2"),
            ("MEM", "1024"),
        ] {
            assert_eq!(made[name], value, "{name}");
        }
    }

    #[test]
    fn sources_and_what_is_missing() {
        let mut maps = Maps::default();
        let map: ConfigMap = serde_json::from_value(json!({"data": {"k": "v"}})).unwrap();
        maps.config.insert("m".into(), Arc::new(map));
        let secret: Secret = serde_json::from_value(json!({"data": {"s": "cA=="}})).unwrap();
        maps.secrets.insert("s".into(), Arc::new(secret));
        let made = make(
            &json!({"name": "c", "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}], "env": [
                {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "s"}}},
                {"name": "O", "valueFrom": {"secretKeyRef": {"name": "no", "key": "s", "optional": true}}},
            ]}),
            &[],
            &maps,
        )
        .unwrap();
        assert_eq!(made["P_k"], "v");
        assert_eq!(made["K"], "v");
        assert_eq!(made["S"], "p");
        assert!(!made.contains_key("O"));
        for (env, message) in [
            (
                json!({"configMapKeyRef": {"name": "no", "key": "k"}}),
                "configmap \"no\" not found",
            ),
            (
                json!({"configMapKeyRef": {"name": "m", "key": "x"}}),
                "couldn't find key x in ConfigMap ns/m",
            ),
            (
                json!({"secretKeyRef": {"name": "no", "key": "k"}}),
                "secret \"no\" not found",
            ),
        ] {
            let container = json!({"name": "c", "env": [{"name": "X", "valueFrom": env}]});
            assert_eq!(
                make(&container, &[], &maps).unwrap_err().to_string(),
                message
            );
        }
    }

    #[test]
    fn services_become_variables() {
        let service = |namespace: &str, name: &str, address: &str| -> Arc<Service> {
            Arc::new(
                serde_json::from_value(json!({
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": {"clusterIP": address, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}
                }))
                .unwrap(),
            )
        };
        let services = [
            service("default", "kubernetes", "10.96.0.1"),
            service("ns", "web-api", "10.96.0.9"),
            service("other", "hidden", "10.96.0.8"),
            service("ns", "headless", "None"),
        ];
        let made = make(&json!({"name": "c"}), &services, &Maps::default()).unwrap();
        assert_eq!(made["KUBERNETES_SERVICE_HOST"], "10.96.0.1");
        assert_eq!(made["WEB_API_SERVICE_PORT_HTTP"], "80");
        assert_eq!(made["WEB_API_PORT"], "tcp://10.96.0.9:80");
        assert_eq!(made["WEB_API_PORT_80_TCP_ADDR"], "10.96.0.9");
        assert!(
            !made
                .keys()
                .any(|name| name.starts_with("HIDDEN") || name.starts_with("HEADLESS"))
        );
    }
}
