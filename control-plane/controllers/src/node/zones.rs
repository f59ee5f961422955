//! How fast pods are taken off nodes that failed, zone by zone. Pure.
//!
//! A node that fails gets a `NoExecute` taint, which takes its pods away. Many nodes that fail
//! together are more likely a failure of the network, or of this side of it, than of the nodes; so
//! each zone hands out its taints at a rate that depends on how much of it is left:
//!
//! ```text
//!   the zone                                        taints per second
//!   normal                                          0.1
//!   mostly failed (55 %, and more than two nodes)   0.01 in a large zone, else none
//!   failed entirely, while another zone is not      0.1
//!   every zone failed entirely                      none, and those given are taken back
//! ```
//!
//! Nodes are served in the order they asked. Follows Kubernetes' node life cycle controller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::NodeLife;

/// The nodes of the cluster by zone, and whose turn it is.
#[derive(Debug)]
pub(super) struct Zones {
    rules: NodeLife,
    members: BTreeMap<String, Member>,
    by_name: BTreeMap<String, Zone>,
    stopped: bool,
}

/// What is known of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// The zone it is in.
    pub(super) zone: String,
    /// Whether it is ready.
    pub(super) ready: bool,
    /// Whether it says something about the state of its zone.
    pub(super) counts: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Normal,
    MostlyFailed,
    Failed,
}

#[derive(Debug)]
struct Zone {
    /// Taints per second; zero or less is none.
    rate: f64,
    /// When the next one may be given, unless the rate is none.
    next: Instant,
    waiting: VecDeque<String>,
    granted: BTreeSet<String>,
}

/// What a change of a node did to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Shift {
    /// Every zone failed just now: taints are taken back.
    pub(super) stopped: bool,
    /// Not every zone is failed any more: all nodes get their time anew.
    pub(super) resumed: bool,
    /// Nodes whose turn comes at another time now.
    pub(super) again: Vec<String>,
}

/// When a node gets its taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Now.
    Now,
    /// It asks again then.
    At(Instant),
    /// When something changes.
    Later,
}

impl Zones {
    pub(super) fn new(rules: NodeLife) -> Self {
        Self {
            rules,
            members: BTreeMap::new(),
            by_name: BTreeMap::new(),
            stopped: false,
        }
    }

    /// Whether every zone failed: no taint is given and none kept.
    pub(super) fn are_stopped(&self) -> bool {
        self.stopped
    }

    /// Begins with the nodes there are: one at a time, the first that failed would look like a whole
    /// cluster that did.
    pub(super) fn begin(
        &mut self,
        members: impl IntoIterator<Item = (String, Member)>,
        now: Instant,
    ) {
        for (node, member) in members {
            self.by_name
                .entry(member.zone.clone())
                .or_insert_with(|| Zone::new(self.rules.eviction_rate, now));
            self.members.insert(node, member);
        }
        self.assess(now);
    }

    /// Notes how a node is.
    pub(super) fn observe(&mut self, node: &str, member: Member, now: Instant) -> Shift {
        if self.members.get(node) == Some(&member) {
            return Shift::default();
        }
        let zone = member.zone.clone();
        if let Some(before) = self.members.insert(node.to_owned(), member)
            && before.zone != zone
        {
            self.leave(&before.zone, node);
        }
        let rate = self.rules.eviction_rate;
        self.by_name
            .entry(zone)
            .or_insert_with(|| Zone::new(rate, now));
        self.assess(now)
    }

    /// Notes that a node is gone.
    pub(super) fn remove(&mut self, node: &str, now: Instant) -> Shift {
        let Some(member) = self.members.remove(node) else {
            return Shift::default();
        };
        self.leave(&member.zone, node);
        self.assess(now)
    }

    /// A node that failed asks for its taint.
    pub(super) fn ask(&mut self, node: &str, now: Instant) -> Turn {
        let Some(zone) = self
            .members
            .get(node)
            .and_then(|member| self.by_name.get_mut(&member.zone))
        else {
            return Turn::Later;
        };
        zone.ask(node, now)
    }

    /// A node has its taint, or needs none.
    pub(super) fn settled(&mut self, node: &str) {
        if let Some(member) = self.members.get(node) {
            let zone = member.zone.clone();
            self.leave(&zone, node);
        }
    }

    fn leave(&mut self, zone: &str, node: &str) {
        if let Some(zone) = self.by_name.get_mut(zone) {
            zone.granted.remove(node);
            zone.waiting.retain(|waiting| waiting != node);
        }
    }

    /// What is left of each zone decides its rate.
    fn assess(&mut self, now: Instant) -> Shift {
        let members = &self.members;
        self.by_name
            .retain(|name, _| members.values().any(|member| member.zone == *name));
        let mut counted: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for member in self.members.values().filter(|member| member.counts) {
            let (ready, failed) = counted.entry(&member.zone).or_default();
            *(if member.ready { ready } else { failed }) += 1;
        }
        let states: BTreeMap<String, (State, usize)> = counted
            .into_iter()
            .map(|(zone, (ready, failed))| {
                (
                    zone.to_owned(),
                    (self.state_of(ready, failed), ready + failed),
                )
            })
            .collect();
        let mut shift = Shift::default();
        let all_failed =
            !states.is_empty() && states.values().all(|(state, _)| *state == State::Failed);
        shift.stopped = all_failed && !self.stopped;
        shift.resumed = !all_failed && self.stopped;
        self.stopped = all_failed;
        for (name, zone) in &mut self.by_name {
            let rate = match states.get(name) {
                _ if all_failed => 0.0,
                Some((State::MostlyFailed, size)) if *size > self.rules.large_zone => {
                    self.rules.secondary_eviction_rate
                }
                Some((State::MostlyFailed, _)) => 0.0,
                Some((State::Normal | State::Failed, _)) | None => self.rules.eviction_rate,
            };
            if zone.set_rate(rate, now) {
                shift.again.extend(zone.waiting.iter().cloned());
            }
        }
        shift
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a zone has fewer nodes than a float has digits"
    )]
    fn state_of(&self, ready: usize, failed: usize) -> State {
        if ready == 0 && failed > 0 {
            State::Failed
        } else if failed > 2
            && failed as f64 / (failed + ready) as f64 >= self.rules.unhealthy_zone_threshold
        {
            State::MostlyFailed
        } else {
            State::Normal
        }
    }
}

/// The time between two taints, unless there are none.
fn pace(rate: f64) -> Option<Duration> {
    (rate > 0.0).then(|| Duration::try_from_secs_f64(rate.recip()).unwrap_or(Duration::MAX))
}

/// Later, or never where the clock does not reach.
fn after(now: Instant, pace: Duration, times: usize) -> Option<Instant> {
    let times = u32::try_from(times).unwrap_or(u32::MAX);
    now.checked_add(pace.checked_mul(times)?)
}

impl Zone {
    fn new(rate: f64, now: Instant) -> Self {
        Self {
            rate,
            next: now,
            waiting: VecDeque::new(),
            granted: BTreeSet::new(),
        }
    }

    fn ask(&mut self, node: &str, now: Instant) -> Turn {
        if self.granted.contains(node) {
            return Turn::Now;
        }
        let place = self.waiting.iter().position(|waiting| waiting == node);
        let place = place.unwrap_or_else(|| {
            self.waiting.push_back(node.to_owned());
            self.waiting.len() - 1
        });
        let Some(pace) = pace(self.rate) else {
            return Turn::Later;
        };
        if place == 0 && now >= self.next {
            self.waiting.pop_front();
            self.granted.insert(node.to_owned());
            self.next = after(now, pace, 1).unwrap_or(now);
            return Turn::Now;
        }
        after(self.next.max(now), pace, place).map_or(Turn::Later, Turn::At)
    }

    /// Changes the rate; true when it was another.
    #[expect(clippy::float_cmp, reason = "the same setting is the same number")]
    fn set_rate(&mut self, rate: f64, now: Instant) -> bool {
        if self.rate == rate {
            return false;
        }
        // As Kubernetes: who had to wait waits from now, at the new rate.
        let waits = pace(self.rate).is_none() || now < self.next;
        self.rate = rate;
        if pace(rate).is_none() {
            self.granted.clear();
        }
        self.next = match pace(rate) {
            Some(pace) if waits => after(now, pace, 1).unwrap_or(now),
            _ => now,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cluster {
        zones: Zones,
        start: Instant,
        seconds: u64,
    }

    impl Cluster {
        fn new() -> Self {
            Self {
                zones: Zones::new(NodeLife::default()),
                start: Instant::now(),
                seconds: 0,
            }
        }

        fn now(&self) -> Instant {
            self.start + Duration::from_secs(self.seconds)
        }

        fn set(&mut self, zone: &str, number: usize, ready: bool) -> Shift {
            let member = Member {
                zone: zone.to_owned(),
                ready,
                counts: true,
            };
            let now = self.now();
            self.zones.observe(&format!("{zone}{number}"), member, now)
        }

        fn with(zones: &[(&str, usize)]) -> Self {
            let mut cluster = Self::new();
            for (zone, size) in zones {
                for number in 0..*size {
                    cluster.set(zone, number, true);
                }
            }
            cluster
        }

        fn fail(&mut self, zone: &str, numbers: std::ops::Range<usize>) -> Shift {
            let mut last = Shift::default();
            for number in numbers {
                last = self.set(zone, number, false);
            }
            last
        }

        /// Seconds until the node's turn; `None`: not before something changes.
        fn turn(&mut self, node: &str) -> Option<u64> {
            let now = self.now();
            match self.zones.ask(node, now) {
                Turn::Now => Some(0),
                Turn::At(at) => Some((at - now).as_secs()),
                Turn::Later => None,
            }
        }
    }

    #[test]
    fn a_normal_zone_gives_one_taint_in_ten_seconds() {
        let mut cluster = Cluster::with(&[("a", 10)]);
        cluster.fail("a", 0..3);
        assert_eq!(cluster.turn("a0"), Some(0));
        assert_eq!(cluster.turn("a0"), Some(0), "until it is settled");
        assert_eq!(cluster.turn("a1"), Some(10));
        assert_eq!(cluster.turn("a2"), Some(20));
        cluster.zones.settled("a0");
        cluster.seconds = 10;
        assert_eq!(cluster.turn("a2"), Some(10), "it is not its turn");
        assert_eq!(cluster.turn("a1"), Some(0));
        cluster.set("a", 2, true);
        cluster.zones.settled("a2");
        cluster.set("a", 3, false);
        assert_eq!(cluster.turn("a3"), Some(10));
    }

    #[test]
    fn a_zone_that_mostly_failed_waits_or_goes_slowly_when_it_is_large() {
        let mut small = Cluster::with(&[("a", 10), ("b", 1)]);
        small.fail("a", 0..5);
        assert_eq!(small.turn("a0"), Some(0), "half is not most");
        let shift = small.fail("a", 5..6);
        assert_eq!(shift, Shift::default(), "nobody waits");
        assert_eq!(small.turn("a1"), None);
        let shift = small.set("a", 5, true);
        assert_eq!(shift.again, ["a1"]);
        assert_eq!(small.turn("a1"), Some(10));

        let mut large = Cluster::with(&[("a", 51), ("b", 1)]);
        large.fail("a", 0..29);
        assert_eq!(large.turn("a0"), Some(0));
        assert_eq!(large.turn("a1"), Some(100));
        let mut two = Cluster::with(&[("a", 3)]);
        two.fail("a", 0..2);
        assert_eq!(two.turn("a0"), Some(0), "two nodes are not many");
    }

    #[test]
    fn a_zone_that_failed_entirely_is_evicted_while_another_is_well() {
        let mut cluster = Cluster::with(&[("a", 3), ("b", 1)]);
        let shift = cluster.fail("a", 0..3);
        assert!(!shift.stopped && !cluster.zones.are_stopped());
        assert_eq!(cluster.turn("a0"), Some(0));
    }

    #[test]
    fn nothing_is_evicted_when_everything_failed() {
        let mut cluster = Cluster::with(&[("a", 2), ("b", 1)]);
        cluster.fail("a", 0..2);
        assert_eq!(cluster.turn("a0"), Some(0));
        assert_eq!(cluster.turn("a1"), Some(10));
        let shift = cluster.fail("b", 0..1);
        assert!(shift.stopped && !shift.resumed);
        assert_eq!(shift.again, ["a1"]);
        assert!(cluster.zones.are_stopped());
        assert_eq!(cluster.turn("a1"), None);
        assert_eq!(cluster.turn("b0"), None);
        cluster.seconds = 60;
        let shift = cluster.set("b", 0, true);
        assert!(shift.resumed && !shift.stopped);
        assert_eq!(shift.again, ["a1", "b0"]);
        assert_eq!(cluster.turn("a1"), Some(10), "it waits from now");
    }

    #[test]
    fn a_lost_node_that_is_there_from_the_beginning_is_one_of_many() {
        let mut cluster = Cluster::new();
        let member = |ready| Member {
            zone: "a".to_owned(),
            ready,
            counts: true,
        };
        let (now, members) = (cluster.now(), [("a0", false), ("a1", true)]);
        cluster.zones.begin(
            members.map(|(node, ready)| (node.to_owned(), member(ready))),
            now,
        );
        assert_eq!(cluster.set("a", 0, false), Shift::default());
        assert!(!cluster.zones.are_stopped());
        assert_eq!(cluster.turn("a0"), Some(0));
    }

    #[test]
    fn one_node_alone_is_never_evicted() {
        let mut cluster = Cluster::new();
        assert!(cluster.set("", 0, false).stopped);
        assert_eq!(cluster.turn("0"), None);
        assert!(cluster.set("", 0, true).resumed);
        assert!(cluster.set("", 0, false).stopped);
    }

    #[test]
    fn nodes_that_do_not_count_and_nodes_that_are_gone() {
        let mut cluster = Cluster::with(&[("a", 2)]);
        let now = cluster.now();
        let spot = Member {
            zone: "a".to_owned(),
            ready: false,
            counts: false,
        };
        for number in 0..9 {
            let shift = cluster
                .zones
                .observe(&format!("spot{number}"), spot.clone(), now);
            assert_eq!(shift, Shift::default());
        }
        assert_eq!(cluster.turn("spot0"), Some(0));
        cluster.set("a", 0, false);
        let shift = cluster.zones.remove("a1", now);
        assert!(shift.stopped, "the only one that counts has failed");
        let shift = cluster.zones.remove("a0", now);
        assert!(shift.resumed, "nothing speaks against it any more");
        assert_eq!(cluster.turn("a0"), None);
    }
}
