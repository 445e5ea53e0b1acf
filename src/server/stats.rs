//! Counters of connections and of rejected connections and requests.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

/// The transport's counters since its start. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionStats {
    pub(super) open: Gauge,
    pub(super) watchers: Gauge,
    pub(super) accepted: Counter,
    /// When the server's certificate expires, in seconds since 1970; 0 without one.
    pub(super) certificate_end: Gauge,
    pub(super) rejected: Family<[(&'static str, &'static str); 1], Counter>,
}

/// Counts one connection or watcher as open until it is dropped.
#[derive(Debug)]
pub(super) struct Open(Gauge);

/// Why the transport rejected or closed a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RejectReason {
    /// All slots of the listener were in use: the connection waited for one, or was closed.
    Full,
    /// The TLS handshake failed or took too long.
    Handshake,
    /// The headers took too long.
    HeadersTimeout,
    /// There were too many headers.
    HeadersSize,
    /// The body took too long.
    BodyTimeout,
    /// The body was too large.
    BodySize,
    /// Too many large bodies were read and decoded at the time.
    LargeBodies,
    /// Too many small bodies waited for their answers.
    SmallBodies,
    /// The client did not read the response.
    Stalled,
    /// The request was for another host.
    Host,
    /// The request came from a web page.
    Origin,
    /// The token or certificate was missing or wrong, or the caller asked to be another user.
    Unauthorized,
}

impl RejectReason {
    /// All reasons in the order of their declaration, with their values of the metric's label.
    pub(super) const LABELS: [(Self, &'static str); 12] = [
        (Self::Full, "room"),
        (Self::Handshake, "handshake"),
        (Self::HeadersTimeout, "headers_timeout"),
        (Self::HeadersSize, "headers_too_large"),
        (Self::BodyTimeout, "body_timeout"),
        (Self::BodySize, "body_too_large"),
        (Self::LargeBodies, "large_bodies"),
        (Self::SmallBodies, "small_bodies"),
        (Self::Stalled, "stalled"),
        (Self::Host, "foreign_host"),
        (Self::Origin, "origin"),
        (Self::Unauthorized, "unauthorized"),
    ];
}

impl ConnectionStats {
    /// The number of open connections.
    pub fn open(&self) -> usize {
        usize::try_from(self.open.get()).unwrap_or_default()
    }

    /// The number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    /// The number of connections and requests rejected so far for a reason.
    pub fn rejected(&self, reason: RejectReason) -> u64 {
        self.counter(reason).get()
    }

    pub(super) fn reject(&self, reason: RejectReason) {
        self.counter(reason).inc();
    }

    fn counter(&self, reason: RejectReason) -> Counter {
        self.rejected.get_or_create_owned(&[("reason", RejectReason::LABELS[reason as usize].1)])
    }

    /// Counts a connection as open until the guard is dropped.
    pub(super) fn connected(&self) -> Open {
        self.accepted.inc();
        Open::new(&self.open)
    }

    /// Counts a client that follows the updates until the guard is dropped.
    pub(super) fn watching(&self) -> Open {
        Open::new(&self.watchers)
    }
}

impl Open {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
