//! Subresources: status, scale, binding, eviction, token, streams.

use serde_json::json;

use super::{Api, DEPLOYMENTS, PODS, deployment, pod};

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let api = Api::start().await;
    let mut object = api.create(DEPLOYMENTS, deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web");
    object["status"] = json!({"replicas": 3, "observedGeneration": 1});
    object["spec"]["replicas"] = json!(9);
    let answer = api.put(&format!("{path}/status"), object).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(answer.body["spec"]["replicas"], 3);
    assert_eq!(answer.body["status"]["replicas"], 3);
    let mut object = answer.body;
    object["status"] = json!({"replicas": 0});
    object["spec"]["replicas"] = json!(2);
    let answer = api.put(&path, object).await;
    assert_eq!(answer.body["spec"]["replicas"], 2);
    assert_eq!(answer.body["status"]["replicas"], 3);
    assert_eq!(answer.body["metadata"]["generation"], 2);
}

#[tokio::test]
async fn scale() {
    let api = Api::start().await;
    api.create(DEPLOYMENTS, deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web/scale");
    let mut scale = api.get(&path).await.body;
    assert_eq!(scale["kind"], "Scale");
    assert_eq!(scale["spec"]["replicas"], 3);
    assert_eq!(scale["status"]["selector"], "app=web");
    scale["spec"]["replicas"] = json!(5);
    let answer = api.put(&path, scale.clone()).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(answer.body["spec"]["replicas"], 5);
    assert_eq!(
        api.put(&path, scale).await.code,
        409,
        "the revision is stale"
    );
    let answer = api
        .patch(&path, "merge-patch+json", json!({"spec": {"replicas": 1}}))
        .await;
    assert_eq!(answer.body["spec"]["replicas"], 1);
    let deployment = api.get(&format!("{DEPLOYMENTS}/web")).await.body;
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert_eq!(deployment["metadata"]["generation"], 3);
    let answer = api
        .patch(&path, "merge-patch+json", json!({"spec": {"replicas": -1}}))
        .await;
    assert_eq!(
        answer.body["message"],
        "Scale.autoscaling \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let api = Api::start().await;
    api.create(PODS, pod("web")).await;
    let path = format!("{PODS}/web/binding");
    let binding = |node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"},
            "target": {"kind": "Node", "name": node},
        })
    };
    let answer = api.post(&path, binding("n1")).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(answer.body["status"], "Success");
    let pod = api.get(&format!("{PODS}/web")).await.body;
    assert_eq!(pod["spec"]["nodeName"], "n1");
    assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
    let answer = api.post(&path, binding("n2")).await;
    assert_eq!(answer.code, 409);
    assert_eq!(
        answer.body["message"],
        "Operation cannot be fulfilled on pods/binding \"web\": pod web is already assigned to node \"n1\""
    );
}

#[tokio::test]
async fn an_evicted_pod_ends() {
    let api = Api::start().await;
    api.create(PODS, pod("web")).await;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "web", "namespace": "default"},
    });
    let answer = api.post(&format!("{PODS}/web/eviction"), eviction).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(api.get(&format!("{PODS}/web")).await.code, 404);
}

#[tokio::test]
async fn tokens() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let answer = api
        .post(path, json!({"spec": {"expirationSeconds": 900}}))
        .await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(answer.body["kind"], "TokenRequest");
    assert_eq!(answer.body["status"]["token"], "token-of-default-default");
    let answer = api
        .post(path, json!({"spec": {"expirationSeconds": 5}}))
        .await;
    assert_eq!(answer.code, 422);
    let bound = json!({"spec": {"boundObjectRef": {"kind": "Pod", "name": "gone"}}});
    assert_eq!(api.post(path, bound).await.code, 404);
}

#[tokio::test]
async fn events_and_leases() {
    let api = Api::start().await;
    let event = json!({
        "metadata": {"name": "web.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Started", "type": "Normal", "message": "Started container c",
    });
    api.create("/api/v1/namespaces/default/events", event).await;
    let found = api
        .get("/api/v1/events?fieldSelector=involvedObject.name%3Dweb,reason%3DStarted")
        .await
        .body;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    let key = b"/registry/events/default/web.1";
    assert_ne!(
        api.store.get(key).unwrap().unwrap().lease,
        0,
        "it has its hour"
    );

    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({
        "metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40},
    });
    // Some kinds are created by an update.
    let answer = api.put(&format!("{leases}/n1"), lease.clone()).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    let answer = api.put(&format!("{leases}/n1"), lease).await;
    assert_eq!(answer.code, 422, "a lease is never replaced blindly");
}

#[tokio::test]
async fn logs_of_a_pod_that_is_not_there() {
    let api = Api::start().await;
    let answer = api.get(&format!("{PODS}/gone/log")).await;
    assert_eq!(answer.code, 404);
    assert_eq!(answer.body["message"], "pods \"gone\" not found");
}
