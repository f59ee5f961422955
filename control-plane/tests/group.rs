//! Several servers of one cluster: the API works on each, and outlives any of them.

#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use pintle_api::auth::UserInfo;
use pintle_control_plane::config::Cidr;
use pintle_control_plane::{ControlPlane, ControlPlaneConfig, Joins};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(40);

struct Server {
    control_plane: ControlPlane,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(dir: &Path, third: u8, raft_port: u16, joins: Option<Joins>) -> Self {
        let config = ControlPlaneConfig {
            data_dir: dir.join("data"),
            port: 0,
            raft_port,
            joins,
            pod_cidr: Cidr::v4([127, 79, third, 0], 24),
            kubeconfig: dir.join("admin.kubeconfig"),
            node_name: "node-a".to_owned(),
            ..ControlPlaneConfig::default()
        };
        let control_plane = Box::pin(ControlPlane::build(config)).await.unwrap();
        let stop = CancellationToken::new();
        let (running, token) = (control_plane.clone(), stop.clone());
        let task = tokio::spawn(async move { running.run(token).await.unwrap() });
        Self {
            control_plane,
            stop,
            task,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// What `pintle server --join` brings from the server it joins through.
fn share_keys(from: &Path, to: &Path) {
    let (from, to) = (
        from.join("data/control-plane/pki"),
        to.join("data/control-plane/pki"),
    );
    std::fs::create_dir_all(&to).unwrap();
    for name in ["ca.pem", "service-account.key"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let Ok(found) = tokio::time::timeout(PATIENCE, looking).await else {
        panic!("{what} does not happen");
    };
    found
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "data": {"a": "1"},
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_serve_and_outlive_one() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let first = Server::start(dirs[0].path(), 1, free_port(), None).await;
    assert_eq!(first.control_plane.members().len(), 1);
    let mut others = Vec::new();
    for (at, dir) in dirs.iter().enumerate().skip(1) {
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let joins = first.control_plane.add_member(&address).await.unwrap();
        share_keys(dirs[0].path(), dir.path());
        let third = u8::try_from(at + 1).unwrap();
        others.push(Server::start(dir.path(), third, port, Some(joins)).await);
    }
    until("all three vote", async || {
        let members = first.control_plane.members();
        (members.len() == 3 && members.iter().all(|member| member.voter)).then_some(())
    })
    .await;

    // Written through one, read through another.
    let admin = |server: &Server| server.control_plane.client(UserInfo::apiserver());
    let second = admin(&others[0]);
    second.create(&config_map("through-second")).await.unwrap();
    let read: ConfigMap = admin(&others[1])
        .get(Some("default"), "through-second")
        .await
        .unwrap();
    assert_eq!(read.data.unwrap()["a"], "1");
    let informer = second.informer::<ConfigMap>();
    until("an informer of a follower is in step", async || {
        informer.has_synced().then_some(())
    })
    .await;
    admin(&first)
        .create(&config_map("through-first"))
        .await
        .unwrap();
    until("a follower's informer hears of it", async || {
        informer.get("default/through-first")
    })
    .await;

    // Without the first, which led, the others go on: writes, and controllers on the new leader.
    first.stop().await;
    until("a write succeeds again", async || {
        second.create(&config_map("after")).await.ok()
    })
    .await;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web"}]},
            },
        },
    }))
    .unwrap();
    second.create(&deployment).await.unwrap();
    let third = admin(&others[1]);
    let pods = third.informer::<Pod>();
    until("the new leader's controllers make pods", async || {
        (pods.has_synced() && pods.list().len() == 2).then_some(())
    })
    .await;
    let status = others[0].control_plane.status();
    let store = status.iter().find(|check| check.name == "store").unwrap();
    assert!(store.detail.contains("3 members"), "{}", store.detail);
    for server in others {
        server.stop().await;
    }
}
