//! Reading and decoding manifests: one, many on several threads, or once for `podmux validate`.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    entries::{Reading, Time},
    inspect::{self, LEFTOVER, NameKind},
};
use crate::{
    host::{Disk, Host},
    manifest::{self, Manifest, Preparation},
    pod::{ListingBuilder, Origin, Pod, Problem, RejectionReason, SecurityLevel},
};

/// A further thread pays off from this many manifests on: about 2 ms of work.
pub(super) const WORTH_A_THREAD: usize = 16;

/// A manifest that was read and decoded.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) reading: Reading,
    /// When it had been read.
    pub(super) at: Time,
    /// Its pods, or why it is rejected. `None` if it must be read again.
    pub(super) manifest: Option<Result<Accepted, RejectionReason>>,
}

/// The content of a valid manifest.
#[derive(Debug)]
pub(super) struct Accepted {
    /// As they are published.
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) lines: Vec<u32>,
    pub(super) warnings: Vec<Problem>,
}

/// What manifests are decoded with.
pub(super) struct Loader<'w> {
    pub(super) host: &'w Host,
    pub(super) preparation: &'w Preparation,
    pub(super) level: SecurityLevel,
    pub(super) builder: &'w ListingBuilder,
}

impl Loader<'_> {
    /// Reads and decodes one manifest. Decoded pods take many times the memory of their texts: they are dropped by the
    /// thread that made them.
    pub(super) fn load(&self, path: &Path, origin: &Origin) -> Loaded {
        let (reading, text) = inspect::read(&self.host.disk, path);
        let at = time(self.host);
        let accept = |manifest: Manifest| Accepted {
            pods: self.builder.published_as(origin, manifest.pods, &at.wall.to_string()),
            lines: manifest.lines,
            warnings: manifest.warnings,
        };
        let rejected = |refusal| RejectionReason::Invalid(Arc::new(refusal));
        let admit = |text: Vec<u8>| {
            manifest::admit(&text, self.preparation, self.level).map(accept).map_err(rejected)
        };
        Loaded { reading, at, manifest: text.map(|text| text.and_then(admit)) }
    }
}

pub(super) fn time(host: &Host) -> Time {
    Time { now: Instant::now(), wall: host.clock.now() }
}

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
    for name in disk.list(directory)?.into_iter().collect::<BTreeSet<_>>() {
        let path = directory.join(&name);
        let skipped = match NameKind::of(&name) {
            NameKind::Hidden => Some("hidden"),
            NameKind::Leftover => Some(LEFTOVER),
            NameKind::Manifest => inspect::inspect(&disk, &path).1,
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
        (_, Some(text)) => text,
        (Reading::Torn(_), None) => Err(unreadable("it was written to while it was read; try again")),
        (_, None) => Err(unreadable("the file no longer exists")),
    }
}
