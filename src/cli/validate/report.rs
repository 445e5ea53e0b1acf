//! What `podmux validate` prints: lines for people, objects for programs, progress for who waits.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Checked, OutputArg};
use crate::{
    cli::{
        Failure, Output,
        terminal::{BOLD, Shown, YELLOW, colours, styled},
    },
    pod::{Prepared, Problem, Severity, Stage},
    settings::Environment,
};

/// How many manifests are checked between two looks at the progress.
const STEP: usize = 50;

/// The report while it is written.
pub(super) struct Report {
    output: Output,
    form: OutputArg,
    verbose: bool,
    colour: bool,
    progress: bool,
    good: usize,
    bad: usize,
}

impl Report {
    pub(super) fn new(form: OutputArg, verbose: bool, environment: &Environment) -> Self {
        Self {
            output: Output::new(),
            form,
            verbose,
            colour: colours(&io::stdout(), environment),
            progress: io::stderr().is_terminal(),
            good: 0,
            bad: 0,
        }
    }

    /// How many manifests were bad.
    pub(super) fn bad(&self) -> usize {
        self.bad
    }

    /// Tells whoever watches a terminal how far it is.
    pub(super) fn progress(&self, done: usize, of: usize) {
        if self.progress && of > STEP && done.is_multiple_of(STEP) {
            let _ = write!(io::stderr(), "\r\x1b[K{done} of {of} manifests");
        }
    }

    /// Takes the progress away again.
    pub(super) fn progressed(&self, of: usize) {
        if self.progress && of > STEP {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// A note about something that is no manifest, in its place among the results.
    pub(super) fn note(&mut self, path: &Path, note: fmt::Arguments<'_>) -> Result<(), Failure> {
        self.output.flush()?;
        // If standard error is closed, nobody wants notes.
        let _ = writeln!(io::stderr(), "podmux: {}: {note}", Shown(&path.to_string_lossy()));
        Ok(())
    }

    /// A note for those who asked for more.
    pub(super) fn detail(&mut self, path: &Path, note: fmt::Arguments<'_>) -> Result<(), Failure> {
        if self.verbose { self.note(path, note) } else { Ok(()) }
    }

    /// One manifest's result.
    pub(super) fn manifest(&mut self, checked: &Checked) -> Result<(), Failure> {
        if checked.ok() {
            self.good += 1;
        } else {
            self.bad += 1;
        }
        match self.form {
            OutputArg::Text => self.text(checked),
            OutputArg::Json => self.json(checked),
        }
    }

    fn text(&mut self, checked: &Checked) -> Result<(), Failure> {
        let path = checked.path.to_string_lossy();
        for problem in &checked.problems {
            let line = self.line(&path, problem);
            self.output.write(line.as_bytes())?;
        }
        if self.verbose && checked.ok() {
            let pods: Vec<&str> = checked.taken().iter().map(|pod| pod.key().as_str()).collect();
            let line = format!("{}: good: {}\n", Shown(&path), Shown(&pods.join(", ")));
            self.output.write(line.as_bytes())?;
        }
        Ok(())
    }

    fn line(&self, path: &str, problem: &Problem) -> String {
        let place = match problem.position {
            Some((line, column)) => format!("{}:{line}:{column}", Shown(path)),
            None => Shown(path).to_string(),
        };
        let mut parts = vec![styled(self.colour, BOLD, &place)];
        if problem.severity == Severity::Warning {
            parts.push(styled(self.colour, YELLOW, "warning"));
        }
        parts.extend(problem.field.as_deref().map(|field| Shown(field).to_string()));
        parts.extend(problem.reason.map(str::to_owned));
        parts.push(Shown(&problem.detail).to_string());
        parts.join(": ") + "\n"
    }

    fn json(&mut self, checked: &Checked) -> Result<(), Failure> {
        let object = ManifestObject {
            path: &checked.path.to_string_lossy(),
            ok: checked.ok(),
            stage: checked.stage.map(Stage::as_str),
            problems: checked.problems.iter().map(ProblemObject::from).collect(),
            pods: checked.taken().iter().map(Prepared::object).collect(),
        };
        let mut line = serde_json::to_vec(&object).map_err(|error| Failure::Failed(error.into()))?;
        line.push(b'\n');
        self.output.write(&line)
    }

    /// The end: what was counted, for those who asked for more.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        self.output.flush()?;
        if self.verbose {
            let Self { good, bad, .. } = self;
            let _ = writeln!(io::stderr(), "podmux: {good} good, {bad} bad");
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
    problems: Vec<ProblemObject<'a>>,
    pods: Vec<&'a Map<String, Value>>,
}

#[derive(Serialize)]
struct ProblemObject<'a> {
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    detail: &'a str,
}

impl<'a> From<&'a Problem> for ProblemObject<'a> {
    fn from(problem: &'a Problem) -> Self {
        let (line, column) = problem.position.unzip();
        Self {
            severity: match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            line,
            column,
            field: problem.field.as_deref(),
            reason: problem.reason,
            detail: &problem.detail,
        }
    }
}
