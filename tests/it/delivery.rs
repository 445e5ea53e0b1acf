//! Delivery: in order, at the sink's pace, tried again for ever.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use podmux::{
    mux::{Mux, Notify, SourceChannel},
    pod::{ListingBuilder, Origin, SourceName},
    sink::{Delivery, DeliveryError, SinkStatus},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    script::pod,
    sinks::{Diary, Double, Manners},
};

/// A mux with one source, as far as a delivery can tell the whole agent.
struct Upstream {
    mux: Mux,
    channel: SourceChannel,
    wanted: ListingBuilder,
    stop: CancellationToken,
}

/// A delivery that runs, and what can be seen of it.
struct Running {
    diary: watch::Receiver<Diary>,
    status: watch::Receiver<SinkStatus>,
    task: JoinHandle<Result<(), DeliveryError>>,
}

impl Upstream {
    fn start() -> Self {
        let (mux, turning) = Mux::new(&[SourceName::File]);
        tokio::spawn(turning.run());
        let channel = mux.channel(SourceName::File).unwrap();
        Self { mux, channel, wanted: ListingBuilder::new(SourceName::File), stop: CancellationToken::new() }
    }

    fn deliver_to(&self, manners: Manners) -> Running {
        let (double, diary) = Double::new(manners);
        let (delivery, status) = Delivery::new("double", double, self.mux.updates(Notify::Incremental));
        Running { diary, status, task: tokio::spawn(delivery.run(self.stop.clone())) }
    }

    /// Wants these pods, and no others, from now on.
    async fn want(&mut self, pods: &str) {
        let pods = pods.split_whitespace().map(pod).collect();
        self.wanted.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(self.wanted.listing());
        assert!(soon(self.channel.merged()).await);
    }

    /// Ends the source, and with it the mux.
    fn end(self) {
        drop(self.channel);
    }
}

impl Running {
    async fn diary(&mut self, wanted: impl FnMut(&Diary) -> bool) -> Diary {
        soon(self.diary.wait_for(wanted)).await.unwrap().clone()
    }

    async fn status(&mut self, wanted: impl FnMut(&SinkStatus) -> bool) -> SinkStatus {
        soon(self.status.wait_for(wanted)).await.unwrap().clone()
    }
}

/// An hour of paused time: longer than any wait that a test waits for.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_hours(1), future).await.expect("nothing happened for an hour")
}

#[tokio::test(start_paused = true)]
async fn updates_come_in_order_with_their_own_seq_and_are_acknowledged() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Takes);
    upstream.want("a b").await;
    sink.status(|status| status.acknowledged == Some(1)).await;
    upstream.want("b=i:2 c").await;
    let diary = sink.diary(|diary| diary.replica.seq == 4).await;
    assert_eq!(diary.replica.heard, ["1 ADD file 2", "2 REMOVE file 1", "3 ADD file 1", "4 UPDATE file 1"]);
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
    assert_eq!(sink.status.borrow().acknowledged, Some(4));
}

#[tokio::test(start_paused = true)]
async fn what_a_sink_did_not_take_it_is_given_again_unchanged() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Fails(3));
    upstream.want("a").await;
    let failing =
        sink.status(|status| status.failing.as_ref().is_some_and(|f| f.attempts == 2)).await.failing;
    let failing = failing.unwrap();
    assert_eq!((failing.seq, &*failing.error), (1, "no route to host"));
    assert!(failing.next_attempt > failing.since);

    let recovered = sink.status(|status| status.acknowledged == Some(1)).await;
    assert_eq!((recovered.failing, recovered.busy_since), (None, None));
    let attempts = sink.diary.borrow().attempts.clone();
    assert_eq!(attempts.len(), 4);
    assert!(attempts.iter().all(|(_, update)| *update == attempts[0].1), "same seq, time and pods");
}

#[tokio::test(start_paused = true)]
async fn the_waits_between_tries_double_from_half_a_second_to_a_minute() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Fails(12));
    upstream.want("a").await;
    let attempts = sink.diary(|diary| diary.attempts.len() == 13).await.attempts;
    let waits = attempts.windows(2).map(|pair| pair[1].0 - pair[0].0);
    for (wait, nominal) in waits.zip([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0, 60.0]) {
        let nominal = Duration::from_secs_f64(nominal);
        // The clock of tests goes by whole milliseconds.
        let bounds = nominal / 2..=nominal + Duration::from_millis(1);
        assert!(bounds.contains(&wait), "{wait:?} of {nominal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_for_a_retry() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Fails(8));
    upstream.want("a").await;
    sink.status(|status| status.failing.as_ref().is_some_and(|failing| failing.attempts == 8)).await;
    let asked = Instant::now();
    upstream.stop.cancel();
    sink.diary(|diary| diary.replica.seq == 1).await;
    assert_eq!(asked.elapsed(), Duration::ZERO, "the wait would have been at least half a minute");
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_a_failing_sink_is_tried_as_often_as_a_grace_allows() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Fails(usize::MAX));
    upstream.want("a").await;
    sink.status(|status| status.failing.as_ref().is_some_and(|failing| failing.attempts == 9)).await;
    upstream.stop.cancel();
    sleep(Duration::from_secs(10)).await;
    let tried = sink.diary.borrow().attempts.len() - 9;
    assert!((5..=6).contains(&tried), "at once, and then 0.5, 1, 2 and 4 s apart at most: {tried}");
    assert!(!sink.task.is_finished(), "it is not the delivery that gives up");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_has_ended_ends_its_delivery() {
    let mut upstream = Upstream::start();
    let sink = upstream.deliver_to(Manners::Ends);
    upstream.want("a").await;
    let error = soon(sink.task).await.unwrap().unwrap_err();
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert_eq!(chain, "sink double ended at update 1: the sink will take no more updates: the pipe is shut");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_a_quiet_stream_ends_the_delivery() {
    let mut upstream = Upstream::start();
    let (leave, gate) = watch::channel(false);
    let mut sink = upstream.deliver_to(Manners::Leaves(gate));
    upstream.want("a").await;
    sink.diary(|diary| diary.replica.seq == 1).await;
    assert!(!sink.task.is_finished());
    leave.send(true).unwrap();
    let error = soon(sink.task).await.unwrap().unwrap_err();
    assert_eq!((error.seq, error.sink.as_str()), (2, "double"));
}

#[tokio::test(start_paused = true)]
async fn once_the_end_is_asked_for_a_reader_may_leave() {
    let mut upstream = Upstream::start();
    let (leave, gate) = watch::channel(false);
    let mut sink = upstream.deliver_to(Manners::Leaves(gate));
    upstream.want("a").await;
    sink.diary(|diary| diary.replica.seq == 1).await;
    upstream.stop.cancel();
    leave.send(true).unwrap();
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_pending() {
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Slow(Duration::from_secs(5)));
    upstream.want("a").await;
    sink.status(|status| status.busy_since.is_some()).await;
    upstream.want("a=i:2 b").await;
    let wanted = upstream.wanted.listing();
    upstream.stop.cancel();
    upstream.end();
    soon(sink.task).await.unwrap().unwrap();
    let replica = &sink.diary.borrow().replica;
    assert_eq!(replica.heard, ["1 ADD file 1", "2 ADD file 1", "3 UPDATE file 1"]);
    let texts = wanted.iter().map(|(_, entry)| entry.pod().text().to_vec());
    assert!(replica.pods.values().map(|text| text.as_bytes().to_vec()).eq(texts));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_stuck_is_said_to_be_so_once_and_when_it_goes_on() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let log = log.clone();
        move || Shared(log.clone())
    };
    let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(writer).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut upstream = Upstream::start();
    let mut sink = upstream.deliver_to(Manners::Slow(Duration::from_mins(10)));
    upstream.want("a").await;
    sink.diary(|diary| diary.replica.seq == 1).await;
    sink.status(|status| status.acknowledged == Some(1)).await;
    let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("sink=\"double\"")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("WARN") && lines[0].contains("busy with one update for 30s"), "{log}");
    assert!(lines[1].contains("INFO") && lines[1].contains("no longer busy"), "{log}");
}

/// A log for a test to read.
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_sink_is_not_hidden() {
    let mut upstream = Upstream::start();
    let sink = upstream.deliver_to(Manners::Panics);
    upstream.want("a").await;
    assert!(soon(sink.task).await.unwrap_err().is_panic());
}
