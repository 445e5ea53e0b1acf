//! Tabs where the kubelet's YAML 1.1 wants spaces.
//!
//! YAML 1.2 allows tabs in blank lines, before comments and after `- `; in
//! YAML 1.1 they are errors there. The parser takes them, so they are judged
//! here, by the rules of libyaml's scanner that go-yaml v2 has kept.

use granit_parser::ScalarStyle;

use super::tree::Fault;

/// The tabs among the white space at the beginning of lines, and what came before them.
pub(super) struct Tabs<'t> {
    text: &'t str,
    /// Where the first tab of such a line stands; the last line first.
    pending: Vec<usize>,
    last: Scalar,
}

/// The scalar that was read last.
struct Scalar {
    end: usize,
    is_plain: bool,
    indent: usize,
}

impl<'t> Tabs<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut pending: Vec<usize> = Vec::new();
        if text.contains('\t') {
            let mut begin = 0;
            for line in text.split_inclusive('\n') {
                let spaces = line.bytes().take_while(|byte| *byte == b' ').count();
                if line[spaces..].starts_with('\t') {
                    pending.push(begin + spaces);
                }
                begin += line.len();
            }
            pending.reverse();
        }
        Self { text, pending, last: Scalar { end: 0, is_plain: false, indent: 0 } }
    }

    /// Judges the tabs between the last scalar and the next event.
    pub(super) fn before(&mut self, at: usize, in_flow: bool) -> Result<(), Fault> {
        while let Some(tab) = self.pending.pop_if(|tab| *tab < at) {
            let touches = self.text.get(self.last.end..tab).is_some_and(|gap| gap.trim().is_empty());
            let fine = if touches && self.last.is_plain {
                // It may still be white space within the plain scalar.
                self.column(tab) >= self.last.indent
            } else {
                in_flow
            };
            if !fine {
                return Err(refusal(tab));
            }
        }
        Ok(())
    }

    /// Judges the tabs within a scalar. `indent` is the least column of its further lines.
    pub(super) fn scalar(
        &mut self,
        begin: usize,
        end: usize,
        style: ScalarStyle,
        indent: usize,
    ) -> Result<(), Fault> {
        self.last = Scalar { end, is_plain: style == ScalarStyle::Plain, indent };
        while let Some(tab) = self.pending.pop_if(|tab| *tab < end) {
            let least = match style {
                ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 0,
                ScalarStyle::Plain => indent,
                ScalarStyle::Literal | ScalarStyle::Folded => self.indent_of_block(begin),
            };
            if self.column(tab) < least {
                return Err(refusal(tab));
            }
        }
        Ok(())
    }

    /// Judges the white space before an item of a block list: no tab may follow the dash.
    pub(super) fn item(&self, at: usize) -> Result<(), Fault> {
        let before = &self.text[..at];
        let dash = before.trim_end_matches([' ', '\t']);
        if dash.ends_with('-') && before[dash.len()..].contains('\t') {
            return Err(refusal(dash.len()));
        }
        Ok(())
    }

    fn column(&self, at: usize) -> usize {
        at - self.text[..at].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// Where the lines of a block scalar begin: as its first line that is not blank.
    fn indent_of_block(&self, begin: usize) -> usize {
        let lines = self.text[begin..].lines().skip(1);
        let indents = lines.map(|line| (line, line.len() - line.trim_start_matches(' ').len()));
        indents
            .filter(|(line, indent)| line.len() > *indent)
            .map(|(_, indent)| indent)
            .next()
            .unwrap_or_default()
    }
}

fn refusal(at: usize) -> Fault {
    Fault::new(at, "a tab in the indentation: use spaces")
}
