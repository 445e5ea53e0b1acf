//! Everything that one source wants, as a persistent map, and the builder that edits it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::Hash,
    sync::Arc,
};

use imbl::{OrdMap, ordmap::DiffItem};
use jiff::Timestamp;

use super::{Pod, PodKey, Prepared, Refusal, SourceName, Uid, object::seen_now};

/// Where a source found something: the path of a manifest, a URL, the key of a
/// posted or bound pod. Its order as text is the order of the source: where two
/// pods of a source claim one name, the lower origin wins.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(Arc<str>);

impl Origin {
    /// The origin as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Origin {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A pod's place in its source's order: its origin, and its number there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    origin: Origin,
    index: usize,
}

/// One life of a pod in a listing. A pod that went away and came back has
/// another one, even with the same UID, so that a consumer that slept through
/// its absence is told REMOVE and ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

/// A pod in a listing, or in the merged view.
///
/// Equality is identity: the same incarnation of the very same state. The
/// listings' diff asks for it at every entry that it visits.
#[derive(Clone, Debug)]
pub struct Entry {
    pod: Arc<Pod>,
    source: SourceName,
    incarnation: Incarnation,
    rank: Rank,
}

impl Entry {
    /// The pod.
    #[must_use]
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// The source that wants it.
    #[must_use]
    pub fn source(&self) -> SourceName {
        self.source
    }

    /// Which life of the pod this is. Comparable within one source and key only.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Where the source found it.
    #[must_use]
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

/// Something that a source, or the merge, did not take.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The source that wanted it.
    pub source: SourceName,
    /// Where the source found it.
    pub origin: Origin,
    /// Which pod, if it came so far as to have a name.
    pub pod: Option<PodKey>,
    /// Why.
    pub reason: RejectionReason,
}

/// Why something was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum RejectionReason {
    /// The manifest is bad. What it gave before, if anything, is kept.
    Refused(Arc<Refusal>),
    /// It could not be read. What it gave before, if anything, is kept.
    Unreadable(Arc<str>),
    /// Another pod of the same source has the name and stands before it.
    DuplicateName {
        /// Where the winner stands.
        winner: Origin,
    },
    /// Another pod of the same source has the UID and stands before it.
    DuplicateUid {
        /// The winner's key.
        holder: PodKey,
        /// Where the winner stands.
        winner: Origin,
    },
    /// A pod of another source holds the name.
    Conflict {
        /// The source whose pod holds the name.
        winner: SourceName,
    },
    /// A pod of another source, under another name, holds the UID.
    UidInUse {
        /// The source whose pod holds the UID.
        winner: SourceName,
        /// That pod.
        holder: PodKey,
    },
}

impl RejectionReason {
    /// One word for metrics and tables: `Invalid`, `Unreadable`,
    /// `DuplicateName`, `DuplicateUID` or `Conflict`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Refused(_) => "Invalid",
            Self::Unreadable(_) => "Unreadable",
            Self::DuplicateName { .. } => "DuplicateName",
            Self::DuplicateUid { .. } => "DuplicateUID",
            Self::Conflict { .. } | Self::UidInUse { .. } => "Conflict",
        }
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unreadable(why) => f.write_str(why),
            Self::DuplicateName { winner } => {
                write!(f, "the name is taken by the pod in {winner}; rename one of them")
            }
            Self::DuplicateUid { holder, winner } => {
                write!(f, "the UID is taken by {holder} in {winner}; remove metadata.uid from one of them")
            }
            Self::Conflict { winner } => {
                write!(f, "the name is held by a pod of source {winner}; rename one of them")
            }
            Self::UidInUse { winner, holder } => {
                write!(f, "the UID is in use by {holder} of source {winner}; remove metadata.uid")
            }
        }
    }
}

/// Everything that one source wants now, and what it refused.
///
/// A persistent map: cloning is O(1), an edit through [`ListingBuilder`] is
/// O(log n), and what two listings share costs nothing when they are compared.
#[derive(Clone, Debug)]
pub struct Listing {
    source: SourceName,
    entries: OrdMap<PodKey, Entry>,
    refusals: OrdMap<Origin, Rejection>,
    duplicates: OrdMap<Rank, Rejection>,
    restored: bool,
}

impl Listing {
    /// The source that speaks.
    #[must_use]
    pub fn source(&self) -> SourceName {
        self.source
    }

    /// Whether this is the last good listing of an earlier run and not what the
    /// source says now. Such a listing adds and updates; it never removes.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// How many pods it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no pods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The pod under a key.
    #[must_use]
    pub fn get(&self, key: &PodKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All pods, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&PodKey, &Entry)> {
        self.entries.iter()
    }

    /// What the source refused, by origin: bad manifests first, then duplicates.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.refusals.values().chain(self.duplicates.values())
    }

    /// The persistent map itself, for the merge's diff.
    pub(crate) fn entries(&self) -> &OrdMap<PodKey, Entry> {
        &self.entries
    }

    /// What this listing rejects as duplicate and `before` did not, and the
    /// other way round.
    pub(crate) fn duplicates_since(&self, before: Option<&Self>) -> (Vec<Rejection>, Vec<Rejection>) {
        let none = OrdMap::new();
        let (mut rejected, mut recovered) = (Vec::new(), Vec::new());
        for change in before.map_or(&none, |before| &before.duplicates).diff(&self.duplicates) {
            match change {
                DiffItem::Add(_, new) | DiffItem::Update { new: (_, new), .. } => rejected.push(new.clone()),
                DiffItem::Remove(_, old) => recovered.push(old.clone()),
            }
        }
        (rejected, recovered)
    }

    /// This listing laid over another one of the same source: whatever is only
    /// in the other stays, and so does a pod that has another life here. This is
    /// how a restored listing is taken, which must remove nothing.
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

/// Edits a source's listing.
///
/// It knows every pod that the source found, the losers of duplicate names and
/// UIDs too, so that a loser takes over when its winner goes. An edit costs
/// O(changes × log n).
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
    source: SourceName,
    found: BTreeMap<Origin, Vec<Arc<Pod>>>,
    /// Who claims a name or a UID; nearly always one, so a plain list.
    by_key: HashMap<PodKey, Vec<Rank>>,
    by_uid: HashMap<Uid, Vec<Rank>>,
    entries: OrdMap<PodKey, Entry>,
    refusals: OrdMap<Origin, Rejection>,
    duplicates: OrdMap<Rank, Rejection>,
    /// The entries as they were last handed out: incarnations are inherited from here.
    handed_out: OrdMap<PodKey, Entry>,
    last_incarnation: u64,
}

impl ListingBuilder {
    /// An empty listing of a source.
    #[must_use]
    pub fn new(source: SourceName) -> Self {
        Self {
            source,
            found: BTreeMap::new(),
            by_key: HashMap::new(),
            by_uid: HashMap::new(),
            entries: OrdMap::new(),
            refusals: OrdMap::new(),
            duplicates: OrdMap::new(),
            handed_out: OrdMap::new(),
            last_incarnation: 0,
        }
    }

    /// Says that these, and only these, are the pods of an origin, and that
    /// nothing is wrong with it. Returns whether anything changed.
    ///
    /// A pod that is already known under its key and UID keeps its
    /// `kubernetes.io/config.seen`; another one gets `now`.
    pub fn put(&mut self, origin: &Origin, pods: Vec<Prepared>, now: Timestamp) -> bool {
        let mended = self.refusals.remove(origin).is_some();
        let before = self.found.get(origin).map_or(&[][..], Vec::as_slice);
        let known: HashMap<&PodKey, &Arc<Pod>> = before.iter().map(|pod| (pod.key(), pod)).collect();
        let now = seen_now(now);
        let after: Vec<Arc<Pod>> = pods
            .into_iter()
            .map(|prepared| {
                let entry = || self.entries.get(prepared.key()).map(Entry::pod);
                let known = known.get(prepared.key()).copied().or_else(entry).cloned();
                stamp(prepared, self.source, known.as_ref(), &now)
            })
            .collect();
        self.exchange(origin, after) || mended
    }

    /// Says that an origin is gone, with its pods and its refusal. Returns
    /// whether anything changed.
    pub fn remove(&mut self, origin: &Origin) -> bool {
        let mended = self.refusals.remove(origin).is_some();
        self.exchange(origin, Vec::new()) || mended
    }

    /// Says that an origin is bad. The pods that it gave before stay. Returns
    /// whether this is news.
    pub fn refuse(&mut self, origin: &Origin, reason: RejectionReason) -> bool {
        let rejection = Rejection { source: self.source, origin: origin.clone(), pod: None, reason };
        let news = self.refusals.get(origin) != Some(&rejection);
        self.refusals.insert(origin.clone(), rejection);
        news
    }

    /// Why an origin is bad, if it is.
    #[must_use]
    pub fn refusal(&self, origin: &Origin) -> Option<&Rejection> {
        self.refusals.get(origin)
    }

    /// The origins that have pods or a refusal, sorted.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.found.keys().chain(self.refusals.keys().filter(|origin| !self.found.contains_key(*origin)))
    }

    /// The pods of an origin, losers included.
    #[must_use]
    pub fn found(&self, origin: &Origin) -> &[Arc<Pod>] {
        self.found.get(origin).map_or(&[], Vec::as_slice)
    }

    /// How many pods an origin has, losers included.
    #[must_use]
    pub fn pods_of(&self, origin: &Origin) -> usize {
        self.found(origin).len()
    }

    /// The listing as it is now. Later edits do not change it.
    pub fn listing(&mut self) -> Listing {
        self.handed_out = self.entries.clone();
        Listing {
            source: self.source,
            entries: self.entries.clone(),
            refusals: self.refusals.clone(),
            duplicates: self.duplicates.clone(),
            restored: false,
        }
    }

    /// The listing as it is now, as one that was read back from an earlier run.
    /// The live listings that follow inherit its incarnations.
    pub fn restored_listing(&mut self) -> Listing {
        Listing { restored: true, ..self.listing() }
    }

    /// Puts other pods in an origin's place and decides anew who wins, as far
    /// as the change reaches.
    fn exchange(&mut self, origin: &Origin, after: Vec<Arc<Pod>>) -> bool {
        let before = self.found.remove(origin).unwrap_or_default();
        let same = before.len() == after.len()
            && before.iter().zip(&after).all(|(before, after)| Arc::ptr_eq(before, after));
        let mut touched = Vec::new();
        if !same {
            for (index, pod) in before.iter().enumerate() {
                self.unlink(&Rank { origin: origin.clone(), index }, pod);
                touched.push(pod.clone());
            }
            for (index, pod) in after.iter().enumerate() {
                let rank = Rank { origin: origin.clone(), index };
                self.by_key.entry(pod.key().clone()).or_default().push(rank.clone());
                if !pod.uid().is_empty() {
                    self.by_uid.entry(pod.uid().clone()).or_default().push(rank);
                }
                touched.push(pod.clone());
            }
        }
        if !after.is_empty() {
            self.found.insert(origin.clone(), after);
        }
        self.settle(touched);
        !same
    }

    fn unlink(&mut self, rank: &Rank, pod: &Pod) {
        self.duplicates.remove(rank);
        withdraw(&mut self.by_key, pod.key(), rank);
        withdraw(&mut self.by_uid, pod.uid(), rank);
    }

    /// Decides anew every key that the touched pods can reach by a shared name
    /// or UID: in the order of the source, whoever finds both free has them.
    fn settle(&mut self, touched: Vec<Arc<Pod>>) {
        let (keys, ranks) = self.reach(touched);
        let mut names: HashMap<PodKey, Rank> = HashMap::new();
        let mut uids: HashMap<Uid, Rank> = HashMap::new();
        for rank in ranks {
            let Some(pod) = self.pod_at(&rank) else { continue };
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
                self.duplicates.insert(rank, Rejection { source: self.source, origin, pod, reason });
                continue;
            }
            names.insert(pod.key().clone(), rank.clone());
            if !pod.uid().is_empty() {
                uids.insert(pod.uid().clone(), rank.clone());
            }
            self.duplicates.remove(&rank);
            self.enter(pod, rank);
        }
        for key in keys {
            if !names.contains_key(&key) {
                self.entries.remove(&key);
            }
        }
    }

    /// The keys, and the ranks in order, that hang together with some pods.
    fn reach(&self, touched: Vec<Arc<Pod>>) -> (BTreeSet<PodKey>, BTreeSet<Rank>) {
        let (mut keys, mut uids, mut ranks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut queue = touched;
        while let Some(pod) = queue.pop() {
            let mut met = Vec::new();
            if keys.insert(pod.key().clone()) {
                met.extend(self.by_key.get(pod.key()).into_iter().flatten());
            }
            if uids.insert(pod.uid().clone()) {
                met.extend(self.by_uid.get(pod.uid()).into_iter().flatten());
            }
            for rank in met {
                if ranks.insert(rank.clone()) {
                    queue.extend(self.pod_at(rank));
                }
            }
        }
        (keys, ranks)
    }

    fn pod_at(&self, rank: &Rank) -> Option<Arc<Pod>> {
        self.found.get(&rank.origin)?.get(rank.index).cloned()
    }

    fn enter(&mut self, pod: Arc<Pod>, rank: Rank) {
        let lived = self.handed_out.get(pod.key()).filter(|entry| entry.pod.uid() == pod.uid());
        let incarnation = lived.map_or_else(
            || {
                self.last_incarnation += 1;
                Incarnation(self.last_incarnation)
            },
            Entry::incarnation,
        );
        let entry = Entry { pod, source: self.source, incarnation, rank };
        let key = entry.pod.key();
        if self.entries.get(key).is_none_or(|old| *old != entry || old.rank != entry.rank) {
            self.entries.insert(key.clone(), entry);
        }
    }
}

/// Takes one claim back, and the list of claims with the last one.
fn withdraw<K: Hash + Eq>(claims: &mut HashMap<K, Vec<Rank>>, key: &K, rank: &Rank) {
    if let Some(ranks) = claims.get_mut(key) {
        ranks.retain(|other| other != rank);
        if ranks.is_empty() {
            claims.remove(key);
        }
    }
}

/// Freezes a pod; gives the known state back if nothing at all changed.
fn stamp(prepared: Prepared, source: SourceName, known: Option<&Arc<Pod>>, now: &str) -> Arc<Pod> {
    let known = known.filter(|known| prepared.uid() == known.uid().as_str());
    let pod = prepared.stamp(source, known.and_then(|known| known.seen()).unwrap_or(now));
    match known {
        Some(known) if known.text() == pod.text() => known.clone(),
        _ => Arc::new(pod),
    }
}
