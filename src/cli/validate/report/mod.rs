//! The output of `podmux validate`: lines or excerpts for people, and the formats of other programs.

use std::{
    fmt,
    io::{self, IsTerminal as _},
    path::Path,
};

use self::{junit::Junit, sarif::Sarif, screen::Screen};
use super::{
    args::{Args, OutputFormat},
    check::CheckedManifest,
};
use crate::{
    cli::{
        failure::Failure,
        output::Output,
        terminal::{Escaped, RED, YELLOW, print_error, styled, width},
    },
    grouped::{counted, grouped},
    settings::Environment,
    telemetry::colours,
};

mod github;
mod junit;
mod lines;
mod sarif;
mod screen;
mod words;

/// Prints the results of manifests and counts them.
pub(super) struct ReportPrinter {
    output: Output,
    form: Form,
    verbose: bool,
    /// Whether the summary has colours, if it is printed.
    summary: Option<bool>,
    valid: usize,
    invalid: usize,
    warnings: usize,
    skipped: usize,
}

enum Form {
    Lines { colour: bool },
    Screen(Screen),
    Json,
    Sarif(Sarif),
    Github,
    Junit(Junit),
}

impl ReportPrinter {
    pub(super) fn new(args: &Args, environment: &Environment) -> Self {
        let colour = colours(&io::stdout(), environment);
        let form = match args.output {
            OutputFormat::Text if io::stdout().is_terminal() => {
                Form::Screen(Screen::new(colour, width(io::stdout(), environment)))
            }
            OutputFormat::Text => Form::Lines { colour },
            OutputFormat::Json => Form::Json,
            OutputFormat::Sarif => Form::Sarif(Sarif::default()),
            OutputFormat::Github => Form::Github,
            OutputFormat::Junit => Form::Junit(Junit::default()),
        };
        let summary = io::stderr().is_terminal().then(|| colours(&io::stderr(), environment));
        let (output, verbose) = (Output::new(), args.verbose);
        Self { output, form, verbose, summary, valid: 0, invalid: 0, warnings: 0, skipped: 0 }
    }

    /// The width of the terminal, if faulty lines are printed.
    pub(super) fn width(&self) -> Option<usize> {
        match &self.form {
            Form::Screen(screen) => Some(screen.width()),
            _ => None,
        }
    }

    /// How many problems are printed, if they are limited.
    pub(super) fn limit(&self) -> Option<usize> {
        self.width().map(|_| screen::MAX_PROBLEMS)
    }

    /// The number of invalid manifests.
    pub(super) fn invalid(&self) -> usize {
        self.invalid
    }

    /// Prints a note about a path on standard error, in order with the results.
    pub(super) fn note(&mut self, path: &Path, note: fmt::Arguments<'_>) -> Result<(), Failure> {
        self.output.flush()?;
        print_error(format_args!("podmux: {}: {note}", Escaped(&path.to_string_lossy())));
        Ok(())
    }

    /// Reports an argument that cannot be checked.
    pub(super) fn unusable(&mut self, path: &Path, why: &str) -> Result<(), Failure> {
        let shown = path.to_string_lossy();
        match &mut self.form {
            Form::Lines { .. } | Form::Screen(_) | Form::Json => {}
            Form::Sarif(sarif) => sarif.unusable(&shown, why),
            Form::Github => self.output.write(github::unusable(&shown, why).as_bytes())?,
            Form::Junit(junit) => junit.unusable(&shown, why),
        }
        self.note(path, format_args!("{why}"))
    }

    /// Prints the result of one manifest.
    pub(super) fn manifest(&mut self, checked: &CheckedManifest) -> Result<(), Failure> {
        *(if checked.is_valid() { &mut self.valid } else { &mut self.invalid }) += 1;
        self.warnings += checked.counts.warnings;
        self.skipped += checked.skipped;
        let text = match &mut self.form {
            Form::Lines { colour } => lines::problems(checked, *colour),
            Form::Screen(screen) => screen.problems(checked),
            Form::Json => lines::json(checked)?,
            Form::Sarif(sarif) => sarif.problems(checked),
            Form::Github => github::problems(checked),
            Form::Junit(junit) => {
                junit.problems(checked);
                String::new()
            }
        };
        self.output.write(text.as_bytes())?;
        let is_for_people = matches!(self.form, Form::Lines { .. } | Form::Screen(_));
        if self.verbose && is_for_people && checked.is_valid() {
            let pods: Vec<&str> = checked.pods().iter().map(|pod| pod.key().as_str()).collect();
            let path = checked.path.to_string_lossy();
            let line = format!("{}: valid: {}\n", Escaped(&path), Escaped(&pods.join(", ")));
            self.output.write(line.as_bytes())?;
        }
        Ok(())
    }

    /// Ends the output; on a terminal, or with `--verbose`, prints the counts.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let end = match &mut self.form {
            Form::Lines { .. } | Form::Json | Form::Github => String::new(),
            Form::Screen(screen) => screen.end(),
            Form::Sarif(sarif) => sarif.end(),
            Form::Junit(junit) => junit.end(),
        };
        self.output.write(end.as_bytes())?;
        self.output.flush()?;
        match self.summary {
            Some(colour) => print_error(self.summary(colour)),
            None if self.verbose => {
                let skipped = match self.skipped {
                    0 => String::new(),
                    skipped => format!(", {} skipped", counted(skipped, "other object")),
                };
                print_error(format_args!("podmux: {} valid, {} invalid{skipped}", self.valid, self.invalid));
            }
            None => {}
        }
        Ok(())
    }

    /// All counts on one line: `3 manifests: 2 valid, 1 rejected, 4 warnings`.
    fn summary(&self, colour: bool) -> String {
        let mut parts = vec![format!("{} valid", grouped(self.valid))];
        if self.invalid > 0 {
            parts.push(styled(colour, RED, &format!("{} rejected", grouped(self.invalid))));
        }
        if self.warnings > 0 {
            parts.push(styled(colour, YELLOW, &counted(self.warnings, "warning")));
        }
        if self.skipped > 0 {
            parts.push(counted(self.skipped, "other object") + " skipped");
        }
        format!("{}: {}", counted(self.valid + self.invalid, "manifest"), parts.join(", "))
    }
}
