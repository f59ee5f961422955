//! The load of `cargo xtask bench store`: puts, reads and watches over the etcd v3 API, against
//! whatever server speaks it.
//!
//! `store-load URL put|get|fill|watch CLIENTS CONNECTIONS AMOUNT`: for `put` and `get` the amount
//! is a number of seconds, or of operations with `x` before it; so it is for `fill`, which puts
//! every key once; for `watch`, where the clients are watchers of one key, it is a number of
//! events. Prints one line of JSON.

#![allow(
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "figures for people, on standard output"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pintle_proto::etcd::etcdserverpb as pb;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// Bytes of a value.
const VALUE: usize = 1024;
/// Keys that are written and read.
const KEYS: u64 = 10_000;
/// Nothing takes longer, unless something hangs.
const PATIENCE: Duration = Duration::from_mins(1);

type Kv = pb::kv_client::KvClient<Channel>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, work, clients, connections, amount] = &words[..] else {
        bail!(
            "usage: store-load URL put|get|fill|watch CLIENTS CONNECTIONS SECONDS|xOPERATIONS|EVENTS"
        );
    };
    let load = Load {
        url: url.clone(),
        clients: clients.parse().context("CLIENTS")?,
        connections: connections.parse().context("CONNECTIONS")?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let line = runtime.block_on(async {
        match work.as_str() {
            "put" => load.operations(Work::Put, Amount::parse(amount)?).await,
            "get" => load.operations(Work::Get, Amount::parse(amount)?).await,
            "fill" => load.operations(Work::Fill, Amount::parse(amount)?).await,
            "watch" => load.watch(amount.parse().context("EVENTS")?).await,
            other => bail!("no such work: {other}"),
        }
    })?;
    println!("{line}");
    Ok(())
}

struct Load {
    url: String,
    clients: usize,
    connections: usize,
}

#[derive(Clone, Copy)]
enum Work {
    Put,
    Get,
    /// Puts a key nobody else puts.
    Fill,
}

#[derive(Clone, Copy)]
enum Amount {
    Time(Duration),
    /// Shared by all clients.
    Operations(u64),
}

impl Amount {
    fn parse(text: &str) -> Result<Self> {
        Ok(match text.strip_prefix('x') {
            Some(operations) => Self::Operations(operations.parse().context("OPERATIONS")?),
            None => Self::Time(Duration::from_secs_f64(text.parse().context("SECONDS")?)),
        })
    }
}

impl Load {
    async fn connect(&self) -> Result<Vec<Channel>> {
        let mut channels = Vec::with_capacity(self.connections);
        for _ in 0..self.connections.max(1) {
            let endpoint = Endpoint::from_shared(self.url.clone())?.tcp_nodelay(true);
            channels.push(endpoint.connect().await.context("connecting")?);
        }
        Ok(channels)
    }

    /// Every client does one thing after the other.
    async fn operations(&self, work: Work, amount: Amount) -> Result<String> {
        let channels = self.connect().await?;
        let left = Arc::new(AtomicU64::new(match amount {
            Amount::Time(_) => u64::MAX,
            Amount::Operations(operations) => operations,
        }));
        let started = Instant::now();
        let until = match amount {
            Amount::Time(time) => started + time,
            Amount::Operations(_) => started + 10 * PATIENCE,
        };
        let mut clients = JoinSet::new();
        for client in 0..self.clients {
            let kv = Kv::new(channels[client % channels.len()].clone());
            clients.spawn(run_client(
                kv,
                client as u64,
                work,
                until,
                Arc::clone(&left),
            ));
        }
        let mut micros = Vec::new();
        while let Some(done) = clients.join_next().await {
            micros.extend(done??);
        }
        let took = started.elapsed().as_secs_f64();
        ensure!(!micros.is_empty(), "nothing was done");
        micros.sort_unstable();
        let percentile = |percent: usize| micros[(micros.len() - 1) * percent / 100];
        Ok(format!(
            r#"{{"operations":{},"per_second":{:.1},"p50_us":{},"p99_us":{}}}"#,
            micros.len(),
            micros.len() as f64 / took,
            percentile(50),
            percentile(99)
        ))
    }

    /// All watchers watch one key; how long until the last has an event, counted from the start
    /// of the put that caused it.
    async fn watch(&self, events: usize) -> Result<String> {
        let channels = self.connect().await?;
        let (created, delivered) = (Arc::new(Meter::default()), Arc::new(Meter::default()));
        let mut streams = JoinSet::new();
        for (stream, channel) in channels.iter().enumerate() {
            let share =
                self.clients / channels.len() + usize::from(stream < self.clients % channels.len());
            let (created, delivered) = (Arc::clone(&created), Arc::clone(&delivered));
            streams.spawn(watch_stream(channel.clone(), share, created, delivered));
        }
        created.reach(self.clients as u64).await?;
        let mut kv = Kv::new(channels[0].clone());
        let mut micros = Vec::with_capacity(events);
        for event in 1..=events {
            let started = Instant::now();
            kv.put(pb::PutRequest {
                key: "bench/watched".into(),
                value: vec![b'x'; VALUE].into(),
                ..pb::PutRequest::default()
            })
            .await?;
            delivered.reach((self.clients * event) as u64).await?;
            micros.push(started.elapsed().as_micros());
        }
        streams.abort_all();
        micros.sort_unstable();
        let total: u128 = micros.iter().sum();
        let all = (self.clients * events) as f64;
        Ok(format!(
            r#"{{"events":{all},"per_second":{:.1},"p50_us":{},"p99_us":{}}}"#,
            all / (total as f64 / 1e6),
            micros[micros.len() / 2],
            micros[micros.len() - 1]
        ))
    }
}

async fn run_client(
    mut kv: Kv,
    client: u64,
    work: Work,
    until: Instant,
    left: Arc<AtomicU64>,
) -> Result<Vec<u32>> {
    // Any odd number steps through all keys.
    let mut number = client.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = bytes::Bytes::from(vec![b'x'; VALUE]);
    let mut micros = Vec::new();
    let take = |left: u64| left.checked_sub(1);
    while Instant::now() < until
        && let Ok(turn) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
    {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let key = match work {
            Work::Put | Work::Get => format!("bench/{:016}", (number >> 33) % KEYS).into(),
            Work::Fill => format!("fill/{turn:016}").into(),
        };
        let started = Instant::now();
        match work {
            Work::Put | Work::Fill => {
                kv.put(pb::PutRequest {
                    key,
                    value: value.clone(),
                    ..pb::PutRequest::default()
                })
                .await?;
            }
            Work::Get => {
                kv.range(pb::RangeRequest {
                    key,
                    ..pb::RangeRequest::default()
                })
                .await?;
            }
        }
        micros.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    Ok(micros)
}

/// Many watches on one stream; ends when it is aborted or the stream breaks.
async fn watch_stream(
    channel: Channel,
    watches: usize,
    created: Arc<Meter>,
    delivered: Arc<Meter>,
) -> Result<()> {
    let (requests, receiver) = mpsc::channel(16);
    let mut client = pb::watch_client::WatchClient::new(channel);
    tokio::spawn(async move {
        for _ in 0..watches {
            let create = pb::WatchCreateRequest {
                key: "bench/watched".into(),
                ..pb::WatchCreateRequest::default()
            };
            let request = pb::WatchRequest {
                request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
            };
            if requests.send(request).await.is_err() {
                return;
            }
        }
        // The stream is open as long as its requests are.
        requests.closed().await;
    });
    let mut answers = client
        .watch(ReceiverStream::new(receiver))
        .await?
        .into_inner();
    while let Some(answer) = answers.message().await? {
        if answer.created {
            created.add(1);
        }
        delivered.add(answer.events.len() as u64);
    }
    bail!("the server ended a watch stream");
}

/// Counts, and tells who waits for a count.
#[derive(Default)]
struct Meter {
    count: AtomicU64,
    wanted: AtomicU64,
    reached: Notify,
}

impl Meter {
    fn add(&self, more: u64) {
        let count = self.count.fetch_add(more, Ordering::AcqRel) + more;
        if more > 0 && count >= self.wanted.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
    }

    async fn reach(&self, wanted: u64) -> Result<()> {
        self.wanted.store(wanted, Ordering::Release);
        let reached = async {
            while self.count.load(Ordering::Acquire) < wanted {
                self.reached.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached)
            .await
            .with_context(|| {
                let count = self.count.load(Ordering::Acquire);
                format!("{count} of {wanted} answers came")
            })
    }
}
