//! What a connection is used for, and how long it may wait for its client.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::Version;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::limits::Limits;
use crate::server::{
    slots::{Slot, Slots},
    stats::RejectReason,
};

/// The activity of a connection.
#[derive(Debug)]
pub(super) struct Activity(watch::Sender<State>);

#[derive(Debug)]
struct State {
    /// The requests that are read, handled or answered, by number. With the time, a chunk of
    /// the response is unsent since then: in HTTP/2 a client can stop reading one response and
    /// read others.
    requests: HashMap<u64, Option<Instant>>,
    /// How many of them are answered with an endless stream.
    streams: usize,
    /// The number of the next request.
    next: u64,
    /// Without requests: whether a request's head has begun, and since when it or the
    /// connection's next request is awaited. A connection begins with a head.
    head: bool,
    since: Instant,
    /// Whether it is HTTP/2, with concurrent requests and frames that belong to none.
    multiplexed: bool,
}

impl State {
    /// When the client's time is over, unless its state changes.
    fn deadline(&self, limits: &Limits) -> Instant {
        match (self.requests.is_empty(), self.head) {
            (true, true) => self.since + limits.headers,
            (true, false) => self.since + limits.idle,
            // A chunk that is queued later has a later deadline.
            (false, _) => self.unread().unwrap_or_else(Instant::now) + limits.stall,
        }
    }

    /// Since when the client reads nothing of a response.
    fn unread(&self) -> Option<Instant> {
        self.requests.values().flatten().min().copied()
    }
}

impl Activity {
    /// A connection has begun.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(State {
            requests: HashMap::new(),
            streams: 0,
            next: 0,
            head: true,
            since: Instant::now(),
            multiplexed: false,
        })))
    }

    /// Bytes were received from the client. In HTTP/2 they need not be a request's: a PING of the
    /// client keeps no connection alive, and its answer to one begins nothing.
    pub(super) fn received(&self) {
        self.0.send_if_modified(|state| {
            let begins = state.requests.is_empty() && !state.head && !state.multiplexed;
            if begins {
                (state.head, state.since) = (true, Instant::now());
            }
            begins
        });
    }

    /// The head of a request was read; the request lasts until the guard is dropped.
    pub(super) fn request(self: &Arc<Self>, version: Version) -> ActiveRequest {
        let mut number = 0;
        self.0.send_modify(|state| {
            number = state.next;
            state.next += 1;
            state.multiplexed = version == Version::HTTP_2;
            state.requests.insert(number, None);
        });
        ActiveRequest { activity: self.clone(), number, endless: false }
    }

    /// Waits while a request may have been sent that is not read yet: from the beginning of the
    /// connection, and on an idle connection for at most this time. In HTTP/2 only the first
    /// request can be lost: see RFC 9113, 6.8.
    pub(super) async fn sent_request_read(&self, idle: Duration) {
        let mut states = self.0.subscribe();
        let is_read = |state: &State| !state.requests.is_empty() || state.multiplexed;
        // `self` owns the sender.
        if timeout(idle, states.wait_for(|state| state.head || is_read(state))).await.is_ok() {
            let _ = states.wait_for(is_read).await;
        }
    }

    /// Whether there are no requests.
    pub(super) fn is_idle(&self) -> bool {
        self.0.borrow().requests.is_empty()
    }

    /// Whether there are none, and the head of the next one has begun or is the first of the connection.
    pub(super) fn awaits_head(&self) -> bool {
        self.is_idle() && self.0.borrow().head
    }

    /// Waits until there are requests and all but endless streams are answered. Without
    /// requests the connection ends by itself, and in HTTP/2 some can still arrive.
    pub(super) async fn requests_answered(&self) {
        let answered = |state: &State| !state.requests.is_empty() && state.requests.len() == state.streams;
        let _ = self.0.subscribe().wait_for(answered).await;
    }

    /// Waits until the client exceeds a limit of time, and returns the reason. An idle connection
    /// has none, nor has one that gives its slot to another.
    pub(super) async fn expired(&self, limits: &Limits, slots: &Slots, slot: &Slot) -> Option<RejectReason> {
        let mut states = self.0.subscribe();
        loop {
            let (deadline, waits, head) = {
                let state = states.borrow_and_update();
                (state.deadline(limits), state.requests.is_empty(), state.head)
            };
            tokio::select! {
                () = sleep_until(deadline) => {
                    let stalled = || self.0.borrow().unread().is_some_and(|since| since.elapsed() >= limits.stall);
                    if waits {
                        return head.then_some(RejectReason::HeadersTimeout);
                    } else if stalled() {
                        return Some(RejectReason::Stalled);
                    }
                }
                () = slots.wanted(slot), if waits => return None,
                // `self` owns the sender.
                _ = states.changed() => {}
            }
        }
    }
}

/// A request that is read, handled or answered.
#[derive(Debug)]
pub(super) struct ActiveRequest {
    activity: Arc<Activity>,
    number: u64,
    endless: bool,
}

impl ActiveRequest {
    /// Marks the response as an endless stream.
    pub(super) fn set_endless(&mut self) {
        self.endless = true;
        self.activity.0.send_modify(|state| state.streams += 1);
    }

    /// A chunk of the response is to be sent, or the previous one is in the kernel's or in
    /// HTTP/2's send buffer.
    pub(super) fn chunk(&self, queued: bool) {
        self.activity.0.send_if_modified(|state| {
            state.requests.insert(self.number, queued.then(Instant::now));
            false
        });
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.activity.0.send_modify(|state| {
            state.requests.remove(&self.number);
            state.streams -= usize::from(self.endless);
            (state.head, state.since) = (false, Instant::now());
        });
    }
}
