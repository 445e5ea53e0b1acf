//! The frames of a watch in protobuf: a length in four bytes, then a `metav1.WatchEvent` without an envelope.

use super::wire::{Fields, WireError, WireValue, put_bytes};

/// An event of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchEvent<'m> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub kind: String,
    /// The object in its envelope.
    pub object: &'m [u8],
}

impl<'m> WatchEvent<'m> {
    /// Reads the message of an event, which follows the length of its frame.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn read(message: &'m [u8]) -> Result<Self, WireError> {
        let mut event = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, WireValue::Bytes(text)) => event.kind = String::from_utf8_lossy(text).into_owned(),
                (2, WireValue::Bytes(extension)) => {
                    for field in Fields::new(extension) {
                        if let (1, WireValue::Bytes(object)) = field? {
                            event.object = object;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(event)
    }
}

/// The frame of an event with an object in its envelope.
pub fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let (mut event, mut extension) = (Vec::new(), Vec::with_capacity(object.len() + 6));
    put_bytes(&mut event, 1, kind.as_bytes());
    put_bytes(&mut extension, 1, object);
    put_bytes(&mut event, 2, &extension);
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &event].concat()
}
