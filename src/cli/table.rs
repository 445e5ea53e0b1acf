//! Tables as kubectl's are: columns three spaces apart, no lines, widths that only grow.

use std::iter::repeat_n;

use super::terminal::{Shown, styled};

/// The least width of a column, the space after it included.
const LEAST: usize = 6;
/// The space between two columns.
const SPACE: usize = 3;

/// One field of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    style: &'static str,
}

impl Cell {
    /// A text from wherever it comes; `<none>` in place of nothing.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = if text.is_empty() { "<none>".to_owned() } else { Shown(text).to_string() };
        Self { text, style: "" }
    }

    /// The same in a style of the terminal.
    #[must_use]
    pub fn styled(mut self, style: &'static str) -> Self {
        self.style = style;
        self
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text.as_ref())
    }
}

/// One line of a table.
pub type Row = Vec<Cell>;

/// A table while it is written. Rows that come later keep to the columns of
/// earlier ones as far as they fit in.
#[derive(Debug)]
pub struct Table {
    header: Option<Row>,
    widths: Vec<usize>,
    colour: bool,
}

impl Table {
    /// A table with these columns.
    #[must_use]
    pub fn new(columns: &[&str], headers: bool, colour: bool) -> Self {
        let header = headers.then(|| columns.iter().map(Cell::from).collect());
        Self { header, widths: vec![0; columns.len()], colour }
    }

    /// The same with columns in which these texts fit, for what is not known yet.
    #[must_use]
    pub fn with_room_for(mut self, row: &Row) -> Self {
        self.widen(row);
        self
    }

    /// More rows, after the header if they are the first. No rows are no table.
    #[must_use]
    pub fn rows(&mut self, rows: &[Row]) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let header = self.header.take();
        let mut text = String::new();
        header.iter().chain(rows).for_each(|row| self.widen(row));
        for row in header.iter().chain(rows) {
            self.row(&mut text, row);
        }
        text
    }

    fn widen(&mut self, row: &Row) {
        for (width, cell) in self.widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count() + SPACE).max(LEAST);
        }
    }

    fn row(&self, text: &mut String, row: &[Cell]) {
        for (index, (cell, width)) in row.iter().zip(&self.widths).enumerate() {
            text.push_str(&styled(self.colour, cell.style, &cell.text));
            if index + 1 < row.len() {
                text.extend(repeat_n(' ', width - cell.text.chars().count()));
            }
        }
        text.push('\n');
    }
}
