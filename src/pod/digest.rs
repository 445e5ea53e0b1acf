//! Canonical JSON text, and the digest by which two states of a pod are compared.

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The first 128 bits of a SHA-256.
///
/// The hash is cryptographic because manifests are untrusted: two pods that differ must
/// not be crafted to have the same digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 16]);

impl Digest {
    /// The digest of a sequence of parts. The length of each part is hashed too, so that
    /// moving a byte from one part to the next changes the digest.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&hash.finalize()[..16]);
        Self(short)
    }
}

impl fmt::Display for Digest {
    /// Writes 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A JSON value as canonical text: keys sorted, no spaces.
pub(super) fn canonical(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    append(&mut text, value);
    text
}

/// Appends a JSON value as canonical text.
pub(super) fn append(text: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Writing to memory cannot fail: the keys are strings and the numbers finite.
    let _ = serde_json::to_writer(text, value);
}
