//! The in-process client: typed access, informers, events.

use k8s_openapi::api::core::v1::{ConfigMap, Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pintle_kube_types::GroupVersionResource;
use serde_json::json;

use super::{Api, CONFIG_MAPS, config_map};
use crate::auth::UserInfo;
use crate::client::{
    Client, DeleteParams, EventRecorder, InformerEvent, InformerEvents, ListParams,
    ObjectEventKind, Patch,
};

fn owned(name: &str, owner: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                name: "owner".to_owned(),
                uid: owner.to_owned(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn client(api: &Api) -> Client {
    api.server
        .client(UserInfo::controller("deployment-controller"))
}

async fn next(events: &mut InformerEvents<ConfigMap>) -> String {
    let name = |object: &ConfigMap| object.metadata.name.clone().unwrap_or_default();
    match events.next().await.unwrap() {
        InformerEvent::Added(object) => format!("added {}", name(&object)),
        InformerEvent::Updated { new, .. } => format!("updated {}", name(&new)),
        InformerEvent::Deleted(object) => format!("deleted {}", name(&object)),
        InformerEvent::Synced => "synced".to_owned(),
    }
}

#[tokio::test]
async fn typed_access_goes_through_the_pipeline() {
    let api = Api::start().await;
    let client = client(&api);
    let created = client.create(&owned("a", "u1")).await.unwrap();
    assert!(created.metadata.uid.is_some());
    let again = client.create(&owned("a", "u1")).await.unwrap_err();
    assert!(again.is_already_exists());
    let patch = Patch::Merge(json!({"data": {"x": "y"}}));
    let patched: ConfigMap = client
        .patch(Some("default"), "a", &patch, None)
        .await
        .unwrap();
    let stale = client.update(&created).await.unwrap_err();
    assert!(stale.is_conflict());
    let (all, revision) = client
        .list::<ConfigMap>(Some("default"), &ListParams::default())
        .await
        .unwrap();
    assert_eq!(all, [patched]);
    assert!(revision > 0);
    let nobody = client.impersonate(UserInfo::new("jane", &[]));
    let refused = nobody.get::<ConfigMap>(Some("default"), "a").await;
    assert_eq!(refused.unwrap_err().code, 403);
    client
        .delete::<ConfigMap>(Some("default"), "a", &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn an_informer_follows_and_indexes() {
    let api = Api::start().await;
    let client = client(&api);
    client.create(&owned("a", "u1")).await.unwrap();
    let informer = client.informer::<ConfigMap>();
    informer.synced().await;
    let mut events = informer.subscribe();
    assert_eq!(next(&mut events).await, "added a");
    assert_eq!(next(&mut events).await, "synced");
    client.create(&owned("b", "u1")).await.unwrap();
    client.create(&owned("c", "u2")).await.unwrap();
    assert_eq!(next(&mut events).await, "added b");
    assert_eq!(next(&mut events).await, "added c");
    let names = |uid: &str| -> Vec<String> {
        informer
            .by_owner(uid)
            .iter()
            .filter_map(|object| object.metadata.name.clone())
            .collect()
    };
    assert_eq!(names("u1"), ["a", "b"]);
    assert_eq!(informer.list_namespace("default").len(), 3);
    assert_eq!(informer.list_namespace("defaul").len(), 0);
    client
        .delete::<ConfigMap>(Some("default"), "b", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(next(&mut events).await, "deleted b");
    assert_eq!(names("u1"), ["a"]);
    assert!(informer.get("default/a").is_some());
}

#[tokio::test]
async fn a_slow_subscriber_sees_the_last_state_only() {
    let api = Api::start().await;
    let client = client(&api);
    let informer = client.informer::<ConfigMap>();
    let mut slow = informer.subscribe();
    assert_eq!(next(&mut slow).await, "synced");
    let mut quick = informer.subscribe();
    assert_eq!(next(&mut quick).await, "synced");
    let created = client.create(&owned("a", "u1")).await.unwrap();
    client.create(&owned("gone", "u1")).await.unwrap();
    let mut changed = created;
    changed.data = Some([("x".to_owned(), "y".to_owned())].into());
    client.update(&changed).await.unwrap();
    client
        .delete::<ConfigMap>(Some("default"), "gone", &DeleteParams::default())
        .await
        .unwrap();
    client.create(&owned("last", "u1")).await.unwrap();
    while next(&mut quick).await != "added last" {}
    let Some(InformerEvent::Added(object)) = slow.next().await else {
        panic!("expected an addition");
    };
    assert_eq!(object.data, changed.data);
    assert_eq!(next(&mut slow).await, "added last");
    assert!(slow.try_next().is_none());
}

#[tokio::test]
async fn raw_watches_resume() {
    let api = Api::start().await;
    let client = client(&api);
    let gvr = GroupVersionResource::of("", "v1", "configmaps");
    api.create(CONFIG_MAPS, config_map("a")).await;
    let mut watch = client
        .watch_raw(&gvr, None, &ListParams::default())
        .await
        .unwrap();
    let first = watch.next().await.unwrap().unwrap();
    assert_eq!(
        (first.kind, first.key()),
        (ObjectEventKind::Added, "default/a")
    );
    let end = watch.next().await.unwrap().unwrap();
    assert_eq!(end.kind, ObjectEventKind::InitialEventsEnd);
    api.create(CONFIG_MAPS, config_map("b")).await;
    let params = ListParams {
        resource_version: Some(end.revision),
        ..ListParams::default()
    };
    let mut resumed = client.watch_raw(&gvr, None, &params).await.unwrap();
    for watch in [&mut watch, &mut resumed] {
        let event = watch.next().await.unwrap().unwrap();
        assert_eq!(event.key(), "default/b");
    }
}

#[tokio::test]
async fn events_are_counted() {
    let api = Api::start().await;
    let client = client(&api);
    let informer = client.informer::<Event>();
    let mut events = informer.subscribe();
    let recorder = EventRecorder::new(&client, "deployment-controller");
    for _ in 0..3 {
        recorder.record(
            ObjectReference {
                kind: Some("Pod".to_owned()),
                name: Some("web".to_owned()),
                namespace: Some("default".to_owned()),
                ..ObjectReference::default()
            },
            "Normal",
            "Pulled",
            "it is here",
        );
    }
    loop {
        let event = events.next().await.unwrap();
        let (InformerEvent::Added(seen) | InformerEvent::Updated { new: seen, .. }) = event else {
            continue;
        };
        if seen.count == Some(3) {
            break;
        }
    }
    assert_eq!(informer.list().len(), 1);
    let event = &informer.list()[0];
    assert_eq!(event.reason.as_deref(), Some("Pulled"));
    assert!(event.metadata.name.as_deref().unwrap().starts_with("web."));
}
