//! Manifests for whoever wants to look at them once, found and read as the source does.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    disk::{self, NameKind, Text},
    worker::too_large,
};
use crate::pod::RejectionReason;

/// What stands in a directory of manifests, each sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// What the source reads.
    pub manifests: Vec<PathBuf>,
    /// What it leaves alone, and what that is.
    pub skipped: Vec<(PathBuf, &'static str)>,
}

/// Lists a directory. Nothing is opened, nothing blocks.
///
/// # Errors
/// If the directory cannot be read to its end.
pub fn contents(directory: &Path) -> io::Result<Contents> {
    let mut contents = Contents::default();
    for name in disk::list(directory)? {
        let path = directory.join(&name);
        let other = match NameKind::of(&name) {
            NameKind::Hidden => Some("hidden"),
            NameKind::Leftover => Some("what an editor or a backup left behind"),
            NameKind::Manifest => disk::look(&path).other,
        };
        match other {
            Some(other) => contents.skipped.push((path, other)),
            None => contents.manifests.push(path),
        }
    }
    Ok(contents)
}

/// Reads a manifest whole. Does not block, whatever stands at the path.
///
/// # Errors
/// If it is no regular file, cannot be read, is too large, or is written to meanwhile.
pub fn read_manifest(path: &Path) -> Result<Vec<u8>, RejectionReason> {
    let unreadable = |why: &str| RejectionReason::Unreadable(why.into());
    match disk::read(path) {
        Text::Whole(text, _) => Ok(text),
        Text::TooLarge(stamp) => Err(RejectionReason::Invalid(Arc::new(too_large(stamp.size)))),
        Text::Torn(_) => Err(unreadable("it was written to while it was read")),
        Text::Vanished => Err(unreadable("there is no such file any more")),
        Text::Unreadable(error) => Err(unreadable(&error)),
    }
}
