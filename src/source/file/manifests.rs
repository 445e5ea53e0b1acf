//! Listing and reading manifests once, as the source does. For `podmux validate`.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    inspect::{self, Text},
    load::too_large,
    names::{LEFTOVER, NameKind},
};
use crate::{host::Disk, pod::RejectionReason};

/// The content of a manifest directory, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The manifests.
    pub manifests: Vec<PathBuf>,
    /// What the source skips, each with the reason.
    pub skipped: Vec<(PathBuf, &'static str)>,
}

/// Lists a manifest directory. Nothing is opened.
///
/// # Errors
/// If the directory cannot be read to its end.
pub fn contents(directory: &Path) -> io::Result<Contents> {
    let disk = Disk::default();
    let mut contents = Contents::default();
    for name in inspect::list(&disk, directory)? {
        let path = directory.join(&name);
        let skipped = match NameKind::of(&name) {
            NameKind::Hidden => Some("hidden"),
            NameKind::Leftover => Some(LEFTOVER),
            NameKind::Manifest => inspect::inspect(&disk, &path).other,
        };
        match skipped {
            Some(reason) => contents.skipped.push((path, reason)),
            None => contents.manifests.push(path),
        }
    }
    Ok(contents)
}

/// Reads a whole manifest. It does not block, whatever is at the path.
///
/// # Errors
/// If it is not a regular file, cannot be read, is too large, or is written to meanwhile.
pub fn read_manifest(path: &Path) -> Result<Vec<u8>, RejectionReason> {
    let unreadable = |error: &str| RejectionReason::Unreadable(error.into());
    match inspect::read(&Disk::default(), path) {
        Text::Complete(text, _) => Ok(text),
        Text::TooLarge(stamp) => Err(RejectionReason::Invalid(Arc::new(too_large(stamp.size)))),
        Text::Torn(_) => Err(unreadable("it was written to while it was read; try again")),
        Text::Vanished => Err(unreadable("the file no longer exists")),
        Text::Unreadable(error) => Err(unreadable(&error)),
    }
}
