//! The whole API over a store in a temporary directory, driven through its router.

use std::sync::Arc;
use std::time::Duration;

use ::http::request::Parts;
use ::http::{HeaderMap, Method, Request};
use async_trait::async_trait;
use axum::body::Body;
use http_body_util::BodyExt;
use pintle_kube_types::status::Status;
use pintle_proto::node::open_stream::Target;
use pintle_store::{Store, StoreConfig};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::auth::authenticate::{
    Authenticate, IssuedToken, PeerCertificate, TokenIssuer, TokenSpec,
};
use crate::auth::{GROUP_AUTHENTICATED, GROUP_MASTERS, UserInfo};
use crate::clock::SystemClock;
use crate::server::{ApiConfig, ApiServer, DefaultTolerations, VersionInfo};
use crate::stream::{NodeProxy, NodeStream};

mod bad_input;
mod crud;
mod deletion;
mod evictions;
mod fencing;
mod informers;
mod lists;
mod nodes;
mod services;
mod subresources;
mod watches;

/// Takes the user from a header; nobody is there without one.
struct HeaderUser;

impl Authenticate for HeaderUser {
    fn authenticate(
        &self,
        parts: &Parts,
        _peer: Option<&PeerCertificate>,
    ) -> Result<UserInfo, Status> {
        let name = parts
            .headers
            .get("x-user")
            .and_then(|value| value.to_str().ok())
            .ok_or_else(Status::unauthorized)?;
        let group = if name == "admin" {
            GROUP_MASTERS
        } else {
            "people"
        };
        Ok(match name.strip_prefix("node:") {
            Some(node) => UserInfo::node(node),
            None => UserInfo::new(name, &[group, GROUP_AUTHENTICATED]),
        })
    }
}

struct Issuer;

impl TokenIssuer for Issuer {
    fn issue(&self, spec: &TokenSpec) -> Result<IssuedToken, Status> {
        Ok(IssuedToken {
            token: format!("token-of-{}-{}", spec.namespace, spec.service_account),
            audiences: spec.audiences.clone(),
            expires: jiff::Timestamp::UNIX_EPOCH,
        })
    }
}

struct NoNodes;

#[async_trait]
impl NodeProxy for NoNodes {
    async fn open(&self, node: &str, _target: Target) -> Result<NodeStream, Status> {
        Err(Status::service_unavailable(format!(
            "node {node} has no session"
        )))
    }
}

/// An API server and its store.
struct Api {
    server: ApiServer,
    store: Store,
    user: &'static str,
    directory: Option<Arc<tempfile::TempDir>>,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    code: u16,
    body: Value,
    headers: HeaderMap,
}

impl Api {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig {
            data_dir: directory.path().to_owned(),
            ..StoreConfig::default()
        })
        .await
        .unwrap();
        let api = Self {
            server: Self::serve(&store).await,
            store,
            user: "admin",
            directory: Some(Arc::new(directory)),
        };
        // What the service-account controller does in a cluster.
        api.create(
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "default"}}),
        )
        .await;
        api
    }

    async fn serve(store: &Store) -> ApiServer {
        ApiServer::build(ApiConfig {
            store: store.clone(),
            service_cidr: "10.96.0.0/16".to_owned(),
            node_ports: (30000, 32767),
            cluster_domain: "cluster.local".to_owned(),
            advertise: Some((vec!["192.0.2.1".parse().unwrap()], 6443)),
            authenticator: Arc::new(HeaderUser),
            token_issuer: Arc::new(Issuer),
            node_proxy: Arc::new(NoNodes),
            default_tolerations: DefaultTolerations::default(),
            version: VersionInfo {
                major: "1".to_owned(),
                minor: "36".to_owned(),
                git_version: "v1.36.0".to_owned(),
                git_commit: String::new(),
                git_tree_state: "clean".to_owned(),
                build_date: String::new(),
                go_version: String::new(),
                compiler: String::new(),
                platform: "linux/amd64".to_owned(),
            },
            clock: Arc::new(SystemClock),
        })
        .await
        .unwrap()
    }

    /// The same API for another user.
    fn as_user(&self, user: &'static str) -> Api {
        Api {
            server: self.server.clone(),
            store: self.store.clone(),
            user,
            directory: self.directory.clone(),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> ::http::Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if !self.user.is_empty() {
            request = request.header("x-user", self.user);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.server
            .router()
            .oneshot(request.body(body.into()).unwrap())
            .await
            .unwrap()
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let response = self.send(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
        Answer {
            code: parts.status.as_u16(),
            body: serde_json::from_slice(&bytes).unwrap_or_else(|_| text()),
            headers: parts.headers,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], Body::empty()).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.call(Method::POST, path, &json, body.to_string()).await
    }

    async fn put(&self, path: &str, body: Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.call(Method::PUT, path, &json, body.to_string()).await
    }

    async fn patch(&self, path: &str, kind: &str, body: Value) -> Answer {
        let kind = format!("application/{kind}");
        self.call(
            Method::PATCH,
            path,
            &[("content-type", kind.as_str())],
            body.to_string(),
        )
        .await
    }

    async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, &[], Body::empty()).await
    }

    /// Creates an object that must be accepted.
    async fn create(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body
    }

    /// Opens a watch.
    async fn watch(&self, path: &str) -> Frames {
        let response = self.send(Method::GET, path, &[], Body::empty()).await;
        assert_eq!(response.status().as_u16(), 200);
        Frames {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }
}

/// The frames of a watch.
struct Frames {
    body: Body,
    buffer: Vec<u8>,
}

impl Frames {
    /// The next frame; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(Duration::from_secs(30), self.body.frame())
                .await
                .expect("a frame in time")?
                .unwrap();
            self.buffer.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    /// The next frame as `TYPE name`.
    async fn summary(&mut self) -> String {
        let frame = self.next().await.unwrap();
        format!(
            "{} {}",
            frame["type"].as_str().unwrap(),
            frame["object"]["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
        )
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "nginx:1.27"}]},
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "nginx:1.27"}]},
            },
        },
    })
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    })
}
