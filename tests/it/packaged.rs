//! What is packaged says what the program says: man pages, completions, settings, units.
//!
//! Man pages and completions are files of the repository, so that `cargo deb` works on a fresh
//! clone; `UPDATE_EXPECT=1 cargo test --test it packaged::` writes them anew.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap_complete::Shell;
use expect_test::expect_file;
use podmux::cli;

use crate::support::man;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn man_pages_are_those_of_help() {
    let pages = man::pages(&cli::command());
    for (name, page) in &pages {
        expect_file![repository(&format!("systemd/man/{name}"))].assert_eq(page);
    }
    let made: BTreeSet<_> = pages.into_keys().collect();
    let there = fs::read_dir(repository("systemd/man")).unwrap();
    let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.filter(|name| name.ends_with(".1")).collect::<BTreeSet<_>>(), made);
}

#[test]
fn completions_are_those_that_the_program_prints() {
    for (shell, file) in [(Shell::Bash, "podmux.bash"), (Shell::Zsh, "_podmux"), (Shell::Fish, "podmux.fish")]
    {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut cli::command(), "podmux", &mut script);
        let script = String::from_utf8(script).unwrap();
        expect_file![repository(&format!("systemd/completions/{file}"))].assert_eq(&script);
    }
}
