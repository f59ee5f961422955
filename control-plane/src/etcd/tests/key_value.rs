//! Range, put, delete, transactions and compaction.

use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::range_request::{SortOrder, SortTarget};
use pb::request_op::Request;
use pb::response_op::Response;
use pintle_proto::etcd::etcdserverpb as pb;
use tonic::Code;

use super::{Server, get, get_from, keys, put, refused};

fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp {
        request: Some(request),
    }
}

fn version(key: &str, result: CompareResult, version: i64) -> pb::Compare {
    pb::Compare {
        result: result.into(),
        target: CompareTarget::Version.into(),
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::Version(version)),
        ..pb::Compare::default()
    }
}

#[tokio::test]
async fn what_was_put_is_there() {
    let server = Server::start().await;
    let first = server.put("a", "1").await;
    let second = server.put("a", "2").await;
    assert_eq!(second, first + 1);
    let response = server.range(get("a")).await;
    let header = response.header.unwrap();
    assert_eq!((header.revision, header.member_id), (second, 1));
    assert!(header.cluster_id != 0 && header.raft_term > 0);
    assert_eq!((response.count, response.more), (1, false));
    let kv = &response.kvs[0];
    assert_eq!((&kv.key[..], &kv.value[..]), (&b"a"[..], &b"2"[..]));
    assert_eq!(
        (kv.create_revision, kv.mod_revision, kv.version, kv.lease),
        (first, second, 2, 0)
    );

    let old = pb::RangeRequest {
        revision: first,
        serializable: true,
        ..get("a")
    };
    assert_eq!(&server.range(old).await.kvs[0].value[..], b"1");
    let future = pb::RangeRequest {
        revision: second + 1,
        ..get("a")
    };
    assert_eq!(
        refused(server.kv().range(future).await),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision".to_owned()
        )
    );
    assert_eq!(
        refused(server.kv().range(get("")).await),
        (
            Code::InvalidArgument,
            "etcdserver: key is not provided".to_owned()
        )
    );
    assert!(server.range(get("missing")).await.kvs.is_empty());
}

#[tokio::test]
async fn ranges_are_limited_sorted_and_filtered() {
    let server = Server::start().await;
    // Versions: a 1, b 3, c 2; values against the order of keys.
    for (key, value) in [
        ("b", "2"),
        ("b", "2"),
        ("c", "1"),
        ("a", "3"),
        ("c", "1"),
        ("b", "2"),
    ] {
        server.put(key, value).await;
    }
    let all = || get_from(b"\0");
    let response = server.range(all()).await;
    assert_eq!(keys(&response.kvs), ["a", "b", "c"]);
    let limited = server.range(pb::RangeRequest { limit: 2, ..all() }).await;
    assert_eq!(keys(&limited.kvs), ["a", "b"]);
    assert_eq!((limited.more, limited.count), (true, 3));

    let sorted = async |target: SortTarget, order: SortOrder, limit: i64| {
        let request = pb::RangeRequest {
            sort_target: target.into(),
            sort_order: order.into(),
            limit,
            ..all()
        };
        let response = server.range(request).await;
        (keys(&response.kvs).concat(), response.more)
    };
    assert_eq!(
        sorted(SortTarget::Key, SortOrder::Descend, 2).await,
        ("cb".into(), true)
    );
    assert_eq!(
        sorted(SortTarget::Version, SortOrder::Ascend, 0).await,
        ("acb".into(), false)
    );
    assert_eq!(
        sorted(SortTarget::Create, SortOrder::None, 0).await,
        ("bca".into(), false)
    );
    assert_eq!(
        sorted(SortTarget::Mod, SortOrder::Descend, 1).await,
        ("b".into(), true)
    );
    assert_eq!(
        sorted(SortTarget::Value, SortOrder::Ascend, 3).await,
        ("cba".into(), false)
    );

    let by_value = pb::RangeRequest {
        sort_target: SortTarget::Value.into(),
        keys_only: true,
        ..all()
    };
    let response = server.range(by_value).await;
    assert_eq!(keys(&response.kvs), ["c", "b", "a"]);
    assert!(response.kvs.iter().all(|kv| kv.value.is_empty()));

    let filtered = pb::RangeRequest {
        min_mod_revision: 5,
        max_create_revision: 2,
        ..all()
    };
    let response = server.range(filtered).await;
    assert_eq!(
        (keys(&response.kvs), response.count),
        (vec!["b".to_owned()], 3)
    );
    let counted = pb::RangeRequest {
        count_only: true,
        ..all()
    };
    let response = server.range(counted).await;
    assert_eq!((response.kvs.len(), response.count), (0, 3));
    let half_open = pb::RangeRequest {
        range_end: "c".into(),
        ..get("b")
    };
    assert_eq!(keys(&server.range(half_open).await.kvs), ["b"]);
    let odd = pb::RangeRequest {
        sort_order: 9,
        ..all()
    };
    assert_eq!(
        refused(server.kv().range(odd).await).1,
        "etcdserver: invalid sort option"
    );
}

#[tokio::test]
async fn the_stores_own_keys_are_out_of_reach() {
    let server = Server::start().await;
    server.put_own("/registry/pods/default/web").await;
    server.put_own("/etcd").await;
    server.put_own("/etcd0").await;
    server.put("/registry/pods/default/web", "a client's").await;
    let response = server.range(get_from(b"\0")).await;
    assert_eq!(keys(&response.kvs), ["/registry/pods/default/web"]);
    let everything = pb::DeleteRangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        prev_kv: true,
    };
    let gone = server.kv().delete_range(everything).await.unwrap();
    let gone = gone.into_inner();
    assert_eq!((gone.deleted, keys(&gone.prev_kvs).len()), (1, 1));
    for key in ["/registry/pods/default/web", "/etcd", "/etcd0"] {
        let kv = server.store.get(key.as_bytes()).unwrap().unwrap();
        assert_eq!(&kv.value[..], b"own", "{key}");
    }
}

#[tokio::test]
async fn puts_and_deletes_answer_what_was_before() {
    let server = Server::start().await;
    let with_prev = |key: &str, value: &str| pb::PutRequest {
        prev_kv: true,
        ..put(key, value)
    };
    let first = server.kv().put(with_prev("a", "1")).await.unwrap();
    assert_eq!(first.into_inner().prev_kv, None);
    let second = server.kv().put(with_prev("a", "2")).await.unwrap();
    assert_eq!(&second.into_inner().prev_kv.unwrap().value[..], b"1");
    let third = server.kv().put(put("a", "3")).await.unwrap();
    assert_eq!(third.into_inner().prev_kv, None, "not asked for");

    let nothing = pb::DeleteRangeRequest {
        key: "b".into(),
        ..pb::DeleteRangeRequest::default()
    };
    let before = server.store.revision();
    let response = server
        .kv()
        .delete_range(nothing)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.deleted, 0);
    assert_eq!(server.store.revision(), before, "nothing changed");
    let one = pb::DeleteRangeRequest {
        key: "a".into(),
        prev_kv: true,
        ..pb::DeleteRangeRequest::default()
    };
    let response = server.kv().delete_range(one).await.unwrap().into_inner();
    assert_eq!(
        (response.deleted, &response.prev_kvs[0].value[..]),
        (1, &b"3"[..])
    );
}

#[tokio::test]
async fn a_put_may_keep_value_or_lease() {
    let server = Server::start().await;
    let grant = pb::LeaseGrantRequest { ttl: 60, id: 7 };
    server.lease().lease_grant(grant).await.unwrap();
    let keep_value = |lease: i64| pb::PutRequest {
        ignore_value: true,
        lease,
        ..put("a", "")
    };
    assert_eq!(
        refused(server.kv().put(keep_value(0)).await),
        (
            Code::InvalidArgument,
            "etcdserver: key not found".to_owned()
        )
    );
    server.put("a", "1").await;
    server.kv().put(keep_value(7)).await.unwrap();
    let keep_lease = pb::PutRequest {
        ignore_lease: true,
        ..put("a", "2")
    };
    server.kv().put(keep_lease.clone()).await.unwrap();
    let kv = server.range(get("a")).await.kvs.remove(0);
    assert_eq!((&kv.value[..], kv.lease, kv.version), (&b"2"[..], 7, 3));
    for (request, text) in [
        (
            pb::PutRequest {
                value: "x".into(),
                ..keep_value(0)
            },
            "etcdserver: value is provided",
        ),
        (
            pb::PutRequest {
                lease: 7,
                ..keep_lease
            },
            "etcdserver: lease is provided",
        ),
        (put("", "x"), "etcdserver: key is not provided"),
    ] {
        assert_eq!(
            refused(server.kv().put(request).await),
            (Code::InvalidArgument, text.to_owned())
        );
    }
    for lease in [8, -1] {
        let unknown = pb::PutRequest {
            lease,
            ..put("a", "x")
        };
        assert_eq!(
            refused(server.kv().put(unknown).await),
            (
                Code::NotFound,
                "etcdserver: requested lease not found".to_owned()
            )
        );
    }
    let long = pb::PutRequest {
        value: vec![0; 16 << 20].into(),
        ..put("a", "")
    };
    assert_eq!(
        refused(server.kv().put(long).await),
        (
            Code::InvalidArgument,
            "etcdserver: request is too large".to_owned()
        )
    );
}

#[tokio::test]
async fn transactions_choose_a_branch() {
    let server = Server::start().await;
    let create = || pb::TxnRequest {
        compare: vec![version("a", CompareResult::Equal, 0)],
        success: vec![
            op(Request::RequestPut(put("a", "1"))),
            op(Request::RequestTxn(pb::TxnRequest {
                compare: vec![version("a", CompareResult::Greater, -1)],
                success: vec![op(Request::RequestPut(put("b", "1")))],
                ..pb::TxnRequest::default()
            })),
        ],
        failure: vec![
            op(Request::RequestRange(get("a"))),
            op(Request::RequestDeleteRange(pb::DeleteRangeRequest {
                key: "b".into(),
                prev_kv: true,
                ..pb::DeleteRangeRequest::default()
            })),
        ],
    };
    let done = server.txn(create()).await.unwrap();
    assert!(done.succeeded);
    let [first, second] = &done.responses[..] else {
        panic!("{done:?}")
    };
    assert!(matches!(&first.response, Some(Response::ResponsePut(_))));
    let Some(Response::ResponseTxn(inner)) = &second.response else {
        panic!("{second:?}")
    };
    assert!(inner.succeeded);
    let at = done.header.unwrap().revision;
    let both = server.range(get_from(b"a")).await.kvs;
    assert!(both.iter().all(|kv| kv.mod_revision == at), "{both:?}");

    let done = server.txn(create()).await.unwrap();
    assert!(!done.succeeded);
    let Some(Response::ResponseRange(range)) = &done.responses[0].response else {
        panic!("{done:?}")
    };
    assert_eq!(&range.kvs[0].value[..], b"1");
    let Some(Response::ResponseDeleteRange(deleted)) = &done.responses[1].response else {
        panic!("{done:?}")
    };
    assert_eq!(
        (deleted.deleted, keys(&deleted.prev_kvs)),
        (1, vec!["b".to_owned()])
    );
}

#[tokio::test]
async fn compares_look_at_everything() {
    use CompareResult::{Equal, Greater, Less, NotEqual};

    let server = Server::start().await;
    let revision = server.put("a", "m").await;
    let compare = |result: CompareResult, given: TargetUnion| pb::Compare {
        result: result.into(),
        key: "a".into(),
        target_union: Some(given),
        ..pb::Compare::default()
    };
    for (result, given, holds) in [
        (Equal, TargetUnion::ModRevision(revision), true),
        (Equal, TargetUnion::CreateRevision(revision), true),
        (Greater, TargetUnion::ModRevision(revision), false),
        (Less, TargetUnion::Version(2), true),
        (Greater, TargetUnion::Value("l".into()), true),
        (NotEqual, TargetUnion::Value("m".into()), false),
        (Equal, TargetUnion::Lease(0), true),
        (Greater, TargetUnion::Version(-1), true),
        (NotEqual, TargetUnion::Version(-1), true),
        (Equal, TargetUnion::Version(-1), false),
        (Less, TargetUnion::Version(-1), false),
    ] {
        let request = pb::TxnRequest {
            compare: vec![compare(result, given.clone())],
            ..pb::TxnRequest::default()
        };
        let response = server.txn(request).await.unwrap();
        assert_eq!(response.succeeded, holds, "{result:?} {given:?}");
    }
    server.put("b", "x").await;
    let ranged = |value: &'static str| pb::TxnRequest {
        compare: vec![pb::Compare {
            range_end: vec![0].into(),
            ..compare(Greater, TargetUnion::Value(value.into()))
        }],
        ..pb::TxnRequest::default()
    };
    assert!(server.txn(ranged("l")).await.unwrap().succeeded);
    assert!(!server.txn(ranged("m")).await.unwrap().succeeded);
}

#[tokio::test]
async fn transactions_without_a_defined_result_are_refused() {
    let server = Server::start().await;
    let puts = |count: usize| {
        let puts = (0..count).map(|n| op(Request::RequestPut(put(&n.to_string(), ""))));
        puts.collect::<Vec<_>>()
    };
    let nested = |outer: usize, inner: usize| {
        let mut success = puts(outer);
        success.push(op(Request::RequestTxn(pb::TxnRequest {
            failure: puts(inner),
            ..pb::TxnRequest::default()
        })));
        success
    };
    let twice = || op(Request::RequestPut(put("a", "1")));
    let covered = op(Request::RequestDeleteRange(pb::DeleteRangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..pb::DeleteRangeRequest::default()
    }));
    let too_many = "etcdserver: too many operations in txn request";
    let duplicate = "etcdserver: duplicate key given in txn request";
    for (success, text) in [
        (puts(129), too_many),
        (nested(100, 28), too_many),
        (vec![twice(), twice()], duplicate),
        (vec![twice(), covered], duplicate),
        (nested(3, 1), duplicate),
        (vec![pb::RequestOp::default()], "etcdserver: key not found"),
        (
            vec![op(Request::RequestRange(get("")))],
            "etcdserver: key is not provided",
        ),
    ] {
        let request = pb::TxnRequest {
            success,
            ..pb::TxnRequest::default()
        };
        assert_eq!(
            refused(server.txn(request).await),
            (Code::InvalidArgument, text.to_owned())
        );
    }
    assert_eq!(server.store.revision(), 0);
    let most = pb::TxnRequest {
        success: puts(128),
        ..pb::TxnRequest::default()
    };
    assert_eq!(server.txn(most).await.unwrap().responses.len(), 128);
}

#[tokio::test]
async fn compaction_forgets() {
    let server = Server::start().await;
    let first = server.put("a", "1").await;
    let second = server.put("a", "2").await;
    let compact = async |revision: i64| {
        let request = pb::CompactionRequest {
            revision,
            physical: true,
        };
        server.kv().compact(request).await
    };
    compact(second).await.unwrap();
    let gone = (
        Code::OutOfRange,
        "etcdserver: mvcc: required revision has been compacted".to_owned(),
    );
    assert_eq!(refused(compact(first).await), gone);
    assert_eq!(
        refused(compact(second + 9).await).1,
        "etcdserver: mvcc: required revision is a future revision"
    );
    let old = pb::RangeRequest {
        revision: first,
        ..get("a")
    };
    assert_eq!(refused(server.kv().range(old).await), gone);
    assert_eq!(server.range(get("a")).await.kvs.len(), 1);
}
