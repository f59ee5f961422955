//! Services: addresses and ports are given out once and come back.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Api, SERVICES, service};

fn ip(service: &Value) -> &str {
    service["spec"]["clusterIP"].as_str().unwrap()
}

#[tokio::test]
async fn addresses_are_unique_even_in_a_race() {
    let api = Api::start().await;
    let created = join_all((0..20).map(|index| {
        let api = &api;
        async move { api.create(SERVICES, service(&format!("s{index}"))).await }
    }))
    .await;
    let distinct: BTreeSet<&str> = created.iter().map(ip).collect();
    assert_eq!(distinct.len(), 20);
    assert_eq!(created[0]["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(created[0]["spec"]["clusterIPs"], json!([ip(&created[0])]));
}

#[tokio::test]
async fn an_address_can_be_chosen_once() {
    let api = Api::start().await;
    let mut chosen = service("a");
    chosen["spec"]["clusterIP"] = json!("10.96.0.10");
    api.create(SERVICES, chosen.clone()).await;
    chosen["metadata"]["name"] = json!("b");
    let answer = api.post(SERVICES, chosen.clone()).await;
    assert_eq!(answer.code, 422);
    assert_eq!(
        answer.body["message"],
        "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: provided IP is already allocated"
    );
    api.delete(&format!("{SERVICES}/a")).await;
    api.create(SERVICES, chosen).await;
}

#[tokio::test]
async fn node_ports_come_and_go_with_the_type() {
    let api = Api::start().await;
    let mut object = service("a");
    object["spec"]["type"] = json!("NodePort");
    object["spec"]["ports"][0]["nodePort"] = json!(30080);
    api.create(SERVICES, object.clone()).await;
    object["metadata"]["name"] = json!("b");
    let answer = api.post(SERVICES, object.clone()).await;
    assert_eq!(answer.code, 422);
    assert_eq!(
        answer.body["message"],
        "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
    );
    let answer = api
        .patch(
            &format!("{SERVICES}/a"),
            "merge-patch+json",
            json!({"spec": {"type": "ClusterIP"}}),
        )
        .await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(answer.body["spec"]["ports"][0].get("nodePort"), None);
    api.create(SERVICES, object).await;
    let mut any = service("c");
    any["spec"]["type"] = json!("NodePort");
    let created = api.create(SERVICES, any).await;
    let port = created["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
}

#[tokio::test]
async fn headless_services_have_no_address() {
    let api = Api::start().await;
    let mut object = service("a");
    object["spec"]["clusterIP"] = json!("None");
    let created = api.create(SERVICES, object).await;
    assert_eq!(created["spec"]["clusterIPs"], json!(["None"]));
}

#[tokio::test]
async fn applying_again_keeps_the_address() {
    let api = Api::start().await;
    let created = api.create(SERVICES, service("a")).await;
    let mut again = service("a");
    again["spec"]["ports"][0]["targetPort"] = json!(8080);
    let answer = api.put(&format!("{SERVICES}/a"), again).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(ip(&answer.body), ip(&created));
}
