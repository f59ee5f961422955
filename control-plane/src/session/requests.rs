//! Writes by an agent, performed through the API as the user `system:node:NAME`.
//!
//! Changes the node's Node, Lease, pod statuses, finished pods, Events and mirror pods;
//! controllers and the scheduler react to what is stored. Every request is answered with the
//! object after the write or with the API's Status.
//!
//! Requests about one object are performed in the order they came; those about different
//! objects run side by side, so that the store can sync them together.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Event, Node, NodeStatus, Pod, PodStatus, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use pintle_api::client::{Client, DeleteParams, EventRecorder, Patch};
use pintle_kube_types::gvk::GroupResource;
use pintle_kube_types::status::Status;
use pintle_proto::node::request::Request as Body;
use pintle_proto::node::response::Result as Answer;
use pintle_proto::node::{CreateToken, FinalizePod, Request, Response, UpdatePodStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::clock;
use crate::node_keys::NodeKeys;
use crate::service_account::{Reference, ServiceAccountTokens, TokenSubject};

/// Namespace of the nodes' heartbeats.
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// How often a read-modify-write that lost a race is tried again.
const CONFLICT_RETRIES: usize = 5;

/// Performs one node's requests.
#[derive(Clone)]
pub(super) struct Requests {
    node: Arc<str>,
    client: Client,
    /// Reads what a node may not read itself.
    system: Client,
    tokens: Arc<ServiceAccountTokens>,
    keys: NodeKeys,
    recorder: EventRecorder,
}

impl Requests {
    pub(super) fn new(
        node: &str,
        client: Client,
        system: Client,
        tokens: Arc<ServiceAccountTokens>,
        keys: NodeKeys,
        recorder: EventRecorder,
    ) -> Self {
        Self {
            node: node.into(),
            client,
            system,
            tokens,
            keys,
            recorder,
        }
    }

    /// Requests with the same lane have to be performed in order.
    pub(super) fn lane(request: &Request) -> u64 {
        let mut hasher = DefaultHasher::new();
        match &request.request {
            Some(Body::UpdatePodStatus(r)) => (&r.namespace, &r.name).hash(&mut hasher),
            Some(Body::FinalizePod(r)) => (&r.namespace, &r.name).hash(&mut hasher),
            Some(Body::CreateToken(r)) => r.pod_uid.hash(&mut hasher),
            Some(Body::RecordEvent(_)) => 1.hash(&mut hasher),
            Some(Body::RenewLease(_)) => 2.hash(&mut hasher),
            Some(Body::RegisterNode(_) | Body::UpdateNodeStatus(_)) => 3.hash(&mut hasher),
            Some(Body::CreateMirrorPod(_)) => 4.hash(&mut hasher),
            None => {}
        }
        hasher.finish()
    }

    /// Performs a request and gives its answer.
    pub(super) async fn perform(&self, request: Request) -> Response {
        let result = match request.request {
            Some(body) => Box::pin(self.body(body)).await,
            None => Err(Status::bad_request(
                "the request is empty or of a newer kind",
            )),
        };
        Response {
            id: request.id,
            result: Some(match result {
                Ok(object) => Answer::Object(object),
                Err(status) => Answer::Failure(encode_status(&status)),
            }),
        }
    }

    async fn body(&self, body: Body) -> Result<Bytes, Status> {
        match body {
            Body::RegisterNode(r) => self.register_node(decode(&r.node)?).await,
            Body::UpdateNodeStatus(r) => self.update_node_status(decode(&r.status)?).await,
            Body::UpdatePodStatus(r) => self.update_pod_status(&r).await,
            Body::FinalizePod(r) => self.finalize_pod(&r).await,
            Body::RecordEvent(r) => self.record_event(decode(&r.event)?),
            Body::RenewLease(r) => self.renew_lease(r.duration_seconds).await,
            Body::CreateToken(r) => self.create_token(r).await,
            Body::CreateMirrorPod(r) => self.create_mirror_pod(&decode::<Pod>(&r.pod)?).await,
        }
    }

    async fn register_node(&self, node: Node) -> Result<Bytes, Status> {
        if node.metadata.name.as_deref() != Some(&*self.node) {
            return Err(Status::bad_request(
                "the Node object is not the one of this session",
            ));
        }
        let mut stored: Node = match self.client.create(&node).await {
            Ok(stored) => stored,
            Err(status) if status.is_already_exists() => {
                let patch = Patch::Merge(json!({"metadata": {
                    "labels": node.metadata.labels,
                    "annotations": node.metadata.annotations,
                }}));
                self.client.patch(None, &self.node, &patch, None).await?
            }
            Err(status) => return Err(status),
        };
        if let Some(uid) = stored.metadata.uid.as_deref() {
            self.keys.registered(&self.node, uid).await?;
        }
        if let Some(status) = node.status
            && stored.status.as_ref() != Some(&status)
        {
            stored = self.put_node_status(status).await?;
        }
        encode(&stored)
    }

    async fn update_node_status(&self, status: NodeStatus) -> Result<Bytes, Status> {
        encode(&self.put_node_status(status).await?)
    }

    async fn put_node_status(&self, status: NodeStatus) -> Result<Node, Status> {
        let mut attempt = 0;
        loop {
            let mut node: Node = self.client.get(None, &self.node).await?;
            node.status = Some(merge_node_status(
                node.status.take().unwrap_or_default(),
                status.clone(),
            ));
            match self.client.update_status(&node).await {
                Err(error) if error.is_conflict() && attempt < CONFLICT_RETRIES => attempt += 1,
                result => return result,
            }
        }
    }

    async fn update_pod_status(&self, request: &UpdatePodStatus) -> Result<Bytes, Status> {
        let status: PodStatus = decode(&request.status)?;
        let mut attempt = 0;
        loop {
            let mut pod = self
                .own_pod(&request.namespace, &request.name, &request.uid)
                .await?;
            pod.status = Some(merge_pod_status(
                pod.status.take().unwrap_or_default(),
                status.clone(),
            ));
            match self.client.update_status(&pod).await {
                Err(error) if error.is_conflict() && attempt < CONFLICT_RETRIES => attempt += 1,
                result => return encode(&result?),
            }
        }
    }

    async fn finalize_pod(&self, request: &FinalizePod) -> Result<Bytes, Status> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            precondition_uid: Some(request.uid.clone()),
            ..DeleteParams::default()
        };
        let deleted = self
            .client
            .delete::<Pod>(Some(&request.namespace), &request.name, &params)
            .await;
        match deleted {
            // Gone, or a successor has the name: either way this pod is no more.
            Err(status) if !status.is_not_found() && !status.is_conflict() => Err(status),
            _ => Ok(Bytes::new()),
        }
    }

    fn record_event(&self, event: Event) -> Result<Bytes, Status> {
        let (Some(type_), Some(reason)) = (event.type_, event.reason) else {
            return Err(Status::bad_request("the Event has no type or no reason"));
        };
        self.recorder.record(
            event.involved_object,
            &type_,
            &reason,
            event.message.unwrap_or_default(),
        );
        Ok(Bytes::new())
    }

    async fn renew_lease(&self, duration_seconds: u32) -> Result<Bytes, Status> {
        let spec = LeaseSpec {
            holder_identity: Some(self.node.to_string()),
            lease_duration_seconds: i32::try_from(duration_seconds).ok(),
            renew_time: Some(MicroTime(timestamp())),
            ..LeaseSpec::default()
        };
        let patch = Patch::Merge(json!({ "spec": spec }));
        let renewed = self
            .client
            .patch::<Lease>(Some(LEASE_NAMESPACE), &self.node, &patch, None)
            .await;
        match renewed {
            Err(status) if status.is_not_found() => {
                // Owned by the Node, so that it goes with it.
                let node: Node = self.client.get(None, &self.node).await?;
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.node.to_string()),
                        namespace: Some(LEASE_NAMESPACE.to_owned()),
                        owner_references: node.metadata.uid.map(|uid| {
                            vec![OwnerReference {
                                api_version: "v1".to_owned(),
                                kind: "Node".to_owned(),
                                name: self.node.to_string(),
                                uid,
                                ..OwnerReference::default()
                            }]
                        }),
                        ..ObjectMeta::default()
                    },
                    spec: Some(spec),
                };
                encode(&self.client.create(&lease).await?)
            }
            result => encode(&result?),
        }
    }

    async fn create_token(&self, request: CreateToken) -> Result<Bytes, Status> {
        let pod = self
            .own_pod(&request.namespace, &request.pod_name, &request.pod_uid)
            .await?;
        let spec = pod.spec.unwrap_or_default();
        let account_name = spec.service_account_name.as_deref().unwrap_or("default");
        if account_name != request.service_account {
            return Err(Status::forbidden(
                &GroupResource::new("", "serviceaccounts"),
                &request.service_account,
                "the pod does not run as this service account",
            ));
        }
        let account: ServiceAccount = self
            .system
            .get(Some(&request.namespace), account_name)
            .await?;
        let node: Option<Node> = self.system.get(None, &self.node).await.ok();
        let subject = TokenSubject {
            namespace: request.namespace.clone(),
            service_account: Reference {
                name: request.service_account.clone(),
                uid: account.metadata.uid.unwrap_or_default(),
            },
            pod: Some(Reference {
                name: request.pod_name.clone(),
                uid: request.pod_uid.clone(),
            }),
            node: node.map(|node| Reference {
                name: self.node.to_string(),
                uid: node.metadata.uid.unwrap_or_default(),
            }),
        };
        let expiration = u64::try_from(request.expiration_seconds).ok();
        let issued = self
            .tokens
            .issue(subject, request.audiences.clone(), expiration, clock::now())
            .map_err(|error| Status::internal_error(error.to_string()))?;
        let expires = i64::try_from(clock::unix_seconds(issued.expires)).unwrap_or(i64::MAX);
        encode(&TokenRequest {
            metadata: ObjectMeta {
                name: Some(request.service_account),
                namespace: Some(request.namespace),
                ..ObjectMeta::default()
            },
            spec: Some(TokenRequestSpec {
                audiences: Some(request.audiences),
                expiration_seconds: Some(request.expiration_seconds),
                ..TokenRequestSpec::default()
            }),
            status: Some(TokenRequestStatus {
                expiration_timestamp: Some(Time(
                    Timestamp::from_second(expires).unwrap_or(Timestamp::MAX),
                )),
                token: Some(issued.token),
            }),
        })
    }

    async fn create_mirror_pod(&self, pod: &Pod) -> Result<Bytes, Status> {
        let node_name = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
        if node_name != Some(&*self.node) {
            return Err(Status::bad_request(
                "a mirror pod has to be on its own node",
            ));
        }
        encode(&self.client.create(pod).await?)
    }

    /// The pod, if it is this one and bound to this node.
    async fn own_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<Pod, Status> {
        let pods = GroupResource::new("", "pods");
        let pod: Pod = self.client.get(Some(namespace), name).await?;
        if pod.metadata.uid.as_deref() != Some(uid) {
            let found = pod.metadata.uid.unwrap_or_default();
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
            );
            return Err(Status::conflict(&pods, name, why));
        }
        if pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) != Some(&*self.node) {
            return Err(Status::forbidden(
                &pods,
                name,
                "the pod is not bound to this node",
            ));
        }
        Ok(pod)
    }
}

/// The agent's view of a pod, without losing what others wrote: conditions it does not set
/// (PodScheduled, readiness gates, DisruptionTarget) and the QoS class.
fn merge_pod_status(stored: PodStatus, mut reported: PodStatus) -> PodStatus {
    let mut conditions = reported.conditions.unwrap_or_default();
    let theirs: Vec<_> = stored
        .conditions
        .unwrap_or_default()
        .into_iter()
        .filter(|old| conditions.iter().all(|new| new.type_ != old.type_))
        .collect();
    conditions.extend(theirs);
    reported.conditions = Some(conditions).filter(|c| !c.is_empty());
    reported.qos_class = reported.qos_class.or(stored.qos_class);
    reported.start_time = stored.start_time.or(reported.start_time);
    reported
}

/// As for pods; of a node's conditions NetworkUnavailable and the like come from others.
fn merge_node_status(stored: NodeStatus, mut reported: NodeStatus) -> NodeStatus {
    let mut conditions = reported.conditions.unwrap_or_default();
    let theirs: Vec<_> = stored
        .conditions
        .unwrap_or_default()
        .into_iter()
        .filter(|old| conditions.iter().all(|new| new.type_ != old.type_))
        .collect();
    conditions.extend(theirs);
    reported.conditions = Some(conditions).filter(|c| !c.is_empty());
    reported.volumes_attached = reported.volumes_attached.or(stored.volumes_attached);
    reported
}

fn timestamp() -> Timestamp {
    Timestamp::try_from(clock::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn decode<T: DeserializeOwned>(json: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(json)
        .map_err(|error| Status::bad_request(format!("the object cannot be decoded: {error}")))
}

fn encode<T: Serialize>(object: &T) -> Result<Bytes, Status> {
    serde_json::to_vec(object)
        .map(Bytes::from)
        .map_err(|error| Status::internal_error(format!("the object cannot be encoded: {error}")))
}

fn encode_status(status: &Status) -> Bytes {
    match serde_json::to_vec(status) {
        Ok(json) => Bytes::from(json),
        Err(error) => {
            tracing::error!(%error, "encode a Status");
            Bytes::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;

    fn condition(type_: &str, status: &str) -> PodCondition {
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            ..PodCondition::default()
        }
    }

    #[test]
    fn a_reported_status_keeps_the_conditions_of_others() {
        let stored = PodStatus {
            conditions: Some(vec![
                condition("PodScheduled", "True"),
                condition("Ready", "False"),
            ]),
            qos_class: Some("Burstable".to_owned()),
            ..PodStatus::default()
        };
        let reported = PodStatus {
            conditions: Some(vec![condition("Ready", "True")]),
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        };
        let merged = merge_pod_status(stored, reported);
        assert_eq!(
            merged.conditions,
            Some(vec![
                condition("Ready", "True"),
                condition("PodScheduled", "True")
            ])
        );
        assert_eq!(merged.qos_class.as_deref(), Some("Burstable"));
        assert_eq!(merged.phase.as_deref(), Some("Running"));
    }

    #[test]
    fn requests_about_one_pod_share_a_lane() {
        let status = Request {
            id: 1,
            request: Some(Body::UpdatePodStatus(UpdatePodStatus {
                namespace: "a".to_owned(),
                name: "p".to_owned(),
                ..UpdatePodStatus::default()
            })),
        };
        let finalize = Request {
            id: 2,
            request: Some(Body::FinalizePod(FinalizePod {
                namespace: "a".to_owned(),
                name: "p".to_owned(),
                ..FinalizePod::default()
            })),
        };
        assert_eq!(Requests::lane(&status), Requests::lane(&finalize));
    }
}
