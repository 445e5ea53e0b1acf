//! What is in hand when the agent is asked to stop, and is finished before anything else ends.

use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Held as long as something is in hand that is waited for.
#[derive(Clone, Debug)]
pub(super) struct Hand {
    /// Nobody ever sends.
    _held: mpsc::Sender<Infallible>,
    /// Cancelled when what is in hand is to be finished, and nothing more to be taken.
    pub(super) finish: CancellationToken,
}

/// Gives out the hands, until the server is asked to finish.
#[derive(Debug)]
pub(super) struct Hands(Mutex<Option<Hand>>);

/// Waits for the hands.
#[derive(Debug)]
pub(super) struct Finishing(mpsc::Receiver<Infallible>);

impl Hands {
    pub(super) fn new(finish: CancellationToken) -> (Self, Finishing) {
        let (held, all) = mpsc::channel(1);
        (Self(Mutex::new(Some(Hand { _held: held, finish }))), Finishing(all))
    }

    /// A hand for something that begins; none if it begins too late to be waited for.
    pub(super) fn take(&self) -> Option<Hand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Finishing {
    /// Waits until the server is asked to finish, and then until every hand that
    /// was given out is empty.
    pub(super) async fn done(mut self, hands: &Hands, finish: &CancellationToken) {
        finish.cancelled().await;
        drop(hands.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.0.recv().await;
    }
}
