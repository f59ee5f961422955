//! The server as clients meet it, with a server of the host's behind it.
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::service::cluster::fixtures::{endpoint, service, slice};

const WAIT: Duration = Duration::from_secs(10);

/// A server of the host's: knows one name, and answers `big.example.com.` only by TCP.
struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

async fn upstream() -> Upstream {
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = udp.local_addr().unwrap();
    let tcp = TcpListener::bind(address).await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 2_048];
        loop {
            let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
            let mut answer = upstream_answer(&buffer[..length]);
            if answer.answers.len() > 1 {
                answer.answers.clear();
                answer.metadata.truncation = true;
            }
            udp.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut question = vec![0; length.into()];
            stream.read_exact(&mut question).await.unwrap();
            let answer = upstream_answer(&question).to_vec().unwrap();
            let length = u16::try_from(answer.len()).unwrap();
            stream.write_u16(length).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    Upstream { address, asked }
}

fn upstream_answer(question: &[u8]) -> Message {
    let question = Message::from_vec(question).unwrap();
    let query = question.queries[0].clone();
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    let record = |last| {
        let address = Ipv4Addr::new(192, 0, 2, last);
        Record::from_rdata(query.name().clone(), 60, RData::A(A(address)))
    };
    match query.name().to_ascii().as_str() {
        "example.com." => drop(answer.add_answer(record(1))),
        "big.example.com." => {
            for last in 0..100 {
                answer.add_answer(record(last));
            }
        }
        _ => answer.metadata.response_code = ResponseCode::NXDomain,
    }
    answer.add_query(query);
    answer
}

struct Running {
    address: SocketAddr,
    handle: DnsHandle,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), DnsError>>,
}

async fn start(upstreams: Vec<SocketAddr>) -> Running {
    let dns = Dns::build(DnsConfig {
        cluster_domain: "cluster.local".to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        service_cidr: Some("10.96.0.0/16".parse().unwrap()),
        cluster_cidr: Some("10.244.0.0/16".parse().unwrap()),
        upstreams: Some(upstreams),
    })
    .await
    .unwrap();
    let (address, handle) = (dns.address(), dns.handle());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(dns.run(shutdown.clone()));
    Running {
        address,
        handle,
        shutdown,
        task,
    }
}

fn question(name: &str, kind: RecordType, payload: Option<u16>) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message
}

async fn ask_udp(server: SocketAddr, question: &Message) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let length = timeout(WAIT, socket.recv(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn ask_tcp(server: SocketAddr, question: &Message) -> Message {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let bytes = question.to_vec().unwrap();
    let length = u16::try_from(bytes.len()).unwrap();
    stream.write_u16(length).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let length = stream.read_u16().await.unwrap();
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await.unwrap();
    Message::from_vec(&answer).unwrap()
}

fn addresses(message: &Message) -> Vec<String> {
    message
        .answers
        .iter()
        .map(|record| record.data.to_string())
        .collect()
}

#[tokio::test]
async fn cluster_names_wait_for_the_services_and_are_authoritative() {
    let running = start(Vec::new()).await;
    let web = question("web.default.svc.cluster.local.", RecordType::A, None);
    let early = tokio::spawn({
        let (address, web) = (running.address, web.clone());
        async move { ask_udp(address, &web).await }
    });
    running
        .handle
        .apply(service("web", "10.96.0.20", &[("", 80, "TCP")]));
    running.handle.apply(ClusterChange::Synced);
    let answer = early.await.unwrap();
    assert_eq!(addresses(&answer), ["10.96.0.20"]);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
    assert_eq!(answer.edns, None, "asked without EDNS");

    let answer = ask_tcp(running.address, &web).await;
    assert_eq!(addresses(&answer), ["10.96.0.20"]);
    let nothing = question("no.default.svc.cluster.local.", RecordType::A, Some(4_096));
    let answer = ask_udp(running.address, &nothing).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(answer.authorities.len(), 1);
    assert_eq!(answer.edns.unwrap().max_payload(), 1_232);

    running.shutdown.cancel();
    timeout(WAIT, running.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn large_answers_are_truncated_by_udp_and_whole_by_tcp() {
    let running = start(Vec::new()).await;
    let endpoints = (1..=100)
        .map(|last| endpoint(&format!("10.244.0.{last}"), true, true, false))
        .collect();
    running
        .handle
        .apply(service("db", "None", &[("", 80, "TCP")]));
    running
        .handle
        .apply(slice("db", &[("", 80, "TCP")], endpoints));
    running.handle.apply(ClusterChange::Synced);
    let db = question("db.default.svc.cluster.local.", RecordType::A, None);
    let answer = ask_udp(running.address, &db).await;
    assert!(answer.metadata.truncation);
    assert!(answer.to_vec().unwrap().len() <= 512);
    let answer = ask_tcp(running.address, &db).await;
    assert_eq!(answer.answers.len(), 100);
    assert!(!answer.metadata.truncation);
}

#[tokio::test]
async fn other_names_are_forwarded_and_remembered() {
    let upstream = upstream().await;
    // The first server does not answer: nothing listens at port 9 of this address.
    let running = start(vec!["127.0.0.1:9".parse().unwrap(), upstream.address]).await;
    let example = question("example.com.", RecordType::A, None);
    for _ in 0..3 {
        let answer = ask_udp(running.address, &example).await;
        assert_eq!(addresses(&answer), ["192.0.2.1"]);
        assert!(!answer.metadata.authoritative);
    }
    assert_eq!(upstream.asked.load(Ordering::Relaxed), 1);
    let unknown = question("unknown.example.com.", RecordType::A, None);
    let answer = ask_udp(running.address, &unknown).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    let big = question("big.example.com.", RecordType::A, None);
    let answer = ask_tcp(running.address, &big).await;
    assert_eq!(answer.answers.len(), 100, "asked again by TCP");
}

#[tokio::test]
async fn an_external_name_is_followed_to_its_address() {
    let upstream = upstream().await;
    let running = start(vec![upstream.address]).await;
    let ClusterChange::Service(key, Some(external)) = service("ext", "", &[]) else {
        panic!("a service");
    };
    let mut external = Arc::unwrap_or_clone(external);
    let spec = external.spec.as_mut().unwrap();
    spec.type_ = Some("ExternalName".to_owned());
    spec.external_name = Some("example.com".to_owned());
    running
        .handle
        .apply(ClusterChange::Service(key, Some(Arc::new(external))));
    running.handle.apply(ClusterChange::Synced);
    let ext = question("ext.default.svc.cluster.local.", RecordType::A, None);
    let answer = ask_udp(running.address, &ext).await;
    assert_eq!(addresses(&answer), ["example.com.", "192.0.2.1"]);
}

#[tokio::test]
async fn what_is_no_query_is_refused_politely() {
    let running = start(Vec::new()).await;
    running.handle.apply(ClusterChange::Synced);
    let mut update = question("cluster.local.", RecordType::SOA, None);
    update.metadata.op_code = OpCode::Notify;
    let answer = ask_udp(running.address, &update).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NotImp);
    let mut new = question("cluster.local.", RecordType::SOA, Some(1_232));
    new.edns.as_mut().unwrap().set_version(1);
    let answer = ask_udp(running.address, &new).await;
    let code = u16::from(answer.metadata.response_code);
    assert_eq!(code, 16, "BADVERS");
    let lost = question("example.com.", RecordType::A, None);
    let answer = ask_udp(running.address, &lost).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let error = Dns::build(DnsConfig {
        cluster_domain: "cluster.local".to_owned(),
        listen,
        service_cidr: None,
        cluster_cidr: None,
        upstreams: None,
    })
    .await
    .unwrap_err();
    assert!(error.to_string().contains(&listen.to_string()));
}
