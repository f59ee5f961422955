//! Decisions and their explanations.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodAffinity, PodAffinityTerm, PodAntiAffinity, PreferredSchedulingTerm,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proptest::prelude::*;

use super::*;
use crate::test_objects::{node, pod};

fn cluster(nodes: Vec<Node>) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        cluster.set_node(Arc::new(node));
    }
    cluster
}

fn info(pod: Pod) -> Arc<PodInfo> {
    Arc::new(PodInfo::new(Arc::new(pod)))
}

fn place(cluster: &Cluster, pod: Pod) -> String {
    match decide(cluster, &info(pod), 0) {
        Decision::Place { node, .. } => node,
        Decision::Reject(failure) => failure.message(),
    }
}

fn app(name: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some([("app".to_owned(), name.to_owned())].into()),
        ..LabelSelector::default()
    }
}

#[test]
fn explanations_are_in_kubernetes_words() {
    assert_eq!(
        place(&cluster(vec![]), pod("a").build()),
        "no nodes available to schedule pods"
    );
    let one = cluster(vec![node("n1").build()]);
    assert_eq!(
        place(&one, pod("a").cpu("5").build()),
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 \
         Preemption is not helpful for scheduling."
    );
    let mut full = one.clone();
    full.place(info(pod("b").cpu("3").build()), "n1");
    assert_eq!(
        place(&full, pod("a").cpu("2").build()),
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No \
         preemption victims found for incoming pod."
    );
    let mixed = cluster(vec![
        node("n1").cordoned().build(),
        node("n2")
            .taint("node.kubernetes.io/not-ready", "NoSchedule")
            .build(),
        node("n3")
            .allocatable("pods", "0")
            .allocatable("memory", "1Mi")
            .build(),
    ]);
    assert_eq!(
        place(&mixed, pod("a").request("memory", "2Mi").build()),
        "0/3 nodes are available: 1 Insufficient memory, 1 Too many pods, 1 node(s) had \
         untolerated taint {node.kubernetes.io/not-ready: }, 1 node(s) were unschedulable. \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn extended_resources_and_host_ports() {
    let mut one = cluster(vec![node("n1").allocatable("example.com/gpu", "1").build()]);
    let gpu = |name: &str| pod(name).request("example.com/gpu", "1");
    assert_eq!(place(&one, gpu("a").build()), "n1");
    one.place(info(gpu("a").build()), "n1");
    assert!(place(&one, gpu("b").build()).contains("1 Insufficient example.com/gpu"));
    assert_eq!(place(&one, pod("c").host_port(80).build()), "n1");
    one.place(info(pod("c").host_port(80).build()), "n1");
    assert!(
        place(&one, pod("d").host_port(80).build())
            .contains("1 node(s) didn't have free ports for the requested pod ports")
    );
    assert_eq!(place(&one, pod("d").host_port(81).build()), "n1");
}

#[test]
fn selectors_and_affinity_choose_nodes() {
    let two = cluster(vec![
        node("n1").label("disk", "hdd").build(),
        node("n2").label("disk", "ssd").build(),
    ]);
    let selecting = |value: &str| {
        let selector = [("disk".to_owned(), value.to_owned())].into();
        pod("a")
            .with(|spec| spec.node_selector = Some(selector))
            .build()
    };
    assert_eq!(place(&two, selecting("ssd")), "n2");
    assert!(
        place(&two, selecting("tape"))
            .contains("2 node(s) didn't match Pod's node affinity/selector")
    );
    let requirement = |key: &str, value: &str| NodeSelectorRequirement {
        key: key.into(),
        operator: "In".into(),
        values: Some(vec![value.into()]),
    };
    let affine = |affinity: NodeAffinity| {
        pod("a")
            .with(|spec| {
                spec.affinity = Some(Affinity {
                    node_affinity: Some(affinity),
                    ..Affinity::default()
                });
            })
            .build()
    };
    let by_name = affine(NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_fields: Some(vec![requirement("metadata.name", "n2")]),
                ..NodeSelectorTerm::default()
            }],
        }),
        ..NodeAffinity::default()
    });
    assert_eq!(place(&two, by_name), "n2");
    let wish = affine(NodeAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(vec![PreferredSchedulingTerm {
            weight: 10,
            preference: NodeSelectorTerm {
                match_expressions: Some(vec![requirement("disk", "ssd")]),
                ..NodeSelectorTerm::default()
            },
        }]),
        ..NodeAffinity::default()
    });
    assert_eq!(place(&two, wish), "n2");
}

#[test]
fn siblings_spread_and_the_emptier_node_is_preferred() {
    let mut three = cluster(vec![
        node("n1").build(),
        node("n2").build(),
        node("n3").build(),
    ]);
    let mut used = BTreeSet::new();
    for name in ["a", "b", "c"] {
        let next = pod(name).cpu("100m").owner("rs").build();
        let target = place(&three, next.clone());
        three.assume(info(next), &target);
        used.insert(target);
    }
    assert_eq!(used.len(), 3);
    let mut two = cluster(vec![node("n1").build(), node("n2").build()]);
    two.place(info(pod("big").cpu("3").build()), "n1");
    assert_eq!(place(&two, pod("a").cpu("100m").build()), "n2");
    let soft = cluster(vec![
        node("n1").taint("soft", "PreferNoSchedule").build(),
        node("n2").build(),
    ]);
    assert_eq!(place(&soft, pod("a").build()), "n2");
}

#[test]
fn hard_spreading_limits_the_skew() {
    let mut zones = cluster(vec![
        node("n1").label("zone", "a").build(),
        node("n2").label("zone", "b").build(),
        node("n3").build(),
    ]);
    let spread = |name: &str| {
        pod(name)
            .label("app", "web")
            .with(|spec| {
                spec.topology_spread_constraints = Some(vec![TopologySpreadConstraint {
                    max_skew: 1,
                    topology_key: "zone".into(),
                    when_unsatisfiable: "DoNotSchedule".into(),
                    label_selector: Some(app("web")),
                    ..TopologySpreadConstraint::default()
                }]);
            })
            .build()
    };
    zones.place(info(spread("a")), "n1");
    assert_eq!(place(&zones, spread("b")), "n2");
    zones.set_node(Arc::new(node("n2").label("zone", "b").cordoned().build()));
    let message = place(&zones, spread("b"));
    assert!(
        message.contains("1 node(s) didn't match pod topology spread constraints,"),
        "{message}"
    );
    assert!(
        message.contains("constraints (missing required label)"),
        "{message}"
    );
}

#[test]
fn pods_attract_and_repel() {
    let mut two = cluster(vec![node("n1").build(), node("n2").build()]);
    let term = |name: &str| PodAffinityTerm {
        label_selector: Some(app(name)),
        topology_key: "kubernetes.io/hostname".into(),
        ..PodAffinityTerm::default()
    };
    let near = |name: &str, wanted: &str| {
        pod(name).label("app", "web").with(|spec| {
            spec.affinity = Some(Affinity {
                pod_affinity: Some(PodAffinity {
                    required_during_scheduling_ignored_during_execution: Some(vec![term(wanted)]),
                    ..PodAffinity::default()
                }),
                ..Affinity::default()
            });
        })
    };
    let alone = |name: &str| {
        pod(name).label("app", "db").with(|spec| {
            spec.affinity = Some(Affinity {
                pod_anti_affinity: Some(PodAntiAffinity {
                    required_during_scheduling_ignored_during_execution: Some(vec![
                        term("db"),
                        term("web"),
                    ]),
                    ..PodAntiAffinity::default()
                }),
                ..Affinity::default()
            });
        })
    };
    assert!(
        place(&two, near("a", "db").build()).contains("2 node(s) didn't match pod affinity rules")
    );
    assert!(
        place(&two, near("a", "web").build()).starts_with('n'),
        "the first of its group"
    );
    two.place(info(alone("db1").build()), "n1");
    assert_eq!(place(&two, alone("db2").build()), "n2");
    assert!(
        place(&two, near("a", "db").build())
            .contains("1 node(s) didn't satisfy existing pods anti-affinity rules")
    );
    two.place(info(alone("db2").build()), "n2");
    assert!(
        place(&two, alone("db3").build())
            .contains("2 node(s) didn't match pod anti-affinity rules")
    );
}

proptest! {
    /// A pod is never placed where it does not fit, never rejected where it does, and the answer
    /// only depends on what is asked.
    #[test]
    fn placements_fit(
        sizes in prop::collection::vec(1_i64..3000, 1..40),
        nodes in 1_usize..5,
        tie in any::<u64>(),
    ) {
        let mut cluster = cluster((0..nodes).map(|n| node(&format!("n{n}")).build()).collect());
        let mut left = vec![4000_i64; nodes];
        for (index, size) in sizes.into_iter().enumerate() {
            let pod = info(pod(&format!("p{index}")).cpu(&format!("{size}m")).build());
            let decision = decide(&cluster, &pod, tie);
            prop_assert_eq!(&decision, &decide(&cluster.clone(), &pod, tie));
            match decision {
                Decision::Place { node, .. } => {
                    let number: usize = node[1..].parse().unwrap_or(0);
                    left[number] -= size;
                    prop_assert!(left[number] >= 0);
                    cluster.assume(pod, &node);
                }
                Decision::Reject(failure) => {
                    prop_assert!(left.iter().all(|left| *left < size));
                    prop_assert_eq!(failure.plugins(), [Plugin::NodeResourcesFit].into());
                }
            }
        }
    }
}
