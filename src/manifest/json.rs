//! Parses JSON text to a tree of values with positions.
//!
//! `serde_json` loses what is needed here: the notation of numbers (a quantity `1e3` is not
//! `1000`), the positions of values, and duplicate keys.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::Deserializer;

use super::tree::{Data, Fault, MAX_DEPTH, MAX_NODES, MapEntry, Node, last_wins};

/// Parses a text as one JSON value (RFC 8259), without the field at a path of two keys, which is
/// skipped unread. As in Go, half a surrogate pair becomes U+FFFD.
pub(super) fn read<'t>(text: &'t str, skipped: Option<[&'static str; 2]>) -> Result<Node<'t>, Fault> {
    let bytes = text.as_bytes();
    let mut reader = Reader { text, bytes, at: 0, depth: 0, values: 0, skipped, is_outer: false };
    let node = reader.value()?;
    reader.space();
    if reader.at < text.len() {
        return Err(reader.fault("unexpected text after the end of the value"));
    }
    Ok(node)
}

struct Reader<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    depth: usize,
    values: usize,
    /// The outer and the inner key of the skipped field.
    skipped: Option<[&'static str; 2]>,
    /// Whether the last key of the outermost map is the outer one.
    is_outer: bool,
}

impl<'t> Reader<'t> {
    fn fault(&self, detail: &str) -> Fault {
        Fault::new(self.at, if self.at < self.bytes.len() { detail } else { "the text ends inside a value" })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Consumes a byte if it is the next one.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self) -> Result<Node<'t>, Fault> {
        self.space();
        self.values += 1;
        if self.values > MAX_NODES {
            return Err(Fault::too_many(self.at));
        }
        let at = self.at;
        let data = match self.peek() {
            Some(b'{') => self.nested(Self::map)?,
            Some(b'[') => self.nested(Self::list)?,
            Some(b'"') => Data::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Data::Bool(true))?,
            Some(b'f') => self.word("false", Data::Bool(false))?,
            Some(b'n') => self.word("null", Data::Null)?,
            _ => return Err(self.fault("a value is missing here")),
        };
        Ok(Node { data, at })
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Data<'t>, Fault>) -> Result<Data<'t>, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::too_deep(self.at));
        }
        self.depth += 1;
        self.at += 1;
        let data = read(self)?;
        self.depth -= 1;
        Ok(data)
    }

    fn list(&mut self) -> Result<Data<'t>, Fault> {
        let mut items = Vec::new();
        self.space();
        let mut is_over = self.take(b']');
        while !is_over {
            items.push(self.value()?);
            is_over = self.ends(b']')?;
        }
        items.shrink_to_fit();
        Ok(Data::List(items))
    }

    fn map(&mut self) -> Result<Data<'t>, Fault> {
        let mut entries = Vec::new();
        self.space();
        let mut is_over = self.take(b'}');
        while !is_over {
            self.space();
            let at = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.fault("a key in double quotes is missing here"));
            }
            let key = self.string()?;
            self.space();
            if !self.take(b':') {
                return Err(self.fault("a colon is missing here"));
            }
            if self.skips(&key) {
                self.skip()?;
            } else {
                let value = self.value()?;
                entries.push(MapEntry { key, at, earlier: None, merged: false, value });
            }
            is_over = self.ends(b'}')?;
        }
        last_wins(&mut entries);
        // Most maps are small, and a body has up to a million of them.
        entries.shrink_to_fit();
        Ok(Data::Map(entries))
    }

    /// Consumes what follows an item: the end of the list or map, or a comma. Returns whether it is the end.
    fn ends(&mut self, bracket: u8) -> Result<bool, Fault> {
        self.space();
        if self.take(bracket) {
            return Ok(true);
        }
        if self.take(b',') {
            return Ok(false);
        }
        Err(self.fault(&format!("a comma or '{}' is missing here", char::from(bracket))))
    }

    /// Whether the value of a key is skipped.
    fn skips(&mut self, key: &str) -> bool {
        match (self.depth, self.skipped) {
            (1, Some([outer, _])) => {
                self.is_outer = key == outer;
                false
            }
            (2, Some([_, inner])) => self.is_outer && key == inner,
            _ => false,
        }
    }

    /// Skips a value. If it is not JSON, it is read, for the position and the reason.
    fn skip(&mut self) -> Result<(), Fault> {
        self.space();
        let mut values = Deserializer::from_str(&self.text[self.at..]).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => self.at += values.byte_offset(),
            _ => drop(self.value()?),
        }
        Ok(())
    }

    fn word(&mut self, word: &str, data: Data<'t>) -> Result<Data<'t>, Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.fault("a value is missing here: texts stand in double quotes"));
        }
        self.at += word.len();
        Ok(data)
    }

    /// Consumes at least one digit.
    fn digits(&mut self) -> Result<(), Fault> {
        let begin = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == begin { Err(self.fault("a digit is missing here")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Data<'t>, Fault> {
        let begin = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        Ok(Data::Number(self.text[begin..self.at].into()))
    }

    /// Reads a string. The next byte is its opening quote.
    fn string(&mut self) -> Result<Cow<'t, str>, Fault> {
        self.at += 1;
        let mut owned: Option<String> = None;
        let mut begin = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    let rest = &self.text[begin..self.at];
                    self.at += 1;
                    return Ok(match owned {
                        None => Cow::Borrowed(rest),
                        Some(text) => Cow::Owned(text + rest),
                    });
                }
                Some(b'\\') => {
                    let text = owned.get_or_insert_default();
                    text.push_str(&self.text[begin..self.at]);
                    text.push(self.escape()?);
                    begin = self.at;
                }
                Some(0..=0x1f) => return Err(self.fault("a control character in a string: escape it")),
                Some(_) => self.at += 1,
                None => return Err(self.fault("")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        self.at += 1;
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.code_unit(),
            _ => return Err(self.fault("an unknown escape")),
        };
        self.at += 1;
        Ok(c)
    }

    fn code_unit(&mut self) -> Result<char, Fault> {
        let unit = self.hex(self.at + 1).ok_or_else(|| self.fault("\\u needs four hexadecimal digits"))?;
        self.at += 5;
        if let 0xd800..0xdc00 = unit
            && self.bytes[self.at..].starts_with(b"\\u")
            && let Some(low @ 0xdc00..0xe000) = self.hex(self.at + 2)
        {
            self.at += 6;
            return Ok(
                char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00)).unwrap_or('\u{fffd}')
            );
        }
        Ok(char::from_u32(unit).unwrap_or('\u{fffd}'))
    }

    fn hex(&self, at: usize) -> Option<u32> {
        let digits = self.text.get(at..at + 4)?;
        // Rust's parser would accept a sign.
        u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
    }
}
