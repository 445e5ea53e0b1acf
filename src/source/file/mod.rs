//! Manifests in a directory, or one manifest file.
//!
//! The kubelet's `pkg/kubelet/config/file.go` and `file_linux.go`, with three
//! differences: what changes is told by looking at just that, nothing is told of
//! a file that is still being written, and what was good is kept until it is
//! good again or gone for certain.

mod disk;
mod entries;
mod links;
mod load;
mod manifests;
mod watch;
mod worker;

use std::{
    mem, panic,
    path::{self, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch as level,
    task,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub use self::manifests::{Contents, contents, read_manifest};
use self::{
    watch::{Inbox, News},
    worker::{Outcome, Worker},
};
use super::last_good::LastGood;
use crate::{clock, manifest::Preparation, mux::SourceChannel, pod::SourceName};

/// How often everything is scanned where no watch is to be had.
const POLL: Duration = Duration::from_secs(1);
/// The shortest time between scans that events call for: a flood of events may
/// overflow the queue as fast as it is emptied.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// What becomes of a manifest's pods when it is not valid any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInvalid {
    /// They stay until it is valid again or gone.
    #[default]
    Keep,
    /// They are removed.
    Remove,
}

/// The file source's settings.
#[derive(Clone, Debug)]
pub struct FileSettings {
    /// A directory of manifests, or one manifest. It may be missing.
    pub path: PathBuf,
    /// The time between two scans of everything.
    pub check_frequency: Duration,
    /// For how long a file must be gone before it is told, and for how long one
    /// that is perhaps being written must stay the same before it is read.
    pub quiet: Duration,
    /// For how long the pods of a directory that vanished are kept.
    pub missing_grace: Duration,
    /// What becomes of the pods of a manifest that is not valid any more.
    pub on_invalid: OnInvalid,
    /// For whom manifests are prepared.
    pub preparation: Preparation,
}

impl FileSettings {
    /// The kubelet's check frequency (20 s), a quiet time of 100 ms, a grace of a minute.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, preparation: Preparation) -> Self {
        Self {
            path: path.into(),
            check_frequency: Duration::from_secs(20),
            quiet: Duration::from_millis(100),
            missing_grace: Duration::from_mins(1),
            on_invalid: OnInvalid::Keep,
            preparation,
        }
    }
}

/// How changes are noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Noticing {
    /// Not yet: the first scan is under way.
    #[default]
    Starting,
    /// The kernel tells.
    Watching,
    /// Everything is scanned each second.
    Polling {
        /// Why the kernel cannot tell.
        why: Arc<str>,
    },
}

/// How the file source is doing, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStatus {
    /// How changes are noticed.
    pub noticing: Noticing,
    /// When everything was scanned last.
    pub last_scan: Option<Timestamp>,
    /// What is wrong with the path, if something is. What is wrong with single
    /// manifests is in the listing's rejections.
    pub error: Option<Arc<str>>,
    /// Since when something is wrong with it.
    pub failing_since: Option<Timestamp>,
    /// How many manifests there are.
    pub files: usize,
    /// For how many manifests it is waited: perhaps being written, or gone and perhaps coming back.
    pub waiting: usize,
    /// How many manifests or pods were not taken.
    pub rejected: usize,
    /// Why what is good now cannot be kept for the next start, if it cannot.
    pub unkept: Option<Arc<str>>,
    /// The last rescan that is complete, by its number.
    rescanned: u64,
}

/// What the source is asked for while it runs.
#[derive(Clone, Copy, Debug)]
struct Asked {
    rescans: u64,
    check_frequency: Duration,
    on_invalid: OnInvalid,
}

/// The file source from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileHandle {
    asked: level::Sender<Asked>,
    status: level::Receiver<FileStatus>,
}

impl FileHandle {
    /// Asks for a scan of everything now (SIGHUP).
    pub fn rescan(&self) {
        self.asked.send_modify(|asked| asked.rescans += 1);
    }

    /// Takes these settings over, and scans everything.
    pub fn retune(&self, check_frequency: Duration, on_invalid: OnInvalid) {
        self.asked.send_modify(|asked| {
            *asked = Asked { rescans: asked.rescans + 1, check_frequency, on_invalid };
        });
    }

    /// Asks for a scan of everything, and waits until what it found has been
    /// merged. Returns false if the source ended before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let asked = self.asked.borrow().rescans;
        self.status.clone().wait_for(|status| status.rescanned >= asked).await.is_ok()
    }

    /// How the source is doing. Closed when it has ended.
    #[must_use]
    pub fn status(&self) -> level::Receiver<FileStatus> {
        self.status.clone()
    }
}

/// The source of pods from files.
#[derive(Debug)]
pub struct FileSource {
    channel: SourceChannel,
    inbox: Arc<Inbox>,
    worker: Option<Box<Worker>>,
    good: LastGood,
    asked: level::Receiver<Asked>,
    status: level::Sender<FileStatus>,
}

impl FileSource {
    /// A source that reads the settings' path into a channel. It does nothing before it is run.
    #[must_use]
    pub fn new(settings: FileSettings, channel: SourceChannel) -> (Self, FileHandle) {
        let FileSettings { check_frequency, on_invalid, .. } = settings;
        let (ask, asked) = level::channel(Asked { rescans: 0, check_frequency, on_invalid });
        let (status, seen) = level::channel(FileStatus::default());
        let inbox = Arc::new(Inbox::default());
        // It fails for an empty path only, which then is looked at as it is, and is missing.
        let absolute = path::absolute(&settings.path).unwrap_or_else(|_| settings.path.clone());
        let good = LastGood::none(SourceName::File, settings.preparation.node.clone());
        let worker = Some(Box::new(Worker::new(settings, absolute, inbox.clone())));
        let source = Self { channel, inbox, worker, good, asked, status };
        (source, FileHandle { asked: ask, status: seen })
    }

    /// The same with what was good in an earlier run, which is pushed at once,
    /// and kept up to date from now on.
    ///
    /// What is missing, unreadable or broken at the start is treated as if it
    /// had become so just now.
    #[must_use]
    pub fn with_last_good(mut self, mut good: LastGood) -> Self {
        if let Some(worker) = &mut self.worker {
            let (listing, others) = worker.restore(good.restored());
            for origin in &others {
                good.forget(origin);
            }
            if let Some(listing) = listing {
                self.channel.publish(listing);
            }
        }
        self.good = good;
        self
    }

    /// Scans, watches and pushes until `stop` is cancelled.
    ///
    /// Files are touched on tokio's blocking threads only. If one of them hangs
    /// (a dead NFS server), `run` still ends when it is stopped; the runtime
    /// must then be shut down without waiting for that thread.
    ///
    /// # Panics
    /// If a step panics, with its panic.
    pub async fn run(mut self, stop: CancellationToken) {
        self.work(stop).await;
        let Self { channel, good, .. } = self;
        // Nobody waits for what is written last.
        drop(channel);
        good.finish().await;
    }

    async fn work(&mut self, stop: CancellationToken) {
        let mut schedule = Schedule::new(Instant::now());
        let mut answering = None;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.inbox.wait() => {}
                Ok(()) = self.asked.changed() => {}
                () = self.good.write() => {
                    self.tell_good();
                    continue;
                }
                () = time::sleep_until(schedule.next()) => {}
            }
            let began = Instant::now();
            let Asked { rescans: asked, check_frequency, on_invalid } = *self.asked.borrow_and_update();
            let scan =
                schedule.next_scan <= began || asked > answering.unwrap_or(self.status.borrow().rescanned);
            let news = self.inbox.take();
            if let Some(worker) = &mut self.worker {
                worker.retune(check_frequency, on_invalid);
            }
            if !scan && news.is_empty() && schedule.next() > began {
                continue;
            }
            let Some(outcome) = self.step(news, scan, &stop).await else { return };
            schedule.update(&outcome, began, check_frequency);
            if scan {
                answering = Some(asked);
            }
            let settled = outcome.settled;
            self.tell(outcome).await;
            if let Some(asked) = answering.take_if(|_| settled) {
                if stop.run_until_cancelled(self.channel.merged()).await.is_none() {
                    return;
                }
                self.status.send_if_modified(|status| mem::replace(&mut status.rescanned, asked) != asked);
            }
        }
    }

    /// One step, off the reactor. `None` if it was stopped.
    async fn step(&mut self, news: News, scan: bool, stop: &CancellationToken) -> Option<Outcome> {
        let mut worker = self.worker.take()?;
        let token = stop.clone();
        let work = task::spawn_blocking(move || {
            let outcome = worker.step(news, scan, &token);
            (worker, outcome)
        });
        match stop.run_until_cancelled(work).await? {
            Ok((worker, outcome)) => {
                self.worker = Some(worker);
                Some(outcome)
            }
            Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
            // The runtime is being shut down.
            Err(_) => None,
        }
    }

    fn tell_good(&self) {
        let unkept = self.good.trouble();
        self.status.send_if_modified(|status| mem::replace(&mut status.unkept, unkept.clone()) != unkept);
    }

    async fn tell(&mut self, outcome: Outcome) {
        for (origin, pods) in outcome.good {
            self.good.put(&origin, pods);
        }
        // It is on its way to the disk before anybody hears of it.
        self.good.begin().await;
        if let Some(listing) = outcome.listing {
            self.channel.publish(listing);
        }
        let since = || self.status.borrow().failing_since.unwrap_or_else(clock::now);
        let status = FileStatus {
            failing_since: outcome.trouble.as_ref().map(|_| since()),
            noticing: outcome.polling.map_or(Noticing::Watching, |why| Noticing::Polling { why }),
            last_scan: outcome.scanned.or(self.status.borrow().last_scan),
            error: outcome.trouble,
            files: outcome.files,
            waiting: outcome.waiting,
            rejected: outcome.rejected,
            unkept: self.good.trouble(),
            rescanned: self.status.borrow().rescanned,
        };
        self.status.send_if_modified(|before| {
            *before != status && {
                *before = status;
                true
            }
        });
    }
}

/// When to look without being told.
#[derive(Debug)]
struct Schedule {
    last_scan: Instant,
    next_scan: Instant,
    next_due: Option<Instant>,
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self { last_scan: now, next_scan: now, next_due: None }
    }

    fn next(&self) -> Instant {
        self.next_due.map_or(self.next_scan, |due| due.min(self.next_scan))
    }

    fn update(&mut self, outcome: &Outcome, began: Instant, check_frequency: Duration) {
        self.next_due = outcome.next_due;
        if outcome.scanned.is_some() {
            self.last_scan = began;
            self.next_scan = Instant::now() + check_frequency;
        }
        if outcome.polling.is_some() {
            self.next_scan = self.next_scan.min(Instant::now() + POLL);
        }
        if outcome.wants_scan {
            self.next_scan = self.next_scan.min(self.last_scan + SCAN_INTERVAL);
        }
    }
}
