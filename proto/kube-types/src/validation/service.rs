//! Rules of Services, Endpoints and EndpointSlices.
//!
//! The data path relies on them: every port has a number, every address is one.

use k8s_openapi::api::core::v1::{Endpoints, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::{Rules, immutable, invalid_each, ip_address, meta, one_of};
use crate::field::{ErrorList, FieldError, Path};
use crate::names;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
/// A day: the longest session affinity.
const MAX_AFFINITY_SECONDS: i32 = 86_400;

/// Services.
pub(super) const SERVICE: Rules<Service> = Rules {
    create: |new, errors| service(new, errors),
    update: |new, old, errors| {
        cluster_ip_update(new, old, errors);
        service(new, errors);
    },
    status: |_, _, _| {},
};

/// Endpoints.
pub(super) const ENDPOINTS: Rules<Endpoints> = Rules {
    create: |new, errors| endpoints(new, errors),
    update: |new, _, errors| endpoints(new, errors),
    status: |_, _, _| {},
};

/// EndpointSlices.
pub(super) const ENDPOINT_SLICE: Rules<EndpointSlice> = Rules {
    create: |new, errors| endpoint_slice(new, errors),
    update: |new, old, errors| {
        endpoint_slice(new, errors);
        immutable(
            errors,
            &Path::new("addressType"),
            &new.address_type,
            &old.address_type,
        );
    },
    status: |_, _, _| {},
};

fn kind(spec: &ServiceSpec) -> &str {
    spec.type_.as_deref().unwrap_or("")
}

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some("None")
        || spec
            .cluster_ips
            .as_ref()
            .and_then(|ips| ips.first())
            .is_some_and(|ip| ip == "None")
}

fn service(service: &Service, errors: &mut ErrorList) {
    let none = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let path = Path::new("spec");
    let external_name = kind(spec) == "ExternalName";
    let ports = spec.ports.as_deref().unwrap_or_default();
    if ports.is_empty() && !is_headless(spec) && !external_name {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    match kind(spec) {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            errors.push(FieldError::invalid(
                &path.child("clusterIPs").index(0),
                "None",
                format!("may not be set to 'None' for {} services", kind(spec)),
            ));
        }
        "ExternalName" => external_name_rules(spec, &path, errors),
        _ => {}
    }
    let names_required = ports.len() > 1;
    for (i, port) in ports.iter().enumerate() {
        let port_path = path.child("ports").index(i);
        service_port(spec, port, names_required, &port_path, errors);
        let earlier = ports.iter().take(i);
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty())
            && earlier.clone().any(|p| p.name.as_deref() == Some(name))
        {
            errors.push(FieldError::duplicate(&port_path.child("name"), name));
        }
        if earlier
            .clone()
            .any(|p| p.port == port.port && p.protocol == port.protocol)
        {
            errors.push(FieldError::duplicate(
                &port_path,
                json!({"port": port.port, "protocol": port.protocol}),
            ));
        }
        if let Some(node_port) = port.node_port.filter(|p| *p != 0)
            && earlier
                .clone()
                .any(|p| p.node_port == Some(node_port) && p.protocol == port.protocol)
        {
            errors.push(FieldError::duplicate(
                &port_path.child("nodePort"),
                node_port,
            ));
        }
    }
    if let Some(selector) = &spec.selector {
        meta::validate_labels(selector, &path.child("selector"), errors);
    }
    session_affinity(spec, &path, errors);
    one_of(
        errors,
        &path.child("type"),
        spec.type_.as_deref(),
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    );
    if !external_name {
        cluster_ips(spec, &path, errors);
    }
    for (i, ip) in spec.external_ips.iter().flatten().enumerate() {
        invalid_each(
            errors,
            &path.child("externalIPs").index(i),
            ip,
            ip_address(ip),
        );
    }
    traffic_policies(spec, &path, errors);
    if spec.load_balancer_class.is_some() && kind(spec) != "LoadBalancer" {
        errors.push(FieldError::forbidden(
            &path.child("loadBalancerClass"),
            "may only be used when `type` is 'LoadBalancer'",
        ));
    }
    if spec.allocate_load_balancer_node_ports.is_some() && kind(spec) != "LoadBalancer" {
        errors.push(FieldError::forbidden(
            &path.child("allocateLoadBalancerNodePorts"),
            "may only be used when `type` is 'LoadBalancer'",
        ));
    }
    if let Some(distribution) = spec.traffic_distribution.as_deref()
        && !matches!(
            distribution,
            "PreferClose" | "PreferSameZone" | "PreferSameNode"
        )
    {
        errors.push(FieldError::not_supported(
            &path.child("trafficDistribution"),
            distribution,
            &["PreferClose", "PreferSameNode", "PreferSameZone"],
        ));
    }
}

fn external_name_rules(spec: &ServiceSpec, path: &Path, errors: &mut ErrorList) {
    if spec.cluster_ip.as_ref().is_some_and(|ip| !ip.is_empty()) {
        errors.push(FieldError::forbidden(
            &path.child("clusterIP"),
            "may not be set for ExternalName services",
        ));
    }
    if spec.cluster_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
        errors.push(FieldError::forbidden(
            &path.child("clusterIPs"),
            "may not be set for ExternalName services",
        ));
    }
    let path = path.child("externalName");
    match spec
        .external_name
        .as_deref()
        .map(|n| n.trim_end_matches('.'))
    {
        None | Some("") => errors.push(FieldError::required(&path, "")),
        Some(name) => invalid_each(errors, &path, name, names::dns1123_subdomain(name)),
    }
}

fn service_port(
    spec: &ServiceSpec,
    port: &ServicePort,
    name_required: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    match port.name.as_deref().unwrap_or("") {
        "" if name_required => errors.push(FieldError::required(&path.child("name"), "")),
        "" => {}
        name => invalid_each(
            errors,
            &path.child("name"),
            name,
            names::dns1123_label(name),
        ),
    }
    invalid_each(
        errors,
        &path.child("port"),
        port.port,
        names::port_number(port.port.into()),
    );
    one_of(
        errors,
        &path.child("protocol"),
        port.protocol.as_deref(),
        PROTOCOLS,
    );
    if let Some(target) = &port.target_port {
        port_number_or_name(target, &path.child("targetPort"), errors);
    }
    if let Some(protocol) = &port.app_protocol {
        let messages = names::qualified_name(protocol);
        invalid_each(errors, &path.child("appProtocol"), protocol, messages);
    }
    let node_port = port.node_port.unwrap_or(0);
    if node_port != 0 && !matches!(kind(spec), "NodePort" | "LoadBalancer") {
        errors.push(FieldError::forbidden(
            &path.child("nodePort"),
            format!("may not be used when `type` is '{}'", kind(spec)),
        ));
    }
}

/// A port by number or by name.
pub(super) fn port_number_or_name(port: &IntOrString, path: &Path, errors: &mut ErrorList) {
    match port {
        IntOrString::Int(number) => {
            invalid_each(errors, path, number, names::port_number((*number).into()));
        }
        IntOrString::String(name) => invalid_each(errors, path, name, names::port_name(name)),
    }
}

fn session_affinity(spec: &ServiceSpec, path: &Path, errors: &mut ErrorList) {
    one_of(
        errors,
        &path.child("sessionAffinity"),
        spec.session_affinity.as_deref(),
        &["ClientIP", "None"],
    );
    let config_path = path.child("sessionAffinityConfig");
    match spec.session_affinity.as_deref() {
        Some("ClientIP") => {
            let seconds = spec
                .session_affinity_config
                .as_ref()
                .and_then(|c| c.client_ip.as_ref())
                .and_then(|c| c.timeout_seconds);
            let path = config_path.child("clientIP.timeoutSeconds");
            match seconds {
                None => errors.push(FieldError::required(
                    &path,
                    "when session affinity type is ClientIP",
                )),
                Some(seconds) if seconds <= 0 || seconds > MAX_AFFINITY_SECONDS => {
                    errors.push(FieldError::invalid(
                        &path,
                        seconds,
                        format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}"),
                    ));
                }
                Some(_) => {}
            }
        }
        Some("None") if spec.session_affinity_config.is_some() => {
            errors.push(FieldError::forbidden(
                &config_path,
                "must not be set when session affinity is None",
            ));
        }
        _ => {}
    }
}

fn cluster_ips(spec: &ServiceSpec, path: &Path, errors: &mut ErrorList) {
    let ips = spec.cluster_ips.as_deref().unwrap_or_default();
    let single = spec.cluster_ip.as_deref().unwrap_or("");
    if ips.is_empty() && !single.is_empty() && single != "None" {
        invalid_each(errors, &path.child("clusterIP"), single, ip_address(single));
    }
    if ips.len() > 2 {
        errors.push(FieldError::too_many(
            &path.child("clusterIPs"),
            ips.len(),
            2,
        ));
    }
    for (i, ip) in ips.iter().enumerate() {
        let path = path.child("clusterIPs").index(i);
        if ip == "None" {
            if ips.len() > 1 {
                errors.push(FieldError::invalid(
                    &path,
                    ip,
                    "'None' must be the first and only value",
                ));
            }
            continue;
        }
        invalid_each(errors, &path, ip, ip_address(ip));
    }
    if let Some(first) = ips.first()
        && first != single
        && !single.is_empty()
    {
        errors.push(FieldError::invalid(
            &path.child("clusterIP"),
            single,
            "first value in `clusterIPs` must match `clusterIP`",
        ));
    }
    for (i, family) in spec.ip_families.iter().flatten().enumerate() {
        if !matches!(family.as_str(), "IPv4" | "IPv6") {
            errors.push(FieldError::not_supported(
                &path.child("ipFamilies").index(i),
                family,
                &["IPv4", "IPv6"],
            ));
        }
    }
    if let Some(policy) = spec.ip_family_policy.as_deref()
        && !matches!(
            policy,
            "SingleStack" | "PreferDualStack" | "RequireDualStack"
        )
    {
        errors.push(FieldError::not_supported(
            &path.child("ipFamilyPolicy"),
            policy,
            &["PreferDualStack", "RequireDualStack", "SingleStack"],
        ));
    }
}

fn traffic_policies(spec: &ServiceSpec, path: &Path, errors: &mut ErrorList) {
    let external = matches!(kind(spec), "NodePort" | "LoadBalancer")
        || (kind(spec) == "ClusterIP"
            && spec
                .external_ips
                .as_ref()
                .is_some_and(|ips| !ips.is_empty()));
    let external_path = path.child("externalTrafficPolicy");
    match spec.external_traffic_policy.as_deref().unwrap_or("") {
        "" => {}
        _ if !external => errors.push(FieldError::invalid(
            &external_path,
            spec.external_traffic_policy.as_deref(),
            "may only be set for externally-accessible services",
        )),
        "Cluster" | "Local" => {}
        other => errors.push(FieldError::not_supported(
            &external_path,
            other,
            &["Cluster", "Local"],
        )),
    }
    if spec.health_check_node_port.unwrap_or(0) != 0
        && !(kind(spec) == "LoadBalancer"
            && spec.external_traffic_policy.as_deref() == Some("Local"))
    {
        errors.push(FieldError::invalid(
            &path.child("healthCheckNodePort"),
            spec.health_check_node_port,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ));
    }
    if matches!(kind(spec), "ClusterIP" | "NodePort" | "LoadBalancer") {
        one_of(
            errors,
            &path.child("internalTrafficPolicy"),
            spec.internal_traffic_policy.as_deref(),
            &["Cluster", "Local"],
        );
    }
}

fn all_cluster_ips(spec: &ServiceSpec) -> Vec<String> {
    match spec.cluster_ips.as_deref() {
        Some(ips) if !ips.is_empty() => ips.to_vec(),
        _ => spec
            .cluster_ip
            .clone()
            .filter(|ip| !ip.is_empty())
            .into_iter()
            .collect(),
    }
}

/// A cluster IP may not change once it is there, as long as the type keeps it.
fn cluster_ip_update(new: &Service, old: &Service, errors: &mut ErrorList) {
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else {
        return;
    };
    if kind(new) == "ExternalName" || kind(old) == "ExternalName" {
        return;
    }
    let (new_ips, old_ips) = (all_cluster_ips(new), all_cluster_ips(old));
    let path = Path::new("spec").child("clusterIPs").index(0);
    match (new_ips.first(), old_ips.first()) {
        (None, Some(_)) => errors.push(FieldError::invalid(
            &path,
            &new_ips,
            "primary clusterIP can not be unset",
        )),
        (Some(new), Some(old)) if new != old => {
            errors.push(FieldError::invalid(
                &path,
                &new_ips,
                "may not change once set",
            ));
        }
        _ => {}
    }
}

fn endpoints(endpoints: &Endpoints, errors: &mut ErrorList) {
    for (i, subset) in endpoints.subsets.iter().flatten().enumerate() {
        let path = Path::new("subsets").index(i);
        let ready = subset.addresses.as_deref().unwrap_or_default();
        let not_ready = subset.not_ready_addresses.as_deref().unwrap_or_default();
        if ready.is_empty() && not_ready.is_empty() {
            errors.push(FieldError::required(
                &path,
                "must specify `addresses` or `notReadyAddresses`",
            ));
        }
        for (field, addresses) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
            for (j, address) in addresses.iter().enumerate() {
                let path = path.child(field).index(j);
                invalid_each(
                    errors,
                    &path.child("ip"),
                    &address.ip,
                    ip_address(&address.ip),
                );
                if let Some(host) = address.hostname.as_deref().filter(|h| !h.is_empty()) {
                    let messages = names::dns1123_label(host);
                    invalid_each(errors, &path.child("hostname"), host, messages);
                }
            }
        }
        let ports = subset.ports.as_deref().unwrap_or_default();
        for (j, port) in ports.iter().enumerate() {
            let path = path.child("ports").index(j);
            match port.name.as_deref().unwrap_or("") {
                "" if ports.len() > 1 => {
                    errors.push(FieldError::required(&path.child("name"), ""));
                }
                "" => {}
                name => {
                    let messages = names::dns1123_label(name);
                    invalid_each(errors, &path.child("name"), name, messages);
                }
            }
            invalid_each(
                errors,
                &path.child("port"),
                port.port,
                names::port_number(port.port.into()),
            );
            one_of(
                errors,
                &path.child("protocol"),
                port.protocol.as_deref(),
                PROTOCOLS,
            );
        }
    }
}

fn endpoint_slice(slice: &EndpointSlice, errors: &mut ErrorList) {
    one_of(
        errors,
        &Path::new("addressType"),
        Some(&slice.address_type),
        &["FQDN", "IPv4", "IPv6"],
    );
    let list = slice.endpoints.as_deref().unwrap_or_default();
    if list.len() > 1000 {
        errors.push(FieldError::too_many(
            &Path::new("endpoints"),
            list.len(),
            1000,
        ));
        return;
    }
    for (i, endpoint) in list.iter().enumerate() {
        let path = Path::new("endpoints").index(i);
        let addresses = path.child("addresses");
        if endpoint.addresses.is_empty() {
            errors.push(FieldError::required(
                &addresses,
                "must contain at least 1 address",
            ));
        } else if endpoint.addresses.len() > 100 {
            errors.push(FieldError::too_many(
                &addresses,
                endpoint.addresses.len(),
                100,
            ));
        }
        for (j, address) in endpoint.addresses.iter().enumerate() {
            let messages = slice_address(&slice.address_type, address);
            invalid_each(errors, &addresses.index(j), address, messages);
        }
        if let Some(node) = &endpoint.node_name {
            let messages = names::dns1123_subdomain(node);
            invalid_each(errors, &path.child("nodeName"), node, messages);
        }
        if let Some(host) = &endpoint.hostname {
            let messages = names::dns1123_label(host);
            invalid_each(errors, &path.child("hostname"), host, messages);
        }
    }
    let ports = slice.ports.as_deref().unwrap_or_default();
    if ports.len() > 20_000 {
        errors.push(FieldError::too_many(
            &Path::new("ports"),
            ports.len(),
            20_000,
        ));
        return;
    }
    for (i, port) in ports.iter().enumerate() {
        let path = Path::new("ports").index(i);
        let name = port.name.as_deref().unwrap_or("");
        if !name.is_empty() {
            let messages = names::dns1123_label(name);
            invalid_each(errors, &path.child("name"), name, messages);
        }
        if ports
            .iter()
            .take(i)
            .any(|p| p.name.as_deref().unwrap_or("") == name)
        {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        one_of(
            errors,
            &path.child("protocol"),
            port.protocol.as_deref(),
            PROTOCOLS,
        );
        if let Some(number) = port.port {
            invalid_each(
                errors,
                &path.child("port"),
                number,
                names::port_number(number.into()),
            );
        }
    }
}

fn slice_address(family: &str, address: &str) -> Vec<String> {
    match family {
        "IPv4" if address.parse::<std::net::Ipv4Addr>().is_err() => {
            vec!["must be a valid IPv4 address".to_owned()]
        }
        "IPv6" if address.parse::<std::net::Ipv6Addr>().is_err() => {
            vec!["must be a valid IPv6 address".to_owned()]
        }
        "FQDN" => names::dns1123_subdomain(address),
        _ => Vec::new(),
    }
}
