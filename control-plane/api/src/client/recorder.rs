//! Events about objects, written as client-go's recorder writes them.
//!
//! Recording never waits: events go through a bounded queue to one task, which counts
//! repeats of the same event, folds floods of similar ones, limits what one object may
//! cause, and creates or patches `core/v1` Events. `kubectl describe` shows them.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Client, Patch};

/// Events waiting to be written; more are dropped, as client-go does.
const QUEUE: usize = 1000;
/// Distinct events remembered for counting.
const REMEMBERED: usize = 4096;
/// From this many similar events within [`SIMILAR_SECONDS`] on, they are folded into one.
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// Events one source may write about one object in a burst, and seconds per further one.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;

/// Writes Events of one component. Cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Draft>,
    client: Client,
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRecorder").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Draft {
    regarding: ObjectReference,
    type_: String,
    reason: String,
    message: String,
    time: Timestamp,
}

impl EventRecorder {
    /// A recorder whose Events carry `component` as their source.
    pub fn new(client: &Client, component: &str) -> Self {
        Self::on_host(client, component, None)
    }

    /// A recorder for a component of a node: the Events name the node as their host.
    pub fn on_node(client: &Client, component: &str, node: &str) -> Self {
        Self::on_host(client, component, Some(node.to_owned()))
    }

    fn on_host(client: &Client, component: &str, host: Option<String>) -> Self {
        let (queue, drafts) = mpsc::channel(QUEUE);
        let source = EventSource {
            component: Some(component.to_owned()),
            host,
        };
        client.core().spawn(write(client.clone(), source, drafts));
        Self {
            queue,
            client: client.clone(),
        }
    }

    /// Records an Event about `regarding`; `type_` is `Normal` or `Warning`.
    pub fn record(
        &self,
        regarding: ObjectReference,
        type_: &str,
        reason: &str,
        message: impl Into<String>,
    ) {
        let draft = Draft {
            regarding,
            type_: type_.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            time: self.client.now(),
        };
        if let Err(error) = self.queue.try_send(draft) {
            tracing::warn!(%error, reason, "an event was dropped");
        }
    }
}

async fn write(client: Client, source: EventSource, mut drafts: mpsc::Receiver<Draft>) {
    let mut correlator = Correlator::default();
    while let Some(draft) = drafts.recv().await {
        let Some(step) = correlator.correlate(&source, draft) else {
            continue;
        };
        write_one(&client, &mut correlator, step).await;
    }
}

async fn write_one(client: &Client, correlator: &mut Correlator, step: Step) {
    let name = step.event.metadata.name.clone().unwrap_or_default();
    if !name.is_empty() {
        let namespace = step.event.metadata.namespace.as_deref();
        let patch = Patch::Strategic(json!({
            "count": step.event.count,
            "lastTimestamp": step.event.last_timestamp,
            "message": step.event.message,
        }));
        match client.patch::<Event>(namespace, &name, &patch, None).await {
            Ok(_) => return,
            Err(status) if status.is_not_found() => {}
            Err(status) => {
                tracing::warn!(%status, "an event could not be counted");
                return;
            }
        }
    }
    // New, or its hour is over: a first one, under a name of its own.
    let mut event = step.event;
    let time = step.time;
    event.metadata.name = Some(event_name(&event.involved_object, time));
    if let Err(status) = client.create(&event).await {
        // The namespace of a deleted object goes before its last events do.
        tracing::debug!(%status, "an event could not be written");
        return;
    }
    correlator.named(&step.key, event.metadata.name.unwrap_or_default());
}

fn event_name(regarding: &ObjectReference, time: Timestamp) -> String {
    format!(
        "{}.{:x}",
        regarding.name.as_deref().unwrap_or_default(),
        time.as_nanosecond()
    )
}

/// What makes two events the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    object: String,
    type_: String,
    reason: String,
    message: String,
}

#[derive(Debug)]
struct Step {
    event: Event,
    key: Arc<Key>,
    time: Timestamp,
}

#[derive(Debug)]
struct Seen {
    name: String,
    count: i32,
    first: Timestamp,
}

#[derive(Debug)]
struct Similar {
    messages: Vec<String>,
    last: Timestamp,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    last: Timestamp,
}

/// Decides, without I/O, what becomes of each event.
#[derive(Debug, Default)]
struct Correlator {
    seen: HashMap<Arc<Key>, Seen>,
    similar: HashMap<(String, String, String), Similar>,
    buckets: HashMap<String, Bucket>,
}

impl Correlator {
    fn correlate(&mut self, source: &EventSource, draft: Draft) -> Option<Step> {
        self.forget();
        let Draft {
            regarding,
            type_,
            reason,
            mut message,
            time,
        } = draft;
        let object = format!(
            "{}/{}/{}/{}/{}",
            regarding.kind.as_deref().unwrap_or_default(),
            regarding.namespace.as_deref().unwrap_or_default(),
            regarding.name.as_deref().unwrap_or_default(),
            regarding.uid.as_deref().unwrap_or_default(),
            regarding.field_path.as_deref().unwrap_or_default(),
        );
        let similar = self
            .similar
            .entry((object.clone(), type_.clone(), reason.clone()))
            .or_insert_with(|| Similar {
                messages: Vec::new(),
                last: time,
            });
        if time.as_second() - similar.last.as_second() > SIMILAR_SECONDS {
            similar.messages.clear();
        }
        similar.last = time;
        if !similar.messages.contains(&message) && similar.messages.len() < SIMILAR {
            similar.messages.push(message.clone());
        }
        let folded = similar.messages.len() >= SIMILAR;
        let key = Arc::new(Key {
            object: object.clone(),
            type_: type_.clone(),
            reason: reason.clone(),
            message: if folded {
                String::new()
            } else {
                message.clone()
            },
        });
        if folded {
            message = format!("(combined from similar events): {message}");
        }
        let seen = self.seen.entry(key.clone()).or_insert_with(|| Seen {
            name: String::new(),
            count: 0,
            first: time,
        });
        seen.count += 1;
        let (count, first, name) = (seen.count, seen.first, seen.name.clone());
        if !self.allowed(object, time) {
            return None;
        }
        let namespace = regarding
            .namespace
            .clone()
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or_else(|| "default".to_owned());
        Some(Step {
            event: Event {
                metadata: ObjectMeta {
                    name: Some(name),
                    namespace: Some(namespace),
                    ..ObjectMeta::default()
                },
                involved_object: regarding,
                type_: Some(type_),
                reason: Some(reason),
                message: Some(message),
                source: Some(source.clone()),
                reporting_component: source.component.clone(),
                reporting_instance: Some(source.host.clone().unwrap_or_default()),
                count: Some(count),
                first_timestamp: Some(Time(first)),
                last_timestamp: Some(Time(time)),
                ..Event::default()
            },
            key,
            time,
        })
    }

    fn named(&mut self, key: &Key, name: String) {
        if let Some(seen) = self.seen.get_mut(key) {
            seen.name = name;
        }
    }

    /// A token bucket per object.
    fn allowed(&mut self, object: String, time: Timestamp) -> bool {
        let bucket = self.buckets.entry(object).or_insert(Bucket {
            tokens: BURST,
            last: time,
        });
        let passed = time.duration_since(bucket.last).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + passed / REFILL_SECONDS).min(BURST);
        bucket.last = time;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    /// Keeps the memory bounded; what is forgotten starts counting anew.
    fn forget(&mut self) {
        if self.seen.len() >= REMEMBERED {
            self.seen.clear();
        }
        if self.similar.len() >= REMEMBERED {
            self.similar.clear();
        }
        if self.buckets.len() >= REMEMBERED {
            self.buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubelet() -> EventSource {
        EventSource {
            component: Some("kubelet".to_owned()),
            host: Some("node-a".to_owned()),
        }
    }

    fn draft(message: &str, second: i64) -> Draft {
        Draft {
            regarding: ObjectReference {
                kind: Some("Pod".to_owned()),
                name: Some("web".to_owned()),
                ..ObjectReference::default()
            },
            type_: "Normal".to_owned(),
            reason: "Pulled".to_owned(),
            message: message.to_owned(),
            time: Timestamp::from_second(second).expect("a time"),
        }
    }

    #[test]
    fn repeats_are_counted() {
        let mut correlator = Correlator::default();
        let first = correlator
            .correlate(&kubelet(), draft("a", 1))
            .expect("kept");
        assert_eq!(first.event.count, Some(1));
        correlator.named(&first.key, "web.1".to_owned());
        let second = correlator
            .correlate(&kubelet(), draft("a", 9))
            .expect("kept");
        assert_eq!(second.event.count, Some(2));
        assert_eq!(second.event.metadata.name.as_deref(), Some("web.1"));
        assert_eq!(second.event.first_timestamp, first.event.first_timestamp);
    }

    #[test]
    fn similar_ones_are_folded_and_floods_are_cut() {
        let mut correlator = Correlator::default();
        let mut kept = Vec::new();
        for number in 0..40 {
            kept.extend(correlator.correlate(&kubelet(), draft(&format!("m{number}"), 1)));
        }
        assert_eq!(kept.len(), 25);
        assert_eq!(kept[8].event.message.as_deref(), Some("m8"));
        assert_eq!(
            kept[9].event.message.as_deref(),
            Some("(combined from similar events): m9")
        );
        assert_eq!(kept[24].event.count, Some(16));
        assert!(
            correlator
                .correlate(&kubelet(), draft("later", 302))
                .is_some()
        );
    }
}
