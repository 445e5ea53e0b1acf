//! The merged view: what all sources together want, and who lost what.

use imbl::OrdMap;

use super::Outcome;
use crate::pod::{Entry, Listing, PodKey, Rejection, SourceName};

/// How far a source has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceState {
    /// Nothing has been heard of it.
    Waiting,
    /// Its last good listing of an earlier run is in use. It adds and updates,
    /// and removes nothing.
    Restored,
    /// It has spoken in this run: it has been seen.
    Synced,
}

impl SourceState {
    /// The word that people see: `waiting`, `restored` or `synced`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Restored => "restored",
            Self::Synced => "synced",
        }
    }
}

/// What a source has said so far.
#[derive(Clone, Debug)]
pub(super) struct SourceView {
    pub(super) state: SourceState,
    pub(super) listing: Option<Listing>,
}

/// What all sources together want, as a persistent map: O(1) to clone, and two
/// of them are compared at the cost of their difference.
#[derive(Clone, Debug)]
pub struct Merged {
    pods: OrdMap<PodKey, Entry>,
    conflicts: OrdMap<(SourceName, PodKey), Rejection>,
    /// By source; `None` if it is not configured.
    sources: [Option<SourceView>; SourceName::ALL.len()],
}

impl Merged {
    /// The empty view over these sources.
    #[must_use]
    pub fn new(configured: &[SourceName]) -> Self {
        let view = || SourceView { state: SourceState::Waiting, listing: None };
        Self {
            pods: OrdMap::new(),
            conflicts: OrdMap::new(),
            sources: SourceName::ALL.map(|source| configured.contains(&source).then(view)),
        }
    }

    /// How many pods are wanted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether no pod is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The pod that holds a name, with its source.
    #[must_use]
    pub fn get(&self, key: &PodKey) -> Option<&Entry> {
        self.pods.get(key)
    }

    /// All wanted pods, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&PodKey, &Entry)> {
        self.pods.iter()
    }

    /// The state of a source; `None` if it is not configured.
    #[must_use]
    pub fn state(&self, source: SourceName) -> Option<SourceState> {
        Some(self.sources[source as usize].as_ref()?.state)
    }

    /// What a source wants, losers of conflicts included; `None` if nothing has been heard of it.
    #[must_use]
    pub fn listing(&self, source: SourceName) -> Option<&Listing> {
        self.sources[source as usize].as_ref()?.listing.as_ref()
    }

    /// Every rejection: what the sources refused, and the conflicts between them.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        let own = SourceName::ALL.into_iter().filter_map(|source| self.listing(source));
        own.flat_map(Listing::rejections).chain(self.conflicts.values())
    }

    /// Whether every configured source has been seen or restored.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sources.iter().flatten().all(|view| view.state != SourceState::Waiting)
    }

    pub(super) fn pods(&self) -> &OrdMap<PodKey, Entry> {
        &self.pods
    }

    pub(super) fn source_mut(&mut self, source: SourceName) -> Option<&mut SourceView> {
        self.sources[source as usize].as_mut()
    }

    /// What each source wants under a key.
    pub(super) fn wanting(&self, key: &PodKey) -> impl Iterator<Item = &Entry> {
        SourceName::ALL.into_iter().filter_map(move |source| self.listing(source)?.get(key))
    }

    pub(super) fn set_all(&mut self, listing: &Listing) {
        self.pods = listing.entries().clone();
    }

    pub(super) fn set(&mut self, key: &PodKey, entry: Option<&Entry>) {
        match entry {
            Some(entry) if self.pods.get(key) == Some(entry) => {}
            Some(entry) => drop(self.pods.insert(key.clone(), entry.clone())),
            None => drop(self.pods.remove(key)),
        }
    }

    pub(super) fn set_conflict(
        &mut self,
        source: SourceName,
        key: &PodKey,
        conflict: Option<&Rejection>,
        outcome: &mut Outcome,
    ) {
        let at = (source, key.clone());
        let before = self.conflicts.get(&at);
        if before == conflict {
            return;
        }
        match conflict {
            Some(conflict) => {
                outcome.rejected.push(conflict.clone());
                self.conflicts.insert(at, conflict.clone());
            }
            None => outcome.recovered.extend(self.conflicts.remove(&at)),
        }
    }
}
