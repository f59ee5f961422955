//! What bad input gets: the code, reason and words of Kubernetes, and nothing stored.

use ::http::Method;
use axum::body::Body;
use serde_json::{Value, json};

use super::{Api, CONFIG_MAPS, DEPLOYMENTS, PODS, config_map, deployment, pod};

/// Sends a create that must be refused without a trace.
async fn refused(api: &Api, path: &str, content_type: &str, body: impl Into<Body>) -> Value {
    let revision = api.store.revision();
    let answer = api
        .call(Method::POST, path, &[("content-type", content_type)], body)
        .await;
    assert_eq!(
        api.store.revision(),
        revision,
        "something was stored: {}",
        answer.body
    );
    assert_eq!(answer.body["kind"], "Status", "{}", answer.body);
    assert_eq!(answer.body["status"], "Failure");
    assert_eq!(answer.body["code"], answer.code);
    answer.body
}

async fn refused_json(api: &Api, path: &str, body: Value) -> Value {
    refused(api, path, "application/json", body.to_string()).await
}

#[tokio::test]
async fn bodies_that_cannot_be_read() {
    let api = Api::start().await;
    for (content_type, body) in [
        ("application/json", "{\"kind\": "),
        ("application/yaml", "a: [1"),
        ("application/json", "[]"),
        ("application/json", ""),
    ] {
        let status = refused(&api, CONFIG_MAPS, content_type, body).await;
        assert_eq!(status["code"], 400, "{status}");
        assert_eq!(status["reason"], "BadRequest");
        let message = status["message"].as_str().unwrap();
        let start = "the object provided is unrecognized (must be of type ConfigMap): ";
        assert!(message.starts_with(start), "{message}");
    }
    let protobuf = "application/vnd.kubernetes.protobuf";
    let status = refused(&api, CONFIG_MAPS, protobuf, "k8s").await;
    assert_eq!(status["code"], 400);
    let status = refused(&api, CONFIG_MAPS, "application/cbor", "x").await;
    assert_eq!(status["code"], 415);
    assert_eq!(status["reason"], "UnsupportedMediaType");
    let huge = json!({"metadata": {"name": "x"}, "data": {"a": "x".repeat(3 << 20)}});
    let status = refused_json(&api, CONFIG_MAPS, huge).await;
    assert_eq!(status["code"], 413);
    assert_eq!(status["reason"], "RequestEntityTooLarge");
    assert_eq!(
        status["message"],
        "Request entity too large: limit is 3145728"
    );
}

#[tokio::test]
async fn unknown_fields() {
    let api = Api::start().await;
    let mut object = deployment("web");
    object["spec"]["replica"] = json!(3);
    let strict = format!("{DEPLOYMENTS}?fieldValidation=Strict");
    let status = refused_json(&api, &strict, object.clone()).await;
    assert_eq!(status["code"], 400);
    assert_eq!(
        status["message"],
        "Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: unknown field \"spec.replica\""
    );
    let warned = api.post(DEPLOYMENTS, object).await;
    assert_eq!(warned.code, 201);
    assert_eq!(
        warned.headers.get("warning").unwrap(),
        "299 - \"unknown field \\\"spec.replica\\\"\""
    );
    assert_eq!(warned.body["spec"].get("replica"), None);
}

#[tokio::test]
async fn wrong_types() {
    let api = Api::start().await;
    let mut object = deployment("web");
    object["spec"]["replicas"] = json!("three");
    let status = refused_json(&api, DEPLOYMENTS, object).await;
    assert_eq!(status["code"], 400);
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"),
        "{message}"
    );
}

#[tokio::test]
async fn a_name_that_is_none() {
    let api = Api::start().await;
    let status = refused_json(&api, DEPLOYMENTS, deployment("Web_1")).await;
    assert_eq!(status["code"], 422);
    assert_eq!(status["reason"], "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    assert_eq!(status["details"]["group"], "apps");
    let mut nameless = config_map("x");
    nameless["metadata"] = json!({});
    let status = refused_json(&api, CONFIG_MAPS, nameless).await;
    assert_eq!(
        status["message"],
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
}

#[tokio::test]
async fn a_selector_that_does_not_match_its_template() {
    let api = Api::start().await;
    let mut object = deployment("web");
    object["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
    let status = refused_json(&api, DEPLOYMENTS, object).await;
    assert_eq!(status["code"], 422);
    assert_eq!(
        status["details"]["causes"][0]["field"],
        "spec.template.metadata.labels"
    );
}

#[tokio::test]
async fn duplicates_and_missing_namespaces() {
    let api = Api::start().await;
    api.create(CONFIG_MAPS, config_map("x")).await;
    let status = refused_json(&api, CONFIG_MAPS, config_map("x")).await;
    assert_eq!(status["code"], 409);
    assert_eq!(status["reason"], "AlreadyExists");
    assert_eq!(status["message"], "configmaps \"x\" already exists");
    let nowhere = "/api/v1/namespaces/nowhere/configmaps";
    let status = refused_json(&api, nowhere, config_map("x")).await;
    assert_eq!(status["code"], 404);
    assert_eq!(status["message"], "namespaces \"nowhere\" not found");
    let mut elsewhere = config_map("y");
    elsewhere["metadata"]["namespace"] = json!("kube-system");
    let status = refused_json(&api, CONFIG_MAPS, elsewhere).await;
    assert_eq!(
        status["message"],
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

#[tokio::test]
async fn another_kind_or_version() {
    let api = Api::start().await;
    let status = refused_json(&api, CONFIG_MAPS, pod("x")).await;
    assert_eq!(status["code"], 400);
    assert_eq!(
        status["message"],
        "Pod in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion"
    );
    let mut object = config_map("x");
    object["apiVersion"] = json!("v2");
    let status = refused_json(&api, CONFIG_MAPS, object).await;
    assert_eq!(
        status["message"],
        "the API version in the data (v2) does not match the expected API version (v1)"
    );
}

#[tokio::test]
async fn an_immutable_field() {
    let api = Api::start().await;
    api.create(DEPLOYMENTS, deployment("web")).await;
    let answer = api
        .patch(
            &format!("{DEPLOYMENTS}/web"),
            "merge-patch+json",
            json!({"spec": {
                "selector": {"matchLabels": {"app": "x"}},
                "template": {"metadata": {"labels": {"app": "x"}}},
            }}),
        )
        .await;
    assert_eq!(answer.code, 422, "{}", answer.body);
    assert_eq!(
        answer.body["details"]["causes"][0]["field"],
        "spec.selector"
    );
    let message = answer.body["message"].as_str().unwrap();
    assert!(message.ends_with("field is immutable"), "{message}");
}

#[tokio::test]
async fn names_on_the_url() {
    let api = Api::start().await;
    api.create(CONFIG_MAPS, config_map("x")).await;
    let answer = api.put(&format!("{CONFIG_MAPS}/x"), config_map("y")).await;
    assert_eq!(answer.code, 400);
    assert_eq!(
        answer.body["message"],
        "the name of the object (y) does not match the name on the URL (x)"
    );
    let answer = api.put(&format!("{CONFIG_MAPS}/z"), config_map("z")).await;
    assert_eq!(answer.code, 404);
    assert_eq!(answer.body["message"], "configmaps \"z\" not found");
}

#[tokio::test]
async fn paths_and_methods_that_are_not_served() {
    let api = Api::start().await;
    for path in [
        "/api/v1/nothings",
        "/apis/nobody/v1/things",
        "/api/v1/pods/x",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/namespaces/default/configmaps/x/status",
    ] {
        let answer = api.get(path).await;
        assert_eq!(answer.code, 404, "{path}");
        assert_eq!(
            answer.body["message"],
            "the server could not find the requested resource"
        );
    }
    let answer = api.get("/nowhere").await;
    assert_eq!(
        (answer.code, answer.body),
        (404, json!("404 page not found\n"))
    );
    let answer = api.post("/api/v1/pods", pod("x")).await;
    assert_eq!(answer.code, 405);
    assert_eq!(answer.body["reason"], "MethodNotAllowed");
    let answer = api
        .patch(&format!("{CONFIG_MAPS}/x"), "nonsense", json!({}))
        .await;
    assert_eq!(answer.code, 415);
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    let answer = api
        .call(Method::GET, CONFIG_MAPS, &accept, Body::empty())
        .await;
    assert_eq!(answer.code, 406);
}

#[tokio::test]
async fn people_nobody_knows() {
    let api = Api::start().await;
    let answer = api.as_user("").get(PODS).await;
    assert_eq!(answer.code, 401);
    assert_eq!(answer.body["reason"], "Unauthorized");
    assert_eq!(api.as_user("").get("/livez").await.body, json!("ok"));
    let jane = api.as_user("jane");
    let answer = jane.get(PODS).await;
    assert_eq!(answer.code, 403);
    assert_eq!(
        answer.body["message"],
        "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let answer = jane.get("/apis/apps/v1/deployments").await;
    assert_eq!(
        answer.body["message"],
        "deployments.apps is forbidden: User \"jane\" cannot list resource \"deployments\" in API group \"apps\" at the cluster scope"
    );
    let answer = jane.get("/metrics").await;
    assert_eq!(
        answer.body["message"],
        "forbidden: User \"jane\" cannot get path \"/metrics\""
    );
    assert_eq!(jane.get("/version").await.body["gitVersion"], "v1.36.0");
    assert_eq!(jane.get("/apis").await.code, 200);
}

#[tokio::test]
async fn a_nodes_agent_sees_what_concerns_its_node() {
    let api = Api::start().await;
    let node = json!({"metadata": {"name": "n1"}});
    let agent = api.as_user("node:n1");
    agent.create("/api/v1/nodes", node).await;
    let other = json!({"metadata": {"name": "n2"}});
    assert_eq!(agent.post("/api/v1/nodes", other).await.code, 403);

    let secret = |name: &str| json!({"metadata": {"name": name}, "data": {}});
    let secrets = "/api/v1/namespaces/default/secrets";
    api.create(secrets, secret("used")).await;
    api.create(secrets, secret("unused")).await;
    let mut object = pod("web");
    object["spec"]["nodeName"] = json!("n1");
    object["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "used"}}]);
    api.create(PODS, object).await;
    // The authoriser reads the hub's pods: a consistent list waits for them.
    api.get(PODS).await;
    assert_eq!(agent.get(&format!("{secrets}/used")).await.code, 200);
    assert_eq!(agent.get(&format!("{secrets}/unused")).await.code, 403);
    assert_eq!(agent.get(secrets).await.code, 403);
    assert_eq!(agent.get(&format!("{PODS}/web")).await.code, 200);
    assert_eq!(
        api.as_user("node:n2")
            .get(&format!("{PODS}/web"))
            .await
            .code,
        403
    );
}
