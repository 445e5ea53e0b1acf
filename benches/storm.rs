//! storm: 1,000,000 changes of 10,000 pods while the sink hangs, for a minute at least.
//!
//! `cargo bench --bench storm`; a number as argument is the number of changes.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark fails by panicking, prints its results, and is not a library"
)]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, pipe},
    os::fd::AsRawFd as _,
    path::Path,
    process, thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use podmux::{
    mux::{Mux, Notify},
    pod::{Listing, ListingBuilder, Origin, Prepared, SourceName},
    sink::{Delivery, Jsonl},
};
use serde_json::{Value, json};
use support::{number_argument, pod, status, wants_figures};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

fn main() {
    let (pods, changes, hang) = if wants_figures() {
        (10_000, 1_000_000, Duration::from_mins(1))
    } else {
        (100, 10_000, Duration::ZERO)
    };
    let changes = number_argument().map_or(changes, |changes| changes.try_into().unwrap());
    let (reader, writer) = pipe().unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mux, turning) = Mux::new(&[SourceName::Api]);
    let channel = mux.channel(SourceName::Api).unwrap();
    let sink = {
        let _inside = runtime.enter();
        Jsonl::file(Path::new(&format!("/proc/self/fd/{}", writer.as_raw_fd()))).unwrap()
    };
    drop(writer);
    let (delivery, _) = Delivery::new("hung", sink, mux.updates(Notify::Incremental));
    runtime.spawn(turning.run());
    let delivered = runtime.spawn(delivery.run(CancellationToken::new()));

    let mut seen =
        Seen { lines: BufReader::with_capacity(1 << 20, reader), rounds: BTreeMap::new(), updates: 0 };
    let mut source = Source { builder: ListingBuilder::new(SourceName::Api), pods };
    let bare = rss();
    channel.publish(source.all());
    seen.read_until(|rounds| rounds.len() == pods);
    let (full, begin) = (rss(), Instant::now());
    // Resets the peak that the kernel records.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    // The reader stops here.
    let mut slowest = Duration::ZERO;
    for round in 1..=changes {
        let listing = source.change(round);
        let pushing = Instant::now();
        channel.publish(listing);
        slowest = slowest.max(pushing.elapsed());
    }
    let took = begin.elapsed();
    thread::sleep(hang.saturating_sub(took));
    let growth = (status(process::id(), "VmHWM") as f64 / 1024.0) - full;
    let listing = full - bare;
    let updates_before = seen.updates;
    // The reader continues.
    let wanted: BTreeMap<_, _> =
        (changes.saturating_sub(pods) + 1..=changes).map(|round| (source.number(round), round)).collect();
    assert_eq!(wanted.len(), pods.min(changes));
    seen.read_until(|rounds| wanted.iter().all(|(number, round)| rounds.get(number) == Some(round)));
    println!(
        "{:<24} {changes} changes of {pods} pods in {:.1} s, none read for {:.0} s   slowest publish {:.3} ms   one listing {listing:.1} MiB, \
         RSS grew by {growth:.1} MiB ({:.2} x)   delivered in {} updates, the final state is exact",
        "storm",
        took.as_secs_f64(),
        took.max(hang).as_secs_f64(),
        slowest.as_secs_f64() * 1e3,
        growth / listing,
        seen.updates - updates_before,
    );
    drop(channel);
    runtime.block_on(delivered).unwrap().unwrap();
}

/// In MiB.
fn rss() -> f64 {
    status(process::id(), "VmRSS") as f64 / 1024.0
}

/// Pods of which each change hits another one.
struct Source {
    builder: ListingBuilder,
    pods: usize,
}

impl Source {
    fn all(&mut self) -> Listing {
        (0..self.pods).for_each(|number| self.put(number, 0));
        self.builder.listing()
    }

    fn change(&mut self, round: usize) -> Listing {
        self.put(self.number(round), round);
        self.builder.listing()
    }

    /// A prime step: successive changes are not neighbours, and every pod is changed.
    fn number(&self, round: usize) -> usize {
        round * 7_919 % self.pods
    }

    fn put(&mut self, number: usize, round: usize) {
        let name = format!("pod-{number:05}");
        let mut pod = pod(&name, round);
        pod["metadata"]["uid"] = json!(name);
        let pod = Prepared::from_value(pod).unwrap();
        self.builder.put(&Origin::from(&*name), vec![pod], Timestamp::UNIX_EPOCH);
    }
}

/// What a reader of the stream knows: the last round of each pod.
struct Seen<R> {
    lines: R,
    rounds: BTreeMap<usize, usize>,
    updates: usize,
}

impl<R: BufRead> Seen<R> {
    fn read_until(&mut self, enough: impl Fn(&BTreeMap<usize, usize>) -> bool) {
        while !enough(&self.rounds) {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ends");
            let update: Value = serde_json::from_str(&line).unwrap();
            assert!(matches!(update["op"].as_str(), Some("SET" | "ADD" | "UPDATE")), "{line}");
            for pod in update["pods"].as_array().unwrap() {
                let metadata = &pod["metadata"];
                let number = metadata["name"].as_str().unwrap().trim_start_matches("pod-").parse().unwrap();
                let round =
                    metadata["annotations"]["podmux.example/round"].as_str().unwrap().parse().unwrap();
                self.rounds.insert(number, round);
            }
            self.updates += 1;
        }
    }
}
