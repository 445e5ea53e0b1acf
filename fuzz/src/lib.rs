//! Shared code of the fuzz targets.

use std::alloc::System;

use podmux::pod::Problem;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Whether the position of a problem is in the text: the line exists, and the column is at
/// most one after its end.
pub fn is_position_in(text: &str, problem: &Problem) -> bool {
    let Some((line, column)) = problem.position else { return true };
    // A text that ends with a line break has an empty line after it.
    let line = (line as usize).checked_sub(1).and_then(|line| text.split('\n').nth(line));
    line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&(column as usize)))
}

/// What a text may allocate, in bytes: a fixed part, for a program's first steps, and a part for each byte
/// of the text. A value of the tree has at most 80 bytes and is built a few times.
const FIXED: usize = 1 << 20;
const FOR_EACH_BYTE: usize = 8_000;

/// Counts what is allocated, as a measure of work that is the same on every machine.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs `work`, and fails if it allocates more than a text of this length may need. Allocations are
/// those of all threads.
pub fn bounded<T>(length: usize, work: impl FnOnce() -> T) -> T {
    let region = Region::new(ALLOCATOR);
    let result = work();
    let allocated = region.change().bytes_allocated;
    let most = FIXED + FOR_EACH_BYTE * length;
    assert!(
        allocated <= most,
        "{allocated} bytes were allocated for {length} bytes: at most {most} are expected"
    );
    result
}
