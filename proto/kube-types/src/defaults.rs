//! Defaults: what Kubernetes fills in where a client said nothing.
//!
//! Runs on every decoded object before validation, and on patched ones again; idempotent. What the
//! API allocates or stamps (cluster IPs, node ports, uid, times) is not a default and not done here.

mod meta;
mod pod;
mod service;
mod workload;

use serde_json::{Map, Value};

use crate::gvk::GroupVersionKind;
use crate::object::{Object, object_entry};

/// Fills in the defaults of a kind; unknown kinds are left alone.
pub fn apply_defaults(gvk: &GroupVersionKind, object: &mut Object) {
    let root = &mut object.0;
    match (gvk.group.as_ref(), gvk.kind.as_ref()) {
        ("", "Pod") => {
            if let Some(spec) = object_at(root, "spec") {
                pod::spec(spec, true);
            }
        }
        ("", "PodTemplate") => {
            if let Some(template) = object_at(root, "template") {
                pod::template(template);
            }
        }
        ("apps", "Deployment") => workload::deployment(root),
        ("apps", "ReplicaSet") => workload::replica_set(root),
        ("apps", "StatefulSet") => workload::stateful_set(root),
        ("apps", "DaemonSet") => workload::daemon_set(root),
        ("batch", "Job") => workload::job(root),
        ("batch", "CronJob") => workload::cron_job(root),
        ("", "Service") => service::service(root),
        ("", "Endpoints") => service::endpoints(root),
        ("discovery.k8s.io", "EndpointSlice") => service::endpoint_slice(root),
        ("", "Secret") => meta::secret(root),
        ("", "Namespace") => meta::namespace(root),
        ("", "Node") => meta::node(root),
        ("autoscaling", "Scale") => {
            default(object_entry(root, "spec"), "replicas", 0);
        }
        _ => {}
    }
}

/// The object under `name`, where there is one.
fn object_at<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(name)?.as_object_mut()
}

/// The objects of the list under `name`.
fn each<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// True where a field is missing, null or empty text: what Go sees as not set.
fn is_unset(map: &Map<String, Value>, name: &str) -> bool {
    match map.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}

/// True where a field is missing, null, empty text or zero.
fn is_zero(map: &Map<String, Value>, name: &str) -> bool {
    is_unset(map, name) || map.get(name).and_then(Value::as_i64) == Some(0)
}

/// Sets a field that is not set.
fn default(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    if is_unset(map, name) {
        map.insert(name.to_owned(), value.into());
    }
}

/// Sets a number that is not set, where zero counts as not set.
fn default_nonzero(map: &mut Map<String, Value>, name: &str, value: i64) {
    if is_zero(map, name) {
        map.insert(name.to_owned(), value.into());
    }
}

fn str_of<'a>(map: &'a Map<String, Value>, name: &str) -> &'a str {
    map.get(name).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaulted(group: &'static str, version: &'static str, value: Value) -> Value {
        let mut object = Object::from_value(value).expect("an object");
        let kind = object.kind().to_owned();
        let gvk = GroupVersionKind::new(group, version, kind);
        apply_defaults(&gvk, &mut object);
        let once = object.clone();
        apply_defaults(&gvk, &mut object);
        assert_eq!(once, object, "defaulting is idempotent");
        object.into_value()
    }

    #[test]
    fn a_pod() {
        let pod = defaulted(
            "",
            "v1",
            json!({"kind": "Pod", "spec": {
                "containers": [{
                    "name": "a", "image": "nginx:1.27",
                    "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
                    "livenessProbe": {"httpGet": {"port": 80}},
                    "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                }, {"name": "b", "image": "busybox"}],
                "volumes": [{"name": "c", "configMap": {"name": "x"}}, {"name": "d"}],
            }}),
        );
        assert_eq!(
            pod["spec"],
            json!({
                "containers": [{
                    "name": "a", "image": "nginx:1.27", "imagePullPolicy": "IfNotPresent",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}},
                    "livenessProbe": {
                        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                    },
                    "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP", "apiVersion": "v1"}}}],
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }, {
                    "name": "b", "image": "busybox", "imagePullPolicy": "Always", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "volumes": [{"name": "c", "configMap": {"name": "x", "defaultMode": 420}}, {"name": "d", "emptyDir": {}}],
                "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
                "schedulerName": "default-scheduler", "securityContext": {}, "enableServiceLinks": true,
            })
        );
    }

    #[test]
    fn a_deployment() {
        let deployment = defaulted(
            "apps",
            "v1",
            json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "x:1"}]}}}}),
        );
        let spec = &deployment["spec"];
        assert_eq!(spec["replicas"], 1);
        assert_eq!(spec["revisionHistoryLimit"], 10);
        assert_eq!(spec["progressDeadlineSeconds"], 600);
        assert_eq!(
            spec["strategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
        );
        assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
        assert!(spec["template"]["spec"].get("enableServiceLinks").is_none());
        let recreate = defaulted(
            "apps",
            "v1",
            json!({"kind": "Deployment", "spec": {"replicas": 0, "strategy": {"type": "Recreate"}, "template": {}}}),
        );
        assert_eq!(recreate["spec"]["strategy"], json!({"type": "Recreate"}));
        assert_eq!(recreate["spec"]["replicas"], 0);
    }

    #[test]
    fn a_service() {
        let service = defaulted(
            "",
            "v1",
            json!({"kind": "Service", "spec": {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "targetPort": "dns"}]}}),
        );
        assert_eq!(
            service["spec"],
            json!({
                "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
                "ports": [
                    {"port": 80, "protocol": "TCP", "targetPort": 80},
                    {"port": 53, "protocol": "UDP", "targetPort": "dns"},
                ],
            })
        );
        let balancer = defaulted(
            "",
            "v1",
            json!({"kind": "Service", "spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}}),
        );
        assert_eq!(balancer["spec"]["externalTrafficPolicy"], "Cluster");
        assert_eq!(balancer["spec"]["allocateLoadBalancerNodePorts"], true);
        assert_eq!(
            balancer["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"],
            10800
        );
    }

    #[test]
    fn secrets_and_namespaces() {
        let secret = defaulted(
            "",
            "v1",
            json!({"kind": "Secret", "data": {"a": "eA=="}, "stringData": {"b": "hi"}}),
        );
        assert_eq!(
            secret,
            json!({"kind": "Secret", "type": "Opaque", "data": {"a": "eA==", "b": "aGk="}})
        );
        let namespace = defaulted(
            "",
            "v1",
            json!({"kind": "Namespace", "metadata": {"name": "x"}}),
        );
        assert_eq!(
            namespace["metadata"]["labels"],
            json!({"kubernetes.io/metadata.name": "x"})
        );
    }

    #[test]
    fn replica_sets_take_no_labels_from_the_template() {
        let set = defaulted(
            "apps",
            "v1",
            json!({"kind": "ReplicaSet", "metadata": {"name": "x"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
        );
        assert_eq!(set["spec"]["replicas"], 1);
        assert!(set["metadata"].get("labels").is_none());
    }
}
