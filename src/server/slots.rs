//! The connections' slots: so many and no more, and nobody can keep them from the others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::limits::Limits;

/// What a connection is doing, seen by those who judge it. Cheap to note.
#[derive(Debug)]
pub(super) struct Progress {
    turn: watch::Sender<Turn>,
    /// How many requests the server is working on: whole ones, not yet answered.
    working: AtomicUsize,
    /// Whether bytes wait for the client to take them.
    blocked: AtomicBool,
    begun: Instant,
    /// When the last byte came or went, in milliseconds after `begun`.
    last: AtomicU64,
    /// Cancelled when the slot is taken away.
    gone: CancellationToken,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The client has begun to ask: with the connection, or with a first byte.
    Asking(Instant),
    /// The client may ask again, and has not begun.
    Idle(Instant),
    /// So many requests are being read, worked on or answered.
    Asked(usize),
}

impl Progress {
    fn new() -> Self {
        let begun = Instant::now();
        Self {
            turn: watch::Sender::new(Turn::Asking(begun)),
            working: AtomicUsize::new(0),
            blocked: AtomicBool::new(false),
            begun,
            last: AtomicU64::new(0),
            gone: CancellationToken::new(),
        }
    }

    /// Bytes came from the client.
    pub(super) fn came(&self) {
        self.moved();
        self.turn.send_if_modified(|turn| {
            let idle = matches!(turn, Turn::Idle(_));
            if idle {
                *turn = Turn::Asking(Instant::now());
            }
            idle
        });
    }

    /// The client took bytes.
    pub(super) fn went(&self) {
        self.moved();
        self.blocked.store(false, Ordering::Relaxed);
    }

    /// Bytes wait for the client to take them.
    pub(super) fn waits(&self) {
        self.blocked.store(true, Ordering::Relaxed);
    }

    fn moved(&self) {
        let after = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(after, Ordering::Relaxed);
    }

    /// The head of a request is there; the request lasts until the guard is dropped.
    pub(super) fn asked(self: &Arc<Self>) -> Asked {
        self.turn.send_modify(|turn| {
            *turn = match turn {
                Turn::Asked(requests) => Turn::Asked(*requests + 1),
                _ => Turn::Asked(1),
            };
        });
        Asked(self.clone())
    }

    /// The server works until the guard is dropped, and the client can do nothing but wait.
    pub(super) fn working(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(self.clone())
    }

    /// Waits until the client has taken too long to ask.
    pub(super) async fn overdue(&self, limits: &Limits) {
        let mut turns = self.turn.subscribe();
        loop {
            let deadline = match *turns.borrow_and_update() {
                Turn::Asking(since) => Some(since + limits.headers),
                Turn::Idle(since) => Some(since + limits.idle),
                Turn::Asked(_) => None,
            };
            let late = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = late => return,
                // Its sender is our own.
                _ = turns.changed() => {}
            }
        }
    }

    /// Whether the client has begun to ask and has not finished.
    pub(super) fn is_asking(&self) -> bool {
        matches!(*self.turn.borrow(), Turn::Asking(_))
    }

    /// How much a connection is missed if it is closed: the least first. Nobody
    /// who waits for an answer of ours is cut off.
    fn worth(&self) -> Option<(bool, Instant)> {
        let asked = matches!(*self.turn.borrow(), Turn::Asked(_));
        if asked && self.working.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let takes_part = asked && !self.blocked.load(Ordering::Relaxed);
        Some((takes_part, self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed))))
    }
}

/// A request that is being read, worked on or answered.
#[derive(Debug)]
pub(super) struct Asked(Arc<Progress>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.turn.send_modify(|turn| {
            *turn = match turn {
                Turn::Asked(requests) if *requests > 1 => Turn::Asked(*requests - 1),
                _ => Turn::Idle(Instant::now()),
            };
        });
    }
}

/// A request that the server works on.
#[derive(Debug)]
pub(super) struct Working(Arc<Progress>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slots for connections, over all listeners.
///
/// When all are taken, a new connection gets that of a client that asks for
/// nothing or does not take its answer, the longest silent first; then that of
/// one that sends a body or watches a stream. So a thousand connections that
/// trickle, or are open for nothing, keep nobody out.
#[derive(Debug)]
pub(super) struct Slots {
    limit: usize,
    taken: Mutex<HashMap<u64, Arc<Progress>>>,
    next: AtomicU64,
    freed: Notify,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: Mutex::new(HashMap::new()),
            next: AtomicU64::new(0),
            freed: Notify::new(),
        })
    }

    /// Takes a slot. It waits only while the server works on a request for each
    /// of the others. Also says whether another connection had to go.
    ///
    /// # Cancel safety
    /// Nothing is taken if the future is dropped.
    pub(super) async fn take(self: &Arc<Self>) -> (Slot, bool) {
        loop {
            let freed = self.freed.notified();
            if let Some(taken) = self.try_take() {
                return taken;
            }
            freed.await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<(Slot, bool)> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = taken.len() >= self.limit;
        if full {
            let worths = taken.iter().filter_map(|(id, progress)| Some((progress.worth()?, *id)));
            let (_, least) = worths.min()?;
            if let Some(progress) = taken.remove(&least) {
                progress.gone.cancel();
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let progress = Arc::new(Progress::new());
        taken.insert(id, progress.clone());
        Some((Slot { slots: self.clone(), id, progress }, full))
    }
}

/// A connection's slot, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    pub(super) progress: Arc<Progress>,
}

impl Slot {
    /// Waits until another connection has taken it.
    pub(super) async fn lost(&self) {
        self.progress.gone.cancelled().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.slots.freed.notify_one();
    }
}
