//! The file source: manifests in a directory, or one manifest file.
//!
//! The kubelet's `pkg/kubelet/config/file.go` and `file_linux.go`, with three differences: a
//! change is handled by checking only the changed file, a file that is still being written is
//! not read, and the last-known-good pods of a file are kept until it is valid again or
//! removed.

mod config;
mod entries;
mod inspect;
mod load;
mod manifests;
mod names;
mod watch;
mod worker;

use std::{mem, path, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch as level,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    config::{FileSettings, OnInvalid},
    manifests::{Contents, contents, read_manifest},
};
use self::{
    watch::{ChangeQueue, Changes},
    worker::{Outcome, Worker},
};
use super::last_good::LastGood;
use crate::{host::Host, mux::SourceChannel, pod::SourceName};

/// The time between scans where nothing can be watched.
const POLL: Duration = Duration::from_secs(1);
/// The shortest time between scans that events ask for: a flood of events may overflow the
/// queue as fast as it is emptied.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

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

/// What the handle asks for.
#[derive(Clone, Copy, Debug)]
struct Requests {
    rescans: u64,
    check_frequency: Duration,
    on_invalid: OnInvalid,
}

/// Controls a [`FileSource`] that runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileHandle {
    requests: level::Sender<Requests>,
    status: level::Receiver<FileStatus>,
}

impl FileHandle {
    /// Starts a scan now (SIGHUP).
    pub fn rescan(&self) {
        self.requests.send_modify(|requests| requests.rescans += 1);
    }

    /// Applies these settings and starts a scan.
    pub fn retune(&self, check_frequency: Duration, on_invalid: OnInvalid) {
        self.requests.send_modify(|requests| {
            *requests = Requests { rescans: requests.rescans + 1, check_frequency, on_invalid };
        });
    }

    /// Starts a scan and waits until its result has been merged. Returns false if the source
    /// ended before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let rescans = self.requests.borrow().rescans;
        self.status.clone().wait_for(|status| status.rescanned >= rescans).await.is_ok()
    }

    /// The status of the source. Closed when the source has ended.
    #[must_use]
    pub fn status(&self) -> level::Receiver<FileStatus> {
        self.status.clone()
    }
}

/// The source of pods from files.
#[derive(Debug)]
pub struct FileSource {
    host: Host,
    channel: SourceChannel,
    queue: Arc<ChangeQueue>,
    /// `None` while a step runs.
    worker: Option<Box<Worker>>,
    last_good: LastGood,
    requests: level::Receiver<Requests>,
    status: level::Sender<FileStatus>,
}

impl FileSource {
    /// A source that publishes the manifests at the settings' path into a channel. It does
    /// nothing before it runs.
    #[must_use]
    pub fn new(settings: FileSettings, channel: SourceChannel) -> (Self, FileHandle) {
        let FileSettings { check_frequency, on_invalid, .. } = settings;
        let (request, requests) = level::channel(Requests { rescans: 0, check_frequency, on_invalid });
        let (status, published) = level::channel(FileStatus::default());
        let queue = Arc::new(ChangeQueue::default());
        // It fails for an empty path only, which is then missing.
        let absolute = path::absolute(&settings.path).unwrap_or_else(|_| settings.path.clone());
        let last_good = LastGood::none(SourceName::File, settings.preparation.node.clone());
        let worker = Some(Box::new(Worker::new(settings, absolute, queue.clone())));
        let host = Host::default();
        let source = Self { host, channel, queue, worker, last_good, requests, status };
        (source, FileHandle { requests: request, status: published })
    }

    /// Runs on this host.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        if let Some(worker) = &mut self.worker {
            worker.set_host(host.clone());
        }
        self.host = host;
        self
    }

    /// Publishes the last-known-good pods of an earlier run at once, and saves them from now on.
    ///
    /// A manifest that is missing, unreadable or invalid at the start is treated as if it had
    /// become so just now.
    #[must_use]
    pub fn with_last_good(mut self, last_good: LastGood) -> Self {
        let mut last_good = last_good.on(self.host.clone());
        if let Some(worker) = &mut self.worker {
            let (listing, others) = worker.restore(last_good.restored());
            for origin in &others {
                last_good.forget(origin);
            }
            if let Some(listing) = listing {
                self.channel.publish(listing);
            }
        }
        self.last_good = last_good;
        self
    }

    /// Scans, watches and publishes until `stop` is cancelled.
    ///
    /// Files are accessed on blocking threads only. If one of these threads hangs (a dead NFS
    /// server), `run` still ends when it is stopped. The runtime must then be shut down
    /// without waiting for that thread.
    ///
    /// # Panics
    /// If a step panics, with its panic.
    pub async fn run(mut self, stop: CancellationToken) {
        self.work(stop).await;
        let Self { channel, last_good, .. } = self;
        // The mux must not wait for the last write.
        drop(channel);
        last_good.finish().await;
    }

    async fn work(&mut self, stop: CancellationToken) {
        let mut schedule = Schedule::new(Instant::now());
        let mut answering = None;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.queue.wait() => {}
                Ok(()) = self.requests.changed() => {}
                () = self.last_good.write() => {
                    self.publish_unkept();
                    continue;
                }
                () = time::sleep_until(schedule.next()) => {}
            }
            let began = Instant::now();
            let Requests { rescans, check_frequency, on_invalid } = *self.requests.borrow_and_update();
            let scan =
                schedule.next_scan <= began || rescans > answering.unwrap_or(self.status.borrow().rescanned);
            let changes = self.queue.take();
            if let Some(worker) = &mut self.worker {
                worker.retune(check_frequency, on_invalid);
            }
            if !scan && changes.is_empty() && schedule.next() > began {
                continue;
            }
            let Some(outcome) = self.step(changes, scan, &stop).await else { return };
            schedule.update(&outcome, began, check_frequency);
            if scan {
                answering = Some(rescans);
            }
            let stable = outcome.stable;
            self.publish(outcome).await;
            if let Some(rescans) = answering.take_if(|_| stable) {
                if stop.run_until_cancelled(self.channel.merged()).await.is_none() {
                    return;
                }
                self.status
                    .send_if_modified(|status| mem::replace(&mut status.rescanned, rescans) != rescans);
            }
        }
    }

    /// One step, on a blocking thread. `None` if it was stopped.
    async fn step(&mut self, changes: Changes, scan: bool, stop: &CancellationToken) -> Option<Outcome> {
        let mut worker = self.worker.take()?;
        let token = stop.clone();
        let work = self.host.threads.blocking(move || {
            let outcome = worker.step(&changes, scan, &token);
            (worker, outcome)
        });
        match stop.run_until_cancelled(work).await? {
            Ok((worker, outcome)) => {
                self.worker = Some(worker);
                Some(outcome)
            }
            Err(cancelled) => {
                cancelled.resume_panic();
                None
            }
        }
    }

    fn publish_unkept(&self) {
        let unkept = self.last_good.error();
        self.status.send_if_modified(|status| mem::replace(&mut status.unkept, unkept.clone()) != unkept);
    }

    async fn publish(&mut self, outcome: Outcome) {
        for (origin, pods) in outcome.changed {
            self.last_good.put(&origin, pods);
        }
        // Begin to save before consumers act on the listing.
        self.last_good.begin().await;
        if let Some(listing) = outcome.listing {
            self.channel.publish(listing);
        }
        let since = || self.status.borrow().failing_since.unwrap_or_else(|| self.host.clock.now());
        let status = FileStatus {
            failing_since: outcome.error.as_ref().map(|_| since()),
            noticing: outcome.polling.map_or(Noticing::Watching, |why| Noticing::Polling { why }),
            last_scan: outcome.scanned.or(self.status.borrow().last_scan),
            error: outcome.error,
            files: outcome.files,
            waiting: outcome.waiting,
            rejected: outcome.rejected,
            unkept: self.last_good.error(),
            rescanned: self.status.borrow().rescanned,
        };
        self.status.send_if_modified(|before| mem::replace(before, status.clone()) != status);
    }
}

/// When to act without an event.
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
