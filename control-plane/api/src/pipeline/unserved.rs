//! Warnings for fields that are stored but have no effect on a node yet: kubectl prints them, so
//! that nobody waits for what will not come.
//!
//! Watches and changes nothing. Remove an entry when its feature is served.

use pintle_kube_types::Object;
use serde_json::Value;

/// One warning for each field of `object` that nothing serves.
pub(crate) fn warnings(object: &Object) -> Vec<String> {
    match object.kind() {
        "Service" => service(object),
        "Pod" => pod("spec", object.get_path(&["spec"])),
        "Deployment" | "ReplicaSet" => pod(
            "spec.template.spec",
            object.get_path(&["spec", "template", "spec"]),
        ),
        _ => Vec::new(),
    }
}

fn service(object: &Object) -> Vec<String> {
    let text = |field: &str| object.get_path(&["spec", field]).and_then(Value::as_str);
    let mut found = Vec::new();
    if let Some(kind @ ("NodePort" | "LoadBalancer")) = text("type") {
        found.push(format!(
            "spec.type: {kind} is not served yet; the Service is reachable at its cluster IP only"
        ));
    }
    if text("sessionAffinity") == Some("ClientIP") {
        found.push("spec.sessionAffinity: ClientIP has no effect yet".to_owned());
    }
    let external = object.get_path(&["spec", "externalIPs"]);
    if external
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
    {
        found.push("spec.externalIPs: not served yet".to_owned());
    }
    found
}

fn pod(at: &str, spec: Option<&Value>) -> Vec<String> {
    let Some(spec) = spec else { return Vec::new() };
    if spec["hostNetwork"] == true {
        // Such a pod's ports are the host's without any help.
        return Vec::new();
    }
    let mut found = Vec::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            for (number, port) in container["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .enumerate()
            {
                if port["hostPort"].as_u64().is_some_and(|port| port != 0) {
                    found.push(format!(
                        "{at}.{list}[{index}].ports[{number}].hostPort: not served yet"
                    ));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> Vec<String> {
        warnings(&Object::from_value(value).unwrap_or_default())
    }

    #[test]
    fn a_host_port_is_named_wherever_it_stands() {
        let spec =
            serde_json::json!({"containers": [{"name": "a"}, {"ports": [{"hostPort": 80}]}]});
        assert_eq!(
            of(serde_json::json!({"kind": "Pod", "spec": spec})),
            ["spec.containers[1].ports[0].hostPort: not served yet"]
        );
        assert_eq!(
            of(serde_json::json!({"kind": "Deployment", "spec": {"template": {"spec": spec}}})),
            ["spec.template.spec.containers[1].ports[0].hostPort: not served yet"]
        );
        assert!(of(serde_json::json!({"kind": "Pod", "spec": {"hostNetwork": true}})).is_empty());
    }

    #[test]
    fn a_service_says_what_it_lacks_and_a_plain_one_nothing() {
        let service = |spec| of(serde_json::json!({"kind": "Service", "spec": spec}));
        assert!(
            service(serde_json::json!({"type": "ClusterIP", "sessionAffinity": "None"})).is_empty()
        );
        assert_eq!(service(serde_json::json!({"type": "NodePort"})).len(), 1);
        assert_eq!(
            service(serde_json::json!({"sessionAffinity": "ClientIP"})).len(),
            1
        );
    }
}
