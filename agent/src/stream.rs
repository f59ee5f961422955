//! Logs, exec, attach and port-forward, as the control plane asks for them.
//!
//! Watches the OpenStream messages of the session; for each it calls back with a stream of its
//! own and serves it. Changes nothing but what runs inside containers at a user's wish. Who
//! reacts next: `kubectl`, at the other end.
//!
//! - [`logs`]: reads CRI log files; [`follow`] waits for more.
//! - [`exec`]: processes in containers, and their terminals.
//! - [`port_forward`]: connections into a pod's network namespace.
//! - [`outcome`]: how a stream ended, as a metav1.Status (pure).

pub mod exec;
pub mod follow;
pub mod logs;
pub mod outcome;
pub mod port_forward;

use std::time::Duration;

use bytes::Bytes;
use pintle_proto::node::open_stream::Target;
use pintle_proto::node::{Channel, OpenStream, StreamData, StreamFrame, stream_frame::Frame};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use crate::clock::Clock;
use crate::pod::worker::{ContainerEntry, PodEntry, PodTable};
use crate::runtime::Runtime;
use crate::session::SessionHandle;
use crate::session::requests::StreamRequests;
use outcome::Outcome;

/// Frames that may be under way to the server.
const FRAMES: usize = 16;
/// How long the last frames may take to the server.
const LAST_FRAMES: Duration = Duration::from_secs(10);

/// The room.
#[derive(Clone, Debug)]
pub struct Streams {
    runtime: Runtime,
    table: PodTable,
    session: SessionHandle,
    clock: Clock,
}

/// The frames of one stream to the server.
#[derive(Clone, Debug)]
pub struct Sender(mpsc::Sender<StreamFrame>);

/// The other side has gone.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the other side has gone")]
pub struct Hangup;

impl Sender {
    /// A sender and its other end.
    pub fn channel() -> (Self, mpsc::Receiver<StreamFrame>) {
        let (sender, receiver) = mpsc::channel(FRAMES);
        (Self(sender), receiver)
    }

    /// Sends bytes of one channel.
    pub async fn data(&self, channel: Channel, data: impl Into<Bytes>) -> Result<(), Hangup> {
        let data = data.into();
        let channel = channel.into();
        self.frame(Frame::Data(StreamData { channel, data })).await
    }

    /// Says that a channel has ended.
    pub async fn close(&self, channel: Channel) -> Result<(), Hangup> {
        self.frame(Frame::Close(channel.into())).await
    }

    /// Waits until nobody listens any more.
    pub async fn hung_up(&self) {
        self.0.closed().await;
    }

    async fn frame(&self, frame: Frame) -> Result<(), Hangup> {
        let frame = Some(frame);
        self.0
            .send(StreamFrame { frame })
            .await
            .map_err(|_error: mpsc::error::SendError<StreamFrame>| Hangup)
    }
}

impl Streams {
    /// The room.
    pub fn new(runtime: Runtime, table: PodTable, session: SessionHandle, clock: Clock) -> Self {
        Self {
            runtime,
            table,
            session,
            clock,
        }
    }

    /// Serves until `shutdown`.
    pub async fn run(self, mut requests: StreamRequests, shutdown: CancellationToken) {
        let mut streams = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                request = requests.recv() => match request {
                    Some(request) => {
                        streams.spawn(Box::pin(self.clone().serve(request)));
                    }
                    None => return,
                },
                Some(ended) = streams.join_next(), if !streams.is_empty() => {
                    if let Err(error) = ended && error.is_panic() {
                        tracing::error!(%error, "a stream panicked");
                    }
                }
            }
        }
    }

    async fn serve(self, request: OpenStream) {
        let Some(mut client) = self.session.client() else {
            return;
        };
        let (sender, frames) = Sender::channel();
        let greeted = sender.frame(Frame::StreamId(request.stream_id)).await;
        let mut incoming = match client.stream(ReceiverStream::new(frames)).await {
            Ok(response) => response.into_inner(),
            Err(status) => {
                tracing::debug!(%status, "the control plane does not take the stream");
                return;
            }
        };
        if greeted.is_err() {
            return;
        }
        let outcome = match request.target {
            Some(target) => self.target(target, &mut incoming, &sender).await,
            None => Outcome::BadRequest("the stream has no target".to_owned()),
        };
        if sender
            .frame(Frame::Status(outcome.to_json()))
            .await
            .is_err()
        {
            tracing::trace!("the stream ended first");
        }
        drop(sender);
        // Dropping the call while frames are on their way would reset it, and they with it.
        let drained = async { while let Ok(Some(_)) = incoming.message().await {} };
        if tokio::time::timeout(LAST_FRAMES, drained).await.is_err() {
            tracing::debug!("the control plane did not end the stream");
        }
    }

    async fn target(
        &self,
        target: Target,
        incoming: &mut Streaming<StreamFrame>,
        sender: &Sender,
    ) -> Outcome {
        match target {
            Target::Logs(target) => {
                let found = self.find(&target.pod_uid, &target.namespace, &target.pod);
                let (uid, pod) = match found {
                    Ok(found) => found,
                    Err(outcome) => return outcome,
                };
                let container = match container(&pod, &target.container) {
                    Ok(container) => container,
                    Err(outcome) => return outcome,
                };
                logs::serve(
                    &target,
                    &uid,
                    &pod,
                    container,
                    &self.table,
                    &self.clock,
                    sender,
                )
                .await
            }
            Target::Exec(target) => {
                let run = self.running(
                    &target.pod_uid,
                    &target.namespace,
                    &target.pod,
                    &target.container,
                );
                match run {
                    Ok((uid, run)) => {
                        exec::exec(&self.runtime, &target, &uid, &run, incoming, sender).await
                    }
                    Err(outcome) => outcome,
                }
            }
            Target::Attach(target) => {
                let run = self.running(
                    &target.pod_uid,
                    &target.namespace,
                    &target.pod,
                    &target.container,
                );
                match run {
                    Ok((uid, run)) => {
                        exec::attach(&self.runtime, &target, &uid, &run, incoming, sender).await
                    }
                    Err(outcome) => outcome,
                }
            }
            Target::PortForward(target) => {
                let (uid, _) = match self.find(&target.pod_uid, &target.namespace, &target.pod) {
                    Ok(found) => found,
                    Err(outcome) => return outcome,
                };
                port_forward::serve(&self.runtime, &target, &uid, incoming, sender).await
            }
        }
    }

    fn find(&self, uid: &str, namespace: &str, name: &str) -> Result<(String, PodEntry), Outcome> {
        let found = if uid.is_empty() {
            self.table.find(namespace, name)
        } else {
            self.table.get(uid).map(|pod| (uid.to_owned(), pod))
        };
        found.ok_or_else(|| Outcome::NotFound(format!("pods \"{name}\" not found")))
    }

    /// The run of a container that is asked for by name.
    fn running(
        &self,
        uid: &str,
        namespace: &str,
        pod: &str,
        name: &str,
    ) -> Result<(String, String), Outcome> {
        let (uid, pod) = self.find(uid, namespace, pod)?;
        let found = container(&pod, name)?;
        match &found.running {
            Some(run) => Ok((uid, run.clone())),
            None => Err(Outcome::Internal(format!(
                "container not found (\"{}\")",
                found.name
            ))),
        }
    }
}

/// A container by name; without a name, the only one.
fn container<'a>(pod: &'a PodEntry, name: &str) -> Result<&'a ContainerEntry, Outcome> {
    let found = if name.is_empty() {
        pod.containers.first()
    } else {
        pod.containers
            .iter()
            .find(|container| container.name == name)
    };
    found.ok_or_else(|| {
        Outcome::BadRequest(format!(
            "container {name} is not valid for pod {}",
            pod.summary.name
        ))
    })
}
