//! Get, list and watch.
//!
//! Lists are answered from the hub's caches, once those hold everything that was
//! acknowledged before the request; pages after the first, and exact revisions, from the
//! store's history.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pintle_kube_types::status::Status;
use pintle_kube_types::{FieldError, FieldSelector, GroupKind, LabelSelector, Path};
use pintle_store::{RangeRequest, StoreError, WatchRequest};
use serde::{Deserialize, Serialize};

use super::persist::store_failed;
use super::{Attributes, Core, Page, Stored, scale};
use crate::auth::authorize::{authorize, authorize_selection};
use crate::registry::Resource;
use crate::request::options::{ListOptions, VersionMatch, WatchOptions};
use crate::storage::hub::{Entry, decode_entry};
use crate::storage::key;
use crate::storage::watch::{Filter, ObjectWatch};

/// Longest wait for the caches, or for a revision that is still to come.
const FRESH: Duration = Duration::from_secs(3);
/// Keys read from the store at a time while filtering.
const CHUNK: usize = 500;

/// What a continue token holds.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    /// Format.
    v: String,
    /// Revision of the list.
    rv: u64,
    /// First key of the page, below the scope.
    start: String,
}

const CONTINUE_FORMAT: &str = "meta.k8s.io/v1";

impl Core {
    /// Reads one object, or its `scale`.
    pub(crate) async fn get(&self, attributes: &Attributes) -> Result<Stored, Status> {
        authorize(self, attributes)?;
        self.store().linearizable().await.map_err(store_failed)?;
        let current = self.read_named(attributes)?;
        match attributes.subresource.as_deref() {
            None | Some("status") => Ok(current.stored()),
            Some("scale") => {
                let object = current.object()?;
                Ok(Stored::of(&scale::view(&object), current.revision))
            }
            Some(other) => Err(no_subresource(attributes, other)),
        }
    }

    /// Lists objects.
    pub(crate) async fn list(
        &self,
        attributes: &Attributes,
        options: &ListOptions,
    ) -> Result<Page, Status> {
        authorize_selection(self, attributes, &options.field_selector)?;
        check_version_match(options, false)?;
        let filter = filter(attributes, options)?;
        if !options.continue_token.is_empty() {
            let token = decode_continue(&options.continue_token)?;
            return self.list_store(&filter, token.rv, &token.start, options.limit, true);
        }
        let version = parse_version(&options.resource_version)?;
        match version {
            Some(revision) if revision > 0 && options.version_match == VersionMatch::Exact => {
                return self.list_store(&filter, revision, "", options.limit, false);
            }
            Some(revision) => self.wait_for(revision).await?,
            None => {
                let revision = self.store().linearizable().await.map_err(store_failed)?;
                self.wait_for(revision).await?;
            }
        }
        let snapshot = self
            .hub()
            .resource(&attributes.resource.prefix)
            .snapshot(&filter.scope);
        let mut matching = snapshot
            .entries
            .into_iter()
            .filter(|entry| filter.matches(entry));
        if options.limit == 0 {
            return Ok(Page {
                items: matching.collect(),
                revision: snapshot.revision,
                continue_token: None,
                remaining: None,
            });
        }
        let items: Vec<Arc<Entry>> = matching.by_ref().take(options.limit).collect();
        let left = matching.count();
        let continue_token = match items.last() {
            Some(last) if left > 0 => Some(encode_continue(
                snapshot.revision,
                &start_after(last, &filter.scope),
            )),
            _ => None,
        };
        Ok(Page {
            items,
            revision: snapshot.revision,
            remaining: (left > 0 && unselective(&filter)).then_some(left as u64),
            continue_token,
        })
    }

    /// Lists from the store's history.
    fn list_store(
        &self,
        filter: &Filter,
        revision: u64,
        start: &str,
        limit: usize,
        continued: bool,
    ) -> Result<Page, Status> {
        let end = pintle_store::prefix_end(filter.scope.as_bytes());
        let mut next = format!("{}{start}", filter.scope).into_bytes();
        let mut items = Vec::new();
        loop {
            let response = self
                .store()
                .range(&RangeRequest {
                    start: next.clone().into(),
                    end: end.clone(),
                    revision: Some(revision),
                    limit: CHUNK,
                    ..RangeRequest::default()
                })
                .map_err(|error| match error {
                    StoreError::Compacted { .. } if continued => Status::expired(
                        "The provided continue parameter is too old to display a consistent \
                         list result. You must start a new list without the continue parameter.",
                    ),
                    StoreError::Compacted { .. } => {
                        Status::expired("The resourceVersion for the provided list is too old.")
                    }
                    other => store_failed(other),
                })?;
            let mut remaining = response.count;
            for kv in response.kvs {
                next = kv.key.to_vec();
                next.push(0);
                remaining = remaining.saturating_sub(1);
                let Some(entry) = decode_entry(kv.key, kv.value, kv.mod_revision) else {
                    continue;
                };
                if !filter.matches(&entry) {
                    continue;
                }
                let entry = Arc::new(entry);
                items.push(entry.clone());
                if limit > 0 && items.len() == limit {
                    let more = remaining > 0;
                    return Ok(Page {
                        items,
                        revision,
                        continue_token: more.then(|| {
                            encode_continue(revision, &start_after(&entry, &filter.scope))
                        }),
                        remaining: (more && unselective(filter)).then_some(remaining),
                    });
                }
            }
            if !response.more {
                return Ok(Page {
                    items,
                    revision,
                    continue_token: None,
                    remaining: None,
                });
            }
        }
    }

    /// Starts a watch.
    pub(crate) async fn watch(
        &self,
        attributes: &Attributes,
        options: &WatchOptions,
    ) -> Result<ObjectWatch, Status> {
        authorize_selection(self, attributes, &options.list.field_selector)?;
        if options.send_initial_events.is_some() {
            check_initial_events(options)?;
        } else {
            check_version_match(&options.list, true)?;
        }
        let filter = filter(attributes, &options.list)?;
        let version = parse_version(&options.list.resource_version)?;
        let cache = self.hub().resource(&attributes.resource.prefix);
        let initial = match options.send_initial_events {
            Some(wanted) => wanted,
            None => version.is_none_or(|version| version == 0),
        };
        if initial {
            let revision = match version {
                Some(revision) => revision,
                None => self.store().linearizable().await.map_err(store_failed)?,
            };
            self.wait_for(revision).await?;
            let mark_end = options.send_initial_events == Some(true);
            return Ok(ObjectWatch::with_initial(filter, cache.cursor(), mark_end));
        }
        let Some(after) = version.filter(|version| *version > 0) else {
            return Ok(ObjectWatch::from_hub(filter, cache.cursor()));
        };
        if let Some(cursor) = cache.cursor_at(after) {
            return Ok(ObjectWatch::from_hub(filter, cursor));
        }
        let started = self.store().watch(WatchRequest {
            start: filter.scope.clone().into(),
            end: pintle_store::prefix_end(filter.scope.as_bytes()),
            from_revision: Some(after + 1),
            progress: true,
            prev_kv: true,
        });
        match started {
            Ok(watcher) => Ok(ObjectWatch::from_store(filter, watcher, after)),
            Err(error @ StoreError::Compacted { .. }) => Ok(ObjectWatch::failed(
                filter,
                cache.cursor(),
                store_failed(error),
            )),
            Err(error) => Err(store_failed(error)),
        }
    }

    /// Waits until the caches hold `revision`.
    pub(super) async fn wait_for(&self, revision: u64) -> Result<(), Status> {
        if self.hub().reached(revision, FRESH).await {
            return Ok(());
        }
        Err(store_failed(StoreError::FutureRevision {
            requested: revision,
            current: self.hub().revision(),
        }))
    }
}

/// The answer to a verb on a subresource that does not take it.
pub(super) fn no_subresource(attributes: &Attributes, subresource: &str) -> Status {
    if attributes.resource.subresource(subresource).is_some() {
        Status::method_not_allowed()
    } else {
        Status::no_such_resource()
    }
}

fn unselective(filter: &Filter) -> bool {
    filter.labels.is_none() && filter.fields.is_none()
}

/// What a list or watch selects.
pub(super) fn filter(attributes: &Attributes, options: &ListOptions) -> Result<Filter, Status> {
    let resource = &attributes.resource;
    let labels = LabelSelector::parse(&options.label_selector)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    let fields = FieldSelector::parse(&options.field_selector)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    for term in &fields.terms {
        check_field(resource, &term.field)?;
    }
    let mut scope = key::scope(&resource.prefix, attributes.namespace.as_deref());
    // One object by name: a watch of it, or a list that selects just it.
    let name = match &attributes.name {
        Some(name) => Some(name.as_str()),
        None => fields.required("metadata.name"),
    };
    let single = name.filter(|_| !resource.namespaced || attributes.namespace.is_some());
    let exact = single.map(str::to_owned);
    if let Some(name) = &exact {
        scope.push_str(name);
    }
    Ok(Filter {
        resource: resource.clone(),
        scope,
        exact: exact.is_some(),
        labels: (!labels.is_everything()).then_some(labels),
        fields: (!fields.is_everything()).then_some(fields),
    })
}

fn check_field(resource: &Resource, field: &str) -> Result<(), Status> {
    if resource.selectable_fields().contains(&field) || field == "metadata.namespace" {
        return Ok(());
    }
    // Kinds with selectable fields of their own convert them with this message, others with
    // the general one.
    Err(Status::bad_request(if resource.fields.is_empty() {
        format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    } else {
        format!("field label not supported: {field}")
    }))
}

fn parse_version(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(revision) => Ok(Some(revision)),
        Err(_) => Err(Status::bad_request(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))),
    }
}

fn check_version_match(options: &ListOptions, watch: bool) -> Result<(), Status> {
    let why = match options.version_match {
        VersionMatch::Unset => {
            if !options.continue_token.is_empty()
                && !options.resource_version.is_empty()
                && options.resource_version != "0"
            {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            return Ok(());
        }
        _ if watch => "resourceVersionMatch is forbidden for watch",
        _ if options.resource_version.is_empty() => {
            "resourceVersionMatch is forbidden unless resourceVersion is provided"
        }
        _ if !options.continue_token.is_empty() => {
            "resourceVersionMatch is forbidden when continue is provided"
        }
        VersionMatch::Exact if options.resource_version == "0" => {
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
        }
        _ => return Ok(()),
    };
    Err(invalid_options("resourceVersionMatch", why))
}

fn check_initial_events(options: &WatchOptions) -> Result<(), Status> {
    if options.list.version_match != VersionMatch::NotOlderThan {
        return Err(invalid_options(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if options.send_initial_events == Some(true) && !options.allow_bookmarks {
        return Err(invalid_options(
            "allowWatchBookmarks",
            "sendInitialEvents requires allowWatchBookmarks to be set to true",
        ));
    }
    Ok(())
}

fn invalid_options(field: &str, why: &str) -> Status {
    Status::invalid(
        &GroupKind::new("meta.k8s.io", "ListOptions"),
        "",
        &pintle_kube_types::ErrorList(vec![FieldError::forbidden(&Path::new(field), why)]),
    )
}

/// The first key after an entry, below the scope of the list.
fn start_after(entry: &Entry, scope: &str) -> String {
    let key = String::from_utf8_lossy(entry.store_key());
    format!("{}\0", key.strip_prefix(scope).unwrap_or_default())
}

fn encode_continue(revision: u64, start: &str) -> String {
    let token = Continue {
        v: CONTINUE_FORMAT.to_owned(),
        rv: revision,
        start: start.to_owned(),
    };
    // A struct of two strings and a number always encodes.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

fn decode_continue(text: &str) -> Result<Continue, Status> {
    let refused = |why: String| Status::bad_request(format!("continue key is not valid: {why}"));
    let bytes = URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|error| refused(error.to_string()))?;
    let token: Continue =
        serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    if token.v != CONTINUE_FORMAT {
        return Err(refused(format!(
            "server does not recognize this encoded version {:?}",
            token.v
        )));
    }
    if token.rv == 0 {
        return Err(refused(
            "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned(),
        ));
    }
    Ok(token)
}
