//! `ServiceAccount`: a new pod acts as a service account of its namespace, and finds that
//! account's token, the cluster's CA and its namespace in a projected volume.

use pintle_kube_types::Object;
use pintle_kube_types::status::Status;
use serde_json::{Value, json};

use super::display_name;
use crate::pipeline::{Attributes, Core};
use crate::registry::strategy::random_suffix;
use crate::storage::key;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// As Kubernetes: an hour, and seven seconds by which the kubelet's own requests are told apart.
const TOKEN_SECONDS: i64 = 3607;

pub(super) fn inject(core: &Core, attributes: &Attributes, pod: &mut Object) -> Result<(), Status> {
    // A mirror pod runs already, without an account.
    if pod.annotation(MIRROR).is_some() {
        return Ok(());
    }
    let name = match pod.str_at(&["spec", "serviceAccountName"]) {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => "default".to_owned(),
    };
    pod.set_path(&["spec", "serviceAccountName"], json!(name));
    pod.set_path(&["spec", "serviceAccount"], json!(name));
    let namespace = attributes.namespace.as_deref();
    let key = key::object(&key::resource("", "serviceaccounts"), namespace, &name);
    let account = match core.read(&key)? {
        Some(account) => account.object()?,
        None => {
            return Err(Status::forbidden(
                &attributes.resource.group_resource(),
                display_name(pod),
                format!(
                    "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                    namespace.unwrap_or_default()
                ),
            ));
        }
    };
    if pod.get_path(&["spec", "imagePullSecrets"]).is_none()
        && let Some(secrets) = account.get_path(&["imagePullSecrets"])
    {
        pod.set_path(&["spec", "imagePullSecrets"], secrets.clone());
    }
    let automount = pod
        .get_path(&["spec", "automountServiceAccountToken"])
        .or_else(|| account.get_path(&["automountServiceAccountToken"]))
        .and_then(Value::as_bool)
        .unwrap_or(true);
    if automount {
        mount_token(pod);
    }
    Ok(())
}

fn mount_token(pod: &mut Object) {
    let existing = volumes(pod).iter().find_map(|volume| {
        let name = volume["name"].as_str()?;
        let token = volume["projected"]["sources"]
            .as_array()?
            .iter()
            .any(|source| source.get("serviceAccountToken").is_some());
        (name.starts_with("kube-api-access-") && token).then(|| name.to_owned())
    });
    let volume = existing
        .clone()
        .unwrap_or_else(|| format!("kube-api-access-{}", random_suffix()));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = pod.pointer_mut(&format!("/spec/{list}")) else {
            continue;
        };
        for container in containers {
            let Some(container) = container.as_object_mut() else {
                continue;
            };
            let mounts = container
                .entry("volumeMounts")
                .or_insert_with(|| Value::Array(Vec::new()));
            let Some(mounts) = mounts.as_array_mut() else {
                continue;
            };
            if mounts.iter().any(|mount| mount["mountPath"] == MOUNT_PATH) {
                continue;
            }
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            mounted = true;
        }
    }
    if mounted && existing.is_none() {
        let mut list = volumes(pod);
        list.push(json!({
            "name": volume,
            "projected": {
                "defaultMode": 420,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                    {"configMap": {
                        "name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    }},
                    {"downwardAPI": {"items": [{
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }]}},
                ],
            },
        }));
        pod.set_path(&["spec", "volumes"], Value::Array(list));
    }
}

fn volumes(pod: &Object) -> Vec<Value> {
    match pod.get_path(&["spec", "volumes"]) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_mounted_where_nothing_else_is() {
        let mut pod = Object::default();
        pod.set_path(
            &["spec", "containers"],
            json!([
                {"name": "a"},
                {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]},
            ]),
        );
        mount_token(&mut pod);
        let volumes = volumes(&pod);
        assert_eq!(volumes.len(), 1);
        let name = &volumes[0]["name"];
        let mounts = pod.pointer("/spec/containers/0/volumeMounts/0/name");
        assert_eq!(mounts, Some(name));
        assert_eq!(
            pod.pointer("/spec/containers/1/volumeMounts")
                .and_then(Value::as_array)
                .map(Vec::len),
            Some(1)
        );
    }
}
