//! Which keys may act as which node.
//!
//! A node's name is taken by the first machine that joins with it, until its Node object is
//! deleted. What it is known by lies in the cluster's state as a ConfigMap
//! `kube-node-lease/node-keys.NAME`:
//!
//! ```text
//! keys        hashes of public keys, newest last: one, or two while a certificate is renewed
//! joined      when the first of them joined
//! node-uid    the Node object, once it was registered
//! ```
//!
//! [`crate::join`] claims a name and adds a key at a renewal, [`crate::session`] asks whether a
//! key is still the node's: a machine whose name was given to another one is cut off, although
//! its certificate has not ended. A node without a record is the one of a server's own process:
//! its name is refused to everybody else by [`crate::join`].

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use pintle_api::client::Client;
use pintle_kube_types::status::Status;

use crate::clock;

/// Where the records lie: beside the nodes' Leases.
const NAMESPACE: &str = "kube-node-lease";
const NAME_PREFIX: &str = "node-keys.";
const KEYS: &str = "keys";
const JOINED: &str = "joined";
const NODE_UID: &str = "node-uid";
/// A machine that joined has this long to register its Node before its name is free again.
const REGISTRATION: Duration = Duration::from_mins(2);
/// How often a change that lost a race is tried again.
const ATTEMPTS: usize = 5;

/// SHA-256 of a public key.
pub(crate) type KeyHash = [u8; 32];

/// Why a name is not given to a key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// A node of this name exists and has another key.
    #[error(
        "the node name {0:?} is taken: a machine with another key joined with it. Give this machine another name with --node-name or, if it replaces that one, delete the old node first (kubectl delete node {0})"
    )]
    Taken(String),
    /// Another machine got a certificate for it a moment ago.
    #[error(
        "the node name {0:?} is being taken by another machine that joins right now. Give this machine another name with --node-name, or try again in two minutes"
    )]
    Joining(String),
    /// The cluster's state cannot be read or written.
    #[error("the node's name cannot be claimed: {0}")]
    Api(Status),
}

/// The records.
#[derive(Clone, Debug)]
pub(crate) struct NodeKeys {
    client: Client,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    keys: Vec<String>,
    joined: Option<Timestamp>,
    node_uid: Option<String>,
}

/// What a claim comes to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    Taken,
    Joining,
}

/// Who gets a name: pure.
fn judge(record: Option<&Record>, node_uid: Option<&str>, key: &str, now: Timestamp) -> Verdict {
    if record.is_some_and(|record| record.keys.iter().any(|known| known == key)) {
        return Verdict::Granted;
    }
    if node_uid.is_some() {
        return Verdict::Taken;
    }
    let is_joining = record.is_some_and(|record| {
        // One that was registered had a Node, which somebody deleted.
        record.node_uid.is_none()
            && record
                .joined
                .is_some_and(|joined| now.duration_since(joined).unsigned_abs() < REGISTRATION)
    });
    if is_joining {
        Verdict::Joining
    } else {
        Verdict::Granted
    }
}

impl NodeKeys {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Gives `node`'s name to the key, unless another one has it.
    pub(crate) async fn claim(
        &self,
        node: &str,
        key: &KeyHash,
        now: SystemTime,
    ) -> Result<(), ClaimError> {
        let (key, now) = (text(key), timestamp(now));
        let mut attempt = 1;
        loop {
            let stored = self.get(node).await.map_err(ClaimError::Api)?;
            let uid = self.node_uid(node).await.map_err(ClaimError::Api)?;
            let record = stored.as_ref().map(Record::read);
            match judge(record.as_ref(), uid.as_deref(), &key, now) {
                Verdict::Taken => return Err(ClaimError::Taken(node.to_owned())),
                Verdict::Joining => return Err(ClaimError::Joining(node.to_owned())),
                Verdict::Granted => {}
            }
            if record.is_some_and(|record| record.keys.contains(&key)) {
                return Ok(());
            }
            let record = Record {
                keys: vec![key.clone()],
                joined: Some(now),
                node_uid: uid,
            };
            match self.put(node, stored, &record).await {
                Err(status) if lost_race(&status) && attempt < ATTEMPTS => attempt += 1,
                result => return result.map_err(ClaimError::Api),
            }
        }
    }

    /// Whether no other machine has, or is about to have, the name.
    pub(crate) async fn check_free(&self, node: &str, now: SystemTime) -> Result<(), ClaimError> {
        let stored = self.get(node).await.map_err(ClaimError::Api)?;
        let uid = self.node_uid(node).await.map_err(ClaimError::Api)?;
        let record = stored.as_ref().map(Record::read);
        match judge(record.as_ref(), uid.as_deref(), "", timestamp(now)) {
            Verdict::Granted => Ok(()),
            Verdict::Taken => Err(ClaimError::Taken(node.to_owned())),
            Verdict::Joining => Err(ClaimError::Joining(node.to_owned())),
        }
    }

    /// Lets `key` act as the node of this process whatever the record says: its data directory
    /// holds the cluster.
    pub(crate) async fn seize(
        &self,
        node: &str,
        key: &KeyHash,
        now: SystemTime,
    ) -> Result<(), Status> {
        let (key, now) = (text(key), timestamp(now));
        self.change(node, |record| {
            if record.keys.contains(&key) {
                return false;
            }
            record.keys = vec![key.clone()];
            record.joined = Some(now);
            true
        })
        .await
    }

    /// Adds the key of a renewed certificate; the one it was asked for with stays good.
    pub(crate) async fn add(
        &self,
        node: &str,
        current: &KeyHash,
        new: &KeyHash,
    ) -> Result<(), Status> {
        let (current, new) = (text(current), text(new));
        self.change(node, |record| {
            record.keys = vec![current.clone(), new.clone()];
            true
        })
        .await
    }

    /// Whether `key` may act as `node`. The first use of a renewed key ends the one before.
    pub(crate) async fn admits(&self, node: &str, key: &KeyHash) -> Result<bool, Status> {
        let key = text(key);
        let Some(stored) = self.get(node).await? else {
            return Ok(true);
        };
        let record = Record::read(&stored);
        if !record.keys.contains(&key) {
            return Ok(false);
        }
        if record.keys.len() > 1 && record.keys.last() == Some(&key) {
            self.change(node, |record| {
                let is_newest = record.keys.last() == Some(&key);
                if is_newest {
                    record.keys = vec![key.clone()];
                }
                is_newest
            })
            .await?;
        }
        Ok(true)
    }

    /// Notes that the node has its object now, and makes the record go with it.
    pub(crate) async fn registered(&self, node: &str, uid: &str) -> Result<(), Status> {
        self.change(node, |record| {
            let is_news = record.node_uid.as_deref() != Some(uid);
            record.node_uid = Some(uid.to_owned());
            is_news
        })
        .await
    }

    /// Changes an existing record; `change` says whether there is something to write.
    async fn change(
        &self,
        node: &str,
        mut change: impl FnMut(&mut Record) -> bool,
    ) -> Result<(), Status> {
        let mut attempt = 1;
        loop {
            let Some(stored) = self.get(node).await? else {
                return Ok(());
            };
            let mut record = Record::read(&stored);
            if !change(&mut record) {
                return Ok(());
            }
            match self.put(node, Some(stored), &record).await {
                Err(status) if lost_race(&status) && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn get(&self, node: &str) -> Result<Option<ConfigMap>, Status> {
        let name = format!("{NAME_PREFIX}{node}");
        optional(self.client.get(Some(NAMESPACE), &name).await)
    }

    async fn node_uid(&self, node: &str) -> Result<Option<String>, Status> {
        let found: Option<Node> = optional(self.client.get(None, node).await)?;
        Ok(found.and_then(|node| node.metadata.uid))
    }

    async fn put(
        &self,
        node: &str,
        stored: Option<ConfigMap>,
        record: &Record,
    ) -> Result<(), Status> {
        let is_new = stored.is_none();
        let mut object = stored.unwrap_or_else(|| ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("{NAME_PREFIX}{node}")),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        });
        record.write(node, &mut object);
        if is_new {
            self.client.create(&object).await.map(drop)
        } else {
            self.client.update(&object).await.map(drop)
        }
    }
}

impl Record {
    fn read(object: &ConfigMap) -> Self {
        let value = |name: &str| object.data.as_ref()?.get(name).cloned();
        Self {
            keys: value(KEYS)
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            joined: value(JOINED).and_then(|text| text.parse().ok()),
            node_uid: value(NODE_UID),
        }
    }

    fn write(&self, node: &str, object: &mut ConfigMap) {
        let fields = [
            (KEYS, Some(self.keys.join(" "))),
            (JOINED, self.joined.map(|joined| joined.to_string())),
            (NODE_UID, self.node_uid.clone()),
        ];
        let data: BTreeMap<String, String> = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        object.data = Some(data);
        object.metadata.owner_references = self.node_uid.clone().map(|uid| {
            vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.to_owned(),
                uid,
                ..OwnerReference::default()
            }]
        });
    }
}

fn text(key: &KeyHash) -> String {
    format!("sha256:{}", hex::encode(key))
}

fn timestamp(time: SystemTime) -> Timestamp {
    let seconds = i64::try_from(clock::unix_seconds(time)).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

fn lost_race(status: &Status) -> bool {
    status.is_conflict() || status.is_already_exists()
}

fn optional<T>(result: Result<T, Status>) -> Result<Option<T>, Status> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(status) if status.is_not_found() => Ok(None),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestApi;
    use pintle_api::client::DeleteParams;

    fn node(name: &str) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_name_belongs_to_its_first_key_until_the_node_is_deleted() {
        let api = TestApi::start().await;
        let (client, keys) = (api.client(), NodeKeys::new(api.client()));
        let now = clock::now();
        let (first, second) = ([1; 32], [2; 32]);
        keys.claim("a", &first, now).await.unwrap();
        keys.claim("a", &first, now).await.unwrap();
        let refused = keys.claim("a", &second, now).await.unwrap_err();
        assert!(matches!(refused, ClaimError::Joining(_)), "{refused}");

        let stored = client.create(&node("a")).await.unwrap();
        keys.registered("a", stored.metadata.uid.as_deref().unwrap())
            .await
            .unwrap();
        let later = now + Duration::from_hours(1);
        let refused = keys.claim("a", &second, later).await.unwrap_err();
        assert!(matches!(refused, ClaimError::Taken(_)), "{refused}");
        assert!(keys.admits("a", &first).await.unwrap());
        assert!(!keys.admits("a", &second).await.unwrap());

        // A deleted node's name is free at once, and the old machine is shut out.
        client
            .delete::<Node>(None, "a", &DeleteParams::default())
            .await
            .unwrap();
        keys.claim("a", &second, now).await.unwrap();
        assert!(keys.admits("a", &second).await.unwrap());
        assert!(!keys.admits("a", &first).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_join_that_never_came_to_a_node_frees_the_name() {
        let api = TestApi::start().await;
        let keys = NodeKeys::new(api.client());
        let now = clock::now();
        keys.claim("a", &[1; 32], now).await.unwrap();
        keys.claim("a", &[2; 32], now + REGISTRATION).await.unwrap();
        assert!(!keys.admits("a", &[1; 32]).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn both_keys_are_good_until_the_renewed_one_is_used() {
        let api = TestApi::start().await;
        let keys = NodeKeys::new(api.client());
        let (first, second) = ([1; 32], [2; 32]);
        keys.claim("a", &first, clock::now()).await.unwrap();
        keys.add("a", &first, &second).await.unwrap();
        assert!(keys.admits("a", &first).await.unwrap());
        assert!(keys.admits("a", &second).await.unwrap());
        assert!(!keys.admits("a", &first).await.unwrap());
        // A node without a record is a server's own.
        assert!(keys.admits("own", &first).await.unwrap());
    }
}
