//! Leases.

use std::time::Duration;

use pintle_proto::etcd::etcdserverpb as pb;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{PATIENCE, Server, get, put, refused};

fn grant(id: i64, ttl: i64) -> pb::LeaseGrantRequest {
    pb::LeaseGrantRequest { ttl, id }
}

#[tokio::test]
async fn keys_go_with_their_lease() {
    let server = Server::start().await;
    let mut leases = server.lease();
    let granted = leases.lease_grant(grant(0, 1)).await.unwrap().into_inner();
    assert!(granted.id > 0);
    assert_eq!(granted.ttl, 2, "no lease is shorter");
    let attached = pb::PutRequest {
        lease: granted.id,
        ..put("a", "1")
    };
    server.kv().put(attached).await.unwrap();

    let ask = |keys| pb::LeaseTimeToLiveRequest {
        id: granted.id,
        keys,
    };
    let state = leases.lease_time_to_live(ask(true)).await.unwrap();
    let state = state.into_inner();
    assert_eq!((state.granted_ttl, state.keys), (2, vec!["a".into()]));
    assert!((0..=2).contains(&state.ttl));
    let plain = leases.lease_time_to_live(ask(false)).await.unwrap();
    assert!(plain.into_inner().keys.is_empty());

    // It ends by itself.
    tokio::time::timeout(PATIENCE, async {
        while !server.range(get("a")).await.kvs.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let state = leases.lease_time_to_live(ask(true)).await.unwrap();
    assert_eq!(state.into_inner().ttl, -1);
}

#[tokio::test]
async fn a_lease_is_kept_alive_and_revoked() {
    let server = Server::start().await;
    let mut leases = server.lease();
    leases.lease_grant(grant(7, 60)).await.unwrap();
    let ids = [7, 8, -1].map(|id| pb::LeaseKeepAliveRequest { id });
    let answers = leases
        .lease_keep_alive(tokio_stream::iter(ids))
        .await
        .unwrap();
    let answers: Vec<_> = answers
        .into_inner()
        .map(|answer| answer.map(|answer| (answer.id, answer.ttl)).unwrap())
        .collect()
        .await;
    assert_eq!(answers, [(7, 60), (8, 0), (-1, 0)]);

    let attached = pb::PutRequest {
        lease: 7,
        ..put("a", "1")
    };
    server.kv().put(attached).await.unwrap();
    let revoke = pb::LeaseRevokeRequest { id: 7 };
    leases.lease_revoke(revoke).await.unwrap();
    assert!(server.range(get("a")).await.kvs.is_empty());
    assert_eq!(
        refused(leases.lease_revoke(revoke).await),
        (
            Code::NotFound,
            "etcdserver: requested lease not found".to_owned()
        )
    );
}

#[tokio::test]
async fn the_stores_own_leases_are_out_of_reach() {
    let server = Server::start().await;
    let own = server.store.grant_lease(0, PATIENCE).await.unwrap();
    let mut leases = server.lease();
    leases.lease_grant(grant(7, 60)).await.unwrap();
    let listed = leases
        .lease_leases(pb::LeaseLeasesRequest {})
        .await
        .unwrap();
    let listed: Vec<_> = listed.into_inner().leases.iter().map(|it| it.id).collect();
    assert_eq!(listed, [7]);
    let id = own.cast_signed();
    let revoke = leases.lease_revoke(pb::LeaseRevokeRequest { id }).await;
    assert_eq!(refused(revoke).0, Code::NotFound);
    assert!(server.store.lease(own).is_some());
}

#[tokio::test]
async fn a_grant_that_cannot_be_is_refused() {
    let server = Server::start().await;
    let mut leases = server.lease();
    leases.lease_grant(grant(7, 60)).await.unwrap();
    for (request, code, text) in [
        (
            grant(7, 60),
            Code::FailedPrecondition,
            "etcdserver: lease already exists",
        ),
        (
            grant(0, 9_000_000_001),
            Code::OutOfRange,
            "etcdserver: too large lease TTL",
        ),
        (
            grant(-1, 60),
            Code::InvalidArgument,
            "etcdserver: a lease ID must be positive",
        ),
    ] {
        let outcome = refused(leases.lease_grant(request).await);
        assert_eq!(outcome, (code, text.to_owned()));
    }
}
