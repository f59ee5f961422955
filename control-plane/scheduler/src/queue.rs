//! Which pod is looked at next. A pod is active (ready to be looked at, by priority and age), in
//! backoff (looked at lately), waiting (no node would do, until something changes that could help),
//! or in flight. Pure: time is handed in.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::PodInfo;
use crate::plugins::Plugin;

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(10);
/// After this time a waiting pod is tried again even if nothing seems to have changed.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// Something that changed in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    NodeAdded,
    NodeAllocatable,
    NodeLabels,
    /// Taints, or being cordoned.
    NodeTaints,
    NodeGone,
    PodPlaced,
    PodLabels,
    /// A pod left its node, or needs less.
    PodGone,
    NamespaceLabels,
}

/// Whether a change could make a plugin change its mind.
fn helps(change: Change, plugin: Plugin) -> bool {
    use Change as C;
    match plugin {
        Plugin::NodeName => change == C::NodeAdded,
        Plugin::NodeUnschedulable | Plugin::TaintToleration => {
            matches!(change, C::NodeAdded | C::NodeTaints)
        }
        Plugin::NodeAffinity => matches!(change, C::NodeAdded | C::NodeLabels),
        Plugin::NodePorts => matches!(change, C::NodeAdded | C::PodGone),
        Plugin::NodeResourcesFit => {
            matches!(change, C::NodeAdded | C::NodeAllocatable | C::PodGone)
        }
        Plugin::PodTopologySpread => !matches!(change, C::NodeAllocatable | C::NamespaceLabels),
        Plugin::InterPodAffinity => {
            !matches!(change, C::NodeAllocatable | C::NodeTaints | C::NodeGone)
        }
    }
}

fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    FIRST_BACKOFF
        .saturating_mul(1 << doublings)
        .min(LAST_BACKOFF)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Active,
    /// Until when, and whether it may be taken earlier when nothing else is to be done.
    Backoff(Instant, bool),
    Waiting(BTreeSet<Plugin>, Instant),
    InFlight,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    priority: i32,
    /// Order of arrival.
    number: u64,
    attempts: u32,
    tried: Option<Instant>,
    state: State,
}

type ActiveKey = (Reverse<i32>, u64, String);

/// The queue; see the module documentation. Keys are uids.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<String, Entry>,
    active: BTreeSet<ActiveKey>,
    backoff: BTreeSet<(Instant, String)>,
    /// Since when each waiting pod waits.
    waiting: BTreeSet<(Instant, String)>,
    next_number: u64,
}

fn active_key(uid: &str, entry: &Entry) -> ActiveKey {
    (Reverse(entry.priority), entry.number, uid.to_owned())
}

/// Whether the change of a waiting pod could make it fit.
fn differs(old: &PodInfo, new: &PodInfo) -> bool {
    old.pod.spec != new.pod.spec || old.pod.metadata.labels != new.pod.metadata.labels
}

impl Queue {
    fn leave(&mut self, uid: &str) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        match &entry.state {
            State::Active => {
                self.active.remove(&active_key(uid, entry));
            }
            State::Backoff(until, _) => {
                self.backoff.remove(&(*until, uid.to_owned()));
            }
            State::Waiting(_, since) => {
                self.waiting.remove(&(*since, uid.to_owned()));
            }
            State::InFlight => {}
        }
    }

    fn enter(&mut self, uid: &str, state: State) {
        self.leave(uid);
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        entry.state = state;
        match &entry.state {
            State::Active => {
                self.active.insert(active_key(uid, entry));
            }
            State::Backoff(until, _) => {
                self.backoff.insert((*until, uid.to_owned()));
            }
            State::Waiting(_, since) => {
                self.waiting.insert((*since, uid.to_owned()));
            }
            State::InFlight => {}
        }
    }

    /// A pod is new, or has changed.
    pub(crate) fn upsert(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let uid = pod.uid().to_owned();
        let priority = pod
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or(0);
        if let Some(entry) = self.entries.get_mut(&uid) {
            let changed = differs(&entry.pod, &pod);
            entry.pod = pod;
            if changed && matches!(entry.state, State::Waiting(..)) {
                self.ready(&uid, now);
            }
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.entries.insert(
            uid.clone(),
            Entry {
                pod,
                priority,
                number,
                attempts: 0,
                tried: None,
                state: State::InFlight,
            },
        );
        self.enter(&uid, State::Active);
    }

    /// A pod needs no node any more.
    pub(crate) fn remove(&mut self, uid: &str) {
        self.leave(uid);
        self.entries.remove(uid);
    }

    fn ready(&mut self, uid: &str, now: Instant) {
        let Some(entry) = self.entries.get(uid) else {
            return;
        };
        let until = entry.tried.map(|tried| tried + backoff(entry.attempts));
        let state = match until {
            Some(until) if until > now => State::Backoff(until, true),
            _ => State::Active,
        };
        self.enter(uid, state);
    }

    /// The next pod to look at; it is in flight until one of the methods below is called for it.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        while let Some((until, uid)) = self.backoff.first().cloned() {
            if until > now {
                break;
            }
            self.enter(&uid, State::Active);
        }
        while let Some((since, uid)) = self.waiting.first().cloned() {
            if now < since + LONGEST_WAIT {
                break;
            }
            self.enter(&uid, State::Active);
        }
        let uid = match self.active.first() {
            Some((_, _, uid)) => uid.clone(),
            // Nothing else to do: a pod that something has changed for need not sit out its backoff.
            None => self
                .backoff
                .iter()
                .find(|(_, uid)| {
                    self.entries
                        .get(uid)
                        .is_some_and(|entry| matches!(entry.state, State::Backoff(_, true)))
                })
                .map(|(_, uid)| uid.clone())?,
        };
        self.enter(&uid, State::InFlight);
        let entry = self.entries.get_mut(&uid)?;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.tried = Some(now);
        Some(Arc::clone(&entry.pod))
    }

    /// No node would do; these plugins said so (none: there was no node at all).
    pub(crate) fn reject(&mut self, uid: &str, plugins: BTreeSet<Plugin>, now: Instant) {
        self.enter(uid, State::Waiting(plugins, now));
    }

    /// Something went wrong with the pod: it is tried again after its backoff.
    pub(crate) fn retry(&mut self, uid: &str, now: Instant) {
        let attempts = self.entries.get(uid).map_or(1, |entry| entry.attempts);
        self.enter(uid, State::Backoff(now + backoff(attempts), false));
    }

    /// Something changed: pods that it could help are looked at again.
    pub(crate) fn wake(&mut self, change: Change, now: Instant) {
        let helped: Vec<String> = self
            .waiting
            .iter()
            .filter(
                |(_, uid)| match self.entries.get(uid).map(|entry| &entry.state) {
                    // A node that is new has not been asked yet.
                    Some(State::Waiting(plugins, _)) => {
                        change == Change::NodeAdded
                            || plugins.iter().any(|plugin| helps(change, *plugin))
                    }
                    _ => false,
                },
            )
            .map(|(_, uid)| uid.clone())
            .collect();
        for uid in helped {
            self.ready(&uid, now);
        }
    }

    /// When [`Queue::pop`] has something without a further change.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let backoff = self.backoff.first().map(|(until, _)| *until);
        let waiting = self.waiting.first().map(|(since, _)| *since + LONGEST_WAIT);
        backoff.into_iter().chain(waiting).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_objects::pod;

    fn info(name: &str, priority: i32) -> Arc<PodInfo> {
        let pod = pod(name)
            .with(|spec| spec.priority = Some(priority))
            .build();
        Arc::new(PodInfo::new(Arc::new(pod)))
    }

    fn pop(queue: &mut Queue, now: Instant) -> Option<String> {
        queue.pop(now).map(|pod| pod.name().to_owned())
    }

    fn only(plugin: Plugin) -> BTreeSet<Plugin> {
        [plugin].into()
    }

    #[tokio::test]
    async fn priority_then_age() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for (name, priority) in [("a", 0), ("b", 10), ("c", 0), ("d", 10)] {
            queue.upsert(info(name, priority), now);
        }
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, now)).collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
    }

    #[tokio::test]
    async fn a_waiting_pod_wakes_by_what_could_help_it() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.upsert(info("a", 0), now);
        assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
        queue.reject("uid-a", only(Plugin::NodeResourcesFit), now);
        for change in [Change::NodeTaints, Change::NodeLabels, Change::PodPlaced] {
            queue.wake(change, now);
            assert_eq!(pop(&mut queue, now), None, "{change:?}");
        }
        queue.wake(Change::PodGone, now);
        assert_eq!(
            pop(&mut queue, now).as_deref(),
            Some("a"),
            "at once, as nothing else is to be done"
        );
        queue.reject("uid-a", BTreeSet::new(), now);
        queue.wake(Change::PodGone, now);
        assert_eq!(pop(&mut queue, now), None);
        queue.wake(Change::NodeAdded, now);
        assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn backoff_lets_others_go_first() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.upsert(info("a", 10), now);
        pop(&mut queue, now);
        queue.reject("uid-a", only(Plugin::NodePorts), now);
        queue.upsert(info("b", 0), now);
        queue.wake(Change::PodGone, now);
        assert_eq!(pop(&mut queue, now).as_deref(), Some("b"));
        assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn errors_sit_out_their_backoff() {
        let start = Instant::now();
        let mut queue = Queue::default();
        queue.upsert(info("a", 0), start);
        let mut now = start;
        for seconds in [1, 2, 4, 8, 10, 10] {
            assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
            queue.retry("uid-a", now);
            assert_eq!(pop(&mut queue, now), None);
            let due = now + Duration::from_secs(seconds);
            assert_eq!(queue.next_deadline(), Some(due));
            now = due;
        }
    }

    #[tokio::test]
    async fn a_changed_pod_is_tried_again() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.upsert(info("a", 0), now);
        pop(&mut queue, now);
        queue.reject("uid-a", only(Plugin::NodeAffinity), now);
        queue.upsert(info("a", 0), now);
        assert_eq!(pop(&mut queue, now), None, "only its status changed");
        let changed = pod("a").cpu("1").build();
        queue.upsert(Arc::new(PodInfo::new(Arc::new(changed))), now);
        assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
        queue.remove("uid-a");
        assert_eq!(queue.next_deadline(), None);
    }

    #[tokio::test]
    async fn nobody_waits_for_ever() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.upsert(info("a", 0), now);
        pop(&mut queue, now);
        queue.reject("uid-a", only(Plugin::NodeAffinity), now);
        let due = now + LONGEST_WAIT;
        assert_eq!(queue.next_deadline(), Some(due));
        assert_eq!(pop(&mut queue, due).as_deref(), Some("a"));
    }

    proptest! {
        /// The indices always agree with the entries, and a pod is in at most one place.
        #[test]
        fn indices_agree(steps in prop::collection::vec((0_u8..6, 0_usize..5, 0_u64..3), 0..100)) {
            let mut now = Instant::now();
            let mut queue = Queue::default();
            for (action, number, seconds) in steps {
                now += Duration::from_secs(seconds);
                let name = format!("p{number}");
                let uid = format!("uid-{name}");
                let in_flight = queue.entries.get(&uid).is_some_and(|entry| entry.state == State::InFlight);
                match action {
                    0 => queue.upsert(info(&name, 0), now),
                    1 => queue.remove(&uid),
                    2 if in_flight => queue.reject(&uid, only(Plugin::NodePorts), now),
                    3 if in_flight => queue.retry(&uid, now),
                    4 => queue.wake(Change::PodGone, now),
                    _ => { queue.pop(now); }
                }
                let active = queue.entries.values().filter(|entry| entry.state == State::Active).count();
                let backoff = queue
                    .entries
                    .values()
                    .filter(|entry| matches!(entry.state, State::Backoff(..)))
                    .count();
                prop_assert_eq!(queue.active.len(), active);
                prop_assert_eq!(queue.backoff.len(), backoff);
                let waiting = queue.entries.values().filter(|entry| matches!(entry.state, State::Waiting(..))).count();
                prop_assert_eq!(queue.waiting.len(), waiting);
            }
        }
    }
}
