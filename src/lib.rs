//! podmux collects the pod manifests meant for one node, merges them, and publishes every
//! change as one ordered stream of updates.
//!
//! It is the kubelet's `pkg/kubelet/config` as a crate and as a program. A source publishes
//! all of its pods as one [`Listing`](pod::Listing) whenever they change, a pure merge turns
//! the listings of all sources into one view, and each sink receives the differences between
//! the view that it has and the newest one.
//!
//! # The modules
//!
//! The library, which needs no feature:
//!
//! * [`pod`]: pods, listings of pods, and updates about them.
//! * [`manifest`]: from the YAML or JSON text of a manifest to prepared pods.
//! * [`validation`]: what the API server would reject of a pod.
//! * [`storage`]: [`PodStorage`](storage::PodStorage) merges listings into one view;
//!   [`updates`](storage::updates) is the difference between two views.
//! * [`mux`]: the sources' channels, the task that merges, and the consumers' updates.
//! * [`sink`]: the [`Sink`](sink::Sink) trait, and the [`Delivery`](sink::Delivery) of
//!   updates to a sink, with retries.
//! * [`runtime`]: the [`PodRuntime`](runtime::PodRuntime) trait, the
//!   [`PodWorkers`](runtime::PodWorkers) that make what runs what is wanted, and their work queue.
//! * [`host`]: the clock, random numbers and threads, which a test can replace.
//!
//! The program, behind the feature `agent` (on by default):
//!
//! * `source`: the file, http, url and api sources.
//! * `sink::Jsonl`: the updates as JSON lines.
//! * `runtime::exec`: pods that a program starts and stops; `runtime::podman`: pods that podman runs.
//! * `registry`: how the built-in sinks and runtimes are written in the settings.
//! * `history`: the newest updates, for those who watch them over HTTP.
//! * `db`: the database with what outlives the process.
//! * `server` and `client`: the HTTP server and the one HTTP client.
//! * `supervise`: named tasks with one stop token and one deadline.
//! * `age`, `agent`, `cli`, `pod_columns`, `settings`, `systemd` and `telemetry`: the rest of the program,
//!   not part of the crate's stable interface.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `agent` | yes | the program and its modules |
//! | `typed` | yes | `Pod::typed`: a pod as k8s-openapi's struct |
//! | `v1_36` | yes | that version of k8s-openapi, which `agent` and `typed` need |
//!
//! With `default-features = false` the crate is the library alone: no HTTP, TLS, Kubernetes
//! client, command line or database is compiled.
//!
//! # The tasks of the running program
//!
//! | task | input | output | ends when |
//! |---|---|---|---|
//! | `source file` | the file system | listings into its [`SourceChannel`](mux::SourceChannel) | it is stopped |
//! | `source http` | writes, what the sinks have acknowledged or the runtime no longer has | commits, listings, answers | it is stopped |
//! | `source url` | a URL | listings into its channel | it is stopped |
//! | `source api` | an API server's list and watch | listings into its channel | it is stopped |
//! | `db` | commits | the database file | every writer has ended |
//! | `mux` | the sources' listings | the merged view | every source has dropped its channel |
//! | `sink …`, one for each | the merged view, as its own [`Updates`](mux::Updates) | calls of its [`Sink`](sink::Sink) | the mux has ended and every update is acknowledged |
//! | `sink exec…` or `sink podman…`, if pods run here | the merged view, what its [`PodRuntime`](runtime::PodRuntime) lists | calls of the runtime, the statuses of pods | it is stopped and the calls that have begun are finished |
//! | `history` | the merged view, as its own [`Updates`](mux::Updates) | numbered updates to watchers | the mux has ended |
//! | `events` | the merged view, the statuses of sources, pod workers and pods | `v1.Event`s to readers | the mux has ended |
//! | `server` | requests | answers, and writes to `source http` | the sinks, `history` and `source http` have ended |
//! | `reload` | SIGHUP | new settings, and a rescan | it is stopped |
//! | `finish` | the requests that are open when a signal comes | the stop token | the other tasks are stopped |
//!
//! # A node agent of your own
//!
//! This agent's source receives names through a channel and wants a pod for each. Its sink
//! keeps a set of the pods. `examples/custom_source_and_sink.rs` is a longer version.
//!
//! ```
//! use std::collections::BTreeSet;
//!
//! use podmux::{
//!     host::Clock,
//!     mux::{Mux, Notify, SourceChannel},
//!     pod::{ListingBuilder, Op, Origin, PodError, Prepared, SourceName},
//!     sink::{Delivery, SequencedUpdate, Sink, SinkError},
//! };
//! use tokio::sync::mpsc;
//! use tokio_util::sync::CancellationToken;
//!
//! /// Publishes all pods that are wanted now; never a single change.
//! async fn source(mut names: mpsc::Receiver<String>, channel: SourceChannel) -> Result<(), PodError> {
//!     let clock = Clock::default();
//!     let mut wanted = ListingBuilder::new(channel.source());
//!     while let Some(name) = names.recv().await {
//!         let pod = format!(r#"{{"metadata": {{"name": "{name}", "uid": "{name}-1"}}}}"#);
//!         wanted.put(&Origin::from(&*name), vec![Prepared::from_json(pod.as_bytes())?], clock.now());
//!         channel.publish(wanted.listing()); // Does not wait for any sink.
//!     }
//!     Ok(())
//! }
//!
//! struct Pods(BTreeSet<String>);
//!
//! impl Sink for &mut Pods {
//!     async fn deliver(&mut self, message: &SequencedUpdate) -> Result<(), SinkError> {
//!         for pod in message.update.pods.iter() {
//!             match message.update.op {
//!                 Op::Remove => self.0.remove(pod.key().as_str()),
//!                 _ => self.0.insert(pod.key().to_string()),
//!             };
//!         }
//!         Ok(()) // Acknowledges the update. After an error it would be delivered again.
//!     }
//!
//!     /// The set is empty at the start. Otherwise each source would begin with a SET.
//!     fn is_fresh(&self) -> bool {
//!         true
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mux, merging) = Mux::new(&[SourceName::Http]);
//! let channel = mux.channel(SourceName::Http).ok_or("a source has one channel")?;
//! let (send, names) = mpsc::channel(8);
//! let mut pods = Pods(BTreeSet::new());
//! let (delivery, _status) = Delivery::new("pods", &mut pods, mux.updates(Notify::Incremental));
//!
//! send.send("web".to_owned()).await?;
//! send.send("db".to_owned()).await?;
//! drop(send); // The source ends, then the mux, then the delivery.
//! let (published, (), delivered) =
//!     tokio::join!(source(names, channel), merging.run(), delivery.run(CancellationToken::new()));
//! published?;
//! delivered?;
//!
//! assert!(pods.0.iter().eq(["default/db", "default/web"]));
//! # Ok(())
//! # }
//! ```
#![cfg_attr(
    not(feature = "agent"),
    allow(dead_code, reason = "the agent uses more of the shared modules than the library does")
)]

#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod age;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod agent;
mod backoff;
#[cfg(feature = "agent")]
mod camel_case;
#[cfg(feature = "agent")]
pub mod certificate_files;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "agent")]
pub mod client;
#[cfg(feature = "agent")]
pub mod db;
#[cfg(feature = "agent")]
mod duration;
mod error_chain;
#[cfg(feature = "agent")]
mod escaped;
#[cfg(feature = "agent")]
pub mod events;
#[cfg(feature = "agent")]
mod grouped;
#[cfg(feature = "agent")]
mod hex;
#[cfg(feature = "agent")]
pub mod history;
pub mod host;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod kind;
pub mod manifest;
pub mod mux;
mod outage;
#[cfg(feature = "agent")]
mod pem;
pub mod pod;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod pod_columns;
#[cfg(feature = "agent")]
pub mod registry;
pub mod runtime;
#[cfg(feature = "agent")]
pub mod server;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod settings;
pub mod sink;
#[cfg(feature = "agent")]
pub mod source;
pub mod storage;
#[cfg(feature = "agent")]
pub mod supervise;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod systemd;
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod telemetry;
pub mod validation;
