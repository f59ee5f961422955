//! Is what clients saw possible if every operation had happened at one instant?
//!
//! [`check`] searches, per key, for an order of the operations that respects real time and in
//! which every read sees the write before it (Wing and Gong's search, with memory). A write
//! whose outcome is unknown may have happened at any time after it began, or never. The test
//! below runs clients against a group whose members crash, get cut off and are replaced, from
//! seeds that it prints: `PINTLE_SEED=n` runs one, `PINTLE_SEEDS=n` that many.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use super::simulation::{Cluster, get, put};
use super::*;
use crate::key_value::{Compare, CompareOp, CompareTarget, Op, OpResponse};
use crate::watch::WatchError;

/// Seeds unless asked for otherwise.
const SEEDS: u64 = 6;
const KEYS: usize = 4;
const CLIENTS: usize = 5;
/// Operations per client.
const OPERATIONS: usize = 60;

/// A value; every write's is another one.
type Value = Option<u64>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Read(Value),
    Write(u64),
    /// Writes the second if the first is there; whether it was.
    Swap(Value, u64, bool),
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    began: u64,
    /// `None`: the outcome is unknown.
    ended: Option<u64>,
    action: Action,
}

impl Action {
    /// The state after it, if it can happen in this one.
    fn happen(self, state: Value) -> Option<Value> {
        match self {
            Self::Read(seen) => (seen == state).then_some(state),
            Self::Write(value) => Some(Some(value)),
            Self::Swap(expected, value, true) => (expected == state).then_some(Some(value)),
            Self::Swap(expected, _, false) => (expected != state).then_some(state),
        }
    }
}

/// Whether an order exists. At most 128 operations.
fn check(operations: &[Operation]) -> bool {
    assert!(operations.len() <= 128);
    let certain = |at: &usize| operations[*at].ended.is_some();
    let all: u128 = (0..operations.len())
        .filter(certain)
        .fold(0, |set, at| set | 1 << at);
    let mut seen = HashSet::new();
    let mut stack = vec![(0_u128, None)];
    while let Some((done, state)) = stack.pop() {
        if done & all == all {
            return true;
        }
        if !seen.insert((done, state)) {
            continue;
        }
        let open = || (0..operations.len()).filter(move |at| done & 1 << at == 0);
        // Nothing that began after another one ended can come before it.
        let first_end = open()
            .filter_map(|at| operations[at].ended)
            .min()
            .unwrap_or(u64::MAX);
        for at in open().filter(|at| operations[*at].began <= first_end) {
            if let Some(next) = operations[at].action.happen(state) {
                stack.push((done | 1 << at, next));
            }
        }
    }
    false
}

#[test]
fn the_checker_tells_possible_from_impossible() {
    use Action::{Read, Swap, Write};
    let at = |began, ended, action| Operation {
        began,
        ended: Some(ended),
        action,
    };
    let lost = |began, action| Operation {
        began,
        ended: None,
        action,
    };
    assert!(check(&[at(0, 1, Write(1)), at(2, 3, Read(Some(1)))]));
    assert!(!check(&[at(0, 1, Write(1)), at(2, 3, Read(None))]), "stale");
    assert!(
        check(&[at(0, 3, Write(1)), at(1, 2, Read(None))]),
        "at once"
    );
    let back = [
        at(0, 9, Write(1)),
        at(1, 2, Read(Some(1))),
        at(3, 4, Read(None)),
    ];
    assert!(!check(&back), "seen, then unseen");
    let unknown = lost(0, Write(1));
    assert!(check(&[
        unknown,
        at(5, 6, Read(None)),
        at(7, 8, Read(Some(1)))
    ]));
    assert!(check(&[unknown, at(5, 6, Read(None))]), "never happened");
    assert!(!check(&[
        unknown,
        at(5, 6, Read(Some(1))),
        at(7, 8, Read(None))
    ]));
    assert!(check(&[
        at(0, 1, Swap(None, 1, true)),
        at(2, 3, Swap(None, 2, false))
    ]));
    assert!(!check(&[
        at(0, 1, Swap(None, 1, true)),
        at(2, 3, Swap(None, 2, true))
    ]));
}

type Told = BTreeMap<(Revision, Vec<u8>), Vec<u8>>;

/// What the clients and watchers of a run share.
#[derive(Clone, Default)]
struct Run {
    stores: Arc<Mutex<BTreeMap<u64, Store>>>,
    history: Arc<Mutex<Vec<Vec<Operation>>>>,
    clock: Arc<AtomicU64>,
    values: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    /// Revision and key to the value that every member must tell of it.
    told: Arc<Mutex<Told>>,
}

impl Run {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn pick(&self, random: &mut StdRng) -> Store {
        let stores = self.stores.lock();
        let at = random.random_range(0..stores.len());
        stores.values().nth(at).unwrap().clone()
    }

    fn record(&self, key: usize, began: u64, known: bool, action: Action) {
        let ended = known.then(|| self.now());
        self.history.lock()[key].push(Operation {
            began,
            ended,
            action,
        });
    }

    async fn client(self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..OPERATIONS {
            let store = self.pick(&mut random);
            let key = random.random_range(0..KEYS);
            let name = format!("key{key}");
            let began = self.now();
            let value = self.values.fetch_add(1, Ordering::SeqCst) + 1;
            match random.random_range(0..10) {
                0..5 => {
                    if let Ok(seen) = get(&store, &name).await {
                        let seen = seen.map(|value| value.parse().unwrap());
                        self.record(key, began, true, Action::Read(seen));
                    }
                }
                5..8 => {
                    let written = put(&store, &name, &value.to_string()).await;
                    if may_have_happened(&written) {
                        self.record(key, began, written.is_ok(), Action::Write(value));
                    }
                }
                _ => {
                    let expected = store
                        .get(name.as_bytes())
                        .ok()
                        .flatten()
                        .map(|kv| String::from_utf8_lossy(&kv.value).parse().unwrap());
                    let swapped = swap(&store, &name, expected, value).await;
                    match &swapped {
                        Ok(swapped) => {
                            let action = Action::Swap(expected, value, *swapped);
                            self.record(key, began, true, action);
                        }
                        // It either swapped or did nothing.
                        error if may_have_happened(error) => {
                            let action = Action::Swap(expected, value, true);
                            self.record(key, began, false, action);
                        }
                        Err(_) => {}
                    }
                }
            }
            sleep(Duration::from_millis(random.random_range(0..400))).await;
        }
    }

    /// Watches one member: in order, without gaps, and the same as on every other.
    async fn watcher(self, store: Store) {
        let mut from = store.revision() + 1;
        while !self.over.load(Ordering::SeqCst) {
            let request = WatchRequest {
                start: "key".into(),
                end: "kez".into(),
                from_revision: Some(from),
                ..WatchRequest::default()
            };
            let Ok(mut watcher) = store.watch(request) else {
                return;
            };
            loop {
                match watcher.next().await {
                    Some(Ok(batch)) => {
                        for event in batch.events {
                            let revision = event.kv.mod_revision;
                            assert!(revision >= from, "{revision} again or out of order");
                            from = revision + 1;
                            let at = (revision, event.kv.key.to_vec());
                            let value = event.kv.value.to_vec();
                            let mut told = self.told.lock();
                            let known = told.entry(at).or_insert_with(|| value.clone());
                            assert_eq!(*known, value, "members disagree at {revision}");
                        }
                    }
                    Some(Err(WatchError::Closed)) | None => return,
                    // A snapshot took the place of the state: go on from there.
                    Some(Err(_)) => break,
                }
            }
        }
    }
}

/// Whether a write may be seen later: not when the store said that nothing was done.
fn may_have_happened<T>(written: &Result<T, StoreError>) -> bool {
    !matches!(
        written,
        Err(StoreError::NotLeader { .. } | StoreError::Refused { .. })
    )
}

async fn swap(store: &Store, key: &str, expected: Value, value: u64) -> Result<bool, StoreError> {
    let target = match expected {
        Some(expected) => CompareTarget::Value(expected.to_string().into()),
        None => CompareTarget::Version(0),
    };
    let txn = Txn {
        compares: vec![Compare {
            target,
            op: CompareOp::Equal,
            ..Compare::absent(key.to_owned())
        }],
        success: vec![Op::put(key.to_owned(), value.to_string())],
        failure: vec![],
    };
    let response = store.txn(txn).await?;
    if response.succeeded {
        assert!(matches!(response.responses[..], [OpResponse::Put { .. }]));
    }
    Ok(response.succeeded)
}

/// Does harm until the clients are done, then makes good again.
async fn harm(cluster: &mut Cluster, run: &Run, random: &mut StdRng) {
    let mut next_id = 10;
    while !run.over.load(Ordering::SeqCst) {
        let ids: Vec<u64> = cluster.stores.keys().copied().collect();
        let one = ids[random.random_range(0..ids.len())];
        let other = ids[random.random_range(0..ids.len())];
        let pause = Duration::from_millis(random.random_range(100..2500));
        match random.random_range(0..6) {
            0 => cluster.network.isolate(one),
            1 if one != other => cluster.network.cut(one, other),
            2 => {
                run.stores.lock().remove(&one);
                cluster.crash(one).await;
                sleep(pause).await;
                cluster.open(one).await.unwrap();
                let store = cluster.stores[&one].clone();
                run.stores.lock().insert(one, store.clone());
                tokio::spawn(run.clone().watcher(store));
            }
            3 => {
                let delay = Duration::from_millis(random.random_range(1..60));
                cluster.network.disturb(delay, 50, 50);
            }
            4 => {
                // Replaced while it works; under fire that may fail half-way.
                next_id += 1;
                let through = cluster.stores[&other].clone();
                cluster.open(next_id).await.unwrap();
                let address = format!("member-{next_id}:1");
                let added = through.add_learner(next_id, &address).await;
                let voting = match added {
                    Ok(()) => through.promote(next_id).await,
                    Err(error) => Err(error),
                };
                if voting.is_ok() && through.remove_member(one).await.is_ok() {
                    run.stores.lock().remove(&one);
                    cluster.crash(one).await;
                    let store = cluster.stores[&next_id].clone();
                    run.stores.lock().insert(next_id, store.clone());
                    tokio::spawn(run.clone().watcher(store));
                } else if voting.is_ok() {
                    let store = cluster.stores[&next_id].clone();
                    run.stores.lock().insert(next_id, store);
                }
            }
            _ => {}
        }
        sleep(pause).await;
        cluster.network.heal();
        cluster.network.disturb(Duration::from_millis(2), 20, 0);
        sleep(Duration::from_millis(random.random_range(0..1500))).await;
    }
}

async fn run_seed(seed: u64) {
    let adjust = |config: &mut StoreConfig| {
        config.segment_bytes = 2 << 10;
        config.checkpoint_bytes = 4 << 10;
        config.log_keep_bytes = 4 << 10;
    };
    let mut cluster = Cluster::start(3, seed, adjust).await;
    let run = Run::default();
    *run.history.lock() = vec![Vec::new(); KEYS];
    *run.stores.lock() = cluster.stores.clone();
    for store in cluster.stores.values() {
        tokio::spawn(run.clone().watcher(store.clone()));
    }
    let clients = (0..CLIENTS as u64).map(|client| run.clone().client(seed * 100 + client));
    let clients = futures_util::future::join_all(clients.map(tokio::spawn));
    let mut random = StdRng::seed_from_u64(seed);
    let finished = async {
        for client in clients.await {
            client.unwrap();
        }
        run.over.store(true, Ordering::SeqCst);
    };
    tokio::join!(finished, harm(&mut cluster, &run, &mut random));
    // All is well again: everybody gets to the same state.
    cluster.network.heal();
    let any = run.pick(&mut random);
    let last = put(&any, "end", "1").await.unwrap();
    let voters = |store: &Store| {
        let members = store.members();
        let voters = members.into_iter().filter(|member| member.voter);
        voters.map(|member| member.id).collect::<Vec<_>>()
    };
    let voters = voters(&any);
    while !voters.iter().all(|id| {
        let store = cluster.stores.get(id);
        store.is_some_and(|store| store.revision() >= last)
    }) {
        sleep(Duration::from_millis(50)).await;
    }
    let states = voters.iter().map(|id| {
        let all = RangeRequest::prefix("");
        cluster.stores[id].range(&all).unwrap().kvs
    });
    let states: Vec<_> = states.collect();
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]));
    for (key, operations) in run.history.lock().iter().enumerate() {
        assert!(
            check(operations),
            "seed {seed}: no order explains key{key}: {operations:#?}"
        );
    }
    let counted = run.history.lock().iter().map(Vec::len).sum::<usize>();
    let unknown = |history: &Vec<Operation>| {
        let unknown = history.iter().filter(|operation| operation.ended.is_none());
        unknown.count()
    };
    let unknown = run.history.lock().iter().map(unknown).sum::<usize>();
    eprintln!(
        "seed {seed}: {counted} operations in order, {unknown} of unknown outcome, term {}, \
         members {voters:?}",
        cluster.stores[&voters[0]].health().term,
    );
    cluster.shutdown().await;
}

#[test]
fn histories_under_faults_are_linearizable() {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let seeds = match number("PINTLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("PINTLE_SEEDS").unwrap_or(SEEDS) + 1,
    };
    for seed in seeds {
        eprintln!("seed {seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run_seed(seed));
    }
}
