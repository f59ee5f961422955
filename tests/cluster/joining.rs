//! A second machine joins, does its share, comes back, is refused what is not its own, and
//! leaves.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::http;
use crate::harness::node::{Node, pintle_binary, run, text, workspace};

const SERVER: &str = "198.18.0.1:6443";

/// A server on an address that others reach, with these lines in its config file.
fn server(config: &str) -> Option<Node> {
    Node::start_with(&format!("bind: 198.18.0.1\n{config}"))
}

/// A token made on the server.
pub(crate) fn token(server: &Node, args: &[&str]) -> String {
    server.enter();
    let mut words = vec!["token", "create"];
    words.extend(args);
    run(&mut server.pintle(&words)).trim().to_owned()
}

fn join(server: &Node, agent: &mut Node) {
    let token = token(server, &["--description", "for a test"]);
    agent.enter();
    agent.start_command(agent.agent_command(&["--join", SERVER, "--token", &token]));
}

/// Runs an agent that must be refused, sees that nothing is left of it, and gives its words.
fn refused(agent: &Node, args: &[&str]) -> String {
    agent.enter();
    let mut command = agent.agent_command(args);
    let out = command
        .stderr(std::process::Stdio::piped())
        .output()
        .expect("pintle runs");
    assert!(!out.status.success(), "{args:?} was not refused");
    for name in ["data", "run"] {
        assert!(!agent.path(name).exists(), "{args:?} left {name} behind");
    }
    text(&out.stderr)
}

pub(crate) fn says(words: &str, want: &str) {
    let found = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(found.contains(want), "{found:?} does not say {want:?}");
}

/// The token with the secret's last character changed.
pub(crate) fn with_other_secret(token: &str) -> String {
    let (credential, hash) = token.split_once('@').unwrap();
    let (start, last) = credential.split_at(credential.len() - 1);
    format!("{start}{}@{hash}", if last == "a" { "b" } else { "a" })
}

fn refusals(server: &Node, agent: &Node) {
    let good = token(server, &[]);
    let join = |token: &str| refused(agent, &["--join", SERVER, "--token", token]);
    says(
        &join(&with_other_secret(&good)),
        "the join token is not known here",
    );
    says(&join("nonsense"), "the token has no `@sha256:…` at its end");
    let (credential, _) = good.split_once('@').unwrap();
    let foreign = format!("{credential}@sha256:{}", "ab".repeat(32));
    says(
        &join(&foreign),
        "is not of the cluster that the token is for",
    );

    let revoked = token(server, &[]);
    server.enter();
    run(&mut server.pintle(&["token", "revoke", &revoked[..6]]));
    says(&join(&revoked), "it was revoked");

    let short = token(server, &["--ttl", "1s"]);
    server.wait("the short token has expired", |server| {
        let listed = run(&mut server.pintle(&["token", "list"]));
        let line = listed.lines().find(|line| line.starts_with(&short[..6]));
        line.is_some_and(|line| line.contains("expired"))
    });
    says(&join(&short), "expired at");

    says(
        &refused(agent, &["--join", "198.18.0.1:1", "--token", &good]),
        "--bind",
    );
    says(&refused(agent, &["--join", SERVER]), "give --token too");
    says(&refused(agent, &[]), "has not joined a cluster");
    agent.enter();
    let taken = agent
        .pintle(&[
            "agent",
            "--node-name",
            "node1",
            "--join",
            SERVER,
            "--token",
            &good,
        ])
        .output()
        .unwrap();
    says(&text(&taken.stderr), "the node name \"node1\" is taken");
    assert!(!agent.path("data").exists());

    // Where a server runs, no agent starts.
    server.enter();
    let over = server
        .pintle(&["agent", "--join", SERVER, "--token", &good])
        .output()
        .unwrap();
    says(&text(&over.stderr), "is a server of a cluster of its own");
    let beside = server.path("other-data");
    let over = Command::new(pintle_binary())
        .args(["agent", "--join", SERVER, "--token", &good, "--data-dir"])
        .arg(&beside)
        .arg("--run-dir")
        .arg(server.path("run"))
        .output()
        .unwrap();
    says(&text(&over.stderr), "another instance uses it");
    assert!(!beside.exists());
}

/// The page, through a Service or a pod, from the node the thread is on.
pub(crate) fn page(address: &str, port: u16) -> std::io::Result<String> {
    http::get(SocketAddr::new(address.parse().unwrap(), port))
}

fn web(server: &Node) -> (String, Vec<(String, String)>) {
    server.enter();
    let manifest = workspace().join("tests/manifests/web.yaml");
    server.kubectl(&format!("apply -f {}", manifest.display()));
    server.kubectl("scale deployment web-api --replicas=4");
    server.wait("four pods are ready", |server| {
        server.field("deployment/web-api", "{.status.readyReplicas}") == "4"
    });
    let nodes = server.fields("pods", "{.items[*].spec.nodeName}");
    let ips = server.fields("pods", "{.items[*].status.podIP}");
    let address = server.field("service/web-api", "{.spec.clusterIP}");
    (address, nodes.into_iter().zip(ips).collect())
}

/// The node's own credentials, as kubectl takes them.
fn as_node(agent: &Node, folder: &Path) -> String {
    let pem = fs::read_to_string(agent.path("data/agent/identity/node.pem")).unwrap();
    let parts: Vec<&str> = pem.split("-----BEGIN CERTIFICATE-----").collect();
    let certificate = |at: usize| format!("-----BEGIN CERTIFICATE-----{}", parts[at]);
    for (name, content) in [
        ("key", parts[0].to_owned()),
        ("crt", certificate(1)),
        ("ca", certificate(2)),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    let folder = folder.display();
    format!(
        "--server=https://{SERVER} --client-key={folder}/key --client-certificate={folder}/crt --certificate-authority={folder}/ca"
    )
}

#[test]
fn a_machine_joins_works_comes_back_and_leaves() {
    let Some(mut server) = server("") else { return };
    server.import_images();
    let Some(mut agent) = server.prepare_peer("node2", "") else {
        return;
    };
    refusals(&server, &agent);
    server.enter();
    assert_eq!(
        server.fields("nodes", "{.items[*].metadata.name}"),
        ["node1"]
    );

    join(&server, &mut agent);
    agent.import_images();
    server.enter();
    let secrets = server.kubectl("get secrets -n kube-system -o yaml");
    assert!(secrets.contains("token-hash"), "{secrets}");
    let ready = "{.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    server.wait("two nodes are Ready", |server| {
        server.fields("nodes", ready) == ["True", "True"]
    });

    let (service, pods) = web(&server);
    for name in ["node1", "node2"] {
        let here = pods.iter().filter(|(node, _)| node == name).count();
        assert!(here > 0, "no pod on {name}: {pods:?}");
    }
    for from in [&server, &agent] {
        from.enter();
        for (node, ip) in &pods {
            page(ip, 80).unwrap_or_else(|error| panic!("a pod on {node}: {error}"));
        }
        for _ in 0..10 {
            page(&service, 80).unwrap();
        }
    }

    // A node may see what is its own, and not the rest.
    server.enter();
    let folder = tempfile::tempdir().unwrap();
    let credentials = as_node(&agent, folder.path());
    let as_node = |words: &str| {
        let mut command = Command::new("kubectl");
        command.args(credentials.split(' ')).args(words.split(' '));
        let out = command.env("HOME", folder.path()).output().unwrap();
        format!("{}{}", text(&out.stdout), text(&out.stderr))
    };
    says(&as_node("get node node2"), "node2");
    says(
        &as_node("get node node1"),
        "node 'node2' cannot read 'node1', only its own Node object",
    );
    says(&as_node("get secrets -n kube-system"), "Forbidden");

    // A restart needs no token; without any server pods and Services go on.
    agent.enter();
    agent.signal(Signal::SIGTERM);
    let elsewhere = refusal_of_another_cluster(&agent);
    says(&elsewhere, "pintle reset");
    agent.start_command(agent.agent_command(&[]));
    server.enter();
    server.signal(Signal::SIGKILL);
    agent.enter();
    for _ in 0..10 {
        page(&service, 80).unwrap();
    }
    server.enter();
    server.up();
    server.wait("node2 has its session back", |server| {
        let pod = server
            .fields(
                "pods --field-selector spec.nodeName=node2",
                "{.items[*].metadata.name}",
            )
            .into_iter()
            .next();
        pod.is_some_and(|pod| server.try_kubectl(&format!("logs {pod}")).status.success())
    });

    // The kernel drops routes with the link they use; they come back with it.
    agent.enter();
    for words in ["link set up0 down", "link set up0 up"] {
        run(Command::new("ip").args(words.split(' ')));
    }
    let far = &pods.iter().find(|(node, _)| node == "node1").unwrap().1;
    agent.wait("a pod of node1 is reached again", |_| page(far, 80).is_ok());

    // Gone without a trace, and its name is free once the Node is deleted.
    let down = agent.down();
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(agent.traces(), Vec::<String>::new());
    let routes = run(Command::new("ip").args(["route"]));
    assert!(!routes.contains("10.244."), "{routes}");
    let reset = agent.pintle(&["reset", "--yes"]).output().unwrap();
    says(&text(&reset.stdout), "kubectl delete node node2");
    let good = token(&server, &[]);
    says(
        &refused(&agent, &["--join", SERVER, "--token", &good]),
        "the node name \"node2\" is taken",
    );
    server.enter();
    server.kubectl("delete node node2");
    server.wait("the route to node2 is gone", |_| {
        let routes = run(Command::new("ip").args(["route"]));
        !routes.contains("via 198.18.0.2 ")
    });
    join(&server, &mut agent);
    server.enter();
    server.wait("node2 is back", |server| {
        server.fields("nodes", ready) == ["True", "True"]
    });
    agent.enter();
    agent.down();
    server.enter();
}

/// The agent that joined, started with another cluster's token.
fn refusal_of_another_cluster(agent: &Node) -> String {
    let token = format!("aaaaaa.{}@sha256:{}", "b".repeat(24), "cd".repeat(32));
    let out = agent
        .pintle(&["agent", "--join", "198.18.0.9:6443", "--token", &token])
        .output()
        .unwrap();
    assert!(!out.status.success());
    text(&out.stderr)
}

#[test]
fn a_certificate_is_renewed_before_it_ends() {
    let Some(server) = server("nodeCertificateLife: 30s") else {
        return;
    };
    let Some(mut agent) = server.prepare_peer("node2", "") else {
        return;
    };
    join(&server, &mut agent);
    let pem = || fs::read_to_string(agent.path("data/agent/identity/node.pem")).unwrap();
    let first = pem();
    agent.wait("the certificate is renewed", |_| pem() != first);
    let second = pem();
    assert_ne!(
        first.split("-----BEGIN CERT").next(),
        second.split("-----BEGIN CERT").next()
    );
    // The new one is what the next session is made with.
    agent.signal(Signal::SIGKILL);
    agent.start_command(agent.agent_command(&[]));
    agent.down();
    server.enter();
}
