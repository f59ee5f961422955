//! `/metrics`: requests by verb, resource and code, open watches, and how far the store and
//! the watch hub are.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use ::http::{Method, Response, StatusCode};
use axum::body::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::respond;
use crate::pipeline::Core;
use crate::request::path::ResourcePath;

/// What a request is counted under.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Labels {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    code: u16,
}

impl Labels {
    pub(super) fn of(method: &Method, path: Option<&ResourcePath>) -> Self {
        let verb = match method.as_str() {
            // A method nobody knows must not make a series of its own.
            known @ ("GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD") => known,
            _ => "other",
        };
        Self {
            verb: verb.to_owned(),
            group: path.map(|path| path.group.clone()).unwrap_or_default(),
            resource: path.map(|path| path.resource.clone()).unwrap_or_default(),
            subresource: path
                .and_then(|path| path.subresource.clone())
                .unwrap_or_default(),
        }
    }
}

/// The API's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<CodeLabels, Counter>,
    durations: Family<Labels, Histogram>,
    watches: Gauge,
    store_revision: Gauge,
    hub_revision: Gauge,
}

/// An open watch; closing it is dropping this.
#[derive(Debug)]
pub(super) struct OpenWatch(Gauge<i64, AtomicI64>);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::<CodeLabels, Counter>::default();
        let durations = Family::<Labels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.0005, 2.0, 16))
        });
        let watches: Gauge = Gauge::default();
        let store_revision: Gauge = Gauge::default();
        let hub_revision: Gauge = Gauge::default();
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and HTTP code",
            requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Time until the response began",
            durations.clone(),
        );
        registry.register("apiserver_open_watches", "Open watches", watches.clone());
        registry.register(
            "apiserver_store_revision",
            "Newest revision of the store",
            store_revision.clone(),
        );
        registry.register(
            "apiserver_hub_revision",
            "Newest revision the watch hub has seen",
            hub_revision.clone(),
        );
        Self {
            registry,
            requests,
            durations,
            watches,
            store_revision,
            hub_revision,
        }
    }
}

impl Metrics {
    pub(super) fn observe(&self, mut labels: Labels, code: u16, took: Duration) {
        if code == 404 {
            // Paths that lead nowhere must not make series of their own.
            labels.group.clear();
            labels.resource.clear();
            labels.subresource.clear();
        }
        self.requests
            .get_or_create(&CodeLabels {
                verb: labels.verb.clone(),
                group: labels.group.clone(),
                resource: labels.resource.clone(),
                subresource: labels.subresource.clone(),
                code,
            })
            .inc();
        self.durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(super) fn open_watch(&self) -> OpenWatch {
        self.watches.inc();
        OpenWatch(self.watches.clone())
    }

    pub(super) fn render(&self, core: &Arc<Core>) -> Response<Body> {
        let gauge = |revision: u64| i64::try_from(revision).unwrap_or(i64::MAX);
        self.store_revision.set(gauge(core.store().revision()));
        self.hub_revision.set(gauge(core.hub().revision()));
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => respond::with_type(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                Body::from(text),
            ),
            Err(error) => respond::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("encoding metrics: {error}\n"),
            ),
        }
    }
}
