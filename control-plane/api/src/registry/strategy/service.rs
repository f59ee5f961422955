//! Services: cluster IPs and node ports, each owned by one Service.
//!
//! Ownership is a key of the store (see [`key::service_ip`], [`key::node_port`]) that is
//! written and deleted in the transaction of the Service itself, so neither a crash nor a
//! race can leak one or give it away twice.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use pintle_kube_types::status::Status;
use pintle_kube_types::{ErrorList, FieldError, Object, Path};
use pintle_store::{Compare, Op, Store};
use rand::Rng;
use serde_json::{Value, json};

use crate::pipeline::persist::{Effects, store_failed};
use crate::registry::Resource;
use crate::storage::key;

/// An IPv4 network that cluster IPs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceRange {
    first: u32,
    /// Number of addresses.
    size: u32,
}

impl ServiceRange {
    /// Parses `10.96.0.0/16`; smaller than a /30 leaves no room.
    pub(crate) fn parse(cidr: &str) -> Option<Self> {
        let (address, bits) = cidr.split_once('/')?;
        let address: Ipv4Addr = address.parse().ok()?;
        let bits: u32 = bits.parse().ok()?;
        if !(8..=30).contains(&bits) {
            return None;
        }
        let size = 1u32 << (32 - bits);
        let first = u32::from(address) & !(size - 1);
        Some(Self { first, size })
    }

    /// The address of the `kubernetes` Service.
    pub(crate) fn api_address(self) -> IpAddr {
        self.at(1)
    }

    fn at(self, offset: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(self.first + offset))
    }

    fn contains(self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => u32::from(ip)
                .checked_sub(self.first)
                .is_some_and(|offset| offset > 0 && offset < self.size - 1),
            IpAddr::V6(_) => false,
        }
    }

    /// First offset given out by chance; those below are for people who choose (KEP-3070).
    fn dynamic_from(self) -> u32 {
        let band = (self.size / 16).clamp(16, 256);
        if band >= self.size - 2 { 1 } else { band }
    }

    /// Every address, those to be given out by chance first, from a random one on.
    fn candidates(self, start: u32) -> impl Iterator<Item = IpAddr> {
        let from = self.dynamic_from();
        let span = self.size - 1 - from;
        (0..span)
            .map(move |step| from + (start + step) % span)
            .chain(1..from)
            .map(move |offset| self.at(offset))
    }
}

/// Pools a Service takes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pools {
    pub(crate) ips: ServiceRange,
    pub(crate) ports: (u16, u16),
}

fn service_type(service: &Object) -> &str {
    service.str_at(&["spec", "type"]).unwrap_or("ClusterIP")
}

fn cluster_ips(service: &Object) -> Vec<String> {
    match service.get_path(&["spec", "clusterIPs"]) {
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => service
            .str_at(&["spec", "clusterIP"])
            .filter(|ip| !ip.is_empty())
            .map(|ip| vec![ip.to_owned()])
            .unwrap_or_default(),
    }
}

/// The single-valued field and the list mean the same.
fn normalise_cluster_ips(service: &mut Object) {
    let single = service
        .str_at(&["spec", "clusterIP"])
        .unwrap_or_default()
        .to_owned();
    let listed = service.get_path(&["spec", "clusterIPs"]).is_some();
    if !single.is_empty() && !listed {
        service.set_path(&["spec", "clusterIPs"], json!([single]));
    }
}

pub(super) fn prepare_create(service: &mut Object) {
    normalise_cluster_ips(service);
}

/// What a client left out of an update stays as it was allocated.
pub(super) fn prepare_update(new: &mut Object, old: &Object) {
    let (now, before) = (service_type(new).to_owned(), service_type(old).to_owned());
    if now == "ExternalName" {
        if before != "ExternalName" && cluster_ips(new) == cluster_ips(old) {
            for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                new.remove_path(&["spec", field]);
            }
        }
    } else if before != "ExternalName" {
        let unset = new
            .str_at(&["spec", "clusterIP"])
            .unwrap_or_default()
            .is_empty();
        if unset && let Some(ip) = old.get_path(&["spec", "clusterIP"]) {
            new.set_path(&["spec", "clusterIP"], ip.clone());
        }
        // Who sets only the single field means both; whether it may change is for validation.
        let single = ["spec", "clusterIP"];
        if new.get_path(&single) != old.get_path(&single) && cluster_ips(new) == cluster_ips(old) {
            new.remove_path(&["spec", "clusterIPs"]);
            normalise_cluster_ips(new);
        }
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if new.get_path(&["spec", field]).is_none()
                && let Some(value) = old.get_path(&["spec", field])
            {
                new.set_path(&["spec", field], value.clone());
            }
        }
    }
    normalise_cluster_ips(new);
    if wants_node_ports(&now, new) {
        keep_node_ports(new, old);
    } else if wants_node_ports(&before, old) {
        drop_node_ports(new, old);
    }
    // What only the old type takes goes with it, unless the client set it anew.
    let external = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if external(&before) && !external(&now) {
        drop_unchanged(new, old, &["externalTrafficPolicy", "healthCheckNodePort"]);
    }
    if before == "LoadBalancer" && now != "LoadBalancer" {
        let fields = ["allocateLoadBalancerNodePorts", "loadBalancerClass"];
        drop_unchanged(new, old, &fields);
    }
}

fn drop_unchanged(new: &mut Object, old: &Object, fields: &[&str]) {
    for field in fields {
        if new.get_path(&["spec", field]) == old.get_path(&["spec", field]) {
            new.remove_path(&["spec", field]);
        }
    }
}

fn wants_node_ports(kind: &str, service: &Object) -> bool {
    match kind {
        "NodePort" => true,
        "LoadBalancer" => {
            service
                .get_path(&["spec", "allocateLoadBalancerNodePorts"])
                .and_then(Value::as_bool)
                != Some(false)
        }
        _ => false,
    }
}

fn ports(service: &Object) -> Vec<Value> {
    match service.get_path(&["spec", "ports"]) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    }
}

fn port_key(port: &Value) -> (String, i64) {
    (
        port["protocol"].as_str().unwrap_or("TCP").to_owned(),
        port["port"].as_i64().unwrap_or_default(),
    )
}

fn node_port_of(port: &Value) -> Option<u16> {
    port["nodePort"]
        .as_u64()
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
}

fn keep_node_ports(new: &mut Object, old: &Object) {
    let taken: BTreeSet<u16> = ports(new).iter().filter_map(node_port_of).collect();
    let before = ports(old);
    let mut list = ports(new);
    for port in &mut list {
        if node_port_of(port).is_some() {
            continue;
        }
        let same = before
            .iter()
            .find(|old| port_key(old) == port_key(port))
            .and_then(node_port_of);
        if let Some(number) = same.filter(|number| !taken.contains(number)) {
            port["nodePort"] = json!(number);
        }
    }
    if !list.is_empty() {
        new.set_path(&["spec", "ports"], Value::Array(list));
    }
}

fn drop_node_ports(new: &mut Object, old: &Object) {
    let before: BTreeSet<u16> = ports(old).iter().filter_map(node_port_of).collect();
    let mut list = ports(new);
    for port in &mut list {
        if node_port_of(port).is_some_and(|number| before.contains(&number))
            && let Some(port) = port.as_object_mut()
        {
            port.remove("nodePort");
        }
    }
    if !list.is_empty() {
        new.set_path(&["spec", "ports"], Value::Array(list));
    }
}

/// What a Service owns.
fn owned(service: &Object) -> (BTreeSet<IpAddr>, BTreeSet<u16>) {
    let ips = if service_type(service) == "ExternalName" {
        BTreeSet::new()
    } else {
        cluster_ips(service)
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .collect()
    };
    let mut numbers: BTreeSet<u16> = ports(service).iter().filter_map(node_port_of).collect();
    numbers.extend(
        service
            .get_path(&["spec", "healthCheckNodePort"])
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0),
    );
    (ips, numbers)
}

/// Gives back what a deleted Service owned.
pub(crate) fn release(service: &Object) -> Effects {
    let (ips, numbers) = owned(service);
    let mut effects = Effects::default();
    effects
        .ops
        .extend(ips.into_iter().map(|ip| Op::delete(key::service_ip(ip))));
    effects.ops.extend(
        numbers
            .into_iter()
            .map(|port| Op::delete(key::node_port(port))),
    );
    effects
}

/// Fills in the cluster IP and node ports a Service needs, and answers the conditions and
/// writes by which it comes to own them.
pub(crate) fn allocate(
    store: &Store,
    pools: Pools,
    resource: &Resource,
    new: &mut Object,
    old: Option<&Object>,
) -> Result<Effects, Status> {
    let (old_ips, old_ports) = old.map(owned).unwrap_or_default();
    let owner = new.key();
    let invalid = |service: &Object, error: FieldError| {
        Status::invalid(
            &resource.group_kind(),
            service.name().unwrap_or_default(),
            &ErrorList(vec![error]),
        )
    };
    families(new).map_err(|error| invalid(new, error))?;

    let mut effects = Effects::default();
    let headless = cluster_ips(new).iter().any(|ip| ip == "None");
    if service_type(new) != "ExternalName" && !headless {
        if cluster_ips(new).is_empty() {
            let ip = free_ip(store, pools.ips)?;
            new.set_path(&["spec", "clusterIP"], json!(ip.to_string()));
            new.set_path(&["spec", "clusterIPs"], json!([ip.to_string()]));
            claim(&mut effects, key::service_ip(ip), &owner);
        } else {
            for ip in owned(new).0.difference(&old_ips) {
                let why = if !pools.ips.contains(*ip) {
                    "the provided network does not match the current range"
                } else if taken(store, &key::service_ip(*ip))? {
                    "provided IP is already allocated"
                } else {
                    claim(&mut effects, key::service_ip(*ip), &owner);
                    continue;
                };
                return Err(invalid(
                    new,
                    FieldError::invalid(
                        &Path::new("spec").child("clusterIPs"),
                        cluster_ips(new),
                        format!("failed to allocate IP {ip}: {why}"),
                    ),
                ));
            }
        }
    }
    let kind = service_type(new).to_owned();
    if wants_node_ports(&kind, new) {
        node_ports(store, pools, new, &old_ports, &owner, &mut effects).map_err(
            |error| match error {
                PortError::Field(error) => invalid(new, *error),
                PortError::Status(status) => status,
            },
        )?;
    }
    let (new_ips, new_ports) = owned(new);
    for ip in old_ips.difference(&new_ips) {
        effects.ops.push(Op::delete(key::service_ip(*ip)));
    }
    for port in old_ports.difference(&new_ports) {
        effects.ops.push(Op::delete(key::node_port(*port)));
    }
    Ok(effects)
}

enum PortError {
    Field(Box<FieldError>),
    Status(Status),
}

fn node_ports(
    store: &Store,
    pools: Pools,
    service: &mut Object,
    old: &BTreeSet<u16>,
    owner: &str,
    effects: &mut Effects,
) -> Result<(), PortError> {
    let (low, high) = pools.ports;
    let mut claimed: BTreeSet<u16> = BTreeSet::new();
    let mut list = ports(service);
    for (index, port) in list.iter_mut().enumerate() {
        let number = match node_port_of(port) {
            Some(number) if old.contains(&number) || claimed.contains(&number) => continue,
            Some(number) => {
                let taken = taken(store, &key::node_port(number)).map_err(PortError::Status)?;
                let why = if !(low..=high).contains(&number) {
                    format!(
                        "provided port is not in the valid range. The range of valid ports is {low}-{high}"
                    )
                } else if taken {
                    "provided port is already allocated".to_owned()
                } else {
                    claimed.insert(number);
                    claim(effects, key::node_port(number), owner);
                    continue;
                };
                let path = Path::new("spec")
                    .child("ports")
                    .index(index)
                    .child("nodePort");
                return Err(PortError::Field(Box::new(FieldError::invalid(
                    &path, number, why,
                ))));
            }
            None => free_port(store, pools.ports, &claimed).map_err(PortError::Status)?,
        };
        claimed.insert(number);
        claim(effects, key::node_port(number), owner);
        port["nodePort"] = json!(number);
    }
    service.set_path(&["spec", "ports"], Value::Array(list));
    Ok(())
}

/// One family: IPv4. What asks for another is told so.
fn families(service: &mut Object) -> Result<(), FieldError> {
    if service_type(service) == "ExternalName" {
        return Ok(());
    }
    let spec = Path::new("spec");
    if service.str_at(&["spec", "ipFamilyPolicy"]) == Some("RequireDualStack") {
        return Err(FieldError::invalid(
            &spec.child("ipFamilyPolicy"),
            "RequireDualStack",
            "this cluster is not configured for dual-stack services",
        ));
    }
    if let Some(Value::Array(list)) = service.get_path(&["spec", "ipFamilies"]) {
        for (index, family) in list.iter().enumerate() {
            if family != "IPv4" {
                return Err(FieldError::invalid(
                    &spec.child("ipFamilies").index(index),
                    family,
                    "not configured on this cluster",
                ));
            }
        }
    } else {
        service.set_path(&["spec", "ipFamilies"], json!(["IPv4"]));
    }
    if service.get_path(&["spec", "ipFamilyPolicy"]).is_none() {
        service.set_path(&["spec", "ipFamilyPolicy"], json!("SingleStack"));
    }
    Ok(())
}

fn claim(effects: &mut Effects, key: bytes::Bytes, owner: &str) {
    effects.compares.push(Compare::absent(key.clone()));
    effects.ops.push(Op::put(key, owner.to_owned()));
}

fn taken(store: &Store, key: &[u8]) -> Result<bool, Status> {
    Ok(store.get(key).map_err(store_failed)?.is_some())
}

fn free_ip(store: &Store, range: ServiceRange) -> Result<IpAddr, Status> {
    let start = rand::rng().random_range(0..range.size);
    for ip in range.candidates(start) {
        if !taken(store, &key::service_ip(ip))? {
            return Ok(ip);
        }
    }
    Err(Status::internal_error(
        "failed to allocate a serviceIP: range is full",
    ))
}

fn free_port(
    store: &Store,
    (low, high): (u16, u16),
    claimed: &BTreeSet<u16>,
) -> Result<u16, Status> {
    let span = u32::from(high - low) + 1;
    let start = rand::rng().random_range(0..span);
    for step in 0..span {
        let offset = u16::try_from((start + step) % span).unwrap_or_default();
        let port = low + offset;
        if !claimed.contains(&port) && !taken(store, &key::node_port(port))? {
            return Ok(port);
        }
    }
    Err(Status::internal_error(
        "failed to allocate a nodePort: range is full",
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges() {
        let range = ServiceRange::parse("10.96.0.0/16").expect("a range");
        assert_eq!(range.api_address().to_string(), "10.96.0.1");
        assert_eq!(range.dynamic_from(), 256);
        assert!(!range.contains("10.96.0.0".parse().expect("an address")));
        assert!(!range.contains("10.96.255.255".parse().expect("an address")));
        assert!(!range.contains("10.97.0.1".parse().expect("an address")));
        for bad in ["", "10.96.0.0", "10.96.0.0/31", "10.96.0.0/x", "fd00::/112"] {
            assert_eq!(ServiceRange::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn candidates_are_every_usable_address_once(bits in 22u32..=30, start in 0u32..5000) {
            let range = ServiceRange::parse(&format!("10.0.0.0/{bits}")).expect("a range");
            let all: Vec<IpAddr> = range.candidates(start).collect();
            let distinct: BTreeSet<IpAddr> = all.iter().copied().collect();
            prop_assert_eq!(all.len(), distinct.len());
            prop_assert_eq!(u32::try_from(distinct.len()), Ok(range.size - 2));
            prop_assert!(distinct.iter().all(|ip| range.contains(*ip)));
        }
    }

    #[test]
    fn an_update_keeps_what_was_allocated() {
        let old = Object::from_value(json!({"spec": {
            "type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}],
        }}))
        .expect("an object");
        let mut new = Object::from_value(json!({"spec": {
            "type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81}],
        }}))
        .expect("an object");
        prepare_update(&mut new, &old);
        assert_eq!(new.pointer("/spec/clusterIP"), Some(&json!("10.96.0.9")));
        assert_eq!(new.pointer("/spec/ports/0/nodePort"), Some(&json!(30080)));
        assert_eq!(new.pointer("/spec/ports/1/nodePort"), None);
        new.set_path(&["spec", "type"], json!("ClusterIP"));
        prepare_update(&mut new, &old);
        assert_eq!(new.pointer("/spec/ports/0/nodePort"), None);
    }
    #[test]
    fn changing_only_the_single_cluster_ip_changes_the_list() {
        let old = Object::from_value(json!({"spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
        }}))
        .expect("an object");
        let mut new = old.clone();
        new.set_path(&["spec", "clusterIP"], json!("10.96.0.10"));
        prepare_update(&mut new, &old);
        assert_eq!(
            new.pointer("/spec/clusterIPs"),
            Some(&json!(["10.96.0.10"]))
        );
        new.set_path(&["spec", "clusterIPs"], json!(["10.96.0.11"]));
        prepare_update(&mut new, &old);
        assert_eq!(
            new.pointer("/spec/clusterIPs"),
            Some(&json!(["10.96.0.11"]))
        );
    }
}
