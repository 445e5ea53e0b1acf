//! The envelope of an object in protobuf: `runtime.Unknown`, which has the kind beside the object's message.

use super::wire::{Fields, WireError, WireValue, put_bytes, put_head};

/// What begins each object in protobuf.
pub const MAGIC: &[u8] = b"k8s\0";

/// An object in protobuf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'m> {
    /// `apiVersion`; empty if it is absent.
    pub api_version: String,
    /// `kind`; empty if it is absent.
    pub kind: String,
    /// The message of the object.
    pub message: &'m [u8],
}

/// Why bytes are not an object in protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The bytes begin in another way.
    #[error("the data is no protobuf of the API: it must begin with \"k8s\\0\"")]
    NoMagic,
    /// The envelope cannot be read.
    #[error("the envelope (runtime.Unknown) is malformed: {0}")]
    Malformed(#[from] WireError),
}

impl<'m> Envelope<'m> {
    /// Opens an envelope.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn open(bytes: &'m [u8]) -> Result<Self, EnvelopeError> {
        let mut read = Self::default();
        for field in Fields::new(bytes.strip_prefix(MAGIC).ok_or(EnvelopeError::NoMagic)?) {
            match field? {
                (1, WireValue::Bytes(types)) => read.read_type(types)?,
                (2, WireValue::Bytes(message)) => read.message = message,
                _ => {}
            }
        }
        Ok(read)
    }

    /// Reads the `TypeMeta` of an object.
    pub(crate) fn read_type(&mut self, message: &[u8]) -> Result<(), WireError> {
        for field in Fields::new(message) {
            match field? {
                (1, WireValue::Bytes(text)) => self.api_version = String::from_utf8_lossy(text).into_owned(),
                (2, WireValue::Bytes(text)) => self.kind = String::from_utf8_lossy(text).into_owned(),
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes before a message of this length, and those after it.
    pub(crate) fn around(api_version: &str, kind: &str, length: usize) -> (Vec<u8>, &'static [u8]) {
        let mut types = Vec::new();
        put_bytes(&mut types, 1, api_version.as_bytes());
        put_bytes(&mut types, 2, kind.as_bytes());
        let mut head = MAGIC.to_vec();
        put_bytes(&mut head, 1, &types);
        put_head(&mut head, 2, length);
        // An empty contentEncoding and contentType, as Go writes them.
        (head, b"\x1a\0\x22\0")
    }
}
