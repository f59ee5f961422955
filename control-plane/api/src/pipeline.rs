//! The request pipeline: authorise → admit → validate → persist, for HTTP and in-process.
//!
//! Watches nothing; turns requests into transactions of the store. The hub sees them there,
//! and watchers and informers react.

use std::sync::Arc;

use bytes::Bytes;
use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use pintle_store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::UserInfo;
use crate::client::InformerSet;
use crate::clock::SharedClock;
use crate::http::limits::Limits;
use crate::http::metrics::Metrics;
use crate::registry::strategy::service::Pools;
use crate::registry::{Registry, Resource};
use crate::server::ApiConfig;
use crate::storage::hub::{Entry, Hub};
use crate::storage::key;
use crate::storage::value::Encoded;

mod apply;
pub(crate) mod conform;
pub(crate) mod delete;
mod evict;
pub(crate) mod fence;
pub(crate) mod persist;
mod pods;
mod read;
mod scale;
mod unserved;
mod write;

pub(crate) use delete::Deletion;

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

impl Attributes {
    /// The store's key of the object with this name.
    pub(crate) fn key(&self, name: &str) -> Bytes {
        key::object(&self.resource.prefix, self.namespace.as_deref(), name)
    }

    /// The name of the object, for requests that must have one.
    pub(crate) fn name(&self) -> Result<&str, Status> {
        self.name
            .as_deref()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| Status::bad_request("name must be provided"))
    }
}

/// An object as it is (or, for a dry run, would be) stored, or another answer to a write.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    value: Encoded,
    /// 0 for what has no revision: an object that was not written, a Status, a token.
    revision: u64,
    warnings: Vec<String>,
    created: bool,
}

impl Stored {
    pub(crate) fn new(value: Encoded, revision: u64) -> Self {
        Self {
            value,
            revision,
            warnings: Vec::new(),
            created: false,
        }
    }

    pub(crate) fn of(object: &Object, revision: u64) -> Self {
        Self::new(Encoded::encode(object), revision)
    }

    #[must_use]
    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    #[must_use]
    pub(crate) fn mark_created(mut self) -> Self {
        self.created = true;
        self
    }

    /// Whether the write made the object.
    pub(crate) fn created(&self) -> bool {
        self.created
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn json(&self) -> Bytes {
        if self.revision == 0 {
            self.value.json_unversioned()
        } else {
            self.value.json(self.revision)
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn object(&self) -> Result<Object, Status> {
        let mut object = self.value.object().map_err(Status::internal_error)?;
        if self.revision != 0 {
            object.set_resource_version(Some(&self.revision.to_string()));
        }
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
    pools: Pools,
    event_lease: persist::EventLease,
    metrics: Metrics,
    limits: Limits,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Core {
    pub(crate) fn new(config: ApiConfig, hub: Arc<Hub>, pools: Pools) -> Self {
        Self {
            config,
            registry: Registry::builtin(),
            hub,
            informers: InformerSet::default(),
            pools,
            event_lease: persist::EventLease::default(),
            metrics: Metrics::default(),
            limits: Limits::default(),
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

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn pools(&self) -> Pools {
        self.pools
    }
}
