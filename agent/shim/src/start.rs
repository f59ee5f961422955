//! Turns the process the agent started into a sandbox's shim.
//!
//! Leaves the agent's session and cgroup, makes the pod's namespaces, says on
//! standard output whether that worked, and serves. Changes only this process,
//! its namespaces and its directory.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags};

use crate::protocol::{SANDBOX_FILE, SOCKET, Sandbox};
use crate::server::Server;
use crate::spec::SandboxSpec;
use crate::sys;

/// Why a shim did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("usage: shim SANDBOX-DIRECTORY")]
    Usage,
    #[error("read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("parse {path}: {source}")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{step}: {source}")]
    Step { step: String, source: io::Error },
}

pub(crate) fn step<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::Step {
        step: what.to_owned(),
        source: source.into(),
    }
}

/// Starts the shim for the sandbox in `dir`. In the process that the agent
/// started this returns at once; the shim proper is its child, and returns
/// when the sandbox has been removed.
pub(crate) fn start(dir: &Path) -> Result<(), StartError> {
    // Whatever the agent forgot to close would end up in containers.
    sys::close_files_from(3);
    let file = dir.join(SANDBOX_FILE);
    let text = fs::read(&file).map_err(|source| StartError::Read {
        path: file.clone(),
        source,
    })?;
    let sandbox: Sandbox = serde_json::from_slice(&text).map_err(|source| StartError::Parse {
        path: file.clone(),
        source,
    })?;
    drop(text);
    // Born in its cgroup: moving there afterwards waits for an RCU grace
    // period, which is most of the time a sandbox would take to start.
    let cgroup = sandbox.cgroup.join("shim");
    let cgroup = open(&cgroup, OFlags::PATH | OFlags::DIRECTORY)
        .map_err(step(&format!("open cgroup {}", cgroup.display())))?;
    if let sys::Fork::Parent { .. } =
        sys::clone3(0, Some(cgroup.as_fd())).map_err(step("fork into the pod's cgroup"))?
    {
        return Ok(());
    }
    drop(cgroup);
    // From here on errors go to the agent on standard output.
    match prepare(dir, sandbox) {
        Ok(server) => {
            announce("ok");
            server.run();
        }
        Err(error) => announce(&error.to_string()),
    }
    sys::exit_now(0)
}

/// One line to the agent, whose pipe this closes. The agent may be gone.
fn announce(line: &str) {
    let mut out = io::stdout();
    let _agent_gone = writeln!(out, "{line}").and_then(|()| out.flush());
    if let Ok(null) = open("/dev/null", OFlags::RDWR) {
        let _kept = nix::unistd::dup2_stdout(&null);
    }
}

fn open(path: impl rustix::path::Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

fn prepare(dir: &Path, sandbox: Sandbox) -> Result<Server, StartError> {
    leave_agent(dir)?;
    let spec = &sandbox.spec;
    make_namespaces(spec)?;
    if spec.share_process_namespace && !spec.host_pid {
        start_pod_init()?;
    }
    std::env::set_current_dir(dir).map_err(step("enter the sandbox's directory"))?;
    let listener = listen()?;
    std::env::set_current_dir("/").map_err(step("leave the sandbox's directory"))?;
    Server::new(dir.to_owned(), sandbox, listener)
}

fn leave_agent(dir: &Path) -> Result<(), StartError> {
    rustix::process::setsid().map_err(step("start a session"))?;
    sys::set_name(c"pintle-shim");
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(step("become subreaper"))?;
    // The last to be killed for memory; hosts may refuse.
    let _refused = fs::write("/proc/self/oom_score_adj", "-998");
    let null = open("/dev/null", OFlags::RDWR).map_err(step("open /dev/null"))?;
    nix::unistd::dup2_stdin(&null).map_err(step("close standard input"))?;
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("shim.log"))
        .map_err(step("open shim.log"))?;
    nix::unistd::dup2_stderr(&log).map_err(step("redirect standard error"))?;
    Ok(())
}

fn make_namespaces(spec: &SandboxSpec) -> Result<(), StartError> {
    let mut flags = CloneFlags::empty();
    if !spec.host_network {
        flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
    }
    if !spec.host_ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    unshare(flags).map_err(step("unshare namespaces"))?;
    if !spec.host_network {
        if !spec.hostname.is_empty() {
            nix::unistd::sethostname(&spec.hostname).map_err(step("set the host name"))?;
        }
        sys::loopback_up().map_err(step("bring the loopback interface up"))?;
    }
    if !spec.host_network {
        // As container runtimes default to: a pod's ports and pings are its
        // own. Kernels without one of these go on without it.
        for (name, value) in [
            ("ip_unprivileged_port_start", "0"),
            ("ping_group_range", "0 2147483647"),
        ] {
            let _absent = fs::write(Path::new("/proc/sys/net/ipv4").join(name), value);
        }
    }
    for (name, value) in &spec.sysctls {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::write(&path, value).map_err(step(&format!("set sysctl {name}")))?;
    }
    Ok(())
}

/// First process of a PID namespace that all containers share: it reaps what
/// they orphan and does nothing else.
fn start_pod_init() -> Result<(), StartError> {
    unshare(CloneFlags::CLONE_NEWPID).map_err(step("unshare the PID namespace"))?;
    if sys::fork().map_err(step("start the pod's init"))? {
        sys::set_name(c"pause");
        sys::close_files_from(0);
        sys::reap_for_ever()
    }
    Ok(())
}

fn listen() -> Result<OwnedFd, StartError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(step("make the socket"))?;
    // Relative, since the directory may be too deep for a socket address.
    let address = SocketAddrUnix::new(SOCKET).map_err(step("name the socket"))?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::net::bind(&socket, &address).map_err(step("bind the socket"))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::net::listen(socket.as_fd(), 16).map_err(step("listen"))?;
    Ok(socket)
}
