//! Threads for work that blocks or takes long.

use std::{
    fmt,
    num::NonZero,
    sync::Arc,
    thread::{available_parallelism, scope},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::sleep};

/// The most threads that one [`Threads::map`] of the agent uses.
const MAX_THREADS: usize = 4;

/// Runs work that blocks or takes long on threads of its own, so that the runtime's few
/// threads stay free. It is the one type for such work; tasks are spawned by `supervise::Tasks`.
#[derive(Clone)]
pub struct Threads {
    /// How long work takes that runs on the calling thread; none if threads do it.
    inline: Option<Arc<dyn Fn() -> Duration + Send + Sync>>,
    /// The most threads that [`Threads::map`] uses.
    most: usize,
}

impl Default for Threads {
    fn default() -> Self {
        Self { inline: None, most: MAX_THREADS }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("inline", &self.inline.is_some()).finish_non_exhaustive()
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
    /// Runs all work on the calling thread, in a fixed order: for a simulation. Before each piece of it the
    /// time passes that `takes` returns, by tokio's clock.
    pub fn inline(takes: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { inline: Some(Arc::new(takes)), most: 1 }
    }

    /// Whether all work runs on the calling thread.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    /// Lets the time pass that the next piece of work takes on the calling thread.
    pub(crate) async fn take_time(&self) {
        if let Some(takes) = &self.inline {
            sleep(takes()).await;
        }
    }

    /// Runs work on as many threads as there are cores, for a command that does nothing else.
    #[must_use]
    pub fn on_all_cores() -> Self {
        Self { inline: None, most: usize::MAX }
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
        if self.is_inline() {
            self.take_time().await;
            return Ok(work());
        }
        spawn_blocking(work).await.map_err(Cancelled)
    }

    /// How many cores this process may use.
    pub fn cores(&self) -> usize {
        available_parallelism().map_or(1, NonZero::get)
    }

    /// Applies a function to all items, on several threads if there are at least `worth`
    /// items for each. The results are in the order of the items. It blocks.
    pub fn map<I: Sync, O: Send>(&self, items: &[I], worth: usize, work: impl Fn(&I) -> O + Sync) -> Vec<O> {
        let cores = if self.is_inline() { 1 } else { self.cores() };
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
