//! The delivery to a sink: in order, at the sink's pace, with retries.

use std::{future::Future, io, sync::Arc, time::Duration};

#[cfg(feature = "agent")]
use podmux::db::Sequence;
use podmux::{
    mux::{Mux, Notify, SourceChannel},
    pod::{ListingBuilder, Origin, SourceName},
    sink::{Counter, Delivery, DeliveryError, Numbers, SequencedUpdate, SinkStatus},
};
use tokio::{
    runtime::Builder,
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "agent")]
use crate::support::state::{Disk, ENOSPC, Fault, Operation, State, idle};
use crate::support::{
    logs::collected,
    script::pod,
    sinks::{Behaviour, Received, SinkDouble},
};

/// A mux with one source.
struct Upstream {
    mux: Mux,
    channel: SourceChannel,
    wanted: ListingBuilder,
    stop: CancellationToken,
}

/// A running delivery and what it shows.
struct Running {
    received: watch::Receiver<Received>,
    status: watch::Receiver<SinkStatus>,
    task: JoinHandle<Result<(), DeliveryError>>,
}

impl Upstream {
    fn start() -> Self {
        let (mux, merging) = Mux::new(&[SourceName::File]);
        tokio::spawn(merging.run());
        let channel = mux.channel(SourceName::File).unwrap();
        Self { mux, channel, wanted: ListingBuilder::new(SourceName::File), stop: CancellationToken::new() }
    }

    fn deliver_to(&self, behaviour: Behaviour) -> Running {
        self.deliver_as(behaviour, |_| ())
    }

    fn deliver_as(&self, behaviour: Behaviour, change: impl Fn(&mut SinkDouble)) -> Running {
        let (mut double, received) = SinkDouble::new(behaviour);
        change(&mut double);
        let (delivery, status) = Delivery::new("double", double, self.mux.updates(Notify::Incremental));
        Running { received, status, task: tokio::spawn(delivery.run(self.stop.clone())) }
    }

    /// To a sink whose numbers are these.
    fn deliver_numbered(&self, numbers: impl Numbers + 'static) -> Running {
        let (double, received) = SinkDouble::new(Behaviour::Accepts);
        let updates = self.mux.updates(Notify::Incremental);
        let (delivery, status) = Delivery::numbered("double", double, updates, numbers);
        Running { received, status, task: tokio::spawn(delivery.run(self.stop.clone())) }
    }

    /// Publishes a listing of these pods.
    async fn want(&mut self, pods: &str) {
        let pods = pods.split_whitespace().map(pod).collect();
        self.wanted.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(self.wanted.listing());
        assert!(soon(self.channel.merged()).await);
    }

    /// Ends the source and the mux.
    fn end(self) {
        drop(self.channel);
    }
}

impl Running {
    async fn received(&mut self, wanted: impl FnMut(&Received) -> bool) -> Received {
        soon(self.received.wait_for(wanted)).await.unwrap().clone()
    }

    async fn status(&mut self, wanted: impl FnMut(&SinkStatus) -> bool) -> SinkStatus {
        soon(self.status.wait_for(wanted)).await.unwrap().clone()
    }
}

/// Waits for an hour of paused time at most.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_hours(1), future).await.expect("nothing happened for an hour")
}

#[tokio::test(start_paused = true)]
async fn updates_are_delivered_in_order_with_their_own_seq_and_acknowledged() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Accepts);
    upstream.want("a b").await;
    sink.status(|status| status.acknowledged == Some(1)).await;
    upstream.want("b=i:2 c").await;
    let received = sink.received(|received| received.replica.seq == 4).await;
    assert_eq!(
        received.replica.heard,
        ["1 ADD file 2", "2 REMOVE file 1", "3 ADD file 1", "4 UPDATE file 1"]
    );
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
    assert_eq!(sink.status.borrow().acknowledged, Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_failed_update_is_delivered_again_unchanged() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Fails(3));
    upstream.want("a").await;
    let failing =
        sink.status(|status| status.failing.as_ref().is_some_and(|f| f.attempts == 2)).await.failing;
    let failing = failing.unwrap();
    assert_eq!((failing.seq, &*failing.error), (Some(1), "no route to host"));
    assert!(failing.next_attempt > failing.since.time);

    let recovered = sink.status(|status| status.acknowledged == Some(1)).await;
    assert_eq!((recovered.failing, recovered.busy_since), (None, None));
    let attempts = sink.received.borrow().attempts.clone();
    assert_eq!(attempts.len(), 4);
    assert!(attempts.iter().all(|(_, update)| *update == attempts[0].1), "same seq, time and pods");
}

#[tokio::test(start_paused = true)]
async fn the_delays_between_retries_double_from_half_a_second_to_a_minute() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Fails(12));
    upstream.want("a").await;
    let attempts = sink.received(|received| received.attempts.len() == 13).await.attempts;
    let delays = attempts.windows(2).map(|pair| pair[1].0 - pair[0].0);
    for (delay, nominal) in delays.zip([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0, 60.0]) {
        let nominal = Duration::from_secs_f64(nominal);
        // The paused clock counts whole milliseconds.
        let bounds = nominal / 2..=nominal + Duration::from_millis(1);
        assert!(bounds.contains(&delay), "{delay:?} of {nominal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_asks_for_a_delay_is_asked_again_after_the_longer_of_it_and_the_growing_one() {
    for seconds in [0.0, 5.0] {
        let mut upstream = Upstream::start();
        let wanted = Duration::from_secs_f64(seconds);
        let mut sink = upstream.deliver_to(Behaviour::FailsAsking(8, wanted));
        upstream.want("a").await;
        let attempts = sink.received(|received| received.attempts.len() == 9).await.attempts;
        let delays = attempts.windows(2).map(|pair| pair[1].0 - pair[0].0);
        for (delay, nominal) in delays.zip([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]) {
            let nominal = Duration::from_secs_f64(nominal);
            // The paused clock counts whole milliseconds.
            let bounds = wanted.max(nominal / 2)..=wanted.max(nominal) + Duration::from_millis(1);
            assert!(bounds.contains(&delay), "{delay:?} of {nominal:?}, asked for {wanted:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_makes_a_pending_retry_at_once() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Fails(8));
    upstream.want("a").await;
    sink.status(|status| status.failing.as_ref().is_some_and(|failing| failing.attempts == 8)).await;
    let asked = Instant::now();
    upstream.stop.cancel();
    sink.received(|received| received.replica.seq == 1).await;
    assert_eq!(asked.elapsed(), Duration::ZERO, "the delay would have been at least half a minute");
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_the_delays_start_again_with_the_shortest() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Fails(usize::MAX));
    upstream.want("a").await;
    sink.status(|status| status.failing.as_ref().is_some_and(|failing| failing.attempts == 9)).await;
    upstream.stop.cancel();
    // The clock is simulated.
    sleep(Duration::from_secs(10)).await;
    let tried = sink.received.borrow().attempts.len() - 9;
    assert!((5..=6).contains(&tried), "at once, and then 0.5, 1, 2 and 4 s apart at most: {tried}");
    assert!(!sink.task.is_finished(), "the delivery itself does not give up");
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_no_pause_that_a_consumer_asks_for_is_kept() {
    let mut upstream = Upstream::start();
    let (_gate, closed) = watch::channel(false);
    let mut sink = upstream.deliver_to(Behaviour::FailsUntil(closed));
    upstream.want("a").await;
    sink.status(|status| status.failing.is_some()).await;
    upstream.stop.cancel();
    sleep(Duration::from_secs(10)).await;
    let tried = sink.received.borrow().attempts.len() - 1;
    assert!((5..=6).contains(&tried), "an hour was asked for: {tried}");
}

#[tokio::test(start_paused = true)]
async fn a_fatal_error_ends_the_delivery() {
    let mut upstream = Upstream::start();
    let sink = upstream.deliver_to(Behaviour::Fatal);
    upstream.want("a").await;
    let error = soon(sink.task).await.unwrap().unwrap_err();
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert_eq!(chain, "sink double failed at update 1: the sink accepts no more updates: the pipe is closed");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_away_while_nothing_is_delivered_ends_the_delivery() {
    let mut upstream = Upstream::start();
    let (leave, gate) = watch::channel(false);
    let mut sink = upstream.deliver_to(Behaviour::Leaves(gate));
    upstream.want("a").await;
    sink.received(|received| received.replica.seq == 1).await;
    assert!(!sink.task.is_finished());
    leave.send(true).unwrap();
    let error = soon(sink.task).await.unwrap().unwrap_err();
    assert_eq!((error.seq, error.sink.as_str()), (2, "double"));
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_a_reader_that_goes_away_is_no_error() {
    let mut upstream = Upstream::start();
    let (leave, gate) = watch::channel(false);
    let mut sink = upstream.deliver_to(Behaviour::Leaves(gate));
    upstream.want("a").await;
    sink.received(|received| received.replica.seq == 1).await;
    upstream.stop.cancel();
    leave.send(true).unwrap();
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_a_reader_that_goes_away_during_an_update_is_no_error() {
    let mut upstream = Upstream::start();
    upstream.stop.cancel();
    let sink = upstream.deliver_to(Behaviour::Fatal);
    upstream.want("a").await;
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_loses_everything_again_and_again_is_not_called_without_a_pause() {
    let behaviours = [
        Behaviour::AlwaysRestarts,
        Behaviour::RestartsAtSource(SourceName::File),
        Behaviour::RestartsWhenIdle,
    ];
    for behaviour in behaviours {
        let mut upstream = Upstream::start();
        let mut sink = upstream.deliver_to(behaviour);
        upstream.want("a b c").await;
        // A beginning has a SET for each source.
        sink.received(|received| received.attempts.len() >= 60).await;
        let attempts = sink.received.borrow().attempts.clone();
        let lasted = attempts[59].0 - attempts[0].0;
        assert!(lasted >= Duration::from_secs(5), "60 attempts in {lasted:?}");
        sink.status(|status| status.failing.is_some()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pending_updates_are_delivered_before_the_end() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Slow(Duration::from_secs(5)));
    upstream.want("a").await;
    sink.status(|status| status.busy_since.is_some()).await;
    upstream.want("a=i:2 b").await;
    let wanted = upstream.wanted.listing();
    upstream.stop.cancel();
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
    let replica = &sink.received.borrow().replica;
    assert_eq!(replica.heard, ["1 ADD file 1", "2 ADD file 1", "3 UPDATE file 1"]);
    let texts = wanted.iter().map(|(_, entry)| entry.pod().text().to_vec());
    assert!(replica.pods.values().map(|text| text.as_bytes().to_vec()).eq(texts));
}

/// Numbers that take a second each, as on a slow disk, after some failures.
struct Slow {
    numbers: Counter,
    failures: u32,
}

impl Numbers for Slow {
    type Error = io::Error;

    async fn reserve(&mut self) -> io::Result<()> {
        sleep(Duration::from_secs(1)).await;
        let left = self.failures.checked_sub(1);
        self.failures = left.unwrap_or_default();
        left.map_or(Ok(()), |_| Err(io::ErrorKind::StorageFull.into()))
    }

    fn next(&mut self) -> u64 {
        self.numbers.next()
    }

    fn run(&self) -> Option<Arc<str>> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn updates_whose_numbers_take_a_while_are_delivered_before_the_end_unless_it_is_stopped() {
    for (is_stopped, failures, delivered) in [(false, 0, 1), (false, 1, 1), (true, 0, 0), (true, 1, 0)] {
        let mut upstream = Upstream::start();
        upstream.want("a").await;
        let sink = upstream.deliver_numbered(Slow { numbers: Counter::default(), failures });
        if is_stopped {
            upstream.stop.cancel();
        }
        let stop = upstream.stop.clone();
        upstream.end();
        soon(sink.task).await.unwrap().unwrap();
        assert_eq!(stop.is_cancelled(), is_stopped);
        assert_eq!(
            sink.received.borrow().replica.heard.len(),
            delivered,
            "stopped: {is_stopped}, {failures}"
        );
    }
}

#[test]
fn a_stuck_sink_is_logged_once_and_when_it_continues() {
    collected(Builder::new_current_thread().start_paused(true), async |log| {
        let mut upstream = Upstream::start();
        let mut sink = upstream.deliver_to(Behaviour::Slow(Duration::from_mins(10)));
        upstream.want("a").await;
        sink.received(|received| received.replica.seq == 1).await;
        sink.status(|status| status.acknowledged == Some(1)).await;
        let lines = log.lines_with("sink=\"double\"");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("WARN") && lines[0].contains("sink stuck") && lines[0].contains("30s"));
        assert!(lines[1].contains("INFO") && lines[1].contains("sink no longer stuck"), "{lines:?}");
    });
}

#[test]
fn a_sink_that_fails_slowly_again_and_again_is_logged_as_failing_only() {
    collected(Builder::new_current_thread().start_paused(true), async |log| {
        let mut upstream = Upstream::start();
        let mut sink = upstream.deliver_to(Behaviour::FailsSlowly(5, Duration::from_secs(31)));
        upstream.want("a").await;
        sink.status(|status| status.acknowledged == Some(1)).await;
        let lines = log.lines_with("sink=\"double\"");
        let words = ["sink stuck", "sink delivery failed", "sink recovered"];
        assert!(
            lines.len() == 3 && lines.iter().zip(words).all(|(line, word)| line.contains(word)),
            "{lines:?}"
        );
    });
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_sink_ends_its_task() {
    let mut upstream = Upstream::start();
    let sink = upstream.deliver_to(Behaviour::Panics);
    upstream.want("a").await;
    assert!(soon(sink.task).await.unwrap_err().is_panic());
}

#[tokio::test(start_paused = true)]
async fn unless_a_sink_is_fresh_each_source_begins_with_a_set() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_as(Behaviour::Accepts, |double| double.is_fresh = false);
    let heard = sink.received(|received| received.replica.seq == 3).await.replica.heard;
    assert_eq!(heard, ["1 SET http 0", "2 SET url 0", "3 SET api 0"], "they are not configured");
    upstream.want("a b").await;
    let heard = sink.received(|received| received.replica.seq == 4).await.replica.heard;
    assert_eq!(heard[3..], ["4 SET file 2"], "the file source has synced");
    upstream.want("b").await;
    let heard = sink.received(|received| received.replica.seq == 5).await.replica.heard;
    assert_eq!(heard[4..], ["5 REMOVE file 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_has_lost_everything_receives_everything_again() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Behaviour::Restarts(2));
    upstream.want("a").await;
    sink.received(|received| received.replica.seq == 1).await;
    upstream.want("a b").await;
    let attempts = sink.received(|received| received.attempts.len() == 6).await.attempts;
    let told: Vec<String> = attempts
        .iter()
        .map(|(_, update)| {
            format!("{} {} {}", update.update.op, update.update.source, update.update.pods.len())
        })
        .collect();
    assert_eq!(told, ["ADD file 1", "ADD file 1", "SET file 2", "SET http 0", "SET url 0", "SET api 0"]);
}

#[tokio::test(start_paused = true)]
async fn an_update_that_exceeds_the_limit_of_the_sink_comes_in_parts() {
    let mut upstream = Upstream::start();
    upstream.want("a b c d e").await;
    let size = upstream.wanted.listing().iter().next().unwrap().1.pod().text().len();
    let change = |double: &mut SinkDouble| (double.is_fresh, double.max_bytes) = (false, 2 * (size + 1));
    let mut sink = upstream.deliver_as(Behaviour::Accepts, change);
    let parts = |attempts: &[(Instant, SequencedUpdate)]| -> Vec<String> {
        let part = |(_, part): &(Instant, SequencedUpdate)| {
            let line: Vec<u8> = part.line().flat_map(|piece| piece.to_vec()).collect();
            let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(line.get("more"), part.more.then_some(&true.into()));
            format!("{} {} {}", part.update.op, part.update.pods.len(), part.more)
        };
        attempts.iter().map(part).collect()
    };
    let attempts = sink.received(|received| received.attempts.len() >= 3).await.attempts;
    assert_eq!(parts(&attempts[..3]), ["SET 2 true", "SET 2 true", "SET 1 false"]);
    sink.status(|status| status.acknowledged == Some(6)).await;
    upstream.want("a b c d e f g h").await;
    let attempts = sink.received(|received| received.attempts.len() == 8).await.attempts;
    assert_eq!(parts(&attempts[6..]), ["ADD 2 false", "ADD 1 false"], "only a SET needs its end");
}

#[tokio::test(start_paused = true)]
async fn one_pod_is_never_divided() {
    let mut upstream = Upstream::start();
    upstream.want("a b").await;
    let mut sink = upstream.deliver_as(Behaviour::Accepts, |double| double.max_bytes = 1);
    let heard = sink.received(|received| received.replica.seq == 2).await.replica.heard;
    assert_eq!(heard, ["1 ADD file 1", "2 ADD file 1"]);
}

#[cfg(feature = "agent")]
#[tokio::test]
async fn a_sink_whose_numbers_find_no_space_says_so_until_there_is_some() {
    let mut upstream = Upstream::start();
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let sequence = Sequence::after("run", 0);
    sequence.attach(state.db.clone(), &state.stored, 0);
    let fault = Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC };
    disk.platter().fault = Some(fault);
    let mut sink = upstream.deliver_numbered(sequence);
    upstream.want("a").await;
    let status = sink.status(|status| status.failing.is_some()).await;
    let failing = status.failing.unwrap();
    assert_eq!((failing.seq, status.lacks_number, status.acknowledged), (None, true, None));
    assert!(failing.error.contains("No space left on device"), "{}", failing.error);
    let later = sink.status(|status| status.failing.as_ref().is_some_and(|now| now.attempts > 1)).await;
    assert_eq!(later.failing.unwrap().since, failing.since);
    disk.platter().fault = None;
    let status = sink.status(|status| status.acknowledged.is_some()).await;
    assert_eq!((status.failing, status.busy_since, status.lacks_number), (None, None, false));
    drop(state);
}

#[cfg(feature = "agent")]
#[tokio::test(start_paused = true)]
async fn a_sink_whose_numbers_wait_for_a_disk_counts_as_stuck() {
    let (_dir, db, idle_writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    sequence.attach(db, &stored, 0);
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_numbered(sequence);
    upstream.want("a").await;
    let status = sink.status(|status| status.busy_since.is_some()).await;
    assert_eq!((status.lacks_number, status.occupation()), (true, "waiting for a number"));
    let since = status.busy_since.unwrap();
    tokio::time::advance(SinkStatus::STUCK_AFTER).await;
    assert_eq!(status.stuck(), Some(since));
    drop(idle_writer);
}
