//! A work queue with the semantics of client-go's `util/workqueue`.

use std::{
    collections::{BTreeMap, HashMap},
    future::pending,
    hash::Hash,
    ops::Deref,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{backoff::Backoff, host::Random};

/// A ready key that so many other keys have passed comes next, whatever its rank is.
const FAIR: u64 = 1_000;

/// A queue of keys that are to be worked on.
///
/// The semantics are those of client-go's `workqueue.TypedRateLimitingInterface`:
///
/// * A key is in the queue once, however often it is added.
/// * A key is worked on once at a time. If it is added meanwhile, it is queued again when that work is done.
/// * [`add_after`](Self::add_after) adds a key later; of several delays of a key the earliest counts.
/// * [`add_rate_limited`](Self::add_rate_limited) adds a failed key after a delay that grows with each
///   failure of that key, until [`forget`](Self::forget).
/// * Keys come out in the order in which they became ready. With a rank `R`, the lowest rank comes first,
///   and keys of equal rank in their order. A key that 1,000 others have passed comes next, so no
///   key waits for ever.
/// * After [`shut_down`](Self::shut_down) nothing is added, and the keys that are ready still come out.
///
/// An operation costs O(log n). Nothing polls: a timer runs only while someone waits in
/// [`get`](Self::get) and a key is delayed. Time is tokio's. Clones share the queue.
///
/// ```
/// use podmux::runtime::WorkQueue;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let queue = WorkQueue::default();
/// queue.add("web", ());
/// queue.add("db", ());
/// queue.add("web", ());
///
/// let web = queue.get().await.expect("the queue is not shut down");
/// assert_eq!((*web, queue.len()), ("web", 1));
/// queue.add("web", ()); // It comes again when this work is done.
/// assert_eq!(*queue.get().await.expect("the queue is not shut down"), "db");
/// drop(web);
/// assert_eq!(*queue.get().await.expect("the queue is not shut down"), "web");
/// # }
/// ```
#[derive(Debug)]
pub struct WorkQueue<K: Clone + Eq + Hash, R: Clone + Ord = ()>(Arc<Shared<K, R>>);

/// The longest delay, which an `Instant` can have.
const FAR: Duration = Duration::from_hours(10 * 365 * 24);

#[derive(Debug)]
struct Shared<K, R> {
    first: Duration,
    longest: Duration,
    random: Random,
    state: Mutex<State<K, R>>,
    /// A key is ready, or an earlier delay begins, or the queue is shut down.
    wake: Notify,
    /// No key is ready or worked on.
    idle: Notify,
}

#[derive(Debug)]
struct State<K, R> {
    /// The keys to work on; client-go's `dirty`.
    queued: HashMap<K, Queued<R>>,
    /// Those that are not being worked on, in order.
    ready: BTreeMap<(R, u64), K>,
    /// The same by arrival: the rank, and how many keys had come out then.
    arrived: BTreeMap<u64, (R, u64)>,
    /// The keys that are worked on, and since when; client-go's `processing`.
    working: HashMap<K, Instant>,
    delayed: HashMap<K, (Instant, u64)>,
    due: BTreeMap<(Instant, u64), (K, R)>,
    failures: HashMap<K, (Backoff, u32)>,
    /// The number of the next arrival or delay.
    next: u64,
    /// How many keys have come out.
    gets: u64,
    adds: u64,
    retries: u64,
    queue_duration: Histogram,
    work_duration: Histogram,
    is_shut_down: bool,
}

/// A key that is to be worked on.
#[derive(Debug)]
struct Queued<R> {
    rank: R,
    /// Its place among the ready keys; none while it is worked on.
    arrival: Option<u64>,
    since: Instant,
}

/// The numbers of a [`WorkQueue`], each with the name of its metric in Kubernetes' components.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueMetrics {
    /// `workqueue_depth`: the keys that are to be worked on, delayed ones not included.
    pub depth: usize,
    /// `workqueue_adds_total`: the keys that were queued.
    pub adds: u64,
    /// `workqueue_queue_duration_seconds`: how long keys were in the queue.
    pub queue_duration: Histogram,
    /// `workqueue_work_duration_seconds`: how long keys were worked on.
    pub work_duration: Histogram,
    /// `workqueue_unfinished_work_seconds`: how long the keys that are worked on now have been so, as a sum.
    pub unfinished_work: Duration,
    /// `workqueue_longest_running_processor_seconds`: how long the oldest of that work has lasted.
    pub longest_running: Duration,
    /// `workqueue_retries_total`: the keys that were added with a delay.
    pub retries: u64,
}

/// Durations, counted in client-go's buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many durations were at most the bound of the same index, and longer than the one before.
    /// Longer ones than the last bound are in [`count`](Self::count) alone.
    pub buckets: [u64; Self::BOUNDS.len()],
    /// All durations.
    pub count: u64,
    /// Their sum.
    pub sum: Duration,
}

impl Histogram {
    /// The upper bounds of the buckets: client-go's, from 10 ns to 1,000 s.
    pub const BOUNDS: [Duration; 12] = {
        let (mut bounds, mut index, mut nanoseconds) = ([Duration::ZERO; 12], 0, 10);
        while index < bounds.len() {
            bounds[index] = Duration::from_nanos(nanoseconds);
            (index, nanoseconds) = (index + 1, nanoseconds * 10);
        }
        bounds
    };

    fn observe(&mut self, duration: Duration) {
        let bucket = Self::BOUNDS.partition_point(|bound| *bound < duration);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum += duration;
    }
}

impl<K: Clone + Eq + Hash, R: Clone + Ord> Default for WorkQueue<K, R> {
    /// A queue with client-go's delays after failures: from 5 ms to 1,000 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(1_000), Random::default())
    }
}

impl<K: Clone + Eq + Hash, R: Clone + Ord> Clone for WorkQueue<K, R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Clone + Eq + Hash, R: Clone + Ord> WorkQueue<K, R> {
    /// An empty queue. After a failure of a key it is delayed by `first`, and by twice as long after each
    /// further one, up to `longest`; each delay is multiplied by a random factor between one half and one.
    pub fn new(first: Duration, longest: Duration, random: Random) -> Self {
        let state = State {
            queued: HashMap::new(),
            ready: BTreeMap::new(),
            arrived: BTreeMap::new(),
            working: HashMap::new(),
            delayed: HashMap::new(),
            due: BTreeMap::new(),
            failures: HashMap::new(),
            next: 0,
            gets: 0,
            adds: 0,
            retries: 0,
            queue_duration: Histogram::default(),
            work_duration: Histogram::default(),
            is_shut_down: false,
        };
        let (state, wake, idle) = (Mutex::new(state), Notify::new(), Notify::new());
        Self(Arc::new(Shared { first, longest, random, state, wake, idle }))
    }

    /// Adds a key. A key that is queued already keeps its place among those of the new rank.
    pub fn add(&self, key: K, rank: R) {
        if self.lock().enqueue(key, rank) {
            self.0.wake.notify_one();
        }
    }

    /// Adds a key after a delay of ten years at most, which counts as a retry.
    pub fn add_after(&self, key: K, rank: R, delay: Duration) {
        let is_earliest = self.lock().delay(key, rank, Instant::now() + delay.min(FAR));
        if is_earliest {
            // Each waiter needs a timer for the earliest key: any of them may be dropped.
            self.0.wake.notify_waiters();
        }
    }

    /// Adds a key after the delay of one more failure, and returns the delay.
    pub fn add_rate_limited(&self, key: K, rank: R) -> Duration {
        let delay = {
            let new = || (Backoff::new(self.0.first, self.0.longest), 0);
            let mut state = self.lock();
            let (backoff, failures) = state.failures.entry(key.clone()).or_insert_with(new);
            *failures = failures.saturating_add(1);
            backoff.next(self.0.random.fraction())
        };
        self.add_after(key, rank, delay);
        delay
    }

    /// Forgets the failures of a key. A delay that has begun goes on.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// How often a key was added with [`add_rate_limited`](Self::add_rate_limited) since it was forgotten.
    pub fn num_requeues(&self, key: &K) -> u32 {
        self.lock().failures.get(key).map_or(0, |failures| failures.1)
    }

    /// The next key; waits until one is ready. None is returned when the queue is shut down and empty.
    ///
    /// Cancel-safe: a key is either returned or stays in the queue.
    pub async fn get(&self) -> Option<Working<K, R>> {
        loop {
            let mut woken = pin!(self.0.wake.notified());
            // Two wake-ups before the first poll would leave one permit for two waiters.
            woken.as_mut().enable();
            let due = {
                let mut state = self.lock();
                if let Some(key) = state.pop() {
                    return Some(Working { key, queue: self.clone() });
                }
                if state.is_shut_down {
                    return None;
                }
                state.due.first_key_value().map(|(due, _)| due.0)
            };
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = woken => {}
                () = due => {}
            }
        }
    }

    /// Accepts no more keys, and drops the delayed ones. Those that are ready still come out, also those
    /// that were added again while they are worked on.
    pub fn shut_down(&self) {
        let mut state = self.lock();
        state.is_shut_down = true;
        state.delayed.clear();
        state.due.clear();
        drop(state);
        self.0.wake.notify_waiters();
        self.0.idle.notify_waiters();
    }

    /// Shuts down and waits until every key has come out and is done. Cancel-safe.
    pub async fn drain(&self) {
        self.shut_down();
        loop {
            let idle = self.0.idle.notified();
            if self.lock().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// How many keys are to be worked on, delayed ones not included.
    pub fn len(&self) -> usize {
        self.lock().queued.len()
    }

    /// How many of the keys that are to be worked on are such. O(keys).
    pub fn count(&self, is_such: impl Fn(&K) -> bool) -> usize {
        self.lock().queued.keys().filter(|key| is_such(key)).count()
    }

    /// Whether no key is to be worked on now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of this moment. O(keys that are worked on).
    pub fn metrics(&self) -> QueueMetrics {
        let state = self.lock();
        let lasted = || state.working.values().map(Instant::elapsed);
        QueueMetrics {
            depth: state.queued.len(),
            adds: state.adds,
            queue_duration: state.queue_duration.clone(),
            work_duration: state.work_duration.clone(),
            unfinished_work: lasted().sum(),
            longest_running: lasted().max().unwrap_or_default(),
            retries: state.retries,
        }
    }

    fn done(&self, key: &K) {
        let mut state = self.lock();
        if let Some(since) = state.working.remove(key) {
            state.work_duration.observe(since.elapsed());
        }
        if state.queued.contains_key(key) {
            state.push(key.clone());
            self.0.wake.notify_one();
        } else if state.is_idle() {
            self.0.idle.notify_waiters();
        }
    }

    /// The state of this moment. Waiters need no wake-up for what becomes ready here: each has a timer.
    fn lock(&self) -> MutexGuard<'_, State<K, R>> {
        // No panic can leave the state half written, so a poisoned lock is still valid.
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.release();
        state
    }
}

impl<K: Clone + Eq + Hash, R: Clone + Ord> State<K, R> {
    /// Queues a key. Returns whether one more key is ready.
    fn enqueue(&mut self, key: K, rank: R) -> bool {
        if self.is_shut_down {
            return false;
        }
        if let Some(queued) = self.queued.get_mut(&key) {
            if let Some(arrival) = queued.arrival.filter(|_| queued.rank != rank) {
                self.ready.remove(&(queued.rank.clone(), arrival));
                self.ready.insert((rank.clone(), arrival), key);
                self.arrived.entry(arrival).and_modify(|arrived| arrived.0 = rank.clone());
            }
            queued.rank = rank;
            return false;
        }
        self.adds += 1;
        self.queued.insert(key.clone(), Queued { rank, arrival: None, since: Instant::now() });
        let is_ready = !self.working.contains_key(&key);
        if is_ready {
            self.push(key);
        }
        is_ready
    }

    /// Makes a queued key ready.
    fn push(&mut self, key: K) {
        let arrival = self.number();
        let Some(queued) = self.queued.get_mut(&key) else { return };
        queued.arrival = Some(arrival);
        self.arrived.insert(arrival, (queued.rank.clone(), self.gets));
        self.ready.insert((queued.rank.clone(), arrival), key);
    }

    fn pop(&mut self) -> Option<K> {
        let oldest = self.arrived.first_key_value();
        let passed = oldest.filter(|(_, (_, gets))| self.gets - gets >= FAIR);
        let place = match passed {
            Some((arrival, (rank, _))) => (rank.clone(), *arrival),
            None => self.ready.first_key_value()?.0.clone(),
        };
        let key = self.ready.remove(&place)?;
        self.arrived.remove(&place.1);
        if let Some(queued) = self.queued.remove(&key) {
            self.queue_duration.observe(queued.since.elapsed());
        }
        self.gets += 1;
        self.working.insert(key.clone(), Instant::now());
        Some(key)
    }

    /// Delays a key. Returns whether it is the earliest now.
    fn delay(&mut self, key: K, rank: R, until: Instant) -> bool {
        if self.is_shut_down {
            return false;
        }
        self.retries += 1;
        if let Some(before) = self.delayed.get(&key) {
            if before.0 <= until {
                return false;
            }
            self.due.remove(before);
        }
        let due = (until, self.number());
        self.delayed.insert(key.clone(), due);
        self.due.insert(due, (key, rank));
        self.due.first_key_value().is_some_and(|first| *first.0 == due)
    }

    /// Queues the delayed keys whose time has come.
    fn release(&mut self) {
        let now = Instant::now();
        while let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= now) {
            let (key, rank) = first.remove();
            self.delayed.remove(&key);
            self.enqueue(key, rank);
        }
    }

    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.working.is_empty()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A key that is being worked on, until this is dropped.
#[derive(Debug)]
#[must_use = "the work on the key is done when this is dropped"]
pub struct Working<K: Clone + Eq + Hash, R: Clone + Ord = ()> {
    key: K,
    queue: WorkQueue<K, R>,
}

impl<K: Clone + Eq + Hash, R: Clone + Ord> Deref for Working<K, R> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.key
    }
}

impl<K: Clone + Eq + Hash, R: Clone + Ord> Drop for Working<K, R> {
    fn drop(&mut self) {
        self.queue.done(&self.key);
    }
}
