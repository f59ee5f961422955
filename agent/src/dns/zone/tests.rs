//! The zone asked as a resolver asks it.

use std::sync::Arc;

use super::*;
use crate::service::cluster::fixtures::{endpoint, service, slice};

fn zone(changes: Vec<ClusterChange>) -> Zone {
    let mut zone = Zone::new(&DnsConfig {
        cluster_domain: "Cluster.Local".to_owned(),
        listen: "10.96.0.10:53".parse().unwrap(),
        service_cidr: Some("10.96.0.0/16".parse().unwrap()),
        cluster_cidr: Some("10.244.0.0/16".parse().unwrap()),
        upstreams: None,
    })
    .unwrap();
    for change in changes {
        zone.apply(change);
    }
    zone
}

fn example() -> Zone {
    let mut named = endpoint("10.244.0.6", true, true, false);
    named.hostname = Some("db-0".to_owned());
    zone(vec![
        service(
            "web",
            "10.96.0.20",
            &[("http", 80, "TCP"), ("metrics", 9090, "TCP")],
        ),
        slice(
            "web",
            &[("http", 8080, "TCP"), ("metrics", 9090, "TCP")],
            vec![endpoint("10.244.0.5", true, true, false)],
        ),
        service("db", "None", &[("pg", 5432, "TCP")]),
        slice(
            "db",
            &[("pg", 15432, "TCP")],
            vec![
                named,
                endpoint("10.244.0.7", true, true, false),
                endpoint("10.244.0.8", false, false, false),
            ],
        ),
        service("empty", "None", &[("x", 1, "TCP")]),
        service("kubernetes", "10.96.0.1", &[("https", 443, "TCP")]),
    ])
}

/// The answer as text: the code when there is nothing, else the sorted record data.
fn ask(zone: &Zone, name: &str, kind: RecordType) -> String {
    let name = Name::from_ascii(name).unwrap();
    match zone.answer(&name, kind) {
        Answer::Foreign => "foreign".to_owned(),
        Answer::Alias(record, _) => record.data.to_string(),
        Answer::Reply(reply) if reply.answers.is_empty() => {
            assert_eq!(reply.authorities.len(), 1, "a SOA record goes with it");
            match reply.code {
                ResponseCode::NXDomain => "no name".to_owned(),
                ResponseCode::NoError => "no data".to_owned(),
                other => other.to_string(),
            }
        }
        Answer::Reply(reply) => {
            assert!(reply.answers.iter().all(|record| record.name == name));
            let mut texts: Vec<_> = reply
                .answers
                .iter()
                .map(|record| record.data.to_string())
                .collect();
            texts.sort();
            texts.join(", ")
        }
    }
}

#[test]
fn services_have_their_address() {
    let zone = example();
    let a = |name| ask(&zone, name, RecordType::A);
    assert_eq!(a("web.default.svc.cluster.local."), "10.96.0.20");
    assert_eq!(a("WEB.Default.svc.CLUSTER.local."), "10.96.0.20");
    assert_eq!(a("kubernetes.default.svc.cluster.local."), "10.96.0.1");
    assert_eq!(a("web.other.svc.cluster.local."), "no name");
    assert_eq!(a("web.default.svc.cluster.local.default."), "foreign");
    assert_eq!(a("web.default."), "foreign");
    assert_eq!(a("example.com."), "foreign");
    assert_eq!(a("www.example.com.svc.cluster.local."), "no name");
    let aaaa = ask(&zone, "web.default.svc.cluster.local.", RecordType::AAAA);
    assert_eq!(aaaa, "no data");
}

#[test]
fn headless_services_have_their_endpoints() {
    let zone = example();
    let a = |name| ask(&zone, name, RecordType::A);
    assert_eq!(
        a("db.default.svc.cluster.local."),
        "10.244.0.6, 10.244.0.7",
        "ready ones only"
    );
    assert_eq!(a("db-0.db.default.svc.cluster.local."), "10.244.0.6");
    assert_eq!(a("10-244-0-7.db.default.svc.cluster.local."), "10.244.0.7");
    assert_eq!(a("10-244-0-8.db.default.svc.cluster.local."), "no name");
    assert_eq!(a("empty.default.svc.cluster.local."), "no name");
}

#[test]
fn ports_are_found_by_name() {
    let zone = example();
    let srv = |name| ask(&zone, name, RecordType::SRV);
    assert_eq!(
        srv("_http._tcp.web.default.svc.cluster.local."),
        "0 100 80 web.default.svc.cluster.local."
    );
    assert_eq!(
        srv("_pg._tcp.db.default.svc.cluster.local."),
        "0 100 15432 10-244-0-7.db.default.svc.cluster.local., \
         0 100 15432 db-0.db.default.svc.cluster.local."
    );
    assert_eq!(
        srv("web.default.svc.cluster.local."),
        "0 100 80 web.default.svc.cluster.local., \
         0 100 9090 web.default.svc.cluster.local."
    );
    assert_eq!(srv("_http._udp.web.default.svc.cluster.local."), "no name");
    assert_eq!(srv("_tcp.web.default.svc.cluster.local."), "no data");
    let name = Name::from_ascii("_pg._tcp.db.default.svc.cluster.local.").unwrap();
    let Answer::Reply(reply) = zone.answer(&name, RecordType::SRV) else {
        panic!("a reply");
    };
    assert_eq!(reply.additionals.len(), 2, "the targets' addresses");
}

#[test]
fn addresses_have_names() {
    let zone = example();
    let ptr = |name| ask(&zone, name, RecordType::PTR);
    assert_eq!(
        ptr("20.0.96.10.in-addr.arpa."),
        "web.default.svc.cluster.local."
    );
    assert_eq!(
        ptr("6.0.244.10.in-addr.arpa."),
        "db-0.db.default.svc.cluster.local."
    );
    assert_eq!(
        ptr("5.0.244.10.in-addr.arpa."),
        "10-244-0-5.web.default.svc.cluster.local."
    );
    assert_eq!(ptr("10.0.96.10.in-addr.arpa."), "ns.dns.cluster.local.");
    assert_eq!(ptr("99.0.244.10.in-addr.arpa."), "no name");
    assert_eq!(ptr("1.2.0.192.in-addr.arpa."), "foreign");
}

#[test]
fn pods_and_the_domain_itself_have_names() {
    let zone = example();
    let a = |name| ask(&zone, name, RecordType::A);
    assert_eq!(a("10-244-0-9.default.pod.cluster.local."), "10.244.0.9");
    assert_eq!(a("192-0-2-1.default.pod.cluster.local."), "no name");
    assert_eq!(a("nonsense.default.pod.cluster.local."), "no name");
    assert_eq!(a("cluster.local."), "no data");
    assert_eq!(a("svc.cluster.local."), "no data");
    assert_eq!(a("default.svc.cluster.local."), "no data");
    assert_eq!(a("nowhere.svc.cluster.local."), "no name");
    assert_eq!(a("ns.dns.cluster.local."), "10.96.0.10");
    let ns = ask(&zone, "cluster.local.", RecordType::NS);
    assert_eq!(ns, "ns.dns.cluster.local.");
    let soa = ask(&zone, "cluster.local.", RecordType::SOA);
    assert!(soa.starts_with("ns.dns.cluster.local. hostmaster.cluster.local. "));
    let txt = ask(&zone, "dns-version.cluster.local.", RecordType::TXT);
    assert_eq!(txt, "1.1.0");
}

#[test]
fn an_external_name_is_an_alias() {
    let ClusterChange::Service(key, Some(service)) = service("ext", "", &[]) else {
        panic!("a service");
    };
    let mut service = Arc::unwrap_or_clone(service);
    let spec = service.spec.as_mut().unwrap();
    spec.type_ = Some("ExternalName".to_owned());
    spec.external_name = Some("example.com".to_owned());
    let zone = zone(vec![ClusterChange::Service(key, Some(Arc::new(service)))]);
    let answer = ask(&zone, "ext.default.svc.cluster.local.", RecordType::A);
    assert_eq!(answer, "example.com.");
}

#[test]
fn names_follow_changes() {
    let mut zone = example();
    let web = "web.default.svc.cluster.local.";
    zone.apply(service("web", "10.96.0.21", &[("http", 80, "TCP")]));
    assert_eq!(ask(&zone, web, RecordType::A), "10.96.0.21");
    let old = ask(&zone, "20.0.96.10.in-addr.arpa.", RecordType::PTR);
    assert_eq!(old, "no name");
    zone.apply(ClusterChange::Service("default/web".to_owned(), None));
    assert_eq!(ask(&zone, web, RecordType::A), "no name");
    let old = ask(&zone, "5.0.244.10.in-addr.arpa.", RecordType::PTR);
    assert_eq!(old, "no name");
}

#[test]
fn a_domain_must_be_one() {
    let config = |domain: &str| DnsConfig {
        cluster_domain: domain.to_owned(),
        listen: "10.96.0.10:53".parse().unwrap(),
        service_cidr: None,
        cluster_cidr: None,
        upstreams: None,
    };
    for bad in ["", ".", "a..b", "white space.x"] {
        assert!(Zone::new(&config(bad)).is_err(), "{bad:?}");
    }
    assert!(Zone::new(&config("k8s.example.org.")).is_ok());
}
