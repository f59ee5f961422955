//! One sandbox as the agent holds it: its files, its link and its last state.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use pintle_shim::protocol::{
    Answer, Call, Event, Exit, SANDBOX_FILE, STATE_FILE, Sandbox as SandboxFile,
    SandboxState as ShimState,
};
use pintle_shim::spec::SandboxSpec;
use tokio::sync::oneshot;

use super::link::{Link, Reply};
use super::types::{
    ContainerState, ContainerStatus, RuntimeConfig, RuntimeError, Sandbox, SandboxState,
};

/// A sandbox with or without a living shim.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) spec: SandboxSpec,
    pub(super) cgroup: PathBuf,
    pub(super) link: Option<Arc<Link>>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) shim: ShimState,
    pub(super) alive: bool,
    /// Its end has been asked for, so it is no news.
    pub(super) ending: bool,
    pub(super) execs: HashMap<String, oneshot::Sender<Exit>>,
}

/// The exit of a container whose shim died: nobody saw it.
fn lost(finished_at: i64) -> Exit {
    Exit {
        code: 137,
        signal: Some(libc::SIGKILL),
        oom_killed: false,
        finished_at,
    }
}

impl Handle {
    pub(super) fn shim_gone(&self, now: i64) {
        let mut state = self.state.lock();
        state.alive = false;
        state.execs.clear();
        for container in state.shim.containers.values_mut() {
            container.exit.get_or_insert_with(|| lost(now));
        }
    }

    /// Brings the state up to date with what a shim reported.
    pub(super) fn note(&self, event: &Event) {
        let mut state = self.state.lock();
        match event {
            Event::ContainerStarted(container) => {
                let id = container.id.clone();
                state.shim.containers.insert(id, container.clone());
            }
            Event::ContainerExited { container, exit } => {
                if let Some(container) = state.shim.containers.get_mut(container) {
                    container.exit = Some(exit.clone());
                }
            }
            Event::ExecExited { exec_id, exit, .. } => {
                if let Some(waiter) = state.execs.remove(exec_id) {
                    // The session may have been dropped.
                    let _dropped = waiter.send(exit.clone());
                }
            }
        }
    }

    /// How a container ended, if it has.
    pub(super) fn exit_of(&self, id: &str) -> Option<Exit> {
        self.state.lock().shim.containers.get(id)?.exit.clone()
    }

    pub(super) fn sandbox(&self) -> Sandbox {
        let shim_pid = self.state.lock().shim.shim_pid;
        Sandbox {
            pod_uid: self.spec.pod_uid.clone(),
            shim_pid,
            netns: PathBuf::from(format!("/proc/{shim_pid}/ns/net")),
            cgroup: self.cgroup.clone(),
        }
    }

    pub(super) fn snapshot(&self) -> SandboxState {
        let (alive, created_at, containers) = {
            let state = self.state.lock();
            let containers = state
                .shim
                .containers
                .values()
                .map(container_state)
                .collect();
            (state.alive, state.shim.created_at, containers)
        };
        SandboxState {
            spec: self.spec.clone(),
            sandbox: alive.then(|| self.sandbox()),
            alive,
            created_at,
            containers,
        }
    }

    /// Asks the shim; its refusals become errors.
    pub(super) async fn call(&self, call: Call) -> Result<Reply, RuntimeError> {
        let gone = || RuntimeError::ShimGone {
            pod_uid: self.spec.pod_uid.clone(),
        };
        let link = self.link.as_ref().ok_or_else(gone)?;
        let reply = link.call(call).await.map_err(|source| {
            if source.kind() == io::ErrorKind::BrokenPipe {
                gone()
            } else {
                RuntimeError::Connection {
                    pod_uid: self.spec.pod_uid.clone(),
                    source,
                }
            }
        })?;
        match &reply.result {
            Ok(_) => Ok(reply),
            Err(error) => Err(RuntimeError::Refused(error.clone())),
        }
    }
}

fn container_state(state: &pintle_shim::protocol::ContainerState) -> ContainerState {
    ContainerState {
        id: state.id.clone(),
        name: state.name.clone(),
        attempt: state.attempt,
        image: state.image.clone(),
        pid: state.pid,
        started_at: state.started_at,
        state: match &state.exit {
            None => ContainerStatus::Running,
            Some(exit) => ContainerStatus::Exited(exit.clone()),
        },
        log_path: state.log_path.clone(),
        labels: state.labels.clone(),
    }
}

fn directory(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RuntimeError {
    let path = path.to_owned();
    move |source| RuntimeError::Directory {
        operation,
        path,
        source,
    }
}

/// Makes a sandbox's directory and leaves the shim its orders there.
pub(super) fn write_orders(
    dir: &Path,
    cgroup: &Path,
    spec: &SandboxSpec,
) -> Result<(), RuntimeError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(directory("create", dir))?;
    if !spec.log_dir.as_os_str().is_empty() {
        fs::create_dir_all(&spec.log_dir).map_err(directory("create", &spec.log_dir))?;
    }
    let file = dir.join(SANDBOX_FILE);
    let orders = SandboxFile {
        spec: spec.clone(),
        cgroup: cgroup.to_owned(),
    };
    let text = serde_json::to_vec(&orders)
        .map_err(io::Error::from)
        .map_err(directory("encode", &file))?;
    fs::write(&file, text).map_err(directory("write", &file))
}

/// Runs the shim's program; returns when the shim serves.
pub(super) async fn spawn(
    config: &RuntimeConfig,
    dir: &Path,
    pod_uid: &str,
) -> Result<(), RuntimeError> {
    let failed = |source| RuntimeError::SpawnShim {
        pod_uid: pod_uid.to_owned(),
        source,
    };
    let (program, args) = config
        .shim_command
        .split_first()
        .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let output = tokio::process::Command::new(program)
        .args(args)
        .arg(dir)
        .env_clear()
        // A shim allocates little and has one thread: one arena, no caches.
        .env(
            "_RJEM_MALLOC_CONF",
            "narenas:1,tcache:false,dirty_decay_ms:0,muzzy_decay_ms:0",
        )
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .await
        .map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.trim() {
        "ok" if output.status.success() => Ok(()),
        message => Err(RuntimeError::ShimFailed {
            pod_uid: pod_uid.to_owned(),
            message: if message.is_empty() {
                output.status.to_string()
            } else {
                message.to_owned()
            },
        }),
    }
}

/// Connects to a shim that serves. The caller runs the link's reader, and only
/// then asks [`subscribe`].
pub(super) async fn connect(dir: &Path, pod_uid: &str) -> Result<Arc<Link>, RuntimeError> {
    Link::connect(dir)
        .await
        .map_err(|source| RuntimeError::Connection {
            pod_uid: pod_uid.to_owned(),
            source,
        })
}

/// Gets the shim's state and its events from then on.
pub(super) async fn subscribe(handle: &Handle) -> Result<(), RuntimeError> {
    let reply = handle.call(Call::Subscribe).await?;
    let Ok(Answer::State(shim)) = reply.result else {
        return Err(RuntimeError::Protocol {
            pod_uid: handle.spec.pod_uid.clone(),
        });
    };
    let mut state = handle.state.lock();
    state.shim = shim;
    if let Some(pid) = handle.link.as_ref().and_then(|link| link.peer()) {
        state.shim.shim_pid = pid;
    }
    state.alive = true;
    Ok(())
}

/// Reads what a sandbox's directory says, when its shim is dead.
pub(super) fn read_orders(dir: &Path) -> Result<SandboxFile, RuntimeError> {
    read_json(&dir.join(SANDBOX_FILE))
}

/// The state a shim wrote last.
pub(super) fn read_state(dir: &Path) -> Result<ShimState, RuntimeError> {
    read_json(&dir.join(STATE_FILE))
}

fn read_json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, RuntimeError> {
    let text = fs::read(file).map_err(directory("read", file))?;
    serde_json::from_slice(&text)
        .map_err(io::Error::from)
        .map_err(directory("parse", file))
}

/// Removes a sandbox's directory.
pub(super) fn remove_dir(dir: &Path) -> Result<(), RuntimeError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(directory("remove", dir)),
    }
}

/// Names of the sandboxes' directories.
pub(super) fn list_dirs(pods: &Path) -> Result<Vec<String>, RuntimeError> {
    let entries = match fs::read_dir(pods) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(directory("read", pods))?,
    };
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// Refuses what cannot be one component of a path.
pub(super) fn check_name(what: &'static str, value: &str) -> Result<(), RuntimeError> {
    let fine = !value.is_empty()
        && value.len() <= 128
        && !value.starts_with('.')
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if fine {
        Ok(())
    } else {
        Err(RuntimeError::BadName {
            what,
            value: value.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_stay_within_their_directory() {
        assert!(check_name("pod", "0b6c6f7e-1111-4c4c-8d8d-222222222222").is_ok());
        for bad in ["", "..", ".hidden", "a/b", "a b"] {
            assert!(check_name("pod", bad).is_err(), "{bad:?}");
        }
    }
}
