//! Named tasks with one stop token and one deadline; the only place that spawns long-lived tasks.

use std::{any::Any, collections::HashMap, error::Error, mem, pin::pin, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

/// What a task may fail with.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why the tasks stopped without a request. The first reason counts; later ones are logged.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A task ended before the stop token was cancelled.
    #[error("task {task} ended before the shutdown")]
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
        /// The panic's message.
        message: String,
    },
}

/// The long-lived tasks of the program. It is the one type that spawns tasks: each has a
/// name, an owner and a deadline.
///
/// If a task ends, fails or panics before the stop token is cancelled, the token is
/// cancelled: the program does not run with a part of its tasks.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<Result<(), BoxError>>,
    names: HashMap<Id, String>,
    heartbeats: Vec<Heartbeat>,
    stop: CancellationToken,
    starts_deadline: CancellationToken,
    ends_deadline: CancellationToken,
}

impl Tasks {
    /// No tasks yet; they stop when this token is cancelled.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            names: HashMap::new(),
            heartbeats: Vec::new(),
            starts_deadline: stop.clone(),
            stop,
            ends_deadline: CancellationToken::new(),
        }
    }

    /// Starts the shutdown deadline when the first token is cancelled, and ends it when the second
    /// one is. The first is a child of the stop token, and may be cancelled earlier: work is finished
    /// before the tasks are stopped.
    #[must_use]
    pub fn deadline_between(self, starts: CancellationToken, ends: CancellationToken) -> Self {
        Self { starts_deadline: starts, ends_deadline: ends, ..self }
    }

    /// Spawns a task. It must end soon after the stop token is cancelled, or after the tasks
    /// that it reads from have ended.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), BoxError>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name.into());
    }

    /// Spawns a task with a heartbeat: see [`take_heartbeats`](Self::take_heartbeats).
    pub fn spawn_with_heartbeat(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), BoxError>> + Send + 'static,
    ) {
        let name = name.into();
        let (heartbeat, task) = with_heartbeat(name.clone(), task);
        self.heartbeats.push(heartbeat);
        self.spawn(name, task);
    }

    /// Removes and returns the heartbeats of the tasks that were spawned with one.
    pub fn take_heartbeats(&mut self) -> Vec<Heartbeat> {
        mem::take(&mut self.heartbeats)
    }

    /// Waits until every task has ended. The shutdown deadline starts when the stop token is
    /// cancelled, also because a task failed, or with the token of
    /// [`deadline_between`](Self::deadline_between). It lasts for the `grace` of that
    /// moment. Tasks that are unfinished then are logged and aborted.
    ///
    /// Returns the names of the unfinished tasks, sorted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, every task is aborted.
    ///
    /// # Errors
    ///
    /// If a task ended too early, failed or panicked.
    pub async fn run(mut self, grace: watch::Receiver<Duration>) -> Result<Vec<String>, TaskError> {
        let stop = self.stop.clone();
        let (starts, ends) = (self.starts_deadline.clone(), self.ends_deadline.clone());
        let mut first = None;
        let mut deadline = None;
        loop {
            let overdue = async {
                match deadline {
                    None => starts.cancelled().await,
                    Some(deadline) => drop(timeout_at(deadline, ends.cancelled()).await),
                }
            };
            tokio::select! {
                biased;
                ended = self.set.join_next_with_id() => {
                    let Some(ended) = ended else { break };
                    if let Some(reason) = self.error_of(ended) {
                        if let Some(first) = &first {
                            error!(after = %first, error = %reason, "another task failed");
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
        let unfinished = self.abort_unfinished();
        first.map_or(Ok(unfinished), Err)
    }

    fn error_of(&mut self, ended: Result<(Id, Result<(), BoxError>), JoinError>) -> Option<TaskError> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task = self.names.remove(&id).unwrap_or_default();
        match ended {
            Ok((_, Ok(()))) if self.stop.is_cancelled() => {
                debug!(task, "task ended");
                None
            }
            Ok((_, Ok(()))) => Some(TaskError::Ended { task }),
            Ok((_, Err(source))) => Some(TaskError::Failed { task, source }),
            Err(error) => Some(match error.try_into_panic() {
                Ok(payload) => TaskError::Panicked { task, message: panic_message(&*payload) },
                Err(aborted) => TaskError::Failed { task, source: aborted.into() },
            }),
        }
    }

    fn abort_unfinished(mut self) -> Vec<String> {
        let mut unfinished: Vec<String> = self.names.into_values().collect();
        unfinished.sort();
        for task in &unfinished {
            warn!(task, "task aborted: it had not ended");
        }
        self.set.abort_all();
        // A task in a blocking call never ends, so the tasks are not awaited.
        self.set.detach_all();
        unfinished
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

/// Shows from outside whether one task is still polled: a task that waits answers, one that
/// blocks its thread does not.
#[derive(Debug)]
pub struct Heartbeat {
    task: String,
    requests: watch::Sender<u64>,
    answers: watch::Receiver<u64>,
}

impl Heartbeat {
    /// The task's name.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// Waits until the task has been polled once more, also if it waits for something else.
    /// Returns false if it has ended. Cancel-safe.
    pub async fn beat(&self) -> bool {
        self.requests.send_modify(|requests| *requests += 1);
        let request = *self.requests.borrow();
        self.answers.clone().wait_for(|answered| *answered >= request).await.is_ok()
    }
}

/// Adds a heartbeat to a task's work.
fn with_heartbeat<F: Future>(task: String, work: F) -> (Heartbeat, impl Future<Output = F::Output> + use<F>) {
    let (requests, mut requested) = watch::channel(0);
    let (answer, answers) = watch::channel(0);
    let work = async move {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                // The work is polled first: an answer shows that this poll has returned.
                biased;
                output = &mut work => return output,
                Ok(()) = requested.changed() => drop(answer.send_replace(*requested.borrow_and_update())),
            }
        }
    };
    (Heartbeat { task, requests, answers }, work)
}
