//! Sinks that behave badly.

use std::time::Duration;

use podmux::sink::{SequencedUpdate, Sink, SinkError};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::stream::Replica;

/// How a sink behaves towards every update.
pub enum Manners {
    Takes,
    /// Does nothing at all until the gate is opened.
    HangsUntil(watch::Receiver<bool>),
    /// Fails as many times as this, in all, then works.
    Fails(usize),
    Slow(Duration),
    Panics,
    /// Says that it has ended for good.
    Ends,
    /// Takes everything; whoever stands behind it goes away when the gate is opened.
    Leaves(watch::Receiver<bool>),
}

/// What a sink has met, for a test to look at and to wait for.
#[derive(Clone, Debug, Default)]
pub struct Diary {
    pub replica: Replica,
    /// Each update that it was handed, retries too, with the time.
    pub attempts: Vec<(Instant, SequencedUpdate)>,
}

/// A sink with manners and a diary.
pub struct Double {
    manners: Manners,
    diary: watch::Sender<Diary>,
}

impl Double {
    pub fn new(manners: Manners) -> (Self, watch::Receiver<Diary>) {
        let (diary, seen) = watch::channel(Diary::default());
        (Self { manners, diary }, seen)
    }
}

impl Sink for Double {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        self.diary.send_modify(|diary| diary.attempts.push((Instant::now(), update.clone())));
        match &mut self.manners {
            Manners::Takes | Manners::Leaves(_) | Manners::Fails(0) => {}
            Manners::HangsUntil(gate) => drop(gate.wait_for(|open| *open).await),
            Manners::Fails(times) => {
                *times -= 1;
                let cause = std::io::Error::other("no route to host");
                return Err(SinkError::retry(cause));
            }
            Manners::Slow(pace) => sleep(*pace).await,
            Manners::Panics => panic!("a sink without manners"),
            Manners::Ends => return Err(SinkError::fatal("the pipe is shut")),
        }
        self.diary.send_modify(|diary| diary.replica.take(update));
        Ok(())
    }

    async fn gone(&mut self) -> SinkError {
        if let Manners::Leaves(gate) = &mut self.manners {
            drop(gate.wait_for(|open| *open).await);
            return SinkError::fatal("the reader has left");
        }
        std::future::pending().await
    }
}
