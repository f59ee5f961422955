//! `cargo xtask bench store`: Pintle's store and Debian's etcd under the same load, over the same
//! API, on the same disk, in turns.
//!
//! Both serve plain HTTP on loopback and sync every write. Pintle runs whole (`pintle up`), so its
//! memory is that of control plane and node; etcd runs with its defaults. The load is
//! `tests/bench/store_load.rs`. Ratios are taken within a round, so that what else the machine
//! does meets both. Then both are filled with many keys, see [`keys`].

mod keys;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::memory::rss_mib;
use super::{Figure, report};
use crate::command::{output, quiet, run};
use crate::setup;

/// Rounds; a figure is the median of them.
const ROUNDS: usize = 3;
/// Seconds of a load that is measured by time.
const SECONDS: &str = "3";
/// Puts before the memory is looked at, and before everything else.
const PUTS: &str = "x60000";
/// Events that go to all watchers.
const EVENTS: &str = "10";
/// Longest wait for a server to answer.
const PATIENCE: Duration = Duration::from_mins(1);
const PINTLE_URL: &str = "http://127.0.0.1:12379";
const ETCD_URL: &str = "http://127.0.0.1:12389";
const ETCD_PEER_URL: &str = "http://127.0.0.1:12390";

/// One load, and what must come of it.
struct Step {
    name: &'static str,
    work: &'static str,
    clients: &'static str,
    connections: &'static str,
    amount: &'static str,
    /// Limit and aim of etcd's rate by Pintle's.
    rate: Option<(f64, f64)>,
    /// Limits of Pintle's latency by etcd's: p50, p99.
    latency: (Option<f64>, Option<f64>),
}

const STEPS: [Step; 6] = [
    Step {
        name: "1 client puts",
        work: "put",
        clients: "1",
        connections: "1",
        amount: SECONDS,
        rate: None,
        latency: (Some(1.0), Some(1.0)),
    },
    Step {
        name: "64 clients put",
        work: "put",
        clients: "64",
        connections: "8",
        amount: SECONDS,
        rate: Some((1.0 / 1.5, 1.0 / 3.0)),
        latency: (None, Some(1.0)),
    },
    Step {
        name: "1000 clients put",
        work: "put",
        clients: "1000",
        connections: "100",
        amount: SECONDS,
        rate: Some((1.0 / 1.5, 1.0 / 3.0)),
        latency: (None, Some(1.0)),
    },
    Step {
        name: "64 clients read (linearizable)",
        work: "get",
        clients: "64",
        connections: "8",
        amount: SECONDS,
        rate: Some((0.5, 0.5)),
        latency: (None, None),
    },
    Step {
        name: "1000 watchers of a key",
        work: "watch",
        clients: "1000",
        connections: "10",
        amount: EVENTS,
        rate: None,
        latency: (None, None),
    },
    Step {
        name: "10000 watchers of a key",
        work: "watch",
        clients: "10000",
        connections: "100",
        amount: EVENTS,
        rate: Some((1.0 / 3.0, 1.0 / 3.0)),
        latency: (None, None),
    },
];

/// What one load came to.
#[derive(Clone, Copy, Default)]
struct Measured {
    rate: f64,
    p50: f64,
    p99: f64,
}

/// Builds the load generator.
pub(crate) fn build_load(workspace: &Path) -> Result<PathBuf> {
    run(Command::new("cargo")
        .args(["build", "--release", "--package", "pintle-proto"])
        .args(["--example", "store-load"])
        .current_dir(workspace))?;
    Ok(crate::target_dir(workspace).join("release/examples/store-load"))
}

/// Measures everything and reports.
pub(crate) fn run_store(workspace: &Path, pintle: &Path, load: &Path, keys: u64) -> Result<()> {
    setup::run_setup(workspace)?;
    let etcd = setup::etcd(workspace)?;
    // Under target, so that both write to the disk the workspace is on.
    let root = crate::target_dir(workspace).join("bench");
    std::fs::create_dir_all(&root)?;
    let dir = tempfile::tempdir_in(root)?;
    let ours = Server::pintle(pintle, &dir.path().join("pintle"))?;
    let theirs = Server::etcd(&etcd, &dir.path().join("etcd"))?;
    let servers = [&ours, &theirs];
    for server in servers {
        server.wait(load)?;
    }
    let mut memory = Vec::new();
    for server in servers {
        measure(load, server.url, "put", "64", "8", PUTS)?;
        memory.push(rss_mib(server.child.id())?);
    }
    let mut figures = Vec::new();
    for step in &STEPS {
        let mut measured = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            // Each goes first in turn.
            for at in [round % 2, (round + 1) % 2] {
                measured[at].push(step.run(load, servers[at].url)?);
            }
        }
        step.figures(&measured, &mut figures);
    }
    let name = |who: &str| format!("memory after 60 000 puts of 1 KiB (RSS), {who}");
    figures.push(plain(&name("Pintle"), "MiB", vec![memory[0]]));
    figures.push(plain(&name("etcd"), "MiB", vec![memory[1]]));
    figures.push(Figure {
        aim: Some(1.0 / 3.0),
        must: Some(1.0 / 3.0),
        ..plain("memory, Pintle by etcd", "×", vec![memory[0] / memory[1]])
    });
    drop((ours, theirs));
    if keys > 0 {
        let mut servers = [
            Server::pintle(pintle, &dir.path().join("pintle-keys"))?,
            Server::etcd(&etcd, &dir.path().join("etcd-keys"))?,
        ];
        keys::measure_keys(load, keys, &mut servers, dir.path(), &mut figures)?;
    }
    report(workspace, "store", &figures)
}

fn plain(name: &str, unit: &'static str, samples: Vec<f64>) -> Figure {
    Figure {
        name: name.to_owned(),
        unit,
        samples,
        aim: None,
        must: None,
    }
}

impl Step {
    fn run(&self, load: &Path, url: &str) -> Result<Measured> {
        let (clients, connections) = (self.clients, self.connections);
        let result = measure(load, url, self.work, clients, connections, self.amount)?;
        let number = |name: &str| result.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
        Ok(Measured {
            rate: number("per_second"),
            p50: number("p50_us") / 1000.0,
            p99: number("p99_us") / 1000.0,
        })
    }

    fn figures(&self, [ours, theirs]: &[Vec<Measured>; 2], figures: &mut Vec<Figure>) {
        let all = |of: &[Measured], what: fn(&Measured) -> f64| of.iter().map(what).collect();
        let ratios = |what: fn(&Measured) -> f64| {
            let pairs = ours.iter().zip(theirs);
            pairs.map(|(a, b)| what(a) / what(b)).collect::<Vec<_>>()
        };
        for (who, of) in [("Pintle", ours), ("etcd", theirs)] {
            let name = |what: &str| format!("{}: {what}, {who}", self.name);
            figures.push(plain(&name("rate"), "1/s", all(of, |it| it.rate)));
            figures.push(plain(&name("p50"), "ms", all(of, |it| it.p50)));
            figures.push(plain(&name("p99"), "ms", all(of, |it| it.p99)));
        }
        if let Some((must, aim)) = self.rate {
            let inverse = ratios(|it| it.rate);
            figures.push(Figure {
                aim: Some(aim),
                must: Some(must),
                ..plain(
                    &format!("{}: rate, etcd by Pintle", self.name),
                    "×",
                    inverse.iter().map(|ratio| 1.0 / ratio).collect(),
                )
            });
        }
        self.latency_figure("p50", self.latency.0, ratios(|it| it.p50), figures);
        self.latency_figure("p99", self.latency.1, ratios(|it| it.p99), figures);
    }

    fn latency_figure(
        &self,
        what: &str,
        must: Option<f64>,
        ratios: Vec<f64>,
        figures: &mut Vec<Figure>,
    ) {
        if must.is_some() {
            figures.push(Figure {
                aim: must,
                must,
                ..plain(
                    &format!("{}: {what}, Pintle by etcd", self.name),
                    "×",
                    ratios,
                )
            });
        }
    }
}

/// Runs the load generator once and gives what it printed.
fn measure(
    load: &Path,
    url: &str,
    work: &str,
    clients: &str,
    connections: &str,
    amount: &str,
) -> Result<Value> {
    let line = output(Command::new(load).args([url, work, clients, connections, amount]))?;
    println!("{url} {work} {clients}: {}", line.trim());
    serde_json::from_str(&line).context("reading the load generator's line")
}

/// A server under load.
struct Server {
    name: &'static str,
    url: &'static str,
    command: Box<dyn Fn() -> Command>,
    child: Child,
    /// What takes the server off the machine, where killing it is not enough.
    down: Option<Command>,
    log: PathBuf,
}

impl Server {
    fn pintle(pintle: &Path, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (pintle, folder) = (pintle.to_owned(), dir.to_owned());
        let instance = move |args: &[&str]| {
            let mut command = Command::new(&pintle);
            command.args(args);
            command.arg("--data-dir").arg(folder.join("data"));
            command.arg("--run-dir").arg(folder.join("run"));
            command
        };
        let (down, kubeconfig) = (instance(&["down"]), dir.join("kubeconfig"));
        let up = move || {
            let mut up = instance(&["up", "--port", "16443", "--node-name", "bench"]);
            up.args(["--etcd-listen", PINTLE_URL]);
            up.arg("--kubeconfig").arg(&kubeconfig);
            up
        };
        Self::start("Pintle", PINTLE_URL, Box::new(up), Some(down), dir)
    }

    fn etcd(etcd: &Path, dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (program, data) = (etcd.to_owned(), dir.join("data"));
        let etcd = move || {
            let mut etcd = Command::new(&program);
            etcd.arg("--data-dir").arg(&data);
            for (flag, value) in [
                ("--listen-client-urls", ETCD_URL),
                ("--advertise-client-urls", ETCD_URL),
                ("--listen-peer-urls", ETCD_PEER_URL),
                ("--initial-advertise-peer-urls", ETCD_PEER_URL),
                ("--name", "bench"),
            ] {
                etcd.args([flag, value]);
            }
            etcd.args(["--initial-cluster", &format!("bench={ETCD_PEER_URL}")]);
            etcd
        };
        Self::start("etcd", ETCD_URL, Box::new(etcd), None, dir)
    }

    fn start(
        name: &'static str,
        url: &'static str,
        command: Box<dyn Fn() -> Command>,
        down: Option<Command>,
        dir: &Path,
    ) -> Result<Self> {
        let log = dir.join("log");
        let child = spawn(command(), &log).with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name,
            url,
            command,
            child,
            down,
            log,
        })
    }

    /// Kills it and starts it again; answers how long until it serves.
    fn restart(&mut self, load: &Path) -> Result<Duration> {
        self.child.kill()?;
        self.child.wait()?;
        let started = Instant::now();
        self.child = spawn((self.command)(), &self.log)?;
        self.wait(load)?;
        Ok(started.elapsed())
    }

    /// Waits until the first read succeeds, which is linearizable.
    fn wait(&self, load: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let get = || quiet(Command::new(load).args([self.url, "get", "1", "1", "x1"]));
        while let Err(error) = get() {
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{} does not serve: {error:#}\n{log}", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn spawn(mut command: Command, log: &Path) -> Result<Child> {
    let file = std::fs::File::create(log)?;
    Ok(command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(down) = &mut self.down
            && let Err(error) = quiet(down)
        {
            println!("{}: {error:#}", self.name);
        }
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
