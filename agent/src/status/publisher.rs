//! Sends pods' statuses: newest wins, and only what differs from what was sent.
//!
//! Watches what the pod workers hand in; changes `status` of Pod objects through the session.
//! A worker that must know its status arrived (before the object is removed) waits with
//! [`StatusPublisher::flushed`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::session::{ControlPlane, RequestError};

/// Wait after a write that failed for another reason than the session.
const RETRY: Duration = Duration::from_millis(500);

/// Statuses on their way. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatusPublisher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    entries: Mutex<HashMap<String, Entry>>,
    wake: Notify,
    /// Counts finished writes, for those who wait.
    progress: watch::Sender<u64>,
}

#[derive(Debug)]
struct Entry {
    namespace: String,
    name: String,
    latest: Arc<PodStatus>,
    sent: Option<Arc<PodStatus>>,
    /// The control plane has no such pod (any more).
    gone: bool,
}

impl Entry {
    fn is_pending(&self) -> bool {
        !self.gone && self.sent.as_ref() != Some(&self.latest)
    }
}

fn is_ready(status: &PodStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl Default for StatusPublisher {
    fn default() -> Self {
        Self::new()
    }
}

impl StatusPublisher {
    /// A publisher with nothing to send.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            entries: Mutex::new(HashMap::new()),
            wake: Notify::new(),
            progress: watch::Sender::new(0),
        }))
    }

    /// Hands in the newest status of a pod.
    pub fn publish(&self, namespace: &str, name: &str, uid: &str, status: PodStatus) {
        let mut entries = self.0.entries.lock();
        let status = Arc::new(status);
        if let Some(entry) = entries.get_mut(uid) {
            entry.latest = status;
        } else {
            let entry = Entry {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                latest: status,
                sent: None,
                gone: false,
            };
            entries.insert(uid.to_owned(), entry);
        }
        drop(entries);
        self.0.wake.notify_one();
    }

    /// Notes what the control plane has, so that it is not sent again after a restart.
    pub fn known(&self, namespace: &str, name: &str, uid: &str, status: PodStatus) {
        let status = Arc::new(status);
        self.0
            .entries
            .lock()
            .entry(uid.to_owned())
            .or_insert_with(|| Entry {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                latest: status.clone(),
                sent: Some(status),
                gone: false,
            });
    }

    /// Looks at what the control plane has. When somebody there wrote that the pod does not serve (its
    /// node was thought lost) and it does, the status is sent again.
    pub fn compare(&self, uid: &str, stored: &PodStatus) {
        let mut entries = self.0.entries.lock();
        let Some(entry) = entries.get_mut(uid) else {
            return;
        };
        if entry.gone || entry.is_pending() || !is_ready(&entry.latest) || is_ready(stored) {
            return;
        }
        entry.sent = None;
        drop(entries);
        self.0.wake.notify_one();
    }

    /// Waits until the newest status of a pod has arrived, or the control plane has said that
    /// there is no such pod.
    pub async fn flushed(&self, uid: &str) {
        let mut progress = self.0.progress.subscribe();
        loop {
            progress.borrow_and_update();
            let pending = self
                .0
                .entries
                .lock()
                .get(uid)
                .is_some_and(Entry::is_pending);
            if !pending || progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &str) {
        self.0.entries.lock().remove(uid);
    }

    /// Sends until `shutdown`.
    pub async fn run(self, control_plane: Arc<dyn ControlPlane>, shutdown: CancellationToken) {
        loop {
            let batch = self.pending();
            if batch.is_empty() {
                if shutdown
                    .run_until_cancelled(self.0.wake.notified())
                    .await
                    .is_none()
                {
                    return;
                }
                continue;
            }
            let round = self.round(control_plane.as_ref(), batch);
            match shutdown.run_until_cancelled(round).await {
                None => return,
                Some(None) => {}
                Some(Some(RequestError::Disconnected)) => {
                    if shutdown
                        .run_until_cancelled(control_plane.connected())
                        .await
                        .is_none()
                    {
                        return;
                    }
                }
                Some(Some(error)) => {
                    tracing::debug!(%error, "pod status not written; trying again");
                    if shutdown
                        .run_until_cancelled(tokio::time::sleep(RETRY))
                        .await
                        .is_none()
                    {
                        return;
                    }
                }
            }
        }
    }

    fn pending(&self) -> Vec<(String, String, String, Arc<PodStatus>)> {
        self.0
            .entries
            .lock()
            .iter()
            .filter(|(_, entry)| entry.is_pending())
            .map(|(uid, entry)| {
                (
                    uid.clone(),
                    entry.namespace.clone(),
                    entry.name.clone(),
                    entry.latest.clone(),
                )
            })
            .collect()
    }

    /// Writes all of a batch at once; the last retryable error comes back.
    async fn round(
        &self,
        control_plane: &dyn ControlPlane,
        batch: Vec<(String, String, String, Arc<PodStatus>)>,
    ) -> Option<RequestError> {
        let writes = batch
            .into_iter()
            .map(|(uid, namespace, name, status)| async move {
                let result = control_plane
                    .update_pod_status(&namespace, &name, &uid, &status)
                    .await;
                self.finished(&uid, status, &result);
                result.err().filter(RequestError::is_retryable)
            });
        futures_util::future::join_all(writes)
            .await
            .into_iter()
            .flatten()
            .last()
    }

    fn finished(&self, uid: &str, status: Arc<PodStatus>, result: &Result<(), RequestError>) {
        if let Some(entry) = self.0.entries.lock().get_mut(uid) {
            match result {
                Ok(()) => entry.sent = Some(status),
                Err(error) if error.is_gone() => entry.gone = true,
                Err(error) if error.is_retryable() => {}
                Err(error) => {
                    tracing::warn!(pod = entry.name, %error, "the control plane refuses this pod status");
                    entry.sent = Some(status);
                }
            }
        }
        self.0.progress.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;

    fn status(ready: &str) -> PodStatus {
        PodStatus {
            conditions: Some(vec![PodCondition {
                type_: "Ready".to_owned(),
                status: ready.to_owned(),
                ..PodCondition::default()
            }]),
            ..PodStatus::default()
        }
    }

    #[test]
    fn a_pod_that_others_call_unready_is_told_of_again() {
        let publisher = StatusPublisher::new();
        publisher.known("default", "web", "u", status("True"));
        publisher.compare("u", &status("True"));
        assert!(publisher.pending().is_empty());
        publisher.compare("u", &status("False"));
        assert_eq!(publisher.pending().len(), 1);

        publisher.known("default", "down", "v", status("False"));
        publisher.compare("v", &status("True"));
        publisher.compare("none", &status("False"));
        assert_eq!(publisher.pending().len(), 1, "only what serves");
    }
}
