//! Streams to a node: the server asks over the session, the agent answers with a call of its
//! own, and the two are paired here.
//!
//! Owns the streams that were asked for and not yet answered. The API's streaming subresources
//! wait for them; frames pass through without being looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pintle_api::stream::NodeStream;
use pintle_proto::node::StreamFrame;
use pintle_proto::node::stream_frame::Frame;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// How long an agent may take to answer an OpenStream.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Frames in flight per direction; a slow reader stops the writer, not the server.
const FRAMES: usize = 16;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct PendingStreams {
    pending: Mutex<HashMap<String, Pending>>,
}

#[derive(Debug)]
struct Pending {
    node: String,
    ready: oneshot::Sender<NodeStream>,
}

/// A stream that was asked for; dropping it forgets the request.
#[derive(Debug)]
pub(super) struct Awaited {
    id: String,
    ready: oneshot::Receiver<NodeStream>,
    streams: Arc<PendingStreams>,
}

impl Awaited {
    /// The id the agent has to present.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The stream, or `None` when the agent did not answer in time.
    pub(super) async fn ready(mut self) -> Option<NodeStream> {
        match tokio::time::timeout(OPEN_TIMEOUT, &mut self.ready).await {
            Ok(Ok(stream)) => Some(stream),
            _ => None,
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.streams.pending.lock().remove(&self.id);
    }
}

impl PendingStreams {
    /// Expects a stream from `node`.
    pub(super) fn expect(self: &Arc<Self>, node: &str) -> Awaited {
        let id = hex::encode(rand::random::<[u8; 16]>());
        let (sender, ready) = oneshot::channel();
        self.pending.lock().insert(
            id.clone(),
            Pending {
                node: node.to_owned(),
                ready: sender,
            },
        );
        Awaited {
            id,
            ready,
            streams: Arc::clone(self),
        }
    }

    /// Pairs a call of `node` with the stream its first frame names. Gives the frames for the
    /// agent; the future moves the agent's frames and has to be run.
    pub(super) async fn accept(
        &self,
        node: &str,
        mut inbound: Streaming<StreamFrame>,
    ) -> Result<
        (
            ReceiverStream<Result<StreamFrame, Status>>,
            impl Future<Output = ()> + Send + 'static,
        ),
        Status,
    > {
        let first = inbound.message().await?;
        let Some(Frame::StreamId(id)) = first.and_then(|f| f.frame) else {
            return Err(Status::invalid_argument("the first frame names no stream"));
        };
        let pending = {
            let mut all = self.pending.lock();
            match all.remove(&id) {
                Some(pending) if pending.node == node => pending,
                // Another node's stream stays where it is.
                Some(pending) => {
                    all.insert(id, pending);
                    return Err(Status::permission_denied("the stream is for another node"));
                }
                None => return Err(Status::not_found("the stream is unknown or was given up")),
            }
        };
        let (to_api, frames_in) = mpsc::channel(FRAMES);
        let (frames_out, mut from_api) = mpsc::channel::<StreamFrame>(FRAMES);
        let (to_agent, outbound) = mpsc::channel(FRAMES);
        let stream = NodeStream {
            frames_in,
            frames_out,
        };
        if pending.ready.send(stream).is_err() {
            return Err(Status::cancelled("the client has left"));
        }
        let carry = async move {
            let up = async {
                loop {
                    let frame = tokio::select! {
                        frame = inbound.message() => frame,
                        () = to_api.closed() => break,
                    };
                    let Ok(Some(frame)) = frame else { break };
                    if to_api.send(frame).await.is_err() {
                        break;
                    }
                }
            };
            let down = async {
                while let Some(frame) = from_api.recv().await {
                    if to_agent.send(Ok(frame)).await.is_err() {
                        break;
                    }
                }
            };
            // The agent's side decides: it ends after its status frame, or when the API
            // dropped its receiver. Until then the API's side may be half closed.
            let mut up = std::pin::pin!(up);
            let mut down = std::pin::pin!(down);
            tokio::select! {
                () = &mut up => {}
                () = &mut down => up.await,
            }
        };
        Ok((ReceiverStream::new(outbound), carry))
    }
}
