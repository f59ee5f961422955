//! What the names of the cluster mean.
//!
//! Pure: an index of Services and EndpointSlices, and a function from a question to an answer,
//! by the Kubernetes DNS specification 1.1.0 and, where that is silent, as its usual server
//! answers. Names that are not of the cluster are [`Answer::Foreign`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::Endpoint;

use super::{DnsConfig, DnsError};
use crate::network::Cidr;
use crate::service::cluster::ClusterServices;
use crate::session::ClusterChange;

/// How long an answer may be kept. Services change and their names must follow.
const TTL: u32 = 5;
const SCHEMA_VERSION: &str = "1.1.0";

/// An answer to one question.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// Records, or none with the reason in the code and the authority section.
    Reply(Reply),
    /// The name stands for another one outside the cluster.
    Alias(Box<Record>, Name),
    /// The name is not of this cluster.
    Foreign,
}

/// Sections of a response.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reply {
    pub(super) code: ResponseCode,
    pub(super) answers: Vec<Record>,
    pub(super) authorities: Vec<Record>,
    pub(super) additionals: Vec<Record>,
}

/// The zone of the cluster.
#[derive(Debug)]
pub(super) struct Zone {
    domain: Name,
    labels: Vec<String>,
    own_address: Option<Ipv4Addr>,
    service_cidr: Option<Cidr>,
    cluster_cidr: Option<Cidr>,
    cluster: ClusterServices,
    /// Addresses of each Service and its endpoints, and the way back.
    addresses: HashMap<String, BTreeSet<Ipv4Addr>>,
    services_at: HashMap<Ipv4Addr, BTreeSet<String>>,
    serial: u32,
}

/// One endpoint as DNS sees it.
struct Host {
    /// First label of its name.
    label: String,
    address: Ipv4Addr,
    /// Ports by (name, protocol).
    ports: BTreeMap<(String, String), u16>,
}

/// What exists at a name.
#[derive(Default)]
struct Found {
    addresses: Vec<Ipv4Addr>,
    services: Vec<(SRV, Vec<Ipv4Addr>)>,
    texts: Vec<String>,
}

impl Zone {
    pub(super) fn new(config: &DnsConfig) -> Result<Self, DnsError> {
        let text = config.cluster_domain.trim_end_matches('.').to_lowercase();
        let mut domain = Name::from_ascii(&text)
            .ok()
            .filter(|name| !name.is_root() && !text.is_empty())
            .ok_or_else(|| DnsError::Domain(config.cluster_domain.clone()))?;
        domain.set_fqdn(true);
        Ok(Self {
            labels: labels(&domain),
            domain,
            own_address: match config.listen.ip() {
                std::net::IpAddr::V4(address) => Some(address),
                std::net::IpAddr::V6(_) => None,
            },
            service_cidr: config.service_cidr,
            cluster_cidr: config.cluster_cidr,
            cluster: ClusterServices::default(),
            addresses: HashMap::new(),
            services_at: HashMap::new(),
            serial: 1,
        })
    }

    /// Takes one change of the cluster.
    pub(super) fn apply(&mut self, change: ClusterChange) {
        for key in self.cluster.apply(change) {
            self.serial = self.serial.wrapping_add(1);
            self.index(&key);
        }
    }

    /// Renews the reverse index of one Service.
    fn index(&mut self, key: &str) {
        let mut now: BTreeSet<Ipv4Addr> = BTreeSet::new();
        if let Some(service) = self.cluster.service(key) {
            now.extend(cluster_ips(service));
            now.extend(self.hosts(key, service).iter().map(|host| host.address));
        }
        let before = self.addresses.remove(key).unwrap_or_default();
        for address in before.difference(&now) {
            if let Some(keys) = self.services_at.get_mut(address) {
                keys.remove(key);
                if keys.is_empty() {
                    self.services_at.remove(address);
                }
            }
        }
        for address in &now {
            let keys = self.services_at.entry(*address).or_default();
            keys.insert(key.to_owned());
        }
        if !now.is_empty() {
            self.addresses.insert(key.to_owned(), now);
        }
    }

    /// Answers one question.
    pub(super) fn answer(&self, name: &Name, kind: RecordType) -> Answer {
        let asked = labels(name);
        if let Some(address) = reverse_address(&asked) {
            return self.answer_reverse(name, kind, address);
        }
        let Some(relative) = asked
            .len()
            .checked_sub(self.labels.len())
            .filter(|count| asked[*count..] == self.labels)
        else {
            return Answer::Foreign;
        };
        let relative: Vec<&str> = asked[..relative].iter().map(String::as_str).collect();
        if relative.is_empty() {
            return self.answer_apex(name, kind);
        }
        if let ["svc", namespace, service] = reversed(&relative)[..]
            && let Some(target) = self.external_name(namespace, service)
        {
            let record = Record::from_rdata(name.clone(), TTL, RData::CNAME(CNAME(target.clone())));
            return Answer::Alias(Box::new(record), target);
        }
        match self.find(&relative) {
            Some(found) => self.answer_found(name, kind, found),
            None => Answer::Reply(self.nothing(ResponseCode::NXDomain)),
        }
    }

    fn answer_found(&self, name: &Name, kind: RecordType, found: Found) -> Answer {
        let record = |data| Record::from_rdata(name.clone(), TTL, data);
        let mut reply = Reply::default();
        if matches!(kind, RecordType::A | RecordType::ANY) {
            let addresses = found.addresses.iter();
            reply
                .answers
                .extend(addresses.map(|address| record(RData::A(A(*address)))));
        }
        if matches!(kind, RecordType::SRV | RecordType::ANY) {
            for (service, addresses) in found.services {
                let target = service.target.clone();
                reply.answers.push(record(RData::SRV(service)));
                for address in addresses {
                    let extra = Record::from_rdata(target.clone(), TTL, RData::A(A(address)));
                    if !reply.additionals.contains(&extra) {
                        reply.additionals.push(extra);
                    }
                }
            }
        }
        if matches!(kind, RecordType::TXT | RecordType::ANY) && !found.texts.is_empty() {
            reply
                .answers
                .push(record(RData::TXT(TXT::new(found.texts))));
        }
        if reply.answers.is_empty() {
            return Answer::Reply(self.nothing(ResponseCode::NoError));
        }
        Answer::Reply(reply)
    }

    fn answer_apex(&self, name: &Name, kind: RecordType) -> Answer {
        let data = match kind {
            RecordType::SOA | RecordType::ANY => self.soa(),
            RecordType::NS => self.child(&["ns", "dns"]).map(|name| RData::NS(NS(name))),
            _ => None,
        };
        Answer::Reply(match data {
            Some(data) => Reply {
                answers: vec![Record::from_rdata(name.clone(), TTL, data)],
                ..Reply::default()
            },
            None => self.nothing(ResponseCode::NoError),
        })
    }

    fn answer_reverse(&self, name: &Name, kind: RecordType, address: Ipv4Addr) -> Answer {
        let names = self.names_of(address);
        let is_ours = [self.service_cidr, self.cluster_cidr]
            .into_iter()
            .flatten()
            .any(|range| range.contains(address));
        if names.is_empty() {
            return if is_ours {
                Answer::Reply(self.nothing(ResponseCode::NXDomain))
            } else {
                Answer::Foreign
            };
        }
        if !matches!(kind, RecordType::PTR | RecordType::ANY) {
            return Answer::Reply(self.nothing(ResponseCode::NoError));
        }
        Answer::Reply(Reply {
            answers: names
                .into_iter()
                .map(|target| Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(target))))
                .collect(),
            ..Reply::default()
        })
    }

    fn names_of(&self, address: Ipv4Addr) -> Vec<Name> {
        let mut names = Vec::new();
        if self.own_address == Some(address) {
            names.extend(self.child(&["ns", "dns"]));
        }
        for key in self.services_at.get(&address).into_iter().flatten() {
            let (Some((namespace, name)), Some(service)) =
                (key.split_once('/'), self.cluster.service(key))
            else {
                continue;
            };
            if cluster_ips(service).contains(&address) {
                names.extend(self.child(&[name, namespace, "svc"]));
                continue;
            }
            let hosts = self.hosts(key, service);
            let here = hosts.iter().filter(|host| host.address == address);
            for host in here {
                names.extend(self.child(&[&host.label, name, namespace, "svc"]));
            }
        }
        names
    }

    /// What exists at a name given relative to the domain; `None`: no such name.
    fn find(&self, relative: &[&str]) -> Option<Found> {
        match reversed(relative)[..] {
            ["dns-version"] => Some(Found {
                texts: vec![SCHEMA_VERSION.to_owned()],
                ..Found::default()
            }),
            ["dns" | "svc" | "pod"] => Some(Found::default()),
            ["dns", "ns"] => Some(Found {
                addresses: self.own_address.into_iter().collect(),
                ..Found::default()
            }),
            ["svc" | "pod", namespace] => self.has_namespace(namespace).then(Found::default),
            ["pod", _, address] => self.find_pod(address),
            ["svc", namespace, service] => self.find_service(namespace, service),
            ["svc", namespace, service, host] => self.find_host(namespace, service, host),
            ["svc", namespace, service, protocol, port] => {
                self.find_port(namespace, service, protocol, port)
            }
            _ => None,
        }
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        self.cluster
            .keys()
            .any(|key| key.split('/').next() == Some(namespace))
    }

    /// `10-244-0-7.<namespace>.pod`: the address is in the name.
    fn find_pod(&self, label: &str) -> Option<Found> {
        let address: Ipv4Addr = label.replace('-', ".").parse().ok()?;
        let is_pod = self
            .cluster_cidr
            .is_none_or(|range| range.contains(address));
        is_pod.then(|| Found {
            addresses: vec![address],
            ..Found::default()
        })
    }

    fn find_service(&self, namespace: &str, name: &str) -> Option<Found> {
        let key = format!("{namespace}/{name}");
        let service = self.cluster.service(&key)?;
        let found = self.found(&key, service, namespace, name, |_, _| true);
        // A headless Service without endpoints is a name without anything at it.
        (!is_headless(service) || !found.addresses.is_empty()).then_some(found)
    }

    /// `_http._tcp.<service>`: only that port.
    fn find_port(&self, namespace: &str, name: &str, protocol: &str, port: &str) -> Option<Found> {
        let (protocol, port) = (protocol.strip_prefix('_')?, port.strip_prefix('_')?);
        let key = format!("{namespace}/{name}");
        let service = self.cluster.service(&key)?;
        let mut found = self.found(&key, service, namespace, name, |name, candidate| {
            name == port && candidate.eq_ignore_ascii_case(protocol)
        });
        found.addresses.clear();
        (!found.services.is_empty()).then_some(found)
    }

    /// `<hostname>.<service>`: one endpoint.
    fn find_host(&self, namespace: &str, name: &str, label: &str) -> Option<Found> {
        let key = format!("{namespace}/{name}");
        let service = self.cluster.service(&key)?;
        if label == "_tcp" || label == "_udp" {
            return Some(Found::default());
        }
        let hosts = self.hosts(&key, service);
        let addresses: Vec<Ipv4Addr> = hosts
            .iter()
            .filter(|host| host.label == label)
            .map(|host| host.address)
            .collect();
        (!addresses.is_empty()).then(|| Found {
            addresses,
            ..Found::default()
        })
    }

    fn found(
        &self,
        key: &str,
        service: &Service,
        namespace: &str,
        name: &str,
        wanted: impl Fn(&str, &str) -> bool,
    ) -> Found {
        let mut found = Found::default();
        if is_headless(service) {
            for host in self.hosts(key, service) {
                found.addresses.push(host.address);
                let Some(target) = self.child(&[&host.label, name, namespace, "svc"]) else {
                    continue;
                };
                for ((port_name, protocol), number) in &host.ports {
                    if wanted(port_name, protocol) {
                        let record = SRV::new(0, 100, *number, target.clone());
                        found.services.push((record, vec![host.address]));
                    }
                }
            }
            return found;
        }
        found.addresses = cluster_ips(service);
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
        for port in ports.unwrap_or_default() {
            let port_name = port.name.as_deref().unwrap_or_default();
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            if !wanted(port_name, protocol) {
                continue;
            }
            if let (Some(target), Ok(number)) = (
                self.child(&[name, namespace, "svc"]),
                u16::try_from(port.port),
            ) {
                let record = SRV::new(0, 100, number, target);
                found.services.push((record, found.addresses.clone()));
            }
        }
        found
    }

    /// The endpoints of a Service that are to be found by name.
    fn hosts(&self, key: &str, service: &Service) -> Vec<Host> {
        let spec = service.spec.as_ref();
        let unready_too = spec
            .and_then(|spec| spec.publish_not_ready_addresses)
            .unwrap_or(false);
        let mut hosts: BTreeMap<(Ipv4Addr, String), Host> = BTreeMap::new();
        for slice in self.cluster.slices(key) {
            if slice.address_type != "IPv4" {
                continue;
            }
            let ports: BTreeMap<(String, String), u16> = slice
                .ports
                .iter()
                .flatten()
                .filter_map(|port| {
                    let name = port.name.clone().unwrap_or_default();
                    let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
                    let number = u16::try_from(port.port?).ok()?;
                    Some(((name, protocol), number))
                })
                .collect();
            for endpoint in slice.endpoints.iter().flatten() {
                if !unready_too && !is_ready(endpoint) {
                    continue;
                }
                for address in &endpoint.addresses {
                    let Ok(address) = address.parse::<Ipv4Addr>() else {
                        continue;
                    };
                    let label = endpoint
                        .hostname
                        .clone()
                        .filter(|hostname| !hostname.is_empty())
                        .unwrap_or_else(|| address.to_string().replace('.', "-"));
                    hosts
                        .entry((address, label.clone()))
                        .or_insert_with(|| Host {
                            label,
                            address,
                            ports: BTreeMap::new(),
                        })
                        .ports
                        .extend(ports.clone());
                }
            }
        }
        hosts.into_values().collect()
    }

    fn external_name(&self, namespace: &str, name: &str) -> Option<Name> {
        let service = self.cluster.service(&format!("{namespace}/{name}"))?;
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() != Some("ExternalName") {
            return None;
        }
        let mut target = Name::from_ascii(spec.external_name.as_deref()?).ok()?;
        target.set_fqdn(true);
        Some(target)
    }

    /// A name below the domain.
    fn child(&self, labels: &[&str]) -> Option<Name> {
        let relative = Name::from_labels(labels.iter().map(|label| label.as_bytes())).ok()?;
        let mut name = relative.append_domain(&self.domain).ok()?;
        name.set_fqdn(true);
        Some(name)
    }

    fn soa(&self) -> Option<RData> {
        let server = self.child(&["ns", "dns"])?;
        let mailbox = self.child(&["hostmaster"])?;
        let data = SOA::new(server, mailbox, self.serial, 7_200, 1_800, 86_400, TTL);
        Some(RData::SOA(data))
    }

    fn nothing(&self, code: ResponseCode) -> Reply {
        Reply {
            code,
            authorities: self
                .soa()
                .map(|data| Record::from_rdata(self.domain.clone(), TTL, data))
                .into_iter()
                .collect(),
            ..Reply::default()
        }
    }
}

fn labels(name: &Name) -> Vec<String> {
    name.iter()
        .map(|label| String::from_utf8_lossy(label).to_lowercase())
        .collect()
}

fn reversed<'a>(labels: &[&'a str]) -> Vec<&'a str> {
    labels.iter().rev().copied().collect()
}

/// The address in `4.3.2.1.in-addr.arpa`.
fn reverse_address(labels: &[String]) -> Option<Ipv4Addr> {
    let [d, c, b, a, zone, arpa] = labels else {
        return None;
    };
    if zone != "in-addr" || arpa != "arpa" {
        return None;
    }
    format!("{a}.{b}.{c}.{d}").parse().ok()
}

fn is_headless(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

fn cluster_ips(service: &Service) -> Vec<Ipv4Addr> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let many = spec.cluster_ips.iter().flatten();
    let mut addresses: Vec<Ipv4Addr> = many.filter_map(|text| text.parse().ok()).collect();
    if addresses.is_empty() {
        let one = spec.cluster_ip.as_deref();
        addresses.extend(one.and_then(|text| text.parse::<Ipv4Addr>().ok()));
    }
    addresses
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .and_then(|conditions| conditions.ready)
        .unwrap_or(true)
}

#[cfg(test)]
mod tests;
