//! Tables in kubectl's layout: columns three spaces apart, no lines, widths that only grow.

use std::iter::repeat_n;

use super::terminal::{Escaped, styled};

/// The minimum width of a column, including the space after it.
const MIN_WIDTH: usize = 6;
/// The space between two columns.
const SPACE: usize = 3;

/// One field of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    style: &'static str,
}

impl Cell {
    /// A cell with an escaped text; `<none>` if it is empty.
    pub fn new(text: &str) -> Self {
        let text = if text.is_empty() { "<none>".to_owned() } else { Escaped(text).to_string() };
        Self { text, style: "" }
    }

    /// The cell in a style of the terminal.
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

/// A table that is printed row by row. Later rows keep the column widths of earlier rows
/// unless a cell needs more.
#[derive(Debug)]
pub struct Table {
    header: Option<Row>,
    widths: Vec<usize>,
    colour: bool,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[&str], headers: bool, colour: bool) -> Self {
        let header = headers.then(|| columns.iter().map(Cell::from).collect());
        Self { header, widths: vec![0; columns.len()], colour }
    }

    /// Widens the columns to these texts, which later rows may have.
    #[must_use]
    pub fn with_widths_of(mut self, texts: &[&str]) -> Self {
        self.widen(&texts.iter().map(Cell::from).collect::<Row>());
        self
    }

    /// The text of more rows, after the header if they are the first. No rows give no text.
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

    fn widen(&mut self, row: &[Cell]) {
        for (width, cell) in self.widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count() + SPACE).max(MIN_WIDTH);
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
