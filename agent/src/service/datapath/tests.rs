//! The data path in the real kernel: own cgroup, own pins, backends on the loopback device.
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::super::cluster::fixtures::{endpoint, service, slice};
use super::super::testing::{TestNode, move_to};
use super::*;
use crate::session::ClusterChange;

/// Answers each connection with its name.
fn tcp_backend(address: &str) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let local = listener.local_addr().unwrap();
    let name = address.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            if stream.write_all(name.as_bytes()).is_err() {
                return;
            }
        }
    });
    local
}

/// Answers each datagram with its name.
fn udp_backend(address: &str, port: u16) -> SocketAddr {
    let socket = UdpSocket::bind((address, port)).unwrap();
    let local = socket.local_addr().unwrap();
    let name = address.to_owned();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            if socket.send_to(name.as_bytes(), from).is_err() {
                return;
            }
        }
    });
    local
}

fn ask(address: SocketAddr) -> std::io::Result<(String, SocketAddr)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    let peer = stream.peer_addr()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok((answer, peer))
}

fn vip(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 96, 77, 1), port).into()
}

fn web(backends: &[(&str, bool)], port: u16) -> Vec<ClusterChange> {
    let endpoints = backends
        .iter()
        .map(|(address, ready)| endpoint(address, *ready, *ready, false))
        .collect();
    vec![
        service("web", "10.96.77.1", &[("", 80, "TCP")]),
        slice("web", &[("", i32::from(port), "TCP")], endpoints),
    ]
}

#[test]
fn tcp_connections_reach_every_ready_backend() {
    let Some(node) = TestNode::new("tcp") else {
        return;
    };
    let first = tcp_backend("127.0.0.1");
    let second = TcpListener::bind(("127.0.0.2", first.port())).unwrap();
    std::thread::spawn(move || {
        for stream in second.incoming() {
            stream.unwrap().write_all(b"127.0.0.2").unwrap();
        }
    });
    let mut synchroniser = node.open();
    let mut changes = web(&[("127.0.0.1", true), ("127.0.0.2", true)], first.port());
    changes.push(ClusterChange::Synced);
    let status = synchroniser.apply(changes);
    assert_eq!(
        (status.synced, status.frontends, status.backends),
        (true, 1, 2)
    );
    assert_eq!(status.problem, None);

    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..64 {
        let (answer, peer) = ask(vip(80)).unwrap();
        assert_eq!(peer, vip(80), "getpeername shows the Service");
        seen.insert(answer);
    }
    assert_eq!(seen.len(), 2, "both backends were chosen: {seen:?}");

    let mapped = Ipv4Addr::new(10, 96, 77, 1).to_ipv6_mapped();
    let mapped: SocketAddr = (mapped, 80).into();
    let (_, peer) = ask(mapped).unwrap();
    assert_eq!(peer.ip().to_canonical(), vip(80).ip());

    synchroniser.apply(web(&[("127.0.0.2", true)], first.port()));
    for _ in 0..16 {
        assert_eq!(ask(vip(80)).unwrap().0, "127.0.0.2");
    }
}

#[test]
fn a_service_without_endpoints_refuses_at_once() {
    let Some(node) = TestNode::new("refuse") else {
        return;
    };
    let mut synchroniser = node.open();
    synchroniser.apply([
        service("web", "10.96.77.1", &[("", 80, "TCP"), ("u", 53, "UDP")]),
        ClusterChange::Synced,
    ]);
    let error = TcpStream::connect(vip(80)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let error = socket.send_to(b"hi", vip(53)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let error = socket.connect(vip(53)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn udp_sockets_see_the_service_and_keep_their_backend() {
    let Some(node) = TestNode::new("udp") else {
        return;
    };
    let port = udp_backend("127.0.0.1", 0).port();
    udp_backend("127.0.0.2", port);
    let dns = |backends: &[&str]| {
        [
            service("dns", "10.96.77.1", &[("dns", 53, "UDP")]),
            slice(
                "dns",
                &[("dns", i32::from(port), "UDP")],
                backends
                    .iter()
                    .map(|address| endpoint(address, true, true, false))
                    .collect(),
            ),
        ]
    };
    let mut synchroniser = node.open();
    synchroniser.apply(dns(&["127.0.0.1", "127.0.0.2"]));
    synchroniser.apply([ClusterChange::Synced]);

    let exchange = |socket: &UdpSocket| {
        socket.send_to(b"hi", vip(53)).unwrap();
        let mut buffer = [0; 64];
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(from.ip().to_canonical(), vip(53).ip());
        assert_eq!(from.port(), 53);
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let chosen = exchange(&socket);
    for _ in 0..16 {
        assert_eq!(exchange(&socket), chosen, "one socket, one backend");
    }
    let other = if chosen == "127.0.0.1" {
        "127.0.0.2"
    } else {
        "127.0.0.1"
    };
    synchroniser.apply(dns(&[other]));
    assert_eq!(exchange(&socket), other, "the backend that is gone is left");

    let six = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    six.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mapped: SocketAddr = (Ipv4Addr::new(10, 96, 77, 1).to_ipv6_mapped(), 53).into();
    six.send_to(b"hi", mapped).unwrap();
    let (_, from) = six.recv_from(&mut [0; 64]).unwrap();
    assert_eq!(from.ip().to_canonical(), vip(53).ip());

    let connected = UdpSocket::bind("0.0.0.0:0").unwrap();
    connected
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    connected.connect(vip(53)).unwrap();
    connected.send(b"hi").unwrap();
    let (_, from) = connected.recv_from(&mut [0; 64]).unwrap();
    assert_eq!(from, vip(53));
    assert_eq!(connected.peer_addr().unwrap(), vip(53));
}

#[test]
fn the_data_path_works_without_an_agent_and_is_adopted() {
    let Some(node) = TestNode::new("adopt") else {
        return;
    };
    let port = tcp_backend("127.0.0.1").port();
    let mut changes = web(&[("127.0.0.1", true)], port);
    changes.push(service("old", "10.96.77.2", &[("", 80, "TCP")]));
    changes.push(ClusterChange::Synced);
    let mut synchroniser = node.open();
    synchroniser.apply(changes);
    drop(synchroniser);
    assert_eq!(ask(vip(80)).unwrap().0, "127.0.0.1", "no agent");

    let mut synchroniser = node.open();
    assert_eq!(ask(vip(80)).unwrap().0, "127.0.0.1", "before the sync");
    let changes = web(&[("127.0.0.1", true)], port);
    let status = synchroniser.apply(changes);
    assert!(!status.synced);
    let status = synchroniser.apply([ClusterChange::Synced]);
    assert_eq!(
        (status.synced, status.frontends, status.backends),
        (true, 1, 1),
        "the Service that went meanwhile is removed: {:?}",
        status.problem
    );
    assert_eq!(ask(vip(80)).unwrap().0, "127.0.0.1", "after the sync");

    // A cgroup that was made anew has none of the old links.
    move_to(&node.home);
    std::fs::remove_dir(&node.cgroup).unwrap();
    std::fs::create_dir(&node.cgroup).unwrap();
    move_to(&node.cgroup);
    let mut synchroniser = node.open();
    let mut changes = web(&[("127.0.0.1", true)], port);
    changes.push(ClusterChange::Synced);
    assert_eq!(synchroniser.apply(changes).problem, None);
    assert_eq!(ask(vip(80)).unwrap().0, "127.0.0.1", "attached again");

    remove_pins(&node.bpffs_dir).unwrap();
    assert!(!node.bpffs_dir.exists());
}
