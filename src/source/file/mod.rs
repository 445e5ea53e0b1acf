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

use std::{fmt::Write as _, mem, path, sync::Arc, time::Duration};

use tokio::{
    sync::watch as level,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    config::{Config, OnInvalid, Timings},
    manifests::{Contents, contents, read_manifest},
};
use self::{
    watch::{ChangeQueue, Changes},
    worker::{Outcome, Worker},
};
use super::{last_good::LastGood, status::SourceStatus};
use crate::{host::Host, manifest::Preparation, mux::SourceChannel, pod::SourceName};

/// The time between scans where nothing can be watched.
const POLL: Duration = Duration::from_secs(1);
/// The shortest time between scans that events ask for: a flood of events may overflow the
/// queue as fast as it is emptied.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// What the handle asks for.
#[derive(Clone, Debug)]
struct Requests {
    rescans: u64,
    config: Config,
}

/// Controls a [`FileSource`] that runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FileHandle {
    requests: level::Sender<Requests>,
    /// The number of requested scans that are complete.
    rescanned: level::Receiver<u64>,
    status: level::Receiver<SourceStatus>,
}

impl FileHandle {
    /// Starts a scan now (SIGHUP).
    pub fn rescan(&self) {
        self.requests.send_modify(|requests| requests.rescans += 1);
    }

    /// Applies these settings and starts a scan. The path needs a restart: it is ignored.
    pub fn retune(&self, config: Config) {
        self.requests.send_modify(|requests| *requests = Requests { rescans: requests.rescans + 1, config });
    }

    /// Starts a scan and waits until its result has been merged. Returns false if the source
    /// ended before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let rescans = self.requests.borrow().rescans;
        self.rescanned.clone().wait_for(|rescanned| *rescanned >= rescans).await.is_ok()
    }

    /// The status of the source. Closed when the source has ended.
    pub fn status(&self) -> level::Receiver<SourceStatus> {
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
    rescanned: level::Sender<u64>,
    status: level::Sender<SourceStatus>,
    counts: Counts,
    /// Why nothing can be watched.
    polling: Option<Arc<str>>,
}

impl FileSource {
    /// A source that publishes the manifests at the path of the settings into a channel. It does
    /// nothing before it runs.
    pub fn new(config: Config, preparation: Preparation, channel: SourceChannel) -> (Self, FileHandle) {
        let (request, requests) = level::channel(Requests { rescans: 0, config: config.clone() });
        let (status, published) = level::channel(SourceStatus {
            target: config.path.display().to_string(),
            detail: "the first scan is in progress".to_owned(),
            ..SourceStatus::default()
        });
        let (rescanned, complete) = level::channel(0);
        let queue = Arc::new(ChangeQueue::default());
        // It fails for an empty path only, which is then missing.
        let absolute = path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
        let last_good = LastGood::none(SourceName::File, preparation.node.clone());
        let worker = Some(Box::new(Worker::new(config, preparation, absolute, queue.clone())));
        let host = Host::default();
        let source = Self {
            host,
            channel,
            queue,
            worker,
            last_good,
            requests,
            rescanned,
            status,
            counts: Counts::default(),
            polling: None,
        };
        (source, FileHandle { requests: request, rescanned: complete, status: published })
    }

    /// Changes the delays. Only before [`with_last_good`](Self::with_last_good).
    #[must_use]
    pub fn with_timings(mut self, timings: Timings) -> Self {
        if let Some(worker) = &mut self.worker {
            worker.set_timings(timings);
        }
        self
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
                    self.publish_detail();
                    continue;
                }
                () = time::sleep_until(schedule.next()) => {}
            }
            let began = Instant::now();
            let Requests { rescans, config } = self.requests.borrow_and_update().clone();
            let check_frequency = config.check_frequency;
            let scan = schedule.next_scan <= began || rescans > answering.unwrap_or(*self.rescanned.borrow());
            let changes = self.queue.take();
            if let Some(worker) = &mut self.worker {
                worker.retune(config);
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
                self.rescanned.send_if_modified(|rescanned| mem::replace(rescanned, rescans) != rescans);
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

    async fn publish(&mut self, outcome: Outcome) {
        for (origin, pods) in outcome.changed {
            self.last_good.put(&origin, &pods);
        }
        // Begin to save before consumers act on the listing.
        self.last_good.begin().await;
        if let Some(listing) = outcome.listing {
            self.channel.publish(listing);
        }
        self.counts = Counts { files: outcome.files, rejected: outcome.rejected, waiting: outcome.waiting };
        self.polling = outcome.polling;
        let before = self.status.borrow().clone();
        let status = SourceStatus {
            detail: self.detail(),
            last_success: outcome.scanned.filter(|_| outcome.failing.is_none()).or(before.last_success),
            failing: outcome.failing,
            ..before
        };
        self.status.send_if_modified(|before| mem::replace(before, status.clone()) != status);
    }

    fn publish_detail(&self) {
        let detail = self.detail();
        self.status.send_if_modified(|status| mem::replace(&mut status.detail, detail.clone()) != detail);
    }

    /// What the source is doing, for people.
    fn detail(&self) -> String {
        let Counts { files, rejected, waiting } = self.counts;
        let polling = self.polling.as_ref();
        let mut detail = polling.map_or("watching".to_owned(), |why| format!("scanning every second: {why}"));
        // Writing to memory cannot fail.
        let _ = write!(detail, "; {files} manifests");
        for (count, what) in [(rejected, "rejected"), (waiting, "pending")] {
            if count > 0 {
                let _ = write!(detail, ", {count} {what}");
            }
        }
        if let Some(error) = self.last_good.error() {
            let _ = write!(detail, "; last-known-good pods cannot be saved: {error}");
        }
        detail
    }
}

/// The numbers in the status.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Manifests.
    files: usize,
    /// Rejected manifests and pods.
    rejected: usize,
    /// Manifests that are unstable or missing.
    waiting: usize,
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
