//! Facts of a machine → `v1.PodStatus`, as the kubelet writes it. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::pod::backoff;
use crate::pod::machine::{
    ContainerFacts, Image, ImageFailure, Life, Machine, Role, Step, Termination,
};
use crate::pod::resources::qos_name;

/// Prefix of container ids, as `containerd://` elsewhere.
const ID_SCHEME: &str = "pintle://";

/// Addresses of the node.
pub type HostAddresses = [IpAddr];

/// The status of a pod at `now`.
pub fn pod_status(machine: &Machine, host: &HostAddresses, now: Timestamp) -> PodStatus {
    let facts = machine.facts();
    let statuses = |wanted: &dyn Fn(Role) -> bool| -> Option<Vec<ContainerStatus>> {
        let mut list: Vec<ContainerStatus> = machine
            .containers()
            .filter(|(_, container)| wanted(container.role))
            .map(|(spec, container)| container_status(machine, spec, container))
            .collect();
        if facts.terminal {
            list.iter_mut().for_each(terminated_for_good);
        }
        (!list.is_empty()).then_some(list)
    };
    let is_init = |role| matches!(role, Role::Init | Role::Sidecar);
    let init = statuses(&is_init);
    let main = statuses(&|role| role == Role::Main);
    let ephemeral = statuses(&|role| role == Role::Ephemeral);
    let phase = phase(machine, main.as_deref().unwrap_or_default());
    let ips: Vec<String> = facts.ips.iter().map(ToString::to_string).collect();
    let generation = machine.pod().metadata.generation;
    let mut status = PodStatus {
        observed_generation: generation,
        phase: Some(phase.to_owned()),
        reason: facts.stop.as_ref().and_then(|stop| stop.reason.clone()),
        message: facts.stop.as_ref().and_then(|stop| stop.message.clone()),
        host_ip: host.first().map(ToString::to_string),
        host_ips: (!host.is_empty()).then(|| {
            host.iter()
                .map(|ip| HostIP { ip: ip.to_string() })
                .collect()
        }),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: Some(Time(whole_seconds(facts.start_time))),
        init_container_statuses: init,
        container_statuses: main,
        ephemeral_container_statuses: ephemeral,
        qos_class: Some(
            machine
                .pod()
                .status
                .as_ref()
                .and_then(|status| status.qos_class.clone())
                .unwrap_or_else(|| qos_name(machine.pod()).to_owned()),
        ),
        ..PodStatus::default()
    };
    if let Some(known) = &machine.pod().status {
        // Written by others; the status is sent whole.
        status
            .nominated_node_name
            .clone_from(&known.nominated_node_name);
        status
            .resource_claim_statuses
            .clone_from(&known.resource_claim_statuses);
        status.resize.clone_from(&known.resize);
    }
    status.conditions = Some(conditions(machine, &status, phase, now));
    status
}

/// Kubernetes writes times with whole seconds.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A pod that has ended shows no container that waits or runs (status_manager.go,
/// `TerminatePod`).
fn terminated_for_good(status: &mut ContainerStatus) {
    status.ready = false;
    status.started = Some(false);
    if status
        .state
        .as_ref()
        .is_some_and(|state| state.terminated.is_some())
    {
        return;
    }
    let last = status.last_state.take().and_then(|state| state.terminated);
    let terminated = last.unwrap_or_else(|| ContainerStateTerminated {
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container could not be located when the pod was terminated".to_owned()),
        exit_code: 137,
        ..ContainerStateTerminated::default()
    });
    status.state = Some(ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    });
}

/// kubelet_pods.go, `getPhase`.
fn phase(machine: &Machine, main: &[ContainerStatus]) -> &'static str {
    let facts = machine.facts();
    let mut failed_init = false;
    let mut pending_init = false;
    for (_, container) in machine.containers() {
        match container.role {
            Role::Init => match container.exited() {
                Some(exit) if exit.succeeded() => {}
                Some(_) if facts.terminal => failed_init = true,
                _ => pending_init = true,
            },
            Role::Sidecar => {
                pending_init |= !facts.initialized
                    && !container.running().is_some_and(|running| running.started);
            }
            Role::Main | Role::Ephemeral => {}
        }
    }
    let succeeded = main.iter().all(|status| {
        status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|terminated| terminated.exit_code == 0)
    });
    if facts.terminal {
        let stopped = facts
            .stop
            .as_ref()
            .is_some_and(|stop| stop.reason.is_some());
        return if succeeded && !failed_init && !stopped {
            "Succeeded"
        } else {
            "Failed"
        };
    }
    if pending_init && !facts.initialized {
        return "Pending";
    }
    let waiting = main.iter().any(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.waiting.is_some())
            && status
                .last_state
                .as_ref()
                .is_none_or(|last| last.terminated.is_none())
    });
    if waiting { "Pending" } else { "Running" }
}

fn container_status(
    machine: &Machine,
    spec: &Container,
    container: &ContainerFacts,
) -> ContainerStatus {
    let running = container.running();
    let last_exit = container.last.as_ref();
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: spec.image.clone().unwrap_or_default(),
        image_id: match &container.image {
            Image::Ready { id } => id.clone(),
            _ => String::new(),
        },
        ready: running.is_some_and(|running| running.ready && running.hooked),
        started: Some(running.is_some_and(|running| running.started)),
        restart_count: i32::try_from(container.attempt).unwrap_or(i32::MAX),
        last_state: last_exit.map(terminated),
        resources: spec.resources.clone(),
        allocated_resources: spec
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.clone()),
        ..ContainerStatus::default()
    };
    if container.role == Role::Init {
        // An init container is ready once it has done its work.
        status.ready = container.exited().is_some_and(Termination::succeeded);
    }
    match &container.life {
        Life::Running(running) => {
            status.container_id = Some(format!("{ID_SCHEME}{}", running.id));
            status.state = Some(ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: Some(Time(whole_seconds(running.started_at))),
                }),
                ..ContainerState::default()
            });
        }
        Life::Exited { exit, announced } => {
            status.container_id = Some(format!("{ID_SCHEME}{}", exit.id));
            if *announced {
                let message = format!(
                    "back-off {} restarting failed container={} pod={}",
                    backoff::go_seconds(container.backoff.delay()),
                    container.name,
                    full_name(machine)
                );
                status.state = Some(waiting("CrashLoopBackOff", Some(message)));
                status.last_state = Some(terminated(exit));
            } else {
                status.state = Some(terminated(exit));
            }
        }
        Life::Waiting | Life::Creating => waiting_status(machine, container, &mut status),
    }
    status
}

fn waiting_status(machine: &Machine, container: &ContainerFacts, status: &mut ContainerStatus) {
    status.container_id = container
        .last
        .as_ref()
        .map(|exit| format!("{ID_SCHEME}{}", exit.id));
    if let Some(failure) = &container.failure {
        status.state = Some(waiting(
            failure.reason.reason(),
            Some(failure.message.clone()),
        ));
        return;
    }
    if let Image::Failed {
        reason,
        message,
        announce_at,
        ..
    } = &container.image
    {
        let backing_off = *reason == ImageFailure::Pull && announce_at.is_none();
        status.state = Some(if backing_off {
            let text = format!(
                "Back-off pulling image \"{}\": ErrImagePull: {message}",
                container.image_reference
            );
            waiting("ImagePullBackOff", Some(text))
        } else {
            waiting(reason.reason(), Some(message.clone()))
        });
        return;
    }
    if let Some(exit) = &container.last {
        // Between two runs the kubelet still shows the end of the former.
        status.state = Some(terminated(exit));
        status.restart_count = (status.restart_count - 1).max(0);
        return;
    }
    let has_init = machine
        .containers()
        .any(|(_, container)| matches!(container.role, Role::Init | Role::Sidecar));
    let reason = if has_init {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    status.state = Some(waiting(reason, None));
}

fn full_name(machine: &Machine) -> String {
    let meta = &machine.pod().metadata;
    format!(
        "{}_{}({})",
        meta.name.as_deref().unwrap_or_default(),
        meta.namespace.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default()
    )
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn terminated(exit: &Termination) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(format!("{ID_SCHEME}{}", exit.id)),
            exit_code: exit.exit_code,
            // The CRI gives no signal, and so the kubelet writes none.
            signal: None,
            reason: Some(exit.reason.clone()),
            message: exit.message.clone(),
            started_at: exit.started_at.map(|at| Time(whole_seconds(at))),
            finished_at: Some(Time(whole_seconds(exit.finished_at))),
        }),
        ..ContainerState::default()
    }
}

/// status/generate.go.
fn conditions(
    machine: &Machine,
    status: &PodStatus,
    phase: &str,
    now: Timestamp,
) -> Vec<PodCondition> {
    let facts = machine.facts();
    let connected = facts.sandbox.step == Step::Ready && !facts.ips.is_empty() && !facts.terminal;
    let mut list = vec![condition(
        "PodReadyToStartContainers",
        connected,
        None,
        None,
    )];
    list.push(initialized(machine, phase));
    let containers_ready = containers_ready(machine, status, phase);
    list.push(ready(machine, &containers_ready));
    list.push(containers_ready);
    let scheduled = machine
        .pod()
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "PodScheduled")
        .cloned();
    list.push(scheduled.unwrap_or_else(|| condition("PodScheduled", true, None, None)));
    let owned: Vec<String> = list
        .iter()
        .map(|condition| condition.type_.clone())
        .collect();
    // Conditions that others set (readiness gates, DisruptionTarget) are theirs.
    list.extend(
        machine
            .pod()
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .filter(|condition| !owned.contains(&condition.type_))
            .cloned(),
    );
    for condition in &mut list {
        if !owned.contains(&condition.type_) {
            continue;
        }
        condition.observed_generation = machine.pod().metadata.generation;
        let before = facts
            .conditions
            .iter()
            .find(|before| before.type_ == condition.type_ && before.status == condition.status);
        condition.last_transition_time = before
            .and_then(|before| before.last_transition_time.clone())
            .or(condition.last_transition_time.take())
            .or(Some(Time(whole_seconds(now))));
    }
    list
}

fn condition(
    type_: &str,
    holds: bool,
    reason: Option<&str>,
    message: Option<String>,
) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        ..PodCondition::default()
    }
}

fn initialized(machine: &Machine, phase: &str) -> PodCondition {
    let incomplete: Vec<&str> = machine
        .containers()
        .filter(|(_, container)| match container.role {
            Role::Init => !container.exited().is_some_and(Termination::succeeded),
            Role::Sidecar => {
                !machine.facts().initialized
                    && !container.running().is_some_and(|running| running.started)
            }
            Role::Main | Role::Ephemeral => false,
        })
        .map(|(_, container)| container.name.as_str())
        .collect();
    if incomplete.is_empty() || phase == "Succeeded" {
        let reason = (phase == "Succeeded").then_some("PodCompleted");
        return condition("Initialized", true, reason, None);
    }
    if phase == "Failed" {
        return condition("Initialized", false, Some("PodFailed"), None);
    }
    condition(
        "Initialized",
        false,
        Some("ContainersNotInitialized"),
        Some(format!(
            "containers with incomplete status: [{}]",
            incomplete.join(" ")
        )),
    )
}

fn containers_ready(machine: &Machine, status: &PodStatus, phase: &str) -> PodCondition {
    match phase {
        "Succeeded" => return condition("ContainersReady", false, Some("PodCompleted"), None),
        "Failed" => return condition("ContainersReady", false, Some("PodFailed"), None),
        _ => {}
    }
    let sidecars = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|status| {
            machine.containers().any(|(_, container)| {
                container.role == Role::Sidecar && container.name == status.name
            })
        });
    let unready: Vec<&str> = sidecars
        .chain(status.container_statuses.iter().flatten())
        .filter(|status| !status.ready)
        .map(|status| status.name.as_str())
        .collect();
    if unready.is_empty() {
        return condition("ContainersReady", true, None, None);
    }
    condition(
        "ContainersReady",
        false,
        Some("ContainersNotReady"),
        Some(format!(
            "containers with unready status: [{}]",
            unready.join(" ")
        )),
    )
}

fn ready(machine: &Machine, containers_ready: &PodCondition) -> PodCondition {
    if containers_ready.status != "True" {
        return PodCondition {
            type_: "Ready".to_owned(),
            ..containers_ready.clone()
        };
    }
    let pod = machine.pod();
    let known = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let mut messages = Vec::new();
    for gate in pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten())
    {
        let name = &gate.condition_type;
        match known.iter().find(|condition| condition.type_ == *name) {
            None => messages.push(format!(
                "corresponding condition of pod readiness gate \"{name}\" does not exist."
            )),
            Some(condition) if condition.status != "True" => messages.push(format!(
                "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                condition.status
            )),
            Some(_) => {}
        }
    }
    if messages.is_empty() {
        return condition("Ready", true, None, None);
    }
    condition(
        "Ready",
        false,
        Some("ReadinessGatesNotReady"),
        Some(messages.join(", ")),
    )
}
