//! Sinks that hang, fail, panic or are slow harm nobody but themselves.

use std::{collections::BTreeMap, fs, future::Future, process::Command, sync::Arc, time::Duration};

use podmux::{
    mux::{Mux, Notify, SourceChannel},
    pod::{Listing, ListingBuilder, Op, Origin, Pod, Prepared, SourceName},
    sink::{Delivery, SequencedUpdate, Sink, SinkError, SinkStatus},
    supervise::{BoxError, Crew},
};
use serde_json::json;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{
    sinks::{Diary, Double, Manners},
    stream::Replica,
};

/// A mux that turns, and a source that wants pods by number.
struct Upstream {
    mux: Mux,
    channel: SourceChannel,
    wanted: ListingBuilder,
}

impl Upstream {
    fn start() -> Self {
        let (mux, turning) = Mux::new(&[SourceName::File]);
        tokio::spawn(turning.run());
        let channel = mux.channel(SourceName::File).unwrap();
        Self { mux, channel, wanted: ListingBuilder::new(SourceName::File) }
    }

    fn deliver<S: Sink + 'static>(&self, name: &str, sink: S) -> watch::Receiver<SinkStatus> {
        let (delivery, status) = Delivery::new(name, sink, self.mux.updates(Notify::Incremental));
        tokio::spawn(delivery.run(CancellationToken::new()));
        status
    }

    fn deliver_to(&self, manners: Manners) -> (watch::Receiver<Diary>, watch::Receiver<SinkStatus>) {
        let (double, diary) = Double::new(manners);
        (diary, self.deliver("double", double))
    }

    fn put(&mut self, number: usize, version: usize) {
        let pod = json!({
            "metadata": {"name": format!("p{number}"), "uid": format!("uid-{number}")},
            "spec": {"containers": [{"name": "c", "image": format!("i:{version}")}]},
        });
        let pod = Prepared::from_value(pod).unwrap();
        self.wanted.put(&origin(number), vec![pod], jiff::Timestamp::UNIX_EPOCH);
    }

    /// The source's one way to speak: it does not wait for any sink.
    async fn push(&mut self) -> Listing {
        let listing = self.wanted.listing();
        self.channel.publish(listing.clone());
        assert!(soon(self.channel.merged()).await);
        listing
    }
}

fn origin(number: usize) -> Origin {
    Origin::from(&*format!("p{number}.yaml"))
}

/// A minute, or an hour where the time is paused: nothing here waits for more than the machine.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_mins(1), future).await.expect("nothing happened for a minute")
}

fn holds(replica: &Replica, listing: &Listing) -> bool {
    let wanted = listing.iter().map(|(key, entry)| (key.as_str(), &entry.pod().text()[..]));
    replica.pods.iter().map(|(key, text)| (key.as_str(), text.as_bytes())).eq(wanted)
}

/// A sink that only keeps what it was told last.
struct Mirror(watch::Sender<BTreeMap<String, Arc<Pod>>>);

impl Sink for Mirror {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        self.0.send_modify(|held| {
            for pod in update.update.pods.iter() {
                match update.update.op {
                    Op::Remove => held.remove(pod.key().as_str()),
                    _ => held.insert(pod.key().to_string(), pod.clone()),
                };
            }
        });
        Ok(())
    }
}

const CHILD: &str = "PODMUX_TEST_CHILD";
const PODS: usize = 1_000;
const CHANGES: usize = 100_000;
/// Whoever keeps every change of the least of pods, 700 B and more each, is caught.
const GROWTH: usize = 16 << 20;

/// Memory is a process's, so this runs in one of its own.
#[test]
fn a_hung_sink_costs_one_difference_however_much_changes() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        return runtime.block_on(hundred_thousand_changes());
    }
    let name = "hostile_sink::a_hung_sink_costs_one_difference_however_much_changes";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    said.lines().filter(|line| line.starts_with("resident")).for_each(|line| println!("{line}"));
}

async fn hundred_thousand_changes() {
    let mut upstream = Upstream::start();
    let (wake, gate) = watch::channel(false);
    let (mut hung, hung_status) = upstream.deliver_to(Manners::HangsUntil(gate));
    let (mirror, mut beside) = watch::channel(BTreeMap::new());
    upstream.deliver("mirror", Mirror(mirror));
    (0..PODS).for_each(|number| upstream.put(number, 0));
    upstream.push().await;
    soon(hung.wait_for(|diary| diary.attempts.len() == 1)).await.unwrap();

    let mut before = 0;
    for change in 1..=CHANGES {
        upstream.put(change % PODS, change);
        let listing = upstream.push().await;
        if change % 1_000 == 0 {
            // The sink beside it has heard of every change up to here.
            let newest = |held: &BTreeMap<String, Arc<Pod>>| {
                held.values().eq(listing.iter().map(|(_, entry)| entry.pod()))
            };
            soon(beside.wait_for(newest)).await.unwrap();
        }
        if change == 2 * PODS {
            before = resident();
        }
    }
    let growth = resident().saturating_sub(before);
    println!("resident: {before} B, grew by {growth} B over {CHANGES} changes");
    assert!(growth < GROWTH, "{growth} B more in memory");
    assert_eq!(hung.borrow().attempts.len(), 1);
    let status = hung_status.borrow().clone();
    assert_eq!((status.acknowledged, status.busy_since.is_some()), (None, true));

    upstream.wanted.remove(&origin(0));
    upstream.put(PODS, 0);
    let last = upstream.push().await;
    wake.send(true).unwrap();
    let diary = soon(hung.wait_for(|diary| diary.replica.seq == 4)).await.unwrap().clone();
    let heard = ["1 ADD file 1000", "2 REMOVE file 1", "3 ADD file 1", "4 UPDATE file 999"];
    assert_eq!(diary.replica.heard, heard);
    assert!(holds(&diary.replica, &last));
}

/// The process's resident memory, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[tokio::test(start_paused = true)]
async fn a_failing_sink_gets_one_difference_when_it_works_again() {
    let mut upstream = Upstream::start();
    let (mut diary, mut status) = upstream.deliver_to(Manners::Fails(5));
    upstream.put(1, 0);
    upstream.put(2, 0);
    upstream.push().await;
    soon(status.wait_for(|status| status.failing.is_some())).await.unwrap();
    for version in 1..=100 {
        upstream.put(1, version);
        upstream.put(3, version);
        upstream.push().await;
    }
    upstream.wanted.remove(&origin(2));
    let last = upstream.push().await;
    let diary = soon(diary.wait_for(|diary| holds(&diary.replica, &last))).await.unwrap().clone();
    let heard = ["1 ADD file 2", "2 REMOVE file 1", "3 ADD file 1", "4 UPDATE file 1"];
    assert_eq!(diary.replica.heard, heard);
    assert_eq!(diary.attempts.len(), 4 + 5);
}

#[tokio::test(start_paused = true)]
async fn a_slow_sink_slows_nobody_else() {
    let mut upstream = Upstream::start();
    let (mut slow, _) = upstream.deliver_to(Manners::Slow(Duration::from_secs(10)));
    let (mut brisk, _) = upstream.deliver_to(Manners::Takes);
    let mut last = None;
    for version in 1..=100 {
        upstream.put(1, version);
        let listing = upstream.push().await;
        let now = tokio::time::Instant::now();
        soon(brisk.wait_for(|diary| holds(&diary.replica, &listing))).await.unwrap();
        assert_eq!(now.elapsed(), Duration::ZERO, "no time has passed for the slow one");
        last = Some(listing);
    }
    assert_eq!(brisk.borrow().replica.seq, 100);
    let last = last.unwrap();
    let slow = soon(slow.wait_for(|diary| holds(&diary.replica, &last))).await.unwrap().clone();
    assert_eq!(slow.replica.heard, ["1 ADD file 1", "2 UPDATE file 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_ends_the_crew_in_order() {
    let stop = CancellationToken::new();
    let (mux, turning) = Mux::new(&[SourceName::File]);
    let (double, _diary) = Double::new(Manners::Panics);
    let (panicky, _status) = Delivery::new("panicky", double, mux.updates(Notify::Incremental));
    let (double, mut beside) = Double::new(Manners::Takes);
    let (takes, _status) = Delivery::new("takes", double, mux.updates(Notify::Incremental));
    let mut crew = Crew::new(stop.clone());
    crew.spawn("mux", async {
        turning.run().await;
        Ok(())
    });
    crew.spawn("sink panicky", {
        let stop = stop.clone();
        async { Ok(panicky.run(stop).await?) }
    });
    crew.spawn("sink takes", {
        let stop = stop.clone();
        async { Ok(takes.run(stop).await?) }
    });
    crew.spawn("source file", source(mux.channel(SourceName::File).unwrap(), stop));
    let (_grace, grace) = watch::channel(Duration::from_secs(10));
    let begun = tokio::time::Instant::now();
    let error = soon(crew.run(grace)).await.unwrap_err();
    assert_eq!(error.to_string(), "task sink panicky panicked: a sink without manners");
    assert_eq!(begun.elapsed(), Duration::ZERO, "everyone else ended by himself");
    assert_eq!(beside.borrow_and_update().replica.heard, ["1 ADD file 1"], "with what was pending");
}

async fn source(channel: SourceChannel, stop: CancellationToken) -> Result<(), BoxError> {
    let mut wanted = ListingBuilder::new(SourceName::File);
    let pod = crate::support::script::pod("a");
    wanted.put(&Origin::from("a.yaml"), vec![pod], jiff::Timestamp::UNIX_EPOCH);
    channel.publish(wanted.listing());
    stop.cancelled().await;
    Ok(())
}
