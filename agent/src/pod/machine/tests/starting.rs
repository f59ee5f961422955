//! From a new Pod to running containers.

use super::*;

#[test]
fn preparation_is_concurrent_and_containers_wait_for_all_of_it() {
    let mut bench = Bench::new(json!({}));
    assert_eq!(
        bench.actions,
        [
            Action::PrepareVolumes,
            Action::StartSandbox { replace: false },
            Action::PullImage {
                container: "web".into()
            },
        ]
    );
    assert_eq!(bench.state("web"), "waiting:ContainerCreating");
    assert_eq!(bench.phase(), "Pending");
    bench.actions.clear();
    let steps = [
        Event::ImageReady {
            container: "web".into(),
            image_id: "i".into(),
        },
        Event::VolumesReady,
        Event::SandboxStarted { shim_pid: 1 },
    ];
    for step in steps {
        bench.event(step);
        assert!(
            bench
                .take(|action| matches!(action, Action::StartContainer { .. }))
                .is_none()
        );
    }
    assert_eq!(bench.condition("PodReadyToStartContainers").0, "False");
    bench.event(Event::NetworkReady {
        ips: vec!["10.0.0.1".parse().unwrap()],
    });
    assert_eq!(bench.condition("PodReadyToStartContainers").0, "True");
    assert!(
        bench
            .take(|action| matches!(action, Action::StartContainer { attempt: 0, .. }))
            .is_some()
    );
}

#[test]
fn a_running_pod_is_told_as_the_kubelet_does() {
    let bench = Bench::running(json!({}));
    assert_eq!(bench.phase(), "Running");
    assert_eq!(bench.state("web"), "running");
    for type_ in ["Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(bench.condition(type_), ("True".into(), None), "{type_}");
    }
    let status = bench.status();
    assert_eq!(status.pod_ip.as_deref(), Some("10.244.0.5"));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert!(
        container
            .container_id
            .as_ref()
            .unwrap()
            .starts_with("pintle://")
    );
    assert_eq!(
        bench.events(),
        [
            ("Created", "Created container: web".to_owned()),
            ("Started", "Started container web".to_owned()),
        ]
    );
}

#[test]
fn init_containers_run_one_after_the_other() {
    let spec = json!({"initContainers": [
        {"name": "a", "image": "i"}, {"name": "b", "image": "i"}
    ]});
    let mut bench = Bench::running(spec);
    assert_eq!(bench.state("a"), "running");
    assert_eq!(bench.state("b"), "waiting:PodInitializing");
    assert_eq!(bench.state("web"), "waiting:PodInitializing");
    assert_eq!(
        bench.condition("Initialized").1.as_deref(),
        Some("ContainersNotInitialized")
    );
    bench.exits("a", 0);
    bench.answer_all();
    assert_eq!(
        (bench.state("a").as_str(), bench.state("b").as_str()),
        ("terminated:Completed", "running")
    );
    bench.exits("b", 0);
    bench.answer_all();
    assert_eq!(bench.state("web"), "running");
    assert_eq!(bench.condition("Initialized").0, "True");
    assert_eq!(bench.phase(), "Running");
}

#[test]
fn a_sidecar_lets_the_next_start_once_it_has_started() {
    let spec = json!({"initContainers": [
        {"name": "side", "image": "i", "restartPolicy": "Always",
         "startupProbe": {"tcpSocket": {"port": 1}}},
    ]});
    let mut bench = Bench::running(spec);
    assert_eq!(bench.state("side"), "running");
    assert_eq!(bench.state("web"), "waiting:PodInitializing");
    let id = bench.id("side");
    bench.event(Event::Probe {
        id,
        probe: ProbeKind::Startup,
        healthy: true,
    });
    bench.answer_all();
    assert_eq!(bench.state("web"), "running");
    bench.exits("side", 1);
    bench.answer_all();
    assert_eq!(bench.state("side"), "running", "a sidecar is restarted");
}

#[test]
fn images_that_cannot_be_had() {
    for (reason, shown) in [
        (ImageFailure::Pull, "ErrImagePull"),
        (ImageFailure::InvalidName, "InvalidImageName"),
        (ImageFailure::NeverPull, "ErrImageNeverPull"),
    ] {
        let mut bench = Bench::new(json!({}));
        bench.event(Event::ImageFailed {
            container: "web".into(),
            reason,
            message: "not there".into(),
        });
        assert_eq!(bench.state("web"), format!("waiting:{shown}"));
        assert!(bench.reasons().contains(&"Failed"));
    }
}

#[test]
fn pulls_back_off_and_say_so() {
    let mut bench = Bench::new(json!({}));
    let mut waits = Vec::new();
    for _ in 0..3 {
        bench.actions.clear();
        bench.event(Event::ImageFailed {
            container: "web".into(),
            reason: ImageFailure::Pull,
            message: "no such tag".into(),
        });
        let failed = bench.now;
        bench.pass(2);
        assert_eq!(bench.state("web"), "waiting:ImagePullBackOff");
        let message = bench.status().container_statuses.unwrap()[0]
            .state
            .clone()
            .unwrap();
        assert_eq!(
            message.waiting.unwrap().message.unwrap(),
            "Back-off pulling image \"nginx:1.27\": ErrImagePull: no such tag"
        );
        assert!(bench.reasons().contains(&"BackOff"));
        let due = bench.machine.next_timer().unwrap();
        waits.push(backoff::elapsed(failed, due).as_secs());
        bench.now = due;
        bench.event(Event::Tick);
        assert!(
            bench
                .take(|action| matches!(action, Action::PullImage { .. }))
                .is_some()
        );
    }
    assert_eq!(waits, [10, 20, 40]);
}

#[test]
fn failed_steps_are_announced_and_tried_again() {
    let cases: [(Event, &str); 3] = [
        (
            Event::SandboxFailed {
                message: "no".into(),
            },
            "FailedCreatePodSandBox",
        ),
        (
            Event::VolumesFailed {
                message: "no".into(),
            },
            "FailedMount",
        ),
        (
            Event::NetworkFailed {
                message: "no".into(),
            },
            "FailedCreatePodSandBox",
        ),
    ];
    for (event, reason) in cases {
        let mut bench = Bench::new(json!({}));
        if matches!(event, Event::NetworkFailed { .. }) {
            bench.event(Event::SandboxStarted { shim_pid: 1 });
        }
        bench.actions.clear();
        bench.event(event.clone());
        assert_eq!(bench.reasons(), [reason]);
        bench.actions.clear();
        bench.now = bench.machine.next_timer().unwrap();
        bench.event(Event::Tick);
        assert_eq!(bench.actions.len(), 1, "{event:?}");
    }
}

#[test]
fn a_missing_config_map_is_waited_for() {
    let mut bench = Bench::new(json!({}));
    while let Some(index) = bench
        .actions
        .iter()
        .position(|action| !matches!(action, Action::StartContainer { .. }))
    {
        let action = bench.actions.remove(index);
        if let Some(event) = answer(&action, bench.now) {
            bench.event(event);
        }
    }
    let id = bench.id("web");
    bench.actions.clear();
    bench.event(Event::ContainerFailed {
        container: "web".into(),
        id,
        reason: StartFailure::Config,
        message: "configmap \"m\" not found".into(),
    });
    assert_eq!(bench.state("web"), "waiting:CreateContainerConfigError");
    assert_eq!(
        bench.events(),
        [("Failed", "Error: configmap \"m\" not found".to_owned())]
    );
    bench.event(Event::Retry);
    assert!(
        bench
            .take(|action| matches!(action, Action::StartContainer { attempt: 0, .. }))
            .is_some()
    );
}

#[test]
fn a_failed_post_start_hook_ends_the_run() {
    let spec = json!({"containers": [{"name": "web", "image": "i",
        "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}]});
    let mut bench = Bench::new(spec);
    while let Some(index) = bench.actions.iter().position(|action| {
        !matches!(action, Action::RunPostStart { .. }) && answer(action, bench.now).is_some()
    }) {
        let action = bench.actions.remove(index);
        let event = answer(&action, bench.now).unwrap();
        bench.event(event);
    }
    assert_eq!(
        bench.condition("Ready").0,
        "False",
        "not before the hook is done"
    );
    let id = bench.id("web");
    bench.event(Event::PostStartFinished {
        id,
        failure: Some("boom".into()),
    });
    assert!(bench.reasons().contains(&"FailedPostStartHook"));
    assert!(
        bench
            .take(|action| matches!(action, Action::StopContainer { .. }))
            .is_some()
    );
}
