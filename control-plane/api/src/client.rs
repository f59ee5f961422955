//! The in-process client: how controllers, the scheduler and the node sessions use the API.
//!
//! A [`Client`] goes through the same authorise → admit → validate → persist pipeline as a
//! request over HTTP, with its own identity, but skips the network and the authenticator.
//! [`Informer`]s share one decoded object per revision among all subscribers of a kind.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Binding, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_kube_types::gvk::GroupVersionResource;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use crate::auth::UserInfo;
pub use crate::pipeline::fence::Fence;
pub use crate::storage::watch::{ObjectEvent, ObjectEventKind, ObjectWatch};

mod informer;
mod recorder;

pub(crate) use informer::InformerSet;
pub use informer::{Informer, InformerEvent, InformerEvents};
pub use recorder::EventRecorder;

use crate::pipeline::{Attributes, Core, Stored, Verb};
use crate::registry::Resource;
use crate::request::options::{
    DeleteOptions, ListOptions, PatchKind, VersionMatch, WatchOptions, WriteOptions,
};

/// A kind the API serves, as its typed view.
pub trait Kind:
    k8s_openapi::Resource
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The plural name in paths: `pods`.
    const PLURAL: &'static str;
}

impl<T> Kind for T
where
    T: k8s_openapi::Resource
        + k8s_openapi::Metadata<Ty = ObjectMeta>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug
        + Send
        + Sync
        + 'static,
{
    const PLURAL: &'static str = T::URL_PATH_SEGMENT;
}

/// `"namespace/name"`, or `"name"` for a cluster-scoped object.
pub fn object_key(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    }
}

/// What a list (or watch) selects.
#[derive(Debug, Clone, Default)]
pub struct ListParams {
    /// Label selector as in the query: `app=web,tier in (a,b)`.
    pub label_selector: Option<String>,
    /// Field selector as in the query: `spec.nodeName=n1`.
    pub field_selector: Option<String>,
    /// Largest number of objects in one page.
    pub limit: Option<usize>,
    /// Token of the page before.
    pub continue_token: Option<String>,
    /// For a watch: events after this revision; unset starts with the present objects.
    pub resource_version: Option<u64>,
}

impl ListParams {
    /// Selects by labels.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.label_selector = Some(selector.into());
        self
    }

    /// Selects by fields.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = Some(selector.into());
        self
    }
}

/// A patch and its format.
#[derive(Debug, Clone)]
pub enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7396.
    Merge(Value),
    /// Kubernetes' strategic merge.
    Strategic(Value),
}

/// What happens to dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropagationPolicy {
    /// They stay, without the owner reference.
    Orphan,
    /// The garbage collector deletes them afterwards.
    Background,
    /// They are deleted first.
    Foreground,
}

/// How an object is deleted.
#[derive(Debug, Clone, Default)]
pub struct DeleteParams {
    /// Seconds the object has to end; unset takes the kind's default.
    pub grace_period_seconds: Option<i64>,
    /// What happens to dependents; unset takes the kind's default.
    pub propagation_policy: Option<PropagationPolicy>,
    /// Refused with Conflict unless the object has this uid.
    pub precondition_uid: Option<String>,
    /// Refused with Conflict unless the object is at this resourceVersion.
    pub precondition_resource_version: Option<String>,
}

/// One served resource, for the garbage collector and the namespace controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceInfo {
    /// Group, version and plural name.
    pub gvr: GroupVersionResource,
    /// The kind.
    pub kind: String,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Verbs it supports: `list`, `watch`, `delete`, `deletecollection`, …
    pub verbs: Vec<&'static str>,
}

/// The in-process client. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    user: Arc<UserInfo>,
    fence: Option<Fence>,
}

impl Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("user", &self.user.name)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(core: Arc<Core>, user: UserInfo) -> Self {
        Self {
            core,
            user: Arc::new(user),
            fence: None,
        }
    }

    /// The same client, whose writes succeed only as long as the fence stands.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Client {
        Client {
            fence: Some(fence),
            ..self.clone()
        }
    }

    /// Does a write. Boxed, for a pipeline's future is large and its callers' are many.
    fn write<'a, T: 'a>(
        &'a self,
        work: impl Future<Output = T> + Send + 'a,
    ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
        Box::pin(Fence::around(self.fence.as_ref(), work))
    }

    /// The same client acting as another user.
    #[must_use]
    pub fn impersonate(&self, user: UserInfo) -> Client {
        Client {
            user: Arc::new(user),
            ..self.clone()
        }
    }

    /// The user this client acts as.
    pub fn user(&self) -> &UserInfo {
        &self.user
    }

    /// The API's clock.
    pub fn now(&self) -> jiff::Timestamp {
        self.core.clock().now()
    }

    /// Reads one object.
    pub async fn get<K: Kind>(&self, namespace: Option<&str>, name: &str) -> Result<K, Status> {
        let attributes = self.typed::<K>(Verb::Get, namespace, Some(name), None)?;
        typed(&self.core.get(&attributes).await?)
    }

    /// Lists objects, with the resourceVersion the list is of.
    pub async fn list<K: Kind>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<(Vec<K>, u64), Status> {
        let attributes = self.typed::<K>(Verb::List, namespace, None, None)?;
        let page = self.core.list(&attributes, &list_options(params)).await?;
        let items = page.items.iter().map(|entry| {
            serde_json::from_slice(&entry.json()).map_err(|error| decode_failed(&error))
        });
        Ok((items.collect::<Result<_, _>>()?, page.revision))
    }

    /// Creates an object in the namespace its metadata names.
    pub async fn create<K: Kind>(&self, object: &K) -> Result<K, Status> {
        let metadata = object.metadata();
        let attributes = self.typed::<K>(
            Verb::Create,
            metadata.namespace.as_deref(),
            metadata.name.as_deref(),
            None,
        )?;
        let body = encode(object)?;
        typed(
            &self
                .write(
                    self.core
                        .create(&attributes, &options_of(&attributes), body),
                )
                .await?,
        )
    }

    /// Replaces an object; its resourceVersion, when set, must be the stored one.
    pub async fn update<K: Kind>(&self, object: &K) -> Result<K, Status> {
        self.put(object, None).await
    }

    /// Replaces an object's status.
    pub async fn update_status<K: Kind>(&self, object: &K) -> Result<K, Status> {
        self.put(object, Some("status")).await
    }

    async fn put<K: Kind>(&self, object: &K, subresource: Option<&str>) -> Result<K, Status> {
        let metadata = object.metadata();
        let attributes = self.typed::<K>(
            Verb::Update,
            metadata.namespace.as_deref(),
            metadata.name.as_deref(),
            subresource,
        )?;
        let body = encode(object)?;
        typed(
            &self
                .write(
                    self.core
                        .update(&attributes, &options_of(&attributes), body),
                )
                .await?,
        )
    }

    /// Patches an object or one of its subresources (`status`, `scale`).
    pub async fn patch<K: Kind>(
        &self,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
        subresource: Option<&str>,
    ) -> Result<K, Status> {
        let attributes = self.typed::<K>(Verb::Patch, namespace, Some(name), subresource)?;
        typed(&self.apply_patch(&attributes, patch).await?)
    }

    async fn apply_patch(&self, attributes: &Attributes, patch: &Patch) -> Result<Stored, Status> {
        let (kind, body) = match patch {
            Patch::Json(value) => (PatchKind::Json, value),
            Patch::Merge(value) => (PatchKind::Merge, value),
            Patch::Strategic(value) => (PatchKind::Strategic, value),
        };
        self.write(self.core.patch(
            attributes,
            &options_of(attributes),
            kind,
            body.to_string().as_bytes(),
        ))
        .await
    }

    /// Deletes an object.
    pub async fn delete<K: Kind>(
        &self,
        namespace: Option<&str>,
        name: &str,
        params: &DeleteParams,
    ) -> Result<(), Status> {
        let attributes = self.typed::<K>(Verb::Delete, namespace, Some(name), None)?;
        self.write(self.core.delete(&attributes, &delete_options(params)))
            .await
            .map(|_| ())
    }

    /// Binds a pod to a node (`pods/binding`).
    pub async fn bind(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        node: &str,
    ) -> Result<(), Status> {
        let attributes = self.typed::<k8s_openapi::api::core::v1::Pod>(
            Verb::Create,
            Some(namespace),
            Some(pod),
            Some("binding"),
        )?;
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(pod.to_owned()),
                namespace: Some(namespace.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        self.write(
            self.core
                .create(&attributes, &options_of(&attributes), encode(&binding)?),
        )
        .await
        .map(|_| ())
    }

    /// Every resource that is served, in its preferred version.
    pub fn resources(&self) -> Vec<ResourceInfo> {
        self.core
            .registry()
            .resources()
            .map(|resource| ResourceInfo {
                gvr: resource.gvr(),
                kind: resource.kind.to_string(),
                namespaced: resource.namespaced,
                verbs: resource.verbs.clone(),
            })
            .collect()
    }

    /// Reads one object of any resource.
    pub async fn dyn_get(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Object, Status> {
        let attributes = self.dynamic(gvr, Verb::Get, namespace, Some(name), None)?;
        self.core.get(&attributes).await?.object()
    }

    /// Lists objects of any resource.
    pub async fn dyn_list(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<(Vec<Object>, u64), Status> {
        let attributes = self.dynamic(gvr, Verb::List, namespace, None, None)?;
        let page = self.core.list(&attributes, &list_options(params)).await?;
        let items = page.items.iter().map(|entry| entry.object_with_version());
        Ok((items.collect::<Result<_, _>>()?, page.revision))
    }

    /// Creates an object of any resource, or a subresource of one (`serviceaccounts/token`).
    pub async fn dyn_create(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        name: Option<&str>,
        subresource: Option<&str>,
        object: Object,
    ) -> Result<Object, Status> {
        let attributes = self.dynamic(gvr, Verb::Create, namespace, name, subresource)?;
        self.write(
            self.core
                .create(&attributes, &options_of(&attributes), object),
        )
        .await?
        .object()
    }

    /// Replaces an object of any resource, or one of its subresources (`status`, `finalize`).
    pub async fn dyn_update(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        object: Object,
    ) -> Result<Object, Status> {
        let attributes = self.dynamic(gvr, Verb::Update, namespace, Some(name), subresource)?;
        self.write(
            self.core
                .update(&attributes, &options_of(&attributes), object),
        )
        .await?
        .object()
    }

    /// Patches an object of any resource.
    pub async fn dyn_patch(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
        subresource: Option<&str>,
    ) -> Result<Object, Status> {
        let attributes = self.dynamic(gvr, Verb::Patch, namespace, Some(name), subresource)?;
        self.apply_patch(&attributes, patch).await?.object()
    }

    /// Deletes an object of any resource.
    pub async fn dyn_delete(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        name: &str,
        params: &DeleteParams,
    ) -> Result<(), Status> {
        let attributes = self.dynamic(gvr, Verb::Delete, namespace, Some(name), None)?;
        self.write(self.core.delete(&attributes, &delete_options(params)))
            .await
            .map(|_| ())
    }

    /// Deletes every object of a resource that matches.
    pub async fn dyn_delete_collection(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        list: &ListParams,
        params: &DeleteParams,
    ) -> Result<(), Status> {
        let attributes = self.dynamic(gvr, Verb::DeleteCollection, namespace, None, None)?;
        self.write(self.core.delete_collection(
            &attributes,
            &list_options(list),
            &delete_options(params),
        ))
        .await
        .map(|_| ())
    }

    /// Watches the encoded objects of a resource: the stored bytes, never decoded.
    ///
    /// With a `resource_version` the watch resumes after it (410 when it is compacted);
    /// without one, the present objects come first as `Added`, then a bookmark.
    pub async fn watch_raw(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectWatch, Status> {
        let attributes = self.dynamic(gvr, Verb::Watch, namespace, None, None)?;
        let resumed = params.resource_version.is_some();
        let mut list = list_options(params);
        if !resumed {
            list.version_match = VersionMatch::NotOlderThan;
        }
        let options = WatchOptions {
            list,
            allow_bookmarks: true,
            send_initial_events: (!resumed).then_some(true),
            ..WatchOptions::default()
        };
        self.core.watch(&attributes, &options).await
    }

    /// The shared informer of a kind; it starts when it is first asked for.
    pub fn informer<K: Kind>(&self) -> Informer<K> {
        self.core.informers().get::<K>(&self.core)
    }

    /// The revision the store is at.
    pub fn revision(&self) -> u64 {
        self.core.store().revision()
    }

    /// Encoded object as JSON bytes with its resourceVersion, of any resource.
    pub async fn get_raw(
        &self,
        gvr: &GroupVersionResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<(Bytes, u64), Status> {
        let attributes = self.dynamic(gvr, Verb::Get, namespace, Some(name), None)?;
        let stored = self.core.get(&attributes).await?;
        Ok((stored.json(), stored.revision()))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn typed<K: Kind>(
        &self,
        verb: Verb,
        namespace: Option<&str>,
        name: Option<&str>,
        subresource: Option<&str>,
    ) -> Result<Attributes, Status> {
        let resource = self
            .core
            .registry()
            .lookup(K::GROUP, K::VERSION, K::PLURAL)
            .ok_or_else(Status::no_such_resource)?;
        Ok(self.attributes(resource, verb, namespace, name, subresource))
    }

    fn dynamic(
        &self,
        gvr: &GroupVersionResource,
        verb: Verb,
        namespace: Option<&str>,
        name: Option<&str>,
        subresource: Option<&str>,
    ) -> Result<Attributes, Status> {
        let resource = self
            .core
            .registry()
            .lookup(&gvr.group, &gvr.version, &gvr.resource)
            .ok_or_else(Status::no_such_resource)?;
        Ok(self.attributes(resource, verb, namespace, name, subresource))
    }

    fn attributes(
        &self,
        resource: Arc<Resource>,
        verb: Verb,
        namespace: Option<&str>,
        name: Option<&str>,
        subresource: Option<&str>,
    ) -> Attributes {
        Attributes {
            user: self.user.clone(),
            verb,
            namespace: namespace
                .filter(|namespace| resource.namespaced && !namespace.is_empty())
                .map(str::to_owned),
            resource,
            subresource: subresource.map(str::to_owned),
            name: name.map(str::to_owned),
        }
    }
}

fn list_options(params: &ListParams) -> ListOptions {
    ListOptions {
        label_selector: params.label_selector.clone().unwrap_or_default(),
        field_selector: params.field_selector.clone().unwrap_or_default(),
        limit: params.limit.unwrap_or(0),
        continue_token: params.continue_token.clone().unwrap_or_default(),
        resource_version: params
            .resource_version
            .map(|revision| revision.to_string())
            .unwrap_or_default(),
        ..ListOptions::default()
    }
}

fn delete_options(params: &DeleteParams) -> DeleteOptions {
    DeleteOptions {
        grace_period_seconds: params.grace_period_seconds,
        propagation_policy: params.propagation_policy,
        orphan_dependents: None,
        precondition_uid: params.precondition_uid.clone(),
        precondition_resource_version: params.precondition_resource_version.clone(),
        dry_run: false,
    }
}

fn encode<T: Serialize>(object: &T) -> Result<Object, Status> {
    Object::from_typed(object).map_err(|error| Status::bad_request(error.to_string()))
}

fn typed<T: DeserializeOwned>(stored: &Stored) -> Result<T, Status> {
    serde_json::from_slice(&stored.json()).map_err(|error| decode_failed(&error))
}

/// Fields are managed by who writes them: `system:node:a` is a `kubelet`, of another name the last
/// part counts.
fn options_of(attributes: &Attributes) -> WriteOptions {
    let name = attributes.user.name.as_str();
    let manager = match name.strip_prefix("system:node:") {
        Some(_) => "kubelet",
        None => name.rsplit(':').next().unwrap_or(name),
    };
    WriteOptions {
        default_manager: manager.to_owned(),
        ..WriteOptions::default()
    }
}

fn decode_failed(error: &serde_json::Error) -> Status {
    Status::internal_error(format!("decoding a stored object: {error}"))
}
