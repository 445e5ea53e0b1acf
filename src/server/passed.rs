//! The sockets that systemd passed to this process: received once, and checked before they are served.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    net::SocketAddr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
};

use listenfd::ListenFd;
use rustix::{
    io::Errno,
    net::{SocketAddrUnix, getsockname, sockopt},
};

use super::address::Listen;

/// The number of the first passed descriptor.
const FIRST: usize = 3;
/// The owner and the mode of a socket's file protect it. An abstract socket has no file.
const NO_FILE: &str = "is an abstract socket: it has no owner and no mode, so every user of this machine could \
                       connect; write a path in ListenStream= of the .socket unit";

/// The address and the name of a passed socket. They do not change while the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The address that it listens on.
    pub address: Listen,
    /// Its name: `FileDescriptorName=`, by default the name of the unit.
    pub name: String,
    /// Whether an IPv6 socket accepts IPv4 connections too.
    both: bool,
}

impl Passed {
    /// Whether connections to this address arrive at this socket.
    pub fn serves(&self, wanted: &Listen) -> bool {
        match (&self.address, wanted) {
            (Listen::Tcp(own), Listen::Tcp(wanted)) if own.ip().is_unspecified() => {
                own.port() == wanted.port() && (own.is_ipv4() == wanted.is_ipv4() || self.both)
            }
            (own, wanted) => own == wanted,
        }
    }
}

/// A passed socket. The agent never removes its file.
#[derive(Debug)]
pub struct PassedSocket {
    /// Its address and name.
    pub passed: Passed,
    /// The socket.
    pub listener: OwnedFd,
}

/// A passed descriptor cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("systemd passed fd {fd} ({name}), which {problem}")]
pub struct PassedError {
    fd: usize,
    name: String,
    problem: String,
}

impl PassedSocket {
    /// A listening socket, under the name that systemd passed.
    ///
    /// # Errors
    /// Why it cannot be served, and what to change in the `.socket` unit.
    pub fn new(listener: OwnedFd, name: &str) -> Result<Self, String> {
        let failed = |error: Errno| format!("does not return its address: {error}");
        if !sockopt::socket_acceptconn(&listener).map_err(failed)? {
            return Err("is a connection, not a listening socket: write Accept=no in the .socket unit".into());
        }
        let address = getsockname(&listener).map_err(failed)?;
        let (address, both) = if let Ok(tcp) = SocketAddr::try_from(address.clone()) {
            let both = tcp.is_ipv6() && !sockopt::ipv6_v6only(&listener).map_err(failed)?;
            (Listen::Tcp(tcp), both)
        } else {
            let unix = SocketAddrUnix::try_from(address).map_err(failed)?;
            let path = unix.path().ok_or(NO_FILE)?;
            (Listen::Unix(OsStr::from_bytes(path.to_bytes()).into()), false)
        };
        Ok(Self { passed: Passed { address, name: name.to_owned(), both }, listener })
    }

    /// Receives the sockets that were passed to this process. That changes the environment,
    /// so call it once, before there are threads. Child processes get neither the sockets
    /// nor the variables.
    ///
    /// # Errors
    /// If a descriptor is not a listening stream socket, and what to change in the
    /// `.socket` unit.
    pub fn take(environment: &BTreeMap<String, String>) -> Result<Vec<Self>, PassedError> {
        let value = |name: &str| environment.get(name).map_or("", String::as_str);
        // systemd always sets the process that they are for.
        if value("LISTEN_PID").is_empty() {
            return Ok(Vec::new());
        }
        let mut fds = ListenFd::from_env();
        let mut names = value("LISTEN_FDNAMES").split(':');
        let mut sockets = Vec::new();
        for index in 0..fds.len() {
            let name = names.next().filter(|name| !name.is_empty()).unwrap_or("no name").to_owned();
            let refused = |problem| PassedError { fd: FIRST + index, name: name.clone(), problem };
            let listener = one(&mut fds, index).map_err(refused)?;
            sockets.push(Self::new(listener, &name).map_err(refused)?);
        }
        Ok(sockets)
    }
}

/// One socket, or why it cannot be served.
fn one(fds: &mut ListenFd, index: usize) -> Result<OwnedFd, String> {
    let unix = fds.take_unix_listener(index).ok().flatten().map(OwnedFd::from);
    let tcp = |fds: &mut ListenFd| fds.take_tcp_listener(index).ok().flatten().map(OwnedFd::from);
    if let Some(listener) = unix.or_else(|| tcp(fds)) {
        return Ok(listener);
    }
    let datagrams = fds.take_unix_datagram(index).is_ok() || fds.take_udp_socket(index).is_ok();
    let what = if datagrams { "is a datagram socket" } else { "is not a stream socket" };
    Err(format!("{what}: write ListenStream= in the .socket unit, and no other Listen…="))
}
