//! Manifests that are symbolic links: on which other paths in the tree they depend.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// The links in a manifest directory, and the paths below it that they lead through.
#[derive(Debug, Default)]
pub(super) struct Links {
    hops: HashMap<OsString, BTreeSet<PathBuf>>,
    through: HashMap<PathBuf, BTreeSet<OsString>>,
}

impl Links {
    /// Says through which paths a link leads. Returns those that no link led through before.
    pub(super) fn set(&mut self, name: &OsStr, hops: BTreeSet<PathBuf>) -> Vec<PathBuf> {
        if self.hops.get(name) == Some(&hops) {
            return Vec::new();
        }
        self.forget(name);
        let fresh = hops.iter().filter(|hop| !self.through.contains_key(*hop)).cloned().collect();
        for hop in &hops {
            self.through.entry(hop.clone()).or_default().insert(name.to_owned());
        }
        self.hops.insert(name.to_owned(), hops);
        fresh
    }

    /// Says that a name is no link.
    pub(super) fn forget(&mut self, name: &OsStr) {
        for hop in self.hops.remove(name).unwrap_or_default() {
            if let Some(names) = self.through.get_mut(&hop) {
                names.remove(name);
                if names.is_empty() {
                    self.through.remove(&hop);
                }
            }
        }
    }

    /// Forgets every link that a scan did not meet.
    pub(super) fn keep(&mut self, met: &BTreeSet<OsString>) {
        let gone: Vec<OsString> = self.hops.keys().filter(|name| !met.contains(*name)).cloned().collect();
        for name in gone {
            self.forget(&name);
        }
    }

    /// The links that lead through a path.
    pub(super) fn through(&self, path: &Path) -> Vec<OsString> {
        self.through.get(path).into_iter().flatten().cloned().collect()
    }

    /// Every path that a link leads through.
    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.through.keys()
    }

    /// The directories to watch for them.
    pub(super) fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let parents: BTreeSet<&Path> = self.through.keys().filter_map(|hop| hop.parent()).collect();
        parents.into_iter().map(Path::to_owned)
    }
}
