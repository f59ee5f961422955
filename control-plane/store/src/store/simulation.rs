//! Several members in one thread over a network in memory, for tests.
//!
//! With tokio's paused clock a second of their time takes as long as the work in it, and the
//! same seed gives the same faults. The network delays, loses and repeats messages, and can be
//! cut in one or both directions; a member can crash and come back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pintle_proto::raft::{Kind, RaftRequest, RaftResponse};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;
use crate::key_value::Op;
use crate::raft::transport::{Peer, TransportError};

/// How long a lost message is waited for.
const LOST: Duration = Duration::from_millis(400);

/// The network of all members.
#[derive(Clone)]
pub(crate) struct Network {
    state: Arc<Mutex<State>>,
}

struct State {
    services: BTreeMap<u64, PeerService>,
    /// From, to.
    cut: BTreeSet<(u64, u64)>,
    random: StdRng,
    /// Longest delay of a message, one way.
    delay: Duration,
    /// Of a thousand messages of the protocol.
    repeated: u32,
    lost: u32,
    messages: BTreeMap<i32, u64>,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            services: BTreeMap::new(),
            cut: BTreeSet::new(),
            random: StdRng::seed_from_u64(seed),
            delay: Duration::from_millis(1),
            repeated: 0,
            lost: 0,
            messages: BTreeMap::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Sets the longest delay, and how many of a thousand messages are repeated and lost.
    pub(crate) fn disturb(&self, delay: Duration, repeated: u32, lost: u32) {
        let mut state = self.state.lock();
        (state.delay, state.repeated, state.lost) = (delay, repeated, lost);
    }

    /// Messages of a kind that were sent.
    pub(crate) fn sent(&self, kind: Kind) -> u64 {
        let state = self.state.lock();
        state.messages.get(&i32::from(kind)).copied().unwrap_or(0)
    }

    /// Cuts a member off from all others.
    pub(crate) fn isolate(&self, id: u64) {
        let mut state = self.state.lock();
        let others: Vec<u64> = state.services.keys().copied().collect();
        for other in others.into_iter().filter(|other| *other != id) {
            state.cut.extend([(id, other), (other, id)]);
        }
    }

    /// Messages get lost in this direction.
    pub(crate) fn cut(&self, from: u64, to: u64) {
        self.state.lock().cut.insert((from, to));
    }

    pub(crate) fn heal(&self) {
        self.state.lock().cut.clear();
    }

    fn is_cut(&self, from: u64, to: u64) -> bool {
        self.state.lock().cut.contains(&(from, to))
    }

    fn pause(&self) -> Duration {
        let mut state = self.state.lock();
        let longest = state.delay;
        state.random.random_range(Duration::ZERO..=longest)
    }

    fn chance(&self, of: impl Fn(&State) -> u32) -> bool {
        let mut state = self.state.lock();
        let of = of(&state);
        state.random.random_range(0..1000) < of
    }

    fn service(&self, id: u64) -> Option<PeerService> {
        self.state.lock().services.get(&id).cloned()
    }
}

/// One member's access to it.
struct Access {
    network: Network,
    from: u64,
}

impl Transport for Access {
    fn call(
        &self,
        peer: Peer,
        request: RaftRequest,
    ) -> BoxFuture<'static, Result<RaftResponse, TransportError>> {
        carry(self.network.clone(), self.from, peer, request).boxed()
    }
}

async fn carry(
    network: Network,
    from: u64,
    peer: Peer,
    request: RaftRequest,
) -> Result<RaftResponse, TransportError> {
    *network
        .state
        .lock()
        .messages
        .entry(request.kind)
        .or_default() += 1;
    let protocol = matches!(
        request.kind(),
        Kind::Append | Kind::Vote | Kind::PreVote | Kind::Snapshot
    );
    sleep(network.pause()).await;
    if network.is_cut(from, peer.id) {
        sleep(LOST).await;
        return Err(TransportError::unsent(&peer, "the network is cut"));
    }
    let Some(service) = network.service(peer.id) else {
        return Err(TransportError::unsent(&peer, "the member is down"));
    };
    if protocol && network.chance(|state| state.lost) {
        sleep(LOST).await;
        return Err(TransportError::unanswered(&peer, "the message was lost"));
    }
    if protocol && network.chance(|state| state.repeated) {
        let (service, request) = (service.clone(), request.clone());
        let pause = network.pause() * 3;
        tokio::spawn(async move {
            sleep(pause).await;
            service.handle(request).await;
        });
    }
    // Who gives up waiting does not call the message back.
    let answer = tokio::spawn(async move { service.handle(request).await });
    let answer = answer
        .await
        .map_err(|error| TransportError::unanswered(&peer, error.to_string()))?;
    sleep(network.pause()).await;
    let lost = protocol && network.chance(|state| state.lost);
    if lost || network.is_cut(peer.id, from) {
        sleep(LOST).await;
        return Err(TransportError::unanswered(&peer, "the answer was lost"));
    }
    Ok(answer)
}

/// Members, their directories and their network.
pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) stores: BTreeMap<u64, Store>,
    directories: BTreeMap<u64, TempDir>,
    /// The id of the cluster they form.
    identity: Option<String>,
    adjust: fn(&mut StoreConfig),
}

impl Cluster {
    /// Members `1..=members`, all voting, the first one leading.
    pub(crate) async fn start(members: u64, seed: u64, adjust: fn(&mut StoreConfig)) -> Self {
        let mut cluster = Self {
            network: Network::new(seed),
            stores: BTreeMap::new(),
            directories: BTreeMap::new(),
            identity: None,
            adjust,
        };
        cluster.open(1).await.unwrap();
        for id in 2..=members {
            cluster.join(id).await;
            cluster.stores[&1].promote(id).await.unwrap();
        }
        cluster
    }

    /// Starts a new member and adds it as a learner.
    pub(crate) async fn join(&mut self, id: u64) {
        self.open(id).await.unwrap();
        let through = self.leader().await;
        let address = format!("member-{id}:1");
        self.stores[&through]
            .add_learner(id, &address)
            .await
            .unwrap();
    }

    /// Opens a member's directory, a new one if it has none.
    pub(crate) async fn open(&mut self, id: u64) -> Result<(), StoreError> {
        let directory = self.directories.entry(id).or_insert_with(|| {
            let memory = Path::new("/dev/shm");
            let within = if memory.is_dir() {
                memory.to_path_buf()
            } else {
                std::env::temp_dir()
            };
            tempfile::tempdir_in(within).unwrap()
        });
        let mut config = StoreConfig {
            data_dir: directory.path().to_path_buf(),
            node_id: id,
            peer_address: format!("member-{id}:1"),
            join: id != 1,
            cluster_id: self.identity.clone(),
            history_retention: None,
            ..StoreConfig::default()
        };
        (self.adjust)(&mut config);
        let access = Access {
            network: self.network.clone(),
            from: id,
        };
        let store = open_here(config, Arc::new(access)).await?;
        self.identity = Some(store.cluster_id().to_owned());
        let service = store.peer_service();
        self.network.state.lock().services.insert(id, service);
        self.stores.insert(id, store);
        Ok(())
    }

    /// Stops a member without a last checkpoint.
    pub(crate) async fn crash(&mut self, id: u64) {
        self.network.state.lock().services.remove(&id);
        let store = self.stores.remove(&id).unwrap();
        let crashed = &store.inner.engine.group().crashed;
        crashed.store(true, Ordering::SeqCst);
        store.shutdown().await;
    }

    /// A member's directory.
    pub(crate) fn directory(&self, id: u64) -> &Path {
        self.directories[&id].path()
    }

    /// Forgets a member's data.
    pub(crate) fn wipe(&mut self, id: u64) {
        self.directories.remove(&id);
    }

    /// The member that leads, once one does.
    pub(crate) async fn leader(&self) -> u64 {
        loop {
            let leads = |store: &&Store| *store.leadership().borrow();
            if let Some((id, _)) = self.stores.iter().find(|(_, store)| leads(store)) {
                return *id;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// A member that does not lead.
    pub(crate) async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        *self.stores.keys().find(|id| **id != leader).unwrap()
    }

    /// Waits until all members are at the same revision, no older than `revision`.
    pub(crate) async fn settled(&self, revision: Revision) {
        loop {
            let revisions: BTreeSet<_> = self.stores.values().map(Store::revision).collect();
            if revisions.len() == 1 && revisions.iter().all(|at| *at >= revision) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn shutdown(self) {
        for store in self.stores.values() {
            store.shutdown().await;
        }
    }
}

/// Opens a member on the caller's thread and clock.
async fn open_here(
    config: StoreConfig,
    transport: Arc<dyn Transport>,
) -> Result<Store, StoreError> {
    let stop = CancellationToken::new();
    let (stopped, is_stopped) = watch::channel(false);
    let mut group = Group::default();
    group.sync_here = true;
    let started = Running::start(&config, transport, group, stop, is_stopped).await?;
    let (running, inner) = started;
    tokio::spawn(async move {
        running.run().await;
        stopped.send_replace(true);
    });
    Ok(Store {
        inner: Arc::new(inner),
    })
}

/// Writes a key.
pub(crate) async fn put(store: &Store, key: &str, value: &str) -> Result<Revision, StoreError> {
    let txn = Txn {
        success: vec![Op::put(key.to_owned(), value.to_owned())],
        ..Txn::default()
    };
    store.txn(txn).await.map(|response| response.revision)
}

/// Reads a key, linearizably.
pub(crate) async fn get(store: &Store, key: &str) -> Result<Option<String>, StoreError> {
    store.linearizable().await?;
    read(store, key)
}

/// Reads a key of the local state.
pub(crate) fn local(store: &Store, key: &str) -> Option<String> {
    read(store, key).unwrap()
}

fn read(store: &Store, key: &str) -> Result<Option<String>, StoreError> {
    let kv = store.get(key.as_bytes())?;
    Ok(kv.map(|kv| String::from_utf8(kv.value.to_vec()).unwrap()))
}
