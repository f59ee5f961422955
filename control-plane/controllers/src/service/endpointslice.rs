//! The endpoint slice controller: writes down which pods a Service's traffic may go to.
//!
//! Watches: Services, Pods, Nodes (for their zone) and its own EndpointSlices. Changes:
//! EndpointSlices. Who reacts next: every node's Service data path and DNS.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use pintle_api::client::{
    Client, DeleteParams, EventRecorder, Informer, InformerEvent, object_key,
};
use pintle_kube_types::Status;

use super::membership;
use crate::runtime::expectations::{Expectations, Seen};
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::queue::WorkQueue;
use crate::runtime::{objects, owner, pods, selector};
use crate::workload::deployment::is_namespace_terminating;

mod plan;

const NAME: &str = "endpointslice-controller";
const WORKERS: usize = 5;
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const ZONE: &str = "topology.kubernetes.io/zone";

/// The controller; see the module documentation.
pub(crate) struct EndpointSlices {
    client: Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    /// Keys of our slices by the key of their Service.
    index: Mutex<HashMap<String, BTreeSet<String>>>,
    /// The revision of our last write of each slice, to notice a cache that is behind.
    written: Mutex<HashMap<String, u64>>,
    expectations: Expectations,
    recorder: EventRecorder,
    queue: WorkQueue,
}

impl EndpointSlices {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            services: client.informer(),
            pods: client.informer(),
            nodes: client.informer(),
            slices: client.informer(),
            index: Mutex::default(),
            written: Mutex::default(),
            expectations: Expectations::default(),
            recorder: host.recorder(NAME, "endpoint-slice-controller"),
            queue: queue.clone(),
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
            let controller = Arc::clone(&this);
            host.watch(&this.pods, move |event| {
                let (old, new) = objects::sides(&event);
                for key in membership::concerned(&controller.services, old, new) {
                    controller.queue.add(key);
                }
            });
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.nodes, move |event| controller.on_node(&event));
        }
        {
            let controller = Arc::clone(&this);
            host.watch(&this.slices, move |event| controller.on_slice(&event));
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, WORKERS, async move {
            controller.services.synced().await;
            controller.pods.synced().await;
            controller.nodes.synced().await;
            controller.slices.synced().await;
        });
    }

    /// A node that appears, or changes its zone, changes the endpoints of its pods.
    fn on_node(&self, event: &InformerEvent<Node>) {
        let (old, new) = objects::sides(event);
        let zone = |node: &Node| zone_of(node).map(str::to_owned);
        if old.is_some() == new.is_some() && old.and_then(zone) == new.and_then(zone) {
            return;
        }
        let Some(name) = new.or(old).map(|node| objects::name(&node.metadata)) else {
            return;
        };
        for pod in self.pods.list() {
            if pods::node_name(&pod) == Some(name) {
                for key in membership::concerned(&self.services, None, Some(&pod)) {
                    self.queue.add(key);
                }
            }
        }
    }

    /// Puts back what somebody else changed or deleted, and keeps the index.
    fn on_slice(&self, event: &InformerEvent<EndpointSlice>) {
        let (old, new) = objects::sides(event);
        let Some(slice) = new.or(old) else {
            return;
        };
        let key = object_key(&slice.metadata);
        let before = old.and_then(service_key);
        let after = new.and_then(service_key);
        {
            let mut index = self.index.lock();
            if before != after
                && let Some(service) = &before
                && let Some(slices) = index.get_mut(service)
            {
                slices.remove(&key);
                if slices.is_empty() {
                    index.remove(service);
                }
            }
            if let Some(service) = &after {
                index
                    .entry(service.clone())
                    .or_default()
                    .insert(key.clone());
            }
        }
        let mut written = self.written.lock();
        let own = written
            .get(&key)
            .is_some_and(|revision| *revision >= objects::revision(&slice.metadata));
        if new.is_none() {
            written.remove(&key);
        }
        drop(written);
        if own && new.is_some() {
            return;
        }
        for service in [before, after].into_iter().flatten() {
            self.queue.add(service);
        }
    }

    async fn sync(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(service) = self.services.get(key) else {
            // The garbage collector removes the slices: the Service owns them.
            self.expectations.forget(key);
            return Ok(());
        };
        let Some(wanted) = membership::pod_selector(&service) else {
            return Ok(());
        };
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let up_to_date =
            self.expectations
                .satisfied(key, self.slices.resource_version(), |slice| {
                    self.slices.get(slice).map(|slice| Seen {
                        uid: objects::uid(&slice.metadata).to_owned(),
                        deleting: slice.metadata.deletion_timestamp.is_some(),
                    })
                });
        if !up_to_date {
            return Err(ReconcileError::Stale);
        }
        let namespace = objects::namespace(&service.metadata);
        let members: Vec<Arc<Pod>> = self
            .pods
            .list_namespace(namespace)
            .into_iter()
            .filter(|pod| selector::contains_all(wanted, pod.metadata.labels.as_ref()))
            .collect();
        let slice_keys: Vec<String> = self
            .index
            .lock()
            .get(key)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let slices: Vec<Arc<EndpointSlice>> = slice_keys
            .iter()
            .filter_map(|key| self.slices.get(key))
            .filter(|slice| slice.metadata.deletion_timestamp.is_none())
            .collect();
        {
            let written = self.written.lock();
            let behind = slices.iter().any(|slice| {
                written
                    .get(&object_key(&slice.metadata))
                    .is_some_and(|revision| *revision > objects::revision(&slice.metadata))
            });
            if behind {
                return Err(ReconcileError::Stale);
            }
        }
        let mut total = plan::Plan::default();
        let families = families(&service);
        for family in &families {
            let frame = plan::Frame {
                address_type: family.clone(),
                labels: labels(&service),
            };
            let existing: Vec<Arc<EndpointSlice>> = slices
                .iter()
                .filter(|slice| slice.address_type == *family)
                .cloned()
                .collect();
            let groups = self.groups(&service, &members, family);
            let change = plan::plan(&frame, &existing, groups);
            total.create.extend(change.create);
            total.update.extend(change.update);
            total.delete.extend(change.delete);
        }
        total.delete.extend(
            slices
                .iter()
                .filter(|slice| !families.contains(&slice.address_type))
                .cloned(),
        );
        if let Err(error) = self.carry_out(key, &service, total).await {
            if is_namespace_terminating(&error) {
                return Ok(());
            }
            if !error.is_conflict() {
                self.recorder.record(
                    objects::reference(service.as_ref()),
                    "Warning",
                    "FailedToUpdateEndpointSlices",
                    format!("Error updating Endpoint Slices for Service {key}: {error}"),
                );
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// The endpoints of one family, grouped by the ports they resolve to.
    fn groups(&self, service: &Service, members: &[Arc<Pod>], family: &str) -> Vec<plan::Group> {
        let mut groups: BTreeMap<Vec<i32>, plan::Group> = BTreeMap::new();
        for pod in members {
            if pods::is_terminal(pod) {
                continue;
            }
            let Some(address) = membership::address(pod, family) else {
                continue;
            };
            let node = pods::node_name(pod).and_then(|name| self.nodes.get(name));
            if node.is_none() && !membership::publishes_not_ready(service) {
                continue;
            }
            let ports = ports(service, pod);
            let key: Vec<i32> = ports.iter().map(|port| port.port.unwrap_or(0)).collect();
            groups
                .entry(key)
                .or_insert_with(|| plan::Group {
                    ports,
                    endpoints: Vec::new(),
                })
                .endpoints
                .push(endpoint(service, pod, node.as_deref(), address));
        }
        groups.into_values().collect()
    }

    async fn carry_out(
        &self,
        key: &str,
        service: &Service,
        plan: plan::Plan,
    ) -> Result<(), Status> {
        for new in plan.create {
            let created = self.client.create(&new_slice(service, new)).await?;
            let slice = object_key(&created.metadata);
            let revision = objects::revision(&created.metadata);
            self.written.lock().insert(slice.clone(), revision);
            self.expectations.created(
                key,
                slice,
                objects::uid(&created.metadata).to_owned(),
                revision,
            );
        }
        for slice in plan.update {
            let updated = self.client.update(&slice).await?;
            self.written.lock().insert(
                object_key(&updated.metadata),
                objects::revision(&updated.metadata),
            );
        }
        for slice in plan.delete {
            let deleted = self
                .client
                .delete::<EndpointSlice>(
                    slice.metadata.namespace.as_deref(),
                    objects::name(&slice.metadata),
                    &DeleteParams {
                        precondition_uid: slice.metadata.uid.clone(),
                        ..DeleteParams::default()
                    },
                )
                .await;
            match deleted {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => self.expectations.deleted(
                    key,
                    object_key(&slice.metadata),
                    objects::uid(&slice.metadata).to_owned(),
                ),
            }
        }
        Ok(())
    }
}

impl Reconcile for EndpointSlices {
    const NAME: &'static str = "endpointslice";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        self.sync(key).await
    }
}

/// The key of the Service one of our slices belongs to.
fn service_key(slice: &EndpointSlice) -> Option<String> {
    let labels = slice.metadata.labels.as_ref()?;
    if labels.get(MANAGED_BY).map(String::as_str) != Some(MANAGER) {
        return None;
    }
    let service = labels.get(SERVICE_NAME)?;
    Some(objects::sibling(&slice.metadata, service))
}

fn zone_of(node: &Node) -> Option<&str> {
    node.metadata
        .labels
        .as_ref()?
        .get(ZONE)
        .map(String::as_str)
        .filter(|zone| !zone.is_empty())
}

fn families(service: &Service) -> Vec<String> {
    match service
        .spec
        .as_ref()
        .and_then(|spec| spec.ip_families.as_ref())
    {
        Some(families) if !families.is_empty() => families.clone(),
        _ => vec!["IPv4".to_owned()],
    }
}

fn labels(service: &Service) -> selector::Labels {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(membership::HEADLESS_LABEL);
    labels.insert(
        SERVICE_NAME.to_owned(),
        objects::name(&service.metadata).to_owned(),
    );
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if membership::is_headless(service) {
        labels.insert(membership::HEADLESS_LABEL.to_owned(), String::new());
    }
    labels
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(membership::target_port(pod, port)?),
                protocol: Some(membership::protocol(port).to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn endpoint(service: &Service, pod: &Pod, node: Option<&Node>, address: &str) -> Endpoint {
    let serving = pods::is_ready(pod);
    let terminating = pods::is_terminating(pod);
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(membership::publishes_not_ready(service) || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: membership::published_hostname(pod, service),
        node_name: pods::node_name(pod).map(str::to_owned),
        target_ref: Some(membership::target(pod)),
        zone: node.and_then(zone_of).map(str::to_owned),
        ..Endpoint::default()
    }
}

fn new_slice(service: &Service, new: plan::NewSlice) -> EndpointSlice {
    let name = objects::name(&service.metadata);
    EndpointSlice {
        metadata: ObjectMeta {
            // Room for the random suffix within a name of 253 characters.
            generate_name: Some(format!("{}-", name.get(..247).unwrap_or(name))),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels(service)),
            owner_references: Some(vec![owner::controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: new.address_type,
        ports: Some(new.ports),
        endpoints: Some(new.endpoints),
    }
}
