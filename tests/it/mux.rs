//! The mux: no source and no consumer waits for another one.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use podmux::{
    mux::{Mux, Notify, SourceChannel, Updates},
    pod::{ListingBuilder, Op, Origin, PodUpdate, SourceName},
    storage::SourceState,
};
use tokio::{task::JoinHandle, time::timeout};

use crate::support::{
    logs::{Log, logged},
    script::{pod, update_line},
};

/// A source that publishes the pods of a test.
struct Source {
    channel: SourceChannel,
    builder: ListingBuilder,
}

impl Source {
    fn of(mux: &Mux, source: SourceName) -> Self {
        Self { channel: mux.channel(source).unwrap(), builder: ListingBuilder::new(source) }
    }

    fn put(&mut self, pods: &str) {
        let pods = pods.split_whitespace().map(pod).collect();
        self.builder.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(self.builder.listing());
    }

    fn restore(&mut self, pods: &str) {
        let pods = pods.split_whitespace().map(pod).collect();
        self.builder.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(self.builder.restored_listing());
    }

    async fn put_and_merge(&mut self, pods: &str) {
        self.put(pods);
        assert!(soon(self.channel.merged()).await);
    }
}

/// Fails if nothing happens for a minute.
async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_mins(1), future).await.expect("nothing happened for a minute")
}

async fn next_line(updates: &mut Updates) -> String {
    update_line(&soon(updates.next()).await.expect("the mux has not ended"))
}

fn start(sources: &[SourceName]) -> (Mux, JoinHandle<()>) {
    let (mux, turn) = Mux::new(sources);
    (mux, tokio::spawn(turn.run()))
}

// TestConfigurationChannels
#[tokio::test]
async fn each_configured_source_has_one_channel() {
    let (mux, _turn) = Mux::new(&[SourceName::File, SourceName::Api]);
    assert_eq!(mux.channel(SourceName::File).unwrap().source(), SourceName::File);
    assert!(mux.channel(SourceName::File).is_none(), "there is only one channel");
    assert!(mux.channel(SourceName::Http).is_none(), "the source is not configured");
    assert_eq!(mux.channel(SourceName::Api).unwrap().source(), SourceName::Api);
}

#[tokio::test]
#[should_panic(expected = "a source publishes only its own listings")]
async fn a_source_cannot_publish_the_listing_of_another() {
    let (mux, _turn) = Mux::new(&SourceName::ALL);
    mux.channel(SourceName::File).unwrap().publish(ListingBuilder::new(SourceName::Api).listing());
}

#[test]
fn a_conflict_between_sources_is_logged_when_it_begins_and_when_it_ends() {
    logged(async |log: Log| {
        let (mux, _loop) = start(&[SourceName::File, SourceName::Http]);
        let [mut file, mut http] =
            [SourceName::File, SourceName::Http].map(|source| Source::of(&mux, source));
        file.put_and_merge("a").await;
        http.put_and_merge("a").await;
        file.put_and_merge("a b").await;
        let [begin] = &log.lines_with("pod rejected")[..] else { panic!("one line is expected") };
        assert!(begin.contains(r#"source="http" path=test pod="default/a""#), "{begin}");
        assert_eq!(log.lines_with("no longer rejected"), [""; 0]);
        file.put_and_merge("").await;
        assert_eq!(log.lines_with("no longer rejected").len(), 1);
        assert_eq!(log.lines_with("pod rejected").len(), 1);
    });
}

// TestMergeInvoked
#[tokio::test]
async fn a_published_listing_is_merged() {
    let (mux, _turn) = start(&[SourceName::File]);
    let mut file = Source::of(&mux, SourceName::File);
    file.put_and_merge("foo").await;
    let merged = mux.merged().borrow().clone();
    assert_eq!(merged.len(), 1);
    assert_eq!(merged.state(SourceName::File), Some(SourceState::Synced));
    assert_eq!(merged.state(SourceName::Api), None);
}

// TestSimultaneousMerge
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn listings_of_all_sources_at_once_are_all_merged() {
    let (mux, _turn) = start(&SourceName::ALL);
    let mut tasks = Vec::new();
    for source in SourceName::ALL {
        let mut source = Source::of(&mux, source);
        tasks.push(tokio::spawn(async move {
            for round in 0..200 {
                let name = source.channel.source();
                source.put_and_merge(&format!("{name}-a=i:{round} {name}-b=i:{round}")).await;
            }
            source
        }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    let images: Vec<String> = mux
        .merged()
        .borrow()
        .iter()
        .map(|(key, entry)| {
            let pod = entry.pod().typed().unwrap();
            format!("{key} {}", pod.spec.unwrap().containers[0].image.clone().unwrap())
        })
        .collect();
    let expected: Vec<String> = ["api", "file", "http", "url"]
        .iter()
        .flat_map(|source| ["a", "b"].map(|pod| format!("default/{source}-{pod} i:199")))
        .collect();
    assert_eq!(images, expected);
}

// TestPodConfigRace
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_consumer_beside_racing_sources_replays_to_the_merged_view() {
    let (mux, turn) = start(&SourceName::ALL);
    let mut updates = mux.updates(Notify::Incremental);
    for source in SourceName::ALL {
        let mut source = Source::of(&mux, source);
        tokio::spawn(async move {
            for round in 0..500 {
                let name = source.channel.source();
                source.put(&format!("shared#{name} {name}=i:{round} {name}-{}", round % 3));
                tokio::task::yield_now().await;
            }
        });
    }
    let mut replay = BTreeMap::new();
    while let Some(update) = soon(updates.next()).await {
        replay_update(&mut replay, &update);
    }
    soon(turn).await.unwrap();
    let merged = mux.merged().borrow().clone();
    let wanted: BTreeMap<String, Vec<u8>> =
        merged.iter().map(|(key, entry)| (key.to_string(), entry.pod().text().to_vec())).collect();
    assert_eq!(replay, wanted);
    assert_eq!(wanted.len(), 9, "a shared pod, and two of each source");
}

fn replay_update(replay: &mut BTreeMap<String, Vec<u8>>, update: &PodUpdate) {
    for pod in update.pods.iter() {
        let before = match update.op {
            Op::Remove => replay.remove(pod.key().as_str()),
            _ => replay.insert(pod.key().to_string(), pod.text().to_vec()),
        };
        assert_eq!(before.is_none(), update.op == Op::Add, "{} of {}", update.op, pod.key());
    }
}

// TestNewSourceApiserver_UpdatesAndMultiplePods
#[tokio::test]
async fn a_consumer_that_keeps_up_receives_each_change() {
    let (mux, _turn) = start(&[SourceName::Api]);
    let mut updates = mux.updates(Notify::Incremental);
    let mut api = Source::of(&mux, SourceName::Api);
    let mut received = Vec::new();
    for listing in ["one", "one two", "one=i:2 two", "two", "two%Running"] {
        api.put(listing);
        received.push(next_line(&mut updates).await);
    }
    assert_eq!(
        received,
        [
            "ADD api: default/one#one-uid",
            "ADD api: default/two#two-uid",
            "UPDATE api: default/one#one-uid",
            "REMOVE api: default/one#one-uid",
            "RECONCILE api: default/two#two-uid",
        ]
    );
}

#[tokio::test]
async fn another_builder_hides_no_replacement() {
    let (mux, _turn) = start(&[SourceName::Api]);
    let mut updates = mux.updates(Notify::Incremental);
    let mut api = Source::of(&mux, SourceName::Api);
    let mut received = Vec::new();
    for listing in ["a#1", "a#2"] {
        api.builder = ListingBuilder::new(SourceName::Api);
        api.put(listing);
        received.push(next_line(&mut updates).await);
    }
    received.push(next_line(&mut updates).await);
    assert_eq!(received, ["ADD api: default/a#1", "REMOVE api: default/a#1", "ADD api: default/a#2"]);
}

// TestNewSourceApiserver_InitialEmptySendsEmptyPodUpdate
#[tokio::test]
async fn the_first_sync_of_an_empty_source_is_an_empty_add() {
    let (mux, _turn) = start(&[SourceName::Api]);
    let mut updates = mux.updates(Notify::Incremental);
    let mut api = Source::of(&mux, SourceName::Api);
    api.put("");
    assert_eq!(next_line(&mut updates).await, "ADD api:");
}

// Untested upstream: a full updates channel. k#6764
#[tokio::test]
async fn a_slow_consumer_delays_no_one_and_receives_one_difference() {
    let (mux, _turn) = start(&[SourceName::File, SourceName::Api]);
    let (mut sleeper, mut awake) = (mux.updates(Notify::Incremental), mux.updates(Notify::Incremental));
    let (mut file, mut api) = (Source::of(&mux, SourceName::File), Source::of(&mux, SourceName::Api));
    api.put_and_merge("still=i:still").await;
    assert_eq!(next_line(&mut sleeper).await, "ADD api: default/still#still-uid");
    assert_eq!(next_line(&mut awake).await, "ADD api: default/still#still-uid");
    for round in 0..1_000 {
        file.put_and_merge(&format!("a=i:{round} b-{round}")).await;
        while awake.delivered().len() < 3 || !received_image(&awake, round) {
            next_line(&mut awake).await;
        }
    }
    let received = [next_line(&mut sleeper).await];
    assert_eq!(received, ["ADD file: default/a#a-uid default/b-999#b-999-uid"]);
    let newest = sleeper.delivered().iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
    assert_eq!(newest, ["default/a", "default/b-999", "default/still"]);
}

fn received_image(updates: &Updates, round: usize) -> bool {
    let image = format!(r#""image":"i:{round}""#);
    let texts =
        updates.delivered().iter().map(|(_, entry)| String::from_utf8_lossy(entry.pod().text()).into_owned());
    texts.filter(|text| text.contains(&image)).count() == 1
}

#[tokio::test]
async fn a_newer_view_replaces_the_rest_of_a_batch() {
    let (mux, _turn) = start(&[SourceName::File]);
    let mut updates = mux.updates(Notify::Incremental);
    let mut file = Source::of(&mux, SourceName::File);
    file.put_and_merge("gone changed").await;
    assert_eq!(next_line(&mut updates).await, "ADD file: default/changed#changed-uid default/gone#gone-uid");
    file.put_and_merge("changed=i:2 new").await;
    assert_eq!(next_line(&mut updates).await, "REMOVE file: default/gone#gone-uid");
    // Before the ADD of `new` and the UPDATE, a newer listing is published.
    file.put_and_merge("changed=i:1 newer").await;
    assert_eq!(next_line(&mut updates).await, "ADD file: default/newer#newer-uid");
    // `changed` is again as delivered, so the next update is the next change.
    file.put_and_merge("newer").await;
    assert_eq!(next_line(&mut updates).await, "REMOVE file: default/changed#changed-uid");
}

#[tokio::test]
async fn a_change_that_is_not_compared_gives_no_update() {
    let (mux, _turn) = start(&[SourceName::Api]);
    let mut updates = mux.updates(Notify::Incremental);
    let mut api = Source::of(&mux, SourceName::Api);
    api.put_and_merge("foo<1").await;
    assert_eq!(next_line(&mut updates).await, "ADD api: default/foo#foo-uid");
    api.put_and_merge("foo<2").await;
    assert!(poll_and_cancel(updates.next()).is_none(), "a creationTimestamp is not compared");
    // Otherwise each later comparison would find the same difference.
    let known: Vec<_> =
        updates.delivered().iter().map(|(_, entry)| entry.pod().creation_timestamp()).collect();
    assert_eq!(known, [Some("2026-01-02T00:00:00Z")]);
}

#[tokio::test]
async fn the_latest_listing_wins() {
    let (mux, turn) = Mux::new(&[SourceName::File]);
    let mut file = Source::of(&mux, SourceName::File);
    let mut updates = mux.updates(Notify::Incremental);
    file.put("a");
    file.put("b");
    let _turn = tokio::spawn(turn.run());
    assert_eq!(next_line(&mut updates).await, "ADD file: default/b#b-uid");
}

#[tokio::test]
async fn a_restored_listing_replaces_no_waiting_listing() {
    let (mux, turn) = Mux::new(&[SourceName::File, SourceName::Http]);
    let (mut file, mut http) = (Source::of(&mux, SourceName::File), Source::of(&mux, SourceName::Http));
    let mut updates = mux.updates(Notify::Incremental);
    file.put("live");
    file.restore("late");
    http.restore("one");
    http.restore("two");
    let _turn = tokio::spawn(turn.run());
    assert_eq!(next_line(&mut updates).await, "ADD file: default/live#live-uid");
    assert_eq!(next_line(&mut updates).await, "ADD http: default/one#one-uid default/two#two-uid");
    assert_eq!(mux.merged().borrow().state(SourceName::File), Some(SourceState::Synced));
    assert_eq!(mux.merged().borrow().state(SourceName::Http), Some(SourceState::Restored));
}

#[tokio::test]
async fn every_listing_is_merged_and_delivered_before_the_mux_ends() {
    let (mux, turn) = Mux::new(&[SourceName::File, SourceName::Api]);
    let mut updates = mux.updates(Notify::Incremental);
    let (mut file, api) = (Source::of(&mux, SourceName::File), Source::of(&mux, SourceName::Api));
    file.put("a");
    drop((file, api));
    soon(turn.run()).await;
    assert_eq!(next_line(&mut updates).await, "ADD file: default/a#a-uid");
    assert!(soon(updates.next()).await.is_none());
    assert!(soon(updates.next()).await.is_none(), "the channel stays closed");
}

#[tokio::test]
async fn merged_returns_false_when_the_mux_has_ended() {
    let (mux, turn) = Mux::new(&[SourceName::File]);
    let mut file = Source::of(&mux, SourceName::File);
    file.put("a");
    drop(turn);
    assert!(!soon(file.channel.merged()).await);
}

/// Polls a future once and drops it, as `select!` does with the other branches.
fn poll_and_cancel(future: impl Future<Output = Option<PodUpdate>>) -> Option<PodUpdate> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(update) => Some(update.expect("the mux has not ended")),
        std::task::Poll::Pending => None,
    }
}

// Untested upstream: cancel at every await.
#[tokio::test]
async fn cancelling_next_loses_and_repeats_no_update() {
    let (mux, _turn) = start(&[SourceName::File]);
    let mut updates = mux.updates(Notify::Incremental);
    let mut file = Source::of(&mux, SourceName::File);
    let mut received = Vec::new();
    for listing in ["a b", "a=i:2 c", "a=i:2! c%Running d", ""] {
        assert!(poll_and_cancel(updates.next()).is_none(), "there is no update yet");
        file.put_and_merge(listing).await;
        while let Some(update) = poll_and_cancel(updates.next()) {
            received.push(update_line(&update));
        }
    }
    assert_eq!(
        received,
        [
            "ADD file: default/a#a-uid default/b#b-uid",
            "REMOVE file: default/b#b-uid",
            "ADD file: default/c#c-uid",
            "UPDATE file: default/a#a-uid",
            "ADD file: default/d#d-uid",
            "DELETE file: default/a#a-uid",
            "RECONCILE file: default/c#c-uid",
            "REMOVE file: default/d#d-uid default/c#c-uid default/a#a-uid",
        ]
    );
}

#[tokio::test]
async fn merged_is_cancel_safe() {
    let (mux, turn) = Mux::new(&[SourceName::File]);
    let mut file = Source::of(&mux, SourceName::File);
    file.put("a");
    {
        let mut waiting = pin!(file.channel.merged());
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let _turn = tokio::spawn(turn.run());
    assert!(soon(file.channel.merged()).await);
}

#[tokio::test]
async fn a_late_consumer_starts_with_all_pods() {
    let (mux, _turn) = start(&[SourceName::File]);
    let mut file = Source::of(&mux, SourceName::File);
    file.put_and_merge("a b").await;
    file.put_and_merge("a=i:2 b c").await;
    let mut late = mux.updates(Notify::Incremental);
    assert_eq!(next_line(&mut late).await, "ADD file: default/a#a-uid default/b#b-uid default/c#c-uid");
}

#[tokio::test]
async fn a_heartbeat_needs_a_running_loop() {
    let (mux, turning) = Mux::new(&[SourceName::File]);
    let mut asked = pin!(mux.turns());
    let poll = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "the loop does not run");
    let task = tokio::spawn(turning.run());
    assert!(asked.await);
    drop(mux.channel(SourceName::File));
    task.await.unwrap();
    assert!(!mux.turns().await, "the mux has ended");
}

#[tokio::test]
async fn a_consumer_of_snapshots_holds_what_the_last_one_has() {
    let (mux, _turn) = start(&[SourceName::Api]);
    let mut updates = mux.updates(Notify::Snapshot);
    let mut api = Source::of(&mux, SourceName::Api);
    let mut received = Vec::new();
    for (listing, held) in [("one two", 2), ("two", 1), ("two three", 2)] {
        api.put(listing);
        received.push(next_line(&mut updates).await);
        assert_eq!(updates.delivered().len(), held);
    }
    assert_eq!(
        received,
        [
            "SET *: default/one#one-uid default/two#two-uid",
            "SET *: default/two#two-uid",
            "SET *: default/three#three-uid default/two#two-uid",
        ]
    );
}

#[tokio::test]
async fn the_empty_add_of_a_source_comes_before_a_reconcile() {
    let (mux, _turn) = start(&[SourceName::File, SourceName::Api]);
    let mut updates = mux.updates(Notify::Incremental);
    let (mut file, mut api) = (Source::of(&mux, SourceName::File), Source::of(&mux, SourceName::Api));
    api.put_and_merge("a").await;
    assert_eq!(next_line(&mut updates).await, "ADD api: default/a#a-uid");
    api.put_and_merge("a%Running").await;
    file.put_and_merge("").await;
    assert_eq!(next_line(&mut updates).await, "ADD file:");
    assert_eq!(next_line(&mut updates).await, "RECONCILE api: default/a#a-uid");
}

#[tokio::test]
async fn a_pod_that_gets_a_uid_of_its_own_is_no_longer_rejected() {
    let (mux, _turn) = start(&[SourceName::File, SourceName::Api]);
    let (mut file, mut api) = (Source::of(&mux, SourceName::File), Source::of(&mux, SourceName::Api));
    api.put_and_merge("first#u").await;
    file.put_and_merge("second#u").await;
    let merged = mux.merged();
    assert_eq!((merged.borrow().rejections().count(), merged.borrow().len()), (1, 1));
    file.put_and_merge("second#v").await;
    assert_eq!((merged.borrow().rejections().count(), merged.borrow().len()), (0, 2));
}
