//! A wire that can be cut: it carries TCP connections to a server, and looks into none.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// The wire. Its threads end with it and with its connections.
pub struct Relay {
    /// Where to connect to.
    pub address: SocketAddr,
    wire: Arc<Wire>,
}

struct Wire {
    target: String,
    /// Whether connections are carried; else they are closed as soon as they come.
    whole: AtomicBool,
    over: AtomicBool,
    /// How many connections came while it was not whole.
    turned_away: AtomicUsize,
    /// Both ends of each connection.
    ends: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// To an address of the loopback: `127.0.0.1:6443`.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Arc::new(Wire {
            target: target.to_owned(),
            whole: AtomicBool::new(true),
            over: AtomicBool::new(false),
            turned_away: AtomicUsize::new(0),
            ends: Mutex::default(),
        });
        let address = listener.local_addr().unwrap();
        let carried = wire.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if carried.over.load(Ordering::SeqCst) {
                    return;
                }
                // A side that has gone away is what this is for.
                let _ = stream.and_then(|stream| carried.carry(stream));
            }
        });
        Self { address, wire }
    }

    /// Breaks all connections, and turns new ones away.
    pub fn cut(&self) {
        let mut ends = self.wire.ends.lock().unwrap();
        self.wire.whole.store(false, Ordering::SeqCst);
        for end in ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Carries new connections again.
    pub fn mend(&self) {
        self.wire.whole.store(true, Ordering::SeqCst);
    }

    /// How many connections were turned away so far.
    pub fn turned_away(&self) -> usize {
        self.wire.turned_away.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.wire.over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes whoever waits for the next one.
        drop(TcpStream::connect(self.address));
    }
}

impl Wire {
    fn carry(&self, near: TcpStream) -> io::Result<()> {
        let mut ends = self.ends.lock().unwrap();
        if !self.whole.load(Ordering::SeqCst) {
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
