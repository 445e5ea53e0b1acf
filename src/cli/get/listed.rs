//! What the agent lists whole and as objects of its own: sources and sinks.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    args::{Args, OutputFormat},
    printer::Printer,
};
use crate::{
    age::{age, duration},
    cli::{
        connection::{Connection, JSON},
        failure::Failure,
        output::{text, time},
        status::Status,
        table::Row,
    },
    host::Clock,
};

/// A kind of object, and how it is shown.
pub(super) struct Listed {
    /// The path is `/` and this.
    pub(super) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) columns: &'static [&'static str],
    /// More columns, of the wide table.
    pub(super) wide: &'static [&'static str],
    /// The row of an object, with the cells of the wide table if it is wide.
    pub(super) row: fn(&Value, bool, Timestamp) -> Row,
    /// The columns of a second table, which is below the first one if it has rows.
    pub(super) problem_columns: &'static [&'static str],
    pub(super) problem_rows: fn(&Value, bool, Timestamp) -> Vec<Row>,
}

impl Listed {
    pub(super) async fn get(
        &self,
        args: &Args,
        names: &[String],
        connection: &Connection,
        clock: &Clock,
        colour: bool,
    ) -> Result<u8, Failure> {
        let (mut list, mut items) = connection.list(&format!("/{}", self.plural), &[], JSON).await?;
        let is_listed = |wanted: &str| items.iter().any(|item| name(item) == wanted);
        let is_missing = !args.ignore_not_found && Status::print_missing(self.plural, names, is_listed);
        if !names.is_empty() {
            items.retain(|item| names.iter().any(|wanted| wanted == name(item)));
        }
        let is_wide = args.output == OutputFormat::Wide;
        let wide = if is_wide { self.wide } else { &[] };
        let mut printer = Printer::new(args, &[self.columns, wide].concat(), &[], colour);
        match &args.output {
            OutputFormat::Table | OutputFormat::Wide => {
                let now = clock.now();
                let rows: Vec<Row> = items.iter().map(|item| (self.row)(item, is_wide, now)).collect();
                printer.rows(&rows)?;
                let problems = items.iter().flat_map(|item| (self.problem_rows)(item, is_wide, now));
                let problems: Vec<Row> = problems.collect();
                if !problems.is_empty() {
                    printer.text("\n")?;
                    printer.set_columns(self.problem_columns, &[]);
                    printer.rows(&problems)?;
                }
            }
            OutputFormat::Name => {
                let names = items.iter().map(|item| format!("{}/{}\n", self.singular, name(item)));
                names.into_iter().try_for_each(|name| printer.text(&name))?;
            }
            OutputFormat::Jsonl => items.iter().try_for_each(|item| printer.object(item))?,
            OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Jsonpath(_) => match (names, &*items) {
                ([_], [item]) => printer.object(item)?,
                ([_], []) => {}
                _ => {
                    list["items"] = items.into();
                    printer.object(&list)?;
                }
            },
        }
        Ok(u8::from(is_missing))
    }
}

pub(super) fn name(item: &Value) -> &str {
    text(&item["name"])
}

/// How long ago a time was; empty without a time.
pub(super) fn since(value: &Value, now: Timestamp) -> String {
    time(value).map(|time| age(Some(time), now)).unwrap_or_default()
}

/// When the next attempt is; empty without one.
pub(in crate::cli) fn next_attempt(value: &Value, now: Timestamp) -> String {
    let next = time(value).map(|next| next.duration_since(now));
    // A time that has just passed is now.
    next.map(|next| format!("in {}", duration(next.max(SignedDuration::ZERO)))).unwrap_or_default()
}
