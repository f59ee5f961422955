//! exec and attach over WebSocket.
//!
//! Watches and changes no state. One binary message carries one channel number and its bytes:
//! 0 stdin, 1 stdout, 2 stderr, 3 the final Status, 4 the terminal's size and, since
//! `v5.channel.k8s.io`, 255 with the number of a channel that the client has closed. See
//! Kubernetes' `apimachinery/pkg/util/remotecommand`.

use std::time::Duration;

use ::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use ::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::body::{Body, Bytes};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::rt::Executor as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_proto::node::open_stream::Target;
use pintle_proto::node::stream_frame::Frame;
use pintle_proto::node::{Channel, StreamData, StreamFrame, TerminalSize};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::{NodeProxy, NodeStream, node_of};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// A client that does not finish the upgrade in this time is given up.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// Protocols served, best first.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub(super) async fn serve(
    proxy: &dyn NodeProxy,
    pod: &Object,
    target: Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let handshake = handshake(request.headers())?;
    let Some(node) = node_of(pod) else {
        let name = pod.name().unwrap_or_default();
        return Err(Status::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    };
    let phase = pod.str_at(&["status", "phase"]).unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Status::bad_request(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    let first_output = first_output(&target);
    let upgrade = hyper::upgrade::on(&mut request);
    let stream = proxy.open(node, target).await?;
    // The connection outlives this response; it ends with the node's stream.
    TokioExecutor::new().execute(run(upgrade, stream, first_output));

    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, handshake.accept);
    headers.insert(
        SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(handshake.protocol),
    );
    Ok(response)
}

struct Handshake {
    accept: HeaderValue,
    protocol: &'static str,
}

fn handshake(headers: &HeaderMap) -> Result<Handshake, Status> {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    if !upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return Err(Status::bad_request(
            "Upgrade request required: WebSocket with v5.channel.k8s.io or v4.channel.k8s.io",
        ));
    }
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let protocol = PROTOCOLS
        .into_iter()
        .find(|protocol| offered.contains(protocol))
        .ok_or_else(|| {
            Status::bad_request(format!(
                "unable to negotiate protocol: client supports {offered:?}, server accepts \
                 {PROTOCOLS:?}"
            ))
        })?;
    let accept = headers
        .get(SEC_WEBSOCKET_KEY)
        .map(|key| derive_accept_key(key.as_bytes()))
        .and_then(|accept| HeaderValue::from_str(&accept).ok())
        .ok_or_else(|| Status::bad_request("the Sec-WebSocket-Key header is missing"))?;
    Ok(Handshake { accept, protocol })
}

/// The channel on which an empty message tells the client that the stream is up.
fn first_output(target: &Target) -> u8 {
    let (stdout, stderr) = match target {
        Target::Exec(exec) => (exec.stdout, exec.stderr),
        Target::Attach(attach) => (attach.stdout, attach.stderr),
        Target::Logs(_) | Target::PortForward(_) => (false, false),
    };
    match (stdout, stderr) {
        (true, _) => STDOUT,
        (false, true) => STDERR,
        (false, false) => ERROR,
    }
}

async fn run(upgrade: OnUpgrade, stream: NodeStream, first_output: u8) {
    let upgraded = match tokio::time::timeout(UPGRADE_TIMEOUT, upgrade).await {
        Ok(Ok(upgraded)) => upgraded,
        Ok(Err(error)) => {
            tracing::debug!(%error, "upgrade to WebSocket");
            return;
        }
        Err(_elapsed) => return,
    };
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (sink, source) = socket.split();
    // The node's side decides when it is over; a client that leaves ends both.
    tokio::select! {
        () = to_client(sink, stream.frames_in, first_output) => {}
        () = to_node(source, stream.frames_out) => {}
    }
}

async fn to_client(
    mut sink: SplitSink<Socket, Message>,
    mut frames: mpsc::Receiver<StreamFrame>,
    first_output: u8,
) {
    if sink.send(message(first_output, &[])).await.is_err() {
        return;
    }
    let mut finished = false;
    while let Some(frame) = frames.recv().await {
        let message = match frame.frame {
            Some(Frame::Data(data)) if data.channel() == Channel::Stderr => {
                message(STDERR, &data.data)
            }
            Some(Frame::Data(data)) => message(STDOUT, &data.data),
            Some(Frame::Status(status)) => {
                finished = true;
                message(ERROR, &status)
            }
            _ => continue,
        };
        if sink.send(message).await.is_err() {
            return;
        }
        if finished {
            break;
        }
    }
    if !finished {
        let status = Status::internal_error("the node's stream ended without a result");
        let status = serde_json::to_vec(&status).unwrap_or_default();
        if sink.send(message(ERROR, &status)).await.is_err() {
            return;
        }
    }
    // kubectl takes a close without a code for a failure.
    let normal = CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    };
    if let Err(error) = sink.send(Message::Close(Some(normal))).await {
        tracing::debug!(%error, "close WebSocket");
    }
}

async fn to_node(mut source: SplitStream<Socket>, frames: mpsc::Sender<StreamFrame>) {
    while let Some(Ok(message)) = source.next().await {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::from(text),
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        let Some(frame) = frame(&bytes) else {
            continue;
        };
        if frames
            .send(StreamFrame { frame: Some(frame) })
            .await
            .is_err()
        {
            // The node's side is done; its last words are still on their way to the client.
            std::future::pending::<()>().await;
        }
    }
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(channel);
    message.extend_from_slice(bytes);
    Message::Binary(Bytes::from(message))
}

/// The size of a terminal as clients send it.
#[derive(Deserialize)]
struct Size {
    #[serde(rename = "Width")]
    width: u32,
    #[serde(rename = "Height")]
    height: u32,
}

/// What a client's message means to the node; nothing when it means nothing.
fn frame(message: &Bytes) -> Option<Frame> {
    let (channel, bytes) = message.split_first()?;
    match *channel {
        STDIN if !bytes.is_empty() => Some(Frame::Data(StreamData {
            channel: Channel::Stdin.into(),
            data: message.slice(1..),
        })),
        RESIZE => {
            let size: Size = serde_json::from_slice(bytes).ok()?;
            Some(Frame::Resize(TerminalSize {
                width: size.width,
                height: size.height,
            }))
        }
        CLOSE if bytes == [STDIN] => Some(Frame::Close(Channel::Stdin.into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_common_protocol_is_taken() {
        let request = |protocols: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static("WebSocket"));
            headers.insert(
                SEC_WEBSOCKET_KEY,
                HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="),
            );
            headers.insert(
                SEC_WEBSOCKET_PROTOCOL,
                HeaderValue::from_str(protocols).unwrap(),
            );
            headers
        };
        let both = handshake(&request("v4.channel.k8s.io, v5.channel.k8s.io"));
        let both = both.ok().unwrap();
        assert_eq!(both.protocol, "v5.channel.k8s.io");
        assert_eq!(both.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(handshake(&request("x")).err().unwrap().code, 400);
        assert_eq!(handshake(&HeaderMap::new()).err().unwrap().code, 400);
    }

    #[test]
    fn messages_become_frames() {
        let of = |bytes: &'static [u8]| frame(&Bytes::from_static(bytes));
        assert!(matches!(of(b"\x00ls\n"), Some(Frame::Data(d)) if &d.data[..] == b"ls\n"));
        assert_eq!(
            of(b"\x04{\"Width\":80,\"Height\":24}"),
            Some(Frame::Resize(TerminalSize {
                width: 80,
                height: 24
            }))
        );
        assert_eq!(of(b"\xff\x00"), Some(Frame::Close(Channel::Stdin.into())));
        assert_eq!(of(b""), None);
        assert_eq!(of(b"\x00"), None);
        assert_eq!(of(b"\x04nonsense"), None);
    }
}
