//! Events, with the agent as their source.
//!
//! Watches what the rooms announce; changes Event objects through the session. The control
//! plane names, counts and rate-limits them. While there is no session the newest few hundred
//! wait; Events are news, not state, so older ones are dropped.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::pod::machine::Announcement;
use crate::session::{ControlPlane, RequestError};

/// Events that may wait for the session.
const WAITING: usize = 512;
/// `source.component`, as the kubelet's.
const COMPONENT: &str = "kubelet";

/// Where rooms put their Events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventSink {
    sender: mpsc::Sender<Event>,
    clock: Clock,
    node_name: Arc<str>,
}

/// Sends them; the other end of an [`EventSink`].
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Event>,
}

impl EventSink {
    /// A sink for the agent of `node_name`, and its other end.
    pub fn new(node_name: &str, clock: Clock) -> (Self, Events) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let sink = Self {
            sender,
            clock,
            node_name: node_name.into(),
        };
        (sink, Events { receiver })
    }

    /// Records an Event about a pod.
    pub fn pod(&self, pod: &Pod, announcement: Announcement) {
        let meta = &pod.metadata;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: announcement.field_path,
        };
        self.record(
            about,
            announcement.warning,
            announcement.reason,
            announcement.message,
        );
    }

    /// Records an Event about this node.
    pub fn node(&self, node: Option<&Node>, warning: bool, reason: &str, message: String) {
        let name = self.node_name.to_string();
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            // The kubelet uses the name where the uid is not known yet.
            uid: Some(
                node.and_then(|node| node.metadata.uid.clone())
                    .unwrap_or_else(|| name.clone()),
            ),
            name: Some(name),
            ..ObjectReference::default()
        };
        self.record(about, warning, reason, message);
    }

    fn record(&self, about: ObjectReference, warning: bool, reason: &str, message: String) {
        tracing::debug!(object = about.name, reason, message, "event");
        let now = self.clock.time();
        let namespace = about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let event = Event {
            metadata: ObjectMeta {
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: about,
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(self.node_name.to_string()),
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.node_name.to_string()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        };
        if self.sender.try_send(event).is_err() {
            tracing::debug!("too many events wait for the control plane; one is dropped");
        }
    }
}

impl Events {
    /// Sends until `shutdown`.
    pub async fn run(mut self, control_plane: Arc<dyn ControlPlane>, shutdown: CancellationToken) {
        loop {
            let Some(Some(event)) = shutdown.run_until_cancelled(self.receiver.recv()).await else {
                return;
            };
            loop {
                match control_plane.record_event(&event).await {
                    Ok(()) => break,
                    Err(RequestError::Disconnected) => {
                        if shutdown
                            .run_until_cancelled(control_plane.connected())
                            .await
                            .is_none()
                        {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "event refused");
                        break;
                    }
                }
            }
        }
    }
}
