//! What a consumer is told: operations, their sources, and the rule that tells two states of a pod apart.

use std::{borrow::Cow, fmt, iter, str::FromStr, sync::Arc};

use jiff::Timestamp;

use super::Pod;

/// Where pods come from, declared in order of precedence: when two sources
/// want the same `namespace/name`, the lower one has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    /// Manifests in a directory, or one manifest file.
    File,
    /// Pods POSTed over HTTP.
    Http,
    /// A manifest polled from a URL (the kubelet's `http`).
    Url,
    /// Pods that an API server has bound to this node.
    Api,
}

impl SourceName {
    /// Every source, in order of precedence.
    pub const ALL: [Self; 4] = [Self::File, Self::Http, Self::Url, Self::Api];

    /// The name that podmux shows: `file`, `http`, `url` or `api`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Url => "url",
            Self::Api => "api",
        }
    }

    /// The value of the annotation `kubernetes.io/config.source`. The kubelet
    /// knows three sources, so a polled URL is `http` there
    /// (`pkg/kubelet/types/pod_update.go`).
    #[must_use]
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::Url => "http",
            other => other.as_str(),
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is not the name of a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a source: file, http, url or api is")]
pub struct UnknownSource(pub String);

impl FromStr for SourceName {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|source| source.as_str() == text)
            .ok_or_else(|| UnknownSource(text.to_owned()))
    }
}

/// What happened to the pods of an update, declared in the order of delivery.
///
/// Within one look at the merged view a consumer hears every REMOVE first, then
/// every ADD, and so on. Replayed from an empty map (ADD, UPDATE, DELETE and
/// RECONCILE store, REMOVE erases, SET replaces everything), the stream gives
/// the merged view in everything that makes an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// No source wants the pod any more; it is told as it was last told.
    Remove,
    /// The pod is wanted and was not known. With no pods at all: the source has
    /// been seen for the first time and had nothing to tell.
    Add,
    /// Something that makes an update changed: spec, labels, annotations,
    /// deletion time or grace.
    Update,
    /// As `Update`, and the pod is being deleted gracefully.
    Delete,
    /// Only the status changed.
    Reconcile,
    /// Everything that is wanted, in place of all that was told before: in the
    /// snapshot modes of notification, and where a stream of updates begins anew.
    Set,
}

impl Op {
    /// The word in the update stream: `ADD`, `REMOVE`, …
    #[must_use]
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

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whose pods an update speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpdateSource {
    /// One source's.
    One(SourceName),
    /// All sources' (a SET).
    All,
}

impl UpdateSource {
    /// The word in the update stream: the source's name, or `*`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::One(source) => source.as_str(),
            Self::All => "*",
        }
    }
}

impl fmt::Display for UpdateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One message of the ordered updates channel: an operation, whose pods, which pods.
///
/// Cloning it copies no pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    /// What happened.
    pub op: Op,
    /// To whose pods.
    pub source: UpdateSource,
    /// The pods, in the order in which a consumer should take them: for ADD and
    /// SET the most important first, for REMOVE and DELETE last, else by
    /// `namespace/name`.
    pub pods: Arc<[Arc<Pod>]>,
}

/// An update with its place in the stream of one consumer.
///
/// Cloning it copies no pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SequencedUpdate {
    /// Rises by one with each update of the stream. Never names two different updates.
    pub seq: u64,
    /// When the update was taken for this consumer. A retry keeps it.
    pub time: Timestamp,
    /// What happened.
    pub update: PodUpdate,
}

impl SequencedUpdate {
    /// The update as a line of JSON, in pieces: a line of 100,000 pods is
    /// 300 MB and need never stand in memory as a whole. The pods' pieces are
    /// their own texts, not copies. The last piece ends with a newline.
    pub fn line(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let head = format!(
            r#"{{"seq":{},"time":"{:.6}","op":"{}","source":"{}","pods":["#,
            self.seq, self.time, self.update.op, self.update.source,
        );
        let pods = self.update.pods.iter().enumerate().flat_map(|(index, pod)| {
            let comma: &[u8] = if index == 0 { b"" } else { b"," };
            [Cow::Borrowed(comma), Cow::Borrowed(&**pod.text())]
        });
        iter::once(Cow::Owned(head.into_bytes())).chain(pods).chain([Cow::Borrowed(&b"]}\n"[..])])
    }
}

/// The operation that leads from one state of a pod to the next, if any is due.
///
/// Both are the same pod (key, UID and incarnation). The rule is the kubelet's
/// `podsDifferSemantically` with its callers (`pkg/kubelet/config/config.go`):
/// a semantic difference is an UPDATE, or a DELETE when the new state has a
/// deletionTimestamp; a difference of the status alone is a RECONCILE.
#[must_use]
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
