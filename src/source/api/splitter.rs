//! Splits a response into objects, and decodes them, in JSON or in protobuf.

use super::{
    json_splitter::{BodyShape, JsonSplitter, Part, SplitError},
    protobuf_event,
    protobuf_splitter::ProtobufSplitter,
    reflector::Version,
    watch_event::{Object, WatchEvent, decode_object},
};

/// Splits one body, in the form of its response. It holds at most one object and one chunk, if the caller takes every
/// complete part before it adds the next chunk.
#[derive(Debug)]
pub struct Splitter {
    is_protobuf: bool,
    form: Result<Form, SplitError>,
}

#[derive(Debug)]
enum Form {
    Json(JsonSplitter),
    Protobuf(ProtobufSplitter),
}

impl Splitter {
    /// A splitter for a body of this form and shape.
    pub fn new(is_protobuf: bool, shape: BodyShape) -> Self {
        let form = if is_protobuf {
            Form::Protobuf(ProtobufSplitter::new(shape))
        } else {
            Form::Json(JsonSplitter::new(shape))
        };
        Self { is_protobuf, form: Ok(form) }
    }

    /// Adds a chunk of the body.
    pub fn push(&mut self, chunk: &[u8]) {
        match &mut self.form {
            Ok(Form::Json(splitter)) => splitter.push(chunk),
            Ok(Form::Protobuf(splitter)) => splitter.push(chunk),
            Err(_) => {}
        }
    }

    /// The next complete part, not validated.
    ///
    /// # Errors
    /// If the body cannot be split. Every later call returns the same error.
    #[allow(
        clippy::should_implement_trait,
        reason = "it is not an iterator: after None there may be more, once another chunk is added"
    )]
    pub fn next(&mut self) -> Result<Option<Part>, SplitError> {
        let part = match &mut self.form {
            Ok(Form::Json(splitter)) => splitter.advance(),
            Ok(Form::Protobuf(splitter)) => splitter.advance(),
            Err(error) => Err(error.clone()),
        };
        if let Err(error) = &part {
            self.form = Err(error.clone());
        }
        part
    }

    /// Ends the body, after [`next`](Self::next) has returned nothing.
    ///
    /// # Errors
    /// If an object or the list is incomplete, or the error of an earlier call.
    pub fn finish(&self) -> Result<(), SplitError> {
        let is_complete = match &self.form {
            Ok(Form::Json(splitter)) => splitter.is_complete(),
            Ok(Form::Protobuf(splitter)) => splitter.is_complete(),
            Err(error) => return Err(error.clone()),
        };
        if is_complete { Ok(()) } else { Err(SplitError::Incomplete) }
    }

    /// The capacity of the buffer, in bytes.
    pub fn capacity(&self) -> usize {
        match &self.form {
            Ok(Form::Json(splitter)) => splitter.capacity(),
            Ok(Form::Protobuf(splitter)) => splitter.capacity(),
            Err(_) => 0,
        }
    }

    /// Decodes an item of a list.
    pub(super) fn item(&self, part: &[u8]) -> (Object, Option<Version>) {
        if self.is_protobuf {
            protobuf_event::decode_pod(part)
        } else {
            // As in Go, invalid UTF-8 becomes U+FFFD.
            decode_object(&String::from_utf8_lossy(part))
        }
    }

    /// Decodes an event of a watch.
    ///
    /// # Errors
    /// If the part is none, so that what follows cannot be trusted.
    pub(super) fn event(&self, part: &[u8]) -> Result<WatchEvent, String> {
        if self.is_protobuf {
            protobuf_event::decode(part)
        } else {
            WatchEvent::decode(&String::from_utf8_lossy(part))
        }
    }
}
