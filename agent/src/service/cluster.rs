//! The node's own index of Services and their EndpointSlices.
//!
//! Watches [`ClusterChange`]s and changes only itself; pure, without I/O. The service data
//! path and DNS each keep one and ask it what a changed Service means.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::session::ClusterChange;

/// Label by which an EndpointSlice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Services and EndpointSlices by key `namespace/name`.
#[derive(Debug, Default)]
pub(crate) struct ClusterServices {
    services: HashMap<String, Arc<Service>>,
    slices: HashMap<String, Arc<EndpointSlice>>,
    slices_of: HashMap<String, BTreeSet<String>>,
}

impl ClusterServices {
    /// Takes one change and returns the keys of the Services it concerns.
    pub(crate) fn apply(&mut self, change: ClusterChange) -> Vec<String> {
        match change {
            ClusterChange::Service(key, Some(service)) => {
                self.services.insert(key.clone(), service);
                vec![key]
            }
            ClusterChange::Service(key, None) => {
                self.services.remove(&key);
                vec![key]
            }
            ClusterChange::EndpointSlice(key, slice) => self.set_slice(key, slice),
            ClusterChange::Synced => Vec::new(),
        }
    }

    fn set_slice(&mut self, key: String, slice: Option<Arc<EndpointSlice>>) -> Vec<String> {
        let mut touched = Vec::new();
        let owner = slice.as_deref().and_then(service_of);
        if let Some(old) = self.slices.remove(&key).as_deref().and_then(service_of) {
            if let Some(keys) = self.slices_of.get_mut(&old) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.slices_of.remove(&old);
                }
            }
            touched.push(old);
        }
        if let (Some(owner), Some(slice)) = (owner, slice) {
            self.slices.insert(key.clone(), slice);
            self.slices_of.entry(owner.clone()).or_default().insert(key);
            if !touched.contains(&owner) {
                touched.push(owner);
            }
        }
        touched
    }

    /// One Service.
    pub(crate) fn service(&self, key: &str) -> Option<&Arc<Service>> {
        self.services.get(key)
    }

    /// The slices of a Service, whether or not the Service exists, in the order of their names.
    pub(crate) fn slices<'a>(
        &'a self,
        key: &str,
    ) -> impl Iterator<Item = &'a Arc<EndpointSlice>> + use<'a> {
        self.slices_of
            .get(key)
            .into_iter()
            .flatten()
            .filter_map(|slice| self.slices.get(slice))
    }

    /// Keys of all Services.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &String> {
        self.services.keys()
    }
}

fn service_of(slice: &EndpointSlice) -> Option<String> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    Some(format!("{namespace}/{name}"))
}

#[cfg(test)]
pub(crate) mod fixtures {
    //! Services and slices as the control plane writes them.

    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
    use k8s_openapi::api::discovery::v1::{
        Endpoint, EndpointConditions, EndpointPort, EndpointSlice,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use crate::session::ClusterChange;

    /// A ClusterIP Service in namespace `default`; ports are (name, number, protocol).
    pub(crate) fn service(name: &str, ip: &str, ports: &[(&str, i32, &str)]) -> ClusterChange {
        let service = Service {
            metadata: meta(name),
            spec: Some(ServiceSpec {
                cluster_ip: Some(ip.to_owned()),
                cluster_ips: Some(vec![ip.to_owned()]),
                type_: Some("ClusterIP".to_owned()),
                ports: Some(
                    ports
                        .iter()
                        .map(|(name, port, protocol)| ServicePort {
                            name: (!name.is_empty()).then(|| (*name).to_owned()),
                            port: *port,
                            protocol: Some((*protocol).to_owned()),
                            ..ServicePort::default()
                        })
                        .collect(),
                ),
                ..ServiceSpec::default()
            }),
            status: None,
        };
        ClusterChange::Service(format!("default/{name}"), Some(Arc::new(service)))
    }

    /// One endpoint.
    pub(crate) fn endpoint(ip: &str, ready: bool, serving: bool, terminating: bool) -> Endpoint {
        Endpoint {
            addresses: vec![ip.to_owned()],
            conditions: Some(EndpointConditions {
                ready: Some(ready),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            ..Endpoint::default()
        }
    }

    /// The slice `<service>-1` in namespace `default`.
    pub(crate) fn slice(
        service: &str,
        ports: &[(&str, i32, &str)],
        endpoints: Vec<Endpoint>,
    ) -> ClusterChange {
        let mut metadata = meta(&format!("{service}-1"));
        metadata.labels = Some(BTreeMap::from([(
            super::SERVICE_NAME.to_owned(),
            service.to_owned(),
        )]));
        let slice = EndpointSlice {
            address_type: "IPv4".to_owned(),
            endpoints: Some(endpoints),
            metadata,
            ports: Some(
                ports
                    .iter()
                    .map(|(name, port, protocol)| EndpointPort {
                        name: Some((*name).to_owned()),
                        port: Some(*port),
                        protocol: Some((*protocol).to_owned()),
                        ..EndpointPort::default()
                    })
                    .collect(),
            ),
        };
        ClusterChange::EndpointSlice(format!("default/{service}-1"), Some(Arc::new(slice)))
    }

    fn meta(name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        }
    }
}
