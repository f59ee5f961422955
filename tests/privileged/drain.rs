//! A node is taken out of service and put back: cordon, drain against a disruption budget,
//! uncordon. And one that was thought lost, deleted or moved.

use std::net::SocketAddr;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::http;
use crate::harness::node::{Node, debian_kubectl, run, text, workspace};

const BUDGET: &str = r"
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: web-api
spec:
  minAvailable: 2
  selector:
    matchLabels:
      app: web-api
";

#[test]
fn a_drain_waits_for_the_budget() {
    if let Some(node) = Node::start() {
        node.import_images();
        // Older ones ask for it in a version that Kubernetes serves no more.
        let knows_budgets = node.kubectl_minor() > 20;
        if knows_budgets {
            let made = node.kubectl(
                "create poddisruptionbudget first --selector=app=web-api --max-unavailable=25%",
            );
            assert!(made.contains("first created"), "{made}");
            node.kubectl("delete pdb first");
        }
        drains(&node);
        if knows_budgets {
            let described = node.kubectl("describe pdb web-api");
            for word in ["Min available:", "Selector:", "Allowed disruptions:"] {
                assert!(described.contains(word), "no {word} in\n{described}");
            }
        }
    }
}

/// It evicts with `policy/v1beta1`.
#[test]
fn a_drain_waits_for_the_budget_with_kubectl_1_20() {
    if !debian_kubectl().exists() {
        println!("skipped: no kubectl 1.20; `cargo xtask setup` unpacks it");
        return;
    }
    if let Some(mut node) = Node::start() {
        node.use_kubectl(debian_kubectl());
        node.import_images();
        drains(&node);
    }
}

/// The names of the pods that are ready.
fn ready(node: &Node) -> Vec<String> {
    let mut pods = node.fields(
        "pods",
        "{.items[?(@.status.containerStatuses[0].ready==true)].metadata.name}",
    );
    pods.sort();
    pods
}

fn figure(node: &Node, name: &str) -> String {
    node.field("pdb/web-api", &format!("{{.status.{name}}}"))
}

fn drains(node: &Node) {
    let manifest = workspace().join("tests/manifests/web.yaml");
    node.kubectl(&format!("apply -f {}", manifest.display()));
    let applied = node.kubectl_stdin("apply -f -", BUDGET);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    node.kubectl("rollout status deployment/web-api --timeout=60s");
    node.wait("a disruption to spare", |node| {
        figure(node, "disruptionsAllowed") == "1"
    });
    let table = node.kubectl("get pdb");
    let row: Vec<&str> = table
        .lines()
        .nth(1)
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(row[..4], ["web-api", "2", "N/A", "1"], "{table}");

    let said = node.kubectl("cordon node1");
    assert!(said.contains("node/node1 cordoned"), "{said}");
    let nodes = node.kubectl("get nodes");
    assert!(nodes.contains("Ready,SchedulingDisabled"), "{nodes}");

    let before = ready(node);
    assert_eq!(before.len(), 3);
    let refused = node.kubectl_fails("drain node1 --ignore-daemonsets --timeout=12s");
    assert!(
        refused.contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{refused}"
    );
    node.wait("two of three, and one that nobody may place", |node| {
        let now = ready(node);
        now.len() == 2
            && now.iter().all(|name| before.contains(name))
            && figure(node, "currentHealthy") == "2"
            && figure(node, "disruptionsAllowed") == "0"
            && node.field("deployment/web-api", "{.status.unavailableReplicas}") == "1"
    });

    node.kubectl(r#"patch pdb web-api --type=merge -p {"spec":{"minAvailable":0}}"#);
    node.wait("the new budget", |node| {
        figure(node, "disruptionsAllowed") == "2"
    });
    let said = node.kubectl("drain node1 --ignore-daemonsets --timeout=60s");
    assert!(
        said.contains("node/node1 drained") || said.contains("node/node1 evicted"),
        "{said}"
    );
    node.wait("an empty node", |node| {
        ready(node).is_empty() && node.fields("pods", "{.items[*].spec.nodeName}").is_empty()
    });

    let said = node.kubectl("uncordon node1");
    assert!(said.contains("node/node1 uncordoned"), "{said}");
    node.kubectl("rollout status deployment/web-api --timeout=60s");
    let ip = node.field("service/web-api", "{.spec.clusterIP}");
    let address = SocketAddr::new(ip.parse().expect("a ClusterIP"), 80);
    node.wait("the page", |_| http::get(address).is_ok());
    node.wait("the node's own words on it", |node| {
        let events = node.fields(
            "events --field-selector=involvedObject.kind=Node",
            "{.items[*].reason}",
        );
        ["NodeNotSchedulable", "NodeSchedulable"]
            .iter()
            .all(|reason| events.iter().any(|event| event == reason))
    });
    node.wait("a healthy budget", |node| {
        figure(node, "currentHealthy") == "3" && figure(node, "expectedPods") == "3"
    });
}

/// What the control plane writes of a node it has lost is wrong once the node is back.
#[test]
fn a_node_that_was_thought_lost_says_that_it_is_there() {
    let Some(node) = Node::start() else { return };
    node.import_images();
    let manifest = workspace().join("tests/manifests/web.yaml");
    node.kubectl(&format!("apply -f {}", manifest.display()));
    node.kubectl("rollout status deployment/web-api --timeout=60s");
    let pod = ready(&node).remove(0);
    let endpoints = "endpointslices -l kubernetes.io/service-name=web-api";
    let serving = |node: &Node| {
        node.fields(
            endpoints,
            "{.items[*].endpoints[?(@.conditions.ready==true)].addresses[0]}",
        )
        .len()
    };
    node.wait("three endpoints", |node| serving(node) == 3);

    let path = format!("/api/v1/namespaces/default/pods/{pod}");
    node.set_ready(&path, "False", "");
    node.wait("a pod that serves again", |node| {
        node.field(
            &format!("pod/{pod}"),
            r#"{.status.conditions[?(@.type=="Ready")].status}"#,
        ) == "True"
            && serving(node) == 3
    });

    node.set_ready("/api/v1/nodes/node1", "Unknown", "NodeStatusUnknown");
    node.wait("a node that is ready again, and open", |node| {
        node.field(
            "node/node1",
            r#"{.status.conditions[?(@.type=="Ready")].reason}"#,
        ) == "KubeletReady"
            && node.field("node/node1", "{.spec.taints}").is_empty()
    });
    node.wait("its Event", |node| {
        let events = node.fields(
            "events --field-selector=involvedObject.kind=Node,reason=NodeReady",
            "{.items[*].count}",
        );
        events
            .iter()
            .filter_map(|count| count.parse::<u32>().ok())
            .sum::<u32>()
            >= 2
    });
}

#[test]
fn a_deleted_node_joins_again_and_may_come_from_another_address() {
    let Some(mut node) = Node::start() else {
        return;
    };
    node.import_images();
    let manifest = workspace().join("tests/manifests/web.yaml");
    node.kubectl(&format!("apply -f {}", manifest.display()));
    node.kubectl("rollout status deployment/web-api --timeout=60s");
    let (pods, uid) = (ready(&node), node.field("node/node1", "{.metadata.uid}"));
    let is_ready = |node: &Node| {
        node.field(
            "node/node1",
            r#"{.status.conditions[?(@.type=="Ready")].status}"#,
        ) == "True"
    };

    node.kubectl("delete node node1");
    node.wait("another node of the name", |node| {
        let now = node.field("node/node1", "{.metadata.uid}");
        !now.is_empty() && now != uid && is_ready(node)
    });
    node.wait("the Events", |node| {
        let events = node.fields(
            "events --field-selector=involvedObject.kind=Node",
            "{.items[*].reason}",
        );
        ["RemovingNode", "RegisteredNode"]
            .iter()
            .all(|reason| events.iter().any(|event| event == reason))
    });
    assert_eq!(ready(&node), pods, "it kept its pods");

    node.signal(Signal::SIGTERM);
    for words in [
        "address add 198.19.0.7/24 dev up0",
        "route replace default via 198.19.0.254 dev up0",
        "address del 198.18.0.1/24 dev up0",
    ] {
        run(Command::new("ip").args(words.split(' ')));
    }
    node.up();
    node.wait("the new address", |node| {
        node.field(
            "node/node1",
            r#"{.status.addresses[?(@.type=="InternalIP")].address}"#,
        ) == "198.19.0.7"
            && is_ready(node)
    });
    node.wait("pods that say where they are", |node| {
        node.fields("pods", "{.items[*].status.hostIP}") == ["198.19.0.7"; 3]
    });
    assert_eq!(ready(&node), pods, "the same pods");
    let ip = node.field("service/web-api", "{.spec.clusterIP}");
    let address = SocketAddr::new(ip.parse().expect("a ClusterIP"), 80);
    node.wait("the page", |_| http::get(address).is_ok());
}
