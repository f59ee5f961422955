//! Processes that got somewhere: setups that executed or failed, and exits.

use std::os::fd::OwnedFd;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::container::{Container, Output, nonblocking, start_time};
use super::{Caller, ExecProcess, Server, Setup, SetupKind, complain};
use crate::channel::{self, Note, Received};
use crate::clock;
use crate::log::Source;
use crate::protocol::{Answer, CallError, Event, Exit, FdRole};
use std::os::fd::AsFd;

impl Server {
    /// Reads what a process being set up says.
    pub(super) fn advance_setup(&mut self, pid: i32) {
        let Some(index) = self.setups.iter().position(|setup| setup.pid == pid) else {
            return;
        };
        let Some(setup) = self.setups.get_mut(index) else {
            return;
        };
        loop {
            match channel::receive(setup.channel.as_fd()) {
                Received::Nothing => return,
                Received::Note(Note::Terminal, terminal) => setup.terminal = terminal,
                Received::Note(Note::Failed(error), _) => {
                    let setup = self.setups.swap_remove(index);
                    return self.reply(setup.caller, Err(error), Vec::new());
                }
                Received::End => {
                    let setup = self.setups.swap_remove(index);
                    return self.executed(setup);
                }
            }
        }
    }

    /// The program runs.
    fn executed(&mut self, setup: Setup) {
        let Setup {
            pid,
            pidfd,
            caller,
            terminal,
            kind,
            ..
        } = setup;
        match kind {
            SetupKind::Container(container) => {
                self.container_runs(*container, pid, pidfd, terminal, caller);
            }
            SetupKind::Exec {
                container,
                exec_id,
                mut fds,
            } => {
                fds.extend(terminal.map(|fd| (FdRole::Terminal, fd)));
                self.execs.push(ExecProcess {
                    container,
                    exec_id,
                    pid,
                    pidfd,
                });
                self.reply(caller, Ok(Answer::Executing { pid }), fds);
            }
        }
    }

    fn container_runs(
        &mut self,
        mut container: Container,
        pid: i32,
        pidfd: OwnedFd,
        terminal: Option<OwnedFd>,
        caller: Caller,
    ) {
        container.pidfd = Some(pidfd);
        container.state.started_at = clock::now_nanos();
        container.state.start_time = start_time(pid);
        if let Some(terminal) = terminal {
            match terminal
                .try_clone()
                .and_then(|copy| nonblocking(&copy).map(|()| copy))
            {
                Ok(copy) => container.outputs.push(Output::new(Source::Stdout, copy)),
                Err(error) => complain(&format!("terminal of {}: {error}", container.state.id)),
            }
            container.terminal = Some(terminal);
        }
        let state = container.state.clone();
        self.containers.insert(state.id.clone(), container);
        self.record();
        self.publish(&Event::ContainerStarted(state.clone()));
        self.reply(caller, Ok(Answer::Created(state)), Vec::new());
        if self.shutdown.is_some() {
            for container in self.containers.values().filter(|c| c.state.exit.is_none()) {
                container.kill();
            }
        }
    }

    /// Takes in every child that ended, orphans of containers included.
    pub(super) fn reap(&mut self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        loop {
            let (pid, code, signal) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    (pid, 128 + signal as i32, Some(signal as i32))
                }
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return,
                Err(nix::errno::Errno::EINTR) | Ok(_) => continue,
                Err(error) => return complain(&format!("wait: {error}")),
            };
            self.ended(pid.as_raw(), code, signal);
        }
    }

    fn ended(&mut self, pid: i32, code: i32, signal: Option<i32>) {
        // It may have executed and ended before its channel was looked at.
        self.advance_setup(pid);
        if let Some(index) = self.setups.iter().position(|setup| setup.pid == pid) {
            // A descendant holds the channel open; the process is dead anyway.
            let setup = self.setups.swap_remove(index);
            let error = CallError::Setup {
                step: "start".to_owned(),
                message: "the process ended while it was set up".to_owned(),
            };
            return self.reply(setup.caller, Err(error), Vec::new());
        }
        let exit = Exit {
            code,
            signal,
            oom_killed: false,
            finished_at: clock::now_nanos(),
        };
        if let Some(index) = self.execs.iter().position(|exec| exec.pid == pid) {
            let ExecProcess {
                container, exec_id, ..
            } = self.execs.swap_remove(index);
            return self.publish(&Event::ExecExited {
                container,
                exec_id,
                exit,
            });
        }
        let running = |container: &&mut Container| {
            container.state.pid == pid && container.state.exit.is_none()
        };
        if let Some(container) = self.containers.values_mut().find(running) {
            let exit = Exit {
                oom_killed: container.oom_killed(),
                ..exit
            };
            if container.shared_pids {
                container.kill();
            }
            container.drain();
            let id = container.state.id.clone();
            let waiting = container.set_exit(exit.clone());
            self.record();
            self.publish(&Event::ContainerExited {
                container: id,
                exit: exit.clone(),
            });
            for caller in waiting {
                self.reply(caller, Ok(Answer::Stopped(exit.clone())), Vec::new());
            }
        }
    }
}
