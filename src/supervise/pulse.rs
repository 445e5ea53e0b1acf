//! Whether a task is polled: a task that waits answers, one that holds its thread does not.

use std::pin::pin;

use tokio::sync::watch;

/// A task's pulse, to be felt from outside.
#[derive(Debug)]
pub struct Pulse {
    task: String,
    asked: watch::Sender<u64>,
    answered: watch::Receiver<u64>,
}

impl Pulse {
    /// The task's name.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.task
    }

    /// Waits until the task has been polled once more. Whatever it waits for
    /// makes no difference. Returns false if it has ended. Cancel-safe.
    pub async fn beats(&self) -> bool {
        self.asked.send_modify(|asked| *asked += 1);
        let asked = *self.asked.borrow();
        self.answered.clone().wait_for(|answered| *answered >= asked).await.is_ok()
    }
}

/// The same work with a pulse.
pub(super) fn with_pulse<F: Future>(
    task: String,
    work: F,
) -> (Pulse, impl Future<Output = F::Output> + use<F>) {
    let (asked, mut question) = watch::channel(0);
    let (answer, answered) = watch::channel(0);
    let work = async move {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                // The work is polled first: the answer says that it came back from there.
                biased;
                output = &mut work => return output,
                Ok(()) = question.changed() => drop(answer.send_replace(*question.borrow_and_update())),
            }
        }
    };
    (Pulse { task, asked, answered }, work)
}
