//! Notifications to the service manager: systemd's protocol of sd_notify(3) and
//! sd_watchdog_enabled(3).
//!
//! A message is one datagram. A manager that is slow or gone delays no other task and is no
//! error.

use std::{
    collections::BTreeMap,
    fmt, io,
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

/// The longest status, in bytes. systemd drops datagrams of more than 4,096 bytes.
const MAX_STATUS: usize = 1024;
/// How long the end of the process waits for a manager that does not read.
const LAST_TIMEOUT: Duration = Duration::from_millis(500);

/// One item of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The start or a reload is complete.
    Ready,
    /// A reload begins. Sent with the monotonic time, which systemd requires from version
    /// 253 on in the same datagram.
    Reloading,
    /// The shutdown begins.
    Stopping,
    /// The status for people. Sent as one line of bounded length.
    Status(String),
    /// The error number with which the process ends.
    Errno(i32),
    /// The keep-alive of the watchdog.
    Watchdog,
    /// Asks for this much more time, from now on, for the current start or stop.
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

/// `CLOCK_MONOTONIC`, by which the manager distinguishes old reloads from new ones.
fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Replaces control characters, because a line break would start another item, and limits the length.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > MAX_STATUS {
        line.truncate(line.floor_char_boundary(MAX_STATUS - '…'.len_utf8()));
        line.push('…');
    }
    line
}

/// The service manager that started this process, if there is one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    address: Option<SocketAddr>,
    watchdog: Option<Duration>,
    /// Whether the last notification failed.
    failing: Arc<AtomicBool>,
}

impl Manager {
    /// The manager that the environment names: `NOTIFY_SOCKET` (a path, or `@` and an
    /// abstract name), `WATCHDOG_USEC` and `WATCHDOG_PID`. If there is none, or its address
    /// is of another kind, notifications do nothing.
    pub fn from_environment(environment: &BTreeMap<String, String>) -> Self {
        let address = environment.get("NOTIFY_SOCKET").and_then(|name| address(name));
        let watchdog = address.as_ref().and_then(|_| watchdog(environment));
        Self { address, watchdog, failing: Arc::default() }
    }

    /// Whether there is a manager.
    pub fn is_present(&self) -> bool {
        self.address.is_some()
    }

    /// The watchdog's timeout, if the manager has one for this process.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends a message. Waits while the manager's queue is full. Returns whether the message
    /// was sent. Cancel-safe: it is sent as a whole or not at all, and during the first poll
    /// if the queue has space.
    pub async fn notify(&self, states: &[State]) -> bool {
        let Some(address) = &self.address else { return false };
        let sent = async {
            let socket = connect(address)?;
            socket.set_nonblocking(true)?;
            let message = message(states);
            match socket.send(message.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::net::UnixDatagram::from_std(socket)?.send(message.as_bytes()).await
                }
                sent => sent,
            }
        };
        self.log(sent.await)
    }

    /// Sends the last message of the process, with a blocking call of at most half a second.
    pub fn notify_last(&self, states: &[State]) {
        let Some(address) = &self.address else { return };
        let send = || {
            let socket = connect(address)?;
            socket.set_write_timeout(Some(LAST_TIMEOUT))?;
            socket.send(message(states).as_bytes())
        };
        self.log(send());
    }

    /// Logs the first failure of an outage and its end. Returns whether the message was sent.
    fn log(&self, sent: io::Result<usize>) -> bool {
        let is_sent = sent.is_ok();
        match sent {
            Ok(_) if self.failing.swap(false, Ordering::Relaxed) => info!("service manager notified again"),
            Ok(_) => {}
            Err(error) if self.failing.swap(true, Ordering::Relaxed) => {
                debug!(%error, "service manager not notified");
            }
            Err(error) => warn!(%error, "service manager not notified"),
        }
        is_sent
    }
}

fn message(states: &[State]) -> String {
    let lines: Vec<String> = states.iter().map(|state| format!("{state}\n")).collect();
    lines.concat()
}

/// A new socket for each message, as in libsystemd: the manager may have been restarted.
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
