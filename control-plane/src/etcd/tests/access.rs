//! Who may call the API over TLS, and what probes get.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pintle_proto::etcd::etcdserverpb as pb;
use pintle_store::{Store, StoreConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{get, refused};
use crate::etcd::{Etcd, listen};
use crate::pki::{Identity, Pki, ServingNames};
use crate::{clock, server};

/// A served store behind TLS.
struct Secured {
    _dir: tempfile::TempDir,
    pki: Pki,
    address: std::net::SocketAddr,
    stop: CancellationToken,
}

impl Secured {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let names = ServingNames::new("cluster.local", "n1", &[], &[]);
        let pki = Pki::open(&dir.path().join("pki"), names, clock::now()).unwrap();
        let store = Store::open(StoreConfig {
            data_dir: dir.path().join("store"),
            ..StoreConfig::default()
        });
        let store = store.await.unwrap();
        let listener = server::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let url = format!("https://{address}");
        let etcd = Etcd::new(store, "n1", url, TaskTracker::new(), stop.clone());
        let tls = Some(Arc::new(pki.server_tls().unwrap()));
        tokio::spawn(listen::serve(listener, tls, etcd, stop.clone()));
        Self {
            _dir: dir,
            pki,
            address,
            stop,
        }
    }

    /// A certificate of the cluster for a user in a group.
    fn identity(&self, user: &str, group: &str) -> Identity {
        let life = Duration::from_hours(1);
        self.pki
            .issue_client(user, &[group], life, clock::now())
            .unwrap()
    }

    /// Calls Range as the owner of a certificate.
    async fn call(&self, identity: Option<&Identity>) -> Result<(), Status> {
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.pki.ca_pem().as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes());
                config
                    .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
                    .unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let address = self.address;
        let connect = tower::service_fn(move |_: http::Uri| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").unwrap();
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static("http://etcd");
        let channel: Channel = endpoint.connect_with_connector(connect).await.unwrap();
        let mut client = pb::kv_client::KvClient::new(channel);
        client.range(get("a")).await.map(drop)
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn only_administrators_may_call() {
    let secured = Secured::start().await;
    secured.call(Some(secured.pki.admin())).await.unwrap();
    let other = secured.identity("ops", "system:masters");
    secured.call(Some(&other)).await.unwrap();

    let node = secured.identity("system:node:n2", "system:nodes");
    assert_eq!(
        refused(secured.call(Some(&node)).await),
        (
            Code::PermissionDenied,
            "etcdserver: permission denied: user \"system:node:n2\" is not in the group \
             system:masters"
                .to_owned()
        )
    );
    assert_eq!(refused(secured.call(None).await).0, Code::Unauthenticated);
}

#[tokio::test]
async fn probes_and_unknown_calls_are_answered() {
    let server = super::Server::start().await;
    let auth = tonic::client::Grpc::new(server.channel.clone());
    let mut auth = auth;
    auth.ready().await.unwrap();
    let outcome = auth
        .unary(
            tonic::Request::new(pb::StatusRequest {}),
            http::uri::PathAndQuery::from_static("/etcdserverpb.Auth/AuthEnable"),
            tonic_prost::ProstCodec::<_, pb::StatusRequest>::default(),
        )
        .await;
    assert_eq!(refused(outcome).0, Code::Unimplemented);

    let mut cluster = server.cluster();
    let members = cluster.member_list(pb::MemberListRequest::default());
    let url = members.await.unwrap().into_inner().members[0].client_ur_ls[0].clone();
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .build_http::<Empty<bytes::Bytes>>();
    for (path, wanted) in [
        ("health", r#"{"health":"true","reason":""}"#),
        ("version", r#""etcdserver":"3.5."#),
    ] {
        let response = client.get(format!("{url}/{path}").parse().unwrap());
        let body = response.await.unwrap().into_body().collect().await.unwrap();
        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        assert!(body.contains(wanted), "{body}");
    }
}
