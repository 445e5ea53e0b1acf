//! Merges the listings of all sources into one view, and compares views to make ordered updates. Pure.

mod claims;
mod host_ports;
mod merged;
mod updates;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use imbl::{OrdMap, ordmap::DiffItem};

use crate::pod::{Entry, Listing, PodKey, SourceName, Uid};

use claims::{Claim, resolve};
pub use host_ports::{HostPorts, PortConflict};
pub use merged::{Merged, Outcome, SourceState};
pub use updates::{Delivered, Notify, updates};

/// Merges the listings of all sources into one view.
///
/// A source that is not synced never removes a pod from the view: a restored listing
/// is added to what its source has, and displaces no pod in the view.
///
/// A listing costs O(changes × log n): what it shares with the previous listing of the
/// source is not visited.
///
/// ```
/// use podmux::{
///     pod::{ListingBuilder, Op, Origin, Prepared, SourceName},
///     storage::{Notify, PodStorage, Delivered, updates},
/// };
///
/// let mut storage = PodStorage::new(&[SourceName::File]);
/// let mut file = ListingBuilder::new(SourceName::File);
/// let pod = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#)?;
/// file.put(&Origin::from("web.yaml"), vec![pod], jiff::Timestamp::UNIX_EPOCH);
/// let outcome = storage.apply(&file.listing());
/// assert!(outcome.rejected.is_empty());
///
/// let (delivered, batch) = updates(&Delivered::default(), storage.merged(), Notify::Incremental);
/// assert_eq!(batch[0].op, Op::Add);
/// assert!(updates(&delivered, storage.merged(), Notify::Incremental).1.is_empty());
/// # Ok::<(), podmux::pod::PodError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PodStorage {
    merged: Merged,
    /// All claims on each UID.
    by_uid: HashMap<Uid, Vec<(SourceName, PodKey)>>,
    /// The weakness of restored claims, if not 0; see [`Claim::weakness`].
    weak: BTreeMap<(SourceName, PodKey), u64>,
    /// The weakness of the next claim that becomes weaker. Rises with each listing too.
    clock: u64,
}

impl PodStorage {
    /// Makes an empty storage for some configured sources.
    pub fn new(configured: &[SourceName]) -> Self {
        Self { merged: Merged::new(configured), by_uid: HashMap::new(), weak: BTreeMap::new(), clock: 0 }
    }

    /// The merged view.
    pub fn merged(&self) -> &Merged {
        &self.merged
    }

    /// Replaces the listing of a source. A restored listing is added to the previous
    /// one instead: it adds and updates pods, and removes none.
    ///
    /// The listing is ignored if its source is not configured, or if it is restored
    /// and its source is synced.
    pub fn apply(&mut self, listing: &Listing) -> Outcome {
        let (source, restored) = (listing.source(), listing.is_restored());
        let Some(view) = self.merged.source_mut(source) else { return Outcome::default() };
        if restored && view.state == SourceState::Synced {
            return Outcome::default();
        }
        self.clock += 1;
        view.state = if restored { SourceState::Restored } else { SourceState::Synced };
        let before = view.listing.take();
        let after = match &before {
            Some(before) if restored => listing.over(before),
            _ => listing.clone(),
        };
        view.listing = Some(after.clone());

        let (rejected, recovered) = after.duplicates_since(before.as_ref());
        let mut outcome = Outcome { rejected, recovered };
        if self.merged.is_empty() {
            // No other source has pods, so there are no conflicts.
            self.apply_first(&after);
            return outcome;
        }
        let none = OrdMap::new();
        let old = before.as_deref().unwrap_or(&none);
        let mut contested = self.apply_changes(source, old, &after);
        if !restored {
            // The claims of a synced source have normal strength, so they are resolved again.
            let own = |claim: &(SourceName, PodKey), _: &mut u64| claim.0 == source;
            contested.extend(self.weak.extract_if(.., own).map(|(claim, _)| claim.1));
        }
        self.resolve_conflicts(contested, &mut outcome);
        outcome
    }

    /// Applies the first listing as a whole, sharing its map.
    fn apply_first(&mut self, listing: &Listing) {
        self.by_uid.reserve(listing.len());
        for (key, entry) in listing.iter() {
            if !entry.pod().uid().is_empty() {
                self.by_uid.insert(entry.pod().uid().clone(), vec![(listing.source(), key.clone())]);
            }
        }
        self.merged.set_all(listing);
    }

    /// Applies the changes of pods without another claim. Returns the keys of the others.
    fn apply_changes(
        &mut self,
        source: SourceName,
        old: &OrdMap<PodKey, Entry>,
        new: &OrdMap<PodKey, Entry>,
    ) -> BTreeSet<PodKey> {
        let mut contested = BTreeSet::new();
        for change in old.diff(new) {
            let (key, was, is) = match change {
                DiffItem::Add(key, is) => (key, None, Some(is)),
                DiffItem::Update { old: (key, was), new: (_, is) } => (key, Some(was), Some(is)),
                DiffItem::Remove(key, was) => (key, Some(was), None),
            };
            let alone = self.move_claim(source, key, was, is, &mut contested);
            if alone && self.merged.claims_on(key).all(|entry| entry.source() == source) {
                self.merged.set(key, is);
                continue;
            }
            contested.insert(key.clone());
            if was.is_none() && self.is_restored(source) {
                self.weak.insert((source, key.clone()), self.clock);
            }
        }
        contested
    }

    /// Updates the index of UIDs. Returns whether no other pod claims the old or the new
    /// UID; the keys of pods that do are added to `contested`.
    fn move_claim(
        &mut self,
        source: SourceName,
        key: &PodKey,
        was: Option<&Entry>,
        is: Option<&Entry>,
        contested: &mut BTreeSet<PodKey>,
    ) -> bool {
        let uid = |entry: Option<&Entry>| entry.map(|entry| entry.pod().uid().clone());
        let (was, is) = (uid(was), uid(is));
        let mut alone = true;
        if was != is {
            if let Some(uid) = was
                && let Some(claims) = self.by_uid.get_mut(&uid)
            {
                claims.retain(|claim| (claim.0, &claim.1) != (source, key));
                alone &= claims.is_empty();
                contested.extend(claims.iter().map(|claim| claim.1.clone()));
                if claims.is_empty() {
                    self.by_uid.remove(&uid);
                }
            }
            if let Some(uid) = &is
                && !uid.is_empty()
            {
                let claim = (source, key.clone());
                match self.by_uid.get_mut(uid) {
                    Some(claims) => claims.push(claim),
                    None => drop(self.by_uid.insert(uid.clone(), vec![claim])),
                }
            }
        }
        let claims = is.and_then(|uid| self.by_uid.get(&uid)).map_or(&[][..], Vec::as_slice);
        if claims.len() > 1 {
            alone = false;
            contested.extend(claims.iter().map(|claim| claim.1.clone()));
        }
        alone
    }

    fn is_restored(&self, source: SourceName) -> bool {
        self.merged.state(source) == Some(SourceState::Restored)
    }

    /// Resolves the connected components that the contested keys belong to.
    fn resolve_conflicts(&mut self, contested: BTreeSet<PodKey>, outcome: &mut Outcome) {
        if contested.is_empty() {
            return;
        }
        let (keys, mut claims) = self.connected(contested);
        let (owners, conflicts) = resolve(&mut claims, &mut self.clock);
        for Claim { entry, weakness, .. } in claims.iter().filter(|claim| claim.weakness > 0) {
            self.weak.insert((entry.source(), entry.pod().key().clone()), *weakness);
        }
        for key in &keys {
            self.merged.set(key, owners.get(key));
            for source in SourceName::ALL {
                let at = (source, key.clone());
                let conflict = conflicts.get(&at);
                self.merged.set_conflict(at, conflict, outcome);
            }
        }
    }

    /// The connected components, by a shared name or UID, that some keys belong to: their
    /// keys and claims.
    fn connected(&self, contested: BTreeSet<PodKey>) -> (BTreeSet<PodKey>, Vec<Claim>) {
        let mut queue: Vec<PodKey> = contested.iter().cloned().collect();
        let (mut keys, mut claims) = (contested, Vec::new());
        while let Some(key) = queue.pop() {
            for entry in self.merged.claims_on(&key) {
                claims.push(Claim {
                    entry: entry.clone(),
                    restored: self.is_restored(entry.source()),
                    weakness: self.weak.get(&(entry.source(), key.clone())).copied().unwrap_or(0),
                });
                for (_, other) in self.by_uid.get(entry.pod().uid()).into_iter().flatten() {
                    if keys.insert(other.clone()) {
                        queue.push(other.clone());
                    }
                }
            }
        }
        (keys, claims)
    }
}
