//! Which Secrets and ConfigMaps a pod uses.
//!
//! Pure: reads a pod's spec. [`super::view`] sends a node exactly these and no others.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, Volume};

/// Keys (`namespace/name`) of what a pod refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct References {
    /// ConfigMaps.
    pub(super) config_maps: BTreeSet<String>,
    /// Secrets.
    pub(super) secrets: BTreeSet<String>,
}

impl References {
    /// Everything `pod` refers to.
    pub(super) fn of(pod: &Pod) -> Self {
        let mut found = Self::default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if let Some(spec) = &pod.spec {
            found.spec(namespace, spec);
        }
        found
    }

    fn spec(&mut self, namespace: &str, spec: &PodSpec) {
        for reference in spec.image_pull_secrets.iter().flatten() {
            self.secret(namespace, Some(&reference.name));
        }
        for volume in spec.volumes.iter().flatten() {
            self.volume(namespace, volume);
        }
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .map(|c| (c.env.as_deref(), c.env_from.as_deref()));
        let ephemeral = spec
            .ephemeral_containers
            .iter()
            .flatten()
            .map(|c| (c.env.as_deref(), c.env_from.as_deref()));
        for (env, env_from) in containers.chain(ephemeral) {
            self.environment(
                namespace,
                env.unwrap_or_default(),
                env_from.unwrap_or_default(),
            );
        }
    }

    fn environment(&mut self, namespace: &str, env: &[EnvVar], env_from: &[EnvFromSource]) {
        for source in env.iter().filter_map(|e| e.value_from.as_ref()) {
            self.config_map(
                namespace,
                source.config_map_key_ref.as_ref().map(|r| &r.name),
            );
            self.secret(namespace, source.secret_key_ref.as_ref().map(|r| &r.name));
        }
        for source in env_from {
            self.config_map(namespace, source.config_map_ref.as_ref().map(|r| &r.name));
            self.secret(namespace, source.secret_ref.as_ref().map(|r| &r.name));
        }
    }

    fn volume(&mut self, namespace: &str, volume: &Volume) {
        self.config_map(namespace, volume.config_map.as_ref().map(|s| &s.name));
        self.secret(
            namespace,
            volume.secret.as_ref().and_then(|s| s.secret_name.as_ref()),
        );
        let projected = volume
            .projected
            .iter()
            .flat_map(|p| p.sources.iter().flatten());
        for source in projected {
            self.config_map(namespace, source.config_map.as_ref().map(|s| &s.name));
            self.secret(namespace, source.secret.as_ref().map(|s| &s.name));
        }
        let csi = volume
            .csi
            .as_ref()
            .and_then(|c| c.node_publish_secret_ref.as_ref());
        self.secret(namespace, csi.map(|r| &r.name));
    }

    fn config_map(&mut self, namespace: &str, name: Option<&String>) {
        insert(&mut self.config_maps, namespace, name);
    }

    fn secret(&mut self, namespace: &str, name: Option<&String>) {
        insert(&mut self.secrets, namespace, name);
    }
}

fn insert(keys: &mut BTreeSet<String>, namespace: &str, name: Option<&String>) {
    if let Some(name) = name.filter(|n| !n.is_empty()) {
        keys.insert(format!("{namespace}/{name}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_way_to_refer_is_found() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {
                "imagePullSecrets": [{"name": "pull"}],
                "initContainers": [{"name": "i", "envFrom": [
                    {"configMapRef": {"name": "from-cm"}}, {"secretRef": {"name": "from-secret"}}]}],
                "containers": [{"name": "c", "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key-cm", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key-secret", "key": "k"}}},
                    {"name": "C", "value": "plain"}]}],
                "volumes": [
                    {"name": "v1", "configMap": {"name": "vol-cm"}},
                    {"name": "v2", "secret": {"secretName": "vol-secret"}},
                    {"name": "v3", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt"}},
                        {"secret": {"name": "proj-secret"}}]}},
                    {"name": "v4", "emptyDir": {}}]
            }
        }))
        .unwrap();
        let found = References::of(&pod);
        let names = |keys: &BTreeSet<String>| keys.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            names(&found.config_maps),
            "shop/from-cm shop/key-cm shop/kube-root-ca.crt shop/vol-cm"
        );
        assert_eq!(
            names(&found.secrets),
            "shop/from-secret shop/key-secret shop/proj-secret shop/pull shop/vol-secret"
        );
    }
}
