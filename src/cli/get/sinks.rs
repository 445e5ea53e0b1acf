//! `podmux get sinks`: prints the state of each sink and how far it is behind.

use jiff::Timestamp;
use serde_json::Value;

use super::listed::{Listed, name, next_attempt, since};
use crate::cli::{
    output::{number, text},
    table::{Cell, Row},
    terminal::{RED, YELLOW},
};

/// How sinks are shown.
pub(super) const SINKS: Listed = Listed {
    plural: "sinks",
    singular: "sink",
    columns: &["NAME", "STATE", "PODS-BEHIND", "SINCE", "ERROR"],
    wide: &["ACKNOWLEDGED", "ATTEMPTS", "NEXT-ATTEMPT"],
    row,
    problem_columns: &[],
    problem_rows: |_, _, _| Vec::new(),
};

fn row(sink: &Value, is_wide: bool, now: Timestamp) -> Row {
    let (state, failing) = (text(&sink["state"]), &sink["failing"]);
    let style = match state {
        "current" => "",
        "behind" => YELLOW,
        _ => RED,
    };
    let mut row = vec![
        name(sink).into(),
        Cell::new(state).styled(style),
        number(&sink["podsBehind"]).into(),
        since(&sink["since"], now).into(),
        text(&failing["error"]).into(),
    ];
    if is_wide {
        row.push(number(&sink["acknowledged"]).into());
        row.push(number(&failing["attempts"]).into());
        row.push(next_attempt(&failing["nextAttempt"], now).into());
    }
    row
}
