//! `cargo xtask cluster up|down`: a whole cluster on this machine, to play with and to test.
//! Every machine of it is a network namespace on one bridge, with folders and a cgroup of its
//! own; the host has a leg on the bridge, so that kubectl reaches the API from here.
//!
//! ```text
//!   host, pintle-up ── 198.19.0.1 ──┐
//!   pintle-server-1 ── 198.19.0.11 ─┼─ br0 in namespace pintle-switch
//!   pintle-agent-1 ─── 198.19.0.21 ─┘
//! ```
//! What was made is found again by its name, so `down` also removes what a crash left.

mod network;

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{find, is_root, output, quiet, run};
use crate::journey::Kubectl;

/// How long a machine may take to become Ready, or to vote.
const PATIENCE: Duration = Duration::from_mins(2);

/// Port of the API.
const API: u16 = 6443;

/// What a machine of the cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Agent,
}

impl Role {
    /// The command that starts such a machine, and the name of its tokens' role.
    fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Agent => "agent",
        }
    }

    /// Where its machines' addresses begin.
    fn base(self) -> u8 {
        match self {
            Self::Server => 10,
            Self::Agent => 20,
        }
    }
}

/// Where a cluster's things are on this host.
struct Place {
    dir: PathBuf,
    /// Mount point of cgroup v2.
    cgroups: PathBuf,
}

impl Place {
    fn new(workspace: &Path) -> Result<Self> {
        Ok(Self {
            dir: crate::target_dir(workspace).join("cluster"),
            cgroups: cgroup_root()?,
        })
    }

    /// The binary that the cluster runs; builds meanwhile do not touch it.
    fn pintle(&self) -> PathBuf {
        self.dir.join("pintle")
    }

    fn machine_dir(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn cgroup(&self, name: &str) -> PathBuf {
        self.cgroups.join(format!("pintle-cluster-{name}"))
    }

    /// A `pintle` command for a machine's instance, run on it: in its network namespace,
    /// everything else as here. (`ip netns exec` would also mount another /sys, without the
    /// cgroups and the bpffs of this one.)
    fn on(&self, name: &str, args: &[&str]) -> Command {
        let dir = self.machine_dir(name);
        // The shell moves itself into the machine's cgroup and becomes the program: nothing of
        // it ever runs outside.
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        command.arg(self.cgroup(name).join("host/cgroup.procs"));
        command.arg("nsenter");
        command.arg(format!("--net={}", network::namespace(name)));
        command.arg("--").arg(self.pintle());
        command.args(args);
        command.arg("--data-dir").arg(dir.join("data"));
        command.arg("--run-dir").arg(dir.join("run"));
        command
    }
}

/// One machine, running.
struct Machine {
    /// Also its node's name.
    name: String,
    role: Role,
    address: Ipv4Addr,
    process: Child,
}

impl Machine {
    /// Makes the machine and starts its `pintle`, which outlives this program.
    fn start(place: &Place, role: Role, number: u8, first: Option<&Self>) -> Result<Self> {
        let name = format!("{}-{number}", role.word());
        let address = Ipv4Addr::new(198, 19, 0, role.base() + number);
        println!("cluster: {name} at {address}");
        network::plug(&name, address)?;
        let dir = place.machine_dir(&name);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let cgroup = place.cgroup(&name);
        fs::create_dir_all(cgroup.join("host"))
            .with_context(|| format!("creating {}", cgroup.display()))?;
        let config = dir.join("config.yaml");
        let of_server = match role {
            Role::Server => format!(
                "bind: {address}\nkubeconfig: {}\n",
                dir.join("kubeconfig").display()
            ),
            Role::Agent => String::new(),
        };
        let lines = format!(
            "cgroupParent: {}\nnodeName: {name}\n{of_server}",
            cgroup.display()
        );
        fs::write(&config, lines).with_context(|| format!("writing {}", config.display()))?;

        let mut command = place.on(&name, &[role.word()]);
        command.arg("--config").arg(&config);
        command.args(["--node-ip", &address.to_string()]);
        if let Some(first) = first {
            let args = ["token", "create", "--role", role.word(), "--ttl", "10m"];
            let token = output(&mut place.on(&first.name, &args))?;
            command.args(["--join", &format!("{}:{API}", first.address)]);
            // Not an argument: those are in the list of processes.
            command.env("PINTLE_TOKEN", token.trim());
        }
        let path = dir.join("log");
        let log =
            fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        command.stdin(Stdio::null()).process_group(0);
        command
            .stdout(log.try_clone().context("sharing the log")?)
            .stderr(log);
        let process = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name,
            role,
            address,
            process,
        })
    }

    /// Waits until its node is Ready.
    fn wait_ready(&mut self, place: &Place, kubectl: &Kubectl) -> Result<()> {
        let condition = format!(
            "get node {} -o jsonpath={{.status.conditions[?(@.type==\"Ready\")].status}}",
            self.name
        );
        self.wait(place, "Ready", || {
            kubectl.output(&condition).is_ok_and(|seen| seen == "True")
        })
    }

    /// Waits until that many servers vote.
    fn wait_votes(&mut self, place: &Place, count: usize) -> Result<()> {
        let mut list = place.on(&self.name, &["member", "list", "-o", "json"]);
        self.wait(place, "one of the servers that vote", || {
            let members = output(&mut list).unwrap_or_default();
            let members: Vec<Value> = serde_json::from_str(&members).unwrap_or_default();
            members.len() == count && members.iter().all(|member| member["voter"] == true)
        })
    }

    fn wait(&mut self, place: &Place, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
        let started = Instant::now();
        let log = place.machine_dir(&self.name).join("log");
        while !holds() {
            let ended = self.process.try_wait().context("looking after pintle")?;
            if let Some(status) = ended {
                let words = fs::read_to_string(&log).unwrap_or_default();
                let last = words.lines().last().unwrap_or("it said nothing");
                bail!("{} ended ({status}): {last}", self.name);
            }
            if started.elapsed() > PATIENCE {
                bail!(
                    "{} is not {what} after {PATIENCE:?}; see {}",
                    self.name,
                    log.display()
                );
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Builds the cluster and prints its kubeconfig.
pub(crate) fn up(workspace: &Path, pintle: &Path, servers: u8, agents: u8) -> Result<()> {
    need_root()?;
    let place = Place::new(workspace)?;
    if place.dir.exists() || !network::machines()?.is_empty() {
        bail!("a cluster is there already; remove it with `cargo xtask cluster down`");
    }
    fs::create_dir_all(&place.dir).with_context(|| format!("creating {}", place.dir.display()))?;
    build(workspace, &place, pintle, servers, agents)
        .context("the cluster is not whole; remove it with `cargo xtask cluster down`")
}

fn build(workspace: &Path, place: &Place, pintle: &Path, servers: u8, agents: u8) -> Result<()> {
    let started = Instant::now();
    fs::copy(pintle, place.pintle()).with_context(|| format!("copying {}", pintle.display()))?;
    network::switch()?;
    let mut first = Machine::start(place, Role::Server, 1, None)?;
    let kubectl = Kubectl {
        program: find("kubectl").map_or_else(|| crate::setup::debian_kubectl(workspace), Ok)?,
        kubeconfig: place.machine_dir(&first.name).join("kubeconfig"),
    };
    first.wait_ready(place, &kubectl)?;
    let mut others = Vec::new();
    // One server after another: each is a voter before the next one comes.
    for number in 2..=servers {
        let mut server = Machine::start(place, Role::Server, number, Some(&first))?;
        server.wait_ready(place, &kubectl)?;
        server.wait_votes(place, usize::from(number))?;
        others.push(server);
    }
    for number in 1..=agents {
        others.push(Machine::start(place, Role::Agent, number, Some(&first))?);
    }
    for machine in &mut others {
        machine.wait_ready(place, &kubectl)?;
    }
    let all: Vec<_> = std::iter::once(&first).chain(&others).collect();
    let has_images = import_images(workspace, place, &all)?;
    println!("{}", kubectl.output("get nodes -o wide")?);
    println!(
        "{}",
        output(&mut place.on(&first.name, &["member", "list"]))?
    );
    println!(
        "cluster: {} machines after {:.1?}",
        all.len(),
        started.elapsed()
    );
    println!("  export KUBECONFIG={}", kubectl.kubeconfig.display());
    if has_images {
        println!("  kubectl apply -f tests/manifests/web.yaml");
    } else {
        println!("  no images: run `cargo xtask images` before the next `cluster up`");
    }
    let servers = all.iter().filter(|machine| machine.role == Role::Server);
    let addresses: Vec<_> = servers
        .map(|server| format!("https://{}:{API}", server.address))
        .collect();
    println!("  kubectl --server …      {}", addresses.join(" "));
    println!("  a machine's log         {}/NAME/log", place.dir.display());
    // In its cgroup as well: that is where Services are.
    println!(
        "  a shell on a machine    sh -c 'echo $$ >{}/host/cgroup.procs; exec nsenter --net={}'",
        place.cgroup("NAME").display(),
        network::namespace("NAME")
    );
    println!("remove it with `cargo xtask cluster down`");
    Ok(())
}

/// Imports the demo's images everywhere: the machines reach no registry. False without images.
fn import_images(workspace: &Path, place: &Place, machines: &[&Machine]) -> Result<bool> {
    let dir = crate::target_dir(workspace).join("images");
    let mut images: Vec<_> = fs::read_dir(&dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "tar"))
        .collect();
    images.sort();
    if images.is_empty() {
        return Ok(false);
    }
    for machine in machines {
        quiet(place.on(&machine.name, &["image", "import"]).args(&images))?;
    }
    Ok(true)
}

/// Removes the cluster and everything it left on this machine.
pub(crate) fn down(workspace: &Path) -> Result<()> {
    need_root()?;
    let place = Place::new(workspace)?;
    for name in network::machines()? {
        println!("cluster: removing {name}");
        let can_run = place.pintle().exists() && place.cgroup(&name).join("host").exists();
        if can_run {
            run(place.on(&name, &["down"]).stdout(Stdio::null()))?;
        }
        remove_cgroup(&place.cgroup(&name))?;
        network::unplug(&name)?;
    }
    network::remove_switch()?;
    match fs::remove_dir_all(&place.dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", place.dir.display()))
        }
        _ => {
            println!("cluster: nothing of it is left");
            Ok(())
        }
    }
}

fn need_root() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("a cluster is made of network namespaces, which needs root: sudo cargo xtask cluster …")
}

/// Mount point of cgroup v2.
fn cgroup_root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&"cgroup2"))
        .and_then(|words| words.get(1).map(PathBuf::from))
        .context("no cgroup v2 is mounted")
}

/// Ends whatever still runs in a machine's cgroup and removes it.
fn remove_cgroup(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    let kill = root.join("cgroup.kill");
    fs::write(&kill, "1").with_context(|| format!("writing {}", kill.display()))?;
    let started = Instant::now();
    let events = root.join("cgroup.events");
    while fs::read_to_string(&events).is_ok_and(|events| events.contains("populated 1")) {
        if started.elapsed() > PATIENCE {
            bail!("processes in {} do not end", root.display());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    remove_empty(root)
}

/// Removes cgroups, children first.
fn remove_empty(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path())?;
        }
    }
    fs::remove_dir(root).with_context(|| format!("removing cgroup {}", root.display()))
}
