//! Transactions in transactions, updates, conditions on ranges, and what is known of leases.

use std::time::Duration;

use bytes::Bytes;

use super::Store;
use crate::config::StoreConfig;
use crate::error::{Rejection, StoreError};
use crate::key_value::{
    Compare, CompareOp, CompareTarget, Op, OpResponse, RangeRequest, Txn, TxnResponse,
};
use crate::watch::{WatchBatch, WatchError, WatchRequest};

async fn open(dir: &std::path::Path) -> Store {
    let config = StoreConfig {
        data_dir: dir.to_path_buf(),
        ..StoreConfig::default()
    };
    Store::open(config).await.unwrap()
}

async fn run(store: &Store, success: Vec<Op>) -> Result<TxnResponse, StoreError> {
    let txn = Txn {
        success,
        ..Txn::default()
    };
    store.txn(txn).await
}

fn version(key: &'static str, end: &'static str, op: CompareOp, version: u64) -> Compare {
    Compare {
        key: Bytes::from_static(key.as_bytes()),
        end: Bytes::from_static(end.as_bytes()),
        target: CompareTarget::Version(version),
        op,
    }
}

#[tokio::test]
async fn an_inner_transaction_decides_on_the_state_before_the_outer_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let inner = Txn {
        compares: vec![Compare::absent("a")],
        success: vec![Op::put("b", "a was absent"), Op::get("a")],
        failure: vec![Op::put("b", "a was there")],
    };
    let outer = vec![Op::put("a", "1"), Op::Txn(inner), Op::get("b")];
    let first = run(&store, outer.clone()).await.unwrap();
    assert_eq!(first.revision, 1, "one revision for all of it");
    let [
        OpResponse::Put { prev: None },
        OpResponse::Txn(inner),
        OpResponse::Range(b),
    ] = &first.responses[..]
    else {
        panic!("{first:?}")
    };
    assert!(inner.succeeded);
    let OpResponse::Range(a) = &inner.responses[1] else {
        panic!("{inner:?}")
    };
    assert_eq!(
        &a.kvs[0].value[..],
        b"1",
        "reads see the writes before them"
    );
    assert_eq!(&b.kvs[0].value[..], b"a was absent");

    let second = run(&store, outer).await.unwrap();
    let OpResponse::Txn(inner) = &second.responses[1] else {
        panic!("{second:?}")
    };
    assert!(!inner.succeeded);
    assert_eq!(&store.get(b"b").unwrap().unwrap().value[..], b"a was there");

    let read = Txn {
        success: vec![Op::Txn(Txn {
            success: vec![Op::get("b")],
            ..Txn::default()
        })],
        ..Txn::default()
    };
    let read = store.txn(read).await.unwrap();
    assert_eq!(read.revision, 2, "reading changes nothing");
    assert!(matches!(&read.responses[..], [OpResponse::Txn(inner)] if inner.succeeded));
}

#[tokio::test]
async fn a_refusal_inside_undoes_everything() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let update = Op::Update {
        key: Bytes::from_static(b"missing"),
        value: Some(Bytes::new()),
        lease: None,
    };
    let inner = Txn {
        success: vec![update],
        ..Txn::default()
    };
    let refused = run(&store, vec![Op::put("a", "1"), Op::Txn(inner)]).await;
    assert!(matches!(
        refused,
        Err(StoreError::Rejected(Rejection::KeyNotFound { key })) if key == "missing"
    ));
    assert_eq!(store.revision(), 0);
}

#[tokio::test]
async fn branches_exclude_each_other_and_paths_write_a_key_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let both = Txn {
        compares: vec![Compare::absent("a")],
        success: vec![Op::put("a", "1")],
        failure: vec![Op::delete("a"), Op::put("b", "1")],
    };
    run(&store, vec![Op::Txn(both.clone())]).await.unwrap();
    for more in [
        Op::put("b", "2"),
        Op::Txn(both.clone()),
        Op::Delete {
            start: Bytes::from_static(b"a"),
            end: Bytes::from_static(b"c"),
        },
    ] {
        let refused = run(&store, vec![Op::Txn(both.clone()), more]).await;
        assert!(matches!(
            refused,
            Err(StoreError::Rejected(Rejection::DuplicateKey { .. }))
        ));
    }
}

#[tokio::test]
async fn an_update_keeps_what_is_not_given() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let lease = store.grant_lease(7, Duration::from_mins(1)).await.unwrap();
    let put = Op::Put {
        key: Bytes::from_static(b"a"),
        value: Bytes::from_static(b"1"),
        lease,
    };
    run(&store, vec![put]).await.unwrap();
    let update = |value: Option<&'static str>, lease| Op::Update {
        key: Bytes::from_static(b"a"),
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
        lease,
    };
    run(&store, vec![update(Some("2"), None)]).await.unwrap();
    let kv = store.get(b"a").unwrap().unwrap();
    assert_eq!((&kv.value[..], kv.lease, kv.version), (&b"2"[..], 7, 2));
    run(&store, vec![update(None, Some(0))]).await.unwrap();
    let kv = store.get(b"a").unwrap().unwrap();
    assert_eq!((&kv.value[..], kv.lease, kv.version), (&b"2"[..], 0, 3));
    assert!(store.lease_keys(7).unwrap().is_empty());
}

#[tokio::test]
async fn a_condition_on_a_range_holds_for_every_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    run(&store, vec![Op::put("a/1", ""), Op::put("a/2", "")])
        .await
        .unwrap();
    run(&store, vec![Op::put("a/2", "")]).await.unwrap();
    let holds = async |compare: Compare| {
        let txn = Txn {
            compares: vec![compare],
            success: vec![Op::Range(RangeRequest::default())],
            ..Txn::default()
        };
        store.txn(txn).await.unwrap().succeeded
    };
    assert!(holds(version("a/", "a0", CompareOp::Greater, 0)).await);
    assert!(!holds(version("a/", "a0", CompareOp::Equal, 1)).await);
    assert!(holds(version("b/", "b0", CompareOp::Equal, 0)).await);
    assert!(!holds(version("b0", "b/", CompareOp::Greater, 0)).await);
}

#[tokio::test]
async fn leases_can_be_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    assert!(store.lease(7).is_none());
    store.grant_lease(7, Duration::from_mins(1)).await.unwrap();
    let own = store.grant_lease(0, Duration::from_mins(1)).await.unwrap();
    assert!(own > i64::MAX.cast_unsigned());
    assert_eq!(store.leases(), [7, own]);
    let put = |key: &'static str| Op::Put {
        key: Bytes::from_static(key.as_bytes()),
        value: Bytes::new(),
        lease: 7,
    };
    run(&store, vec![put("b"), put("a")]).await.unwrap();
    assert_eq!(store.lease_keys(7).unwrap(), ["a", "b"]);
    let state = store.lease(7).unwrap();
    assert_eq!(state.ttl, Duration::from_mins(1));
    assert!(state.left <= state.ttl);
    assert!(store.state_bytes().unwrap() > 0);
    assert_eq!((store.member_id(), store.term()), (1, store.health().term));
}

#[tokio::test]
async fn equal_contents_have_equal_hashes() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (open(one.path()).await, open(other.path()).await);
    for store in [&one, &other] {
        run(store, vec![Op::put("a", "1")]).await.unwrap();
        run(store, vec![Op::put("b", "1")]).await.unwrap();
    }
    let at_two = one.hash(None).unwrap();
    assert_eq!(at_two, other.hash(None).unwrap());
    assert_eq!(at_two.1, 2);
    run(&one, vec![Op::put("b", "2")]).await.unwrap();
    assert_ne!(one.hash(None).unwrap().0, at_two.0);
    assert_eq!(one.hash(Some(2)).unwrap(), at_two);
    assert!(matches!(
        one.hash(Some(9)),
        Err(StoreError::FutureRevision { .. })
    ));
}

#[tokio::test]
async fn bookmarks_come_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for _ in 0..3 {
        run(&store, vec![Op::put("other", "")]).await.unwrap();
    }
    let watch = |from| {
        let request = WatchRequest {
            start: Bytes::from_static(b"k"),
            from_revision: Some(from),
            progress: true,
            ..WatchRequest::default()
        };
        store.watch(request).unwrap()
    };
    let mut waiting = watch(4);
    run(&store, vec![Op::put("k", "")]).await.unwrap();
    run(&store, vec![Op::put("other", "")]).await.unwrap();
    assert_eq!(store.bookmark_watchers(), 5);
    let said = |batch: Option<Result<WatchBatch, WatchError>>| {
        let batch = batch.unwrap().unwrap();
        (batch.revision, batch.events.len())
    };
    assert_eq!(said(waiting.next().await), (4, 1), "what waits comes first");
    assert_eq!(said(waiting.next().await), (5, 0));
}
