//! What a controller has written but may not yet see in its informer's cache. A controller that
//! counts its pods must not act while the cache is older than its own last writes, or it would
//! create or delete twice.
//!
//! Kubernetes counts down as events arrive. Here each expectation is checked against the cache
//! instead (a created object is there, or the cache is past its revision; a deleted one is gone or
//! going), so that no event needs to be counted and none that is merged with another is missed.

use std::collections::HashMap;

use parking_lot::Mutex;

/// What the cache knows about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) uid: String,
    pub(crate) deleting: bool,
}

#[derive(Debug, Default)]
struct Pending {
    /// uid → (key, revision) of objects that were created.
    created: HashMap<String, (String, u64)>,
    /// uid → key of objects whose deletion was asked for.
    deleted: HashMap<String, String>,
}

/// Pending writes by the key of the object that owns them.
#[derive(Debug, Default)]
pub(crate) struct Expectations {
    pending: Mutex<HashMap<String, Pending>>,
}

impl Expectations {
    /// Notes that `object` (with `uid`) was created at `revision` on behalf of `owner`.
    pub(crate) fn created(&self, owner: &str, object: String, uid: String, revision: u64) {
        self.pending
            .lock()
            .entry(owner.to_owned())
            .or_default()
            .created
            .insert(uid, (object, revision));
    }

    /// Notes that the deletion of `object` (with `uid`) was accepted on behalf of `owner`.
    pub(crate) fn deleted(&self, owner: &str, object: String, uid: String) {
        self.pending
            .lock()
            .entry(owner.to_owned())
            .or_default()
            .deleted
            .insert(uid, object);
    }

    /// Whether the cache shows everything written on behalf of `owner`. `seen` looks up a key in
    /// the cache, `revision` is how far the cache has come.
    pub(crate) fn satisfied(
        &self,
        owner: &str,
        revision: u64,
        seen: impl Fn(&str) -> Option<Seen>,
    ) -> bool {
        let mut all = self.pending.lock();
        let Some(pending) = all.get_mut(owner) else {
            return true;
        };
        pending.created.retain(|uid, (key, created_at)| {
            *created_at > revision && seen(key).is_none_or(|found| found.uid != *uid)
        });
        pending
            .deleted
            .retain(|uid, key| seen(key).is_some_and(|found| found.uid == *uid && !found.deleting));
        let satisfied = pending.created.is_empty() && pending.deleted.is_empty();
        if satisfied {
            all.remove(owner);
        }
        satisfied
    }

    /// Forgets an owner that is gone.
    pub(crate) fn forget(&self, owner: &str) {
        self.pending.lock().remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(uid: &str, deleting: bool) -> Seen {
        Seen {
            uid: uid.to_owned(),
            deleting,
        }
    }

    #[test]
    fn a_create_is_expected_until_it_is_cached_or_the_cache_is_past_it() {
        let expectations = Expectations::default();
        assert!(expectations.satisfied("ns/rs", 1, |_| None));
        expectations.created("ns/rs", "ns/p".into(), "u1".into(), 7);
        assert!(!expectations.satisfied("ns/rs", 6, |_| None));
        assert!(
            !expectations.satisfied("ns/rs", 6, |_| Some(seen("another", false))),
            "another object of that name is not ours"
        );
        assert!(expectations.satisfied("ns/rs", 6, |_| Some(seen("u1", false))));
        expectations.created("ns/rs", "ns/p".into(), "u1".into(), 7);
        assert!(
            expectations.satisfied("ns/rs", 9, |_| None),
            "created and deleted again before the cache told"
        );
    }

    #[test]
    fn a_delete_is_expected_until_the_object_goes() {
        let expectations = Expectations::default();
        expectations.deleted("ns/rs", "ns/p".into(), "u1".into());
        assert!(!expectations.satisfied("ns/rs", 100, |_| Some(seen("u1", false))));
        assert!(expectations.satisfied("ns/rs", 100, |_| Some(seen("u1", true))));
        expectations.deleted("ns/rs", "ns/p".into(), "u1".into());
        assert!(expectations.satisfied("ns/rs", 100, |_| Some(seen("u2", false))));
        expectations.deleted("ns/rs", "ns/p".into(), "u1".into());
        assert!(expectations.satisfied("ns/rs", 100, |_| None));
    }

    #[test]
    fn owners_do_not_hinder_one_another() {
        let expectations = Expectations::default();
        expectations.created("ns/a", "ns/p".into(), "u1".into(), 7);
        assert!(expectations.satisfied("ns/b", 1, |_| None));
        assert!(!expectations.satisfied("ns/a", 1, |_| None));
        expectations.forget("ns/a");
        assert!(expectations.satisfied("ns/a", 1, |_| None));
    }
}
