//! Splits the body of a response into JSON objects as it arrives: the events of a watch, the
//! items of a list.
//!
//! It reads nothing and never waits: chunks go in, objects come out. So no response is held
//! whole, and an invalid object affects no other. The end of an object is found by its
//! brackets and quotes alone; its decoder finds out whether it is valid.

use std::mem;

use bytes::{Buf as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, from_slice};

/// The largest accepted object, in bytes. (The API server limits a request to 3 MiB.)
pub const MAX_OBJECT: usize = 10 << 20;
/// How many bytes of a response that is not JSON an error shows: enough to recognise a web page.
const MAX_SHOWN: usize = 40;
/// After an object larger than this, in bytes, the buffer's memory is released.
pub(super) const MAX_KEPT_BUFFER: usize = 64 << 10;

/// What a body contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyShape {
    /// A sequence of JSON objects: a watch.
    Events,
    /// One object with `metadata` and `items`: a list.
    List,
}

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The text of an event of a watch or an item of a list, not validated. An item may
    /// be any JSON value, an event begins with `{`.
    Object(Bytes),
    /// The list is complete.
    End(ListEnd),
}

/// The fields of a list beside its items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEnd {
    /// `apiVersion`, if it is a string.
    pub api_version: String,
    /// `kind`, if it is a string.
    pub kind: String,
    /// `metadata.resourceVersion`, if it is a string.
    pub resource_version: String,
    /// `metadata.continue`; empty on the last page.
    pub continue_token: String,
}

/// Why a body cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The body is not the JSON of an API server.
    #[error("the response is not the JSON of an API server: {0}")]
    Malformed(String),
    /// The body is not the protobuf of an API server.
    #[error("the response is not the protobuf of an API server: {0}")]
    MalformedProtobuf(String),
    /// A value is larger than [`MAX_OBJECT`].
    #[error("an object in the response is larger than {} MiB", MAX_OBJECT >> 20)]
    TooLarge,
    /// The body ended in the middle.
    #[error("the response is incomplete")]
    Incomplete,
}

/// What the next byte that is not white space must be part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Event,
    List,
    FirstKey,
    Key,
    Colon,
    Value,
    AfterValue,
    FirstItem,
    Item,
    AfterItem,
    AfterList,
}

impl Position {
    fn expected(self) -> &'static str {
        match self {
            Self::Event => "an event",
            Self::List => "a list",
            Self::FirstKey | Self::Key => "a field's name",
            Self::Colon => "a colon",
            Self::Value => "a value",
            Self::AfterValue => "a comma or the end of the list",
            Self::FirstItem | Self::Item => "an item",
            Self::AfterItem => "a comma or the end of the items",
            Self::AfterList => "nothing more",
        }
    }
}

/// Splits one body.
#[derive(Debug, Default)]
pub(super) struct JsonSplitter {
    position: Position,
    /// The bytes not yet returned. A value that is being scanned begins the buffer.
    buffer: BytesMut,
    scan: ValueScan,
    /// Whether any byte of the response was valid.
    begun: bool,
    /// The field of the list whose value is next.
    field: String,
    end: ListEnd,
}

impl JsonSplitter {
    /// A splitter for a body of this shape.
    pub(super) fn new(shape: BodyShape) -> Self {
        let position = match shape {
            BodyShape::Events => Position::Event,
            BodyShape::List => Position::List,
        };
        Self { position, ..Self::default() }
    }

    /// Adds a chunk of the body.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// Whether the body may end here.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.position, Position::Event | Position::AfterList) && self.buffer.is_empty()
    }

    /// The capacity of the buffer, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Goes on until a part is complete or the buffer has nothing more to scan.
    ///
    /// # Errors
    /// If the body cannot be split.
    pub(super) fn advance(&mut self) -> Result<Option<Part>, SplitError> {
        loop {
            if self.scan.at == 0 {
                self.skip_space();
            }
            let Some(&byte) = self.buffer.first() else { return Ok(None) };
            // What follows, if the byte is a part by itself and does not begin a value.
            let then = match (self.position, byte) {
                (Position::List, b'{') => Some(Position::FirstKey),
                (Position::Colon, b':') => Some(Position::Value),
                (Position::AfterValue, b',') => Some(Position::Key),
                (Position::AfterItem, b',') => Some(Position::Item),
                (Position::Value, b'[') if self.field == "items" => Some(Position::FirstItem),
                (Position::FirstItem | Position::AfterItem, b']') => Some(Position::AfterValue),
                (Position::FirstKey | Position::AfterValue, b'}') => Some(Position::AfterList),
                (Position::Event, b'{') | (Position::FirstKey | Position::Key, b'"') => None,
                (Position::Value | Position::FirstItem | Position::Item, byte) if begins_value(byte) => None,
                _ => return Err(self.malformed()),
            };
            self.begun = true;
            if let Some(then) = then {
                self.buffer.advance(1);
                self.position = then;
                if then == Position::AfterList {
                    return Ok(Some(Part::End(mem::take(&mut self.end))));
                }
                continue;
            }
            let Some(value) = self.value()? else { return Ok(None) };
            match self.position {
                Position::Event => return Ok(Some(Part::Object(value))),
                Position::FirstKey | Position::Key => {
                    // Decoded, because JSON allows escapes in it.
                    self.field = text(&value);
                    self.position = Position::Colon;
                }
                Position::Value => {
                    self.store(&value)?;
                    self.position = Position::AfterValue;
                }
                _ => {
                    self.position = Position::AfterItem;
                    return Ok(Some(Part::Object(value)));
                }
            }
        }
    }

    /// An error that shows how the body begins, or a single byte if the body began as JSON:
    /// more could be a secret of a pod.
    fn malformed(&self) -> SplitError {
        let shown = if self.begun { 1 } else { MAX_SHOWN };
        let found = self.buffer[..self.buffer.len().min(shown)].escape_ascii();
        SplitError::Malformed(if self.begun {
            format!("found '{found}', expected {}", self.position.expected())
        } else {
            format!("it begins with '{found}'")
        })
    }

    fn skip_space(&mut self) {
        let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        let spaces = self.buffer.iter().position(|byte| !space(byte));
        self.buffer.advance(spaces.unwrap_or(self.buffer.len()));
    }

    /// The value at the start of the buffer, if it is complete.
    fn value(&mut self) -> Result<Option<Bytes>, SplitError> {
        let end = self.scan.end(&self.buffer);
        if end.unwrap_or(self.buffer.len()) > MAX_OBJECT {
            return Err(SplitError::TooLarge);
        }
        let Some(end) = end else { return Ok(None) };
        self.scan = ValueScan::default();
        let value = self.buffer.split_to(end).freeze();
        if end > MAX_KEPT_BUFFER && self.buffer.len() <= end {
            // Copying the rest releases the memory of the large object.
            self.buffer = BytesMut::from(&*self.buffer);
        }
        Ok(Some(value))
    }

    /// Stores the value of a field of the list.
    fn store(&mut self, value: &[u8]) -> Result<(), SplitError> {
        let name = &*self.field;
        let invalid = || SplitError::Malformed(format!("{name} has the wrong type for a list"));
        match name {
            "apiVersion" => self.end.api_version = text(value),
            "kind" => self.end.kind = text(value),
            "metadata" => {
                let metadata: ListMetadata = from_slice(value).map_err(|_| invalid())?;
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                self.end.resource_version = text(&metadata.resource_version);
                self.end.continue_token = text(&metadata.r#continue);
            }
            "items" if value != b"null" => return Err(invalid()),
            _ => {}
        }
        Ok(())
    }
}

/// The fields of a list's metadata that are read.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Value,
    r#continue: Value,
}

/// A JSON string; empty if the value is something else.
fn text(value: &[u8]) -> String {
    from_slice(value).unwrap_or_default()
}

fn begins_value(byte: u8) -> bool {
    matches!(byte, b'{' | b'[' | b'"') || is_word(byte)
}

/// Whether a byte may be part of a number, `true`, `false` or `null`.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// How far a value has been scanned. Each byte is scanned once, whatever the chunks are.
#[derive(Debug, Default)]
struct ValueScan {
    /// The index of the first byte that has not been scanned.
    at: usize,
    depth: usize,
    /// Whether a string is open.
    in_string: bool,
    /// Whether the next byte of a string follows a backslash.
    escaped: bool,
}

impl ValueScan {
    /// The end of the value at the start of a text, if it is complete.
    fn end(&mut self, text: &[u8]) -> Option<usize> {
        if text.first().is_some_and(|&byte| is_word(byte)) {
            let end = text[self.at..].iter().position(|&byte| !is_word(byte)).map(|end| self.at + end);
            self.at = text.len();
            return end;
        }
        while let Some(&byte) = text.get(self.at) {
            if self.in_string {
                self.skip_string(text);
            } else {
                self.at += 1;
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => continue,
                }
            }
            if self.depth == 0 && !self.in_string {
                return Some(self.at);
            }
        }
        None
    }

    /// Goes on to behind the quote that ends a string, or to the end of the text.
    fn skip_string(&mut self, text: &[u8]) {
        if mem::take(&mut self.escaped) {
            self.at += 1;
        }
        while let Some(plain) = text[self.at..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            self.at += plain + 1;
            if text[self.at - 1] == b'"' {
                self.in_string = false;
                return;
            }
            if self.at == text.len() {
                self.escaped = true;
                return;
            }
            self.at += 1;
        }
        self.at = text.len();
    }
}
