//! Prints rows and objects in the format of `--output`.

use std::io::{self, IsTerminal as _};

use anyhow::anyhow;
use serde_json::Value;

use super::args::{Args, OutputFormat};
use crate::cli::{
    failure::Failure,
    output::{Output, document},
    table::{Row, Table},
    terminal::lines,
};

/// Prints rows and objects. Everything is flushed at once.
pub(super) struct Printer {
    format: OutputFormat,
    has_headers: bool,
    colour: bool,
    table: Table,
    output: Output,
    /// Whether an object was printed.
    has_printed: bool,
}

impl Printer {
    /// A printer of tables with these columns, at least as wide as the texts in `widths`: in a
    /// stream, later rows then stay aligned.
    pub(super) fn new(args: &Args, columns: &[&str], widths: &[&str], colour: bool) -> Self {
        let (format, has_headers) = (args.output.clone(), !args.no_headers);
        let table = Table::new(columns, has_headers, colour).with_widths_of(widths);
        Self { format, has_headers, colour, table, output: Output::new(), has_printed: false }
    }

    /// Begins a table with these columns.
    pub(super) fn set_columns(&mut self, columns: &[&str], widths: &[&str]) {
        self.table = Table::new(columns, self.has_headers, self.colour).with_widths_of(widths);
    }

    /// Prints rows of the table.
    pub(super) fn rows(&mut self, rows: &[Row]) -> Result<(), Failure> {
        let text = self.table.rows(rows);
        self.text(&text)
    }

    pub(super) fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.output.print(text)
    }

    /// Prints an object as JSON or YAML. Several objects in a row are a stream of documents.
    pub(super) fn object(&mut self, object: &Value) -> Result<(), Failure> {
        let text = match &self.format {
            OutputFormat::Jsonpath(template) => {
                let escape =
                    |text: &str| if io::stdout().is_terminal() { lines(text) } else { text.to_owned() };
                template.execute(object, escape).map_err(|error| {
                    Failure::Failed(anyhow!("error executing jsonpath {:?}: {error}", template.text()))
                })?
            }
            OutputFormat::Jsonl => format!("{object}\n"),
            OutputFormat::Yaml if self.has_printed => format!("---\n{}", document(object, true)?),
            format => document(object, *format == OutputFormat::Yaml)?,
        };
        self.has_printed = true;
        self.text(&text)
    }

    /// Prints a line unchanged.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.output.write(line)?;
        self.text("\n")
    }

    /// Whether the reader of standard output has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.output.is_closed()
    }
}
