//! Watching directories with inotify, and the queue of changes.
//!
//! This is the one part of the source that does not go through [`Disk`]: the kernel reports
//! on its own file systems only. Where it cannot, the source scans each second.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use notify::{
    Config, ErrorKind, Event, EventKind, EventKindMask, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, Flag, ModifyKind, RenameMode},
};
use tokio::sync::Notify;
use tracing::dispatcher;

use super::{
    entries::Identity,
    inspect::{self, NameKind, VOLUME_LINK},
};
use crate::host::Disk;

/// The most paths in the queue. Beyond it a scan costs less than more memory; the kernel's
/// own queue has the same length by default.
const MAX_QUEUED: usize = 16_384;

/// What happened at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// It was closed after writing, or moved here.
    Complete,
    Created,
    /// Its attributes changed.
    Touched,
    /// It was deleted, moved away or unmounted.
    Gone,
}

/// The changes since the queue was last emptied.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The last change at each path.
    pub(super) paths: HashMap<PathBuf, Change>,
    /// Whether changes were lost, so that a scan is needed.
    pub(super) lost: bool,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.lost
    }
}

/// The paths whose changes are queued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    /// Every manifest in this directory, and its [`VOLUME_LINK`],
    pub(super) directory: Option<PathBuf>,
    /// and these paths.
    pub(super) paths: HashSet<PathBuf>,
}

impl Interest {
    fn covers(&self, path: &Path) -> bool {
        let listed = || path.parent().is_some() && path.parent() == self.directory.as_deref();
        let manifest =
            || path.file_name().is_some_and(|name| NameKind::is_manifest(name) || name == VOLUME_LINK);
        self.paths.contains(path) || (listed() && manifest())
    }
}

/// The queue between the watcher's thread and the source.
#[derive(Debug, Default)]
pub(super) struct ChangeQueue {
    queued: Mutex<Queued>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct Queued {
    interest: Interest,
    changes: Changes,
}

/// More changes than these are left to the source: they would keep the watcher's thread from reading events.
const MAX_DIRECT: usize = 16;

impl ChangeQueue {
    fn lock(&self) -> MutexGuard<'_, Queued> {
        // Every edit is a single step, so a panic elsewhere left the queue consistent.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for changes. Cancel-safe.
    pub(super) async fn wait(&self) {
        self.ready.notified().await;
    }

    /// Wakes who waits.
    pub(super) fn notify(&self) {
        self.ready.notify_one();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().changes.is_empty()
    }

    /// Empties the queue.
    pub(super) fn take(&self) -> Changes {
        mem::take(&mut self.lock().changes)
    }

    /// Empties the queue if it has a few changes of manifests in the directory and nothing else.
    pub(super) fn take_direct(&self) -> Option<Changes> {
        let Queued { interest, changes } = &mut *self.lock();
        let is_direct = |path: &PathBuf| !interest.paths.contains(path) && !path.ends_with(VOLUME_LINK);
        let are_few = (1..=MAX_DIRECT).contains(&changes.paths.len());
        (are_few && !changes.lost && changes.paths.keys().all(is_direct)).then(|| mem::take(changes))
    }

    /// Returns whether a change is queued.
    fn put(&self, event: notify::Result<Event>) -> bool {
        let mut queued = self.lock();
        let Queued { interest, changes } = &mut *queued;
        match event {
            Ok(event) if event.flag() == Some(Flag::Rescan) => changes.lost = true,
            Ok(event) => {
                let (Some(change), [path]) = (change(event.kind), event.paths.as_slice()) else {
                    return false;
                };
                if !interest.covers(path) {
                    return false;
                }
                if changes.paths.len() >= MAX_QUEUED && !changes.paths.contains_key(path) {
                    changes.lost = true;
                } else if change == Change::Touched {
                    // Attributes also change while a file is written.
                    changes.paths.entry(path.clone()).or_insert(change);
                } else {
                    changes.paths.insert(path.clone(), change);
                }
            }
            Err(error) => {
                tracing::debug!(source = "file", %error, "watch failed in part, scanning");
                changes.lost = true;
            }
        }
        true
    }
}

/// What an event reports. The second event of a rename, which names both paths, is redundant.
fn change(kind: EventKind) -> Option<Change> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(Change::Complete),
        EventKind::Create(_) => Some(Change::Created),
        EventKind::Modify(ModifyKind::Metadata(_)) => Some(Change::Touched),
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Some(Change::Gone),
        _ => None,
    }
}

/// Called by the watcher's thread after each change.
pub(super) type OnChange = Arc<dyn Fn() + Send + Sync>;

/// The watches on directories.
pub(super) struct Watch {
    queue: Arc<ChangeQueue>,
    on_change: OnChange,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Identity>,
}

impl Watch {
    pub(super) fn new(queue: Arc<ChangeQueue>, on_change: OnChange) -> Self {
        Self { queue, on_change, watcher: None, watched: BTreeMap::new() }
    }

    /// Replaces the paths whose changes are queued.
    pub(super) fn set_interest(&self, interest: Interest) {
        self.queue.lock().interest = interest;
    }

    /// Watches these directories and no others. Missing ones are left out.
    ///
    /// # Errors
    /// Why watching is impossible, for people.
    pub(super) fn set(&mut self, disk: &Disk, wanted: &BTreeSet<PathBuf>) -> Result<(), String> {
        let outcome = self.try_set(disk, wanted);
        if outcome.is_err() {
            // The watcher may be half set up.
            self.watcher = None;
            self.watched.clear();
        }
        outcome
    }

    fn try_set(&mut self, disk: &Disk, wanted: &BTreeSet<PathBuf>) -> Result<(), String> {
        if !disk.has_watches() {
            return Err("the file system has no watches".to_owned());
        }
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => none.insert(open(self.queue.clone(), self.on_change.clone())?),
        };
        let directory = |path: &PathBuf| Some((path.clone(), inspect::directory(disk, path)?));
        let present: BTreeMap<PathBuf, Identity> = wanted.iter().filter_map(directory).collect();
        for (path, identity) in mem::take(&mut self.watched) {
            if present.get(&path) != Some(&identity) {
                // The kernel may have dropped the watch already.
                drop(watcher.unwatch(&path));
            }
        }
        for (path, identity) in present {
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.watched.insert(path, identity)),
                Err(error) if is_bearable(&error) => {
                    tracing::debug!(source = "file", path = %path.display(), %error, "directory not watched");
                }
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(())
    }

    /// Drops the watch on a path, which may be another directory than before even if it
    /// looks the same. Returns whether it was watched: then the watches below it may be lost, too.
    pub(super) fn forget(&mut self, path: &Path) -> bool {
        let (Some(watcher), Some(_)) = (&mut self.watcher, self.watched.remove(path)) else { return false };
        // The kernel may have dropped the watch already.
        drop(watcher.unwatch(path));
        true
    }
}

/// A watcher that does not report opening, reading and writing: the source's own reads would
/// come back as events, and a file that is written matters when it is closed.
fn open(queue: Arc<ChangeQueue>, on_change: OnChange) -> Result<RecommendedWatcher, String> {
    let kinds = EventKindMask::CREATE
        | EventKindMask::REMOVE
        | EventKindMask::MODIFY_META
        | EventKindMask::MODIFY_NAME
        | EventKindMask::ACCESS_CLOSE;
    let config = Config::default().with_event_kinds(kinds);
    // What the watcher's thread logs goes where the log of this thread goes.
    let log = dispatcher::get_default(Clone::clone);
    let handle = move |event| {
        dispatcher::with_default(&log, || {
            if queue.put(event) {
                on_change();
            }
        });
    };
    RecommendedWatcher::new(handle, config).map_err(|error| explain(&error))
}

/// Whether a directory can go without its watch: it has vanished, or may not be read.
fn is_bearable(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => matches!(
            error.kind(),
            std::io::ErrorKind::NotFound
                | std::io::ErrorKind::NotADirectory
                | std::io::ErrorKind::PermissionDenied
        ),
        _ => false,
    }
}

fn explain(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => {
            "the limit of inotify watches is reached; raise fs.inotify.max_user_watches".to_owned()
        }
        ErrorKind::Io(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "the limit of inotify instances is reached; raise fs.inotify.max_user_instances".to_owned()
        }
        ErrorKind::Io(error) => format!("inotify: {error}"),
        _ => format!("inotify: {error}"),
    }
}
