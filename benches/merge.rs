//! merge-one/N and merge-set/N: what the heart costs.
//!
//! `cargo bench --bench merge`
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a benchmark fails by panicking and is nobody's library"
)]

use std::{cell::RefCell, hint::black_box};

use divan::Bencher;
use jiff::Timestamp;
use podmux::{
    mux::Mux,
    pod::{ListingBuilder, Origin, Prepared, SourceName},
    storage::{Notify, PodStorage, Told, updates},
};
use serde_json::json;
use tokio::runtime::Builder;

const SIZES: [usize; 5] = [100, 110, 1_000, 10_000, 100_000];

fn main() {
    divan::main();
}

fn prepared(index: usize, image: u64) -> Prepared {
    let name = format!("pod-{index:06}");
    Prepared::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{index}")},
        "spec": {"containers": [{"name": "c", "image": format!("i:{image}")}]},
    }))
    .unwrap()
}

fn put(builder: &mut ListingBuilder, index: usize, image: u64) {
    let origin = Origin::from(&*format!("{index:06}.yaml"));
    builder.put(&origin, vec![prepared(index, image)], Timestamp::UNIX_EPOCH);
}

fn filled(source: SourceName, pods: usize) -> ListingBuilder {
    let mut builder = ListingBuilder::new(source);
    (0..pods).for_each(|index| put(&mut builder, index, 0));
    builder
}

/// From the source's push to the `PodUpdate` on the channel, the mux's loop and
/// a wake-up of each task included.
#[divan::bench(args = SIZES, sample_count = 1000, sample_size = 1)]
fn merge_one(bencher: Bencher, pods: usize) {
    let runtime = Builder::new_current_thread().build().unwrap();
    let (mux, turn) = Mux::new(&SourceName::ALL);
    let channels = SourceName::ALL.map(|source| mux.channel(source).unwrap());
    let mut updates = mux.updates(Notify::Incremental);
    let mut builder = filled(SourceName::File, pods);
    let turning = runtime.spawn(turn.run());
    channels[0].push(builder.listing());
    runtime.block_on(updates.next()).unwrap();
    let (image, updates) = (RefCell::new(0), RefCell::new(updates));
    bencher
        .with_inputs(|| {
            *image.borrow_mut() += 1;
            put(&mut builder, pods / 2, *image.borrow());
            builder.listing()
        })
        .bench_local_values(|listing| {
            channels[0].push(listing);
            runtime.block_on(updates.borrow_mut().next()).unwrap()
        });
    turning.abort();
}

/// The merge and the difference alone: no task, no channel.
#[divan::bench(args = SIZES, sample_count = 1000, sample_size = 1)]
fn merge_one_pure(bencher: Bencher, pods: usize) {
    let mut builder = filled(SourceName::File, pods);
    let mut storage = PodStorage::new(&SourceName::ALL);
    let _first = storage.apply(&builder.listing());
    let (mut told, _) = updates(&Told::default(), storage.merged(), Notify::Incremental);
    let mut image = 0;
    bencher
        .with_inputs(|| {
            image += 1;
            put(&mut builder, pods / 2, image);
            builder.listing()
        })
        .bench_local_values(|listing| {
            let _outcome = storage.apply(&listing);
            let (goal, messages) = updates(&told, storage.merged(), Notify::Incremental);
            assert_eq!(messages.len(), 1);
            told = goal;
            messages
        });
}

/// The first listing of N pods, from `apply` to the ADD.
#[divan::bench(args = SIZES, max_time = 5)]
fn merge_set(bencher: Bencher, pods: usize) {
    let listing = filled(SourceName::File, pods).listing();
    bencher.bench_local(|| {
        let mut storage = PodStorage::new(&SourceName::ALL);
        let _outcome = storage.apply(black_box(&listing));
        let told = updates(&Told::default(), storage.merged(), Notify::Incremental);
        (storage, told)
    });
}

/// What merge-set is measured against: building a persistent map of N keys.
#[divan::bench(args = SIZES, max_time = 5)]
fn build_map(bencher: Bencher, pods: usize) {
    let listing = filled(SourceName::File, pods).listing();
    bencher.bench_local(|| {
        let mut map = imbl::OrdMap::new();
        for (key, entry) in black_box(&listing).iter() {
            map.insert(key.clone(), entry.clone());
        }
        map
    });
}
