//! The output of `podmux validate`: lines for people, JSON for programs.

use std::{fmt, io, path::Path};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{args::OutputFormat, check::CheckedManifest};
use crate::{
    cli::{
        failure::Failure,
        output::Output,
        terminal::{BOLD, Escaped, YELLOW, print_error, styled},
    },
    pod::{Prepared, Problem, Severity, Stage},
    settings::Environment,
    telemetry::colours,
};

/// Prints the results of manifests and counts them.
pub(super) struct ReportPrinter {
    output: Output,
    format: OutputFormat,
    verbose: bool,
    colour: bool,
    valid: usize,
    invalid: usize,
}

impl ReportPrinter {
    pub(super) fn new(format: OutputFormat, verbose: bool, environment: &Environment) -> Self {
        let colour = colours(&io::stdout(), environment);
        Self { output: Output::new(), format, verbose, colour, valid: 0, invalid: 0 }
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

    /// Prints the result of one manifest.
    pub(super) fn manifest(&mut self, checked: &CheckedManifest) -> Result<(), Failure> {
        *(if checked.is_valid() { &mut self.valid } else { &mut self.invalid }) += 1;
        match self.format {
            OutputFormat::Text => self.text(checked),
            OutputFormat::Json => self.json(checked),
        }
    }

    fn text(&mut self, checked: &CheckedManifest) -> Result<(), Failure> {
        let path = checked.path.to_string_lossy();
        for problem in &checked.problems {
            let line = self.line(&path, problem);
            self.output.write(line.as_bytes())?;
        }
        if self.verbose && checked.is_valid() {
            let pods: Vec<&str> = checked.pods().iter().map(|pod| pod.key().as_str()).collect();
            let line = format!("{}: valid: {}\n", Escaped(&path), Escaped(&pods.join(", ")));
            self.output.write(line.as_bytes())?;
        }
        Ok(())
    }

    fn line(&self, path: &str, problem: &Problem) -> String {
        let place = match problem.position {
            Some((line, column)) => format!("{}:{line}:{column}", Escaped(path)),
            None => Escaped(path).to_string(),
        };
        let mut parts = vec![styled(self.colour, BOLD, &place)];
        if problem.severity == Severity::Warning {
            parts.push(styled(self.colour, YELLOW, "warning"));
        }
        parts.extend(problem.field.as_deref().map(|field| Escaped(field).to_string()));
        parts.extend(problem.reason.map(str::to_owned));
        parts.push(Escaped(&problem.detail).to_string());
        parts.join(": ") + "\n"
    }

    fn json(&mut self, checked: &CheckedManifest) -> Result<(), Failure> {
        let object = ManifestObject {
            path: &checked.path.to_string_lossy(),
            ok: checked.is_valid(),
            stage: checked.stage.map(Stage::as_str),
            problems: &checked.problems,
            pods: checked.pods().iter().map(Prepared::object).collect(),
        };
        let mut line = serde_json::to_vec(&object).map_err(Failure::failed)?;
        line.push(b'\n');
        self.output.write(&line)
    }

    /// Flushes the output; with `--verbose`, prints the counts.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.output.flush()?;
        if self.verbose {
            print_error(format_args!("podmux: {} valid, {} invalid", self.valid, self.invalid));
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct ManifestObject<'a> {
    path: &'a str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'static str>,
    problems: &'a [Problem],
    pods: Vec<&'a Map<String, Value>>,
}
