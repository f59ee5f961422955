//! The instance itself: stop and start with pods running, down, reset, refusals at the start.

use std::net::{SocketAddr, TcpListener};

use nix::sys::signal::Signal;

use crate::harness::http::{self, Steady};
use crate::harness::node::{Node, text, workspace};

fn start_web(node: &Node) -> SocketAddr {
    node.import_images();
    let manifest = workspace().join("tests/manifests/web.yaml");
    node.kubectl(&format!("apply -f {}", manifest.display()));
    node.kubectl("rollout status deployment/web-api --timeout=60s");
    let ip = node.field("service/web-api", "{.spec.clusterIP}");
    let address = SocketAddr::new(ip.parse().expect("a ClusterIP"), 80);
    node.wait("the page", |_| http::get(address).is_ok());
    address
}

#[test]
fn a_restart_adopts_running_pods_and_loses_no_request() {
    let Some(mut node) = Node::start() else {
        return;
    };
    let address = start_web(&node);
    let before = node.fields(
        "pods",
        "{.items[*].status.containerStatuses[*].containerID}",
    );
    let client = Steady::start(address);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        node.signal(signal);
        node.up();
        node.wait("ready pods", |node| {
            node.field("deployment/web-api", "{.status.readyReplicas}") == "3"
        });
    }
    let report = client.stop();
    assert!(
        report.errors.is_empty(),
        "{} failed requests: {:?}",
        report.errors.len(),
        report.errors
    );
    let after = node.fields(
        "pods",
        "{.items[*].status.containerStatuses[*].containerID}",
    );
    assert_eq!(before, after, "the same containers still run");
    let restarts = node.fields(
        "pods",
        "{.items[*].status.containerStatuses[*].restartCount}",
    );
    assert!(restarts.iter().all(|count| count == "0"), "{restarts:?}");
    let warnings = node.fields(
        "events --field-selector=type=Warning",
        "{.items[*].message}",
    );
    assert!(
        !warnings.join(" ").contains("PodCIDR"),
        "a restart is no failure of the network: {warnings:?}"
    );
}

#[test]
fn status_and_images_speak_of_what_runs() {
    let Some(node) = Node::start() else { return };
    start_web(&node);
    let out = node.pintle(&["status"]).output().expect("status runs");
    let status = text(&out.stdout);
    assert!(out.status.success(), "{status}{}", text(&out.stderr));
    for word in ["node1", "web-api-", "Running", "store"] {
        assert!(status.contains(word), "no {word} in\n{status}");
    }
    let images = text(
        &node
            .pintle(&["image", "ls"])
            .output()
            .expect("image ls runs")
            .stdout,
    );
    assert!(images.contains("docker.io/library/nginx:1.27"), "{images}");
}

#[test]
fn down_keeps_the_data_and_reset_removes_it() {
    let Some(mut node) = Node::start() else {
        return;
    };
    start_web(&node);
    let out = node.down();
    assert!(
        out.status.success(),
        "{}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    assert_eq!(node.traces(), Vec::<String>::new());
    node.up();
    node.wait("web-api again", |node| {
        node.field("deployment/web-api", "{.status.readyReplicas}") == "3"
    });
    node.down();
    let out = node
        .pintle(&["reset", "--yes"])
        .output()
        .expect("reset runs");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(!node.path("data").exists() && !node.path("kubeconfig").exists());
    assert_eq!(node.traces(), Vec::<String>::new());
}

#[test]
fn up_refuses_what_it_cannot_use_and_changes_nothing() {
    let Some(node) = Node::prepare("") else {
        return;
    };
    let fails = |args: &[&str], want: &str| {
        let out = node.up_command().args(args).output().expect("pintle runs");
        let log = node.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(!out.status.success(), "{args:?} was accepted");
        assert!(last.contains(want), "{args:?} says {last:?}, not {want:?}");
    };
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    fails(&["--port", &port], &format!("--port {port}"));
    fails(&["--service-cidr", "10.244.0.0/16"], "--service-cidr");
    fails(&["--pod-cidr", "10.244.0.0/30"], "--pod-cidr");
    fails(&["--bind", "203.0.113.9"], "--bind");
    fails(&["--node-ip", "203.0.113.9"], "--node-ip 203.0.113.9");
    fails(
        &["--kubeconfig", "/proc/nowhere/kubeconfig"],
        "--kubeconfig",
    );
    assert_eq!(node.traces(), Vec::<String>::new());
}

#[test]
fn a_second_instance_on_the_same_folders_is_refused() {
    let Some(node) = Node::start() else { return };
    let out = node
        .up_command()
        .arg("--port")
        .arg("7443")
        .output()
        .expect("pintle runs");
    assert!(!out.status.success());
    let log = node.log();
    assert!(log.contains("--run-dir"), "{log}");
    node.kubectl("get nodes");
}

#[test]
fn a_corrupt_data_directory_is_refused_and_kept() {
    let Some(mut node) = Node::start() else {
        return;
    };
    node.kubectl("create configmap kept --from-literal=a=b");
    node.signal(Signal::SIGTERM);
    let wal = node.path("data/control-plane/wal");
    let segment = std::fs::read_dir(&wal)
        .expect("the log's folder")
        .flatten()
        .map(|entry| entry.path())
        .max_by_key(|path| path.metadata().map_or(0, |meta| meta.len()))
        .expect("a segment");
    let good = std::fs::read(&segment).expect("readable");
    let mut bad = good.clone();
    let middle = bad.len() / 3;
    bad[middle] ^= 0xff;
    std::fs::write(&segment, &bad).expect("written");
    let out = node.up_command().output().expect("pintle runs");
    assert!(!out.status.success(), "a corrupt log was accepted");
    let log = node.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(
        last.contains(&segment.display().to_string()),
        "names the file: {last}"
    );
    assert_eq!(
        std::fs::read(&segment).expect("still there"),
        bad,
        "nothing was emptied"
    );
    std::fs::write(&segment, good).expect("mended");
    node.up();
    assert_eq!(node.field("configmap/kept", "{.data.a}"), "b");
}
