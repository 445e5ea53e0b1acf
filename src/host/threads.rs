//! Threads for work that blocks or takes long.

use std::{
    num::NonZero,
    thread::{available_parallelism, scope},
};

use tokio::task::spawn_blocking;

/// The most threads that one [`Threads::map`] of the agent uses.
const MAX_THREADS: usize = 4;

/// Runs work that blocks or takes long on threads of its own, so that the runtime's few
/// threads stay free. It is the one type for such work; tasks are spawned by `supervise::Tasks`.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    inline: bool,
    /// The most threads that [`Threads::map`] uses.
    most: usize,
}

impl Default for Threads {
    fn default() -> Self {
        Self { inline: false, most: MAX_THREADS }
    }
}

/// The work panicked, or the runtime is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the work was cut off")]
pub struct Cancelled(#[source] tokio::task::JoinError);

impl Cancelled {
    /// Continues the panic of the work on this thread, if it panicked.
    ///
    /// # Panics
    /// If the work panicked, with its panic.
    pub fn resume_panic(self) {
        if let Ok(panic) = self.0.try_into_panic() {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Threads {
    /// Runs all work on the calling thread, in a fixed order.
    pub fn inline() -> Self {
        Self { inline: true, most: 1 }
    }

    /// Runs work on as many threads as there are cores, for a command that does nothing else.
    #[must_use]
    pub fn on_all_cores() -> Self {
        Self { inline: false, most: usize::MAX }
    }

    /// Runs work that blocks on a thread of its own and waits for it.
    ///
    /// # Cancel safety
    /// If the future is dropped after the first poll, the work goes on.
    ///
    /// # Errors
    /// If the work panicked, or the runtime is shutting down.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Cancelled> {
        if self.inline { Ok(work()) } else { spawn_blocking(work).await.map_err(Cancelled) }
    }

    /// How many cores this process may use.
    pub fn cores(&self) -> usize {
        available_parallelism().map_or(1, NonZero::get)
    }

    /// Applies a function to all items, on several threads if there are at least `worth`
    /// items for each. The results are in the order of the items. It blocks.
    pub fn map<I: Sync, O: Send>(&self, items: &[I], worth: usize, work: impl Fn(&I) -> O + Sync) -> Vec<O> {
        let cores = if self.inline { 1 } else { self.cores() };
        let threads = cores.min(self.most).min(items.len() / worth.max(1)).max(1);
        let part = |part: &[I]| part.iter().map(&work).collect::<Vec<_>>();
        if threads == 1 {
            return part(items);
        }
        scope(|scope| {
            let parts = items.chunks(items.len().div_ceil(threads));
            let working: Vec<_> = parts.map(|items| scope.spawn(|| part(items))).collect();
            working
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}
