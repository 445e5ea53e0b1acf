//! The url source: manifests at a URL, which is polled.
//!
//! The kubelet's `pkg/kubelet/config/http.go`, with three differences: an empty body is an
//! error and does not mean that there are no pods, a body is remembered only if it was
//! decoded, and the requests are conditional if the server supports that.

mod fetch;

use std::{sync::Arc, time::Duration};

use http::Uri;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch as level,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use self::fetch::Config;
use self::fetch::{Fetcher, Known, UrlError};
use super::{
    control::{Conflicts, Handle, Output, Requests},
    last_good::LastGood,
};
use crate::{
    client::shown,
    error_chain::chain,
    hex::hex,
    host::Host,
    manifest::{self, Manifest, Preparation},
    mux::SourceChannel,
    pod::{InvalidManifest, ListingBuilder, Origin, RejectionReason},
};

/// The check frequency varies by up to a tenth, so that the nodes of a fleet that were started
/// together do not always poll together.
const JITTER: f64 = 0.1;
/// The time limit for a poll, with redirects and the whole body, as in the kubelet.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Controls a [`UrlSource`] that runs.
pub type UrlHandle = Handle<Config>;

/// The source of pods from a URL.
pub struct UrlSource {
    output: Output,
    config: Config,
    preparation: Preparation,
    /// The URL without its secrets.
    origin: Origin,
    fetcher: Fetcher,
    builder: ListingBuilder,
    /// The body of which the current pods were decoded in this run. `None` while another is rejected.
    known: Option<Known>,
    conflicts: Conflicts,
    requests: level::Receiver<Requests<Config>>,
}

impl UrlSource {
    /// A source that polls the URL of the settings into a channel. It does nothing before it runs.
    pub fn new(config: Config, preparation: Preparation, channel: SourceChannel) -> (Self, UrlHandle) {
        let target = shown(&config.url);
        let origin = Origin::from(&*target);
        let (detail, node) = (polling(&config), preparation.node.clone());
        let (output, handle, requests) = Output::new(target, detail, config.clone(), node, channel);
        let source = Self {
            output,
            config,
            builder: ListingBuilder::new(preparation.source),
            preparation,
            origin,
            fetcher: Fetcher::new(TIMEOUT),
            known: None,
            conflicts: Conflicts::default(),
            requests,
        };
        (source, handle)
    }

    /// Changes the time limit for a poll, with redirects and the whole body.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.fetcher.timeout = timeout;
        self
    }

    /// Runs on this host.
    #[must_use]
    pub fn on(mut self, host: Host) -> Self {
        self.output.host = host;
        self
    }

    /// Publishes the last-known-good pods of an earlier run at once, and saves them from now on.
    ///
    /// The first request is not conditional: an earlier release may have prepared the pods.
    #[must_use]
    pub fn with_last_good(mut self, last_good: LastGood) -> Self {
        let own = saved_origin(&self.config.url);
        self.output.restore(last_good, |url, pods| {
            let is_own = *url == own;
            if is_own {
                self.builder.put_published(&self.origin, pods);
                // They are not known before the manifest is read.
                self.builder.set_lines(&self.origin, &[]);
            }
            is_own
        });
        let listing = self.builder.restored_listing();
        if !listing.is_empty() {
            self.output.publish(listing);
        }
        self
    }

    /// Polls and publishes until `stop` is cancelled, which also ends a poll in progress.
    /// Before the first success only restored pods are published.
    ///
    /// # Panics
    /// If decoding a body panics, with its panic.
    pub async fn run(mut self, stop: CancellationToken) {
        self.work(stop).await;
        self.output.finish().await;
    }

    async fn work(&mut self, stop: CancellationToken) {
        let mut next = Instant::now();
        loop {
            let wake = async {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    Ok(()) = self.requests.changed() => {}
                    () = time::sleep_until(next) => {}
                }
            };
            self.output.save_during(wake).await;
            if stop.is_cancelled() {
                return;
            }
            let Requests { rescans, config } = self.requests.borrow_and_update().clone();
            let is_requested = rescans > self.output.rescanned();
            if config.pod_security != self.config.pod_security {
                // The level of the known pods was another one.
                self.known = None;
            }
            self.config = Config { url: self.config.url.clone(), ..config };
            let poll = async {
                if is_requested {
                    // The certificates may have been replaced, and the whole body is asked for.
                    self.fetcher.refresh();
                    self.known.iter_mut().for_each(|known| known.etag = None);
                }
                self.poll().await;
                if is_requested {
                    self.output.channel.merged().await;
                }
            };
            if stop.run_until_cancelled(poll).await.is_none() {
                return;
            }
            self.output.answer(rescans);
            let fraction = self.output.host.random.fraction();
            next = Instant::now() + jittered(self.config.check_frequency, fraction);
        }
    }

    async fn poll(&mut self) {
        let result = self.fetch().await;
        self.output.set_detail(polling(&self.config));
        match result {
            Ok(()) => drop(self.output.succeeded()),
            Err(error) => {
                let rejected = matches!(error, UrlError::Rejected(_));
                if !rejected {
                    // What is wrong now is another thing.
                    let pods = self.builder.found(&self.origin).to_vec();
                    let changed = self.builder.put_published(&self.origin, pods);
                    self.publish_rejection(changed);
                }
                let message = if rejected { "manifest rejected" } else { "source failed" };
                self.output.failed(message, &chain(&error), rejected, None);
            }
        }
    }

    async fn fetch(&mut self) -> Result<(), UrlError> {
        let etag = self.known.as_ref().and_then(|known| known.etag.clone());
        match self.fetcher.fetch(&self.output.host, &self.config, etag).await? {
            None => {}
            Some((_, known)) if self.known.as_ref().is_some_and(|current| current.sha256 == known.sha256) => {
                self.known = Some(known);
            }
            Some((body, known)) => {
                let (preparation, level) = (self.preparation.clone(), self.config.pod_security);
                let decoding =
                    self.output.host.threads.blocking(move || manifest::admit(&body, &preparation, level));
                match decoding.await {
                    Ok(Ok(manifest)) => self.accept(manifest, known).await,
                    Ok(Err(rejection)) => return Err(self.reject(rejection)),
                    Err(cancelled) => cancelled.resume_panic(),
                }
            }
        }
        Ok(())
    }

    /// Whether a listing of this run has been published.
    fn is_live(&self) -> bool {
        self.output.published.as_ref().is_some_and(|listing| !listing.is_restored())
    }

    async fn accept(&mut self, manifest: Manifest, known: Known) {
        let origin = &self.origin;
        let pods = manifest.pods.len();
        let changed = self.builder.put(origin, manifest.pods, self.output.host.clock.now());
        let is_moved = self.builder.set_lines(origin, &manifest.lines);
        self.known = Some(known);
        if changed {
            for warning in manifest.warnings {
                warn!(source = "url", path = %origin, %warning, "manifest warning");
            }
            debug!(source = "url", path = %origin, pods, "manifest accepted");
            self.output.last_good.put(&saved_origin(&self.config.url), self.builder.found(origin));
        }
        if changed || is_moved || !self.is_live() {
            // Begin to save before consumers act on the listing.
            self.output.last_good.begin().await;
            self.publish();
        }
    }

    /// Rejects a body as a whole and keeps the pods of the previous one. The rejection is part
    /// of the listing, if there is a listing.
    fn reject(&mut self, rejection: InvalidManifest) -> UrlError {
        let rejection = Arc::new(rejection);
        // The next valid body may be the one that was known.
        self.known = None;
        let changed = self.builder.reject(&self.origin, RejectionReason::Invalid(rejection.clone()));
        self.publish_rejection(changed);
        UrlError::Rejected(rejection)
    }

    fn publish_rejection(&mut self, changed: bool) {
        if changed && self.is_live() {
            self.publish();
        } else if changed && self.output.published.is_some() {
            self.output.publish(self.builder.restored_listing());
        }
    }

    fn publish(&mut self) {
        let listing = self.builder.listing();
        self.conflicts.log(&listing);
        self.output.publish(listing);
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
