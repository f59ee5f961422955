//! exec and attach over WebSocket or SPDY.
//!
//! Watches and changes no state. In a WebSocket, one binary message carries one channel number
//! and its bytes: 0 stdin, 1 stdout, 2 stderr, 3 the final Status, 4 the terminal's size and,
//! since `v5.channel.k8s.io`, 255 with the number of a channel that the client has closed. On
//! SPDY the client opens one stream for each of them. See Kubernetes'
//! `apimachinery/pkg/util/remotecommand`.

use std::time::Duration;

use ::http::{Request, Response};
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
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::spdy::{self, SpdyStream};
use super::upgrade::{self, Transport};
use super::{NodeProxy, NodeStream, channels, node_of};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

const OVER_WEBSOCKET: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const OVER_SPDY: [&str; 1] = ["v4.channel.k8s.io"];
/// A SPDY client has this long to open its streams.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The streams a request asked for.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four flags of PodExecOptions"
)]
struct Wanted {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Wanted {
    fn of(target: &Target) -> Self {
        let (stdin, stdout, stderr, tty) = match target {
            Target::Exec(exec) => (exec.stdin, exec.stdout, exec.stderr, exec.tty),
            Target::Attach(attach) => (attach.stdin, attach.stdout, attach.stderr, attach.tty),
            Target::Logs(_) | Target::PortForward(_) => (false, false, false, false),
        };
        Self {
            stdin,
            stdout,
            stderr,
            tty,
        }
    }

    /// The channel on which an empty message tells the client that the stream is up.
    fn first_output(self) -> u8 {
        match (self.stdout, self.stderr) {
            (true, _) => STDOUT,
            (false, true) => STDERR,
            (false, false) => ERROR,
        }
    }
}

pub(super) async fn serve(
    proxy: &dyn NodeProxy,
    pod: &Object,
    target: Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let agreement = upgrade::agree(request.headers(), &OVER_WEBSOCKET, &OVER_SPDY)?;
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
    let wanted = Wanted::of(&target);
    let upgrade = hyper::upgrade::on(&mut request);
    let stream = proxy.open(node, target).await?;
    // The connection outlives this response; it ends with the node's stream.
    TokioExecutor::new().execute(run(upgrade, agreement.transport, stream, wanted));
    Ok(agreement.response)
}

async fn run(upgrade: OnUpgrade, transport: Transport, stream: NodeStream, wanted: Wanted) {
    let Some(upgraded) = upgrade::upgraded(upgrade).await else {
        return;
    };
    match transport {
        Transport::WebSocket => over_websocket(upgraded, stream, wanted).await,
        Transport::Spdy => over_spdy(upgraded, stream, wanted).await,
    }
}

async fn over_websocket(upgraded: Upgraded, stream: NodeStream, wanted: Wanted) {
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (sink, source) = socket.split();
    // The node's side decides when it is over; a client that leaves ends both.
    tokio::select! {
        () = to_client(sink, stream.frames_in, wanted.first_output()) => {}
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
    if !finished && sink.send(message(ERROR, &no_result())).await.is_err() {
        return;
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

/// The Status for a stream whose agent was lost.
fn no_result() -> Bytes {
    let status = Status::internal_error("the node's stream ended without a result");
    Bytes::from(serde_json::to_vec(&status).unwrap_or_default())
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
        send_or_wait(&frames, frame).await;
    }
}

/// Sends a frame to the node. When the node's side is done, its last words are still on their
/// way to the client: wait to be cancelled.
async fn send_or_wait(frames: &mpsc::Sender<StreamFrame>, frame: Frame) {
    let frame = StreamFrame { frame: Some(frame) };
    if frames.send(frame).await.is_err() {
        std::future::pending::<()>().await;
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

fn resize(json: &[u8]) -> Option<Frame> {
    let size: Size = serde_json::from_slice(json).ok()?;
    Some(Frame::Resize(TerminalSize {
        width: size.width,
        height: size.height,
    }))
}

fn stdin(data: Bytes) -> Frame {
    Frame::Data(StreamData {
        channel: Channel::Stdin.into(),
        data,
    })
}

/// What a client's message means to the node; nothing when it means nothing.
fn frame(message: &Bytes) -> Option<Frame> {
    let (channel, bytes) = message.split_first()?;
    match *channel {
        STDIN if !bytes.is_empty() => Some(stdin(message.slice(1..))),
        RESIZE => resize(bytes),
        CLOSE if bytes == [STDIN] => Some(Frame::Close(Channel::Stdin.into())),
        _ => None,
    }
}

async fn over_spdy(upgraded: Upgraded, stream: NodeStream, wanted: Wanted) {
    let (source, sink) = channels::direct(upgraded);
    let (accepted, streams) = mpsc::channel(8);
    let session = async {
        let opened = tokio::time::timeout(STREAMS_TIMEOUT, Opened::collect(streams, wanted));
        if let Ok(Some(opened)) = opened.await {
            opened.carry(stream).await;
        } else {
            tracing::debug!("a SPDY client did not open its streams");
        }
    };
    let mut connection = std::pin::pin!(spdy::serve(source, sink, accepted));
    tokio::select! {
        () = &mut connection => {}
        // What was said last still has to go out.
        () = session => connection.await,
    }
}

/// The streams a SPDY client opened.
struct Opened {
    error: SpdyStream,
    stdin: Option<SpdyStream>,
    stdout: Option<SpdyStream>,
    stderr: Option<SpdyStream>,
    resize: Option<SpdyStream>,
    /// Kept so that the connection stays up.
    _streams: mpsc::Receiver<SpdyStream>,
}

impl Opened {
    async fn collect(mut streams: mpsc::Receiver<SpdyStream>, wanted: Wanted) -> Option<Self> {
        let (mut error, mut stdin, mut stdout, mut stderr, mut resize) =
            (None, None, None, None, None);
        loop {
            let complete = error.is_some()
                && stdin.is_some() >= wanted.stdin
                && stdout.is_some() >= wanted.stdout
                && stderr.is_some() >= wanted.stderr
                && resize.is_some() >= wanted.tty;
            if complete {
                return Some(Self {
                    error: error?,
                    stdin,
                    stdout,
                    stderr,
                    resize,
                    _streams: streams,
                });
            }
            let stream = streams.recv().await?;
            let place = match stream.header("streamtype") {
                "error" => &mut error,
                "stdin" => &mut stdin,
                "stdout" => &mut stdout,
                "stderr" => &mut stderr,
                "resize" => &mut resize,
                _ => continue,
            };
            *place = Some(stream);
        }
    }

    async fn carry(self, node: NodeStream) {
        let NodeStream {
            frames_in,
            frames_out,
        } = node;
        let (mut in_, mut sizes) = (self.stdin, self.resize);
        let input = async {
            if let Some(stream) = &mut in_ {
                while let Some(bytes) = stream.incoming.recv().await {
                    send_or_wait(&frames_out, stdin(bytes)).await;
                }
                send_or_wait(&frames_out, Frame::Close(Channel::Stdin.into())).await;
            }
            std::future::pending::<()>().await;
        };
        let resizes = async {
            if let Some(stream) = &mut sizes {
                while let Some(bytes) = stream.incoming.recv().await {
                    if let Some(frame) = resize(&bytes) {
                        send_or_wait(&frames_out, frame).await;
                    }
                }
            }
            std::future::pending::<()>().await;
        };
        let output = output(
            &self.error,
            self.stdout.as_ref(),
            self.stderr.as_ref(),
            frames_in,
        );
        tokio::select! {
            () = input => {}
            () = resizes => {}
            () = output => {}
        }
    }
}

/// The node's frames to the client's streams, until the final status.
async fn output(
    error: &SpdyStream,
    stdout: Option<&SpdyStream>,
    stderr: Option<&SpdyStream>,
    mut frames: mpsc::Receiver<StreamFrame>,
) {
    let mut result = None;
    while let Some(frame) = frames.recv().await {
        let (stream, bytes) = match frame.frame {
            Some(Frame::Data(data)) if data.channel() == Channel::Stderr => (stderr, data.data),
            Some(Frame::Data(data)) => (stdout, data.data),
            Some(Frame::Status(status)) => {
                result = Some(status);
                break;
            }
            _ => continue,
        };
        if let Some(stream) = stream
            && stream.outgoing.send(bytes).await.is_err()
        {
            return;
        }
    }
    let result = result.unwrap_or_else(no_result);
    let mut ended = error.outgoing.send(result).await;
    for stream in [Some(error), stdout, stderr].into_iter().flatten() {
        if ended.is_ok() {
            ended = stream.outgoing.finish().await;
        }
    }
    if ended.is_err() {
        tracing::trace!("the client left before the result");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
