//! Shared code of the fuzz targets.

use podmux::pod::Problem;

/// Whether the position of a problem is in the text: the line exists, and the column is at
/// most one after its end.
pub fn is_position_in(text: &str, problem: &Problem) -> bool {
    let Some((line, column)) = problem.position else { return true };
    // A text that ends with a line break has an empty line after it.
    let line = (line as usize).checked_sub(1).and_then(|line| text.split('\n').nth(line));
    line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&(column as usize)))
}
