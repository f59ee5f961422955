//! Slicing: everything wanted is there exactly once, and with as few writes as can be.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::EndpointConditions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;

use super::*;

fn frame() -> Frame {
    Frame {
        address_type: "IPv4".into(),
        labels: [("kubernetes.io/service-name".to_owned(), "web".to_owned())].into(),
    }
}

fn endpoint(number: usize, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![format!("10.0.{}.{}", number / 250, number % 250)],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(ready),
            terminating: Some(false),
        }),
        target_ref: Some(ObjectReference {
            uid: Some(format!("uid-{number}")),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

fn ports(number: i32) -> Vec<EndpointPort> {
    vec![EndpointPort {
        port: Some(number),
        protocol: Some("TCP".into()),
        ..EndpointPort::default()
    }]
}

fn group(numbers: impl IntoIterator<Item = usize>) -> Vec<Group> {
    vec![Group {
        ports: ports(80),
        endpoints: numbers
            .into_iter()
            .map(|number| endpoint(number, true))
            .collect(),
    }]
}

/// Carries a plan out as the API would.
fn apply(
    mut slices: Vec<Arc<EndpointSlice>>,
    plan: Plan,
    next_name: &mut usize,
) -> Vec<Arc<EndpointSlice>> {
    let gone = |slice: &EndpointSlice, name: &Option<String>| slice.metadata.name == *name;
    for deleted in &plan.delete {
        slices.retain(|slice| !gone(slice, &deleted.metadata.name));
    }
    for updated in plan.update {
        for slice in &mut slices {
            if gone(slice, &updated.metadata.name) {
                *slice = Arc::new(updated.clone());
            }
        }
    }
    for new in plan.create {
        *next_name += 1;
        slices.push(Arc::new(EndpointSlice {
            address_type: new.address_type,
            ports: Some(new.ports),
            endpoints: Some(new.endpoints),
            metadata: ObjectMeta {
                name: Some(format!("web-{next_name}")),
                labels: Some(frame().labels),
                ..ObjectMeta::default()
            },
        }));
    }
    slices
}

fn uids(slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let mut uids: Vec<String> = slices
        .iter()
        .flat_map(|slice| endpoints(slice).iter().map(|endpoint| identity(endpoint).0))
        .collect();
    uids.sort();
    uids
}

#[test]
fn a_service_without_pods_has_one_empty_slice() {
    let mut names = 0;
    let first = plan(&frame(), &[], group([]));
    assert_eq!(first.create.len(), 1);
    assert!(first.create[0].ports.is_empty());
    let slices = apply(Vec::new(), first, &mut names);
    assert_eq!(plan(&frame(), &slices, Vec::new()), Plan::default());
    let slices = apply(
        slices.clone(),
        plan(&frame(), &slices, group([1])),
        &mut names,
    );
    assert_eq!(slices.len(), 1);
    assert_eq!(uids(&slices), ["uid-1"]);
}

#[test]
fn one_change_rewrites_one_slice() {
    let mut names = 0;
    let slices = apply(Vec::new(), plan(&frame(), &[], group(0..250)), &mut names);
    assert_eq!(slices.len(), 3);
    assert_eq!(plan(&frame(), &slices, group(0..250)), Plan::default());

    let mut unready = group(0..250);
    unready[0].endpoints[120] = endpoint(120, false);
    let change = plan(&frame(), &slices, unready);
    assert_eq!(
        (
            change.create.len(),
            change.update.len(),
            change.delete.len()
        ),
        (0, 1, 0)
    );

    let more = plan(&frame(), &slices, group(0..251));
    assert_eq!(
        (more.create.len(), more.update.len(), more.delete.len()),
        (0, 1, 0)
    );
    assert_eq!(endpoints(&more.update[0]).len(), 51);
}

#[test]
fn pods_that_resolve_a_port_name_differently_get_slices_of_their_own() {
    let mut names = 0;
    let groups = vec![
        Group {
            ports: ports(80),
            endpoints: vec![endpoint(1, true)],
        },
        Group {
            ports: ports(8080),
            endpoints: vec![endpoint(2, true)],
        },
    ];
    let slices = apply(Vec::new(), plan(&frame(), &[], groups), &mut names);
    assert_eq!(slices.len(), 2);
    let change = plan(&frame(), &slices, group([1]));
    assert_eq!(
        (
            change.create.len(),
            change.update.len(),
            change.delete.len()
        ),
        (0, 0, 1)
    );
}

#[test]
fn changed_labels_are_carried_over() {
    let mut names = 0;
    let slices = apply(Vec::new(), plan(&frame(), &[], group(0..3)), &mut names);
    let mut frame = frame();
    frame.labels.insert("team".into(), "a".into());
    let change = plan(&frame, &slices, group(0..3));
    assert_eq!(change.update.len(), 1);
    assert_eq!(
        change.update[0].metadata.labels.as_ref(),
        Some(&frame.labels)
    );
}

proptest! {
    #[test]
    fn every_endpoint_once_and_then_quiet(
        steps in prop::collection::vec((0_usize..400, 0_usize..400, 1_usize..4), 1..6),
    ) {
        let mut slices = Vec::new();
        let mut names = 0;
        for (from, length, step) in steps {
            let wanted: Vec<usize> = (from..from + length).step_by(step).collect();
            let change = plan(&frame(), &slices, group(wanted.clone()));
            slices = apply(slices, change, &mut names);
            let mut expected: Vec<String> = wanted.iter().map(|number| format!("uid-{number}")).collect();
            expected.sort();
            prop_assert_eq!(uids(&slices), expected);
            prop_assert!(slices.iter().all(|slice| endpoints(slice).len() <= MAX_ENDPOINTS));
            prop_assert!(!slices.is_empty());
            prop_assert_eq!(plan(&frame(), &slices, group(wanted)), Plan::default());
        }
    }
}
