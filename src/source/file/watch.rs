//! The kernel's word that something changed: watches on directories, and the inbox in which events wait.

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
use tokio::sync::Notify as Wake;

use super::{
    disk::{self, NameKind},
    entries::Identity,
};

/// How many paths with news may wait. Beyond it a scan of everything costs less
/// than remembering more; the kernel's own queue has the same length by default.
const MAX_WAITING: usize = 16_384;

/// What happened at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Closed after writing, or moved here.
    Complete,
    Created,
    Touched,
    /// Deleted, moved away or unmounted.
    Gone,
}

/// The news since they were last taken.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The last thing that happened at each path.
    pub(super) paths: HashMap<PathBuf, What>,
    /// Whether something was lost, so that everything must be looked at.
    pub(super) lost: bool,
}

impl News {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.lost
    }
}

/// The paths that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    /// In this directory every manifest's name matters.
    pub(super) directory: Option<PathBuf>,
    /// These matter wherever they are.
    pub(super) paths: HashSet<PathBuf>,
}

impl Interest {
    fn covers(&self, path: &Path) -> bool {
        let listed = || path.parent().is_some() && path.parent() == self.directory.as_deref();
        let manifest = || path.file_name().is_some_and(|name| NameKind::of(name) == NameKind::Manifest);
        self.paths.contains(path) || (listed() && manifest())
    }
}

/// Where events wait for the source. The watcher's thread puts them in and never waits itself.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct Waiting {
    interest: Interest,
    news: News,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Every edit is a single step, so a panic elsewhere has spoilt nothing.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news. Cancel-safe.
    pub(super) async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Takes the news.
    pub(super) fn take(&self) -> News {
        mem::take(&mut self.lock().news)
    }

    fn put(&self, event: notify::Result<Event>) {
        let mut waiting = self.lock();
        let Waiting { interest, news } = &mut *waiting;
        match event {
            Ok(event) if event.flag() == Some(Flag::Rescan) => news.lost = true,
            Ok(event) => {
                let (Some(what), [path]) = (what(event.kind), event.paths.as_slice()) else { return };
                if !interest.covers(path) {
                    return;
                }
                if news.paths.len() < MAX_WAITING || news.paths.contains_key(path) {
                    // Attributes change while a file is written, and say nothing about that.
                    if what == What::Touched {
                        news.paths.entry(path.clone()).or_insert(what);
                    } else {
                        news.paths.insert(path.clone(), what);
                    }
                } else {
                    news.lost = true;
                }
            }
            Err(error) => {
                tracing::debug!(source = "file", %error, "the watch failed in part; everything is looked at");
                news.lost = true;
            }
        }
        drop(waiting);
        self.wake.notify_one();
    }
}

/// What an event says. A rename's second report, which names both ends, says nothing new.
fn what(kind: EventKind) -> Option<What> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(What::Complete),
        EventKind::Create(_) => Some(What::Created),
        EventKind::Modify(ModifyKind::Metadata(_)) => Some(What::Touched),
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Some(What::Gone),
        _ => None,
    }
}

/// The watches on directories.
#[derive(Debug)]
pub(super) struct Watch {
    inbox: Arc<Inbox>,
    watcher: Option<RecommendedWatcher>,
    armed: BTreeMap<PathBuf, Identity>,
}

impl Watch {
    pub(super) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox, watcher: None, armed: BTreeMap::new() }
    }

    /// Says which paths matter from now on.
    pub(super) fn mind(&self, interest: Interest) {
        self.inbox.lock().interest = interest;
    }

    /// Says that these matter as well.
    pub(super) fn mind_also(&self, paths: Vec<PathBuf>) {
        self.inbox.lock().interest.paths.extend(paths);
    }

    /// Watches these directories and no others; those that are not there are left out.
    ///
    /// # Errors
    /// Why there can be no watch, for reading.
    pub(super) fn arm(&mut self, wanted: &BTreeSet<PathBuf>) -> Result<(), String> {
        let outcome = self.try_arm(wanted);
        if outcome.is_err() {
            // A watcher that may be half set up is worth nothing.
            self.watcher = None;
            self.armed.clear();
        }
        outcome
    }

    fn try_arm(&mut self, wanted: &BTreeSet<PathBuf>) -> Result<(), String> {
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => none.insert(open(self.inbox.clone())?),
        };
        let present: BTreeMap<PathBuf, Identity> =
            wanted.iter().filter_map(|path| Some((path.clone(), disk::directory(path)?))).collect();
        for (path, identity) in mem::take(&mut self.armed) {
            if present.get(&path) != Some(&identity) {
                // The kernel has often dropped it before us.
                drop(watcher.unwatch(&path));
            }
        }
        for (path, identity) in present {
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.armed.insert(path, identity)),
                Err(error) if is_bearable(&error) => {
                    tracing::debug!(source = "file", path = %path.display(), %error, "not watched");
                }
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(())
    }

    /// Says that what is at a path may be another directory than before, even
    /// if it looks the same.
    pub(super) fn forget(&mut self, path: &Path) {
        if let (Some(watcher), Some(_)) = (&mut self.watcher, self.armed.remove(path)) {
            // The kernel may have dropped it before us.
            drop(watcher.unwatch(path));
        }
    }

    /// Whether there is a directory that is not watched.
    pub(super) fn misses(&self, path: &Path) -> bool {
        !self.armed.contains_key(path) && disk::directory(path).is_some()
    }

    /// How many directories are watched.
    pub(super) fn len(&self) -> usize {
        self.armed.len()
    }
}

/// A watcher that says nothing about opening, reading and writing: our own
/// reads would come back as events, and a file that is being written is none of
/// our business before it is closed.
fn open(inbox: Arc<Inbox>) -> Result<RecommendedWatcher, String> {
    let kinds = EventKindMask::CREATE
        | EventKindMask::REMOVE
        | EventKindMask::MODIFY_META
        | EventKindMask::MODIFY_NAME
        | EventKindMask::ACCESS_CLOSE;
    let config = Config::default().with_event_kinds(kinds);
    RecommendedWatcher::new(move |event| inbox.put(event), config).map_err(|error| explain(&error))
}

/// Whether a directory can do without its watch: it has just vanished, or may not be read.
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
