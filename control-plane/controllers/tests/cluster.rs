//! Controllers and scheduler over a real API and store in a temporary directory. A small stand-in
//! for a node's agent makes bound pods run and lets deleted ones end; everything else is the real
//! thing. Tests wait for what the API shows, never for time.

#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::request::Parts;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, Pod, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use pintle_api::auth::authenticate::{
    Authenticate, IssuedToken, PeerCertificate, TokenIssuer, TokenSpec,
};
use pintle_api::client::{
    Client, DeleteParams, InformerEvent, Kind, ListParams, Patch, PropagationPolicy, UserInfo,
};
use pintle_api::clock::SystemClock;
use pintle_api::server::{ApiConfig, ApiServer, DefaultTolerations, VersionInfo};
use pintle_api::stream::{NodeProxy, NodeStream};
use pintle_controllers::{ControllersConfig, NodeLife};
use pintle_kube_types::Status;
use pintle_proto::node::open_stream::Target;
use pintle_scheduler::SchedulerConfig;
use pintle_store::{Store, StoreConfig};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[path = "cluster/node_life.rs"]
mod node_life;

struct Nobody;

impl Authenticate for Nobody {
    fn authenticate(&self, _: &Parts, _: Option<&PeerCertificate>) -> Result<UserInfo, Status> {
        Err(Status::unauthorized())
    }
}

impl TokenIssuer for Nobody {
    fn issue(&self, _: &TokenSpec) -> Result<IssuedToken, Status> {
        Err(Status::unauthorized())
    }
}

#[async_trait]
impl NodeProxy for Nobody {
    async fn open(&self, node: &str, _: Target) -> Result<NodeStream, Status> {
        Err(Status::service_unavailable(format!(
            "no session with {node}"
        )))
    }
}

/// A cluster of one node, to begin with.
struct Cluster {
    client: Client,
    node_life: NodeLife,
    /// The nodes whose agents renew their Leases; an empty set on which nobody acts until a Lease
    /// exists.
    alive: Alive,
    changes: watch::Receiver<u64>,
    stop: CancellationToken,
    controllers: CancellationToken,
    tasks: JoinSet<()>,
    _directory: tempfile::TempDir,
}

type Alive = Arc<Mutex<BTreeSet<String>>>;

impl Cluster {
    async fn start() -> Self {
        Self::start_with(NodeLife::default()).await
    }

    async fn start_with(node_life: NodeLife) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig {
            data_dir: directory.path().to_owned(),
            ..StoreConfig::default()
        })
        .await
        .unwrap();
        let server = Box::pin(ApiServer::build(ApiConfig {
            store,
            service_cidr: "10.96.0.0/16".to_owned(),
            node_ports: (30000, 32767),
            cluster_domain: "cluster.local".to_owned(),
            advertise: None,
            authenticator: Arc::new(Nobody),
            token_issuer: Arc::new(Nobody),
            node_proxy: Arc::new(Nobody),
            default_tolerations: DefaultTolerations::default(),
            version: VersionInfo {
                major: "1".to_owned(),
                minor: "36".to_owned(),
                git_version: "v1.36.0".to_owned(),
                git_commit: String::new(),
                git_tree_state: String::new(),
                build_date: String::new(),
                go_version: String::new(),
                compiler: String::new(),
                platform: String::new(),
            },
            clock: Arc::new(SystemClock),
        }))
        .await
        .unwrap();
        let client = server.client(UserInfo::new("admin", &["system:masters"]));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let controllers = stop.child_token();
        tasks.spawn(control(client.clone(), node_life, controllers.clone()));
        {
            let (config, stop) = (SchedulerConfig::new(client.clone()), stop.clone());
            tasks.spawn(async move { pintle_scheduler::run(config, stop).await.unwrap() });
        }
        {
            let stop = stop.clone();
            tasks.spawn(async move { server.run(stop).await });
        }
        let alive = Alive::default();
        tasks.spawn(agent(client.clone(), alive.clone(), stop.clone()));
        tasks.spawn(beat(client.clone(), alive.clone(), stop.clone()));
        let (sender, changes) = watch::channel(0);
        let sender = Arc::new(sender);
        follow::<Pod>(&client, &sender, &stop, &mut tasks);
        follow::<Node>(&client, &sender, &stop, &mut tasks);
        follow::<ReplicaSet>(&client, &sender, &stop, &mut tasks);
        follow::<Deployment>(&client, &sender, &stop, &mut tasks);
        follow::<EndpointSlice>(&client, &sender, &stop, &mut tasks);
        follow::<Endpoints>(&client, &sender, &stop, &mut tasks);
        follow::<Namespace>(&client, &sender, &stop, &mut tasks);
        follow::<ServiceAccount>(&client, &sender, &stop, &mut tasks);
        follow::<ConfigMap>(&client, &sender, &stop, &mut tasks);
        follow::<Event>(&client, &sender, &stop, &mut tasks);
        follow::<PodDisruptionBudget>(&client, &sender, &stop, &mut tasks);
        let cluster = Self {
            client,
            node_life,
            alive,
            changes,
            stop,
            controllers,
            tasks,
            _directory: directory,
        };
        cluster.add_node("node1").await;
        cluster
            .until("the default service account", || {
                cluster.get::<ServiceAccount>("default/default").is_some()
            })
            .await;
        cluster
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// Stops the controllers in the middle of whatever they do, and starts them again.
    fn restart_controllers(&mut self) {
        self.controllers.cancel();
        self.controllers = self.stop.child_token();
        self.tasks.spawn(control(
            self.client.clone(),
            self.node_life,
            self.controllers.clone(),
        ));
    }

    /// Waits until the API shows what is wanted.
    async fn until(&self, what: &str, test: impl Fn() -> bool) {
        let mut changes = self.changes.clone();
        let wait = async {
            loop {
                changes.mark_unchanged();
                if test() {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(Duration::from_mins(1), wait)
            .await
            .is_err()
        {
            panic!("{what} did not come:\n{}", self.dump());
        }
    }

    fn dump(&self) -> String {
        let mut lines = Vec::new();
        for rs in self.all::<ReplicaSet>() {
            lines.push(format!("{:?} {:?}", rs.metadata.name, rs.status));
        }
        for deployment in self.all::<Deployment>() {
            lines.push(format!(
                "{:?} {:?}",
                deployment.metadata.name, deployment.status
            ));
        }
        for pod in self.all::<Pod>() {
            lines.push(format!("{:?} {:?}", pod.metadata.name, pod.status));
        }
        for node in self.all::<Node>() {
            lines.push(format!("{:?} {:?}", node.metadata.name, node.spec));
        }
        for event in self.all::<Event>() {
            lines.push(format!("{:?} {:?}", event.reason, event.message));
        }
        lines.join("\n")
    }

    fn get<K: Kind>(&self, key: &str) -> Option<Arc<K>> {
        self.client.informer::<K>().get(key)
    }

    fn all<K: Kind>(&self) -> Vec<Arc<K>> {
        self.client.informer::<K>().list()
    }

    async fn create<K: Kind>(&self, object: Value) -> K {
        let object: K = serde_json::from_value(object).unwrap();
        self.client.create(&object).await.unwrap()
    }

    async fn patch<K: Kind>(&self, name: &str, patch: Value) {
        self.client
            .patch::<K>(Some("default"), name, &Patch::Strategic(patch), None)
            .await
            .unwrap();
    }

    /// What an agent does first when it hears of its cluster again.
    async fn catch_up(&self, node: &str) {
        for pod in self.all::<Pod>() {
            if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) {
                attend(&self.client, &pod).await;
            }
        }
    }

    async fn add_node(&self, name: &str) {
        self.create::<Node>(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        }))
        .await;
        let status = json!({"status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        self.client
            .patch::<Node>(None, name, &Patch::Merge(status), Some("status"))
            .await
            .unwrap();
    }

    async fn create_web(&self, replicas: i32) {
        self.create::<Deployment>(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]},
                },
            },
        }))
        .await;
    }

    fn web_is_complete(&self, replicas: i32) -> bool {
        self.get::<Deployment>("default/web").is_some_and(|web| {
            let status = web.status.clone().unwrap_or_default();
            let condition = |type_: &str| {
                status
                    .conditions
                    .iter()
                    .flatten()
                    .find(|condition| condition.type_ == type_)
                    .and_then(|condition| condition.reason.clone())
                    .unwrap_or_default()
            };
            status.observed_generation == web.metadata.generation
                && status.updated_replicas == Some(replicas)
                && status.replicas == Some(replicas)
                && status.available_replicas == Some(replicas)
                && condition("Progressing") == "NewReplicaSetAvailable"
                && condition("Available") == "MinimumReplicasAvailable"
        })
    }

    fn messages(&self, reason: &str) -> Vec<String> {
        self.all::<Event>()
            .iter()
            .filter(|event| event.reason.as_deref() == Some(reason))
            .filter_map(|event| event.message.clone())
            .collect()
    }

    fn ready_endpoints(&self) -> BTreeSet<String> {
        self.all::<EndpointSlice>()
            .iter()
            .filter(|slice| {
                slice.metadata.labels.as_ref().is_some_and(|labels| {
                    labels.get("kubernetes.io/service-name").map(String::as_str) == Some("web")
                })
            })
            .flat_map(|slice| slice.endpoints.clone().unwrap_or_default())
            .filter(|endpoint| {
                endpoint
                    .conditions
                    .as_ref()
                    .is_some_and(|conditions| conditions.ready == Some(true))
            })
            .flat_map(|endpoint| endpoint.addresses)
            .collect()
    }

    fn revision(&self, key: &str) -> Option<String> {
        annotation(&self.get::<ReplicaSet>(key)?.metadata, "revision")
    }
}

fn annotation(
    meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    name: &str,
) -> Option<String> {
    meta.annotations
        .as_ref()?
        .get(&format!("deployment.kubernetes.io/{name}"))
        .cloned()
}

async fn control(client: Client, node_life: NodeLife, stop: CancellationToken) {
    let config = ControllersConfig {
        node_life,
        ..ControllersConfig::new(client, "10.244.0.0/16", "PEM")
    };
    pintle_controllers::run(config, stop).await.unwrap();
}

/// Tells the waiting test of every change of a kind.
fn follow<K: Kind>(
    client: &Client,
    sender: &Arc<watch::Sender<u64>>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let mut events = client.informer::<K>().subscribe();
    let (sender, stop) = (Arc::clone(sender), stop.clone());
    tasks.spawn(async move {
        let forward = async {
            while events.next().await.is_some() {
                sender.send_modify(|count| *count += 1);
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = forward => {}
        }
    });
}

/// Renews the Leases of the nodes that are alive.
async fn beat(client: Client, alive: Alive, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let nodes = alive.lock().unwrap().clone();
        for node in nodes {
            let now = client.now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            let patch = Patch::Merge(json!({"spec": {"renewTime": now}}));
            client
                .patch::<Lease>(Some("kube-node-lease"), &node, &patch, None)
                .await
                .unwrap();
        }
    }
}

/// Runs every bound pod, at once and successfully; ends deleted ones. Of nodes that have ever been
/// alive it acts for those that are.
async fn agent(client: Client, alive: Alive, stop: CancellationToken) {
    let mut pods = client.informer::<Pod>().subscribe();
    let leases = client.informer::<Lease>();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = pods.next() => event,
        };
        let Some(InformerEvent::Added(pod) | InformerEvent::Updated { new: pod, .. }) = event
        else {
            continue;
        };
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
            continue;
        };
        let beats = leases.get(&format!("kube-node-lease/{node}")).is_some();
        if !beats || alive.lock().unwrap().contains(node) {
            attend(&client, &pod).await;
        }
    }
}

/// What an agent does about one pod of its node.
async fn attend(client: &Client, pod: &Pod) {
    static ADDRESS: AtomicUsize = AtomicUsize::new(2);
    let (namespace, name) = (
        pod.metadata.namespace.as_deref(),
        pod.metadata.name.as_deref().unwrap(),
    );
    if pod.metadata.deletion_timestamp.is_some() {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            precondition_uid: pod.metadata.uid.clone(),
            ..DeleteParams::default()
        };
        let _gone = client.delete::<Pod>(namespace, name, &now).await.is_err();
    } else if pod
        .status
        .as_ref()
        .is_none_or(|status| status.pod_ip.is_none())
    {
        let address = ADDRESS.fetch_add(1, Ordering::Relaxed);
        let ip = format!("10.244.{}.{}", address / 250, address % 250);
        let now = client.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({"status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
        }});
        let patch = Patch::Strategic(status);
        let _gone = client
            .patch::<Pod>(namespace, name, &patch, Some("status"))
            .await
            .is_err();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_becomes_reachable_scales_rolls_and_goes() {
    let cluster = Cluster::start().await;
    cluster
        .create::<Service>(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        }))
        .await;
    cluster.create_web(3).await;
    cluster.until("3 pods", || cluster.web_is_complete(3)).await;
    cluster
        .until("3 endpoints", || cluster.ready_endpoints().len() == 3)
        .await;
    cluster
        .until("the older endpoints", || {
            cluster
                .get::<Endpoints>("default/web")
                .is_some_and(|endpoints| {
                    endpoints
                        .subsets
                        .iter()
                        .flatten()
                        .flat_map(|subset| subset.addresses.iter().flatten())
                        .count()
                        == 3
                })
        })
        .await;
    let first = cluster.all::<ReplicaSet>()[0]
        .metadata
        .name
        .clone()
        .unwrap();
    assert!(first.starts_with("web-"), "{first}");
    let first_key = format!("default/{first}");
    assert_eq!(cluster.revision(&first_key).as_deref(), Some("1"));
    let scaled = format!("Scaled up replica set {first} from 0 to 3");
    cluster
        .until("the events", || {
            cluster.messages("ScalingReplicaSet") == [scaled.clone()]
                && cluster.messages("SuccessfulCreate").len() == 3
                && cluster.messages("Scheduled").len() == 3
        })
        .await;
    assert!(cluster.messages("Scheduled").iter().all(|message| {
        message.starts_with(&format!("Successfully assigned default/{first}-"))
            && message.ends_with(" to node1")
    }));

    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 5}}))
        .await;
    cluster.until("5 pods", || cluster.web_is_complete(5)).await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 2}}))
        .await;
    cluster.until("2 pods", || cluster.web_is_complete(2)).await;
    cluster
        .until("2 endpoints", || cluster.ready_endpoints().len() == 2)
        .await;

    let image = |tag: &str| {
        json!({"spec": {"template": {"spec": {"containers": [
            {"name": "web", "image": format!("nginx:{tag}")},
        ]}}}})
    };
    cluster.patch::<Deployment>("web", image("1.28")).await;
    cluster
        .until("the new version", || {
            cluster.web_is_complete(2)
                && cluster.all::<ReplicaSet>().len() == 2
                && cluster.get::<Deployment>("default/web").is_some_and(|web| {
                    annotation(&web.metadata, "revision").as_deref() == Some("2")
                })
        })
        .await;
    cluster.patch::<Deployment>("web", image("1.27")).await;
    cluster
        .until("the way back", || {
            cluster.web_is_complete(2) && cluster.revision(&first_key).as_deref() == Some("3")
        })
        .await;
    let first_set = cluster.get::<ReplicaSet>(&first_key).unwrap();
    assert_eq!(
        annotation(&first_set.metadata, "revision-history").as_deref(),
        Some("1")
    );
    assert_eq!(
        cluster.all::<ReplicaSet>().len(),
        2,
        "the old set was reused"
    );

    let victim = cluster.all::<Pod>()[0].metadata.name.clone().unwrap();
    cluster
        .client
        .delete::<Pod>(Some("default"), &victim, &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until("a replacement", || {
            cluster.web_is_complete(2)
                && cluster
                    .all::<Pod>()
                    .iter()
                    .all(|pod| pod.metadata.name.as_deref() != Some(&victim))
                && cluster.all::<Pod>().len() == 2
        })
        .await;

    cluster
        .client
        .delete::<Deployment>(Some("default"), "web", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until("an empty cluster", || {
            cluster.all::<ReplicaSet>().is_empty() && cluster.all::<Pod>().is_empty()
        })
        .await;
    cluster
        .until("no endpoints", || cluster.ready_endpoints().is_empty())
        .await;
    cluster
        .client
        .delete::<Service>(Some("default"), "web", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until("no slices", || {
            cluster.get::<Endpoints>("default/web").is_none()
                && cluster
                    .all::<EndpointSlice>()
                    .iter()
                    .all(|slice| slice.metadata.name.as_deref() == Some("kubernetes"))
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_policies() {
    let cluster = Cluster::start().await;
    let delete = async |policy| {
        cluster
            .client
            .delete::<Deployment>(
                Some("default"),
                "web",
                &DeleteParams {
                    propagation_policy: Some(policy),
                    ..DeleteParams::default()
                },
            )
            .await
            .unwrap();
    };
    cluster.create_web(2).await;
    cluster.until("2 pods", || cluster.web_is_complete(2)).await;
    delete(PropagationPolicy::Foreground).await;
    cluster
        .until("nothing left", || {
            cluster.get::<Deployment>("default/web").is_none()
                && cluster.all::<Pod>().is_empty()
                && cluster.all::<ReplicaSet>().is_empty()
        })
        .await;

    cluster.create_web(2).await;
    cluster.until("2 pods", || cluster.web_is_complete(2)).await;
    let set = cluster.all::<ReplicaSet>()[0].metadata.uid.clone();
    delete(PropagationPolicy::Orphan).await;
    cluster
        .until("an orphan", || {
            cluster.get::<Deployment>("default/web").is_none()
                && cluster.all::<ReplicaSet>().iter().all(|rs| {
                    rs.metadata
                        .owner_references
                        .as_ref()
                        .is_none_or(Vec::is_empty)
                })
        })
        .await;
    assert_eq!(cluster.all::<Pod>().len(), 2);
    cluster.create_web(2).await;
    cluster
        .until("adoption", || {
            cluster.web_is_complete(2) && {
                let sets = cluster.all::<ReplicaSet>();
                sets.len() == 1
                    && sets[0].metadata.uid == set
                    && sets[0]
                        .metadata
                        .owner_references
                        .as_ref()
                        .is_some_and(|owners| !owners.is_empty())
            }
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_is_furnished_and_emptied() {
    let cluster = Cluster::start().await;
    cluster
        .create::<Namespace>(json!({"metadata": {"name": "team"}}))
        .await;
    cluster
        .until("its furniture", || {
            cluster.get::<ServiceAccount>("team/default").is_some()
                && cluster
                    .get::<ConfigMap>("team/kube-root-ca.crt")
                    .is_some_and(|map| {
                        map.data
                            .as_ref()
                            .and_then(|data| data.get("ca.crt"))
                            .map(String::as_str)
                            == Some("PEM")
                    })
        })
        .await;
    cluster
        .client
        .delete::<ConfigMap>(Some("team"), "kube-root-ca.crt", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until("the certificate again", || {
            cluster.get::<ConfigMap>("team/kube-root-ca.crt").is_some()
        })
        .await;
    cluster
        .create::<Deployment>(json!({
            "metadata": {"name": "web", "namespace": "team"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]},
                },
            },
        }))
        .await;
    cluster
        .until("2 pods", || {
            cluster
                .all::<Pod>()
                .iter()
                .filter(|pod| {
                    pod.status
                        .as_ref()
                        .is_some_and(|status| status.pod_ip.is_some())
                })
                .count()
                == 2
        })
        .await;
    cluster
        .client
        .delete::<Namespace>(None, "team", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until("its end", || cluster.get::<Namespace>("team").is_none())
        .await;
    // Each kind comes by a watch of its own.
    cluster
        .until("nothing left in it", || {
            cluster.all::<Pod>().is_empty()
                && cluster.get::<ServiceAccount>("team/default").is_none()
        })
        .await;
    let (left, _) = cluster
        .client
        .list::<Event>(Some("team"), &ListParams::default())
        .await
        .unwrap();
    assert!(left.is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_get_ranges_and_a_pending_pod_wakes_when_the_reason_goes() {
    let cluster = Cluster::start().await;
    let range = |name: &str| {
        cluster
            .get::<Node>(name)
            .and_then(|node| node.spec.clone()?.pod_cidr)
    };
    cluster
        .until("a range", || {
            range("node1").as_deref() == Some("10.244.0.0/24")
        })
        .await;
    cluster.add_node("node2").await;
    cluster
        .until("another range", || {
            range("node2").as_deref() == Some("10.244.1.0/24")
        })
        .await;
    cluster
        .client
        .delete::<Node>(None, "node2", &DeleteParams::default())
        .await
        .unwrap();
    let cordon = |on: bool| Patch::Merge(json!({"spec": {"unschedulable": on}}));
    cluster
        .client
        .patch::<Node>(None, "node1", &cordon(true), None)
        .await
        .unwrap();
    cluster
        .until("the taint", || {
            cluster.all::<Node>().len() == 1
                && cluster.get::<Node>("node1").is_some_and(|node| {
                    node.spec.as_ref().is_some_and(|spec| {
                        spec.taints
                            .iter()
                            .flatten()
                            .any(|taint| taint.key == "node.kubernetes.io/unschedulable")
                    })
                })
        })
        .await;
    cluster.create_web(1).await;
    let why = "0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are \
               available: 1 Preemption is not helpful for scheduling.";
    cluster
        .until("the explanation", || {
            cluster
                .messages("FailedScheduling")
                .contains(&why.to_owned())
                && cluster.all::<Pod>().iter().any(|pod| {
                    pod.status.as_ref().is_some_and(|status| {
                        status.conditions.iter().flatten().any(|condition| {
                            condition.type_ == "PodScheduled"
                                && condition.status == "False"
                                && condition.reason.as_deref() == Some("Unschedulable")
                        })
                    })
                })
        })
        .await;
    cluster
        .client
        .patch::<Node>(None, "node1", &cordon(false), None)
        .await
        .unwrap();
    cluster
        .until("the pod", || cluster.web_is_complete(1))
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_may_be_stopped_at_any_moment() {
    let mut cluster = Cluster::start().await;
    cluster.create_web(20).await;
    for pods in [1, 5, 12, 20] {
        cluster
            .until("some pods", || cluster.all::<Pod>().len() >= pods)
            .await;
        cluster.restart_controllers();
    }
    cluster
        .until("20 pods", || {
            cluster.web_is_complete(20) && cluster.all::<Pod>().len() == 20
        })
        .await;
    cluster
        .client
        .delete::<Deployment>(Some("default"), "web", &DeleteParams::default())
        .await
        .unwrap();
    cluster.restart_controllers();
    cluster
        .until("nothing left", || {
            cluster.all::<Pod>().is_empty() && cluster.all::<ReplicaSet>().is_empty()
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_leave_a_node_they_do_not_tolerate() {
    let cluster = Cluster::start().await;
    cluster.create_web(2).await;
    cluster.until("2 pods", || cluster.web_is_complete(2)).await;
    let before: BTreeSet<_> = cluster
        .all::<Pod>()
        .iter()
        .map(|pod| pod.metadata.name.clone())
        .collect();
    cluster.add_node("node2").await;
    let taint = json!({"spec": {"taints": [{"key": "repair", "effect": "NoExecute"}]}});
    cluster
        .client
        .patch::<Node>(None, "node1", &Patch::Merge(taint), None)
        .await
        .unwrap();
    cluster
        .until("others on the other node", || {
            let pods = cluster.all::<Pod>();
            cluster.web_is_complete(2)
                && pods.len() == 2
                && pods.iter().all(|pod| {
                    !before.contains(&pod.metadata.name)
                        && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
                            == Some("node2")
                })
        })
        .await;
    cluster.stop().await;
}
