//! Rejects tabs where the kubelet's YAML 1.1 requires spaces.
//!
//! YAML 1.2, and so the parser, allows tabs in blank lines, before comments and after `- `;
//! in YAML 1.1 they are errors there. The rules are those of libyaml's scanner, which
//! go-yaml v2 uses.

use granit_parser::ScalarStyle;

use super::tree::Fault;

/// The tabs in the indentation of lines, and the last scalar before them.
pub(super) struct Tabs<'t> {
    text: &'t str,
    /// The position of the first tab of each such line, the last line first.
    pending: Vec<usize>,
    last: LastScalar,
}

/// The scalar that was read last.
struct LastScalar {
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
        Self { text, pending, last: LastScalar { end: 0, is_plain: false, indent: 0 } }
    }

    /// Checks the tabs between the last scalar and the next event.
    pub(super) fn before(&mut self, at: usize, in_flow: bool) -> Result<(), Fault> {
        while let Some(tab) = self.pending.pop_if(|tab| *tab < at) {
            let touches = self.text.get(self.last.end..tab).is_some_and(|gap| gap.trim().is_empty());
            let is_allowed = if touches && self.last.is_plain {
                // The tab may be white space within the plain scalar.
                self.column(tab) >= self.last.indent
            } else {
                in_flow
            };
            if !is_allowed {
                return Err(fault(tab));
            }
        }
        Ok(())
    }

    /// Checks the tabs within a scalar. `indent` is the least column of its other lines.
    pub(super) fn scalar(
        &mut self,
        begin: usize,
        end: usize,
        style: ScalarStyle,
        indent: usize,
    ) -> Result<(), Fault> {
        self.last = LastScalar { end, is_plain: style == ScalarStyle::Plain, indent };
        while let Some(tab) = self.pending.pop_if(|tab| *tab < end) {
            let least = match style {
                ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 0,
                ScalarStyle::Plain => indent,
                ScalarStyle::Literal | ScalarStyle::Folded => self.indent_of_block(begin),
            };
            if self.column(tab) < least {
                return Err(fault(tab));
            }
        }
        Ok(())
    }

    /// Checks the white space before an item of a block list: no tab may follow the dash.
    pub(super) fn item(&self, at: usize) -> Result<(), Fault> {
        let before = &self.text[..at];
        let dash = before.trim_end_matches([' ', '\t']);
        if dash.ends_with('-') && before[dash.len()..].contains('\t') {
            return Err(fault(dash.len()));
        }
        Ok(())
    }

    fn column(&self, at: usize) -> usize {
        at - self.text[..at].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// The indentation of a block scalar: that of its first line that is not blank.
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

fn fault(at: usize) -> Fault {
    Fault::new(at, "a tab in the indentation: use spaces")
}
