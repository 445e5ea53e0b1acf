//! The embedded database: durability, exclusive use, and the files that it rejects.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    thread,
    time::Duration,
};

use expect_test::expect;
use jiff::Timestamp;
use podmux::{
    db::{self, Change, DbError, OpenError, Sequence, Table, Tables},
    host::Host,
};
use rustix::fs::{FlockOperation, flock};

use crate::support::{
    files::soon,
    state::{Disk, State, erase, set},
};

fn error_of<T>(opened: Result<T, OpenError>) -> String {
    let error = opened.err().expect("it is rejected");
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn commits_survive_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let state = State::open(root.path()).unwrap();
    let instance = state.stored.instance.clone();
    assert_eq!(state.rows(Table::Posted), "");
    state.put(Table::Posted, "a/web", "1").await;
    state.put(Table::LastGood, "a/web", "2").await;
    let changes =
        vec![set(Table::Posted, "a/db", "3"), set(Table::Posted, "a/web", "4"), set(Table::Posted, "x", "5")];
    soon(state.db.commit(changes)).await.unwrap();
    soon(state.db.commit(vec![erase(Table::Posted, "x"), erase(Table::Posted, "never there")]))
        .await
        .unwrap();
    state.close().await;

    let state = State::open(root.path()).unwrap();
    assert_eq!(state.rows(Table::Posted), "a/db=3 a/web=4");
    assert_eq!(state.rows(Table::LastGood), "a/web=2");
    assert_eq!(state.rows(Table::Streams), "");
    assert_eq!(state.stored.instance, instance);
    state.close().await;
}

#[tokio::test]
async fn a_created_directory_is_private_and_has_an_identity() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (root.path().join("deep/one"), root.path().join("other"));
    let first = State::open(&one).unwrap();
    let second = State::open(&other).unwrap();
    assert_eq!(uuid::Uuid::parse_str(&first.stored.instance).unwrap().get_version_num(), 4);
    assert_ne!(first.stored.instance, second.stored.instance);
    assert_eq!(mode(&one), 0o700);
    let mut files: Vec<_> = fs::read_dir(&one).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["lock", "state.redb"]);
    assert_eq!([mode(&one.join("lock")), mode(&one.join("state.redb"))], [0o600; 2]);
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn a_directory_in_use_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    let state = State::open(root.path()).unwrap();
    assert_eq!(
        error_of(State::open(root.path())).replace(root.path().to_str().unwrap(), "DIR"),
        "another podmux uses the state directory DIR; stop it, or name another with --state-dir"
    );
    state.put(Table::Posted, "a", "1").await;
    state.close().await;
    let state = State::open(root.path()).unwrap();
    assert_eq!(state.rows(Table::Posted), "a=1");
    state.close().await;
}

/// A child of a killed agent has its locks until it has become the program that it starts.
#[tokio::test]
async fn a_directory_is_waited_for_while_another_process_keeps_its_locks_for_a_moment() {
    let root = tempfile::tempdir().unwrap();
    State::open(root.path()).unwrap().close().await;
    for name in ["lock", "state.redb"] {
        let file = File::open(root.path().join(name)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let moment = thread::spawn(|| {
            thread::sleep(Duration::from_millis(200));
            drop(file);
        });
        State::open(root.path()).unwrap_or_else(|error| panic!("{name}: {error}")).close().await;
        moment.join().unwrap();
    }
}

#[tokio::test]
async fn foreign_files_are_rejected_and_left_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("state.redb");
    let rejected = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let error = error_of(State::open(root.path())).replace(root.path().to_str().unwrap(), "DIR");
        assert_eq!(fs::read(&file).unwrap(), bytes);
        error
    };
    expect!["DIR/state.redb is not a podmux database: it is empty; it is left as it is: move it away, or name another directory with --state-dir"].assert_eq(&rejected(b""));
    expect!["DIR/state.redb is not a podmux database: it is not a database; it is left as it is: move it away, or name another directory with --state-dir"].assert_eq(&rejected(b"a few notes of mine\n"));
    expect!["DIR/state.redb is not a podmux database: it is not a database; it is left as it is: move it away, or name another directory with --state-dir"].assert_eq(&rejected(b"abc"));
    expect!["DIR/state.redb is not a podmux database: it is not a database; it is left as it is: move it away, or name another directory with --state-dir"].assert_eq(&rejected(&[0; 8192]));
    expect!["DIR/state.redb is damaged: it is truncated; it is left as it is: restore a copy of it, or move it away to start with an empty state"].assert_eq(&rejected(b"redb\x1a\x0a\xa9\x0d\x0a"));
    let others = root.path().join("others");
    drop(redb::Database::create(&others).unwrap());
    let others = fs::read(others).unwrap();
    expect!["DIR/state.redb is not a podmux database: it belongs to another program; it is left as it is: move it away, or name another directory with --state-dir"].assert_eq(&rejected(&others));

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = error_of(State::open(root.path())).replace(root.path().to_str().unwrap(), "DIR");
    expect!["DIR/state.redb is not a podmux database: it is not a file; it is left as it is: move it away, or name another directory with --state-dir"].assert_eq(&error);
    let error = error_of(State::open(Path::new("/dev/null")));
    expect!["cannot use the state directory: /dev/null; move that file away, or name another with --state-dir: not a directory"].assert_eq(&error);
    let round = root.path().join("round");
    std::os::unix::fs::symlink(&round, &round).unwrap();
    let error = error_of(State::open(&round)).replace(root.path().to_str().unwrap(), "DIR");
    expect!["cannot use the state directory: DIR/round; name another with --state-dir if it cannot be repaired: Too many levels of symbolic links (os error 40)"].assert_eq(&error);
}

#[tokio::test]
async fn an_interrupted_creation_is_repeated() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("state.redb.new"), "redb, to about here").unwrap();
    let state = State::open(root.path()).unwrap();
    state.put(Table::Posted, "a", "1").await;
    state.close().await;
    assert!(!root.path().join("state.redb.new").exists());

    // The process was killed before it renamed the new file.
    let other = tempfile::tempdir().unwrap();
    fs::copy(root.path().join("state.redb"), other.path().join("state.redb.new")).unwrap();
    let state = State::open(other.path()).unwrap();
    assert_eq!(state.rows(Table::Posted), "");
    state.close().await;
}

#[tokio::test]
async fn a_killed_process_loses_no_acknowledged_commit() {
    let root = tempfile::tempdir().unwrap();
    let state = State::open(root.path()).unwrap();
    for n in 0..20 {
        let (key, before) = (format!("key{n:02}"), format!("key{:02}", n - 1));
        soon(state.db.commit(vec![set(Table::Posted, &key, "x"), erase(Table::Posted, &before)]))
            .await
            .unwrap();
        // A killed process leaves the content of the file.
        let copy = tempfile::tempdir().unwrap();
        fs::copy(root.path().join("state.redb"), copy.path().join("state.redb")).unwrap();
        let found = State::open(copy.path()).unwrap();
        assert_eq!(found.rows(Table::Posted), format!("{key}=x"));
        found.close().await;
    }
    state.close().await;
}

/// Upgrade steps to two future formats: one renames keys, one changes values.
fn rename(tables: &Tables) -> Vec<Change> {
    let rows = tables[&Table::Posted].iter();
    let rename = |(key, value): (&String, &Vec<u8>)| {
        [erase(Table::Posted, key), set(Table::Posted, &format!("new/{key}"), value.clone())]
    };
    rows.flat_map(rename).collect()
}

fn upper_case(tables: &Tables) -> Vec<Change> {
    let rows = tables[&Table::Posted].iter();
    rows.map(|(key, value)| set(Table::Posted, key, value.to_ascii_uppercase())).collect()
}

#[tokio::test]
async fn an_older_format_is_upgraded_step_by_step_and_once() {
    let disk = Disk::default();
    let state = State::open_with(&disk, &[]).unwrap();
    state.put(Table::Posted, "web", "abc").await;
    state.close().await;

    // Format 1 to format 2, and from there to format 3 …
    let state = State::open_with(&disk, &[rename]).unwrap();
    assert_eq!(state.rows(Table::Posted), "new/web=abc");
    state.close().await;
    let state = State::open_with(&disk, &[rename, upper_case]).unwrap();
    assert_eq!(state.rows(Table::Posted), "new/web=ABC");
    state.close().await;
    // … which happens only once.
    let state = State::open_with(&disk, &[rename, upper_case]).unwrap();
    assert_eq!(state.rows(Table::Posted), "new/web=ABC");
    state.put(Table::Posted, "db", "def").await;
    state.close().await;

    // Both steps at once.
    let disk = Disk::default();
    let state = State::open_with(&disk, &[]).unwrap();
    state.put(Table::Posted, "web", "abc").await;
    state.close().await;
    let state = State::open_with(&disk, &[rename, upper_case]).unwrap();
    assert_eq!(state.rows(Table::Posted), "new/web=ABC");
    state.close().await;
}

#[tokio::test]
async fn a_newer_format_is_rejected_and_left_as_it_is() {
    let disk = Disk::default();
    let newer = [db::UPGRADES, &[rename]].concat();
    State::open_with(&disk, &newer).unwrap().close().await;
    let before = disk.bytes();
    assert_eq!(
        error_of(State::open_on(&disk)),
        "disk was written by a newer podmux: format 4, this one supports up to 3; run the newer one"
    );
    assert!(disk.bytes() == before);
    State::open_with(&disk, &newer).unwrap().close().await;
}

/// The state of an agent whose state directory had this format.
fn of_format(number: usize) -> Disk {
    let path = format!("{}/tests/earlier/state-{number}.redb.gz", env!("CARGO_MANIFEST_DIR"));
    let (file, mut bytes) = (fs::File::open(path).unwrap(), Vec::new());
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    Disk::with(bytes)
}

#[tokio::test]
async fn the_files_of_each_earlier_format_are_read_and_upgraded_once() {
    for (format, expected) in [
        (
            1,
            expect![[r#"
            Posted default/db: {"seen":"2026-11-22T18:58:21.587482535Z","pod":{"apiVersion"
            Posted default/web: {"seen":"2026-11-22T18:58:21.532199607Z","pod":{"apiVersion"
            Posted version: 3
            LastGood file//srv/manifests/gone.yaml: {"node":"node1","pods":[{"apiVersion":"v1","kind":"Pod","met
            Streams /updates: 5
            Streams jsonl=updates.jsonl: 6
        "#]],
        ),
        (
            2,
            expect![[r#"
            Posted default/db: {"seen":"2026-11-25T19:46:26.275579575Z","pod":{"apiVersion"
            Posted version: 1795635984275952
            LastGood file//srv/manifests/web.yaml: {"node":"node1","pods":[{"apiVersion":"v1","kind":"Pod","met
            Streams ceiling: 1795635984375941
            Runs default/db/76fb9f14-4d11-4b92-a5d8-7420e249cd49: {"boot":"7610c5c7-5c2e-4d08-aabd-7c70471d5d75","complete":tr
        "#]],
        ),
    ] {
        let disk = of_format(format);
        let state = State::open_on(&disk).unwrap();
        let (instance, tables) = (state.stored.instance.clone(), state.stored.tables.clone());
        let start = |value: &[u8]| String::from_utf8_lossy(&value[..value.len().min(60)]).into_owned();
        let rows = tables.iter().flat_map(|(table, rows)| rows.iter().map(move |row| (table, row)));
        let rows = rows.map(|(table, (key, value))| format!("{table:?} {key}: {}\n", start(value)));
        expected.assert_eq(&rows.collect::<String>());
        state.put(Table::Streams, "new", "1").await;
        state.close().await;

        let mut state = State::open_on(&disk).unwrap();
        assert_eq!(state.stored.tables.get_mut(&Table::Streams).unwrap().remove("new").unwrap(), b"1");
        assert_eq!((&state.stored.instance, &state.stored.tables), (&instance, &tables));
        state.close().await;
        let older = error_of(State::open_with(&disk, &db::UPGRADES[..format - 1]));
        assert!(older.contains("format 3, this one supports up to"), "{older}");
    }
    assert_eq!(db::UPGRADES.len(), 2, "a new format needs a file of the one before");
}

#[tokio::test]
async fn a_commit_is_one_sync_and_waiting_commits_share_one() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    state.put(Table::Posted, "first", "x").await;
    // The seal of the previous commit may add a sync, and so may a growing file.
    let mut least = usize::MAX;
    for n in 0..30 {
        let before = disk.platter().syncs;
        state.put(Table::Posted, "again", format!("{n}")).await;
        least = least.min(disk.platter().syncs - before);
    }
    assert_eq!(least, 1);
    state.close().await;

    // 100 commits wait before the writer runs.
    let (db, writer, _) =
        db::open_on(&Host::default(), disk.clone(), Path::new("disk"), db::UPGRADES).unwrap();
    let before = disk.platter().syncs;
    let key = |n| format!("key{n:03}");
    let mut waiting: Vec<_> = (0..100)
        .map(|n| {
            tokio::spawn({
                let db = db.clone();
                async move { db.commit(vec![set(Table::Posted, &key(n), "x")]).await }
            })
        })
        .collect();
    while db.waiting() < 100 {
        tokio::task::yield_now().await;
    }
    let writer = tokio::task::spawn_blocking(|| writer.run());
    for commit in waiting.drain(..) {
        soon(commit).await.unwrap().unwrap();
    }
    // The commit, one more if the file grew, and the seal.
    let syncs = disk.platter().syncs - before;
    assert!(syncs <= 3, "{syncs} syncs");
    drop(db);
    soon(writer).await.unwrap();
    assert_eq!(State::open_on(&disk).unwrap().stored.tables[&Table::Posted].len(), 102);
}

#[tokio::test]
async fn the_commits_of_a_write_and_the_queue_are_bounded() {
    for (commits, size, syncs) in [(1_200, 1, 4), (100, 100_000, 10)] {
        let disk = Disk::default();
        let (db, writer, _) =
            db::open_on(&Host::default(), disk.clone(), Path::new("disk"), db::UPGRADES).unwrap();
        let before = disk.platter().syncs;
        let commit = |n: usize| {
            let (db, change) = (db.clone(), set(Table::Posted, &format!("{n}"), vec![b'x'; size]));
            tokio::spawn(async move { db.commit(vec![change]).await })
        };
        let waiting: Vec<_> = (0..commits).map(commit).collect();
        let places = commits.min(1_000);
        while db.waiting() < places {
            tokio::task::yield_now().await;
        }
        // This task is the last in the queue, so all commits have been polled.
        tokio::spawn(async {}).await.unwrap();
        assert_eq!(db.waiting(), places);
        let writer = tokio::task::spawn_blocking(|| writer.run());
        for commit in waiting {
            soon(commit).await.unwrap().unwrap();
        }
        let done = disk.platter().syncs - before;
        assert!(done >= syncs, "{done} syncs for {commits} commits");
        drop(db);
        soon(writer).await.unwrap();
    }
}

/// The next numbers of a run that starts at this time with this state.
async fn numbers(state: &State, now: i64, count: u64) -> Vec<u64> {
    let sequence = Sequence::new("run", Timestamp::from_microsecond(now).unwrap());
    sequence.attach(state.db.clone(), &state.stored, 0);
    let mut numbers = Vec::new();
    for _ in 0..count {
        soon(sequence.reserve()).await.unwrap();
        numbers.push(sequence.take());
    }
    numbers
}

#[tokio::test]
async fn numbers_start_at_the_clock_or_after_those_of_earlier_runs() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    assert_eq!(numbers(&state, 1_000_000, 2).await, [1_000_001, 1_000_002]);
    let killed = Disk::with(disk.bytes());
    state.close().await;

    let block = 100_000;
    for (disk, now, first) in
        [(&disk, 900_000, 1_000_001 + block), (&killed, 900_000_000_000, 900_000_000_001)]
    {
        let state = State::open_on(disk).unwrap();
        assert_eq!(numbers(&state, now, 1).await, [first]);
        state.close().await;
    }
}

/// Otherwise a run that is killed at once, and one with a copy of its state, give out the same numbers.
#[tokio::test]
async fn numbers_that_are_just_ahead_of_the_clock_wait_for_it() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let sequence = Sequence::after("run", 0);
    sequence.attach(state.db.clone(), &state.stored, 1_100_000);
    let ahead_at = |now: i64| sequence.ahead_of(Timestamp::from_microsecond(now).unwrap());
    assert_eq!(ahead_at(1_000_000), Duration::from_millis(100));
    assert_eq!(ahead_at(1_099_999), Duration::from_micros(1));
    assert_eq!(ahead_at(1_100_000), Duration::ZERO);
    assert_eq!(ahead_at(999_999), Duration::ZERO, "the clock was set back");
    drop(sequence);
    state.close().await;
}

#[tokio::test]
async fn numbers_of_earlier_runs_are_not_of_this_one_if_the_state_opens_late() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let sequence = Sequence::after("run", 100);
    assert_eq!(sequence.take(), 101);
    sequence.attach(state.db.clone(), &state.stored, 200);
    let numbers = [101, 102, 199, 200, 201];
    assert_eq!(numbers.map(|number| sequence.has_given(number)), [true, false, false, false, false]);
    soon(sequence.reserve()).await.unwrap();
    assert_eq!(sequence.take(), 201);
    assert!(sequence.has_given(201));
    drop(sequence);
    state.close().await;
}

#[tokio::test]
async fn a_number_is_below_the_durable_ceiling_before_it_is_used() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let sequence = Sequence::after("run", 0);
    assert!(sequence.is_ready(), "without state nothing is reserved");
    sequence.attach(state.db.clone(), &state.stored, 7);
    assert_eq!((sequence.is_ready(), sequence.last()), (false, 7), "after the numbers of the posted pods");
    soon(sequence.reserve()).await.unwrap();
    // Far more than are left: those that were taken are reserved too.
    let first = sequence.take_some(1 << 20);
    assert!(!sequence.is_ready());
    soon(sequence.reserve()).await.unwrap();
    let killed = Disk::with(disk.bytes());
    drop(sequence);
    state.close().await;
    let state = State::open_on(&killed).unwrap();
    assert!(numbers(&state, 0, 1).await[0] > first + (1 << 20), "no number repeats");
    state.close().await;
}

#[tokio::test]
async fn the_numbers_of_older_versions_are_continued() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    for (key, value) in [("/updates", "41"), ("jsonl=/var/log/podmux.jsonl", "52"), ("jsonl", "damaged")] {
        let (table, value) = (Table::Streams, Some(value.as_bytes().to_vec().into()));
        soon(state.db.commit(vec![Change { table, key: key.to_owned(), value }])).await.unwrap();
    }
    state.close().await;
    let state = State::open_on(&disk).unwrap();
    assert_eq!(numbers(&state, 0, 1).await, [53]);
    state.close().await;
}

#[tokio::test]
async fn without_a_writer_a_commit_fails() {
    let (db, writer, _) =
        db::open_on(&Host::default(), Disk::default(), Path::new("disk"), db::UPGRADES).unwrap();
    let waiting = tokio::spawn({
        let db = db.clone();
        async move { db.commit(vec![]).await }
    });
    while db.waiting() < 1 {
        tokio::task::yield_now().await;
    }
    drop(writer);
    assert!(matches!(soon(waiting).await.unwrap(), Err(DbError::Ended)));
    assert!(matches!(soon(db.commit(vec![])).await, Err(DbError::Ended)));
}
