//! Status, hashes, alarms, members, and what is not there.

use std::time::Duration;

use futures_util::StreamExt as _;
use pb::alarm_request::AlarmAction;
use pb::maintenance_server::Maintenance;
use pintle_proto::etcd::{etcdserverpb as pb, mvccpb};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::{Code, Request};

use super::{PATIENCE, Server, refused};
use crate::etcd::Etcd;
use crate::etcd::snapshot::{reader, send};

#[tokio::test]
async fn a_member_tells_how_it_does() {
    let server = Server::start().await;
    let revision = server.put("a", "1").await;
    let status = server.maintenance().status(pb::StatusRequest {}).await;
    let status = status.unwrap().into_inner();
    assert!(status.version.starts_with("3.5."));
    assert_eq!((status.leader, status.is_learner), (1, false));
    assert!(status.db_size > 0 && status.raft_index > 0 && status.raft_term > 0);
    assert_eq!(status.header.unwrap().revision, revision);
    assert!(status.errors.is_empty());

    let mut cluster = server.cluster();
    let members = cluster.member_list(pb::MemberListRequest { linearizable: true });
    let members = members.await.unwrap().into_inner().members;
    assert_eq!((members.len(), members[0].id), (1, 1));
    assert_eq!(members[0].name, "n1");
    assert!(members[0].client_ur_ls[0].starts_with("http://127.0.0.1:"));
}

#[tokio::test]
async fn a_hash_is_of_a_revision() {
    let server = Server::start().await;
    let first = server.put("a", "1").await;
    let hash = async |revision: i64| {
        let request = pb::HashKvRequest { revision };
        let response = server.maintenance().hash_kv(request).await?.into_inner();
        Ok::<_, tonic::Status>((response.hash, response.header.unwrap().revision))
    };
    let before = hash(0).await.unwrap();
    assert_eq!(before.1, first);
    server.put("a", "2").await;
    assert_ne!(hash(0).await.unwrap().0, before.0);
    assert_eq!(hash(first).await.unwrap(), before);
    assert_eq!(refused(hash(99).await).0, Code::OutOfRange);
}

#[tokio::test]
async fn alarms_are_the_stores_own() {
    let server = Server::start().await;
    let ask = async |action: AlarmAction| {
        let request = pb::AlarmRequest {
            action: action.into(),
            ..pb::AlarmRequest::default()
        };
        server.maintenance().alarm(request).await
    };
    for action in [AlarmAction::Get, AlarmAction::Deactivate] {
        assert!(ask(action).await.unwrap().into_inner().alarms.is_empty());
    }
    let refused = refused(ask(AlarmAction::Activate).await);
    assert_eq!(refused.0, Code::Unimplemented);
}

#[tokio::test]
async fn a_snapshot_is_an_etcd_database() {
    let server = Server::start().await;
    server.put_own("/registry/not-of-clients").await;
    let first = server.put("a", "1").await;
    let second = server.put("a", "22").await;
    let third = server.put("b", "3").await;
    let delete = pb::DeleteRangeRequest {
        key: "b".into(),
        ..pb::DeleteRangeRequest::default()
    };
    server.kv().delete_range(delete).await.unwrap();
    // Larger than a page, and than a chunk.
    let large = "x".repeat(300_000);
    let fifth = server.put("large", &large).await;
    let grant = pb::LeaseGrantRequest { id: 77, ttl: 600 };
    server.lease().lease_grant(grant).await.unwrap();
    server.put_own("/registry/another").await;

    let answers = server.maintenance().snapshot(pb::SnapshotRequest {}).await;
    let mut answers = answers.unwrap().into_inner();
    let mut file = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        file.extend_from_slice(&answer.blob);
        let header = answer.header.unwrap();
        assert_eq!(header.revision, fifth + 1);
        assert_eq!(answer.remaining_bytes % 4096, 0);
    }
    assert_eq!(file.len() % 512, 32);
    let hash = file.split_off(file.len() - 32);
    assert_eq!(hash, Sha256::digest(&file).to_vec());

    let buckets = reader::read(&file);
    let names: Vec<_> = buckets.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "alarm",
            "auth",
            "authRoles",
            "authUsers",
            "cluster",
            "key",
            "lease",
            "members",
            "members_removed",
            "meta",
        ]
    );
    let versions: Vec<_> = buckets["key"]
        .iter()
        .map(|(key, row)| {
            let revision = i64::from_be_bytes(key[..8].try_into().unwrap());
            let kv = mvccpb::KeyValue::decode(&row[..]).unwrap();
            let key_text = String::from_utf8(kv.key.to_vec()).unwrap();
            assert_eq!((key[8], &key[9..17]), (b'_', &[0; 8][..]));
            (
                revision,
                key.get(17).copied(),
                key_text,
                kv.value.len(),
                kv.version,
            )
        })
        .collect();
    let row = |revision, deleted, key: &str, value, version| {
        (revision, deleted, key.to_owned(), value, version)
    };
    assert_eq!(
        versions,
        [
            row(first, None, "a", 1, 1),
            row(second, None, "a", 2, 2),
            row(third, None, "b", 1, 1),
            row(third + 1, Some(b't'), "b", 0, 0),
            row(fifth, None, "large", large.len(), 1),
        ]
    );
    let leases: Vec<_> = buckets["lease"].keys().cloned().collect();
    assert_eq!(leases, [77_i64.to_be_bytes().to_vec()]);
    assert!(buckets["meta"].contains_key(&b"consistent_index"[..]));
}

/// A server with a snapshot that is under way, and a client that reads none of it.
async fn unread_snapshot() -> (Server, <Etcd as Maintenance>::SnapshotStream) {
    let server = Server::start().await;
    // More than waits for a client.
    server.put("large", &"x".repeat(1_000_000)).await;
    let request = Request::new(pb::SnapshotRequest {});
    let answers = server.etcd.snapshot(request).await;
    (server, answers.unwrap().into_inner())
}

/// Reads on: chunks, and at last an error, so that nobody takes the file for whole.
async fn broken_off(answers: <Etcd as Maintenance>::SnapshotStream) -> Code {
    let mut answers: Vec<_> = answers.collect().await;
    let last = answers.pop().unwrap();
    assert!(answers.iter().all(Result::is_ok));
    refused(last).0
}

#[tokio::test]
async fn a_stop_breaks_off_a_snapshot_that_nobody_reads() {
    let (server, answers) = unread_snapshot().await;
    server.stop.cancel();
    let tasks = &server.etcd.inner.tasks;
    tasks.close();
    tokio::time::timeout(PATIENCE, tasks.wait()).await.unwrap();
    assert_eq!(broken_off(answers).await, Code::Unavailable);
    // One that is asked for now has not even a first chunk.
    let late = server.etcd.snapshot(Request::new(pb::SnapshotRequest {}));
    let late = late.await.unwrap().into_inner();
    assert_eq!(broken_off(late).await, Code::Unavailable);
}

#[tokio::test]
async fn a_snapshot_that_nobody_reads_is_broken_off() {
    let server = Server::start().await;
    server.put("large", &"x".repeat(1_000_000)).await;
    let (sender, _answers) = mpsc::channel(1);
    let (etcd, runtime) = (server.etcd.clone(), Handle::current());
    let stall = Duration::from_millis(50);
    let sent = tokio::task::spawn_blocking(move || send(&etcd, &sender, stall, &runtime));
    assert_eq!(refused(sent.await.unwrap()).0, Code::DeadlineExceeded);
}

#[tokio::test]
async fn what_cannot_be_done_is_said() {
    let server = Server::start().await;
    let mut maintenance = server.maintenance();
    maintenance
        .defragment(pb::DefragmentRequest {})
        .await
        .unwrap();
    let moved = maintenance.move_leader(pb::MoveLeaderRequest { target_id: 2 });
    assert_eq!(refused(moved.await).0, Code::Unimplemented);
    let mut cluster = server.cluster();
    let unknown = cluster
        .member_remove(pb::MemberRemoveRequest { id: 9 })
        .await;
    assert_eq!(
        refused(unknown),
        (Code::NotFound, "etcdserver: member not found".to_owned())
    );
    let last = cluster
        .member_remove(pb::MemberRemoveRequest { id: 1 })
        .await;
    assert_eq!(refused(last).0, Code::FailedPrecondition);
    let promoted = cluster.member_promote(pb::MemberPromoteRequest { id: 1 });
    assert_eq!(
        refused(promoted.await).1,
        "etcdserver: can only promote a learner member"
    );
}
