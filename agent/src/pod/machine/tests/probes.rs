//! Probe results.

use super::*;

fn probed(kinds: &[&str]) -> Bench {
    let mut container = json!({"name": "web", "image": "i"});
    for kind in kinds {
        container[format!("{kind}Probe")] = json!({"tcpSocket": {"port": 80}});
    }
    Bench::running(json!({"containers": [container]}))
}

fn started(bench: &Bench) -> Vec<ProbeKind> {
    bench
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::StartProbe { probe, .. } => Some(*probe),
            _ => None,
        })
        .collect()
}

#[test]
fn readiness_comes_and_goes() {
    let mut bench = probed(&["readiness"]);
    assert_eq!(started(&bench), [ProbeKind::Readiness]);
    assert_eq!(
        bench.condition("Ready"),
        ("False".into(), Some("ContainersNotReady".into()))
    );
    let id = bench.id("web");
    for (healthy, ready) in [(true, "True"), (false, "False"), (true, "True")] {
        bench.event(Event::Probe {
            id: id.clone(),
            probe: ProbeKind::Readiness,
            healthy,
        });
        assert_eq!(bench.condition("Ready").0, ready);
    }
    assert_eq!(bench.restarts("web"), 0);
}

#[test]
fn startup_holds_the_others_back() {
    let mut bench = probed(&["startup", "liveness", "readiness"]);
    assert_eq!(started(&bench), [ProbeKind::Startup]);
    let id = bench.id("web");
    bench.actions.clear();
    bench.event(Event::Probe {
        id,
        probe: ProbeKind::Startup,
        healthy: true,
    });
    assert_eq!(started(&bench), [ProbeKind::Liveness, ProbeKind::Readiness]);
}

#[test]
fn failing_liveness_or_startup_restarts() {
    for (kind, name, probe) in [
        ("liveness", "liveness", ProbeKind::Liveness),
        ("startup", "startup", ProbeKind::Startup),
    ] {
        let mut bench = probed(&[kind]);
        bench.actions.clear();
        let id = bench.id("web");
        bench.event(Event::Probe {
            id: id.clone(),
            probe,
            healthy: false,
        });
        let words = format!("Container web failed {name} probe, will be restarted");
        assert_eq!(bench.events(), [("Killing", words)]);
        bench.event(Event::Probe {
            id,
            probe,
            healthy: false,
        });
        let stops = bench
            .actions
            .iter()
            .filter(|action| matches!(action, Action::StopContainer { .. }));
        assert_eq!(stops.count(), 1, "killed once");
        bench.answer_all();
        assert_eq!(bench.restarts("web"), 1);
    }
}

#[test]
fn results_of_an_earlier_run_mean_nothing() {
    let mut bench = probed(&["liveness"]);
    let old = bench.id("web");
    bench.exits("web", 1);
    bench.answer_all();
    bench.actions.clear();
    bench.event(Event::Probe {
        id: old,
        probe: ProbeKind::Liveness,
        healthy: false,
    });
    assert!(bench.actions.is_empty());
}

#[test]
fn a_readiness_gate_is_waited_for() {
    let mut bench = Bench::running(json!({"readinessGates": [{"conditionType": "x.io/ok"}]}));
    assert_eq!(bench.condition("ContainersReady").0, "True");
    assert_eq!(
        bench.condition("Ready"),
        ("False".into(), Some("ReadinessGatesNotReady".into()))
    );
    let mut pod = (**bench.machine.pod()).clone();
    pod.status =
        serde_json::from_value(json!({"conditions": [{"type": "x.io/ok", "status": "True"}]}))
            .unwrap();
    bench.event(Event::Spec(Arc::new(pod)));
    assert_eq!(bench.condition("Ready").0, "True");
    assert_eq!(
        bench.condition("x.io/ok").0,
        "True",
        "conditions of others stay"
    );
}

#[test]
fn transition_times_are_kept() {
    let mut bench = Bench::running(json!({}));
    let conditions = bench.status().conditions.unwrap();
    bench.machine.set_conditions(conditions.clone());
    bench.pass(100);
    assert_eq!(bench.status().conditions.unwrap(), conditions);
}
