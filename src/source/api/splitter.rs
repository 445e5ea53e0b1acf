//! Splits a response into objects, and decodes them, in JSON or in protobuf.

use super::{
    json_splitter::{BodyShape, JsonSplitter, Part, SplitError},
    protobuf_event,
    protobuf_splitter::ProtobufSplitter,
    reflector::Version,
    watch_event::{Object, WatchEvent, decode_object},
};

/// A splitter for the form of a response.
#[derive(Debug)]
pub(super) enum Splitter {
    Json(JsonSplitter),
    Protobuf(ProtobufSplitter),
}

impl Splitter {
    pub(super) fn new(is_protobuf: bool, shape: BodyShape) -> Self {
        if is_protobuf {
            Self::Protobuf(ProtobufSplitter::new(shape))
        } else {
            Self::Json(JsonSplitter::new(shape))
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        match self {
            Self::Json(splitter) => splitter.push(chunk),
            Self::Protobuf(splitter) => splitter.push(chunk),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<Part>, SplitError> {
        match self {
            Self::Json(splitter) => splitter.next(),
            Self::Protobuf(splitter) => splitter.next(),
        }
    }

    pub(super) fn finish(&self) -> Result<(), SplitError> {
        match self {
            Self::Json(splitter) => splitter.finish(),
            Self::Protobuf(splitter) => splitter.finish(),
        }
    }

    /// Decodes an item of a list.
    pub(super) fn item(&self, part: &[u8]) -> (Object, Option<Version>) {
        match self {
            // As in Go, invalid UTF-8 becomes U+FFFD.
            Self::Json(_) => decode_object(&String::from_utf8_lossy(part)),
            Self::Protobuf(_) => protobuf_event::decode_pod(part),
        }
    }

    /// Decodes an event of a watch.
    ///
    /// # Errors
    /// If the part is none, so that what follows cannot be trusted.
    pub(super) fn event(&self, part: &[u8]) -> Result<WatchEvent, String> {
        match self {
            Self::Json(_) => WatchEvent::decode(&String::from_utf8_lossy(part)),
            Self::Protobuf(_) => protobuf_event::decode(part),
        }
    }
}
