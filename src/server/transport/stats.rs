//! How many connections and requests the transport has seen, and why it refused some.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Counters of the transport, from its start. Cheap to clone, cheap to read.
#[derive(Clone, Debug, Default)]
pub struct ConnectionStats(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    open: AtomicUsize,
    accepted: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// Why a connection or a request was refused or cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// The connection made room for another.
    Room,
    /// No TLS connection came about.
    Handshake,
    /// The headers took too long.
    Headers,
    /// The body took too long.
    BodyTime,
    /// The body was too large.
    BodySize,
    /// There was no memory left for the body.
    BodyMemory,
    /// The client did not take its answer.
    Stalled,
    /// The request was for another host.
    Host,
    /// The request came from a web page.
    Origin,
    /// Neither token nor certificate, or a wrong one.
    Unauthorized,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Room,
        Self::Handshake,
        Self::Headers,
        Self::BodyTime,
        Self::BodySize,
        Self::BodyMemory,
        Self::Stalled,
        Self::Host,
        Self::Origin,
        Self::Unauthorized,
    ];

    /// Its name as a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Handshake => "handshake",
            Self::Headers => "headers_timeout",
            Self::BodyTime => "body_timeout",
            Self::BodySize => "body_too_large",
            Self::BodyMemory => "body_memory",
            Self::Stalled => "stalled",
            Self::Host => "foreign_host",
            Self::Origin => "origin",
            Self::Unauthorized => "unauthorized",
        }
    }
}

impl ConnectionStats {
    /// How many connections are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// How many were ever accepted.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.0.accepted.load(Ordering::Relaxed)
    }

    /// How many were ever refused or cut off for a reason.
    #[must_use]
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.0.refused[reason as usize].load(Ordering::Relaxed)
    }

    pub(super) fn refuse(&self, reason: Refusal) {
        self.0.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection until the guard is dropped.
    pub(super) fn connected(&self) -> Connected {
        self.0.accepted.fetch_add(1, Ordering::Relaxed);
        self.0.open.fetch_add(1, Ordering::Relaxed);
        Connected(self.clone())
    }
}

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Connected(ConnectionStats);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
