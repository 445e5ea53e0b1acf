//! Tracks the connections and requests that the shutdown waits for first.

use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Makes the drain wait until it is dropped.
#[derive(Clone, Debug)]
pub(super) struct DrainGuard {
    /// Never sends: the channel closes when all guards are dropped.
    _alive: mpsc::Sender<Infallible>,
    /// Cancelled when the drain begins.
    pub(super) drain: CancellationToken,
}

/// Creates guards until the drain begins.
#[derive(Debug)]
pub(super) struct DrainGuards(Mutex<Option<DrainGuard>>);

/// Waits for the guards.
#[derive(Debug)]
pub(super) struct DrainWaiter(mpsc::Receiver<Infallible>);

impl DrainGuards {
    pub(super) fn new(drain: CancellationToken) -> (Self, DrainWaiter) {
        let (alive, all) = mpsc::channel(1);
        (Self(Mutex::new(Some(DrainGuard { _alive: alive, drain }))), DrainWaiter(all))
    }

    /// A guard; `None` after the drain has begun.
    pub(super) fn get(&self) -> Option<DrainGuard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl DrainWaiter {
    /// Waits until the drain begins, and then until all guards are dropped.
    pub(super) async fn drained(mut self, guards: &DrainGuards, drain: &CancellationToken) {
        drain.cancelled().await;
        drop(guards.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.0.recv().await;
    }
}
