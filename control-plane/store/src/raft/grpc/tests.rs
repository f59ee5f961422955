//! Members in threads of their own, over real TLS on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::*;
use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::key_value::{Op, Txn};
use crate::store::Store;

/// Long enough for a slow machine; reached only when something hangs.
const LIMIT: Duration = Duration::from_secs(30);

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    fn issue(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        (vec![certificate.der().clone()], key)
    }

    fn client(&self, name: &str) -> rustls::ClientConfig {
        let (chain, key) = self.issue(name);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots())
            .with_client_auth_cert(chain, key)
            .unwrap()
    }

    fn server(&self, name: &str) -> rustls::ServerConfig {
        let (chain, key) = self.issue(name);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = Arc::new(self.roots());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap()
    }
}

struct Running {
    store: Store,
    address: SocketAddr,
    stop: CancellationToken,
    _directory: TempDir,
}

impl Running {
    async fn start(authority: &Authority, id: u64, cluster_id: Option<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = StoreConfig {
            data_dir: directory.path().to_path_buf(),
            node_id: id,
            peer_address: address.to_string(),
            join: cluster_id.is_some(),
            cluster_id,
            ..StoreConfig::default()
        };
        let transport = GrpcTransport::new(authority.client(MEMBER_NAME));
        let store = Store::open_with(config, Arc::new(transport)).await.unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serve_peers(
            listener,
            authority.server(MEMBER_NAME),
            store.peer_service(),
            stop.clone(),
        ));
        Self {
            store,
            address,
            stop,
            _directory: directory,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.store.shutdown().await;
    }
}

/// Puts until it is done: a machine busy enough elects another leader now and then, and putting
/// the same once more does no harm.
async fn put(store: &Store, key: &str, value: &str) {
    let again = async {
        loop {
            let txn = Txn {
                success: vec![Op::put(key.to_owned(), value.to_owned())],
                ..Txn::default()
            };
            match store.txn(txn).await {
                Ok(_) => return,
                Err(StoreError::NotLeader { .. } | StoreError::OutcomeUnknown { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, again)
        .await
        .expect("no member leads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_over_tls_fail_over() {
    let authority = Authority::new();
    let first = Running::start(&authority, 1, None).await;
    let cluster_id = first.store.cluster_id().to_owned();
    let mut others = Vec::new();
    for id in [2, 3] {
        let member = Running::start(&authority, id, Some(cluster_id.clone())).await;
        let address = member.address.to_string();
        first.store.add_learner(id, &address).await.unwrap();
        first.store.promote(id).await.unwrap();
        others.push(member);
    }
    for at in 0..50 {
        put(&others[at % 2].store, "n", &at.to_string()).await;
    }
    others[1].store.linearizable().await.unwrap();
    assert_eq!(
        &others[1].store.get(b"n").unwrap().unwrap().value[..],
        b"49"
    );
    // Too large for one patient wait of openraft on a slow machine, and still it arrives.
    put(&others[0].store, "large", &"x".repeat(4 << 20)).await;

    first.stop().await;
    let stopped = Instant::now();
    put(&others[0].store, "n", "after").await;
    eprintln!("writes again after {:?}", stopped.elapsed());
    others[1].store.linearizable().await.unwrap();
    assert_eq!(
        &others[1].store.get(b"n").unwrap().unwrap().value[..],
        b"after"
    );
    for member in others {
        member.stop().await;
    }
}

#[tokio::test]
async fn only_a_certificate_of_a_member_opens_the_door() {
    let authority = Authority::new();
    let member = Running::start(&authority, 1, None).await;
    let peer = Peer {
        id: 1,
        address: member.address.to_string(),
    };
    let request = RaftRequest {
        cluster_id: member.store.cluster_id().to_owned(),
        target: 1,
        sender: 9,
        kind: pintle_proto::raft::Kind::ReadIndex.into(),
        ..RaftRequest::default()
    };
    let good = GrpcTransport::new(authority.client(MEMBER_NAME));
    let answer = Transport::call(&good, peer.clone(), request.clone()).await;
    assert_eq!(answer.unwrap().refusal, None);
    for wrong in [
        // A node's or a user's certificate of the same cluster.
        GrpcTransport::new(authority.client("node-1")),
        // A member of a cluster with another CA.
        GrpcTransport::new(Authority::new().client(MEMBER_NAME)),
    ] {
        let refused = Transport::call(&wrong, peer.clone(), request.clone()).await;
        refused.unwrap_err();
    }
    member.stop().await;
}

#[tokio::test]
async fn a_message_that_cannot_leave_says_so() {
    let authority = Authority::new();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Peer {
        id: 7,
        address: free.local_addr().unwrap().to_string(),
    };
    drop(free);
    let transport = GrpcTransport::new(authority.client(MEMBER_NAME));
    let unsent = Transport::call(&transport, peer, RaftRequest::default()).await;
    assert!(
        matches!(unsent, Err(TransportError::Unsent { id: 7, .. })),
        "{unsent:?}"
    );
}
