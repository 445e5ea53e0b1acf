//! Damaged files: rejected with an error and left as they are, or exactly the acknowledged commits.

use std::env;

use podmux::db::{OpenError, Table, Tables};

use crate::support::{
    files::soon,
    state::{Dice, Disk, State, apply, no_rows, set},
};

/// The number of damaged copies of each file: `PODMUX_DAMAGE`, or 400.
fn copies() -> u64 {
    env::var("PODMUX_DAMAGE").map_or(400, |copies| copies.parse().unwrap())
}

const PAGE: usize = 4096;

/// Damages a file. Returns a description.
fn damage(file: &mut Vec<u8>, dice: &mut Dice) -> String {
    let pages = file.len() / PAGE;
    // Half of the damage is near the beginning, where the header and the newest pages are.
    let near = |dice: &mut Dice, pages: usize| {
        let pages = if dice.roll(2) == 0 { pages.min(24) } else { pages };
        dice.roll(pages)
    };
    match dice.roll(5) {
        0 => {
            // Often in the header, which is small and most important.
            let at =
                if dice.roll(2) == 0 { dice.roll(320) } else { near(dice, pages) * PAGE + dice.roll(PAGE) };
            let bit = 1 << dice.roll(8);
            file[at] ^= bit;
            format!("bit {bit:#04x} at {at}")
        }
        1 => {
            let at = (near(dice, pages) * PAGE + dice.roll(PAGE)).min(file.len() - 16);
            dice.bytes(&mut file[at..at + 16]);
            format!("16 bytes at {at}")
        }
        2 => {
            let page = near(dice, pages);
            dice.bytes(&mut file[page * PAGE..(page + 1) * PAGE]);
            format!("page {page}")
        }
        3 => {
            let mut len = 1 + dice.roll(file.len() - 1);
            if dice.roll(2) == 0 {
                len = len.next_multiple_of(PAGE);
            }
            file.truncate(len);
            format!("truncated to {len}")
        }
        _ => {
            let (one, other) = (near(dice, pages), near(dice, pages));
            for offset in 0..PAGE {
                file.swap(one * PAGE + offset, other * PAGE + offset);
            }
            format!("pages {one} and {other} swapped")
        }
    }
}

/// Commits rows of all sizes, changes and removes them. Returns the rows before the last commit
/// and after it.
async fn write_history(state: &State) -> [Tables; 2] {
    let (mut dice, mut rows) = (Dice(7), [no_rows(), no_rows()]);
    for _ in 0..40 {
        let changes = dice.changes();
        rows[0] = rows[1].clone();
        apply(&mut rows[1], &changes);
        soon(state.db.commit(changes)).await.unwrap();
    }
    rows
}

/// Opens damaged copies of a file. Returns how many were rejected.
async fn try_copies(file: &[u8], copies: u64, seed: u64, right: &[Tables]) -> u64 {
    let mut rejected = 0;
    for copy in 0..copies {
        let mut bytes = file.to_vec();
        let what = damage(&mut bytes, &mut Dice(seed + copy));
        let disk = Disk::with(bytes.clone());
        match State::open_on(&disk) {
            Ok(state) => {
                assert!(right.contains(&state.stored.tables), "copy {copy}, {what}: wrong data");
                // The database works: a new row is there after a restart, and so are the others.
                let mut rows = state.stored.tables.clone();
                state.put(Table::LastGood, "new", vec![b'x'; 3 * PAGE]).await;
                apply(&mut rows, &[set(Table::LastGood, "new", vec![b'x'; 3 * PAGE])]);
                state.close().await;
                let again =
                    State::open_on(&disk).unwrap_or_else(|error| panic!("copy {copy}, {what}: {error}"));
                assert!(again.stored.tables == rows, "copy {copy}, {what}: wrong data later");
            }
            Err(OpenError::Io(..) | OpenError::InUse(_)) => {
                panic!("copy {copy}, {what}: not reported as damaged")
            }
            Err(error) => {
                rejected += 1;
                assert!(disk.bytes() == bytes, "copy {copy}, {what}: overwritten");
                // The error of a panic in redb.
                assert!(
                    !error.to_string().contains("its structure is invalid"),
                    "copy {copy}, {what}: {error}"
                );
            }
        }
    }
    rejected
}

#[tokio::test]
async fn a_damaged_closed_file_is_rejected_or_right() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let rows = write_history(&state).await;
    state.close().await;
    let rejected = try_copies(&disk.bytes(), copies(), 1_000, &rows[1..]).await;
    assert!((copies() / 4..copies()).contains(&rejected), "{rejected} rejected");
}

#[tokio::test]
async fn a_damaged_file_of_a_killed_process_is_rejected_or_right() {
    let disk = Disk::default();
    let state = State::open_on(&disk).unwrap();
    let mut rows = write_history(&state).await;
    // A commit without its seal: only the commit was synced.
    let mut dice = Dice(8);
    let (last, syncs) = loop {
        let before = disk.platter().syncs;
        let changes = dice.changes();
        soon(state.db.commit(changes.clone())).await.unwrap();
        rows[0] = rows[1].clone();
        apply(&mut rows[1], &changes);
        let platter = disk.platter();
        if platter.syncs == before + 1 {
            break (platter.bytes.clone(), platter.syncs);
        }
    };
    // The seal follows while there are no commits.
    soon(async {
        while disk.platter().syncs == syncs {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let sealed = disk.bytes();
    state.close().await;
    assert!(last != sealed);

    let rejected = try_copies(&sealed, copies(), 2_000, &rows[1..]).await;
    assert!((copies() / 4..copies()).contains(&rejected), "{rejected} rejected");
    // Killed before the seal: damage to the last commit looks like a power cut during it.
    let rejected = try_copies(&last, copies(), 3_000, &rows).await;
    assert!((copies() / 4..copies()).contains(&rejected), "{rejected} rejected");
}

#[tokio::test]
async fn a_damaged_file_in_a_directory_is_rejected_and_left_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let state = State::open(root.path()).unwrap();
    let rows = write_history(&state).await;
    state.close().await;
    let path = root.path().join("state.redb");
    let file = std::fs::read(&path).unwrap();
    let mut rejected = 0;
    for copy in 0..20 {
        let mut bytes = file.clone();
        let what = damage(&mut bytes, &mut Dice(4_000 + copy));
        std::fs::write(&path, &bytes).unwrap();
        match State::open(root.path()) {
            Ok(state) => {
                assert!(state.stored.tables == rows[1], "copy {copy}, {what}");
                state.close().await;
            }
            Err(error) => {
                rejected += 1;
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert!(std::fs::read(&path).unwrap() == bytes, "copy {copy}, {what}: {error}");
            }
        }
    }
    assert!(rejected > 0);
}
