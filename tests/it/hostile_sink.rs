//! A sink that hangs, fails, panics or is slow affects no other part of the agent.

use std::{collections::BTreeMap, fs, future::Future, process::Command, sync::Arc, time::Duration};

use podmux::{
    mux::{Mux, Notify, SourceChannel},
    pod::{Listing, ListingBuilder, Op, Origin, Pod, Prepared, SourceName},
    sink::{Delivery, SequencedUpdate, Sink, SinkError, SinkStatus},
    supervise::{BoxError, Tasks},
};
use serde_json::json;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{
    sinks::{Behaviour, Received, SinkDouble},
    stream::Replica,
};

/// A running mux and a source of numbered pods.
struct Upstream {
    mux: Mux,
    channel: SourceChannel,
    wanted: ListingBuilder,
}

impl Upstream {
    fn start() -> Self {
        let (mux, merging) = Mux::new(&[SourceName::File]);
        tokio::spawn(merging.run());
        let channel = mux.channel(SourceName::File).unwrap();
        Self { mux, channel, wanted: ListingBuilder::new(SourceName::File) }
    }

    fn deliver<S: Sink + 'static>(&self, name: &str, sink: S) -> watch::Receiver<SinkStatus> {
        let (delivery, status) = Delivery::new(name, sink, self.mux.updates(Notify::Incremental));
        tokio::spawn(delivery.run(CancellationToken::new()));
        status
    }

    fn deliver_to(&self, behaviour: Behaviour) -> (watch::Receiver<Received>, watch::Receiver<SinkStatus>) {
        let (double, received) = SinkDouble::new(behaviour);
        (received, self.deliver("double", double))
    }

    fn put(&mut self, number: usize, version: usize) {
        let pod = json!({
            "metadata": {"name": format!("p{number}"), "uid": format!("uid-{number}")},
            "spec": {"containers": [{"name": "c", "image": format!("i:{version}")}]},
        });
        let pod = Prepared::from_value(pod).unwrap();
        self.wanted.put(&origin(number), vec![pod], jiff::Timestamp::UNIX_EPOCH);
    }

    /// Publishes a listing, which waits for no sink.
    async fn publish(&mut self) -> Listing {
        let listing = self.wanted.listing();
        self.channel.publish(listing.clone());
        assert!(soon(self.channel.merged()).await);
        listing
    }
}

fn origin(number: usize) -> Origin {
    Origin::from(&*format!("p{number}.yaml"))
}

/// Waits for a minute at most.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_mins(1), future).await.expect("nothing happened for a minute")
}

fn holds(replica: &Replica, listing: &Listing) -> bool {
    let wanted = listing.iter().map(|(key, entry)| (key.as_str(), &entry.pod().text()[..]));
    replica.pods.iter().map(|(key, text)| (key.as_str(), text.as_bytes())).eq(wanted)
}

/// A sink that keeps the newest state of each pod.
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

    fn is_fresh(&self) -> bool {
        true
    }
}

const CHILD: &str = "PODMUX_TEST_CHILD";
const PODS: usize = 1_000;
const CHANGES: usize = 100_000;
/// A queue of all changes would be larger: even a small pod has 700 B.
const GROWTH: usize = 16 << 20;

/// Runs in a process of its own, to measure its memory.
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
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && output.contains("1 passed"),
        "{output}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    output.lines().filter(|line| line.starts_with("resident")).for_each(|line| println!("{line}"));
}

async fn hundred_thousand_changes() {
    let mut upstream = Upstream::start();
    let (wake, gate) = watch::channel(false);
    let (mut hung, hung_status) = upstream.deliver_to(Behaviour::HangsUntil(gate));
    let (mirror, mut other) = watch::channel(BTreeMap::new());
    upstream.deliver("mirror", Mirror(mirror));
    (0..PODS).for_each(|number| upstream.put(number, 0));
    upstream.publish().await;
    soon(hung.wait_for(|received| received.attempts.len() == 1)).await.unwrap();

    let mut before = 0;
    for change in 1..=CHANGES {
        upstream.put(change % PODS, change);
        let listing = upstream.publish().await;
        if change % 1_000 == 0 {
            // The other sink has received every change so far.
            let newest = |held: &BTreeMap<String, Arc<Pod>>| {
                held.values().eq(listing.iter().map(|(_, entry)| entry.pod()))
            };
            soon(other.wait_for(newest)).await.unwrap();
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
    let last = upstream.publish().await;
    wake.send(true).unwrap();
    let received = soon(hung.wait_for(|received| received.replica.seq == 4)).await.unwrap().clone();
    let expected = ["1 ADD file 1000", "2 REMOVE file 1", "3 ADD file 1", "4 UPDATE file 999"];
    assert_eq!(received.replica.heard, expected);
    assert!(holds(&received.replica, &last));
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
    let (mut received, mut status) = upstream.deliver_to(Behaviour::Fails(5));
    upstream.put(1, 0);
    upstream.put(2, 0);
    upstream.publish().await;
    soon(status.wait_for(|status| status.failing.is_some())).await.unwrap();
    for version in 1..=100 {
        upstream.put(1, version);
        upstream.put(3, version);
        upstream.publish().await;
    }
    upstream.wanted.remove(&origin(2));
    let last = upstream.publish().await;
    let received = soon(received.wait_for(|received| holds(&received.replica, &last))).await.unwrap().clone();
    let expected = ["1 ADD file 2", "2 REMOVE file 1", "3 ADD file 1", "4 UPDATE file 1"];
    assert_eq!(received.replica.heard, expected);
    assert_eq!(received.attempts.len(), 4 + 5);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_has_lost_everything_gets_it_before_the_next_retry() {
    let mut upstream = Upstream::start();
    let (open, gate) = watch::channel(false);
    let (mut received, mut status) = upstream.deliver_to(Behaviour::FailsUntil(gate));
    upstream.put(1, 0);
    let wanted = upstream.publish().await;
    soon(status.wait_for(|status| status.failing.is_some())).await.unwrap();
    open.send(true).unwrap();
    soon(received.wait_for(|received| holds(&received.replica, &wanted))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_sink_delays_no_other_sink() {
    let mut upstream = Upstream::start();
    let (mut slow, _) = upstream.deliver_to(Behaviour::Slow(Duration::from_secs(10)));
    let (mut brisk, _) = upstream.deliver_to(Behaviour::Accepts);
    let mut last = None;
    for version in 1..=100 {
        upstream.put(1, version);
        let listing = upstream.publish().await;
        let now = tokio::time::Instant::now();
        soon(brisk.wait_for(|received| holds(&received.replica, &listing))).await.unwrap();
        assert_eq!(now.elapsed(), Duration::ZERO, "the slow sink is still busy");
        last = Some(listing);
    }
    assert_eq!(brisk.borrow().replica.seq, 100);
    let last = last.unwrap();
    let slow = soon(slow.wait_for(|received| holds(&received.replica, &last))).await.unwrap().clone();
    assert_eq!(slow.replica.heard, ["1 ADD file 1", "2 UPDATE file 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_stops_all_tasks_in_order() {
    let stop = CancellationToken::new();
    let (mux, merging) = Mux::new(&[SourceName::File]);
    let (double, _received) = SinkDouble::new(Behaviour::Panics);
    let (panicky, _status) = Delivery::new("panicky", double, mux.updates(Notify::Incremental));
    let (double, mut other) = SinkDouble::new(Behaviour::Accepts);
    let (accepting, _status) = Delivery::new("accepting", double, mux.updates(Notify::Incremental));
    let mut tasks = Tasks::new(stop.clone());
    tasks.spawn("mux", async {
        merging.run().await;
        Ok(())
    });
    tasks.spawn("sink panicky", {
        let stop = stop.clone();
        async { Ok(panicky.run(stop).await?) }
    });
    tasks.spawn("sink accepting", {
        let stop = stop.clone();
        async { Ok(accepting.run(stop).await?) }
    });
    tasks.spawn("source file", source(mux.channel(SourceName::File).unwrap(), stop));
    let (_grace, grace) = watch::channel(Duration::from_secs(10));
    let begun = tokio::time::Instant::now();
    let error = soon(tasks.run(grace)).await.unwrap_err();
    assert_eq!(error.to_string(), "task sink panicky panicked: the sink panics");
    assert_eq!(begun.elapsed(), Duration::ZERO, "no task waited for the deadline");
    assert_eq!(other.borrow_and_update().replica.heard, ["1 ADD file 1"], "the pending update was delivered");
}

async fn source(channel: SourceChannel, stop: CancellationToken) -> Result<(), BoxError> {
    let mut wanted = ListingBuilder::new(SourceName::File);
    let pod = crate::support::script::pod("a");
    wanted.put(&Origin::from("a.yaml"), vec![pod], jiff::Timestamp::UNIX_EPOCH);
    channel.publish(wanted.listing());
    stop.cancelled().await;
    Ok(())
}
