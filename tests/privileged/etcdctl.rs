//! etcd's own client, Debian's `etcdctl` 3.4, against `--etcd-listen`: the habits of operators. And
//! etcd itself, which restores a snapshot.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use crate::harness::node::{Node, etcd, run, text};

const CONFIG: &str = "etcdListen: 127.0.0.1:2379\n";

/// `etcdctl` with the administrator's certificate; the line's words are split at spaces, and
/// `''` is the empty one.
fn etcdctl(node: &Node, line: &str) -> Command {
    // A client that waits for what never comes fails instead.
    let mut command = Command::new("timeout");
    command.args(["60", "etcdctl"]).env("ETCDCTL_API", "3");
    command.args(["--endpoints", "https://127.0.0.1:2379"]);
    for (flag, file) in [("--cacert", "ca"), ("--cert", "cert"), ("--key", "key")] {
        command.arg(flag).arg(node.path(file));
    }
    let words = line.split(' ').filter(|word| !word.is_empty());
    command.args(words.map(|word| word.trim_matches('\'')));
    command.stdin(Stdio::null());
    command
}

fn ok(node: &Node, line: &str) -> String {
    run(&mut etcdctl(node, line))
}

fn fails(node: &Node, line: &str) -> String {
    let out = etcdctl(node, line).output().expect("etcdctl runs");
    assert!(!out.status.success(), "etcdctl {line} succeeded: {out:?}");
    text(&out.stderr)
}

/// With `input` as its standard input.
fn with_input(node: &Node, line: &str, input: &str) -> Output {
    let file = node.path("input");
    fs::write(&file, input).expect("written");
    let input = fs::File::open(file).expect("opened");
    let mut command = etcdctl(node, line);
    command.stdin(input).output().expect("etcdctl runs")
}

/// Writes CA, certificate and key of the kubeconfig where [`etcdctl`] looks for them.
fn credentials(node: &Node) {
    for (field, file) in [
        ("clusters[0].cluster.certificate-authority-data", "ca"),
        ("users[0].user.client-certificate-data", "cert"),
        ("users[0].user.client-key-data", "key"),
    ] {
        let path = format!("config view --raw -o jsonpath={{.{field}}}");
        let encoded = node.path("encoded");
        fs::write(&encoded, node.kubectl(&path)).expect("written");
        let decoded = Command::new("base64").arg("-d").arg(encoded).output();
        fs::write(node.path(file), decoded.expect("base64 runs").stdout).expect("written");
    }
}

#[test]
fn etcdctl_habits_work() {
    if Command::new("etcdctl").arg("version").output().is_err() {
        println!("skipped: needs etcdctl (Debian: etcd-client)");
        return;
    }
    let Some(node) = Node::start_with(CONFIG) else {
        return;
    };
    credentials(&node);
    let status = run(&mut node.pintle(&["status"]));
    assert!(status.contains("https://127.0.0.1:2379"), "{status}");

    keys(&node);
    transactions(&node);
    watches(&node);
    leases(&node);
    the_cluster(&node);
    snapshots(&node);

    // Nobody without a certificate of the administrators.
    let mut stranger = Command::new("etcdctl");
    stranger
        .env("ETCDCTL_API", "3")
        .arg("--cacert")
        .arg(node.path("ca"));
    stranger.args(["--endpoints", "https://127.0.0.1:2379", "get", "a"]);
    let out = stranger.output().expect("etcdctl runs");
    assert!(!out.status.success());
    let words = text(&out.stderr);
    assert!(words.contains("client certificate"), "{words}");
}

fn keys(node: &Node) {
    assert_eq!(ok(node, "put fruit/apple red"), "OK\n");
    ok(node, "put fruit/banana yellow");
    ok(node, "put fruit/cherry red");
    assert_eq!(ok(node, "get fruit/apple"), "fruit/apple\nred\n");
    assert_eq!(
        ok(
            node,
            "get fruit/ --prefix --keys-only --order=DESCEND --limit=2"
        ),
        "fruit/cherry\n\nfruit/banana\n\n"
    );
    assert_eq!(
        ok(node, "get fruit/b --from-key --print-value-only"),
        "yellow\nred\n"
    );
    assert_eq!(
        ok(node, "put --prev-kv fruit/apple green"),
        "OK\nfruit/apple\nred\n"
    );
    let json = ok(node, "get fruit/apple -w json");
    let revision: u64 = field(&json, "mod_revision").parse().expect("a number");
    let before = format!("get fruit/apple --print-value-only --rev={}", revision - 1);
    assert_eq!(ok(node, &before), "red\n");
    let future = fails(node, "get fruit/apple --rev=1000000000");
    assert!(
        future.contains("required revision is a future revision"),
        "{future}"
    );
    assert_eq!(ok(node, "del fruit/banana"), "1\n");
    assert_eq!(ok(node, "del fruit/banana"), "0\n");
    // Pintle's own objects are not among the client's keys.
    assert_eq!(
        ok(node, "get '' --from-key --keys-only"),
        "fruit/apple\n\nfruit/cherry\n\n"
    );
    assert_eq!(ok(node, "del /registry/ --prefix"), "0\n");
    assert!(node.kubectl("get namespaces").contains("kube-system"));

    ok(node, &format!("compact {revision}"));
    let gone = fails(node, &before);
    assert!(
        gone.contains("required revision has been compacted"),
        "{gone}"
    );
    assert_eq!(ok(node, "get fruit/apple --print-value-only"), "green\n");
}

fn transactions(node: &Node) {
    let txn = "value(\"fruit/apple\") = \"green\"\n\nput fruit/apple ripe\nget fruit/apple\n\nget fruit/cherry\n\n";
    let out = with_input(node, "txn", txn);
    assert_eq!(
        text(&out.stdout),
        "SUCCESS\n\nOK\n\nfruit/apple\nripe\n",
        "{out:?}"
    );
    let out = with_input(node, "txn", txn);
    assert_eq!(
        text(&out.stdout),
        "FAILURE\n\nfruit/cherry\nred\n",
        "{out:?}"
    );
    let twice = "\nput a 1\nput a 2\n\n\n";
    let out = with_input(node, "txn", twice);
    let words = text(&out.stderr);
    assert!(
        words.contains("duplicate key given in txn request"),
        "{words}"
    );
}

fn watches(node: &Node) {
    let revision = field(&ok(node, "put watched first -w json"), "revision");
    let mut child = etcdctl(node, &format!("watch watched --prev-kv --rev={revision}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("etcdctl starts");
    ok(node, "put watched second");
    ok(node, "del watched");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let wanted = [
        "PUT", "watched", "first", "PUT", "watched", "first", "watched", "second", "DELETE",
        "watched", "second", "watched", "",
    ];
    let seen: Vec<_> = lines.take(wanted.len()).map_while(Result::ok).collect();
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(seen, wanted);
}

fn leases(node: &Node) {
    let granted = ok(node, "lease grant 3600");
    let id = granted.split(' ').nth(1).expect("an id").to_owned();
    ok(node, &format!("put --lease={id} leased value"));
    let state = ok(node, &format!("lease timetolive {id} --keys"));
    assert!(state.contains("granted with TTL(3600s)"), "{state}");
    assert!(state.contains("attached keys([leased])"), "{state}");
    assert_eq!(ok(node, "lease list"), format!("found 1 leases\n{id}\n"));
    let kept = ok(node, &format!("lease keep-alive --once {id}"));
    assert!(kept.contains("keepalived with TTL(3600)"), "{kept}");
    ok(node, &format!("lease revoke {id}"));
    assert_eq!(ok(node, "get leased"), "");
    let missing = fails(node, &format!("lease revoke {id}"));
    assert!(missing.contains("requested lease not found"), "{missing}");
    ok(node, "lease grant 2 -w json");
    node.wait("a lease ends by itself", |node| {
        ok(node, "lease list").starts_with("found 0 leases")
    });
}

fn the_cluster(node: &Node) {
    let members = ok(node, "member list");
    assert!(members.contains("started, node1"), "{members}");
    assert!(members.contains("https://127.0.0.1:2379"), "{members}");
    let status = ok(node, "endpoint status -w json");
    assert!(status.contains("\"version\":\"3.5."), "{status}");
    let health = etcdctl(node, "endpoint health")
        .output()
        .expect("etcdctl runs");
    let words = text(&health.stdout) + &text(&health.stderr);
    assert!(words.contains("is healthy"), "{words}");
    ok(node, "endpoint hashkv");
    ok(node, "alarm list");
    ok(node, "alarm disarm");
    ok(node, "defrag");
    // Elections and locks are made of leases and transactions.
    assert!(ok(node, "lock mutex echo held").contains("held"));
    let auth = fails(node, "auth enable");
    assert!(auth.contains("client certificate"), "{auth}");
}

/// A snapshot is taken, looked at, restored by etcd's own tools, and served by etcd with the same
/// keys, versions and leases.
fn snapshots(node: &Node) {
    for number in 0..500 {
        // Enough for a tree of several levels.
        if number % 50 == 0 {
            let value = "v".repeat(6000 + number);
            ok(node, &format!("put many/{number:03} {value}"));
        }
    }
    let granted = ok(node, "lease grant 3600");
    let id = granted.split(' ').nth(1).expect("an id").to_owned();
    ok(node, &format!("put --lease={id} many/leased value"));
    let before = field(&ok(node, "get many/000 -w json"), "mod_revision");
    ok(node, "put many/000 newer");
    let (file, dir) = (node.path("snapshot.db"), node.path("restored"));
    let (file, dir) = (file.display(), dir.display());
    ok(node, &format!("snapshot save {file}"));
    let revision = field(&ok(node, "get many/000 -w json"), "mod_revision");
    let status = ok(node, &format!("snapshot status {file} -w json"));
    assert_eq!(field(&status, "revision"), revision, "{status}");
    let keys: u64 = field(&status, "totalKey").parse().expect("a number");
    assert!(keys > 12, "{status}");

    if Command::new(etcd()).arg("--version").output().is_err() {
        println!("skipped: restoring needs etcd (Debian: etcd-server)");
        return;
    }
    let peer = "http://127.0.0.1:2391";
    ok(
        node,
        &format!(
            "snapshot restore {file} --data-dir {dir} --name restored --initial-cluster \
             restored={peer} --initial-advertise-peer-urls {peer}"
        ),
    );
    let mut restored = Restored::start(node, &dir.to_string(), peer);
    let all = "get '' --from-key";
    assert_eq!(restored.ask(all), ok(node, all));
    for key in ["fruit/apple", "many/000", "many/leased"] {
        let fields = format!("get {key} -w fields");
        let of = |text: String| {
            let lines = text.lines().skip_while(|line| !line.starts_with("\"Key\""));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let wanted = of(ok(node, &fields));
        assert!(wanted.len() > 4, "{wanted:?}");
        assert_eq!(of(restored.ask(&fields)), wanted);
    }
    // The versions before are there too.
    let old = format!("get many/000 --print-value-only --rev={before}");
    assert_eq!(restored.ask(&old), ok(node, &old));
    let leases = restored.ask(&format!("lease timetolive {id} --keys"));
    assert!(leases.contains("granted with TTL(3600s)"), "{leases}");
    assert!(leases.contains("attached keys([many/leased])"), "{leases}");
    // It is a whole etcd: it writes, deletes and compacts what it got.
    restored.ask("del many/ --prefix");
    let put = restored.ask("put fruit/apple restored -w json");
    restored.ask(&format!("compact {} --physical", field(&put, "revision")));
    restored.ask("defrag");
    assert_eq!(restored.ask("get many/ --prefix"), "");
}

/// Debian's etcd on a restored folder; asking it after it ended fails.
struct Restored(Child);

impl Restored {
    const URL: &str = "http://127.0.0.1:2389";

    fn start(node: &Node, dir: &str, peer: &str) -> Self {
        let log = fs::File::create(node.path("etcd.log")).expect("created");
        let child = Command::new(etcd())
            .args(["--name", "restored", "--data-dir", dir])
            .args(["--listen-client-urls", Self::URL])
            .args(["--advertise-client-urls", Self::URL])
            .args(["--listen-peer-urls", peer])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("cloned"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        let restored = Self(child);
        node.wait("etcd serves what it restored", |_| {
            let health = Self::command("endpoint health").output();
            health.is_ok_and(|out| out.status.success())
        });
        restored
    }

    fn command(line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", "etcdctl"]).env("ETCDCTL_API", "3");
        command.args(["--endpoints", Self::URL]);
        let words = line.split(' ').filter(|word| !word.is_empty());
        command.args(words.map(|word| word.trim_matches('\'')));
        command.stdin(Stdio::null());
        command
    }

    fn ask(&mut self, line: &str) -> String {
        let ended = self.0.try_wait().expect("asked");
        assert!(ended.is_none(), "etcd has ended: {ended:?}");
        run(&mut Self::command(line))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The first number after a name in etcdctl's JSON.
fn field(json: &str, name: &str) -> String {
    let at = json.find(&format!("\"{name}\":")).expect("the field");
    let rest = &json[at + name.len() + 3..];
    rest.chars().take_while(char::is_ascii_digit).collect()
}
