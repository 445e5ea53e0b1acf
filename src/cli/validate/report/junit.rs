//! Results as JUnit XML: each manifest is a test.

use std::fmt::Write as _;

use super::{
    lines,
    words::{message, plain_path, rule},
};
use crate::{
    cli::{terminal::Escaped, validate::check::CheckedManifest},
    pod::{Problem, Severity},
};

/// A report with one suite. Its counts come first, so that it is written at the end.
#[derive(Default)]
pub(super) struct Junit {
    cases: String,
    tests: usize,
    failures: usize,
    errors: usize,
}

impl Junit {
    /// Adds the test of a manifest.
    pub(super) fn problems(&mut self, checked: &CheckedManifest) {
        let path = checked.path.to_string_lossy();
        let of = |severity| checked.problems.iter().filter(move |problem| problem.severity == severity);
        let text = |severity| -> String {
            of(severity).map(|problem| lines::line(plain_path(&path), problem, false)).collect()
        };
        let mut inner = String::new();
        if let Some(first) = of(Severity::Error).next() {
            self.failures += 1;
            inner += &element("failure", rule(first, checked.stage), first, &text(Severity::Error));
        }
        let warnings = text(Severity::Warning);
        if !warnings.is_empty() {
            let _ = write!(inner, "<system-out>{}</system-out>", escaped(&warnings));
        }
        self.case(&path, &inner);
    }

    /// Adds the error of an argument that cannot be checked.
    pub(super) fn unusable(&mut self, path: &str, why: &str) {
        self.errors += 1;
        self.case(path, &element("error", "unusable", &Problem::error(why), why));
    }

    fn case(&mut self, path: &str, inner: &str) {
        self.tests += 1;
        let name = escaped(&Escaped(plain_path(path)).to_string());
        let _ = writeln!(
            self.cases,
            "<testcase classname=\"podmux.validate\" name=\"{name}\">{inner}</testcase>"
        );
    }

    /// The whole report.
    pub(super) fn end(&self) -> String {
        let Self { cases, tests, failures, errors } = self;
        let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\"");
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n\
             <testsuite name=\"podmux validate\" {counts}>\n{cases}</testsuite>\n</testsuites>\n"
        )
    }
}

fn element(name: &str, kind: &str, problem: &Problem, text: &str) -> String {
    let message = escaped(&message(problem));
    format!("<{name} type=\"{kind}\" message=\"{message}\">{}</{name}>", escaped(text))
}

/// A text or an attribute in XML. Control characters but line ends are escaped before.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            // XML has no way to write these.
            '\u{fffe}' | '\u{ffff}' => xml.push('\u{fffd}'),
            character => xml.push(character),
        }
    }
    xml
}
