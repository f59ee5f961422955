//! Publishes the cluster's certificate authority in every namespace, as the ConfigMap
//! `kube-root-ca.crt`, from where pods get it to verify the API server.
//!
//! Watches: Namespaces and the ConfigMaps of that name. Changes: those ConfigMaps. Who reacts next:
//! nodes, which project it into pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api::client::{Client, Informer};

use super::namespace::is_active;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::objects;
use crate::runtime::queue::WorkQueue;
use crate::workload::deployment::is_namespace_terminating;

const NAME: &str = "root-ca-cert-publisher";
const CONFIG_MAP: &str = "kube-root-ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
     guaranteed across distributions of Kubernetes clusters.",
);

/// The controller; see the module documentation.
pub(crate) struct RootCa {
    client: Client,
    namespaces: Informer<Namespace>,
    config_maps: Informer<ConfigMap>,
    pem: String,
}

impl RootCa {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host, pem: String) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            namespaces: client.informer(),
            config_maps: client.informer(),
            pem,
            client,
        });
        {
            let queue = queue.clone();
            host.watch(&this.namespaces, move |event| {
                if let (_, Some(namespace)) = objects::sides(&event) {
                    queue.add(objects::name(&namespace.metadata).to_owned());
                }
            });
        }
        {
            let queue = queue.clone();
            host.watch(&this.config_maps, move |event| {
                if let Some(map) = objects::latest(&event)
                    && objects::name(&map.metadata) == CONFIG_MAP
                {
                    queue.add(objects::namespace(&map.metadata).to_owned());
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.namespaces.synced().await;
            controller.config_maps.synced().await;
        });
    }

    fn data(&self) -> BTreeMap<String, String> {
        [("ca.crt".to_owned(), self.pem.clone())].into()
    }
}

impl Reconcile for RootCa {
    const NAME: &'static str = "root-ca";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let active = self
            .namespaces
            .get(key)
            .is_some_and(|namespace| is_active(&namespace));
        if !active {
            return Ok(());
        }
        let (annotation, text) = DESCRIPTION;
        let written = match self.config_maps.get(&format!("{key}/{CONFIG_MAP}")) {
            None => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(CONFIG_MAP.to_owned()),
                        namespace: Some(key.to_owned()),
                        annotations: Some([(annotation.to_owned(), text.to_owned())].into()),
                        ..ObjectMeta::default()
                    },
                    data: Some(self.data()),
                    ..ConfigMap::default()
                };
                self.client.create(&map).await
            }
            Some(map) => {
                let described = map
                    .metadata
                    .annotations
                    .as_ref()
                    .and_then(|annotations| annotations.get(annotation))
                    .is_some_and(|found| found == text);
                if described && map.data.as_ref() == Some(&self.data()) {
                    return Ok(());
                }
                let mut map = ConfigMap::clone(&map);
                map.data = Some(self.data());
                map.metadata
                    .annotations
                    .get_or_insert_default()
                    .insert(annotation.to_owned(), text.to_owned());
                self.client.update(&map).await
            }
        };
        match written {
            Ok(_) => Ok(()),
            Err(error)
                if error.is_already_exists()
                    || error.is_not_found()
                    || is_namespace_terminating(&error) =>
            {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
