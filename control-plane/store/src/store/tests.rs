//! The store end to end, in process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::key_value::{Compare, CompareOp, CompareTarget, Op, OpResponse, prefix_end};
use crate::watch::{EventKind, WatchBatch, WatchError};

/// Long enough for a slow machine; reached only when something hangs.
const LIMIT: Duration = Duration::from_secs(30);

fn config(dir: &Path) -> StoreConfig {
    StoreConfig {
        data_dir: dir.to_path_buf(),
        history_retention: None,
        ..StoreConfig::default()
    }
}

async fn put(store: &Store, key: &str, value: &str) -> Revision {
    let txn = Txn {
        success: vec![Op::put(key.to_owned(), value.to_owned())],
        ..Txn::default()
    };
    store.txn(txn).await.unwrap().revision
}

/// Puts many, some at once, which is quicker; they are applied in the order given.
async fn put_all(store: &Store, pairs: impl Iterator<Item = (String, String)>) {
    let pairs: Vec<_> = pairs.collect();
    // `join_all` polls this few in order.
    for some in pairs.chunks(25) {
        let revisions = join_all(some.iter().map(|(key, value)| put(store, key, value))).await;
        assert!(revisions.is_sorted());
    }
}

async fn delete(store: &Store, key: &str) -> Revision {
    let txn = Txn {
        success: vec![Op::delete(key.to_owned())],
        ..Txn::default()
    };
    store.txn(txn).await.unwrap().revision
}

fn value(store: &Store, key: &str) -> Option<String> {
    let kv = store.get(key.as_bytes()).unwrap()?;
    Some(String::from_utf8(kv.value.to_vec()).unwrap())
}

fn watch_prefix(store: &Store, prefix: &'static str, from: Option<Revision>) -> Watcher {
    let request = WatchRequest {
        start: Bytes::from_static(prefix.as_bytes()),
        end: prefix_end(prefix.as_bytes()),
        from_revision: from,
        progress: false,
        prev_kv: true,
    };
    store.watch(request).unwrap()
}

async fn next(watcher: &mut Watcher) -> Result<WatchBatch, WatchError> {
    tokio::time::timeout(LIMIT, watcher.next())
        .await
        .expect("the watcher hangs")
        .unwrap()
}

/// Collects events until one has the revision.
async fn collect(watcher: &mut Watcher, until: Revision) -> Vec<(Revision, String, EventKind)> {
    let mut events = Vec::new();
    loop {
        let batch = next(watcher).await.unwrap();
        for event in batch.events {
            let key = String::from_utf8(event.kv.key.to_vec()).unwrap();
            events.push((event.kv.mod_revision, key, event.kind));
        }
        if batch.revision >= until {
            return events;
        }
    }
}

#[tokio::test]
async fn writes_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    let cluster = store.cluster_id().to_owned();
    assert_eq!(store.revision(), 0);
    assert_eq!(put(&store, "a", "1").await, 1);
    assert_eq!(put(&store, "a", "2").await, 2);
    assert_eq!(put(&store, "b", "1").await, 3);
    assert_eq!(delete(&store, "b").await, 4);
    assert_eq!(
        delete(&store, "b").await,
        4,
        "nothing to delete takes no revision"
    );
    assert!(*store.leadership().borrow());
    store.shutdown().await;
    assert!(matches!(store.get(b"a"), Err(StoreError::Closed)));
    let refused = store.txn(Txn::default()).await;
    assert!(matches!(refused, Err(StoreError::Closed)));

    let store = Store::open(config(dir.path())).await.unwrap();
    assert_eq!(store.cluster_id(), cluster);
    assert_eq!(store.revision(), 4);
    let kv = store.get(b"a").unwrap().unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (1, 2, 2));
    assert_eq!(value(&store, "b"), None);
    assert_eq!(&store.get_at(b"b", 3).unwrap().unwrap().value[..], b"1");
    assert_eq!(store.get_at(b"a", 1).unwrap().unwrap().version, 1);
    assert_eq!(put(&store, "a", "3").await, 5);
}

#[tokio::test]
async fn a_directory_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    let second = Store::open(config(dir.path())).await;
    assert!(
        matches!(second, Err(StoreError::InUse { .. })),
        "{second:?}"
    );
    store.shutdown().await;
    Store::open(config(dir.path())).await.unwrap();
}

#[tokio::test]
async fn foreign_newer_and_beheaded_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(config(dir.path()))
        .await
        .unwrap()
        .shutdown()
        .await;
    let foreign = StoreConfig {
        cluster_id: Some("other".to_owned()),
        ..config(dir.path())
    };
    let refused = Store::open(foreign).await;
    assert!(matches!(
        refused,
        Err(StoreError::ForeignDirectory {
            field: "cluster",
            ..
        })
    ));
    let other_member = StoreConfig {
        node_id: 2,
        ..config(dir.path())
    };
    let refused = Store::open(other_member).await;
    assert!(matches!(
        refused,
        Err(StoreError::ForeignDirectory {
            field: "member",
            ..
        })
    ));

    let identity = dir.path().join("identity.json");
    let text = fs::read_to_string(&identity).unwrap();
    fs::write(&identity, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
    let refused = Store::open(config(dir.path())).await;
    assert!(
        matches!(refused, Err(StoreError::FormatTooNew { found: 2, .. })),
        "{refused:?}"
    );

    fs::remove_file(&identity).unwrap();
    let refused = Store::open(config(dir.path())).await;
    assert!(
        matches!(refused, Err(StoreError::Corrupt { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn damage_is_refused_and_salvaged_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    for at in 0..20 {
        put(&store, &format!("k{at}"), "value").await;
    }
    store.shutdown().await;
    let segment = dir.path().join("wal/0000000001.wal");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let refused = Store::open(config(dir.path())).await.unwrap_err();
    let StoreError::Corrupt { path, offset, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(*path, segment);
    assert!(offset.unwrap() <= middle as u64);
    assert!(refused.to_string().contains("salvage"), "{refused}");
    assert_eq!(fs::read(&segment).unwrap(), bytes, "nothing was changed");

    // The state is ahead of what the log still proves, and has everything here.
    fs::write(dir.path().join("salvage"), "").unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    assert_eq!(store.revision(), 20);
    assert_eq!(put(&store, "more", "value").await, 21);
    store.shutdown().await;
    let store = Store::open(config(dir.path())).await.unwrap();
    assert_eq!(store.revision(), 21);
}

#[tokio::test]
async fn a_lost_log_or_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    put(&store, "a", "1").await;
    store.shutdown().await;
    let segment = dir.path().join("wal/0000000001.wal");
    let bytes = fs::read(&segment).unwrap();
    fs::remove_file(&segment).unwrap();
    let refused = Store::open(config(dir.path())).await;
    assert!(
        matches!(refused, Err(StoreError::Corrupt { .. })),
        "{refused:?}"
    );
    fs::write(&segment, bytes).unwrap();

    let state = dir.path().join("state.redb");
    let bytes = fs::read(&state).unwrap();
    fs::write(&state, b"garbage, and certainly no database").unwrap();
    let refused = Store::open(config(dir.path())).await;
    assert!(
        matches!(refused, Err(StoreError::Corrupt { .. })),
        "{refused:?}"
    );
    fs::write(&state, bytes).unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    assert_eq!(value(&store, "a").as_deref(), Some("1"));
}

#[tokio::test]
async fn transactions_are_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    put(&store, "a", "1").await;
    let create = |value: &'static str| Txn {
        compares: vec![Compare::absent("b")],
        success: vec![Op::put("b", value), Op::put("c", value), Op::get("b")],
        failure: vec![Op::get("b")],
    };
    let made = store.txn(create("x")).await.unwrap();
    assert!(made.succeeded);
    assert_eq!(made.revision, 2);
    let OpResponse::Range(seen) = &made.responses[2] else {
        panic!("{made:?}");
    };
    assert_eq!(
        &seen.kvs[0].value[..],
        b"x",
        "a transaction sees its own writes"
    );
    let again = store.txn(create("y")).await.unwrap();
    assert!(!again.succeeded);
    assert_eq!(again.revision, 2, "reading takes no revision");
    assert_eq!(value(&store, "c").as_deref(), Some("x"));

    let no_lease = Txn {
        success: vec![
            Op::put("d", "1"),
            Op::Put {
                key: "e".into(),
                value: "1".into(),
                lease: 99,
            },
        ],
        ..Txn::default()
    };
    let refused = store.txn(no_lease).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::Rejected(Rejection::LeaseNotFound { id: 99 }))
        ),
        "{refused:?}"
    );
    assert_eq!(value(&store, "d"), None, "nothing of it happened");
    let twice = Txn {
        success: vec![Op::put("d", "1"), Op::put("d", "2")],
        ..Txn::default()
    };
    let refused = store.txn(twice).await;
    assert!(matches!(
        refused,
        Err(StoreError::Rejected(Rejection::DuplicateKey { .. }))
    ));
    let put_deleted = Txn {
        success: vec![
            Op::put("d", "1"),
            Op::Delete {
                start: "c".into(),
                end: "e".into(),
            },
        ],
        ..Txn::default()
    };
    let refused = store.txn(put_deleted).await;
    assert!(matches!(
        refused,
        Err(StoreError::Rejected(Rejection::DuplicateKey { .. }))
    ));
    let unnamed = store.txn(Txn {
        success: vec![Op::put("", "1")],
        ..Txn::default()
    });
    assert!(matches!(
        unnamed.await,
        Err(StoreError::Rejected(Rejection::KeyLength { length: 0, .. }))
    ));

    let greater = Txn {
        compares: vec![Compare {
            end: Bytes::new(),
            key: "a".into(),
            target: CompareTarget::Value("0".into()),
            op: CompareOp::Greater,
        }],
        success: vec![Op::Delete {
            start: "a".into(),
            end: "z".into(),
        }],
        ..Txn::default()
    };
    let deleted = store.txn(greater).await.unwrap();
    let OpResponse::Delete { prev } = &deleted.responses[0] else {
        panic!("{deleted:?}");
    };
    assert_eq!(prev.len(), 3);
    assert_eq!(store.range(&RangeRequest::prefix("")).unwrap().count, 0);
}

#[tokio::test]
async fn concurrent_writers_each_get_their_own_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    let writers = (0..32).map(|writer| {
        let store = store.clone();
        async move {
            let mut revisions = Vec::new();
            for at in 0..20 {
                revisions.push(put(&store, &format!("{writer}/{at}"), "x").await);
                assert!(
                    store
                        .get(format!("{writer}/{at}").as_bytes())
                        .unwrap()
                        .is_some()
                );
            }
            assert!(revisions.is_sorted());
            revisions
        }
    });
    let mut revisions = join_all(writers).await.concat();
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=640).collect::<Vec<_>>());
    let syncs = store.health().sync.count;
    assert!(
        syncs < 640,
        "{syncs} syncs for 640 writes is no group commit"
    );
    assert_eq!(store.linearizable().await.unwrap(), 640);
}

#[tokio::test]
async fn watches_resume_anywhere_without_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let small = StoreConfig {
        watch_ring_events: 8,
        ..config(dir.path())
    };
    let store = Store::open(small).await.unwrap();
    let mut live = watch_prefix(&store, "k", None);
    let mut expected = Vec::new();
    for at in 0..60_u64 {
        let key = format!("k{}", at % 7);
        let (revision, kind) = if at % 5 == 4 && value(&store, &key).is_some() {
            (delete(&store, &key).await, EventKind::Delete)
        } else {
            (put(&store, &key, "x").await, EventKind::Put)
        };
        expected.push((revision, key, kind));
        put(&store, &format!("other{at}"), "x").await;
    }
    let last = expected.last().unwrap().0;
    assert_eq!(collect(&mut live, last).await, expected);
    for from in [0, 1, 2, 17, 60, last - 3, last] {
        let mut watcher = watch_prefix(&store, "k", Some(from));
        let last = expected.last().unwrap().0;
        let seen = collect(&mut watcher, last).await;
        let tail: Vec<_> = expected
            .iter()
            .filter(|event| event.0 >= from)
            .cloned()
            .collect();
        assert_eq!(seen, tail, "from {from}");
        let next_revision = put(&store, "k0", "after").await;
        let after = (next_revision, "k0".to_owned(), EventKind::Put);
        assert_eq!(
            collect(&mut watcher, next_revision).await,
            std::slice::from_ref(&after)
        );
        expected.push(after);
    }
    // After a restart the ring is empty and everything comes from the tables.
    let last = store.revision();
    store.shutdown().await;
    let store = Store::open(config(dir.path())).await.unwrap();
    let mut watcher = watch_prefix(&store, "k", Some(1));
    let seen = collect(&mut watcher, last).await;
    assert_eq!(seen, expected);
    let future = last + 3;
    let mut watcher = watch_prefix(&store, "k", Some(future));
    for at in 0..4 {
        put(&store, "k1", &at.to_string()).await;
    }
    assert_eq!(collect(&mut watcher, last + 4).await[0].0, future);
}

#[tokio::test]
async fn watch_events_carry_the_version_before() {
    let dir = tempfile::tempdir().unwrap();
    let no_ring = StoreConfig {
        watch_ring_events: 0,
        ..config(dir.path())
    };
    let store = Store::open(no_ring).await.unwrap();
    let mut live = watch_prefix(&store, "k", None);
    put(&store, "k", "1").await;
    put(&store, "k", "2").await;
    delete(&store, "k").await;
    put(&store, "k", "3").await;
    let mut past = watch_prefix(&store, "k", Some(1));
    for watcher in [&mut live, &mut past] {
        let mut events = Vec::new();
        while events.len() < 4 {
            events.extend(next(watcher).await.unwrap().events);
        }
        let prev: Vec<_> = events
            .iter()
            .map(|event| event.prev.as_ref().map(|kv| kv.value.to_vec()))
            .collect();
        assert_eq!(prev, [None, Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
        assert_eq!(events[2].kind, EventKind::Delete);
        assert_eq!(
            (events[2].kv.mod_revision, &events[2].kv.key[..]),
            (3, &b"k"[..])
        );
        assert_eq!((events[3].kv.create_revision, events[3].kv.version), (4, 1));
    }
}

#[tokio::test]
async fn slow_watchers_are_cut_off_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let small = StoreConfig {
        watch_buffer: 4,
        ..config(dir.path())
    };
    let store = Store::open(small).await.unwrap();
    let mut slow = watch_prefix(&store, "k", None);
    let mut quick = watch_prefix(&store, "k", None);
    for at in 0..10 {
        let revision = put(&store, "k", &at.to_string()).await;
        collect(&mut quick, revision).await;
    }
    assert_eq!(next(&mut slow).await, Err(WatchError::SlowConsumer));
    assert!(slow.next().await.is_none());
    assert_eq!(store.health().watchers, 1);
    drop(quick);
    assert_eq!(store.health().watchers, 0);
}

#[tokio::test]
async fn progress_bookmarks_come_without_events() {
    let dir = tempfile::tempdir().unwrap();
    let eager = StoreConfig {
        progress_interval: Duration::from_millis(1),
        ..config(dir.path())
    };
    let store = Store::open(eager).await.unwrap();
    let request = WatchRequest {
        start: "k".into(),
        progress: true,
        ..WatchRequest::default()
    };
    let mut watcher = store.watch(request).unwrap();
    let revision = put(&store, "other", "x").await;
    let batch = next(&mut watcher).await.unwrap();
    assert_eq!((batch.revision, batch.events.len()), (revision, 0));
    store.shutdown().await;
    assert_eq!(next(&mut watcher).await, Err(WatchError::Closed));
}

#[tokio::test]
async fn compaction_forgets_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let no_ring = StoreConfig {
        watch_ring_events: 0,
        ..config(dir.path())
    };
    let store = Store::open(no_ring.clone()).await.unwrap();
    put_all(
        &store,
        (0..600).map(|at| (format!("k{}", at % 3), at.to_string())),
    )
    .await;
    delete(&store, "k0").await;
    let mut behind = watch_prefix(&store, "k", Some(5));
    next(&mut behind).await.unwrap();
    store.compact(590).await.unwrap();
    assert_eq!(store.compacted_revision(), 590);
    assert!(matches!(
        store.compact(590).await,
        Err(StoreError::Compacted {
            requested: 590,
            compacted: 590
        })
    ));
    assert!(matches!(
        store.compact(9999).await,
        Err(StoreError::FutureRevision {
            requested: 9999,
            current: 601
        })
    ));
    for _ in 0..2 {
        assert!(matches!(
            store.get_at(b"k0", 589),
            Err(StoreError::Compacted { .. })
        ));
        assert_eq!(
            &store.get_at(b"k0", 590).unwrap().unwrap().value[..],
            b"588"
        );
        assert_eq!(
            &store.get_at(b"k0", 599).unwrap().unwrap().value[..],
            b"597"
        );
        assert_eq!(store.get_at(b"k0", 601).unwrap(), None);
    }
    loop {
        match next(&mut behind).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, WatchError::Compacted { compacted: 590 });
                break;
            }
        }
    }
    let gone = store.watch(WatchRequest {
        start: "k".into(),
        from_revision: Some(590),
        ..WatchRequest::default()
    });
    assert!(matches!(gone, Err(StoreError::Compacted { .. })));
    let mut kept = watch_prefix(&store, "k", Some(591));
    assert_eq!(collect(&mut kept, 601).await.len(), 11);
    drop(kept);
    store.shutdown().await;
    let store = Store::open(no_ring).await.unwrap();
    assert_eq!(store.compacted_revision(), 590);
    assert_eq!(
        &store.get_at(b"k1", 590).unwrap().unwrap().value[..],
        b"589"
    );
}

#[tokio::test]
async fn checkpoints_let_the_log_go() {
    let dir = tempfile::tempdir().unwrap();
    let small = StoreConfig {
        segment_bytes: 16 << 10,
        checkpoint_bytes: 64 << 10,
        ..config(dir.path())
    };
    let store = Store::open(small.clone()).await.unwrap();
    let value = "x".repeat(500);
    for _ in 0..20 {
        put_all(
            &store,
            (0..100).map(|at| (format!("k{}", at % 10), value.clone())),
        )
        .await;
    }
    let health = store.health();
    assert!(health.durable_index > 10, "{health:?}");
    tokio::time::timeout(LIMIT, async {
        while store.health().log_bytes > 200_000 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the log was not purged");
    store.shutdown().await;
    let store = Store::open(small).await.unwrap();
    assert_eq!(store.revision(), 2_000);
}

#[tokio::test]
async fn leases_end_with_their_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path())).await.unwrap();
    let short = store
        .grant_lease(0, Duration::from_millis(50))
        .await
        .unwrap();
    let long = store
        .grant_lease(77, Duration::from_hours(1))
        .await
        .unwrap();
    assert_eq!(long, 77);
    let exists = store.grant_lease(77, Duration::from_secs(1)).await;
    assert!(matches!(
        exists,
        Err(StoreError::Rejected(Rejection::LeaseExists { id: 77 }))
    ));
    let mut watcher = watch_prefix(&store, "l", None);
    let bind = |key: &'static str, lease| Txn {
        success: vec![Op::Put {
            key: key.into(),
            value: "x".into(),
            lease,
        }],
        ..Txn::default()
    };
    // The short one may have ended already on a slow machine.
    let bound = store.txn(bind("l/short", short)).await;
    store.txn(bind("l/long", long)).await.unwrap();
    assert_eq!(
        store.keep_lease_alive(long).await.unwrap(),
        Duration::from_hours(1)
    );
    if bound.is_ok() {
        loop {
            let batch = next(&mut watcher).await.unwrap();
            if batch
                .events
                .iter()
                .any(|event| event.kind == EventKind::Delete)
            {
                break;
            }
        }
    }
    assert_eq!(value(&store, "l/short"), None);
    store.shutdown().await;

    let store = Store::open(config(dir.path())).await.unwrap();
    assert_eq!(value(&store, "l/long").as_deref(), Some("x"));
    put(&store, "l/unbound", "x").await;
    store.revoke_lease(long).await.unwrap();
    assert_eq!(value(&store, "l/long"), None);
    assert_eq!(value(&store, "l/unbound").as_deref(), Some("x"));
    let gone = store.keep_lease_alive(long).await;
    assert!(matches!(
        gone,
        Err(StoreError::Rejected(Rejection::LeaseNotFound { .. }))
    ));
}

#[tokio::test]
async fn history_is_forgotten_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let short = StoreConfig {
        history_retention: Some(Duration::from_millis(20)),
        ..config(dir.path())
    };
    let store = Store::open(short).await.unwrap();
    let revision = put(&store, "a", "1").await;
    tokio::time::timeout(LIMIT, async {
        while store.compacted_revision() < revision {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("nothing was compacted");
    assert_eq!(value(&store, "a").as_deref(), Some("1"));
}

/// Prints numbers for people; asserts no time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prints_latencies() {
    if std::env::var_os("PINTLE_STORE_BENCH").is_none() {
        eprintln!("skipped: set PINTLE_STORE_BENCH to measure");
        return;
    }
    let parent =
        std::env::var_os("PINTLE_STORE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(parent).unwrap();
    let opened = Instant::now();
    let store = Store::open(config(dir.path())).await.unwrap();
    eprintln!("first open {:?}", opened.elapsed());
    let value = "x".repeat(1024);
    let mut took = Vec::new();
    for at in 0..2_000 {
        let started = Instant::now();
        put(&store, &format!("/registry/pods/{at}"), &value).await;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    let sync = store.health().sync;
    eprintln!(
        "sequential put p50 {:?} p99 {:?}, mean sync {:?}",
        took[1000],
        took[1980],
        sync.total / u32::try_from(sync.count).unwrap()
    );
    let reopened = Instant::now();
    store.shutdown().await;
    let store = Store::open(config(dir.path())).await.unwrap();
    eprintln!(
        "shutdown and reopen of a small store {:?}",
        reopened.elapsed()
    );
    for clients in [64, 1_000] {
        let started = Instant::now();
        let each = 40_000 / clients;
        let tasks: Vec<_> = (0..clients)
            .map(|client| {
                let (store, value) = (store.clone(), value.clone());
                tokio::spawn(async move {
                    for at in 0..each {
                        put(&store, &format!("/registry/{client}/{at}"), &value).await;
                    }
                })
            })
            .collect();
        join_all(tasks).await;
        let rate = f64::from(each * clients) / started.elapsed().as_secs_f64();
        eprintln!("{clients} clients: {rate:.0} puts/s");
    }
    let started = Instant::now();
    for at in 0..100_000 {
        store
            .get(format!("/registry/pods/{}", at % 2_000).as_bytes())
            .unwrap();
    }
    eprintln!("get {:?}", started.elapsed() / 100_000);
    let started = Instant::now();
    let all = store
        .range(&RangeRequest::prefix("/registry/pods/"))
        .unwrap();
    eprintln!("range of {} in {:?}", all.kvs.len(), started.elapsed());
    let started = Instant::now();
    store.shutdown().await;
    eprintln!("shutdown {:?}", started.elapsed());
    let started = Instant::now();
    let store = Store::open(config(dir.path())).await.unwrap();
    eprintln!(
        "reopen {:?} at revision {}",
        started.elapsed(),
        store.revision()
    );
    eprintln!(
        "state {} bytes",
        fs::metadata(dir.path().join("state.redb")).unwrap().len()
    );
}
