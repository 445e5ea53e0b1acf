//! The sockets that systemd passed: taken once, and judged before anything is served on them.

use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
};

use listenfd::ListenFd;
use rustix::net::sockopt;

use super::{Environment, Listen};

/// The number of the first descriptor that is passed.
const FIRST: usize = 3;
/// A socket with a file is its owner's and its group's; one without is everybody's
/// who shares our network.
const NO_FILE: &str = "is an abstract socket, which has no owner and no mode, so that anybody could use it: \
                       write a path in ListenStream= of the .socket unit";

/// What a socket that was passed listens on. It stays the same as long as the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Where it listens.
    pub address: Listen,
    /// What systemd calls it: the unit's name, unless `FileDescriptorName=` says another.
    pub name: String,
    /// Whether a socket of IPv6 takes connections over IPv4, too.
    both: bool,
}

impl Passed {
    /// Whether whoever connects to this address comes to this socket.
    pub(super) fn serves(&self, wanted: &Listen) -> bool {
        match (&self.address, wanted) {
            (Listen::Tcp(own), Listen::Tcp(wanted)) if own.ip().is_unspecified() => {
                own.port() == wanted.port() && (own.is_ipv4() == wanted.is_ipv4() || self.both)
            }
            (own, wanted) => own == wanted,
        }
    }
}

/// A socket that was passed. Its file, if it has one, is not ours to remove.
#[derive(Debug)]
pub struct PassedSocket {
    /// What it listens on.
    pub passed: Passed,
    /// The socket.
    pub listener: PassedListener,
}

/// One of the two kinds that are served.
#[derive(Debug)]
pub enum PassedListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix stream socket.
    Unix(UnixListener),
}

/// Something was passed on which nothing can be served.
#[derive(Debug, thiserror::Error)]
#[error("systemd passed fd {fd} ({name}), which {problem}")]
pub struct PassedError {
    fd: usize,
    name: String,
    problem: String,
}

impl PassedSocket {
    /// A socket that listens, under the name that whoever passed it has for it.
    ///
    /// # Errors
    /// Why it cannot be served on, and what to mend in the `.socket` unit.
    pub fn new(listener: PassedListener, name: &str) -> Result<Self, String> {
        let passed = listener.passed(name)?;
        Ok(Self { passed, listener })
    }

    /// Takes the sockets that were passed to this process, if any were. That
    /// changes the environment, so it is done once, before there are threads; and
    /// no process that we start gets the sockets or is told of them.
    ///
    /// # Errors
    /// If something is no stream socket that listens, and what to mend in the
    /// `.socket` unit.
    pub fn take(environment: &Environment) -> Result<Vec<Self>, PassedError> {
        let said = |name: &str| environment.get(name).map_or("", String::as_str);
        // systemd always says for whom they are; who does not has not passed any.
        if said("LISTEN_PID").is_empty() {
            return Ok(Vec::new());
        }
        let mut fds = ListenFd::from_env();
        let mut names = said("LISTEN_FDNAMES").split(':');
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

/// One socket, or what is wrong with it.
fn one(fds: &mut ListenFd, index: usize) -> Result<PassedListener, String> {
    let unix = fds.take_unix_listener(index).ok().flatten().map(PassedListener::Unix);
    let tcp = |fds: &mut ListenFd| fds.take_tcp_listener(index).ok().flatten().map(PassedListener::Tcp);
    if let Some(listener) = unix.or_else(|| tcp(fds)) {
        return Ok(listener);
    }
    let datagrams = fds.take_unix_datagram(index).is_ok() || fds.take_udp_socket(index).is_ok();
    let what = if datagrams { "is a socket for datagrams" } else { "is no stream socket" };
    Err(format!("{what}: write ListenStream= in the .socket unit, and no other Listen…="))
}

impl AsFd for PassedListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl PassedListener {
    /// What it listens on, or why it does not.
    fn passed(&self, name: &str) -> Result<Passed, String> {
        let told = |error: io::Error| format!("cannot be asked where it listens: {error}");
        let listens = sockopt::socket_acceptconn(self).map_err(|error| told(error.into()))?;
        if !listens {
            return Err(
                "is a connection and no socket that listens: write Accept=no in the .socket unit".into()
            );
        }
        let mut both = false;
        let address = match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr().map_err(told)?;
                both = address.is_ipv6()
                    && !sockopt::ipv6_v6only(listener).map_err(|error| told(error.into()))?;
                Listen::Tcp(address)
            }
            Self::Unix(listener) => match listener.local_addr().map_err(told)?.as_pathname() {
                Some(path) => Listen::Unix(path.to_owned()),
                None => return Err(NO_FILE.to_owned()),
            },
        };
        Ok(Passed { address, name: name.to_owned(), both })
    }
}
