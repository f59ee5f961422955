//! The shim's event loop: owns the sandbox's containers and everyone's view of them.
//!
//! Watches the agent's connections, the children, their output and the clock;
//! changes processes, log files and `state.json`. The agent reacts to replies
//! and events. One thread; nothing here blocks on a container.

mod calls;
mod container;
mod reap;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::clock;
use crate::connection::{Closed, Connection};
use crate::log::Source;
use crate::protocol::{
    Answer, Call, CallError, Event, FdRole, Message, SOCKET, STATE_FILE, Sandbox, SandboxState,
};
use crate::start::{StartError, step};
use container::Container;

/// A sandbox's shim.
pub(crate) struct Server {
    dir: PathBuf,
    sandbox: Sandbox,
    listener: OwnedFd,
    signals: SignalFd,
    namespaces: Namespaces,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    setups: Vec<Setup>,
    containers: BTreeMap<String, Container>,
    execs: Vec<ExecProcess>,
    created_at: i64,
    start_time: u64,
    shutdown: Option<Caller>,
}

/// Namespaces that children go through.
struct Namespaces {
    /// The host's mount namespace.
    mount: OwnedFd,
    /// Where this shim's children get their PIDs when nothing else is said.
    pid_for_children: OwnedFd,
    /// Mount namespace that holds the pod's /dev/shm; made at first use.
    shm: Option<OwnedFd>,
}

/// Whom to answer.
#[derive(Debug, Clone, Copy)]
struct Caller {
    connection: u64,
    request: u64,
}

/// A process between clone and exec.
struct Setup {
    pid: i32,
    pidfd: OwnedFd,
    channel: OwnedFd,
    caller: Caller,
    terminal: Option<OwnedFd>,
    kind: SetupKind,
}

enum SetupKind {
    Container(Box<Container>),
    Exec {
        container: String,
        exec_id: String,
        fds: Vec<(FdRole, OwnedFd)>,
    },
}

/// A process that an exec started.
struct ExecProcess {
    container: String,
    exec_id: String,
    pid: i32,
    pidfd: OwnedFd,
}

/// What a descriptor in the poll set belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Signals,
    Listener,
    Connection(u64),
    Setup(i32),
    Output(String, Source),
}

impl Server {
    pub(crate) fn new(
        dir: PathBuf,
        sandbox: Sandbox,
        listener: OwnedFd,
    ) -> Result<Self, StartError> {
        let namespace = |name: &str| {
            let path = format!("/proc/self/ns/{name}");
            rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .map_err(step(&format!("open {path}")))
        };
        let namespaces = Namespaces {
            mount: namespace("mnt")?,
            pid_for_children: namespace("pid_for_children")?,
            shm: None,
        };
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        // The shim ends with its sandbox and on nobody's signal but SIGKILL.
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
            mask.add(signal);
        }
        mask.thread_block().map_err(step("block signals"))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&mask, flags).map_err(step("watch signals"))?;
        let own_pid = i32::try_from(std::process::id()).unwrap_or_default();
        let server = Self {
            dir,
            sandbox,
            listener,
            signals,
            namespaces,
            connections: BTreeMap::new(),
            next_connection: 0,
            setups: Vec::new(),
            containers: BTreeMap::new(),
            execs: Vec::new(),
            created_at: clock::now_nanos(),
            start_time: container::start_time(own_pid),
            shutdown: None,
        };
        server.save().map_err(step("write state.json"))?;
        Ok(server)
    }

    /// Serves until the sandbox is shut down.
    pub(crate) fn run(mut self) {
        while !self.finished() {
            if let Err(error) = self.turn() {
                complain(&format!("event loop: {error}"));
            }
        }
        let _gone_already = fs::remove_file(self.dir.join(SOCKET));
        if let Some(caller) = self.shutdown {
            self.reply(caller, Ok(Answer::Done), Vec::new());
        }
    }

    fn finished(&self) -> bool {
        self.shutdown.is_some()
            && self.setups.is_empty()
            && self
                .containers
                .values()
                .all(|container| container.state.exit.is_some())
    }

    /// Waits for something and handles everything that is ready.
    fn turn(&mut self) -> rustix::io::Result<()> {
        let ready = self.wait()?;
        for (token, flags) in ready {
            match token {
                Token::Signals => self.reap(),
                Token::Listener => self.accept(),
                Token::Connection(id) => self.serve(id, flags),
                Token::Setup(pid) => self.advance_setup(pid),
                Token::Output(id, source) => {
                    if let Some(container) = self.containers.get_mut(&id) {
                        container.read_output(source);
                    }
                }
            }
        }
        let now = Instant::now();
        for container in self.containers.values_mut() {
            container.kill_when_due(now);
        }
        Ok(())
    }

    fn wait(&self) -> rustix::io::Result<Vec<(Token, PollFlags)>> {
        let mut tokens = Vec::with_capacity(8);
        let mut fds = Vec::with_capacity(8);
        let mut watch = |token, fd, flags| {
            tokens.push(token);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        watch(Token::Signals, self.signals.as_fd(), PollFlags::IN);
        watch(Token::Listener, self.listener.as_fd(), PollFlags::IN);
        for (id, connection) in &self.connections {
            let mut flags = PollFlags::IN;
            if connection.wants_write() {
                flags |= PollFlags::OUT;
            }
            watch(Token::Connection(*id), connection.fd(), flags);
        }
        for setup in &self.setups {
            watch(
                Token::Setup(setup.pid),
                setup.channel.as_fd(),
                PollFlags::IN,
            );
        }
        for (id, container) in &self.containers {
            for (source, fd) in container.output_fds() {
                watch(Token::Output(id.clone(), source), fd, PollFlags::IN);
            }
        }
        let timeout = self
            .containers
            .values()
            .filter_map(Container::deadline)
            .min()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
            .map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        Ok(tokens
            .into_iter()
            .zip(ready)
            .filter(|(_, flags)| !flags.is_empty())
            .collect())
    }

    fn accept(&mut self) {
        use rustix::net::SocketFlags;
        while let Ok(socket) =
            rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            self.connections
                .insert(self.next_connection, Connection::new(socket));
            self.next_connection += 1;
        }
    }

    fn serve(&mut self, id: u64, flags: PollFlags) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let mut alive = Ok(());
        if flags.contains(PollFlags::OUT) {
            alive = connection.flush();
        }
        let requests = match alive {
            Ok(()) if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) => {
                connection.receive()
            }
            Ok(()) => Ok(Vec::new()),
            Err(closed) => Err(closed),
        };
        match requests {
            Ok(requests) => {
                for request in requests {
                    self.call(
                        Caller {
                            connection: id,
                            request: request.id,
                        },
                        request.call,
                    );
                }
            }
            Err(closed) => {
                if matches!(closed, Closed::Malformed) {
                    complain("dropped a connection that sent no valid request");
                }
                self.connections.remove(&id);
            }
        }
    }

    fn reply(
        &mut self,
        caller: Caller,
        result: Result<Answer, CallError>,
        fds: Vec<(FdRole, OwnedFd)>,
    ) {
        let (roles, fds): (Vec<FdRole>, Vec<OwnedFd>) = fds.into_iter().unzip();
        let message = Message::Reply {
            id: caller.request,
            fds: roles,
            result,
        };
        let Some(connection) = self.connections.get_mut(&caller.connection) else {
            return;
        };
        if connection.send(&message, fds).is_err() {
            self.connections.remove(&caller.connection);
        }
    }

    fn publish(&mut self, event: &Event) {
        let message = Message::Event(event.clone());
        self.connections.retain(|_, connection| {
            !connection.subscribed || connection.send(&message, Vec::new()).is_ok()
        });
    }

    fn state(&self) -> SandboxState {
        SandboxState {
            pod_uid: self.sandbox.spec.pod_uid.clone(),
            shim_pid: i32::try_from(std::process::id()).unwrap_or_default(),
            shim_start_time: self.start_time,
            created_at: self.created_at,
            containers: self
                .containers
                .iter()
                .map(|(id, container)| (id.clone(), container.state.clone()))
                .collect(),
        }
    }

    /// Leaves the state for whoever comes when this process is dead. The run
    /// directory does not outlive the kernel, so nothing is synced.
    fn save(&self) -> io::Result<()> {
        let fresh = self.dir.join("state.json.new");
        fs::write(&fresh, serde_json::to_vec(&self.state())?)?;
        fs::rename(&fresh, self.dir.join(STATE_FILE))
    }

    fn record(&self) {
        if let Err(error) = self.save() {
            complain(&format!("write state.json: {error}"));
        }
    }

    /// The namespace of the pod's /dev/shm, made when a container first wants it.
    fn shm(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        if self.sandbox.spec.host_ipc {
            return Ok(None);
        }
        if self.namespaces.shm.is_none() {
            let size = self
                .sandbox
                .spec
                .shm_size
                .unwrap_or(crate::spec::limits::SHM_DEFAULT_BYTES);
            self.namespaces.shm = Some(container::make_shm(size)?);
        }
        Ok(self.namespaces.shm.as_ref().map(AsFd::as_fd))
    }
}

/// Diagnostics go to shim.log in the sandbox's directory.
fn complain(text: &str) {
    eprintln!("{text}");
}

impl Server {
    fn call(&mut self, caller: Caller, call: Call) {
        let result = match call {
            Call::Subscribe => {
                if let Some(connection) = self.connections.get_mut(&caller.connection) {
                    connection.subscribed = true;
                }
                let state = self.state();
                self.reply(caller, Ok(Answer::State(state)), Vec::new());
                // The agent now sets the network up; the first container will
                // find this done.
                if let Err(error) = self.shm() {
                    complain(&format!("make /dev/shm: {error}"));
                }
                return;
            }
            Call::Create { cgroup, spec } => match self.create(caller, cgroup, spec) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Call::Exec {
                exec_id,
                container,
                spec,
            } => match self.exec(caller, exec_id, container, &spec) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Call::Attach { container } => match self.attach(&container) {
                Ok(fds) => return self.reply(caller, Ok(Answer::Done), fds),
                Err(error) => Err(error),
            },
            Call::Stop {
                container,
                signal,
                grace_millis,
            } => match self.stop(caller, &container, signal, grace_millis) {
                Ok(None) => return,
                Ok(Some(exit)) => Ok(Answer::Stopped(exit)),
                Err(error) => Err(error),
            },
            Call::Signal {
                container,
                exec_id,
                signal,
            } => self
                .signal(&container, exec_id.as_deref(), signal)
                .map(|()| Answer::Done),
            Call::Remove { container } => self.remove(&container).map(|()| Answer::Done),
            Call::ReopenLog { container } => self.reopen_log(&container).map(|()| Answer::Done),
            Call::Shutdown => return self.begin_shutdown(caller),
        };
        self.reply(caller, result, Vec::new());
    }
}
