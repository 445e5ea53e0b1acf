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
mod watch;
mod worker;

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use serde_json::json;
use tokio::{
    sync::watch as level,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    config::{Config, OnInvalid, Timings},
    load::{Contents, contents, read_manifest},
};
use self::{
    watch::{ChangeQueue, Watch},
    worker::{Outcome, Worker},
};
use super::{
    ScanProgress,
    control::{Handle, Output, Requests},
    last_good::LastGood,
};
use crate::{host::Host, manifest::Preparation, mux::SourceChannel};

/// The time between scans where nothing can be watched.
const POLL: Duration = Duration::from_secs(1);
/// The shortest time between scans that events ask for: a flood of events may overflow the
/// queue as fast as it is emptied.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// A step that takes longer than this many times the check frequency, and than
/// [`LEAST_DEADLINE`], is a failure: the file system may hang.
const DEADLINE: u32 = 2;
const LEAST_DEADLINE: Duration = Duration::from_secs(10);

/// Controls a [`FileSource`] that runs.
pub type FileHandle = Handle<Config>;

/// What the threads for blocking work and the watcher's thread share.
///
/// The watcher's thread handles a change of a few manifests itself, so that no other thread has to be woken before
/// the result reaches the runtime. It does so only if it can lock the worker at once, because a step may wait for this
/// very thread to add a watch; and only if the runtime has taken the last result, so that a flood of changes is
/// handled together and the thread goes on reading events.
struct Shared {
    queue: Arc<ChangeQueue>,
    /// Locked while a step runs, which may take as long as the file system does: never on the runtime.
    worker: Mutex<Worker>,
    /// The results of steps, in order. A step adds its own before it unlocks the worker.
    outcomes: Mutex<Vec<Outcome>>,
}

impl Shared {
    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().expect("a step in the watcher's thread panicked")
    }

    fn outcomes(&self) -> MutexGuard<'_, Vec<Outcome>> {
        // Every edit is a single step, so a panic elsewhere left it consistent.
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, config: Config, scan: bool, stop: &CancellationToken) {
        let mut worker = self.worker();
        worker.retune(config);
        let outcome = worker.step(&self.queue.take(), scan, stop);
        self.outcomes().push(outcome);
    }

    fn step_directly(&self) {
        let Ok(mut worker) = self.worker.try_lock() else { return };
        if self.outcomes().is_empty()
            && worker.is_watching()
            && let Some(changes) = self.queue.take_direct()
        {
            let outcome = worker.step_directly(&changes);
            self.outcomes().push(outcome);
        }
    }
}

/// The source of pods from files.
pub struct FileSource {
    output: Output,
    shared: Arc<Shared>,
    requests: level::Receiver<Requests<Config>>,
    /// How far a long first scan is.
    scanning: level::Receiver<Option<ScanProgress>>,
}

impl FileSource {
    /// A source that publishes the manifests at the path of the settings into the channel of the source for which they
    /// are prepared. It does nothing before it runs.
    pub fn new(config: Config, preparation: Preparation, channel: SourceChannel) -> (Self, FileHandle) {
        let queue = Arc::new(ChangeQueue::default());
        // It fails for an empty path only, which is then missing.
        let absolute = path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
        let target = config.path.display().to_string();
        let (detail, node) = ("the first scan is in progress".to_owned(), preparation.node.clone());
        let (output, handle, requests) = Output::new(target, detail, config.clone(), node, channel);
        let (sender, scanning) = level::channel(None);
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let (watcher, changed) = (shared.clone(), queue.clone());
            let on_change = move || {
                if let Some(shared) = watcher.upgrade() {
                    // A panic poisons the worker, which ends the source. It must not end the thread: a watcher
                    // that is dropped after its thread panics, too.
                    drop(catch_unwind(AssertUnwindSafe(|| shared.step_directly())));
                }
                changed.notify();
            };
            let watch = Watch::new(queue.clone(), Arc::new(on_change));
            let worker = Mutex::new(Worker::new(config, preparation, absolute, watch, sender));
            Shared { queue, worker, outcomes: Mutex::default() }
        });
        (Self { output, shared, requests, scanning }, handle)
    }

    /// Changes the delays. Only before [`with_last_good`](Self::with_last_good).
    #[must_use]
    pub fn with_timings(self, timings: Timings) -> Self {
        self.shared.worker().set_timings(timings);
        self
    }

    /// Runs on this host. Call it before [`with_last_good`](Self::with_last_good).
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.shared.worker().host = host.clone();
        self.output.host = host;
        self
    }

    /// Publishes the last-known-good pods of an earlier run at once, and saves them from now on.
    ///
    /// A manifest that is missing, unreadable or invalid at the start is treated as if it had
    /// become so just now.
    #[must_use]
    pub fn with_last_good(mut self, mut last_good: LastGood) -> Self {
        let mut worker = self.shared.worker();
        let details = last_good.restored_details().unwrap_or_default();
        worker.entries.earlier = details["directory"].as_str().map(str::to_owned);
        self.output.restore(last_good, |path, pods| worker.restore(path, pods));
        let listing = worker.builder.restored_listing();
        drop(worker);
        if !listing.is_empty() {
            self.output.publish(listing);
        }
        self
    }

    /// Scans, watches and publishes until `stop` is cancelled.
    ///
    /// Files are accessed only on blocking threads and on the watcher's. If one of them hangs (a dead NFS
    /// server), the status shows it, at the latest after the next scan, pods are still saved, and `run` still ends
    /// when it is stopped. The runtime must then be shut down without waiting for that thread.
    ///
    /// # Panics
    /// If a step panics.
    pub async fn run(mut self, stop: CancellationToken) {
        self.work(stop).await;
        self.output.finish().await;
    }

    async fn work(&mut self, stop: CancellationToken) {
        let mut schedule = Schedule::new(Instant::now());
        let mut answering = None;
        loop {
            let wake = async {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = self.shared.queue.wait() => {}
                    Ok(()) = self.requests.changed() => {}
                    () = time::sleep_until(schedule.next()) => {}
                }
            };
            self.output.save_during(wake).await;
            if stop.is_cancelled() {
                return;
            }
            let began = Instant::now();
            let Requests { rescans, config } = self.requests.borrow_and_update().clone();
            let check_frequency = config.check_frequency;
            let mut stable = self.publish_all(&mut schedule, began, check_frequency).await;
            let scan = schedule.next_scan <= began || rescans > answering.unwrap_or(self.output.rescanned());
            let has_panicked = self.shared.worker.is_poisoned();
            if scan || has_panicked || !self.shared.queue.is_empty() || schedule.next() <= began {
                let Some(is_late) = self.step(config, scan, &stop).await else { return };
                stable = self.publish_all(&mut schedule, began, check_frequency).await;
                if is_late {
                    schedule.want_scan();
                }
                if scan && rescans > self.output.rescanned() {
                    answering = Some(rescans);
                }
            }
            if let Some(rescans) = answering.take_if(|_| stable) {
                if stop.run_until_cancelled(self.output.channel.merged()).await.is_none() {
                    return;
                }
                self.output.answer(rescans);
            }
        }
    }

    /// One step, on a blocking thread. `None` if it was stopped. If it makes no progress for longer
    /// than the deadline, the source is failing until everything has been read again: returns whether it was so late.
    async fn step(&mut self, config: Config, scan: bool, stop: &CancellationToken) -> Option<bool> {
        let deadline = LEAST_DEADLINE.max(config.check_frequency * DEADLINE);
        let (shared, token) = (self.shared.clone(), stop.clone());
        let threads = self.output.host.threads.clone();
        let mut work = pin!(threads.blocking(move || shared.step(config, scan, &token)));
        let mut is_late = false;
        loop {
            let within_deadline = self.output.save_during(time::timeout(deadline, &mut work));
            let ended = tokio::select! {
                biased;
                ended = stop.run_until_cancelled(within_deadline) => ended?,
                Ok(()) = self.scanning.changed() => {
                    self.show_scan();
                    continue;
                }
            };
            match ended {
                Ok(Ok(())) => return Some(is_late),
                Ok(Err(cancelled)) => {
                    cancelled.resume_panic();
                    return None;
                }
                Err(_) => {
                    is_late = true;
                    let error = format!(
                        "the file system has not answered for {deadline:?}; its pods are kept \
                         (check the mount or the server behind it)"
                    );
                    self.output.failed("source failed", &error, false, None);
                }
            }
        }
    }

    /// Publishes the results of steps. Returns whether no file is unstable after the last one.
    async fn publish_all(
        &mut self,
        schedule: &mut Schedule,
        began: Instant,
        check_frequency: Duration,
    ) -> bool {
        let outcomes = mem::take(&mut *self.shared.outcomes());
        let stable = outcomes.last().is_some_and(|outcome| outcome.stable);
        for outcome in outcomes {
            schedule.update(&outcome, began, check_frequency);
            self.publish(outcome).await;
        }
        stable
    }

    fn show_scan(&mut self) {
        let scanning = *self.scanning.borrow_and_update();
        self.output.show(|status| status.scanning = scanning);
        if let Some(scanning) = scanning {
            self.output.set_detail(scanning.to_string());
        }
    }

    async fn publish(&mut self, outcome: Outcome) {
        self.output.show(|status| {
            status.scanning = None;
            if *status.kept != *outcome.kept {
                status.kept = outcome.kept.into();
            }
        });
        if let Some(directory) = outcome.directory {
            self.output.last_good.set_details(json!({"directory": directory}));
        }
        for (origin, pods) in outcome.changed {
            self.output.last_good.put(&origin, &pods);
        }
        if let Some(listing) = outcome.listing {
            // Begin to save before consumers act on the listing.
            self.output.last_good.begin().await;
            self.output.publish(listing);
        }
        self.output.set_detail(outcome.detail);
        match outcome.result {
            Some(Ok(())) => drop(self.output.succeeded()),
            Some(Err(error)) => self.output.failed("source failed", &error, false, None),
            None => {}
        }
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
        if outcome.scanned {
            self.last_scan = began;
            self.next_scan = Instant::now() + check_frequency;
        }
        if outcome.polling.is_some() {
            self.next_scan = self.next_scan.min(Instant::now() + POLL);
        }
        if outcome.wants_scan {
            self.want_scan();
        }
    }

    fn want_scan(&mut self) {
        self.next_scan = self.next_scan.min(self.last_scan + SCAN_INTERVAL);
    }
}
