//! The journey of web.yaml, timed: YAML → API → STORED → ReplicaSet → Pods → BOUND → RUNNING →
//! REACHABLE.
//!
//! `kubectl get --raw …?watch=1` streams run before `kubectl apply` starts, so each step is
//! seen the moment the API announces it; reachability is tried from this process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::output;

/// Longest a journey may take before it counts as failed.
const PATIENCE: Duration = Duration::from_mins(2);

/// A kubectl with the cluster it speaks to.
pub(crate) struct Kubectl {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

impl Kubectl {
    /// A command with words split at spaces.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(line.split(' '));
        command
    }

    /// Runs to the end and gives standard output.
    pub(crate) fn output(&self, line: &str) -> Result<String> {
        output(&mut self.command(line))
    }
}

/// When each step was first seen, counted from the start of `kubectl apply`.
#[derive(Debug, Default, Clone)]
pub(crate) struct Journey {
    pub(crate) steps: Vec<(&'static str, Duration)>,
    pub(crate) address: Option<SocketAddr>,
}

impl Journey {
    /// Time of a step; `None` when it was not reached.
    pub(crate) fn at(&self, step: &str) -> Option<Duration> {
        self.steps
            .iter()
            .find(|(name, _)| *name == step)
            .map(|(_, time)| *time)
    }

    /// First write stored → page fetched: the cluster's own part, without kubectl's start-up.
    pub(crate) fn inside(&self) -> Option<Duration> {
        Some(self.at("REACHABLE")?.saturating_sub(self.at("STORED")?))
    }

    fn reach(&mut self, step: &'static str, started: Instant) {
        if self.at(step).is_none() {
            self.steps.push((step, started.elapsed()));
        }
    }
}

/// Steps in their order, as shown.
pub(crate) const STEPS: [&str; 8] = [
    "STORED",
    "ReplicaSet",
    "Pods",
    "BOUND",
    "RUNNING",
    "Ready",
    "applied",
    "REACHABLE",
];

enum Seen {
    Deployment,
    ReplicaSet,
    Service(SocketAddr),
    Pod {
        name: String,
        bound: bool,
        running: bool,
        ready: bool,
    },
    Applied(Result<()>),
}

/// Applies the manifest and follows it until the page is fetched through the ClusterIP.
pub(crate) fn travel(kubectl: &Kubectl, manifest: &Path, replicas: usize) -> Result<Journey> {
    let (send, seen) = channel();
    let mut watches = Vec::new();
    for (path, parse) in WATCHES {
        watches.push(Watch::start(kubectl, path, parse, send.clone())?);
    }
    let started = Instant::now();
    let mut apply = kubectl.command("apply -f");
    apply.arg(manifest);
    std::thread::spawn(move || {
        drop(send.send(Seen::Applied(output(&mut apply).map(drop))));
    });
    follow(&seen, started, replicas)
}

fn follow(seen: &Receiver<Seen>, started: Instant, replicas: usize) -> Result<Journey> {
    let mut journey = Journey::default();
    let mut pods = std::collections::BTreeMap::new();
    loop {
        let wait = PATIENCE.saturating_sub(started.elapsed());
        let event = match seen.recv_timeout(wait) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => {
                bail!("not reachable after {PATIENCE:?}: {journey:?}")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the watches ended: {journey:?}"),
        };
        match event {
            Seen::Deployment => journey.reach("STORED", started),
            Seen::ReplicaSet => journey.reach("ReplicaSet", started),
            Seen::Service(address) => journey.address = Some(address),
            Seen::Pod {
                name,
                bound,
                running,
                ready,
            } => {
                pods.insert(name, (bound, running, ready));
                let all = |state: fn(&(bool, bool, bool)) -> bool| {
                    pods.values().filter(|pod| state(pod)).count() >= replicas
                };
                for (step, reached) in [
                    ("Pods", pods.len() >= replicas),
                    ("BOUND", all(|pod| pod.0)),
                    ("RUNNING", all(|pod| pod.1)),
                    ("Ready", all(|pod| pod.2)),
                ] {
                    if reached {
                        journey.reach(step, started);
                    }
                }
            }
            Seen::Applied(result) => {
                result?;
                journey.reach("applied", started);
            }
        }
        let ready = journey.at("Ready").is_some() && journey.at("applied").is_some();
        if let Some(address) = journey.address.filter(|_| ready) {
            fetch_until(address, PATIENCE.saturating_sub(started.elapsed()))?;
            journey.reach("REACHABLE", started);
            return Ok(journey);
        }
    }
}

/// Fetches `/` over new connections until it answers 200, and gives the page.
pub(crate) fn fetch_until(address: SocketAddr, patience: Duration) -> Result<String> {
    let started = Instant::now();
    loop {
        match fetch(address) {
            Ok(page) => return Ok(page),
            Err(error) if started.elapsed() > patience => {
                return Err(error).with_context(|| format!("fetching http://{address}/"));
            }
            Err(_) => std::thread::park_timeout(Duration::from_millis(1)),
        }
    }
}

/// Fetches `/` over one new connection.
pub(crate) fn fetch(address: SocketAddr) -> std::io::Result<String> {
    let timeout = Some(Duration::from_secs(2));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(timeout)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web-api\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200") {
        return Err(std::io::Error::other(format!("not 200: {answer:.60}")));
    }
    Ok(answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .unwrap_or_default())
}

type Parse = fn(&Value) -> Option<Seen>;

const WATCHES: [(&str, Parse); 4] = [
    (
        "/apis/apps/v1/namespaces/default/deployments?watch=1",
        |object| is_web(object).then_some(Seen::Deployment),
    ),
    (
        "/apis/apps/v1/namespaces/default/replicasets?watch=1",
        |object| label_is_web(object).then_some(Seen::ReplicaSet),
    ),
    ("/api/v1/namespaces/default/services?watch=1", |object| {
        let ip = object.pointer("/spec/clusterIP")?.as_str()?.parse().ok()?;
        is_web(object).then_some(Seen::Service(SocketAddr::new(ip, 80)))
    }),
    ("/api/v1/namespaces/default/pods?watch=1", |object| {
        let condition = |kind: &str| {
            object
                .pointer("/status/conditions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .any(|it| it["type"] == kind && it["status"] == "True")
        };
        label_is_web(object).then(|| Seen::Pod {
            name: object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            bound: object["spec"]["nodeName"].is_string(),
            running: object["status"]["phase"] == "Running",
            ready: condition("Ready"),
        })
    }),
];

fn is_web(object: &Value) -> bool {
    object["metadata"]["name"] == "web-api"
}

fn label_is_web(object: &Value) -> bool {
    object["metadata"]["labels"]["app"] == "web-api"
}

/// One streaming `kubectl get --raw`; ends when dropped.
struct Watch {
    child: Child,
}

impl Watch {
    fn start(kubectl: &Kubectl, path: &str, parse: Parse, seen: Sender<Seen>) -> Result<Self> {
        let mut child = kubectl
            .command("get --raw")
            .arg(format!("{path}&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting kubectl")?;
        let out = BufReader::new(child.stdout.take().context("kubectl's output")?);
        let (open, opened) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(std::result::Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                if event["type"] == "BOOKMARK" {
                    // The stream is live: everything from here on is news.
                    let _first_bookmark_only = open.send(());
                } else if let Some(news) = parse(&event["object"]) {
                    drop(seen.send(news));
                }
            }
        });
        opened
            .recv_timeout(Duration::from_secs(10))
            .with_context(|| format!("the watch of {path} did not start"))?;
        Ok(Self { child })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
