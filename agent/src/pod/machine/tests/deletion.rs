//! Pods that must end.

use super::*;

#[test]
fn a_deleted_pod_is_stopped_torn_down_finalised_and_forgotten() {
    let mut bench = Bench::running(json!({}));
    bench.actions.clear();
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 30)));
    assert_eq!(
        bench.events(),
        [("Killing", "Stopping container web".to_owned())]
    );
    let stop = bench
        .take(|action| matches!(action, Action::StopContainer { .. }))
        .unwrap();
    assert!(
        matches!(stop, Action::StopContainer { grace, pre_stop: false, .. } if grace == Duration::from_secs(30))
    );
    assert!(
        !bench.actions.contains(&Action::TearDown),
        "not while a container runs"
    );
    bench.exits("web", 0);
    assert_eq!(bench.state("web"), "terminated:Completed");
    assert!(bench.actions.contains(&Action::TearDown));
    assert!(
        !bench.actions.contains(&Action::Finalize),
        "not before all is freed"
    );
    bench.event(Event::TornDown);
    assert!(bench.actions.contains(&Action::Finalize));
    assert_eq!(bench.phase(), "Succeeded");
    bench.event(Event::Finalized);
    assert!(
        !bench.actions.contains(&Action::RemoveData),
        "not before the object is gone"
    );
    bench.event(Event::Gone);
    assert!(bench.actions.contains(&Action::RemoveData));
    bench.event(Event::DataRemoved);
    assert!(bench.machine.is_finished());
}

#[test]
fn deletion_before_anything_runs() {
    let mut bench = Bench::new(json!({}));
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 30)));
    assert!(
        !bench.actions.contains(&Action::TearDown),
        "the sandbox is on its way"
    );
    bench.event(Event::SandboxStarted { shim_pid: 1 });
    bench.event(Event::VolumesReady);
    assert!(bench.actions.contains(&Action::TearDown));
    assert!(
        bench
            .take(|action| matches!(action, Action::StartContainer { .. }))
            .is_none()
    );
    assert!(
        bench
            .take(|action| *action == Action::AttachNetwork)
            .is_none()
    );
}

#[test]
fn a_container_that_was_being_started_is_stopped() {
    let mut bench = Bench::new(json!({}));
    let start = loop {
        let action = bench.actions.remove(0);
        if matches!(action, Action::StartContainer { .. }) {
            break action;
        }
        if let Some(event) = answer(&action, bench.now) {
            bench.event(event);
        }
    };
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 5)));
    assert!(
        bench
            .take(|action| matches!(action, Action::StopContainer { .. }))
            .is_none()
    );
    let event = answer(&start, bench.now).unwrap();
    bench.event(event);
    assert!(
        bench
            .take(|action| matches!(action, Action::StopContainer { .. }))
            .is_some()
    );
}

#[test]
fn a_shorter_grace_hurries() {
    let mut bench = Bench::running(json!({"containers": [{"name": "web", "image": "i",
        "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]}));
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 30)));
    let first = bench
        .take(|action| matches!(action, Action::StopContainer { .. }))
        .unwrap();
    assert!(matches!(
        first,
        Action::StopContainer { pre_stop: true, .. }
    ));
    bench.pass(5);
    bench.event(Event::Spec(deleted(&pod, 1)));
    let second = bench
        .take(|action| matches!(action, Action::StopContainer { .. }))
        .unwrap();
    assert!(
        matches!(second, Action::StopContainer { pre_stop: false, grace, .. } if grace <= Duration::from_secs(2))
    );
    bench.event(Event::Tick);
    assert!(
        bench
            .take(|action| matches!(action, Action::StopContainer { .. }))
            .is_none(),
        "once"
    );
}

#[test]
fn an_object_that_vanishes_takes_its_pod_along() {
    let mut bench = Bench::running(json!({}));
    bench.event(Event::Gone);
    bench.answer_all();
    assert!(bench.machine.is_finished());
    assert!(
        !bench.actions.contains(&Action::Finalize),
        "there is nothing to finalise"
    );
}

#[test]
fn sidecars_end_last_and_in_reverse() {
    let mut bench = Bench::running(json!({"initContainers": [
        {"name": "one", "image": "i", "restartPolicy": "Always"},
        {"name": "two", "image": "i", "restartPolicy": "Always"},
    ]}));
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 30)));
    let mut order = Vec::new();
    while let Some(action) = bench.take(|action| matches!(action, Action::StopContainer { .. })) {
        if let Action::StopContainer { container, .. } = &action {
            order.push(container.clone());
        }
        assert!(
            bench
                .take(|action| matches!(action, Action::StopContainer { .. }))
                .is_none()
        );
        let event = answer(&action, bench.now).unwrap();
        bench.event(event);
    }
    assert_eq!(order, ["web", "two", "one"]);
}

#[test]
fn a_completed_pod_frees_its_sandbox_and_keeps_its_status() {
    let mut bench = Bench::running(json!({"restartPolicy": "Never", "initContainers": [
        {"name": "side", "image": "i", "restartPolicy": "Always"}]}));
    bench.exits("web", 0);
    let stopped = bench.actions.iter().any(
        |action| matches!(action, Action::StopContainer { container, .. } if container == "side"),
    );
    assert!(stopped, "sidecars do not keep a pod alive");
    bench.answer_all();
    assert_eq!(bench.machine.facts().teardown, Teardown::Done);
    assert!(!bench.actions.contains(&Action::Finalize));
    assert_eq!(bench.phase(), "Succeeded");
    assert_eq!(
        bench.condition("Ready"),
        ("False".into(), Some("PodCompleted".into()))
    );
    assert_eq!(
        bench.condition("Initialized"),
        ("True".into(), Some("PodCompleted".into()))
    );
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 0)));
    bench.answer_all();
    bench.event(Event::Gone);
    bench.answer_all();
    assert!(bench.machine.is_finished());
}

#[test]
fn deadlines_and_evictions_fail_the_pod() {
    let mut bench = Bench::running(json!({"activeDeadlineSeconds": 60}));
    bench.pass(59);
    assert_eq!(bench.phase(), "Running");
    bench.pass(1);
    bench.answer_all();
    assert_eq!(bench.phase(), "Failed");
    assert_eq!(bench.status().reason.as_deref(), Some("DeadlineExceeded"));
    let mut bench = Bench::running(json!({}));
    bench.event(Event::Evict {
        reason: "Evicted".into(),
        message: "low on disk".into(),
    });
    bench.answer_all();
    assert_eq!(bench.phase(), "Failed");
    assert_eq!(bench.status().message.as_deref(), Some("low on disk"));
}

#[test]
fn what_cannot_be_removed_is_tried_again() {
    let mut bench = Bench::running(json!({}));
    bench.event(Event::Gone);
    bench.exits("web", 0);
    bench.actions.clear();
    bench.event(Event::TeardownFailed {
        message: "busy".into(),
    });
    assert_eq!(bench.reasons(), ["FailedKillPod"]);
    bench.now = bench.machine.next_timer().unwrap();
    bench.actions.clear();
    bench.event(Event::Tick);
    assert_eq!(bench.actions, [Action::TearDown]);
}
