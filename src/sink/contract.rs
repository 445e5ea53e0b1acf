//! The trait that every sink implements.

use std::{error::Error, time::Duration};

use crate::pod::SequencedUpdate;

/// A consumer of one stream of updates, in order, one at a time.
///
/// # The protocol
///
/// * The stream begins with a SET for each source, so that a consumer which outlives the agent
///   learns what to discard; see [`is_fresh`](Sink::is_fresh).
/// * [`deliver`](Sink::deliver) is called with one update at a time, in the order of the
///   stream; the next one follows when this one is acknowledged. No updates are queued for a
///   sink: changes that happen meanwhile become one difference, so a slow sink costs no memory.
/// * `Ok` is the acknowledgement: the sink has applied the update, or has stored it durably.
/// * [`SinkError::Retry`]: the same update (same `seq`, same `time`) is delivered again, after
///   half a second at first and a minute at most, until it is acknowledged. The sink may have
///   applied a part of it; delivery is at least once. [`SinkError::RetryAfter`] is the same with a
///   delay that the consumer asks for.
/// * [`SinkError::Restart`]: the consumer no longer holds what was delivered. The stream begins
///   again; the update is part of that.
/// * [`SinkError::Fatal`] ends the delivery with an error, and a panic ends it with that panic. The program stops
///   then, with exit status 1.
pub trait Sink: Send {
    /// Applies one update.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped before its end only if the delivery is: the program does so when the shutdown deadline
    /// has passed. The sink is then dropped too and never called again; the update is not acknowledged.
    ///
    /// # Errors
    ///
    /// [`SinkError::Retry`] to receive the same update again later, [`SinkError::Restart`] to
    /// receive everything again, [`SinkError::Fatal`] to stop the agent.
    fn deliver(&mut self, update: &SequencedUpdate) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Ends when something has happened to the sink's consumer: [`SinkError::Fatal`] if it has
    /// gone for good, [`SinkError::Restart`] if it no longer holds what was delivered.
    ///
    /// It is awaited while there is nothing to deliver, or a retry is pending, so that this is
    /// noticed without a new update. By default it never ends. It must be cancel-safe: it is dropped
    /// whenever there is an update or the retry is due.
    fn interrupted(&mut self) -> impl Future<Output = SinkError> + Send {
        std::future::pending()
    }

    /// Whether the consumer holds nothing when the agent starts. Its stream then begins with ADDs.
    fn is_fresh(&self) -> bool {
        false
    }

    /// The most bytes of pods in one update. A larger update comes as several; of a SET, all parts
    /// but the last are marked with [`more`](SequencedUpdate::more). One pod is never divided.
    fn max_bytes(&self) -> usize {
        usize::MAX
    }
}

/// Why a sink did not acknowledge an update.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The delivery failed this time; the same update is to be delivered again.
    #[error("the delivery failed")]
    Retry(#[source] Box<dyn Error + Send + Sync>),
    /// The delivery failed this time; the same update is to be delivered again after this time at the earliest.
    #[error("the delivery failed")]
    RetryAfter(#[source] Box<dyn Error + Send + Sync>, Duration),
    /// The consumer no longer holds what was delivered; the stream begins again.
    #[error("the consumer has lost what was delivered")]
    Restart,
    /// The sink will never accept an update again; the agent stops with exit status 1.
    #[error("the sink accepts no more updates")]
    Fatal(#[source] Box<dyn Error + Send + Sync>),
}

impl SinkError {
    /// A [`Retry`](Self::Retry) for this reason.
    pub fn retry(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Retry(reason.into())
    }

    /// A [`Fatal`](Self::Fatal) error for this reason.
    pub fn fatal(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Fatal(reason.into())
    }
}
