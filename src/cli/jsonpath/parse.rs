//! Parses kubectl's JSONPath templates.

use std::{iter::Peekable, str::CharIndices};

use super::syntax::{Filter, Node, Part, Slice, TemplateError};

/// The parts of a template.
pub(super) fn template(text: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parser = Parser { text, at: 0 };
    let mut parts = Vec::new();
    while parser.at < text.len() {
        let rest = parser.rest();
        match rest.find('{') {
            Some(0) => {
                parser.at += 1;
                parts.push(Part::Action(parser.action()?));
            }
            end => {
                let end = end.unwrap_or(rest.len());
                parts.push(Part::Text(rest[..end].to_owned()));
                parser.at += end;
            }
        }
    }
    Ok(parts)
}

/// The nodes of an expression without its braces. Expressions in it are not nested further: a filter ends at
/// its first `)`, and brackets at their first `]`.
fn expression(text: &str) -> Result<Vec<Node>, TemplateError> {
    match template(&format!("{{{text}}}"))?.into_iter().next() {
        Some(Part::Action(nodes)) => Ok(nodes),
        _ => Ok(Vec::new()),
    }
}

struct Parser<'t> {
    text: &'t str,
    /// The position in bytes.
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Takes the text up to the first character that does not belong to it.
    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|char| !belongs(char)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// What stands in braces, after the first one.
    fn action(&mut self) -> Result<Vec<Node>, TemplateError> {
        let mut nodes = Vec::new();
        loop {
            let rest = self.rest();
            if rest.starts_with("[?(") {
                self.at += 3;
                nodes.push(self.filter()?);
            } else if rest.starts_with("..") {
                if nodes.last() == Some(&Node::Recursive) {
                    return TemplateError::fail("invalid multiple recursive descent");
                }
                self.at += 2;
                nodes.push(Node::Recursive);
                if self.peek().is_some_and(is_alphanumeric) {
                    nodes.push(self.field());
                }
            } else if self.step(&mut nodes)? {
                return Ok(nodes);
            }
        }
    }

    /// Parses a step that begins with a single character. Returns whether the action ends.
    fn step(&mut self, nodes: &mut Vec<Node>) -> Result<bool, TemplateError> {
        match self.peek() {
            None | Some('\r' | '\n') => return TemplateError::fail("unclosed action"),
            Some('}') => {
                self.at += 1;
                return Ok(true);
            }
            Some(' ' | '@' | '$') => self.at += 1,
            Some('[') => self.array(nodes)?,
            Some(quote @ ('"' | '\'')) => nodes.push(self.quoted(quote)?),
            Some('.') => {
                self.at += 1;
                nodes.push(self.field());
            }
            Some(first) if first == '+' || first == '-' || first.is_ascii_digit() => {
                nodes.push(self.number()?);
            }
            Some(first) if is_alphanumeric(first) => {
                nodes.push(match self.take_while(|char| !is_terminator(char)) {
                    "true" => Node::Literal(true.into()),
                    "false" => Node::Literal(false.into()),
                    word => Node::Identifier(word.to_owned()),
                });
            }
            Some(other) => {
                let code = u32::from(other);
                return TemplateError::fail(format!(
                    "unrecognized character in action: U+{code:04X} '{}'",
                    other.escape_debug()
                ));
            }
        }
        Ok(false)
    }

    fn field(&mut self) -> Node {
        let mut name = String::new();
        while let Some(char) = self.peek().filter(|char| !is_terminator(*char)) {
            self.at += char.len_utf8();
            // A backslash takes the next character as it is.
            match char {
                '\\' => name.extend(self.next().filter(|char| *char != '\\')),
                char => name.push(char),
            }
        }
        if name == "*" { Node::Wildcard } else { Node::Field(name) }
    }

    fn number(&mut self) -> Result<Node, TemplateError> {
        let start = self.at;
        self.at += usize::from(matches!(self.peek(), Some('+' | '-')));
        self.take_while(|char| char == '.' || char.is_ascii_digit());
        let text = &self.text[start..self.at];
        if let Ok(number) = text.parse::<i64>() {
            return Ok(Node::Literal(number.into()));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Node::Literal(number.into())),
            _ => TemplateError::fail(format!("cannot parse number {text}")),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Node, TemplateError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.next() {
                None | Some('\n') => return TemplateError::fail("unterminated quoted string"),
                Some(char) if char == quote && self.text.as_bytes()[self.at - 2] != b'\\' => break,
                Some(_) => {}
            }
        }
        let text = &self.text[start..self.at];
        match unquoted(&text[1..text.len() - 1], quote) {
            Some(value) => Ok(Node::Literal(value.into())),
            None => TemplateError::fail(format!("unquote string {text} error invalid syntax")),
        }
    }

    /// An index, a slice, a key or a union of these in brackets.
    fn array(&mut self, nodes: &mut Vec<Node>) -> Result<(), TemplateError> {
        self.at += 1;
        let inner = self.take_while(|char| char != ']' && char != '\n');
        if self.next() != Some(']') {
            return TemplateError::fail("unterminated array");
        }
        if inner.contains(',') {
            let part = |part: &str| expression(&format!("[{}]", part.trim_matches(' ')));
            nodes.push(Node::Union(inner.split(',').map(part).collect::<Result<_, _>>()?));
            return Ok(());
        }
        let key = inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\''));
        if let Some(key) = key.filter(|key| !key.contains('\'')) {
            nodes.append(&mut expression(&format!(".{key}"))?);
            return Ok(());
        }
        nodes.push(Node::Slice(slice(inner)?));
        Ok(())
    }

    /// A filter, after `[?(`.
    fn filter(&mut self) -> Result<Node, TemplateError> {
        let start = self.at;
        // The quote of the text in it, and whether that has ended.
        let (mut quote, mut has_ended) = (None, false);
        loop {
            match self.next() {
                None | Some('\n') => return TemplateError::fail("unterminated filter"),
                Some(char @ ('"' | '\'')) => match quote {
                    None => quote = Some(char),
                    Some(quote) => {
                        has_ended |= char == quote && self.text.as_bytes()[self.at - 2] != b'\\';
                    }
                },
                Some(')') if quote.is_some() == has_ended => break,
                Some(_) => {}
            }
        }
        let inner = &self.text[start..self.at - 1];
        if self.next() != Some(']') {
            return TemplateError::fail("unclosed array expect ]");
        }
        let filter = match comparison(inner) {
            Some((left, operator, right)) => Filter {
                left: expression(left)?,
                comparison: Some((operator.to_owned(), expression(right)?)),
            },
            None => Filter { left: expression(inner)?, comparison: None },
        };
        Ok(Node::Filter(Box::new(filter)))
    }
}

/// The parts of `LEFT OPERATOR RIGHT`; none of them is empty.
fn comparison(text: &str) -> Option<(&str, &str, &str)> {
    let is_operator = |char: char| matches!(char, '!' | '<' | '=' | '>');
    let start = text.find(is_operator).filter(|start| *start > 0)?;
    let length = text[start..].find(|char| !is_operator(char)).unwrap_or(text.len() - start);
    // Something stands on the right, at least the last character of the operator.
    let end = (start + length).min(text.len() - 1);
    (end > start).then(|| (&text[..start], &text[start..end], &text[end..]))
}

/// `*`, `1`, `-1`, `0:2`, `::2`; nothing is 0.
fn slice(text: &str) -> Result<Slice, TemplateError> {
    let numbers: Vec<&str> = if text == "*" { vec!["", ""] } else { text.split(':').collect() };
    let is_number =
        |text: &&str| text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() > 3 || !numbers.iter().all(is_number) {
        return TemplateError::fail(format!("invalid array index {text}"));
    }
    let number = |index: usize| match numbers.get(index) {
        None | Some(&"") => Ok(None),
        Some(number) => match number.parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => TemplateError::fail(format!("array index {number} is not a number")),
        },
    };
    let (start, mut end, step, is_index) = (number(0)?, number(1)?, number(2)?, numbers.len() == 1);
    if is_index {
        end = Some(start.unwrap_or_default().saturating_add(1));
    }
    Ok(Slice { start, end, step, is_index })
}

/// The text of a quoted string with Go's escapes.
fn unquoted(text: &str, quote: char) -> Option<String> {
    let mut bytes = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((_, char)) = chars.next() {
        if char == '\\' {
            escaped(&mut chars, quote, &mut bytes)?;
        } else {
            bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Adds what an escape stands for, after its backslash: a character, or a single byte.
fn escaped(chars: &mut Peekable<CharIndices<'_>>, quote: char, bytes: &mut Vec<u8>) -> Option<()> {
    let (_, kind) = chars.next()?;
    let mut digits = |count: usize, radix: u32, first: u32| {
        (0..count).try_fold(first, |number, _| Some(number * radix + chars.next()?.1.to_digit(radix)?))
    };
    let char = match kind {
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        '\\' => '\\',
        'x' => {
            bytes.push(u8::try_from(digits(2, 16, 0)?).ok()?);
            return Some(());
        }
        '0'..='7' => {
            bytes.push(u8::try_from(digits(2, 8, kind.to_digit(8)?)?).ok()?);
            return Some(());
        }
        'u' => char::from_u32(digits(4, 16, 0)?)?,
        'U' => char::from_u32(digits(8, 16, 0)?)?,
        other if other == quote => other,
        _ => return None,
    };
    bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes());
    Some(())
}

fn is_alphanumeric(char: char) -> bool {
    char == '_' || char.is_alphanumeric()
}

/// Whether a character ends a name.
fn is_terminator(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}
