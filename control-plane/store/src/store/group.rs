//! A group of several members: growing, failing over, catching up, shrinking.

use std::time::Duration;

use pintle_proto::raft::Kind;
use tokio::time::{Instant, sleep, timeout};

use super::simulation::{Cluster, get, local, put};
use super::*;
use crate::key_value::{Op, prefix_end};
use crate::raft::snapshot::{Sink, Source};

fn usual(_: &mut StoreConfig) {}

/// Everything happens often: new segments, checkpoints, purges.
fn tight(config: &mut StoreConfig) {
    config.segment_bytes = 8 << 10;
    config.checkpoint_bytes = 24 << 10;
    config.log_keep_bytes = 32 << 10;
}

async fn leads(store: &Store, wanted: bool) {
    let mut leads = store.leadership();
    timeout(Duration::from_secs(5), leads.wait_for(|now| *now == wanted))
        .await
        .expect("leadership does not change")
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn grows_to_three_and_shrinks_to_one() {
    let mut cluster = Cluster::start(1, 1, usual).await;
    put(&cluster.stores[&1], "a", "1").await.unwrap();
    assert_eq!(cluster.network.sent(Kind::Append), 0);
    for id in [2, 3] {
        cluster.join(id).await;
        let members = cluster.stores[&1].members();
        let member = members.iter().find(|member| member.id == id).unwrap();
        assert!(!member.voter, "a learner first");
        put(&cluster.stores[&1], "a", &id.to_string())
            .await
            .unwrap();
        // Asked of any member.
        cluster.stores[&id].promote(id).await.unwrap();
    }
    assert_eq!(
        cluster.stores[&1]
            .members()
            .iter()
            .filter(|m| m.voter)
            .count(),
        3
    );
    assert_eq!(cluster.stores[&1].health().members, 3);
    for id in [1, 2, 3] {
        let store = &cluster.stores[&id];
        put(store, "b", &id.to_string()).await.unwrap();
        assert_eq!(
            local(store, "b"),
            Some(id.to_string()),
            "read what it wrote"
        );
        assert_eq!(get(store, "a").await.unwrap().as_deref(), Some("3"));
    }
    // The leader removes itself: another takes over first.
    assert_eq!(cluster.leader().await, 1);
    cluster.stores[&1].remove_member(1).await.unwrap();
    let leader = cluster.leader().await;
    assert_ne!(leader, 1);
    leads(&cluster.stores[&1], false).await;
    put(&cluster.stores[&leader], "b", "4").await.unwrap();
    cluster.crash(1).await;
    let other = cluster.follower().await;
    cluster.stores[&leader].remove_member(other).await.unwrap();
    cluster.crash(other).await;
    put(&cluster.stores[&leader], "b", "5").await.unwrap();
    let members = cluster.stores[&leader].members();
    assert_eq!(members.len(), 1);
    let refused = cluster.stores[&leader]
        .remove_member(leader)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("the last that votes"),
        "{refused}"
    );
    // Alone again: silent.
    let sent = cluster.network.sent(Kind::Append);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(cluster.network.sent(Kind::Append), sent);
    assert_eq!(
        get(&cluster.stores[&leader], "b").await.unwrap().as_deref(),
        Some("5")
    );
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_member_that_comes_back_is_refused() {
    let mut cluster = Cluster::start(3, 2, usual).await;
    cluster.stores[&1].remove_member(3).await.unwrap();
    cluster.crash(3).await;
    cluster.open(3).await.unwrap();
    let refused = loop {
        if let Some(refused) = cluster.stores[&3].health().refused {
            break refused;
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert!(
        refused.contains("member 3 was removed from cluster"),
        "{refused}"
    );
    assert!(refused.contains("delete its data directory"), "{refused}");
    let write = put(&cluster.stores[&3], "a", "1").await.unwrap_err();
    assert!(matches!(write, StoreError::Refused { .. }), "{write}");
    // Nor is its id used again.
    cluster.crash(3).await;
    let again = cluster.stores[&1]
        .add_learner(3, "member-3:1")
        .await
        .unwrap_err();
    assert!(again.to_string().contains("another id"), "{again}");
    // The others were not disturbed.
    assert_eq!(cluster.leader().await, 1);
    put(&cluster.stores[&2], "a", "1").await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn members_of_other_clusters_are_refused() {
    let cluster = Cluster::start(1, 3, usual).await;
    let other = Cluster::start(1, 4, usual).await;
    let service = other.stores[&1].peer_service();
    let request = pintle_proto::raft::RaftRequest {
        cluster_id: cluster.stores[&1].cluster_id().to_owned(),
        target: 1,
        sender: 2,
        kind: Kind::Append.into(),
        ..Default::default()
    };
    let refusal = service.handle(request.clone()).await.refusal.unwrap();
    assert!(
        refusal.text.contains("belongs to cluster"),
        "{}",
        refusal.text
    );
    let wrong = pintle_proto::raft::RaftRequest {
        cluster_id: other.stores[&1].cluster_id().to_owned(),
        target: 7,
        ..request
    };
    let refusal = service.handle(wrong).await.refusal.unwrap();
    assert!(
        refusal.text.contains("check the address of member 7"),
        "{}",
        refusal.text
    );
    cluster.shutdown().await;
    other.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn fails_over_within_a_second_and_loses_nothing() {
    let mut cluster = Cluster::start(3, 5, usual).await;
    let mut slowest = Duration::ZERO;
    let mut written = 0;
    for _ in 0..5 {
        for _ in 0..10 {
            written += 1;
            let any = cluster.follower().await;
            put(&cluster.stores[&any], "n", &written.to_string())
                .await
                .unwrap();
        }
        let leader = cluster.leader().await;
        cluster.crash(leader).await;
        let killed = Instant::now();
        let survivor = *cluster.stores.keys().next().unwrap();
        written += 1;
        put(&cluster.stores[&survivor], "n", &written.to_string())
            .await
            .unwrap();
        slowest = slowest.max(killed.elapsed());
        assert_eq!(
            get(&cluster.stores[&survivor], "n").await.unwrap(),
            Some(written.to_string())
        );
        cluster.open(leader).await.unwrap();
        cluster.settled(written).await;
    }
    eprintln!("slowest fail-over: {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_leader_stops_leading_and_its_writes_do_not_happen() {
    let cluster = Cluster::start(3, 6, usual).await;
    assert_eq!(cluster.leader().await, 1);
    put(&cluster.stores[&2], "a", "before").await.unwrap();
    cluster.network.isolate(1);
    let cut = Instant::now();
    // At once, while it still believes it leads.
    let old = cluster.stores[&1].clone();
    let late = tokio::spawn(async move { put(&old, "a", "late").await });
    leads(&cluster.stores[&1], false).await;
    assert!(
        cut.elapsed() < Duration::from_secs(1),
        "{:?}",
        cut.elapsed()
    );
    let read = get(&cluster.stores[&1], "a").await.unwrap_err();
    assert!(matches!(read, StoreError::NotLeader { .. }), "{read}");
    let refused = put(&cluster.stores[&1], "a", "later").await.unwrap_err();
    assert!(matches!(refused, StoreError::NotLeader { .. }), "{refused}");
    let late = late.await.unwrap().unwrap_err();
    assert!(matches!(late, StoreError::OutcomeUnknown { .. }), "{late}");
    put(&cluster.stores[&2], "b", "after").await.unwrap();
    assert_eq!(
        get(&cluster.stores[&3], "a").await.unwrap().as_deref(),
        Some("before")
    );
    cluster.network.heal();
    cluster.settled(cluster.stores[&2].revision()).await;
    assert_eq!(local(&cluster.stores[&1], "a").as_deref(), Some("before"));
    assert_eq!(
        get(&cluster.stores[&1], "b").await.unwrap().as_deref(),
        Some("after")
    );
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_returns_does_not_disturb() {
    let cluster = Cluster::start(3, 7, usual).await;
    let term = cluster.stores[&1].health().term;
    cluster.network.isolate(3);
    sleep(Duration::from_secs(30)).await;
    cluster.network.heal();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(cluster.stores[&1].health().term, term);
    assert!(*cluster.stores[&1].leadership().borrow());
    // Hears nothing, but can speak: it does not depose the leader either.
    cluster.network.cut(1, 3);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.stores[&1].health().term, term);
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_catches_up_by_log_and_by_snapshot() {
    let mut cluster = Cluster::start(3, 8, tight).await;
    // By log.
    cluster.crash(3).await;
    for at in 0..5 {
        put(&cluster.stores[&1], &format!("log/{at}"), "x")
            .await
            .unwrap();
    }
    cluster.open(3).await.unwrap();
    cluster.settled(5).await;
    assert_eq!(cluster.network.sent(Kind::Snapshot), 0);
    // By snapshot.
    cluster.crash(3).await;
    for at in 0..600 {
        let key = format!("snapshot/{}", at % 300);
        put(&cluster.stores[&1], &key, &"y".repeat(1000))
            .await
            .unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    assert!(
        cluster.stores[&1].health().log_bytes < 128 << 10,
        "the log is bounded: {}",
        cluster.stores[&1].health().log_bytes
    );
    cluster.open(3).await.unwrap();
    let request = WatchRequest {
        start: "snapshot/".into(),
        end: prefix_end(b"snapshot/"),
        ..WatchRequest::default()
    };
    let mut watcher = cluster.stores[&3].watch(request.clone()).unwrap();
    // Writes go on meanwhile.
    for at in 0..50 {
        put(&cluster.stores[&2], "during", &at.to_string())
            .await
            .unwrap();
    }
    cluster.settled(655).await;
    assert!(cluster.network.sent(Kind::Snapshot) > 2);
    // What lies between is not known to a watcher that was there before.
    assert!(watcher.next().await.unwrap().is_err());
    assert_eq!(local(&cluster.stores[&3], "during").as_deref(), Some("49"));
    let range = RangeRequest::prefix("snapshot/");
    let (have, want) = (
        cluster.stores[&3].range(&range).unwrap(),
        cluster.stores[&1].range(&range).unwrap(),
    );
    assert_eq!(have, want);
    // At a revision, and watching from one.
    assert!(
        cluster.stores[&3]
            .get_at(b"snapshot/1", 200)
            .unwrap()
            .is_some()
    );
    let mut watcher = cluster.stores[&3]
        .watch(WatchRequest {
            from_revision: Some(400),
            ..request
        })
        .unwrap();
    assert_eq!(
        watcher.next().await.unwrap().unwrap().events[0]
            .kv
            .mod_revision,
        400
    );
    // It restarts from what it got, and can lead.
    cluster.crash(3).await;
    cluster.open(3).await.unwrap();
    cluster.crash(1).await;
    cluster.crash(2).await;
    cluster.open(2).await.unwrap();
    put(&cluster.stores[&3], "end", "1").await.unwrap();
    cluster.settled(656).await;
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn followers_forward_at_once_and_each_write_happens_once() {
    let cluster = Cluster::start(3, 9, usual).await;
    cluster.network.disturb(Duration::from_millis(5), 100, 0);
    let writers = (0..60_u64).map(|at| {
        let store = cluster.stores[&(at % 3 + 1)].clone();
        async move {
            // An increment done twice would be seen.
            loop {
                let count = get(&store, "count").await.unwrap();
                let now = store.get(b"count").unwrap();
                let next = now.as_ref().map_or(0, |kv| {
                    String::from_utf8_lossy(&kv.value).parse::<u64>().unwrap()
                }) + 1;
                drop(count);
                let txn = Txn {
                    compares: vec![crate::key_value::Compare::mod_revision(
                        "count",
                        now.map_or(0, |kv| kv.mod_revision),
                    )],
                    success: vec![Op::put("count", next.to_string())],
                    ..Txn::default()
                };
                if store.txn(txn).await.unwrap().succeeded {
                    return;
                }
            }
        }
    });
    futures_util::future::join_all(writers).await;
    assert_eq!(
        get(&cluster.stores[&2], "count").await.unwrap().as_deref(),
        Some("60")
    );
    assert_eq!(cluster.stores[&1].revision(), 60);
    let refused = cluster.stores[&2].revoke_lease(7).await.unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::Rejected(Rejection::LeaseNotFound { id: 7 })
        ),
        "a rejection keeps its kind on the way: {refused}"
    );
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_gets_its_whole_time_from_a_new_leader() {
    let ttl = Duration::from_secs(10);
    let mut cluster = Cluster::start(3, 10, usual).await;
    let follower = cluster.follower().await;
    let lease = cluster.stores[&follower].grant_lease(0, ttl).await.unwrap();
    let bound = Txn {
        success: vec![Op::Put {
            key: "bound".into(),
            value: "1".into(),
            lease,
        }],
        ..Txn::default()
    };
    cluster.stores[&follower].txn(bound).await.unwrap();
    sleep(Duration::from_secs(8)).await;
    let kept = Instant::now();
    assert_eq!(
        cluster.stores[&follower]
            .keep_lease_alive(lease)
            .await
            .unwrap(),
        ttl
    );
    sleep(Duration::from_secs(8)).await;
    let leader = cluster.leader().await;
    cluster.crash(leader).await;
    let survivor = *cluster.stores.keys().next().unwrap();
    let elected = cluster.leader().await;
    let elected_at = Instant::now();
    while get(&cluster.stores[&survivor], "bound")
        .await
        .unwrap()
        .is_some()
    {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(
        elected_at.elapsed() >= Duration::from_millis(9900),
        "never early"
    );
    assert!(
        elected_at.elapsed() < ttl + Duration::from_secs(2),
        "but it ends"
    );
    assert!(kept.elapsed() > ttl);
    let gone = cluster.stores[&elected]
        .keep_lease_alive(lease)
        .await
        .unwrap_err();
    assert!(
        matches!(gone, StoreError::Rejected(Rejection::LeaseNotFound { .. })),
        "{gone}"
    );
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_without_data_joins_anew() {
    let mut cluster = Cluster::start(3, 11, usual).await;
    put(&cluster.stores[&1], "a", "1").await.unwrap();
    cluster.crash(2).await;
    cluster.stores[&1].remove_member(2).await.unwrap();
    cluster.wipe(2);
    cluster.join(4).await;
    let early = cluster.stores[&1].promote(9).await.unwrap_err();
    assert!(
        early.to_string().contains("add it as a learner first"),
        "{early}"
    );
    cluster.stores[&1].promote(4).await.unwrap();
    cluster.settled(1).await;
    assert_eq!(local(&cluster.stores[&4], "a").as_deref(), Some("1"));
    let taken = cluster.stores[&1]
        .add_learner(5, "member-4:1")
        .await
        .unwrap_err();
    assert!(
        taken.to_string().contains("the address of member 4"),
        "{taken}"
    );
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_learner_that_waits_never_forms_a_group() {
    let mut cluster = Cluster::start(1, 12, usual).await;
    cluster.open(2).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(cluster.stores[&2].health().leader, None);
    assert!(cluster.stores[&2].members().is_empty());
    let write = put(&cluster.stores[&2], "a", "1").await.unwrap_err();
    assert!(
        matches!(write, StoreError::NotLeader { leader: None }),
        "{write}"
    );
    // Not after a restart either.
    cluster.crash(2).await;
    cluster.open(2).await.unwrap();
    assert!(!*cluster.stores[&2].leadership().borrow());
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_around_an_installation_leaves_the_old_state_or_the_new() {
    let mut cluster = Cluster::start(3, 13, usual).await;
    put(&cluster.stores[&1], "a", "old").await.unwrap();
    cluster.settled(1).await;
    for complete in [false, true] {
        cluster.crash(3).await;
        for at in 0..20 {
            put(&cluster.stores[&1], "a", &at.to_string())
                .await
                .unwrap();
        }
        let machine = &cluster.stores[&1].inner.machine;
        let view = machine.view().unwrap();
        let last = view.state().unwrap().applied;
        let incoming = cluster.directory(3).join("incoming.redb");
        let mut source = Source::new(view);
        let mut sink = Sink::create(incoming.clone()).unwrap();
        loop {
            source = source.at(sink.offset()).await.unwrap();
            let Some(chunk) = source.chunk() else { break };
            sink.write(chunk).unwrap();
        }
        if complete {
            // Put in place, and the log not yet purged of what it replaces.
            let path = sink.finish(last).unwrap();
            std::fs::rename(path, cluster.directory(3).join("state.redb")).unwrap();
        } else {
            drop(sink);
        }
        cluster.open(3).await.unwrap();
        assert!(!incoming.exists());
        let newest = put(&cluster.stores[&2], "b", "1").await.unwrap();
        cluster.settled(newest).await;
        assert_eq!(local(&cluster.stores[&3], "a").as_deref(), Some("19"));
    }
    cluster.shutdown().await;
}
