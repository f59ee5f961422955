//! One container as the shim holds it: its process, streams, log and end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};

use super::{Caller, complain};
use crate::child::Stdio;
use crate::log::{Lines, Log, Source};
use crate::protocol::{ContainerState, Exit};
use crate::rootfs;
use crate::spec::ContainerSpec;
use crate::sys;

/// A container, running or exited.
pub(super) struct Container {
    pub(super) spec: Box<ContainerSpec>,
    pub(super) state: ContainerState,
    pub(super) cgroup: PathBuf,
    pub(super) pidfd: Option<OwnedFd>,
    /// The kernel does not kill the rest when the first process ends.
    pub(super) shared_pids: bool,
    pub(super) log: Log,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
    pub(super) outputs: Vec<Output>,
    pub(super) stop: Option<Stop>,
}

/// One output stream.
pub(super) struct Output {
    pub(super) source: Source,
    /// None at its end.
    pub(super) fd: Option<OwnedFd>,
    pub(super) lines: Lines,
    pub(super) attached: Vec<OwnedFd>,
}

/// A stop in progress.
pub(super) struct Stop {
    /// None once it has been killed.
    pub(super) deadline: Option<Instant>,
    pub(super) waiting: Vec<Caller>,
}

impl Output {
    pub(super) fn new(source: Source, fd: OwnedFd) -> Self {
        Self {
            source,
            fd: Some(fd),
            lines: Lines::new(source),
            attached: Vec::new(),
        }
    }
}

impl Container {
    pub(super) fn output_fds(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>)> {
        self.outputs
            .iter()
            .filter_map(|out| Some((out.source, out.fd.as_ref()?.as_fd())))
    }

    /// Moves one read's worth of output to the log and to who is attached.
    pub(super) fn read_output(&mut self, source: Source) -> bool {
        let Some(output) = self.outputs.iter_mut().find(|out| out.source == source) else {
            return false;
        };
        let Some(fd) = &output.fd else { return false };
        let mut buffer = [0; 16 * 1024];
        match rustix::io::read(fd, &mut buffer) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            // A terminal without a process on the other side answers EIO.
            Ok(0) | Err(_) => {
                output.close(&mut self.log);
                false
            }
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                if let Err(error) = output.lines.push(bytes, &mut self.log) {
                    complain(&format!("log of {}: {error}", self.state.id));
                }
                // Attached readers must not stall the container: what does not
                // fit their pipe (1 MiB) is lost to them.
                output
                    .attached
                    .retain(|pipe| match rustix::io::write(pipe, bytes) {
                        Ok(_) | Err(rustix::io::Errno::AGAIN) => true,
                        Err(_) => false,
                    });
                true
            }
        }
    }

    /// Logs what is left, once the last writer is dead.
    pub(super) fn drain(&mut self) {
        for source in [Source::Stdout, Source::Stderr] {
            while self.read_output(source) {}
        }
        for output in &mut self.outputs {
            output.close(&mut self.log);
        }
        self.outputs = Vec::new();
        self.stdin = None;
        self.terminal = None;
    }

    pub(super) fn signal(&self, number: i32) -> rustix::io::Result<()> {
        let Some(signal) = Signal::from_named_raw(number).or_else(|| realtime(number)) else {
            return Err(rustix::io::Errno::INVAL);
        };
        match &self.pidfd {
            Some(pidfd) => pidfd_send_signal(pidfd, signal),
            None => Err(rustix::io::Errno::SRCH),
        }
    }

    /// Kills every process of the container.
    pub(super) fn kill(&self) {
        let whole = fs::OpenOptions::new()
            .write(true)
            .open(self.cgroup.join("cgroup.kill"))
            .and_then(|mut file| io::Write::write_all(&mut file, b"1"));
        let first = self.signal(libc::SIGKILL);
        if let (Err(error), Err(_)) = (whole, first) {
            complain(&format!("kill {}: {error}", self.state.id));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.stop.as_ref()?.deadline
    }

    pub(super) fn kill_when_due(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.kill();
            if let Some(stop) = &mut self.stop {
                stop.deadline = None;
            }
        }
    }

    /// Asks the container to end; the first signal is sent once.
    pub(super) fn begin_stop(&mut self, signal: i32, grace: Duration, caller: Caller) {
        /// Longer than any host is up, and far from what the clock can hold.
        const LONGEST: Duration = Duration::from_hours(87_600);
        let deadline = Instant::now() + grace.min(LONGEST);
        if let Some(stop) = &mut self.stop {
            stop.waiting.push(caller);
            stop.deadline = stop.deadline.map(|present| present.min(deadline));
            return;
        }
        if !grace.is_zero()
            && let Err(error) = self.signal(signal)
        {
            complain(&format!("signal {signal} to {}: {error}", self.state.id));
        }
        self.stop = Some(Stop {
            deadline: Some(deadline),
            waiting: vec![caller],
        });
    }

    /// Whether the kernel killed one of its processes for memory.
    pub(super) fn oom_killed(&self) -> bool {
        fs::read_to_string(self.cgroup.join("memory.events")).is_ok_and(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix("oom_kill "))
                .any(|count| count.trim() != "0")
        })
    }

    pub(super) fn set_exit(&mut self, exit: Exit) -> Vec<Caller> {
        self.state.exit = Some(exit);
        self.pidfd = None;
        self.stop
            .take()
            .map(|stop| stop.waiting)
            .unwrap_or_default()
    }
}

impl Output {
    fn close(&mut self, log: &mut Log) {
        self.fd = None;
        self.attached = Vec::new();
        if let Err(error) = self.lines.finish(log) {
            complain(&format!("log: {error}"));
        }
    }
}

/// Signals without a name of their own (SIGRTMIN+n as an image's stop signal).
fn realtime(number: i32) -> Option<Signal> {
    let name = sys::realtime_signal(number)?;
    Some(name)
}

/// The two sides of a process's standard streams.
pub(super) struct Pipes {
    pub(super) child: Stdio,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

pub(super) fn pipes(with_stdin: bool) -> io::Result<Pipes> {
    let (stdin, our_stdin) = if with_stdin {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        (read, Some(write))
    } else {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        (rustix::fs::open("/dev/null", flags, Mode::empty())?, None)
    };
    let (our_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (our_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(Pipes {
        child: Stdio {
            stdin,
            stdout,
            stderr,
        },
        stdin: our_stdin,
        stdout: our_stdout,
        stderr: our_stderr,
    })
}

/// Makes reads of a descriptor return instead of waiting.
pub(super) fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// Start time of a process in clock ticks after boot; 0 when it is gone.
pub(super) fn start_time(pid: i32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|text| {
            // The name in field 2 may hold anything, parentheses included.
            let rest = text.rsplit_once(')')?.1;
            rest.split_whitespace().nth(19)?.parse().ok()
        })
        .unwrap_or_default()
}

/// What the process that makes the pod's /dev/shm says when it has.
const SHM_READY: &str = "\0";

/// Makes the pod's /dev/shm in a mount namespace of its own.
pub(super) fn make_shm(size: u64) -> io::Result<OwnedFd> {
    let (ours, theirs) = crate::channel::pair()?;
    match sys::clone3(libc::CLONE_NEWNS, None)? {
        sys::Fork::Child => {
            drop(ours);
            // A message of one NUL says that the namespace is complete, any other why it is
            // not; the shim closes its end when it has opened it.
            let reason = rootfs::shm_namespace(size).err();
            let words = reason
                .as_ref()
                .map_or_else(|| SHM_READY.to_owned(), ToString::to_string);
            let _shim_gone = rustix::io::write(&theirs, words.as_bytes());
            let _closed = rustix::io::read(&theirs, &mut [0; 1]);
            sys::exit_now(i32::from(reason.is_some()))
        }
        sys::Fork::Parent { pid, .. } => {
            drop(theirs);
            let mut words = [0; 512];
            let read = rustix::io::read(&ours, &mut words);
            let path = PathBuf::from(format!("/proc/{pid}/ns/mnt"));
            let opened = open_namespace(&path);
            drop(ours);
            match String::from_utf8_lossy(&words[..read?]).as_ref() {
                SHM_READY => opened,
                "" => Err(io::ErrorKind::UnexpectedEof.into()),
                reason => Err(io::Error::other(reason)),
            }
        }
    }
}

fn open_namespace(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
