//! The node sessions: one bidirectional gRPC stream per node.
//!
//! Watches, per node, its share of the API's state through the informers and sends it as deltas;
//! performs the agent's writes under the node's own identity. Owns the table of connected nodes,
//! through which the API's streaming subresources reach an agent ([`NodeProxy`]).
//!
//! - [`references`], [`view`]: pure; what a node should know and what it was told.
//! - [`feed`]: the informers' events into the view.
//! - [`requests`]: the agent's writes.
//! - [`streams`]: logs, exec, attach and port-forward.
//!
//! A session that breaks leaves its view behind; an agent that comes back with the same
//! revision gets the difference, any other a snapshot.

mod feed;
mod references;
mod requests;
mod streams;
mod view;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pintle_api::auth::UserInfo;
use pintle_api::client::{Client, EventRecorder};
use pintle_api::stream::{NodeProxy, NodeStream};
use pintle_kube_types::status::Status as ApiStatus;
use pintle_proto::node::node_session_server::NodeSession;
use pintle_proto::node::open_stream::Target;
use pintle_proto::node::server_message::Message as ToAgent;
use pintle_proto::node::{
    AgentMessage, ClusterSettings, Hello, OpenStream, ServerMessage, Servers, StreamFrame, Welcome,
    agent_message,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use crate::join::{admits, peer_node, replaced};
use crate::node_keys::NodeKeys;
use crate::service_account::ServiceAccountTokens;
use crate::version_skew;
use feed::{Feed, NodeNames};
use requests::Requests;
use streams::PendingStreams;
use view::View;

/// An agent that does not greet in this time is cut off.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages to an agent in flight; a slow agent gets fewer and bigger deltas.
const OUTBOUND: usize = 32;
/// Requests of one node performed side by side.
const LANES: usize = 8;
/// Requests waiting per lane before the session's stream is no longer read.
const LANE_DEPTH: usize = 64;

/// Who is connected; the API's way to a node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: Mutex<HashMap<String, NodeEntry>>,
    streams: Arc<PendingStreams>,
    names: NodeNames,
}

#[derive(Debug, Default)]
struct NodeEntry {
    session: Option<Connected>,
    /// What the node had been told when its last session ended.
    left_over: Option<View>,
    sessions_so_far: u64,
}

#[derive(Debug)]
struct Connected {
    number: u64,
    outbound: mpsc::Sender<Result<ServerMessage, Status>>,
    cancel: CancellationToken,
}

impl Sessions {
    /// Names of the nodes with a session now.
    pub fn connected(&self) -> Vec<String> {
        let nodes = self.inner.nodes.lock();
        let mut names: Vec<String> = nodes
            .iter()
            .filter(|(_, entry)| entry.session.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        names.sort_unstable();
        names
    }

    /// Registers a session, ending the node's earlier one: a node is in one place.
    fn enter(
        &self,
        node: &str,
        outbound: mpsc::Sender<Result<ServerMessage, Status>>,
        cancel: CancellationToken,
    ) -> (u64, Option<View>) {
        let mut nodes = self.inner.nodes.lock();
        let entry = nodes.entry(node.to_owned()).or_default();
        entry.sessions_so_far += 1;
        let number = entry.sessions_so_far;
        let connected = Connected {
            number,
            outbound,
            cancel,
        };
        if let Some(earlier) = entry.session.replace(connected) {
            earlier.cancel.cancel();
        }
        (number, entry.left_over.take())
    }

    fn leave(&self, node: &str, number: u64, view: View) {
        let mut nodes = self.inner.nodes.lock();
        if let Some(entry) = nodes.get_mut(node)
            && entry.session.as_ref().is_some_and(|s| s.number == number)
        {
            entry.session = None;
            entry.left_over = Some(view);
        }
    }
}

#[async_trait]
impl NodeProxy for Sessions {
    async fn open(&self, node: &str, target: Target) -> Result<NodeStream, ApiStatus> {
        let not_connected = || {
            ApiStatus::service_unavailable(format!("node {node:?} is not connected to the cluster"))
        };
        let outbound = {
            let nodes = self.inner.nodes.lock();
            let session = nodes.get(node).and_then(|entry| entry.session.as_ref());
            session.ok_or_else(not_connected)?.outbound.clone()
        };
        let awaited = self.inner.streams.expect(node);
        let request = message(ToAgent::OpenStream(OpenStream {
            stream_id: awaited.id().to_owned(),
            target: Some(target),
        }));
        if outbound.send(Ok(request)).await.is_err() {
            return Err(not_connected());
        }
        awaited.ready().await.ok_or_else(|| {
            ApiStatus::timeout(format!("node {node:?} did not open the stream in time"), 1)
        })
    }
}

/// Serves the NodeSession service.
pub struct SessionServer {
    /// Acts for the control plane itself.
    pub client: Client,
    /// The table of connected nodes.
    pub sessions: Sessions,
    /// Signs the tokens that pods get.
    pub tokens: Arc<ServiceAccountTokens>,
    /// Which keys may act as which node.
    pub(crate) keys: NodeKeys,
    /// Where agents reach the API servers.
    pub(crate) servers: watch::Receiver<Vec<String>>,
    /// Sent in the Welcome.
    pub settings: ClusterSettings,
    /// Sent in the Welcome.
    pub server_version: String,
    /// Ends every session.
    pub shutdown: CancellationToken,
    /// Every session's tasks.
    pub tasks: TaskTracker,
}

impl std::fmt::Debug for SessionServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionServer")
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

type Outbound = Pin<Box<dyn Stream<Item = Result<ServerMessage, Status>> + Send>>;

#[tonic::async_trait]
impl NodeSession for SessionServer {
    type SessionStream = Outbound;
    type StreamStream = ReceiverStream<Result<StreamFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Outbound>, Status> {
        let (node, key) = peer_node(&request)?;
        if !admits(&self.keys, &node, &key).await? {
            return Err(replaced(&node));
        }
        let mut inbound = request.into_inner();
        let hello = read_hello(&mut inbound, &node).await?;
        version_skew::check(&hello.agent_version)
            .map_err(|error| Status::failed_precondition(error.to_string()))?;

        let cancel = self.shutdown.child_token();
        let (outbound, receiver) = mpsc::channel(OUTBOUND);
        let (number, left_over) = self.sessions.enter(&node, outbound.clone(), cancel.clone());
        let resumed = left_over.filter(|view| {
            hello.cluster_id == self.settings.cluster_id
                && hello.resume_revision != 0
                && hello.resume_revision == view.revision()
        });
        tracing::info!(
            node,
            resumed = resumed.is_some(),
            agent_version = hello.agent_version,
            "node session begins"
        );
        let mut servers = self.servers.clone();
        let addresses = servers.borrow_and_update().clone();
        let welcome = message(ToAgent::Welcome(Welcome {
            settings: Some(self.settings.clone()),
            server_version: self.server_version.clone(),
            resumed: resumed.is_some(),
            servers: Some(Servers { addresses }),
        }));
        if outbound.send(Ok(welcome)).await.is_err() {
            return Err(Status::cancelled("the agent has left"));
        }

        let as_node = self.client.impersonate(UserInfo::node(&node));
        let recorder = EventRecorder::on_node(&as_node, "kubelet", &node);
        let requests = Requests::new(
            &node,
            as_node,
            self.client.clone(),
            Arc::clone(&self.tokens),
            self.keys.clone(),
            recorder,
        );
        let tasks = self.tasks.clone();
        tasks.spawn(serve_requests(
            inbound,
            requests,
            outbound.clone(),
            cancel.clone(),
            tasks.clone(),
        ));
        let (client, sessions) = (self.client.clone(), self.sessions.clone());
        let stop = cancel.clone();
        tasks.spawn(async move {
            let names = sessions.inner.names.clone();
            let start = Feed::start(&client, &node, names, resumed);
            let view = match stop.run_until_cancelled(start).await {
                Some(feed) => send_deltas(feed, servers, &outbound, &stop).await,
                None => View::default(),
            };
            tracing::info!(node, "node session ended");
            sessions.leave(&node, number, view);
        });
        Ok(Response::new(Box::pin(Guarded {
            inner: ReceiverStream::new(receiver),
            _guard: cancel.drop_guard(),
        })))
    }

    async fn stream(
        &self,
        request: Request<Streaming<StreamFrame>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let (node, key) = peer_node(&request)?;
        if !admits(&self.keys, &node, &key).await? {
            return Err(replaced(&node));
        }
        let (outbound, carry) = self
            .sessions
            .inner
            .streams
            .accept(&node, request.into_inner())
            .await?;
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            shutdown.run_until_cancelled(carry).await;
        });
        Ok(Response::new(outbound))
    }
}

async fn read_hello(inbound: &mut Streaming<AgentMessage>, node: &str) -> Result<Hello, Status> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, inbound.message())
        .await
        .map_err(|_elapsed| Status::deadline_exceeded("no Hello came in time"))??;
    let Some(agent_message::Message::Hello(hello)) = first.and_then(|m| m.message) else {
        return Err(Status::invalid_argument("the first message is no Hello"));
    };
    if hello.node_name == node {
        Ok(hello)
    } else {
        Err(Status::permission_denied(format!(
            "the certificate is for node {node}, not {}",
            hello.node_name
        )))
    }
}

/// Sends what changes until the session ends; gives what the node knows then.
async fn send_deltas(
    mut feed: Feed,
    mut servers: watch::Receiver<Vec<String>>,
    outbound: &mpsc::Sender<Result<ServerMessage, Status>>,
    stop: &CancellationToken,
) -> View {
    loop {
        let permit = tokio::select! {
            () = stop.cancelled() => return feed.into_view(),
            Ok(()) = servers.changed() => {
                let addresses = servers.borrow_and_update().clone();
                let list = message(ToAgent::Servers(Servers { addresses }));
                if outbound.send(Ok(list)).await.is_err() {
                    return feed.into_view();
                }
                continue;
            }
            permit = async {
                feed.changed().await;
                outbound.reserve().await
            } => permit,
        };
        let Ok(permit) = permit else {
            return feed.into_view();
        };
        if let Some(delta) = feed.compose() {
            permit.send(Ok(message(ToAgent::Delta(delta))));
        }
    }
}

/// Reads requests until the session ends, performing them in their lanes.
async fn serve_requests(
    mut inbound: Streaming<AgentMessage>,
    requests: Requests,
    outbound: mpsc::Sender<Result<ServerMessage, Status>>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let mut lanes = Vec::with_capacity(LANES);
    for _ in 0..LANES {
        let (lane, mut waiting) = mpsc::channel::<pintle_proto::node::Request>(LANE_DEPTH);
        let (requests, outbound) = (requests.clone(), outbound.clone());
        tasks.spawn(async move {
            while let Some(request) = waiting.recv().await {
                let response = requests.perform(request).await;
                let sent = outbound.send(Ok(message(ToAgent::Response(response))));
                if sent.await.is_err() {
                    return;
                }
            }
        });
        lanes.push(lane);
    }
    loop {
        let next = tokio::select! {
            next = inbound.message() => next,
            () = stop.cancelled() => return,
        };
        match next {
            Ok(Some(AgentMessage {
                message: Some(agent_message::Message::Request(request)),
            })) => {
                let lane = usize::try_from(Requests::lane(&request) % LANES as u64);
                let sent = lanes[lane.unwrap_or_default()].send(request);
                if sent.await.is_err() {
                    break;
                }
            }
            Ok(Some(_)) => tracing::debug!("ignored an agent's message of another kind"),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(%error, "node session broke");
                break;
            }
        }
    }
    stop.cancel();
}

fn message(message: ToAgent) -> ServerMessage {
    ServerMessage {
        message: Some(message),
    }
}

/// The response stream; when the connection drops it, the session ends.
struct Guarded {
    inner: ReceiverStream<Result<ServerMessage, Status>>,
    _guard: DropGuard,
}

impl Stream for Guarded {
    type Item = Result<ServerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.inner).poll_next(context)
    }
}
