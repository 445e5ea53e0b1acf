//! The history of updates: where a watcher starts, what it receives, and slow watchers.

use std::sync::Arc;

use podmux::{
    db::Sequence,
    history::{Bounds, Gone, History, HistoryReader, Watcher},
    mux::{Mux, Notify, SourceChannel},
    pod::{ListingBuilder, Op, Origin, SequencedUpdate, SourceName},
};
use tokio::{task::JoinHandle, time::timeout};

use crate::support::{process::PATIENCE, script::pod, stream::Replica};

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
        Self::numbered(bounds, Sequence::fleeting())
    }

    /// The url source never publishes anything.
    fn numbered(bounds: Bounds, sequence: Sequence) -> Self {
        let (mux, merging) = Mux::new(&[SourceName::Http, SourceName::Url]);
        tokio::spawn(merging.run());
        let (history, reader) = History::new(mux.updates(Notify::Incremental), sequence, bounds);
        let task = tokio::spawn(async { history.run().await.unwrap() });
        let channel = mux.channel(SourceName::Http).unwrap();
        Self { mux, channel, wanted: ListingBuilder::new(SourceName::Http), reader, task }
    }

    /// Publishes a listing of these pods. Returns the number of the last update.
    async fn want(&mut self, pods: &str) -> u64 {
        let pods = pods.split_whitespace().map(pod).collect();
        self.wanted.put(&Origin::from("test"), pods, jiff::Timestamp::UNIX_EPOCH);
        self.channel.publish(self.wanted.listing());
        assert!(self.channel.merged().await);
        self.reader.snapshot().await.unwrap().seq
    }
}

async fn next(watcher: &mut Watcher) -> Result<Option<Arc<SequencedUpdate>>, Gone> {
    timeout(PATIENCE, watcher.next()).await.expect("the watcher receives an update")
}

#[tokio::test]
async fn a_watcher_starts_with_earlier_updates_and_continues_live() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    stream.want("a b").await;
    let mut watcher = stream.reader.watch(1).unwrap();
    let mut replica = Replica::default();
    for _ in 0..2 {
        replica.take(&next(&mut watcher).await.unwrap().unwrap());
    }
    assert_eq!(replica.heard, ["1 ADD http 1", "2 ADD http 1"]);
    let (received, _) = tokio::join!(next(&mut watcher), stream.want("b"));
    replica.take(&received.unwrap().unwrap());
    assert_eq!(replica.pods.keys().collect::<Vec<_>>(), ["default/b"]);
}

#[tokio::test]
async fn a_snapshot_and_the_stream_after_it_are_complete() {
    let mut stream = Stream::start(Bounds::default());
    assert_eq!(stream.want("a").await, 1);
    let snapshot = stream.reader.snapshot().await.unwrap();
    assert_eq!((snapshot.merged.len(), snapshot.seq), (1, 1));
    let mut watcher = stream.reader.watch(snapshot.seq + 1).unwrap();
    stream.want("").await;
    let update = next(&mut watcher).await.unwrap().unwrap();
    assert_eq!((update.seq, update.update.op), (2, Op::Remove));
}

#[tokio::test]
async fn without_a_number_the_stream_starts_with_a_set_of_everything() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    stream.want("a b").await;
    let mut watcher = stream.reader.watch_all().await.unwrap();
    let set = next(&mut watcher).await.unwrap().unwrap();
    assert_eq!((set.seq, set.update.op, set.update.pods.len()), (2, Op::Set, 2));
    stream.want("b").await;
    assert_eq!(next(&mut watcher).await.unwrap().unwrap().seq, 3);
}

#[tokio::test]
async fn a_dropped_update_is_gone_and_the_error_names_the_first_and_the_next() {
    let mut stream = Stream::start(Bounds { updates: 2, ..Bounds::default() });
    for pods in ["a", "a b", "a b c"] {
        stream.want(pods).await;
    }
    let gone = stream.reader.watch(1).unwrap_err();
    assert_eq!(gone, Gone { asked: 1, first: 2, next: 4 });
    assert_eq!(
        gone.to_string(),
        "update 1 is not in the history: its first update is 2, the next one will be 4"
    );
    assert!(stream.reader.watch(2).is_ok());
    assert!(stream.reader.watch(4).is_ok(), "the next number can be watched");
    assert_eq!(stream.reader.watch(5).unwrap_err().next, 4, "a later number cannot be watched");
}

#[tokio::test]
async fn a_slow_watcher_gets_an_error_and_delays_no_other() {
    let mut stream = Stream::start(Bounds { updates: 3, ..Bounds::default() });
    stream.want("a").await;
    let mut slow = stream.reader.watch(1).unwrap();
    let mut quick = stream.reader.watch(1).unwrap();
    for round in 0..10 {
        stream.want(&format!("a=i:{round}")).await;
        next(&mut quick).await.unwrap();
    }
    assert_eq!(next(&mut slow).await.unwrap_err().asked, 1);
}

#[tokio::test]
async fn the_history_is_bounded_in_bytes_except_for_the_newest_update() {
    let mut stream = Stream::start(Bounds { updates: 1000, bytes: 1500 });
    for round in 0..20 {
        stream.want(&format!("a=i:{round}")).await;
    }
    let first = stream.reader.watch(1).unwrap_err().first;
    assert!((15..20).contains(&first), "{first}");
    let many = (0..50).map(|index| format!("p{index}")).collect::<Vec<_>>().join(" ");
    let seq = stream.want(&many).await;
    assert!(stream.reader.watch(seq).is_ok(), "the newest update may be larger than the limit");
    assert!(stream.reader.watch(seq - 2).is_err());
}

#[tokio::test]
async fn a_stream_of_an_earlier_run_continues_with_a_set_of_everything() {
    let mut earlier = Sequence::fleeting();
    for _ in 0..7 {
        earlier.take().unwrap();
    }
    let mut stream = Stream::numbered(Bounds::default(), earlier);
    // A watcher that has received the whole earlier run continues.
    let mut watcher = stream.reader.watch(8).unwrap();
    assert_eq!(stream.reader.watch(7).unwrap_err(), Gone { asked: 7, first: 8, next: 8 });
    stream.want("a b").await;
    let set = next(&mut watcher).await.unwrap().unwrap();
    assert_eq!((set.seq, set.update.op, set.update.pods.len()), (8, Op::Set, 2));
    stream.want("a").await;
    assert_eq!(next(&mut watcher).await.unwrap().unwrap().update.op, Op::Remove);
}

#[tokio::test(start_paused = true)]
async fn readers_are_answered_while_no_number_can_be_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let (db, _idle_writer, stored) =
        podmux::db::open(&podmux::host::Host::default(), &dir.path().join("state")).unwrap();
    let mut stream = Stream::numbered(Bounds::default(), Sequence::durable("/updates", db, &stored));
    assert_eq!(stream.want("a").await, 0, "no update has a number");
    assert_eq!(stream.reader.snapshot().await.unwrap().merged.len(), 1, "the snapshot has the merged view");
}

#[tokio::test]
async fn the_history_ends_with_the_mux_after_watchers_received_all_of_it() {
    let mut stream = Stream::start(Bounds::default());
    stream.want("a").await;
    let mut watcher = stream.reader.watch(1).unwrap();
    let Stream { mux, channel, reader, task, .. } = stream;
    drop((channel, mux.channel(SourceName::Url)));
    task.await.unwrap();
    assert_eq!(next(&mut watcher).await.unwrap().unwrap().seq, 1);
    assert!(next(&mut watcher).await.unwrap().is_none());
    assert!(reader.snapshot().await.is_none());
}
