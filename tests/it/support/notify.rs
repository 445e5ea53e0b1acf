//! A double of the service manager: a datagram socket, and what was sent to it.

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

/// The double.
pub struct Manager {
    socket: UnixDatagram,
    /// What stands in `NOTIFY_SOCKET`.
    pub name: String,
    /// Every message so far.
    heard: Vec<String>,
    /// How many of them a wait has passed.
    passed: usize,
    _dir: TempDir,
}

impl Manager {
    /// One whose address is a path.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self::with(socket, path.to_str().unwrap().to_owned(), dir)
    }

    /// One whose address is an abstract name.
    pub fn abstract_one() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("podmux-test/{}", dir.path().display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self::with(socket, format!("@{name}"), dir)
    }

    fn with(socket: UnixDatagram, name: String, dir: TempDir) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, name, heard: Vec::new(), passed: 0, _dir: dir }
    }

    /// The command as this manager starts it.
    pub fn starts<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("NOTIFY_SOCKET", &self.name)
    }

    /// The same for code in this process.
    pub fn environment(&self, watchdog: Option<Duration>) -> Environment {
        let mut environment = Environment::from([("NOTIFY_SOCKET".to_owned(), self.name.clone())]);
        environment.extend(watchdog.map(|time| ("WATCHDOG_USEC".to_owned(), time.as_micros().to_string())));
        environment
    }

    /// Waits for a message that has this line, or begins one with it if it ends
    /// in `…`; returns the message, and goes on behind it the next time.
    pub fn hears(&mut self, wanted: &str) -> String {
        self.hears_where(wanted, |message| {
            message.lines().any(|line| match wanted.strip_suffix('…') {
                Some(start) => line.starts_with(start),
                None => line == wanted,
            })
        })
    }

    /// Waits for a message of which this is true.
    pub fn hears_where(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            while self.passed < self.heard.len() {
                self.passed += 1;
                if wanted(&self.heard[self.passed - 1]) {
                    return self.heard[self.passed - 1].clone();
                }
            }
            assert!(begun.elapsed() < PATIENCE && self.receive(), "no {what:?}: {:#?}", self.heard);
        }
    }

    /// Every message so far, after all that waits was read.
    pub fn all(&mut self) -> &[String] {
        self.socket.set_nonblocking(true).unwrap();
        while self.receive() {}
        self.socket.set_nonblocking(false).unwrap();
        &self.heard
    }

    /// What came so far does not count for later waits.
    pub fn forget(&mut self) {
        self.passed = self.all().len();
    }

    /// Fills the queue: whoever wants to send more has to wait.
    pub fn fill(&self) {
        // A sender has a bound of its own, so there is another one until none gets anything in.
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
        unreachable!("it never gets full")
    }

    /// Takes one message in. False if there is none.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 8192];
        let Ok(length) = self.socket.recv(&mut buffer) else { return false };
        assert!(length <= 4096, "systemd drops a message of {length} bytes");
        self.heard.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        true
    }
}
