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
    /// The position and the column of the first tab of each such line, the last line first.
    pending: Vec<(usize, usize)>,
    /// The least column of the other lines of the last scalar, if it is plain and only white
    /// space follows it.
    indent: Option<usize>,
    /// The position up to which only white space follows the last scalar.
    blank_to: usize,
}

impl<'t> Tabs<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut pending = Vec::new();
        if text.contains('\t') {
            let mut begin = 0;
            for line in text.split_inclusive('\n') {
                let spaces = line.bytes().take_while(|byte| *byte == b' ').count();
                if line[spaces..].starts_with('\t') {
                    pending.push((begin + spaces, spaces));
                }
                begin += line.len();
            }
            pending.reverse();
        }
        Self { text, pending, indent: None, blank_to: 0 }
    }

    /// Checks the tabs between the last scalar and the next event.
    pub(super) fn before(&mut self, at: usize, in_flow: bool) -> Result<(), Fault> {
        while let Some((tab, column)) = self.pending.pop_if(|(tab, _)| *tab < at) {
            // The tab may be white space within a plain scalar.
            self.indent
                .take_if(|_| self.text.get(self.blank_to..tab).is_none_or(|gap| !gap.trim().is_empty()));
            self.blank_to = tab;
            if !self.indent.map_or(in_flow, |least| column >= least) {
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
        self.indent = (style == ScalarStyle::Plain).then_some(indent);
        self.blank_to = end;
        let mut least = None;
        while let Some((tab, column)) = self.pending.pop_if(|(tab, _)| *tab < end) {
            let least = least.get_or_insert_with(|| match style {
                ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 0,
                ScalarStyle::Plain => indent,
                ScalarStyle::Literal | ScalarStyle::Folded => self.indent_of_block(begin),
            });
            if column < *least {
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

    /// The indentation of a block scalar: that of its first line that is not blank.
    fn indent_of_block(&self, begin: usize) -> usize {
        let lines = self.text[begin..].lines().skip(1);
        let mut indents = lines.map(|line| (line, line.bytes().take_while(|byte| *byte == b' ').count()));
        indents.find(|(line, indent)| line.len() > *indent).map_or(0, |(_, indent)| indent)
    }
}

fn fault(at: usize) -> Fault {
    Fault::new(at, "a tab in the indentation: use spaces")
}
