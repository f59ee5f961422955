//! The loop that keeps the session: connect, resume, carry messages both ways.
//!
//! Watches the stream of the control plane and the requests of the rooms; changes the local
//! copy ([`ClusterState`]) and its checkpoint. After a break it tries every server it knows,
//! again and again with a back-off from 50 ms to 5 s, and asks for what it missed.

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
use super::identity::{self, Identity, IdentityError, IdentityStore, Validity};
use super::membership::{Membership, MembershipError};
use super::renewal;
use super::requests::{Pending, RequestError, SessionHandle, StreamRequests};
use super::servers::Servers;
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
    #[error(
        "this node has no certificate for the cluster (any more); join it again: `pintle token create` on a server, then `pintle agent --join HOST:PORT --token TOKEN` here"
    )]
    NoIdentity,
    /// The certificate is not valid now, and there is no token to get another.
    #[error(
        "this node's certificate is good from {} to {} only; if this machine's clock is right, join it again: `pintle token create` on a server, then `pintle agent --join HOST:PORT --token TOKEN` here", .0.from, .0.until
    )]
    Ended(Validity),
    /// No connection.
    #[error("cannot reach the control plane")]
    Channel(#[from] ChannelError),
    /// Joining was refused.
    #[error("the control plane refused the join: {}", .0.message())]
    Join(#[source] Box<tonic::Status>),
    /// The stream broke.
    #[error("the session broke: {}", .0.message())]
    Stream(#[source] Box<tonic::Status>),
    /// The answer to a join is no certificate of this node.
    #[error("the control plane answered the join with a certificate for another node")]
    ForeignCertificate,
    /// The server ended the stream.
    #[error("the control plane closed the session")]
    Closed,
    /// The server did not keep to the protocol.
    #[error("the control plane did not greet")]
    NoWelcome,
}

/// Why the link cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum LinkBuildError {
    /// The copy of the cluster state cannot be used.
    #[error("cannot use the copy of the cluster state")]
    Checkpoint(#[from] CheckpointError),
    /// The membership cannot be read.
    #[error("cannot read which cluster this node is of")]
    Membership(#[from] MembershipError),
}

/// What the link needs.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// HOST:PORT of the API servers, the one to try first first.
    pub servers: Vec<String>,
    /// Directory of the [`Membership`] in which to keep what the cluster says of its servers;
    /// `None`: `servers` are all there are.
    pub membership_dir: Option<PathBuf>,
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
    servers: Servers,
    membership: Option<Membership>,
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
    ) -> Result<(Self, SessionHandle, StreamRequests), LinkBuildError> {
        let membership = match &config.membership_dir {
            Some(directory) => Membership::load(directory)?,
            None => None,
        };
        let servers = match &membership {
            Some(membership) => Servers::of(membership),
            None => Servers::new(config.servers.clone(), Vec::new()),
        };
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
            servers,
            membership,
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
            if !self.servers.fails() {
                continue;
            }
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
        let (identity, validity) = self.identify().await?;
        let server = self.servers.current().to_owned();
        let channel = channel::connect(&server, &self.config.ca_pem, Some(&identity)).await?;
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
                // Only one who can get another identity may throw this one away.
                if status.code() == Code::Unauthenticated && self.config.bootstrap_token.is_some() {
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
        self.servers.works();
        self.channel.send_replace(Some(channel.clone()));
        let mut renewed = Box::pin(self.renewal(validity, &channel));
        let mut waiting = HashMap::new();
        loop {
            tokio::select! {
                message = next(&mut incoming) => match message? {
                    Some(message) => self.received(message, &mut waiting),
                    None => return Err(LinkError::Closed),
                },
                validity = &mut renewed => {
                    renewed = Box::pin(self.renewal(validity, &channel));
                }
                Some((request, answer)) = self.requests.recv() => {
                    self.next_id += 1;
                    let request = Request { id: self.next_id, request: Some(request) };
                    waiting.insert(self.next_id, answer);
                    post(&outgoing, agent_message::Message::Request(request))?;
                }
            }
        }
    }

    /// Owns all it uses, so that the session goes on beside it.
    fn renewal(
        &self,
        validity: Validity,
        channel: &Channel,
    ) -> impl Future<Output = Validity> + Send + use<> {
        renewal::renew(
            self.identity.clone(),
            self.config.node_name.clone(),
            validity,
            channel.clone(),
            self.clock.clone(),
        )
    }

    /// The stored identity, or one got with the bootstrap token.
    async fn identify(&self) -> Result<(Identity, Validity), LinkError> {
        let stored = self.identity.load()?;
        let ended = match stored {
            Some((identity, validity)) if validity.holds(self.clock.now()) => {
                return Ok((identity, validity));
            }
            Some((_, validity)) => Some(validity),
            None => None,
        };
        let Some(token) = self.config.bootstrap_token.clone() else {
            return Err(ended.map_or(LinkError::NoIdentity, LinkError::Ended));
        };
        let node_name = &self.config.node_name;
        let key_pem = identity::new_key()?;
        let csr_pem = identity::signing_request(&key_pem, node_name)?;
        let server = self.servers.current();
        let channel = channel::connect(server, &self.config.ca_pem, None).await?;
        let request = JoinRequest {
            token,
            node_name: node_name.clone(),
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
        let validity = identity::validity(&identity.certificate_pem, node_name)
            .ok_or(LinkError::ForeignCertificate)?;
        self.identity.save(&identity)?;
        tracing::info!(node = node_name, "joined the cluster");
        Ok((identity, validity))
    }

    /// Keeps the list of servers, also over a restart.
    fn set_servers(&mut self, servers: &pintle_proto::node::Servers) {
        let (Some(membership), Some(directory)) =
            (&mut self.membership, &self.config.membership_dir)
        else {
            return;
        };
        if servers.addresses.is_empty() || servers.addresses == membership.servers {
            return;
        }
        membership.servers.clone_from(&servers.addresses);
        if let Err(error) = membership.save(directory) {
            tracing::warn!("{}", crate::describe::chain(&error));
        }
        self.servers.set(servers.addresses.clone());
        tracing::info!(servers = ?self.servers.all(), "the cluster's servers");
    }

    fn welcome(&mut self, welcome: &Welcome) {
        if let Some(settings) = &welcome.settings {
            self.cluster_id.set(&settings.cluster_id);
        }
        if let Some(servers) = &welcome.servers {
            self.set_servers(servers);
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
            server_message::Message::Servers(servers) => self.set_servers(&servers),
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
