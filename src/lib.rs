//! podmux: pods from every source of a node, as one ordered stream of updates.
//!
//! It is the kubelet's `pkg/kubelet/config` as a crate and as a program. Sources
//! turn the world into whole listings, a pure merge turns listings into ordered
//! updates, sinks turn updates into deeds:
//!
//! * [`pod`]: the nouns. [`Pod`](pod::Pod), [`Listing`](pod::Listing),
//!   [`PodUpdate`](pod::PodUpdate), and the way from a manifest's text to a prepared pod.
//! * [`validation`]: what the API server would refuse of a pod, and what only it could resolve.
//! * [`storage`]: the heart. [`PodStorage`](storage::PodStorage) merges listings into
//!   one view, [`updates`](storage::updates) gives the way from one view to the next.
//! * [`mux`]: the sources' channels, the loop that owns the storage, the consumers' updates.
//! * [`source`]: doors in. Manifests in a directory, pods that are posted, a polled URL,
//!   the pods that an API server has bound to the node.
//! * [`sink`]: doors out. The [`Sink`](sink::Sink) trait, delivery with retries, JSON lines.
//! * [`history`]: the bounded history of updates, and those who watch it.
//! * [`validation`]: the API's pod validation.
//! * [`db`]: the embedded database: what must outlive the process.
//! * [`server`]: the HTTP server. [`client`]: the one HTTP client.
//! * [`supervise`]: named tasks with one stop token and one deadline.
//! * [`clock`]: the one place that reads the wall clock.
//!
//! The rooms `age`, `agent`, `cli`, `settings`, `systemd` and `telemetry` are the program's own and
//! no part of what the crate promises.
//!
//! # The tasks of the running program
//!
//! | task | takes | gives | ends when |
//! |---|---|---|---|
//! | `source file` | the file system | listings into its [`SourceChannel`](mux::SourceChannel) | it is told to stop |
//! | `source http` | writes, what the sinks have acknowledged | commits, listings, answers | it is told to stop |
//! | `source url` | a URL | listings into its channel | it is told to stop |
//! | `source api` | an API server's list and watch | listings into its channel | it is told to stop |
//! | `db` | commits | what is on disk | nobody is left who writes |
//! | `mux` | the sources' listings | the merged view, to all who look | every source has dropped its channel |
//! | `sink …`, one for each | the merged view, as its own [`Updates`](mux::Updates) | what its [`Sink`](sink::Sink) does | the mux has ended and all is told |
//! | `history` | the merged view, as its own [`Updates`](mux::Updates) | numbered updates to watchers | the mux has ended |
//! | `server` | requests | answers, and writes to `source http` | all who hand updates over have ended |
//! | `reload` | SIGHUP | settings, and a rescan | it is told to stop |
//! | `finish` | what the server has in hand, when a signal has come | the stop token | it has stopped the others |
//!
//! # A node agent of your own
//!
//! A source is whoever pushes listings; it never says "add this pod", but "this
//! is everything that I want now". A sink is one method. This agent is fed names
//! through a channel and "runs" pods by printing them:
//!
//! ```
//! use podmux::{
//!     clock,
//!     mux::{Mux, Notify, SourceChannel},
//!     pod::{ListingBuilder, Op, Origin, PodError, Prepared, SourceName},
//!     sink::{Delivery, SequencedUpdate, Sink, SinkError},
//! };
//! use tokio::sync::mpsc;
//! use tokio_util::sync::CancellationToken;
//!
//! /// Wants a pod for every name that it has ever been told.
//! async fn source(mut names: mpsc::Receiver<String>, channel: SourceChannel) -> Result<(), PodError> {
//!     let mut wanted = ListingBuilder::new(channel.source());
//!     while let Some(name) = names.recv().await {
//!         let pod = format!(r#"{{"metadata": {{"name": "{name}", "uid": "{name}-1"}}}}"#);
//!         wanted.put(&Origin::from(&*name), vec![Prepared::from_json(pod.as_bytes())?], clock::now());
//!         channel.publish(wanted.listing()); // Never waits, whatever the sink does.
//!     }
//!     Ok(())
//! }
//!
//! struct Printer(Vec<String>);
//!
//! impl Sink for &mut Printer {
//!     async fn deliver(&mut self, message: &SequencedUpdate) -> Result<(), SinkError> {
//!         for pod in message.update.pods.iter() {
//!             match message.update.op {
//!                 Op::Remove => self.0.retain(|key| key != pod.key().as_str()),
//!                 _ => self.0.push(pod.key().to_string()),
//!             }
//!         }
//!         Ok(()) // The acknowledgement. An error would be tried again, for ever.
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mux, turning) = Mux::new(&[SourceName::Http]);
//! let channel = mux.channel(SourceName::Http).ok_or("it is configured, and nobody has it")?;
//! let (feed, names) = mpsc::channel(8);
//! let mut printer = Printer(Vec::new());
//! let (delivery, _status) = Delivery::new("printer", &mut printer, mux.updates(Notify::Incremental));
//!
//! feed.send("web".to_owned()).await?;
//! feed.send("db".to_owned()).await?;
//! drop(feed); // The source ends, with it the mux, and with it the delivery.
//! let (fed, (), delivered) =
//!     tokio::join!(source(names, channel), turning.run(), delivery.run(CancellationToken::new()));
//! fed?;
//! delivered?;
//!
//! printer.0.sort();
//! assert_eq!(printer.0, ["default/db", "default/web"]);
//! # Ok(())
//! # }
//! ```

#[doc(hidden)]
pub mod age;
#[doc(hidden)]
pub mod agent;
mod backoff;
pub mod certificate_files;
#[doc(hidden)]
pub mod cli;
pub mod client;
mod error_chain;
pub mod clock {
    //! Transitional.
    /// The time now.
    #[must_use]
    pub fn now() -> jiff::Timestamp {
        crate::host::Clock::default().now()
    }
}
pub mod db;
pub mod history;
pub mod host;
pub mod manifest;
pub mod mux;
mod outage;
pub mod pod;
pub mod server;
#[doc(hidden)]
pub mod settings;
pub mod sink;
pub mod source;
pub mod storage;
pub mod supervise;
#[doc(hidden)]
pub mod systemd;
#[doc(hidden)]
pub mod telemetry;
pub mod validation;
