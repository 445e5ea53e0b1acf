//! A double of the service manager: a datagram socket and the messages that it received.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::Command,
    time::{Duration, Instant},
};

use podmux::settings::Environment;
use tempfile::TempDir;

use super::process::PATIENCE;

/// A double of the service manager.
pub struct ManagerDouble {
    socket: UnixDatagram,
    /// The value of `NOTIFY_SOCKET`.
    pub name: String,
    received: Vec<String>,
    /// How many of the messages earlier waits have consumed.
    consumed: usize,
    _dir: TempDir,
}

impl ManagerDouble {
    /// A manager whose address is a path.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self::with(socket, path.to_str().unwrap().to_owned(), dir)
    }

    /// A manager whose address is an abstract name.
    pub fn abstract_one() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("podmux-test/{}", dir.path().display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self::with(socket, format!("@{name}"), dir)
    }

    fn with(socket: UnixDatagram, name: String, dir: TempDir) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, name, received: Vec::new(), consumed: 0, _dir: dir }
    }

    /// Sets the environment of a command that this manager starts.
    pub fn starts<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("NOTIFY_SOCKET", &self.name)
    }

    /// The environment for code in this process.
    pub fn environment(&self, watchdog: Option<Duration>) -> Environment {
        let mut environment = Environment::from([("NOTIFY_SOCKET".to_owned(), self.name.clone())]);
        environment.extend(watchdog.map(|time| ("WATCHDOG_USEC".to_owned(), time.as_micros().to_string())));
        environment
    }

    /// Waits for a message with this line (with `…` at the end: a line that starts so) and
    /// returns it. The next wait starts behind it.
    pub fn receives(&mut self, wanted: &str) -> String {
        self.receives_where(wanted, |message| {
            message.lines().any(|line| match wanted.strip_suffix('…') {
                Some(start) => line.starts_with(start),
                None => line == wanted,
            })
        })
    }

    /// Waits for a message that satisfies a condition.
    pub fn receives_where(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            while self.consumed < self.received.len() {
                self.consumed += 1;
                if wanted(&self.received[self.consumed - 1]) {
                    return self.received[self.consumed - 1].clone();
                }
            }
            assert!(begun.elapsed() < PATIENCE && self.receive(), "no {what:?}: {:#?}", self.received);
        }
    }

    /// Every message so far.
    pub fn all(&mut self) -> &[String] {
        self.socket.set_nonblocking(true).unwrap();
        while self.receive() {}
        self.socket.set_nonblocking(false).unwrap();
        &self.received
    }

    /// Lets later waits ignore the messages so far.
    pub fn forget(&mut self) {
        self.consumed = self.all().len();
    }

    /// Fills the queue, so that senders have to wait.
    pub fn fill(&self) {
        // A sender has a limit of its own, so there is another one until none can send anything.
        while self.fill_from_one() > 0 {}
    }

    fn fill_from_one(&self) -> usize {
        let other = UnixDatagram::unbound().unwrap();
        other.set_nonblocking(true).unwrap();
        other.connect(&self.name).unwrap();
        for sent in 0.. {
            if let Err(error) = other.send(b"X_FILL=1\n") {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                return sent;
            }
        }
        unreachable!("the queue is never full")
    }

    /// Receives one message. False if there is none within the timeout.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 8192];
        let length = loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The kernel interrupts a receive with a timeout also where it restarts other calls.
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Interrupted),
            }
        };
        assert!(length <= 4096, "systemd drops a message of {length} bytes");
        self.received.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        true
    }
}
