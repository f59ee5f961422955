//! Watches over HTTP: one JSON frame per event, each ended by a newline.
//!
//! The body is pulled by the connection, so a client that does not read costs nothing here;
//! when the hub's history has moved past it, it is told 410 and cut off.

use std::sync::Arc;
use std::time::Duration;

use ::http::{Response, StatusCode};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use pintle_kube_types::status::Status;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::respond::{self, Wanted};
use crate::pipeline::Core;
use crate::registry::Resource;
use crate::request::negotiate::Form;
use crate::request::options::WatchOptions;
use crate::storage::watch::{ObjectEvent, ObjectEventKind, ObjectWatch};
use crate::table;

/// Time between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// A last bookmark goes out this long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// A watch without a timeout lasts between this and twice as long.
const DEFAULT_TIMEOUT_SECONDS: u64 = 1800;
/// Frames are gathered to this size while more events are ready.
const GATHER: usize = 32 * 1024;

struct Frames {
    core: Arc<Core>,
    resource: Arc<Resource>,
    wanted: Wanted,
    events: ObjectWatch,
    bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    shutdown: CancellationToken,
    ended: bool,
    _open: super::metrics::OpenWatch,
}

/// Answers with a stream of events.
pub(super) fn respond(
    core: Arc<Core>,
    resource: Arc<Resource>,
    wanted: Wanted,
    options: &WatchOptions,
    events: ObjectWatch,
) -> Response<Body> {
    let timeout = options.timeout.unwrap_or_else(|| {
        let extra = rand::rng().random_range(0..DEFAULT_TIMEOUT_SECONDS);
        Duration::from_secs(DEFAULT_TIMEOUT_SECONDS + extra)
    });
    let now = Instant::now();
    let end = now + timeout;
    let mut frames = Frames {
        shutdown: core.shutdown().clone(),
        _open: core.metrics().open_watch(),
        core,
        resource,
        wanted,
        events,
        bookmarks: options.allow_bookmarks,
        next_bookmark: now,
        end,
        ended: false,
    };
    frames.next_bookmark = frames.bookmark_after(now);
    let body = stream::unfold(frames, |mut frames| async move {
        let chunk = frames.next_chunk().await?;
        Some((Ok::<_, std::io::Error>(chunk), frames))
    });
    respond::with_type(StatusCode::OK, respond::JSON, Body::from_stream(body))
}

impl Frames {
    fn bookmark_after(&self, now: Instant) -> Instant {
        let regular = now + BOOKMARK_EVERY;
        let last = self.end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(now);
        if last > now {
            regular.min(last)
        } else {
            regular
        }
    }

    /// The next frames; `None` at the end.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = Vec::new();
        loop {
            let bookmark = self.next_bookmark;
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return None,
                () = tokio::time::sleep_until(self.end) => return None,
                event = self.events.next() => {
                    self.frame(event?, &mut out);
                    // What else is there goes into the same write.
                    while !self.ended && out.len() < GATHER {
                        match futures_util::FutureExt::now_or_never(self.events.next()) {
                            Some(Some(event)) => self.frame(event, &mut out),
                            _ => break,
                        }
                    }
                }
                () = tokio::time::sleep_until(bookmark) => {
                    self.next_bookmark = self.bookmark_after(Instant::now());
                    if self.bookmarks && let Some(event) = self.events.bookmark() {
                        self.frame(Ok(event), &mut out);
                    }
                }
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn frame(&mut self, event: Result<ObjectEvent, Status>, out: &mut Vec<u8>) {
        let encoded = event.and_then(|event| self.encode(&event));
        match encoded {
            Ok((kind, object)) => {
                out.extend_from_slice(b"{\"type\":\"");
                out.extend_from_slice(kind.as_bytes());
                out.extend_from_slice(b"\",\"object\":");
                out.extend_from_slice(&object);
            }
            Err(status) => {
                self.ended = true;
                out.extend_from_slice(b"{\"type\":\"ERROR\",\"object\":");
                out.extend_from_slice(&serde_json::to_vec(&status).unwrap_or_default());
            }
        }
        out.extend_from_slice(b"}\n");
    }

    fn encode(&self, event: &ObjectEvent) -> Result<(&'static str, Bytes), Status> {
        let kind = match event.kind {
            ObjectEventKind::Added => "ADDED",
            ObjectEventKind::Modified => "MODIFIED",
            ObjectEventKind::Deleted => "DELETED",
            ObjectEventKind::Bookmark => return Ok(("BOOKMARK", self.bookmark(event, false))),
            ObjectEventKind::InitialEventsEnd => {
                return Ok(("BOOKMARK", self.bookmark(event, true)));
            }
        };
        let Some(entry) = event.entry() else {
            return Ok((kind, Bytes::new()));
        };
        let object = match self.wanted.form {
            Form::Object | Form::Yaml => entry.json(),
            Form::PartialMetadata => respond::partial(&entry.object_with_version()?)
                .to_string()
                .into(),
            Form::Table => self.table(
                &[Arc::new(entry.object_with_version()?)],
                json!({"resourceVersion": event.revision.to_string()}),
            ),
        };
        Ok((kind, object))
    }

    fn table(&self, objects: &[Arc<pintle_kube_types::Object>], metadata: Value) -> Bytes {
        table::render(
            &self.resource,
            objects,
            self.wanted.include,
            metadata,
            self.core.clock().now(),
        )
        .to_string()
        .into()
    }

    fn bookmark(&self, event: &ObjectEvent, initial_end: bool) -> Bytes {
        let mut metadata = json!({
            "resourceVersion": event.revision.to_string(),
            "creationTimestamp": null,
        });
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.wanted.form {
            Form::Table => self.table(&[], metadata),
            Form::PartialMetadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            })
            .to_string()
            .into(),
            Form::Object | Form::Yaml => json!({
                "kind": self.resource.kind,
                "apiVersion": self.resource.api_version(),
                "metadata": metadata,
            })
            .to_string()
            .into(),
        }
    }
}
