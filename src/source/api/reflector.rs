//! The reflector's state machine: which request is next, what its answer means, when to ask again.
//!
//! Pure: time and dice are passed in, nothing is read or sent. The driver asks
//! for the [`next`](Reflector::next) request, tells what comes of it, and how it
//! [ended](Reflector::ended). After client-go's Reflector
//! (`client-go/tools/cache/reflector.go`, v0.36.3); where it differs on purpose
//! the comments say so.
//!
//! A resource version is opaque: it is stored and sent back, never compared.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{answer::Refusal, backoff::Backoff};

/// How many pods a page of the first list has.
pub const PAGE: u32 = 500;
/// How long a server that should stream its listing may say nothing before it
/// is taken for one that does not know how to, and lists instead;
const INITIAL_SILENCE: Duration = Duration::from_secs(10);
/// and how long it may go on without an end to it.
const INITIAL_BOUND: Duration = Duration::from_mins(1);
/// For how long lists are used after that.
const NO_WATCH_LIST: Duration = Duration::from_mins(30);
/// A watch is asked for so long, and up to twice that: not all nodes at once.
const WATCH: Duration = Duration::from_mins(5);
/// How much longer than asked for a watch may stand before it is taken for dead.
const WATCH_SLACK: Duration = Duration::from_secs(30);
/// How long a list may give nothing before it is given up.
const LIST_SILENCE: Duration = Duration::from_mins(1);
/// A watch that ends sooner, without an event, did not work.
pub const SHORT: Duration = Duration::from_secs(1);
/// How many watches in a row may end by an error of the server, without an
/// event between, before it is listed again. (client-go lists at the first.)
const STRIKES: u32 = 2;

/// A resource version.
pub type Version = Arc<str>;

/// A request for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A watch that begins with the whole listing, not older than the version;
    /// the newest without one.
    WatchList { version: Option<Version>, timeout: Duration },
    /// A list.
    List { at: At, limit: Option<u32> },
    /// Whether the server has come as far as the version.
    Probe {
        /// The version.
        version: Version,
    },
    /// What happened after the version.
    Watch { version: Version, timeout: Duration },
}

/// Of when a list shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// Whatever the server has at hand.
    Any,
    /// Not older than this version.
    NotOlderThan(Version),
    /// The newest.
    Newest,
    /// The page after the one that gave this token.
    Page(Arc<str>),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A list, or a page of one, is complete.
    Listed,
    /// The server ended a watch in good order.
    Closed,
    /// The answer was no 200.
    Refused(Refusal),
    /// An ERROR event.
    Error(Refusal),
    /// There was no connection, or it broke.
    Broken(String),
    /// What came is nothing that an API server writes.
    Garbage(String),
    /// Nothing came for too long.
    Silent,
    /// No request could be made: something is wrong with the kubeconfig.
    NoClient(String),
    /// The same, and the credential plugin may have said why in its own words.
    NoCredential(String),
    /// Somebody wants a fresh listing.
    Asked,
}

/// What an end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Well,
    /// What happens now and then to a source that is well; worth a line in the log.
    Usual,
    /// The server does not stream listings; lists are used.
    NoWatchList,
    /// The source does not work.
    Failing,
}

/// What is to be done with the collected listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing yet.
    None,
    /// It is complete: it is what there is now.
    Replace,
}

/// What is wanted next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Want {
    /// The whole listing.
    Listing {
        /// Not what is known, but the newest.
        newest: bool,
        /// The next page of a list that is under way, and the version of its first.
        page: Option<(Arc<str>, Version)>,
        /// No more pages: a token expired.
        whole: bool,
    },
    /// What happens after the version that is known.
    Changes,
}

impl Want {
    const LISTING: Self = Self::Listing { newest: false, page: None, whole: false };
    const NEWEST: Self = Self::Listing { newest: true, page: None, whole: false };
}

/// The request that is under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// A `WatchList` or a watch.
    is_watch: bool,
    began: Instant,
    /// When the server last sent anything.
    heard: Instant,
    timeout: Duration,
    /// The answer has begun, and it is a 200.
    accepted: bool,
    events: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Reflector {
    want: Want,
    version: Option<Version>,
    /// Whether there has been a whole listing in this run.
    listed: bool,
    lists_until: Option<Instant>,
    strikes: u32,
    /// Whether the server may be one that does not know the version yet. A
    /// watch that did not end in its time may have ended with the server, and
    /// what comes back may be of an earlier time (etcd restored): such a server
    /// takes a watch from its future, and says nothing of what happens until it
    /// has come there. A list not older than the version it refuses.
    is_unsure: bool,
    backoff: Backoff,
    /// For watches whose version was gone: the server is there and answers, so
    /// what failed before does not count.
    stale: Backoff,
    next_at: Instant,
    attempt: Attempt,
}

impl Reflector {
    /// One that begins now, with the version of a restored listing if there is one.
    #[must_use]
    pub fn new(version: Option<Version>, now: Instant) -> Self {
        let attempt = Attempt {
            is_watch: false,
            began: now,
            heard: now,
            timeout: Duration::ZERO,
            accepted: false,
            events: 0,
        };
        Self {
            want: Want::LISTING,
            version,
            listed: false,
            lists_until: None,
            strikes: 0,
            is_unsure: false,
            backoff: Backoff::default(),
            stale: Backoff::default(),
            next_at: now,
            attempt,
        }
    }

    /// Drops the version: it is that of another cluster.
    pub fn forget(&mut self) {
        (self.version, self.want) = (None, Want::LISTING);
    }

    /// The version that is known.
    #[must_use]
    pub fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// Whether the listing that is known is complete, and only changes are wanted.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.want == Want::Changes
    }

    /// When the next request may be made.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Whether the last request was answered by a 200.
    #[must_use]
    pub fn was_accepted(&self) -> bool {
        self.attempt.accepted
    }

    /// The next request, which begins now.
    pub fn next(&mut self, now: Instant, dice: f64) -> Request {
        let timeout = WATCH.mul_f64(1.0 + dice.clamp(0.0, 1.0));
        let request = match (&self.want, &self.version) {
            (Want::Changes, Some(version)) if self.is_unsure => Request::Probe { version: version.clone() },
            (Want::Changes, Some(version)) => Request::Watch { version: version.clone(), timeout },
            (Want::Listing { page: Some((token, _)), .. }, _) => {
                Request::List { at: At::Page(token.clone()), limit: Some(PAGE) }
            }
            (Want::Listing { newest, whole, .. }, version) => {
                let version = version.clone().filter(|_| !newest);
                if self.lists_until.is_some_and(|until| now < until) {
                    let at = match version {
                        Some(version) => At::NotOlderThan(version),
                        // A relist at any version might go back in time on a server that lags.
                        None if *newest || self.listed => At::Newest,
                        None => At::Any,
                    };
                    Request::List { at, limit: (!self.listed && !whole).then_some(PAGE) }
                } else {
                    Request::WatchList { version, timeout }
                }
            }
            (Want::Changes, None) => unreachable!("a listing has a version"),
        };
        let is_watch = matches!(request, Request::WatchList { .. } | Request::Watch { .. });
        self.attempt = Attempt { is_watch, began: now, heard: now, timeout, accepted: false, events: 0 };
        request
    }

    /// The answer has begun, and it is a 200.
    pub fn accepted(&mut self, now: Instant) {
        self.attempt.accepted = true;
        self.attempt.heard = now;
    }

    /// Something came.
    pub fn heard(&mut self, now: Instant) {
        self.attempt.heard = now;
    }

    /// Until when something more must come.
    #[must_use]
    pub fn patience(&self) -> Instant {
        let Attempt { is_watch, began, heard, timeout, .. } = self.attempt;
        match self.want {
            _ if !is_watch => heard + LIST_SILENCE,
            Want::Changes => began + timeout + WATCH_SLACK,
            Want::Listing { .. } => (heard + INITIAL_SILENCE).min(began + INITIAL_BOUND),
        }
    }

    /// When a watch that stands has stood for long enough to be called well.
    #[must_use]
    pub fn well_at(&self) -> Option<Instant> {
        (self.is_synced() && self.attempt.is_watch && self.attempt.accepted)
            .then(|| self.attempt.began + SHORT)
    }

    /// A watch brought an object of this version. While the listing is being
    /// collected they come in no order, and say nothing about how far it is.
    pub fn event(&mut self, version: Option<Version>) {
        self.attempt.events += 1;
        if self.is_synced() {
            self.strikes = 0;
            self.version = version.or(self.version.take());
        }
    }

    /// A watch brought a bookmark, perhaps the one that ends the initial events.
    pub fn bookmark(&mut self, version: Version, ends_initial_events: bool) -> Deed {
        if self.is_synced() {
            self.event(Some(version));
            return Deed::None;
        }
        if !ends_initial_events {
            return Deed::None;
        }
        self.complete(version);
        Deed::Replace
    }

    /// A list, or a page of it, is complete; `token` is that of the next page.
    pub fn page(&mut self, version: Version, token: &str) -> Deed {
        let Want::Listing { newest, page, whole } = &self.want else { return Deed::None };
        // All pages are of one moment, that of the first.
        let version = page.as_ref().map_or(version, |(_, first)| first.clone());
        if token.is_empty() {
            self.complete(version);
            return Deed::Replace;
        }
        self.want = Want::Listing { newest: *newest, page: Some((token.into(), version)), whole: *whole };
        Deed::None
    }

    /// Whether the request under way goes on with a list that has begun.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        matches!(self.want, Want::Listing { page: Some(_), .. })
    }

    fn complete(&mut self, version: Version) {
        (self.want, self.version, self.listed, self.strikes) = (Want::Changes, Some(version), true, 0);
        self.is_unsure = false;
    }

    /// The request has ended: what is wanted next, and when.
    pub fn ended(&mut self, end: &End, now: Instant, dice: f64) -> Verdict {
        self.next_at = now;
        let verdict = match end {
            End::Asked => {
                self.want = Want::LISTING;
                Verdict::Well
            }
            End::Listed => {
                self.is_unsure = false;
                Verdict::Well
            }
            _ if self.is_synced() => self.watch_ended(end, now, dice),
            _ => self.listing_ended(end, now, dice),
        };
        // What comes to nothing before the next request is made is not its end.
        (self.attempt.accepted, self.attempt.events) = (false, 0);
        verdict
    }

    /// A listing was not completed.
    fn listing_ended(&mut self, end: &End, now: Instant, dice: f64) -> Verdict {
        let Want::Listing { newest, page, whole } = self.want.clone() else { return Verdict::Well };
        let refusal = match end {
            End::Refused(refusal) | End::Error(refusal) => Some(refusal),
            _ => None,
        };
        let is_stale = refusal.is_some_and(Refusal::is_stale);
        if is_stale && page.is_some() && !whole {
            // The token is as old as its page. Now without pages, once.
            self.want = Want::Listing { newest, page: None, whole: true };
            return Verdict::Usual;
        }
        if is_stale && !newest {
            self.want = Want::NEWEST;
            return Verdict::Usual;
        }
        let is_deaf =
            *end == End::Silent && self.attempt.accepted || refusal.is_some_and(Refusal::is_invalid);
        if self.attempt.is_watch && is_deaf {
            self.lists_until = Some(now + NO_WATCH_LIST);
            return Verdict::NoWatchList;
        }
        // From the first page on.
        self.want = Want::Listing { newest, page: None, whole };
        self.fail(end, now, dice);
        Verdict::Failing
    }

    /// A watch ended that had a listing to begin with.
    fn watch_ended(&mut self, end: &End, now: Instant, dice: f64) -> Verdict {
        let Attempt { is_watch, began, timeout, events, accepted, .. } = self.attempt;
        if !is_watch && matches!(end, End::Refused(refusal) if refusal.is_about_the_request()) {
            // It does not say.
            self.is_unsure = false;
            return Verdict::Well;
        }
        self.is_unsure |= match end {
            End::Closed => now + SHORT < began + timeout,
            End::Broken(_) | End::Garbage(_) | End::Silent => true,
            // Whoever answers is there.
            _ => false,
        };
        let is_short = events == 0 && now.duration_since(began) < SHORT;
        match end {
            // Not more than one a second, whatever the server does; a probe is one too.
            End::Closed if !is_short => {
                self.next_at = now.max(began + if self.is_unsure { 2 * SHORT } else { SHORT });
                return Verdict::Well;
            }
            End::Refused(refusal) | End::Error(refusal) if refusal.is_stale() => {
                self.want = if refusal.is_expired() { Want::LISTING } else { Want::NEWEST };
                let is_first = self.stale.is_fresh(now);
                self.next_at = self.stale.fail(now, dice, refusal.retry_after);
                return if is_first { Verdict::Usual } else { Verdict::Failing };
            }
            End::Refused(refusal) if refusal.is_about_the_moment() => {}
            End::Refused(_) | End::Error(_) | End::Garbage(_) => {
                self.strikes += 1;
                if self.strikes >= STRIKES {
                    (self.want, self.strikes) = (Want::LISTING, 0);
                }
            }
            _ => {}
        }
        // That a watch which stood comes to an end is no failure yet.
        let is_first = self.backoff.is_fresh(now);
        self.fail(end, now, dice);
        if accepted && !is_short && is_first { Verdict::Usual } else { Verdict::Failing }
    }

    fn fail(&mut self, end: &End, now: Instant, dice: f64) {
        let asked = match end {
            End::Refused(refusal) | End::Error(refusal) => refusal.retry_after,
            _ => None,
        };
        self.next_at = self.backoff.fail(now, dice, asked);
    }
}
