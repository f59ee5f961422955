//! Containers that end, and whether they run again.

use super::*;

#[test]
fn policies() {
    for (policy, code, state, phase) in [
        ("Always", 0, "running", "Running"),
        ("Always", 1, "running", "Running"),
        ("OnFailure", 1, "running", "Running"),
        ("OnFailure", 0, "terminated:Completed", "Succeeded"),
        ("Never", 0, "terminated:Completed", "Succeeded"),
        ("Never", 1, "terminated:Error", "Failed"),
    ] {
        let mut bench = Bench::running(json!({"restartPolicy": policy}));
        bench.exits("web", code);
        bench.answer_all();
        assert_eq!(bench.state("web"), state, "{policy} {code}");
        assert_eq!(bench.phase(), phase, "{policy} {code}");
    }
}

#[test]
fn the_first_restart_is_immediate_and_keeps_sandbox_and_address() {
    let mut bench = Bench::running(json!({}));
    bench.actions.clear();
    bench.exits("web", 137);
    let removed = bench.take(|action| matches!(action, Action::RemoveContainer { attempt: 0, .. }));
    assert!(removed.is_some());
    assert!(
        bench
            .take(|action| matches!(action, Action::StartSandbox { .. }))
            .is_none()
    );
    bench.answer_all();
    assert_eq!(bench.state("web"), "running");
    assert_eq!(bench.restarts("web"), 1);
    let status = bench.status();
    assert_eq!(status.pod_ip.as_deref(), Some("10.244.0.5"));
    let last = status.container_statuses.unwrap()[0]
        .last_state
        .clone()
        .unwrap();
    assert_eq!(last.terminated.unwrap().exit_code, 137);
}

#[test]
fn crash_loops_wait_longer_each_time() {
    let mut bench = Bench::running(json!({}));
    bench.exits("web", 1);
    bench.answer_all();
    let mut waits = Vec::new();
    for _ in 0..7 {
        bench.actions.clear();
        bench.pass(1);
        bench.exits("web", 1);
        assert_eq!(bench.state("web"), "waiting:CrashLoopBackOff");
        assert_eq!(bench.reasons(), ["BackOff"]);
        let due = bench.machine.next_timer().unwrap();
        waits.push(backoff::elapsed(bench.now, due).as_secs());
        bench.now = due;
        bench.event(Event::Tick);
        bench.answer_all();
        assert_eq!(bench.state("web"), "running");
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
    let message = "back-off 5m0s restarting failed container=web pod=p_ns(u1)";
    bench.exits("web", 1);
    let state = bench.status().container_statuses.unwrap()[0]
        .state
        .clone()
        .unwrap();
    assert_eq!(state.waiting.unwrap().message.unwrap(), message);
}

#[test]
fn ten_good_minutes_forgive() {
    let mut bench = Bench::running(json!({}));
    bench.exits("web", 1);
    bench.answer_all();
    bench.pass(601);
    bench.exits("web", 1);
    bench.answer_all();
    assert_eq!(bench.state("web"), "running");
}

#[test]
fn a_program_that_cannot_be_executed_counts_as_a_run() {
    let mut bench = Bench::new(json!({"restartPolicy": "Never"}));
    let start = loop {
        let action = bench.actions.remove(0);
        if let Action::StartContainer { id, .. } = action {
            break id;
        }
        if let Some(event) = answer(&action, bench.now) {
            bench.event(event);
        }
    };
    bench.event(Event::ContainerFailed {
        container: "web".into(),
        id: start,
        reason: StartFailure::Run,
        message: "exec: \"nope\": executable file not found in $PATH".into(),
    });
    bench.answer_all();
    assert_eq!(bench.state("web"), "terminated:StartError");
    assert_eq!(bench.phase(), "Failed");
}

#[test]
fn a_failed_init_container() {
    let init = json!([{"name": "a", "image": "i"}]);
    let mut bench = Bench::running(json!({"initContainers": init, "restartPolicy": "Never"}));
    bench.exits("a", 1);
    bench.answer_all();
    assert_eq!(bench.phase(), "Failed");
    assert_eq!(bench.state("a"), "terminated:Error");
    let mut bench = Bench::running(json!({"initContainers": init}));
    bench.exits("a", 1);
    bench.answer_all();
    assert_eq!(bench.state("a"), "running");
    assert_eq!(bench.phase(), "Pending");
}

#[test]
fn a_dead_sandbox_is_made_anew() {
    let init = json!([{"name": "a", "image": "i"}]);
    let mut bench = Bench::running(json!({"initContainers": init}));
    bench.exits("a", 0);
    bench.answer_all();
    bench.actions.clear();
    bench.event(Event::SandboxGone);
    assert!(bench.reasons().contains(&"SandboxChanged"));
    assert!(
        bench
            .actions
            .contains(&Action::StartSandbox { replace: true })
    );
    bench.answer_all();
    assert_eq!(bench.state("a"), "running", "init containers run again");
    bench.exits("a", 0);
    bench.answer_all();
    assert_eq!(bench.state("web"), "running");
    assert_eq!(bench.restarts("web"), 1);
    assert_eq!(bench.status().pod_ip.as_deref(), Some("10.244.0.5"));
}

#[test]
fn a_dead_sandbox_of_a_pod_that_is_not_restarted() {
    let mut bench = Bench::running(json!({"restartPolicy": "Never"}));
    bench.event(Event::SandboxGone);
    bench.answer_all();
    assert_eq!(bench.phase(), "Failed");
}

#[test]
fn rules_of_a_container_come_before_the_policy() {
    let container = json!([{"name": "web", "image": "i", "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}]);
    for (code, state) in [(42, "running"), (1, "terminated:Error")] {
        let mut bench =
            Bench::running(json!({"restartPolicy": "Never", "containers": container.clone()}));
        bench.exits("web", code);
        bench.answer_all();
        assert_eq!(bench.state("web"), state, "{code}");
    }
}

#[test]
fn a_new_image_restarts_the_container() {
    let mut bench = Bench::running(json!({}));
    bench.actions.clear();
    let mut changed = (**bench.machine.pod()).clone();
    changed.spec.as_mut().unwrap().containers[0].image = Some("nginx:1.28".into());
    bench.event(Event::Spec(Arc::new(changed)));
    assert_eq!(
        bench.events(),
        [(
            "Killing",
            "Container web definition changed, will be restarted".to_owned()
        )]
    );
    bench.answer_all();
    assert_eq!(bench.state("web"), "running");
    assert_eq!(bench.restarts("web"), 1);
}
