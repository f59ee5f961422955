//! Server-side apply as its users see it.

#![expect(
    clippy::needless_pass_by_value,
    reason = "callers write the value in place"
)]

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::gvk::GroupVersionKind;
use crate::schema::schema_for;

fn schema() -> Arc<Schema> {
    schema_for(&GroupVersionKind::of("apps", "v1", "Deployment")).expect("built in")
}

fn write<'a>(manager: &'a str, time: &'a str) -> Write<'a> {
    Write {
        manager,
        api_version: "apps/v1",
        subresource: "",
        time,
    }
}

fn config(spec: Value) -> Object {
    Object::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec,
    }))
    .expect("an object")
}

fn applied(live: Option<&Object>, manager: &str, spec: Value) -> Object {
    apply(
        live,
        &config(spec),
        &schema(),
        &write(manager, "2024-01-01T00:00:00Z"),
        false,
    )
    .expect("no conflict")
}

fn containers(value: Value) -> Value {
    json!({"template": {"spec": {"containers": value}}})
}

fn fields_of(object: &Object, manager: &str) -> Vec<String> {
    owners(object)
        .expect("well formed")
        .into_iter()
        .find(|o| o.manager == manager)
        .map(|o| o.fields.paths())
        .unwrap_or_default()
}

#[test]
fn the_first_apply_owns_what_it_sets() {
    let object = applied(
        None,
        "a",
        json!({"replicas": 3, "selector": {"matchLabels": {"x": "y"}}}),
    );
    assert_eq!(object.get_path(&["spec", "replicas"]), Some(&json!(3)));
    assert_eq!(
        fields_of(&object, "a"),
        [".spec.replicas", ".spec.selector"]
    );
    assert_eq!(
        object.pointer("/metadata/managedFields"),
        Some(&json!([{
            "manager": "a", "operation": "Apply", "apiVersion": "apps/v1",
            "time": "2024-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}, "f:selector": {}}},
        }]))
    );
}

#[test]
fn what_is_no_longer_applied_goes() {
    let object = applied(None, "a", json!({"replicas": 3, "paused": true}));
    let object = applied(Some(&object), "a", json!({"replicas": 3}));
    assert_eq!(object.get_path(&["spec", "paused"]), None);
    assert_eq!(object.get_path(&["spec", "replicas"]), Some(&json!(3)));
}

#[test]
fn what_another_also_applies_stays() {
    let object = applied(None, "a", json!({"replicas": 3, "paused": true}));
    let object = applied(Some(&object), "b", json!({"paused": true}));
    let object = applied(Some(&object), "a", json!({"replicas": 3}));
    assert_eq!(object.get_path(&["spec", "paused"]), Some(&json!(true)));
    assert_eq!(fields_of(&object, "b"), [".spec.paused"]);
}

#[test]
fn elements_of_keyed_lists_are_owned_one_by_one() {
    let object = applied(
        None,
        "a",
        containers(json!([{"name": "x", "image": "x:1"}, {"name": "y", "image": "y:1"}])),
    );
    let object = applied(
        Some(&object),
        "b",
        containers(json!([{"name": "z", "image": "z:1"}])),
    );
    let object = applied(
        Some(&object),
        "a",
        containers(json!([{"name": "y", "image": "y:2"}])),
    );
    assert_eq!(
        object.pointer("/spec/template/spec/containers"),
        Some(&json!([{"name": "y", "image": "y:2"}, {"name": "z", "image": "z:1"}]))
    );
    assert_eq!(
        fields_of(&object, "a"),
        [
            r#".spec.template.spec.containers[name="y"]"#,
            r#".spec.template.spec.containers[name="y"].image"#,
            r#".spec.template.spec.containers[name="y"].name"#,
        ]
    );
}

#[test]
fn conflicts_name_the_manager_and_the_field() {
    let object = applied(None, "a", json!({"replicas": 3}));
    let write = write("b", "2024-01-02T00:00:00Z");
    let other = config(json!({"replicas": 5}));
    let error = apply(Some(&object), &other, &schema(), &write, false).expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas"
    );
    let status = Status::from(error);
    assert_eq!((status.code, status.reason), (409, crate::Reason::Conflict));
    let forced = apply(Some(&object), &other, &schema(), &write, true).expect("forced");
    assert_eq!(forced.get_path(&["spec", "replicas"]), Some(&json!(5)));
    assert!(fields_of(&forced, "a").is_empty());
    assert_eq!(fields_of(&forced, "b"), [".spec.replicas"]);
    // The same value is no conflict: both own it.
    let shared = applied(Some(&object), "b", json!({"replicas": 3}));
    assert_eq!(fields_of(&shared, "a"), fields_of(&shared, "b"));
}

#[test]
fn updates_are_owned_and_conflict_with_later_applies() {
    let object = applied(None, "a", json!({"replicas": 3}));
    let mut scaled = object.clone();
    scaled.set_path(&["spec", "replicas"], json!(7));
    track_update(
        Some(&object),
        &mut scaled,
        &schema(),
        &write("scaler", "2024-01-03T00:00:00Z"),
    );
    assert!(fields_of(&scaled, "a").is_empty());
    assert_eq!(fields_of(&scaled, "scaler"), [".spec.replicas"]);
    let error = apply(
        Some(&scaled),
        &config(json!({"replicas": 3})),
        &schema(),
        &write("a", "2024-01-04T00:00:00Z"),
        false,
    )
    .expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas"
    );
    // Giving the field up leaves it to the scaler.
    let object = applied(Some(&scaled), "a", json!({"paused": true}));
    assert_eq!(object.get_path(&["spec", "replicas"]), Some(&json!(7)));
}

#[test]
fn creates_and_resets_are_tracked() {
    let mut object =
        config(json!({"replicas": 1, "template": {"metadata": {"labels": {"a": "b"}}}}));
    track_update(
        None,
        &mut object,
        &schema(),
        &write("kubectl-create", "2024-01-01T00:00:00Z"),
    );
    assert_eq!(
        object.pointer("/metadata/managedFields/0/fieldsV1"),
        Some(
            &json!({"f:spec": {".": {}, "f:replicas": {}, "f:template": {".": {}, "f:metadata": {".": {}, "f:labels": {".": {}, "f:a": {}}}}}})
        )
    );
    let mut reset = object.clone();
    reset
        .metadata_mut()
        .insert("managedFields".into(), json!([{}]));
    track_update(
        Some(&object),
        &mut reset,
        &schema(),
        &write("x", "2024-01-02T00:00:00Z"),
    );
    assert_eq!(reset.pointer("/metadata/managedFields"), None);
    // Nobody is recorded for an object that has no records.
    let mut untracked = reset.clone();
    untracked.set_path(&["spec", "replicas"], json!(2));
    track_update(
        Some(&reset),
        &mut untracked,
        &schema(),
        &write("x", "2024-01-02T00:00:00Z"),
    );
    assert_eq!(untracked.pointer("/metadata/managedFields"), None);
}

#[test]
fn status_belongs_to_its_own_end_point() {
    let object = applied(None, "a", json!({"replicas": 3}));
    let mut reported = object.clone();
    reported.set_path(&["status", "replicas"], json!(3));
    let status = Write {
        subresource: "status",
        ..write("controller", "2024-01-02T00:00:00Z")
    };
    track_update(Some(&object), &mut reported, &schema(), &status);
    assert_eq!(fields_of(&reported, "a"), [".spec.replicas"]);
    assert_eq!(
        fields_of(&reported, "controller"),
        [".status", ".status.replicas"]
    );
    let again = applied(Some(&reported), "a", json!({"replicas": 4}));
    assert_eq!(again.get_path(&["status", "replicas"]), Some(&json!(3)));
}

#[test]
fn objects_from_before_apply_have_an_owner() {
    let live = config(json!({"replicas": 3}));
    let error = apply(
        Some(&live),
        &config(json!({"replicas": 4})),
        &schema(),
        &write("a", "2024-01-01T00:00:00Z"),
        false,
    )
    .expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let mut live = config(json!({"replicas": 3}));
    let last = live.to_value().to_string();
    live.set_annotation(LAST_APPLIED, &last);
    track_update(
        None,
        &mut live,
        &schema(),
        &write("kubectl-client-side-apply", "2024-01-01T00:00:00Z"),
    );
    let object = applied(Some(&live), "kubectl", json!({"replicas": 4}));
    assert_eq!(object.get_path(&["spec", "replicas"]), Some(&json!(4)));
    assert!(
        object
            .annotation(LAST_APPLIED)
            .is_some_and(|a| a.contains("\"replicas\":4"))
    );
}

#[test]
fn bad_configurations() {
    let mut with_fields = config(json!({}));
    with_fields
        .metadata_mut()
        .insert("managedFields".into(), json!([]));
    let error = apply(None, &with_fields, &schema(), &write("a", ""), false).expect_err("refused");
    assert_eq!(error, ApplyError::ManagedFields);
    let twice = config(containers(json!([{"name": "x"}, {"name": "x"}])));
    let error = apply(None, &twice, &schema(), &write("a", ""), false).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object: .spec.template.spec.containers: duplicate entries for key [name=\"x\"]"
    );
}

#[test]
fn ports_without_protocol_are_tcp() {
    let object = applied(
        None,
        "a",
        containers(json!([{"name": "x", "ports": [{"containerPort": 80}]}])),
    );
    let mut defaulted = object.clone();
    if let Some(port) = defaulted.pointer_mut("/spec/template/spec/containers/0/ports/0") {
        *port = json!({"containerPort": 80, "protocol": "TCP"});
    }
    let again = applied(
        Some(&defaulted),
        "a",
        containers(json!([{"name": "x", "ports": [{"containerPort": 80}]}])),
    );
    assert_eq!(
        again.pointer("/spec/template/spec/containers/0/ports"),
        Some(&json!([{"containerPort": 80, "protocol": "TCP"}]))
    );
}

#[test]
fn there_are_never_many_updaters() {
    let mut live = config(json!({"replicas": 0}));
    track_update(
        None,
        &mut live,
        &schema(),
        &write("first", "2024-01-01T00:00:00Z"),
    );
    for i in 1..30 {
        let mut next = live.clone();
        next.set_annotation(&format!("a{i}"), "x");
        let (manager, time) = (format!("m{i}"), format!("2024-01-01T00:00:{i:02}Z"));
        track_update(Some(&live), &mut next, &schema(), &write(&manager, &time));
        live = next;
    }
    let owners = owners(&live).expect("well formed");
    assert!(owners.len() <= MAX_UPDATERS, "{}", owners.len());
    assert!(owners.iter().any(|o| o.manager == ANCIENT));
}

fn specs() -> impl Strategy<Value = Value> {
    let list = proptest::collection::btree_map("[a-c]", "[a-z]:[0-9]", 0..3);
    (proptest::option::of(0_i32..5), list).prop_map(|(replicas, list)| {
        let list: Vec<Value> = list
            .into_iter()
            .map(|(name, image)| json!({"name": name, "image": image}))
            .collect();
        let mut spec = containers(list.into());
        if let Some(replicas) = replicas {
            spec["replicas"] = replicas.into();
        }
        spec
    })
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(a in specs(), b in specs()) {
        let write_a = write("a", "2024-01-01T00:00:00Z");
        let write_b = write("b", "2024-01-02T00:00:00Z");
        let first = apply(None, &config(a), &schema(), &write_a, false).expect("no conflict");
        let once = apply(Some(&first), &config(b.clone()), &schema(), &write_b, true).expect("forced");
        let later = Write { time: "2024-01-09T00:00:00Z", ..write_b };
        let twice = apply(Some(&once), &config(b), &schema(), &later, false).expect("no conflict");
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn a_single_manager_gets_what_it_applies(a in specs(), b in specs()) {
        let write = write("a", "2024-01-01T00:00:00Z");
        let first = apply(None, &config(a), &schema(), &write, false).expect("no conflict");
        let second = apply(Some(&first), &config(b.clone()), &schema(), &write, false).expect("no conflict");
        let fresh = apply(None, &config(b), &schema(), &write, false).expect("no conflict");
        let (second, fresh) = (second.get_path(&["spec", "replicas"]).cloned(), fresh.get_path(&["spec", "replicas"]).cloned());
        prop_assert_eq!(second, fresh);
    }
}

#[test]
fn giving_up_all_annotations_keeps_the_name() {
    let mut annotated = config(json!({"replicas": 1}));
    annotated.set_path(&["metadata", "namespace"], json!("default"));
    annotated.set_path(&["metadata", "annotations"], json!({"a": "b"}));
    let time = "2024-01-01T00:00:00Z";
    let live = apply(None, &annotated, &schema(), &write("me", time), false).expect("applies");
    annotated.remove_path(&["metadata", "annotations"]);
    let after = apply(
        Some(&live),
        &annotated,
        &schema(),
        &write("me", time),
        false,
    );
    let after = after.expect("applies");
    assert_eq!(after.name(), Some("web"));
    assert_eq!(after.namespace(), Some("default"));
    assert_eq!(after.pointer("/metadata/annotations/a"), None);
}
