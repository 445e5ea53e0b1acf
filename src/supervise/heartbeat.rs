//! Whether a task is still polled: a task that waits answers, one that blocks its thread does not.

use std::pin::pin;

use tokio::sync::watch;

/// Shows from outside whether one task is still polled.
#[derive(Debug)]
pub struct Heartbeat {
    task: String,
    requests: watch::Sender<u64>,
    answers: watch::Receiver<u64>,
}

impl Heartbeat {
    /// The task's name.
    #[must_use]
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
pub(super) fn with_heartbeat<F: Future>(
    task: String,
    work: F,
) -> (Heartbeat, impl Future<Output = F::Output> + use<F>) {
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
