//! THE HEART: resolves the sources' listings into one view, and two views into ordered updates. Pure.

mod contest;
mod merged;
mod updates;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use imbl::{OrdMap, ordmap::DiffItem};

use crate::pod::{Entry, Listing, PodKey, Rejection, SourceName, Uid};

use contest::{Claim, resolve};
pub use merged::{Merged, SourceState};
pub use updates::{Delivered, Notify, everything, updates};

/// What a listing brought besides pods.
#[must_use = "a rejection that nobody reports is a pod that vanished without a word"]
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Pods that are not taken, and were or did not exist before this listing:
    /// duplicates within the source, conflicts with other sources.
    pub rejected: Vec<Rejection>,
    /// What was rejected before this listing and is not any more.
    pub recovered: Vec<Rejection>,
}

/// Merges the listings of all sources into one view.
///
/// The view never loses a pod on the word of a source that has not been seen in
/// this run: a restored listing is laid over what its source has, and takes no
/// name and no UID from a pod that is in the view.
///
/// Every listing costs O(changes × log n): what it shares with the source's
/// previous one is never visited.
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
/// let (told, messages) = updates(&Delivered::default(), storage.merged(), Notify::Incremental);
/// assert_eq!(messages[0].op, Op::Add);
/// assert!(updates(&told, storage.merged(), Notify::Incremental).1.is_empty());
/// # Ok::<(), podmux::pod::PodError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PodStorage {
    merged: Merged,
    /// Who claims a UID, over all sources, winners or not.
    by_uid: HashMap<Uid, Vec<(SourceName, PodKey)>>,
    /// The claims of restored listings that are not in full strength, as of
    /// [`Claim::weakness`].
    weak: BTreeMap<(SourceName, PodKey), u64>,
    /// Rises with each listing and each weakening: how weak a claim is that becomes so now.
    clock: u64,
}

impl PodStorage {
    /// An empty storage for these sources.
    #[must_use]
    pub fn new(configured: &[SourceName]) -> Self {
        Self { merged: Merged::new(configured), by_uid: HashMap::new(), weak: BTreeMap::new(), clock: 0 }
    }

    /// What all sources together want now.
    #[must_use]
    pub fn merged(&self) -> &Merged {
        &self.merged
    }

    /// Takes a source's listing in place of its previous one. A restored listing
    /// is laid over what the source has: it adds and updates, and removes nothing.
    ///
    /// Ignored are the listing of a source that is not configured, and a restored
    /// one of a source that has been seen: what it says now counts.
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
            // Nobody wants anything, so nothing can be contested: the view is the listing.
            self.take_all(&after);
            return outcome;
        }
        let none = OrdMap::new();
        let old = before.as_ref().map_or(&none, Listing::entries);
        let mut contested = self.take_changes(source, old, after.entries());
        if !restored {
            // Its claims are weak no more, so they are decided again.
            let own = |claim: &(SourceName, PodKey), _: &mut u64| claim.0 == source;
            contested.extend(self.weak.extract_if(.., own).map(|(claim, _)| claim.1));
        }
        self.settle(contested, &mut outcome);
        outcome
    }

    /// Takes a first listing whole, sharing its map.
    fn take_all(&mut self, listing: &Listing) {
        self.by_uid.reserve(listing.len());
        for (key, entry) in listing.iter() {
            if !entry.pod().uid().is_empty() {
                self.by_uid.insert(entry.pod().uid().clone(), vec![(listing.source(), key.clone())]);
            }
        }
        self.merged.set_all(listing);
    }

    /// Takes over what nobody else has a claim to; returns the keys of the rest.
    fn take_changes(
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
            if alone && !self.wanted_by_others(source, key) {
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

    /// Keeps the index of UIDs; returns whether nobody else claims the old or
    /// the new one. The keys of those who do are contested.
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
                self.by_uid.entry(uid.clone()).or_default().push((source, key.clone()));
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

    fn wanted_by_others(&self, source: SourceName, key: &PodKey) -> bool {
        self.merged.wanting(key).any(|entry| entry.source() != source)
    }

    /// Decides the contested keys, and all that hang together with them by a
    /// name or a UID, anew.
    fn settle(&mut self, contested: BTreeSet<PodKey>, outcome: &mut Outcome) {
        if contested.is_empty() {
            return;
        }
        let (keys, mut claims) = self.reach(contested);
        let (winners, conflicts) = resolve(&mut claims, &mut self.clock);
        for Claim { entry, weakness, .. } in claims.iter().filter(|claim| claim.weakness > 0) {
            self.weak.insert((entry.source(), entry.pod().key().clone()), *weakness);
        }
        for key in &keys {
            self.merged.set(key, winners.get(key));
            for source in SourceName::ALL {
                let conflict = conflicts.get(&(key.clone(), source));
                self.merged.set_conflict(source, key, conflict, outcome);
            }
        }
    }

    fn reach(&self, contested: BTreeSet<PodKey>) -> (BTreeSet<PodKey>, Vec<Claim>) {
        let mut queue: Vec<PodKey> = contested.iter().cloned().collect();
        let (mut keys, mut claims) = (contested, Vec::new());
        while let Some(key) = queue.pop() {
            for entry in self.merged.wanting(&key) {
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
