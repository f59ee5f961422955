//! Watches: resume, selectors, bookmarks, the end of history.

use serde_json::json;

use super::{Api, CONFIG_MAPS, config_map};

#[tokio::test]
async fn a_watch_begins_with_what_is_there_and_goes_on() {
    let api = Api::start().await;
    api.create(CONFIG_MAPS, config_map("a")).await;
    let mut watch = api.watch(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert_eq!(watch.summary().await, "ADDED a");
    api.create(CONFIG_MAPS, config_map("b")).await;
    assert_eq!(watch.summary().await, "ADDED b");
    api.patch(
        &format!("{CONFIG_MAPS}/b"),
        "merge-patch+json",
        json!({"data": {"a": "2"}}),
    )
    .await;
    let frame = watch.next().await.unwrap();
    assert_eq!(frame["type"], "MODIFIED");
    assert_eq!(frame["object"]["data"]["a"], "2");
    api.delete(&format!("{CONFIG_MAPS}/a")).await;
    let frame = watch.next().await.unwrap();
    assert_eq!(frame["type"], "DELETED");
    assert_eq!(
        frame["object"]["metadata"]["resourceVersion"],
        api.store.revision().to_string()
    );
}

#[tokio::test]
async fn a_watch_resumes_even_after_a_restart() {
    let api = Api::start().await;
    let created = api.create(CONFIG_MAPS, config_map("a")).await;
    let revision = created["metadata"]["resourceVersion"].as_str().unwrap();
    api.create(CONFIG_MAPS, config_map("b")).await;
    api.delete(&format!("{CONFIG_MAPS}/a")).await;
    let query = format!("{CONFIG_MAPS}?watch=true&resourceVersion={revision}");
    let restarted = Api {
        server: Api::serve(&api.store).await,
        store: api.store.clone(),
        user: "admin",
        directory: None,
    };
    for api in [&api, &restarted] {
        let mut watch = api.watch(&query).await;
        assert_eq!(watch.summary().await, "ADDED b");
        let frame = watch.next().await.unwrap();
        assert_eq!(frame["type"], "DELETED");
        assert_eq!(frame["object"]["data"]["a"], "1", "the last state is shown");
    }
}

#[tokio::test]
async fn objects_come_and_go_with_the_selector() {
    let api = Api::start().await;
    let path = format!("{CONFIG_MAPS}/a");
    let mut watch = api
        .watch(&format!("{CONFIG_MAPS}?watch=1&labelSelector=on%3Dyes"))
        .await;
    api.create(CONFIG_MAPS, config_map("a")).await;
    let label = |value: &str| json!({"metadata": {"labels": {"on": value}}});
    api.patch(&path, "merge-patch+json", label("yes")).await;
    assert_eq!(watch.summary().await, "ADDED a");
    api.patch(&path, "merge-patch+json", label("no")).await;
    let frame = watch.next().await.unwrap();
    assert_eq!(frame["type"], "DELETED");
    assert_eq!(frame["object"]["metadata"]["labels"]["on"], "yes");
    api.patch(&path, "merge-patch+json", label("yes")).await;
    assert_eq!(watch.summary().await, "ADDED a");
    api.delete(&path).await;
    assert_eq!(watch.summary().await, "DELETED a");
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let api = Api::start().await;
    api.create(CONFIG_MAPS, config_map("a")).await;
    let mut watch = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ))
        .await;
    assert_eq!(watch.summary().await, "ADDED a");
    let frame = watch.next().await.unwrap();
    assert_eq!(frame["type"], "BOOKMARK");
    assert_eq!(
        frame["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let answer = api
        .get(&format!("{CONFIG_MAPS}?watch=true&sendInitialEvents=true"))
        .await;
    assert_eq!(answer.code, 422);
}

#[tokio::test]
async fn compacted_revisions_are_gone() {
    let api = Api::start().await;
    let created = api.create(CONFIG_MAPS, config_map("a")).await;
    let revision = created["metadata"]["resourceVersion"].as_str().unwrap();
    api.create(CONFIG_MAPS, config_map("b")).await;
    api.create(CONFIG_MAPS, config_map("c")).await;
    api.store.compact(api.store.revision()).await.unwrap();
    let restarted = Api {
        server: Api::serve(&api.store).await,
        store: api.store.clone(),
        user: "admin",
        directory: None,
    };
    let query = format!("{CONFIG_MAPS}?watch=true&resourceVersion={revision}");
    let mut watch = restarted.watch(&query).await;
    let frame = watch.next().await.unwrap();
    assert_eq!(frame["type"], "ERROR");
    assert_eq!(frame["object"]["code"], 410);
    assert_eq!(frame["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_with_a_bookmark() {
    let api = Api::start().await;
    let mut watch = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&timeoutSeconds=3&allowWatchBookmarks=true"
        ))
        .await;
    let frame = watch.next().await.unwrap();
    assert_eq!(frame["type"], "BOOKMARK");
    assert_eq!(frame["object"]["kind"], "ConfigMap");
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn one_object_is_watched_by_name() {
    let api = Api::start().await;
    let mut watch = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&fieldSelector=metadata.name%3Dab"
        ))
        .await;
    let mut old = api
        .watch("/api/v1/watch/namespaces/default/configmaps/ab")
        .await;
    api.create(CONFIG_MAPS, config_map("abc")).await;
    api.create(CONFIG_MAPS, config_map("ab")).await;
    assert_eq!(watch.summary().await, "ADDED ab");
    assert_eq!(old.summary().await, "ADDED ab");
}
