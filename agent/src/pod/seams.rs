//! The rooms a pod worker needs, as traits: tests put fakes here.
//!
//! Watches and changes nothing itself; the real rooms are [`Runtime`], [`ImageStore`] and
//! [`Network`].

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use crate::image::{ImageError, ImageRecord, ImageStore, PullRequest};
use crate::network::{Network, NetworkError};
use crate::runtime::{
    ContainerInfo, ContainerSpec, ExecSpec, Exit, RootfsSpec, Runtime, RuntimeError, Sandbox,
    SandboxSpec, SandboxState,
};

/// Output of a probe or hook that is kept, at most.
const OUTPUT_LIMIT: usize = 10 * 1024;

/// Sandboxes and containers.
#[async_trait]
pub trait Sandboxes: Send + Sync + 'static {
    /// Starts a sandbox, or gives the one that runs.
    async fn run_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError>;
    /// Creates and starts a container.
    async fn create_container(
        &self,
        pod_uid: &str,
        spec: ContainerSpec,
    ) -> Result<ContainerInfo, RuntimeError>;
    /// Signal, grace, SIGKILL.
    async fn stop_container(
        &self,
        pod_uid: &str,
        id: &str,
        signal: i32,
        grace: Duration,
    ) -> Result<Exit, RuntimeError>;
    /// Forgets an ended container.
    async fn remove_container(&self, pod_uid: &str, id: &str) -> Result<(), RuntimeError>;
    /// Kills and removes a sandbox with all it has. Idempotent.
    async fn remove_sandbox(&self, pod_uid: &str) -> Result<(), RuntimeError>;
    /// What there is of a pod.
    fn sandbox(&self, pod_uid: &str) -> Option<SandboxState>;
    /// Runs a command in a container to its end, or for `timeout` at most.
    async fn run_in(
        &self,
        pod_uid: &str,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<CommandResult, RuntimeError>;
}

/// How a command in a container went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Exit code; `None`: it did not end in time.
    pub code: Option<i32>,
    /// What it printed, both streams.
    pub output: String,
}

#[async_trait]
impl Sandboxes for Runtime {
    async fn run_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        Runtime::run_sandbox(self, spec).await
    }

    async fn create_container(
        &self,
        pod_uid: &str,
        spec: ContainerSpec,
    ) -> Result<ContainerInfo, RuntimeError> {
        Runtime::create_container(self, pod_uid, spec).await
    }

    async fn stop_container(
        &self,
        pod_uid: &str,
        id: &str,
        signal: i32,
        grace: Duration,
    ) -> Result<Exit, RuntimeError> {
        Runtime::stop_container(self, pod_uid, id, signal, grace).await
    }

    async fn remove_container(&self, pod_uid: &str, id: &str) -> Result<(), RuntimeError> {
        Runtime::remove_container(self, pod_uid, id).await
    }

    async fn remove_sandbox(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        Runtime::remove_sandbox(self, pod_uid).await
    }

    fn sandbox(&self, pod_uid: &str) -> Option<SandboxState> {
        Runtime::sandbox(self, pod_uid)
    }

    async fn run_in(
        &self,
        pod_uid: &str,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<CommandResult, RuntimeError> {
        let spec = ExecSpec {
            args: command.to_vec(),
            ..ExecSpec::default()
        };
        let session = self.exec(pod_uid, id, spec).await?;
        let (stdout, stderr, exit) = (session.stdout, session.stderr, session.exit);
        let mut output = Vec::new();
        let mut errors = Vec::new();
        let ended = tokio::time::timeout(timeout, async {
            let ((), (), exit) = tokio::join!(
                read_limited(stdout, &mut output),
                read_limited(stderr, &mut errors),
                exit
            );
            exit.ok()
        })
        .await;
        if ended.is_err() {
            // The command's output pipes close here; SIGPIPE or the container's end stops it.
            tracing::debug!(pod_uid, ?command, "command did not end in time");
        }
        output.extend_from_slice(&errors);
        Ok(CommandResult {
            code: ended.ok().flatten().map(|exit| exit.code),
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }
}

/// Reads to the end, keeps the beginning.
async fn read_limited<R: tokio::io::AsyncRead + Unpin>(from: Option<R>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let room = OUTPUT_LIMIT.saturating_sub(into.len());
        into.extend_from_slice(&buffer[..read.min(room)]);
    }
}

/// Images.
#[async_trait]
pub trait Images: Send + Sync + 'static {
    /// An image on the node.
    fn lookup(&self, reference: &str) -> Option<ImageRecord>;
    /// Gets an image from its registry.
    async fn pull(&self, request: PullRequest) -> Result<ImageRecord, ImageError>;
    /// Makes a container's root file system.
    async fn prepare(&self, container_id: &str, image_id: &str) -> Result<RootfsSpec, ImageError>;
    /// Removes it. Idempotent.
    async fn release(&self, container_id: &str) -> Result<(), ImageError>;
}

#[async_trait]
impl Images for ImageStore {
    fn lookup(&self, reference: &str) -> Option<ImageRecord> {
        ImageStore::lookup(self, reference)
    }

    async fn pull(&self, request: PullRequest) -> Result<ImageRecord, ImageError> {
        ImageStore::pull(self, request, Arc::new(|_| {})).await
    }

    async fn prepare(&self, container_id: &str, image_id: &str) -> Result<RootfsSpec, ImageError> {
        ImageStore::prepare(self, container_id, image_id).await
    }

    async fn release(&self, container_id: &str) -> Result<(), ImageError> {
        ImageStore::release(self, container_id).await
    }
}

/// Why a pod has no network.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The node has no PodCIDR yet.
    #[error("the node's network is not ready: no PodCIDR is assigned")]
    NotReady,
    /// The network room could not do it.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// Pod networking.
#[async_trait]
pub trait Networks: Send + Sync + 'static {
    /// Connects a sandbox; the same pod gets the same addresses again.
    async fn attach(&self, pod_uid: &str, netns: &Path) -> Result<Vec<IpAddr>, AttachError>;
    /// Gives the addresses back.
    async fn detach(&self, pod_uid: &str) -> Result<(), AttachError>;
}

/// How long a pod waits for the node's network before it says that there is none: at a start
/// with pods the PodCIDR comes from the API a moment after the pods were found running.
const NETWORK_PATIENCE: Duration = Duration::from_secs(5);

/// The pod network, once the node's PodCIDR is known. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct NetworkSlot(Arc<watch::Sender<Option<Arc<Network>>>>);

impl NetworkSlot {
    /// The network is built; who waits for it goes on.
    pub fn set(&self, network: Network) {
        self.0.send_replace(Some(Arc::new(network)));
    }

    /// The network, when it is built.
    pub fn get(&self) -> Option<Arc<Network>> {
        self.0.borrow().clone()
    }

    async fn built(&self) -> Result<Arc<Network>, AttachError> {
        let mut changes = self.0.subscribe();
        let built = changes.wait_for(Option::is_some);
        match tokio::time::timeout(NETWORK_PATIENCE, built).await {
            Ok(Ok(network)) => network.clone().ok_or(AttachError::NotReady),
            Ok(Err(_)) | Err(_) => Err(AttachError::NotReady),
        }
    }
}

#[async_trait]
impl Networks for NetworkSlot {
    async fn attach(&self, pod_uid: &str, netns: &Path) -> Result<Vec<IpAddr>, AttachError> {
        let network = self.built().await?;
        Ok(network.attach(pod_uid, netns).await?.ips)
    }

    async fn detach(&self, pod_uid: &str) -> Result<(), AttachError> {
        match self.get() {
            // Without a network nothing was attached; what an earlier agent left is reconciled
            // when the network is built.
            None => Ok(()),
            Some(network) => Ok(network.detach(pod_uid).await?),
        }
    }
}
