//! Which names in a directory are manifests.

use std::ffi::OsStr;

/// What a name in a manifest directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    /// A manifest, whatever its extension.
    Manifest,
    /// A hidden file: the name begins with a dot.
    Hidden,
    /// An editor's temporary file or a backup (kubernetes#136962).
    Leftover,
}

/// Why a [`NameKind::Leftover`] is skipped.
pub(super) const LEFTOVER: &str = "an editor's or backup file";

/// The link that the kubelet replaces when it updates a ConfigMap volume or another projected one.
pub(super) const VOLUME_LINK: &str = "..data";

impl NameKind {
    pub(super) fn of(name: &OsStr) -> Self {
        let name = name.as_encoded_bytes();
        let leftover = ["~", ".swp", ".bak", ".backup", ".orig", ".tmp"];
        if name.starts_with(b".") {
            Self::Hidden
        } else if leftover.iter().any(|end| name.ends_with(end.as_bytes()))
            || name == b"4913"
            || (name.len() > 1 && name.starts_with(b"#") && name.ends_with(b"#"))
        {
            Self::Leftover
        } else {
            Self::Manifest
        }
    }

    pub(super) fn is_manifest(name: &OsStr) -> bool {
        Self::of(name) == Self::Manifest
    }
}
