//! Who a pod is: the node's name, and the names, UIDs and hashes that follow from it.

use std::{fmt, sync::Arc};

/// The name of this node: a DNS-1123 subdomain, lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

/// The text cannot be a node's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a node name: up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
)]
pub struct NodeNameError(pub String);

impl NodeName {
    /// Takes a host name, in lower case, for the node's name.
    ///
    /// # Errors
    /// If it is not a DNS-1123 subdomain.
    pub fn new(name: &str) -> Result<Self, NodeNameError> {
        let lower = name.trim().to_lowercase();
        let fine = |label: &str| {
            let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            let bytes = label.as_bytes();
            edge(bytes.first())
                && edge(bytes.last())
                && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        };
        if lower.len() <= 253 && lower.split('.').all(fine) {
            Ok(Self(lower.into()))
        } else {
            Err(NodeNameError(name.to_owned()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
