//! Manifests in a directory, or one manifest file.
//!
//! The kubelet's `pkg/kubelet/config/file.go` and `file_linux.go`, with three
//! differences: what changes is told by looking at just that, nothing is told of
//! a file that is still being written, and what was good is kept until it is
//! good again or gone for certain.

mod config;
mod disk;
mod entries;
mod links;
mod load;
mod manifests;
mod watch;
mod worker;

use std::{fmt::Write as _, mem, panic, path, sync::Arc, time::Duration};

use tokio::{
    sync::watch as level,
    task,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    config::{Config, OnInvalid, Timings},
    manifests::{Contents, contents, read_manifest},
};
use self::{
    watch::{Inbox, News},
    worker::{Outcome, Worker},
};
use super::{
    last_good::LastGood,
    status::{SourceFailing, SourceStatus},
};
use crate::{clock, manifest::Preparation, mux::SourceChannel, pod::SourceName};

/// How often everything is scanned where no watch is to be had.
const POLL: Duration = Duration::from_secs(1);
/// The shortest time between scans that events call for: a flood of events may
/// overflow the queue as fast as it is emptied.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

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
    /// The last of the requested scans that is complete.
    rescanned: level::Receiver<u64>,
    status: level::Receiver<SourceStatus>,
}

impl FileHandle {
    /// Asks for a scan of everything now (SIGHUP).
    pub fn rescan(&self) {
        self.asked.send_modify(|asked| asked.rescans += 1);
    }

    /// Applies these settings, and scans everything. The path needs a restart: it is ignored.
    pub fn retune(&self, Config { check_frequency, on_invalid, .. }: Config) {
        self.asked.send_modify(|asked| {
            *asked = Asked { rescans: asked.rescans + 1, check_frequency, on_invalid };
        });
    }

    /// Asks for a scan of everything, and waits until what it found has been
    /// merged. Returns false if the source ended before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let asked = self.asked.borrow().rescans;
        self.rescanned.clone().wait_for(|rescanned| *rescanned >= asked).await.is_ok()
    }

    /// The status of the source. Closed when the source has ended.
    #[must_use]
    pub fn status(&self) -> level::Receiver<SourceStatus> {
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
    rescanned: level::Sender<u64>,
    status: level::Sender<SourceStatus>,
    counts: Counts,
    /// Why there is no watch, if there is none.
    polling: Option<Arc<str>>,
}

impl FileSource {
    /// A source that reads the path of the settings into a channel. It does nothing before it is run.
    #[must_use]
    pub fn new(config: Config, preparation: Preparation, channel: SourceChannel) -> (Self, FileHandle) {
        let Config { check_frequency, on_invalid, .. } = config;
        let (ask, asked) = level::channel(Asked { rescans: 0, check_frequency, on_invalid });
        let (status, seen) = level::channel(SourceStatus {
            target: config.path.display().to_string(),
            detail: "the first scan is in progress".to_owned(),
            ..SourceStatus::default()
        });
        let (rescanned, done) = level::channel(0);
        let inbox = Arc::new(Inbox::default());
        // It fails for an empty path only, which then is looked at as it is, and is missing.
        let absolute = path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
        let good = LastGood::none(SourceName::File, preparation.node.clone());
        let worker = Some(Box::new(Worker::new(config, preparation, absolute, inbox.clone())));
        let counts = Counts::default();
        let source = Self { channel, inbox, worker, good, asked, rescanned, status, counts, polling: None };
        (source, FileHandle { asked: ask, rescanned: done, status: seen })
    }

    /// The same with other delays.
    #[must_use]
    pub fn with_timings(mut self, timings: Timings) -> Self {
        if let Some(worker) = &mut self.worker {
            worker.set_timings(timings);
        }
        self
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
                    self.tell_detail();
                    continue;
                }
                () = time::sleep_until(schedule.next()) => {}
            }
            let began = Instant::now();
            let Asked { rescans: asked, check_frequency, on_invalid } = *self.asked.borrow_and_update();
            let scan = schedule.next_scan <= began || asked > answering.unwrap_or(*self.rescanned.borrow());
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
                self.rescanned.send_if_modified(|rescanned| mem::replace(rescanned, asked) != asked);
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

    async fn tell(&mut self, outcome: Outcome) {
        for (origin, pods) in outcome.good {
            self.good.put(&origin, pods);
        }
        // The write begins before the listing is published.
        self.good.begin().await;
        if let Some(listing) = outcome.listing {
            self.channel.publish(listing);
        }
        self.counts = Counts { files: outcome.files, rejected: outcome.rejected, waiting: outcome.waiting };
        self.polling = outcome.polling;
        let before = self.status.borrow().clone();
        let since = before.failing.map_or_else(clock::now, |failing| failing.since);
        let status = SourceStatus {
            detail: self.detail(),
            last_success: outcome.scanned.filter(|_| outcome.trouble.is_none()).or(before.last_success),
            // Errors of single manifests are in the listing.
            failing: outcome.trouble.map(|error| SourceFailing { since, attempts: 1, error, quotes: false }),
            ..before
        };
        self.status.send_if_modified(|before| mem::replace(before, status.clone()) != status);
    }

    fn tell_detail(&self) {
        let detail = self.detail();
        self.status.send_if_modified(|status| mem::replace(&mut status.detail, detail.clone()) != detail);
    }

    fn detail(&self) -> String {
        let Counts { files, rejected, waiting } = self.counts;
        let noticing = self.polling.as_ref();
        let noticing = noticing.map_or("watching".to_owned(), |why| format!("scanning every second: {why}"));
        let mut detail = format!("{noticing}; {files} manifests");
        for (count, what) in [(rejected, "rejected"), (waiting, "pending")] {
            if count > 0 {
                // Writing to memory cannot fail.
                let _ = write!(detail, ", {count} {what}");
            }
        }
        if let Some(why) = self.good.trouble() {
            let _ = write!(detail, "; not stored for the next start: {why}");
        }
        detail
    }
}

/// The numbers that the status shows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Manifests.
    files: usize,
    /// Manifests and pods that were rejected.
    rejected: usize,
    /// Manifests that are perhaps being written, or gone and perhaps coming back.
    waiting: usize,
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
