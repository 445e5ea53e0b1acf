//! Last-known-good pods of files after a restart: missing, unreadable or invalid manifests remove nothing.

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use podmux::{
    db::Table,
    host::{Attributes, Moment},
    pod::{NodeName, Origin, SourceName},
    source::{SourceFailing, file::OnInvalid, last_good::LastGood},
    storage::{Merged, SourceState},
};
use rustix::process::Signal;
use tokio::sync::watch;

use crate::support::{
    files::{FileSettings, Place, RealFiles, Running, pod, settings, soon},
    logs::logged,
    namespace::inside,
    process::{Process, podmux},
    script,
    state::{Disk, EIO, ENOSPC, Fault, Operation, State},
};

/// A directory and a database that outlive a run.
struct Node {
    place: Place,
    disk: Disk,
    change: fn(&mut FileSettings),
    seen: fn(&mut Attributes),
}

/// One run of the source.
struct Run {
    source: Running,
    state: State,
}

impl Node {
    fn new(place: Place) -> Self {
        Self { place, disk: Disk::default(), change: |_| (), seen: |_| () }
    }

    /// A directory with manifests that an earlier run has saved.
    async fn that_ran() -> Self {
        Self::that_saw(|_| ()).await
    }

    /// The same, with something different in what is seen of files and directories.
    async fn that_saw(seen: fn(&mut Attributes)) -> Self {
        let node = Self { seen, ..Self::new(Place::directory()) };
        for name in ["a", "b", "c"] {
            node.place.write(&format!("{name}.yaml"), &pod(name, "i:1"));
        }
        let mut run = node.start();
        run.source.receives("ADD: a=i:1 b=i:1 c=i:1").await;
        run.end().await;
        node
    }

    fn start(&self) -> Run {
        let Run { source, state } = self.hold();
        Run { source: source.go(), state }
    }

    /// Starts the source, which publishes the restored pods before it scans.
    async fn restore(&self, expected: &str) -> Run {
        let Run { mut source, state } = self.hold();
        source.receives(expected).await;
        Run { source: source.go(), state }
    }

    fn hold(&self) -> Run {
        let mut settings = settings(&self.place.path());
        // The grace time does not end during a test.
        settings.missing_grace = Duration::from_hours(1);
        (self.change)(&mut settings);
        let mut state = State::open_on(&self.disk).unwrap();
        let node = settings.node.clone();
        let good = LastGood::new(SourceName::File, node, state.db.clone(), &mut state.stored);
        let host = RealFiles { seen: self.seen, ..RealFiles::default() }.host();
        Run { source: Running::hold(settings, |source| source.on(host).with_last_good(good)), state }
    }

    /// The keys of the stored rows of manifests, without the directory.
    async fn rows(&self) -> Vec<String> {
        let state = State::open_on(&self.disk).unwrap();
        let prefix = format!("file/{}/", self.place.path().display());
        let rows = state.stored.tables[&Table::LastGood].keys();
        let rows = rows.filter(|key| *key != "file/");
        let rows = rows.map(|key| key.strip_prefix(&prefix).unwrap_or(key).to_owned()).collect();
        state.close().await;
        rows
    }
}

impl Run {
    /// Asserts that the next updates are these, in any order. The empty ADD of the first sync is
    /// ignored.
    async fn receives(&mut self, expected: &[&str]) {
        let mut updates = Vec::new();
        while updates.len() < expected.len() {
            updates.extend(Some(self.source.next_update().await).filter(|line| line != "ADD:"));
        }
        updates.sort();
        assert_eq!(updates, expected);
    }

    async fn end(self) {
        self.source.end().await;
        self.state.close().await;
    }
}

#[tokio::test]
async fn a_directory_missing_at_the_start_keeps_its_pods_for_the_grace() {
    let node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    assert_eq!(run.source.merged_pods().await, "a=i:1 b=i:1 c=i:1");
    let status = run.source.status(|status| status.detail.contains(" 3 pending")).await;
    assert!(status.failing.unwrap().error.contains("the path no longer exists; its pods are kept for 3600s"));

    // The directory returns with one change.
    fs::write(node.place.beside("away").join("b.yaml"), pod("b", "i:2")).unwrap();
    fs::rename(node.place.beside("away"), node.place.path()).unwrap();
    run.receives(&["UPDATE: b=i:2"]).await;
    run.source.receives_nothing().await;
    run.end().await;
}

#[tokio::test]
async fn a_directory_that_stays_missing_loses_its_pods_after_the_grace() {
    let mut node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    node.change = |settings| settings.missing_grace = Duration::from_millis(200);
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.receives(&["REMOVE: c=i:1 b=i:1 a=i:1"]).await;
    run.end().await;
    assert_eq!(node.rows().await, [""; 0]);
    // The next run restores nothing.
    let mut run = node.start();
    run.source.receives("ADD:").await;
    run.end().await;
}

#[tokio::test]
async fn an_empty_directory_may_be_a_bare_mount_point() {
    let mut node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    fs::create_dir(node.place.path()).unwrap();
    // It is none of the earlier run in the next one either.
    for _ in 0..2 {
        let run = node.start();
        assert_eq!(run.source.merged_pods().await, "a=i:1 b=i:1 c=i:1");
        run.end().await;
    }
    // Another directory with manifests replaces it only after the check frequency.
    node.place.write("z.yaml", &pod("z", "i:1"));
    node.change = |settings| settings.check_frequency = Duration::from_millis(300);
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.receives(&["ADD: z=i:1", "REMOVE: c=i:1 b=i:1 a=i:1"]).await;
    run.end().await;
}

#[tokio::test]
async fn a_directory_that_was_emptied_between_two_runs_is_no_bare_mount_point() {
    let node = Node::that_ran().await;
    for name in ["a", "b", "c"] {
        fs::remove_file(node.place.at(&format!("{name}.yaml"))).unwrap();
    }
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.receives(&["REMOVE: c=i:1 b=i:1 a=i:1"]).await;
    run.end().await;
    assert_eq!(node.rows().await, [""; 0]);
}

/// Two file systems that were made in one second have roots with the same inode and the same time of birth.
#[tokio::test]
async fn the_root_of_another_volume_is_not_recognised() {
    let node = Node::that_saw(|seen| {
        let whole = |born: SystemTime| born.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        seen.born = seen.born.map(|born| SystemTime::UNIX_EPOCH + Duration::from_secs(whole(born)));
    })
    .await;
    for name in ["a", "b", "c"] {
        fs::remove_file(node.place.at(&format!("{name}.yaml"))).unwrap();
    }
    let run = node.start();
    let failing = run.source.status(|status| status.failing.is_some()).await.failing.unwrap();
    assert!(failing.error.contains("the directory is empty (is its file system mounted?)"), "{failing:?}");
    run.end().await;
}

#[tokio::test]
async fn a_present_manifest_has_a_pod_before_a_restored_one_that_is_gone() {
    let node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    fs::create_dir(node.place.path()).unwrap();
    node.place.write("z.yaml", &pod("a", "i:2"));
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.receives(&["UPDATE: a=i:2"]).await;
    run.source.receives_nothing_yet().await;
    assert_eq!(run.source.rejections(), [""; 0]);
    run.end().await;
    fs::rename(node.place.path(), node.place.beside("gone")).unwrap();
    node.restore("ADD: a=i:2 b=i:1 c=i:1 marker1=m").await.end().await;
    assert_eq!(node.rows().await, ["b.yaml", "c.yaml", "z.yaml", "zz-marker1.yaml"]);
}

#[tokio::test]
async fn changes_between_two_runs_are_updates() {
    let node = Node::that_ran().await;
    fs::remove_file(node.place.at("a.yaml")).unwrap();
    node.place.write("b.yaml", &pod("b", "i:2"));
    node.place.write("d.yaml", &pod("d", "i:1"));
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.receives(&["ADD: d=i:1", "REMOVE: a=i:1", "UPDATE: b=i:2"]).await;
    run.end().await;
    assert_eq!(node.rows().await, ["b.yaml", "c.yaml", "d.yaml"]);
}

#[tokio::test]
async fn a_source_that_is_known_has_no_pods_of_manifests_that_went_meanwhile() {
    let node = Node::that_ran().await;
    fs::remove_file(node.place.at("a.yaml")).unwrap();
    let run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    let mut merged = run.source.mux.merged().clone();
    let is_known = |merged: &Merged| merged.state(SourceName::File) == Some(SourceState::Synced);
    let known = soon(merged.wait_for(is_known)).await.unwrap().clone();
    let keys: Vec<_> = known.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(keys, ["default/b-node", "default/c-node"]);
    run.end().await;
}

#[tokio::test]
async fn a_half_written_manifest_at_the_start_keeps_its_pods() {
    let node = Node::that_ran().await;
    let whole = pod("b", "i:2");
    node.place.write("b.yaml", &whole[..whole.len() - 30]);
    node.place.write("c.yaml", "");
    let run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    assert_eq!(run.source.merged_pods().await, "a=i:1 b=i:1 c=i:1");
    let status = run.source.status(|status| status.detail.contains(" 2 rejected")).await;
    assert!(!status.detail.contains("pending"), "{}", status.detail);
    assert_eq!(run.source.rejections().len(), 2);
    run.end().await;
    // Also if it is still invalid at the next start.
    let run = node.start();
    assert_eq!(run.source.merged_pods().await, "a=i:1 b=i:1 c=i:1");
    run.end().await;
    node.place.write("b.yaml", &whole);
    let run = node.start();
    assert_eq!(run.source.merged_pods().await, "a=i:1 b=i:2 c=i:1");
    run.end().await;
}

#[tokio::test]
async fn on_invalid_remove_removes_restored_pods_of_a_rejected_manifest() {
    let mut node = Node::that_ran().await;
    node.place.write("b.yaml", "{");
    node.change = |settings| settings.on_invalid = OnInvalid::Remove;
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.receives(&["REMOVE: b=i:1"]).await;
    run.end().await;
    assert_eq!(node.rows().await, ["a.yaml", "c.yaml"]);
}

#[test]
fn unreadable_files_at_the_start_keep_their_pods() {
    // Root may read everything, unless it is in a user namespace without a mapping.
    if !inside("-U", "last_good::unreadable_files_at_the_start_keep_their_pods") {
        return;
    }
    logged(|_| async move {
        let node = Node::that_ran().await;
        node.place.sh("chmod 0 manifests/b.yaml").await;
        let run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
        assert_eq!(run.source.merged_pods().await, "a=i:1 b=i:1 c=i:1");
        run.source.status(|status| status.detail.contains(" 1 rejected")).await;
        run.end().await;

        node.place.sh("chmod 0 manifests").await;
        let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
        let status = run.source.status(|status| status.failing.is_some()).await;
        assert!(status.failing.unwrap().error.contains("Permission denied"));
        node.place.sh("chmod 700 manifests; chmod 600 manifests/b.yaml").await;
        run.source.status(|status| status.failing.is_none()).await;
        run.source.is_idle().await;
        run.source.receives("ADD:").await;
        run.source.receives_nothing().await;
        run.end().await;
    });
}

#[tokio::test]
async fn only_changes_are_written() {
    let node = Node::that_ran().await;
    let Run { source, state } = node.hold();
    let before = node.disk.platter().syncs;
    let source = source.go();
    source.is_idle().await;
    // It ends when all changes are written.
    source.end().await;
    assert_eq!(node.disk.platter().syncs, before);
    state.close().await;

    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    let before = node.disk.platter().syncs;
    node.place.write("b.yaml", &pod("b", "i:2"));
    run.receives(&["UPDATE: b=i:2"]).await;
    soon(async {
        while node.disk.platter().syncs == before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    run.end().await;
    let state = State::open_on(&node.disk).unwrap();
    let rows = &state.stored.tables[&Table::LastGood];
    let images: Vec<_> = rows.values().map(|row| String::from_utf8_lossy(row).contains("\"i:2\"")).collect();
    // The first is that of the directory.
    assert_eq!(images, [false, false, true, false]);
    state.close().await;
}

#[tokio::test]
async fn the_pods_of_another_node_name_are_not_restored() {
    let mut node = Node::that_ran().await;
    node.change = |settings| settings.node = NodeName::new("other").unwrap();
    fs::remove_file(node.place.at("c.yaml")).unwrap();
    let mut run = node.start();
    run.source.receives("ADD: a-other=i:1 b-other=i:1").await;
    run.end().await;
    assert_eq!(node.rows().await, ["a.yaml", "b.yaml"]);
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let run = node.start();
    assert_eq!(run.source.merged_pods().await, "a-other=i:1 b-other=i:1");
    run.end().await;
}

#[tokio::test]
async fn only_manifests_below_the_path_are_restored() {
    let mut node = Node::that_ran().await;
    // The same state with another directory, and with one of the files as the path.
    fs::rename(node.place.path(), node.place.beside("single.yaml.d")).unwrap();
    fs::create_dir(node.place.path()).unwrap();
    fs::copy(node.place.beside("single.yaml.d").join("b.yaml"), node.place.at("b.yaml")).unwrap();
    node.change = |settings| settings.path.push("b.yaml");
    let run = node.start();
    assert_eq!(run.source.merged_pods().await, "b=i:1");
    run.end().await;
    assert_eq!(node.rows().await, ["b.yaml"]);
    // A missing file is removed after the quiet time, as a directory is not.
    fs::remove_file(node.place.at("b.yaml")).unwrap();
    let mut run = node.restore("ADD: b=i:1").await;
    run.receives(&["REMOVE: b=i:1"]).await;
    let status = run.source.status(|status| status.failing.is_some()).await;
    assert!(status.failing.unwrap().error.starts_with("the path does not exist"));
    run.end().await;
}

#[test]
fn a_full_disk_delays_no_update_and_saving_is_retried() {
    logged(|log| async move {
        let node = Node::that_ran().await;
        let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
        run.source.is_idle().await;
        let fault = Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC };
        node.disk.platter().fault = Some(fault);
        node.place.write("b.yaml", &pod("b", "i:2"));
        run.receives(&["UPDATE: b=i:2"]).await;
        let status = run.source.status(|status| status.detail.contains("cannot be saved")).await;
        let (_, error) = status.detail.split_once("; last-known-good pods cannot be saved: ").unwrap();
        // The second if the commit has begun to write, and could not be undone.
        let ends = ["no space left for the state", "the state cannot be written, nor restored"]
            .map(|what| format!("{what}: No space left on device (os error 28)"));
        assert!(ends.iter().any(|end| end == error), "{error}");
        node.place.write("a.yaml", &pod("a", "i:2"));
        run.source.receives("UPDATE: a=i:2").await;
        // Each of them is logged once at most, and nothing else.
        let failed = log.lines_with("saving last-known-good pods failed");
        let logged = ends.each_ref().map(|end| failed.iter().filter(|line| line.contains(end)).count());
        assert!(logged.iter().all(|times| *times <= 1), "{failed:?}");
        assert!(!failed.is_empty() && logged.iter().sum::<usize>() == failed.len(), "{failed:?}");

        node.disk.platter().fault = None;
        node.place.write("c.yaml", &pod("c", "i:2"));
        run.source.receives("UPDATE: c=i:2").await;
        run.source.status(|status| !status.detail.contains("cannot be saved")).await;
        assert_eq!(log.lines_with("saving last-known-good pods recovered").len(), 1);
        run.end().await;
        fs::rename(node.place.path(), node.place.beside("away")).unwrap();
        let run = node.start();
        assert_eq!(run.source.merged_pods().await, "a=i:2 b=i:2 c=i:2");
        run.end().await;
    });
}

#[tokio::test]
async fn an_origin_that_comes_and_goes_while_the_disk_is_full_leaves_nothing_to_write() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = NodeName::new("node").unwrap();
    let mut good = LastGood::new(SourceName::File, node.clone(), state.db.clone(), &mut state.stored);
    let origin = |n: usize| Origin::from(&*format!("/m/{n:05}.yaml"));
    let pods = [Arc::new(script::pod("a").published_by(SourceName::File, Timestamp::UNIX_EPOCH))];
    good.put(&origin(0), &pods);
    soon(good.write()).await;
    disk.platter().fault =
        Some(Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC });
    good.put(&origin(1), &pods);
    soon(good.write()).await;
    assert!(good.error().is_some());
    for n in 2..10_000 {
        good.put(&origin(n), &pods);
        if n % 1000 == 0 {
            good.begin().await;
        }
        good.forget(&origin(n));
    }
    good.forget(&origin(0));
    // So that no commit that will fail is in progress.
    soon(good.write()).await;
    disk.platter().fault = None;
    let before = disk.platter().syncs;
    soon(good.finish()).await;
    let syncs = disk.platter().syncs - before;
    // A commit has at most 64 rows.
    assert!(syncs < 20, "{syncs} syncs");
    state.close().await;
    let mut state = State::open_on(&disk).unwrap();
    let good = LastGood::new(SourceName::File, node, state.db.clone(), &mut state.stored);
    let restored: Vec<_> = { good }.restored().map(|(origin, _)| origin.to_string()).collect();
    assert_eq!(restored, ["/m/00001.yaml"]);
}

#[tokio::test]
async fn what_could_not_be_saved_and_is_not_there_any_more_is_no_problem() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = NodeName::new("node").unwrap();
    let mut good = LastGood::new(SourceName::File, node, state.db.clone(), &mut state.stored);
    disk.platter().fault = Some(Fault { operation: Operation::Write, from: 0, times: 1, errno: ENOSPC });
    let pods = [Arc::new(script::pod("a").published_by(SourceName::File, Timestamp::UNIX_EPOCH))];
    good.put(&Origin::from("/m/a.yaml"), &pods);
    soon(good.write()).await;
    assert!(good.error().is_some());
    good.forget(&Origin::from("/m/a.yaml"));
    assert_eq!(good.error(), None);
}

/// A failed commit that could not be undone may be in effect after a restart.
#[tokio::test]
async fn what_may_have_been_saved_and_is_not_there_any_more_is_removed() {
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = NodeName::new("node").unwrap();
    let mut good = LastGood::new(SourceName::File, node, state.db.clone(), &mut state.stored);
    let pods = [Arc::new(script::pod("a").published_by(SourceName::File, Timestamp::UNIX_EPOCH))];
    disk.platter().fault = Some(Fault { operation: Operation::Sync, from: 0, times: usize::MAX, errno: EIO });
    good.put(&Origin::from("/m/a.yaml"), &pods);
    soon(good.write()).await;
    good.forget(&Origin::from("/m/a.yaml"));
    assert!(good.error().is_some(), "the removal is still to be written");
    disk.platter().fault = None;
    soon(good.write()).await;
    assert_eq!(good.error(), None);
    // Killed then.
    let killed = State::open_on(&Disk::with(disk.bytes())).unwrap();
    assert_eq!(killed.rows(Table::LastGood), "");
    killed.close().await;
    drop(good);
    state.close().await;
}

#[tokio::test]
async fn many_manifests_are_saved_in_small_commits() {
    let node = Node::new(Place::directory());
    for n in 0..300 {
        node.place.write(&format!("{n:03}.yaml"), &pod(&format!("pod{n:03}"), "i:1"));
    }
    let Run { source, state } = node.hold();
    let before = node.disk.platter().syncs;
    let source = source.go();
    source.is_idle().await;
    source.end().await;
    // A commit has at most 64 rows.
    let syncs = node.disk.platter().syncs - before;
    assert!(syncs >= 300 / 64, "{syncs} syncs");
    state.close().await;
    assert_eq!(node.rows().await.len(), 300);
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let run = node.start();
    assert_eq!(run.source.merged_pods().await.split(' ').count(), 300);
    run.end().await;
}

#[tokio::test]
async fn a_state_that_opens_late_keeps_its_rows_until_the_directory_was_read() {
    let node = Node::that_ran().await;
    node.place.sh("mv manifests away; mkfifo manifests").await;
    for readable in [false, true] {
        if readable {
            node.place.sh("rm manifests; mv away manifests; rm manifests/b.yaml").await;
        }
        let mut state = State::open_on(&node.disk).unwrap();
        let settings = settings(&node.place.path());
        let open = state.watch(&settings.node).borrow().clone();
        let since = Moment::at(Timestamp::UNIX_EPOCH);
        let failing = SourceFailing { since, attempts: 1, error: "damaged".into(), quotes: false };
        let (opens, watch) = watch::channel(Err(failing));
        let good = LastGood::none(SourceName::File, settings.node.clone()).later(watch);
        let source = Running::hold(settings, |source| source.with_last_good(good)).go();
        source.status(|status| status.failing.is_some() || status.last_success.is_some()).await;
        opens.send_modify(|now| *now = open);
        drop(opens);
        assert!(soon(source.handle.rescanned()).await);
        source.end().await;
        state.close().await;
        let expected: &[&str] =
            if readable { &["a.yaml", "c.yaml"] } else { &["a.yaml", "b.yaml", "c.yaml"] };
        assert_eq!(node.rows().await, expected);
    }
}

#[tokio::test]
async fn a_row_of_an_unknown_format_is_dropped() {
    let node = Node::that_ran().await;
    let state = State::open_on(&node.disk).unwrap();
    let key = format!("file/{}/b.yaml", node.place.path().display());
    state.put(Table::LastGood, &key, "{\"future\": true}").await;
    state.put(Table::LastGood, "url/http://example.com", "{\"future\": true}").await;
    state.close().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let run = node.start();
    assert_eq!(run.source.merged_pods().await, "a=i:1 c=i:1");
    run.end().await;
    assert_eq!(node.rows().await, ["a.yaml", "c.yaml", "url/http://example.com"]);
}

#[test]
fn a_node_that_boots_without_its_directory_restores_its_pods() {
    let place = Place::directory();
    place.write("web.yaml", &pod("web", "i:1"));
    let (manifests, state) = (place.path(), place.beside("state"));
    let [manifests, state] = [&manifests, &state].map(|path| path.to_str().unwrap());
    let args = ["run", "--node-name", "node", "--listen", "none", "--state-dir", state];
    let start = || Process::start(podmux(&args).args(["--pod-manifest-path", manifests]));
    let has_web = |agent: &Process| {
        agent.holds("the pod", |held| held.pods.contains_key("default/web-node"));
    };
    let agent = start();
    has_web(&agent);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);

    fs::rename(manifests, place.beside("away")).unwrap();
    let agent = start();
    has_web(&agent);
    agent.logs("the path no longer exists; its pods are kept for 60s");
    // A second agent cannot use the state directory.
    let (code, log) = start().ends();
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("another podmux uses the state directory"), "{log}");
    agent.signal(Signal::KILL);
    agent.ends();

    let agent = start();
    has_web(&agent);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}
