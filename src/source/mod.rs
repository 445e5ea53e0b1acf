//! Doors in.

pub mod file;
pub mod good;
pub mod http;
pub mod url;

use std::sync::Arc;

use jiff::Timestamp;

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
    /// How it fails, if it does. What is wrong with single items is in the
    /// listing's rejections.
    pub failing: Option<SourceFailing>,
}

/// How a source fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailing {
    /// Since when.
    pub since: Timestamp,
    /// How often it has failed since.
    pub attempts: u64,
    /// The last error, with its causes, and what to do about it.
    pub error: Arc<str>,
}
