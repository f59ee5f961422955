//! The Watch service: many watches on one stream.
//!
//! Watches the client's requests and, through one store watcher per watch, its keys; changes
//! nothing but what the stream has to say. One task drives a stream and owns all of it:
//!
//! ```text
//!   requests ──▶ ┌ Stream ┐ ──▶ answers (bounded: a slow client stops the task)
//!   watchers ──▶ └────────┘
//! ```
//! While a client reads slowly its watchers wait in the store; one that is cut off there starts
//! again from where it was, out of the history, so a client loses events only to compaction.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::FuturesUnordered;
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_proto::etcd::mvccpb;
use pintle_store::{
    EventKind, Revision, StoreError, WatchBatch, WatchError, WatchEvent, WatchRequest, Watcher,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::error::{COMPACTED, from_store, no_leader, stopped};
use super::{Etcd, keyspace};
use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;

/// Answers that may wait for the client.
const ANSWERS: usize = 64;
/// Largest answer to a client that asked for fragments; etcd's limit with its defaults.
const FRAGMENT_BYTES: usize = 2 << 20;
/// Speaks of all watches of a stream, or of none.
const NO_WATCH: i64 = -1;

#[tonic::async_trait]
impl pb::watch_server::Watch for Etcd {
    type WatchStream = ReceiverStream<Result<pb::WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        // Clients that ask for it rather hear of a lost leader than wait.
        if request.metadata().contains_key("hasleader") && self.store().health().leader.is_none() {
            return Err(no_leader());
        }
        let (answers, receiver) = mpsc::channel(ANSWERS);
        let stream = Stream {
            etcd: self.clone(),
            answers,
            watches: HashMap::new(),
            running: FuturesUnordered::new(),
            next_id: 0,
            progress: None,
        };
        self.inner.tasks.spawn(stream.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The client does not listen any more.
struct Gone;

/// One stream.
struct Stream {
    etcd: Etcd,
    answers: mpsc::Sender<Result<pb::WatchResponse, Status>>,
    watches: HashMap<i64, Watch>,
    running: FuturesUnordered<Abortable<Next>>,
    next_id: i64,
    /// The client asked how far all watches have seen; answered when it is this far.
    progress: Option<Revision>,
}

/// One watch.
struct Watch {
    start: Bytes,
    end: Bytes,
    wanted: pb::WatchCreateRequest,
    /// Everything up to here was sent.
    seen: Revision,
    abort: AbortHandle,
}

impl Watch {
    fn wants(&self, kind: EventKind) -> bool {
        let left_out = match kind {
            EventKind::Put => FilterType::Noput,
            EventKind::Delete => FilterType::Nodelete,
        };
        !self.wanted.filters.contains(&left_out.into())
    }
}

type Next = std::pin::Pin<Box<dyn Future<Output = Step> + Send>>;

/// What a watcher said, and the watcher.
struct Step {
    id: i64,
    watcher: Watcher,
    said: Option<Result<WatchBatch, WatchError>>,
}

fn next(id: i64, mut watcher: Watcher) -> Next {
    Box::pin(async move {
        let said = watcher.next().await;
        Step { id, watcher, said }
    })
}

impl Stream {
    async fn run(mut self, mut requests: Streaming<pb::WatchRequest>) {
        let stop = self.etcd.inner.shutdown.clone();
        let gone = self.answers.clone();
        loop {
            let done = tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(request)) => self.request(request).await,
                    // A half-closed stream is a client that has gone.
                    None | Some(Err(_)) => return,
                },
                Some(step) = self.running.next(), if !self.running.is_empty() => match step {
                    Ok(step) => self.step(step).await,
                    Err(Aborted) => Ok(()),
                },
                () = gone.closed() => return,
                () = stop.cancelled() => {
                    // If the client left meanwhile, nobody misses it.
                    drop(self.answers.try_send(Err(stopped())));
                    return;
                }
            };
            if let Err(Gone) = done {
                return;
            }
        }
    }

    async fn request(&mut self, request: pb::WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => {
                let Some(watch) = self.watches.remove(&request.watch_id) else {
                    return Ok(());
                };
                watch.abort.abort();
                self.send(pb::WatchResponse {
                    watch_id: request.watch_id,
                    canceled: true,
                    ..self.response()
                })
                .await?;
                self.answer_progress().await
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                let revision = self.etcd.store().bookmark_watchers();
                self.progress = Some(revision);
                self.answer_progress().await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Gone> {
        // Everything after this revision is delivered, so the client may go on from it.
        let now = self.etcd.store().revision();
        let from = match u64::try_from(request.start_revision) {
            Ok(from) if from > 0 => from,
            _ => now + 1,
        };
        let id = match self.pick_id(&request) {
            Ok(id) => id,
            Err(reason) => {
                let refused = pb::WatchResponse {
                    watch_id: NO_WATCH,
                    created: true,
                    canceled: true,
                    cancel_reason: reason.to_owned(),
                    ..self.response()
                };
                return self.send(refused).await;
            }
        };
        // As in etcd, an empty key is the smallest one.
        let key: &[u8] = if request.key.is_empty() {
            &[0]
        } else {
            &request.key
        };
        let (start, end) = keyspace::range(key, &request.range_end);
        let watch = Watch {
            start,
            end,
            wanted: request,
            seen: from - 1,
            abort: AbortHandle::new_pair().0,
        };
        self.watches.insert(id, watch);
        let created = pb::WatchResponse {
            header: Some(self.etcd.header(now)),
            watch_id: id,
            created: true,
            ..pb::WatchResponse::default()
        };
        self.send(created).await?;
        self.start(id).await
    }

    /// The id asked for, or one that is free.
    fn pick_id(&mut self, request: &pb::WatchCreateRequest) -> Result<i64, &'static str> {
        let end = &request.range_end[..];
        if !end.is_empty() && end != [0] && request.key[..] >= *end {
            return Err("mvcc: watcher range is empty");
        }
        if request.watch_id != 0 {
            return if self.watches.contains_key(&request.watch_id) {
                Err("mvcc: duplicate watch ID provided on the WatchStream")
            } else {
                Ok(request.watch_id)
            };
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    /// Starts a watch, or starts it again, after what it has seen.
    async fn start(&mut self, id: i64) -> Result<(), Gone> {
        let Some(watch) = self.watches.get_mut(&id) else {
            return Ok(());
        };
        let request = WatchRequest {
            start: watch.start.clone(),
            end: watch.end.clone(),
            from_revision: Some(watch.seen + 1),
            progress: true,
            prev_kv: watch.wanted.prev_kv,
        };
        match self.etcd.store().watch(request) {
            Ok(watcher) => {
                let (abort, registration) = AbortHandle::new_pair();
                watch.abort = abort;
                let next = Abortable::new(next(id, watcher), registration);
                self.running.push(next);
                Ok(())
            }
            Err(StoreError::Compacted { compacted, .. }) => self.compacted(id, compacted).await,
            Err(error) => {
                let reason = from_store(&error).message().to_owned();
                self.cancel(id, reason, 0).await
            }
        }
    }

    async fn step(&mut self, step: Step) -> Result<(), Gone> {
        let id = step.id;
        match step.said {
            Some(Ok(batch)) => {
                self.deliver(id, batch).await?;
                if let Some(watch) = self.watches.get_mut(&id) {
                    let (abort, registration) = AbortHandle::new_pair();
                    watch.abort = abort;
                    let next = Abortable::new(next(id, step.watcher), registration);
                    self.running.push(next);
                }
                self.answer_progress().await
            }
            // It waited for this client longer than the store could.
            Some(Err(WatchError::SlowConsumer)) => {
                drop(step.watcher);
                self.start(id).await
            }
            Some(Err(WatchError::Compacted { compacted })) => self.compacted(id, compacted).await,
            Some(Err(WatchError::Closed)) | None => {
                // As above: who has left misses nothing.
                drop(self.answers.send(Err(stopped())).await);
                Err(Gone)
            }
        }
    }

    async fn deliver(&mut self, id: i64, batch: WatchBatch) -> Result<(), Gone> {
        let Some(watch) = self.watches.get_mut(&id) else {
            return Ok(());
        };
        watch.seen = watch.seen.max(batch.revision);
        let (notify, fragment) = (watch.wanted.progress_notify, watch.wanted.fragment);
        let header = self.etcd.header(batch.revision);
        let response = |events: Vec<mvccpb::Event>, fragment: bool| pb::WatchResponse {
            header: Some(header),
            watch_id: id,
            events,
            fragment,
            ..pb::WatchResponse::default()
        };
        if batch.events.is_empty() {
            // The client hears of it only when it wanted to.
            return if notify {
                self.send(response(Vec::new(), false)).await
            } else {
                Ok(())
            };
        }
        let events: Vec<_> = batch
            .events
            .into_iter()
            .filter(|event| watch.wants(event.kind))
            .map(event)
            .collect();
        if events.is_empty() {
            return Ok(());
        }
        if !fragment {
            return self.send(response(events, false)).await;
        }
        let mut parts = fragments(events, FRAGMENT_BYTES).into_iter().peekable();
        while let Some(events) = parts.next() {
            let more = parts.peek().is_some();
            self.send(response(events, more)).await?;
        }
        Ok(())
    }

    /// Tells the client how far all its watches have seen, once that is as far as it asked.
    async fn answer_progress(&mut self) -> Result<(), Gone> {
        let Some(wanted) = self.progress else {
            return Ok(());
        };
        if self.watches.values().any(|watch| watch.seen < wanted) {
            return Ok(());
        }
        self.progress = None;
        self.send(pb::WatchResponse {
            header: Some(self.etcd.header(wanted)),
            watch_id: NO_WATCH,
            ..pb::WatchResponse::default()
        })
        .await
    }

    async fn compacted(&mut self, id: i64, compacted: Revision) -> Result<(), Gone> {
        self.cancel(id, COMPACTED.to_owned(), compacted).await
    }

    async fn cancel(&mut self, id: i64, reason: String, compacted: Revision) -> Result<(), Gone> {
        self.watches.remove(&id);
        self.send(pb::WatchResponse {
            watch_id: id,
            canceled: true,
            cancel_reason: reason,
            compact_revision: compacted.cast_signed(),
            ..self.response()
        })
        .await?;
        self.answer_progress().await
    }

    fn response(&self) -> pb::WatchResponse {
        pb::WatchResponse {
            header: Some(self.etcd.header_now()),
            ..pb::WatchResponse::default()
        }
    }

    async fn send(&mut self, response: pb::WatchResponse) -> Result<(), Gone> {
        self.answers.send(Ok(response)).await.map_err(|_left| Gone)
    }
}

fn event(event: WatchEvent) -> mvccpb::Event {
    let kind = match event.kind {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(keyspace::key_value(event.kv)),
        prev_kv: event.prev.map(keyspace::key_value),
    }
}

/// Splits events into parts of at most `limit` bytes, or one event.
fn fragments(events: Vec<mvccpb::Event>, limit: usize) -> Vec<Vec<mvccpb::Event>> {
    let mut parts: Vec<Vec<mvccpb::Event>> = Vec::new();
    let mut bytes = 0;
    for event in events {
        // The field's tag and length come to at most six bytes.
        let length = event.encoded_len() + 6;
        match parts.last_mut() {
            Some(part) if bytes + length <= limit => part.push(event),
            _ => {
                parts.push(vec![event]);
                bytes = 0;
            }
        }
        bytes += length;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_keep_order_and_limit() {
        let event = |length: usize| mvccpb::Event {
            kv: Some(mvccpb::KeyValue {
                value: vec![b'x'; length].into(),
                ..mvccpb::KeyValue::default()
            }),
            ..mvccpb::Event::default()
        };
        let lengths = [10, 10, 500, 10, 10];
        let parts = fragments(lengths.map(event).to_vec(), 100);
        let counts: Vec<_> = parts.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1, 2]);
        assert!(fragments(Vec::new(), 100).is_empty());
    }
}
