//! Splits the body of a response in protobuf into events and items as it arrives, as the JSON splitter does.
//!
//! A watch is a sequence of frames, each with its length. A list is one message in an envelope, which has the length of
//! the whole; it is cut into its items, so that it is never held whole.

use std::mem;

use bytes::{Buf as _, BytesMut};
use http::{HeaderMap, header::CONTENT_TYPE};

use super::json_splitter::{BodyShape, ListEnd, MAX_KEPT_BUFFER, MAX_OBJECT, Part, SplitError};
use crate::manifest::protobuf::{
    Envelope, Fields, ITEMS, MAGIC, MEDIA_TYPE, WireError, WireValue, tag, varint,
};

/// The most bytes of a tag and a length: two numbers.
const MAX_HEAD: usize = 20;

/// Whether a response is protobuf. Anything else is read as JSON.
pub(super) fn is_protobuf(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(MEDIA_TYPE)
}

/// What the next byte must be part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Frame,
    Magic,
    /// A field of the envelope.
    Envelope,
    /// A field of the list, of which this many bytes are left.
    List(u64),
    AfterList,
}

/// Splits one body.
#[derive(Debug)]
pub(super) struct ProtobufSplitter {
    position: Position,
    /// The bytes not yet returned.
    buffer: BytesMut,
    end: ListEnd,
}

/// A field whose value is in the buffer or will be.
struct Field {
    number: u32,
    kind: u64,
    /// Of the tag and the length.
    head: usize,
    /// Of the value; 0 for a number, which is part of the head.
    length: u64,
}

impl ProtobufSplitter {
    /// A splitter for a body of this shape.
    pub(super) fn new(shape: BodyShape) -> Self {
        let position = match shape {
            BodyShape::Events => Position::Frame,
            BodyShape::List => Position::Magic,
        };
        Self { position, buffer: BytesMut::new(), end: ListEnd::default() }
    }

    /// Adds a chunk of the body.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.position != Position::AfterList {
            self.buffer.extend_from_slice(chunk);
        }
    }

    /// Whether the body may end here.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.position, Position::Frame | Position::AfterList) && self.buffer.is_empty()
    }

    /// The capacity of the buffer, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Goes on until a part is complete or more bytes are needed.
    ///
    /// # Errors
    /// If the body cannot be split.
    pub(super) fn advance(&mut self) -> Result<Option<Part>, SplitError> {
        loop {
            match self.position {
                Position::Frame => return self.frame(),
                Position::Magic => {
                    let known = self.buffer.len().min(MAGIC.len());
                    if self.buffer[..known] != MAGIC[..known] {
                        return Err(malformed("it does not begin with \"k8s\\0\""));
                    }
                    if known < MAGIC.len() {
                        return Ok(None);
                    }
                    self.buffer.advance(known);
                    self.position = Position::Envelope;
                }
                Position::Envelope => {
                    let Some(field) = self.head()? else { return Ok(None) };
                    if (field.number, field.kind) == (2, 2) {
                        self.buffer.advance(field.head);
                        self.position = Position::List(field.length);
                        continue;
                    }
                    let Some(value) = self.take(field.head, field.length)? else { return Ok(None) };
                    if (field.number, field.kind) == (1, 2) {
                        let mut envelope = Envelope::default();
                        envelope.read_type(&value).map_err(broken)?;
                        (self.end.api_version, self.end.kind) = (envelope.api_version, envelope.kind);
                    }
                }
                Position::List(0) => {
                    self.buffer = BytesMut::new();
                    self.position = Position::AfterList;
                    return Ok(Some(Part::End(mem::take(&mut self.end))));
                }
                Position::List(left) => {
                    let Some(field) = self.head()? else { return Ok(None) };
                    let rest =
                        left.checked_sub(field.head as u64).and_then(|left| left.checked_sub(field.length));
                    let rest = rest.ok_or_else(|| malformed("an item is longer than its list"))?;
                    let Some(value) = self.take(field.head, field.length)? else { return Ok(None) };
                    self.position = Position::List(rest);
                    match (field.number, field.kind) {
                        (1, 2) => self.metadata(&value)?,
                        (number, 2) if number == u32::from(ITEMS) => {
                            return Ok(Some(Part::Object(value.freeze())));
                        }
                        _ => {}
                    }
                }
                Position::AfterList => return Ok(None),
            }
        }
    }

    /// A frame: a length in four bytes, and as many.
    fn frame(&mut self) -> Result<Option<Part>, SplitError> {
        let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        Ok(self.take(4, length.into())?.map(|value| Part::Object(value.freeze())))
    }

    /// The tag and the length of a field, if the buffer has them.
    fn head(&self) -> Result<Option<Field>, SplitError> {
        let mut rest = &self.buffer[..];
        let read = tag(&mut rest).and_then(|(number, kind)| {
            let value = varint(&mut rest)?;
            Ok(Field { number, kind, head: self.buffer.len() - rest.len(), length: value })
        });
        match read {
            Ok(Field { kind: 0, number, head, .. }) => Ok(Some(Field { kind: 0, number, head, length: 0 })),
            Ok(field) if field.kind == 2 => Ok(Some(field)),
            Ok(_) => Err(malformed("a field has an unexpected wire type")),
            Err(WireError::Incomplete) if self.buffer.len() < MAX_HEAD => Ok(None),
            Err(error) => Err(broken(error)),
        }
    }

    /// Takes a value with its head out of the buffer, if it is complete.
    fn take(&mut self, head: usize, length: u64) -> Result<Option<BytesMut>, SplitError> {
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_OBJECT);
        let length = length.ok_or(SplitError::TooLarge)?;
        if self.buffer.len() - head < length {
            return Ok(None);
        }
        self.buffer.advance(head);
        let value = self.buffer.split_to(length);
        if length > MAX_KEPT_BUFFER {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        Ok(Some(value))
    }

    /// Reads the `ListMeta`.
    fn metadata(&mut self, message: &[u8]) -> Result<(), SplitError> {
        for field in Fields::new(message) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match field.map_err(broken)? {
                (2, WireValue::Bytes(version)) => self.end.resource_version = text(version),
                (3, WireValue::Bytes(token)) => self.end.continue_token = text(token),
                _ => {}
            }
        }
        Ok(())
    }
}

fn malformed(why: &str) -> SplitError {
    SplitError::MalformedProtobuf(why.to_owned())
}

fn broken(error: WireError) -> SplitError {
    SplitError::MalformedProtobuf(error.to_string())
}
