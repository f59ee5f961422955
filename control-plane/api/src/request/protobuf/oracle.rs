//! The decoder against another implementation's encoder: objects as the crate `k8s-pb` writes them.

#![expect(
    clippy::unnecessary_wraps,
    reason = "every field of these messages is an Option"
)]

use std::collections::BTreeMap;

use k8s_pb::api::apps::v1 as apps;
use k8s_pb::api::coordination::v1 as coordination;
use k8s_pb::api::core::v1 as core;
use k8s_pb::api::discovery::v1 as discovery;
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
use prost::Message;
use serde_json::{Value, json};

use super::{MAGIC, decode};

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn quantities<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, Quantity> {
    pairs
        .map(|(key, value)| (key.to_owned(), quantity(value)))
        .into()
}

fn quantity(value: &str) -> Quantity {
    Quantity {
        string: text(value),
    }
}

fn number(value: i32) -> Option<IntOrString> {
    Some(IntOrString {
        r#type: Some(0),
        int_val: Some(value),
        str_val: text(""),
    })
}

fn word(value: &str) -> Option<IntOrString> {
    Some(IntOrString {
        r#type: Some(1),
        int_val: Some(0),
        str_val: text(value),
    })
}

fn time(seconds: i64) -> Option<meta::Time> {
    Some(meta::Time {
        seconds: Some(seconds),
        nanos: Some(0),
    })
}

fn reference(name: &str) -> Option<core::LocalObjectReference> {
    Some(core::LocalObjectReference { name: text(name) })
}

fn selector(app: &str) -> Option<meta::LabelSelector> {
    Some(meta::LabelSelector {
        match_labels: map([("app", app)]),
        match_expressions: vec![meta::LabelSelectorRequirement {
            key: text("tier"),
            operator: text("In"),
            values: texts(&["a", "b"]),
        }],
    })
}

/// Metadata as Go's encoder writes it: what is no pointer is there even where it is empty.
fn metadata(name: &str) -> Option<meta::ObjectMeta> {
    Some(meta::ObjectMeta {
        name: text(name),
        generate_name: text(""),
        namespace: text("default"),
        self_link: text(""),
        uid: text(""),
        resource_version: text(""),
        generation: Some(0),
        creation_timestamp: Some(meta::Time::default()),
        labels: map([("app", "web")]),
        ..Default::default()
    })
}

fn decoded(version: &str, kind: &str, object: &impl Message) -> Value {
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: text(version),
            kind: text(kind),
        }),
        raw: Some(object.encode_to_vec()),
        content_encoding: text(""),
        content_type: text(""),
    };
    let mut bytes = MAGIC.to_vec();
    bytes.extend(envelope.encode_to_vec());
    decode(&bytes).expect("an object")
}

fn container() -> core::Container {
    core::Container {
        name: text("web"),
        image: text("web:1"),
        command: texts(&["/web", ""]),
        working_dir: text(""),
        ports: vec![core::ContainerPort {
            name: text("http"),
            host_port: Some(0),
            container_port: Some(8080),
            protocol: text("TCP"),
            host_ip: text(""),
        }],
        env_from: vec![core::EnvFromSource {
            prefix: text("A_"),
            config_map_ref: Some(core::ConfigMapEnvSource {
                local_object_reference: reference("settings"),
                optional: Some(false),
            }),
            secret_ref: None,
        }],
        env: vec![
            core::EnvVar {
                name: text("EMPTY"),
                value: text(""),
                value_from: None,
            },
            core::EnvVar {
                name: text("PASSWORD"),
                value: text(""),
                value_from: Some(core::EnvVarSource {
                    secret_key_ref: Some(core::SecretKeySelector {
                        local_object_reference: reference("login"),
                        key: text("password"),
                        optional: None,
                    }),
                    ..Default::default()
                }),
            },
            core::EnvVar {
                name: text("CPUS"),
                value: text(""),
                value_from: Some(core::EnvVarSource {
                    resource_field_ref: Some(core::ResourceFieldSelector {
                        container_name: text(""),
                        resource: text("limits.cpu"),
                        divisor: Some(quantity("0")),
                    }),
                    ..Default::default()
                }),
            },
        ],
        resources: Some(core::ResourceRequirements {
            limits: quantities([("cpu", "500m"), ("memory", "64Mi")]),
            requests: quantities([("cpu", "100m")]),
            claims: Vec::new(),
        }),
        volume_mounts: vec![core::VolumeMount {
            name: text("tmp"),
            read_only: Some(true),
            mount_path: text("/tmp"),
            mount_propagation: text("None"),
            ..Default::default()
        }],
        readiness_probe: Some(core::Probe {
            handler: Some(core::ProbeHandler {
                http_get: Some(core::HttpGetAction {
                    path: text("/"),
                    port: word("http"),
                    scheme: text("HTTP"),
                    host: text(""),
                    http_headers: vec![core::HttpHeader {
                        name: text("Host"),
                        value: text("web"),
                    }],
                }),
                ..Default::default()
            }),
            initial_delay_seconds: Some(0),
            period_seconds: Some(10),
            termination_grace_period_seconds: Some(0),
            ..Default::default()
        }),
        liveness_probe: Some(core::Probe {
            handler: Some(core::ProbeHandler {
                grpc: Some(core::GrpcAction {
                    port: Some(9000),
                    service: text(""),
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        lifecycle: Some(core::Lifecycle {
            pre_stop: Some(core::LifecycleHandler {
                sleep: Some(core::SleepAction { seconds: Some(5) }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        security_context: Some(core::SecurityContext {
            privileged: Some(false),
            run_as_user: Some(0),
            read_only_root_filesystem: Some(true),
            capabilities: Some(core::Capabilities {
                add: Vec::new(),
                drop: texts(&["ALL"]),
            }),
            ..Default::default()
        }),
        stdin: Some(false),
        tty: Some(true),
        ..Default::default()
    }
}

fn container_json() -> Value {
    json!({
        "name": "web",
        "image": "web:1",
        "command": ["/web", ""],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "envFrom": [{"prefix": "A_", "configMapRef": {"name": "settings", "optional": false}}],
        "env": [
            {"name": "EMPTY"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}},
        ],
        "resources": {
            "limits": {"cpu": "500m", "memory": "64Mi"},
            "requests": {"cpu": "100m"},
        },
        "volumeMounts": [
            {"name": "tmp", "readOnly": true, "mountPath": "/tmp", "mountPropagation": "None"},
        ],
        "readinessProbe": {
            "httpGet": {
                "path": "/", "port": "http", "scheme": "HTTP",
                "httpHeaders": [{"name": "Host", "value": "web"}],
            },
            "periodSeconds": 10,
            "terminationGracePeriodSeconds": 0,
        },
        "livenessProbe": {"grpc": {"port": 9000, "service": ""}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "securityContext": {
            "privileged": false, "runAsUser": 0, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "tty": true,
    })
}

fn volume(name: &str, source: core::VolumeSource) -> core::Volume {
    core::Volume {
        name: text(name),
        volume_source: Some(source),
    }
}

fn volumes() -> Vec<core::Volume> {
    vec![
        volume(
            "tmp",
            core::VolumeSource {
                empty_dir: Some(core::EmptyDirVolumeSource {
                    medium: text("Memory"),
                    size_limit: Some(quantity("1Gi")),
                }),
                ..Default::default()
            },
        ),
        volume(
            "host",
            core::VolumeSource {
                host_path: Some(core::HostPathVolumeSource {
                    path: text("/srv"),
                    r#type: text(""),
                }),
                ..Default::default()
            },
        ),
        volume(
            "settings",
            core::VolumeSource {
                config_map: Some(core::ConfigMapVolumeSource {
                    local_object_reference: reference("settings"),
                    items: vec![core::KeyToPath {
                        key: text("a"),
                        path: text("b"),
                        mode: Some(0),
                    }],
                    default_mode: Some(0o644),
                    optional: None,
                }),
                ..Default::default()
            },
        ),
        volume(
            "token",
            core::VolumeSource {
                projected: Some(core::ProjectedVolumeSource {
                    sources: vec![
                        core::VolumeProjection {
                            service_account_token: Some(core::ServiceAccountTokenProjection {
                                audience: text(""),
                                expiration_seconds: Some(3607),
                                path: text("token"),
                            }),
                            ..Default::default()
                        },
                        core::VolumeProjection {
                            config_map: Some(core::ConfigMapProjection {
                                local_object_reference: reference("kube-root-ca.crt"),
                                items: Vec::new(),
                                optional: None,
                            }),
                            ..Default::default()
                        },
                    ],
                    default_mode: Some(420),
                }),
                ..Default::default()
            },
        ),
    ]
}

fn volumes_json() -> Value {
    json!([
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "host", "hostPath": {"path": "/srv", "type": ""}},
        {"name": "settings", "configMap": {
            "name": "settings", "defaultMode": 420,
            "items": [{"key": "a", "path": "b", "mode": 0}],
        }},
        {"name": "token", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt"}},
        ]}},
    ])
}

#[test]
fn a_pod() {
    let spec = core::PodSpec {
        volumes: volumes(),
        containers: vec![container()],
        ephemeral_containers: vec![core::EphemeralContainer {
            ephemeral_container_common: Some(core::EphemeralContainerCommon {
                name: text("debug"),
                image: text("busybox"),
                stdin: Some(true),
                ..Default::default()
            }),
            target_container_name: text("web"),
        }],
        restart_policy: text("Always"),
        termination_grace_period_seconds: Some(0),
        node_selector: map([("disk", "ssd")]),
        automount_service_account_token: Some(false),
        host_network: Some(false),
        host_pid: Some(true),
        share_process_namespace: Some(false),
        security_context: Some(core::PodSecurityContext {
            run_as_non_root: Some(false),
            supplemental_groups: vec![0, 5000],
            fs_group: Some(0),
            sysctls: vec![core::Sysctl {
                name: text("net.core.somaxconn"),
                value: text("1024"),
            }],
            seccomp_profile: Some(core::SeccompProfile {
                r#type: text("RuntimeDefault"),
                localhost_profile: None,
            }),
            ..Default::default()
        }),
        image_pull_secrets: vec![core::LocalObjectReference { name: text("pull") }],
        affinity: Some(core::Affinity {
            pod_anti_affinity: Some(core::PodAntiAffinity {
                preferred_during_scheduling_ignored_during_execution: vec![
                    core::WeightedPodAffinityTerm {
                        weight: Some(100),
                        pod_affinity_term: Some(core::PodAffinityTerm {
                            label_selector: selector("web"),
                            topology_key: text("kubernetes.io/hostname"),
                            ..Default::default()
                        }),
                    },
                ],
                ..Default::default()
            }),
            ..Default::default()
        }),
        tolerations: vec![core::Toleration {
            key: text("node.kubernetes.io/not-ready"),
            operator: text("Exists"),
            value: text(""),
            effect: text("NoExecute"),
            toleration_seconds: Some(0),
        }],
        priority: Some(0),
        dns_config: Some(core::PodDnsConfig {
            nameservers: texts(&["10.0.0.1"]),
            searches: Vec::new(),
            options: vec![core::PodDnsConfigOption {
                name: text("ndots"),
                value: text("2"),
            }],
        }),
        enable_service_links: Some(false),
        set_hostname_as_fqdn: Some(false),
        host_users: Some(false),
        ..Default::default()
    };
    let status = core::PodStatus {
        phase: text("Running"),
        conditions: vec![core::PodCondition {
            r#type: text("Ready"),
            status: text("True"),
            last_transition_time: time(1_700_000_000),
            ..Default::default()
        }],
        pod_ip: text("10.42.0.9"),
        pod_ips: vec![core::PodIp {
            ip: text("10.42.0.9"),
        }],
        container_statuses: vec![core::ContainerStatus {
            name: text("web"),
            ready: Some(true),
            restart_count: Some(1),
            started: Some(false),
            last_state: Some(core::ContainerState {
                terminated: Some(core::ContainerStateTerminated {
                    exit_code: Some(-1),
                    finished_at: time(1_700_000_001),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    let pod = core::Pod {
        metadata: metadata("web"),
        spec: Some(spec),
        status: Some(status),
    };
    assert_eq!(
        decoded("v1", "Pod", &pod),
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
            "spec": {
                "volumes": volumes_json(),
                "containers": [container_json()],
                "ephemeralContainers": [
                    {"name": "debug", "image": "busybox", "stdin": true, "targetContainerName": "web"},
                ],
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 0,
                "nodeSelector": {"disk": "ssd"},
                "automountServiceAccountToken": false,
                "hostPID": true,
                "shareProcessNamespace": false,
                "securityContext": {
                    "runAsNonRoot": false,
                    "supplementalGroups": [0, 5000],
                    "fsGroup": 0,
                    "sysctls": [{"name": "net.core.somaxconn", "value": "1024"}],
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "imagePullSecrets": [{"name": "pull"}],
                "affinity": {"podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": selector_json("web"),
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }],
                }},
                "tolerations": [{
                    "key": "node.kubernetes.io/not-ready", "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": 0,
                }],
                "priority": 0,
                "dnsConfig": {
                    "nameservers": ["10.0.0.1"],
                    "options": [{"name": "ndots", "value": "2"}],
                },
                "enableServiceLinks": false,
                "setHostnameAsFQDN": false,
                "hostUsers": false,
            },
            "status": {
                "phase": "Running",
                "conditions": [{
                    "type": "Ready", "status": "True", "lastTransitionTime": "2023-11-14T22:13:20Z",
                }],
                "podIP": "10.42.0.9",
                "podIPs": [{"ip": "10.42.0.9"}],
                "containerStatuses": [{
                    "name": "web", "ready": true, "restartCount": 1, "started": false,
                    "lastState": {"terminated": {
                        "exitCode": -1, "finishedAt": "2023-11-14T22:13:21Z",
                    }},
                }],
            },
        })
    );
}

fn selector_json(app: &str) -> Value {
    json!({
        "matchLabels": {"app": app},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
    })
}

#[test]
fn a_deployment() {
    let deployment = apps::Deployment {
        metadata: metadata("web"),
        spec: Some(apps::DeploymentSpec {
            replicas: Some(0),
            selector: selector("web"),
            template: Some(core::PodTemplateSpec {
                metadata: Some(meta::ObjectMeta {
                    annotations: map([("note", "")]),
                    ..Default::default()
                }),
                spec: Some(core::PodSpec {
                    containers: vec![container()],
                    ..Default::default()
                }),
            }),
            strategy: Some(apps::DeploymentStrategy {
                r#type: text("RollingUpdate"),
                rolling_update: Some(apps::RollingUpdateDeployment {
                    max_unavailable: number(0),
                    max_surge: word("25%"),
                }),
            }),
            min_ready_seconds: Some(0),
            revision_history_limit: Some(0),
            paused: Some(false),
            progress_deadline_seconds: Some(600),
        }),
        status: Some(apps::DeploymentStatus {
            replicas: Some(0),
            collision_count: Some(0),
            ..Default::default()
        }),
    };
    assert_eq!(
        decoded("apps/v1", "Deployment", &deployment),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
            "spec": {
                "replicas": 0,
                "selector": selector_json("web"),
                "template": {
                    "metadata": {"annotations": {"note": ""}},
                    "spec": {"containers": [container_json()]},
                },
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"},
                },
                "revisionHistoryLimit": 0,
                "progressDeadlineSeconds": 600,
            },
            "status": {"collisionCount": 0},
        })
    );
}

#[test]
fn a_service() {
    let service = core::Service {
        metadata: metadata("web"),
        spec: Some(core::ServiceSpec {
            ports: vec![
                core::ServicePort {
                    name: text("http"),
                    protocol: text("TCP"),
                    app_protocol: text("http"),
                    port: Some(80),
                    target_port: number(8080),
                    node_port: Some(0),
                },
                core::ServicePort {
                    name: text("dns"),
                    protocol: text("UDP"),
                    port: Some(53),
                    target_port: number(0),
                    ..Default::default()
                },
            ],
            selector: map([("app", "web")]),
            cluster_ip: text("None"),
            cluster_ips: texts(&["None"]),
            r#type: text("ClusterIP"),
            external_ips: texts(&["192.0.2.1"]),
            session_affinity: text("ClientIP"),
            session_affinity_config: Some(core::SessionAffinityConfig {
                client_ip: Some(core::ClientIpConfig {
                    timeout_seconds: Some(0),
                }),
            }),
            publish_not_ready_addresses: Some(true),
            ip_families: texts(&["IPv4"]),
            ip_family_policy: text("SingleStack"),
            allocate_load_balancer_node_ports: Some(false),
            internal_traffic_policy: text("Cluster"),
            ..Default::default()
        }),
        status: Some(core::ServiceStatus {
            load_balancer: Some(core::LoadBalancerStatus::default()),
            conditions: Vec::new(),
        }),
    };
    assert_eq!(
        decoded("v1", "Service", &service),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
            "spec": {
                "ports": [
                    {"name": "http", "protocol": "TCP", "appProtocol": "http", "port": 80, "targetPort": 8080},
                    {"name": "dns", "protocol": "UDP", "port": 53},
                ],
                "selector": {"app": "web"},
                "clusterIP": "None",
                "clusterIPs": ["None"],
                "type": "ClusterIP",
                "externalIPs": ["192.0.2.1"],
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
                "publishNotReadyAddresses": true,
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "allocateLoadBalancerNodePorts": false,
                "internalTrafficPolicy": "Cluster",
            },
            "status": {"loadBalancer": {}},
        })
    );
}

#[test]
fn a_secret_and_a_config_map() {
    let bytes = |key: &str, value: &[u8]| BTreeMap::from([(key.to_owned(), value.to_vec())]);
    let secret = core::Secret {
        metadata: metadata("login"),
        immutable: Some(false),
        data: bytes("key", b"\x00\xff"),
        string_data: map([("user", "")]),
        r#type: text("Opaque"),
    };
    let metadata_of =
        |name| json!({"name": name, "namespace": "default", "labels": {"app": "web"}});
    assert_eq!(
        decoded("v1", "Secret", &secret),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata_of("login"),
            "immutable": false,
            "data": {"key": "AP8="},
            "stringData": {"user": ""},
            "type": "Opaque",
        })
    );
    let config_map = core::ConfigMap {
        metadata: metadata("settings"),
        immutable: None,
        data: map([("a", "1"), ("empty", "")]),
        binary_data: bytes("none", b""),
    };
    assert_eq!(
        decoded("v1", "ConfigMap", &config_map),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata_of("settings"),
            "data": {"a": "1", "empty": ""},
            "binaryData": {"none": ""},
        })
    );
}

#[test]
fn an_endpoint_slice() {
    let slice = discovery::EndpointSlice {
        metadata: Some(meta::ObjectMeta {
            name: text("web-x"),
            owner_references: vec![meta::OwnerReference {
                api_version: text("v1"),
                kind: text("Service"),
                name: text("web"),
                uid: text("u"),
                controller: Some(true),
                block_owner_deletion: Some(false),
            }],
            managed_fields: vec![meta::ManagedFieldsEntry {
                manager: text("m"),
                operation: text("Update"),
                api_version: text("discovery.k8s.io/v1"),
                time: time(1_700_000_000),
                fields_type: text("FieldsV1"),
                fields_v1: Some(meta::FieldsV1 {
                    raw: Some(br#"{"f:ports":{}}"#.to_vec()),
                }),
                subresource: text(""),
            }],
            ..Default::default()
        }),
        address_type: text("IPv4"),
        endpoints: vec![discovery::Endpoint {
            addresses: texts(&["10.42.0.9"]),
            conditions: Some(discovery::EndpointConditions {
                ready: Some(false),
                serving: Some(true),
                terminating: None,
            }),
            target_ref: Some(core::ObjectReference {
                kind: text("Pod"),
                namespace: text("default"),
                name: text("web-1"),
                uid: text("p"),
                ..Default::default()
            }),
            node_name: text("n"),
            hints: Some(discovery::EndpointHints {
                for_zones: vec![discovery::ForZone { name: text("z") }],
                for_nodes: Vec::new(),
            }),
            ..Default::default()
        }],
        ports: vec![discovery::EndpointPort {
            name: text(""),
            protocol: text("TCP"),
            port: Some(8080),
            app_protocol: None,
        }],
    };
    assert_eq!(
        decoded("discovery.k8s.io/v1", "EndpointSlice", &slice),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "web-x",
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u",
                    "controller": true, "blockOwnerDeletion": false,
                }],
                "managedFields": [{
                    "manager": "m", "operation": "Update", "apiVersion": "discovery.k8s.io/v1",
                    "time": "2023-11-14T22:13:20Z", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:ports": {}},
                }],
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.42.0.9"],
                "conditions": {"ready": false, "serving": true},
                "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-1", "uid": "p"},
                "nodeName": "n",
                "hints": {"forZones": [{"name": "z"}]},
            }],
            "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        })
    );
}

#[test]
fn a_lease_and_options_of_a_delete() {
    let lease = coordination::Lease {
        metadata: metadata("leader"),
        spec: Some(coordination::LeaseSpec {
            holder_identity: text(""),
            lease_duration_seconds: Some(1),
            acquire_time: None,
            renew_time: Some(meta::MicroTime {
                seconds: Some(1_700_000_000),
                nanos: Some(123_456_000),
            }),
            lease_transitions: Some(0),
            strategy: None,
            preferred_holder: None,
        }),
    };
    assert_eq!(
        decoded("coordination.k8s.io/v1", "Lease", &lease)["spec"],
        json!({
            "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0,
            "renewTime": "2023-11-14T22:13:20.123456Z",
        })
    );
    let options = meta::DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(meta::Preconditions {
            uid: text("u"),
            resource_version: None,
        }),
        propagation_policy: text("Background"),
        dry_run: texts(&["All"]),
        ..Default::default()
    };
    // Sent under the version of the group that is deleted from.
    assert_eq!(
        decoded("apps/v1", "DeleteOptions", &options),
        json!({
            "apiVersion": "apps/v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u"},
            "propagationPolicy": "Background",
            "dryRun": ["All"],
        })
    );
}
