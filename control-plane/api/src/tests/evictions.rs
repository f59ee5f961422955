//! Disruption budgets and evictions: the codes and words that `kubectl drain` goes by.

use serde_json::{Value, json};

use super::{Answer, Api, PODS, pod};

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn budget(name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    })
}

impl Api {
    /// A running pod of the app, ready or not.
    async fn running(&self, name: &str, ready: &str) {
        let mut object = pod(name);
        object["metadata"]["labels"] = json!({"app": "web"});
        object["spec"]["nodeName"] = json!("n1");
        self.create(PODS, object).await;
        let status = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": ready}],
        }});
        let path = format!("{PODS}/{name}/status");
        let answer = self.patch(&path, "merge-patch+json", status).await;
        assert_eq!(answer.code, 200, "{}", answer.body);
    }

    /// What the disruption controller would say of the budget.
    async fn allow(&self, name: &str, disruptions: i32, healthy: i32) {
        let status = json!({"status": {
            "observedGeneration": 1, "disruptionsAllowed": disruptions,
            "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": healthy,
        }});
        let path = format!("{BUDGETS}/{name}/status");
        let answer = self.patch(&path, "merge-patch+json", status).await;
        assert_eq!(answer.code, 200, "{}", answer.body);
    }

    async fn evict(&self, name: &str, more: Value) -> Answer {
        let mut eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            eviction[field] = value.clone();
        }
        self.post(&format!("{PODS}/{name}/eviction"), eviction)
            .await
    }
}

#[tokio::test]
async fn a_budget_is_an_object_like_others() {
    let api = Api::start().await;
    let made = api.create(BUDGETS, budget("web")).await;
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(
        made["status"],
        json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0})
    );
    let path = format!("{BUDGETS}/web");
    let mut blind = budget("web");
    blind["spec"]["minAvailable"] = json!("30%");
    let answer = api.put(&path, blind.clone()).await;
    assert_eq!(answer.code, 422, "no update without a resourceVersion");
    blind["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    blind["status"] = json!({"disruptionsAllowed": 9});
    let answer = api.put(&path, blind).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(answer.body["metadata"]["generation"], 2);
    assert_eq!(answer.body["status"]["disruptionsAllowed"], 0);
    let mut wrong = budget("wrong");
    wrong["spec"]["maxUnavailable"] = json!(1);
    assert_eq!(api.post(BUDGETS, wrong).await.code, 422);

    let list = api.get("/api/v1").await.body;
    let named = |name: &str| {
        let resources = list["resources"].as_array().unwrap().iter();
        resources.clone().find(|r| r["name"] == name).cloned()
    };
    let eviction = named("pods/eviction").unwrap();
    assert_eq!(
        (&eviction["group"], &eviction["version"], &eviction["kind"]),
        (&json!("policy"), &json!("v1"), &json!("Eviction"))
    );
    let policy = api.get("/apis/policy").await.body;
    assert_eq!(policy["preferredVersion"]["groupVersion"], "policy/v1");
    let found = api.get("/openapi/v3/apis/policy/v1").await;
    assert_eq!(found.code, 200);
    let budget = "io.k8s.api.policy.v1.PodDisruptionBudget";
    assert!(found.body["components"]["schemas"][budget].is_object());
}

#[tokio::test]
async fn a_budget_lets_go_what_it_allows() {
    let api = Api::start().await;
    api.running("web-1", "True").await;
    api.running("web-2", "True").await;
    api.create(BUDGETS, budget("web")).await;

    let answer = api.evict("web-1", json!({})).await;
    assert_eq!(answer.code, 429, "{}", answer.body);
    assert_eq!(
        answer.headers["retry-after"], "10",
        "nobody looked at the budget"
    );
    assert_eq!(
        answer.body["details"]["causes"][0]["message"],
        "The disruption budget web is still being processed by the server."
    );

    api.allow("web", 1, 2).await;
    let dry = json!({"deleteOptions": {"dryRun": ["All"]}});
    assert_eq!(api.evict("web-1", dry).await.code, 201);
    let pod = api.get(&format!("{PODS}/web-1")).await.body;
    assert_eq!(pod["metadata"]["deletionTimestamp"], Value::Null);

    let answer = api
        .evict("web-1", json!({"deleteOptions": {"gracePeriodSeconds": 7}}))
        .await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(answer.body["status"], "Success");
    let pod = api.get(&format!("{PODS}/web-1")).await.body;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(
        (&target["status"], &target["reason"], &target["message"]),
        (
            &json!("True"),
            &json!("EvictionByEvictionAPI"),
            &json!("Eviction API: evicting")
        )
    );
    let spent = api.get(&format!("{BUDGETS}/web")).await.body;
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
    assert!(spent["status"]["disruptedPods"]["web-1"].is_string());
    assert_eq!(
        spent["status"]["conditions"][0]["reason"],
        "InsufficientPods"
    );

    let answer = api.evict("web-2", json!({})).await;
    assert_eq!(answer.code, 429);
    assert_eq!(answer.body["reason"], "TooManyRequests");
    assert_eq!(
        answer.body["message"],
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(
        answer.body["details"]["causes"][0]["reason"],
        "DisruptionBudget"
    );
    assert_eq!(answer.headers.get("retry-after"), None, "as Kubernetes");
}

#[tokio::test]
async fn one_disruption_goes_to_one_of_many() {
    let api = Api::start().await;
    let names = ["web-1", "web-2", "web-3", "web-4"];
    for name in names {
        api.running(name, "True").await;
    }
    api.create(BUDGETS, budget("web")).await;
    api.allow("web", 1, 4).await;
    let mut codes = Vec::new();
    let (one, two, three, four) = tokio::join!(
        api.evict(names[0], json!({})),
        api.evict(names[1], json!({})),
        api.evict(names[2], json!({})),
        api.evict(names[3], json!({})),
    );
    codes.extend([one.code, two.code, three.code, four.code]);
    codes.sort_unstable();
    assert_eq!(codes, [201, 429, 429, 429]);
    let spent = api.get(&format!("{BUDGETS}/web")).await.body;
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
}

#[tokio::test]
async fn pods_that_do_not_count_go_freely() {
    let api = Api::start().await;
    api.running("broken", "False").await;
    let mut pending = pod("pending");
    pending["metadata"]["labels"] = json!({"app": "web"});
    api.create(PODS, pending).await;
    api.create(BUDGETS, budget("web")).await;
    assert_eq!(api.evict("pending", json!({})).await.code, 201);
    assert_eq!(api.get(&format!("{PODS}/pending")).await.code, 404);
    api.allow("web", 0, 0).await;
    let answer = api.evict("broken", json!({})).await;
    assert_eq!(answer.code, 429, "too few are healthy");
    assert_eq!(
        answer.body["details"]["causes"][0]["message"],
        "The disruption budget web needs 1 healthy pods and has 0 currently"
    );
    let always = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    let path = format!("{BUDGETS}/web");
    let answer = api.patch(&path, "merge-patch+json", always).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let answer = api
        .evict(
            "broken",
            json!({"deleteOptions": {"gracePeriodSeconds": 0}}),
        )
        .await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    assert_eq!(api.get(&format!("{PODS}/broken")).await.code, 404);
}

#[tokio::test]
async fn what_an_eviction_cannot_be() {
    let api = Api::start().await;
    api.running("web-1", "True").await;
    api.create(BUDGETS, budget("one")).await;
    api.create(BUDGETS, budget("two")).await;
    let answer = api.evict("web-1", json!({})).await;
    assert_eq!(answer.code, 500);
    assert_eq!(
        answer.body["message"],
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    );
    assert_eq!(answer.body.get("reason"), None);
    api.delete(&format!("{BUDGETS}/one")).await;
    api.delete(&format!("{BUDGETS}/two")).await;
    for (more, code) in [
        (json!({"metadata": {"name": "other"}}), 400),
        (
            json!({"metadata": {"name": "web-1", "namespace": "other"}}),
            400,
        ),
        (json!({"apiVersion": "v1", "kind": "Pod"}), 400),
        (json!({"deleteOptions": "x"}), 400),
        (
            json!({"deleteOptions": {"preconditions": {"uid": "no"}}}),
            409,
        ),
        (
            json!({"deleteOptions": {"preconditions": {"resourceVersion": "1"}}}),
            409,
        ),
        (json!({"apiVersion": "policy/v1beta1"}), 201),
        (json!({}), 201),
    ] {
        let answer = api.evict("web-1", more.clone()).await;
        assert_eq!(answer.code, code, "{more}: {}", answer.body);
    }
    assert_eq!(api.evict("none", json!({})).await.code, 404);
}
