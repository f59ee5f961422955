//! How Services, Endpoints and EndpointSlices are shown.
//!
//! Pure.

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::Value;

use super::format::{NONE, age, first_three, labels, name, object_list, object_text, or, text};
use super::{AGE, NAME, Printer, column, no_conditions, wide};

pub(super) static SERVICE: Printer = Printer {
    columns: &[
        NAME,
        column("Type", "string", "How the Service is exposed."),
        column("Cluster-IP", "string", "Its address inside the cluster."),
        column(
            "External-IP",
            "string",
            "Its addresses outside the cluster.",
        ),
        column(
            "Port(s)",
            "string",
            "Its ports, with node ports after a colon.",
        ),
        AGE,
        wide("Selector", "string", "Labels of the pods behind it."),
    ],
    cells: service,
    conditions: no_conditions,
};

pub(super) static ENDPOINTS: Printer = Printer {
    columns: &[
        NAME,
        column(
            "Endpoints",
            "string",
            "Addresses and ports of the ready pods.",
        ),
        AGE,
    ],
    cells: endpoints,
    conditions: no_conditions,
};

pub(super) static ENDPOINT_SLICE: Printer = Printer {
    columns: &[
        NAME,
        column("AddressType", "string", "Kind of its addresses."),
        column("Ports", "string", "Ports of every endpoint."),
        column("Endpoints", "string", "Addresses of its endpoints."),
        AGE,
    ],
    cells: endpoint_slice,
    conditions: no_conditions,
};

fn service(object: &Object, now: Timestamp) -> Vec<Value> {
    let cluster_ip = object_list(object, "/spec/clusterIPs")
        .first()
        .and_then(Value::as_str)
        .unwrap_or_else(|| object_text(object, "/spec/clusterIP"));
    let selector = object.pointer("/spec/selector").and_then(Value::as_object);
    vec![
        name(object),
        object_text(object, "/spec/type").into(),
        or(cluster_ip, NONE).into(),
        external_ip(object).into(),
        or(&ports(object), NONE).into(),
        age(object, now),
        labels(selector).into(),
    ]
}

fn external_ip(object: &Object) -> String {
    let external: Vec<&str> = object_list(object, "/spec/externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match object_text(object, "/spec/type") {
        "ClusterIP" | "NodePort" => or(&external.join(","), NONE).to_owned(),
        "LoadBalancer" => {
            let mut all: Vec<&str> = object_list(object, "/status/loadBalancer/ingress")
                .iter()
                .map(|ingress| or(text(ingress, "/ip"), text(ingress, "/hostname")))
                .filter(|address| !address.is_empty())
                .collect();
            all.extend(external);
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => object_text(object, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ports(object: &Object) -> String {
    let shown: Vec<String> = object_list(object, "/spec/ports")
        .iter()
        .map(|port| {
            let number = |field: &str| port.get(field).and_then(Value::as_i64).unwrap_or_default();
            let protocol = or(text(port, "/protocol"), "TCP");
            match number("nodePort") {
                0 => format!("{}/{protocol}", number("port")),
                node_port => format!("{}:{node_port}/{protocol}", number("port")),
            }
        })
        .collect();
    shown.join(",")
}

fn endpoints(object: &Object, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in object_list(object, "/subsets") {
        let list = |field: &str| {
            subset
                .get(field)
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .unwrap_or_default()
        };
        let addresses = || list("addresses").iter().map(|address| text(address, "/ip"));
        if list("ports").is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in list("ports") {
            let port = port.get("port").and_then(Value::as_i64).unwrap_or_default();
            all.extend(addresses().map(|ip| host_port(ip, port)));
        }
    }
    vec![
        name(object),
        first_three(&all, NONE).into(),
        age(object, now),
    ]
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

fn endpoint_slice(object: &Object, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = object_list(object, "/ports")
        .iter()
        .map(|port| {
            port.get("port").and_then(Value::as_i64).map_or_else(
                || or(text(port, "/name"), "*").to_owned(),
                |number| number.to_string(),
            )
        })
        .collect();
    let addresses: Vec<String> = object_list(object, "/endpoints")
        .iter()
        .filter_map(|endpoint| endpoint.get("addresses").and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    vec![
        name(object),
        object_text(object, "/addressType").into(),
        first_three(&ports, "<unset>").into(),
        first_three(&addresses, "<unset>").into(),
        age(object, now),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn services_show_addresses_and_ports_by_type() {
        let shown = |spec: Value, status: Value| {
            let cells = service(
                &object(json!({"metadata": {"name": "s"}, "spec": spec, "status": status})),
                Timestamp::UNIX_EPOCH,
            );
            let cells: Vec<&str> = cells.iter().map(|c| c.as_str().unwrap()).collect();
            format!("{} | {}", cells[1..5].join(" "), cells[6])
        };
        assert_eq!(
            shown(
                json!({"type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
                    "selector": {"b": "2", "a": "1"},
                    "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}),
                json!({})
            ),
            "ClusterIP 10.96.0.7 <none> 80/TCP,53/UDP | a=1,b=2"
        );
        assert_eq!(
            shown(
                json!({"type": "LoadBalancer", "clusterIP": "10.96.0.8",
                    "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]}),
                json!({})
            ),
            "LoadBalancer 10.96.0.8 <pending> 80:30080/TCP | <none>"
        );
        assert_eq!(
            shown(
                json!({"type": "ExternalName", "externalName": "db.example"}),
                json!({})
            ),
            "ExternalName <none> db.example <none> | <none>"
        );
    }

    #[test]
    fn endpoints_are_addresses_with_ports() {
        let endpoints_object = object(json!({"metadata": {"name": "e"}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
             "ports": [{"port": 80}, {"port": 443}]}]}));
        assert_eq!(
            endpoints(&endpoints_object, Timestamp::UNIX_EPOCH)[1],
            "10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 1 more..."
        );
        let slice = object(json!({"metadata": {"name": "e"}, "addressType": "IPv4",
            "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}]}));
        let cells = endpoint_slice(&slice, Timestamp::UNIX_EPOCH);
        assert_eq!(cells[1..4], [json!("IPv4"), json!("80"), json!("10.0.0.1")]);
        let empty = object(json!({"metadata": {"name": "e"}}));
        assert_eq!(endpoint_slice(&empty, Timestamp::UNIX_EPOCH)[3], "<unset>");
        assert_eq!(endpoints(&empty, Timestamp::UNIX_EPOCH)[1], "<none>");
    }
}
