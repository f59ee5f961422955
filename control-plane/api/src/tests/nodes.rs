//! What a node's agent may and may not do: what is its own, and nothing of other nodes'.

use serde_json::{Value, json};

use super::{Answer, Api, PODS, pod};

const NODES: &str = "/api/v1/nodes";

fn refused(answer: &Answer, why: &str) {
    let said = answer.body["message"].as_str().unwrap_or_default();
    assert_eq!(answer.code, 403, "{said}");
    assert!(said.contains(why), "{said:?} does not say {why:?}");
}

fn bound(name: &str, node: &str) -> Value {
    let mut object = pod(name);
    object["spec"]["nodeName"] = json!(node);
    object
}

#[tokio::test]
async fn a_node_reads_and_writes_only_its_own() {
    let api = Api::start().await;
    let (n1, n2) = (api.as_user("node:n1"), api.as_user("node:n2"));
    n1.create(NODES, json!({"metadata": {"name": "n1"}})).await;
    n2.create(NODES, json!({"metadata": {"name": "n2"}})).await;
    api.create(PODS, bound("p1", "n1")).await;
    api.create(PODS, bound("p2", "n2")).await;
    api.get(PODS).await;

    assert_eq!(n1.get(&format!("{NODES}/n1")).await.code, 200);
    refused(
        &n1.get(&format!("{NODES}/n2")).await,
        "nodes \"n2\" is forbidden: User \"system:node:n1\" cannot get resource \"nodes\" in API group \"\" at the cluster scope: node 'n1' cannot read 'n2', only its own Node object",
    );
    refused(&n1.get(NODES).await, "node 'n1' cannot read all nodes");
    let own = n1
        .get(&format!("{NODES}?fieldSelector=metadata.name%3Dn1"))
        .await;
    assert_eq!(own.body["items"].as_array().map(Vec::len), Some(1));

    refused(
        &n1.get("/api/v1/pods").await,
        "spec.nodeName field selector",
    );
    let own = n1
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await;
    assert_eq!(own.body["items"].as_array().map(Vec::len), Some(1));
    refused(
        &n1.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2")
            .await,
        "spec.nodeName field selector",
    );
    let why = "no relationship found between node 'n1' and this object";
    let patch = json!({"status": {"phase": "Failed"}});
    let merge = "merge-patch+json";
    for answer in [
        n1.get(&format!("{PODS}/p2")).await,
        n1.delete(&format!("{PODS}/p2")).await,
        n1.patch(&format!("{PODS}/p2/status"), merge, patch.clone())
            .await,
        n1.post(
            &format!("{PODS}/p2/eviction"),
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p2"}}),
        )
        .await,
    ] {
        refused(&answer, why);
    }
    let status = n1.patch(&format!("{PODS}/p1/status"), merge, patch).await;
    assert_eq!(status.code, 200, "{}", status.body);

    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    assert_eq!(n1.post(leases, lease("n1")).await.code, 201);
    assert_eq!(n1.post(leases, lease("n2")).await.code, 403);
    refused(
        &n1.get(&format!("{leases}/n2")).await,
        "same name as the requesting node",
    );
}

#[tokio::test]
async fn a_node_does_not_choose_its_workloads() {
    let api = Api::start().await;
    let n1 = api.as_user("node:n1");
    let own = format!("{NODES}/n1");
    let merge = "merge-patch+json";
    refused(
        &n1.post(
            NODES,
            json!({"metadata": {"name": "n1", "labels": {
                "node-restriction.kubernetes.io/fips": "yes", "disk": "ssd"}}}),
        )
        .await,
        "is not allowed to set the following labels: node-restriction.kubernetes.io/fips",
    );
    n1.create(
        NODES,
        json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1", "disk": "ssd"}}}),
    )
    .await;
    let label = |name: &str, value: Value| json!({"metadata": {"labels": {name: value}}});
    let admin = api
        .patch(
            &own,
            merge,
            label("node-restriction.kubernetes.io/fips", json!("yes")),
        )
        .await;
    assert_eq!(admin.code, 200);
    for change in [
        label("node-restriction.kubernetes.io/fips", json!("no")),
        label("node-restriction.kubernetes.io/fips", Value::Null),
        label("node-role.kubernetes.io/control-plane", json!("")),
    ] {
        refused(
            &n1.patch(&own, merge, change).await,
            "is not allowed to modify labels",
        );
    }
    let disk = n1.patch(&own, merge, label("disk", json!("hdd"))).await;
    assert_eq!(disk.code, 200, "{}", disk.body);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    refused(
        &n1.patch(&own, merge, taint).await,
        "is not allowed to modify taints",
    );
}

#[tokio::test]
async fn a_node_gets_tokens_for_its_own_pods_only() {
    let api = Api::start().await;
    let n1 = api.as_user("node:n1");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    api.post(accounts, json!({"metadata": {"name": "builder"}}))
        .await;
    let create = async |name: &str, node: &str| {
        let mut object = bound(name, node);
        object["spec"]["serviceAccountName"] = json!("builder");
        let created = api.create(PODS, object).await;
        created["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (mine, theirs) = (create("p1", "n1").await, create("p2", "n2").await);
    api.get(PODS).await;
    let ask = async |reference: Value| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": ["x"], "boundObjectRef": reference}});
        n1.post(&format!("{accounts}/builder/token"), body).await
    };
    let pod = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    refused(&ask(Value::Null).await, "not bound to a pod");
    refused(&ask(pod("p1", "")).await, "without a uid");
    refused(
        &ask(pod("p2", &theirs)).await,
        "scheduled on a different node",
    );
    let granted = ask(pod("p1", &mine)).await;
    assert_eq!(granted.code, 201, "{}", granted.body);
}
