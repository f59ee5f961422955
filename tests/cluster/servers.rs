//! Servers of one cluster, made by command: one becomes three and one again.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::node::{Lan, Node, run, text};
use crate::joining::{says, token, with_other_secret};

/// Where the API of the server with this number is.
pub(crate) fn api(number: u8) -> String {
    format!("198.18.0.{number}:6443")
}

/// A machine that is to be a server, with these lines in its config file.
pub(crate) fn prepare(lan: &Lan, number: u8, config: &str) -> Option<Node> {
    let config = format!("bind: 198.18.0.{number}\n{config}");
    Node::prepare_on(lan, &format!("server{number}"), number, &config)
}

/// `pintle server --join` at another server.
pub(crate) fn join_command(server: &Node, at: u8, joiner: &Node) -> Command {
    let token = token(server, &["--role", "server"]);
    joiner.enter();
    let mut command = joiner.up_command();
    command.args(["--join", &api(at), "--token", &token]);
    command
}

/// What `pintle member list` says there.
pub(crate) fn members(server: &Node) -> Vec<Value> {
    server.enter();
    let out = server
        .pintle(&["member", "list", "-o", "json"])
        .output()
        .expect("pintle runs");
    serde_json::from_slice(&out.stdout).unwrap_or_default()
}

/// Whether that many servers vote, as this one sees it, and one of them leads.
pub(crate) fn vote(server: &Node, count: usize) -> bool {
    let members = members(server);
    members.len() == count
        && members.iter().all(|member| member["voter"] == true)
        && members.iter().any(|member| member["leader"] == true)
}

/// The id of the server at this address.
pub(crate) fn id_of(server: &Node, number: u8) -> String {
    let address = format!("198.18.0.{number}:2380");
    let members = members(server);
    let member = members.iter().find(|member| member["address"] == address);
    member
        .map(|member| member["id"].to_string())
        .unwrap_or_default()
}

/// Runs a command that must fail, and gives its words.
fn refused(mut command: Command) -> String {
    let out = command
        .stderr(Stdio::piped())
        .output()
        .expect("pintle runs");
    assert!(!out.status.success(), "{command:?} was not refused");
    text(&out.stderr)
}

fn endpoints(server: &Node) -> Vec<String> {
    server.enter();
    let mut found = server.fields("endpointslices/kubernetes", "{.endpoints[*].addresses[*]}");
    found.sort();
    found
}

#[test]
fn one_server_becomes_three_and_one_again() {
    let Some(lan) = Lan::new() else { return };
    let Some(mut first) = prepare(&lan, 1, "") else {
        return;
    };
    first.up();
    let Some(mut second) = prepare(&lan, 2, "") else {
        return;
    };

    // Refusals leave nothing behind.
    let of_agents = token(&first, &[]);
    let good = token(&first, &["--role", "server"]);
    let join = |token: &str, more: &[&str]| {
        second.enter();
        let mut command = second.up_command();
        command
            .args(["--join", &api(1), "--token", token])
            .args(more);
        let words = refused(command);
        for name in ["data", "run"] {
            assert!(!second.path(name).exists(), "{more:?} left {name}: {words}");
        }
        words
    };
    says(&join(&of_agents, &[]), "make one for the role server");
    says(&join(&with_other_secret(&good), &[]), "is not known here");
    says(
        &join(&good, &["--port", "7443"]),
        "the API of this cluster's servers is at port 6443",
    );
    says(&join(&good, &["--bind", "127.0.0.1"]), "--bind ADDRESS");
    let (credential, _) = good.split_once('@').unwrap();
    let foreign = format!("{credential}@sha256:{}", "ab".repeat(32));
    says(
        &join(&foreign, &[]),
        "is not of the cluster that the token is for",
    );
    second.enter();
    let mut taken = second.pintle(&["up", "--bind", "198.18.0.2", "--node-name", "server1"]);
    taken.args(["--join", &api(1), "--token", &good]);
    says(&refused(taken), "the node name \"server1\" is taken");
    assert_eq!(members(&first).len(), 1, "nobody half-joined");
    first.enter();
    let own = first.pintle(&["up", "--join", &api(2), "--token", &good]);
    says(&refused(own), "is a server of a cluster of its own");

    // Two more, of which one was interrupted in the middle of joining.
    let command = join_command(&first, 1, &second);
    second.start_command(command);
    let Some(mut third) = prepare(&lan, 3, "") else {
        return;
    };
    let mut command = join_command(&first, 1, &third);
    let mut interrupted = command.spawn().expect("pintle starts");
    first.wait("the third server is a member", |first| {
        members(first).len() == 3
    });
    interrupted.kill().expect("killed");
    interrupted.wait().expect("ended");
    let command = join_command(&first, 1, &third);
    third.start_command(command);
    first.wait("all three vote", |first| vote(first, 3));
    first.wait("three endpoints", |first| {
        endpoints(first) == ["198.18.0.1", "198.18.0.2", "198.18.0.3"]
    });

    // Each serves what another one wrote; its own start needs neither --join nor --token.
    third.enter();
    third.kubectl("create configmap from-third --from-literal=a=1");
    second.enter();
    second.signal(Signal::SIGKILL);
    second.up();
    assert_eq!(second.field("configmap/from-third", "{.data.a}"), "1");
    let mut other = second.up_command();
    other.args(["--pod-cidr", "10.99.0.0/16"]);
    says(
        &refused(other),
        "the cluster that this server joined has 10.244.0.0/16",
    );

    // And back. What was removed stays out.
    let gone = id_of(&first, 3);
    first.enter();
    run(&mut first.pintle(&["member", "remove", &gone]));
    third.enter();
    third.signal(Signal::SIGKILL);
    let mut again = Command::new("timeout");
    again.arg("30").arg(third.up_command().get_program());
    again.args(third.up_command().get_args());
    says(&refused(again), "was removed");
    let gone = id_of(&first, 2);
    first.enter();
    run(&mut first.pintle(&["member", "remove", &gone]));
    first.wait("one server", |first| vote(first, 1));
    first.enter();
    first.kubectl("create configmap alone --from-literal=a=1");
    first.wait("one endpoint", |first| endpoints(first) == ["198.18.0.1"]);
    let last = id_of(&first, 1);
    first.enter();
    says(
        &refused(first.pintle(&["member", "remove", &last])),
        "is the only server",
    );
}
