//! The url source: manifests at a URL, which is polled.
//!
//! The kubelet's `pkg/kubelet/config/http.go`, with three differences: an empty body is an
//! error and does not mean that there are no pods, a body is remembered only if it was
//! decoded, and the requests are conditional if the server supports that.

mod config;
mod fetch;

use std::{mem, sync::Arc, time::Duration};

use http::Uri;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch as level,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::config::Config;
use self::fetch::{Answer, Fetched, Fetcher, UrlError, Validators};
use super::{
    last_good::LastGood,
    status::{SourceFailing, SourceStatus},
};
use crate::{
    client::shown,
    error_chain::chain,
    hex::hex,
    host::Host,
    manifest::{self, Manifest, Preparation},
    mux::SourceChannel,
    outage::Outage,
    pod::{InvalidManifest, Listing, ListingBuilder, Origin, RejectionReason, SourceName},
};

/// The check frequency varies by up to a tenth, so that the nodes of a fleet that were started
/// together do not always poll together.
const JITTER: f64 = 0.1;
/// The time limit for a poll, with redirects and the whole body, as in the kubelet.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the handle asks for.
#[derive(Clone, Debug)]
struct Requests {
    polls: u64,
    config: Config,
}

/// Controls a [`UrlSource`] that runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UrlHandle {
    requests: level::Sender<Requests>,
    /// The number of requested polls that are complete.
    polled: level::Receiver<u64>,
    status: level::Receiver<SourceStatus>,
}

impl UrlHandle {
    /// Polls now and reloads certificates (SIGHUP).
    pub fn rescan(&self) {
        self.requests.send_modify(|requests| requests.polls += 1);
    }

    /// Applies these settings, polls now and reloads certificates. The URL needs a restart:
    /// it is ignored.
    pub fn retune(&self, config: Config) {
        self.requests.send_modify(|requests| {
            let url = requests.config.url.clone();
            *requests = Requests { polls: requests.polls + 1, config: Config { url, ..config } };
        });
    }

    /// Polls and waits until the result has been merged. Returns false if the source ended
    /// before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let polls = self.requests.borrow().polls;
        self.polled.clone().wait_for(|polled| *polled >= polls).await.is_ok()
    }

    /// The status of the source. Closed when the source has ended.
    pub fn status(&self) -> level::Receiver<SourceStatus> {
        self.status.clone()
    }
}

/// The body of which the current pods were decoded in this run.
#[derive(Clone, Debug)]
struct Known {
    sha256: [u8; 32],
    validators: Validators,
}

/// The source of pods from a URL.
#[derive(Debug)]
pub struct UrlSource {
    host: Host,
    channel: SourceChannel,
    config: Config,
    preparation: Preparation,
    timeout: Duration,
    /// The URL without its secrets.
    origin: Origin,
    fetcher: Fetcher,
    builder: ListingBuilder,
    known: Option<Known>,
    last_good: LastGood,
    /// The listing that was published last.
    published: Option<Listing>,
    outage: Outage,
    requests: level::Receiver<Requests>,
    polled: level::Sender<u64>,
    status: level::Sender<SourceStatus>,
}

impl UrlSource {
    /// A source that polls the URL of the settings into a channel. It does nothing before it runs.
    pub fn new(config: Config, preparation: Preparation, channel: SourceChannel) -> (Self, UrlHandle) {
        let target = shown(&config.url);
        let origin = Origin::from(&*target);
        let status = SourceStatus { target, detail: polling(&config), ..SourceStatus::default() };
        let (status, published_status) = level::channel(status);
        let (polled, complete) = level::channel(0);
        let last_good = LastGood::none(SourceName::Url, preparation.node.clone());
        let (request, requests) = level::channel(Requests { polls: 0, config: config.clone() });
        let source = Self {
            host: Host::default(),
            channel,
            config,
            preparation,
            timeout: TIMEOUT,
            origin,
            fetcher: Fetcher::default(),
            builder: ListingBuilder::new(SourceName::Url),
            known: None,
            last_good,
            published: None,
            outage: Outage::default(),
            requests,
            polled,
            status,
        };
        (source, UrlHandle { requests: request, polled: complete, status: published_status })
    }

    /// Changes the time limit for a poll, with redirects and the whole body.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs on this host.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Publishes the last-known-good pods of an earlier run at once, and saves them from now on.
    ///
    /// The first request is not conditional: an earlier release may have prepared the pods.
    #[must_use]
    pub fn with_last_good(mut self, last_good: LastGood) -> Self {
        let mut last_good = last_good.on(self.host.clone());
        let (own, mut others) = (saved_origin(&self.config.url), Vec::new());
        for (url, pods) in last_good.restored() {
            if url == own {
                self.builder.put(&self.origin, pods, self.host.clock.now());
                let listing = self.builder.restored_listing();
                self.channel.publish(listing.clone());
                self.published = Some(listing);
            } else {
                others.push(url);
            }
        }
        for url in &others {
            last_good.forget(url);
        }
        self.last_good = last_good;
        self
    }

    /// Polls and publishes until `stop` is cancelled, which also ends a poll in progress.
    /// Before the first success only restored pods are published.
    ///
    /// # Panics
    /// If decoding a body panics, with its panic.
    pub async fn run(mut self, stop: CancellationToken) {
        self.work(stop).await;
        let Self { channel, last_good, .. } = self;
        // The mux must not wait for the last write.
        drop(channel);
        last_good.finish().await;
    }

    async fn work(&mut self, stop: CancellationToken) {
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = self.requests.changed() => {}
                () = self.last_good.write() => {
                    self.publish_detail();
                    continue;
                }
                () = time::sleep_until(next) => {}
            }
            let Requests { polls, config } = self.requests.borrow_and_update().clone();
            let is_requested = polls > *self.polled.borrow();
            if config.pod_security != self.config.pod_security {
                // The level of the known pods was another one.
                self.known = None;
            }
            self.config = config;
            let poll = async {
                if is_requested {
                    // The certificates may have been replaced.
                    self.fetcher.refresh();
                }
                self.poll().await;
                if is_requested {
                    self.channel.merged().await;
                }
            };
            if stop.run_until_cancelled(poll).await.is_none() {
                return;
            }
            self.polled.send_if_modified(|polled| mem::replace(polled, polls) != polls);
            next = Instant::now() + jittered(self.config.check_frequency, self.host.random.fraction());
        }
    }

    async fn poll(&mut self) {
        match self.fetch().await {
            Ok(()) => self.report_success(),
            Err(error) => self.report_failure(&error),
        }
    }

    async fn fetch(&mut self) -> Result<(), UrlError> {
        let validators = self.validators().cloned();
        match self.fetcher.fetch(&self.host.threads, &self.config, self.timeout, validators.as_ref()).await? {
            Answer::Unchanged => {}
            Answer::Body(Fetched { sha256, validators, .. }) if self.is_current(&sha256) => {
                self.known = Some(Known { sha256, validators });
            }
            Answer::Body(Fetched { body, sha256, validators }) => {
                let (preparation, level) = (self.preparation.clone(), self.config.pod_security);
                let decoding =
                    self.host.threads.blocking(move || manifest::admit(&body, &preparation, level));
                match decoding.await {
                    Ok(Ok(manifest)) => self.accept(manifest, Known { sha256, validators }).await,
                    Ok(Err(rejection)) => return Err(self.reject(rejection)),
                    Err(cancelled) => cancelled.resume_panic(),
                }
            }
        }
        Ok(())
    }

    /// The validators for a conditional request. `None` while the last body is rejected: the
    /// next valid body may be the one that is known.
    fn validators(&self) -> Option<&Validators> {
        let pinned = |known: &&Known| self.config.sha256.is_none_or(|pin| pin == known.sha256);
        let known = self.known.as_ref().filter(pinned);
        known.filter(|_| self.builder.rejection(&self.origin).is_none()).map(|known| &known.validators)
    }

    /// Whether the current pods were decoded from this body, and no other body was rejected since.
    fn is_current(&self, sha256: &[u8; 32]) -> bool {
        let same = self.known.as_ref().is_some_and(|known| known.sha256 == *sha256);
        same && self.builder.rejection(&self.origin).is_none()
    }

    /// Whether a listing of this run has been published.
    fn is_live(&self) -> bool {
        self.published.as_ref().is_some_and(|listing| !listing.is_restored())
    }

    async fn accept(&mut self, manifest: Manifest, known: Known) {
        let origin = &self.origin;
        let pods = manifest.pods.len();
        let changed = self.builder.put(origin, manifest.pods, self.host.clock.now());
        self.known = Some(known);
        if changed {
            for warning in manifest.warnings {
                warn!(source = "url", path = %origin, %warning, "manifest warning");
            }
            debug!(source = "url", path = %origin, pods, "manifest accepted");
            self.last_good.put(&saved_origin(&self.config.url), self.builder.found(origin));
            // Begin to save before consumers act on the listing.
            self.last_good.begin().await;
        }
        if changed || !self.is_live() {
            self.publish();
        }
    }

    /// Rejects a body as a whole and keeps the pods of the previous one. The rejection is part
    /// of the listing, if there is a listing.
    fn reject(&mut self, rejection: InvalidManifest) -> UrlError {
        let rejection = Arc::new(rejection);
        let changed = self.builder.reject(&self.origin, RejectionReason::Invalid(rejection.clone()));
        if changed && let Some(published) = &self.published {
            if published.is_restored() {
                let listing = self.builder.restored_listing();
                self.channel.publish(listing.clone());
                self.published = Some(listing);
            } else {
                self.publish();
            }
        }
        UrlError::Rejected(rejection)
    }

    fn publish(&mut self) {
        let listing = self.builder.listing();
        self.log_conflicts(&listing);
        self.channel.publish(listing.clone());
        self.published = Some(listing);
    }
}

/// The status and the log.
impl UrlSource {
    fn report_success(&mut self) {
        let path = &self.origin;
        let detail = self.detail();
        self.status.send_modify(|status| {
            status.failing = None;
            status.last_success = Some(self.host.clock.now());
            status.detail = detail;
        });
        if let Some(failed) = self.outage.recovered() {
            let pods = self.builder.pods_of(path);
            info!(source = "url", %path, pods, failed, "source recovered");
        }
    }

    fn publish_detail(&self) {
        let detail = self.detail();
        self.status.send_if_modified(|status| mem::replace(&mut status.detail, detail.clone()) != detail);
    }

    /// What the source is doing, for people.
    fn detail(&self) -> String {
        let polling = polling(&self.config);
        self.last_good.error().map_or(polling.clone(), |error| {
            format!("{polling}; last-known-good pods cannot be saved: {error}")
        })
    }

    fn report_failure(&mut self, error: &UrlError) {
        let path = &self.origin;
        let rejected = matches!(error, UrlError::Rejected(_));
        let error = chain(error);
        let is_new = self.outage.failed(&error, self.host.clock.now());
        let detail = self.detail();
        self.status.send_modify(|status| {
            status.failing = SourceFailing::of(&self.outage, rejected);
            status.detail = detail;
        });
        let pods_kept = self.builder.pods_of(path);
        let message = if rejected { "manifest rejected" } else { "source failed" };
        if is_new {
            warn!(source = "url", %path, pods_kept, %error, "{message}");
        } else {
            debug!(source = "url", %path, pods_kept, %error, "{message}");
        }
    }

    /// Logs pods that conflict with another pod of the source.
    fn log_conflicts(&self, listing: &Listing) {
        let (found, resolved) = listing.duplicates_since(self.published.as_ref());
        for rejection in found {
            let pod = rejection.pod.as_ref().map(tracing::field::display);
            warn!(source = "url", path = %rejection.origin, pod, error = %rejection.reason, "conflict found");
        }
        for rejection in resolved {
            let pod = rejection.pod.as_ref().map(tracing::field::display);
            info!(source = "url", path = %rejection.origin, pod, "conflict resolved");
        }
    }
}

fn polling(config: &Config) -> String {
    format!("polling every {:?}", config.check_frequency)
}

/// The name under which the pods of a URL are saved: the URL without its secrets. The query is
/// hashed, since another query is another name.
fn saved_origin(url: &Uri) -> Origin {
    let digest = |query: &str| format!("?sha256={}", hex(&Sha256::digest(query)));
    Origin::from(&*format!("{}{}", shown(url), url.query().map(digest).unwrap_or_default()))
}

/// A time that is longer or shorter by up to [`JITTER`] of it, for a fraction from 0 to 1.
fn jittered(time: Duration, fraction: f64) -> Duration {
    time.mul_f64(1.0 - JITTER + 2.0 * JITTER * fraction)
}
