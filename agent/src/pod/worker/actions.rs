//! The actions of the machine, each a small task that answers with an event.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use super::start::Start;
use super::table::log_dir;
use super::{Answer, Rooms, Worker, exits, image, start};
use crate::describe;
use crate::pod::machine::{Action, Announcement, Event, ProbeKind, Role, Termination};
use crate::pod::{build, hooks, record};
use crate::probe::{self, Report, Target};
use crate::runtime::RuntimeError;
use crate::session::RequestError;

/// SIGTERM.
const TERM: i32 = 15;
/// How long a pod may go on being offered to new connections before its containers are
/// stopped all the same.
const WITHDRAWAL: Duration = Duration::from_secs(2);
/// How long connections may be under way to a pod that is no longer offered.
const SETTLING: Duration = Duration::from_millis(30);
/// What a container keeps of its grace after the pre-stop hook.
const LEAST_GRACE: Duration = Duration::from_secs(2);

impl Worker {
    pub(super) fn perform(&mut self, action: Action) {
        let rooms = self.rooms.clone();
        let pod = self.machine.pod().clone();
        match action {
            Action::PrepareVolumes => self.prepare_volumes(true),
            Action::StartSandbox { replace } => {
                self.task(async move { start_sandbox(&rooms, &pod, replace).await });
            }
            Action::AttachNetwork => {
                self.task(async move { attach_network(&rooms, &pod).await });
            }
            Action::PullImage { container } => self.pull(&container),
            Action::StartContainer {
                container,
                id,
                attempt,
                image_id,
            } => {
                let Some(spec) = self.machine.container(&container).cloned() else {
                    return;
                };
                let start = Start {
                    pod,
                    container: spec,
                    id,
                    attempt,
                    image_id,
                    downward: self.downward(),
                };
                self.task(Box::pin(start::start(rooms, start)));
            }
            Action::RunPostStart { container, id } => self.post_start(&container, id),
            Action::StartProbe {
                container,
                id,
                probe,
            } => self.start_probe(&container, id, probe),
            Action::StopProbe { id, probe } => {
                if let Some(task) = self.probes.remove(&(id, probe)) {
                    task.abort();
                }
            }
            Action::StopContainer {
                container,
                id,
                grace,
                pre_stop,
            } => self.stop(&container, id, grace, pre_stop),
            Action::RemoveContainer {
                container,
                id,
                attempt,
            } => {
                let uid = self.uid.clone();
                self.tasks.spawn(async move {
                    remove_container(&rooms, &pod, &uid, &container, &id, attempt).await;
                });
            }
            Action::TearDown => self.tear_down(),
            Action::Finalize => {
                let uid = self.uid.clone();
                self.task(async move { finalize(&rooms, &pod, &uid).await });
            }
            Action::RemoveData => {
                let directories = [
                    rooms.pods_dir.join(&self.uid),
                    log_dir(&rooms.logs_dir, &pod),
                ];
                self.task(async move { remove_data(directories).await });
            }
            Action::Announce(announcement) => rooms.events.pod(&pod, announcement),
        }
    }

    fn task<F>(&mut self, future: F) -> tokio::task::AbortHandle
    where
        F: Future<Output = Event> + Send + 'static,
    {
        let answer = self.answer.clone();
        self.tasks.spawn(async move {
            let event = future.await;
            // The worker may have ended with the agent.
            if answer.send(Answer::Event(event)).is_err() {
                tracing::trace!("the worker has ended");
            }
        })
    }

    pub(super) fn prepare_volumes(&mut self, asked: bool) {
        let rooms = self.rooms.clone();
        let pod = self.machine.pod().clone();
        let downward = self.downward();
        let answer = self.answer.clone();
        self.tasks.spawn(async move {
            let result = rooms.volumes.prepare(&pod, &downward).await;
            if answer.send(Answer::Volumes { asked, result }).is_err() {
                tracing::trace!("the worker has ended");
            }
        });
    }

    fn pull(&mut self, container: &str) {
        let Some(spec) = self.machine.container(container).cloned() else {
            return;
        };
        let list = self
            .machine
            .containers()
            .find(|(_, facts)| facts.name == container)
            .map(|(_, facts)| match facts.role {
                Role::Init | Role::Sidecar => "initContainers",
                Role::Main => "containers",
                Role::Ephemeral => "ephemeralContainers",
            });
        let field_path = list.map(|list| format!("spec.{list}{{{container}}}"));
        let (rooms, pod) = (self.rooms.clone(), self.machine.pod().clone());
        let task = self.task(Box::pin(image::ensure(rooms, pod, spec, field_path)));
        self.pulls.insert(container.to_owned(), task);
    }

    fn target(&self, container: &str, id: &str) -> Option<Arc<Target>> {
        Some(Arc::new(Target {
            sandboxes: self.rooms.sandboxes.clone(),
            pod_uid: self.uid.clone(),
            container_id: id.to_owned(),
            container: self.machine.container(container)?.clone(),
            pod_ip: self.machine.facts().ips.first().copied(),
        }))
    }

    fn post_start(&mut self, container: &str, id: String) {
        let Some(target) = self.target(container, &id) else {
            return;
        };
        let handler = target
            .container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.post_start.clone());
        self.task(async move {
            let result = match &handler {
                None => Ok(()),
                Some(handler) => hooks::run(handler, &target, Duration::MAX).await,
            };
            Event::PostStartFinished {
                id,
                failure: result.err().map(|error| hooks::words(&error)),
            }
        });
    }

    fn start_probe(&mut self, container: &str, id: String, kind: ProbeKind) {
        let Some(target) = self.target(container, &id) else {
            return;
        };
        let probe = match kind {
            ProbeKind::Startup => target.container.startup_probe.clone(),
            ProbeKind::Liveness => target.container.liveness_probe.clone(),
            ProbeKind::Readiness => target.container.readiness_probe.clone(),
        };
        let Some(probe) = probe else { return };
        let found = self
            .machine
            .containers()
            .find(|(_, facts)| facts.name == container)
            .and_then(|(_, facts)| Some((facts.running()?.started_at, facts.role)));
        let Some((started_at, role)) = found else {
            return;
        };
        let list = if role == Role::Main {
            "containers"
        } else {
            "initContainers"
        };
        let field_path = Some(format!("spec.{list}{{{container}}}"));
        let clock = self.rooms.clock.clone();
        let (events, pod) = (self.rooms.events.clone(), self.machine.pod().clone());
        let (answer, run) = (self.answer.clone(), id.clone());
        let report = move |report| match report {
            Report::Unhealthy { message } => events.pod(
                &pod,
                Announcement {
                    warning: true,
                    reason: "Unhealthy",
                    message,
                    field_path: field_path.clone(),
                },
            ),
            Report::Verdict { healthy } => {
                let event = Event::Probe {
                    id: run.clone(),
                    probe: kind,
                    healthy,
                };
                if answer.send(Answer::Event(event)).is_err() {
                    tracing::trace!("the worker has ended");
                }
            }
        };
        let task = self.tasks.spawn(Box::pin(probe::run(
            probe, kind, target, started_at, clock, report,
        )));
        if let Some(old) = self.probes.insert((id, kind), task) {
            old.abort();
        }
    }

    fn stop(&mut self, container: &str, id: String, grace: Duration, pre_stop: bool) {
        let Some(target) = self.target(container, &id) else {
            return;
        };
        let hook = target
            .container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.pre_stop.clone())
            .filter(|_| pre_stop);
        let signal = self.stop_signal(&target.container);
        let known = self
            .machine
            .containers()
            .find(|(_, facts)| facts.name == container)
            .map(|(spec, facts)| (spec.clone(), facts.attempt));
        let (rooms, pod) = (self.rooms.clone(), self.machine.pod().clone());
        // A stop that has less time replaces the one under way, hook included.
        if let Some(old) = self.stops.remove(&id) {
            old.abort();
        }
        let run = id.clone();
        let deleted = pod.metadata.deletion_timestamp.is_some() && !self.machine.facts().gone;
        let task = self.task(async move {
            let began = rooms.clock.now();
            let mut hooked = false;
            let withdrawal = async {
                if deleted {
                    withdraw(&rooms, &target.pod_uid).await;
                }
            };
            let hook_run = async {
                if let Some(hook) = hook {
                    hooked = true;
                    run_pre_stop(&rooms, &pod, &target, &hook, grace).await;
                }
            };
            tokio::join!(withdrawal, hook_run);
            let mut grace = grace;
            if hooked {
                grace = grace
                    .saturating_sub(rooms.clock.since(began))
                    .max(LEAST_GRACE);
            }
            let result = rooms
                .sandboxes
                .stop_container(&target.pod_uid, &run, signal, grace)
                .await;
            let exit = match result {
                Ok(exit) => exits::termination(
                    &rooms,
                    &pod,
                    known.as_ref().map(|(spec, attempt)| (spec, *attempt)),
                    &run,
                    &exit,
                ),
                Err(error) => lost(&rooms, &run, &error),
            };
            Event::ContainerExited { id: run, exit }
        });
        self.stops.insert(id, task);
    }

    fn stop_signal(&self, container: &Container) -> i32 {
        let from_spec = container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.stop_signal.clone());
        let from_image = || {
            let reference = container.image.as_deref().unwrap_or_default();
            let record = self.rooms.images.lookup(reference)?;
            record.config.config().as_ref()?.stop_signal().clone()
        };
        from_spec
            .or_else(from_image)
            .and_then(|name| signal_number(&name))
            .unwrap_or(TERM)
    }

    fn tear_down(&mut self) {
        for (_, task) in self.pulls.drain() {
            task.abort();
        }
        for (_, task) in self.probes.drain() {
            task.abort();
        }
        let (rooms, pod, uid) = (
            self.rooms.clone(),
            self.machine.pod().clone(),
            self.uid.clone(),
        );
        let mut runs = Vec::new();
        for (_, facts) in self.machine.containers() {
            // The run before may still be on its way out.
            for attempt in facts.attempt.saturating_sub(1)..=facts.attempt {
                runs.push(self.machine.run_id(&facts.name, attempt));
            }
        }
        self.task(async move {
            match tear_down(&rooms, &pod, &uid, runs).await {
                Ok(()) => Event::TornDown,
                Err(message) => Event::TeardownFailed { message },
            }
        });
    }
}

/// Lets new connections go elsewhere before the container hears of its end. Kubernetes leaves
/// that to luck or to a pre-stop hook that sleeps; here the node knows its own data path.
async fn withdraw(rooms: &Rooms, uid: &str) {
    let withdrawn = tokio::time::timeout(WITHDRAWAL, rooms.state.withdrawn(uid)).await;
    match withdrawn {
        Ok(false) => {}
        // The data path has the news by now; connections under way get there.
        Ok(true) => tokio::time::sleep(SETTLING).await,
        Err(_) => tracing::debug!(uid, "still offered to new connections"),
    }
}

async fn run_pre_stop(
    rooms: &Rooms,
    pod: &Pod,
    target: &Target,
    hook: &LifecycleHandler,
    grace: Duration,
) {
    if let Err(error) = hooks::run(hook, target, grace).await {
        let field_path = Some(format!("spec.containers{{{}}}", target.container.name));
        rooms.events.pod(
            pod,
            Announcement {
                warning: true,
                reason: "FailedPreStopHook",
                message: "PreStopHook failed".to_owned(),
                field_path,
            },
        );
        tracing::debug!(error = hooks::words(&error), "pre-stop hook");
    }
}

/// The end of a container of which the runtime cannot say more.
fn lost(rooms: &Rooms, id: &str, error: &RuntimeError) -> Termination {
    Termination {
        id: id.to_owned(),
        exit_code: 137,
        signal: None,
        reason: "ContainerStatusUnknown".to_owned(),
        message: Some(describe::chain(error)),
        started_at: None,
        finished_at: rooms.clock.now(),
    }
}

/// Number of a signal by name (`SIGQUIT`, `QUIT`) or number.
fn signal_number(name: &str) -> Option<i32> {
    let name = name.trim();
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let full = if name.starts_with("SIG") {
        name.to_owned()
    } else {
        format!("SIG{name}")
    };
    full.parse::<nix::sys::signal::Signal>()
        .ok()
        .map(|signal| signal as i32)
}

async fn start_sandbox(rooms: &Rooms, pod: &Pod, replace: bool) -> Event {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if replace && let Err(error) = rooms.sandboxes.remove_sandbox(uid).await {
        return Event::SandboxFailed {
            message: describe::chain(&error),
        };
    }
    let logs = log_dir(&rooms.logs_dir, pod);
    if let Err(error) = tokio::fs::create_dir_all(&logs).await {
        return Event::SandboxFailed {
            message: format!("cannot create {}: {error}", logs.display()),
        };
    }
    let spec = build::sandbox(pod, &rooms.cluster_domain, logs, rooms.pod_pids_limit);
    match rooms.sandboxes.run_sandbox(spec).await {
        Ok(sandbox) => Event::SandboxStarted {
            shim_pid: sandbox.shim_pid,
        },
        Err(error) => Event::SandboxFailed {
            message: describe::chain(&error),
        },
    }
}

async fn attach_network(rooms: &Rooms, pod: &Pod) -> Event {
    if build::is_host_network(pod) {
        return Event::NetworkReady {
            ips: rooms.host.ips.clone(),
        };
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let netns = rooms
        .sandboxes
        .sandbox(uid)
        .and_then(|state| state.sandbox)
        .map(|sandbox| sandbox.netns);
    let Some(netns) = netns else {
        return Event::NetworkFailed {
            message: "the sandbox is gone".to_owned(),
        };
    };
    match rooms.networks.attach(uid, &netns).await {
        Ok(ips) => Event::NetworkReady { ips },
        Err(error) => Event::NetworkFailed {
            message: describe::chain(&error),
        },
    }
}

/// Removes a run that is over. What fails here is done again by the teardown.
async fn remove_container(
    rooms: &Rooms,
    pod: &Pod,
    uid: &str,
    container: &str,
    id: &str,
    attempt: u32,
) {
    if let Err(error) = rooms.sandboxes.remove_container(uid, id).await {
        tracing::debug!(id, error = describe::chain(&error), "remove container");
    }
    if let Err(error) = rooms.images.release(id).await {
        tracing::debug!(
            id,
            error = describe::chain(&error),
            "release root file system"
        );
    }
    let Some(older) = attempt.checked_sub(1) else {
        return;
    };
    // The log of this run stays for `kubectl logs --previous`; the one before goes.
    let directory = log_dir(&rooms.logs_dir, pod).join(container);
    let words = rooms.volumes.termination_log(uid, container, older);
    remove_logs(&directory, older).await;
    if let Err(error) = tokio::fs::remove_file(&words).await {
        tracing::trace!(path = %words.display(), %error, "remove");
    }
}

/// `<attempt>.log` and its rotated parts.
async fn remove_logs(directory: &Path, attempt: u32) {
    let prefix = format!("{attempt}.log");
    let Ok(mut entries) = tokio::fs::read_dir(directory).await else {
        return;
    };
    while let Ok(Some(entry)) = entries.next_entry().await {
        if entry.file_name().to_string_lossy().starts_with(&prefix)
            && let Err(error) = tokio::fs::remove_file(entry.path()).await
        {
            tracing::debug!(path = %entry.path().display(), %error, "remove log");
        }
    }
}

async fn tear_down(rooms: &Rooms, pod: &Pod, uid: &str, runs: Vec<String>) -> Result<(), String> {
    rooms
        .sandboxes
        .remove_sandbox(uid)
        .await
        .map_err(|error| format!("error killing pod: {}", describe::chain(&error)))?;
    let network = async {
        if build::is_host_network(pod) {
            return Ok(());
        }
        rooms.networks.detach(uid).await
    };
    let (network, volumes) = tokio::join!(network, rooms.volumes.release(uid));
    network.map_err(|error| format!("error killing pod: {}", describe::chain(&error)))?;
    volumes.map_err(|error| format!("error unmounting volumes: {}", describe::chain(&error)))?;
    for id in runs {
        rooms
            .images
            .release(&id)
            .await
            .map_err(|error| format!("error killing pod: {}", describe::chain(&error)))?;
    }
    Ok(())
}

/// The last status must be there before the object goes.
async fn finalize(rooms: &Rooms, pod: &Pod, uid: &str) -> Event {
    rooms.status.flushed(uid).await;
    let meta = &pod.metadata;
    let result = rooms
        .control_plane
        .finalize_pod(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
            uid,
        )
        .await;
    match result {
        Ok(()) => Event::Finalized,
        Err(error) if error.is_gone() => Event::Finalized,
        Err(error) => {
            if matches!(error, RequestError::Disconnected) {
                rooms.control_plane.connected().await;
            }
            tracing::debug!(pod = meta.name, %error, "finalize");
            Event::FinalizeFailed
        }
    }
}

async fn remove_data(directories: [std::path::PathBuf; 2]) -> Event {
    let result = tokio::task::spawn_blocking(move || {
        directories
            .iter()
            .try_for_each(|directory| record::remove(directory))
    })
    .await;
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = describe::chain(&error), "the pod's data"),
        Err(error) => tracing::warn!(%error, "the pod's data"),
    }
    Event::DataRemoved
}

#[cfg(test)]
mod tests {
    use super::signal_number;

    #[test]
    fn signals() {
        for (name, number) in [
            ("SIGQUIT", Some(3)),
            ("QUIT", Some(3)),
            ("9", Some(9)),
            ("SIGNOPE", None),
        ] {
            assert_eq!(signal_number(name), number, "{name}");
        }
    }
}
