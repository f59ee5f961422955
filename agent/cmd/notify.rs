//! Saying "ready" to whoever waits: the parent of `pintle up --detach`, and systemd.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Environment variable of the detached child: "a pipe to tell is your standard output".
const DETACHED: &str = "PINTLE_DETACHED";

/// How this process tells that its node is Ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    detached: bool,
}

impl Ready {
    /// Reads from the environment who is waiting.
    pub(crate) fn from_environment() -> Self {
        Self {
            detached: std::env::var_os(DETACHED).is_some(),
        }
    }

    /// Tells systemd (sd_notify(3)), with the kubeconfig where there is one; the detaching parent reads standard output itself.
    pub(crate) fn tell(self, kubeconfig: &str) -> Result<()> {
        tracing::info!(kubeconfig, detached = self.detached, "node is Ready");
        let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
            return Ok(());
        };
        let sender =
            std::os::unix::net::UnixDatagram::unbound().context("making a datagram socket")?;
        let mut message = "READY=1\nSTATUS=node is Ready".to_owned();
        if !kubeconfig.is_empty() {
            message.push_str(", kubeconfig ");
            message.push_str(kubeconfig);
        }
        let bytes = socket.to_string_lossy().into_owned();
        if let Some(name) = bytes.strip_prefix('@') {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes())?;
            sender
                .send_to_addr(message.as_bytes(), &address)
                .context("telling systemd")?;
        } else {
            sender
                .send_to(message.as_bytes(), &socket)
                .context("telling systemd")?;
        }
        Ok(())
    }
}

/// Starts this program again in a session of its own, with its log in `log`, and returns once it
/// has printed `ready`. When it ends before that, its last words become the error.
pub(crate) fn detach(log: &Path) -> Result<()> {
    if let Some(dir) = log.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening {}", log.display()))?;
    let start = file.metadata().context("looking at the log")?.len();
    let args: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|arg| arg != "--detach")
        .collect();
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(args)
        .arg0("pintle")
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(file)
        .process_group(0);
    let mut child = command.spawn().context("starting the background process")?;
    // Drop our copy of the pipe's write end: end-of-file then means the child ended.
    drop(command);
    let mut out = std::io::stdout().lock();
    for line in BufReader::new(reader).lines() {
        let line = line.context("reading from the background process")?;
        writeln!(out, "{line}")?;
        if line == "ready" {
            return Ok(());
        }
    }
    let status = child.wait().context("waiting for the background process")?;
    let words = std::fs::read_to_string(log).unwrap_or_default();
    let words = words
        .get(usize::try_from(start).unwrap_or(0)..)
        .unwrap_or_default()
        .trim();
    bail!("the background process ended before its node was ready ({status}):\n{words}");
}

/// After `ready`, a detached process has nobody reading its standard output.
pub(crate) fn release_stdout() -> Result<()> {
    if std::env::var_os(DETACHED).is_none() {
        return Ok(());
    }
    let null: OwnedFd = std::fs::File::options()
        .write(true)
        .open("/dev/null")?
        .into();
    nix::unistd::dup2_stdout(null.as_fd()).context("leaving standard output")?;
    Ok(())
}
