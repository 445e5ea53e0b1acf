//! The history of updates: where a watcher starts, what it receives, and slow watchers.

use std::{sync::Arc, time::Duration};

use podmux::{
    db::Sequence,
    history::{Bounds, Changes, Gone, History, HistoryReader, Journaled as _, SeenPod, Watcher},
    mux::{Mux, Notify, SourceChannel},
    pod::{ListingBuilder, Op, Origin, PodKey, Prepared, SequencedUpdate, SourceName},
    runtime::{Observed, ObservedPod},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::support::{
    process::PATIENCE,
    script::pod,
    state::{State, idle},
};

/// A source, a mux and a history.
struct Stream {
    mux: Mux,
    channel: SourceChannel,
    wanted: ListingBuilder,
    reader: HistoryReader,
    task: JoinHandle<()>,
}

impl Stream {
    fn start(bounds: Bounds) -> Self {
        Self::numbered(bounds, Sequence::after("run", 0))
    }

    fn numbered(bounds: Bounds, sequence: Sequence) -> Self {
        Self::observing(bounds, sequence, None)
    }

    /// The url source never publishes anything.
    fn observing(bounds: Bounds, sequence: Sequence, observed: Option<watch::Receiver<Observed>>) -> Self {
        let (mux, merging) = Mux::new(&[SourceName::Http, SourceName::Url]);
        tokio::spawn(merging.run());
        let (history, reader) = History::new(mux.updates(Notify::Incremental), sequence, bounds);
        let task = tokio::spawn(history.observing(observed).run());
        let channel = mux.channel(SourceName::Http).unwrap();
        Self { mux, channel, wanted: ListingBuilder::new(SourceName::Http), reader, task }
    }

    /// Publishes a listing of these pods. Returns the number of the last update.
    async fn want(&mut self, pods: &str) -> u64 {
        // The history has begun before.
        self.reader.snapshot().await.unwrap();
        self.publish(pods).await;
        self.reader.snapshot().await.unwrap().seq
    }

    async fn publish(&mut self, pods: &str) {
        let pods = pods.split_whitespace().map(pod).collect();
        self.wanted.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(self.wanted.listing());
        assert!(self.channel.merged().await);
    }
}

async fn next(watcher: &mut Watcher) -> Option<Arc<SequencedUpdate>> {
    timeout(PATIENCE, watcher.next()).await.expect("the watcher receives an update")
}

/// The next updates, each as `SEQ OP SOURCE PODS`.
async fn told(watcher: &mut Watcher, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..count {
        let SequencedUpdate { seq, update, .. } = &*next(watcher).await.unwrap();
        told.push(format!("{seq} {} {} {}", update.op, update.source, update.pods.len()));
    }
    told
}

/// What the history begins with: the sources that are not configured have no pods.
const NOT_CONFIGURED: [&str; 2] = ["2 SET file 0", "3 SET api 0"];

#[tokio::test]
async fn a_watcher_starts_with_earlier_updates_and_continues_live() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    stream.want("a b").await;
    let mut watcher = stream.reader.watch(2).unwrap();
    assert_eq!(told(&mut watcher, 2).await, NOT_CONFIGURED);
    assert_eq!(told(&mut watcher, 2).await, ["4 SET http 1", "5 ADD http 1"]);
    let (received, _) = tokio::join!(next(&mut watcher), stream.want("b"));
    assert_eq!(received.unwrap().update.op, Op::Remove);
}

#[tokio::test]
async fn a_snapshot_and_the_stream_after_it_are_complete() {
    let mut stream = Stream::start(Bounds::default());
    assert_eq!(stream.want("a").await, 4);
    let snapshot = stream.reader.snapshot().await.unwrap();
    assert_eq!((snapshot.merged.len(), snapshot.seq), (1, 4));
    let mut watcher = stream.reader.watch(snapshot.seq + 1).unwrap();
    stream.want("").await;
    assert_eq!(told(&mut watcher, 1).await, ["5 REMOVE http 1"]);
}

#[tokio::test]
async fn without_a_number_the_stream_starts_with_a_set_for_each_source_that_is_known() {
    let mut stream = Stream::start(Bounds::default());
    let mut early = stream.reader.watch_all().await.unwrap();
    assert_eq!(told(&mut early, 2).await, ["4 SET file 0", "5 SET api 0"]);
    stream.want("a").await;
    assert_eq!(told(&mut early, 1).await, ["6 SET http 1"], "as soon as it is known");
    stream.want("a b").await;
    let mut late = stream.reader.watch_all().await.unwrap();
    assert_eq!(told(&mut late, 3).await, ["8 SET file 0", "9 SET http 2", "10 SET api 0"]);
    stream.want("b").await;
    assert_eq!(told(&mut late, 1).await, ["11 REMOVE http 1"]);

    let url = stream.mux.channel(SourceName::Url).unwrap();
    url.publish(ListingBuilder::new(SourceName::Url).listing());
    assert_eq!(told(&mut late, 1).await, ["12 SET url 0"], "the url source has synced");
}

#[tokio::test]
async fn a_watcher_that_begins_before_any_source_is_known_misses_no_set() {
    let (mux, merging) = Mux::new(&SourceName::ALL);
    tokio::spawn(merging.run());
    let updates = mux.updates(Notify::Incremental);
    let (history, reader) = History::new(updates, Sequence::after("run", 0), Bounds::default());
    tokio::spawn(history.run());
    let mut watcher = reader.watch_all().await.unwrap();
    for source in SourceName::ALL {
        mux.channel(source).unwrap().publish(ListingBuilder::new(source).listing());
        let set = told(&mut watcher, 1).await.remove(0);
        assert!(set.ends_with(&format!(" SET {source} 0")), "{set}");
    }
}

#[tokio::test]
async fn no_watcher_continues_from_the_middle_of_a_beginning() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    let mut watcher = stream.reader.watch_all().await.unwrap();
    assert_eq!(told(&mut watcher, 3).await, ["5 SET file 0", "6 SET http 1", "7 SET api 0"]);
    assert!(stream.reader.watch(5).is_ok(), "from the last update");
    assert!(stream.reader.watch(6).is_err(), "http and api would be missing");
    assert!(stream.reader.watch(7).is_err(), "api would be missing");
    let mut rest = stream.reader.watch(8).unwrap();
    stream.want("b").await;
    assert_eq!(told(&mut rest, 2).await, ["8 REMOVE http 1", "9 ADD http 1"]);

    // So many beginnings that the first is forgotten: then no watcher continues from before it.
    for _ in 0..1024 {
        drop(stream.reader.watch_all().await);
    }
    assert!(stream.reader.watch(7).is_err());
    assert!(stream.reader.watch(8).is_ok(), "the updates after it are held");
}

#[tokio::test]
async fn no_watcher_continues_from_the_middle_of_a_beginning_when_updates_before_it_are_dropped() {
    let mut stream = Stream::start(Bounds { updates: 3, ..Bounds::default() });
    stream.want("a").await;
    let mut watcher = stream.reader.watch_all().await.unwrap();
    assert_eq!(told(&mut watcher, 3).await, ["5 SET file 0", "6 SET http 1", "7 SET api 0"]);
    stream.want("a b").await;
    for middle in [6, 7] {
        assert!(stream.reader.watch(middle).is_err(), "after {middle} some source would be missing");
    }
    assert!(stream.reader.watch(8).is_ok());
}

#[tokio::test]
async fn only_numbers_of_this_run_are_continued() {
    let mut stream = Stream::numbered(Bounds::default(), Sequence::after("run", 100));
    assert_eq!(stream.want("a").await, 104);
    assert!(stream.reader.watch(101).is_err(), "an earlier run has given out 100");
    assert!(stream.reader.watch(0).is_err());
    let mut all = stream.reader.watch(102).unwrap();
    assert_eq!(told(&mut all, 3).await, ["102 SET file 0", "103 SET api 0", "104 SET http 1"]);
    assert!(stream.reader.watch(105).is_ok(), "the next number");
    assert_eq!(stream.reader.watch(106).unwrap_err(), Gone, "no watcher has received 105");
    assert_eq!(&**stream.reader.run(), "run");
}

#[tokio::test]
async fn numbers_between_two_updates_lead_to_the_later_one() {
    let sequence = Sequence::after("run", 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence.clone());
    stream.want("a").await;
    assert_eq!(sequence.take_some(5), 5, "others take numbers too");
    stream.want("a b").await;
    for from in 5..=10 {
        let mut watcher = stream.reader.watch(from).unwrap();
        assert_eq!(told(&mut watcher, 1).await, ["10 ADD http 1"], "from {from}");
    }
}

#[tokio::test]
async fn a_dropped_update_is_gone() {
    let mut stream = Stream::start(Bounds { updates: 2, ..Bounds::default() });
    for pods in ["a", "a b", "a b c"] {
        stream.want(pods).await;
    }
    assert_eq!(stream.reader.watch(4).unwrap_err(), Gone);
    assert!(stream.reader.watch(5).is_ok());
    assert!(stream.reader.watch(7).is_ok(), "the next number can be watched");
    assert!(stream.reader.watch(8).is_err(), "a later number cannot be watched");
}

#[tokio::test]
async fn a_slow_watcher_begins_again_and_delays_no_other() {
    let mut stream = Stream::start(Bounds { updates: 3, ..Bounds::default() });
    stream.want("a").await;
    let mut slow = stream.reader.watch(4).unwrap();
    let mut quick = stream.reader.watch(4).unwrap();
    for round in 0..10 {
        stream.want(&format!("a=i:{round}")).await;
        next(&mut quick).await.unwrap();
    }
    assert_eq!(told(&mut slow, 3).await, ["15 SET file 0", "16 SET http 1", "17 SET api 0"]);
    stream.want("b").await;
    assert_eq!(told(&mut slow, 2).await, ["18 REMOVE http 1", "19 ADD http 1"]);
}

#[tokio::test]
async fn the_history_is_bounded_in_bytes_except_for_the_newest_update() {
    let mut stream = Stream::start(Bounds { updates: 1000, bytes: 1500 });
    for round in 0..20 {
        stream.want(&format!("a=i:{round}")).await;
    }
    let first = (1..23).find(|from| stream.reader.watch(*from).is_ok()).unwrap();
    assert!((17..22).contains(&first), "{first}");
    let many = (0..50).map(|index| format!("p{index}")).collect::<Vec<_>>().join(" ");
    let seq = stream.want(&many).await;
    assert!(stream.reader.watch(seq).is_ok(), "the newest update may be larger than the limit");
    assert!(stream.reader.watch(seq - 51).is_err());
}

#[tokio::test]
async fn an_observed_status_counts_as_much_as_its_memory() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    let snapshot = stream.reader.snapshot().await.unwrap();
    let entry = snapshot.merged.values().next().unwrap().clone();
    let size = |status: Option<Value>| SeenPod { entry: entry.clone(), status: status.map(Arc::new) }.size();
    let message = "x".repeat(1000);
    let grown = size(Some(json!({"containerStatuses": [{"message": message}, {"message": message}]})));
    assert!((2000..2500).contains(&(grown - size(None))), "{grown}");
}

#[tokio::test(start_paused = true)]
async fn readers_are_answered_while_no_number_can_be_reserved() {
    let (_dir, db, _idle_writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    sequence.attach(db, &stored, 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence);
    assert_eq!(stream.want("a").await, 0, "no update has a number");
    assert_eq!(stream.reader.snapshot().await.unwrap().merged.len(), 1, "the snapshot has the merged view");
    let waits = timeout(PATIENCE, stream.reader.watch_all()).await;
    assert!(waits.is_err(), "a beginning needs numbers");
}

#[tokio::test(start_paused = true)]
async fn numbers_are_reserved_once_however_long_it_takes_and_whoever_asks() {
    let (_dir, db, _idle_writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    sequence.attach(db.clone(), &stored, 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence);
    for round in 0..10 {
        stream.want(&format!("a=i:{round}")).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(db.waiting(), 1);
}

#[tokio::test]
async fn enough_numbers_are_reserved_for_a_task_that_takes_many_at_once() {
    let (_dir, db, writer, stored) = idle();
    let writing = spawn_blocking(|| writer.run());
    let sequence = Sequence::after("run", 0);
    sequence.attach(db, &stored, 0);
    for count in [1, 20_000, 500_000] {
        sequence.reserve_for(count).await.unwrap();
        assert!(sequence.is_ready_for(count), "{count}");
        sequence.take_some(count);
        assert!(sequence.is_ready(), "{count} were reserved beside those that other tasks take one by one");
    }
    drop((sequence, writing));
}

#[tokio::test(start_paused = true)]
async fn all_watchers_that_wait_for_numbers_begin_when_there_are_some() {
    let (_dir, db, writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    sequence.attach(db, &stored, 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence);
    stream.want("a").await;
    let watchers = [(); 3].map(|()| {
        let reader = stream.reader.clone();
        tokio::spawn(async move { told(&mut reader.watch_all().await.unwrap(), 3).await })
    });
    // Until they all wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let writing = spawn_blocking(|| writer.run());
    for watcher in watchers {
        let told = timeout(PATIENCE, watcher).await.unwrap().unwrap();
        assert!(told.iter().any(|update| update.ends_with(" SET http 1")), "{told:?}");
    }
    drop(writing);
}

/// A pod that comes and goes while there are no numbers makes no change, and a list may have shown it.
#[tokio::test(start_paused = true)]
async fn a_watch_of_what_was_shown_without_numbers_begins_again_when_there_are_some() {
    let (_dir, db, writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence.clone());
    stream.want("a").await;
    sequence.attach(db, &stored, 0);
    stream.want("a b").await;
    let shown = stream.reader.snapshot().await.unwrap();
    assert_eq!(shown.merged.len(), 2);
    let mut watch = stream.reader.changes(shown.seq).unwrap();
    let mut updates = stream.reader.watch(shown.seq + 1).unwrap();
    stream.want("a").await;
    let watching = tokio::spawn(async move { watch.next().await.map(drop) });
    // Numbers can be reserved again.
    let writing = spawn_blocking(|| writer.run());
    assert_eq!(timeout(PATIENCE, watching).await.unwrap().unwrap(), Err(Gone));
    assert_eq!(stream.reader.changes(shown.seq).map(drop), Err(Gone));
    assert_eq!(stream.reader.watch(shown.seq + 1).map(drop), Err(Gone));
    // The stream begins again, too.
    assert!(told(&mut updates, 1).await[0].contains(" SET "));
    let next = stream.reader.snapshot().await.unwrap().seq;
    assert!(stream.reader.changes(next).is_ok(), "nothing has changed, and the client has listed again");
    let again = stream.want("a c").await;
    let mut watch = stream.reader.changes(again).unwrap();
    stream.want("a").await;
    assert!(timeout(PATIENCE, watch.next()).await.unwrap().unwrap().is_some());
    drop(writing);
}

/// Other tasks take so many numbers while the history sleeps that it has to reserve some before the next one.
#[tokio::test]
async fn a_list_before_numbers_are_reserved_ends_no_watch_if_nothing_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(&dir.path().join("state")).unwrap();
    let sequence = Sequence::after("run", 0);
    sequence.attach(state.db.clone(), &state.stored, 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence.clone());
    let begin = stream.want("a").await;
    let mut open = stream.reader.changes(begin).unwrap();
    sequence.take_some(95_000);
    assert!(!sequence.is_ready());
    let listed = stream.reader.snapshot().await.unwrap().seq;
    let mut watch = stream.reader.changes(listed).unwrap();
    stream.want("a b").await;
    for watch in [&mut open, &mut watch] {
        assert!(timeout(PATIENCE, watch.next()).await.unwrap().unwrap().is_some());
    }
}

#[tokio::test]
async fn what_is_observed_before_numbers_are_reserved_is_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(&dir.path().join("state")).unwrap();
    let sequence = Sequence::after("run", 0);
    sequence.attach(state.db.clone(), &state.stored, 0);
    let (observe, observed) = watch::channel(Observed::new());
    let mut stream = Stream::observing(Bounds::default(), sequence.clone(), Some(observed));
    let begin = stream.want("a#1").await;
    let mut watch = stream.reader.changes(begin).unwrap();
    sequence.take_some(95_000);
    assert!(!sequence.is_ready());
    let status = Arc::new(json!({"phase": "Running"}));
    let seen = ObservedPod { uid: "1".into(), status: status.clone() };
    observe.send_modify(|observed| drop(observed.insert(PodKey::new("default", "a"), seen)));
    let change = timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(change.new.as_ref().unwrap().status, Some(status));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changes_while_there_are_no_numbers_does_not_keep_its_old_one() {
    // Its update waits for a number, and is behind another one that does.
    for others in ["", "b"] {
        let (_dir, db, _idle_writer, stored) = idle();
        let sequence = Sequence::after("run", 0);
        let mut stream = Stream::numbered(Bounds::default(), sequence.clone());
        stream.want("a=i:1").await;
        let key = PodKey::new("default", "a");
        assert!(stream.reader.snapshot().await.unwrap().versions(&key).is_some());
        // From now on none can be reserved.
        sequence.attach(db, &stored, 0);
        stream.want(&format!("a=i:1 {others}")).await;
        stream.want(&format!("a=i:2 {others}")).await;
        assert_eq!(stream.reader.snapshot().await.unwrap().versions(&key), None);
    }
}

/// Readers see no difference in it, so that no change will come that gives it a number.
#[tokio::test(start_paused = true)]
async fn a_pod_of_which_only_its_servers_version_changes_keeps_its_number_while_there_are_none() {
    let (_dir, db, _idle_writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    let stream = Stream::numbered(Bounds::default(), sequence.clone());
    stream.reader.snapshot().await.unwrap();
    let channel = stream.mux.channel(SourceName::Url).unwrap();
    let mut wanted = ListingBuilder::new(SourceName::Url);
    let mut publish = async |version: &str| {
        let metadata =
            json!({"namespace": "default", "name": "a", "uid": "a-uid", "resourceVersion": version});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        let pods = vec![Prepared::from_value(pod).unwrap()];
        wanted.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        channel.publish(wanted.listing());
        assert!(channel.merged().await);
        stream.reader.snapshot().await.unwrap()
    };
    let key = PodKey::new("default", "a");
    let numbered = publish("7").await.versions(&key);
    assert!(numbered.is_some());
    // From now on none can be reserved.
    sequence.attach(db, &stored, 0);
    let shown = publish("8").await;
    assert_eq!(shown.merged.get(&key).unwrap().pod().resource_version(), Some(8));
    assert_eq!(shown.versions(&key), numbered);
}

/// Each update makes changes of its own, also while none can be numbered.
#[tokio::test(start_paused = true)]
async fn a_pod_in_the_place_of_another_one_of_its_name_is_a_deletion_and_an_addition() {
    let (_dir, db, writer, stored) = idle();
    let sequence = Sequence::after("run", 0);
    let mut stream = Stream::numbered(Bounds::default(), sequence.clone());
    let begin = stream.want("a#1").await;
    let mut watch = stream.reader.changes(begin).unwrap();
    sequence.attach(db, &stored, 0);
    stream.publish("a#2").await;
    let writing = spawn_blocking(|| writer.run());
    let uids = async |watch: &mut Changes<SeenPod>| {
        let change = timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
        [&change.old, &change.new].map(|seen| Some(seen.as_ref()?.entry.pod().uid().to_string()))
    };
    assert_eq!(uids(&mut watch).await, [Some("1".to_owned()), None]);
    assert_eq!(uids(&mut watch).await, [None, Some("2".to_owned())]);
    drop(writing);
}

#[tokio::test]
async fn the_history_ends_with_the_mux_after_watchers_received_all_of_it() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    let mut watcher = stream.reader.watch(4).unwrap();
    let Stream { mux, channel, reader, task, .. } = stream;
    drop((channel, mux.channel(SourceName::Url)));
    task.await.unwrap();
    assert_eq!(told(&mut watcher, 1).await, ["4 SET http 1"]);
    assert!(next(&mut watcher).await.is_none());
    assert!(reader.snapshot().await.is_none());
}
