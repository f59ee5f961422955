//! Starting one run of a container.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use pintle_shim::protocol::CallError;

use super::exits::at;
use super::table::log_dir;
use super::{Rooms, listen};
use crate::describe;
use crate::pod::build::{self, Run};
use crate::pod::environment::{self, Downward, Sources};
use crate::pod::machine::{Event, StartFailure};
use crate::runtime::{ContainerStatus, RuntimeError};
use crate::session::ClusterState;

/// What is to be started.
pub(super) struct Start {
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) image_id: String,
    pub(super) downward: Downward,
}

struct NamespaceSources<'a> {
    state: &'a ClusterState,
    namespace: &'a str,
}

impl Sources for NamespaceSources<'_> {
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
        self.state.config_map(self.namespace, name)
    }

    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        self.state.secret(self.namespace, name)
    }
}

/// Starts it; the answer for the machine.
pub(super) async fn start(rooms: Arc<Rooms>, start: Start) -> Event {
    let (container, id) = (start.container.name.clone(), start.id.clone());
    match run(&rooms, start).await {
        Ok(started_at) => Event::ContainerStarted {
            container,
            id,
            started_at: at(started_at),
        },
        Err((reason, message)) => Event::ContainerFailed {
            container,
            id,
            reason,
            message,
        },
    }
}

async fn run(rooms: &Rooms, start: Start) -> Result<i64, (StartFailure, String)> {
    let pod = &start.pod;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let config_error = |message: String| (StartFailure::Config, message);
    let image = rooms.images.lookup(&start.image_id).ok_or_else(|| {
        (
            StartFailure::Create,
            format!("image {} is no longer on the node", start.image_id),
        )
    })?;
    let mut services = rooms.state.services(namespace);
    if namespace != "default" {
        services.extend(rooms.state.services("default"));
    }
    let sources = NamespaceSources {
        state: &rooms.state,
        namespace,
    };
    let environment =
        environment::environment(pod, &start.container, &services, &start.downward, &sources)
            .map_err(|error| config_error(error.to_string()))?;
    let mounts = {
        let (volumes, pod) = (rooms.volumes.clone(), pod.clone());
        let (container, attempt) = (start.container.clone(), start.attempt);
        let (ips, environment) = (start.downward.pod_ips.clone(), environment.clone());
        tokio::task::spawn_blocking(move || {
            volumes.mounts(&pod, &container, attempt, &ips, &environment)
        })
        .await
        .map_err(|error| (StartFailure::Create, error.to_string()))?
        .map_err(|error| config_error(describe::chain(&error)))?
    };
    let rootfs = rooms
        .images
        .prepare(&start.id, &image.id)
        .await
        .map_err(|error| (StartFailure::Create, describe::chain(&error)))?;
    let (hostname, _) = build::host_names(pod, &rooms.cluster_domain);
    let spec = build::container(
        pod,
        &start.container,
        Run {
            id: &start.id,
            attempt: start.attempt,
            image: start.container.image.as_deref().unwrap_or_default(),
            config: &image.config,
            rootfs,
            environment,
            mounts,
            log_path: log_dir(&rooms.logs_dir, pod)
                .join(&start.container.name)
                .join(format!("{}.log", start.attempt)),
            node_memory: rooms.host.memory,
            seccomp_dir: &rooms.seccomp_dir,
            hostname: &hostname,
        },
    )
    .map_err(|error| config_error(error.to_string()))?;
    match rooms.sandboxes.create_container(&uid, spec).await {
        Ok(info) => {
            let shim = rooms
                .sandboxes
                .sandbox(&uid)
                .and_then(|state| state.sandbox);
            if let Some(shim) = shim {
                listen::wait(pod, &start.container, &services, shim.shim_pid).await;
            }
            Ok(info.started_at)
        }
        // An earlier agent started it and did not live to hear of it.
        Err(RuntimeError::Refused(CallError::Exists { .. })) => {
            started_already(rooms, &uid, &start.id)
        }
        Err(error) => {
            let reason = match &error {
                RuntimeError::Refused(CallError::Exec { .. }) => StartFailure::Run,
                _ => StartFailure::Create,
            };
            Err((reason, describe::chain(&error)))
        }
    }
}

fn started_already(rooms: &Rooms, uid: &str, id: &str) -> Result<i64, (StartFailure, String)> {
    rooms
        .sandboxes
        .sandbox(uid)
        .into_iter()
        .flat_map(|state| state.containers)
        .find(|container| container.id == id && container.state == ContainerStatus::Running)
        .map(|container| container.started_at)
        .ok_or_else(|| {
            (
                StartFailure::Run,
                "the container exists and does not run".to_owned(),
            )
        })
}
