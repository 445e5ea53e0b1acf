//! A failing disk: failed commits leave nothing, acknowledged ones stay, and commits work again when it recovers.

use std::{fs, io::Write as _, process::Command};

use podmux::db::{DbError, OpenError, Table, Tables, Upgrade};
use tempfile::TempDir;

use crate::support::{
    files::soon,
    logs::{Log, logged},
    namespace::inside,
    state::{Cut, Dice, Disk, EFBIG, EIO, ENOSPC, Fault, Operation, State, apply, erase, no_rows, set},
};

const PAGE: usize = 4096;

/// The content of a file after a kill or a power cut.
async fn found(file: Vec<u8>) -> Tables {
    let state = State::open_on(&Disk::with(file)).unwrap();
    let tables = state.stored.tables.clone();
    state.close().await;
    tables
}

/// Commits during a fault. Returns how many failed.
async fn commit_through(fault: Fault) -> usize {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let (mut dice, mut rows, mut failures) = (Dice(11), no_rows(), 0);
    // With the commit that could not be undone, which is undone before the next one.
    let mut uncertain = None;
    for n in 0..24 {
        let mut certain = true;
        if n == 6 {
            disk.platter().fault = Some(fault);
        }
        let changes = dice.changes();
        match soon(state.db.commit(changes.clone())).await {
            Ok(()) => {
                apply(&mut rows, &changes);
                uncertain = None;
                continue;
            }
            Err(DbError::Full(_)) if fault.errno != EIO => failures += 1,
            Err(DbError::Io(_)) if fault.errno == EIO => failures += 1,
            Err(error @ DbError::Uncertain(_)) if error.is_full() == (fault.errno != EIO) => {
                (failures, certain) = (failures + 1, false);
            }
            Err(error) => panic!("{fault:?}: {error:?}"),
        }
        let (bytes, synced, failed) = {
            let platter = disk.platter();
            (platter.bytes.clone(), platter.synced.clone(), platter.failed)
        };
        // If the disk accepts no writes, the commit cannot be undone, and its error says so.
        assert!(certain || (failed && fault.times > 1), "{fault:?}, commit {n}: it could be undone");
        if certain {
            let found = found(bytes).await;
            assert!(found == rows || uncertain.as_ref() == Some(&found), "{fault:?}, commit {n}: killed");
        } else {
            let with = uncertain.insert(rows.clone());
            apply(with, &changes);
        }
        assert!(found(synced).await == rows, "{fault:?}, commit {n}: power cut");
    }
    disk.platter().fault = None;
    let changes = [set(Table::Posted, "works", "again")];
    soon(state.db.commit(changes.to_vec())).await.unwrap();
    apply(&mut rows, &changes);
    assert!(found(disk.bytes()).await == rows, "{fault:?}: killed after it");
    state.close().await;
    assert!(found(disk.bytes()).await == rows, "{fault:?}: closed");
    failures
}

#[tokio::test]
async fn a_failing_disk_fails_only_the_commits_of_that_time() {
    let mut failures = 0;
    for (operation, most) in
        [(Operation::Write, 25), (Operation::Sync, 6), (Operation::Resize, 2), (Operation::Any, 30)]
    {
        for from in 0..most {
            for (times, errno) in [(1, EIO), (7, ENOSPC)] {
                failures += commit_through(Fault { operation, from, times, errno }).await;
            }
        }
    }
    assert!(failures > 100, "{failures} failed");
}

#[tokio::test]
async fn a_disk_that_fails_for_long_is_retried() {
    // EFBIG: a limit of file sizes acts like a full disk.
    for errno in [ENOSPC, EFBIG] {
        let fault = Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno };
        assert_eq!(commit_through(fault).await, 18);
    }
}

/// redb makes its file smaller after the sync of a commit. If that fails, the commit is durable nevertheless.
#[tokio::test]
async fn a_commit_counts_although_the_file_cannot_be_made_smaller() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let keys: Vec<String> = (0..64).map(|n| format!("key{n:02}")).collect();
    let fill = |key: &String| set(Table::Posted, key, vec![b'x'; 64 << 10]);
    soon(state.db.commit(keys.iter().map(fill).collect())).await.unwrap();
    let size = disk.bytes().len();
    disk.platter().fault =
        Some(Fault { operation: Operation::Resize, from: 0, times: usize::MAX, errno: EIO });
    soon(state.db.commit(keys.iter().map(|key| erase(Table::Posted, key)).collect())).await.unwrap();
    let mut changes = 0;
    while disk.platter().fault.unwrap().times == usize::MAX {
        soon(state.db.commit(vec![set(Table::LastGood, "n", changes.to_string())])).await.unwrap();
        changes += 1;
        assert!(changes < 100, "it is never made smaller");
    }
    assert_eq!(disk.bytes().len(), size);
    let synced = disk.platter().synced.clone();
    assert!(found(synced).await[&Table::Posted].is_empty());
    disk.platter().fault = None;
    state.close().await;
}

/// The file grows, and the sync of that fails: the page cache has the new length, and the disk may never get it.
#[tokio::test]
async fn a_length_that_a_failed_sync_has_lost_is_set_again() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let changes = [set(Table::Posted, "large", vec![b'x'; 1 << 20])];
    let before = disk.bytes().len();
    disk.platter().cuts = Some(Vec::new());
    disk.platter().fault = Some(Fault { operation: Operation::Sync, from: 0, times: 1, errno: EIO });
    soon(state.db.commit(changes.to_vec())).await.unwrap_err();
    assert!(disk.bytes().len() > before, "it did not grow");
    soon(state.db.commit(changes.to_vec())).await.unwrap();
    let mut rows = no_rows();
    apply(&mut rows, &changes);
    let synced = disk.platter().synced.clone();
    assert!(found(synced).await == rows, "power cut after it");
    state.close().await;
    let cuts = disk.platter().cuts.take().unwrap();
    for (n, cut) in cuts.into_iter().enumerate() {
        let left = found(cut.synced).await;
        assert!(left == no_rows() || left == rows, "power cut before sync {n}");
    }
}

#[tokio::test]
async fn a_power_cut_during_a_commit_leaves_all_of_it_or_nothing() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let (mut dice, mut rows, mut tried) = (Dice(13), no_rows(), 0);
    for n in 0..30 {
        disk.platter().cuts = Some(Vec::new());
        let changes = dice.changes();
        soon(state.db.commit(changes.clone())).await.unwrap();
        let before = rows.clone();
        apply(&mut rows, &changes);
        let cuts = disk.platter().cuts.take().unwrap();
        for cut in cuts {
            for _ in 0..6 {
                let left = found(mixed(&cut, &mut dice)).await;
                assert!(left == before || left == rows, "commit {n}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 30 * 6, "{tried} tried");
    state.close().await;
}

/// A file with some pages written and some not.
fn mixed(cut: &Cut, dice: &mut Dice) -> Vec<u8> {
    let Cut { synced, bytes } = cut;
    let mut file = if dice.roll(2) == 0 { synced.clone() } else { bytes.clone() };
    for (page, content) in file.chunks_mut(PAGE).enumerate() {
        let from = if dice.roll(2) == 0 { synced } else { bytes };
        match from.get(page * PAGE..page * PAGE + content.len()) {
            Some(other) => content.copy_from_slice(other),
            None => content.fill(0),
        }
    }
    file
}

#[tokio::test]
async fn a_disk_that_fails_at_the_start_is_an_error_and_loses_nothing() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    state.put(Table::Posted, "a", "1").await;
    let killed = disk.bytes();
    state.close().await;
    for file in [killed, disk.bytes()] {
        for (operation, from) in
            [Operation::Any, Operation::Read].into_iter().flat_map(|of| (0..40).map(move |n| (of, n)))
        {
            let disk = Disk::with(file.clone());
            disk.platter().fault = Some(Fault { operation, from, times: 1, errno: EIO });
            match State::open_on(&disk) {
                Ok(state) => {
                    assert!(!disk.platter().failed, "{operation:?} {from}: it works without a database");
                    state.close().await;
                }
                Err(OpenError::Io(_, error)) => assert_eq!(error.raw_os_error(), Some(EIO)),
                Err(error) => panic!("{operation:?} {from}: {error}"),
            }
            disk.platter().fault = None;
            let state = State::open_on(&disk).unwrap();
            assert_eq!(state.rows(Table::Posted), "a=1");
            state.close().await;
        }
    }
}

#[test]
fn an_outage_of_the_disk_and_its_end_are_logged_once_each() {
    logged(async |log: Log| {
        let disk = Disk::default();
        let state = State::open_on(&disk).unwrap();
        let commit = async || soon(state.db.commit(vec![set(Table::Posted, "a", "1")])).await.is_ok();
        for round in 1..=2 {
            assert!(commit().await && commit().await);
            let fault = Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC };
            disk.platter().fault = Some(fault);
            assert!(!commit().await && !commit().await);
            disk.platter().fault = None;
            assert!(commit().await);
            assert_eq!(log.lines_with("database write failed").len(), round);
            assert_eq!(log.lines_with("database write recovered").len(), round);
        }
        state.close().await;
        assert!(log.lines_with("not closed").is_empty());
    });
}

/// A node with a full disk restores its pods.
#[tokio::test]
async fn a_disk_that_is_full_at_the_start_restores_the_state() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    state.put(Table::Posted, "a", "1").await;
    let killed = disk.bytes();
    state.close().await;
    let mut without_database = 0;
    for file in [killed, disk.bytes()] {
        for (operation, from) in
            [(Operation::Any, 0..24), (Operation::Write, 0..16), (Operation::Resize, 0..2)]
                .into_iter()
                .flat_map(|(operation, many)| many.map(move |from| (operation, from)))
        {
            let disk = Disk::with(file.clone());
            let fault = Fault { operation, from, times: usize::MAX, errno: ENOSPC };
            disk.platter().fault = Some(fault);
            let state = State::open_on(&disk).unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
            assert_eq!(state.rows(Table::Posted), "a=1");
            without_database += usize::from(disk.platter().failed);
            let failed = match soon(state.db.commit(vec![set(Table::Posted, "b", "2")])).await {
                Ok(()) => false,
                Err(error) if error.is_full() => true,
                Err(error) => panic!("{fault:?}: {error:?}"),
            };
            let mut rows = no_rows();
            apply(&mut rows, &[set(Table::Posted, "a", "1")]);
            if !failed {
                apply(&mut rows, &[set(Table::Posted, "b", "2")]);
            }
            let synced = disk.platter().synced.clone();
            assert!(found(synced).await == rows, "{fault:?}: power cut");
            disk.platter().fault = None;
            state.put(Table::Posted, "c", "3").await;
            apply(&mut rows, &[set(Table::Posted, "c", "3")]);
            state.close().await;
            assert!(found(disk.bytes()).await == rows, "{fault:?}: space again");
        }
    }
    assert!(without_database > 10, "{without_database} started without a database");
}

/// What an older format lacks cannot be guessed: the state is not used until it is upgraded.
#[tokio::test]
async fn an_older_format_on_a_full_disk_is_an_error() {
    let newer: [Upgrade; 1] = [|_| Vec::new()];
    let disk = Disk::default();
    let state = State::open_with(&disk, &[]).unwrap();
    state.put(Table::Posted, "a", "1").await;
    let killed = disk.bytes();
    state.close().await;
    for file in [killed, disk.bytes()] {
        let disk = Disk::with(file);
        let fault = Fault { operation: Operation::Any, from: 0, times: usize::MAX, errno: ENOSPC };
        disk.platter().fault = Some(fault);
        assert!(
            matches!(State::open_with(&disk, &newer), Err(OpenError::Io(_, error)) if error.raw_os_error() == Some(ENOSPC))
        );
        disk.platter().fault = None;
        let state = State::open_with(&disk, &newer).unwrap();
        assert_eq!(state.rows(Table::Posted), "a=1");
        state.close().await;
    }
}

/// A file system of 6 MiB, in a mount namespace of this test.
fn small_file_system() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(root.path()).status();
    assert!(mounted.unwrap().success());
    root
}

#[tokio::test]
async fn a_disk_that_others_have_filled_still_takes_small_commits() {
    if !inside("-Urm", "db_faults::a_disk_that_others_have_filled_still_takes_small_commits") {
        return;
    }
    let root = small_file_system();
    let directory = root.path().join("state");
    State::open(&directory).unwrap().close().await;
    let mut others = fs::File::create(root.path().join("others")).unwrap();
    while others.write_all(&[b'x'; 4096]).is_ok() {}

    let state = State::open(&directory).unwrap();
    for n in 0..30 {
        state.put(Table::Streams, "ceiling", n.to_string()).await;
        state.put(Table::Posted, &format!("default/web{n}"), vec![b'x'; 2_500]).await;
    }
    state.close().await;
    let state = State::open(&directory).unwrap();
    assert_eq!((&*state.rows(Table::Streams), state.stored.tables[&Table::Posted].len()), ("ceiling=29", 30));
    state.close().await;
}

#[tokio::test]
async fn a_commit_that_does_not_fit_keeps_no_smaller_one_from_being_written() {
    let here = "db_faults::a_commit_that_does_not_fit_keeps_no_smaller_one_from_being_written";
    if !inside("-Urm", here) {
        return;
    }
    let root = small_file_system();
    let directory = root.path().join("state");
    let state = State::open(&directory).unwrap();
    let mut others = fs::File::create(root.path().join("others")).unwrap();
    while others.write_all(&[b'x'; 4096]).is_ok() {}

    let mut kept = 0;
    let big = |n: usize| vec![set(Table::Posted, &format!("big{n}"), vec![b'x'; 100_000])];
    while soon(state.db.commit(big(kept))).await.is_ok() {
        kept += 1;
    }
    assert!(kept > 3, "{kept} written");
    for n in 0..kept {
        state.put(Table::Streams, "ceiling", n.to_string()).await;
        soon(state.db.commit(vec![erase(Table::Posted, &format!("big{n}"))])).await.unwrap();
    }
    for n in 0..kept - 1 {
        soon(state.db.commit(big(n))).await.unwrap();
    }
    state.close().await;
}

#[tokio::test]
async fn a_full_file_system_fails_commits_until_there_is_space() {
    let here = "db_faults::a_full_file_system_fails_commits_until_there_is_space";
    if !inside("-Urm", here) {
        return;
    }
    let root = small_file_system();
    let directory = root.path().join("state");
    let state = State::open(&directory).unwrap();
    let (mut written, mut failures) = (0, 0);
    while failures == 0 {
        let key = format!("big{written:03}");
        match soon(state.db.commit(vec![set(Table::LastGood, &key, vec![b'x'; 200_000])])).await {
            Ok(()) => written += 1,
            Err(error) => {
                assert!(matches!(error, DbError::Full(_)), "{error:?}");
                failures += 1;
            }
        }
    }
    assert!(written > 3, "{written} written");
    // A commit is atomic: the small row fails with the large one.
    let both = vec![set(Table::Posted, "small", "x"), set(Table::LastGood, "big", vec![b'x'; 8_000_000])];
    assert!(matches!(soon(state.db.commit(both)).await, Err(DbError::Full(_))));
    let copy = tempfile::tempdir().unwrap();
    fs::copy(directory.join("state.redb"), copy.path().join("state.redb")).unwrap();
    let killed = State::open(copy.path()).unwrap();
    assert_eq!(killed.stored.tables[&Table::LastGood].len(), written);
    assert_eq!(killed.rows(Table::Posted), "");
    killed.close().await;

    let more = Command::new("mount").args(["-o", "remount,size=40m"]).arg(root.path()).status();
    assert!(more.unwrap().success());
    state.put(Table::Posted, "small", "y").await;
    state.close().await;
    let state = State::open(&directory).unwrap();
    assert_eq!(state.rows(Table::Posted), "small=y");
    assert_eq!(state.stored.tables[&Table::LastGood].len(), written);
    state.close().await;
}
