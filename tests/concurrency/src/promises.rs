//! What the modules promise in every order of their tasks, and that a variant with a fault breaks it in some.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

use jiff::Timestamp;
use shuttle::{
    Config, Runner, check_random_with_seed,
    future::{block_on, spawn, yield_now},
    scheduler::PctScheduler,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    db::{self, table::Stored, writer::Db},
    pod::{ListingBuilder, Op, Origin, Prepared, SourceName},
    storage::Notify,
};

/// How many random orders are tried of each promise, by each of two schedulers.
const ORDERS: usize = 500;
const SEED: u64 = 7;
/// How often the second scheduler stops the most important task, in an order, for one of the others.
const DEPTH: usize = 3;

/// Tries orders in which any task may go on next, and orders in which a task runs for long while the others wait.
fn is_kept(promise: impl Fn() + Clone + Send + Sync + 'static) {
    check_random_with_seed(promise.clone(), SEED, ORDERS);
    let scheduler = PctScheduler::new_from_seed(SEED, DEPTH, ORDERS);
    Runner::new(scheduler, Config::default()).run(promise);
}

fn is_broken(promise: impl Fn() + Clone + Send + Sync + 'static) {
    let found = catch_unwind(AssertUnwindSafe(|| is_kept(promise)));
    assert!(found.is_err(), "no order shows the fault");
}

fn put(wanted: &mut ListingBuilder, name: &str, uid: usize) {
    let text = format!(r#"{{"metadata": {{"name": "{name}", "uid": "{name}-{uid}"}}}}"#);
    let pod = Prepared::from_json(text.as_bytes()).unwrap();
    wanted.put(&Origin::from(name), vec![pod], Timestamp::UNIX_EPOCH);
}

/// The last listing of each source reaches the merged view and the consumers, whenever the source ends.
macro_rules! last_listings_are_merged {
    ($mux:ident) => {
        || {
            block_on(async {
                let sources = [SourceName::File, SourceName::Http];
                let (mux, merging) = crate::$mux::Mux::new(&sources);
                let mut updates = mux.updates(Notify::Incremental);
                let merging = spawn(merging.run());
                let sources = sources.map(|source| {
                    let (mux, channel) = (mux.clone(), mux.channel(source).unwrap());
                    spawn(async move {
                        let mut wanted = ListingBuilder::new(source);
                        for number in 0..3 {
                            let name = format!("{source}-{number}");
                            put(&mut wanted, &name, 0);
                            channel.publish(wanted.listing());
                            match (source, number) {
                                (SourceName::File, 0) => assert!(channel.merged().await),
                                (SourceName::Http, 0) => assert!(mux.turns().await),
                                _ => continue,
                            }
                            assert!(mux.merged().borrow().keys().any(|key| key.name() == name));
                        }
                    })
                });
                let mut held = BTreeSet::new();
                while let Some(update) = updates.next().await {
                    for pod in update.pods.iter() {
                        let name = pod.key().name().to_owned();
                        assert!(update.op == Op::Add && held.insert(name), "{:?} {}", update.op, pod.key());
                    }
                }
                for source in sources {
                    source.await.unwrap();
                }
                merging.await.unwrap();
                assert_eq!(held.len(), 6, "{held:?}");
            });
        }
    };
}

#[test]
fn the_mux_merges_the_last_listing_of_each_source() {
    is_kept(last_listings_are_merged!(mux));
}

#[test]
fn a_mux_that_looks_for_the_end_after_it_looked_for_listings_is_noticed() {
    is_broken(last_listings_are_merged!(mux_that_looks_twice));
}

/// Two keys are worked on at the same time if two workers wait.
macro_rules! each_key_wakes_a_worker {
    ($work_queue:ident) => {
        || {
            block_on(async {
                let queue = crate::$work_queue::WorkQueue::<&str>::default();
                let both = Arc::new(Barrier::new(2));
                let workers = [(); 2].map(|()| {
                    let (queue, both) = (queue.clone(), both.clone());
                    spawn(async move {
                        let _working = queue.get().await;
                        both.wait();
                    })
                });
                queue.add("a", ());
                queue.add("b", ());
                for worker in workers {
                    worker.await.unwrap();
                }
            });
        }
    };
}

#[test]
fn each_key_of_the_work_queue_wakes_a_worker() {
    is_kept(each_key_wakes_a_worker!(work_queue));
}

#[test]
fn a_work_queue_that_loses_a_wake_up_is_noticed() {
    is_broken(each_key_wakes_a_worker!(work_queue_that_loses_a_wake_up));
}

/// A key and what is known of it.
#[derive(Default)]
struct Key {
    wanted: AtomicU64,
    done: AtomicU64,
    is_worked_on: AtomicBool,
}

#[test]
fn the_work_queue_works_on_a_key_once_at_a_time_and_again_after_each_addition() {
    is_kept(|| {
        block_on(async {
            let queue = crate::work_queue::WorkQueue::<usize>::default();
            let keys: Arc<[Key; 2]> = Arc::default();
            let workers = [(); 2].map(|()| {
                let (queue, keys) = (queue.clone(), keys.clone());
                spawn(async move {
                    while let Some(key) = queue.get().await {
                        let Key { wanted, done, is_worked_on } = &keys[*key];
                        assert!(!is_worked_on.swap(true, Ordering::SeqCst));
                        let seen = wanted.load(Ordering::SeqCst);
                        yield_now().await;
                        done.store(seen, Ordering::SeqCst);
                        is_worked_on.store(false, Ordering::SeqCst);
                    }
                })
            });
            let producers = [[0, 1], [0, 0]].map(|added| {
                let (queue, keys) = (queue.clone(), keys.clone());
                spawn(async move {
                    for key in added {
                        keys[key].wanted.fetch_add(1, Ordering::SeqCst);
                        queue.add(key, ());
                        yield_now().await;
                    }
                })
            });
            for producer in producers {
                producer.await.unwrap();
            }
            queue.drain().await;
            for key in keys.iter() {
                assert_eq!(key.wanted.load(Ordering::SeqCst), key.done.load(Ordering::SeqCst));
            }
            for worker in workers {
                worker.await.unwrap();
            }
        });
    });
}

/// Numbers are unique, and none is used that is not reserved durably.
macro_rules! numbers_are_unique {
    ($sequence:path) => {
        || {
            block_on(async {
                use $sequence as sequence;
                const COUNT: u64 = 60_000;
                let (db, numbers) = (Db::default(), sequence::Sequence::new("run", Timestamp::UNIX_EPOCH));
                numbers.attach(db.clone(), &Stored::default(), 0);
                let tasks = [(); 3].map(|()| {
                    let (db, numbers) = (db.clone(), numbers.clone());
                    spawn(async move {
                        let mut taken = Vec::new();
                        for _ in 0..2 {
                            let first = numbers.take_some(COUNT);
                            numbers.reserve().await.unwrap();
                            assert!(first + COUNT <= db.ceiling() + 1, "{first} is not reserved");
                            taken.push(first);
                        }
                        taken
                    })
                });
                let mut taken = Vec::new();
                for task in tasks {
                    taken.extend(task.await.unwrap());
                }
                taken.sort_unstable();
                assert!(taken.windows(2).all(|pair| pair[0] + COUNT <= pair[1]), "{taken:?}");
            });
        }
    };
}

#[test]
fn numbers_are_unique_and_reserved() {
    is_kept(numbers_are_unique!(crate::db));
}

#[test]
fn an_allocator_that_reads_and_then_writes_is_noticed() {
    is_broken(numbers_are_unique!(crate::db::in_two_steps));
}

#[test]
fn an_allocator_that_uses_numbers_before_they_are_stored_is_noticed() {
    is_broken(numbers_are_unique!(crate::db::too_early));
}

/// What changes after a snapshot leads from it to the last listing, which no end of the history brings.
macro_rules! changes_continue_a_snapshot {
    ($history:ident) => {
        || {
            block_on(async {
                let (mux, merging) = crate::mux::Mux::new(&[SourceName::File]);
                let channel = mux.channel(SourceName::File).unwrap();
                let numbers = db::Sequence::new("run", Timestamp::UNIX_EPOCH);
                let updates = mux.updates(Notify::Incremental);
                let (history, reader) = crate::$history::History::new(updates, numbers, Default::default());
                let (merging, history) = (spawn(merging.run()), spawn(history.run()));
                let (ready, is_ready) = tokio::sync::oneshot::channel();
                let reader = spawn(async move {
                    let snapshot = reader.snapshot().await.unwrap();
                    ready.send(()).unwrap();
                    let uids =
                        snapshot.merged.iter().map(|(key, entry)| (key.clone(), entry.pod().uid().clone()));
                    let (mut held, mut last): (BTreeMap<_, _>, _) = (uids.collect(), snapshot.seq);
                    let mut changes = reader.changes(last).unwrap();
                    while !held.values().map(|uid| &**uid).eq(["web-2"]) {
                        let change = changes.next().await.unwrap().unwrap();
                        assert!(last < change.number);
                        last = change.number;
                        let (old, new) = (change.old.as_ref(), change.new.as_ref());
                        let key = old.or(new).unwrap().entry.pod().key().clone();
                        let before = match new {
                            Some(new) => held.insert(key, new.entry.pod().uid().clone()),
                            None => held.remove(&key),
                        };
                        assert_eq!(before.as_ref(), old.map(|old| old.entry.pod().uid()));
                    }
                });
                let mut wanted = ListingBuilder::new(SourceName::File);
                for uid in 0..3 {
                    put(&mut wanted, "web", uid);
                    put(&mut wanted, "db", 0);
                    channel.publish(wanted.listing());
                    yield_now().await;
                }
                // Later than that there would be nothing to wait for.
                is_ready.await.unwrap();
                wanted.remove(&Origin::from("db"));
                channel.publish(wanted.listing());
                reader.await.unwrap();
                drop((channel, mux));
                merging.await.unwrap();
                history.await.unwrap();
            });
        }
    };
}

#[test]
fn changes_of_the_history_continue_a_snapshot() {
    is_kept(changes_continue_a_snapshot!(history));
}

#[test]
fn a_history_whose_readers_look_before_they_wait_is_noticed() {
    is_broken(changes_continue_a_snapshot!(history_that_looks_first));
}
