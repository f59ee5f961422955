//! The annotations by which a deployment's replica sets carry their history: revision numbers for
//! `kubectl rollout history` and `undo`, and the sizes that proportional scaling starts from.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The revision of a deployment or of one of its replica sets.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The revisions a replica set had before it was rolled back to.
pub(crate) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The size of the deployment when its replica set was last scaled.
pub(crate) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// That size plus the surge.
pub(crate) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
const MAX_HISTORY_CHARACTERS: usize = 2000;

fn not_copied(key: &str) -> bool {
    [
        LAST_APPLIED,
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        ROLLBACK_TO,
    ]
    .contains(&key)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn number(meta: &ObjectMeta, key: &str) -> Option<i32> {
    annotation(meta, key)?.parse().ok()
}

/// The revision an object carries; 0 if none.
pub(crate) fn revision_of(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// The deployment's size noted on the replica set.
pub(crate) fn desired_annotation(rs: &ReplicaSet) -> Option<i32> {
    number(&rs.metadata, DESIRED_REPLICAS)
}

/// The deployment's greatest size noted on the replica set.
pub(crate) fn max_annotation(rs: &ReplicaSet) -> Option<i32> {
    number(&rs.metadata, MAX_REPLICAS)
}

fn set(annotations: &mut BTreeMap<String, String>, key: &str, value: String) -> bool {
    if annotations.get(key) == Some(&value) {
        return false;
    }
    annotations.insert(key.to_owned(), value);
    true
}

/// Notes the deployment's sizes on the replica set; returns whether anything changed.
pub(crate) fn set_size_annotations(rs: &mut ReplicaSet, desired: i32, max: i32) -> bool {
    let annotations = rs.metadata.annotations.get_or_insert_default();
    let first = set(annotations, DESIRED_REPLICAS, desired.to_string());
    let second = set(annotations, MAX_REPLICAS, max.to_string());
    first || second
}

/// Brings the replica set's annotations up to date with its deployment: the deployment's own ones,
/// and `revision` if that is newer than what the replica set has (then the former revision goes
/// into the history). Returns whether anything changed.
pub(crate) fn sync_annotations(
    deployment: &Deployment,
    rs: &mut ReplicaSet,
    revision: i64,
) -> bool {
    let annotations = rs.metadata.annotations.get_or_insert_default();
    let mut changed = false;
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !not_copied(key) {
            changed |= set(annotations, key, value.clone());
        }
    }
    let former = annotations.get(REVISION).cloned();
    let former_number = match former.as_deref() {
        None | Some("") => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            // Somebody wrote nonsense there: leave it alone.
            Err(_) => return changed,
        },
    };
    if former_number < revision {
        changed |= set(annotations, REVISION, revision.to_string());
        if let Some(former) = former {
            let history = annotations
                .get(REVISION_HISTORY)
                .cloned()
                .unwrap_or_default();
            let history = append_history(&history, &former, MAX_HISTORY_CHARACTERS);
            changed |= set(annotations, REVISION_HISTORY, history);
        }
    }
    changed
}

fn append_history(history: &str, revision: &str, limit: usize) -> String {
    if history.is_empty() {
        return revision.to_owned();
    }
    let mut entries: Vec<&str> = history.split(',').collect();
    entries.push(revision);
    let mut length = history.len() + 1 + revision.len();
    let mut start = 0;
    while length > limit && start + 1 < entries.len() {
        length -= entries[start].len() + 1;
        start += 1;
    }
    entries[start..].join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(pairs: &[(&str, &str)]) -> ObjectMeta {
        ObjectMeta {
            annotations: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn a_rollback_moves_the_revision_and_keeps_the_history() {
        let deployment = Deployment {
            metadata: annotated(&[
                ("kubernetes.io/change-cause", "back to 1.27"),
                (LAST_APPLIED, "{}"),
                (REVISION, "2"),
            ]),
            ..Deployment::default()
        };
        let mut rs = ReplicaSet {
            metadata: annotated(&[(REVISION, "1")]),
            ..ReplicaSet::default()
        };
        assert!(sync_annotations(&deployment, &mut rs, 3));
        assert_eq!(annotation(&rs.metadata, REVISION), Some("3"));
        assert_eq!(annotation(&rs.metadata, REVISION_HISTORY), Some("1"));
        assert_eq!(
            annotation(&rs.metadata, "kubernetes.io/change-cause"),
            Some("back to 1.27")
        );
        assert_eq!(annotation(&rs.metadata, LAST_APPLIED), None);
        assert!(!sync_annotations(&deployment, &mut rs, 3));
        assert!(
            !sync_annotations(&deployment, &mut rs, 2),
            "never backwards"
        );
        assert!(sync_annotations(&deployment, &mut rs, 5));
        assert_eq!(annotation(&rs.metadata, REVISION_HISTORY), Some("1,3"));
    }

    #[test]
    fn history_is_bounded() {
        assert_eq!(append_history("", "1", 10), "1");
        assert_eq!(append_history("1,2,3,4", "5", 9), "1,2,3,4,5");
        assert_eq!(append_history("1,2,3,4", "5", 7), "2,3,4,5");
        assert_eq!(append_history("1", "12345", 3), "12345");
    }
}
