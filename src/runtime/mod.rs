//! Runtimes: consumers that run pods, and the pod workers that drive them.
//!
//! A [`PodRuntime`] says what it runs, syncs a pod and kills a pod. This one keeps its pods in memory;
//! `examples/custom_runtime.rs` runs processes.
//!
//! ```
//! use std::{collections::BTreeMap, sync::Mutex};
//!
//! use podmux::{
//!     host::Clock,
//!     mux::Mux,
//!     pod::{ListingBuilder, Prepared, SourceName},
//!     runtime::{ActualPod, KillPod, PodRuntime, PodWorkers, RuntimeError, SyncPod},
//! };
//! use tokio::sync::Notify;
//! use tokio_util::sync::CancellationToken;
//!
//! #[derive(Default)]
//! struct InMemory {
//!     pods: Mutex<BTreeMap<String, ActualPod>>,
//!     started: Notify,
//! }
//!
//! impl PodRuntime for &InMemory {
//!     async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
//!         Ok(self.pods.lock().unwrap().values().cloned().collect())
//!     }
//!
//!     async fn sync(&self, pod: &SyncPod) -> Result<(), RuntimeError> {
//!         let actual = ActualPod {
//!             key: pod.pod.key().clone(),
//!             uid: pod.pod.uid().clone(),
//!             hash: pod.hash.clone(),
//!             source: pod.source,
//!             is_ours: true,
//!             is_complete: true,
//!             started: None,
//!             status: None,
//!         };
//!         self.pods.lock().unwrap().insert(actual.uid.to_string(), actual);
//!         self.started.notify_one();
//!         Ok(())
//!     }
//!
//!     async fn kill(&self, pod: &KillPod) -> Result<(), RuntimeError> {
//!         self.pods.lock().unwrap().remove(&*pod.actual.uid);
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mux, merging) = Mux::new(&[SourceName::File]);
//! let channel = mux.channel(SourceName::File).expect("a source has one channel");
//! let mut wanted = ListingBuilder::new(SourceName::File);
//! let web = Prepared::from_json(br#"{"metadata": {"name": "web", "uid": "1"}}"#)?;
//! wanted.put(&"web.yaml".into(), vec![web], Clock::default().now());
//! channel.publish(wanted.listing());
//!
//! let (runtime, stop) = (InMemory::default(), CancellationToken::new());
//! let workers = PodWorkers::new(&runtime, mux.merged());
//! let source = async {
//!     runtime.started.notified().await;
//!     drop(channel); // The source ends, then the mux, then the workers. The pod keeps running.
//! };
//! tokio::join!(source, merging.run(), workers.run(stop));
//!
//! let pods = runtime.pods.lock().unwrap();
//! assert_eq!(pods["1"].key.as_str(), "default/web");
//! # Ok(())
//! # }
//! ```

mod contract;
mod decide;
#[cfg(feature = "agent")]
pub mod exec;
mod failing;
mod hash;
mod kills;
mod observed;
#[cfg(feature = "agent")]
mod opening;
mod pod_workers;
#[cfg(feature = "agent")]
pub mod podman;
mod qos;
mod status;
mod work_queue;

#[cfg(feature = "agent")]
pub use self::opening::{OpenRuntime, Opening, RuntimeKind};
pub use self::{
    contract::{ActualPod, KillPod, LogRequest, NO_LOGS, PodRuntime, RuntimeError, SyncPod},
    decide::{Decision, Wait, decide},
    failing::Failing,
    hash::runtime_hash,
    observed::observe,
    pod_workers::{LogReader, Logging, PodWorkers, Rank},
    status::{Activity, Gone, Observed, ObservedPod, PodProgress, WorkersStatus},
    work_queue::{Histogram, QueueMetrics, WorkQueue, Working},
};

/// The built-in runtimes.
#[cfg(feature = "agent")]
pub(crate) const KINDS: [&RuntimeKind; 2] = [&exec::kind::KIND, &podman::kind::KIND];
