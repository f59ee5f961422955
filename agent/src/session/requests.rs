//! Writes of the agent, as typed requests on the session.
//!
//! Changes pods' and the Node's status, Events and the Lease, through the control plane.
//! Reacts next: whoever watches those objects. A request is answered once, or fails with
//! [`RequestError::Disconnected`] when the session breaks first; the caller decides whether
//! it is still worth sending.

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Event, Node, NodeStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use pintle_proto::node::node_session_client::NodeSessionClient;
use pintle_proto::node::{
    CreateToken, FinalizePod, OpenStream, RecordEvent, RegisterNode, RenewLease, UpdateNodeStatus,
    UpdatePodStatus, request,
};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::Channel;

/// Why a request had no effect.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    /// The session broke before the answer came; the write may or may not have happened.
    #[error("no session with the control plane")]
    Disconnected,
    /// The control plane said no.
    #[error("{message}")]
    Refused {
        /// HTTP status code.
        code: i32,
        /// Kubernetes' reason, e.g. `NotFound`.
        reason: String,
        /// The words.
        message: String,
    },
    /// The object cannot be encoded, or the answer not decoded.
    #[error("cannot encode or decode the object")]
    Codec(#[source] std::sync::Arc<serde_json::Error>),
}

impl RequestError {
    /// Whether the object the request was about does not exist (any more, or with this uid).
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == 404 || *code == 409)
    }

    /// Whether sending it again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Disconnected => true,
            Self::Refused { code, .. } => *code >= 500 || *code == 429,
            Self::Codec(_) => false,
        }
    }

    fn codec(error: serde_json::Error) -> Self {
        Self::Codec(std::sync::Arc::new(error))
    }

    pub(super) fn refused(status: &[u8]) -> Self {
        match serde_json::from_slice::<Status>(status) {
            Ok(status) => Self::Refused {
                code: status.code.unwrap_or(500),
                reason: status.reason.unwrap_or_default(),
                message: status.message.unwrap_or_default(),
            },
            Err(error) => Self::codec(error),
        }
    }
}

/// What the agent may ask of the control plane; the seam at which tests put a fake.
#[async_trait]
pub trait ControlPlane: Send + Sync + 'static {
    /// Creates the Node object or brings labels and capacity of the existing one up to date.
    async fn register_node(&self, node: &Node) -> Result<(), RequestError>;
    /// Writes the Node's status, whole.
    async fn update_node_status(&self, status: &NodeStatus) -> Result<(), RequestError>;
    /// Writes a pod's status, whole.
    async fn update_pod_status(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        status: &PodStatus,
    ) -> Result<(), RequestError>;
    /// Removes the object of a pod of which nothing is left.
    async fn finalize_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), RequestError>;
    /// Records an Event.
    async fn record_event(&self, event: &Event) -> Result<(), RequestError>;
    /// Renews the node's Lease.
    async fn renew_lease(&self, duration_seconds: u32) -> Result<(), RequestError>;
    /// Asks for a service-account token bound to a pod.
    async fn create_token(&self, request: CreateToken) -> Result<TokenRequest, RequestError>;
    /// Waits until there is a session.
    async fn connected(&self);
}

/// A request on its way, and who waits for the answer.
pub(super) type Pending = (
    request::Request,
    oneshot::Sender<Result<Bytes, RequestError>>,
);

/// The session, for those who send on it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    pub(super) requests: mpsc::UnboundedSender<Pending>,
    pub(super) channel: watch::Receiver<Option<Channel>>,
}

impl SessionHandle {
    /// Sends a request and waits for its answer.
    pub async fn call(&self, request: request::Request) -> Result<Bytes, RequestError> {
        if self.channel.borrow().is_none() {
            return Err(RequestError::Disconnected);
        }
        let (answer, answered) = oneshot::channel();
        self.requests
            .send((request, answer))
            .map_err(|_error: mpsc::error::SendError<Pending>| RequestError::Disconnected)?;
        answered.await.unwrap_or(Err(RequestError::Disconnected))
    }

    /// Whether there is a session now; changes are seen through the receiver.
    pub fn watch(&self) -> watch::Receiver<Option<Channel>> {
        self.channel.clone()
    }

    /// A client for further streams, while there is a session.
    pub fn client(&self) -> Option<NodeSessionClient<Channel>> {
        let channel = self.channel.borrow().clone()?;
        Some(
            NodeSessionClient::new(channel)
                .max_decoding_message_size(pintle_proto::MAX_MESSAGE_BYTES)
                .max_encoding_message_size(pintle_proto::MAX_MESSAGE_BYTES),
        )
    }
}

/// The streams (logs, exec, attach, port-forward) that the control plane asks for.
pub type StreamRequests = mpsc::UnboundedReceiver<OpenStream>;

fn encode<T: serde::Serialize>(object: &T) -> Result<Bytes, RequestError> {
    serde_json::to_vec(object)
        .map(Bytes::from)
        .map_err(RequestError::codec)
}

#[async_trait]
impl ControlPlane for SessionHandle {
    async fn register_node(&self, node: &Node) -> Result<(), RequestError> {
        let node = encode(node)?;
        self.call(request::Request::RegisterNode(RegisterNode { node }))
            .await
            .map(drop)
    }

    async fn update_node_status(&self, status: &NodeStatus) -> Result<(), RequestError> {
        let status = encode(status)?;
        self.call(request::Request::UpdateNodeStatus(UpdateNodeStatus {
            status,
        }))
        .await
        .map(drop)
    }

    async fn update_pod_status(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        status: &PodStatus,
    ) -> Result<(), RequestError> {
        let status = encode(status)?;
        self.call(request::Request::UpdatePodStatus(UpdatePodStatus {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            status,
        }))
        .await
        .map(drop)
    }

    async fn finalize_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), RequestError> {
        self.call(request::Request::FinalizePod(FinalizePod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }))
        .await
        .map(drop)
    }

    async fn record_event(&self, event: &Event) -> Result<(), RequestError> {
        let event = encode(event)?;
        self.call(request::Request::RecordEvent(RecordEvent { event }))
            .await
            .map(drop)
    }

    async fn renew_lease(&self, duration_seconds: u32) -> Result<(), RequestError> {
        self.call(request::Request::RenewLease(RenewLease {
            duration_seconds,
        }))
        .await
        .map(drop)
    }

    async fn create_token(&self, request: CreateToken) -> Result<TokenRequest, RequestError> {
        let answer = self.call(request::Request::CreateToken(request)).await?;
        serde_json::from_slice(&answer).map_err(RequestError::codec)
    }

    async fn connected(&self) {
        let mut channel = self.channel.clone();
        if channel.wait_for(Option::is_some).await.is_err() {
            // The link is gone for good: shutdown. Nobody should act any more.
            std::future::pending::<()>().await;
        }
    }
}
