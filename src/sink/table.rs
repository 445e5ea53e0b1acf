//! The form of updates for a person: a row of a table for each.

use crate::pod::{Op, SequencedUpdate};

/// How many pods a row names.
const MAX_NAMES: usize = 3;

/// The row of an update. The first one is below the names of the columns.
pub(super) fn row(update: &SequencedUpdate, colour: bool) -> String {
    let SequencedUpdate { seq, time, update, .. } = update;
    let mut names: Vec<String> =
        update.pods.iter().take(MAX_NAMES).map(|pod| pod.key().to_string()).collect();
    match update.pods.len().checked_sub(MAX_NAMES) {
        None if names.is_empty() => names.push("<none>".to_owned()),
        None | Some(0) => {}
        Some(more) => names.push(format!("and {more} more")),
    }
    let style = match update.op {
        Op::Add => "32",
        Op::Update => "33",
        Op::Delete | Op::Remove => "31",
        Op::Set | Op::Reconcile => "2",
    };
    // As wide as the longest operation, without the style.
    let op = format!("{:<9}", update.op.as_str());
    let op = if colour { format!("\x1b[{style}m{op}\x1b[0m") } else { op };
    let source = update.source.to_string();
    let row = format!("{seq:<6} {time:.0}   {op}   {source:<6}   {}\n", names.join(","));
    // The line with the progress may be there.
    let erase = if colour { "\r\x1b[K" } else { "" };
    if *seq > 1 {
        format!("{erase}{row}")
    } else {
        format!("{erase}{:<6} {:<20}   {:<9}   {:<6}   PODS\n{row}", "SEQ", "TIME", "OP", "SOURCE")
    }
}
