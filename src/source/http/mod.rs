//! The posted set: pods that were given over HTTP, kept until they are deleted.
//!
//! A write is answered when it is on disk and merged, whatever a sink does. The
//! source is an actor: it takes what writes have come in, settles them one after
//! the other on a copy of the set, commits all that they changed at once and only
//! then lets the copy be the set.

use std::sync::Arc;

use imbl::OrdMap;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    db::DbError,
    pod::{Pod, PodKey, Prepared},
};

/// How many writes may wait while a commit is under way; the next one waits for its turn to ask.
const WRITES: usize = 1024;

/// What a write asks for.
#[derive(Clone, Debug)]
pub enum Write {
    /// Each pod is created or replaced (`POST /pods`).
    Apply(Vec<Prepared>),
    /// These are all pods from now on; those that are not among them are
    /// deleted gracefully (`PUT /pods`).
    ReplaceAll(Vec<Prepared>),
    /// A pod is created (`POST` on Kubernetes' paths).
    Create(Prepared),
    /// A pod is replaced (`PUT` on Kubernetes' paths). A resourceVersion or a
    /// UID in its metadata is a precondition.
    Replace(Prepared),
    /// A pod is deleted.
    Delete {
        /// Which.
        key: PodKey,
        /// How long it may take to end, in seconds; the pod's own grace if
        /// absent. Negative is 1, as at an API server. 0 erases it at once.
        grace: Option<i64>,
        /// What must be true of it.
        preconditions: Preconditions,
    },
}

/// What must be true of a pod for it to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// It has this UID.
    pub uid: Option<String>,
    /// It is at this version.
    pub resource_version: Option<String>,
}

/// What became of one pod of a write.
#[derive(Clone, Debug)]
pub struct Written {
    /// What was done.
    pub outcome: Outcome,
    /// The pod as it is now, or as it was last if it is gone.
    pub pod: Arc<Pod>,
}

/// What was done to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created,
    /// It was replaced.
    Configured,
    /// It is as it was, to the last field.
    Unchanged,
    /// It is being deleted, and is there until its grace has run out or every
    /// sink has let it go.
    Terminating,
    /// It is gone.
    Deleted,
}

impl Outcome {
    /// The word that people see: kubectl's `created`, `configured`, `unchanged`,
    /// and `terminating` and `deleted`.
    #[must_use]
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

/// Why nothing of a write was taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Some of its pods cannot be taken as things stand.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Obstacle>),
    /// It could not be made durable.
    #[error("not stored")]
    Storage(#[source] DbError),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopping,
}

/// Why one pod of a write cannot be taken as things stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pods \"{}\" {what}", .key.name())]
pub struct Obstacle {
    /// Which pod.
    pub key: PodKey,
    /// Why not.
    pub what: ObstacleKind,
}

/// What stands in a write's way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObstacleKind {
    /// There is one of that name.
    #[error("already exists")]
    AlreadyExists,
    /// There is none of that name.
    #[error("not found")]
    NotFound,
    /// It is being deleted; its name is free when it is gone.
    #[error("is being deleted; try again when it is gone")]
    Terminating,
    /// Another posted pod has its UID.
    #[error("cannot have the UID of {0}")]
    UidInUse(PodKey),
    /// A precondition does not hold.
    #[error("was not written: {0}")]
    Precondition(String),
}

/// A write and who waits for what became of it.
#[derive(Debug)]
struct Asked {
    write: Write,
    dry_run: bool,
    answer: oneshot::Sender<Result<Vec<Written>, WriteError>>,
}

/// The posted set from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Posts {
    writes: mpsc::Sender<Asked>,
    posted: watch::Receiver<OrdMap<PodKey, Arc<Pod>>>,
}

impl Posts {
    /// Makes a write, all of it or nothing. `Ok` means that it is durable and
    /// merged; it never waits for a sink. What a dry run answers is what the
    /// write would have answered; nothing is changed.
    ///
    /// # Cancel safety
    /// Once polled the write may happen even if the future is dropped.
    ///
    /// # Errors
    /// Why nothing of it was taken.
    pub async fn write(&self, write: Write, dry_run: bool) -> Result<Vec<Written>, WriteError> {
        let (answer, wait) = oneshot::channel();
        let asked = Asked { write, dry_run, answer };
        self.writes.send(asked).await.map_err(|_| WriteError::Stopping)?;
        wait.await.map_err(|_| WriteError::Stopping)?
    }

    /// The posted pod of a key, shadowed by another source's or not.
    #[must_use]
    pub fn get(&self, key: &PodKey) -> Option<Arc<Pod>> {
        self.posted.borrow().get(key).cloned()
    }

    /// The posted pods, shadowed ones included. O(1).
    #[must_use]
    pub fn all(&self) -> OrdMap<PodKey, Arc<Pod>> {
        self.posted.borrow().clone()
    }
}
