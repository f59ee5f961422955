//! A node as the control plane sees it: joins with a token, holds a session, reports, and serves
//! logs and exec to the real kubectl.

#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use pintle_api::auth::UserInfo;
use pintle_control_plane::config::Cidr;
use pintle_control_plane::{ControlPlane, ControlPlaneConfig};
use pintle_proto::node::join_client::JoinClient;
use pintle_proto::node::node_session_client::NodeSessionClient;
use pintle_proto::node::request::Request as Body;
use pintle_proto::node::response::Result as Answer;
use pintle_proto::node::server_message::Message as FromServer;
use pintle_proto::node::stream_frame::Frame;
use pintle_proto::node::{
    AgentMessage, Channel as StreamChannel, CreateToken, Delta, FinalizePod, Hello, JoinRequest,
    OpenStream, RegisterNode, RenewLease, Request, Resource, ServerMessage, StreamData,
    StreamFrame, UpdatePodStatus, agent_message, open_stream::Target,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

const PATIENCE: Duration = Duration::from_secs(20);

async fn start(dir: &Path, third: u8) -> (ControlPlane, CancellationToken) {
    let config = ControlPlaneConfig {
        data_dir: dir.join("data"),
        port: 0,
        pod_cidr: Cidr::v4([127, 78, third, 0], 24),
        kubeconfig: dir.join("admin.kubeconfig"),
        node_name: "node-a".to_owned(),
        ..ControlPlaneConfig::default()
    };
    let control_plane = ControlPlane::build(config).await.unwrap();
    let shutdown = CancellationToken::new();
    let (running, token) = (control_plane.clone(), shutdown.clone());
    tokio::spawn(async move { running.run(token).await.unwrap() });
    (control_plane, shutdown)
}

/// A connection to the API port, with a client certificate or without.
async fn connect(address: SocketAddr, ca_pem: &str, identity: Option<(String, String)>) -> Channel {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    Endpoint::from_static("http://control-plane")
        .connect_with_connector(tower::service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").unwrap();
                let stream = connector.connect(name, stream).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        }))
        .await
        .unwrap()
}

async fn join(control_plane: &ControlPlane, node: &str) -> Channel {
    let (address, ca) = (control_plane.address(), control_plane.ca_pem());
    let key = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    let mut client = JoinClient::new(connect(address, ca, None).await);
    let mut request = JoinRequest {
        token: "wrong".to_owned(),
        node_name: node.to_owned(),
        csr_pem: csr.pem().unwrap(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let refused = client.join(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    request.token = control_plane.own_join_token();
    let joined = client.join(request).await.unwrap().into_inner();
    assert_eq!(joined.ca_pem, ca);
    let identity = (joined.certificate_pem, key.serialize_pem());
    connect(address, ca, Some(identity)).await
}

struct Session {
    requests: mpsc::Sender<AgentMessage>,
    messages: Streaming<ServerMessage>,
    resumed: bool,
    /// Messages that came while another was waited for.
    deltas: Vec<Delta>,
    streams: Vec<OpenStream>,
    next_id: u64,
    last_revision: u64,
}

impl Session {
    async fn open(channel: &Channel, hello: Hello) -> Result<Self, tonic::Status> {
        let (requests, receiver) = mpsc::channel(8);
        let hello = AgentMessage {
            message: Some(agent_message::Message::Hello(hello)),
        };
        requests.send(hello).await.unwrap();
        let mut messages = NodeSessionClient::new(channel.clone())
            .session(ReceiverStream::new(receiver))
            .await?
            .into_inner();
        let first = messages.message().await?.unwrap().message;
        let Some(FromServer::Welcome(welcome)) = first else {
            panic!("{first:?}");
        };
        assert_eq!(welcome.settings.unwrap().cluster_dns, "10.96.0.10");
        Ok(Self {
            requests,
            messages,
            resumed: welcome.resumed,
            deltas: Vec::new(),
            streams: Vec::new(),
            next_id: 0,
            last_revision: 0,
        })
    }

    async fn receive(&mut self) -> Option<(u64, Answer)> {
        let message = tokio::time::timeout(PATIENCE, self.messages.message());
        match message.await.unwrap().unwrap().unwrap().message.unwrap() {
            FromServer::Response(response) => {
                return Some((response.id, response.result.unwrap()));
            }
            FromServer::Delta(delta) => {
                assert!(delta.revision > self.last_revision);
                self.last_revision = delta.revision;
                self.deltas.push(delta);
            }
            FromServer::OpenStream(stream) => self.streams.push(stream),
            FromServer::Welcome(_) | FromServer::Servers(_) => panic!("a second greeting"),
        }
        None
    }

    async fn call(&mut self, body: Body) -> Result<Bytes, serde_json::Value> {
        self.next_id += 1;
        let request = Request {
            id: self.next_id,
            request: Some(body),
        };
        let message = AgentMessage {
            message: Some(agent_message::Message::Request(request)),
        };
        self.requests.send(message).await.unwrap();
        loop {
            if let Some((id, answer)) = self.receive().await {
                assert_eq!(id, self.next_id);
                return match answer {
                    Answer::Object(object) => Ok(object),
                    Answer::Failure(status) => Err(serde_json::from_slice(&status).unwrap()),
                };
            }
        }
    }

    /// Waits for a change of an object; `None` is its deletion.
    async fn change(&mut self, resource: Resource, key: &str) -> Option<serde_json::Value> {
        loop {
            let found = self.deltas.iter_mut().find_map(|delta| {
                let at = delta
                    .changes
                    .iter()
                    .position(|c| c.resource() == resource && c.key == key)?;
                Some(delta.changes.remove(at))
            });
            if let Some(change) = found {
                let object = (!change.object.is_empty()).then_some(change.object);
                return object.map(|json| serde_json::from_slice(&json).unwrap());
            }
            assert!(self.receive().await.is_none());
        }
    }

    async fn stream(&mut self) -> OpenStream {
        while self.streams.is_empty() {
            assert!(self.receive().await.is_none());
        }
        self.streams.remove(0)
    }
}

fn hello(control_plane: &ControlPlane, resume_revision: u64) -> Hello {
    Hello {
        node_name: "node-a".to_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        resume_revision,
        cluster_id: control_plane.settings().cluster_id.clone(),
    }
}

fn json<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn encoded(value: &serde_json::Value) -> Bytes {
    Bytes::from(value.to_string())
}

/// Registers the node and binds a pod to it; gives the pod's uid.
async fn node_with_pod(control_plane: &ControlPlane, session: &mut Session) -> String {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
        "status": {"capacity": {"cpu": "2", "memory": "1Gi", "pods": "10"},
            "allocatable": {"cpu": "2", "memory": "1Gi", "pods": "10"}}});
    let registered = session
        .call(Body::RegisterNode(RegisterNode {
            node: encoded(&node),
        }))
        .await
        .unwrap();
    let registered: Node = serde_json::from_slice(&registered).unwrap();
    assert!(
        registered
            .status
            .unwrap()
            .capacity
            .unwrap()
            .contains_key("cpu")
    );
    session.change(Resource::Node, "node-a").await.unwrap();

    let admin = control_plane.client(UserInfo::apiserver());
    let account: ServiceAccount =
        json(json!({"metadata": {"name": "default", "namespace": "default"}}));
    // The controller that makes it may be first.
    match admin.create(&account).await {
        Err(status) if !status.is_already_exists() => panic!("{status}"),
        _ => {}
    }
    admin
        .create(&json::<k8s_openapi::api::core::v1::ConfigMap>(
            json!({"metadata": {"name": "used", "namespace": "default"}, "data": {"a": "1"}}),
        ))
        .await
        .unwrap();
    let pod: Pod = json(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "a", "image": "nginx"}],
            "volumes": [{"name": "v", "configMap": {"name": "used"}}]}}));
    let pod = admin.create(&pod).await.unwrap();
    pod.metadata.uid.unwrap()
}

fn status_of(uid: &str, phase: &str) -> Body {
    Body::UpdatePodStatus(UpdatePodStatus {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        uid: uid.to_owned(),
        status: encoded(&json!({"phase": phase, "podIP": "127.78.1.2",
            "containerStatuses": [{"name": "a", "image": "nginx", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]})),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_hears_of_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let (control_plane, shutdown) = start(dir.path(), 5).await;
    let channel = join(&control_plane, "node-a").await;
    let mut session = Session::open(&channel, hello(&control_plane, 0))
        .await
        .unwrap();
    let admin = control_plane.client(UserInfo::apiserver());
    let peer: Node = json(json!({"metadata": {"name": "node-b"},
        "spec": {"podCIDR": "127.78.5.128/25", "podCIDRs": ["127.78.5.128/25"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}}));
    admin.create(&peer).await.unwrap();
    let told = session.change(Resource::PeerNode, "node-b").await.unwrap();
    assert_eq!(told["spec"]["podCIDR"], "127.78.5.128/25");
    assert_eq!(told["status"]["addresses"][0]["address"], "192.0.2.7");
    admin
        .delete::<Node>(None, "node-b", &pintle_api::client::DeleteParams::default())
        .await
        .unwrap();
    assert!(session.change(Resource::PeerNode, "node-b").await.is_none());
    shutdown.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_hears_of_its_pods_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let (control_plane, shutdown) = start(dir.path(), 1).await;
    let channel = join(&control_plane, "node-a").await;
    let mut other = hello(&control_plane, 0);
    other.node_name = "node-b".to_owned();
    let refused = Session::open(&channel, other).await.err().unwrap();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);

    let mut session = Session::open(&channel, hello(&control_plane, 0))
        .await
        .unwrap();
    let service = session
        .change(Resource::Service, "default/kubernetes")
        .await;
    assert_eq!(service.unwrap()["spec"]["clusterIP"], "10.96.0.1");
    let uid = node_with_pod(&control_plane, &mut session).await;
    let pod = session.change(Resource::Pod, "default/web").await.unwrap();
    assert_eq!(pod["metadata"]["uid"], uid);
    let config_map = session.change(Resource::ConfigMap, "default/used").await;
    assert_eq!(config_map.unwrap()["data"]["a"], "1");

    let stored = session.call(status_of(&uid, "Running")).await.unwrap();
    let stored: Pod = serde_json::from_slice(&stored).unwrap();
    let stored = stored.status.unwrap();
    assert_eq!(stored.phase.as_deref(), Some("Running"));
    assert_eq!(stored.qos_class.as_deref(), Some("BestEffort"));
    let foreign = session
        .call(status_of("other", "Failed"))
        .await
        .unwrap_err();
    assert_eq!(foreign["reason"], "Conflict");

    session
        .call(Body::RenewLease(RenewLease {
            duration_seconds: 40,
        }))
        .await
        .unwrap();
    let admin = control_plane.client(UserInfo::apiserver());
    let lease: Lease = admin.get(Some("kube-node-lease"), "node-a").await.unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("node-a"));
    assert!(spec.renew_time.is_some());

    let token = session
        .call(Body::CreateToken(CreateToken {
            namespace: "default".to_owned(),
            service_account: "default".to_owned(),
            pod_name: "web".to_owned(),
            pod_uid: uid.clone(),
            audiences: vec![],
            expiration_seconds: 3600,
        }))
        .await
        .unwrap();
    let token: TokenRequest = serde_json::from_slice(&token).unwrap();
    assert!(token.status.unwrap().token.is_some());

    session
        .call(Body::FinalizePod(FinalizePod {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid,
        }))
        .await
        .unwrap();
    while session.change(Resource::Pod, "default/web").await.is_some() {}
    assert!(
        session
            .change(Resource::ConfigMap, "default/used")
            .await
            .is_none()
    );
    shutdown.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_session_resumes_with_the_difference() {
    let dir = tempfile::tempdir().unwrap();
    let (control_plane, shutdown) = start(dir.path(), 2).await;
    let channel = join(&control_plane, "node-a").await;
    let mut session = Session::open(&channel, hello(&control_plane, 0))
        .await
        .unwrap();
    assert!(!session.resumed);
    session
        .change(Resource::Service, "default/kubernetes")
        .await;
    node_with_pod(&control_plane, &mut session).await;
    session.change(Resource::Pod, "default/web").await.unwrap();
    while !session.deltas.iter().all(|d| d.changes.is_empty()) {
        session.deltas.clear();
    }
    let revision = session.last_revision;
    drop(session);
    let gone = async {
        while !control_plane.connected_nodes().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();

    let mut resumed = Session::open(&channel, hello(&control_plane, revision))
        .await
        .unwrap();
    assert!(resumed.resumed);
    let admin = control_plane.client(UserInfo::apiserver());
    let service = json!({"metadata": {"name": "later", "namespace": "default"},
        "spec": {"ports": [{"port": 80}]}});
    admin
        .create(&json::<k8s_openapi::api::core::v1::Service>(service))
        .await
        .unwrap();
    resumed
        .change(Resource::Service, "default/later")
        .await
        .unwrap();
    assert!(!resumed.deltas.iter().any(|d| d.snapshot));
    let foreign = Session::open(&channel, hello(&control_plane, 1))
        .await
        .unwrap();
    assert!(!foreign.resumed);
    shutdown.cancel();
}

fn kubectl_command(dir: &Path) -> Command {
    let mut command = Command::new("/usr/bin/kubectl");
    command
        .env("KUBECONFIG", dir.join("admin.kubeconfig"))
        .env("HOME", dir)
        .stdin(Stdio::null());
    command
}

async fn kubectl(dir: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let environment: Vec<(String, String)> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || {
        kubectl_command(&dir)
            .args(arguments)
            .envs(environment)
            .output()
            .unwrap()
    })
    .await
    .unwrap()
}

/// Answers one stream as an agent does.
async fn answer(channel: &Channel, stream_id: String, frames: Vec<Frame>) {
    let (sender, receiver) = mpsc::channel(8);
    for frame in std::iter::once(Frame::StreamId(stream_id)).chain(frames) {
        let frame = StreamFrame { frame: Some(frame) };
        sender.send(frame).await.unwrap();
    }
    let mut inbound = NodeSessionClient::new(channel.clone())
        .stream(ReceiverStream::new(receiver))
        .await
        .unwrap()
        .into_inner();
    drop(sender);
    while let Ok(Some(_)) = inbound.message().await {}
}

fn output(channel: StreamChannel, text: &'static str) -> Frame {
    Frame::Data(StreamData {
        channel: channel.into(),
        data: Bytes::from_static(text.as_bytes()),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_reads_logs_and_executes_through_the_agent() {
    if !PathBuf::from("/usr/bin/kubectl").exists() {
        eprintln!("skipped: no /usr/bin/kubectl");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (control_plane, shutdown) = start(dir.path(), 3).await;
    let channel = join(&control_plane, "node-a").await;
    let mut session = Session::open(&channel, hello(&control_plane, 0))
        .await
        .unwrap();
    let uid = node_with_pod(&control_plane, &mut session).await;
    let early = kubectl(dir.path(), &["logs", "web"], &[]).await;
    let early = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(
        early.contains("in pod \"web\" is waiting to start"),
        "{early}"
    );
    session.call(status_of(&uid, "Running")).await.unwrap();

    let success = || Frame::Status(encoded(&json!({"metadata": {}, "status": "Success"})));
    let logs = tokio::spawn({
        let dir = dir.path().to_owned();
        async move { kubectl(&dir, &["logs", "web", "--tail=5"], &[]).await }
    });
    let stream = session.stream().await;
    let Some(Target::Logs(target)) = &stream.target else {
        panic!("{stream:?}");
    };
    assert_eq!(
        (target.container.as_str(), target.tail_lines),
        ("a", Some(5))
    );
    let frames = vec![
        output(StreamChannel::Stdout, "line 1\n"),
        output(StreamChannel::Stderr, "line 2\n"),
        success(),
    ];
    answer(&channel, stream.stream_id, frames).await;
    let logs = logs.await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&logs.stdout),
        "line 1\nline 2\n",
        "{logs:?}"
    );

    // By WebSocket, and as versions before 1.31 do it.
    for websockets in ["true", "false"] {
        let exec = tokio::spawn({
            let dir = dir.path().to_owned();
            let environment = [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)];
            let command = ["exec", "web", "--", "sh", "-c", "exit 3"];
            async move { kubectl(&dir, &command, &environment).await }
        });
        let stream = session.stream().await;
        let Some(Target::Exec(target)) = &stream.target else {
            panic!("{stream:?}");
        };
        assert_eq!(target.command, ["sh", "-c", "exit 3"]);
        let failure = Frame::Status(encoded(&json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}})));
        let frames = vec![
            output(StreamChannel::Stdout, "out\n"),
            output(StreamChannel::Stderr, "err\n"),
            failure,
        ];
        answer(&channel, stream.stream_id, frames).await;
        let exec = exec.await.unwrap();
        assert_eq!(exec.status.code(), Some(3), "{websockets}: {exec:?}");
        assert_eq!(String::from_utf8_lossy(&exec.stdout), "out\n");
        assert!(String::from_utf8_lossy(&exec.stderr).starts_with("err\n"));
    }
    shutdown.cancel();
}

/// Sends back what comes, until the other side is done.
async fn echo(channel: &Channel, stream_id: String) {
    let (sender, receiver) = mpsc::channel(8);
    let send = |frame| sender.send(StreamFrame { frame: Some(frame) });
    send(Frame::StreamId(stream_id)).await.unwrap();
    let mut inbound = NodeSessionClient::new(channel.clone())
        .stream(ReceiverStream::new(receiver))
        .await
        .unwrap()
        .into_inner();
    while let Ok(Some(frame)) = inbound.message().await {
        match frame.frame {
            Some(Frame::Data(data)) => {
                let data = StreamData {
                    channel: StreamChannel::Stdout.into(),
                    ..data
                };
                send(Frame::Data(data)).await.unwrap();
            }
            Some(Frame::Close(_)) => break,
            _ => {}
        }
    }
    let success = json!({"metadata": {}, "status": "Success"});
    send(Frame::Close(StreamChannel::Stdout.into()))
        .await
        .unwrap();
    send(Frame::Status(encoded(&success))).await.unwrap();
    drop(sender);
    while let Ok(Some(_)) = inbound.message().await {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_forwards_a_port_through_the_agent() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    if !PathBuf::from("/usr/bin/kubectl").exists() {
        eprintln!("skipped: no /usr/bin/kubectl");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (control_plane, shutdown) = start(dir.path(), 4).await;
    let channel = join(&control_plane, "node-a").await;
    let mut session = Session::open(&channel, hello(&control_plane, 0))
        .await
        .unwrap();
    let uid = node_with_pod(&control_plane, &mut session).await;
    session.call(status_of(&uid, "Running")).await.unwrap();
    for websockets in ["true", "false"] {
        let mut command = kubectl_command(dir.path());
        command
            .args(["port-forward", "--address=127.0.0.1", "pod/web", ":80"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
            .stdout(Stdio::piped());
        let client = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            let mut line = String::new();
            // Kept open: kubectl writes more, and ends when it cannot.
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            stdout.read_line(&mut line).unwrap();
            // "Forwarding from 127.0.0.1:PORT -> 80"
            let address = line.split(' ').nth(2).unwrap().to_owned();
            let mut connection = std::net::TcpStream::connect(address).unwrap();
            connection.write_all(b"hello").unwrap();
            connection.shutdown(std::net::Shutdown::Write).unwrap();
            let mut heard = String::new();
            connection.read_to_string(&mut heard).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            heard
        });
        let stream = session.stream().await;
        let Some(Target::PortForward(target)) = &stream.target else {
            panic!("{stream:?}");
        };
        assert_eq!((target.pod.as_str(), target.port), ("web", 80));
        echo(&channel, stream.stream_id).await;
        assert_eq!(client.await.unwrap(), "hello", "{websockets}");
    }
    shutdown.cancel();
}
