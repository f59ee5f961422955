//! The messages users of Kubernetes know, kind by kind.

use serde_json::{Value, json};

use super::*;
use crate::defaults::apply_defaults;

const DEPLOYMENT: GroupVersionKind = GroupVersionKind::of("apps", "v1", "Deployment");
const POD: GroupVersionKind = GroupVersionKind::of("", "v1", "Pod");
const SERVICE: GroupVersionKind = GroupVersionKind::of("", "v1", "Service");

fn object(gvk: &GroupVersionKind, value: Value) -> Object {
    let mut object = Object::from_value(value).expect("an object");
    object.set_gvk(gvk);
    if object.name().is_none() {
        object.set_name("web");
    }
    if object.namespace().is_none() && gvk.kind != "Node" && gvk.kind != "Namespace" {
        object.set_namespace(Some("default"));
    }
    object.set_resource_version(Some("1"));
    apply_defaults(gvk, &mut object);
    object
}

fn merged(base: &Object, patch: &Value) -> Object {
    let value = crate::patch::merge::merge_patch(&base.to_value(), patch).expect("merges");
    Object::from_value(value).expect("an object")
}

fn texts(errors: &ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn deployment() -> Object {
    object(
        &DEPLOYMENT,
        json!({"spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "nginx:1.27", "ports": [{"containerPort": 80}]}]},
            },
        }}),
    )
}

fn pod() -> Object {
    object(
        &POD,
        json!({"spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]}}),
    )
}

/// The errors of a Deployment with a patch applied.
fn deployment_with(patch: &Value) -> Vec<String> {
    texts(&validate_create(&DEPLOYMENT, &merged(&deployment(), patch)))
}

fn pod_with(patch: &Value) -> Vec<String> {
    texts(&validate_create(&POD, &merged(&pod(), patch)))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write the value in place"
)]
fn service_with(spec: Value) -> Vec<String> {
    texts(&validate_create(
        &SERVICE,
        &object(&SERVICE, json!({"spec": spec})),
    ))
}

#[test]
fn good_objects_pass() {
    assert_eq!(deployment_with(&json!({})), Vec::<String>::new());
    assert_eq!(pod_with(&json!({})), Vec::<String>::new());
    assert_eq!(
        service_with(json!({"selector": {"app": "web"}, "ports": [{"port": 80}]})),
        Vec::<String>::new()
    );
    let node = GroupVersionKind::of("", "v1", "Node");
    let value = object(
        &node,
        json!({"spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]}}),
    );
    assert_eq!(texts(&validate_create(&node, &value)), Vec::<String>::new());
}

#[test]
fn names_and_labels() {
    assert_eq!(
        deployment_with(&json!({"metadata": {"name": "Web_1"}})),
        [
            "metadata.name: Invalid value: \"Web_1\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        ]
    );
    assert_eq!(
        deployment_with(&json!({"metadata": {"name": null}})),
        ["metadata.name: Required value: name or generateName is required"]
    );
    assert_eq!(
        deployment_with(&json!({"metadata": {"labels": {"a b": "c"}}})),
        [
            "metadata.labels: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        ]
    );
    assert_eq!(
        deployment_with(&json!({"metadata": {"annotations": {"a": "x".repeat(300_000)}}})),
        ["metadata.annotations: Too long: may not be more than 262144 bytes"]
    );
    assert_eq!(
        deployment_with(&json!({"metadata": {"finalizers": ["orphan", "a.example/b", "mine"]}})),
        [
            "metadata.finalizers[2]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
        ]
    );
}

#[test]
fn deployments() {
    assert_eq!(
        deployment_with(&json!({"spec": {"replicas": -1}})),
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
    );
    assert_eq!(
        deployment_with(&json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}})),
        [
            "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`"
        ]
    );
    assert_eq!(
        deployment_with(&json!({"spec": {"template": {"spec": {"restartPolicy": "Never"}}}})),
        [
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""
        ]
    );
    assert_eq!(
        deployment_with(
            &json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}})
        ),
        [
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"
        ]
    );
    assert_eq!(
        deployment_with(&json!({"spec": {"strategy": {"type": "Recreate"}}})),
        [
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"
        ]
    );
    assert_eq!(
        deployment_with(&json!({"spec": {"selector": null}})),
        ["spec.selector: Required value"]
    );
    assert_eq!(
        deployment_with(&json!({"spec": {"progressDeadlineSeconds": 5, "minReadySeconds": 5}})),
        ["spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds"]
    );
}

#[test]
fn selectors_never_change() {
    let changed = merged(
        &deployment(),
        &json!({"spec": {
            "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}},
        }}),
    );
    assert_eq!(
        texts(&validate_update(&DEPLOYMENT, &changed, &deployment())),
        ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"db\"}}: field is immutable"]
    );
}

#[test]
fn metadata_never_changes() {
    let changed = merged(
        &deployment(),
        &json!({"metadata": {"uid": "x", "resourceVersion": null}}),
    );
    assert_eq!(
        texts(&validate_update(&DEPLOYMENT, &changed, &deployment())),
        [
            "metadata.uid: Invalid value: \"x\": field is immutable",
            "metadata.resourceVersion: Invalid value: \"\": must be specified for an update",
        ]
    );
}

#[test]
fn containers() {
    assert_eq!(
        pod_with(&json!({"spec": {"containers": []}})),
        ["spec.containers: Required value"]
    );
    let two = object(
        &POD,
        json!({"spec": {"containers": [
            {"name": "a", "image": "x"},
            {"name": "a"},
            {"name": "B", "image": "x", "imagePullPolicy": "Sometimes"},
        ]}}),
    );
    assert_eq!(
        texts(&validate_create(&POD, &two)),
        [
            "spec.containers[1].image: Required value",
            "spec.containers[1].name: Duplicate value: \"a\"",
            "spec.containers[2].name: Invalid value: \"B\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            "spec.containers[2].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ]
    );
}

#[test]
fn container_details() {
    let detailed = object(
        &POD,
        json!({"spec": {"containers": [{
            "name": "a", "image": "x",
            "ports": [{"containerPort": 70000}, {"containerPort": 80, "protocol": "HTTP"}],
            "env": [{"name": "A=B"}, {"name": "C", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            "volumeMounts": [{"name": "nope", "mountPath": "/x"}],
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "livenessProbe": {"successThreshold": 2, "httpGet": {"port": "nosuch--port"}},
            "readinessProbe": {},
        }]}}),
    );
    assert_eq!(
        texts(&validate_create(&POD, &detailed)),
        [
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[1].protocol: Unsupported value: \"HTTP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            "spec.containers[0].env[1].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].volumeMounts[0].name: Not found: \"nope\"",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.containers[0].livenessProbe.httpGet.port: Invalid value: \"nosuch--port\": must not contain consecutive hyphens",
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            "spec.containers[0].readinessProbe: Required value: must specify a handler type",
        ]
    );
}

#[test]
fn host_networks() {
    let spec = json!({"hostNetwork": true, "containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 80}]}]});
    assert_eq!(
        pod_with(&json!({"spec": spec.clone()})),
        [
            "spec.containers[0].ports[0].protocol: Required value",
            "spec.containers[0].imagePullPolicy: Required value",
            "spec.containers[0].ports[0].hostPort: Invalid value: 0: must match `containerPort` when `hostNetwork` is true",
        ]
    );
    let defaulted = object(&POD, json!({"spec": spec.clone()}));
    assert_eq!(
        texts(&validate_create(&POD, &defaulted)),
        Vec::<String>::new()
    );
    let template = object(
        &DEPLOYMENT,
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}}),
    );
    assert_eq!(
        texts(&validate_create(&DEPLOYMENT, &template)),
        Vec::<String>::new()
    );
}

#[test]
fn pods_hardly_change() {
    let new_image = merged(
        &pod(),
        &json!({"spec": {"activeDeadlineSeconds": 5, "tolerations": [{"key": "a", "operator": "Exists"}]}}),
    );
    assert_eq!(
        texts(&validate_update(&POD, &new_image, &pod())),
        Vec::<String>::new()
    );
    let moved = merged(&pod(), &json!({"spec": {"nodeName": "other"}}));
    assert_eq!(
        texts(&validate_update(&POD, &moved, &pod())),
        [
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n+ spec.nodeName: \"other\"\n"
        ]
    );
    let more = object(
        &POD,
        json!({"spec": {"containers": [{"name": "web", "image": "nginx:1.27"}, {"name": "b", "image": "x"}]}}),
    );
    assert_eq!(
        texts(&validate_update(&POD, &more, &pod())),
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
}

#[test]
fn services() {
    assert_eq!(
        service_with(json!({"ports": []})),
        ["spec.ports: Required value"]
    );
    assert_eq!(
        service_with(json!({"ports": [{"port": 0}, {"name": "a", "port": 80}]})),
        [
            "spec.ports[0].name: Required value",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
        ]
    );
    assert_eq!(
        service_with(json!({"ports": [{"port": 80, "nodePort": 30000}]})),
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"]
    );
    assert_eq!(
        service_with(
            json!({"type": "Nonsense", "ports": [{"port": 80}], "internalTrafficPolicy": "Cluster"})
        ),
        [
            "spec.type: Unsupported value: \"Nonsense\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\""
        ]
    );
    let with_ip = |ip: &str| {
        object(
            &SERVICE,
            json!({"spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}}),
        )
    };
    assert_eq!(
        texts(&validate_update(
            &SERVICE,
            &with_ip("10.96.0.8"),
            &with_ip("10.96.0.7")
        )),
        ["spec.clusterIPs[0]: Invalid value: [\"10.96.0.8\"]: may not change once set"]
    );
}

#[test]
fn config_maps_and_secrets() {
    let map = GroupVersionKind::of("", "v1", "ConfigMap");
    let value = object(&map, json!({"data": {"a b": "x"}}));
    assert_eq!(
        texts(&validate_create(&map, &value)),
        [
            "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        ]
    );
    let frozen = object(&map, json!({"immutable": true, "data": {"a": "x"}}));
    let changed = merged(&frozen, &json!({"data": {"a": "y"}}));
    assert_eq!(
        texts(&validate_update(&map, &changed, &frozen)),
        ["data: Forbidden: field is immutable when `immutable` is set"]
    );
    let large = object(&map, json!({"data": {"a": "x".repeat(1024 * 1024 + 1)}}));
    assert_eq!(
        texts(&validate_create(&map, &large)),
        ["[]: Too long: may not be more than 1048576 bytes"]
    );
    let secret = GroupVersionKind::of("", "v1", "Secret");
    let tls = object(&secret, json!({"type": "kubernetes.io/tls"}));
    assert_eq!(
        texts(&validate_create(&secret, &tls)),
        [
            "data[tls.crt]: Required value",
            "data[tls.key]: Required value"
        ]
    );
}

#[test]
fn slices_leases_and_events() {
    let slice = GroupVersionKind::of("discovery.k8s.io", "v1", "EndpointSlice");
    let value = object(
        &slice,
        json!({"addressType": "IPv4", "endpoints": [{"addresses": ["x"]}, {"addresses": []}]}),
    );
    assert_eq!(
        texts(&validate_create(&slice, &value)),
        [
            "endpoints[0].addresses[0]: Invalid value: \"x\": must be a valid IPv4 address",
            "endpoints[1].addresses: Required value: must contain at least 1 address",
        ]
    );
    let lease = GroupVersionKind::of("coordination.k8s.io", "v1", "Lease");
    let value = object(&lease, json!({"spec": {"leaseDurationSeconds": 0}}));
    assert_eq!(
        texts(&validate_create(&lease, &value)),
        ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"]
    );
    let event = GroupVersionKind::of("", "v1", "Event");
    let value = object(&event, json!({"involvedObject": {"namespace": "other"}}));
    assert_eq!(
        texts(&validate_create(&event, &value)),
        ["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"]
    );
}

#[test]
fn namespaces_are_labels_and_not_in_namespaces() {
    let kind = GroupVersionKind::of("", "v1", "Namespace");
    let value = object(
        &kind,
        json!({"metadata": {"name": "a.b", "namespace": "x"}}),
    );
    assert_eq!(
        texts(&validate_create(&kind, &value)),
        [
            "metadata.name: Invalid value: \"a.b\": must not contain dots",
            "metadata.namespace: Forbidden: not allowed on this type",
        ]
    );
}

#[test]
fn disruption_budgets() {
    let kind = GroupVersionKind::of("policy", "v1", "PodDisruptionBudget");
    let refused = |spec: Value| {
        texts(&validate_create(
            &kind,
            &object(&kind, json!({"spec": spec})),
        ))
    };
    assert!(refused(json!({"minAvailable": "50%", "selector": {}})).is_empty());
    let both = refused(json!({"minAvailable": 1, "maxUnavailable": 1}));
    assert_eq!(both.len(), 1);
    assert!(
        both[0].ends_with(": minAvailable and maxUnavailable cannot be both set"),
        "{both:?}"
    );
    assert_eq!(
        refused(json!({"minAvailable": -1, "unhealthyPodEvictionPolicy": "Never"})),
        [
            "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0",
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Never\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ]
    );
    assert_eq!(
        refused(json!({"maxUnavailable": "101%"})),
        ["spec.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"]
    );
    let old = object(&kind, json!({"spec": {"minAvailable": 1}}));
    let changed = merged(
        &old,
        &json!({"status": {
            "disruptionsAllowed": -1,
            "conditions": [{"type": "DisruptionAllowed", "status": "Perhaps", "reason": "1", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }}),
    );
    let errors = texts(&validate_status_update(&kind, &changed, &old));
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert_eq!(
        errors[0],
        "status.conditions[0].status: Unsupported value: \"Perhaps\": supported values: \"False\", \"True\", \"Unknown\""
    );
    assert_eq!(
        errors[2],
        "status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0"
    );
}
