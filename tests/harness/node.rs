//! A real node for a test: the `pintle` binary in a network namespace, a cgroup and folders
//! of its own, so that nothing of the machine's is touched and several can follow each other.
//!
//! The calling thread itself moves into the namespace and the whole test process into the
//! cgroup: what it starts and the sockets it opens are then "on the node". Tests of one binary
//! must therefore run one after another (`--test-threads=1`, which `cargo xtask test` gives).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest wait for anything to become true. Generous: two busy cores, a debug build.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A node under test.
pub struct Node {
    dir: tempfile::TempDir,
    cgroup: Cgroup,
    netns: fs::File,
    name: String,
    child: Option<Child>,
    kubectl: PathBuf,
    /// Lines for the config file besides the harness's own.
    config: String,
}

impl Node {
    /// Starts a node and waits until it is ready; `None` (and a printed reason) where the
    /// machine cannot run one.
    pub fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Like [`Node::start`], with more lines for the config file.
    pub fn start_with(config: &str) -> Option<Self> {
        let mut node = Self::prepare(config)?;
        node.up();
        Some(node)
    }

    /// Everything but `pintle up`.
    pub fn prepare(config: &str) -> Option<Self> {
        Self::place(
            "node1",
            config,
            &[
                "link set lo up",
                // A node needs an address of its own; the bridge has no port but those of peers.
                "link add up0 type bridge",
                "address add 198.18.0.1/24 dev up0",
                "link set up0 up",
                "route add default via 198.18.0.254 dev up0",
            ],
        )
    }

    /// A second machine on the link of this one, which must run; the calling thread goes there.
    pub fn prepare_peer(&self, name: &str, config: &str) -> Option<Self> {
        let link = format!(
            "link add up0 type veth peer name to-{name} netns {}",
            self.pid()
        );
        let peer = Self::place(
            name,
            config,
            &[
                "link set lo up",
                link.as_str(),
                "address add 198.18.0.2/24 dev up0",
                "link set up0 up",
                "route add default via 198.18.0.254 dev up0",
            ],
        )?;
        self.enter();
        let port = format!("link set to-{name} master up0 up");
        run(Command::new("ip").args(port.split(' ')));
        peer.enter();
        Some(peer)
    }

    /// A machine on a [`Lan`], at 198.18.0.`number`; the calling thread goes there.
    pub fn prepare_on(lan: &Lan, name: &str, number: u8, config: &str) -> Option<Self> {
        let link = format!(
            "link add up0 type veth peer name to-{name} netns {}",
            lan.switch.id()
        );
        let address = format!("address add 198.18.0.{number}/24 dev up0");
        let node = Self::place(
            name,
            config,
            &[
                "link set lo up",
                link.as_str(),
                address.as_str(),
                "link set up0 up",
                "route add default via 198.18.0.254 dev up0",
            ],
        )?;
        lan.enter();
        run(Command::new("ip").args([
            "link",
            "set",
            &format!("to-{name}"),
            "master",
            "lan0",
            "up",
        ]));
        node.enter();
        Some(node)
    }

    fn place(name: &str, config: &str, network: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        for words in network {
            run(Command::new("ip").args(words.split(' ')));
        }
        Some(Self {
            dir: tempfile::tempdir().expect("a folder"),
            cgroup: Cgroup::enter(),
            netns: fs::File::open("/proc/thread-self/ns/net").expect("own namespace"),
            name: name.to_owned(),
            child: None,
            kubectl: path_kubectl(),
            config: config.to_owned(),
        })
    }

    /// Moves the calling thread, and what it starts, to this node.
    pub fn enter(&self) {
        self.try_enter().expect("moved to the node");
    }

    fn try_enter(&self) -> std::io::Result<()> {
        setns(&self.netns, CloneFlags::CLONE_NEWNET)?;
        let own = std::process::id().to_string();
        fs::write(self.cgroup.path.join("host/cgroup.procs"), own)
    }

    /// Uses another kubectl from here on.
    pub fn use_kubectl(&mut self, kubectl: PathBuf) {
        self.kubectl = kubectl;
    }

    /// The minor version of the kubectl in use: on a bare Debian 12 there is only 1.20.
    pub fn kubectl_minor(&self) -> u32 {
        let version = self.kubectl("version --client -o json");
        let version: serde_json::Value = serde_json::from_str(&version).expect("JSON");
        let minor = version["clientVersion"]["minor"].as_str();
        let minor = minor.and_then(|minor| minor.trim_end_matches('+').parse().ok());
        minor.unwrap_or_else(|| panic!("kubectl's version in {version}"))
    }

    /// Sets the Ready condition of the object at an API path, as only the control plane and the
    /// node do.
    pub fn set_ready(&self, path: &str, status: &str, reason: &str) {
        let object = self.kubectl(&format!("get --raw {path}"));
        let mut object: serde_json::Value = serde_json::from_str(&object).expect("JSON");
        let conditions = object["status"]["conditions"].as_array_mut();
        let ready = conditions
            .and_then(|all| {
                all.iter_mut()
                    .find(|condition| condition["type"] == "Ready")
            })
            .expect("a Ready condition");
        ready["status"] = status.into();
        ready["reason"] = reason.into();
        // Whatever was written meanwhile is as old as this.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let out = self.kubectl_stdin(
            &format!("replace --raw {path}/status -f -"),
            &object.to_string(),
        );
        assert!(out.status.success(), "{}", text(&out.stderr));
    }

    /// A path in the node's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Process id of `pintle up`.
    pub fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("the node runs");
        Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
    }

    /// `pintle up` in the foreground, until it prints `ready`.
    pub fn up(&mut self) {
        let command = self.up_command();
        self.start_command(command);
    }

    /// Starts `pintle up` or `pintle agent` and waits until it prints `ready`.
    pub fn start_command(&mut self, mut command: Command) {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("pintle starts");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        self.child = Some(child);
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let deadline = Instant::now() + PATIENCE;
        loop {
            match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return,
                Ok(_) => {}
                Err(error) => panic!("pintle is not ready ({error}):\n{}", self.log()),
            }
        }
    }

    /// The command line of this node's `pintle up`, its log appended to the node's.
    pub fn up_command(&self) -> Command {
        let kubeconfig = format!("kubeconfig: {}\n", self.path("kubeconfig").display());
        self.node_command("up", &kubeconfig)
    }

    /// The command line of this node's `pintle agent`, its log appended to the node's.
    pub fn agent_command(&self, args: &[&str]) -> Command {
        let mut command = self.node_command("agent", "");
        command.args(args);
        command
    }

    fn node_command(&self, verb: &str, lines: &str) -> Command {
        let config = self.path("config.yaml");
        let parent = self.cgroup.path.display();
        fs::write(
            &config,
            format!("cgroupParent: {parent}\n{lines}{}\n", self.config),
        )
        .expect("config file");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("log"));
        let mut command = self.pintle(&[verb, "--node-name", &self.name]);
        command.arg("--config").arg(config);
        command.stdin(Stdio::null()).stderr(log.expect("log file"));
        command
    }

    /// A `pintle` command for this node's instance.
    pub fn pintle(&self, args: &[&str]) -> Command {
        let mut command = Command::new(pintle_binary());
        command.args(args);
        command
            .arg("--data-dir")
            .arg(self.path("data"))
            .arg("--run-dir")
            .arg(self.path("run"));
        command
    }

    /// What the node logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Whether the process of `pintle up` is there.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends everything that runs on the machine at once, as a power cut does.
    pub fn lose_power(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().expect("killed");
            child.wait().expect("pintle ended");
        }
        self.child = None;
        for pod in walk(&self.cgroup.path) {
            if !pod.ends_with("host") {
                let _gone = fs::write(pod.join("cgroup.kill"), "1");
            }
        }
        // The shims.
        for line in self.processes() {
            let pid = line.split(' ').next().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid {
                let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Ends `pintle up` by a signal and waits for it.
    pub fn signal(&mut self, signal: Signal) {
        kill(self.pid(), signal).expect("signal sent");
        if let Some(mut child) = self.child.take() {
            child.wait().expect("pintle ended");
        }
    }

    /// `pintle down`, and the foreground process's end.
    pub fn down(&mut self) -> Output {
        let output = self.pintle(&["down"]).output().expect("pintle down runs");
        if let Some(mut child) = self.child.take() {
            child.wait().expect("pintle ended");
        }
        output
    }

    /// Brings the demo's images in.
    pub fn import_images(&self) {
        let mut command = self.pintle(&["image", "import"]);
        for name in ["nginx-1.27", "nginx-1.28", "busybox-1.36"] {
            command.arg(target_dir().join(format!("images/{name}.tar")));
        }
        run(&mut command);
    }

    /// Runs kubectl and gives what it printed; panics when it fails.
    pub fn kubectl(&self, line: &str) -> String {
        let out = self.try_kubectl(line);
        assert!(
            out.status.success(),
            "kubectl {line}: {}{}\n--- log ---\n{}",
            text(&out.stdout),
            text(&out.stderr),
            self.log_tail()
        );
        text(&out.stdout)
    }

    /// Runs kubectl, which must fail, and gives its words.
    pub fn kubectl_fails(&self, line: &str) -> String {
        let out = self.try_kubectl(line);
        assert!(
            !out.status.success(),
            "kubectl {line} succeeded: {}",
            text(&out.stdout)
        );
        text(&out.stderr)
    }

    /// Runs kubectl with words split at spaces.
    pub fn try_kubectl(&self, line: &str) -> Output {
        self.kubectl_command(line).output().expect("kubectl runs")
    }

    /// Runs kubectl with `input` as its standard input.
    pub fn kubectl_stdin(&self, line: &str, input: &str) -> Output {
        use std::io::Write;
        let mut child = self
            .kubectl_command(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(input.as_bytes()).expect("kubectl reads");
        drop(pipe);
        child.wait_with_output().expect("kubectl ends")
    }

    /// A kubectl command for this cluster.
    pub fn kubectl_command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.path("kubeconfig"));
        // Discovery caches go with the node.
        command.arg("--cache-dir").arg(self.path("kube-cache"));
        command.args(line.split(' ').filter(|word| !word.is_empty()));
        command
    }

    /// Waits until `what` is true.
    pub fn wait(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(
                Instant::now() < deadline,
                "waited {PATIENCE:?} for: {what}\n{}\n--- log ---\n{}",
                text(
                    &self
                        .try_kubectl("get deploy,rs,pods,events -A -o wide")
                        .stdout
                ),
                self.log_tail()
            );
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// One field of `kubectl get … -o jsonpath=…`, trimmed.
    pub fn field(&self, object: &str, path: &str) -> String {
        let out = self.try_kubectl(&format!("get {object} -o jsonpath={path}"));
        text(&out.stdout).trim().to_owned()
    }

    /// Names, or other fields, of a list.
    pub fn fields(&self, objects: &str, path: &str) -> Vec<String> {
        self.field(objects, path)
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    /// The mark of this instance on host objects.
    pub fn instance_id(&self) -> String {
        use sha2::{Digest, Sha256};
        use std::os::unix::ffi::OsStrExt;
        let hash = Sha256::digest(self.path("run").as_os_str().as_bytes());
        format!(
            "{:08x}",
            u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
        )
    }

    /// Folder of this instance's pinned BPF maps and links.
    pub fn pins(&self) -> PathBuf {
        PathBuf::from(format!("/sys/fs/bpf/pintle-{}", self.instance_id()))
    }

    /// What of this instance's is on the host: links, cgroups, mounts, pins, shims.
    pub fn traces(&self) -> Vec<String> {
        let mut found = Vec::new();
        let links = text(
            &Command::new("ip")
                .args(["-d", "-o", "link"])
                .output()
                .expect("ip")
                .stdout,
        );
        found.extend(
            links
                .lines()
                .filter(|line| !line.contains(" lo:") && !line.contains(" up0"))
                .map(|line| format!("link {line}")),
        );
        found.extend(walk(&self.cgroup.path).into_iter().filter_map(|path| {
            let name = path.strip_prefix(&self.cgroup.path).ok()?.to_str()?;
            (name != "host").then(|| format!("cgroup {name}"))
        }));
        let dir = self.dir.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        found.extend(
            mounts
                .lines()
                .filter(|line| line.contains(&dir))
                .map(|line| format!("mount {line}")),
        );
        let pins = self.pins();
        if pins.exists() {
            found.push(format!("pins {}", pins.display()));
        }
        found.extend(
            self.processes()
                .into_iter()
                .map(|line| format!("process {line}")),
        );
        found
    }

    /// Processes of this instance: those that speak of its folder.
    fn processes(&self) -> Vec<String> {
        let dir = self.dir.path().display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("proc").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(pid) = name.parse::<u32>() else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = text(&line).replace('\0', " ");
            if line.contains(&dir) && pid != std::process::id() {
                found.push(format!("{pid} {line}"));
            }
        }
        found
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the node ---\n{}", self.log_tail());
        }
        let _moved = self.try_enter();
        let _output = self.pintle(&["down"]).output();
        if let Some(mut child) = self.child.take() {
            let _killed = child.kill();
            let _ended = child.wait();
        }
    }
}

/// A switch that machines are plugged into, in a namespace of its own.
pub struct Lan {
    netns: fs::File,
    /// Holds the namespace, so that links can be moved there.
    switch: Child,
}

impl Lan {
    /// A switch without machines; `None` (and a printed reason) where there can be none.
    pub fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        for words in ["link add lan0 type bridge", "link set lan0 up"] {
            run(Command::new("ip").args(words.split(' ')));
        }
        Some(Self {
            netns: fs::File::open("/proc/thread-self/ns/net").expect("own namespace"),
            switch: Command::new("sleep")
                .arg("infinity")
                .spawn()
                .expect("sleep runs"),
        })
    }

    /// Pulls or plugs a machine's cable.
    pub fn plug(&self, name: &str, is_in: bool) {
        self.enter();
        let state = if is_in { "up" } else { "down" };
        run(Command::new("ip").args(["link", "set", &format!("to-{name}"), state]));
    }

    fn enter(&self) {
        setns(&self.netns, CloneFlags::CLONE_NEWNET).expect("moved to the switch");
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        let _killed = self.switch.kill();
        let _ended = self.switch.wait();
    }
}

/// The cgroup of one node; the test process lives in its `host` child meanwhile.
struct Cgroup {
    path: PathBuf,
}

/// Where the test process was before it moved to any node's cgroup: nodes end in any order.
static BEFORE: OnceLock<PathBuf> = OnceLock::new();

impl Cgroup {
    fn enter() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let root = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|words| words.get(2) == Some(&"cgroup2"))
            .map(|words| PathBuf::from(words[1]))
            .expect("cgroup v2 is mounted");
        let own = fs::read_to_string("/proc/self/cgroup").expect("own cgroup");
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .expect("a v2 cgroup");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("pintle-test-{}-{number}", std::process::id()));
        fs::create_dir_all(path.join("host")).expect("a cgroup");
        BEFORE.get_or_init(|| root.join(own.trim_start_matches('/')));
        fs::write(
            path.join("host/cgroup.procs"),
            std::process::id().to_string(),
        )
        .expect("moved");
        Self { path }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let before = BEFORE.get().map(|before| before.join("cgroup.procs"));
        let own = std::process::id().to_string();
        let _moved = before.map(|before| fs::write(before, own));
        let _killed = fs::write(self.path.join("cgroup.kill"), "1");
        // What was killed is in its cgroup until the kernel has taken it apart.
        for _attempt in 0..100 {
            for path in walk(&self.path).into_iter().rev() {
                let _removed = fs::remove_dir(path);
            }
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Every folder below `root`, parents before children.
fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut queue = vec![root.to_path_buf()];
    while let Some(dir) = queue.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
                queue.push(entry.path());
            }
        }
    }
    found
}

/// The binary under test: the release one when `cargo xtask test` names it, else Cargo's.
pub fn pintle_binary() -> PathBuf {
    std::env::var_os("PINTLE_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_pintle")),
        PathBuf::from,
    )
}

/// Root of the workspace.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo's target folder of the workspace.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The kubectl on the PATH.
fn path_kubectl() -> PathBuf {
    std::env::var_os("PINTLE_TEST_KUBECTL").map_or_else(|| PathBuf::from("kubectl"), PathBuf::from)
}

/// Debian's kubectl 1.20, which `cargo xtask setup` unpacks.
pub fn debian_kubectl() -> PathBuf {
    target_dir().join("tools/kubernetes-client/usr/bin/kubectl")
}

/// The etcd on the PATH, or else Debian's, which `cargo xtask setup` unpacks.
pub fn etcd() -> PathBuf {
    let unpacked = target_dir().join("tools/etcd-server/usr/bin/etcd");
    if unpacked.exists() {
        unpacked
    } else {
        PathBuf::from("etcd")
    }
}

/// Runs a command that must succeed and gives its output.
pub fn run(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        out.status.success(),
        "{command:?}: {}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    text(&out.stdout)
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
