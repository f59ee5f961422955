//! The objects every cluster has.
//!
//! Creates the namespaces `default`, `kube-system`, `kube-public` and `kube-node-lease`, the
//! `kubernetes` Service, and keeps that Service's endpoints at the API servers' addresses.
//! The service-account controller and the data path react.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Namespace, Service, ServicePort,
    ServiceSpec,
};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pintle_kube_types::Status;

use super::ApiServer;
use crate::auth::UserInfo;
use crate::client::Kind;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const NAME: &str = "kubernetes";
const PORT_NAME: &str = "https";
const PORT: i32 = 443;
/// Where the API listens unless it is told otherwise.
const TARGET_PORT: i32 = 6443;

impl ApiServer {
    pub(super) async fn create_own_objects(&self) -> Result<(), Status> {
        for name in NAMESPACES {
            self.ensure(&Namespace {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    ..ObjectMeta::default()
                },
                ..Namespace::default()
            })
            .await?;
        }
        let target = self
            .core
            .config()
            .advertise
            .as_ref()
            .map_or(TARGET_PORT, |(_, port)| i32::from(*port));
        self.ensure(&Service {
            metadata: own_metadata(&[("component", "apiserver"), ("provider", "kubernetes")]),
            spec: Some(ServiceSpec {
                type_: Some("ClusterIP".to_owned()),
                cluster_ip: Some(self.core.pools().ips.api_address().to_string()),
                ports: Some(vec![ServicePort {
                    name: Some(PORT_NAME.to_owned()),
                    port: PORT,
                    protocol: Some("TCP".to_owned()),
                    target_port: Some(IntOrString::Int(target)),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        })
        .await
    }

    /// Makes these addresses, all at `port`, the endpoints of the `kubernetes` Service. Those of
    /// another address family than the first's are left out: a slice has one.
    pub async fn advertise(&self, addresses: &[IpAddr], port: u16) -> Result<(), Status> {
        let is_v4 = addresses.first().is_none_or(IpAddr::is_ipv4);
        let addresses = addresses
            .iter()
            .filter(|address| address.is_ipv4() == is_v4)
            .map(IpAddr::to_string);
        let client = self.client(UserInfo::apiserver());
        let endpoints = Endpoints {
            metadata: own_metadata(&[("endpointslice.kubernetes.io/skip-mirror", "true")]),
            subsets: Some(vec![EndpointSubset {
                addresses: Some(
                    addresses
                        .clone()
                        .map(|ip| EndpointAddress {
                            ip,
                            ..EndpointAddress::default()
                        })
                        .collect(),
                ),
                ports: Some(vec![EndpointPort {
                    name: Some(PORT_NAME.to_owned()),
                    port: i32::from(port),
                    protocol: Some("TCP".to_owned()),
                    ..EndpointPort::default()
                }]),
                ..EndpointSubset::default()
            }]),
        };
        // An update of Endpoints that are not there creates them.
        client.update(&endpoints).await?;
        let slice = EndpointSlice {
            metadata: own_metadata(&[("kubernetes.io/service-name", NAME)]),
            address_type: if is_v4 { "IPv4" } else { "IPv6" }.to_owned(),
            endpoints: Some(
                addresses
                    .map(|address| Endpoint {
                        addresses: vec![address],
                        conditions: Some(EndpointConditions {
                            ready: Some(true),
                            ..EndpointConditions::default()
                        }),
                        ..Endpoint::default()
                    })
                    .collect(),
            ),
            ports: Some(vec![SlicePort {
                name: Some(PORT_NAME.to_owned()),
                port: Some(i32::from(port)),
                protocol: Some("TCP".to_owned()),
                ..SlicePort::default()
            }]),
        };
        self.ensure(&slice).await?;
        client.update(&slice).await.map(|_| ())
    }

    /// Creates an object unless there is one of its name.
    async fn ensure<K: Kind>(&self, object: &K) -> Result<(), Status> {
        let client = self.client(UserInfo::apiserver());
        let metadata = object.metadata();
        let name = metadata.name.as_deref().unwrap_or_default();
        match client.get::<K>(metadata.namespace.as_deref(), name).await {
            Ok(_) => return Ok(()),
            Err(status) if status.is_not_found() => {}
            Err(status) => return Err(status),
        }
        match client.create(object).await {
            Err(status) if !status.is_already_exists() => Err(status),
            _ => Ok(()),
        }
    }
}

fn own_metadata(labels: &[(&str, &str)]) -> ObjectMeta {
    ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some("default".to_owned()),
        labels: Some(
            labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        ),
        ..ObjectMeta::default()
    }
}
