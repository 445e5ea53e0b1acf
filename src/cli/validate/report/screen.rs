//! Results on a terminal: each problem with the faulty line of the manifest and a caret.

use std::fmt::Write as _;

use crate::{
    cli::{
        terminal::{BOLD, RED, YELLOW, styled},
        validate::{
            check::{CheckedManifest, Counts},
            excerpt::{Excerpt, sanitized},
        },
    },
    grouped::counted,
    pod::{Problem, Severity},
};

/// The most problems that are printed. Then only their number is of use.
pub(super) const MAX_PROBLEMS: usize = 1_000;

const BOLD_RED: &str = "1;31";
/// For what is around the manifest's own text.
const BLUE: &str = "1;34";

/// The problems on a terminal.
pub(super) struct Screen {
    colour: bool,
    width: usize,
    /// How many more problems are printed.
    left: usize,
    /// The number of the others.
    hidden: usize,
}

impl Screen {
    pub(super) fn new(colour: bool, width: usize) -> Self {
        Self { colour, width, left: MAX_PROBLEMS, hidden: 0 }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// The first problems, each with its line.
    pub(super) fn problems(&mut self, checked: &CheckedManifest) -> String {
        let path = sanitized(&checked.path.to_string_lossy());
        let shown = &checked.problems[..checked.problems.len().min(self.left)];
        self.left -= shown.len();
        self.hidden += checked.counts.total() - Counts::of(shown).total();
        let excerpt = |index| checked.excerpts.get(index).and_then(Option::as_ref);
        shown
            .iter()
            .enumerate()
            .map(|(index, problem)| self.problem(&path, problem, excerpt(index)))
            .collect()
    }

    fn problem(&self, path: &str, problem: &Problem, excerpt: Option<&Excerpt>) -> String {
        let (name, style) = match problem.severity {
            Severity::Error => ("error", BOLD_RED),
            Severity::Warning => ("warning", YELLOW),
        };
        let reason = problem.reason.map(|reason| format!("[{reason}]")).unwrap_or_default();
        let field = problem.field.as_deref().map(|field| format!("{field}: ")).unwrap_or_default();
        let title = sanitized(&(field + &problem.detail));
        let title = styled(self.colour, style, &format!("{name}{reason}"))
            + &styled(self.colour, BOLD, &format!(": {title}"));
        let place = match problem.position {
            Some((line, column)) => format!("{path}:{line}:{column}"),
            None => path.to_owned(),
        };
        let blue = |text: &str| styled(self.colour, BLUE, text);
        let gutter = excerpt.and_then(|excerpt| excerpt.gutter).unwrap_or_default();
        let mut text = format!("{title}\n{:gutter$}{} {place}\n", "", blue("-->"));
        if let (Some(excerpt), Some((line, _))) = (excerpt, problem.position) {
            let caret = format!("{:indent$}{}", "", styled(self.colour, style, "^"), indent = excerpt.indent);
            let bar = blue(&format!("{:gutter$} |", ""));
            let number = blue(&format!("{line} |"));
            let _ = match excerpt.gutter {
                None => writeln!(text, "{}\n{caret}", excerpt.text),
                Some(_) => writeln!(text, "{bar}\n{number} {}\n{bar} {caret}", excerpt.text),
            };
        }
        text + "\n"
    }

    /// How many problems were not printed.
    pub(super) fn end(&self) -> String {
        if self.hidden == 0 {
            return String::new();
        }
        let (more, verb) =
            (counted(self.hidden, "more problem"), if self.hidden == 1 { "is" } else { "are" });
        let more = styled(self.colour, RED, &more);
        format!(
            "{more} {verb} not shown: podmux validate -o json prints at most 100 errors and 100 warnings of each manifest\n"
        )
    }
}
