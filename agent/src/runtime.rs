//! Talks to shims: the life cycle of sandboxes and containers, exec, adoption.
//!
//! Watches the shims' sockets under `run-dir/pods`; changes processes, cgroups
//! and the sandboxes' directories. The pod worker asks and reacts to
//! [`RuntimeEvent`]s; nothing else talks to a shim.

mod link;
mod sandbox;
mod types;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pintle_shim::protocol::{Answer, Call, CallError, Event, FdRole};
use tokio::net::unix::pipe;
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinSet;

use crate::cgroup::CgroupTree;
use crate::sys::Terminal;
use link::Link;
use sandbox::{Handle, State};

pub use pintle_shim::protocol::Exit;
pub use pintle_shim::spec::{
    CgroupSpec, ContainerSpec, Device, ExecSpec, Mount, Propagation, QosClass, Resources,
    RootfsSpec, SandboxSpec, Seccomp, UserSpec, default_masked_paths, default_readonly_paths,
};
pub use types::{
    AttachSession, ContainerInfo, ContainerState, ContainerStatus, ExecSession, PodStats,
    RuntimeConfig, RuntimeError, RuntimeEvent, Sandbox, SandboxState,
};

/// Handle to the node's shims; cheap to clone.
#[derive(Debug, Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

/// How long a shim may take to end when it is asked to.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Inner {
    config: RuntimeConfig,
    events: broadcast::Sender<RuntimeEvent>,
    sandboxes: Mutex<BTreeMap<String, Arc<Handle>>>,
    /// One reader per shim; they end with their shim, or with this.
    readers: Mutex<JoinSet<()>>,
    next_exec: AtomicU64,
}

fn now_nanos() -> i64 {
    jiff::Timestamp::now()
        .as_nanosecond()
        .try_into()
        .unwrap_or(i64::MAX)
}

impl Runtime {
    /// Prepares the run directory; nothing is adopted before [`Runtime::adopt`].
    pub fn build(config: RuntimeConfig) -> Result<Self, RuntimeError> {
        let pods = config.run_dir.join("pods");
        std::fs::create_dir_all(&pods).map_err(|source| RuntimeError::Directory {
            operation: "create",
            path: pods,
            source,
        })?;
        let (events, _) = broadcast::channel(4096);
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                events,
                sandboxes: Mutex::new(BTreeMap::new()),
                readers: Mutex::new(JoinSet::new()),
                next_exec: AtomicU64::new(1),
            }),
        })
    }

    /// Finds the shims that outlived an earlier agent and takes up with them.
    /// Sandboxes whose shim is dead are listed with `alive: false`, their
    /// processes killed; the pod worker reads their last states and removes
    /// them. What has neither is cleaned up here.
    pub async fn adopt(&self) -> Result<Vec<SandboxState>, RuntimeError> {
        let dirs = sandbox::list_dirs(&self.inner.config.run_dir.join("pods"))?;
        for pod_uid in &dirs {
            if self.handle(pod_uid).is_ok() {
                continue;
            }
            if let Err(error) = self.adopt_one(pod_uid).await {
                tracing::warn!(pod_uid, %error, "removing a sandbox that cannot be adopted");
                self.remove_sandbox(pod_uid).await?;
            }
        }
        for pod_uid in self.inner.config.cgroups.pods() {
            if !dirs.contains(&pod_uid) {
                self.remove_sandbox(&pod_uid).await?;
            }
        }
        Ok(self.list())
    }

    async fn adopt_one(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        let dir = self.sandbox_dir(pod_uid);
        let orders = sandbox::read_orders(&dir)?;
        let taken_up = match sandbox::connect(&dir, pod_uid).await {
            Ok(link) => {
                self.take_up(orders.spec.clone(), orders.cgroup.clone(), link)
                    .await
            }
            Err(error) => Err(error),
        };
        let error = match taken_up {
            Ok(_) => return Ok(()),
            // A shim that is just dying may still accept.
            Err(error @ (RuntimeError::Connection { .. } | RuntimeError::ShimGone { .. })) => error,
            Err(error) => return Err(error),
        };
        tracing::info!(pod_uid, %error, "the shim died while no agent watched");
        self.kill_cgroup(pod_uid, &orders.cgroup)?;
        let shim = sandbox::read_state(&dir)?;
        let handle = Handle {
            spec: orders.spec,
            cgroup: orders.cgroup,
            link: None,
            state: Mutex::new(State {
                shim,
                ..State::default()
            }),
        };
        handle.shim_gone(now_nanos());
        self.inner
            .sandboxes
            .lock()
            .insert(pod_uid.to_owned(), Arc::new(handle));
        Ok(())
    }

    /// Starts a sandbox; the network namespace exists when this returns.
    /// Asking again for a sandbox that runs gives that sandbox.
    pub async fn run_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        let pod_uid = spec.pod_uid.clone();
        sandbox::check_name("pod UID", &pod_uid)?;
        if let Ok(handle) = self.handle(&pod_uid)
            && handle.state.lock().alive
        {
            return Ok(handle.sandbox());
        }
        let dir = self.sandbox_dir(&pod_uid);
        if dir.exists() || self.inner.config.cgroups.find_pod(&pod_uid).is_some() {
            self.remove_sandbox(&pod_uid).await?;
        }
        match self.start_sandbox(spec, dir).await {
            Ok(handle) => Ok(handle.sandbox()),
            Err(error) => {
                if let Err(leftover) = self.remove_sandbox(&pod_uid).await {
                    tracing::warn!(pod_uid, error = %leftover, "cannot clean up a failed sandbox");
                }
                Err(error)
            }
        }
    }

    async fn start_sandbox(
        &self,
        spec: SandboxSpec,
        dir: PathBuf,
    ) -> Result<Arc<Handle>, RuntimeError> {
        let pod_uid = spec.pod_uid.clone();
        let cgroups = &self.inner.config.cgroups;
        let cgroup = cgroups
            .create_pod(&pod_uid, &spec.cgroup)
            .map_err(|source| RuntimeError::Cgroup {
                pod_uid: pod_uid.clone(),
                source,
            })?;
        sandbox::write_orders(&dir, &cgroup, &spec)?;
        sandbox::spawn(&self.inner.config, &dir, &pod_uid).await?;
        let link = sandbox::connect(&dir, &pod_uid).await?;
        self.take_up(spec, cgroup, link).await
    }

    /// Starts reading a shim's messages and learns its state.
    async fn take_up(
        &self,
        spec: SandboxSpec,
        cgroup: PathBuf,
        link: Arc<Link>,
    ) -> Result<Arc<Handle>, RuntimeError> {
        let pod_uid = spec.pod_uid.clone();
        let handle = Arc::new(Handle {
            spec,
            cgroup,
            link: Some(Arc::clone(&link)),
            state: Mutex::new(State::default()),
        });
        let reader = Reader {
            link,
            handle: Arc::clone(&handle),
            events: self.inner.events.clone(),
            cgroups: self.inner.config.cgroups.clone(),
        };
        {
            let mut readers = self.inner.readers.lock();
            while readers.try_join_next().is_some() {}
            readers.spawn(reader.run());
        }
        sandbox::subscribe(&handle).await?;
        self.inner
            .sandboxes
            .lock()
            .insert(pod_uid, Arc::clone(&handle));
        Ok(handle)
    }

    /// Creates the container's cgroup and starts the container; returns when
    /// its program has been executed. A program that ends at once may have its
    /// [`RuntimeEvent::ContainerExited`] sent before this returns.
    pub async fn create_container(
        &self,
        pod_uid: &str,
        spec: ContainerSpec,
    ) -> Result<ContainerInfo, RuntimeError> {
        let handle = self.handle(pod_uid)?;
        sandbox::check_name("container id", &spec.id)?;
        let id = spec.id.clone();
        let cgroups = &self.inner.config.cgroups;
        let failed = |source| RuntimeError::Cgroup {
            pod_uid: pod_uid.to_owned(),
            source,
        };
        let cgroup = cgroups
            .create_container(&handle.cgroup, &id, &spec.resources)
            .map_err(failed)?;
        let call = Call::Create {
            cgroup: cgroup.clone(),
            spec: Box::new(spec),
        };
        let reply = match handle.call(call).await {
            Ok(reply) => reply,
            Err(error) => {
                let taken = matches!(error, RuntimeError::Refused(CallError::Exists { .. }));
                if !taken {
                    cgroups.remove(&cgroup).await.map_err(failed)?;
                }
                return Err(error);
            }
        };
        let Ok(Answer::Created(state)) = reply.result else {
            return Err(RuntimeError::Protocol {
                pod_uid: pod_uid.to_owned(),
            });
        };
        // The state was noted from the event that came before the reply.
        Ok(ContainerInfo {
            pid: state.pid,
            started_at: state.started_at,
        })
    }

    /// Sends `signal`, waits up to `grace`, then kills; returns how it ended.
    /// A second call with a shorter grace shortens the wait.
    pub async fn stop_container(
        &self,
        pod_uid: &str,
        id: &str,
        signal: i32,
        grace: Duration,
    ) -> Result<Exit, RuntimeError> {
        let handle = self.handle(pod_uid)?;
        if let Some(exit) = handle.exit_of(id) {
            return Ok(exit);
        }
        let grace_millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let call = Call::Stop {
            container: id.to_owned(),
            signal,
            grace_millis,
        };
        match handle.call(call).await {
            Ok(link::Reply {
                result: Ok(Answer::Stopped(exit)),
                ..
            }) => Ok(exit),
            Ok(_) => Err(RuntimeError::Protocol {
                pod_uid: pod_uid.to_owned(),
            }),
            Err(RuntimeError::ShimGone { pod_uid }) => {
                handle.exit_of(id).ok_or(RuntimeError::ShimGone { pod_uid })
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a signal to a container's first process.
    pub async fn signal_container(
        &self,
        pod_uid: &str,
        id: &str,
        signal: i32,
    ) -> Result<(), RuntimeError> {
        let call = Call::Signal {
            container: id.to_owned(),
            exec_id: None,
            signal,
        };
        self.handle(pod_uid)?.call(call).await.map(drop)
    }

    /// Sends a signal to a process that [`Runtime::exec`] started.
    pub async fn signal_exec(
        &self,
        pod_uid: &str,
        container_id: &str,
        exec_id: &str,
        signal: i32,
    ) -> Result<(), RuntimeError> {
        let call = Call::Signal {
            container: container_id.to_owned(),
            exec_id: Some(exec_id.to_owned()),
            signal,
        };
        self.handle(pod_uid)?.call(call).await.map(drop)
    }

    /// Forgets an exited container and removes its cgroup. The caller releases
    /// its root file system (`ImageStore::release`). Idempotent.
    pub async fn remove_container(&self, pod_uid: &str, id: &str) -> Result<(), RuntimeError> {
        let handle = self.handle(pod_uid)?;
        match handle
            .call(Call::Remove {
                container: id.to_owned(),
            })
            .await
        {
            Ok(_)
            | Err(
                RuntimeError::Refused(CallError::NotFound { .. }) | RuntimeError::ShimGone { .. },
            ) => {}
            Err(error) => return Err(error),
        }
        handle.state.lock().shim.containers.remove(id);
        sandbox::check_name("container id", id)?;
        self.inner
            .config
            .cgroups
            .remove(&handle.cgroup.join(id))
            .await
            .map_err(|source| RuntimeError::Cgroup {
                pod_uid: pod_uid.to_owned(),
                source,
            })
    }

    /// Kills everything in the sandbox and ends its shim. Idempotent.
    pub async fn stop_sandbox(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        let Ok(handle) = self.handle(pod_uid) else {
            return Ok(());
        };
        handle.state.lock().ending = true;
        let asked = tokio::time::timeout(SHUTDOWN_PATIENCE, handle.call(Call::Shutdown)).await;
        if !matches!(asked, Ok(Ok(_))) {
            self.kill_cgroup(pod_uid, &handle.cgroup)?;
        }
        handle.shim_gone(now_nanos());
        Ok(())
    }

    /// As [`Runtime::stop_sandbox`], then removes the cgroups and the
    /// sandbox's directory. Idempotent; works for a pod it never heard of.
    pub async fn remove_sandbox(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        sandbox::check_name("pod UID", pod_uid)?;
        self.stop_sandbox(pod_uid).await?;
        let cgroups = &self.inner.config.cgroups;
        if let Some(cgroup) = cgroups.find_pod(pod_uid) {
            cgroups
                .remove(&cgroup)
                .await
                .map_err(|source| RuntimeError::Cgroup {
                    pod_uid: pod_uid.to_owned(),
                    source,
                })?;
        }
        sandbox::remove_dir(&self.sandbox_dir(pod_uid))?;
        self.inner.sandboxes.lock().remove(pod_uid);
        Ok(())
    }

    /// Every sandbox, from memory.
    pub fn list(&self) -> Vec<SandboxState> {
        let handles: Vec<Arc<Handle>> = self.inner.sandboxes.lock().values().cloned().collect();
        handles.iter().map(|handle| handle.snapshot()).collect()
    }

    /// One sandbox, from memory.
    pub fn sandbox(&self, pod_uid: &str) -> Option<SandboxState> {
        self.handle(pod_uid).ok().map(|handle| handle.snapshot())
    }

    /// What happens from now on. A receiver that lags re-reads [`Runtime::list`].
    pub fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.inner.events.subscribe()
    }

    /// Runs a process in a running container.
    pub async fn exec(
        &self,
        pod_uid: &str,
        container_id: &str,
        spec: ExecSpec,
    ) -> Result<ExecSession, RuntimeError> {
        let handle = self.handle(pod_uid)?;
        // Unique across agents too: an adopted shim may know an older one's ids.
        let serial = self.inner.next_exec.fetch_add(1, Ordering::Relaxed);
        let exec_id = format!("{:x}-{serial}", now_nanos());
        let (sender, exit) = oneshot::channel();
        handle.state.lock().execs.insert(exec_id.clone(), sender);
        let call = Call::Exec {
            exec_id: exec_id.clone(),
            container: container_id.to_owned(),
            spec,
        };
        let reply = match handle.call(call).await {
            Ok(reply) => reply,
            Err(error) => {
                handle.state.lock().execs.remove(&exec_id);
                return Err(error);
            }
        };
        let Ok(Answer::Executing { pid }) = reply.result else {
            return Err(RuntimeError::Protocol {
                pod_uid: pod_uid.to_owned(),
            });
        };
        let streams = Streams::from_fds(reply.fds).map_err(|source| RuntimeError::Connection {
            pod_uid: pod_uid.to_owned(),
            source,
        })?;
        Ok(ExecSession {
            exec_id,
            pid,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            terminal: streams.terminal,
            exit,
        })
    }

    /// Joins a running container's streams.
    pub async fn attach(
        &self,
        pod_uid: &str,
        container_id: &str,
    ) -> Result<AttachSession, RuntimeError> {
        let call = Call::Attach {
            container: container_id.to_owned(),
        };
        let reply = self.handle(pod_uid)?.call(call).await?;
        let streams = Streams::from_fds(reply.fds).map_err(|source| RuntimeError::Connection {
            pod_uid: pod_uid.to_owned(),
            source,
        })?;
        Ok(AttachSession {
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            terminal: streams.terminal,
        })
    }

    /// Usage of a pod and its containers, as far as the controllers are there.
    pub fn stats(&self, pod_uid: &str) -> Result<PodStats, RuntimeError> {
        let handle = self.handle(pod_uid)?;
        let cgroups = &self.inner.config.cgroups;
        let ids: Vec<String> = handle
            .state
            .lock()
            .shim
            .containers
            .keys()
            .cloned()
            .collect();
        let containers = ids
            .into_iter()
            .map(|id| (id.clone(), cgroups.stats(&handle.cgroup.join(id))));
        Ok(PodStats {
            pod: cgroups.stats(&handle.cgroup),
            containers: containers.collect(),
        })
    }

    /// Removes every sandbox of this instance and its cgroup tree.
    pub async fn teardown_all(&self) -> Result<(), RuntimeError> {
        let mut pods = sandbox::list_dirs(&self.inner.config.run_dir.join("pods"))?;
        pods.extend(self.inner.config.cgroups.pods());
        pods.extend(self.inner.sandboxes.lock().keys().cloned());
        pods.sort();
        pods.dedup();
        for pod_uid in pods {
            if self.handle(&pod_uid).is_err()
                && let Err(error) = self.adopt_one(&pod_uid).await
            {
                tracing::debug!(pod_uid, %error, "removing what is left of a sandbox");
            }
            self.remove_sandbox(&pod_uid).await?;
        }
        self.inner
            .config
            .cgroups
            .teardown()
            .await
            .map_err(|source| RuntimeError::Cgroup {
                pod_uid: String::new(),
                source,
            })
    }

    /// Where a sandbox's directory is.
    pub fn sandbox_dir(&self, pod_uid: &str) -> PathBuf {
        self.inner.config.run_dir.join("pods").join(pod_uid)
    }

    /// The cgroup tree.
    pub fn cgroups(&self) -> &CgroupTree {
        &self.inner.config.cgroups
    }

    fn handle(&self, pod_uid: &str) -> Result<Arc<Handle>, RuntimeError> {
        self.inner
            .sandboxes
            .lock()
            .get(pod_uid)
            .cloned()
            .ok_or_else(|| RuntimeError::SandboxNotFound {
                pod_uid: pod_uid.to_owned(),
            })
    }

    fn kill_cgroup(&self, pod_uid: &str, cgroup: &Path) -> Result<(), RuntimeError> {
        self.inner
            .config
            .cgroups
            .kill(cgroup)
            .map_err(|source| RuntimeError::Cgroup {
                pod_uid: pod_uid.to_owned(),
                source,
            })
    }
}

/// Reads one shim's messages until it is gone.
struct Reader {
    link: Arc<Link>,
    handle: Arc<Handle>,
    events: broadcast::Sender<RuntimeEvent>,
    cgroups: CgroupTree,
}

impl Reader {
    async fn run(self) {
        let pod_uid = &self.handle.spec.pod_uid;
        self.link
            .read(|event| {
                self.handle.note(&event);
                if let Event::ContainerExited { container, exit } = event {
                    // Nobody may be listening yet.
                    let _no_listener = self.events.send(RuntimeEvent::ContainerExited {
                        pod_uid: pod_uid.clone(),
                        container_id: container,
                        exit,
                    });
                }
            })
            .await;
        let news = {
            let state = self.handle.state.lock();
            state.alive && !state.ending
        };
        self.handle.shim_gone(now_nanos());
        if news {
            // Without their shim containers have nobody to reap or log them.
            if let Err(error) = self.cgroups.kill(&self.handle.cgroup) {
                tracing::warn!(pod_uid, %error, "cannot kill what a dead shim left");
            }
            let _no_listener = self.events.send(RuntimeEvent::SandboxGone {
                pod_uid: pod_uid.clone(),
            });
        }
    }
}

/// A reply's descriptors, ready for tasks.
#[derive(Default)]
struct Streams {
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    terminal: Option<Terminal>,
}

impl Streams {
    fn from_fds(fds: Vec<(FdRole, OwnedFd)>) -> io::Result<Self> {
        let mut streams = Self::default();
        for (role, fd) in fds {
            match role {
                FdRole::Stdin => streams.stdin = Some(pipe::Sender::from_owned_fd(fd)?),
                FdRole::Stdout => streams.stdout = Some(pipe::Receiver::from_owned_fd(fd)?),
                FdRole::Stderr => streams.stderr = Some(pipe::Receiver::from_owned_fd(fd)?),
                FdRole::Terminal => streams.terminal = Some(Terminal::new(fd)?),
            }
        }
        Ok(streams)
    }
}
