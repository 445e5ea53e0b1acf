//! What a client may take of the server: connections, time and memory.

use std::time::Duration;

/// The bounds of the transport. [`Limits::default`] is what the program has;
/// tests have smaller ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many connections there are at a time, over all listeners. One more
    /// closes the one that is missed least, see [`Limits::headers`].
    pub connections: usize,
    /// How long it may take from a connection's beginning, and from the first
    /// byte of any later request, until the request's headers are there. A TLS
    /// handshake counts.
    pub headers: Duration,
    /// How long a connection is kept for a client's next request.
    pub idle: Duration,
    /// How large a request's body may be, in bytes.
    pub body: usize,
    /// A body has to end, or to bring `pace` bytes, in each such time. Whoever
    /// sends a byte a second is out after the first.
    pub body_time: Duration,
    /// See `body_time`. 50 KiB a second is slow even for a modem on a mountain.
    pub pace: usize,
    /// How much of all requests' bodies is in memory at a time, in bytes, beyond
    /// the first [`SMALL_BODY`](super::SMALL_BODY) of each.
    pub large_bodies: usize,
    /// The same for these first bytes, which have a share of their own: large
    /// bodies do not crowd small ones out.
    pub small_bodies: usize,
    /// How long a client may take nothing of an answer of which there is more; it
    /// is cut off after between one and two times this.
    pub stall: Duration,
    /// How long requests have to end after the server was asked to stop.
    pub drain: Duration,
    /// How often the files of token and certificates are looked at.
    pub reread: Duration,
}

/// The largest head of a request, in bytes: line and headers.
pub(super) const HEAD: usize = 64 * 1024;
/// How many requests a client has at a time on one HTTP/2 connection.
pub(super) const STREAMS: u32 = 32;
/// How many bytes of bodies a client may send ahead on one HTTP/2 connection.
pub(super) const WINDOW: u32 = 256 * 1024;
/// How many bytes of an answer wait in the kernel for a client, and in HTTP/2 for each request.
pub(super) const SEND_BUFFER: u32 = 64 * 1024;
/// How many connections wait in the kernel until they are accepted.
pub(super) const BACKLOG: u32 = 1024;
/// How many file descriptors are left to the rest of the agent.
pub(super) const SPARE_FILES: usize = 256;
/// How long what a client still sends is read and thrown away before its
/// connection is closed: what lies unread would take our last answer with it.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// After how long a client that is silent is asked whether it is still there,
/// how often, and in which steps. Three minutes after a cable was cut its connection is gone.
pub(super) const KEEPALIVE: (Duration, u32, Duration) = (Duration::from_mins(1), 4, Duration::from_secs(30));

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            headers: Duration::from_secs(10),
            idle: Duration::from_mins(2),
            body: 10 * 1024 * 1024,
            body_time: Duration::from_secs(10),
            pace: 512 * 1024,
            large_bodies: 64 * 1024 * 1024,
            small_bodies: 64 * 1024 * 1024,
            stall: Duration::from_mins(1),
            drain: Duration::from_secs(2),
            reread: Duration::from_secs(1),
        }
    }
}
