//! What the agent can ask for, call by call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};

use super::container::{Container, Output, nonblocking, pipes};
use super::{Caller, Server, Setup, SetupKind};
use crate::channel;
use crate::child;
use crate::devices;
use crate::log::{Log, Source};
use crate::program;
use crate::protocol::{CallError, ContainerState, Exit, FdRole};
use crate::rootfs;
use crate::spec::{ContainerSpec, ExecSpec};
use crate::sys;

/// Room for a slow attached reader.
const ATTACH_PIPE_BYTES: usize = 1024 * 1024;

fn refused(step: &str) -> impl FnOnce(io::Error) -> CallError {
    move |error| CallError::Setup {
        step: step.to_owned(),
        message: error
            .raw_os_error()
            .map(rustix::io::Errno::from_raw_os_error)
            .map_or_else(|| error.to_string(), program::words),
    }
}

fn from_errno(step: &str) -> impl FnOnce(rustix::io::Errno) -> CallError {
    let refuse = refused(step);
    move |errno| refuse(errno.into())
}

impl Server {
    fn running(&mut self, id: &str) -> Result<&mut Container, CallError> {
        let container = self
            .containers
            .get_mut(id)
            .ok_or_else(|| CallError::NotFound {
                container: id.to_owned(),
            })?;
        if container.state.exit.is_some() {
            let state = "exited".to_owned();
            return Err(CallError::WrongState {
                container: id.to_owned(),
                state,
            });
        }
        Ok(container)
    }

    pub(super) fn create(
        &mut self,
        caller: Caller,
        cgroup: PathBuf,
        spec: Box<ContainerSpec>,
    ) -> Result<(), CallError> {
        let being_made = self.setups.iter_mut().find(
            |setup| matches!(&setup.kind, SetupKind::Container(other) if other.spec.id == spec.id),
        );
        if let Some(setup) = being_made {
            // An agent that died asked first; its successor gets the answer.
            setup.caller = caller;
            return Ok(());
        }
        if self.containers.contains_key(&spec.id) || self.shutdown.is_some() {
            return Err(CallError::Exists { container: spec.id });
        }
        let cgroup_fd = rustix::fs::open(
            &cgroup,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(from_errno("open cgroup"))?;
        if !spec.privileged {
            restrict_devices(&cgroup, &spec)?;
        }
        let log = Log::open(&spec.log_path).map_err(refused("open log"))?;
        let (ours, theirs) = channel::pair().map_err(from_errno("make channel"))?;
        let mut streams = if spec.tty {
            None
        } else {
            Some(pipes(spec.stdin).map_err(refused("make pipes"))?)
        };
        let sandbox = self.sandbox.spec.clone();
        let shared_pids = sandbox.host_pid || sandbox.share_process_namespace;
        let flags = if shared_pids { 0 } else { libc::CLONE_NEWPID };
        self.shm().map_err(refused("make /dev/shm"))?;
        let shm = self.namespaces.shm.as_ref();
        let forked = sys::clone3(flags, Some(cgroup_fd.as_fd())).map_err(refused("clone"))?;
        let (pid, pidfd) = match forked {
            sys::Fork::Child => {
                drop(ours);
                child::create(&child::Create {
                    sandbox: &sandbox,
                    spec: &spec,
                    shm: shm.map(|shm| (shm.as_fd(), self.namespaces.mount.as_fd())),
                    stdio: streams.take().map(|streams| streams.child),
                    channel: theirs,
                })
            }
            sys::Fork::Parent { pid, pidfd } => (pid, pidfd),
        };
        drop(theirs);
        let state = ContainerState {
            id: spec.id.clone(),
            name: spec.name.clone(),
            attempt: spec.attempt,
            image: spec.image.clone(),
            pid,
            log_path: spec.log_path.clone(),
            labels: spec.labels.clone(),
            ..ContainerState::default()
        };
        let mut container = Container {
            spec,
            state,
            cgroup,
            pidfd: None,
            shared_pids,
            log,
            stdin: None,
            terminal: None,
            outputs: Vec::new(),
            stop: None,
        };
        if let Some(streams) = streams {
            for (source, fd) in [
                (Source::Stdout, streams.stdout),
                (Source::Stderr, streams.stderr),
            ] {
                nonblocking(&fd).map_err(refused("make pipes"))?;
                container.outputs.push(Output::new(source, fd));
            }
            container.stdin = streams.stdin;
        }
        self.setups.push(Setup {
            pid,
            pidfd,
            channel: ours,
            caller,
            terminal: None,
            kind: SetupKind::Container(Box::new(container)),
        });
        Ok(())
    }

    pub(super) fn exec(
        &mut self,
        caller: Caller,
        exec_id: String,
        container: String,
        spec: &ExecSpec,
    ) -> Result<(), CallError> {
        let taken = self.execs.iter().any(|exec| exec.exec_id == exec_id);
        if taken {
            return Err(CallError::Exists { container: exec_id });
        }
        let target = self.running(&container)?;
        let cgroup = rustix::fs::open(
            &target.cgroup,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(from_errno("open cgroup"))?;
        let own_pids = !target.shared_pids;
        let (ours, theirs) = channel::pair().map_err(from_errno("make channel"))?;
        let mut streams = if spec.tty {
            None
        } else {
            Some(pipes(spec.stdin).map_err(refused("make pipes"))?)
        };
        let target = self
            .containers
            .get(&container)
            .ok_or_else(|| CallError::NotFound {
                container: container.clone(),
            })?;
        let pidfd = target.pidfd.as_ref().ok_or_else(|| CallError::WrongState {
            container: container.clone(),
            state: "exited".to_owned(),
        })?;
        if own_pids {
            setns(pidfd, CloneFlags::CLONE_NEWPID)
                .map_err(io::Error::from)
                .map_err(refused("join the container's PID namespace"))?;
        }
        let forked = sys::clone3(0, Some(cgroup.as_fd()));
        if let Ok(sys::Fork::Child) = &forked {
            drop(ours);
            child::exec(&child::Exec {
                container: &target.spec,
                spec,
                target: pidfd.as_fd(),
                stdio: streams.take().map(|streams| streams.child),
                channel: theirs,
            })
        }
        if own_pids {
            setns(&self.namespaces.pid_for_children, CloneFlags::CLONE_NEWPID)
                .map_err(io::Error::from)
                .map_err(refused("leave the container's PID namespace"))?;
        }
        let sys::Fork::Parent { pid, pidfd } = forked.map_err(refused("clone"))? else {
            return Ok(());
        };
        let mut fds = Vec::new();
        if let Some(streams) = streams {
            fds.extend(streams.stdin.map(|fd| (FdRole::Stdin, fd)));
            fds.push((FdRole::Stdout, streams.stdout));
            fds.push((FdRole::Stderr, streams.stderr));
        }
        self.setups.push(Setup {
            pid,
            pidfd,
            channel: ours,
            caller,
            terminal: None,
            kind: SetupKind::Exec {
                container,
                exec_id,
                fds,
            },
        });
        Ok(())
    }

    pub(super) fn attach(&mut self, id: &str) -> Result<Vec<(FdRole, OwnedFd)>, CallError> {
        let container = self.running(id)?;
        let once = container.spec.stdin_once;
        let mut fds = Vec::new();
        if let Some(stdin) = &container.stdin {
            let copy = stdin
                .try_clone()
                .map_err(refused("attach standard input"))?;
            fds.push((FdRole::Stdin, copy));
        }
        if once {
            container.stdin = None;
        }
        if let Some(terminal) = &container.terminal {
            let copy = terminal.try_clone().map_err(refused("attach terminal"))?;
            fds.push((FdRole::Terminal, copy));
        }
        for output in container
            .outputs
            .iter_mut()
            .filter(|output| output.fd.is_some())
        {
            let (read, write) =
                pipe_with(PipeFlags::CLOEXEC).map_err(from_errno("attach output"))?;
            // A smaller pipe will do where the limit is lower.
            let _limited = fcntl_setpipe_size(&write, ATTACH_PIPE_BYTES);
            nonblocking(&write).map_err(refused("attach output"))?;
            output.attached.push(write);
            let role = match output.source {
                Source::Stdout => FdRole::Stdout,
                Source::Stderr => FdRole::Stderr,
            };
            fds.push((role, read));
        }
        Ok(fds)
    }

    pub(super) fn stop(
        &mut self,
        caller: Caller,
        id: &str,
        signal: i32,
        grace_millis: u64,
    ) -> Result<Option<Exit>, CallError> {
        let container = self
            .containers
            .get_mut(id)
            .ok_or_else(|| CallError::NotFound {
                container: id.to_owned(),
            })?;
        if let Some(exit) = &container.state.exit {
            return Ok(Some(exit.clone()));
        }
        container.begin_stop(signal, Duration::from_millis(grace_millis), caller);
        Ok(None)
    }

    pub(super) fn signal(
        &mut self,
        id: &str,
        exec_id: Option<&str>,
        number: i32,
    ) -> Result<(), CallError> {
        let Some(exec_id) = exec_id else {
            return self
                .running(id)?
                .signal(number)
                .map_err(from_errno("send signal"));
        };
        let exec = self
            .execs
            .iter()
            .find(|exec| exec.exec_id == exec_id && exec.container == id)
            .ok_or_else(|| CallError::NotFound {
                container: exec_id.to_owned(),
            })?;
        let signal = Signal::from_named_raw(number)
            .or_else(|| sys::realtime_signal(number))
            .ok_or(rustix::io::Errno::INVAL)
            .map_err(from_errno("send signal"))?;
        pidfd_send_signal(&exec.pidfd, signal).map_err(from_errno("send signal"))
    }

    pub(super) fn remove(&mut self, id: &str) -> Result<(), CallError> {
        match self.containers.get(id) {
            None => Err(CallError::NotFound {
                container: id.to_owned(),
            }),
            Some(container) if container.state.exit.is_none() => Err(CallError::WrongState {
                container: id.to_owned(),
                state: "running".to_owned(),
            }),
            Some(_) => {
                self.containers.remove(id);
                self.record();
                Ok(())
            }
        }
    }

    pub(super) fn reopen_log(&mut self, id: &str) -> Result<(), CallError> {
        self.running(id)?.log.reopen().map_err(refused("open log"))
    }

    pub(super) fn begin_shutdown(&mut self, caller: Caller) {
        self.shutdown = Some(caller);
        for container in self.containers.values().filter(|c| c.state.exit.is_none()) {
            container.kill();
        }
        for setup in &self.setups {
            // It may have ended by itself; then there is nothing to kill.
            let _ended = pidfd_send_signal(&setup.pidfd, Signal::KILL);
        }
    }
}

/// A kernel without cgroup BPF leaves devices to the mount options.
fn restrict_devices(cgroup: &std::path::Path, spec: &ContainerSpec) -> Result<(), CallError> {
    let dir = rustix::fs::open(
        cgroup,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(from_errno("open cgroup"))?;
    devices::restrict(dir.as_fd(), &rootfs::device_rules(spec)).map_err(refused("restrict devices"))
}
