//! Pods and nodes for tests, said briefly.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, Node, NodeSpec, NodeStatus, Pod, PodSpec, ResourceRequirements, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub(crate) struct PodBuilder(Pod);

pub(crate) fn pod(name: &str) -> PodBuilder {
    PodBuilder(Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some("default".into()),
            uid: Some(format!("uid-{name}")),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container::default()],
            ..PodSpec::default()
        }),
        status: None,
    })
}

impl PodBuilder {
    fn spec(&mut self) -> &mut PodSpec {
        self.0.spec.get_or_insert_default()
    }

    pub(crate) fn request(mut self, name: &str, amount: &str) -> Self {
        self.spec().containers[0]
            .resources
            .get_or_insert_with(ResourceRequirements::default)
            .requests
            .get_or_insert_default()
            .insert(name.into(), Quantity(amount.into()));
        self
    }

    pub(crate) fn cpu(self, amount: &str) -> Self {
        self.request("cpu", amount)
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0
            .metadata
            .labels
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }

    pub(crate) fn host_port(mut self, port: i32) -> Self {
        self.spec().containers[0].ports = Some(vec![ContainerPort {
            container_port: port,
            host_port: Some(port),
            ..ContainerPort::default()
        }]);
        self
    }

    pub(crate) fn owner(mut self, uid: &str) -> Self {
        self.0.metadata.owner_references = Some(vec![OwnerReference {
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut PodSpec)) -> Self {
        change(self.spec());
        self
    }

    pub(crate) fn build(self) -> Pod {
        self.0
    }
}

pub(crate) struct NodeBuilder(Node);

pub(crate) fn node(name: &str) -> NodeBuilder {
    let list: BTreeMap<String, Quantity> = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110")]
        .into_iter()
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .collect();
    NodeBuilder(Node {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some([("kubernetes.io/hostname".to_owned(), name.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            allocatable: Some(list),
            ..NodeStatus::default()
        }),
    })
}

impl NodeBuilder {
    pub(crate) fn allocatable(mut self, name: &str, amount: &str) -> Self {
        self.0
            .status
            .get_or_insert_default()
            .allocatable
            .get_or_insert_default()
            .insert(name.into(), Quantity(amount.into()));
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0
            .metadata
            .labels
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }

    pub(crate) fn taint(mut self, key: &str, effect: &str) -> Self {
        self.0
            .spec
            .get_or_insert_default()
            .taints
            .get_or_insert_default()
            .push(Taint {
                key: key.into(),
                effect: effect.into(),
                ..Taint::default()
            });
        self
    }

    pub(crate) fn cordoned(mut self) -> Self {
        self.0.spec.get_or_insert_default().unschedulable = Some(true);
        self
    }

    pub(crate) fn build(self) -> Node {
        self.0
    }
}
