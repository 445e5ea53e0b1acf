//! A description in the layout of `kubectl describe`: fields, lists and tables below headings.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    age::age,
    cli::{
        output::{first_of, time},
        table::{Cell, Row, Table},
        terminal::{BOLD, Escaped, styled},
    },
};

/// Where the values of fields begin, after the indentation.
const WIDTH: usize = 16;
/// The most lines of a list and rows of a table.
pub(super) const MAX_LINES: usize = 100;

/// The text of a description.
pub(super) struct Page {
    text: String,
    colour: bool,
    indentation: usize,
    pub(super) now: Timestamp,
}

impl Page {
    pub(super) fn new(colour: bool, now: Timestamp) -> Self {
        Self { text: String::new(), colour, indentation: 0, now }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A field on one line, unless it is empty.
    pub(super) fn field(&mut self, name: &str, value: &str) {
        self.styled(name, value, "");
    }

    /// A field whose value has a style of the terminal.
    pub(super) fn styled(&mut self, name: &str, value: &str, style: &'static str) {
        if !value.is_empty() {
            let value = styled(self.colour, style, &Escaped(value).to_string());
            self.line(name, &value);
        }
    }

    /// A field with a line for each value, or `<none>`.
    pub(super) fn list(&mut self, name: &str, values: &[String]) {
        let mut name = name;
        for value in first_of(values.iter().cloned(), MAX_LINES) {
            self.line(name, &Escaped(&value).to_string());
            name = "";
        }
        if values.is_empty() {
            self.line(name, "<none>");
        }
    }

    /// What follows is below a heading until [`end`](Self::end).
    pub(super) fn begin(&mut self, heading: &str) {
        let heading = styled(self.colour, BOLD, &format!("{}:", Escaped(heading)));
        let _ = writeln!(self.text, "{:indent$}{heading}", "", indent = self.indentation);
        self.indentation += 2;
    }

    pub(super) fn end(&mut self) {
        self.indentation -= 2;
    }

    /// A table below a heading, or `<none>`, and how many rows more there are.
    pub(super) fn table(&mut self, heading: &str, columns: &[&str], rows: &[Row], more: u64) {
        if rows.is_empty() {
            return self.line(heading, "<none>");
        }
        self.begin(heading);
        let shown = &rows[..rows.len().min(MAX_LINES)];
        let table = Table::new(columns, true, self.colour).rows(shown);
        for line in table.lines() {
            let _ = writeln!(self.text, "{:indent$}{line}", "", indent = self.indentation);
        }
        let more = more + (rows.len() - shown.len()) as u64;
        if more > 0 {
            let _ = writeln!(self.text, "{:indent$}and {more} more", "", indent = self.indentation);
        }
        self.end();
    }

    /// A time, and how long ago it was; empty without one.
    pub(super) fn moment(&self, value: &Value) -> String {
        time(value).map(|time| format!("{time:.0} ({} ago)", age(Some(time), self.now))).unwrap_or_default()
    }

    /// How long ago a time was, as a cell.
    pub(super) fn age(&self, value: &Value) -> Cell {
        Cell::new(&age(time(value), self.now))
    }

    fn line(&mut self, name: &str, value: &str) {
        let name = if name.is_empty() { String::new() } else { format!("{name}:") };
        let _ = writeln!(self.text, "{:indent$}{name:<WIDTH$}{value}", "", indent = self.indentation);
    }
}
