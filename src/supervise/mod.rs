//! Named tasks with one stop token and one deadline; the one place where tasks are spawned.

mod pulse;

use std::{any::Any, collections::HashMap, error::Error, mem, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use self::pulse::with_pulse;

pub use self::pulse::Pulse;

/// What a task may fail with.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a crew did not end as asked. The first reason counts; later ones are logged.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// A task ended by itself. Long-lived tasks end only when they are told to.
    #[error("task {task} ended although nobody had asked it to")]
    Ended {
        /// Its name.
        task: String,
    },
    /// A task ended with an error.
    #[error("task {task} failed")]
    Failed {
        /// Its name.
        task: String,
        /// Its error.
        source: BoxError,
    },
    /// A task panicked.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// Its name.
        task: String,
        /// What it panicked with.
        message: String,
    },
}

/// The tasks that must live as long as the program.
///
/// If one of them ends, fails or panics before the stop token is cancelled, the
/// crew cancels the token: nobody works on with a part of the crew missing.
#[derive(Debug)]
pub struct Crew {
    tasks: JoinSet<Result<(), BoxError>>,
    names: HashMap<Id, String>,
    pulses: Vec<Pulse>,
    stop: CancellationToken,
    warned: CancellationToken,
    cut_off: CancellationToken,
}

impl Crew {
    /// A crew that stops when the token is cancelled.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        let warned = stop.clone();
        Self {
            tasks: JoinSet::new(),
            names: HashMap::new(),
            pulses: Vec::new(),
            warned,
            stop,
            cut_off: CancellationToken::new(),
        }
    }

    /// Has the time to stop begin with an earlier token, a child of the first:
    /// something is to be finished before the tasks are told to stop.
    #[must_use]
    pub fn warned_by(self, warned: CancellationToken) -> Self {
        Self { warned, ..self }
    }

    /// Has the time to stop be over when this token is cancelled, if it has begun.
    #[must_use]
    pub fn cut_off_by(self, cut_off: CancellationToken) -> Self {
        Self { cut_off, ..self }
    }

    /// Starts a task. It must end soon after the token is cancelled, or when
    /// what it reads from is closed by those who do.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), BoxError>> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name.into());
    }

    /// The same with a pulse, which [`take_pulses`](Self::take_pulses) gives away.
    pub fn spawn_with_pulse(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), BoxError>> + Send + 'static,
    ) {
        let name = name.into();
        let (pulse, task) = with_pulse(name.clone(), task);
        self.pulses.push(pulse);
        self.spawn(name, task);
    }

    /// The pulses of all tasks that were spawned with one so far.
    #[must_use]
    pub fn take_pulses(&mut self) -> Vec<Pulse> {
        mem::take(&mut self.pulses)
    }

    /// Waits until every task has ended. Once the token is cancelled (or the one
    /// of [`warned_by`](Self::warned_by), if there is that), from outside or
    /// because a task went missing, they have `grace`, as it is then, to do so; at
    /// that deadline the laggards are named in the log and aborted.
    ///
    /// Returns the laggards' names, sorted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, every task that still runs is aborted.
    ///
    /// # Errors
    ///
    /// If a task ended too early, failed or panicked.
    pub async fn run(mut self, grace: watch::Receiver<Duration>) -> Result<Vec<String>, CrewError> {
        let (stop, warned, cut_off) = (self.stop.clone(), self.warned.clone(), self.cut_off.clone());
        let mut first = None;
        let mut deadline = None;
        loop {
            let overdue = async {
                match deadline {
                    None => warned.cancelled().await,
                    Some(deadline) => drop(timeout_at(deadline, cut_off.cancelled()).await),
                }
            };
            tokio::select! {
                biased;
                ended = self.tasks.join_next_with_id() => {
                    let Some(ended) = ended else { break };
                    if let Some(reason) = self.judge(ended) {
                        if let Some(first) = &first {
                            error!(after = %first, error = %reason, "one more task went wrong");
                        }
                        first.get_or_insert(reason);
                        stop.cancel();
                    }
                }
                () = overdue => match deadline {
                    None => deadline = Some(Instant::now() + *grace.borrow()),
                    Some(_) => break,
                }
            }
        }
        let laggards = self.roll_call();
        first.map_or(Ok(laggards), Err)
    }

    /// What is wrong with how a task ended, if anything.
    fn judge(&mut self, ended: Result<(Id, Result<(), BoxError>), JoinError>) -> Option<CrewError> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task = self.names.remove(&id).unwrap_or_default();
        match ended {
            Ok((_, Ok(()))) if self.stop.is_cancelled() => {
                debug!(task, "ended");
                None
            }
            Ok((_, Ok(()))) => Some(CrewError::Ended { task }),
            Ok((_, Err(source))) => Some(CrewError::Failed { task, source }),
            Err(error) => Some(match error.try_into_panic() {
                Ok(payload) => CrewError::Panicked { task, message: panic_message(&*payload) },
                Err(aborted) => CrewError::Failed { task, source: aborted.into() },
            }),
        }
    }

    /// Names those who are still there, and aborts them.
    fn roll_call(mut self) -> Vec<String> {
        let mut laggards: Vec<String> = self.names.into_values().collect();
        laggards.sort();
        for task in &laggards {
            warn!(task, "did not end in time; it is cut off");
        }
        self.tasks.abort_all();
        // Whoever hangs in a call that does not return would be waited for in vain.
        self.tasks.detach_all();
        laggards
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
