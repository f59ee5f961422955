//! Watches.

use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_proto::etcd::mvccpb::event::EventType;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{PATIENCE, Server};

/// One watch stream.
struct Stream {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl Stream {
    async fn open(server: &Server) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = pb::watch_client::WatchClient::new(server.channel.clone());
        let answers = client.watch(ReceiverStream::new(receiver)).await.unwrap();
        Self {
            requests,
            answers: answers.into_inner(),
        }
    }

    async fn ask(&self, request: RequestUnion) {
        let request = pb::WatchRequest {
            request_union: Some(request),
        };
        self.requests.send(request).await.unwrap();
    }

    /// Creates a watch and gives the answer to that.
    async fn create(&mut self, request: pb::WatchCreateRequest) -> pb::WatchResponse {
        self.ask(RequestUnion::CreateRequest(request)).await;
        let created = self.next().await;
        assert!(created.created, "{created:?}");
        created
    }

    async fn answer(&mut self) -> Result<Option<pb::WatchResponse>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message())
            .await
            .unwrap()
    }

    async fn next(&mut self) -> pb::WatchResponse {
        self.answer().await.unwrap().unwrap()
    }

    /// The next events: watch, kind, key, value.
    async fn events(&mut self) -> Vec<(i64, EventType, String, String)> {
        let response = self.next().await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let events = response.events.iter().map(|event| {
            let kv = event.kv.as_ref().unwrap();
            let (key, value) = (text(&kv.key), text(&kv.value));
            (response.watch_id, event.r#type(), key, value)
        });
        events.collect()
    }
}

fn watch(key: &'static str) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest {
        key: key.into(),
        ..pb::WatchCreateRequest::default()
    }
}

fn watch_all() -> pb::WatchCreateRequest {
    pb::WatchCreateRequest {
        range_end: vec![0].into(),
        ..watch("")
    }
}

fn put_event(id: i64, key: &str, value: &str) -> (i64, EventType, String, String) {
    (id, EventType::Put, key.to_owned(), value.to_owned())
}

async fn delete(server: &Server, key: &'static str) {
    let request = pb::DeleteRangeRequest {
        key: key.into(),
        ..pb::DeleteRangeRequest::default()
    };
    server.kv().delete_range(request).await.unwrap();
}

#[tokio::test]
async fn many_watches_share_a_stream() {
    let server = Server::start().await;
    let before = server.put("a", "0").await;
    let mut stream = Stream::open(&server).await;
    let first = stream.create(watch("a")).await;
    assert_eq!(
        (first.watch_id, first.header.unwrap().revision),
        (0, before)
    );
    assert_eq!(stream.create(watch("b")).await.watch_id, 1);
    let chosen = pb::WatchCreateRequest {
        watch_id: 2,
        ..watch_all()
    };
    assert_eq!(stream.create(chosen.clone()).await.watch_id, 2);
    let refused = stream.create(chosen).await;
    assert!(refused.canceled && refused.watch_id == -1);
    assert_eq!(
        refused.cancel_reason,
        "mvcc: duplicate watch ID provided on the WatchStream"
    );
    assert_eq!(stream.create(watch("c")).await.watch_id, 3, "2 is taken");

    server.put_own("/registry/x").await;
    server.put("b", "1").await;
    let mut seen = stream.events().await;
    seen.extend(stream.events().await);
    seen.sort_by_key(|event| event.0);
    assert_eq!(seen, [put_event(1, "b", "1"), put_event(2, "b", "1")]);

    stream
        .ask(RequestUnion::CancelRequest(pb::WatchCancelRequest {
            watch_id: 2,
        }))
        .await;
    let canceled = stream.next().await;
    assert!(canceled.canceled && canceled.watch_id == 2);
    server.put("b", "2").await;
    server.put("a", "2").await;
    assert_eq!(stream.events().await, [put_event(1, "b", "2")]);
    assert_eq!(stream.events().await, [put_event(0, "a", "2")]);
}

#[tokio::test]
async fn the_past_comes_first() {
    // Without recent events in memory the tables answer.
    let server = Server::start_with(|config| config.watch_ring_events = 0).await;
    let first = server.put("a", "1").await;
    server.put("a", "2").await;
    delete(&server, "a").await;
    let mut stream = Stream::open(&server).await;
    let past = pb::WatchCreateRequest {
        start_revision: first,
        prev_kv: true,
        ..watch("a")
    };
    stream.create(past).await;
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(stream.next().await.events);
    }
    let prev: Vec<_> = events
        .iter()
        .map(|event| event.prev_kv.as_ref().map(|kv| kv.value.clone()))
        .collect();
    assert_eq!(prev, [None, Some("1".into()), Some("2".into())]);
    let gone = events[2].kv.as_ref().unwrap();
    assert_eq!(events[2].r#type(), EventType::Delete);
    assert_eq!(
        (gone.mod_revision, gone.create_revision, gone.version),
        (first + 2, 0, 0)
    );
    server.put("a", "3").await;
    assert_eq!(stream.events().await, [put_event(0, "a", "3")]);
}

#[tokio::test]
async fn filters_leave_events_out() {
    let server = Server::start().await;
    let mut stream = Stream::open(&server).await;
    for filter in [FilterType::Noput, FilterType::Nodelete] {
        let request = pb::WatchCreateRequest {
            filters: vec![filter.into()],
            ..watch("a")
        };
        stream.create(request).await;
    }
    server.put("a", "1").await;
    assert_eq!(stream.events().await, [put_event(1, "a", "1")]);
    delete(&server, "a").await;
    let deleted = (0, EventType::Delete, "a".to_owned(), String::new());
    assert_eq!(stream.events().await, [deleted]);
}

#[tokio::test]
async fn a_compacted_start_cancels() {
    let server = Server::start().await;
    let first = server.put("a", "1").await;
    let second = server.put("a", "2").await;
    server.store.compact(second.unsigned_abs()).await.unwrap();
    let mut stream = Stream::open(&server).await;
    let past = pb::WatchCreateRequest {
        start_revision: first,
        ..watch("a")
    };
    let created = stream.create(past).await;
    let canceled = stream.next().await;
    assert_eq!(canceled.watch_id, created.watch_id);
    assert!(canceled.canceled);
    assert_eq!(canceled.compact_revision, second);
    // The stream lives on.
    stream.create(watch("a")).await;
    server.put("a", "3").await;
    assert_eq!(stream.events().await.len(), 1);
}

#[tokio::test]
async fn an_empty_range_is_refused() {
    let server = Server::start().await;
    let mut stream = Stream::open(&server).await;
    let empty = pb::WatchCreateRequest {
        range_end: "a".into(),
        ..watch("b")
    };
    let refused = stream.create(empty).await;
    assert_eq!(refused.cancel_reason, "mvcc: watcher range is empty");
    assert!(refused.canceled);
}

#[tokio::test]
async fn progress_is_told_when_asked_for() {
    // Without recent events in memory a watch of the past first reads the tables.
    let server = Server::start_with(|config| config.watch_ring_events = 0).await;
    let mut stream = Stream::open(&server).await;
    let ask = || RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
    stream.ask(ask()).await;
    let none = stream.next().await;
    assert_eq!((none.watch_id, none.header.unwrap().revision), (-1, 0));

    stream.create(watch("a")).await;
    let from_the_past = pb::WatchCreateRequest {
        start_revision: 1,
        ..watch("b")
    };
    server.put("a", "1").await;
    let last = server.put("other", "1").await;
    assert_eq!(stream.events().await, [put_event(0, "a", "1")]);
    stream.create(from_the_past).await;
    stream.ask(ask()).await;
    let progress = stream.next().await;
    assert_eq!(progress.header.unwrap().revision, last);
    assert!(progress.watch_id == -1 && progress.events.is_empty());
}

#[tokio::test]
async fn progress_notifications_come_by_themselves() {
    let quick = |config: &mut pintle_store::StoreConfig| {
        config.progress_interval = std::time::Duration::from_millis(1);
    };
    let server = Server::start_with(quick).await;
    let mut stream = Stream::open(&server).await;
    let request = pb::WatchCreateRequest {
        progress_notify: true,
        ..watch("a")
    };
    stream.create(request).await;
    let last = server.put("other", "1").await;
    let progress = stream.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (0, 0));
    assert_eq!(progress.header.unwrap().revision, last);
}

#[tokio::test]
async fn a_slow_client_loses_nothing() {
    // Every watcher that does not read at once is cut off in the store.
    let server = Server::start_with(|config| {
        config.watch_buffer = 1;
        config.watch_ring_events = 0;
    })
    .await;
    let mut stream = Stream::open(&server).await;
    stream.create(watch("a")).await;
    for n in 0..600 {
        server.put("a", &n.to_string()).await;
    }
    let mut values = Vec::new();
    while values.len() < 600 {
        values.extend(stream.events().await.into_iter().map(|event| event.3));
    }
    let wanted: Vec<_> = (0..600).map(|n| n.to_string()).collect();
    assert_eq!(values, wanted);
}

#[tokio::test]
async fn large_answers_come_in_fragments() {
    let server = Server::start().await;
    let value = "x".repeat(1 << 20);
    let puts = ["a", "b", "c"].map(|key| pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(super::put(key, &value))),
    });
    let mut stream = Stream::open(&server).await;
    let request = pb::WatchCreateRequest {
        fragment: true,
        ..watch_all()
    };
    stream.create(request).await;
    let txn = pb::TxnRequest {
        success: puts.to_vec(),
        ..pb::TxnRequest::default()
    };
    server.txn(txn).await.unwrap();
    let (mut parts, mut events) = (0, 0);
    loop {
        let part = stream.next().await;
        parts += 1;
        events += part.events.len();
        if !part.fragment {
            break;
        }
    }
    assert_eq!((parts > 1, events), (true, 3));
}

#[tokio::test]
async fn a_stopping_server_says_so() {
    let server = Server::start().await;
    let mut stream = Stream::open(&server).await;
    stream.create(watch("a")).await;
    server.stop.cancel();
    let ended = stream.answer().await.unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "etcdserver: server stopped")
    );
}
