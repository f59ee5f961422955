//! Lists: stored bytes strung together as they are sent, never decoded unless a table or
//! metadata alone is wanted.

use std::io::Write;
use std::sync::Arc;

use ::http::header::{CONTENT_ENCODING, VARY};
use ::http::{HeaderValue, Response, StatusCode};
use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use serde_json::{Map, Value, json};

use super::respond::{self, Wanted};
use crate::pipeline::{Core, Page, Stored};
use crate::registry::Resource;
use crate::request::negotiate::Form;
use crate::storage::hub::Entry;
use crate::table;

/// Bytes sent at a time.
const CHUNK: usize = 64 * 1024;
/// Answers from this size on are compressed for clients that ask for it.
const GZIP_FROM: usize = 128 * 1024;

fn metadata(page: &Page) -> Value {
    let mut metadata = Map::new();
    metadata.insert(
        "resourceVersion".to_owned(),
        Value::from(page.revision.to_string()),
    );
    if let Some(token) = &page.continue_token {
        metadata.insert("continue".to_owned(), Value::from(token.as_str()));
    }
    if let Some(remaining) = page.remaining {
        metadata.insert("remainingItemCount".to_owned(), Value::from(remaining));
    }
    Value::Object(metadata)
}

/// A page in the form the client wants.
pub(super) fn respond(
    core: &Core,
    resource: &Resource,
    wanted: Wanted,
    page: Page,
) -> Result<Response<Body>, Status> {
    let metadata = metadata(&page);
    let objects = || -> Result<Vec<Arc<Object>>, Status> {
        page.items
            .iter()
            .map(|entry| entry.object_with_version().map(Arc::new))
            .collect()
    };
    let whole = || -> Result<Value, Status> {
        let items: Vec<Value> = objects()?.iter().map(|object| object.to_value()).collect();
        Ok(json!({
            "kind": resource.list_kind,
            "apiVersion": resource.api_version(),
            "metadata": metadata,
            "items": items,
        }))
    };
    match wanted.form {
        Form::Table => {
            let table = table::render(
                resource,
                &objects()?,
                wanted.include,
                metadata,
                core.clock().now(),
            );
            Ok(send(table.to_string().into_bytes(), wanted))
        }
        Form::PartialMetadata => {
            let items: Vec<Value> = objects()?
                .iter()
                .map(|object| respond::partial(object))
                .collect();
            let list = json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": items,
            });
            Ok(send(list.to_string().into_bytes(), wanted))
        }
        Form::Yaml => respond::yaml(StatusCode::OK, &whole()?),
        Form::Object if wanted.pretty => Ok(respond::pretty(StatusCode::OK, &whole()?)),
        Form::Object => {
            let head = format!(
                "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
                Value::from(resource.list_kind.as_ref()),
                Value::from(resource.api_version()),
            );
            Ok(stream_items(head, page.items, wanted))
        }
    }
}

/// The objects a deletecollection deleted.
pub(super) fn respond_deleted(
    resource: &Resource,
    deleted: &[Stored],
) -> Result<Response<Body>, Status> {
    let items: Vec<Value> = deleted
        .iter()
        .map(|stored| stored.object().map(Object::into_value))
        .collect::<Result<_, _>>()?;
    Ok(respond::json_value(
        StatusCode::OK,
        &json!({
            "kind": resource.list_kind,
            "apiVersion": resource.api_version(),
            "metadata": {},
            "items": items,
        }),
    ))
}

/// A list as it is being sent.
struct Sender {
    items: std::vec::IntoIter<Arc<Entry>>,
    first: bool,
    ended: bool,
    buffer: Vec<u8>,
}

impl Sender {
    fn fill(&mut self) {
        while self.buffer.len() < CHUNK && !self.ended {
            let Some(entry) = self.items.next() else {
                self.buffer.extend_from_slice(b"]}");
                self.ended = true;
                return;
            };
            if !self.first {
                self.buffer.push(b',');
            }
            self.first = false;
            entry.value().write_json(entry.revision(), &mut self.buffer);
        }
    }
}

impl Iterator for Sender {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.fill();
        let chunk = std::mem::take(&mut self.buffer);
        (!chunk.is_empty()).then_some(chunk)
    }
}

fn stream_items(head: String, items: Vec<Arc<Entry>>, wanted: Wanted) -> Response<Body> {
    let size: usize = items.iter().map(|entry| entry.value().len()).sum();
    let mut sender = Sender {
        items: items.into_iter(),
        first: true,
        ended: false,
        buffer: head.into_bytes(),
    };
    if size < CHUNK {
        // Small enough to have a length.
        let bytes = sender.next().unwrap_or_default();
        let mut whole = bytes;
        whole.extend(sender.flatten());
        return respond::json_bytes(StatusCode::OK, whole.into());
    }
    if wanted.gzip && size >= GZIP_FROM {
        let chunks = Gzip {
            inner: sender,
            encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
        };
        return compressed(Body::from_stream(stream::iter(chunks)));
    }
    let chunks = sender.map(|chunk| Ok::<_, std::io::Error>(Bytes::from(chunk)));
    respond::with_type(
        StatusCode::OK,
        respond::JSON,
        Body::from_stream(stream::iter(chunks)),
    )
}

struct Gzip<I> {
    inner: I,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<I: Iterator<Item = Vec<u8>>> Iterator for Gzip<I> {
    type Item = std::io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let encoder = self.encoder.as_mut()?;
            if let Some(chunk) = self.inner.next() {
                if let Err(error) = encoder.write_all(&chunk) {
                    self.encoder = None;
                    return Some(Err(error));
                }
                if encoder.get_ref().is_empty() {
                    continue;
                }
                return Some(Ok(std::mem::take(encoder.get_mut()).into()));
            }
            let rest = self.encoder.take()?.finish();
            return Some(rest.map(Bytes::from));
        }
    }
}

fn compressed(body: Body) -> Response<Body> {
    let mut response = respond::with_type(StatusCode::OK, respond::JSON, body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

/// Bytes that are there already.
fn send(bytes: Vec<u8>, wanted: Wanted) -> Response<Body> {
    if !wanted.gzip || bytes.len() < GZIP_FROM {
        return respond::json_bytes(StatusCode::OK, bytes.into());
    }
    let chunks = Gzip {
        inner: std::iter::once(bytes),
        encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
    };
    compressed(Body::from_stream(stream::iter(chunks)))
}
