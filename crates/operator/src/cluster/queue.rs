//! The work queue: which object is reconciled next, and when.
//!
//! A key that is added several times before its turn is processed once. A key that is added while it is being
//! processed is processed again afterwards. Two workers never process the same key at the same time.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Keys in the order in which they are processed.
pub(crate) struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// Since when each key has been due.
    queued: HashMap<K, Instant>,
    running: HashSet<K>,
    /// When each delayed key is due. The number distinguishes keys of the same instant.
    delayed: HashMap<K, (Instant, u64)>,
    /// The delayed keys by time, the earliest first.
    due: BTreeMap<(Instant, u64), K>,
    delays: u64,
    failures: HashMap<K, u32>,
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Queues a key once. A key that is being processed waits for [`Queue::done`].
    fn enqueue(&mut self, key: K, since: Instant) {
        if self.queued.contains_key(&key) {
            return;
        }
        if !self.running.contains(&key) {
            self.ready.push_back(key.clone());
        }
        self.queued.insert(key, since);
    }

    fn delay(&mut self, key: K, at: Instant) {
        if self.delayed.get(&key).is_some_and(|(held, _)| *held <= at) {
            return;
        }
        self.undelay(&key);
        self.delays += 1;
        self.delayed.insert(key.clone(), (at, self.delays));
        self.due.insert((at, self.delays), key);
    }

    fn undelay(&mut self, key: &K) {
        if let Some(at) = self.delayed.remove(key) {
            self.due.remove(&at);
        }
    }

    /// Queues the keys that are due by now. Returns when the next key is due.
    fn enqueue_due(&mut self, now: Instant) -> Option<Instant> {
        while let Some(entry) = self.due.first_entry() {
            let (at, _) = *entry.key();
            if at > now {
                return Some(at);
            }
            let key = entry.remove();
            self.delayed.remove(&key);
            self.enqueue(key, at);
        }
        None
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    pub(crate) fn new() -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashMap::new(),
            running: HashSet::new(),
            delayed: HashMap::new(),
            due: BTreeMap::new(),
            delays: 0,
            failures: HashMap::new(),
        };
        Queue { state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // A panic between two of the operations below can at most leave a key queued twice.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes a key as soon as a worker is free.
    pub(crate) fn add(&self, key: K) {
        let mut state = self.lock();
        state.undelay(&key);
        state.enqueue(key, Instant::now());
        drop(state);
        self.changed.notify_one();
    }

    /// Processes a key after a delay, or earlier if it is added again.
    pub(crate) fn add_after(&self, key: K, delay: Duration) {
        let at = Instant::now() + delay;
        self.lock().delay(key, at);
        self.changed.notify_one();
    }

    /// Processes a key again after a failure, with increasing delays.
    pub(crate) fn retry(&self, key: K) {
        let failures = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures += 1;
            *failures
        };
        self.add_after(key, Duration::from_millis(50 << failures.min(10)));
    }

    /// Returns the next key, and since when it has been due. The caller must call [`Queue::done`] afterwards.
    pub(crate) async fn next(&self) -> (K, Instant) {
        loop {
            let due = {
                let mut state = self.lock();
                let now = Instant::now();
                let due = state.enqueue_due(now);
                if let Some(key) = state.ready.pop_front() {
                    let since = state.queued.remove(&key).unwrap_or(now);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return (key, since);
                }
                due
            };
            match due {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// Marks a key as processed, successfully or not.
    pub(crate) fn done(&self, key: &K, well: bool) {
        let mut state = self.lock();
        state.running.remove(key);
        if well {
            state.failures.remove(key);
        }
        if state.queued.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The number of keys waiting for a worker.
    pub(crate) fn len(&self) -> usize {
        self.lock().ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_looked_at_once_and_again_if_it_changes_meanwhile() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await.0, "a");
        queue.add("a");
        assert_eq!(queue.next().await.0, "b");
        assert_eq!(queue.len(), 0, "`a` is being looked at");
        queue.done(&"a", true);
        assert_eq!(queue.next().await.0, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_ends_early_when_something_happens() {
        let queue = Queue::new();
        queue.add_after("a", Duration::from_secs(60));
        queue.add_after("a", Duration::from_secs(10));
        let begun = Instant::now();
        assert_eq!(queue.next().await.0, "a");
        assert_eq!(begun.elapsed().as_secs(), 10);
        queue.done(&"a", true);
        queue.add_after("a", Duration::from_secs(60));
        queue.add("a");
        assert_eq!(queue.next().await.0, "a");
        assert_eq!(begun.elapsed().as_secs(), 10);
        queue.done(&"a", true);
        // The time a key waits for a worker is measured.
        queue.add("b");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(queue.next().await.1.elapsed().as_secs(), 3);
        queue.done(&"b", true);
        queue.add("a");
        assert_eq!(queue.next().await.0, "a");
        queue.done(&"a", false);
        queue.retry("a");
        assert_eq!(queue.next().await.0, "a");
    }
}
