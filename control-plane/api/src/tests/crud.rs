//! Create, read, update, patch.

use serde_json::json;

use super::{Api, CONFIG_MAPS, DEPLOYMENTS, PODS, config_map, deployment, pod};

#[tokio::test]
async fn an_object_is_created_read_and_listed() {
    let api = Api::start().await;
    let created = api.create(CONFIG_MAPS, config_map("x")).await;
    assert_eq!(created["metadata"]["namespace"], "default");
    assert!(created["metadata"]["uid"].is_string());
    assert!(created["metadata"]["creationTimestamp"].is_string());
    let read = api.get(&format!("{CONFIG_MAPS}/x")).await;
    assert_eq!(read.code, 200);
    assert_eq!(read.body, created);
    let list = api.get(CONFIG_MAPS).await.body;
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(list["items"], json!([created]));
}

#[tokio::test]
async fn what_every_cluster_has_is_there_and_survives_a_restart() {
    let api = Api::start().await;
    for path in [
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/kube-system",
        "/api/v1/namespaces/kube-public",
        "/api/v1/namespaces/kube-node-lease",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
    ] {
        assert_eq!(api.get(path).await.code, 200, "{path}");
    }
    let service = api
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await
        .body;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    let revision = api.store.revision();
    Api::serve(&api.store).await;
    assert_eq!(
        api.store.revision(),
        revision,
        "a second start writes nothing"
    );
}

#[tokio::test]
async fn updates_need_the_present_resource_version() {
    let api = Api::start().await;
    let mut object = api.create(CONFIG_MAPS, config_map("x")).await;
    let stale = object.clone();
    let path = format!("{CONFIG_MAPS}/x");
    object["data"]["a"] = json!("2");
    let updated = api.put(&path, object).await;
    assert_eq!(updated.code, 200, "{}", updated.body);
    assert_ne!(
        updated.body["metadata"]["resourceVersion"],
        stale["metadata"]["resourceVersion"]
    );
    let conflict = api.put(&path, stale).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(
        conflict.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please apply your changes to the latest version and try again",
            "reason": "Conflict", "details": {"name": "x", "kind": "configmaps"}, "code": 409,
        })
    );
    // Without one, whatever is there is replaced.
    let mut unversioned = config_map("x");
    unversioned["data"]["a"] = json!("3");
    assert_eq!(api.put(&path, unversioned).await.code, 200);
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_revision() {
    let api = Api::start().await;
    let object = api.create(DEPLOYMENTS, deployment("web")).await;
    let revision = api.store.revision();
    let path = format!("{DEPLOYMENTS}/web");
    let same = api.put(&path, object.clone()).await;
    assert_eq!(same.body, object);
    let patched = api
        .patch(&path, "merge-patch+json", json!({"spec": {"replicas": 3}}))
        .await;
    assert_eq!(patched.body, object);
    assert_eq!(api.store.revision(), revision);
}

#[tokio::test]
async fn names_are_generated() {
    let api = Api::start().await;
    let object = api
        .create(CONFIG_MAPS, json!({"metadata": {"generateName": "run-"}}))
        .await;
    let name = object["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("run-") && name.len() == 9, "{name}");
}

#[tokio::test]
async fn patches_of_every_kind() {
    let api = Api::start().await;
    api.create(DEPLOYMENTS, deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web");
    let patched = api
        .patch(
            &path,
            "strategic-merge-patch+json",
            json!({"spec": {"template": {"spec": {"containers": [
                {"name": "c", "image": "nginx:1.28"}, {"name": "d", "image": "busybox"},
            ]}}}}),
        )
        .await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    let containers = &patched.body["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], "nginx:1.28");
    assert_eq!(containers.as_array().unwrap().len(), 2);
    assert_eq!(patched.body["metadata"]["generation"], 2);

    let patched = api
        .patch(
            &path,
            "merge-patch+json",
            json!({"metadata": {"labels": {"x": "y"}}}),
        )
        .await;
    assert_eq!(patched.body["metadata"]["labels"]["x"], "y");
    assert_eq!(patched.body["metadata"]["generation"], 2);

    let patched = api
        .patch(
            &path,
            "json-patch+json",
            json!([{"op": "replace", "path": "/spec/replicas", "value": 1}]),
        )
        .await;
    assert_eq!(patched.body["spec"]["replicas"], 1);
    let refused = api
        .patch(
            &path,
            "json-patch+json",
            json!([{"op": "remove", "path": "/spec/nothing"}]),
        )
        .await;
    assert_eq!(refused.code, 422, "{}", refused.body);
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let api = Api::start().await;
    let answer = api
        .post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("x"))
        .await;
    assert_eq!(answer.code, 201);
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/x")).await.code, 404);
}

#[tokio::test]
async fn a_new_pod_gets_what_admission_gives() {
    let api = Api::start().await;
    let pod = api.create(PODS, pod("web")).await;
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["spec"]["priority"], 0);
    assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(
        pod["status"],
        json!({"phase": "Pending", "qosClass": "BestEffort"})
    );
    let mount = &pod["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(
        mount["mountPath"],
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );
    assert_eq!(mount["name"], pod["spec"]["volumes"][0]["name"]);
}

#[tokio::test]
async fn yaml_in_and_tables_out() {
    let api = Api::start().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndata:\n  a: \"1\"\n";
    let created = api
        .call(
            ::http::Method::POST,
            CONFIG_MAPS,
            &[("content-type", "application/yaml")],
            yaml,
        )
        .await;
    assert_eq!(created.code, 201, "{}", created.body);
    let accept = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let table = api
        .call(
            ::http::Method::GET,
            CONFIG_MAPS,
            &accept,
            axum::body::Body::empty(),
        )
        .await
        .body;
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"][0], "x");
    let accept = [(
        "accept",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    )];
    let partial = api
        .call(
            ::http::Method::GET,
            &format!("{CONFIG_MAPS}/x"),
            &accept,
            axum::body::Body::empty(),
        )
        .await
        .body;
    assert_eq!(partial["kind"], "PartialObjectMetadata");
    assert_eq!(partial.get("data"), None);
}

#[tokio::test]
async fn server_side_apply() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    let apply = |manager: &str| format!("{path}?fieldManager={manager}");
    let answer = api
        .patch(&path, "apply-patch+yaml", deployment("web"))
        .await;
    assert_eq!(answer.code, 422, "a manager is required");
    let answer = api
        .patch(&apply("ann"), "apply-patch+yaml", deployment("web"))
        .await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(
        answer.body["metadata"]["managedFields"][0]["manager"],
        "ann"
    );
    let revision = api.store.revision();
    let again = api
        .patch(&apply("ann"), "apply-patch+yaml", deployment("web"))
        .await;
    assert_eq!(again.code, 200);
    assert_eq!(api.store.revision(), revision, "nothing changed");
    let replicas = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 7},
    });
    let answer = api
        .patch(&apply("bob"), "apply-patch+yaml", replicas.clone())
        .await;
    assert_eq!(answer.code, 409, "{}", answer.body);
    assert_eq!(
        answer.body["details"]["causes"][0]["field"],
        ".spec.replicas"
    );
    let forced = format!("{}&force=true", apply("bob"));
    let answer = api.patch(&forced, "apply-patch+yaml", replicas).await;
    assert_eq!(answer.body["spec"]["replicas"], 7);
    assert_eq!(answer.body["metadata"]["generation"], 2);
    // Ordinary writes of such an object are recorded too.
    let answer = api
        .patch(
            &path,
            "merge-patch+json",
            json!({"metadata": {"labels": {"a": "b"}}}),
        )
        .await;
    let managers = answer.body["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|entry| entry["operation"] == "Update"));
}
