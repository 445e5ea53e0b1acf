//! merge-one/N and merge-set/N: the cost of merging and comparing.
//!
//! `cargo bench --bench merge`
//! With `PODMUX_KUBERNETES` (see `tests/kubernetes/README.md`) the kubelet's own
//! merge is measured in the same run.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a benchmark fails by panicking, prints what it measured, and is not a library"
)]

#[path = "../tests/it/support/kubernetes.rs"]
mod kubernetes;
#[path = "../tests/it/support/plain.rs"]
mod plain;
mod support;

use std::{
    cell::RefCell,
    env,
    hint::black_box,
    time::{Duration, Instant},
};

use divan::Bencher;
use jiff::Timestamp;
use kubernetes::Oracle;
use podmux::{
    mux::Mux,
    pod::{ListingBuilder, Origin, Prepared, SourceName},
    storage::{Delivered, Notify, PodStorage, updates},
};
use serde_json::json;
use support::{beside, pod, wants_figures};
use tokio::runtime::Builder;

const SIZES: [usize; 5] = [100, 110, 1_000, 10_000, 100_000];

fn main() {
    divan::main();
    if env::var_os("PODMUX_KUBERNETES").is_some() {
        beside_the_kubelet();
    }
}

/// merge-one with the kubelet's own merge: the same pods, the same changes.
fn beside_the_kubelet() {
    let (sizes, rounds): (&[usize], usize) =
        if wants_figures() { (&[110, 1_000, 10_000], 200) } else { (&[110], 5) };
    let mut oracle = Oracle::start().unwrap();
    let text = pod("pod", 0).to_string();
    for &n in sizes {
        let asked = json!({"op": "bench-merge", "n": n, "rounds": rounds, "text": text, "node": "bench"});
        beside(&format!("merge-one/{n}"), pushes(n, rounds), &oracle.ask(&asked));
    }
}

/// The time of each change from publishing to the update on the channel.
fn pushes(pods: usize, rounds: usize) -> Vec<Duration> {
    let runtime = Builder::new_current_thread().build().unwrap();
    let (mux, turn) = Mux::new(&[SourceName::File]);
    let channel = mux.channel(SourceName::File).unwrap();
    let mut updates = mux.updates(Notify::Incremental);
    let mut builder = ListingBuilder::new(SourceName::File);
    let mut put = |number: usize, round: usize| {
        let name = format!("pod-{number:05}");
        let mut pod = pod(&name, 0);
        pod["metadata"]["uid"] = json!(name);
        pod["spec"]["containers"][0]["image"] = json!(format!("image:{round}"));
        let pod = Prepared::from_value(pod).unwrap();
        builder.put(&Origin::from(&*name), vec![pod], Timestamp::UNIX_EPOCH);
        builder.listing()
    };
    let first = (0..pods).map(|number| put(number, 0)).last().unwrap();
    let turning = runtime.spawn(turn.run());
    channel.publish(first);
    runtime.block_on(updates.next()).unwrap();
    let durations = (1..=rounds).map(|round| {
        let listing = put(round * 7_919 % pods, round);
        let begin = Instant::now();
        channel.publish(listing);
        let update = runtime.block_on(updates.next()).unwrap();
        let duration = begin.elapsed();
        assert_eq!(update.pods.len(), 1);
        duration
    });
    let durations = durations.collect();
    turning.abort();
    durations
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

/// From publishing to the `PodUpdate` on the channel, including the mux's loop and a
/// wake-up of each task.
#[divan::bench(args = SIZES, sample_count = 1000, sample_size = 1)]
fn merge_one(bencher: Bencher, pods: usize) {
    let runtime = Builder::new_current_thread().build().unwrap();
    let (mux, turn) = Mux::new(&SourceName::ALL);
    let channels = SourceName::ALL.map(|source| mux.channel(source).unwrap());
    let mut updates = mux.updates(Notify::Incremental);
    let mut builder = filled(SourceName::File, pods);
    let turning = runtime.spawn(turn.run());
    channels[0].publish(builder.listing());
    runtime.block_on(updates.next()).unwrap();
    let (image, updates) = (RefCell::new(0), RefCell::new(updates));
    bencher
        .with_inputs(|| {
            *image.borrow_mut() += 1;
            put(&mut builder, pods / 2, *image.borrow());
            builder.listing()
        })
        .bench_local_values(|listing| {
            channels[0].publish(listing);
            runtime.block_on(updates.borrow_mut().next()).unwrap()
        });
    turning.abort();
}

/// The merge and the comparison without tasks and channels.
#[divan::bench(args = SIZES, sample_count = 1000, sample_size = 1)]
fn merge_one_pure(bencher: Bencher, pods: usize) {
    let mut builder = filled(SourceName::File, pods);
    let mut storage = PodStorage::new(&SourceName::ALL);
    let _first = storage.apply(&builder.listing());
    let (mut delivered, _) = updates(&Delivered::default(), storage.merged(), Notify::Incremental);
    let mut image = 0;
    bencher
        .with_inputs(|| {
            image += 1;
            put(&mut builder, pods / 2, image);
            builder.listing()
        })
        .bench_local_values(|listing| {
            let _outcome = storage.apply(&listing);
            let (goal, messages) = updates(&delivered, storage.merged(), Notify::Incremental);
            assert_eq!(messages.len(), 1);
            delivered = goal;
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
        let delivered = updates(&Delivered::default(), storage.merged(), Notify::Incremental);
        (storage, delivered)
    });
}

/// The baseline of merge-set: building a persistent map of N keys.
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
