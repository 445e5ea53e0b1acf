//! Last good over a restart: what is missing, unreadable or broken at the start removes nothing.

use std::{fs, time::Duration};

use podmux::{
    db::Table,
    pod::{NodeName, SourceName},
    source::{file::OnInvalid, last_good::LastGood},
};
use rustix::process::Signal;

use crate::support::{
    files::{FileSettings, Place, Running, pod, settings, soon},
    logs::logged,
    namespace::inside,
    process::{Process, podmux},
    state::{Deed, Disk, ENOSPC, Fault, State},
};

/// A file source and a database that outlive their process.
struct Node {
    place: Place,
    disk: Disk,
    change: fn(&mut FileSettings),
}

/// One run of it.
struct Run {
    source: Running,
    state: State,
}

impl Node {
    fn new(place: Place) -> Self {
        Self { place, disk: Disk::default(), change: |_| () }
    }

    /// A directory with a few manifests that an earlier run took.
    async fn that_ran() -> Self {
        let node = Self::new(Place::directory());
        for name in ["a", "b", "c"] {
            node.place.write(&format!("{name}.yaml"), &pod(name, "i:1"));
        }
        let mut run = node.start();
        run.source.hear("ADD: a=i:1 b=i:1 c=i:1").await;
        run.end().await;
        node
    }

    fn start(&self) -> Run {
        let Run { source, state } = self.hold();
        Run { source: source.go(), state }
    }

    /// Starts it, and hears what was restored before it looks at anything.
    async fn restore(&self, expected: &str) -> Run {
        let Run { mut source, state } = self.hold();
        source.hear(expected).await;
        Run { source: source.go(), state }
    }

    fn hold(&self) -> Run {
        let mut settings = settings(&self.place.path());
        // What is removed in a test is not removed because time has passed.
        settings.missing_grace = Duration::from_hours(1);
        (self.change)(&mut settings);
        let mut state = State::open_on(&self.disk).unwrap();
        let node = settings.node.clone();
        let good = LastGood::new(SourceName::File, node, state.db.clone(), &mut state.stored);
        Run { source: Running::hold(settings, |source| source.with_last_good(good)), state }
    }

    /// The rows that are stored, as their keys without the directory.
    async fn rows(&self) -> Vec<String> {
        let state = State::open_on(&self.disk).unwrap();
        let prefix = format!("file/{}/", self.place.path().display());
        let rows = state.stored.tables[&Table::LastGood].keys();
        let rows = rows.map(|key| key.strip_prefix(&prefix).unwrap_or(key).to_owned()).collect();
        state.close().await;
        rows
    }
}

impl Run {
    /// Waits for these updates, in whatever order. That a source has been seen
    /// without any news (`ADD:`) is none.
    async fn hear(&mut self, expected: &[&str]) {
        let mut heard = Vec::new();
        while heard.len() < expected.len() {
            heard.extend(Some(self.source.heard().await).filter(|line| line != "ADD:"));
        }
        heard.sort();
        assert_eq!(heard, expected);
    }

    async fn end(self) {
        self.source.end().await;
        self.state.close().await;
    }
}

#[tokio::test]
async fn a_directory_that_is_missing_at_the_start_keeps_its_pods_for_the_grace() {
    let node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    assert_eq!(run.source.wanted().await, "a=i:1 b=i:1 c=i:1");
    let status = run.source.status(|status| status.detail.contains(" 3 pending")).await;
    assert!(status.failing.unwrap().error.contains("has vanished; what it gave is kept for 3600s"));

    // It is mounted at last, with one change.
    fs::write(node.place.beside("away").join("b.yaml"), pod("b", "i:2")).unwrap();
    fs::rename(node.place.beside("away"), node.place.path()).unwrap();
    run.hear(&["UPDATE: b=i:2"]).await;
    run.source.hear_nothing().await;
    run.end().await;
}

#[tokio::test]
async fn a_directory_that_stays_missing_loses_its_pods_after_the_grace() {
    let mut node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    node.change = |settings| settings.missing_grace = Duration::from_millis(200);
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.hear(&["REMOVE: c=i:1 b=i:1 a=i:1"]).await;
    run.end().await;
    assert_eq!(node.rows().await, [""; 0]);
    // The next run knows nothing of it: the source has seen that there is nothing.
    let mut run = node.start();
    run.source.hear("ADD:").await;
    run.end().await;
}

#[tokio::test]
async fn an_empty_directory_may_be_a_bare_mount_point() {
    let mut node = Node::that_ran().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    fs::create_dir(node.place.path()).unwrap();
    let run = node.start();
    assert_eq!(run.source.wanted().await, "a=i:1 b=i:1 c=i:1");
    run.end().await;
    // Nor does another one with other files take them at once: that is a check time later.
    node.place.write("z.yaml", &pod("z", "i:1"));
    node.change = |settings| settings.check_frequency = Duration::from_millis(300);
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.hear(&["ADD: z=i:1", "REMOVE: c=i:1 b=i:1 a=i:1"]).await;
    run.end().await;
}

#[tokio::test]
async fn a_file_that_went_away_meanwhile_is_removed_and_one_that_changed_is_updated() {
    let node = Node::that_ran().await;
    fs::remove_file(node.place.at("a.yaml")).unwrap();
    node.place.write("b.yaml", &pod("b", "i:2"));
    node.place.write("d.yaml", &pod("d", "i:1"));
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.hear(&["ADD: d=i:1", "REMOVE: a=i:1", "UPDATE: b=i:2"]).await;
    run.end().await;
    assert_eq!(node.rows().await, ["b.yaml", "c.yaml", "d.yaml"]);
}

#[tokio::test]
async fn a_manifest_that_is_half_written_at_boot_kills_nothing() {
    let node = Node::that_ran().await;
    let whole = pod("b", "i:2");
    node.place.write("b.yaml", &whole[..whole.len() - 30]);
    node.place.write("c.yaml", "");
    let run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    assert_eq!(run.source.wanted().await, "a=i:1 b=i:1 c=i:1");
    let status = run.source.status(|status| status.detail.contains(" 2 rejected")).await;
    assert!(!status.detail.contains("pending"), "{}", status.detail);
    assert_eq!(run.source.rejections().len(), 2);
    run.end().await;
    // Also if it is still broken the next time, and the time after it is whole.
    let run = node.start();
    assert_eq!(run.source.wanted().await, "a=i:1 b=i:1 c=i:1");
    run.end().await;
    node.place.write("b.yaml", &whole);
    let run = node.start();
    assert_eq!(run.source.wanted().await, "a=i:1 b=i:2 c=i:1");
    run.end().await;
}

#[tokio::test]
async fn a_broken_manifest_loses_its_pods_if_that_is_wanted() {
    let mut node = Node::that_ran().await;
    node.place.write("b.yaml", "{");
    node.change = |settings| settings.on_invalid = OnInvalid::Remove;
    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    run.hear(&["REMOVE: b=i:1"]).await;
    run.end().await;
    assert_eq!(node.rows().await, ["a.yaml", "c.yaml"]);
}

#[test]
fn what_may_not_be_read_at_the_start_keeps_its_pods() {
    // As root, nothing is forbidden; in a user namespace that maps nobody, it is.
    if !inside("-U", "last_good::what_may_not_be_read_at_the_start_keeps_its_pods") {
        return;
    }
    logged(|_| async move {
        let node = Node::that_ran().await;
        node.place.sh("chmod 0 manifests/b.yaml").await;
        let run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
        assert_eq!(run.source.wanted().await, "a=i:1 b=i:1 c=i:1");
        run.source.status(|status| status.detail.contains(" 1 rejected")).await;
        run.end().await;

        node.place.sh("chmod 0 manifests").await;
        let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
        let status = run.source.status(|status| status.failing.is_some()).await;
        assert!(status.failing.unwrap().error.contains("Permission denied"));
        node.place.sh("chmod 700 manifests; chmod 600 manifests/b.yaml").await;
        run.source.status(|status| status.failing.is_none()).await;
        run.source.calm().await;
        run.source.hear("ADD:").await;
        run.source.hear_nothing().await;
        run.end().await;
    });
}

#[tokio::test]
async fn only_what_changed_is_written() {
    let node = Node::that_ran().await;
    let Run { source, state } = node.hold();
    let before = node.disk.platter().syncs;
    let source = source.go();
    source.calm().await;
    // It ends when all that was to be written is.
    source.end().await;
    assert_eq!(node.disk.platter().syncs, before);
    state.close().await;

    let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
    let before = node.disk.platter().syncs;
    node.place.write("b.yaml", &pod("b", "i:2"));
    run.hear(&["UPDATE: b=i:2"]).await;
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
    assert_eq!(images, [false, true, false]);
    state.close().await;
}

#[tokio::test]
async fn the_pods_of_another_node_name_are_not_restored() {
    let mut node = Node::that_ran().await;
    node.change = |settings| settings.node = NodeName::new("other").unwrap();
    fs::remove_file(node.place.at("c.yaml")).unwrap();
    let mut run = node.start();
    run.source.hear("ADD: a-other=i:1 b-other=i:1").await;
    run.end().await;
    assert_eq!(node.rows().await, ["a.yaml", "b.yaml"]);
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let run = node.start();
    assert_eq!(run.source.wanted().await, "a-other=i:1 b-other=i:1");
    run.end().await;
}

#[tokio::test]
async fn only_what_is_under_the_path_is_restored() {
    let mut node = Node::that_ran().await;
    // The same state with another directory, and with one of the files as the path.
    fs::rename(node.place.path(), node.place.beside("single.yaml.d")).unwrap();
    fs::create_dir(node.place.path()).unwrap();
    fs::copy(node.place.beside("single.yaml.d").join("b.yaml"), node.place.at("b.yaml")).unwrap();
    node.change = |settings| settings.path.push("b.yaml");
    let run = node.start();
    assert_eq!(run.source.wanted().await, "b=i:1");
    run.end().await;
    assert_eq!(node.rows().await, ["b.yaml"]);
    // A file that is missing is gone, not a directory.
    fs::remove_file(node.place.at("b.yaml")).unwrap();
    let mut run = node.restore("ADD: b=i:1").await;
    run.hear(&["REMOVE: b=i:1"]).await;
    run.end().await;
}

#[test]
fn a_full_disk_stops_no_pod_and_what_could_not_be_kept_is_tried_again() {
    logged(|log| async move {
        let node = Node::that_ran().await;
        let mut run = node.restore("ADD: a=i:1 b=i:1 c=i:1").await;
        run.source.calm().await;
        let fault = Fault { deed: Deed::Any, from: 0, times: usize::MAX, errno: ENOSPC };
        node.disk.platter().fault = Some(fault);
        node.place.write("b.yaml", &pod("b", "i:2"));
        run.hear(&["UPDATE: b=i:2"]).await;
        let status = run.source.status(|status| status.detail.contains("not stored")).await;
        let unkept = status.detail;
        let error = "not stored for the next start: no space left for the state: No space left on device (os error 28)";
        assert!(unkept.ends_with(error), "{unkept}");
        node.place.write("a.yaml", &pod("a", "i:2"));
        run.source.hear("UPDATE: a=i:2").await;
        assert_eq!(log.lines_with("cannot be kept for the next start").len(), 1);

        node.disk.platter().fault = None;
        node.place.write("c.yaml", &pod("c", "i:2"));
        run.source.hear("UPDATE: c=i:2").await;
        run.source.status(|status| !status.detail.contains("not stored")).await;
        assert_eq!(log.lines_with("recovered: what is good is kept").len(), 1);
        run.end().await;
        fs::rename(node.place.path(), node.place.beside("away")).unwrap();
        let run = node.start();
        assert_eq!(run.source.wanted().await, "a=i:2 b=i:2 c=i:2");
        run.end().await;
    });
}

#[tokio::test]
async fn many_manifests_are_kept_in_small_commits() {
    let node = Node::new(Place::directory());
    for n in 0..300 {
        node.place.write(&format!("{n:03}.yaml"), &pod(&format!("pod{n:03}"), "i:1"));
    }
    let Run { source, state } = node.hold();
    let before = node.disk.platter().syncs;
    let source = source.go();
    source.calm().await;
    source.end().await;
    // 64 rows at most in each.
    let syncs = node.disk.platter().syncs - before;
    assert!(syncs >= 300 / 64, "{syncs} syncs");
    state.close().await;
    assert_eq!(node.rows().await.len(), 300);
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let run = node.start();
    assert_eq!(run.source.wanted().await.split(' ').count(), 300);
    run.end().await;
}

#[tokio::test]
async fn a_row_that_nobody_understands_is_left_out() {
    let node = Node::that_ran().await;
    let state = State::open_on(&node.disk).unwrap();
    let key = format!("file/{}/b.yaml", node.place.path().display());
    state.put(Table::LastGood, &key, "{\"future\": true}").await;
    state.put(Table::LastGood, "url/http://example.com", "{\"future\": true}").await;
    state.close().await;
    fs::rename(node.place.path(), node.place.beside("away")).unwrap();
    let run = node.start();
    assert_eq!(run.source.wanted().await, "a=i:1 c=i:1");
    run.end().await;
    assert_eq!(node.rows().await, ["a.yaml", "c.yaml", "url/http://example.com"]);
}

#[test]
fn a_node_that_boots_without_its_directory_has_its_pods() {
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
    agent.logs("has vanished; what it gave is kept for 60s");
    // Nor does a second agent get at it.
    let (code, log) = start().ends();
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("another podmux works on the state directory"), "{log}");
    agent.signal(Signal::KILL);
    agent.ends();

    let agent = start();
    has_web(&agent);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends().0, 0);
}
