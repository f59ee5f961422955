//! Streaming subresources of pods: log, exec, attach and port-forward, carried to the node's
//! agent by a [`NodeProxy`].

use async_trait::async_trait;
use axum::body::Body;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_proto::node::{StreamFrame, open_stream::Target};
use tokio::sync::mpsc;

/// The two directions of one stream to a node's agent.
#[derive(Debug)]
pub struct NodeStream {
    /// Frames from the agent.
    pub frames_in: mpsc::Receiver<StreamFrame>,
    /// Frames to the agent.
    pub frames_out: mpsc::Sender<StreamFrame>,
}

/// Opens streams to nodes; implemented by the node-session server.
#[async_trait]
pub trait NodeProxy: Send + Sync {
    /// Asks the agent of `node` to serve `target`.
    async fn open(&self, node: &str, target: Target) -> Result<NodeStream, Status>;
}

/// Serves a streaming subresource (`log`, `exec`, `attach`, `portforward`) of `pod`.
///
/// The request was authenticated and authorised; it is whole, so that an upgrade can be taken
/// from it.
pub async fn serve(
    proxy: &dyn NodeProxy,
    subresource: &str,
    pod: &Object,
    _request: ::http::Request<Body>,
) -> Result<::http::Response<Body>, Status> {
    let node = pod
        .pointer("/spec/nodeName")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let _ = proxy;
    Err(Status::bad_request(format!(
        "{subresource} of a pod on node {node:?} is not served"
    )))
}
