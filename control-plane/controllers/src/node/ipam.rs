//! Gives each node its share of the cluster's pod range.
//!
//! Watches: Nodes. Changes: `spec.podCIDR` and `spec.podCIDRs` of a Node that has none. Who reacts
//! next: the node's own network, which hands out addresses of that range.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use pintle_api::client::{Client, EventRecorder, Informer, InformerEvent, Patch};
use serde_json::json;

use super::ranges::NodeRanges;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::objects;
use crate::runtime::queue::WorkQueue;

const NAME: &str = "node-controller";

/// The controller; see the module documentation.
pub(crate) struct NodeIpam {
    client: Client,
    nodes: Informer<Node>,
    ranges: Mutex<NodeRanges>,
    recorder: EventRecorder,
}

impl NodeIpam {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host, ranges: NodeRanges) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            nodes: client.informer(),
            ranges: Mutex::new(ranges),
            recorder: host.recorder(NAME, "cidrAllocator"),
            client,
        });
        {
            let (controller, queue) = (Arc::clone(&this), queue.clone());
            host.watch(&this.nodes, move |event| {
                if let InformerEvent::Deleted(node) = &event {
                    let name = objects::name(&node.metadata);
                    controller.ranges.lock().release(name);
                    // Perhaps a node has waited for a free range.
                    for node in controller.nodes.list() {
                        queue.add(objects::name(&node.metadata).to_owned());
                    }
                } else if let Some(node) = objects::latest(&event) {
                    let name = objects::name(&node.metadata);
                    match pod_cidr(node) {
                        Some(cidr) => controller.ranges.lock().occupy(name, cidr),
                        None => queue.add(name.to_owned()),
                    }
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 1, async move {
            controller.nodes.synced().await;
            // All ranges in use must be known before the first one is given away.
            let mut ranges = controller.ranges.lock();
            for node in controller.nodes.list() {
                if let Some(cidr) = pod_cidr(&node) {
                    ranges.occupy(objects::name(&node.metadata), cidr);
                }
            }
        });
    }
}

fn pod_cidr(node: &Node) -> Option<&str> {
    node.spec
        .as_ref()?
        .pod_cidr
        .as_deref()
        .filter(|cidr| !cidr.is_empty())
}

impl Reconcile for NodeIpam {
    const NAME: &'static str = "node-ipam";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let Some(node) = self.nodes.get(key) else {
            return Ok(());
        };
        if pod_cidr(&node).is_some() {
            return Ok(());
        }
        let Some(range) = self.ranges.lock().allocate(key) else {
            self.recorder.record(
                objects::reference(node.as_ref()),
                "Normal",
                "CIDRNotAvailable",
                format!("Node {key} status is now: CIDRNotAvailable"),
            );
            return Ok(());
        };
        let patch = json!({
            "metadata": {"uid": node.metadata.uid},
            "spec": {"podCIDR": range, "podCIDRs": [range]},
        });
        match self
            .client
            .patch::<Node>(None, key, &Patch::Merge(patch), None)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => {
                self.ranges.lock().release(key);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
