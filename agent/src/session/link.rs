//! The loop that keeps the session: connect, resume, carry messages both ways.
//!
//! Watches the stream of the control plane and the requests of the rooms; changes the local
//! copy ([`ClusterState`]) and its checkpoint. After a break it comes back with a back-off
//! from 50 ms to 5 s and asks for what it missed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use pintle_proto::node::join_client::JoinClient;
use pintle_proto::node::node_session_client::NodeSessionClient;
use pintle_proto::node::{
    AgentMessage, Hello, JoinRequest, OpenStream, Request, Response, ServerMessage, Welcome,
    agent_message, response, server_message,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use super::channel::{self, ChannelError};
use super::checkpoint::{Checkpoint, CheckpointError};
use super::desired::ClusterState;
use super::identity::{Identity, IdentityError, IdentityStore};
use super::requests::{Pending, RequestError, SessionHandle, StreamRequests};
use crate::clock::Clock;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(5);

/// Why the session broke or did not come about.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The node's identity cannot be used.
    #[error("cannot use the node's identity")]
    Identity(#[from] IdentityError),
    /// No certificate, and no token to get one.
    #[error("this node has no client certificate for the cluster and no bootstrap token")]
    NoToken,
    /// No connection.
    #[error("cannot reach the control plane")]
    Channel(#[from] ChannelError),
    /// Joining was refused.
    #[error("the control plane refused the join: {}", .0.message())]
    Join(#[source] Box<tonic::Status>),
    /// The stream broke.
    #[error("the session broke: {}", .0.message())]
    Stream(#[source] Box<tonic::Status>),
    /// The server ended the stream.
    #[error("the control plane closed the session")]
    Closed,
    /// The server did not keep to the protocol.
    #[error("the control plane did not greet")]
    NoWelcome,
}

/// What the link needs.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// URL of the API port.
    pub server: String,
    /// The cluster CA.
    pub ca_pem: String,
    /// For the first join.
    pub bootstrap_token: Option<String>,
    /// Name of the Node.
    pub node_name: String,
    /// For Hello.
    pub version: String,
    /// Where key and certificate lie.
    pub identity_dir: PathBuf,
    /// Where the copy of the state lies.
    pub checkpoint: PathBuf,
}

/// The session's owner.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    clock: Clock,
    identity: IdentityStore,
    state: ClusterState,
    checkpoint: Checkpoint,
    cluster_id: ClusterId,
    requests: mpsc::UnboundedReceiver<Pending>,
    streams: mpsc::UnboundedSender<OpenStream>,
    channel: watch::Sender<Option<Channel>>,
    next_id: u64,
}

impl Link {
    /// Reads the checkpoint; connects only in [`run`](Self::run).
    pub fn build(
        config: LinkConfig,
        state: ClusterState,
        clock: Clock,
    ) -> Result<(Self, SessionHandle, StreamRequests), CheckpointError> {
        let cluster_id = ClusterId::read(config.checkpoint.with_extension("cluster"));
        let checkpoint = Checkpoint::open(config.checkpoint.clone(), &state)?;
        let identity = IdentityStore::new(
            config.identity_dir.clone(),
            config.node_name.clone(),
            config.ca_pem.clone(),
        );
        let (requests, incoming) = mpsc::unbounded_channel();
        let (streams, opened) = mpsc::unbounded_channel();
        let channel = watch::Sender::new(None);
        let handle = SessionHandle {
            requests,
            channel: channel.subscribe(),
        };
        let link = Self {
            config,
            clock,
            identity,
            state,
            checkpoint,
            cluster_id,
            requests: incoming,
            streams,
            channel,
            next_id: 0,
        };
        Ok((link, handle, opened))
    }

    /// Keeps a session until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let ended = shutdown
                .run_until_cancelled(Box::pin(self.session(&mut backoff)))
                .await;
            self.channel.send_replace(None);
            self.fail_waiting();
            let Some(Err(error)) = ended else { return };
            report(&error, backoff);
            let jitter = rand::random_range(0.8..1.2);
            if shutdown
                .run_until_cancelled(tokio::time::sleep(backoff.mul_f64(jitter)))
                .await
                .is_none()
            {
                return;
            }
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    /// One session, from connecting to its end; never `Ok`.
    async fn session(
        &mut self,
        backoff: &mut Duration,
    ) -> Result<std::convert::Infallible, LinkError> {
        let identity = self.identify().await?;
        let channel =
            channel::connect(&self.config.server, &self.config.ca_pem, Some(&identity)).await?;
        let (outgoing, messages) = mpsc::unbounded_channel();
        let hello = Hello {
            node_name: self.config.node_name.clone(),
            agent_version: self.config.version.clone(),
            resume_revision: self.state.revision(),
            cluster_id: self.cluster_id.value.clone(),
        };
        post(&outgoing, agent_message::Message::Hello(hello))?;
        let mut client = NodeSessionClient::new(channel.clone())
            .max_decoding_message_size(pintle_proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(pintle_proto::MAX_MESSAGE_BYTES);
        let mut incoming = match client.session(UnboundedReceiverStream::new(messages)).await {
            Ok(response) => response.into_inner(),
            Err(status) => {
                if matches!(status.code(), Code::Unauthenticated) {
                    self.identity.forget()?;
                }
                return Err(LinkError::Stream(Box::new(status)));
            }
        };
        let Some(server_message::Message::Welcome(welcome)) = next(&mut incoming).await? else {
            return Err(LinkError::NoWelcome);
        };
        self.welcome(&welcome);
        *backoff = FIRST_BACKOFF;
        self.channel.send_replace(Some(channel));
        let mut waiting = HashMap::new();
        loop {
            tokio::select! {
                message = next(&mut incoming) => match message? {
                    Some(message) => self.received(message, &mut waiting),
                    None => return Err(LinkError::Closed),
                },
                Some((request, answer)) = self.requests.recv() => {
                    self.next_id += 1;
                    let request = Request { id: self.next_id, request: Some(request) };
                    waiting.insert(self.next_id, answer);
                    post(&outgoing, agent_message::Message::Request(request))?;
                }
            }
        }
    }

    /// The stored identity, or one got with the bootstrap token.
    async fn identify(&self) -> Result<Identity, LinkError> {
        if let Some(identity) = self.identity.load(self.clock.now())? {
            return Ok(identity);
        }
        let token = self
            .config
            .bootstrap_token
            .clone()
            .ok_or(LinkError::NoToken)?;
        let (key_pem, csr_pem) = self.identity.request()?;
        let channel = channel::connect(&self.config.server, &self.config.ca_pem, None).await?;
        let request = JoinRequest {
            token,
            node_name: self.config.node_name.clone(),
            csr_pem,
            agent_version: self.config.version.clone(),
        };
        let response = JoinClient::new(channel)
            .join(request)
            .await
            .map_err(|status| LinkError::Join(Box::new(status)))?
            .into_inner();
        let identity = Identity {
            key_pem,
            certificate_pem: response.certificate_pem,
        };
        self.identity.save(&identity)?;
        tracing::info!(node = self.config.node_name, "joined the cluster");
        Ok(identity)
    }

    fn welcome(&mut self, welcome: &Welcome) {
        if let Some(settings) = &welcome.settings {
            self.cluster_id.set(&settings.cluster_id);
        }
        tracing::info!(
            server = welcome.server_version,
            resumed = welcome.resumed,
            "session with the control plane"
        );
    }

    fn received(
        &mut self,
        message: server_message::Message,
        waiting: &mut HashMap<u64, oneshot::Sender<Result<Bytes, RequestError>>>,
    ) {
        match message {
            server_message::Message::Delta(delta) => {
                if self.state.apply(&delta)
                    && let Err(error) = self.checkpoint.append(&delta, &self.state)
                {
                    tracing::warn!(%error, source = ?std::error::Error::source(&error), "the copy of the cluster state is not on disk");
                }
            }
            server_message::Message::Response(Response { id, result }) => {
                let Some(answer) = waiting.remove(&id) else {
                    return;
                };
                let result = match result {
                    Some(response::Result::Object(object)) => Ok(object),
                    Some(response::Result::Failure(status)) => Err(RequestError::refused(&status)),
                    None => Ok(Bytes::new()),
                };
                if answer.send(result).is_err() {
                    tracing::trace!(id, "nobody waits for the answer");
                }
            }
            server_message::Message::OpenStream(open) => {
                if self.streams.send(open).is_err() {
                    tracing::warn!("no one serves streams");
                }
            }
            server_message::Message::Welcome(welcome) => self.welcome(&welcome),
            server_message::Message::Servers(_) => {}
        }
    }

    /// Requests that arrived while the session broke.
    fn fail_waiting(&mut self) {
        while let Ok((_, answer)) = self.requests.try_recv() {
            if answer.send(Err(RequestError::Disconnected)).is_err() {
                tracing::trace!("nobody waits for the answer");
            }
        }
    }
}

fn post(
    outgoing: &mpsc::UnboundedSender<AgentMessage>,
    message: agent_message::Message,
) -> Result<(), LinkError> {
    outgoing
        .send(AgentMessage {
            message: Some(message),
        })
        .map_err(|_error: mpsc::error::SendError<AgentMessage>| LinkError::Closed)
}

async fn next(
    incoming: &mut Streaming<ServerMessage>,
) -> Result<Option<server_message::Message>, LinkError> {
    loop {
        match incoming.message().await {
            Ok(Some(ServerMessage {
                message: Some(message),
            })) => return Ok(Some(message)),
            // A message this version does not know.
            Ok(Some(ServerMessage { message: None })) => {}
            Ok(None) => return Ok(None),
            Err(status) => return Err(LinkError::Stream(Box::new(status))),
        }
    }
}

fn report(error: &LinkError, backoff: Duration) {
    let mut causes = String::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        causes.push_str(": ");
        causes.push_str(&cause.to_string());
        source = cause.source();
    }
    if backoff <= FIRST_BACKOFF {
        tracing::debug!("{error}{causes}");
    } else {
        tracing::warn!("{error}{causes}; trying again");
    }
}

/// The cluster whose revisions the checkpoint counts in.
#[derive(Debug)]
struct ClusterId {
    path: PathBuf,
    value: String,
}

impl ClusterId {
    fn read(path: PathBuf) -> Self {
        let value = std::fs::read_to_string(&path).unwrap_or_default();
        Self { path, value }
    }

    fn set(&mut self, value: &str) {
        if self.value != value {
            value.clone_into(&mut self.value);
            if let Err(error) = std::fs::write(&self.path, value) {
                tracing::warn!(%error, path = %self.path.display(), "cannot write");
            }
        }
    }
}
