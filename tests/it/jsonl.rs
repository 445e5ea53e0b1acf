//! The JSON lines sink.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use expect_test::expect;
use podmux::{
    pod::{Op, SourceName, UpdateSource},
    sink::{Jsonl, OpenError, SequencedUpdate, Sink, SinkError},
};

use crate::support::{namespace::inside, sinks::update, stream::Replica};

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("updates.jsonl");
    (directory, path)
}

async fn write(path: &Path, updates: &[SequencedUpdate]) {
    let mut sink = Jsonl::file(path).unwrap();
    for update in updates {
        sink.deliver(update).await.unwrap();
    }
}

#[tokio::test]
async fn a_line_has_the_documented_form() {
    let (_scratch, path) = scratch();
    write(&path, &[update(1, Op::Add, "a"), update(2, Op::Remove, "a b"), update(3, Op::Add, "")]).await;
    expect![[r#"
        {"seq":1,"time":"2026-11-21T09:00:00.000123Z","op":"ADD","source":"file","pods":[{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"kubernetes.io/config.seen":"1970-01-01T00:00:00Z","kubernetes.io/config.source":"file"},"name":"a","namespace":"default","uid":"a-uid"},"spec":{"containers":[{"image":"i:1","name":"c"}]}}]}
        {"seq":2,"time":"2026-11-21T09:00:00.000123Z","op":"REMOVE","source":"file","pods":[{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"kubernetes.io/config.seen":"1970-01-01T00:00:00Z","kubernetes.io/config.source":"file"},"name":"a","namespace":"default","uid":"a-uid"},"spec":{"containers":[{"image":"i:1","name":"c"}]}},{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"kubernetes.io/config.seen":"1970-01-01T00:00:00Z","kubernetes.io/config.source":"file"},"name":"b","namespace":"default","uid":"b-uid"},"spec":{"containers":[{"image":"i:1","name":"c"}]}}]}
        {"seq":3,"time":"2026-11-21T09:00:00.000123Z","op":"ADD","source":"file","pods":[]}
    "#]]
    .assert_eq(&fs::read_to_string(path).unwrap());
}

#[tokio::test]
async fn a_snapshot_has_the_pods_of_all_sources() {
    let (_scratch, path) = scratch();
    let mut set = update(1, Op::Set, "a b c");
    set.update.source = UpdateSource::All;
    set.update.sources = [SourceName::File, SourceName::Http, SourceName::Api].into();
    write(&path, &[set]).await;
    let text = fs::read_to_string(path).unwrap();
    let replica = Replica::of(&text);
    assert_eq!(replica.heard, ["1 SET * 3"]);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["sources"], serde_json::json!(["file", "http", "api"]), "of each pod");
    assert_eq!(replica.pods.len(), 3);
}

#[tokio::test]
async fn a_large_update_is_one_line() {
    let (_scratch, path) = scratch();
    let pods: Vec<String> = (0..2_000).map(|n| format!("p{n}")).collect();
    let large = update(1, Op::Add, &pods.join(" "));
    write(&path, std::slice::from_ref(&large)).await;
    let text = fs::read_to_string(path).unwrap();
    assert_eq!((text.lines().count(), text.ends_with("]}\n")), (1, true));
    let mut expected = Replica::default();
    expected.take(&large);
    assert_eq!(Replica::of(&text), expected);
}

#[tokio::test]
async fn a_file_is_created_for_its_owner_only_and_appended_to() {
    let (_scratch, path) = scratch();
    write(&path, &[update(1, Op::Add, "a")]).await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    write(&path, &[update(2, Op::Add, "b")]).await;
    assert_eq!(Replica::of(&fs::read_to_string(path).unwrap()).heard, ["1 ADD file 1", "2 ADD file 1"]);
}

#[tokio::test]
async fn an_incomplete_line_of_an_earlier_run_stays_a_line_of_its_own() {
    let (_scratch, path) = scratch();
    fs::write(&path, r#"{"seq":7,"ti"#).unwrap();
    write(&path, &[update(1, Op::Add, "a"), update(2, Op::Add, "b")]).await;
    let text = fs::read_to_string(path).unwrap();
    let (incomplete, stream) = text.split_once('\n').unwrap();
    assert_eq!(incomplete, r#"{"seq":7,"ti"#);
    assert_eq!(Replica::of(stream).heard, ["1 ADD file 1", "2 ADD file 1"]);
}

#[tokio::test]
async fn a_full_disk_is_retried() {
    let mut sink = Jsonl::file(Path::new("/dev/full")).unwrap();
    let error = sink.deliver(&update(1, Op::Add, "a")).await.unwrap_err();
    assert!(matches!(error, SinkError::Retry(_)));
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.contains("cannot write to /dev/full: No space left on device"), "{chain}");
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_an_error_with_its_path() {
    let (directory, path) = scratch();
    let missing = directory.path().join("no/such/file");
    for (path, reason) in [(missing.as_path(), "No such file"), (directory.path(), "Is a directory")] {
        let chain = format!("{:#}", anyhow::Error::from(Jsonl::file(path).unwrap_err()));
        assert!(chain.contains(path.to_str().unwrap()) && chain.contains(reason), "{chain}");
    }
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(Jsonl::file(&path).unwrap_err(), OpenError::NoReader(named) if named == path));
}

#[test]
fn a_socket_is_no_file_to_write_to() {
    let (_directory, path) = scratch();
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    for error in [Jsonl::check(&path).unwrap_err(), Jsonl::file(&path).unwrap_err()] {
        let chain = format!("{:#}", anyhow::Error::from(error));
        assert!(chain.ends_with("a Unix socket cannot be opened as a file is"), "{chain}");
    }
}

#[tokio::test]
async fn a_named_pipe_whose_reader_goes_away_is_a_fatal_error() {
    let (_directory, path) = scratch();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    let mut sink = Jsonl::file(&path).unwrap();
    sink.deliver(&update(1, Op::Add, "a")).await.unwrap();
    drop(reader);
    let reason = tokio::time::timeout(std::time::Duration::from_mins(1), sink.interrupted()).await.unwrap();
    assert!(matches!(reason, SinkError::Fatal(_)));
    let error = sink.deliver(&update(2, Op::Add, "b")).await.unwrap_err();
    assert!(matches!(error, SinkError::Fatal(_)));
    let chain = format!("{:#}", anyhow::Error::from(error));
    assert!(chain.ends_with(&format!("the reader of {} has closed it", path.display())), "{chain}");
}

#[tokio::test]
async fn a_check_finds_every_permission_that_opening_needs() {
    if !inside("-U", "jsonl::a_check_finds_every_permission_that_opening_needs") {
        return;
    }
    let (_directory, path) = scratch();
    fs::write(&path, "{}\n").unwrap();
    for mode in [0o600, 0o400, 0o200] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let errors = [Jsonl::check(&path).err(), Jsonl::file(&path).err()];
        let failed = errors.each_ref().map(|error| matches!(error, Some(OpenError::File(..))));
        assert_eq!(failed, [mode != 0o600; 2], "{mode:o}: {errors:?}");
    }
}
