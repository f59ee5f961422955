//! The main job: an unmodified web.yaml from `kubectl apply` to a page, and everything people
//! then do to it.

use std::net::SocketAddr;
use std::process::Command;

use crate::harness::http::{self, Steady};
use crate::harness::node::{Node, debian_kubectl, text, workspace};

/// The ClusterIP of web-api.
fn service_address(node: &Node) -> SocketAddr {
    let ip = node.field("service/web-api", "{.spec.clusterIP}");
    SocketAddr::new(ip.parse().expect("a ClusterIP"), 80)
}

fn apply_web(node: &Node) {
    let manifest = workspace().join("tests/manifests/web.yaml");
    let said = node.kubectl(&format!("apply -f {}", manifest.display()));
    assert!(said.contains("deployment.apps/web-api"), "{said}");
    assert!(said.contains("service/web-api"), "{said}");
}

fn ready_replicas(node: &Node) -> String {
    node.field("deployment/web-api", "{.status.readyReplicas}")
}

fn pods(node: &Node) -> Vec<String> {
    let mut pods = node.fields(
        "pods -l app=web-api --field-selector=status.phase=Running",
        "{.items[*].metadata.name}",
    );
    pods.sort();
    pods
}

#[test]
fn web_yaml_becomes_reachable_and_lives() {
    if let Some(node) = Node::start() {
        travel(node);
    }
}

/// The oldest client Pintle promises to serve.
#[test]
fn web_yaml_becomes_reachable_and_lives_with_kubectl_1_20() {
    if !debian_kubectl().exists() {
        println!("skipped: no kubectl 1.20; `cargo xtask setup` unpacks it");
        return;
    }
    if let Some(mut node) = Node::start() {
        node.use_kubectl(debian_kubectl());
        let version = node.kubectl("version");
        assert!(version.contains("v1.20"), "{version}");
        travel(node);
    }
}

fn travel(mut node: Node) {
    node.import_images();
    apply_web(&node);
    node.kubectl("rollout status deployment/web-api --timeout=60s");
    let address = service_address(&node);
    node.wait("the page at the ClusterIP", |_| http::get(address).is_ok());
    let page = http::get(address).expect("the page");
    assert!(page.contains("nginx:1.27"), "{page}");

    shows_what_people_look_at(&node);
    is_reachable_by_name_from_a_pod(&node);
    replaces_a_deleted_pod(&node);
    restarts_a_killed_container(&node);
    scales(&node);
    rolls_without_a_failed_request(&node, address);
    prints_logs(&node);
    leaves_nothing_after_delete(&mut node, address);
}

fn shows_what_people_look_at(node: &Node) {
    let table = node.kubectl("get deploy,rs,pods,svc,endpointslices -o wide");
    for column in [
        "UP-TO-DATE",
        "SELECTOR",
        "DESIRED",
        "RESTARTS",
        "NOMINATED NODE",
        "CLUSTER-IP",
        "ADDRESSTYPE",
    ] {
        assert!(table.contains(column), "no {column} in\n{table}");
    }
    assert!(table.contains("3/3"), "{table}");
    assert!(table.contains("nginx:1.27"), "{table}");
    let pod = pods(node).remove(0);
    // Events follow what they tell of.
    for word in [
        "Scheduled",
        "Pulled",
        "Created",
        "Started",
        "BestEffort",
        "Controlled By:",
    ] {
        node.wait(&format!("{word} in the pod's description"), |node| {
            node.kubectl(&format!("describe pod {pod}")).contains(word)
        });
    }
    for word in [
        "RollingUpdateStrategy:",
        "ScalingReplicaSet",
        "MinimumReplicasAvailable",
        "NewReplicaSetAvailable",
    ] {
        node.wait(&format!("{word} in the deployment's description"), |node| {
            node.kubectl("describe deployment web-api").contains(word)
        });
    }
    let described = node.kubectl("describe service web-api");
    for word in ["Endpoints:", "TargetPort:", "ClusterIP"] {
        assert!(described.contains(word), "no {word} in\n{described}");
    }
    let nodes = node.kubectl("get nodes -o wide");
    assert!(
        nodes.contains("node1") && nodes.contains("Ready"),
        "{nodes}"
    );
}

fn is_reachable_by_name_from_a_pod(node: &Node) {
    node.kubectl(
        "run client --image=busybox:1.36 --restart=Never --command -- sh -c \
         wget${IFS}-qO-${IFS}http://web-api&&nslookup${IFS}web-api.default.svc.cluster.local&&cat${IFS}/etc/resolv.conf",
    );
    node.wait("the client pod to end", |node| {
        ["Succeeded", "Failed"].contains(&node.field("pod/client", "{.status.phase}").as_str())
    });
    let log = node.kubectl("logs client");
    assert!(log.contains("nginx:1.27"), "{log}");
    assert!(
        log.contains("search default.svc.cluster.local svc.cluster.local cluster.local"),
        "{log}"
    );
    assert!(log.contains("ndots:5"), "{log}");
    assert_eq!(
        node.field("pod/client", "{.status.phase}"),
        "Succeeded",
        "{log}"
    );
    node.kubectl("delete pod client");
}

fn replaces_a_deleted_pod(node: &Node) {
    let before = pods(node);
    node.kubectl(&format!("delete pod {}", before[0]));
    node.wait("three ready pods again", |node| {
        let now = pods(node);
        ready_replicas(node) == "3" && now.len() == 3 && !now.contains(&before[0])
    });
}

fn restarts_a_killed_container(node: &Node) {
    let pod = pods(node).remove(0);
    let field = |path: &str| node.field(&format!("pod/{pod}"), path);
    let ip = field("{.status.podIP}");
    let uid = field("{.metadata.uid}");
    kill_in_pod(&uid, "nginx");
    node.wait("one restart", |_| {
        field("{.status.containerStatuses[0].restartCount}") == "1"
            && field("{.status.containerStatuses[0].ready}") == "true"
    });
    assert_eq!(field("{.status.podIP}"), ip, "the address stays");
    let last = field("{.status.containerStatuses[0].lastState.terminated.reason}");
    assert!(["Error", "Completed"].contains(&last.as_str()), "{last}");
    let table = node.kubectl(&format!("get pod {pod}"));
    assert!(table.contains("1 ("), "RESTARTS shows when: {table}");
}

/// Kills the first process of this name that lives in the pod's cgroup.
fn kill_in_pod(uid: &str, name: &str) {
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let read =
            |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("cgroup").contains(uid) && read("comm").trim() == name {
            let pid = entry.file_name().to_string_lossy().parse().expect("a pid");
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            )
            .expect("killed");
            return;
        }
    }
    panic!("no {name} in the cgroup of pod {uid}");
}

fn scales(node: &Node) {
    node.kubectl("scale deployment/web-api --replicas=5");
    node.wait("five ready", |node| ready_replicas(node) == "5");
    node.kubectl("scale deployment/web-api --replicas=3");
    node.wait("three pods", |node| {
        node.fields("pods -l app=web-api", "{.items[*].metadata.name}")
            .len()
            == 3
    });
}

fn rolls_without_a_failed_request(node: &Node, address: SocketAddr) {
    let client = Steady::start(address);
    node.kubectl("set image deployment/web-api web-api=nginx:1.28");
    let said = node.kubectl("rollout status deployment/web-api --timeout=120s");
    assert!(said.contains("successfully rolled out"), "{said}");
    node.wait("only new pods", |node| {
        node.fields("pods -l app=web-api", "{.items[*].metadata.name}")
            .len()
            == 3
    });
    let page = http::get(address).expect("the page");
    assert!(page.contains("nginx:1.28"), "{page}");
    let history = node.kubectl("rollout history deployment/web-api");
    assert!(
        history.contains("REVISION") && history.contains('2'),
        "{history}"
    );
    node.kubectl("rollout undo deployment/web-api");
    node.kubectl("rollout status deployment/web-api --timeout=120s");
    node.wait("the old page", |_| {
        http::get(address).is_ok_and(|page| page.contains("nginx:1.27"))
    });
    node.wait("only old pods", |node| {
        node.fields("pods -l app=web-api", "{.items[*].metadata.name}")
            .len()
            == 3
    });
    let report = client.stop();
    assert!(
        report.errors.is_empty(),
        "{} failed requests: {:?}",
        report.errors.len(),
        report.errors
    );
    assert!(report.answered > 20, "only {} requests", report.answered);
}

fn prints_logs(node: &Node) {
    let pod = pods(node).remove(0);
    let log = node.kubectl(&format!("logs {pod}"));
    assert!(log.contains("start worker process"), "{log}");
    let tail = node.kubectl(&format!("logs {pod} --tail=1 --timestamps"));
    assert_eq!(tail.lines().count(), 1, "{tail}");
    assert!(tail.starts_with("20"), "{tail}");
}

fn leaves_nothing_after_delete(node: &mut Node, address: SocketAddr) {
    let manifest = workspace().join("tests/manifests/web.yaml");
    node.kubectl(&format!("delete -f {}", manifest.display()));
    node.wait("no pods", |node| {
        node.fields("pods", "{.items[*].metadata.name}").is_empty()
    });
    node.wait("no ReplicaSet and no EndpointSlice", |node| {
        let left = node.try_kubectl("get rs,endpointslices -l app=web-api -o name");
        left.status.success() && left.stdout.is_empty()
    });
    node.wait("no answer at the ClusterIP", |_| {
        http::get(address).is_err()
    });
    node.wait("no pod's traces", |node| {
        !node
            .traces()
            .iter()
            .any(|trace| trace.starts_with("cgroup") && trace.contains("/pod"))
            && !node
                .traces()
                .iter()
                .any(|trace| trace.contains("eth0") || trace.contains("veth"))
    });
    let out = node.down();
    assert!(
        out.status.success(),
        "{}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    assert_eq!(node.traces(), Vec::<String>::new());
    let tables = Command::new("nft").args(["list", "tables"]).output();
    if let Ok(tables) = tables {
        assert!(
            !text(&tables.stdout).contains("pintle"),
            "{}",
            text(&tables.stdout)
        );
    }
}

#[test]
fn a_service_without_endpoints_refuses_at_once() {
    let Some(node) = Node::start() else { return };
    node.kubectl("create service clusterip empty --tcp=80:80");
    let ip = node.field("service/empty", "{.spec.clusterIP}");
    let address = SocketAddr::new(ip.parse().expect("a ClusterIP"), 80);
    node.wait("a refusal", |_| {
        http::get(address).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
}
