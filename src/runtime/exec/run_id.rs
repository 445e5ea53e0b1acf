//! What identifies a pod in the ledger and in the names of files.

use crate::pod::{PodKey, Uid};

/// The key of a row: a pod that runs or may run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunId {
    pub(super) key: PodKey,
    pub(super) uid: Uid,
}

impl RunId {
    /// `namespace/name/UID`.
    pub(super) fn row(&self) -> String {
        format!("{}/{}", self.key.as_str(), self.uid)
    }

    pub(super) fn parse(row: &str) -> Option<Self> {
        let (namespace, rest) = row.split_once('/')?;
        let (name, uid) = rest.split_once('/')?;
        Some(Self { key: PodKey::new(namespace, name), uid: uid.into() })
    }
}
