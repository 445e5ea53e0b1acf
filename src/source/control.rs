//! What the sources beside the http source have in common: the handle, the output and the log.

use std::{collections::HashMap, mem, pin::pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use tracing::{debug, info, warn};

use super::{
    last_good::LastGood,
    status::{SourceFailing, SourceStatus},
};
use crate::{
    host::Host,
    mux::SourceChannel,
    outage::Outage,
    pod::{Listing, NodeName, Origin, Pod, PodKey, Rejection},
};

/// What a handle asks for.
#[derive(Clone, Debug)]
pub(super) struct Requests<C> {
    pub(super) rescans: u64,
    pub(super) config: C,
}

/// Controls a source that runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle<C> {
    requests: watch::Sender<Requests<C>>,
    /// The number of requested scans that are complete.
    rescanned: watch::Receiver<u64>,
    status: watch::Receiver<SourceStatus>,
}

impl<C> Handle<C> {
    /// Reads everything again now (SIGHUP): manifests, certificates.
    pub fn rescan(&self) {
        self.requests.send_modify(|requests| requests.rescans += 1);
    }

    /// Applies these settings and reads everything again now. What needs a restart is ignored:
    /// another path of the file source, another URL of the url source.
    pub fn retune(&self, config: C) {
        self.requests.send_modify(|requests| {
            requests.rescans += 1;
            requests.config = config;
        });
    }

    /// Reads everything again and waits until the result has been merged. Returns false if the
    /// source ended before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let rescans = self.requests.borrow().rescans;
        self.rescanned.clone().wait_for(|rescanned| *rescanned >= rescans).await.is_ok()
    }

    /// The status of the source. Closed when the source has ended.
    pub fn status(&self) -> watch::Receiver<SourceStatus> {
        self.status.clone()
    }
}

/// The output of a source: its listings, its last-known-good pods, its status and its log.
pub(super) struct Output {
    pub(super) host: Host,
    pub(super) channel: SourceChannel,
    pub(super) last_good: LastGood,
    /// The listing that was published last.
    pub(super) published: Option<Listing>,
    rescanned: watch::Sender<u64>,
    pub(super) status: watch::Sender<SourceStatus>,
    /// What the source is doing, for people.
    detail: String,
    outage: Outage,
}

impl Output {
    /// The output of a source that reads `target`, its handle, and the requests of the handle.
    pub(super) fn new<C>(
        target: String,
        detail: String,
        config: C,
        node: NodeName,
        channel: SourceChannel,
    ) -> (Self, Handle<C>, watch::Receiver<Requests<C>>) {
        let (request, requests) = watch::channel(Requests { rescans: 0, config });
        let (rescanned, complete) = watch::channel(0);
        let status = SourceStatus { target, detail: detail.clone(), ..SourceStatus::default() };
        let (status, shown) = watch::channel(status);
        let last_good = LastGood::none(channel.source(), node);
        let (host, published, outage) = (Host::default(), None, Outage::default());
        let output = Self { host, channel, last_good, published, rescanned, status, detail, outage };
        (output, Handle { requests: request, rescanned: complete, status: shown }, requests)
    }

    /// Saves pods from now on. `take` is called with the pods of an earlier run and returns
    /// false for an origin that this source does not have.
    pub(super) fn restore(
        &mut self,
        mut last_good: LastGood,
        mut take: impl FnMut(&Origin, Vec<Arc<Pod>>) -> bool,
    ) {
        last_good.host = self.host.clone();
        let restored = last_good.restored();
        let others: Vec<Origin> =
            restored.filter_map(|(origin, pods)| (!take(&origin, pods)).then_some(origin)).collect();
        for origin in &others {
            last_good.forget(origin);
        }
        self.last_good = last_good;
    }

    /// Publishes a listing.
    pub(super) fn publish(&mut self, listing: Listing) {
        self.channel.publish(listing.clone());
        self.published = Some(listing);
    }

    /// Runs work and saves pods meanwhile. Cancel-safe if the work is.
    pub(super) async fn save_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.last_good.write() => self.show(|_| ()),
            }
        }
    }

    /// Ends the listings, and saves what is not saved yet.
    pub(super) async fn finish(self) {
        let Self { channel, last_good, .. } = self;
        // The mux must not wait for the last write.
        drop(channel);
        last_good.finish().await;
    }

    /// The number of requested scans that are complete.
    pub(super) fn rescanned(&self) -> u64 {
        *self.rescanned.borrow()
    }

    /// Answers the requests up to this one.
    pub(super) fn answer(&self, rescans: u64) {
        self.rescanned.send_if_modified(|rescanned| mem::replace(rescanned, rescans) != rescans);
    }

    /// Shows what the source is doing.
    pub(super) fn set_detail(&mut self, detail: String) {
        self.detail = detail;
        self.show(|_| ());
    }

    /// Notes that the source has read everything. Returns whether this ends an outage.
    pub(super) fn succeeded(&mut self) -> bool {
        let ended = self.outage.recovered();
        if let Some(failed) = ended {
            let (source, pods) = (self.channel.source().as_str(), self.pods());
            let path = &self.status.borrow().target;
            info!(source, %path, pods, failed, "source recovered");
        }
        // After it is logged, so that what the status shows is in the log.
        self.show(|status| {
            (status.failing, status.restored) = (None, None);
            status.last_success = Some(self.host.clock.now());
        });
        ended.is_some()
    }

    /// Notes that the source could not read its input, or has rejected all of it. `quotes`: the
    /// error may quote what was read.
    pub(super) fn failed(&mut self, message: &str, error: &str, quotes: bool, retry_at: Option<Timestamp>) {
        let is_new = self.outage.failed(error, self.host.clock.now());
        let (source, pods_kept) = (self.channel.source().as_str(), self.pods());
        let path = self.status.borrow().target.clone();
        let next_attempt = retry_at.map(|at| format!("{at:.3}"));
        if is_new {
            warn!(source, %path, pods_kept, next_attempt, %error, "{message}");
        } else {
            debug!(source, %path, pods_kept, next_attempt, %error, "{message}");
        }
        self.show(|status| status.failing = SourceFailing::of(&self.outage, quotes));
    }

    /// The number of published pods.
    pub(super) fn pods(&self) -> usize {
        self.published.as_ref().map_or(0, |listing| listing.len())
    }

    /// Changes the status.
    pub(super) fn show(&self, change: impl FnOnce(&mut SourceStatus)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            status.detail = match self.last_good.error() {
                Some(error) => format!("{}; last-known-good pods cannot be saved: {error}", self.detail),
                None => self.detail.clone(),
            };
            *status != before
        });
    }
}

/// The pods of a source that are in conflict with another pod of it. Each is logged once.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// The listing that was logged last.
    shown: Option<Listing>,
    /// The conflicts that are hidden, and until when.
    hidden: HashMap<(Origin, Option<PodKey>), Instant>,
}

impl Conflicts {
    /// Hides conflicts that have not stayed for this time: of these pods the listing has what was logged before. Returns
    /// when to call this again, if there are any.
    pub(super) fn hide_new(&mut self, listing: &mut Listing, time: Duration) -> Option<Instant> {
        let (now, known) = (Instant::now(), mem::take(&mut self.hidden));
        listing.hide_duplicates(self.shown.as_ref(), |conflict| {
            let key = (conflict.origin.clone(), conflict.pod.clone());
            let until = known.get(&key).copied().unwrap_or(now + time);
            self.hidden.insert(key, until);
            now < until
        });
        self.hidden.retain(|_, until| now < *until);
        self.hidden.values().min().copied()
    }

    /// Logs what has changed with this listing.
    pub(super) fn log(&mut self, listing: &Listing) {
        let source = listing.source().as_str();
        let (found, resolved) = listing.duplicates_since(self.shown.as_ref());
        for Rejection { origin: path, pod, .. } in resolved {
            info!(source, %path, pod = pod.as_ref().map(display), "conflict resolved");
        }
        for Rejection { origin: path, pod, reason: error, .. } in found {
            warn!(source, %path, pod = pod.as_ref().map(display), %error, "conflict found");
        }
        self.shown = Some(listing.clone());
    }
}
