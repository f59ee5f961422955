//! `pods/NAME/portforward`: connections to ports of a pod.
//!
//! Watches and changes no state. The client opens, on SPDY (directly, or inside a WebSocket), a
//! pair of streams per connection: one for the bytes, one for an error. Each pair becomes one
//! stream to the node's agent.

use std::collections::HashMap;
use std::sync::Arc;

use ::http::{Request, Response};
use axum::body::{Body, Bytes};
use hyper::rt::Executor as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioExecutor;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_proto::node::open_stream::Target;
use pintle_proto::node::stream_frame::Frame;
use pintle_proto::node::{Channel, PortForwardTarget, StreamData, StreamFrame};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::spdy::{self, SpdyStream};
use super::upgrade::{self, Transport};
use super::{NodeProxy, NodeStream, channels, failure_of, node_of};

const OVER_WEBSOCKET: [&str; 1] = ["SPDY/3.1+portforward.k8s.io"];
const OVER_SPDY: [&str; 1] = ["portforward.k8s.io"];
/// Streams accepted and not yet paired.
const QUEUE: usize = 16;

pub(super) fn serve(
    proxy: Arc<dyn NodeProxy>,
    pod: &Object,
    mut request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let agreement = upgrade::agree(request.headers(), &OVER_WEBSOCKET, &OVER_SPDY)?;
    let name = pod.name().unwrap_or_default();
    let Some(node) = node_of(pod) else {
        return Err(Status::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    };
    let phase = pod.str_at(&["status", "phase"]).unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Status::bad_request(format!(
            "cannot forward ports of a completed pod; current phase is {phase}"
        )));
    }
    let forwarder = Forwarder {
        proxy,
        node: node.to_owned(),
        target: PortForwardTarget {
            namespace: pod.namespace().unwrap_or_default().to_owned(),
            pod: name.to_owned(),
            pod_uid: pod.uid().unwrap_or_default().to_owned(),
            port: 0,
        },
    };
    let upgrade = hyper::upgrade::on(&mut request);
    // The connection outlives this response; it ends when the client leaves.
    TokioExecutor::new().execute(run(upgrade, agreement.transport, forwarder));
    Ok(agreement.response)
}

async fn run(upgrade: OnUpgrade, transport: Transport, forwarder: Forwarder) {
    let Some(upgraded) = upgrade::upgraded(upgrade).await else {
        return;
    };
    let (accepted, streams) = mpsc::channel(QUEUE);
    let pairs = forwarder.pair(streams);
    match transport {
        Transport::Spdy => {
            let (source, sink) = channels::direct(upgraded);
            tokio::join!(spdy::serve(source, sink, accepted), pairs);
        }
        Transport::WebSocket => {
            let (source, sink) = channels::in_websocket(upgraded).await;
            tokio::join!(spdy::serve(source, sink, accepted), pairs);
        }
    }
}

#[derive(Clone)]
struct Forwarder {
    proxy: Arc<dyn NodeProxy>,
    node: String,
    target: PortForwardTarget,
}

impl Forwarder {
    /// Pairs the client's streams and carries each pair.
    async fn pair(self, mut streams: mpsc::Receiver<SpdyStream>) {
        let mut errors: HashMap<String, SpdyStream> = HashMap::new();
        let connections = TaskTracker::new();
        while let Some(stream) = streams.recv().await {
            let request = stream.header("requestid").to_owned();
            match stream.header("streamtype") {
                // Clients open the error stream first.
                "error" if errors.len() < QUEUE => {
                    errors.insert(request, stream);
                }
                "data" => {
                    if let Some(error) = errors.remove(&request) {
                        connections.spawn(self.clone().connection(stream, error));
                    }
                }
                _ => {}
            }
        }
        connections.close();
        connections.wait().await;
    }

    async fn connection(self, data: SpdyStream, error: SpdyStream) {
        let port: u16 = data.header("port").parse().unwrap_or_default();
        let failure = match self.open(port).await {
            Ok(stream) => carry(data, stream).await,
            Err(status) => Some(status),
        };
        let told = match failure {
            Some(status) => {
                let message = format!(
                    "error forwarding port {port} to pod {}, uid {}: {}",
                    self.target.pod, self.target.pod_uid, status.message
                );
                error.outgoing.send(Bytes::from(message)).await
            }
            None => Ok(()),
        };
        if told.is_err() || error.outgoing.finish().await.is_err() {
            tracing::trace!(port, "the client left before its connection ended");
        }
    }

    async fn open(&self, port: u16) -> Result<NodeStream, Status> {
        if port == 0 {
            return Err(Status::bad_request("the port is not between 1 and 65535"));
        }
        let target = PortForwardTarget {
            port: u32::from(port),
            ..self.target.clone()
        };
        self.proxy
            .open(&self.node, Target::PortForward(target))
            .await
    }
}

/// Carries bytes both ways until the pod's side ends; gives the agent's failure.
async fn carry(data: SpdyStream, node: NodeStream) -> Option<Status> {
    let NodeStream {
        mut frames_in,
        frames_out,
    } = node;
    let SpdyStream {
        mut incoming,
        outgoing,
        ..
    } = data;
    let to_pod = async {
        while let Some(bytes) = incoming.recv().await {
            let frame = Frame::Data(StreamData {
                channel: Channel::Stdin.into(),
                data: bytes,
            });
            let frame = StreamFrame { frame: Some(frame) };
            if frames_out.send(frame).await.is_err() {
                break;
            }
        }
        let close = Frame::Close(Channel::Stdin.into());
        let close = StreamFrame { frame: Some(close) };
        if frames_out.send(close).await.is_err() {
            tracing::trace!("the pod's side ended first");
        }
        std::future::pending::<()>().await;
    };
    let from_pod = async {
        let (mut failure, mut finished) = (None, false);
        while let Some(frame) = frames_in.recv().await {
            let passed_on = match frame.frame {
                Some(Frame::Data(data)) => outgoing.send(data.data).await,
                Some(Frame::Close(_)) if !finished => {
                    finished = true;
                    outgoing.finish().await
                }
                Some(Frame::Status(status)) => {
                    failure = failure_of(&status);
                    break;
                }
                _ => Ok(()),
            };
            if passed_on.is_err() {
                return None;
            }
        }
        if !finished && outgoing.finish().await.is_err() {
            tracing::trace!("the client ended first");
        }
        failure
    };
    tokio::select! {
        () = to_pod => None,
        () = outgoing.closed() => None,
        failure = from_pod => failure,
    }
}
