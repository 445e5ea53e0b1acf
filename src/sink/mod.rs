//! Doors out: what a sink is, how updates are delivered to it, and the sinks that are built in.
//!
//! A sink of your own is one method. This one counts what it is told:
//!
//! ```
//! use podmux::{
//!     clock,
//!     mux::{Mux, Notify},
//!     pod::{ListingBuilder, Prepared, SourceName},
//!     sink::{Delivery, SequencedUpdate, Sink, SinkError},
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! struct Counter(u64);
//!
//! impl Sink for Counter {
//!     async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
//!         self.0 += update.update.pods.len() as u64;
//!         if self.0 > 1_000 {
//!             return Err(SinkError::retry("that is more than I can count"));
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mux, turning) = Mux::new(&[SourceName::Api]);
//! let (delivery, status) = Delivery::new("counter", Counter(0), mux.updates(Notify::Incremental));
//!
//! // A source of your own: whatever it does, it pushes everything that it wants now.
//! let source = mux.channel(SourceName::Api).expect("configured above, and taken by nobody else");
//! let my_source = async move {
//!     let mut wanted = ListingBuilder::new(SourceName::Api);
//!     let web = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#)?;
//!     wanted.put(&"default/web".into(), vec![web], clock::now());
//!     source.push(wanted.listing());
//!     // It ends here, its channel is dropped, and with it the mux and the delivery end.
//!     Ok::<(), podmux::pod::PodError>(())
//! };
//!
//! let stop = CancellationToken::new();
//! let (pushed, (), delivered) =
//!     tokio::join!(my_source, turning.run(), delivery.run(stop.clone()));
//! pushed?;
//! delivered?;
//! assert_eq!(status.borrow().acknowledged, Some(1));
//! # Ok(())
//! # }
//! ```

mod delivery;
mod jsonl;
mod kind;
mod registry;
mod status;

use std::{error::Error, fmt};

pub use delivery::{Acknowledged, Delivery, DeliveryError};
pub use jsonl::{Jsonl, Reopen};
pub use kind::{OpenError, OpenSink};
pub use registry::Config;
pub use status::{SinkFailing, SinkStatus};

pub use crate::pod::SequencedUpdate;

/// A door out: takes the updates of one stream, one after the other.
///
/// # The protocol
///
/// * [`deliver`](Sink::deliver) is called with one update at a time, in the
///   order of the stream; the next one comes only when this one is
///   acknowledged. Nothing is buffered for a sink: whatever happens meanwhile
///   becomes one difference, so a sink may take all the time that it needs.
/// * `Ok` is the acknowledgement: the sink has done what the update says, or has
///   made it its own business for good.
/// * [`SinkError::Retry`] means not this time: the very same update (same `seq`,
///   same `time`) is delivered again, after half a second at first and a minute
///   at most, for ever. The sink may have done a part of it; delivery is at least once.
/// * [`SinkError::Fatal`] means never again: the agent stops with exit status 1.
/// * A panic stops the agent too.
pub trait Sink: Send {
    /// Takes one update.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped before its end only when the time for stopping has
    /// run out, and then the sink is dropped with it and never called again. An
    /// update that was cut off is not acknowledged.
    ///
    /// # Errors
    ///
    /// [`SinkError::Retry`] to be given the same update again later,
    /// [`SinkError::Fatal`] to end the agent.
    fn deliver(&mut self, update: &SequencedUpdate) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Ends when whoever stands behind the sink has gone away for good, with the
    /// reason. It is waited for while there is nothing to deliver, so that a
    /// quiet stream notices too. By default it never ends.
    ///
    /// Must be cancel-safe: it is dropped whenever there is an update.
    fn gone(&mut self) -> impl Future<Output = SinkError> + Send {
        std::future::pending()
    }
}

/// Why a sink did not take an update.
#[derive(Debug)]
pub enum SinkError {
    /// It did not work this time; deliver the same update again.
    Retry(Box<dyn Error + Send + Sync>),
    /// It will never work again: the agent stops with exit status 1.
    Fatal(Box<dyn Error + Send + Sync>),
}

impl SinkError {
    /// It did not work this time, because of this.
    pub fn retry(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Retry(reason.into())
    }

    /// It will never work again, because of this.
    pub fn fatal(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Fatal(reason.into())
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry(_) => "the sink did not take the update",
            Self::Fatal(_) => "the sink will take no more updates",
        })
    }
}

impl Error for SinkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Retry(reason) | Self::Fatal(reason) => Some(&**reason),
        }
    }
}
