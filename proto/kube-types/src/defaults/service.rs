//! Defaults of Services and endpoints.
//!
//! Cluster IPs, IP families and node ports are allocated by the API, not here.

use serde_json::{Map, Value};

use super::{default, each, is_unset, is_zero, object_at, str_of};
use crate::object::object_entry;

/// A Service.
pub(super) fn service(root: &mut Map<String, Value>) {
    let spec = object_entry(root, "spec");
    default(spec, "sessionAffinity", "None");
    match str_of(spec, "sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => {
            let config = object_entry(object_entry(spec, "sessionAffinityConfig"), "clientIP");
            default(config, "timeoutSeconds", 10_800);
        }
        _ => {}
    }
    default(spec, "type", "ClusterIP");
    for port in each(spec, "ports") {
        default(port, "protocol", "TCP");
        let target_unset = is_zero(port, "targetPort");
        if target_unset && let Some(number) = port.get("port").cloned() {
            port.insert("targetPort".to_owned(), number);
        }
    }
    let kind = str_of(spec, "type").to_owned();
    if kind == "NodePort" || kind == "LoadBalancer" {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "NodePort" || kind == "LoadBalancer" || kind == "ClusterIP" {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
        if let Some(status) = object_at(root, "status")
            && let Some(balancer) = object_at(status, "loadBalancer")
        {
            for ingress in each(balancer, "ingress") {
                if !is_unset(ingress, "ip") {
                    default(ingress, "ipMode", "VIP");
                }
            }
        }
    }
}

/// Endpoints.
pub(super) fn endpoints(root: &mut Map<String, Value>) {
    for subset in each(root, "subsets") {
        for port in each(subset, "ports") {
            default(port, "protocol", "TCP");
        }
    }
}

/// An EndpointSlice.
pub(super) fn endpoint_slice(root: &mut Map<String, Value>) {
    for port in each(root, "ports") {
        if port.get("name").is_none_or(Value::is_null) {
            port.insert("name".to_owned(), "".into());
        }
        default(port, "protocol", "TCP");
    }
}
