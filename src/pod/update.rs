//! What a consumer receives: updates with their operation and source, and the rule that compares two states of a pod.

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;

use super::{Pod, SourceName};

/// What happened to the pods of an update. The variants are in the order of delivery:
/// of one change of the merged view, a consumer receives every REMOVE first, then every
/// SET, then every ADD, and so on.
///
/// A replay of the stream (ADD, UPDATE, DELETE and RECONCILE store, REMOVE erases, SET replaces
/// what was last received from its source) gives the merged view in everything that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// No source wants the pod any more. The update has its last delivered state.
    Remove,
    /// All pods of a source, or of all sources: a consumer discards what it last received from
    /// there and is not listed. At the beginning of a stream that continues an earlier one, and
    /// in the snapshot modes.
    Set,
    /// The pod is new. An ADD without pods marks the first sync of a source that
    /// had nothing to add, update or delete.
    Add,
    /// The spec, labels, annotations, deletion time or deletion grace period changed.
    Update,
    /// As `Update`, and the pod is being deleted gracefully.
    Delete,
    /// Only the status changed.
    Reconcile,
}

impl Op {
    /// All operations, in the order of delivery.
    pub const ALL: [Self; 6] =
        [Self::Remove, Self::Set, Self::Add, Self::Update, Self::Delete, Self::Reconcile];

    /// The name in the update stream: `ADD`, `REMOVE`, …
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Remove => "REMOVE",
            Self::Add => "ADD",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Reconcile => "RECONCILE",
            Self::Set => "SET",
        }
    }
}

/// The source of the pods of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpdateSource {
    /// The pods are of one source.
    One(SourceName),
    /// The pods are of all sources (in a SET).
    All,
}

impl UpdateSource {
    /// The name in the update stream: the source's name, or `*`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::One(source) => source.as_str(),
            Self::All => "*",
        }
    }
}

/// One update of a consumer's ordered stream: an operation, a source and its pods.
///
/// Cloning it copies no pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    /// What happened.
    pub op: Op,
    /// The source of the pods.
    pub source: UpdateSource,
    /// The pods, in the order in which a consumer should handle them: ADD and SET by
    /// descending importance, REMOVE and DELETE by ascending importance, the others by
    /// `namespace/name`.
    pub pods: Arc<[Arc<Pod>]>,
    /// In a SET of all sources, the source of each pod; empty otherwise.
    pub sources: Arc<[SourceName]>,
}

/// An update with its place in the stream of one consumer.
///
/// Cloning it copies no pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SequencedUpdate {
    /// The sequence number. It rises with each update and is never reused for another one.
    pub seq: u64,
    /// The id of the run, in the first update of a stream that continues an earlier one.
    pub run: Option<Arc<str>>,
    /// When delivery of the update to this consumer began. A retry keeps the time.
    pub time: Timestamp,
    /// The update.
    pub update: PodUpdate,
    /// Whether more parts of this SET follow: it counts with the last one.
    pub more: bool,
}

impl SequencedUpdate {
    /// The update as a line of JSON, in pieces. The last piece ends with a newline.
    ///
    /// A line of 100,000 pods has 300 MB, so the line is not made as a whole; the
    /// pieces of the pods borrow the pods' own texts.
    pub fn line(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        (0..).map_while(|index| self.piece(index))
    }

    /// One piece of [`line`](Self::line); `None` after the last one.
    pub fn piece(&self, index: usize) -> Option<Cow<'_, [u8]>> {
        let pods = &self.update.pods;
        let last = 2 * pods.len() + 1;
        Some(match index {
            0 => Cow::Owned(self.head().into_bytes()),
            1 if last > 1 => Cow::Borrowed(b""),
            _ if index == last => Cow::Borrowed(b"]}\n"),
            _ if index > last => return None,
            _ if index % 2 == 1 => Cow::Borrowed(b","),
            _ => Cow::Borrowed(&**pods[index / 2 - 1].text()),
        })
    }

    fn head(&self) -> String {
        let run = self.run.as_ref().map_or_else(String::new, |run| format!(r#""run":"{run}","#));
        let more = if self.more { r#""more":true,"# } else { "" };
        let sources = match self.update.source {
            UpdateSource::One(_) => String::new(),
            UpdateSource::All => {
                let names: Vec<_> =
                    self.update.sources.iter().map(|source| format!(r#""{source}""#)).collect();
                format!(r#""sources":[{}],"#, names.join(","))
            }
        };
        format!(
            r#"{{"seq":{},{run}"time":"{:.6}","op":"{}","source":"{}",{more}{sources}"pods":["#,
            self.seq, self.time, self.update.op, self.update.source,
        )
    }
}

/// The operation that leads from one state of a pod to the next; none if nothing compared changed.
///
/// Both states are of the same pod (key, UID and incarnation). The rule is the kubelet's
/// `podsDifferSemantically` with its callers (`pkg/kubelet/config/config.go`):
/// a semantic difference is an UPDATE, or a DELETE if the new state has a
/// deletionTimestamp; a difference of only the status is a RECONCILE.
pub fn classify(old: &Pod, new: &Pod) -> Option<Op> {
    if old.digest() != new.digest() {
        let terminating = new.deletion_timestamp().is_some();
        Some(if terminating { Op::Delete } else { Op::Update })
    } else if old.status_digest() != new.status_digest() {
        Some(Op::Reconcile)
    } else {
        None
    }
}
