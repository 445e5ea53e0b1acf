//! Last-known-good pods of an atomic source: the listing and its details are one commit.

use std::{future::ready, path::Path, sync::Arc};

use jiff::Timestamp;
use podmux::{
    db::{self, Table, UPGRADES},
    host::{Host, Moment},
    pod::{NodeName, Origin, Pod, Prepared, SEEN, SourceName},
    source::{SourceFailing, last_good::LastGood},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::{
    files::soon,
    logs::logged,
    state::{Disk, EIO, Fault, Operation, State},
};

fn pod(name: &str, image: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": image}]},
    });
    Prepared::from_value(pod).unwrap().published_by(SourceName::Api, Timestamp::UNIX_EPOCH).into()
}

fn put(good: &mut LastGood, name: &str, image: &str) {
    good.put(&Origin::from(&*format!("default/{name}")), &[pod(name, image)]);
}

fn good_of(state: &mut State, node: &str) -> LastGood {
    let node = NodeName::new(node).unwrap();
    LastGood::new(SourceName::Api, node, state.db.clone(), &mut state.stored).atomic()
}

/// The details of the listing, and its pods as `name=image`.
type Saved = (Option<Value>, Vec<String>);

fn take(good: &mut LastGood) -> Saved {
    let details = good.restored_details();
    let line = |(origin, pods): (Origin, Vec<Arc<Pod>>)| {
        let [pod] = &pods[..] else { panic!("{origin}: {pods:?}") };
        assert_eq!(origin.as_str(), pod.key().as_str());
        let object: Value = serde_json::from_slice(pod.text()).unwrap();
        assert_eq!(object["metadata"]["annotations"][SEEN], "1970-01-01T00:00:00Z");
        let image = object["spec"]["containers"][0]["image"].as_str().unwrap();
        format!("{}={image}", pod.key().name())
    };
    (details, good.restored().map(line).collect())
}

/// What the next run on a node restores.
async fn left(disk: &Disk, node: &str) -> Saved {
    let mut state = State::open_on(disk).unwrap();
    let mut good = good_of(&mut state, node);
    let left = take(&mut good);
    soon(good.finish()).await;
    state.close().await;
    left
}

/// What the next run restores from a file, as after a power cut or a kill.
async fn left_in(file: Vec<u8>) -> Saved {
    left(&Disk::with(file), "node").await
}

/// The number of rows.
async fn rows(disk: &Disk) -> usize {
    let state = State::open_on(disk).unwrap();
    let rows = state.stored.tables[&Table::LastGood].len();
    state.close().await;
    rows
}

/// Puts a listing of this version: so many pods, all with the version as their image.
fn note(good: &mut LastGood, pods: usize, version: &str) {
    for n in 0..pods {
        put(good, &format!("p{n:04}"), version);
    }
    good.set_details(json!({"version": version}));
}

fn listing(pods: usize, version: &str) -> Saved {
    let pods = (0..pods).map(|n| format!("p{n:04}={version}")).collect();
    (Some(json!({"version": version})), pods)
}

/// A disk with a listing of an earlier run.
async fn that_ran(pods: usize, version: &str) -> Disk {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let mut good = good_of(&mut state, "node");
    note(&mut good, pods, version);
    soon(good.finish()).await;
    state.close().await;
    disk
}

#[tokio::test]
async fn a_listing_and_its_details_are_saved_in_one_commit() {
    // More pods than a chunk of a source that is not atomic has.
    let disk = that_ran(150, "1").await;
    assert_eq!(left(&disk, "node").await, listing(150, "1"));
    let mut state = State::open_on(&disk).unwrap();
    let mut good = good_of(&mut state, "node");
    disk.platter().cuts = Some(Vec::new());
    note(&mut good, 150, "2");
    soon(good.finish()).await;
    state.close().await;
    let cuts = disk.platter().cuts.take().unwrap();
    let (mut old, mut new) = (0, 0);
    for file in cuts.into_iter().flat_map(|cut| [cut.synced, cut.bytes]) {
        let left = left_in(file).await;
        if left == listing(150, "1") {
            old += 1;
        } else {
            assert_eq!(left, listing(150, "2"));
            new += 1;
        }
    }
    assert!(old > 0 && new > 0, "{old} before it, {new} after it");
    assert_eq!(left_in(disk.bytes()).await, listing(150, "2"));
}

#[tokio::test]
async fn rows_of_a_state_that_opens_late_stay_until_the_source_has_a_listing() {
    for has_listing in [false, true] {
        let disk = that_ran(3, "1").await;
        let mut state = State::open_on(&disk).unwrap();
        let node = NodeName::new("node").unwrap();
        let since = Moment::at(Timestamp::UNIX_EPOCH);
        let failing = SourceFailing { since, attempts: 1, error: "damaged".into(), quotes: false };
        let (opens, watch) = watch::channel(Err(failing));
        let mut good = LastGood::none(SourceName::Api, node.clone()).atomic().later(watch);
        assert_eq!(take(&mut good), (None, Vec::new()), "nothing is restored");
        if has_listing {
            note(&mut good, 2, "2");
            good.begin().await;
        }
        let open = state.watch(&node).borrow().clone();
        opens.send_modify(|now| *now = open);
        drop(opens);
        if has_listing {
            soon(good.write()).await;
        } else {
            tokio::select! {
                biased;
                () = good.write() => panic!("there is nothing to write"),
                () = ready(()) => {}
            }
        }
        soon(good.finish()).await;
        state.close().await;
        let expected = if has_listing { listing(2, "2") } else { listing(3, "1") };
        assert_eq!(left(&disk, "node").await, expected);
    }
}

#[tokio::test]
async fn pods_that_came_and_went_before_the_state_opened_are_not_written() {
    let disk = that_ran(0, "1").await;
    let mut state = State::open_on(&disk).unwrap();
    let node = NodeName::new("node").unwrap();
    let failing = SourceFailing {
        since: Moment::at(Timestamp::UNIX_EPOCH),
        attempts: 1,
        error: "damaged".into(),
        quotes: false,
    };
    let (opens, watch) = watch::channel(Err(failing));
    let mut good = LastGood::none(SourceName::File, node.clone()).later(watch);
    for n in 0..300 {
        let name = format!("p{n:04}");
        put(&mut good, &name, "1");
        good.forget(&Origin::from(&*format!("default/{name}")));
    }
    good.begin().await;
    let open = state.watch(&node).borrow().clone();
    let before = disk.platter().syncs;
    opens.send_modify(|now| *now = open);
    drop(opens);
    tokio::select! {
        biased;
        () = good.write() => panic!("there is nothing to write"),
        () = ready(()) => {}
    }
    soon(good.finish()).await;
    assert_eq!(disk.platter().syncs, before);
    state.close().await;
}

#[tokio::test]
async fn all_pods_of_a_large_listing_are_restored() {
    let disk = that_ran(5_000, "1").await;
    let mut state = State::open_on(&disk).unwrap();
    let mut good = good_of(&mut state, "node");
    assert!(take(&mut good) == listing(5_000, "1"));
    // Only once.
    assert_eq!(take(&mut good), (None, Vec::new()));
    soon(good.finish()).await;
    state.close().await;
    assert_eq!(rows(&disk).await, 5_001);
}

#[tokio::test]
async fn one_commit_is_in_progress_at_a_time_and_continues_when_not_polled() {
    let disk = Disk::default();
    let (db, writer, mut stored) =
        db::open_on(&Host::default(), disk.clone(), Path::new("disk"), UPGRADES).unwrap();
    let node = NodeName::new("node").unwrap();
    let mut good = LastGood::new(SourceName::Api, node, db.clone(), &mut stored).atomic();
    // Without a writer no commit ends.
    for version in ["1", "2", "3"] {
        note(&mut good, 3, version);
        good.begin().await;
        assert_eq!(db.waiting(), 1);
    }
    let writing = tokio::task::spawn_blocking(|| writer.run());
    // The commit in progress, and one with all changes since.
    soon(good.write()).await;
    assert_eq!(left_in(disk.bytes()).await, listing(3, "1"));
    soon(good.write()).await;
    assert_eq!(left_in(disk.bytes()).await, listing(3, "3"));
    soon(good.finish()).await;
    drop(db);
    soon(writing).await.unwrap();
}

#[tokio::test]
async fn a_listing_may_be_empty_and_its_details_may_change_alone() {
    let disk = that_ran(0, "1").await;
    assert_eq!(left(&disk, "node").await, listing(0, "1"));
    let disk = that_ran(2, "1").await;
    let mut state = State::open_on(&disk).unwrap();
    let mut good = good_of(&mut state, "node");
    good.set_details(json!({"version": "7"}));
    good.set_details(json!({"version": "8"}));
    soon(good.finish()).await;
    state.close().await;
    let (_, pods) = listing(2, "1");
    assert_eq!(left(&disk, "node").await, (Some(json!({"version": "8"})), pods));
}

#[tokio::test]
async fn a_removed_pod_is_in_the_same_commit() {
    let disk = that_ran(2, "1").await;
    let mut state = State::open_on(&disk).unwrap();
    let mut good = good_of(&mut state, "node");
    good.forget(&Origin::from("default/p0001"));
    good.set_details(json!({"version": "2"}));
    disk.platter().cuts = Some(Vec::new());
    soon(good.finish()).await;
    state.close().await;
    let after = (Some(json!({"version": "2"})), vec!["p0000=1".to_owned()]);
    let cuts = disk.platter().cuts.take().unwrap();
    for cut in cuts {
        let left = left_in(cut.synced).await;
        assert!(left == listing(2, "1") || left == after, "{left:?}");
    }
    assert_eq!(left(&disk, "node").await, after);
}

#[tokio::test]
async fn the_listing_of_another_node_is_dropped() {
    let disk = that_ran(3, "1").await;
    assert_eq!(left(&disk, "other").await, (None, Vec::new()));
    assert_eq!(rows(&disk).await, 0);
}

#[tokio::test]
async fn a_cleared_listing_leaves_nothing() {
    // Before it is restored.
    let disk = that_ran(300, "1").await;
    let mut state = State::open_on(&disk).unwrap();
    let mut good = good_of(&mut state, "node");
    good.clear();
    assert_eq!(take(&mut good), (None, Vec::new()));
    soon(good.finish()).await;
    state.close().await;
    assert_eq!(rows(&disk).await, 0);

    // After it is restored, with later changes, some of them in progress.
    let disk = that_ran(300, "1").await;
    let mut state = State::open_on(&disk).unwrap();
    state.put(Table::LastGood, "file/default/p0000", "{}").await;
    let mut good = good_of(&mut state, "node");
    assert_eq!(take(&mut good), listing(300, "1"));
    put(&mut good, "new", "1");
    good.begin().await;
    put(&mut good, "newer", "1");
    good.clear();
    put(&mut good, "newest", "1");
    soon(good.finish()).await;
    state.close().await;
    assert_eq!(left(&disk, "node").await, (None, vec!["newest=1".to_owned()]));
    // The row of another source stays.
    assert_eq!(rows(&disk).await, 2);
}

#[test]
fn a_failed_write_is_retried_with_later_changes() {
    logged(|log| async move {
        let disk = Disk::default();
        let mut state = State::open_on(&disk).unwrap();
        let mut good = good_of(&mut state, "node");
        disk.platter().fault =
            Some(Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: EIO });
        note(&mut good, 3, "1");
        good.begin().await;
        put(&mut good, "p0001", "2");
        good.forget(&Origin::from("default/p0002"));
        good.set_details(json!({"version": "2"}));
        soon(good.write()).await;
        assert!(good.error().unwrap().contains("the state cannot be written"));
        disk.platter().fault = None;
        // The write is retried without another change.
        soon(good.write()).await;
        assert_eq!((good.error(), log.lines_with("saving last-known-good pods recovered").len()), (None, 1));
        let pods = vec!["p0000=1".to_owned(), "p0001=2".to_owned()];
        assert_eq!(left_in(disk.bytes()).await, (Some(json!({"version": "2"})), pods));
        soon(good.finish()).await;
        state.close().await;
    });
}

#[tokio::test]
async fn details_of_an_unknown_format_are_dropped() {
    let disk = that_ran(1, "1").await;
    let state = State::open_on(&disk).unwrap();
    state.put(Table::LastGood, "api/", "{\"future\": true}").await;
    state.put(Table::LastGood, "api/default/p0000", "{\"future\": true}").await;
    state.close().await;
    assert_eq!(left(&disk, "node").await, (None, Vec::new()));
    assert_eq!(rows(&disk).await, 0);
}

#[tokio::test]
async fn nothing_is_saved_without_a_state_directory() {
    let mut good = LastGood::none(SourceName::Api, NodeName::new("node").unwrap()).atomic();
    note(&mut good, 2, "1");
    good.clear();
    assert_eq!(take(&mut good), (None, Vec::new()));
    soon(good.finish()).await;
}
