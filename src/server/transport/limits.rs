//! The limits of connections, time and memory.

use std::time::Duration;

use crate::server::{body::LARGE_BODIES, slots::MAX_WATCHERS};

/// The limits of the transport. The program uses [`Limits::default`]; tests use smaller ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximal number of connections of a listener. More wait in the kernel, and idle ones
    /// give way.
    pub connections: usize,
    /// The maximal number of clients of a listener that follow the updates.
    pub watchers: usize,
    /// How long a client may take to send a request's headers: from the beginning of the
    /// connection with its TLS handshake, and from the first byte of each later request.
    pub headers: Duration,
    /// How long a connection is kept for a client's next request.
    pub idle: Duration,
    /// The maximal size of a request's body, in bytes.
    pub body: usize,
    /// A client must send the rest of a body, or `pace` bytes of it, in each period of this
    /// length. A request waits as long for other large bodies.
    pub body_time: Duration,
    /// See `body_time`. The default is 50 KiB a second: 10 MiB take 200 s at most, and a client
    /// that sends single bytes is rejected after `body_time`.
    pub pace: usize,
    /// How many bodies of more than [`SMALL_BODY`](crate::server::SMALL_BODY) bytes are read and
    /// decoded at a time. Root and the agent's own user have one more on Unix sockets.
    pub large_bodies: usize,
    /// How many smaller bodies, which have arrived, are decoded and answered at a time.
    pub small_bodies: usize,
    /// How long a client may read nothing of a response: a client that never reads holds its slot
    /// no longer than one that never sends.
    pub stall: Duration,
    /// How long requests may take to end after the server was stopped.
    pub drain: Duration,
    /// How often the files of token and certificates are checked for changes.
    pub reload: Duration,
}

/// The maximal size of a request's line and headers, in bytes.
pub(super) const HEAD: usize = 64 * 1024;
/// The maximal number of headers of a request, as hyper has it for HTTP/1.
pub(super) const HEADERS: usize = 100;
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
/// TCP keepalive: the idle time, the number of probes and their interval. A dead connection
/// is closed after three minutes.
pub(super) const KEEPALIVE: (Duration, u32, Duration) = (Duration::from_mins(1), 4, Duration::from_secs(30));

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            watchers: MAX_WATCHERS,
            headers: Duration::from_secs(10),
            idle: Duration::from_mins(2),
            body: 10 * 1024 * 1024,
            body_time: Duration::from_secs(10),
            pace: 512 * 1024,
            large_bodies: LARGE_BODIES,
            small_bodies: 256,
            stall: Duration::from_secs(10),
            drain: Duration::from_secs(2),
            reload: Duration::from_secs(10),
        }
    }
}
