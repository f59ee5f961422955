//! What a leader that was replaced still writes.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::Api;
use crate::auth::UserInfo;
use crate::client::{Client, DeleteParams, Fence, Patch};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}})).unwrap()
}

async fn leader(api: &Api, name: &str) -> Client {
    let fence = Fence::raise(&api.store, "/pintle/leader/test", name).await;
    let client = api.server.client(UserInfo::apiserver());
    client.fenced(fence.unwrap())
}

#[tokio::test]
async fn a_deposed_leader_reads_but_does_not_write() {
    let api = Api::start().await;
    let first = leader(&api, "1").await;
    let kept = first.create(&config_map("kept")).await.unwrap();
    let second = leader(&api, "2").await;

    let patch = Patch::Merge(json!({"data": {"a": "1"}}));
    let patched = first.patch::<ConfigMap>(Some("default"), "kept", &patch, None);
    let params = DeleteParams::default();
    let deleted = first.delete::<ConfigMap>(Some("default"), "kept", &params);
    // So does a client that was made of it, as each controller's is.
    let other = first.impersonate(UserInfo::apiserver());
    for refused in [
        first.create(&config_map("late")).await.map(drop),
        patched.await.map(drop),
        deleted.await,
        other.create(&config_map("late")).await.map(drop),
    ] {
        let status = refused.unwrap_err();
        assert_eq!(status.code, 503, "{status}");
        assert!(
            status.message.contains("a leader that was replaced"),
            "{status}"
        );
    }
    let seen: ConfigMap = first.get(Some("default"), "kept").await.unwrap();
    assert_eq!(
        seen.metadata.resource_version,
        kept.metadata.resource_version
    );
    let late = first.get::<ConfigMap>(Some("default"), "late").await;
    assert!(late.unwrap_err().is_not_found());

    // The one that leads now, and those that never led, are not hindered.
    second.create(&config_map("new")).await.unwrap();
    second
        .delete::<ConfigMap>(Some("default"), "kept", &params)
        .await
        .unwrap();
    let plain = api.server.client(UserInfo::apiserver());
    plain.create(&config_map("plain")).await.unwrap();
    // A conflict stays a conflict.
    let taken = second.create(&config_map("plain")).await.unwrap_err();
    assert!(taken.is_already_exists(), "{taken}");
}
