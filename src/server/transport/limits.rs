//! The limits of connections, time and memory.

use std::time::Duration;

/// The limits of the transport. The program uses [`Limits::default`]; tests use smaller ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximal number of connections over all listeners. One more closes the connection
    /// with the lowest priority: an idle or stalled one first.
    pub connections: usize,
    /// How long a client may take to send a request's headers: from the beginning of the
    /// connection with its TLS handshake, and from the first byte of each later request.
    pub headers: Duration,
    /// How long a connection is kept for a client's next request.
    pub idle: Duration,
    /// The maximal size of a request's body, in bytes.
    pub body: usize,
    /// A client must send the rest of a body, or `pace` bytes of it, in each period of this
    /// length.
    pub body_time: Duration,
    /// See `body_time`. The default is 50 KiB a second.
    pub pace: usize,
    /// The memory for the bodies of all requests, in bytes, without the first
    /// [`SMALL_BODY`](crate::server::SMALL_BODY) bytes of each.
    pub large_bodies: usize,
    /// The memory for the first bytes of all bodies. It is separate, so that large bodies do
    /// not block small ones.
    pub small_bodies: usize,
    /// How long a client may read nothing of a response. Its connection is closed after one to
    /// two times this.
    pub stall: Duration,
    /// How long requests may take to end after the server was stopped.
    pub drain: Duration,
    /// How often the files of token and certificates are checked for changes.
    pub reload: Duration,
}

/// The maximal size of a request's line and headers, in bytes.
pub(super) const HEAD: usize = 64 * 1024;
/// The maximal number of concurrent requests on one HTTP/2 connection.
pub(super) const STREAMS: u32 = 32;
/// How many bytes of bodies a client may send ahead on one HTTP/2 connection.
pub(super) const WINDOW: u32 = 256 * 1024;
/// How many bytes of a response are buffered: in the kernel for each connection, and in HTTP/2
/// for each request.
pub(super) const SEND_BUFFER: u32 = 64 * 1024;
/// How many connections wait in the kernel until they are accepted.
pub(super) const BACKLOG: u32 = 1024;
/// How many file descriptors are reserved for the rest of the agent.
pub(super) const SPARE_FILES: usize = 256;
/// How long unread input is discarded before a connection is closed. A socket that is closed
/// with unread input is reset, and the client loses the response.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// TCP keepalive: the idle time, the number of probes and their interval. A dead connection
/// is closed after three minutes.
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
            reload: Duration::from_secs(10),
        }
    }
}
