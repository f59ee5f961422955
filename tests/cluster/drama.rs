//! Three servers and two agents lose what can be lost, one thing after another, while a client
//! reads a Service and another one writes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::harness::http::{self, Steady};
use crate::harness::node::{Lan, Node, run, text, workspace};
use crate::joining::token;
use crate::servers::{api, id_of, join_command, members, prepare, vote};

/// A [`Steady`] client in a process of its own: it stays on the machine where it was started,
/// while this process goes from one to another.
struct Client {
    child: Child,
}

/// The address that [`reads_until_told_to_stop`] asks.
const ADDRESS: &str = "PINTLE_TEST_ADDRESS";

impl Client {
    fn start(address: SocketAddr) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("drama::reads_until_told_to_stop")
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        Self { child }
    }

    /// How many pages were read, and every failure.
    fn stop(mut self) -> (u64, Vec<String>) {
        drop(self.child.stdin.take());
        let out = self.child.wait_with_output().expect("the client ended");
        let out = text(&out.stdout);
        let of = |word: &str| {
            let lines = out.lines().filter_map(|line| line.strip_prefix(word));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let answered = of("answered ").first().and_then(|n| n.parse().ok());
        (answered.expect("a report"), of("failed "))
    }
}

#[test]
#[ignore = "the client of a_cluster_outlives_what_it_loses"]
fn reads_until_told_to_stop() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let client = Steady::start(address.parse().unwrap());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let report = client.stop();
    println!();
    for error in report.errors {
        println!("failed {error}");
    }
    println!("answered {}", report.answered);
}

/// Creates ConfigMaps, each through whichever server takes it, until told to stop.
struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Written>,
}

struct Written {
    names: Vec<String>,
    /// The longest time between two acknowledged writes.
    gap: Duration,
}

impl Writer {
    /// Starts writing. Call from a machine's thread: the new one shares its namespace.
    fn start(kubeconfig: PathBuf, servers: Vec<String>) -> Self {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let thread = std::thread::spawn(move || {
            let (mut names, mut gap, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
            let (mut at, mut number) = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                let name = format!("write-{number}");
                if create(&kubeconfig, &servers[at % servers.len()], &name) {
                    gap = gap.max(last.elapsed());
                    last = Instant::now();
                    names.push(name);
                    count.store(names.len(), Ordering::Relaxed);
                } else {
                    // Whether it was taken is not known, so this name is not used again.
                    at += 1;
                }
                number += 1;
            }
            Written { names, gap }
        });
        Self {
            stop,
            acknowledged,
            thread,
        }
    }

    /// Waits until some more writes were acknowledged.
    fn goes_on(&self, node: &Node, what: &str) {
        let seen = self.acknowledged.load(Ordering::Relaxed);
        node.wait(&format!("writes after {what}"), |_| {
            self.acknowledged.load(Ordering::Relaxed) > seen + 3
        });
    }

    fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer ended")
    }
}

fn create(kubeconfig: &Path, server: &str, name: &str) -> bool {
    let out = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--server")
        .arg(format!("https://{server}"))
        .args(["--request-timeout=3s", "create", "configmap", name])
        .output();
    out.is_ok_and(|out| out.status.success())
}

/// Which of the servers leads, as one says that is not `but`.
fn leader(servers: &[Node], but: Option<usize>) -> usize {
    let asked = (0..servers.len()).find(|at| Some(*at) != but).unwrap();
    let mut found = None;
    servers[asked].wait("a leader", |server| {
        let members = members(server);
        let leads = members.iter().find(|member| member["leader"] == true);
        found = leads.and_then(|leads| {
            let address = leads["address"].as_str()?;
            servers.iter().position(|server| {
                let number = server.name().trim_start_matches("server");
                address == format!("198.18.0.{number}:2380")
            })
        });
        found.is_some() && found != but
    });
    found.unwrap()
}

fn all_vote(servers: &[Node]) {
    for server in servers {
        server.wait("three servers vote", |server| vote(server, 3));
    }
}

#[test]
fn a_cluster_outlives_what_it_loses() {
    let Some(lan) = Lan::new() else { return };
    let mut servers = Vec::new();
    for number in 1..=3 {
        let Some(mut server) = prepare(&lan, number, "") else {
            return;
        };
        if let Some(first) = servers.first() {
            let command = join_command(first, 1, &server);
            server.start_command(command);
        } else {
            server.up();
        }
        servers.push(server);
    }
    all_vote(&servers);
    let mut agents = Vec::new();
    for number in [11, 12] {
        let name = format!("agent{number}");
        let Some(mut agent) = Node::prepare_on(&lan, &name, number, "") else {
            return;
        };
        let token = token(&servers[0], &[]);
        agent.enter();
        agent.start_command(agent.agent_command(&["--join", &api(1), "--token", &token]));
        agent.import_images();
        agents.push(agent);
    }
    servers[0].enter();
    servers[0].kubectl("cordon server1 server2 server3");
    let manifest = workspace().join("tests/manifests/web.yaml");
    servers[0].kubectl(&format!("apply -f {}", manifest.display()));
    servers[0].kubectl("rollout status deployment/web-api --timeout=60s");
    let ip = servers[0].field("svc/web-api", "{.spec.clusterIP}");
    let service = SocketAddr::new(ip.parse().unwrap(), 80);

    agents[0].enter();
    agents[0].wait("the Service answers", |_| http::get(service).is_ok());
    let client = Client::start(service);
    // That of a server goes with the server.
    let kubeconfig = agents[0].path("kubeconfig");
    std::fs::copy(servers[0].path("kubeconfig"), &kubeconfig).unwrap();
    let writer = Writer::start(kubeconfig.clone(), (1..=4).map(api).collect());
    writer.goes_on(&agents[0], "the start");

    // The leader's process.
    let at = leader(&servers, None);
    servers[at].signal(Signal::SIGKILL);
    writer.goes_on(&agents[0], "the leader's process was killed");
    servers[at].enter();
    servers[at].up();
    all_vote(&servers);

    // The leader's machine.
    let at = leader(&servers, None);
    let name = servers[at].name().to_owned();
    servers[at].enter();
    servers[at].lose_power();
    lan.plug(&name, false);
    agents[0].enter();
    writer.goes_on(&agents[0], "the leader's machine was lost");
    lan.plug(&name, true);
    servers[at].enter();
    servers[at].up();
    all_vote(&servers);

    // The leader behind a broken cable, and back.
    let at = leader(&servers, None);
    let name = servers[at].name().to_owned();
    lan.plug(&name, false);
    let next = leader(&servers, Some(at));
    agents[0].enter();
    writer.goes_on(&agents[0], "the leader was cut off");
    servers[at].enter();
    assert!(
        !create(&kubeconfig, &api(number(&servers[at])), "behind-the-cut"),
        "a leader that was deposed took a write"
    );
    lan.plug(&name, true);
    all_vote(&servers);

    // A leader that stands still for a while.
    assert_ne!(next, at);
    let at = leader(&servers, None);
    kill(servers[at].pid(), Signal::SIGSTOP).unwrap();
    agents[0].enter();
    writer.goes_on(&agents[0], "the leader stood still");
    kill(servers[at].pid(), Signal::SIGCONT).unwrap();
    all_vote(&servers);

    // A follower is replaced by another machine.
    let leads = leader(&servers, None);
    let at = (leads + 1) % 3;
    let id = id_of(&servers[leads], number(&servers[at]));
    servers[leads].enter();
    run(&mut servers[leads].pintle(&["member", "remove", &id]));
    servers[at].enter();
    let old = servers.remove(at);
    drop(old);
    let Some(mut fourth) = prepare(&lan, 4, "") else {
        return;
    };
    let command = join_command(&servers[0], number(&servers[0]), &fourth);
    fourth.start_command(command);
    servers.push(fourth);
    all_vote(&servers);
    agents[0].enter();
    writer.goes_on(&agents[0], "a server was replaced");

    let written = writer.stop();
    let (answered, failures) = client.stop();
    println!(
        "{} writes acknowledged, the longest time without one {:?}; {} pages read, {} failed",
        written.names.len(),
        written.gap,
        answered,
        failures.len()
    );
    assert!(answered > 100, "only {answered} pages were read");
    assert!(
        failures.is_empty(),
        "the Service did not answer {} times: {failures:?}",
        failures.len()
    );
    for server in &servers {
        server.enter();
        let kept = server.fields("configmaps", "{.items[*].metadata.name}");
        let lost: Vec<_> = written
            .names
            .iter()
            .filter(|name| !kept.contains(name))
            .collect();
        assert!(lost.is_empty(), "{}: {lost:?} were lost", server.name());
    }
}

fn number(server: &Node) -> u8 {
    let digits = server.name().trim_start_matches("server");
    digits.parse().expect("its name ends in its number")
}
