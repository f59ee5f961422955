//! A work queue of keys with the semantics of Kubernetes' controllers: a key that is added while it
//! waits is not added twice, a key that is added while it is being worked on comes back afterwards,
//! and no key is ever worked on by two workers at once. Failed keys return after a growing delay.
//!
//! Watches: calls of `add*`. Who reacts next: a worker waiting in [`WorkQueue::get`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

const BASE_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(1000);

/// The delay before retry number `failures` (0 = the first retry).
pub(crate) fn backoff(failures: u32) -> Duration {
    BASE_DELAY
        .checked_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
        .map_or(MAX_DELAY, |delay| delay.min(MAX_DELAY))
}

struct State<K> {
    ready: VecDeque<K>,
    dirty: HashSet<K>,
    processing: HashSet<K>,
    failures: HashMap<K, u32>,
    /// Earliest wake-up per waiting key; the heap may hold outdated entries, this map does not.
    waiting: HashMap<K, Instant>,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    timer_keys: HashMap<u64, K>,
    next_timer: u64,
    closed: bool,
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Returns whether a waiting worker should be woken.
    fn add(&mut self, key: K) -> bool {
        if self.closed || !self.dirty.insert(key.clone()) || self.processing.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    /// Notes that a key is due later; `false` if it is due as early anyway.
    fn schedule(&mut self, key: K, due: Instant) -> bool {
        if self.closed || self.waiting.get(&key).is_some_and(|at| *at <= due) {
            return false;
        }
        let id = self.next_timer;
        self.next_timer += 1;
        self.waiting.insert(key.clone(), due);
        self.timer_keys.insert(id, key);
        self.timers.push(Reverse((due, id)));
        true
    }

    /// Counts a failure and returns how many there were before.
    fn fail(&mut self, key: K) -> u32 {
        let count = self.failures.entry(key).or_insert(0);
        let before = *count;
        *count = count.saturating_add(1);
        before
    }

    /// Moves due keys to the ready list and returns when the next one is due.
    fn promote(&mut self, now: Instant) -> Option<Instant> {
        while let Some(Reverse((due, id))) = self.timers.peek().copied() {
            let current = self
                .timer_keys
                .get(&id)
                .is_some_and(|key| self.waiting.get(key) == Some(&due));
            if current && due > now {
                return Some(due);
            }
            self.timers.pop();
            if let Some(key) = self.timer_keys.remove(&id)
                && current
            {
                self.waiting.remove(&key);
                self.add(key);
            }
        }
        None
    }
}

/// A deduplicating, rate-limited queue. Cheap to clone.
pub(crate) struct WorkQueue<K = String> {
    state: Arc<Mutex<State<K>>>,
    notify: Arc<Notify>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            notify: Arc::clone(&self.notify),
        }
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                ready: VecDeque::new(),
                dirty: HashSet::new(),
                processing: HashSet::new(),
                failures: HashMap::new(),
                waiting: HashMap::new(),
                timers: BinaryHeap::new(),
                timer_keys: HashMap::new(),
                next_timer: 0,
                closed: false,
            })),
            notify: Arc::new(Notify::new()),
        }
    }

    /// Adds a key now.
    pub(crate) fn add(&self, key: K) {
        if self.state.lock().add(key) {
            self.notify.notify_one();
        }
    }

    /// Adds a key after a delay; of several delays for one key the earliest counts.
    pub(crate) fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            self.add(key);
            return;
        }
        if self.state.lock().schedule(key, Instant::now() + delay) {
            // A sleeping worker must learn that there is now an earlier deadline.
            self.notify.notify_one();
        }
    }

    /// Adds a key that failed, after a delay that doubles with each failure.
    pub(crate) fn add_rate_limited(&self, key: K) {
        let failures = self.state.lock().fail(key.clone());
        self.add_after(key, backoff(failures));
    }

    /// Forgets the failures of a key, after it succeeded.
    pub(crate) fn forget(&self, key: &K) {
        self.state.lock().failures.remove(key);
    }

    /// Waits for the next key; `None` once the queue is closed. Call [`WorkQueue::done`] afterwards.
    pub(crate) async fn get(&self) -> Option<K> {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            // Registered before the look at the queue, so that no wake-up falls between the two.
            notified.as_mut().enable();
            let next_due = {
                let mut state = self.state.lock();
                let next_due = state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone());
                    let more = !state.ready.is_empty();
                    drop(state);
                    if more || next_due.is_some() {
                        // Someone else takes the rest, or the watch over the next deadline.
                        self.notify.notify_one();
                    }
                    return Some(key);
                }
                if state.closed {
                    return None;
                }
                next_due
            };
            match next_due {
                Some(due) => {
                    tokio::select! {
                        () = notified => {}
                        () = tokio::time::sleep_until(due) => {}
                    }
                }
                None => notified.await,
            }
        }
    }

    /// Ends the work on a key; if it was added meanwhile it becomes ready again.
    pub(crate) fn done(&self, key: &K) {
        let wake = {
            let mut state = self.state.lock();
            state.processing.remove(key);
            let again = state.dirty.contains(key);
            if again {
                state.ready.push_back(key.clone());
            }
            again
        };
        if wake {
            self.notify.notify_one();
        }
    }

    /// Closes the queue: what waits is dropped, and every `get` returns `None`.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.ready.clear();
            state.dirty.clear();
            state.waiting.clear();
            state.timers.clear();
            state.timer_keys.clear();
        }
        self.notify.notify_waiters();
        self.notify.notify_one();
    }

    /// The number of keys ready to be worked on.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.state.lock().ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_is_bounded() {
        assert_eq!(backoff(0), Duration::from_millis(5));
        assert_eq!(backoff(1), Duration::from_millis(10));
        assert_eq!(backoff(10), Duration::from_millis(5120));
        assert_eq!(backoff(40), MAX_DELAY);
        assert_eq!(backoff(u32::MAX), MAX_DELAY);
    }

    #[tokio::test]
    async fn a_waiting_key_is_not_added_twice() {
        let queue = WorkQueue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(queue.get().await, Some("b"));
    }

    #[tokio::test]
    async fn a_key_added_during_its_work_comes_back_when_the_work_ends() {
        let queue = WorkQueue::new();
        queue.add("a");
        assert_eq!(queue.get().await, Some("a"));
        queue.add("a");
        assert_eq!(queue.len(), 0, "never two workers on one key");
        queue.done(&"a");
        assert_eq!(queue.get().await, Some("a"));
        queue.done(&"a");
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn the_earliest_delay_wins() {
        let queue = WorkQueue::new();
        let mut state = queue.state.lock();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(state.schedule("a", after(10)));
        assert!(state.schedule("a", after(2)));
        assert!(!state.schedule("a", after(5)));
        assert_eq!(state.promote(after(1)), Some(after(2)));
        assert!(state.ready.is_empty());
        assert_eq!(
            state.promote(after(2)),
            None,
            "the later entries of a are gone"
        );
        assert_eq!(state.ready, ["a"]);
        assert!(state.schedule("b", after(20)));
        assert_eq!(state.promote(after(10)), Some(after(20)));
        assert_eq!(state.ready, ["a"]);
    }

    #[tokio::test]
    async fn a_sleeping_worker_notices_an_earlier_deadline() {
        let queue = WorkQueue::new();
        queue.add_after("late", Duration::from_hours(1));
        let worker = queue.get();
        let adder = async {
            tokio::task::yield_now().await;
            queue.add_after("early", Duration::from_millis(1));
        };
        let (key, ()) = tokio::join!(worker, adder);
        assert_eq!(key, Some("early"));
    }

    #[tokio::test]
    async fn a_failed_key_comes_back_and_its_failures_are_counted_until_forgotten() {
        let queue = WorkQueue::new();
        queue.add_rate_limited("a");
        assert_eq!(queue.get().await, Some("a"));
        queue.done(&"a");
        assert_eq!(queue.state.lock().fail("a"), 1);
        assert_eq!(queue.state.lock().fail("a"), 2);
        queue.forget(&"a");
        assert_eq!(queue.state.lock().fail("a"), 0);
    }

    #[tokio::test]
    async fn closing_wakes_every_worker() {
        let queue = WorkQueue::<&str>::new();
        let wait = async { tokio::join!(queue.get(), queue.get(), queue.get()) };
        let close = async {
            tokio::task::yield_now().await;
            queue.close();
        };
        let (got, ()) = tokio::join!(wait, close);
        assert_eq!(got, (None, None, None));
        queue.add("a");
        assert_eq!(queue.get().await, None);
    }

    #[tokio::test]
    async fn every_waiting_worker_gets_a_key() {
        let queue = WorkQueue::new();
        let wait = async { tokio::join!(queue.get(), queue.get(), queue.get()) };
        let add = async {
            tokio::task::yield_now().await;
            for key in [1, 2, 3] {
                queue.add(key);
            }
        };
        let (got, ()) = tokio::join!(wait, add);
        let mut got = [got.0.unwrap_or(0), got.1.unwrap_or(0), got.2.unwrap_or(0)];
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
    }
}
