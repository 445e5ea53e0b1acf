//! Counters of connections and of rejected connections and requests.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The transport's counters since its start. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionStats(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    open: Arc<()>,
    watchers: Arc<()>,
    accepted: AtomicU64,
    rejected: [AtomicU64; RejectReason::LABELS.len()],
}

/// Counts one connection or watcher as open until it is dropped.
pub(super) type Open = Arc<()>;

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
    /// The body took too long.
    BodyTimeout,
    /// The body was too large.
    BodySize,
    /// Too many large bodies were read and decoded at the time.
    LargeBodies,
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
    pub const LABELS: [(Self, &'static str); 10] = [
        (Self::Full, "room"),
        (Self::Handshake, "handshake"),
        (Self::HeadersTimeout, "headers_timeout"),
        (Self::BodyTimeout, "body_timeout"),
        (Self::BodySize, "body_too_large"),
        (Self::LargeBodies, "large_bodies"),
        (Self::Stalled, "stalled"),
        (Self::Host, "foreign_host"),
        (Self::Origin, "origin"),
        (Self::Unauthorized, "unauthorized"),
    ];
}

impl ConnectionStats {
    /// The number of open connections.
    pub fn open(&self) -> usize {
        Arc::strong_count(&self.0.open) - 1
    }

    /// The number of clients that follow the updates.
    pub fn watchers(&self) -> usize {
        Arc::strong_count(&self.0.watchers) - 1
    }

    /// The number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.0.accepted.load(Ordering::Relaxed)
    }

    /// The number of connections and requests rejected so far for a reason.
    pub fn rejected(&self, reason: RejectReason) -> u64 {
        self.0.rejected[reason as usize].load(Ordering::Relaxed)
    }

    pub(super) fn reject(&self, reason: RejectReason) {
        self.0.rejected[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection.
    pub(super) fn connected(&self) -> Open {
        self.0.accepted.fetch_add(1, Ordering::Relaxed);
        self.0.open.clone()
    }

    /// Counts a client that follows the updates.
    pub(super) fn watching(&self) -> Open {
        self.0.watchers.clone()
    }
}
