//! The listing of a source: all its pods as a persistent map, and the builder that edits it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::Hash,
    mem,
    ops::Deref,
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};
use jiff::Timestamp;

use super::{InvalidManifest, Pod, PodKey, Prepared, SourceName, Uid};

/// Where a source found pods: the path of a manifest, a URL, the key of a posted or
/// bound pod. If two pods of a source have the same name, the origin that is lower as
/// text owns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(Arc<str>);

impl Origin {
    /// The origin as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Origin {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// The rank of a pod within its source: its origin and its index there. The lower rank owns
/// a name or UID that two pods claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    origin: Origin,
    index: usize,
}

/// Identifies one life of a pod in a listing. A pod that was removed and added again has
/// another incarnation even with the same UID, so that a consumer that missed its absence
/// receives REMOVE and ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

/// A pod in a listing, or in the merged view.
///
/// Two entries are equal if they hold the same allocation of the pod and the same
/// incarnation: the diff of two listings compares every entry that it visits.
#[derive(Clone, Debug)]
pub struct Entry {
    pod: Arc<Pod>,
    source: SourceName,
    incarnation: Incarnation,
    rank: Rank,
}

impl Entry {
    /// A posted pod, for the answer to the write: it is not in the listing if the write was a dry run.
    #[cfg(feature = "agent")]
    pub(crate) fn posted(pod: Arc<Pod>) -> Self {
        let rank = Rank { origin: Origin::from(pod.key().as_str()), index: 0 };
        Self { pod, source: SourceName::Http, incarnation: Incarnation(0), rank }
    }

    /// The pod.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// The source of the pod.
    pub fn source(&self) -> SourceName {
        self.source
    }

    /// The incarnation of the pod, comparable only within one source and key.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Where the source found the pod.
    pub fn origin(&self) -> &Origin {
        &self.rank.origin
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod)
            && self.incarnation == other.incarnation
            && self.source == other.source
    }
}

/// A manifest or pod that a source or the merge rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The source of the manifest or pod.
    pub source: SourceName,
    /// Where the source found it.
    pub origin: Origin,
    /// The pod; none if a whole manifest is rejected.
    pub pod: Option<PodKey>,
    /// Why it is rejected.
    pub reason: RejectionReason,
}

/// Why a manifest or pod is rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RejectionReason {
    /// The manifest is invalid. The origin's previous pods stay.
    #[error("{0}")]
    Invalid(Arc<InvalidManifest>),
    /// The origin cannot be read. Its previous pods stay.
    #[error("{0}")]
    Unreadable(Arc<str>),
    /// A pod of the same source with a lower rank has the same name.
    #[error("the pod in {winner} has the same name; rename one of them")]
    DuplicateName {
        /// The origin of the pod that owns the name.
        winner: Origin,
    },
    /// A pod of the same source with a lower rank has the same UID.
    #[error("the pod {holder} in {winner} has the same UID; remove metadata.uid from one of them")]
    DuplicateUid {
        /// The pod that owns the UID.
        holder: PodKey,
        /// The origin of that pod.
        winner: Origin,
    },
    /// A pod of another source owns the name.
    #[error("a pod of source {winner} has the same name; rename one of them")]
    Conflict {
        /// The source of the pod that owns the name.
        winner: SourceName,
    },
    /// A pod of another source with another name owns the UID.
    #[error("the pod {holder} of source {winner} has the same UID; remove metadata.uid")]
    UidInUse {
        /// The source of the pod that owns the UID.
        winner: SourceName,
        /// The pod that owns the UID.
        holder: PodKey,
    },
}

impl RejectionReason {
    /// The reason in metrics and tables: `Invalid`, `Unreadable`,
    /// `DuplicateName`, `DuplicateUID` or `Conflict`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "Invalid",
            Self::Unreadable(_) => "Unreadable",
            Self::DuplicateName { .. } => "DuplicateName",
            Self::DuplicateUid { .. } => "DuplicateUID",
            Self::Conflict { .. } | Self::UidInUse { .. } => "Conflict",
        }
    }
}

/// The lines of a manifest with one pod that begins at once.
const ONE_POD: &[u32] = &[1];

/// All pods that a source wants at one moment, and what it rejected.
///
/// A persistent map: a clone is O(1), an edit through [`ListingBuilder`] is
/// O(log n), and a comparison of two listings skips what they share.
#[derive(Clone, Debug)]
pub struct Listing {
    source: SourceName,
    entries: OrdMap<PodKey, Entry>,
    rejections: OrdMap<Origin, Rejection>,
    duplicates: OrdMap<Rank, Rejection>,
    /// The lines on which the pods of an origin begin, if they are not one pod on line 1. They are no part of what is
    /// compared.
    lines: OrdMap<Origin, Arc<[u32]>>,
    /// Whether the source reads manifests, so that the lines are known.
    has_lines: bool,
    restored: bool,
}

/// The pods by key.
impl Deref for Listing {
    type Target = OrdMap<PodKey, Entry>;

    fn deref(&self) -> &Self::Target {
        &self.entries
    }
}

impl Listing {
    /// The source that published the listing.
    pub fn source(&self) -> SourceName {
        self.source
    }

    /// Whether this is the last-known-good listing of an earlier run. A restored listing
    /// adds and updates pods, and never removes one.
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// The line of its manifest on which the pod of an entry begins, from 1; none if it is not known.
    pub fn line(&self, entry: &Entry) -> Option<u32> {
        let lines = self.lines.get(&entry.rank.origin).map_or(ONE_POD, |lines| lines);
        lines.get(entry.rank.index).copied().filter(|_| self.has_lines)
    }

    /// The rejections by origin: manifests first, then duplicates.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.rejections.values().chain(self.duplicates.values())
    }

    /// Hides duplicates that differ from those of `shown`: it has of them what `shown` has, or nothing.
    pub(crate) fn hide_duplicates(
        &mut self,
        shown: Option<&Self>,
        mut hides: impl FnMut(&Rejection) -> bool,
    ) {
        let known = |rank: &Rank| shown.and_then(|shown| shown.duplicates.get(rank));
        for (rank, new) in &self.duplicates.clone() {
            if known(rank) != Some(new) && hides(new) {
                self.duplicates.remove(rank);
                self.duplicates.extend(known(rank).map(|known| (rank.clone(), known.clone())));
            }
        }
    }

    /// The duplicates that are rejected since `before`, and those that no longer are.
    pub(crate) fn duplicates_since(&self, before: Option<&Self>) -> (Vec<Rejection>, Vec<Rejection>) {
        changed(before.map(|before| &before.duplicates), &self.duplicates)
    }

    /// All rejections that `before` does not have.
    pub(crate) fn rejected_since(&self, before: Option<&Self>) -> Vec<Rejection> {
        let (mut rejected, _) = changed(before.map(|before| &before.rejections), &self.rejections);
        rejected.extend(self.duplicates_since(before).0);
        rejected
    }

    /// Adds the pods of another listing of the same source that this one does not have, and
    /// keeps the other's pod where the incarnation differs. A restored listing is
    /// applied so, because it must not remove a pod.
    pub(crate) fn over(&self, other: &Self) -> Self {
        let mut entries = other.entries.clone();
        for change in other.entries.diff(&self.entries) {
            match change {
                DiffItem::Add(key, new) => drop(entries.insert(key.clone(), new.clone())),
                DiffItem::Update { old: (_, old), new: (key, new) } if old.incarnation == new.incarnation => {
                    entries.insert(key.clone(), new.clone());
                }
                DiffItem::Update { .. } | DiffItem::Remove(..) => {}
            }
        }
        Self { entries, ..self.clone() }
    }
}

/// Edits the listing of a source, which has one builder for as long as it publishes: the builder remembers which pods
/// are the same ones. In a listing of another builder they may be removed and added again.
///
/// The builder holds every pod that the source found, including those rejected as
/// duplicates: such a pod gets the name when its owner goes. An edit costs
/// O(changes × log n), most of it in the next [`listing`](Self::listing).
///
/// ```
/// use podmux::pod::{ListingBuilder, Origin, Prepared, SourceName};
///
/// let pod = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#)?;
/// let mut builder = ListingBuilder::new(SourceName::Http);
/// builder.put(&Origin::from("web.json"), vec![pod], jiff::Timestamp::UNIX_EPOCH);
/// assert_eq!(builder.listing().len(), 1);
/// # Ok::<(), podmux::pod::PodError>(())
/// ```
#[derive(Debug)]
pub struct ListingBuilder {
    /// The current listing.
    current: Listing,
    found: BTreeMap<Origin, Vec<Arc<Pod>>>,
    /// The claims on each name and UID; nearly always one.
    by_key: HashMap<PodKey, Vec<Rank>>,
    by_uid: HashMap<Uid, Vec<Rank>>,
    /// The entries of the last listing. A pod that is in it keeps its incarnation.
    published: OrdMap<PodKey, Entry>,
    last_incarnation: u64,
    /// The pods that came or went since then. Their claims are resolved together: many may be on one name.
    unresolved: Vec<Arc<Pod>>,
}

impl ListingBuilder {
    /// Makes a builder with an empty listing.
    pub fn new(source: SourceName) -> Self {
        Self {
            current: Listing {
                source,
                entries: OrdMap::new(),
                rejections: OrdMap::new(),
                duplicates: OrdMap::new(),
                lines: OrdMap::new(),
                has_lines: false,
                restored: false,
            },
            found: BTreeMap::new(),
            by_key: HashMap::new(),
            by_uid: HashMap::new(),
            published: OrdMap::new(),
            last_incarnation: 0,
            unresolved: Vec::new(),
        }
    }

    /// Replaces the pods of an origin, and removes its rejection. Returns whether
    /// anything changed.
    ///
    /// A pod that is known with the same key and UID keeps its
    /// `kubernetes.io/config.seen`; a new one gets `now`.
    pub fn put(&mut self, origin: &Origin, pods: Vec<Prepared>, now: Timestamp) -> bool {
        let after = self.published_as(origin, pods, &now.to_string());
        self.put_published(origin, after)
    }

    /// The pods of an origin as [`put`](Self::put) publishes them. This is most of its work, and can be done for several
    /// origins at a time.
    pub(crate) fn published_as(&self, origin: &Origin, pods: Vec<Prepared>, now: &str) -> Vec<Arc<Pod>> {
        let before = self.found(origin);
        let known: HashMap<&PodKey, &Arc<Pod>> = before.iter().map(|pod| (pod.key(), pod)).collect();
        pods.into_iter()
            .map(|prepared| {
                let entry = || self.current.entries.get(prepared.key()).map(Entry::pod);
                let known = known.get(prepared.key()).copied().or_else(entry).cloned();
                with_source(prepared, self.current.source, known.as_ref(), now)
            })
            .collect::<Box<[_]>>()
            .into()
    }

    /// Sets the pods of an origin, which have the annotations of the source already. Returns
    /// whether anything changed.
    pub fn put_published(&mut self, origin: &Origin, pods: Vec<Arc<Pod>>) -> bool {
        let recovered = self.current.rejections.remove(origin).is_some();
        self.claim(origin, pods) || recovered
    }

    /// Removes an origin with its pods and its rejection. Returns whether anything changed.
    pub fn remove(&mut self, origin: &Origin) -> bool {
        self.put_published(origin, Vec::new())
    }

    /// Sets the lines on which the pods of an origin begin, in their order: an edit may move a pod without a change.
    /// Returns whether they are others than before.
    pub fn set_lines(&mut self, origin: &Origin, lines: &[u32]) -> bool {
        self.current.has_lines = true;
        let is_new = self.current.lines.get(origin).map_or(ONE_POD, |known| known) != lines;
        if lines == ONE_POD {
            self.current.lines.remove(origin);
        } else if is_new {
            self.current.lines.insert(origin.clone(), lines.into());
        }
        is_new
    }

    /// Rejects an origin; its previous pods stay. Returns whether the rejection is new.
    pub fn reject(&mut self, origin: &Origin, reason: RejectionReason) -> bool {
        let rejection = Rejection { source: self.current.source, origin: origin.clone(), pod: None, reason };
        let is_new = self.current.rejections.get(origin) != Some(&rejection);
        self.current.rejections.insert(origin.clone(), rejection);
        is_new
    }

    /// The rejection of an origin, if it is rejected.
    pub fn rejection(&self, origin: &Origin) -> Option<&Rejection> {
        self.current.rejections.get(origin)
    }

    /// The origins that have pods or a rejection: first those with pods, each sorted.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.found
            .keys()
            .chain(self.current.rejections.keys().filter(|origin| !self.found.contains_key(*origin)))
    }

    /// The pods of an origin, including rejected duplicates.
    pub fn found(&self, origin: &Origin) -> &[Arc<Pod>] {
        self.found.get(origin).map_or(&[], Vec::as_slice)
    }

    /// The number of pods of an origin, including rejected duplicates.
    pub fn pods_of(&self, origin: &Origin) -> usize {
        self.found(origin).len()
    }

    /// The origins that have a pod with the name or the UID of this one; one may occur twice.
    pub(crate) fn claimants(&self, pod: &Pod) -> impl Iterator<Item = &Origin> {
        self.claims(pod).map(|rank| &rank.origin)
    }

    /// The current listing. Later edits do not change it.
    pub fn listing(&mut self) -> Listing {
        self.resolve();
        self.published = self.current.entries.clone();
        self.current.clone()
    }

    /// The current listing, marked as restored from an earlier run. Pods keep their
    /// incarnations in the live listings that follow.
    pub fn restored_listing(&mut self) -> Listing {
        Listing { restored: true, ..self.listing() }
    }

    /// Replaces the pods of an origin. Returns whether they changed: then the claims of the pods before and after have
    /// to be resolved.
    fn claim(&mut self, origin: &Origin, after: Vec<Arc<Pod>>) -> bool {
        let before = self.found.remove(origin).unwrap_or_default();
        let same = before.len() == after.len()
            && before.iter().zip(&after).all(|(before, after)| Arc::ptr_eq(before, after));
        if !same {
            self.current.lines.remove(origin);
            for index in 0..before.len() {
                self.current.duplicates.remove(&Rank { origin: origin.clone(), index });
            }
            remove_claims(&mut self.by_key, before.iter().map(|pod| pod.key()), origin);
            remove_claims(&mut self.by_uid, before.iter().map(|pod| pod.uid()), origin);
            for (index, pod) in after.iter().enumerate() {
                let rank = Rank { origin: origin.clone(), index };
                if !pod.uid().is_empty() {
                    add_claim(&mut self.by_uid, pod.uid(), rank.clone());
                }
                add_claim(&mut self.by_key, pod.key(), rank);
            }
            self.unresolved.extend(before.into_iter().chain(after.iter().cloned()));
        }
        if !after.is_empty() {
            self.found.insert(origin.clone(), after);
        }
        !same
    }

    /// Resolves the connected components of claims that the changed pods belong to: in
    /// order of rank, a pod owns its name and UID if both are free.
    fn resolve(&mut self) {
        let changed = mem::take(&mut self.unresolved);
        let is_alone = |pod: &Arc<Pod>| self.claims(pod).all(|rank| self.is_alone(rank));
        let (alone, others): (Vec<_>, _) = changed.into_iter().partition(is_alone);
        self.resolve_alone(&alone);
        let (keys, ranks) = self.connected(others);
        let mut names: HashMap<PodKey, Rank> = HashMap::new();
        let mut uids: HashMap<Uid, Rank> = HashMap::new();
        for rank in ranks {
            let Some(pod) = self.pod_at(&rank).cloned() else { continue };
            let reason = if let Some(winner) = names.get(pod.key()) {
                Some(RejectionReason::DuplicateName { winner: winner.origin.clone() })
            } else {
                uids.get(pod.uid()).map(|winner| RejectionReason::DuplicateUid {
                    holder: self.pod_at(winner).map_or_else(|| pod.key().clone(), |pod| pod.key().clone()),
                    winner: winner.origin.clone(),
                })
            };
            if let Some(reason) = reason {
                let pod = Some(pod.key().clone());
                let origin = rank.origin.clone();
                self.current
                    .duplicates
                    .insert(rank, Rejection { source: self.current.source, origin, pod, reason });
                continue;
            }
            names.insert(pod.key().clone(), rank.clone());
            if !pod.uid().is_empty() {
                uids.insert(pod.uid().clone(), rank.clone());
            }
            self.current.duplicates.remove(&rank);
            self.insert(pod, rank);
        }
        for key in keys {
            if !names.contains_key(&key) {
                self.current.entries.remove(&key);
            }
        }
    }

    /// All claims on the name or the UID of a pod.
    fn claims(&self, pod: &Pod) -> impl Iterator<Item = &Rank> {
        let (by_key, by_uid) = (self.by_key.get(pod.key()), self.by_uid.get(pod.uid()));
        by_key.into_iter().chain(by_uid).flatten()
    }

    /// Whether no other claim has the name or the UID of this one.
    fn is_alone(&self, rank: &Rank) -> bool {
        self.pod_at(rank).is_some_and(|pod| self.claims(pod).all(|other| other == rank))
    }

    /// Resolves claims each of which is alone, as nearly all are.
    fn resolve_alone(&mut self, changed: &[Arc<Pod>]) {
        for pod in changed.iter().filter(|pod| !self.by_key.contains_key(pod.key())) {
            self.current.entries.remove(pod.key());
        }
        let ranks: BTreeSet<Rank> = changed.iter().flat_map(|pod| self.claims(pod)).cloned().collect();
        for rank in ranks {
            let Some(pod) = self.pod_at(&rank).cloned() else { continue };
            self.current.duplicates.remove(&rank);
            self.insert(pod, rank);
        }
    }

    /// The connected components, by a shared name or UID, that some pods belong to: their
    /// keys and ranks.
    fn connected(&self, pods: Vec<Arc<Pod>>) -> (BTreeSet<PodKey>, BTreeSet<Rank>) {
        let (mut keys, mut uids, mut ranks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut queue = pods;
        while let Some(pod) = queue.pop() {
            let mut claims = Vec::new();
            if keys.insert(pod.key().clone()) {
                claims.extend(self.by_key.get(pod.key()).into_iter().flatten());
            }
            if uids.insert(pod.uid().clone()) {
                claims.extend(self.by_uid.get(pod.uid()).into_iter().flatten());
            }
            for rank in claims {
                if ranks.insert(rank.clone()) {
                    queue.extend(self.pod_at(rank).cloned());
                }
            }
        }
        (keys, ranks)
    }

    fn pod_at(&self, rank: &Rank) -> Option<&Arc<Pod>> {
        self.found.get(&rank.origin)?.get(rank.index)
    }

    fn insert(&mut self, pod: Arc<Pod>, rank: Rank) {
        let published = self.published.get(pod.key()).filter(|entry| entry.pod.uid() == pod.uid());
        let incarnation = published.map_or_else(
            || {
                self.last_incarnation += 1;
                Incarnation(self.last_incarnation)
            },
            Entry::incarnation,
        );
        let entry = Entry { pod, source: self.current.source, incarnation, rank };
        let key = entry.pod.key();
        if self.current.entries.get(key).is_none_or(|old| *old != entry || old.rank != entry.rank) {
            self.current.entries.insert(key.clone(), entry);
        }
    }
}

/// The rejections that are new since `before`, and those that ended.
pub(crate) fn changed<K: Ord + Clone>(
    before: Option<&OrdMap<K, Rejection>>,
    after: &OrdMap<K, Rejection>,
) -> (Vec<Rejection>, Vec<Rejection>) {
    let none = OrdMap::new();
    let (mut rejected, mut ended) = (Vec::new(), Vec::new());
    for change in before.unwrap_or(&none).diff(after) {
        match change {
            DiffItem::Add(_, new) | DiffItem::Update { new: (_, new), .. } => rejected.push(new.clone()),
            DiffItem::Remove(_, old) => ended.push(old.clone()),
        }
    }
    (rejected, ended)
}

/// Adds a claim. Nearly all are alone, so the list has room for one.
fn add_claim<K: Hash + Eq + Clone>(claims: &mut HashMap<K, Vec<Rank>>, key: &K, rank: Rank) {
    match claims.get_mut(key) {
        Some(ranks) => ranks.push(rank),
        None => drop(claims.insert(key.clone(), vec![rank])),
    }
}

/// Removes the claims of an origin on these names or UIDs, and the lists of claims that become empty.
fn remove_claims<'p, K: Hash + Eq + 'p>(
    claims: &mut HashMap<K, Vec<Rank>>,
    mut keys: impl Iterator<Item = &'p K>,
    origin: &Origin,
) {
    // Many pods may share a key, which is visited once. Nearly all origins have one pod, so the set is empty.
    let (first, others) = (keys.next(), keys.collect::<HashSet<&K>>());
    for key in first.into_iter().chain(others) {
        if let Some(ranks) = claims.get_mut(key) {
            ranks.retain(|rank| rank.origin != *origin);
            if ranks.is_empty() {
                claims.remove(key);
            }
        }
    }
}

/// Adds the source to a pod. Returns the known state if its text is the same.
fn with_source(prepared: Prepared, source: SourceName, known: Option<&Arc<Pod>>, now: &str) -> Arc<Pod> {
    let known = known.filter(|known| prepared.uid() == &**known.uid());
    let pod = prepared.into_pod(source, known.and_then(|known| known.seen()).unwrap_or(now));
    match known {
        Some(known) if known.text() == pod.text() => known.clone(),
        _ => Arc::new(pod),
    }
}
