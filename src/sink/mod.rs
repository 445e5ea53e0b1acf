//! Sinks: consumers of the ordered stream of updates, and the delivery to them.
//!
//! A sink is one method. Its stream begins with a SET for each source, so that it learns what to
//! discard of an earlier run. This one counts the pods that are delivered, starts from nothing and gets ADDs instead:
//!
//! ```
//! use podmux::{
//!     host::Clock,
//!     mux::{Mux, Notify},
//!     pod::{ListingBuilder, PodError, Prepared, SourceName},
//!     sink::{Delivery, SequencedUpdate, Sink, SinkError},
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! struct Count(u64);
//!
//! impl Sink for Count {
//!     async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
//!         let count = self.0 + update.update.pods.len() as u64;
//!         if count > 1_000 {
//!             return Err(SinkError::retry("more than 1,000 pods"));
//!         }
//!         self.0 = count;
//!         Ok(())
//!     }
//!
//!     fn is_fresh(&self) -> bool {
//!         true
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mux, merging) = Mux::new(&[SourceName::Api]);
//! let (delivery, status) = Delivery::new("count", Count(0), mux.updates(Notify::Incremental));
//!
//! // The source publishes all of its pods at once.
//! let channel = mux.channel(SourceName::Api).expect("a source has one channel");
//! let source = async move {
//!     let mut wanted = ListingBuilder::new(SourceName::Api);
//!     let web = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#)?;
//!     wanted.put(&"default/web".into(), vec![web], Clock::default().now());
//!     channel.publish(wanted.listing());
//!     // The channel is dropped here, so the mux and the delivery end.
//!     Ok::<(), PodError>(())
//! };
//!
//! let (published, (), delivered) =
//!     tokio::join!(source, merging.run(), delivery.run(CancellationToken::new()));
//! published?;
//! delivered?;
//! assert_eq!(status.borrow().acknowledged, Some(1));
//! # Ok(())
//! # }
//! ```

mod contract;
mod delivery;
#[cfg(feature = "agent")]
mod jsonl;
mod numbers;
#[cfg(feature = "agent")]
mod opening;
#[cfg(feature = "agent")]
mod table;
#[cfg(feature = "agent")]
mod webhook;

pub use self::{
    contract::{Sink, SinkError},
    delivery::{Acknowledged, Delivery, DeliveryError, SinkFailing, SinkStatus},
    numbers::{Counter, Numbers},
};
#[cfg(feature = "agent")]
pub use self::{
    jsonl::{Jsonl, Reopen},
    opening::{OpenSink, Opening, SinkKind},
};
/// The built-in sinks.
#[cfg(feature = "agent")]
pub(crate) const KINDS: [&SinkKind; 3] = [&jsonl::KIND, &jsonl::TABLE, &webhook::KIND];
#[cfg(feature = "agent")]
pub use crate::kind::OpenError;
pub use crate::pod::SequencedUpdate;
