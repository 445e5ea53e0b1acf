//! The merged view: the pods of all sources together, and the conflicts between them.

use std::ops::Deref;

use imbl::OrdMap;

use super::host_ports::HostPorts;
use crate::pod::{Entry, Listing, PodKey, Rejection, SourceName, changed_rejections};

/// What changed with a listing besides the pods.
#[must_use = "report each rejection: the rejected pod is missing without another sign"]
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The pods that are rejected since this listing: duplicates within the source,
    /// conflicts with other sources.
    pub rejected: Vec<Rejection>,
    /// The rejections that ended with this listing.
    pub recovered: Vec<Rejection>,
}

/// Whether a source has published a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceState {
    /// The source has published nothing.
    Waiting,
    /// The last-known-good listing of an earlier run is in effect. It adds and updates
    /// pods, and removes none.
    Restored,
    /// The source has published a listing in this run.
    Synced,
}

impl SourceState {
    /// The name that users see: `waiting`, `restored` or `synced`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Restored => "restored",
            Self::Synced => "synced",
        }
    }
}

/// The state and the last listing of a source.
#[derive(Clone, Debug)]
pub(super) struct SourceView {
    pub(super) state: SourceState,
    pub(super) listing: Option<Listing>,
}

/// The pods of all sources together, without rejected ones.
///
/// A persistent map: a clone is O(1), and a comparison of two views costs as much as
/// their difference.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    pods: OrdMap<PodKey, Entry>,
    conflicts: OrdMap<(SourceName, PodKey), Rejection>,
    host_ports: HostPorts,
    /// By source; none if the source is not configured.
    sources: [Option<SourceView>; SourceName::ALL.len()],
}

/// The pods by key, each with its source.
impl Deref for Merged {
    type Target = OrdMap<PodKey, Entry>;

    fn deref(&self) -> &Self::Target {
        &self.pods
    }
}

impl Merged {
    /// An empty view of some configured sources.
    pub fn new(configured: &[SourceName]) -> Self {
        let view = || SourceView { state: SourceState::Waiting, listing: None };
        Self {
            sources: SourceName::ALL.map(|source| configured.contains(&source).then(view)),
            ..Self::default()
        }
    }

    /// The state of a source; none if it is not configured.
    pub fn state(&self, source: SourceName) -> Option<SourceState> {
        Some(self.sources[source as usize].as_ref()?.state)
    }

    /// The last listing of a source, including pods that lost a conflict; none if it published nothing.
    pub fn listing(&self, source: SourceName) -> Option<&Listing> {
        self.sources[source as usize].as_ref()?.listing.as_ref()
    }

    /// All rejections: those of the sources, and the conflicts between sources.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        let own = SourceName::ALL.into_iter().filter_map(|source| self.listing(source));
        own.flat_map(Listing::rejections).chain(self.conflicts.values())
    }

    /// The rejections that an earlier view does not have. O(differences × log n).
    pub fn rejected_since(&self, before: &Self) -> Vec<Rejection> {
        let own = SourceName::ALL
            .into_iter()
            .filter_map(|source| Some(self.listing(source)?.rejected_since(before.listing(source))));
        own.flatten().chain(changed_rejections(Some(&before.conflicts), &self.conflicts).0).collect()
    }

    /// Why a source's pod with a key lost to another source's.
    #[cfg(feature = "agent")]
    pub(crate) fn conflict(&self, source: SourceName, key: &PodKey) -> Option<&Rejection> {
        self.conflicts.get(&(source, key.clone()))
    }

    /// A pod with the place where its source has it now. The view has an earlier place of a pod that has not changed.
    #[cfg(feature = "agent")]
    pub(crate) fn listed(&self, key: &PodKey) -> Option<&Entry> {
        let entry = self.get(key)?;
        self.listing(entry.source()).and_then(|listing| listing.get(key)).or(Some(entry))
    }

    /// The ports of the node that the pods want.
    pub fn host_ports(&self) -> &HostPorts {
        &self.host_ports
    }

    /// Whether every configured source is synced.
    pub fn is_complete(&self) -> bool {
        self.sources.iter().flatten().all(|view| view.state == SourceState::Synced)
    }

    pub(super) fn source_mut(&mut self, source: SourceName) -> Option<&mut SourceView> {
        self.sources[source as usize].as_mut()
    }

    /// The pod of each source with a key.
    pub(super) fn claims_on(&self, key: &PodKey) -> impl Iterator<Item = &Entry> {
        SourceName::ALL.into_iter().filter_map(move |source| self.listing(source)?.get(key))
    }

    pub(super) fn set_all(&mut self, listing: &Listing) {
        self.pods = (**listing).clone();
        for (key, entry) in self.pods.iter().filter(|(_, entry)| !entry.pod().host_ports().is_empty()) {
            self.host_ports.replace(key, None, Some(entry));
        }
    }

    pub(super) fn set(&mut self, key: &PodKey, entry: Option<&Entry>) {
        if entry.is_some() && self.pods.get(key) == entry {
            return;
        }
        let old = match entry {
            Some(entry) => self.pods.insert(key.clone(), entry.clone()),
            None => self.pods.remove(key),
        };
        self.host_ports.replace(key, old.as_ref(), entry);
    }

    pub(super) fn set_conflict(
        &mut self,
        at: (SourceName, PodKey),
        conflict: Option<&Rejection>,
        outcome: &mut Outcome,
    ) {
        if self.conflicts.get(&at) == conflict {
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
