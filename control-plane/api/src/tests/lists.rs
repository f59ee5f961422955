//! Lists: selectors, pages, revisions.

use ::http::Method;
use axum::body::Body;
use serde_json::{Value, json};

use super::{Api, CONFIG_MAPS, PODS, config_map, pod};

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

async fn five(api: &Api) {
    for (index, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let mut object = config_map(name);
        object["metadata"]["labels"] =
            json!({"parity": if index % 2 == 0 { "even" } else { "odd" }});
        api.create(CONFIG_MAPS, object).await;
    }
}

#[tokio::test]
async fn selectors() {
    let api = Api::start().await;
    five(&api).await;
    for (query, expected) in [
        ("labelSelector=parity%3Dodd", vec!["b", "d"]),
        ("labelSelector=parity%20in%20(even)", vec!["a", "c", "e"]),
        ("labelSelector=!parity", vec![]),
        ("fieldSelector=metadata.name%3Dc", vec!["c"]),
        (
            "fieldSelector=metadata.name!%3Dc&labelSelector=parity%3Deven",
            vec!["a", "e"],
        ),
    ] {
        let list = api.get(&format!("{CONFIG_MAPS}?{query}")).await.body;
        assert_eq!(names(&list), expected, "{query}");
    }
    let answer = api
        .get(&format!("{PODS}?fieldSelector=spec.nothing%3Dx"))
        .await;
    assert_eq!(answer.code, 400);
    assert_eq!(
        answer.body["message"],
        "field label not supported: spec.nothing"
    );
    let answer = api
        .get(&format!("{CONFIG_MAPS}?labelSelector=a%3D%3D%3D"))
        .await;
    assert_eq!(answer.code, 400);
}

#[tokio::test]
async fn a_pods_fields() {
    let api = Api::start().await;
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = json!("n1");
    api.create(PODS, bound).await;
    api.create(PODS, pod("free")).await;
    let list = api
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .body;
    assert_eq!(names(&list), ["bound"]);
    let list = api
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3D")
        .await
        .body;
    assert_eq!(names(&list), ["free"]);
}

#[tokio::test]
async fn pages_show_one_revision() {
    let api = Api::start().await;
    five(&api).await;
    let first = api.get(&format!("{CONFIG_MAPS}?limit=2")).await.body;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete(&format!("{CONFIG_MAPS}/c")).await;
    api.create(CONFIG_MAPS, config_map("dd")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = api
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await
        .body;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = api
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await
        .body;
    assert_eq!(names(&third), ["e"]);
    assert_eq!(third["metadata"].get("continue"), None);
}

#[tokio::test]
async fn a_token_whose_revision_is_gone_has_expired() {
    let api = Api::start().await;
    five(&api).await;
    let first = api.get(&format!("{CONFIG_MAPS}?limit=2")).await.body;
    api.create(CONFIG_MAPS, config_map("f")).await;
    api.store.compact(api.store.revision()).await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let answer = api
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await;
    assert_eq!(answer.code, 410);
    assert_eq!(answer.body["reason"], "Expired");
    let answer = api.get(&format!("{CONFIG_MAPS}?continue=nonsense")).await;
    assert_eq!(answer.code, 400);
}

#[tokio::test]
async fn revisions() {
    let api = Api::start().await;
    five(&api).await;
    let revision = api.get(CONFIG_MAPS).await.body["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    api.delete(&format!("{CONFIG_MAPS}/a")).await;
    let exact = format!("{CONFIG_MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    let list = api.get(&exact).await.body;
    assert_eq!(names(&list).len(), 5);
    let newer =
        format!("{CONFIG_MAPS}?resourceVersion={revision}&resourceVersionMatch=NotOlderThan");
    assert_eq!(api.get(&newer).await.code, 200);
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Sometimes",
    ] {
        let answer = api.get(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(answer.code, 422, "{query}: {}", answer.body);
    }
    let answer = api.get(&format!("{CONFIG_MAPS}?resourceVersion=x")).await;
    assert_eq!(answer.code, 400);
}

#[tokio::test]
async fn big_lists_are_compressed_for_those_who_ask() {
    let api = Api::start().await;
    for index in 0..4 {
        let mut object = config_map(&format!("big-{index}"));
        object["data"]["a"] = json!("0123456789".repeat(5000));
        api.create(CONFIG_MAPS, object).await;
    }
    let plain = api.get(CONFIG_MAPS).await;
    assert_eq!(names(&plain.body).len(), 4);
    let response = api
        .send(
            Method::GET,
            CONFIG_MAPS,
            &[("accept-encoding", "gzip")],
            Body::empty(),
        )
        .await;
    assert_eq!(response.headers().get("content-encoding").unwrap(), "gzip");
    let bytes = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap()
        .to_bytes();
    assert!(bytes.len() < 20_000, "{}", bytes.len());
    let unpacked: Value =
        serde_json::from_reader(flate2::read::GzDecoder::new(&bytes[..])).unwrap();
    assert_eq!(unpacked, plain.body);
}
