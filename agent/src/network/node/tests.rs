//! Pods in real network namespaces, on a node that is a namespace too.
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use super::super::netlink::{Link, VethPair};
use super::*;
use crate::service::cluster::fixtures::{endpoint, service, slice};
use crate::service::testing::TestNode;
use crate::service::{DataPathError, ServiceConfig};
use crate::session::ClusterChange;

const INSTANCE: &str = "7e571a9e";
const WAIT: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce() + Send>;

/// A thread that lives in a network namespace of its own and does what it is told.
struct Namespace {
    path: PathBuf,
    work: mpsc::Sender<Work>,
}

impl Namespace {
    fn new() -> Self {
        let (work, todo) = mpsc::channel::<Work>();
        let (ready, path) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let thread = nix::unistd::gettid();
            let process = std::process::id();
            ready
                .send(format!("/proc/{process}/task/{thread}/ns/net"))
                .unwrap();
            while let Ok(work) = todo.recv() {
                work();
            }
        });
        Self {
            path: PathBuf::from(path.recv().unwrap()),
            work,
        }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.work
            .send(Box::new(move || done.send(work()).unwrap()))
            .unwrap();
        result.recv().unwrap()
    }

    /// Answers every connection with the caller's address.
    fn serve(&self, port: u16) {
        self.run(move || {
            let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
            thread::spawn(move || {
                while let Ok((mut stream, from)) = listener.accept() {
                    if stream.write_all(from.ip().to_string().as_bytes()).is_err() {
                        return;
                    }
                }
            });
        });
    }

    fn ask(&self, address: (Ipv4Addr, u16)) -> io::Result<String> {
        self.run(move || {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::from(address), WAIT)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        crate::service::testing::skip("not root");
    }
    root
}

fn config(state: &Path) -> NetworkConfig {
    NetworkConfig {
        instance_id: INSTANCE.to_owned(),
        pod_cidr: "10.244.7.0/24".parse().unwrap(),
        cluster_cidr: "10.244.0.0/16".parse().unwrap(),
        service_cidr: Some("10.96.0.0/16".parse().unwrap()),
        cluster_dns: Some(Ipv4Addr::new(10, 96, 0, 10)),
        state_dir: state.to_owned(),
        mtu: None,
    }
}

/// Builds the node in its namespace.
fn build(host: &Namespace, state: &Path, data_path: Option<DataPath>) -> std::sync::Arc<Node> {
    let config = config(state);
    host.run(move || {
        let mut netlink = Netlink::open().unwrap();
        let loopback = netlink.link("lo").unwrap().unwrap();
        netlink.set_up(loopback.index).unwrap();
        std::sync::Arc::new(Node::build(config, data_path).unwrap())
    })
}

fn attach(host: &Namespace, node: &std::sync::Arc<Node>, uid: &str, pod: &Namespace) -> Ipv4Addr {
    let (node, uid, path) = (node.clone(), uid.to_owned(), pod.path.clone());
    let network = host.run(move || node.attach(&uid, &path).unwrap());
    match network.ips[0] {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address} is no IPv4 address"),
    }
}

fn links(host: &Namespace) -> Vec<Link> {
    host.run(|| Netlink::open().unwrap().links().unwrap())
}

fn names(host: &Namespace) -> Vec<String> {
    links(host)
        .into_iter()
        .map(|link| link.name)
        .filter(|name| name.starts_with("pt"))
        .collect()
}

/// Everything two pods and the host say to each other.
fn check_reach(host: &Namespace, pods: [(&Namespace, Ipv4Addr); 2]) {
    let [(a, a_ip), (b, b_ip)] = pods;
    assert_eq!(b.ask((a_ip, 80)).unwrap(), b_ip.to_string(), "pod to pod");
    assert_eq!(a.ask((b_ip, 80)).unwrap(), a_ip.to_string(), "and back");
    assert_eq!(a.ask((a_ip, 80)).unwrap(), a_ip.to_string(), "to itself");
    assert_eq!(host.ask((a_ip, 80)).unwrap(), "10.244.7.1", "host to pod");
    let dns = Ipv4Addr::new(10, 96, 0, 10);
    assert_eq!(a.ask((dns, 5300)).unwrap(), a_ip.to_string(), "pod to DNS");
}

/// The kernel limits such answers to a few a second, so this is asked once.
fn check_unreachable(pod: &Namespace) {
    let error = pod.ask((Ipv4Addr::new(10, 96, 3, 3), 80)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "no such Service");
    let error = pod.ask((Ipv4Addr::new(10, 244, 7, 200), 80)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "no such pod");
}

#[test]
fn pods_and_host_reach_each_other_by_routing() {
    if !is_root() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let (host, a, b) = (Namespace::new(), Namespace::new(), Namespace::new());
    let node = build(&host, state.path(), None);
    let a_ip = attach(&host, &node, "uid-a", &a);
    let b_ip = attach(&host, &node, "uid-b", &b);
    host.serve(5300);
    a.serve(80);
    b.serve(80);
    check_reach(&host, [(&a, a_ip), (&b, b_ip)]);
    check_unreachable(&b);

    assert_eq!(attach(&host, &node, "uid-a", &a), a_ip, "attached twice");
    check_reach(&host, [(&a, a_ip), (&b, b_ip)]);

    // A new namespace for the same pod, as after its sandbox was made anew.
    let again = Namespace::new();
    assert_eq!(attach(&host, &node, "uid-a", &again), a_ip);
    again.serve(80);
    check_reach(&host, [(&again, a_ip), (&b, b_ip)]);
    assert_eq!(names(&host).len(), 3, "two pods and the gateway");
}

#[test]
fn what_belongs_to_no_pod_is_removed() {
    if !is_root() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let (host, a, b) = (Namespace::new(), Namespace::new(), Namespace::new());
    // A new namespace takes the setting over from the machine's.
    host.run(|| std::fs::write(sysctl_path(FORWARDING), "0").unwrap());
    let node = build(&host, state.path(), None);
    let a_ip = attach(&host, &node, "uid-a", &a);
    attach(&host, &node, "uid-b", &b);

    let detached = node.clone();
    let left = host.run(move || detached.detach("uid-a").unwrap());
    assert_eq!(left, Some(link_name(INSTANCE, "uid-a")));
    let removed = node.clone();
    host.run(move || removed.remove_link(&left.unwrap()).unwrap());
    assert_eq!(names(&host).len(), 2);
    let c = Namespace::new();
    assert_ne!(attach(&host, &node, "uid-c", &c), a_ip, "reused late");

    let reconciled = node.clone();
    let live = HashSet::from(["uid-c".to_owned()]);
    host.run(move || reconciled.reconcile(&live).unwrap());
    assert_eq!(names(&host).len(), 2, "the gateway and uid-c");
    drop(node);

    let path = state.path().to_owned();
    let leftovers = host.run(move || {
        cleanup(INSTANCE, &path).unwrap();
        cleanup(INSTANCE, &path).unwrap();
        Netlink::open().unwrap().routes().unwrap()
    });
    assert_eq!(names(&host), Vec::<String>::new());
    assert_eq!(leftovers, Vec::new());
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    let forwarding = host.run(|| std::fs::read_to_string(sysctl_path(FORWARDING)).unwrap());
    assert_eq!(forwarding.trim(), "0", "as it was before");
}

#[test]
fn traffic_out_of_the_cluster_has_the_nodes_address() {
    if !is_root() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let (host, a, outside) = (Namespace::new(), Namespace::new(), Namespace::new());
    let node = build(&host, state.path(), None);
    if let Some(problem) = node.problem() {
        crate::service::testing::skip(&problem);
        return;
    }
    attach(&host, &node, "uid-a", &a);
    let (near, far) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let path = outside.path.clone();
    host.run(move || {
        let mut netlink = Netlink::open().unwrap();
        netlink
            .add_veth(&VethPair {
                host_name: "uplink",
                host_mac: host_mac(near),
                pod_name: "eth0",
                pod_mac: pod_mac(near),
                pod_netns: File::open(path).unwrap().as_raw_fd(),
                mtu: 1_500,
            })
            .unwrap();
        connect_outside(&mut netlink, "uplink", near, far);
    });
    outside.run(move || {
        connect_outside(&mut Netlink::open().unwrap(), "eth0", far, near);
    });
    outside.serve(80);
    assert_eq!(a.ask((far, 80)).unwrap(), near.to_string());
}

/// Another node: a namespace with a pod network of its own, on the same link.
#[test]
fn pods_of_two_nodes_reach_each_other_with_their_own_addresses() {
    if !is_root() {
        return;
    }
    let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let hosts = [Namespace::new(), Namespace::new()];
    let pods = [Namespace::new(), Namespace::new()];
    let addresses = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let ranges: [Cidr; 2] = [
        "10.244.7.0/24".parse().unwrap(),
        "10.244.8.0/24".parse().unwrap(),
    ];
    let path = hosts[1].path.clone();
    hosts[0].run(move || {
        let netns = File::open(path).unwrap();
        let pair = VethPair {
            host_name: "uplink",
            host_mac: host_mac(addresses[0]),
            pod_name: "eth0",
            pod_mac: pod_mac(addresses[0]),
            pod_netns: netns.as_raw_fd(),
            mtu: 1_500,
        };
        Netlink::open().unwrap().add_veth(&pair).unwrap();
    });
    let mut nodes = Vec::new();
    let mut pod_addresses = Vec::new();
    for at in 0..2 {
        let (own, other) = (addresses[at], addresses[1 - at]);
        hosts[at].run(move || {
            let name = if at == 0 { "uplink" } else { "eth0" };
            connect_outside(&mut Netlink::open().unwrap(), name, own, other);
        });
        let config = NetworkConfig {
            pod_cidr: ranges[at],
            ..config(states[at].path())
        };
        let node = hosts[at].run(move || std::sync::Arc::new(Node::build(config, None).unwrap()));
        pod_addresses.push(attach(&hosts[at], &node, "uid", &pods[at]));
        pods[at].serve(80);
        nodes.push(node);
    }
    let set = |at: usize, peers: Vec<PeerRoute>| {
        let node = nodes[at].clone();
        hosts[at].run(move || node.set_peers(&peers).unwrap());
    };
    let peer = |of: usize| PeerRoute {
        name: format!("node{of}"),
        pods: ranges[of],
        address: addresses[of],
    };
    // What is not a peer's to give is not taken.
    let greedy = PeerRoute {
        pods: "10.0.0.0/8".parse().unwrap(),
        ..peer(1)
    };
    let thief = PeerRoute {
        pods: ranges[0],
        ..peer(1)
    };
    let far = PeerRoute {
        pods: "10.244.9.0/24".parse().unwrap(),
        address: Ipv4Addr::new(203, 0, 113, 9),
        ..peer(1)
    };
    set(0, vec![peer(1), greedy, thief, far]);
    let problem = nodes[0].problem().unwrap();
    assert!(problem.contains("nodes must share a link"), "{problem}");
    set(0, vec![peer(1)]);
    set(1, vec![peer(0)]);
    for at in 0..2 {
        let answer = pods[at].ask((pod_addresses[1 - at], 80)).unwrap();
        assert_eq!(answer, pod_addresses[at].to_string(), "not masqueraded");
    }
    let answer = hosts[0].ask((pod_addresses[1], 80)).unwrap();
    assert_eq!(answer, addresses[0].to_string(), "host to pod");

    let peer_routes = |at: usize| {
        hosts[at].run(|| {
            let routes = Netlink::open().unwrap().routes().unwrap();
            routes
                .into_iter()
                .filter(|route| {
                    is_own_route(route, INSTANCE) && route.header.kind == RouteType::Unicast
                })
                .count()
        })
    };
    assert_eq!(peer_routes(0), 1);
    // A restart leaves them, a node that is gone does not, and nor does `down`.
    let again = NetworkConfig {
        pod_cidr: ranges[0],
        ..config(states[0].path())
    };
    hosts[0].run(move || drop(Node::build(again, None).unwrap()));
    assert_eq!(peer_routes(0), 1);
    set(0, Vec::new());
    assert_eq!(peer_routes(0), 0);
    let path = states[1].path().to_owned();
    hosts[1].run(move || cleanup(INSTANCE, &path).unwrap());
    assert_eq!(peer_routes(1), 0);
}

#[test]
fn a_link_that_comes_back_is_heard_of_and_a_pods_is_not() {
    if !is_root() {
        return;
    }
    let host = Namespace::new();
    host.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut monitor = crate::network::LinkMonitor::open(INSTANCE).unwrap();
            let mut netlink = Netlink::open().unwrap();
            netlink
                .add_bridge(&format!("{}x", link_prefix(INSTANCE)))
                .unwrap();
            let heard = tokio::time::timeout(Duration::from_millis(50), monitor.changed());
            assert!(heard.await.is_err(), "a link of ours");
            netlink.add_bridge("other").unwrap();
            let heard = tokio::time::timeout(WAIT, monitor.changed());
            heard.await.unwrap().unwrap();
        });
    });
}

fn connect_outside(netlink: &mut Netlink, name: &str, own: Ipv4Addr, other: Ipv4Addr) {
    let link = netlink.link(name).unwrap().unwrap();
    netlink.set_up(link.index).unwrap();
    netlink.add_address(link.index, own).unwrap();
    netlink
        .add_route(&Route {
            destination: Cidr::around(other, 32),
            via: Via::Link(link.index),
            source: Some(own),
        })
        .unwrap();
}

/// With the BPF programs: no packet between pods takes the host's routing, forged sources are
/// dropped, Services work from pods, and all of it goes on across a restart.
fn check_data_path(name: &str, open: fn(&ServiceConfig) -> Result<DataPath, DataPathError>) {
    if !is_root() {
        return;
    }
    let Some(test) = TestNode::new(name) else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let (host, a, b) = (Namespace::new(), Namespace::new(), Namespace::new());
    let start = || {
        let config = test.config();
        host.run(move || open(&config).unwrap())
    };
    let data_path = start();
    let mut services = test.synchroniser(data_path.clone());
    let node = build(&host, state.path(), Some(data_path.clone()));
    let a_ip = attach(&host, &node, "uid-a", &a);
    let b_ip = attach(&host, &node, "uid-b", &b);
    assert_eq!(data_path.pods().unwrap().len(), 2);
    host.serve(5300);
    a.serve(80);
    b.serve(80);
    check_reach(&host, [(&a, a_ip), (&b, b_ip)]);
    host.run(|| set_sysctl(FORWARDING, "0").unwrap());
    assert_eq!(b.ask((a_ip, 80)).unwrap(), b_ip.to_string(), "past routing");

    let vip = Ipv4Addr::new(10, 96, 0, 80);
    let changes = [
        service("web", "10.96.0.80", &[("", 8080, "TCP")]),
        slice(
            "web",
            &[("", 80, "TCP")],
            vec![endpoint(&a_ip.to_string(), true, true, false)],
        ),
        ClusterChange::Synced,
    ];
    assert_eq!(services.apply(changes.clone()).problem, None);
    assert_eq!(b.ask((vip, 8080)).unwrap(), b_ip.to_string(), "ClusterIP");
    assert_eq!(a.ask((vip, 8080)).unwrap(), a_ip.to_string(), "hairpin");
    assert_eq!(
        host.ask((vip, 8080)).unwrap(),
        "10.244.7.1",
        "from the host"
    );

    check_forged_source(&host, &b, b_ip);
    let stranger = Namespace::new();
    let error = stranger.ask((vip, 8080)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "no node there");

    let mut stream = b.run(move || TcpStream::connect((a_ip, 80)).unwrap());
    drop((node, services, data_path));
    assert_eq!(b.ask((vip, 8080)).unwrap(), b_ip.to_string(), "no agent");
    let data_path = start();
    let node = build(&host, state.path(), Some(data_path.clone()));
    assert_eq!(data_path.pods().unwrap().len(), 2, "adopted");
    let mut services = test.synchroniser(data_path.clone());
    assert_eq!(services.apply(changes).problem, None);
    assert_eq!(b.ask((vip, 8080)).unwrap(), b_ip.to_string(), "restarted");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, b_ip.to_string(), "a connection from before");

    let live = HashSet::from(["uid-b".to_owned()]);
    host.run(move || node.reconcile(&live).unwrap());
    let pods = data_path.pods().unwrap();
    assert_eq!(pods.iter().map(|(ip, _)| *ip).collect::<Vec<_>>(), [b_ip]);
}

/// A datagram with a forged source sent before one with the right source does not arrive
/// before it.
fn check_forged_source(host: &Namespace, pod: &Namespace, address: Ipv4Addr) {
    let listener = host.run(|| UdpSocket::bind("10.244.7.1:7000").unwrap());
    pod.run(move || {
        let mut netlink = Netlink::open().unwrap();
        let eth = netlink.link("eth0").unwrap().unwrap();
        let forged = Ipv4Addr::new(10, 244, 7, 99);
        netlink.add_address(eth.index, forged).unwrap();
        for source in [forged, address] {
            let socket = UdpSocket::bind((source, 0)).unwrap();
            socket.send_to(b"hi", "10.244.7.1:7000").unwrap();
        }
        netlink.delete_address(eth.index, forged).unwrap();
    });
    listener.set_read_timeout(Some(WAIT)).unwrap();
    let (_, from) = listener.recv_from(&mut [0; 8]).unwrap();
    assert_eq!(from.ip(), IpAddr::V4(address));
}

#[test]
fn the_data_path_carries_pods_by_tcx() {
    check_data_path("tcx", DataPath::open);
}

#[test]
fn the_data_path_carries_pods_by_clsact() {
    check_data_path("clsact", DataPath::open_without_tcx);
}
