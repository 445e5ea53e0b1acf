//! The work queue: client-go's semantics, with a clock that is paused.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use podmux::{
    host::Random,
    runtime::{Histogram, WorkQueue, Working},
};
use proptest::{collection::vec, prelude::*};
use tokio::{
    runtime::Builder,
    time::{Instant, advance, timeout},
};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The next key, if one is ready now.
fn ready<R: Clone + Ord>(queue: &WorkQueue<u8, R>) -> Option<Working<u8, R>> {
    queue.get().now_or_never().map(|key| key.expect("the queue is not shut down"))
}

/// Fails if nothing happens for an hour of paused time.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_hours(1), future).await.expect("nothing happened for an hour")
}

fn queue() -> WorkQueue<u8> {
    WorkQueue::new(ms(1_000), ms(8_000), Random::seeded(1))
}

#[tokio::test(start_paused = true)]
async fn a_key_may_be_delayed_for_ever() {
    let queue = queue();
    queue.add_after(1, (), Duration::MAX);
    queue.add_after(2, (), ms(10));
    assert_eq!(*soon(queue.get()).await.unwrap(), 2);
    assert!(timeout(Duration::from_hours(24), queue.get()).await.is_err());
}

// TestBasic, TestLen, TestAddWhileProcessing
#[tokio::test(start_paused = true)]
async fn a_key_is_queued_once_and_comes_in_order() {
    let queue = queue();
    for key in [3, 1, 3, 2, 1] {
        queue.add(key, ());
    }
    assert_eq!((queue.len(), queue.metrics().adds), (3, 3));
    let keys: Vec<u8> = std::iter::from_fn(|| ready(&queue).map(|key| *key)).collect();
    assert_eq!(keys, [3, 1, 2]);
}

// TestReinsert, TestCollapse
#[tokio::test(start_paused = true)]
async fn a_key_that_is_added_while_it_is_worked_on_comes_again_when_that_is_done() {
    let queue = queue();
    queue.add(1, ());
    let first = ready(&queue).unwrap();
    queue.add(1, ());
    queue.add(1, ());
    queue.add(2, ());
    assert_eq!(*ready(&queue).unwrap(), 2);
    assert!(ready(&queue).is_none(), "the key is worked on");
    assert_eq!(queue.len(), 1);
    drop(first);
    drop(ready(&queue).expect("it is queued again, once"));
    assert!(ready(&queue).is_none());
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_or_is_cut_off_is_done() {
    let queue = queue();
    queue.add(1, ());
    let working = ready(&queue).unwrap();
    let work = tokio::spawn(async move {
        let _working = working;
        panic!("on purpose");
    });
    assert!(work.await.is_err());
    queue.add(1, ());
    assert!(ready(&queue).is_some());
}

// TestSimpleQueue, TestDeduping of the delaying queue
#[tokio::test(start_paused = true)]
async fn of_several_delays_of_a_key_the_earliest_counts() {
    let queue = queue();
    let start = Instant::now();
    for delay in [50, 20, 40] {
        queue.add_after(1, (), ms(delay));
    }
    queue.add_after(2, (), Duration::ZERO);
    assert_eq!(queue.len(), 1, "a delayed key is not in the queue yet");
    assert_eq!(*soon(queue.get()).await.unwrap(), 2);
    assert_eq!(*soon(queue.get()).await.unwrap(), 1);
    assert_eq!(start.elapsed(), ms(20));
    assert!(timeout(Duration::from_hours(1), queue.get()).await.is_err(), "the later ones are dropped");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_leaves_a_timer_to_the_others() {
    let queue = queue();
    let start = Instant::now();
    let mut patient = pin!(queue.get());
    assert!((&mut patient).now_or_never().is_none());
    queue.add_after(1, (), ms(30));
    queue.add_after(2, (), ms(10));
    assert!(queue.get().now_or_never().is_none());
    assert_eq!(*soon(patient).await.unwrap(), 2);
    assert_eq!(*soon(queue.get()).await.unwrap(), 1);
    assert_eq!(start.elapsed(), ms(30));
}

#[tokio::test(start_paused = true)]
async fn each_waiter_receives_one_of_the_keys_that_become_due_together() {
    let queue = queue();
    for key in 0..20 {
        queue.add_after(key, (), ms(10));
    }
    let waiters = (0..20).map(|_| async { *soon(queue.get()).await.unwrap() });
    let keys: BTreeSet<u8> = futures::future::join_all(waiters).await.into_iter().collect();
    assert_eq!(keys.len(), 20);
}

// TestRateLimitingQueue, TestItemExponentialFailureRateLimiter
#[tokio::test(start_paused = true)]
async fn failures_delay_a_key_longer_and_longer_until_they_are_forgotten() {
    let queue = queue();
    for nominal in [1_000, 2_000, 4_000, 8_000, 8_000, 8_000] {
        let delay = queue.add_rate_limited(1, ());
        assert!(delay >= ms(nominal / 2) && delay <= ms(nominal), "{delay:?} of {nominal} ms");
        let start = Instant::now();
        assert_eq!(*soon(queue.get()).await.unwrap(), 1);
        // tokio's timers have milliseconds.
        assert!(start.elapsed() >= delay && start.elapsed() <= delay + ms(1));
    }
    assert!(queue.add_rate_limited(2, ()) <= ms(1_000), "each key has its own delays");
    assert_eq!((queue.num_requeues(&1), queue.num_requeues(&2)), (6, 1));
    queue.forget(&1);
    assert_eq!(queue.num_requeues(&1), 0);
    assert!(queue.add_rate_limited(1, ()) <= ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn the_lowest_rank_comes_first_and_a_new_rank_counts() {
    let queue = WorkQueue::default();
    for (key, rank) in [(1, 5), (2, 3), (3, 5), (4, 1), (1, 0)] {
        queue.add(key, rank);
    }
    let keys: Vec<u8> = std::iter::from_fn(|| ready(&queue).map(|key| *key)).collect();
    assert_eq!(keys, [1, 4, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn no_key_waits_for_ever() {
    let queue = WorkQueue::default();
    queue.add(9, 1);
    queue.add(1, 0);
    let mut passed = 0;
    loop {
        let key = ready(&queue).unwrap();
        if *key == 9 {
            break;
        }
        passed += 1;
        queue.add(1, 0);
    }
    assert_eq!(passed, 1_000);
    assert_eq!(*ready(&queue).unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_passed_as_often_however_many_keys_came_before_it() {
    let queue = WorkQueue::default();
    for _ in 0..1_500 {
        queue.add(1, 0);
        assert_eq!(*ready(&queue).unwrap(), 1);
    }
    queue.add(9, 1);
    for _ in 0..1_000 {
        queue.add(1, 0);
        assert_eq!(*ready(&queue).unwrap(), 1);
    }
    queue.add(1, 0);
    assert_eq!(*ready(&queue).unwrap(), 9);
}

// TestQueueDrainageUsingShutDownWithDrain, TestAddAfterShutdown..., TestForceQueueShutdownUsingShutDown
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_shut_down_is_emptied_and_accepts_nothing() {
    let queue = queue();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.is_none() }
    });
    tokio::task::yield_now().await;
    queue.add_after(3, (), ms(1));
    queue.shut_down();
    assert!(soon(waiting).await.unwrap(), "a waiter learns of the end");
    queue.add(4, ());
    queue.add_after(5, (), ms(1));
    advance(ms(10)).await;
    assert!(queue.get().await.is_none());

    let queue = self::queue();
    queue.add(1, ());
    queue.add(2, ());
    let first = ready(&queue).unwrap();
    queue.add(1, ());
    let mut drained = pin!(queue.drain());
    assert!((&mut drained).now_or_never().is_none());
    assert_eq!(*ready(&queue).unwrap(), 2);
    drop(first);
    let again = ready(&queue).expect("it was added before the end");
    assert!((&mut drained).now_or_never().is_none(), "a key is worked on");
    assert!(queue.drain().now_or_never().is_none(), "a key is worked on");
    drop(again);
    soon(drained).await;
    assert!(queue.get().await.is_none());
}

// TestMetrics
#[tokio::test(start_paused = true)]
async fn the_metrics_are_those_of_client_go() {
    let queue = queue();
    queue.add(1, ());
    queue.add(2, ());
    advance(ms(50)).await;
    let first = ready(&queue).unwrap();
    advance(ms(25)).await;
    let second = ready(&queue).unwrap();
    queue.add(1, ());
    queue.add_after(3, (), ms(100));
    advance(ms(5)).await;
    let metrics = queue.metrics();
    assert_eq!((metrics.depth, metrics.adds, metrics.retries), (1, 3, 1));
    assert_eq!((metrics.unfinished_work, metrics.longest_running), (ms(35), ms(30)));
    assert_eq!((metrics.queue_duration.count, metrics.queue_duration.sum), (2, ms(125)));
    drop((first, second));
    let metrics = queue.metrics();
    assert_eq!((metrics.unfinished_work, metrics.longest_running), (ms(0), ms(0)));
    let bucket = |bound| Histogram::BOUNDS.iter().position(|at| *at == bound).unwrap();
    let mut expected = Histogram { count: 2, sum: ms(35), ..Histogram::default() };
    expected.buckets[bucket(ms(10))] = 1;
    expected.buckets[bucket(ms(100))] = 1;
    assert_eq!(metrics.work_duration, expected);
    advance(ms(200)).await;
    assert_eq!(queue.metrics().depth, 2, "a key whose time has come is in the queue");
}

#[tokio::test(start_paused = true)]
async fn a_duration_is_counted_below_its_bound_and_a_longer_one_than_all_bounds_in_no_bucket() {
    let bounds: Vec<u128> = Histogram::BOUNDS.iter().map(Duration::as_nanos).collect();
    assert_eq!(bounds, (1..13).map(|digits| 10_u128.pow(digits)).collect::<Vec<_>>());
    let queue = queue();
    for waited in [ms(1_000_000), ms(1_000_001)] {
        queue.add(1, ());
        advance(waited).await;
        let _ = ready(&queue).unwrap();
    }
    let expected = Histogram {
        buckets: [[0; 11].as_slice(), &[1]].concat().try_into().unwrap(),
        count: 2,
        sum: ms(2_000_001),
    };
    assert_eq!(queue.metrics().queue_duration, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_work_on_a_key_one_at_a_time_and_no_change_is_lost() {
    const KEYS: usize = 5;
    let queue = WorkQueue::<usize>::default();
    let newest: Arc<[AtomicU64; KEYS]> = Arc::default();
    let seen: Arc<[AtomicU64; KEYS]> = Arc::default();
    let busy: Arc<[AtomicBool; KEYS]> = Arc::default();
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, newest, seen, busy) = (queue.clone(), newest.clone(), seen.clone(), busy.clone());
            tokio::spawn(async move {
                while let Some(key) = queue.get().await {
                    assert!(!busy[*key].swap(true, Ordering::SeqCst), "two work on one key");
                    let state = newest[*key].load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    seen[*key].store(state, Ordering::SeqCst);
                    busy[*key].store(false, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for change in 0..20_000 {
        newest[change % KEYS].fetch_add(1, Ordering::SeqCst);
        match change % 7 {
            0 => queue.add_after(change % KEYS, (), Duration::from_micros(1)),
            _ => queue.add(change % KEYS, ()),
        }
        if change % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for key in 0..KEYS {
        queue.add(key, ());
    }
    queue.drain().await;
    for worker in workers {
        worker.await.unwrap();
    }
    for key in 0..KEYS {
        assert_eq!(seen[key].load(Ordering::SeqCst), newest[key].load(Ordering::SeqCst));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, u8),
    AddAfter(u8, u8, u64),
    Fail(u8, u8),
    Forget(u8),
    Get,
    Done(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (key, rank) = (0_u8..5, 0_u8..3);
    prop_oneof![
        4 => (key.clone(), rank.clone()).prop_map(|(key, rank)| Step::Add(key, rank)),
        2 => (key.clone(), rank.clone(), 0..50_u64).prop_map(|(key, rank, delay)| Step::AddAfter(key, rank, delay)),
        1 => (key.clone(), rank).prop_map(|(key, rank)| Step::Fail(key, rank)),
        1 => key.prop_map(Step::Forget),
        5 => Just(Step::Get),
        4 => (0..5_usize).prop_map(Step::Done),
        2 => (1..40_u64).prop_map(Step::Pass),
    ]
}

/// The queue as plain lists, which are searched.
#[derive(Default)]
struct Model {
    /// Key, rank, and the arrival among the ready ones.
    queued: Vec<(u8, u8, Option<u64>)>,
    working: Vec<u8>,
    delayed: Vec<(Instant, u64, u8, u8)>,
    failures: [u32; 5],
    number: u64,
}

impl Model {
    fn add(&mut self, key: u8, rank: u8) {
        self.number += 1;
        let arrival = (!self.working.contains(&key)).then_some(self.number);
        match self.queued.iter_mut().find(|queued| queued.0 == key) {
            Some(queued) => queued.1 = rank,
            None => self.queued.push((key, rank, arrival)),
        }
    }

    fn add_after(&mut self, key: u8, rank: u8, until: Instant) {
        self.number += 1;
        let new = (until, self.number, key, rank);
        match self.delayed.iter_mut().find(|delayed| delayed.2 == key) {
            Some(delayed) if delayed.0 <= until => {}
            Some(delayed) => *delayed = new,
            None => self.delayed.push(new),
        }
    }

    fn release(&mut self) {
        let now = Instant::now();
        self.delayed.sort_unstable();
        let due: Vec<_> = self.delayed.extract_if(.., |delayed| delayed.0 <= now).collect();
        for (_, _, key, rank) in due {
            self.add(key, rank);
        }
    }

    fn get(&mut self) -> Option<u8> {
        let ready = self.queued.iter().filter_map(|(key, rank, arrival)| Some((*rank, (*arrival)?, *key)));
        let key = ready.min()?.2;
        self.queued.retain(|queued| queued.0 != key);
        self.working.push(key);
        Some(key)
    }

    fn done(&mut self, key: u8) {
        self.number += 1;
        self.working.retain(|working| *working != key);
        let number = self.number;
        self.queued.iter_mut().filter(|queued| queued.0 == key).for_each(|queued| queued.2 = Some(number));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_that_of_a_simple_model(steps in vec(step(), 0..120)) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (queue, mut model) = (WorkQueue::new(ms(4), ms(64), Random::seeded(7)), Model::default());
            let mut working: Vec<Working<u8, u8>> = Vec::new();
            for step in steps {
                model.release();
                match step {
                    Step::Add(key, rank) => {
                        queue.add(key, rank);
                        model.add(key, rank);
                    }
                    Step::AddAfter(key, rank, delay) => {
                        queue.add_after(key, rank, ms(delay));
                        model.add_after(key, rank, Instant::now() + ms(delay));
                    }
                    Step::Fail(key, rank) => {
                        let delay = queue.add_rate_limited(key, rank);
                        let longest = ms(64).min(ms(4) * 2_u32.pow(model.failures[usize::from(key)].min(10)));
                        assert!(delay <= longest && delay >= longest / 2);
                        model.failures[usize::from(key)] += 1;
                        model.add_after(key, rank, Instant::now() + delay);
                    }
                    Step::Forget(key) => {
                        queue.forget(&key);
                        model.failures[usize::from(key)] = 0;
                    }
                    Step::Get => {
                        let key = ready(&queue);
                        assert_eq!(key.as_deref().copied(), model.get());
                        working.extend(key);
                    }
                    Step::Done(index) if index < working.len() => model.done(*working.remove(index)),
                    Step::Done(_) => {}
                    Step::Pass(time) => advance(ms(time)).await,
                }
                model.release();
                assert_eq!(queue.len(), model.queued.len());
                for key in 0..5_u8 {
                    assert_eq!(queue.num_requeues(&key), model.failures[usize::from(key)]);
                }
            }
            // What is left comes out, the delayed keys too.
            drop(working);
            let mut left: BTreeSet<u8> = model.queued.iter().map(|queued| queued.0).collect();
            left.extend(model.delayed.iter().map(|delayed| delayed.2));
            while !left.is_empty() {
                left.remove(&*soon(queue.get()).await.unwrap());
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn two_keys_that_are_added_at_once_wake_two_waiters() {
    let (queue, both) = (WorkQueue::<u8>::default(), Arc::new(tokio::sync::Barrier::new(3)));
    for _ in 0..2 {
        let (queue, both) = (queue.clone(), both.clone());
        tokio::spawn(async move {
            while let Some(_key) = queue.get().await {
                both.wait().await;
            }
        });
    }
    for _ in 0..20_000 {
        queue.add(0, ());
        queue.add(1, ());
        timeout(Duration::from_mins(1), both.wait()).await.expect("a waiter sleeps beside a ready key");
    }
    queue.shut_down();
}
