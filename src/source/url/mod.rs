//! Manifests at a URL, which is polled.
//!
//! The kubelet's `pkg/kubelet/config/http.go`, with three differences: an empty
//! body is an error and not the wish for no pods, what a body says is remembered
//! only when it could be read, and a server that tells versions apart is asked
//! for changes only.

mod config;
mod fetch;

use std::{mem, panic, sync::Arc, time::Duration};

use http::Uri;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch as level,
    task,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::config::Config;
use self::fetch::{Answer, Fetched, Fetcher, UrlError, Validators};
use super::{dice, hex, last_good::LastGood, outage::Outage, status::SourceStatus};
use crate::{
    client::shown,
    clock,
    error_chain::chain,
    manifest::{self, Manifest, Preparation},
    mux::SourceChannel,
    pod::{Listing, ListingBuilder, Origin, Refusal, RejectionReason, SourceName},
};

/// A poll may come by a tenth of the frequency earlier or later, so that the
/// nodes of a fleet that were started together do not ask together for ever.
const JITTER: f64 = 0.1;
/// How long a poll may take, redirects and the whole body included, as with the kubelet.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the source is asked for while it runs.
#[derive(Clone, Debug)]
struct Asked {
    fetches: u64,
    config: Config,
}

/// The url source from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UrlHandle {
    asked: level::Sender<Asked>,
    /// The last of the asked fetches that is done with.
    fetched: level::Receiver<u64>,
    status: level::Receiver<SourceStatus>,
}

impl UrlHandle {
    /// Asks for a poll now, with certificates read anew (SIGHUP).
    pub fn rescan(&self) {
        self.asked.send_modify(|asked| asked.fetches += 1);
    }

    /// Applies these settings, and polls with certificates that are read again. The URL
    /// needs a restart: it is ignored.
    pub fn retune(&self, config: Config) {
        self.asked.send_modify(|asked| {
            let url = asked.config.url.clone();
            *asked = Asked { fetches: asked.fetches + 1, config: Config { url, ..config } };
        });
    }

    /// Asks for a poll, and waits until what it gave has been merged. Returns
    /// false if the source ended before. Cancel-safe.
    pub async fn rescanned(&self) -> bool {
        self.rescan();
        let asked = self.asked.borrow().fetches;
        self.fetched.clone().wait_for(|fetched| *fetched >= asked).await.is_ok()
    }

    /// The status of the source. Closed when the source has ended.
    #[must_use]
    pub fn status(&self) -> level::Receiver<SourceStatus> {
        self.status.clone()
    }
}

/// What the pods in use were made of, in this run.
#[derive(Clone, Debug)]
struct Known {
    sha256: [u8; 32],
    validators: Validators,
}

/// The source of pods from a URL.
#[derive(Debug)]
pub struct UrlSource {
    channel: SourceChannel,
    config: Config,
    preparation: Preparation,
    timeout: Duration,
    /// The URL without its secrets: what it is called everywhere.
    origin: Origin,
    fetcher: Fetcher,
    builder: ListingBuilder,
    known: Option<Known>,
    last_good: LastGood,
    /// What was pushed last.
    pushed: Option<Listing>,
    outage: Outage,
    asked: level::Receiver<Asked>,
    fetched: level::Sender<u64>,
    status: level::Sender<SourceStatus>,
}

impl UrlSource {
    /// A source that polls the URL of the settings into a channel. It does nothing before it is run.
    #[must_use]
    pub fn new(config: Config, preparation: Preparation, channel: SourceChannel) -> (Self, UrlHandle) {
        let target = shown(&config.url);
        let origin = Origin::from(&*target);
        let status = SourceStatus { target, detail: polling(&config), ..SourceStatus::default() };
        let (status, seen) = level::channel(status);
        let (fetched, done) = level::channel(0);
        let last_good = LastGood::none(SourceName::Url, preparation.node.clone());
        let (ask, asked) = level::channel(Asked { fetches: 0, config: config.clone() });
        let source = Self {
            channel,
            config,
            preparation,
            timeout: TIMEOUT,
            origin,
            fetcher: Fetcher::default(),
            builder: ListingBuilder::new(SourceName::Url),
            known: None,
            last_good,
            pushed: None,
            outage: Outage::default(),
            asked,
            fetched,
            status,
        };
        (source, UrlHandle { asked: ask, fetched: done, status: seen })
    }

    /// The same with another time limit for a poll, redirects and the whole body included.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same with what was good in an earlier run, which is pushed at once,
    /// and kept up to date from now on.
    ///
    /// Whether the URL still says so is asked without conditions: the pods may
    /// have been prepared by an earlier release.
    #[must_use]
    pub fn with_last_good(mut self, mut last_good: LastGood) -> Self {
        let (ours, mut others) = (kept_under(&self.config.url), Vec::new());
        for (url, pods) in last_good.restored() {
            if url == ours {
                self.builder.put(&self.origin, pods, clock::now());
                let listing = self.builder.restored_listing();
                self.channel.publish(listing.clone());
                self.pushed = Some(listing);
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

    /// Polls and pushes until `stop` is cancelled, which also ends a poll that
    /// is under way. Nothing but what was restored is pushed before the first
    /// good answer.
    ///
    /// # Panics
    /// If decoding a body panics, with its panic.
    pub async fn run(mut self, stop: CancellationToken) {
        self.work(stop).await;
        let Self { channel, last_good, .. } = self;
        // Nobody waits for what is written last.
        drop(channel);
        last_good.finish().await;
    }

    async fn work(&mut self, stop: CancellationToken) {
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = self.asked.changed() => {}
                () = self.last_good.write() => {
                    self.tell_detail();
                    continue;
                }
                () = time::sleep_until(next) => {}
            }
            let Asked { fetches, config } = self.asked.borrow_and_update().clone();
            let is_asked = fetches > *self.fetched.borrow();
            self.config = config;
            let poll = async {
                if is_asked {
                    // Whoever asks may have put other certificates in place.
                    self.fetcher.refresh();
                }
                self.poll().await;
                if is_asked {
                    self.channel.merged().await;
                }
            };
            if stop.run_until_cancelled(poll).await.is_none() {
                return;
            }
            self.fetched.send_if_modified(|fetched| mem::replace(fetched, fetches) != fetches);
            next = Instant::now() + jittered(self.config.check_frequency, dice());
        }
    }

    /// Asks once, and does what follows.
    async fn poll(&mut self) {
        match self.ask().await {
            Ok(()) => self.tell_success(),
            Err(error) => self.tell_failure(&error),
        }
    }

    async fn ask(&mut self) -> Result<(), UrlError> {
        let validators = self.validators().cloned();
        match self.fetcher.fetch(&self.config, self.timeout, validators.as_ref()).await? {
            Answer::Unchanged => {}
            Answer::Body(Fetched { sha256, validators, .. }) if self.is_taken(&sha256) => {
                self.known = Some(Known { sha256, validators });
            }
            Answer::Body(Fetched { body, sha256, validators }) => {
                let preparation = self.preparation.clone();
                let decoding = task::spawn_blocking(move || manifest::read(&body, &preparation));
                match decoding.await {
                    Ok(Ok(manifest)) => self.accept(manifest, Known { sha256, validators }).await,
                    Ok(Err(refusal)) => return Err(self.refuse(refusal)),
                    Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
                    // The runtime is being shut down.
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// What a change is asked against. Nothing while a refusal stands: the good
    /// body that takes it back may be the one that is known.
    fn validators(&self) -> Option<&Validators> {
        let pinned = |known: &&Known| self.config.sha256.is_none_or(|pin| pin == known.sha256);
        let known = self.known.as_ref().filter(pinned);
        known.filter(|_| self.builder.refusal(&self.origin).is_none()).map(|known| &known.validators)
    }

    /// Whether this body is what the pods in use were made of, and nothing came between.
    fn is_taken(&self, sha256: &[u8; 32]) -> bool {
        let same = self.known.as_ref().is_some_and(|known| known.sha256 == *sha256);
        same && self.builder.refusal(&self.origin).is_none()
    }

    /// Whether the mux has heard what the URL says in this run.
    fn is_live(&self) -> bool {
        self.pushed.as_ref().is_some_and(|listing| !listing.is_restored())
    }

    async fn accept(&mut self, manifest: Manifest, known: Known) {
        let origin = &self.origin;
        let pods = manifest.pods.len();
        let changed = self.builder.put(origin, manifest.pods, clock::now());
        self.known = Some(known);
        if changed {
            for warning in manifest.warnings {
                warn!(source = "url", path = %origin, "{origin}:{warning}");
            }
            debug!(source = "url", path = %origin, pods, "the manifests were taken");
            self.last_good.put(&kept_under(&self.config.url), self.builder.found(origin).to_vec());
            // It is on its way to the disk before anybody hears of it.
            self.last_good.begin().await;
        }
        if changed || !self.is_live() {
            self.push();
        }
    }

    /// Nothing of a body is taken, and what the one before gave is kept. That
    /// shows among the listing's rejections, if there is a listing.
    fn refuse(&mut self, refusal: Refusal) -> UrlError {
        let refusal = Arc::new(refusal);
        let news = self.builder.refuse(&self.origin, RejectionReason::Refused(refusal.clone()));
        if news && let Some(pushed) = &self.pushed {
            if pushed.is_restored() {
                let listing = self.builder.restored_listing();
                self.channel.publish(listing.clone());
                self.pushed = Some(listing);
            } else {
                self.push();
            }
        }
        UrlError::Refused(refusal)
    }

    fn push(&mut self) {
        let listing = self.builder.listing();
        self.tell_duplicates(&listing);
        self.channel.publish(listing.clone());
        self.pushed = Some(listing);
    }
}

/// What is said to people: loud once, then quiet, then "recovered".
impl UrlSource {
    fn tell_success(&mut self) {
        let path = &self.origin;
        let mut failed = None;
        let detail = self.detail();
        self.status.send_modify(|status| {
            failed = self.outage.over(status);
            status.last_success = Some(clock::now());
            status.detail = detail;
        });
        if let Some(failed) = failed {
            let pods = self.builder.pods_of(path);
            info!(source = "url", %path, pods, failed, "recovered: {path} gives manifests again");
        }
    }

    fn tell_detail(&self) {
        let detail = self.detail();
        self.status.send_if_modified(|status| mem::replace(&mut status.detail, detail.clone()) != detail);
    }

    /// How it works just now.
    fn detail(&self) -> String {
        let polling = polling(&self.config);
        self.last_good.trouble().map_or(polling.clone(), |trouble| {
            format!("{polling}; what is good cannot be kept for the next start: {trouble}")
        })
    }

    fn tell_failure(&mut self, error: &UrlError) {
        let path = &self.origin;
        let text = chain(error);
        let detail = self.detail();
        let mut is_news = false;
        self.status.send_modify(|status| {
            is_news = self.outage.failed(status, &text, matches!(error, UrlError::Refused(_)));
            status.detail = detail;
        });
        let pods_kept = self.builder.pods_of(path);
        let what = match error {
            UrlError::Refused(_) => "the manifests were refused",
            _ => "the manifests cannot be fetched",
        };
        if is_news {
            warn!(source = "url", %path, pods_kept, error = %text, "{what}");
        } else {
            debug!(source = "url", %path, pods_kept, error = %text, "{what}");
        }
    }

    /// Tells of pods that have the UID of another one.
    fn tell_duplicates(&self, listing: &Listing) {
        let (refused, recovered) = listing.duplicates_since(self.pushed.as_ref());
        for rejection in refused {
            let pod = rejection.pod.as_ref().map(tracing::field::display);
            warn!(source = "url", path = %rejection.origin, pod, error = %rejection.reason, "a pod was refused");
        }
        for rejection in recovered {
            let pod = rejection.pod.as_ref().map(tracing::field::display);
            info!(source = "url", path = %rejection.origin, pod, "recovered: no other pod stands in its way");
        }
    }
}

fn polling(config: &Config) -> String {
    format!("polling every {:?}", config.check_frequency)
}

/// Under which name the last good of a URL is kept: without its secrets, but
/// another query is another name.
fn kept_under(url: &Uri) -> Origin {
    let digest = |query: &str| format!("?sha256={}", hex(&Sha256::digest(query)));
    Origin::from(&*format!("{}{}", shown(url), url.query().map(digest).unwrap_or_default()))
}

/// A time that is longer or shorter by up to [`JITTER`] of it, as the dice (0 … 1) say.
fn jittered(time: Duration, dice: f64) -> Duration {
    time.mul_f64(1.0 - JITTER + 2.0 * JITTER * dice)
}
