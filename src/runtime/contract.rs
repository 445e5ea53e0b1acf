//! The trait that every runtime implements.

use std::{
    error::Error,
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::failing::Failing;
use crate::pod::{Op, Pod, PodKey, SourceName, Uid};

/// Runs pods: an exec program, podman, a library user's own.
///
/// [`PodWorkers`](super::PodWorkers) compares what is wanted with what [`list`](Self::list) returns, and
/// calls [`sync`](Self::sync) and [`kill`](Self::kill) for the differences. A runtime decides nothing: it
/// knows what it runs, and carries out each call for one pod.
///
/// # The protocol
///
/// * **Ownership.** A runtime marks each pod that it starts with an instance: a value that stays the same
///   over restarts of the agent, and that another agent on the machine does not have.
///   [`ActualPod::is_ours`] tells whether the mark is ours. Pods with another mark are listed too, and
///   are never changed or killed.
/// * **Order.** No `sync` or `kill` is called before the first `list` has returned. For one key (`namespace/name`)
///   they are never called at once, and `sync` is called for a UID only when no other UID of the key is left, and
///   the UID is left under no other key. Different keys are worked on at once, and `list` runs beside them.
/// * **Idempotence.** Each call may be a repetition of one that has succeeded, failed or was cut off.
///   To sync a pod that runs as wanted does nothing, and so does to kill one that is gone.
/// * **Failure.** After an error of `sync` the pod counts as started in part: it is synced again after a
///   delay, or killed if it is no longer wanted. After an error of `kill` it is killed again, with the same grace: what has
///   passed of it is for the runtime to subtract. The delay is
///   a second at first and five minutes at most; other pods do not wait for it.
/// * **Crashes.** The agent may die at any moment. What `sync` has begun must be in the next `list`, as
///   partial or as running, or it is never killed: make the mark durable before the first effect.
/// * **Containers that exit** are the runtime's to restart, by `spec.restartPolicy`. A pod that is no
///   longer listed, although it is wanted, is synced again.
/// * Each call ends some day, and nothing else happens to its pod until then. It occupies one of the workers, but for
///   a `kill` if [kills mostly wait](Self::kills_wait). A call must not block its thread.
/// * A panic ends [`PodWorkers::run`](super::PodWorkers::run) with that panic.
///
/// # Cancel safety
///
/// The futures of `list` and `changed` are dropped at any time. Those of `sync` and `kill` are dropped before
/// their end only when the shutdown deadline has passed, as if the agent died. If [kills mostly wait](Self::kills_wait),
/// that of `kill` is also dropped when the grace of its pod becomes shorter, or the pod is erased; then `kill` is called
/// again at once with what is left of the shorter grace, which counts from the first call.
pub trait PodRuntime: Send + Sync {
    /// Every pod that exists in the runtime, in whatever state, with its mark.
    ///
    /// It is called at the start, each minute, and after [`changed`](Self::changed). What was true at
    /// any moment of the call may be returned for pods that are synced or killed meanwhile: their
    /// results count instead.
    ///
    /// # Errors
    /// If what runs is not known. It is called again after a delay; until the first success
    /// nothing is started and nothing is killed.
    fn list(&self) -> impl Future<Output = Result<Vec<ActualPod>, RuntimeError>> + Send;

    /// Makes a pod run as wanted: starts what is missing, and restarts it if what runs has another
    /// hash or was started in part.
    ///
    /// # Errors
    /// If the pod does not run as wanted yet.
    fn sync(&self, pod: &SyncPod) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Stops a pod and removes all that `list` shows of it. `Ok` means that it is gone.
    ///
    /// # Errors
    /// If it is not gone yet.
    fn kill(&self, pod: &KillPod) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Ends when something may have changed in the runtime, so that it is listed soon. By default it
    /// never ends, and what happens in the runtime is noticed within a minute.
    ///
    /// It must be cancel-safe: what happens while it is not awaited ends the next call.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// What is observed of a pod of ours now, after a `sync`, while it is killed, and once after that: its `v1.PodStatus`.
    /// By default it is not known before the next `list`.
    fn status(&self, _uid: &Uid) -> Option<Arc<Value>> {
        None
    }

    /// How a pod of ours fails to run, although its `sync` has succeeded: a container of it cannot be started, or ends
    /// again and again. The runtime tries it again by itself. It is asked for after each `list`, so a change of it ends
    /// [`changed`](Self::changed). By default nothing is known of it.
    fn failing(&self, _uid: &Uid) -> Option<Failing> {
        None
    }

    /// Sends the output of a container of a pod of ours, and ends when there is no more. By default a runtime has
    /// none.
    ///
    /// The first chunk may be empty: it says that the container is found, before it has any output. A receiver
    /// that does not read makes only its own call wait, and the call ends soon after the receiver is dropped.
    ///
    /// # Errors
    /// If the output cannot be read, or not to its end. The [reason](RuntimeError::reason) [`NO_LOGS`] says that
    /// the runtime has no output of any container.
    ///
    /// # Cancel safety
    /// The future is dropped at any time: when the client has gone, or the agent stops.
    fn logs(
        &self,
        log: &LogRequest,
        output: mpsc::Sender<Vec<u8>>,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send {
        let _ = (log, output);
        ready(Err(RuntimeError::new(NO_LOGS, "the runtime keeps no output of containers")))
    }

    /// Runs beside the calls, from the start until `stop` is cancelled: what a runtime has to do by itself, such as
    /// starting a container again. By default that is nothing.
    ///
    /// # Cancel safety
    /// The future is dropped only when the shutdown deadline has passed.
    fn run(&self, stop: &CancellationToken) -> impl Future<Output = ()> + Send {
        let _ = stop;
        ready(())
    }

    /// Whether `sync` is called for each change of a wanted pod, also of its labels, annotations or status.
    /// By default it is called only if the pod does not run as wanted.
    fn follows_updates(&self) -> bool {
        false
    }

    /// Whether a pod that runs with another hash or for another source is killed before it is synced: for a runtime
    /// that changes no pod in place. Then no `sync` waits for the grace of what it replaces. By default `sync` does both.
    fn replaces_pods(&self) -> bool {
        false
    }

    /// Whether a `kill` does little but wait for the grace of its pod. Then it occupies no worker, and eight times as
    /// many pods are removed at once as are synced. By default each call occupies a worker, so that with one worker
    /// there is one call at a time.
    fn kills_wait(&self) -> bool {
        false
    }
}

/// A pod that exists in a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualPod {
    /// `namespace/name`.
    pub key: PodKey,
    /// The UID.
    pub uid: Uid,
    /// The [`hash`](super::runtime_hash) that it was synced with.
    pub hash: Arc<str>,
    /// The source that it was synced for.
    pub source: SourceName,
    /// Whether it has our instance's mark.
    pub is_ours: bool,
    /// Whether all of it was started. False if it may be there in part, for example after a crash during
    /// `sync`. A container that has exited does not make it false.
    pub is_complete: bool,
    /// When it was started, if the runtime knows. If not, it is when `sync` returned.
    pub started: Option<Timestamp>,
    /// Its `v1.PodStatus`, as far as the runtime observes it. Without one, a complete pod counts as running and
    /// ready.
    pub status: Option<Arc<Value>>,
}

/// A pod that is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncPod {
    /// The pod. It is never being deleted.
    pub pod: Arc<Pod>,
    /// Its source, to be returned by [`PodRuntime::list`].
    pub source: SourceName,
    /// Its [`hash`](super::runtime_hash), to be returned by [`PodRuntime::list`]. What runs with this
    /// hash need not be restarted.
    pub hash: Arc<str>,
    /// [`Add`](Op::Add) if nothing of the pod exists, [`Update`](Op::Update) if something does,
    /// [`Reconcile`](Op::Reconcile) if only its status has changed.
    pub op: Op,
}

/// A pod that is to be stopped and removed.
#[derive(Clone, Debug, PartialEq)]
pub struct KillPod {
    /// What runs, as it was listed or synced.
    pub actual: ActualPod,
    /// The most time that its containers have to end by themselves. None if only its own
    /// `spec.terminationGracePeriodSeconds` says so: it was removed and not deleted gracefully. The call does not have that
    /// spec: `sync` stores the grace with the mark.
    pub grace: Option<Duration>,
    /// The pod with its deletionTimestamp, if it is being deleted gracefully.
    pub pod: Option<Arc<Pod>>,
}

/// The [reason](RuntimeError::reason) of a runtime that has no output of containers.
pub const NO_LOGS: &str = "LogsNotSupported";

/// Which output of a container is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// `namespace/name` of the pod.
    pub key: PodKey,
    /// Its UID.
    pub uid: Uid,
    /// The `containerID` of the container in the observed status of its pod.
    pub container_id: Box<str>,
    /// Whether the output is followed until the container ends.
    pub follow: bool,
    /// How many of the last lines are read; all if absent.
    pub tail: Option<u64>,
    /// Only lines from then on.
    pub since: Option<Timestamp>,
    /// Whether each line begins with its time in RFC 3339 and a space.
    pub timestamps: bool,
}

/// Why a call of a runtime failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RuntimeError {
    /// One word for programs, as in the API's `reason` fields: `ErrImagePull`.
    pub reason: &'static str,
    /// What went wrong.
    pub source: Box<dyn Error + Send + Sync>,
}

impl RuntimeError {
    /// An error with this reason and cause.
    pub fn new(reason: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { reason, source: source.into() }
    }
}
