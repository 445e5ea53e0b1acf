//! The connections' slots: so many and no more, and nobody can keep them from the others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Version;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{limits::Limits, stats::Refusal};

/// After how long a client that does not take what waits for it counts as one
/// that takes no part.
const SLOW: Duration = Duration::from_secs(1);

/// What a connection is doing, seen by those who judge it. Cheap to note.
#[derive(Debug)]
pub(super) struct Progress {
    turn: watch::Sender<Turn>,
    /// How many requests the server is working on: whole ones, not yet answered.
    working: AtomicUsize,
    /// Whether bytes wait in the socket for the client to take them.
    blocked: AtomicBool,
    /// The answers of which a piece has not gone out, each with the time since.
    /// In HTTP/2 a client can refuse the bytes of one answer, and take others.
    held: Mutex<HashMap<u64, Instant>>,
    /// How many requests there were so far.
    requests: AtomicU64,
    /// Whether it is HTTP/2, and requests do not wait for each other.
    multiplexed: AtomicBool,
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
    /// So many requests are being read, worked on or answered, and so many of
    /// them with a stream that has no end.
    Asked { requests: usize, streams: usize },
    /// We have said that no more will come.
    Over,
}

impl Progress {
    fn new() -> Self {
        let begun = Instant::now();
        Self {
            turn: watch::Sender::new(Turn::Asking(begun)),
            working: AtomicUsize::new(0),
            blocked: AtomicBool::new(false),
            held: Mutex::default(),
            requests: AtomicU64::new(0),
            multiplexed: AtomicBool::new(false),
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

    /// We have said that no more will come.
    pub(super) fn over(&self) {
        self.turn.send_replace(Turn::Over);
    }

    /// The head of a request is there; the request lasts until the guard is dropped.
    pub(super) fn asked(self: &Arc<Self>, version: Version) -> Asked {
        self.multiplexed.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.turn.send_modify(|turn| {
            *turn = match *turn {
                Turn::Asked { requests, streams } => Turn::Asked { requests: requests + 1, streams },
                _ => Turn::Asked { requests: 1, streams: 0 },
            };
        });
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        Asked { progress: self.clone(), number, endless: AtomicBool::new(false) }
    }

    /// Waits while the client may have begun to ask and we have not read the
    /// request: from the connection's beginning, and from the first byte of any
    /// later one, for which it has this long. In HTTP/2 the later ones are safe:
    /// see RFC 9113, 6.8.
    pub(super) async fn has_asked(&self, idle: Duration) {
        let mut turns = self.turn.subscribe();
        while !self.multiplexed.load(Ordering::Relaxed) {
            let turn = *turns.borrow_and_update();
            let begun = match turn {
                // Its sender is our own.
                Turn::Asking(_) => turns.changed().await.is_ok(),
                Turn::Idle(_) => timeout(idle, turns.changed()).await.is_ok(),
                Turn::Asked { .. } | Turn::Over => false,
            };
            if !begun {
                return;
            }
        }
    }

    /// Waits until a connection that is told to end has answered all but streams.
    pub(super) async fn has_been_answered(&self) {
        let answered = |turn: &Turn| match *turn {
            Turn::Asked { requests, streams } => requests == streams,
            Turn::Over => true,
            // It ends by itself; in HTTP/2 requests can still be on their way.
            Turn::Asking(_) | Turn::Idle(_) => false,
        };
        let _ = self.turn.subscribe().wait_for(answered).await;
    }

    /// The server works until the guard is dropped, and the client can do nothing but wait.
    pub(super) fn working(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::Relaxed);
        Working(self.clone())
    }

    /// Waits until the client has taken too long for its part, and says for
    /// which; not to ask again is nobody's fault.
    pub(super) async fn overdue(&self, limits: &Limits) -> Option<Refusal> {
        let mut turns = self.turn.subscribe();
        loop {
            let turn = *turns.borrow_and_update();
            let (deadline, why) = match turn {
                Turn::Asking(since) => (since + limits.headers, Some(Refusal::Headers)),
                Turn::Idle(since) => (since + limits.idle, None),
                Turn::Asked { .. } | Turn::Over => (Instant::now() + limits.stall, Some(Refusal::Stalled)),
            };
            tokio::select! {
                () = sleep_until(deadline) => {
                    if matches!(turn, Turn::Asking(_) | Turn::Idle(_)) || self.stalls_for(limits.stall) {
                        return why;
                    }
                }
                // Its sender is our own.
                _ = turns.changed() => {}
            }
        }
    }

    /// Whether a piece of an answer has not gone out for so long.
    fn stalls_for(&self, time: Duration) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.values().any(|since| since.elapsed() >= time)
    }

    /// How much a connection is missed if it is closed: the least first. Nobody
    /// who waits for an answer of ours is cut off.
    fn worth(&self) -> Option<(bool, Instant)> {
        let asked = matches!(*self.turn.borrow(), Turn::Asked { .. });
        if asked && self.working.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let takes_part = asked && !self.blocked.load(Ordering::Relaxed) && !self.stalls_for(SLOW);
        Some((takes_part, self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed))))
    }
}

/// A request that is being read, worked on or answered.
#[derive(Debug)]
pub(super) struct Asked {
    progress: Arc<Progress>,
    number: u64,
    endless: AtomicBool,
}

impl Asked {
    /// Its answer is a stream without an end.
    pub(super) fn has_no_end(&self) {
        self.endless.store(true, Ordering::Relaxed);
        self.progress.turn.send_modify(|turn| {
            if let Turn::Asked { streams, .. } = turn {
                *streams += 1;
            }
        });
    }

    /// A piece of the answer is given away to be sent.
    pub(super) fn given(&self) {
        self.held().insert(self.number, Instant::now());
    }

    /// What was given is sent, as far as it went to the kernel or to HTTP/2's buffer.
    pub(super) fn taken(&self) {
        self.held().remove(&self.number);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.progress.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.taken();
        self.progress.turn.send_modify(|turn| {
            *turn = match *turn {
                Turn::Asked { requests, streams } if requests > 1 => {
                    let streams = streams - usize::from(self.endless.load(Ordering::Relaxed));
                    Turn::Asked { requests: requests - 1, streams }
                }
                Turn::Over => Turn::Over,
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
