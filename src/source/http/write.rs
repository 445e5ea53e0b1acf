//! Writes to the posted pods, their results and errors.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{applied::Applied, quota::QuotaExceeded};
use crate::{
    db::DbError,
    pod::{Pod, PodKey, Prepared, SEEN, SOURCE, Uid},
};

/// Fields of the metadata that only the source sets. They are removed from what a client sends.
const SERVER_FIELDS: [&str; 5] =
    ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "selfLink"];
/// The largest body, in bytes, whose pod stays decoded while it waits: as many as can wait then take 32 MiB.
pub const SMALL_POD: usize = 4 * 1024;
/// The source's own annotations. A pod that a client read here and sends back has them.
pub(super) const MARKS: [&str; 2] = [SOURCE, SEEN];

/// A pod that a client sent, without what only the source sets.
#[derive(Clone, Debug)]
pub struct Submitted {
    key: PodKey,
    uid: Option<String>,
    resource_version: Option<String>,
    pod: Waiting,
    /// The field manager that applied it, and what it applied; none if nothing.
    applied: Option<(String, Option<Box<[u8]>>)>,
}

/// A pod until it is written. Decoded it takes many times the memory of its text.
#[derive(Clone, Debug)]
enum Waiting {
    Text(Box<[u8]>),
    Decoded(Box<Prepared>),
}

impl From<Prepared> for Submitted {
    fn from(pod: Prepared) -> Self {
        let mut submitted = Self::small(pod);
        if let Waiting::Decoded(pod) = &submitted.pod {
            let text = serde_json::to_vec(pod.object()).expect("it is JSON");
            submitted.pod = Waiting::Text(text.into());
        }
        submitted
    }
}

impl Submitted {
    /// A pod that stays decoded until it is written: one whose body was [small](SMALL_POD).
    pub fn small(mut pod: Prepared) -> Self {
        for field in SERVER_FIELDS {
            pod.set_metadata(field, None);
        }
        for mark in MARKS {
            pod.set_annotation(mark, None);
        }
        pod.reset_status();
        let given = |field| {
            let text = pod.metadata(field).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        Self {
            key: pod.key().clone(),
            uid: given("uid"),
            resource_version: given("resourceVersion"),
            pod: Waiting::Decoded(Box::new(pod)),
            applied: None,
        }
    }

    /// The key of the pod.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The `resourceVersion` that the client gave.
    pub fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }

    /// The same, to replace it.
    pub fn resource_version_mut(&mut self) -> &mut Option<String> {
        &mut self.resource_version
    }

    /// Makes the UID and the `resourceVersion` that the client gave no preconditions.
    pub fn ignore_preconditions(&mut self) {
        (self.uid, self.resource_version) = (None, None);
    }

    /// Marks the pod as the result of an apply by a field manager of these fields, or of none.
    #[must_use]
    pub fn applied_by(mut self, manager: &str, config: Option<&Map<String, Value>>) -> Self {
        let config = config.map(|config| Value::from(config.clone()).to_string().into_bytes().into());
        self.applied = Some((manager.to_owned(), config));
        self
    }

    /// What field managers have applied, after this write.
    pub(super) fn applied(&self, before: &Applied) -> Applied {
        match &self.applied {
            None => before.clone(),
            Some((manager, config)) => before.with(manager, config.clone()),
        }
    }

    /// The size of the pod as JSON, in bytes; 0 if it is small and decoded.
    pub fn size(&self) -> u64 {
        match &self.pod {
            Waiting::Text(text) => text.len() as u64,
            Waiting::Decoded(_) => 0,
        }
    }

    /// The conditions for replacing a pod by this one. As at an API server, the resourceVersion 0
    /// is any version.
    pub(super) fn preconditions(&self) -> Preconditions {
        let resource_version = self.resource_version.clone().filter(|version| version != "0");
        Preconditions { uid: self.uid.clone(), resource_version }
    }

    /// The decoded pod.
    pub(super) fn decode(self) -> Prepared {
        match self.pod {
            Waiting::Text(text) => Prepared::from_json(&text).expect("the text was made from a pod"),
            Waiting::Decoded(pod) => *pod,
        }
    }
}

/// A write to the posted pods.
#[derive(Clone, Debug)]
pub enum Write {
    /// Creates or replaces each pod (`POST /pods`). A resourceVersion or, of a pod that exists, a
    /// UID in its metadata is a precondition.
    Apply(Vec<Submitted>),
    /// Replaces all pods; the others are deleted gracefully (`PUT /pods`).
    ReplaceAll(Vec<Submitted>),
    /// Creates a pod (`POST` on Kubernetes' paths).
    Create(Submitted),
    /// Replaces a pod (`PUT` on Kubernetes' paths). A resourceVersion or a UID in its metadata
    /// is a precondition.
    Replace(Submitted),
    /// Deletes a pod.
    Delete {
        /// The pod.
        key: PodKey,
        /// The grace period in seconds; the pod's own if absent. A negative one means 1, as at
        /// an API server. 0 deletes the pod at once.
        grace: Option<i64>,
        /// The conditions for the write.
        preconditions: Preconditions,
    },
    /// Deletes pods of a selection (`DELETE` of a collection). One that is gone is skipped, and so is a pod that took
    /// its name since.
    DeleteSelected {
        /// The pods.
        pods: Vec<Selected>,
        /// As for one pod.
        grace: Option<i64>,
    },
}

/// A pod of a selection.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Its name.
    pub key: PodKey,
    /// Its UID.
    pub uid: Uid,
    /// The conditions for the write.
    pub preconditions: Preconditions,
}

/// The conditions for deleting a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Preconditions {
    /// The pod has this UID.
    pub uid: Option<String>,
    /// The pod has this resourceVersion.
    pub resource_version: Option<String>,
}

/// The result of a write for one pod.
#[derive(Clone, Debug)]
pub struct Written {
    /// What was done.
    pub outcome: Outcome,
    /// The pod after the write, or before it if it is deleted.
    pub pod: Arc<Pod>,
}

/// What a write did to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was created.
    Created,
    /// It was replaced.
    Configured,
    /// It was identical.
    Unchanged,
    /// It is being deleted. It exists until its grace period is over or every sink has
    /// acknowledged its DELETE.
    Terminating,
    /// It was deleted.
    Deleted,
}

impl Outcome {
    /// The name for people: kubectl's `created`, `configured`, `unchanged`, and `terminating`
    /// and `deleted`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
            Self::Terminating => "terminating",
            Self::Deleted => "deleted",
        }
    }
}

/// Why a write failed. It changed nothing, unless it is `Slow`, or it or its [`DbError`] is `Uncertain`.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Some of its pods are in conflict with the posted pods.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Rejected(Vec<Obstacle>),
    /// It could not be made durable.
    #[error("not stored")]
    Storage(#[source] DbError),
    /// The posted pods are not known: the state cannot be opened.
    #[error("the posted pods are unknown until the state is open: {0}")]
    Unknown(Arc<str>),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopping,
    /// The agent ended during the write, which may be in effect.
    #[error("the agent ended during the write")]
    Uncertain,
    /// The disk has not answered in time, or the requests before it were slow. The write may be in effect.
    #[error("no answer within 30 s: the disk of the state directory or the requests before are slow")]
    Slow,
}

impl From<DbError> for WriteError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Ended => Self::Stopping,
            error => Self::Storage(error),
        }
    }
}

/// Why one pod of a write is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pods \"{}\" {what}", .key.name())]
pub struct Obstacle {
    /// The pod.
    pub key: PodKey,
    /// The reason.
    pub what: ObstacleKind,
}

/// The reason of an [`Obstacle`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObstacleKind {
    /// A pod has the name.
    #[error("already exists")]
    AlreadyExists,
    /// No pod has the name.
    #[error("not found")]
    NotFound,
    /// A pod with the name is being deleted.
    #[error("already exists: it is being deleted; try again when it is gone")]
    NotGoneYet,
    /// A pod that is being deleted cannot be changed.
    #[error("is being deleted; try again when it is gone")]
    Terminating,
    /// It exceeds the quota of the posted pods.
    #[error("is forbidden: {0}")]
    Quota(QuotaExceeded),
    /// A precondition failed.
    #[error("was not written: {0}")]
    Precondition(String),
}
