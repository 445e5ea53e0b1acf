//! The reflector's state machine: which request is next, what its end means, when to retry.
//!
//! It is pure: the time and random numbers are passed in, and it sends and reads nothing.
//! The source's task takes the [`next`](Reflector::next) request, reports its progress, and
//! reports its [end](Reflector::end). It follows client-go's Reflector
//! (`client-go/tools/cache/reflector.go`, v0.36.3); comments mark the deliberate differences.
//!
//! A resource version is opaque: it is stored and sent back, never compared.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::status_error::StatusError;
use crate::backoff::Backoff;

/// How many pods a page of the first list has.
pub const PAGE: u32 = 500;
/// A `WatchList` without an event for this time, or without the bookmark that ends the
/// initial events within [`INITIAL_EVENTS_LIMIT`], is ended, and lists are used.
const INITIAL_EVENTS_SILENCE: Duration = Duration::from_secs(10);
const INITIAL_EVENTS_LIMIT: Duration = Duration::from_mins(1);
/// How long lists are used before a `WatchList` is tried again.
const LIST_FALLBACK: Duration = Duration::from_mins(30);
/// A watch is requested for a random time between this and twice this, so that the
/// watches of many nodes do not end together.
const WATCH: Duration = Duration::from_mins(5);
/// How much longer than requested a watch may stay open.
const WATCH_SLACK: Duration = Duration::from_secs(30);
/// A watch with bookmarks, which API servers send about each minute, is ended when nothing
/// arrives for this time: the server may be frozen while its kernel keeps the connection.
const BOOKMARK_SILENCE: Duration = Duration::from_mins(3);
/// A list from which nothing arrives for this time has failed.
const LIST_SILENCE: Duration = Duration::from_mins(1);
/// A watch that ends sooner, without an event, counts as failed.
pub const SHORT: Duration = Duration::from_secs(1);
/// After this many watches in a row that the server ended with an error, without an event
/// between, the source relists. (client-go relists after the first.) After as many `WatchList`s that ended before their
/// initial events were complete, it uses lists.
const MAX_WATCH_ERRORS: u32 = 2;

/// The first delay before a retry.
const FIRST_DELAY: Duration = Duration::from_millis(800);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// After this time without a failure the next failure counts as the first again.
/// (client-go resets its backoff every two minutes, even during an outage.)
const RESET_DELAY: Duration = Duration::from_mins(2);
/// The longest `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// A resource version.
pub type Version = Arc<str>;

/// A request for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A watch that begins with the whole listing, not older than the version (most
    /// recent without one).
    WatchList { version: Option<Version>, timeout: Duration },
    /// A list, or a page of one.
    List { at: ListVersion, limit: Option<u32> },
    /// An empty list not older than the version: it fails if the server has not reached
    /// the version.
    Probe { version: Version },
    /// The changes after the version.
    Watch { version: Version, timeout: Duration },
}

/// Which version of the listing a list asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListVersion {
    /// Any version that the server has in its cache.
    Any,
    /// This version or a newer one.
    NotOlderThan(Version),
    /// The most recent version.
    MostRecent,
    /// The page that a `continue` token names.
    Continue(Arc<str>),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// A list, or a page of one, is complete.
    Listed,
    /// The server closed a watch regularly.
    Closed,
    /// The HTTP status is not 200.
    Rejected(StatusError),
    /// An ERROR event ended the watch.
    ErrorEvent(StatusError),
    /// The connection failed or broke.
    Broken(String),
    /// The response is not what an API server writes.
    Malformed(String),
    /// Nothing arrived for too long.
    Silent,
    /// No request could be made: something is wrong with the kubeconfig.
    NoClient(String),
    /// A relist was requested, by a reload or by the user.
    RelistRequested,
}

impl RequestEnd {
    fn status_error(&self) -> Option<&StatusError> {
        match self {
            Self::Rejected(error) | Self::ErrorEvent(error) => Some(error),
            _ => None,
        }
    }

    /// The `kind` of the error in the metrics, and its text. `was_accepted`: whether the
    /// response had begun with status 200.
    pub(super) fn describe(&self, was_accepted: bool) -> (&'static str, String) {
        match self {
            Self::Listed | Self::Closed | Self::RelistRequested => {
                ("short-watch", "the API server closed the watch at once".to_owned())
            }
            Self::Rejected(error) => (
                if error.is_stale() { "expired" } else { "http" },
                format!("the API server rejected the request: {error}"),
            ),
            Self::ErrorEvent(error) => (
                if error.is_stale() { "expired" } else { "error-event" },
                format!("the API server ended the watch: {error}"),
            ),
            Self::Malformed(why) => ("garbage", format!("{why} (is this the URL of the API server?)")),
            Self::Broken(why) => (if was_accepted { "broken" } else { "connect" }, why.clone()),
            Self::NoClient(why) => ("kubeconfig", why.clone()),
            Self::Silent => ("silent", "the API server has sent nothing for too long".to_owned()),
        }
    }
}

/// What the end of a request means for the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// The source works.
    Healthy,
    /// An interruption that happens now and then to a source that works; it is logged.
    Interrupted,
    /// The server does not support `WatchList`; lists are used.
    ListFallback,
    /// The source does not work.
    Failing,
}

/// The listing that the reflector is getting.
#[derive(Debug, Default)]
struct Progress {
    /// The most recent one, whatever version is known.
    most_recent: bool,
    /// The token of the next page, and the version of the first page.
    page: Option<(Arc<str>, Version)>,
    /// Without pages, because a token expired.
    unpaged: bool,
}

/// The current request.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// A `WatchList` or a watch.
    is_watch: bool,
    began: Instant,
    /// When data last arrived.
    received: Instant,
    timeout: Duration,
    /// When the response began, with status 200.
    accepted: Option<Instant>,
    events: u64,
    /// Whether a watch has had a bookmark after its initial events.
    has_bookmarks: bool,
}

impl Attempt {
    fn new(is_watch: bool, now: Instant, timeout: Duration) -> Self {
        Self { is_watch, began: now, received: now, timeout, accepted: None, events: 0, has_bookmarks: false }
    }
}

/// The state machine. See the [module](self).
#[derive(Debug)]
pub struct Reflector {
    /// Nothing while the listing is complete and the reflector gets the changes.
    listing: Option<Progress>,
    version: Option<Version>,
    /// Whether a listing was completed in this run.
    listed: bool,
    lists_until: Option<Instant>,
    /// How many watches in a row the server ended with an error, or `WatchList`s before their initial events were complete.
    watch_errors: u32,
    /// Whether to probe before the next watch. If anything but the timeout has ended a watch or
    /// prevented one, or if one has brought nothing, not even a bookmark, the server may have been restored to an earlier
    /// state of etcd.
    /// Such a server accepts a watch from a future version, and sends nothing until it reaches
    /// that version; a probe it rejects.
    must_probe: bool,
    /// Whether watches that failed have forced the listing: that it is complete does not show that the next one works.
    must_watch: bool,
    retry: RetryDelay,
    /// For watches whose version had expired. The server works then, so earlier failures
    /// do not count.
    retry_expired: RetryDelay,
    next_at: Instant,
    attempt: Attempt,
}

impl Reflector {
    /// A reflector that starts now, from the version of a restored listing if there is one.
    pub fn new(version: Option<Version>, now: Instant) -> Self {
        Self {
            listing: Some(Progress::default()),
            version,
            listed: false,
            lists_until: None,
            watch_errors: 0,
            must_probe: false,
            must_watch: false,
            retry: RetryDelay::new(),
            retry_expired: RetryDelay::new(),
            next_at: now,
            attempt: Attempt::new(false, now, Duration::ZERO),
        }
    }

    /// Drops the version, because it is from another cluster.
    pub fn forget_version(&mut self) {
        (self.version, self.listing) = (None, Some(Progress::default()));
    }

    /// The version of the listing.
    pub fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// Whether the listing is complete, and only changes are requested.
    pub fn is_synced(&self) -> bool {
        self.listing.is_none()
    }

    /// When the next request may be made.
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Whether the response to the current request has begun with status 200.
    pub fn was_accepted(&self) -> bool {
        self.attempt.accepted.is_some()
    }

    /// The next request, which begins now. `fraction` is a random number from 0 to 1.
    pub fn next(&mut self, now: Instant, fraction: f64) -> Request {
        let timeout = WATCH.mul_f64(1.0 + fraction.clamp(0.0, 1.0));
        let request = match (&self.listing, &self.version) {
            (None, Some(version)) if self.must_probe => Request::Probe { version: version.clone() },
            (None, Some(version)) => Request::Watch { version: version.clone(), timeout },
            (Some(Progress { page: Some((token, _)), .. }), _) => {
                Request::List { at: ListVersion::Continue(token.clone()), limit: Some(PAGE) }
            }
            (Some(Progress { most_recent, unpaged, .. }), version) => {
                let version = version.clone().filter(|_| !most_recent);
                if self.lists_until.is_some_and(|until| now < until) {
                    let at = match version {
                        Some(version) => ListVersion::NotOlderThan(version),
                        // A relist at any version could go back in time on a server that lags.
                        None if *most_recent || self.listed => ListVersion::MostRecent,
                        None => ListVersion::Any,
                    };
                    Request::List { at, limit: (!self.listed && !unpaged).then_some(PAGE) }
                } else {
                    Request::WatchList { version, timeout }
                }
            }
            (None, None) => unreachable!("a complete listing has a version"),
        };
        let is_watch = matches!(request, Request::WatchList { .. } | Request::Watch { .. });
        self.attempt = Attempt::new(is_watch, now, timeout);
        request
    }

    /// Notes that the response has begun with status 200.
    pub fn accepted(&mut self, now: Instant) {
        (self.attempt.accepted, self.attempt.received) = (Some(now), now);
    }

    /// Notes that data arrived.
    pub fn received(&mut self, now: Instant) {
        self.attempt.received = now;
    }

    /// Until when more data must arrive.
    pub fn deadline(&self) -> Instant {
        let Attempt { is_watch, began, received, timeout, has_bookmarks, .. } = self.attempt;
        let end = began + timeout + WATCH_SLACK;
        match self.listing {
            _ if !is_watch => received + LIST_SILENCE,
            None if has_bookmarks => end.min(received + BOOKMARK_SILENCE),
            None => end,
            Some(_) => (received + INITIAL_EVENTS_SILENCE).min(began + INITIAL_EVENTS_LIMIT),
        }
    }

    /// When the current watch has been open for long enough to count as healthy.
    pub fn healthy_at(&self) -> Option<Instant> {
        let accepted = self.attempt.accepted.filter(|_| self.is_synced() && self.attempt.is_watch);
        accepted.map(|accepted| accepted + SHORT)
    }

    /// Whether what has arrived shows that the source works. After a listing that failed watches have forced, only a watch
    /// that has been open for long enough does.
    pub fn is_healthy(&self, now: Instant) -> bool {
        !self.must_watch || self.healthy_at().is_some_and(|healthy| healthy <= now)
    }

    /// Notes an event of a watch with this version. Initial events are not in the order
    /// of their versions, so they never set the version of the listing.
    pub fn event(&mut self, version: Option<Version>) {
        self.attempt.events += 1;
        if self.is_synced() {
            self.watch_errors = 0;
            self.version = version.or(self.version.take());
        }
    }

    /// Notes a bookmark. Returns whether it completes the listing.
    pub fn bookmark(&mut self, version: Version, ends_initial_events: bool) -> bool {
        let completes = ends_initial_events && !self.is_synced();
        if completes {
            self.complete(version);
        } else if self.is_synced() {
            self.attempt.has_bookmarks = true;
            self.event(Some(version));
        }
        completes
    }

    /// Notes the end of a list or of a page, and the token of the next page. Returns
    /// whether it completes the listing.
    pub fn page(&mut self, version: Version, token: &str) -> bool {
        let Some(listing) = &mut self.listing else { return false };
        // All pages show the moment of the first one.
        let version = listing.page.take().map_or(version, |(_, first)| first);
        if token.is_empty() {
            self.complete(version);
            return true;
        }
        listing.page = Some((token.into(), version));
        false
    }

    /// Whether the next or current request is for a page after the first.
    pub fn is_continuing(&self) -> bool {
        self.listing.as_ref().is_some_and(|listing| listing.page.is_some())
    }

    fn complete(&mut self, version: Version) {
        (self.listing, self.version, self.listed) = (None, Some(version), true);
        (self.watch_errors, self.must_probe) = (0, false);
        // A WatchList becomes a watch now.
        self.attempt.accepted = self.attempt.accepted.map(|_| self.attempt.received);
    }

    /// Notes the end of the request and decides what to request next, and when.
    pub fn end(&mut self, end: &RequestEnd, now: Instant, fraction: f64) -> RequestResult {
        self.next_at = now;
        self.must_watch = !self.is_healthy(now);
        let result = match end {
            RequestEnd::RelistRequested => {
                self.listing = Some(Progress::default());
                RequestResult::Healthy
            }
            RequestEnd::Listed => {
                self.must_probe = false;
                RequestResult::Healthy
            }
            _ if self.is_synced() => self.end_watch(end, now, fraction),
            _ => self.end_listing(end, now, fraction),
        };
        // A failure before the next request must not count as the end of this one.
        (self.attempt.accepted, self.attempt.events) = (None, 0);
        result
    }

    /// The request ended before the listing was complete.
    fn end_listing(&mut self, end: &RequestEnd, now: Instant, fraction: f64) -> RequestResult {
        let Some(listing) = &mut self.listing else { return RequestResult::Healthy };
        // Start again with the first page.
        let had_page = listing.page.take().is_some();
        let error = end.status_error();
        let is_stale = error.is_some_and(StatusError::is_stale);
        if is_stale && had_page && !listing.unpaged {
            // The token has expired: list once without pages.
            listing.unpaged = true;
            return RequestResult::Interrupted;
        }
        if is_stale && !listing.most_recent {
            *listing = Progress { most_recent: true, ..Progress::default() };
            return RequestResult::Interrupted;
        }
        let is_unfinished = self.was_accepted() && matches!(end, RequestEnd::Broken(_) | RequestEnd::Closed);
        self.watch_errors += u32::from(self.attempt.is_watch && is_unfinished);
        // A proxy may end sooner what an old server leaves silent.
        let is_unsupported = *end == RequestEnd::Silent && self.was_accepted()
            || is_unfinished && self.watch_errors >= MAX_WATCH_ERRORS
            || error.is_some_and(StatusError::is_invalid);
        if self.attempt.is_watch && is_unsupported {
            self.lists_until = Some(now + LIST_FALLBACK);
            return RequestResult::ListFallback;
        }
        self.fail(end, now, fraction);
        RequestResult::Failing
    }

    /// A watch or a probe ended.
    fn end_watch(&mut self, end: &RequestEnd, now: Instant, fraction: f64) -> RequestResult {
        let Attempt { is_watch, began, timeout, events, accepted, .. } = self.attempt;
        if !is_watch && matches!(end, RequestEnd::Rejected(error) if error.is_permanent()) {
            // Without a probe only a listing shows what the server has.
            self.listing = Some(Progress::default());
            return RequestResult::Healthy;
        }
        self.must_probe |= *end != RequestEnd::Closed || now + SHORT < began + timeout || events == 0;
        let is_short = events == 0 && now.duration_since(began) < SHORT;
        match end {
            // At most one request a second, probes included.
            RequestEnd::Closed if !is_short => {
                self.next_at = now.max(began + if self.must_probe { 2 * SHORT } else { SHORT });
                return RequestResult::Healthy;
            }
            RequestEnd::Rejected(error) | RequestEnd::ErrorEvent(error) if error.is_stale() => {
                self.listing = Some(Progress { most_recent: !error.is_expired(), ..Progress::default() });
                self.must_watch = true;
                let is_first = self.retry_expired.is_fresh(now);
                self.next_at = self.retry_expired.fail(now, fraction, error.retry_after);
                return if is_first { RequestResult::Interrupted } else { RequestResult::Failing };
            }
            RequestEnd::Rejected(error) if error.is_temporary() => {}
            RequestEnd::Rejected(_) | RequestEnd::ErrorEvent(_) | RequestEnd::Malformed(_) => {
                self.watch_errors += 1;
                if self.watch_errors >= MAX_WATCH_ERRORS {
                    (self.listing, self.watch_errors, self.must_watch) = (Some(Progress::default()), 0, true);
                }
            }
            _ => {}
        }
        // The first end of a watch that worked is not a failure yet.
        let is_first = self.retry.is_fresh(now);
        self.fail(end, now, fraction);
        if accepted.is_some() && !is_short && is_first {
            RequestResult::Interrupted
        } else {
            RequestResult::Failing
        }
    }

    fn fail(&mut self, end: &RequestEnd, now: Instant, fraction: f64) {
        let retry_after = end.status_error().and_then(|error| error.retry_after);
        self.next_at = self.retry.fail(now, fraction, retry_after);
    }
}

/// The growing delays before retries.
#[derive(Debug)]
struct RetryDelay {
    backoff: Backoff,
    last_failure: Option<Instant>,
}

impl RetryDelay {
    fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_DELAY, LONGEST_DELAY), last_failure: None }
    }

    /// Whether nothing has failed recently.
    fn is_fresh(&self, now: Instant) -> bool {
        self.last_failure.is_none_or(|last| now.duration_since(last) >= RESET_DELAY)
    }

    /// Notes a failure and returns when to retry: after the next delay of the backoff,
    /// and not before the server's `Retry-After`. `fraction` is a random number from 0 to 1.
    fn fail(&mut self, now: Instant, fraction: f64, retry_after: Option<Duration>) -> Instant {
        if self.is_fresh(now) {
            self.backoff.reset();
        }
        self.last_failure = Some(now);
        now + self.backoff.next(fraction).max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER))
    }
}
