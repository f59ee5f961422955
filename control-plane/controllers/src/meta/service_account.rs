//! Makes the service account `default` in every namespace, which pods run as when they name none.
//!
//! Watches: Namespaces and ServiceAccounts. Changes: ServiceAccounts. Who reacts next: admission,
//! which lets pods in only once their service account exists.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api::client::{Client, Informer, InformerEvent};

use super::namespace::is_active;
use crate::runtime::harness::{Host, Reconcile, ReconcileError};
use crate::runtime::objects;
use crate::runtime::queue::WorkQueue;
use crate::workload::deployment::is_namespace_terminating;

const NAME: &str = "service-account-controller";
const DEFAULT: &str = "default";

/// The controller; see the module documentation.
pub(crate) struct ServiceAccounts {
    client: Client,
    namespaces: Informer<Namespace>,
    accounts: Informer<ServiceAccount>,
}

impl ServiceAccounts {
    /// Starts the controller's tasks.
    pub(crate) fn start(host: &mut Host) {
        let client = host.client(NAME);
        let queue = WorkQueue::new();
        let this = Arc::new(Self {
            namespaces: client.informer(),
            accounts: client.informer(),
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
            host.watch(&this.accounts, move |event| {
                if let InformerEvent::Deleted(account) = &event
                    && objects::name(&account.metadata) == DEFAULT
                {
                    queue.add(objects::namespace(&account.metadata).to_owned());
                }
            });
        }
        let controller = Arc::clone(&this);
        host.work(&this, &queue, 2, async move {
            controller.namespaces.synced().await;
            controller.accounts.synced().await;
        });
    }
}

impl Reconcile for ServiceAccounts {
    const NAME: &'static str = "service-account";

    async fn reconcile(&self, key: &str) -> Result<(), ReconcileError> {
        let active = self
            .namespaces
            .get(key)
            .is_some_and(|namespace| is_active(&namespace));
        if !active || self.accounts.get(&format!("{key}/{DEFAULT}")).is_some() {
            return Ok(());
        }
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(DEFAULT.to_owned()),
                namespace: Some(key.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        match self.client.create(&account).await {
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
