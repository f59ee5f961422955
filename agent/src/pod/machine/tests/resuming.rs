//! A new agent takes a pod up.

use super::*;

fn observed(bench: &Bench, alive: bool, exit: Option<Termination>) -> Observed {
    Observed {
        shim_pid: alive.then_some(42),
        containers: vec![ObservedContainer {
            id: bench.id("web"),
            name: "web".into(),
            attempt: bench.machine.facts().containers[0].attempt,
            started_at: bench.now,
            exit,
        }],
    }
}

fn resume(bench: &Bench, observed: &Observed) -> Bench {
    // The facts go through the disk.
    let text = serde_json::to_string(bench.machine.facts()).unwrap();
    let facts: Facts = serde_json::from_str(&text).unwrap();
    assert_eq!(&facts, bench.machine.facts());
    let pod = bench.machine.pod().clone();
    let (machine, actions) = Machine::resume(pod, facts, observed, bench.now);
    Bench {
        machine,
        now: bench.now,
        actions,
    }
}

fn touches_containers(bench: &Bench) -> bool {
    bench.actions.iter().any(|action| {
        matches!(
            action,
            Action::StartContainer { .. }
                | Action::StopContainer { .. }
                | Action::StartSandbox { .. }
                | Action::PullImage { .. }
                | Action::RemoveContainer { .. }
        )
    })
}

#[test]
fn what_runs_is_left_alone() {
    let bench = Bench::running(json!({}));
    let mut resumed = resume(&bench, &observed(&bench, true, None));
    assert!(!touches_containers(&resumed), "{:?}", resumed.actions);
    assert_eq!(
        resumed.condition("Ready").0,
        "True",
        "never unready in between"
    );
    assert_eq!(
        resumed.status().container_statuses,
        bench.status().container_statuses
    );
    assert!(
        resumed.actions.contains(&Action::AttachNetwork),
        "its address is kept"
    );
    resumed.answer_all();
    assert!(!touches_containers(&resumed));
    assert_eq!(resumed.condition("Ready").0, "True");
}

#[test]
fn an_exit_that_nobody_saw() {
    let bench = Bench::running(json!({}));
    let ended = exit(&bench.id("web"), 3, bench.now);
    let mut resumed = resume(&bench, &observed(&bench, true, Some(ended)));
    resumed.answer_all();
    assert_eq!(resumed.restarts("web"), 1);
    let last = resumed.status().container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap();
    assert_eq!(last.terminated.unwrap().exit_code, 3);
}

#[test]
fn a_reboot_starts_all_again_with_the_same_address() {
    let bench = Bench::running(json!({}));
    let mut resumed = resume(&bench, &Observed::default());
    assert!(
        resumed
            .actions
            .contains(&Action::StartSandbox { replace: true })
    );
    resumed.answer_all();
    assert_eq!(resumed.state("web"), "running");
    assert_eq!(resumed.restarts("web"), 1);
}

#[test]
fn a_crash_between_any_two_steps_resumes() {
    // However many answers the earlier agent lived to see, the pod runs in the end, and the
    // container that was started is not started twice.
    for seen in 0..8 {
        let mut bench = Bench::new(json!({}));
        for _ in 0..seen {
            let Some(index) = bench
                .actions
                .iter()
                .position(|action| answer(action, bench.now).is_some())
            else {
                break;
            };
            let action = bench.actions.remove(index);
            let event = answer(&action, bench.now).unwrap();
            bench.event(event);
        }
        // Of the actions under way, all happened or none did.
        for happened in [false, true] {
            let creating = bench
                .actions
                .iter()
                .any(|action| matches!(action, Action::StartContainer { .. }));
            let running = bench.machine.facts().containers[0].running().is_some();
            let sandbox = bench.machine.facts().sandbox.step == Step::Ready || happened;
            let seen_by_runtime = if running || (creating && happened) {
                observed(&bench, true, None)
            } else {
                Observed {
                    shim_pid: sandbox.then_some(42),
                    containers: vec![],
                }
            };
            let mut resumed = resume(&bench, &seen_by_runtime);
            let starts = |bench: &Bench| {
                bench
                    .actions
                    .iter()
                    .filter(|action| matches!(action, Action::StartContainer { .. }))
                    .count()
            };
            let mut started = starts(&resumed);
            while let Some(index) = resumed
                .actions
                .iter()
                .position(|action| answer(action, resumed.now).is_some())
            {
                let action = resumed.actions.remove(index);
                let before = starts(&resumed);
                let event = answer(&action, resumed.now).unwrap();
                resumed.event(event);
                started += starts(&resumed).saturating_sub(before);
            }
            assert_eq!(
                resumed.state("web"),
                "running",
                "seen {seen}, happened {happened}"
            );
            assert_eq!(resumed.restarts("web"), 0);
            let expected = usize::from(seen_by_runtime.containers.is_empty());
            assert_eq!(started, expected, "seen {seen}, happened {happened}");
        }
    }
}

#[test]
fn a_deletion_under_way_goes_on() {
    let mut bench = Bench::running(json!({}));
    let pod = bench.machine.pod().clone();
    bench.event(Event::Spec(deleted(&pod, 30)));
    let mut resumed = resume(&bench, &observed(&bench, true, None));
    assert!(
        resumed
            .actions
            .iter()
            .any(|action| matches!(action, Action::StopContainer { .. }))
    );
    resumed.answer_all();
    resumed.event(Event::Gone);
    resumed.answer_all();
    assert!(resumed.machine.is_finished());
}

#[test]
fn a_run_without_a_record_is_adopted() {
    let bench = Bench::running(json!({}));
    let fresh = Machine::new(bench.machine.pod().clone(), bench.now);
    let mut lost = Bench {
        machine: fresh,
        now: bench.now,
        actions: vec![],
    };
    lost = resume(&lost, &observed(&bench, true, None));
    lost.answer_all();
    assert!(!touches_containers(&lost));
    assert_eq!(lost.state("web"), "running");
}
