//! What all parts of the podman runtime share.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::Notify;

use crate::host::Host;

/// Where podman is, and whose pods are run.
#[derive(Clone, Debug)]
pub struct Config {
    /// podman's socket.
    pub socket: PathBuf,
    /// The directory for the files of termination messages, and for what probes have found.
    pub directory: PathBuf,
    /// What tells our pods from those of other agents, over restarts.
    pub instance: Arc<str>,
    /// When the machine was started, if it is known: what began before has ended with it.
    pub booted: Option<Timestamp>,
    /// How long podman has to answer a query; four times as long for a change.
    pub timeout: Duration,
    /// The machine.
    pub host: Host,
}

impl Config {
    /// podman at a socket with a time limit of 30 s.
    pub fn new(socket: PathBuf, directory: PathBuf, instance: Arc<str>) -> Self {
        let (booted, timeout) = (None, Duration::from_secs(30));
        Self { socket, directory, instance, booted, timeout, host: Host::default() }
    }
}

/// What all parts of the runtime share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: Config,
    /// Something may have changed in podman, or in what is known of a pod.
    pub(super) changed: Notify,
    /// The node's address.
    pub(super) address: Mutex<Option<Arc<str>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the workers, so what it leaves is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
