//! Whatever happens, in whatever order: what must always hold.

use proptest::prelude::*;

use super::*;

/// A step of a random life.
#[derive(Clone, Debug)]
enum Step {
    /// Answer the n-th unanswered action, well or badly.
    Answer(usize, bool),
    /// A container ends.
    Exit(usize, i32),
    /// A probe says something.
    Probe(usize, ProbeKind, bool),
    SandboxGone,
    Delete(i64),
    Gone,
    Evict,
    Retry,
    Pass(u64),
    /// The agent dies and a new one takes the pod up.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        Just(ProbeKind::Startup),
        Just(ProbeKind::Liveness),
        Just(ProbeKind::Readiness)
    ];
    prop_oneof![
        12 => (0usize..6, prop::bool::weighted(0.8)).prop_map(|(n, well)| Step::Answer(n, well)),
        3 => (0usize..4, prop_oneof![Just(0), Just(1), Just(137)]).prop_map(|(n, code)| Step::Exit(n, code)),
        2 => (0usize..4, kind, any::<bool>()).prop_map(|(n, kind, healthy)| Step::Probe(n, kind, healthy)),
        1 => Just(Step::SandboxGone),
        1 => (0i64..40).prop_map(Step::Delete),
        1 => Just(Step::Gone),
        1 => Just(Step::Evict),
        1 => Just(Step::Retry),
        3 => (0u64..700).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let policy = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    (policy, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(policy, init, side, probes)| {
            let mut web = json!({"name": "web", "image": "i"});
            if probes {
                web["readinessProbe"] = json!({"tcpSocket": {"port": 1}});
                web["livenessProbe"] = json!({"tcpSocket": {"port": 1}});
                web["startupProbe"] = json!({"tcpSocket": {"port": 1}});
                web["lifecycle"] = json!({"postStart": {"sleep": {"seconds": 1}}});
            }
            let mut inits = Vec::new();
            if side {
                inits.push(json!({"name": "side", "image": "i", "restartPolicy": "Always"}));
            }
            if init {
                inits.push(json!({"name": "init", "image": "i"}));
            }
            json!({"restartPolicy": policy, "initContainers": inits,
            "containers": [web, {"name": "log", "image": "i"}]})
        },
    )
}

/// The world outside the machine: what really runs.
#[expect(clippy::struct_excessive_bools, reason = "four independent facts")]
struct World {
    bench: Bench,
    /// Ids of the runs that really run.
    running: std::collections::BTreeSet<String>,
    sandbox: bool,
    network: bool,
    gone: bool,
    finalized: bool,
}

fn bad(action: &Action) -> Option<Event> {
    let message = "no".to_owned();
    Some(match action {
        Action::PrepareVolumes => Event::VolumesFailed { message },
        Action::StartSandbox { .. } => Event::SandboxFailed { message },
        Action::AttachNetwork => Event::NetworkFailed { message },
        Action::PullImage { container } => Event::ImageFailed {
            container: container.clone(),
            reason: ImageFailure::Pull,
            message,
        },
        Action::StartContainer { container, id, .. } => Event::ContainerFailed {
            container: container.clone(),
            id: id.clone(),
            reason: StartFailure::Run,
            message,
        },
        Action::RunPostStart { id, .. } => Event::PostStartFinished {
            id: id.clone(),
            failure: Some(message),
        },
        Action::TearDown => Event::TeardownFailed { message },
        Action::Finalize => Event::FinalizeFailed,
        _ => return None,
    })
}

impl World {
    fn answer(&mut self, index: usize, well: bool) {
        let open: Vec<usize> = self
            .bench
            .actions
            .iter()
            .enumerate()
            .filter(|(_, action)| answer(action, self.bench.now).is_some())
            .map(|(index, _)| index)
            .collect();
        if open.is_empty() {
            return;
        }
        let action = self.bench.actions.remove(open[index % open.len()]);
        // Nothing can be done in a sandbox that has died.
        let dead = !self.sandbox
            && matches!(
                action,
                Action::StartContainer { .. } | Action::AttachNetwork
            );
        let event = match (well && !dead, bad(&action)) {
            (false, Some(event)) => event,
            _ => answer(&action, self.bench.now).unwrap(),
        };
        match &event {
            Event::SandboxStarted { .. } => self.sandbox = true,
            Event::NetworkReady { .. } => self.network = true,
            Event::ContainerStarted { id, .. } => {
                self.running.insert(id.clone());
            }
            Event::ContainerExited { id, .. } if !self.running.remove(id) => return,
            Event::TornDown => {
                assert!(
                    self.running.is_empty(),
                    "torn down under a running container"
                );
                self.sandbox = false;
                self.network = false;
            }
            Event::Finalized => {
                assert!(
                    !self.sandbox && !self.network,
                    "finalised before all was freed"
                );
                self.finalized = true;
            }
            Event::DataRemoved => assert!(self.gone, "data removed of a pod that exists"),
            _ => {}
        }
        self.event(event);
    }

    fn event(&mut self, event: Event) {
        let before = self.bench.actions.len();
        self.bench.event(event);
        for action in &self.bench.actions[before..] {
            match action {
                Action::StartContainer { id, .. } => {
                    assert!(!self.running.contains(id), "started twice");
                    assert!(!self.bench.machine.must_end(), "started in a pod that ends");
                    assert!(self.sandbox && self.network, "started without a sandbox");
                }
                Action::Finalize => assert!(!self.gone, "finalised though gone"),
                _ => {}
            }
        }
        self.check();
    }

    fn check(&self) {
        let machine = &self.bench.machine;
        let facts = machine.facts();
        // At most one run per container, and only in a pod with a sandbox.
        for container in &facts.containers {
            if container.running().is_some() {
                assert!(facts.sandbox.step == super::facts::Step::Ready);
            }
        }
        // Ordinary containers do not run beside an init container that has work to do.
        if !facts.initialized {
            let early = facts
                .containers
                .iter()
                .any(|c| c.role == Role::Main && c.running().is_some());
            assert!(
                !early,
                "a container runs before the init containers are done"
            );
        }
        // A timer in the past would spin.
        if let Some(timer) = machine.next_timer() {
            assert!(
                timer > self.bench.now,
                "the timer has rung and nothing happened"
            );
        }
        // The status can be told at any time, and a terminal phase is final.
        let status = self.bench.status();
        if facts.terminal {
            assert!(matches!(
                status.phase.as_deref(),
                Some("Succeeded" | "Failed")
            ));
        }
        if status.phase.as_deref() == Some("Pending") {
            assert_ne!(self.bench.condition("Ready").0, "True");
        }
    }

    fn step(&mut self, step: &Step) {
        let names: Vec<String> = self
            .bench
            .machine
            .facts()
            .containers
            .iter()
            .map(|container| container.name.clone())
            .collect();
        match *step {
            Step::Answer(index, well) => self.answer(index, well),
            Step::Exit(index, code) => {
                let id = self.bench.id(&names[index % names.len()]);
                if self.running.remove(&id) {
                    let exit = exit(&id, code, self.bench.now);
                    self.event(Event::ContainerExited { id, exit });
                }
            }
            Step::Probe(index, probe, healthy) => {
                let id = self.bench.id(&names[index % names.len()]);
                self.event(Event::Probe { id, probe, healthy });
            }
            Step::SandboxGone => {
                if self.sandbox {
                    self.sandbox = false;
                    self.network = false;
                    self.running.clear();
                    self.event(Event::SandboxGone);
                }
            }
            Step::Delete(grace) => {
                if !self.gone {
                    let pod = self.bench.machine.pod().clone();
                    self.event(Event::Spec(deleted(&pod, grace)));
                }
            }
            Step::Gone => {
                self.gone = true;
                self.event(Event::Gone);
            }
            Step::Evict => self.event(Event::Evict {
                reason: "Evicted".into(),
                message: "m".into(),
            }),
            Step::Retry => self.event(Event::Retry),
            Step::Pass(seconds) => {
                self.bench.now = backoff::add(self.bench.now, Duration::from_secs(seconds));
                self.event(Event::Tick);
            }
            Step::Restart => self.restart(),
        }
    }

    fn restart(&mut self) {
        let facts = self.bench.machine.facts();
        let containers = facts
            .containers
            .iter()
            .filter_map(|container| {
                let id = self
                    .bench
                    .machine
                    .run_id(&container.name, container.attempt);
                self.running.contains(&id).then(|| ObservedContainer {
                    id,
                    name: container.name.clone(),
                    attempt: container.attempt,
                    started_at: self.bench.now,
                    exit: None,
                })
            })
            .collect();
        let observed = Observed {
            shim_pid: self.sandbox.then_some(42),
            containers,
        };
        let pod = self.bench.machine.pod().clone();
        let (machine, actions) = Machine::resume(pod, facts.clone(), &observed, self.bench.now);
        self.bench.machine = machine;
        self.bench.actions = actions;
        if self.gone {
            self.event(Event::Gone);
        }
        self.check();
    }

    /// From here on all goes well: the pod must come to rest, and a deleted one must vanish.
    fn settle(&mut self) {
        self.gone = true;
        self.event(Event::Gone);
        for _ in 0..200 {
            if self.bench.machine.is_finished() {
                return;
            }
            self.answer(0, true);
            if let Some(timer) = self.bench.machine.next_timer() {
                self.bench.now = self.bench.now.max(timer);
                self.event(Event::Tick);
            }
        }
        panic!("a deleted pod stays: {:?}", self.bench.machine.facts());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_life(spec in spec(), steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World {
            bench: Bench::new(spec),
            running: std::collections::BTreeSet::new(),
            sandbox: false,
            network: false,
            gone: false,
            finalized: false,
        };
        world.check();
        for step in steps {
            if world.bench.machine.is_finished() {
                break;
            }
            world.step(&step);
        }
        world.settle();
        prop_assert!(world.running.is_empty() && !world.sandbox && !world.network);
    }
}
