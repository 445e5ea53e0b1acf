//! How a source is doing, for `/sources` and the metrics.

use std::{fmt, sync::Arc};

use jiff::Timestamp;

use crate::{
    grouped::{counted, grouped},
    host::Moment,
    outage::Outage,
    pod::Origin,
};

/// How a source is doing, for people: what `/sources` and the metrics show of
/// it beside its listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// What it reads, in a word or two: a path, a URL without its secrets.
    pub target: String,
    /// How it works just now, for reading: `watching`, `polling: no inotify watches left`.
    pub detail: String,
    /// When it last looked and all was well.
    pub last_success: Option<Timestamp>,
    /// Of when what it shows is, while that is an earlier run's.
    pub restored: Option<Timestamp>,
    /// How far its first scan is, while that takes long.
    pub scanning: Option<ScanProgress>,
    /// The manifests that are gone and whose pods are kept for a while, a hundred at most.
    pub kept: Arc<[KeptManifest]>,
    /// What its reflector is doing, if it has one.
    pub reflector: Option<ReflectorStatus>,
    /// How it fails, if it does. What is wrong with single items is in the
    /// listing's rejections.
    pub failing: Option<SourceFailing>,
}

/// A manifest that is gone, and whose pods are kept for a while: its file system may return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptManifest {
    /// Its path.
    pub origin: Origin,
    /// How many pods it has.
    pub pods: usize,
    /// When they are removed, to the second. None until the path can be looked at again.
    pub until: Option<Timestamp>,
}

/// How far the scan of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanProgress {
    /// The manifests that are read.
    pub done: usize,
    /// All manifests.
    pub total: usize,
}

impl fmt::Display for ScanProgress {
    /// For people: `scanning: 45,000 of 100,000 manifests`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scanning: {} of {}", grouped(self.done), counted(self.total, "manifest"))
    }
}

/// How a source fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailing {
    /// Since when.
    pub since: Moment,
    /// How often it has failed since.
    pub attempts: u64,
    /// The last error, with its causes, and what to do about it.
    pub error: Arc<str>,
    /// Whether the error may quote what was read, such as a manifest's values:
    /// then only authenticated callers may see it.
    pub quotes: bool,
}

impl SourceFailing {
    /// The failure of a source with an outage. `quotes` is the field of that name.
    pub(crate) fn of(outage: &Outage, quotes: bool) -> Option<Self> {
        Some(Self { since: outage.since()?, attempts: outage.attempts(), error: outage.error()?, quotes })
    }
}

/// What a reflector is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReflectorStatus {
    /// In a word: `connecting`, `listing`, `watching`, `waiting`.
    pub phase: &'static str,
    /// The version of the last event, bookmark or listing; opaque, never compared.
    pub resource_version: Option<Arc<str>>,
    /// When the server last said anything: an event, a bookmark, a page.
    pub last_event: Option<Timestamp>,
    /// When it tries again, while it waits.
    pub next_attempt: Option<Timestamp>,
}
