//! Counters of connections and of rejected connections and requests.

use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

/// The transport's counters since its start. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionStats {
    pub(super) open: Gauge,
    pub(super) accepted: Counter,
    pub(super) rejected: Family<[(&'static str, &'static str); 1], Counter>,
}

/// Why the transport rejected or closed a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RejectReason {
    /// The connection was closed to admit another one.
    Evicted,
    /// The TLS handshake failed or took too long.
    Handshake,
    /// The headers took too long.
    HeadersTimeout,
    /// The body took too long.
    BodyTimeout,
    /// The body was too large.
    BodySize,
    /// All memory for bodies was in use.
    BodyMemory,
    /// The client did not read the response.
    Stalled,
    /// The request was for another host.
    Host,
    /// The request came from a web page.
    Origin,
    /// The token or certificate was missing or wrong.
    Unauthorized,
}

impl RejectReason {
    /// All reasons in the order of their declaration, with their values of the metric's label.
    pub(super) const LABELS: [(Self, &'static str); 10] = [
        (Self::Evicted, "room"),
        (Self::Handshake, "handshake"),
        (Self::HeadersTimeout, "headers_timeout"),
        (Self::BodyTimeout, "body_timeout"),
        (Self::BodySize, "body_too_large"),
        (Self::BodyMemory, "body_memory"),
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
    pub(super) fn connected(&self) -> OpenConnection {
        self.accepted.inc();
        self.open.inc();
        OpenConnection(self.open.clone())
    }
}

/// Counts a connection as open.
#[derive(Debug)]
pub(super) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
