//! Deletes: grace, preconditions, propagation, finalizers, namespaces.

use ::http::Method;
use serde_json::{Value, json};

use super::{Answer, Api, CONFIG_MAPS, DEPLOYMENTS, PODS, config_map, deployment, pod};

async fn delete_with(api: &Api, path: &str, options: Value) -> Answer {
    let json = [("content-type", "application/json")];
    api.call(Method::DELETE, path, &json, options.to_string())
        .await
}

#[tokio::test]
async fn a_simple_object_is_gone_at_once() {
    let api = Api::start().await;
    let created = api.create(CONFIG_MAPS, config_map("x")).await;
    let path = format!("{CONFIG_MAPS}/x");
    let answer = api.delete(&path).await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        answer.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": "x", "kind": "configmaps", "uid": created["metadata"]["uid"]},
        })
    );
    let answer = api.delete(&path).await;
    assert_eq!(answer.code, 404);
    assert_eq!(answer.body["message"], "configmaps \"x\" not found");
}

#[tokio::test]
async fn a_running_pod_waits_for_its_agent() {
    let api = Api::start().await;
    let mut object = pod("web");
    object["spec"]["nodeName"] = json!("n1");
    api.create(PODS, object).await;
    let path = format!("{PODS}/web");
    let answer = api.delete(&path).await;
    assert_eq!(answer.code, 200);
    assert_eq!(answer.body["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(answer.body["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(api.get(&path).await.code, 200);
    let answer = delete_with(&api, &path, json!({"gracePeriodSeconds": 0})).await;
    assert_eq!(answer.code, 200);
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn preconditions() {
    let api = Api::start().await;
    api.create(CONFIG_MAPS, config_map("x")).await;
    let path = format!("{CONFIG_MAPS}/x");
    let answer = delete_with(&api, &path, json!({"preconditions": {"uid": "other"}})).await;
    assert_eq!(answer.code, 409);
    assert_eq!(answer.body["reason"], "Conflict");
    let answer = delete_with(
        &api,
        &path,
        json!({"preconditions": {"resourceVersion": "1"}}),
    )
    .await;
    assert_eq!(answer.code, 409);
    assert_eq!(api.get(&path).await.code, 200);
}

#[tokio::test]
async fn propagation_holds_the_object_until_its_finalizer_goes() {
    let api = Api::start().await;
    api.create(DEPLOYMENTS, deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web");
    let answer = delete_with(&api, &path, json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!(
        answer.body["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    assert_eq!(answer.body["metadata"]["generation"], 2);
    let answer = api
        .patch(
            &path,
            "merge-patch+json",
            json!({"metadata": {"finalizers": null}}),
        )
        .await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(api.get(&path).await.code, 404);
    let answer = delete_with(
        &api,
        &path,
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
    )
    .await;
    assert_eq!(answer.code, 422);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let api = Api::start().await;
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut object = config_map(name);
        object["metadata"]["labels"] = json!({"l": label});
        api.create(CONFIG_MAPS, object).await;
    }
    let answer = api
        .delete(&format!("{CONFIG_MAPS}?labelSelector=l%3Dx"))
        .await;
    assert_eq!(answer.code, 200);
    assert_eq!(answer.body["items"].as_array().unwrap().len(), 2);
    let left = api.get(CONFIG_MAPS).await.body;
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_namespace_ends_in_steps() {
    let api = Api::start().await;
    api.create("/api/v1/namespaces", json!({"metadata": {"name": "x"}}))
        .await;
    let namespace = "/api/v1/namespaces/x";
    let ending = api.delete(namespace).await.body;
    assert_eq!(ending["status"]["phase"], "Terminating");
    let answer = api
        .post(&format!("{namespace}/configmaps"), config_map("late"))
        .await;
    assert_eq!(answer.code, 403);
    assert_eq!(
        answer.body["message"],
        "configmaps \"late\" is forbidden: unable to create new content in namespace x because it is being terminated"
    );
    assert_eq!(
        answer.body["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    let mut finalized = ending;
    finalized["spec"]["finalizers"] = json!([]);
    let answer = api.put(&format!("{namespace}/finalize"), finalized).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(api.get(namespace).await.code, 404);
    let answer = api.delete("/api/v1/namespaces/default").await;
    assert_eq!(answer.code, 403);
    assert_eq!(
        answer.body["message"],
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
}
