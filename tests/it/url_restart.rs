//! The pods of a URL are restored after a restart, and stay until the URL changes them.

use std::path::Path;

use podmux::{
    db::Table,
    pod::{NodeName, SourceName},
    source::{
        last_good::LastGood,
        url::{Config, UrlSource},
    },
    storage::SourceState,
};

use crate::support::{
    files::{pod, soon},
    polled::{Polled, settings},
    state::{Disk, EIO, Fault, Operation, State},
    web::{Reply, Web},
};

/// A source with a state directory.
struct Saved {
    source: Polled,
    state: State,
}

impl Saved {
    fn start(directory: &Path, settings: Config) -> Self {
        let mut state = State::open(directory).unwrap();
        let node = NodeName::new("node").unwrap();
        let good = LastGood::new(SourceName::Url, node, state.db.clone(), &mut state.stored);
        let source = Polled::start_with(settings, |source: UrlSource| source.with_last_good(good));
        Self { source, state }
    }

    async fn end(self) {
        self.source.end().await;
        self.state.close().await;
    }
}

fn two() -> String {
    format!("{}---\n{}", pod("a", "i:1"), pod("b", "i:1"))
}

#[tokio::test]
async fn restored_pods_stay_until_the_url_changes_them() {
    let directory = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(two()).header("ETag", "\"1\"")).await;
    let mut first = Saved::start(directory.path(), settings(&web.url));
    first.source.receives("ADD: a=i:1 b=i:1").await;
    first.end().await;

    web.say(Reply::new(503, "busy"));
    let mut second = Saved::start(directory.path(), settings(&web.url));
    second.source.receives("ADD: a=i:1 b=i:1").await;
    second.source.receives_nothing().await;
    assert_eq!(second.source.state(), SourceState::Restored);
    // A rejected body changes no pods, but the rejection is visible.
    web.say(Reply::ok("{"));
    second.source.receives_nothing().await;
    assert_eq!((second.source.state(), second.source.rejections().len()), (SourceState::Restored, 1));
    web.say(Reply::new(503, "busy"));
    second.source.receives_nothing().await;
    assert_eq!((second.source.state(), second.source.rejections().len()), (SourceState::Restored, 0));
    assert!(web.seen().iter().all(|seen| seen.header("if-none-match").is_empty()));

    web.say(Reply::ok(format!("{}---\n{}", pod("b", "i:2"), pod("c", "i:1"))));
    second.source.poll().await;
    second.source.receives("REMOVE: a=i:1").await;
    second.source.receives("ADD: c=i:1").await;
    second.source.receives("UPDATE: b=i:2").await;
    assert_eq!((second.source.state(), second.source.rejections().len()), (SourceState::Synced, 0));
    second.end().await;

    // The last accepted body is restored, and the same body is no change.
    let mut third = Saved::start(directory.path(), settings(&web.url));
    third.source.receives("ADD: b=i:2 c=i:1").await;
    // The first sync without changes.
    third.source.receives("ADD:").await;
    third.source.receives_nothing().await;
    assert_eq!(third.source.state(), SourceState::Synced);
    third.end().await;
}

#[tokio::test]
async fn nothing_is_restored_after_an_empty_list() {
    let directory = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(two())).await;
    let mut first = Saved::start(directory.path(), settings(&web.url));
    first.source.receives("ADD: a=i:1 b=i:1").await;
    web.say(Reply::ok(crate::url::NO_PODS));
    first.source.poll().await;
    first.source.receives("REMOVE: b=i:1 a=i:1").await;
    first.end().await;
    web.say(Reply::new(503, "busy"));
    let mut second = Saved::start(directory.path(), settings(&web.url));
    second.source.receives_nothing().await;
    assert_eq!(second.source.state(), SourceState::Waiting);
    second.end().await;
}

#[tokio::test]
async fn an_empty_list_replaces_the_pods_in_a_state_that_opens_late() {
    let directory = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(two())).await;
    let mut first = Saved::start(directory.path(), settings(&web.url));
    first.source.receives("ADD: a=i:1 b=i:1").await;
    first.end().await;
    web.say(Reply::ok(crate::url::NO_PODS));
    let mut state = State::open(directory.path()).unwrap();
    let node = NodeName::new("node").unwrap();
    let good = LastGood::none(SourceName::Url, node.clone()).later(state.watch(&node));
    let mut source = Polled::start_with(settings(&web.url), |source: UrlSource| source.with_last_good(good));
    source.receives("ADD:").await;
    source.end().await;
    state.close().await;
    assert_eq!(State::open(directory.path()).unwrap().rows(Table::LastGood), "");
}

#[tokio::test]
async fn pods_of_another_url_are_dropped_and_a_password_makes_no_other_url() {
    let directory = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(two())).await;
    let at = |user: &str, path: &str| settings(&web.at(path).replace("http://", &format!("http://{user}")));
    let mut first = Saved::start(directory.path(), at("me:one@", "/pods?node=1"));
    first.source.receives("ADD: a=i:1 b=i:1").await;
    first.end().await;

    web.say(Reply::new(503, "busy"));
    let mut again = Saved::start(directory.path(), at("me:two@", "/pods?node=1"));
    again.source.receives("ADD: a=i:1 b=i:1").await;
    again.end().await;

    for path in ["/pods?node=2", "/pods?node=1"] {
        let mut other = Saved::start(directory.path(), at("me:two@", path));
        other.source.receives_nothing().await;
        assert_eq!(other.source.state(), SourceState::Waiting, "{path}");
        other.end().await;
    }
}

#[tokio::test]
async fn no_secret_of_a_url_is_in_the_state_directory() {
    let directory = tempfile::tempdir().unwrap();
    let web = Web::start(Reply::ok(two())).await;
    let mut settings = settings(&web.at("/?token=s3cret").replace("http://", "http://me:s3cret@"));
    settings.headers.insert("X-Token", http::HeaderValue::from_static("s3cret"));
    let mut kept = Saved::start(directory.path(), settings);
    kept.source.receives("ADD: a=i:1 b=i:1").await;
    kept.end().await;
    let mut read = 0;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"s3cret"));
        read += bytes.len();
    }
    assert!(read > 0);
}

#[tokio::test]
async fn a_failing_disk_is_in_the_status_and_delays_no_update() {
    let web = Web::start(Reply::ok(two())).await;
    let disk = Disk::default();
    let mut state = State::open_on(&disk).unwrap();
    let node = NodeName::new("node").unwrap();
    let good = LastGood::new(SourceName::Url, node, state.db.clone(), &mut state.stored);
    disk.platter().fault = Some(Fault { operation: Operation::Sync, from: 0, times: usize::MAX, errno: EIO });
    let mut source = Polled::start_with(settings(&web.url), |source: UrlSource| source.with_last_good(good));
    source.receives("ADD: a=i:1 b=i:1").await;
    let shows = |status: &podmux::source::SourceStatus| {
        status.detail.contains("last-known-good pods cannot be saved")
    };
    soon(source.handle.status().wait_for(shows)).await.unwrap();
    source.end().await;
}
