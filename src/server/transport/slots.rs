//! The slots of connections, the progress of each, and the eviction of idle and slow ones.

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

use super::limits::Limits;
use crate::server::stats::RejectReason;

/// After how long a client that does not read its response counts as inactive.
const SLOW: Duration = Duration::from_secs(1);

/// The progress of a connection, for timeouts and eviction.
#[derive(Debug)]
pub(super) struct Progress {
    activity: watch::Sender<Activity>,
    /// How many requests handlers are working on.
    working: AtomicUsize,
    /// Whether the socket's send buffer is full.
    blocked: AtomicBool,
    /// The requests with an unsent chunk of their response, and since when. In HTTP/2 a client
    /// can stop reading one response and read others.
    unsent: Mutex<HashMap<u64, Instant>>,
    /// How many requests there were so far.
    requests: AtomicU64,
    /// Whether it is HTTP/2, with concurrent requests.
    multiplexed: AtomicBool,
    begun: Instant,
    /// When the last byte was received or sent, in milliseconds after `begun`.
    last: AtomicU64,
    /// Cancelled when the connection is evicted.
    evicted: CancellationToken,
}

/// What a connection is used for.
#[derive(Clone, Copy, Debug)]
enum Activity {
    /// The client sends the head of a request, since the connection began or its first byte.
    Head(Instant),
    /// The connection waits for the client's next request.
    Idle(Instant),
    /// The number of requests that are read, handled or answered, and how many of them are
    /// answered with an endless stream.
    Requests { requests: usize, streams: usize },
    /// The server has closed its side.
    Closing,
}

impl Progress {
    fn new() -> Self {
        let begun = Instant::now();
        Self {
            activity: watch::Sender::new(Activity::Head(begun)),
            working: AtomicUsize::new(0),
            blocked: AtomicBool::new(false),
            unsent: Mutex::default(),
            requests: AtomicU64::new(0),
            multiplexed: AtomicBool::new(false),
            begun,
            last: AtomicU64::new(0),
            evicted: CancellationToken::new(),
        }
    }

    /// Bytes were received from the client.
    pub(super) fn received(&self) {
        self.touch();
        self.activity.send_if_modified(|activity| {
            let idle = matches!(activity, Activity::Idle(_));
            if idle {
                *activity = Activity::Head(Instant::now());
            }
            idle
        });
    }

    /// Bytes were sent to the client.
    pub(super) fn sent(&self) {
        self.touch();
        self.blocked.store(false, Ordering::Relaxed);
    }

    /// The send buffer is full.
    pub(super) fn send_blocked(&self) {
        self.blocked.store(true, Ordering::Relaxed);
    }

    fn touch(&self) {
        let after = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(after, Ordering::Relaxed);
    }

    /// The server closes its side.
    pub(super) fn closing(&self) {
        self.activity.send_replace(Activity::Closing);
    }

    /// The head of a request was read; the request lasts until the guard is dropped.
    pub(super) fn request(self: &Arc<Self>, version: Version) -> ActiveRequest {
        self.multiplexed.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.activity.send_modify(|activity| {
            *activity = match *activity {
                Activity::Requests { requests, streams } => {
                    Activity::Requests { requests: requests + 1, streams }
                }
                _ => Activity::Requests { requests: 1, streams: 0 },
            };
        });
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        ActiveRequest { progress: self.clone(), number, endless: AtomicBool::new(false) }
    }

    /// Waits while a request may have been sent that is not read yet: from the beginning of the
    /// connection, and on an idle connection for at most this time. In HTTP/2 only the first
    /// request can be lost: see RFC 9113, 6.8.
    pub(super) async fn sent_request_read(&self, idle: Duration) {
        let mut activities = self.activity.subscribe();
        while !self.multiplexed.load(Ordering::Relaxed) {
            let activity = *activities.borrow_and_update();
            let begun = match activity {
                // `self` owns the sender.
                Activity::Head(_) => activities.changed().await.is_ok(),
                Activity::Idle(_) => timeout(idle, activities.changed()).await.is_ok(),
                Activity::Requests { .. } | Activity::Closing => false,
            };
            if !begun {
                return;
            }
        }
    }

    /// Waits until all requests but endless streams are answered.
    pub(super) async fn requests_answered(&self) {
        let answered = |activity: &Activity| match *activity {
            Activity::Requests { requests, streams } => requests == streams,
            Activity::Closing => true,
            // The connection ends by itself; in HTTP/2 requests can still arrive.
            Activity::Head(_) | Activity::Idle(_) => false,
        };
        let _ = self.activity.subscribe().wait_for(answered).await;
    }

    /// A handler works until the guard is dropped; the client waits.
    pub(super) fn handling(self: &Arc<Self>) -> HandlerGuard {
        self.working.fetch_add(1, Ordering::Relaxed);
        HandlerGuard(self.clone())
    }

    /// Waits until a timeout of the client, and returns its reason; an idle connection has none.
    pub(super) async fn timed_out(&self, limits: &Limits) -> Option<RejectReason> {
        let mut activities = self.activity.subscribe();
        loop {
            let activity = *activities.borrow_and_update();
            let (deadline, why) = match activity {
                Activity::Head(since) => (since + limits.headers, Some(RejectReason::HeadersTimeout)),
                Activity::Idle(since) => (since + limits.idle, None),
                Activity::Requests { .. } | Activity::Closing => {
                    (Instant::now() + limits.stall, Some(RejectReason::Stalled))
                }
            };
            tokio::select! {
                () = sleep_until(deadline) => {
                    if matches!(activity, Activity::Head(_) | Activity::Idle(_)) || self.stalled_for(limits.stall) {
                        return why;
                    }
                }
                // `self` owns the sender.
                _ = activities.changed() => {}
            }
        }
    }

    /// Whether a chunk of a response has been unsent for this time.
    fn stalled_for(&self, time: Duration) -> bool {
        let unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.values().any(|since| since.elapsed() >= time)
    }

    /// The eviction priority: the lowest is evicted first. `None` while the client waits for a
    /// handler.
    fn priority(&self) -> Option<(bool, Instant)> {
        let active = matches!(*self.activity.borrow(), Activity::Requests { .. });
        if active && self.working.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let in_use = active && !self.blocked.load(Ordering::Relaxed) && !self.stalled_for(SLOW);
        Some((in_use, self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed))))
    }
}

/// A request that is read, handled or answered.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    progress: Arc<Progress>,
    number: u64,
    endless: AtomicBool,
}

impl ActiveRequest {
    /// Marks the response as an endless stream.
    pub(super) fn set_endless(&self) {
        self.endless.store(true, Ordering::Relaxed);
        self.progress.activity.send_modify(|activity| {
            if let Activity::Requests { streams, .. } = activity {
                *streams += 1;
            }
        });
    }

    /// A chunk of the response is to be sent.
    pub(super) fn chunk_queued(&self) {
        self.unsent().insert(self.number, Instant::now());
    }

    /// The previous chunk is in the kernel's or in HTTP/2's send buffer.
    pub(super) fn chunk_sent(&self) {
        self.unsent().remove(&self.number);
    }

    fn unsent(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.progress.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.chunk_sent();
        self.progress.activity.send_modify(|activity| {
            *activity = match *activity {
                Activity::Requests { requests, streams } if requests > 1 => {
                    let streams = streams - usize::from(self.endless.load(Ordering::Relaxed));
                    Activity::Requests { requests: requests - 1, streams }
                }
                Activity::Closing => Activity::Closing,
                _ => Activity::Idle(Instant::now()),
            };
        });
    }
}

/// Counts a running handler.
#[derive(Debug)]
pub(super) struct HandlerGuard(Arc<Progress>);

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slots for the connections of all listeners.
///
/// When all are in use, a new connection evicts one: first an idle connection or one whose
/// client does not read its response, silent for the longest time; then one that sends a body
/// or reads a stream. A thousand idle or slow connections block no one else.
#[derive(Debug)]
pub(super) struct Slots {
    limit: usize,
    used: Mutex<HashMap<u64, Arc<Progress>>>,
    next: AtomicU64,
    freed: Notify,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: Mutex::new(HashMap::new()),
            next: AtomicU64::new(0),
            freed: Notify::new(),
        })
    }

    /// Acquires a slot, and returns whether another connection was evicted for it. It waits only
    /// while handlers work for all other connections.
    ///
    /// # Cancel safety
    /// No slot is used if the future is dropped.
    pub(super) async fn acquire(self: &Arc<Self>) -> (Slot, bool) {
        loop {
            let freed = self.freed.notified();
            if let Some(acquired) = self.try_acquire() {
                return acquired;
            }
            freed.await;
        }
    }

    fn try_acquire(self: &Arc<Self>) -> Option<(Slot, bool)> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let full = used.len() >= self.limit;
        if full {
            let priorities = used.iter().filter_map(|(id, progress)| Some((progress.priority()?, *id)));
            let (_, lowest) = priorities.min()?;
            if let Some(progress) = used.remove(&lowest) {
                progress.evicted.cancel();
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let progress = Arc::new(Progress::new());
        used.insert(id, progress.clone());
        Some((Slot { slots: self.clone(), id, progress }, full))
    }
}

/// The slot of a connection, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    pub(super) progress: Arc<Progress>,
}

impl Slot {
    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.progress.evicted.cancelled().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.slots.freed.notify_one();
    }
}
