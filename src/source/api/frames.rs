//! An answer's body, cut into JSON objects as it arrives: the events of a watch, the items of a list.
//!
//! Nothing here reads or waits: chunks go in, objects come out, so that one
//! that is broken costs only itself and no answer is ever held whole. An
//! object's end is found by its brackets and quotes alone; whether it is valid
//! is for its decoder to say.

use std::{borrow::Cow, mem};

use bytes::{Buf as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, from_slice};

/// The largest object that is taken, in bytes; the API server's own bound on a request is 3 MiB.
pub const MAX_OBJECT: usize = 10 << 20;
/// How many bytes are shown of an answer that is not JSON: enough to tell a web page from an archive.
const MAX_SHOWN: usize = 40;
/// A buffer that held more than this is not kept for the next object, in bytes.
const MAX_KEPT: usize = 64 << 10;

/// What a body has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One JSON object after the other: a watch.
    Events,
    /// One object with `metadata` and `items`: a list.
    List,
}

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A watch event, or an item of a list: the text of one JSON value, which is
    /// not checked further. An item may be anything, an event begins with `{`.
    Object(Bytes),
    /// A list is complete.
    End(ListEnd),
}

/// What a list says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEnd {
    /// `apiVersion`, if it is a text.
    pub api_version: String,
    /// `kind`, if it is a text.
    pub kind: String,
    /// `metadata.resourceVersion`, if it is a text.
    pub resource_version: String,
    /// `metadata.continue`; empty if there is nothing more.
    pub continue_token: String,
}

/// Why a body cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// What stands there is not what belongs there.
    #[error("the answer is not JSON as an API server writes it: {0}")]
    Garbage(String),
    /// A value that is larger than [`MAX_OBJECT`].
    #[error("an object of the answer is larger than {} MiB", MAX_OBJECT >> 20)]
    TooLarge,
    /// The body ended in the middle.
    #[error("the answer ends in the middle")]
    CutOff,
}

/// Where the next byte that is not white space belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Event,
    List,
    FirstKey,
    Key,
    Colon,
    Items,
    Value,
    AfterValue,
    FirstItem,
    Item,
    AfterItem,
    AfterList,
}

/// The fields of a list that are read.
#[derive(Clone, Copy, Debug)]
enum Field {
    ApiVersion,
    Kind,
    Metadata,
    Items,
    Other,
}

/// Cuts one body. Memory: one object and one chunk, if what is complete is
/// taken out before the next chunk is put in.
#[derive(Debug)]
pub struct Frames {
    place: Place,
    /// What has come and not gone: it begins with the value that is being
    /// looked at, if there is one.
    buffer: BytesMut,
    scan: Scan,
    /// Whether anything of the answer was as it should be.
    begun: bool,
    /// The field that is being read.
    field: Field,
    end: ListEnd,
    failed: Option<FrameError>,
}

impl Frames {
    /// For a body of this shape.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            place: match shape {
                Shape::Events => Place::Event,
                Shape::List => Place::List,
            },
            buffer: BytesMut::new(),
            scan: Scan::default(),
            begun: false,
            field: Field::Other,
            end: ListEnd::default(),
            failed: None,
        }
    }

    /// Takes a chunk of the body.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.failed.is_none() {
            self.buffer.extend_from_slice(chunk);
        }
    }

    /// The next part, if it is complete.
    ///
    /// # Errors
    /// If the body cannot be cut. After an error there is nothing more to be had
    /// but the same error.
    #[allow(
        clippy::should_implement_trait,
        reason = "it is no iterator: after nothing there may be more, when another chunk has come"
    )]
    pub fn next(&mut self) -> Result<Option<Piece>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let piece = self.cut();
        if let Err(error) = &piece {
            self.failed = Some(error.clone());
            self.buffer = BytesMut::new();
        }
        piece
    }

    /// Says that the body has ended, after [`next`](Self::next) has had nothing more.
    ///
    /// # Errors
    /// If it ended in the middle of something: in an object, or before the end of
    /// a list. Or the error that there was before.
    pub fn finish(&self) -> Result<(), FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let complete = matches!(self.place, Place::Event | Place::AfterList);
        if complete && self.buffer.is_empty() { Ok(()) } else { Err(FrameError::CutOff) }
    }

    /// How many bytes the buffer has room for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.buffer.capacity()
    }

    /// One step after the other, until there is a piece or nothing left to look at.
    fn cut(&mut self) -> Result<Option<Piece>, FrameError> {
        loop {
            if !self.scan.is_begun() {
                self.skip_space();
            }
            let Some(&byte) = self.buffer.first() else { return Ok(None) };
            match self.place {
                Place::Event => {
                    self.want(byte == b'{', "an event")?;
                    return Ok(self.value()?.map(Piece::Object));
                }
                Place::FirstItem if byte == b']' => self.step(Place::AfterValue),
                Place::FirstItem | Place::Item => {
                    self.want(begins_value(byte), "an item")?;
                    let Some(item) = self.value()? else { return Ok(None) };
                    self.place = Place::AfterItem;
                    return Ok(Some(Piece::Object(item)));
                }
                Place::FirstKey | Place::AfterValue if byte == b'}' => {
                    self.step(Place::AfterList);
                    return Ok(Some(Piece::End(mem::take(&mut self.end))));
                }
                Place::FirstKey | Place::Key => {
                    self.want(byte == b'"', "a field's name")?;
                    let Some(name) = self.value()? else { return Ok(None) };
                    self.field = field(&name);
                    self.place = Place::Colon;
                }
                Place::Items if byte == b'[' => self.step(Place::FirstItem),
                Place::Items | Place::Value => {
                    self.want(begins_value(byte), "a value")?;
                    let Some(value) = self.value()? else { return Ok(None) };
                    self.keep(&value)?;
                    self.place = Place::AfterValue;
                }
                _ => self.punctuation(byte)?,
            }
        }
    }

    /// The places where one byte alone is right.
    fn punctuation(&mut self, byte: u8) -> Result<(), FrameError> {
        let (wanted, expected, then) = match self.place {
            Place::List => (b'{', "a list", Place::FirstKey),
            Place::Colon if matches!(self.field, Field::Items) => (b':', "a colon", Place::Items),
            Place::Colon => (b':', "a colon", Place::Value),
            Place::AfterItem if byte == b']' => (b']', "", Place::AfterValue),
            Place::AfterItem => (b',', "a comma or the end of the items", Place::Item),
            Place::AfterValue => (b',', "a comma or the end of the list", Place::Key),
            _ => return Err(self.garbage("nothing more")),
        };
        self.want(byte == wanted, expected)?;
        self.step(then);
        Ok(())
    }

    fn step(&mut self, then: Place) {
        self.buffer.advance(1);
        self.place = then;
    }

    fn want(&mut self, is_there: bool, expected: &str) -> Result<(), FrameError> {
        if !is_there {
            return Err(self.garbage(expected));
        }
        self.begun = true;
        Ok(())
    }

    /// Shows how an answer begins that is no JSON. What comes later may be a
    /// pod's secret, so of that one byte must do.
    fn garbage(&self, expected: &str) -> FrameError {
        let shown = if self.begun { 1 } else { MAX_SHOWN };
        let found = self.buffer[..self.buffer.len().min(shown)].escape_ascii();
        FrameError::Garbage(if self.begun {
            format!("'{found}' stands where {expected} was expected")
        } else {
            format!("it begins with '{found}'")
        })
    }

    fn skip_space(&mut self) {
        let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        let spaces = self.buffer.iter().position(|byte| !space(byte));
        self.buffer.advance(spaces.unwrap_or(self.buffer.len()));
    }

    /// The value with which the buffer begins, if all of it is there.
    fn value(&mut self) -> Result<Option<Bytes>, FrameError> {
        let end = self.scan.end(&self.buffer);
        if end.unwrap_or(self.buffer.len()) > MAX_OBJECT {
            return Err(FrameError::TooLarge);
        }
        let Some(end) = end else { return Ok(None) };
        self.scan = Scan::default();
        let value = self.buffer.split_to(end).freeze();
        if end > MAX_KEPT && self.buffer.len() <= end {
            // What is left is copied, so that one large object does not cost its memory for ever.
            self.buffer = BytesMut::from(&*self.buffer);
        }
        Ok(Some(value))
    }

    /// Takes over what a field of the list says.
    fn keep(&mut self, value: &[u8]) -> Result<(), FrameError> {
        let invalid = |name: &str| FrameError::Garbage(format!("{name} is not what it is in a list"));
        match self.field {
            Field::ApiVersion => self.end.api_version = text(value),
            Field::Kind => self.end.kind = text(value),
            Field::Metadata => {
                let metadata: Metadata = from_slice(value).map_err(|_| invalid("metadata"))?;
                self.end.resource_version = metadata.resource_version;
                self.end.continue_token = metadata.continue_token;
            }
            Field::Items if value != b"null" => return Err(invalid("items")),
            Field::Items | Field::Other => {}
        }
        Ok(())
    }
}

/// What is read of a list's metadata.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default, deserialize_with = "lenient")]
    resource_version: String,
    #[serde(default, rename = "continue", deserialize_with = "lenient")]
    continue_token: String,
}

/// A text, or nothing if it is something else.
fn lenient<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_str().unwrap_or_default().to_owned())
}

fn text(value: &[u8]) -> String {
    from_slice(value).unwrap_or_default()
}

/// Which field a name, with its quotes, is.
fn field(name: &[u8]) -> Field {
    // Nobody writes these names with escapes; JSON allows it.
    let name: Cow<'_, str> = from_slice(name).unwrap_or_default();
    match &*name {
        "apiVersion" => Field::ApiVersion,
        "kind" => Field::Kind,
        "metadata" => Field::Metadata,
        "items" => Field::Items,
        _ => Field::Other,
    }
}

fn begins_value(byte: u8) -> bool {
    matches!(byte, b'{' | b'[' | b'"') || is_word(byte)
}

/// Whether a byte may be part of a number, of `true`, `false` or `null`.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// How far a value has been looked at: each byte once, however many chunks it comes in.
#[derive(Debug, Default)]
struct Scan {
    /// Where the first byte is that has not been looked at.
    at: usize,
    /// How many brackets are open.
    depth: usize,
    /// Whether a text is open.
    in_text: bool,
    /// Whether the next byte of a text stands after a backslash.
    escaped: bool,
}

impl Scan {
    fn is_begun(&self) -> bool {
        self.at > 0
    }

    /// Where the value ends with which a text begins, if it does.
    fn end(&mut self, text: &[u8]) -> Option<usize> {
        if text.first().is_some_and(|&byte| is_word(byte)) {
            let end = text[self.at..].iter().position(|&byte| !is_word(byte)).map(|end| self.at + end);
            self.at = text.len();
            return end;
        }
        while let Some(&byte) = text.get(self.at) {
            if self.in_text {
                self.skip_text(text);
            } else {
                self.at += 1;
                match byte {
                    b'"' => self.in_text = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => continue,
                }
            }
            if self.depth == 0 && !self.in_text {
                return Some(self.at);
            }
        }
        None
    }

    /// Goes on to behind the quote that ends a text, or as far as there is anything.
    fn skip_text(&mut self, text: &[u8]) {
        if mem::take(&mut self.escaped) {
            self.at += 1;
        }
        while let Some(plain) = text[self.at..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            self.at += plain + 1;
            if text[self.at - 1] == b'"' {
                self.in_text = false;
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
