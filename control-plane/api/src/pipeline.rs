//! The request pipeline: authorise → admit → validate → persist, for HTTP and in-process.
//!
//! Watches nothing; turns requests into transactions of the store. The hub sees them there,
//! and watchers and informers react.

use std::sync::Arc;

use bytes::Bytes;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::UserInfo;
use crate::client::InformerSet;
use crate::clock::SharedClock;
use crate::registry::{Registry, Resource};
use crate::request::options::{DeleteOptions, ListOptions, PatchKind, WatchOptions, WriteOptions};
use crate::server::ApiConfig;
use crate::storage::hub::{Entry, Hub};
use crate::storage::value::Encoded;
use crate::storage::watch::ObjectWatch;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
}

/// Who wants to do what to which object.
#[derive(Debug, Clone)]
pub(crate) struct Attributes {
    pub(crate) user: Arc<UserInfo>,
    pub(crate) verb: Verb,
    pub(crate) resource: Arc<Resource>,
    pub(crate) subresource: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
}

/// An object as it is (or, for a dry run, would be) stored.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    value: Encoded,
    revision: u64,
}

impl Stored {
    pub(crate) fn json(&self) -> Bytes {
        self.value.json(self.revision)
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn object(&self) -> Result<Object, Status> {
        let mut object = self.value.object().map_err(Status::internal_error)?;
        object.set_resource_version(Some(&self.revision.to_string()));
        Ok(object)
    }
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Entry>>,
    pub(crate) revision: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

/// The API without HTTP.
pub(crate) struct Core {
    config: ApiConfig,
    registry: Registry,
    hub: Arc<Hub>,
    informers: InformerSet,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Core {
    pub(crate) fn new(config: ApiConfig, hub: Arc<Hub>) -> Self {
        Self {
            config,
            registry: Registry::builtin(),
            hub,
            informers: InformerSet::default(),
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
        }
    }

    pub(crate) fn config(&self) -> &ApiConfig {
        &self.config
    }

    pub(crate) fn store(&self) -> &Store {
        &self.config.store
    }

    pub(crate) fn clock(&self) -> &SharedClock {
        &self.config.clock
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(crate) fn informers(&self) -> &InformerSet {
        &self.informers
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    pub(crate) fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Runs a task until it ends or the API shuts down.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = shutdown.cancelled() => {}
            }
        });
    }

    pub(crate) async fn get(&self, _attributes: &Attributes) -> Result<Stored, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn list(&self, _a: &Attributes, _o: &ListOptions) -> Result<Page, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn watch(
        &self,
        _a: &Attributes,
        _o: &WatchOptions,
    ) -> Result<ObjectWatch, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn create(
        &self,
        _a: &Attributes,
        _o: &WriteOptions,
        _b: Object,
    ) -> Result<Stored, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn update(
        &self,
        _a: &Attributes,
        _o: &WriteOptions,
        _b: Object,
    ) -> Result<Stored, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn patch(
        &self,
        _a: &Attributes,
        _o: &WriteOptions,
        _k: PatchKind,
        _b: &[u8],
    ) -> Result<Stored, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn delete(
        &self,
        _a: &Attributes,
        _o: &DeleteOptions,
    ) -> Result<Option<Stored>, Status> {
        Err(Status::service_unavailable("not yet"))
    }
    pub(crate) async fn delete_collection(
        &self,
        _a: &Attributes,
        _l: &ListOptions,
        _o: &DeleteOptions,
    ) -> Result<Vec<Stored>, Status> {
        Err(Status::service_unavailable("not yet"))
    }
}
