//! Counts of instructions and allocations by valgrind's callgrind, which depend neither on the machine nor its load.
//!
//! A test starts this program again, under callgrind, with itself alone. There it runs its cases.

use std::{
    collections::HashSet,
    env, fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::Command,
};

use super::unpacked::unpacked;

/// What a case needed.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub instructions: f64,
    pub allocations: f64,
}

/// Marks the beginning and the end of a case for callgrind, which writes its counts at each call.
#[inline(never)]
fn mark_of_a_case() {
    black_box(());
}

/// Runs a case, if this is the process that callgrind watches.
pub fn case(work: impl FnOnce()) {
    mark_of_a_case();
    work();
    mark_of_a_case();
}

/// Whether this is the process that callgrind watches.
pub fn is_watched() -> bool {
    env::var_os("PODMUX_COUNTED").is_some()
}

/// The counts of so many cases of a test, which is named by its path. None means that valgrind cannot be had, which CI
/// does not accept.
pub fn count(test: &str, cases: usize) -> Option<Vec<Counts>> {
    let valgrind = unpacked("valgrind")?;
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(&valgrind);
    // A valgrind that is unpacked and not installed looks for its tools elsewhere.
    let tools = valgrind.with_file_name("../libexec/valgrind");
    if tools.exists() {
        command.env("VALGRIND_LIB", tools);
    }
    let output = command
        .args(["--tool=callgrind", "--dump-before=*mark_of_a_case*"])
        .arg(format!("--callgrind-out-file={}/counts", directory.path().display()))
        .arg(without_debug_info(directory.path()))
        .args(["--exact", test, "--test-threads", "1"])
        .env("PODMUX_COUNTED", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The parts between are those of no case.
    Some((1..=cases).map(|case| counts(&directory.path().join(format!("counts.{}", 2 * case)))).collect())
}

/// The counts in one part of callgrind's.
fn counts(part: &Path) -> Counts {
    let text = fs::read_to_string(part).unwrap_or_else(|error| panic!("{}: {error}", part.display()));
    let summary = text.lines().find_map(|line| line.strip_prefix("summary: "));
    let summary = summary.unwrap_or_else(|| panic!("no summary in {}", part.display()));
    // A function is named where it occurs first, and has a number from then on.
    let (mut allocators, mut allocations, mut is_allocator) = (HashSet::new(), 0, false);
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if matches!(name, "malloc" | "calloc" | "realloc") {
                allocators.insert(number);
            }
            is_allocator = line.starts_with('c') && allocators.contains(number);
        } else if let Some(calls) = line.strip_prefix("calls=").filter(|_| is_allocator) {
            allocations += calls.split(' ').next().unwrap().parse::<u32>().unwrap();
        }
    }
    Counts { instructions: summary.trim().parse().unwrap(), allocations: allocations.into() }
}

/// A copy of this program without debug information, which valgrind would read first.
fn without_debug_info(directory: &Path) -> PathBuf {
    let (program, copy) = (env::current_exe().unwrap(), directory.join("it"));
    let status = Command::new("strip").arg("-g").arg("-o").args([&copy, &program]).status();
    if status.is_ok_and(|status| status.success()) { copy } else { program }
}
