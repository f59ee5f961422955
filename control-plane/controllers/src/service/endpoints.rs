//! The endpoints controller: keeps the older `Endpoints` object of each Service for those who still
//! read it (`kubectl get endpoints`, old proxies).
//!
//! Watches: Services, Pods and Endpoints. Changes: Endpoints. Who reacts next: nobody in Pintle.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api::client::{Client, DeleteParams, EventRecorder, Informer, object_key};

use super::membership;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, pods, selector};
use crate::workload::deployment::is_namespace_terminating;

const NAME: &str = "endpoint-controller";
const WORKERS: usize = 3;
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// One object holds no more addresses than this.
const CAPACITY: usize = 1000;

/// The controller; see the module documentation.
pub(crate) struct EndpointsController {
    client: Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Endpoints>,
    recorder: EventRecorder,
}

impl EndpointsController {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            services: client.informer(),
            pods: client.informer(),
            endpoints: client.informer(),
            recorder: host.recorder(NAME, NAME),
            client,
        });
        {
            let queue = queue.clone();
            host.watch(&this.services, move |event| {
                if let Some(service) = objects::latest(&event) {
                    queue.add(object_key(&service.metadata));
                }
            });
        }
        {
            let (controller, queue) = (Arc::clone(&this), queue.clone());
            host.watch(&this.pods, move |event| {
                let (old, new) = objects::sides(&event);
                for key in membership::concerned(&controller.services, old, new) {
                    queue.add(key);
                }
            });
        }
        {
            let queue = queue.clone();
            host.watch(&this.endpoints, move |event| {
                if let Some(endpoints) = objects::latest(&event) {
                    queue.add(object_key(&endpoints.metadata));
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, WORKERS, async move {
            controller.services.synced().await;
            controller.pods.synced().await;
            controller.endpoints.synced().await;
        });
    }

    async fn sync(&self, key: &str) -> Result<(), ReconcileError> {
        let current = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            return self.remove(current.as_deref()).await;
        };
        let Some(wanted) = membership::pod_selector(&service) else {
            return Ok(());
        };
        let members: Vec<Arc<Pod>> = self
            .pods
            .list_namespace(objects::namespace(&service.metadata))
            .into_iter()
            .filter(|pod| selector::contains_all(wanted, pod.metadata.labels.as_ref()))
            .collect();
        let (subsets, truncated) = truncate(subsets(&service, &members));
        let mut next = current.as_deref().cloned().unwrap_or_else(|| Endpoints {
            metadata: ObjectMeta {
                name: service.metadata.name.clone(),
                namespace: service.metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            subsets: None,
        });
        next.subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
        next.metadata.labels = Some(labels(&service));
        if truncated {
            next.metadata
                .annotations
                .get_or_insert_default()
                .insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
        } else if let Some(annotations) = &mut next.metadata.annotations {
            annotations.remove(OVER_CAPACITY);
        }
        let written = match &current {
            Some(current) if **current == next => return Ok(()),
            Some(_) => self.client.update(&next).await,
            None => self.client.create(&next).await,
        };
        match written {
            Ok(_) => Ok(()),
            Err(error) if is_namespace_terminating(&error) => Ok(()),
            Err(error) => {
                if !error.is_conflict() && !error.is_already_exists() {
                    let (reason, verb) = if current.is_some() {
                        ("FailedToUpdateEndpoint", "update")
                    } else {
                        ("FailedToCreateEndpoint", "create")
                    };
                    self.recorder.record(
                        objects::reference(service.as_ref()),
                        "Warning",
                        reason,
                        format!("Failed to {verb} endpoint {key}: {error}"),
                    );
                }
                Err(error.into())
            }
        }
    }

    /// Endpoints have no owner reference: they are removed here when their Service is gone. Those
    /// that somebody made by hand, or that elect a leader, stay.
    async fn remove(&self, current: Option<&Endpoints>) -> Result<(), ReconcileError> {
        let Some(current) = current else {
            return Ok(());
        };
        let ours = current
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(MANAGED_BY))
            .is_some_and(|manager| manager == NAME);
        if !ours {
            return Ok(());
        }
        let deleted = self
            .client
            .delete::<Endpoints>(
                current.metadata.namespace.as_deref(),
                objects::name(&current.metadata),
                &DeleteParams {
                    precondition_uid: current.metadata.uid.clone(),
                    ..DeleteParams::default()
                },
            )
            .await;
        match deleted {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Reconcile for EndpointsController {
    const NAME: &'static str = "endpoints";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        self.sync(key).await
    }
}

fn labels(service: &Service) -> selector::Labels {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(membership::HEADLESS_LABEL);
    labels.insert(MANAGED_BY.to_owned(), NAME.to_owned());
    if membership::is_headless(service) {
        labels.insert(membership::HEADLESS_LABEL.to_owned(), String::new());
    }
    labels
}

type PortKey = (String, i32, String, Option<String>);

/// The pods of a Service in the packed form: pods with the same ports share a subset.
fn subsets(service: &Service, members: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let everyone = membership::publishes_not_ready(service);
    let family = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ip_families.as_ref()?.first().cloned())
        .unwrap_or_else(|| "IPv4".to_owned());
    let mut by_ports: BTreeMap<Vec<PortKey>, EndpointSubset> = BTreeMap::new();
    for pod in members {
        if pods::is_terminal(pod) || (pods::is_terminating(pod) && !everyone) {
            continue;
        }
        let Some(address) = membership::address(pod, &family) else {
            continue;
        };
        let ports: Vec<EndpointPort> = service
            .spec
            .iter()
            .flat_map(|spec| spec.ports.iter().flatten())
            .filter_map(|port| {
                Some(EndpointPort {
                    name: port.name.clone().filter(|name| !name.is_empty()),
                    port: membership::target_port(pod, port)?,
                    protocol: Some(membership::protocol(port).to_owned()),
                    app_protocol: port.app_protocol.clone(),
                })
            })
            .collect();
        if ports.is_empty() && !membership::is_headless(service) {
            continue;
        }
        let key = ports
            .iter()
            .map(|port| {
                (
                    port.name.clone().unwrap_or_default(),
                    port.port,
                    port.protocol.clone().unwrap_or_default(),
                    port.app_protocol.clone(),
                )
            })
            .collect();
        let subset = by_ports.entry(key).or_insert_with(|| EndpointSubset {
            ports: Some(ports).filter(|ports| !ports.is_empty()),
            ..EndpointSubset::default()
        });
        let entry = EndpointAddress {
            ip: address.to_owned(),
            hostname: membership::published_hostname(pod, service),
            node_name: pods::node_name(pod).map(str::to_owned),
            target_ref: Some(membership::target(pod)),
        };
        let list = if everyone || pods::is_ready(pod) {
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        list.get_or_insert_default().push(entry);
    }
    let mut subsets: Vec<EndpointSubset> = by_ports.into_values().collect();
    for subset in &mut subsets {
        let lists = [&mut subset.addresses, &mut subset.not_ready_addresses];
        for list in lists.into_iter().flatten() {
            list.sort_by(|a, b| a.ip.cmp(&b.ip));
        }
    }
    subsets
}

/// Cuts the addresses to what one object may hold, ready ones first.
fn truncate(mut subsets: Vec<EndpointSubset>) -> (Vec<EndpointSubset>, bool) {
    let mut room = CAPACITY;
    let mut truncated = false;
    for ready in [true, false] {
        for subset in &mut subsets {
            let list = if ready {
                &mut subset.addresses
            } else {
                &mut subset.not_ready_addresses
            };
            if let Some(addresses) = list {
                truncated |= addresses.len() > room;
                addresses.truncate(room);
                room -= addresses.len();
                if addresses.is_empty() {
                    *list = None;
                }
            }
        }
    }
    subsets.retain(|subset| subset.addresses.is_some() || subset.not_ready_addresses.is_some());
    (subsets, truncated)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodCondition, PodStatus, ServicePort, ServiceSpec};

    use super::*;

    fn service() -> Service {
        Service {
            spec: Some(ServiceSpec {
                ports: Some(vec![ServicePort {
                    port: 80,
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    fn pod(number: usize, ready: bool) -> Arc<Pod> {
        Arc::new(Pod {
            status: Some(PodStatus {
                pod_ip: Some(format!("10.0.{}.{}", number / 250, number % 250)),
                conditions: Some(vec![PodCondition {
                    type_: "Ready".into(),
                    status: if ready { "True" } else { "False" }.into(),
                    ..PodCondition::default()
                }]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        })
    }

    fn counts(subsets: &[EndpointSubset]) -> Vec<(usize, usize)> {
        let length = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
        subsets
            .iter()
            .map(|subset| {
                (
                    length(&subset.addresses),
                    length(&subset.not_ready_addresses),
                )
            })
            .collect()
    }

    #[test]
    fn ready_and_not_ready_are_apart() {
        let found = subsets(&service(), &[pod(1, true), pod(2, false), pod(3, true)]);
        assert_eq!(counts(&found), [(2, 1)]);
        assert!(subsets(&service(), &[]).is_empty());
    }

    #[test]
    fn ready_addresses_have_precedence() {
        let pods: Vec<_> = (0..1100)
            .map(|number| pod(number, number % 2 == 0))
            .collect();
        let (found, truncated) = truncate(subsets(&service(), &pods));
        assert!(truncated);
        assert_eq!(counts(&found), [(550, 450)]);
    }
}
