//! The slots of a listener: for its connections, and for those of them that watch.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::StatusCode;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::status::ApiError;

/// One slot of this many is reserved for root and the agent's own user on a Unix socket: other
/// users of the socket cannot lock them out. Callers over TCP have no user.
const RESERVED: usize = 8;

/// The maximal number of clients of a listener that watch updates, pods, events, nodes or namespaces, or follow logs. Each
/// uses a connection and holds its current update, event or chunk.
pub const MAX_WATCHERS: usize = 256;

/// A slot, which is free again when this is dropped.
pub(super) type Slot = OwnedSemaphorePermit;

/// The slots of a listener.
#[derive(Debug)]
pub(super) struct Slots {
    shared: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    /// How many connections wait for a slot.
    waiting: AtomicUsize,
    /// Notifies the connection that has been idle for the longest time.
    wanted: Notify,
}

impl Slots {
    /// This many slots. A share is reserved if the clients of the socket are known users.
    pub(super) fn new(slots: usize, has_users: bool) -> Arc<Self> {
        let reserved = if has_users { slots / RESERVED } else { 0 };
        Arc::new(Self {
            shared: Arc::new(Semaphore::new(slots - reserved)),
            reserved: Arc::new(Semaphore::new(reserved)),
            waiting: AtomicUsize::new(0),
            wanted: Notify::new(),
        })
    }

    /// The number of reserved slots that are free.
    pub(super) fn reserved(&self) -> usize {
        self.reserved.available_permits()
    }

    /// A free slot; a reserved one only for privileged callers.
    pub(super) fn try_acquire(&self, privileged: bool) -> Option<Slot> {
        let slot = self.shared.clone().try_acquire_owned();
        slot.or_else(|full| if privileged { self.reserved.clone().try_acquire_owned() } else { Err(full) })
            .ok()
    }

    /// Waits for a slot. Meanwhile idle connections give way, one after the other.
    pub(super) async fn acquire(&self, privileged: bool) -> Option<Slot> {
        if let Some(slot) = self.try_acquire(privileged) {
            return Some(slot);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.wanted.notify_one();
        let slot = tokio::select! {
            slot = self.shared.clone().acquire_owned() => slot,
            slot = self.reserved.clone().acquire_owned(), if privileged => slot,
        };
        if self.waiting.fetch_sub(1, Ordering::Relaxed) > 1 {
            self.wanted.notify_one();
        }
        slot.ok()
    }

    /// Waits until an idle connection has to give way: its slot is wanted, and of all idle
    /// connections it has waited here for the longest time.
    pub(super) async fn wanted(&self, slot: &Slot) {
        if Arc::ptr_eq(slot.semaphore(), &self.reserved) {
            pending::<()>().await;
        }
        loop {
            self.wanted.notified().await;
            if self.waiting.load(Ordering::Relaxed) > 0 {
                return;
            }
        }
    }
}

/// The slots for a caller that watches, in the extensions of each request.
#[derive(Clone, Debug)]
pub struct Watchers {
    pub(super) slots: Arc<Slots>,
    pub(super) privileged: bool,
}

impl Watchers {
    /// The slots of one listener, without a reserved share.
    pub fn new(slots: usize) -> Self {
        Self { slots: Slots::new(slots, false), privileged: false }
    }

    /// A free slot, to watch or follow something.
    ///
    /// # Errors
    /// 429 if there is none.
    pub(super) fn slot(&self) -> Result<Slot, ApiError> {
        self.slots.try_acquire(self.privileged).ok_or_else(|| {
            let message =
                format!("too many clients watch or follow logs (at most {MAX_WATCHERS}): retry later");
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(5)
        })
    }
}
