//! A TCP relay to a server whose connections a test can break.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// The relay. Its threads end with it and with its connections.
pub struct Relay {
    /// Where to connect to.
    pub address: SocketAddr,
    state: Arc<RelayState>,
}

struct RelayState {
    target: String,
    /// Whether connections are relayed; else they are closed at once.
    connected: AtomicBool,
    ended: AtomicBool,
    /// How many connections were closed at once.
    turned_away: AtomicUsize,
    /// Both ends of each connection.
    ends: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// A relay to an address: `127.0.0.1:6443`.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(RelayState {
            target: target.to_owned(),
            connected: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            turned_away: AtomicUsize::new(0),
            ends: Mutex::default(),
        });
        let address = listener.local_addr().unwrap();
        let relayed = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if relayed.ended.load(Ordering::SeqCst) {
                    return;
                }
                // Broken connections are expected.
                let _ = stream.and_then(|stream| relayed.relay(stream));
            }
        });
        Self { address, state }
    }

    /// Breaks all connections and closes new ones at once.
    pub fn cut(&self) {
        let mut ends = self.state.ends.lock().unwrap();
        self.state.connected.store(false, Ordering::SeqCst);
        for end in ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Relays new connections again.
    pub fn mend(&self) {
        self.state.connected.store(true, Ordering::SeqCst);
    }

    /// How many connections were closed at once.
    pub fn turned_away(&self) -> usize {
        self.state.turned_away.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.cut();
        // Wake the thread that waits for the next connection.
        drop(TcpStream::connect(self.address));
    }
}

impl RelayState {
    fn relay(&self, near: TcpStream) -> io::Result<()> {
        let mut ends = self.ends.lock().unwrap();
        if !self.connected.load(Ordering::SeqCst) {
            self.turned_away.fetch_add(1, Ordering::SeqCst);
            return near.shutdown(Shutdown::Both);
        }
        let far = TcpStream::connect(&self.target)?;
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
        ends.extend([near, far]);
        Ok(())
    }
}
