//! What all parts of the podman runtime share.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::Notify, time::Instant};

use super::files;
use crate::host::Host;

/// Where podman is, and whose pods are run.
#[derive(Clone, Debug)]
pub struct Config {
    /// podman's socket.
    pub socket: PathBuf,
    /// The directory for the files of termination messages, and for what is kept of containers for the next agent.
    pub directory: PathBuf,
    /// What tells our pods from those of other agents, over restarts.
    pub instance: Arc<str>,
    /// The boot of the machine; empty if it is not known.
    pub boot: String,
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
        let (boot, booted, timeout) = (String::new(), None, Duration::from_secs(30));
        Self { socket, directory, instance, boot, booted, timeout, host: Host::default() }
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
    /// When the graces of the pods end that are being stopped, by their ids in podman.
    pub(super) stops: Mutex<HashMap<String, Instant>>,
    /// What this agent has kept of the ends of containers, by the files of these ends.
    pub(super) ends: Mutex<HashMap<PathBuf, String>>,
}

impl Context {
    /// Keeps what podman does not know of the end of a container, also for the next agent; none removes it.
    pub(super) async fn keep_end(&self, uid: &str, id: &str, end: Option<String>) {
        let path = files::end_file(&self.config.directory, uid, id);
        match &end {
            Some(end) => lock(&self.ends).insert(path.clone(), end.clone()),
            None => lock(&self.ends).remove(&path),
        };
        let kept = self.config.host.threads.blocking(move || match end {
            Some(end) => fs::write(path, end),
            None => fs::remove_file(path),
        });
        // If the directory is full, the next agent does not know it.
        let _ = kept.await;
    }

    /// What was kept of the end of a container; empty if there is nothing.
    pub(super) async fn kept_end(&self, uid: &str, id: &str) -> String {
        let path = files::end_file(&self.config.directory, uid, id);
        if let Some(end) = lock(&self.ends).get(&path) {
            return end.clone();
        }
        let kept = self.config.host.threads.blocking(move || fs::read_to_string(path).unwrap_or_default());
        kept.await.unwrap_or_default()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the workers, so what it leaves is not used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
