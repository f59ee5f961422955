//! kill -9 at random moments under load: what was acknowledged is there, the cluster converges,
//! and nothing of a pod that is gone is left on the host, in the kernel's maps or on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::harness::maps;
use crate::harness::node::{Node, text};

/// Kills in a run; `PINTLE_TEST_KILLS` asks for another number.
const KILLS: u32 = 50;

#[test]
fn fifty_kills_lose_nothing_and_leak_nothing() {
    let Some(mut node) = Node::start() else {
        return;
    };
    let kills = std::env::var("PINTLE_TEST_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(KILLS);
    node.import_images();
    let empty = Kept::count(&node);
    node.kubectl("create deployment churn --image=nginx:1.27 --replicas=2");
    node.kubectl("expose deployment churn --port=80");
    let mut acknowledged: Vec<String> = Vec::new();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    println!("seed {seed}");
    for round in 0..kills {
        let pid = node.pid();
        let done = Arc::new(AtomicBool::new(false));
        let killer = std::thread::spawn({
            let done = Arc::clone(&done);
            let delay = Duration::from_millis(next(&mut seed) % 700);
            move || {
                std::thread::park_timeout(delay);
                kill(pid, Signal::SIGKILL).expect("killed");
                done.store(true, Ordering::SeqCst);
            }
        });
        let mut write = 0;
        while !done.load(Ordering::SeqCst) {
            let name = format!("kept-{round}-{write}");
            write += 1;
            if node
                .try_kubectl(&format!("create configmap {name} --from-literal=a=b"))
                .status
                .success()
            {
                acknowledged.push(name);
            }
            let replicas = next(&mut seed) % 4;
            node.try_kubectl(&format!("scale deployment/churn --replicas={replicas}"));
            if next(&mut seed).is_multiple_of(3) {
                node.try_kubectl("delete pods -l app=churn --wait=false");
            }
        }
        killer.join().expect("the killer ended");
        node.signal(Signal::SIGKILL);
        node.up();
    }
    let kept = node.fields("configmaps", "{.items[*].metadata.name}");
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|name| !kept.contains(name))
        .collect();
    assert!(
        lost.is_empty(),
        "{} of {} acknowledged writes lost: {lost:?}",
        lost.len(),
        acknowledged.len()
    );
    println!(
        "{kills} kills, {} acknowledged writes, none lost",
        acknowledged.len()
    );

    node.kubectl("scale deployment/churn --replicas=3");
    node.wait("the deployment to converge", |node| {
        node.field("deployment/churn", "{.status.readyReplicas}") == "3"
            && node
                .fields("pods -l app=churn", "{.items[*].metadata.name}")
                .len()
                == 3
    });
    empty.wait_for(&node, 3);
    node.kubectl("delete deployment,service churn");
    node.wait("no pods", |node| {
        node.fields("pods", "{.items[*].metadata.name}").is_empty()
    });
    empty.wait_for(&node, 0);
    let out = node.down();
    assert!(
        out.status.success(),
        "{}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    assert_eq!(node.traces(), Vec::<String>::new());
}

/// What a node keeps for its pods, by kind.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    counts: BTreeMap<&'static str, usize>,
    /// Pods that mounts and folders on disk speak of.
    uids: BTreeSet<String>,
}

impl Kept {
    fn count(node: &Node) -> Self {
        let traces = node.traces();
        let matching = |kind: &str, holds: &dyn Fn(&str) -> bool| {
            let of_kind = traces.iter().filter_map(|trace| trace.strip_prefix(kind));
            of_kind.filter(|trace| holds(trace)).count()
        };
        let mut counts = maps::entries(&node.pins());
        counts.insert(
            "shims",
            matching("process ", &|line| line.contains(" shim")),
        );
        counts.insert("veths", matching("link ", &|line| line.contains("veth")));
        counts.insert(
            "cgroups",
            matching("cgroup ", &|path| {
                path.rsplit('/')
                    .next()
                    .is_some_and(|name| name.starts_with("pod"))
            }),
        );
        counts.insert("leases", files(node, "data/agent/ipam/leases").len());
        let mut uids: BTreeSet<_> = files(node, "data/agent/pods").into_iter().collect();
        let mounts = traces
            .iter()
            .filter_map(|trace| trace.strip_prefix("mount "));
        uids.extend(mounts.flat_map(|line| {
            let names = line.split(['/', ' ', ',', ':']);
            names.filter(|name| is_uid(name)).map(str::to_owned)
        }));
        Self { counts, uids }
    }

    /// Waits until the node keeps what it did then, and what exactly `pods` pods need, each
    /// behind one Service with one port when there are any.
    fn wait_for(&self, node: &Node, pods: usize) {
        let mut expected = self.counts.clone();
        for (kind, count) in &mut expected {
            *count += match *kind {
                "FRONTENDS" => pods.min(1),
                _ => pods,
            };
        }
        let mut last = String::new();
        let what = format!("what {pods} pods need, and no more");
        let live = |node: &Node| -> BTreeSet<String> {
            node.fields("pods", "{.items[*].metadata.uid}")
                .into_iter()
                .collect()
        };
        node.wait(&what, |node| {
            let now = Self::count(node);
            let differs: Vec<_> = now
                .counts
                .iter()
                .filter(|(kind, count)| expected.get(*kind) != Some(count))
                .map(|(kind, count)| format!("{kind} {count}, not {:?}", expected.get(kind)))
                .collect();
            let dead: Vec<_> = now.uids.difference(&live(node)).cloned().collect();
            let message = format!("{differs:?}; folders or mounts of pods that are gone: {dead:?}");
            let done = differs.is_empty() && dead.is_empty();
            if !done && message != last {
                println!("{pods} pods: {message}");
                last = message;
            }
            done
        });
    }
}

/// Names in a folder of the node's.
fn files(node: &Node, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(node.path(folder)).expect("the node has the folder");
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// Whether a name is a pod's uid.
fn is_uid(name: &str) -> bool {
    name.len() == 36
        && name
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// xorshift64: reproducible from the printed seed.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}
