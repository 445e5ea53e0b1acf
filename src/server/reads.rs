//! Reads of many objects: off the runtime, and few at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::host::{Cancelled, Threads};

/// How many requests collect what they read from all pods, or make a piece of their answer, at a time: two for each core
/// of a small node. Each takes memory for all that it finds.
const READS: usize = 4;

/// Reads of many objects, off the runtime, [`READS`] at a time.
#[derive(Clone)]
pub(super) struct Reads {
    threads: Threads,
    free: Arc<Semaphore>,
}

impl Reads {
    pub(super) fn new(threads: Threads) -> Self {
        Self { threads, free: Arc::new(Semaphore::new(READS)) }
    }

    /// Runs a read, or a part of it. One whose client goes away while it waits costs nothing.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Cancelled> {
        // It is never closed.
        let permit = self.free.clone().acquire_owned().await.ok();
        let work = move || {
            let _permit = permit;
            work()
        };
        self.threads.blocking(work).await
    }
}
