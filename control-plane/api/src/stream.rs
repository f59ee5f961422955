//! Streaming subresources of pods: log, exec, attach and port-forward, carried to the node's
//! agent by a [`NodeProxy`].
//!
//! Watches and changes no state. The request was authenticated and authorised before; here its
//! options are checked as Kubernetes checks them, the agent is asked for the stream, and bytes
//! are passed on.
//!
//! - [`options`]: pure; query to typed options, which container is meant.
//! - [`log`]: `GET pods/NAME/log`.
//! - [`remote`]: exec and attach, over WebSocket (`v5.channel.k8s.io`, `v4.channel.k8s.io`) or
//!   SPDY/3.1.
//! - [`port_forward`]: connections to a pod's ports, over SPDY/3.1, also inside a WebSocket.
//! - [`upgrade`], [`channels`], [`spdy`]: the transports.

mod channels;
mod log;
mod options;
mod port_forward;
mod remote;
mod spdy;
mod upgrade;

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::{Reason, Status};
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
    proxy: &Arc<dyn NodeProxy>,
    subresource: &str,
    pod: &Object,
    request: ::http::Request<Body>,
) -> Result<::http::Response<Body>, Status> {
    match subresource {
        "log" => {
            // A reference to the request would not be Send: its body is not Sync.
            let query = request.uri().query().unwrap_or_default().to_owned();
            log::serve(proxy.as_ref(), pod, &query).await
        }
        "exec" => {
            let target = options::exec(pod, request.uri().query().unwrap_or_default())?;
            remote::serve(proxy.as_ref(), pod, target, request).await
        }
        "attach" => {
            let target = options::attach(pod, request.uri().query().unwrap_or_default())?;
            remote::serve(proxy.as_ref(), pod, target, request).await
        }
        "portforward" => port_forward::serve(Arc::clone(proxy), pod, request),
        _ => Err(Status::no_such_resource()),
    }
}

/// The node a pod is bound to.
fn node_of(pod: &Object) -> Option<&str> {
    pod.str_at(&["spec", "nodeName"]).filter(|n| !n.is_empty())
}

/// The failure an agent reports, or `None` for success.
fn failure_of(status: &[u8]) -> Option<Status> {
    let status: serde_json::Value = serde_json::from_slice(status).ok()?;
    if status.get("status").and_then(serde_json::Value::as_str) == Some("Success") {
        return None;
    }
    let text = |field: &str| {
        status
            .get(field)
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default()
    };
    let mut failure = Status::new(Reason::parse(text("reason")), text("message"));
    let code = status.get("code").and_then(serde_json::Value::as_u64);
    if let Some(code) = code.and_then(|code| u16::try_from(code).ok())
        && code >= 400
    {
        failure.code = code;
    }
    Some(failure)
}
