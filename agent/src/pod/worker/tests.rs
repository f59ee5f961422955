//! The worker with fakes of all rooms: what it does, in which order, and what is left.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Event as CoreEvent, Node, NodeStatus};
use parking_lot::Mutex;
use pintle_proto::node::CreateToken;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::image::{ImageError, ImageRecord, PullRequest};
use crate::pod::seams::{AttachError, CommandResult};
use crate::runtime::{
    ContainerInfo, ContainerSpec, ContainerState, ContainerStatus, RootfsSpec, RuntimeError,
    Sandbox, SandboxSpec, SandboxState,
};
use crate::session::RequestError;
use crate::volume::VolumeConfig;

/// Everything outside the worker: what was done, in order, and what there is.
#[derive(Default)]
struct World {
    calls: Mutex<Vec<String>>,
    sandboxes: Mutex<BTreeMap<String, SandboxState>>,
    statuses: Mutex<Vec<PodStatus>>,
    finalized: watch::Sender<bool>,
    /// Statuses written so far, for those who wait for one.
    written: watch::Sender<usize>,
}

impl World {
    fn call(&self, text: impl Into<String>) {
        self.calls.lock().push(text.into());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }
}

#[derive(Clone)]
struct Fake(Arc<World>);

#[async_trait]
impl Sandboxes for Fake {
    async fn run_sandbox(&self, spec: SandboxSpec) -> Result<Sandbox, RuntimeError> {
        self.0.call("run sandbox");
        let sandbox = Sandbox {
            pod_uid: spec.pod_uid.clone(),
            shim_pid: 42,
            netns: "/proc/42/ns/net".into(),
            cgroup: "/c".into(),
        };
        let state = SandboxState {
            sandbox: Some(sandbox.clone()),
            alive: true,
            created_at: 0,
            containers: Vec::new(),
            spec,
        };
        self.0
            .sandboxes
            .lock()
            .insert(sandbox.pod_uid.clone(), state);
        Ok(sandbox)
    }

    async fn create_container(
        &self,
        pod_uid: &str,
        spec: ContainerSpec,
    ) -> Result<ContainerInfo, RuntimeError> {
        self.0.call(format!("start {} {}", spec.name, spec.attempt));
        let mut sandboxes = self.0.sandboxes.lock();
        let state = sandboxes.get_mut(pod_uid).unwrap();
        state.containers.push(ContainerState {
            id: spec.id,
            name: spec.name,
            attempt: spec.attempt,
            image: spec.image,
            pid: 43,
            started_at: 0,
            state: ContainerStatus::Running,
            log_path: spec.log_path,
            labels: spec.labels,
        });
        Ok(ContainerInfo {
            pid: 43,
            started_at: 0,
        })
    }

    async fn stop_container(
        &self,
        _pod_uid: &str,
        _id: &str,
        signal: i32,
        grace: Duration,
    ) -> Result<Exit, RuntimeError> {
        self.0
            .call(format!("stop {signal} within {}s", grace.as_secs()));
        Ok(Exit {
            code: 0,
            signal: None,
            oom_killed: false,
            finished_at: 0,
        })
    }

    async fn remove_container(&self, _pod_uid: &str, _id: &str) -> Result<(), RuntimeError> {
        self.0.call("remove container");
        Ok(())
    }

    async fn remove_sandbox(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        self.0.call("remove sandbox");
        self.0.sandboxes.lock().remove(pod_uid);
        Ok(())
    }

    fn sandbox(&self, pod_uid: &str) -> Option<SandboxState> {
        self.0.sandboxes.lock().get(pod_uid).cloned()
    }

    async fn run_in(
        &self,
        _pod_uid: &str,
        _id: &str,
        command: &[String],
        _timeout: Duration,
    ) -> Result<CommandResult, RuntimeError> {
        self.0.call(format!("exec {}", command.join(" ")));
        Ok(CommandResult {
            code: Some(0),
            output: String::new(),
        })
    }
}

#[async_trait]
impl Images for Fake {
    fn lookup(&self, _reference: &str) -> Option<ImageRecord> {
        let config = json!({"architecture": "amd64", "os": "linux",
            "config": {"Cmd": ["/run"], "StopSignal": "SIGQUIT"},
            "rootfs": {"type": "layers", "diff_ids": []}});
        Some(ImageRecord {
            id: "sha256:1".into(),
            manifest_digest: "sha256:2".into(),
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            size: 1,
            layers: Vec::new(),
            config: serde_json::from_value(config).unwrap(),
        })
    }

    async fn pull(&self, request: PullRequest) -> Result<ImageRecord, ImageError> {
        Err(ImageError::NotFound {
            reference: request.reference,
        })
    }

    async fn prepare(&self, _id: &str, _image: &str) -> Result<RootfsSpec, ImageError> {
        Ok(RootfsSpec::default())
    }

    async fn release(&self, _id: &str) -> Result<(), ImageError> {
        Ok(())
    }
}

#[async_trait]
impl Networks for Fake {
    async fn attach(&self, _uid: &str, _netns: &Path) -> Result<Vec<IpAddr>, AttachError> {
        self.0.call("attach");
        Ok(vec!["10.244.0.5".parse().unwrap()])
    }

    async fn detach(&self, _uid: &str) -> Result<(), AttachError> {
        self.0.call("detach");
        Ok(())
    }
}

#[async_trait]
impl ControlPlane for Fake {
    async fn register_node(&self, _node: &Node) -> Result<(), RequestError> {
        Ok(())
    }
    async fn update_node_status(&self, _status: &NodeStatus) -> Result<(), RequestError> {
        Ok(())
    }
    async fn update_pod_status(
        &self,
        _namespace: &str,
        _name: &str,
        _uid: &str,
        status: &PodStatus,
    ) -> Result<(), RequestError> {
        self.0.statuses.lock().push(status.clone());
        self.0.written.send_modify(|count| *count += 1);
        Ok(())
    }
    async fn finalize_pod(&self, _: &str, _: &str, _: &str) -> Result<(), RequestError> {
        let last = self.0.statuses.lock().last().cloned().unwrap();
        self.0.call(format!("finalize {}", last.phase.unwrap()));
        self.0.finalized.send_replace(true);
        Ok(())
    }
    async fn record_event(&self, _event: &CoreEvent) -> Result<(), RequestError> {
        Ok(())
    }
    async fn renew_lease(&self, _seconds: u32) -> Result<(), RequestError> {
        Ok(())
    }
    async fn create_token(&self, _request: CreateToken) -> Result<TokenRequest, RequestError> {
        Err(RequestError::Disconnected)
    }
    async fn connected(&self) {}
}

/// A world, the rooms over it, and where their files are.
struct Bench {
    world: Arc<World>,
    rooms: Arc<Rooms>,
    shutdown: CancellationToken,
    directory: tempfile::TempDir,
    _memory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let world = Arc::new(World::default());
        let fake = Fake(world.clone());
        let clock = Clock::manual(1_700_000_000_000);
        let state = ClusterState::new();
        let (events, _) = EventSink::new("n1", clock.clone());
        let status = StatusPublisher::new();
        let shutdown = CancellationToken::new();
        // In memory, so that no mount is needed.
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let volumes = Volumes::build(
            VolumeConfig {
                pods_dir: directory.path().join("pods"),
                memory_dir: memory.path().to_path_buf(),
                cluster_domain: "cluster.local".into(),
                cluster_dns: "10.96.0.10".parse().unwrap(),
            },
            state.clone(),
            Arc::new(fake.clone()),
            clock.clone(),
        )
        .unwrap();
        let rooms = Arc::new(Rooms {
            sandboxes: Arc::new(fake.clone()),
            images: Arc::new(fake.clone()),
            networks: Arc::new(fake.clone()),
            volumes,
            status: status.clone(),
            events,
            control_plane: Arc::new(fake.clone()),
            state,
            clock,
            table: PodTable::default(),
            host: HostFacts::default(),
            pods_dir: directory.path().join("pods"),
            logs_dir: directory.path().join("logs"),
            seccomp_dir: directory.path().join("seccomp"),
            cluster_domain: "cluster.local".into(),
            pod_pids_limit: None,
        });
        let publisher = status.run(Arc::new(fake), shutdown.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(publisher);
        tasks.detach_all();
        Self {
            world,
            rooms,
            shutdown,
            directory,
            _memory: memory,
        }
    }

    /// A worker for a pod, as an agent starts it.
    fn start(
        &self,
        pod: &Arc<Pod>,
        agent: &CancellationToken,
    ) -> (mpsc::UnboundedSender<Message>, JoinSet<()>) {
        let (inbox, messages) = mpsc::unbounded_channel();
        let worker = Worker::build(self.rooms.clone(), pod, messages).unwrap();
        let mut task = JoinSet::new();
        task.spawn(Box::pin(worker.run(agent.clone())));
        (inbox, task)
    }

    /// Waits for a status that is as wanted.
    async fn status(&self, wanted: impl Fn(&PodStatus) -> bool) -> PodStatus {
        let mut written = self.world.written.subscribe();
        loop {
            written.borrow_and_update();
            let found = self.world.statuses.lock().last().cloned();
            if let Some(status) = found.filter(|status| wanted(status)) {
                return status;
            }
            written.changed().await.unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn pod(uid: &str) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": uid, "resourceVersion": "1"},
            "spec": {"restartPolicy": "Always", "containers": [
                {"name": "web", "image": "nginx:1.27",
                 "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}}
            ]},
        }))
        .unwrap(),
    )
}

fn is_ready(status: &PodStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn deleted(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(Clock::system().time());
    pod.metadata.deletion_grace_period_seconds = Some(30);
    pod.metadata.resource_version = Some("2".into());
    Arc::new(pod)
}

#[tokio::test]
async fn a_pod_lives_and_leaves_nothing() {
    let bench = Bench::new();
    let agent = CancellationToken::new();
    let pod = pod("u1");
    let (inbox, mut task) = bench.start(&pod, &agent);
    let status = bench.status(is_ready).await;
    assert_eq!(status.pod_ip.as_deref(), Some("10.244.0.5"));
    inbox.send(Message::Spec(deleted(&pod))).unwrap();
    let mut finalized = bench.world.finalized.subscribe();
    finalized.wait_for(|done| *done).await.unwrap();
    inbox.send(Message::Gone).unwrap();
    task.join_next().await.unwrap().unwrap();
    assert_eq!(
        bench.world.calls(),
        [
            "run sandbox",
            "attach",
            "start web 0",
            "exec bye",
            "stop 3 within 30s",
            "remove sandbox",
            "detach",
            "finalize Succeeded",
        ]
    );
    for directory in ["pods", "logs"] {
        let left = std::fs::read_dir(bench.directory.path().join(directory)).unwrap();
        assert_eq!(left.count(), 0, "{directory}");
    }
    assert!(bench.rooms.table.get("u1").is_none());
}

#[tokio::test]
async fn an_agent_that_stops_leaves_the_pod_and_the_next_adopts_it() {
    let bench = Bench::new();
    let first = CancellationToken::new();
    let pod = pod("u2");
    let (_inbox, mut task) = bench.start(&pod, &first);
    bench.status(is_ready).await;
    first.cancel();
    task.join_next().await.unwrap().unwrap();
    let before = bench.world.calls();
    assert_eq!(before, ["run sandbox", "attach", "start web 0"]);
    let second = CancellationToken::new();
    let (inbox, mut task) = bench.start(&pod, &second);
    // The network is asked again, which changes nothing; then the container ends.
    let id = bench.world.sandboxes.lock()["u2"].containers[0].id.clone();
    let exit = Exit {
        code: 1,
        signal: None,
        oom_killed: false,
        finished_at: 0,
    };
    inbox.send(Message::Exited { id, exit }).unwrap();
    let status = bench
        .status(|status| {
            is_ready(status) && status.container_statuses.as_ref().unwrap()[0].restart_count == 1
        })
        .await;
    assert_eq!(status.pod_ip.as_deref(), Some("10.244.0.5"));
    second.cancel();
    task.join_next().await.unwrap().unwrap();
    let after = bench.world.calls();
    assert!(after.contains(&"start web 1".to_owned()));
    assert_eq!(
        after.iter().filter(|call| *call == "run sandbox").count(),
        1
    );
}
