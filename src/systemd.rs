//! The service manager, as systemd is one: what it is told over the datagram socket that it names.
//!
//! The protocol of sd_notify(3) and sd_watchdog_enabled(3). A message is one
//! datagram; a manager that is slow or gone blocks nobody and fails nothing.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tracing::{debug, info, warn};

/// The longest status, in bytes. systemd drops a datagram of more than 4,096 as
/// a whole, and nobody reads more than this in one line.
const LONGEST_STATUS: usize = 1024;
/// How long the end of the process waits for a manager that reads nothing.
const LAST_WORD: Duration = Duration::from_millis(500);

/// One line of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The start, or a reload, is done.
    Ready,
    /// A reload begins. With the monotonic time at which it is sent, in the same
    /// datagram: systemd from 253 on takes no reload without it.
    Reloading,
    /// The end begins.
    Stopping,
    /// How all is, for people. Sent as one line of bounded length.
    Status(String),
    /// The error number that the process ends with.
    Errno(i32),
    /// A sign of life.
    Watchdog,
    /// The start or the stop that is under way may take this long from now on.
    ExtendTimeout(Duration),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("READY=1"),
            Self::Reloading => write!(f, "RELOADING=1\nMONOTONIC_USEC={}", monotonic().as_micros()),
            Self::Stopping => f.write_str("STOPPING=1"),
            Self::Status(text) => write!(f, "STATUS={}", one_line(text)),
            Self::Errno(number) => write!(f, "ERRNO={number}"),
            Self::Watchdog => f.write_str("WATCHDOG=1"),
            Self::ExtendTimeout(time) => write!(f, "EXTEND_TIMEOUT_USEC={}", time.as_micros()),
        }
    }
}

/// `CLOCK_MONOTONIC`: the clock by which the manager tells old reloads from new ones.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.try_into().unwrap_or_default(), now.tv_nsec.try_into().unwrap_or_default())
}

/// A line break would begin a line of the protocol, so no control character stays.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > LONGEST_STATUS {
        line.truncate(line.floor_char_boundary(LONGEST_STATUS - '…'.len_utf8()));
        line.push('…');
    }
    line
}

/// The service manager that has started this process, if one has. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    address: Option<SocketAddr>,
    watchdog: Option<Duration>,
    /// Whether it was said that it cannot be told anything.
    unheard: Arc<AtomicBool>,
}

impl Manager {
    /// The one that the environment names: `NOTIFY_SOCKET`, a path or, after an
    /// `@`, an abstract name; `WATCHDOG_USEC` and `WATCHDOG_PID`. If there is
    /// none, or its address is of another kind, telling does nothing at all.
    #[must_use]
    pub fn named_in(environment: &BTreeMap<String, String>) -> Self {
        let address = environment.get("NOTIFY_SOCKET").and_then(|name| address(name));
        let watchdog = address.as_ref().and_then(|_| watchdog(environment));
        Self { address, watchdog, unheard: Arc::default() }
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.address.is_some()
    }

    /// How long it waits for a sign of life before it ends the process, if it does.
    #[must_use]
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends a message. Waits for as long as the manager's queue is full; one
    /// that is gone misses the message. Returns whether it was sent. Cancel-safe:
    /// it is sent whole or not at all.
    pub async fn tell(&self, states: &[State]) -> bool {
        let Some(address) = &self.address else { return false };
        let sent = async {
            let socket = connect(address)?;
            socket.set_nonblocking(true)?;
            tokio::net::UnixDatagram::from_std(socket)?.send(message(states).as_bytes()).await
        };
        self.note(sent.await)
    }

    /// Sends a message from where nothing can be waited for: at the end of the
    /// process. A manager that takes nothing for half a second misses it.
    pub fn tell_last(&self, states: &[State]) {
        let Some(address) = &self.address else { return };
        let send = || {
            let socket = connect(address)?;
            socket.set_write_timeout(Some(LAST_WORD))?;
            socket.send(message(states).as_bytes())
        };
        self.note(send());
    }

    /// Says once that nothing can be said, and once that it can be again.
    fn note(&self, sent: io::Result<usize>) -> bool {
        let is_sent = sent.is_ok();
        match sent {
            Ok(_) if self.unheard.swap(false, Ordering::Relaxed) => {
                info!("recovered: the service manager can be told again");
            }
            Ok(_) => {}
            Err(error) if self.unheard.swap(true, Ordering::Relaxed) => {
                debug!(%error, "the service manager still cannot be told");
            }
            Err(error) => warn!(%error, "the service manager at NOTIFY_SOCKET cannot be told how all is"),
        }
        is_sent
    }
}

fn message(states: &[State]) -> String {
    let mut message = String::new();
    for state in states {
        // Writing to memory cannot fail.
        let _ = writeln!(message, "{state}");
    }
    message
}

/// A new one for each message, as libsystemd does: the manager may have bound its address anew.
fn connect(address: &SocketAddr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(address)?;
    Ok(socket)
}

fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None => name.starts_with('/').then(|| SocketAddr::from_pathname(name).ok()).flatten(),
    }
}

fn watchdog(environment: &BTreeMap<String, String>) -> Option<Duration> {
    let ours = |pid: &String| pid.parse() == Ok(rustix::process::getpid().as_raw_nonzero().get());
    if !environment.get("WATCHDOG_PID").is_none_or(ours) {
        return None;
    }
    let time = environment.get("WATCHDOG_USEC")?.parse().ok().filter(|time| *time > 0)?;
    Some(Duration::from_micros(time))
}
