//! Who owns whom: the graph of every object and its owners, fed by what the watches say. Pure: each
//! change returns which objects the collector must look at.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// The finalizer of an object whose dependents are deleted first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are to stay.
pub(crate) const ORPHAN: &str = "orphan";

/// Where an object is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// What a watch said about an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    pub(crate) identity: Identity,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) deleting: bool,
    pub(crate) finalizers: Vec<String>,
}

/// Something the collector must do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Work {
    /// See whether the object with this uid must be deleted.
    Delete(String),
    /// Take the owner with this uid out of its dependents.
    Orphan(String),
}

/// One object as the graph knows it.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) identity: Identity,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) dependents: BTreeSet<String>,
    /// It waits for its dependents to be deleted.
    pub(crate) deleting_dependents: bool,
    pub(crate) deleting: bool,
    /// Only known as somebody's owner; it may not exist.
    pub(crate) guessed: bool,
}

/// The graph. Keys are uids.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    items: HashMap<String, Item>,
}

impl Graph {
    /// The object with this uid.
    pub(crate) fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    /// The dependents of an object.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Item> {
        self.items
            .get(uid)
            .into_iter()
            .flat_map(|item| &item.dependents)
            .filter_map(|dependent| self.items.get(dependent).cloned())
            .collect()
    }

    /// An object was created or changed.
    pub(crate) fn observe(&mut self, seen: Observed) -> Vec<Work> {
        let uid = seen.identity.uid.clone();
        let mut work = Vec::new();
        let before = if let Some(item) = self.items.get_mut(&uid) {
            item.identity = seen.identity;
            item.guessed = false;
            std::mem::replace(&mut item.owners, seen.owners.clone())
        } else {
            self.items.insert(
                uid.clone(),
                Item {
                    identity: seen.identity,
                    owners: seen.owners.clone(),
                    dependents: BTreeSet::new(),
                    deleting_dependents: false,
                    deleting: false,
                    guessed: false,
                },
            );
            Vec::new()
        };
        self.link(&uid, &before, &seen.owners, &mut work);

        let started =
            |flag: &str| seen.deleting && seen.finalizers.iter().any(|finalizer| finalizer == flag);
        let (orphan, foreground) = (started(ORPHAN), started(FOREGROUND));
        if let Some(item) = self.items.get_mut(&uid) {
            item.deleting = seen.deleting;
            if orphan {
                work.push(Work::Orphan(uid.clone()));
            }
            if foreground && !item.deleting_dependents {
                item.deleting_dependents = true;
                work.extend(item.dependents.iter().cloned().map(Work::Delete));
                work.push(Work::Delete(uid));
            }
        }
        work
    }

    fn link(
        &mut self,
        uid: &str,
        before: &[OwnerReference],
        after: &[OwnerReference],
        work: &mut Vec<Work>,
    ) {
        let blocking = |owners: &[OwnerReference], owner: &str| {
            owners
                .iter()
                .any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
        };
        for owner in before {
            let kept = after.iter().any(|o| o.uid == owner.uid);
            let waiting = self
                .items
                .get(&owner.uid)
                .is_some_and(|item| item.deleting_dependents);
            if waiting && blocking(before, &owner.uid) && !blocking(after, &owner.uid) {
                work.push(Work::Delete(owner.uid.clone()));
            }
            if !kept {
                self.unlink(uid, &owner.uid);
            }
        }
        let namespace = self
            .items
            .get(uid)
            .and_then(|item| item.identity.namespace.clone());
        for owner in after {
            if before.iter().any(|o| o.uid == owner.uid) {
                continue;
            }
            let item = self.items.entry(owner.uid.clone()).or_insert_with(|| {
                // Never heard of: perhaps its own watch is late, perhaps it does not exist.
                work.push(Work::Delete(owner.uid.clone()));
                Item {
                    identity: Identity {
                        api_version: owner.api_version.clone(),
                        kind: owner.kind.clone(),
                        namespace: namespace.clone(),
                        name: owner.name.clone(),
                        uid: owner.uid.clone(),
                    },
                    owners: Vec::new(),
                    dependents: BTreeSet::new(),
                    deleting_dependents: false,
                    deleting: false,
                    guessed: true,
                }
            });
            item.dependents.insert(uid.to_owned());
            if item.deleting_dependents {
                work.push(Work::Delete(uid.to_owned()));
            }
        }
    }

    fn unlink(&mut self, uid: &str, owner: &str) {
        if let Some(item) = self.items.get_mut(owner) {
            item.dependents.remove(uid);
            if item.guessed && item.dependents.is_empty() {
                self.items.remove(owner);
            }
        }
    }

    /// An object is gone: its dependents have one owner less, and an owner that waits for its
    /// dependents may have waited for this one.
    pub(crate) fn gone(&mut self, uid: &str) -> Vec<Work> {
        let Some(item) = self.items.remove(uid) else {
            return Vec::new();
        };
        let mut work: Vec<Work> = item.dependents.into_iter().map(Work::Delete).collect();
        for owner in &item.owners {
            self.unlink(uid, &owner.uid);
            let waiting = self
                .items
                .get(&owner.uid)
                .is_some_and(|owner| owner.deleting_dependents);
            if waiting {
                work.push(Work::Delete(owner.uid.clone()));
            }
        }
        work
    }

    /// The number of objects known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str, blocking: bool) -> OwnerReference {
        OwnerReference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: format!("name-{uid}"),
            uid: uid.into(),
            block_owner_deletion: Some(blocking),
            ..OwnerReference::default()
        }
    }

    fn object(uid: &str, owners: &[OwnerReference]) -> Observed {
        Observed {
            identity: Identity {
                api_version: "v1".into(),
                kind: "Pod".into(),
                namespace: Some("default".into()),
                name: format!("name-{uid}"),
                uid: uid.into(),
            },
            owners: owners.to_vec(),
            deleting: false,
            finalizers: Vec::new(),
        }
    }

    fn deleting(uid: &str, owners: &[OwnerReference], finalizer: &str) -> Observed {
        Observed {
            deleting: true,
            finalizers: vec![finalizer.into()],
            ..object(uid, owners)
        }
    }

    fn delete(uid: &str) -> Work {
        Work::Delete(uid.into())
    }

    #[test]
    fn dependents_are_looked_at_when_their_owner_goes() {
        let mut graph = Graph::default();
        assert!(graph.observe(object("rs", &[])).is_empty());
        assert!(graph.observe(object("p1", &[owner("rs", true)])).is_empty());
        assert!(graph.observe(object("p2", &[owner("rs", true)])).is_empty());
        assert_eq!(graph.gone("rs"), [delete("p1"), delete("p2")]);
        assert!(graph.gone("rs").is_empty());
    }

    #[test]
    fn an_unknown_owner_is_verified() {
        let mut graph = Graph::default();
        assert_eq!(
            graph.observe(object("p", &[owner("rs", true)])),
            [delete("rs")]
        );
        assert!(graph.get("rs").is_some_and(|item| item.guessed));
        assert!(graph.observe(object("rs", &[])).is_empty());
        assert!(graph.get("rs").is_some_and(|item| !item.guessed));
        assert_eq!(graph.gone("rs"), [delete("p")]);
        assert!(graph.gone("p").is_empty());
        assert_eq!(graph.len(), 0);
    }

    #[test]
    fn a_guess_goes_with_its_last_dependent() {
        let mut graph = Graph::default();
        graph.observe(object("p", &[owner("rs", true)]));
        graph.gone("p");
        assert_eq!(graph.len(), 0);
    }

    #[test]
    fn foreground_deletion_waits_for_each_blocking_dependent() {
        let mut graph = Graph::default();
        graph.observe(object("rs", &[]));
        graph.observe(object("p1", &[owner("rs", true)]));
        graph.observe(object("p2", &[owner("rs", true)]));
        assert_eq!(
            graph.observe(deleting("rs", &[], FOREGROUND)),
            [delete("p1"), delete("p2"), delete("rs")]
        );
        assert!(graph.observe(deleting("rs", &[], FOREGROUND)).is_empty());
        assert_eq!(graph.gone("p1"), [delete("rs")]);
        assert_eq!(
            graph.observe(object("p2", &[owner("rs", false)])),
            [delete("rs")],
            "no longer blocking"
        );
        assert_eq!(
            graph.observe(object("p3", &[owner("rs", true)])),
            [delete("p3")],
            "a late one is deleted too"
        );
    }

    #[test]
    fn orphaning_is_asked_for_until_the_finalizer_is_gone() {
        let mut graph = Graph::default();
        let orphan = Work::Orphan("rs".into());
        graph.observe(object("rs", &[]));
        assert_eq!(graph.observe(deleting("rs", &[], ORPHAN)), [orphan]);
        assert!(graph.observe(deleting("rs", &[], "other")).is_empty());
    }

    #[test]
    fn a_changed_owner_moves_the_dependent() {
        let mut graph = Graph::default();
        graph.observe(object("a", &[]));
        graph.observe(object("b", &[]));
        graph.observe(object("p", &[owner("a", true)]));
        graph.observe(object("p", &[owner("b", true)]));
        assert!(graph.gone("a").is_empty());
        assert_eq!(graph.dependents("b").len(), 1);
        assert_eq!(graph.gone("b"), [delete("p")]);
    }
}
