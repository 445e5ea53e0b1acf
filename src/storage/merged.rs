//! The merged view.

/// What all sources together want, as a persistent map: cheap to clone, cheap to compare.
#[derive(Clone, Debug, Default)]
pub struct Merged {}

/// How far a source has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Nothing has been heard of it.
    Waiting,
    /// Its last good listing of an earlier run is in use.
    Restored,
    /// It has spoken in this run.
    Synced,
}
