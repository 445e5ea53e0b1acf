//! A test double of a sink, which can behave badly.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use podmux::{
    pod::{ListingBuilder, Op, Origin, PodUpdate, SourceName, UpdateSource},
    sink::{SequencedUpdate, Sink, SinkError},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{script::pod, stream::Replica};

/// How a sink handles each update.
pub enum Behaviour {
    Accepts,
    /// Blocks until the gate is opened.
    HangsUntil(watch::Receiver<bool>),
    /// Fails this many times in all, then accepts.
    Fails(usize),
    Slow(Duration),
    /// Fails this many times and asks for this delay, then accepts.
    FailsAsking(usize, Duration),
    /// Fails this many times after that time, then accepts.
    FailsSlowly(usize, Duration),
    Panics,
    /// Returns a fatal error.
    Fatal,
    /// Has lost everything at this update, once.
    Restarts(u64),
    /// Has lost everything at each update.
    AlwaysRestarts,
    /// Has lost everything at each update of this source.
    RestartsAtSource(SourceName),
    /// Has lost everything whenever it is idle.
    RestartsWhenIdle,
    /// Fails until the gate is opened, and wants a retry much later. Then its consumer has lost everything.
    FailsUntil(watch::Receiver<bool>),
    /// Accepts everything; its consumer goes away when the gate is opened.
    Leaves(watch::Receiver<bool>),
}

/// The updates that a sink has received.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub replica: Replica,
    /// Each delivery, retries included, with its time.
    pub attempts: Vec<(Instant, SequencedUpdate)>,
}

/// A sink with a chosen behaviour, which records what it receives.
pub struct SinkDouble {
    behaviour: Behaviour,
    /// Whether its consumer holds nothing at the start.
    pub is_fresh: bool,
    /// The most bytes of pods in one update.
    pub max_bytes: usize,
    received: watch::Sender<Received>,
}

impl SinkDouble {
    pub fn new(behaviour: Behaviour) -> (Self, watch::Receiver<Received>) {
        let (received, seen) = watch::channel(Received::default());
        (Self { behaviour, is_fresh: true, max_bytes: usize::MAX, received }, seen)
    }
}

impl Sink for SinkDouble {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        self.received.send_modify(|received| received.attempts.push((Instant::now(), update.clone())));
        match &mut self.behaviour {
            Behaviour::FailsUntil(gate) if !*gate.borrow() => {
                return Err(SinkError::RetryAfter("no space left".into(), Duration::from_hours(1)));
            }
            Behaviour::Accepts
            | Behaviour::FailsUntil(_)
            | Behaviour::Leaves(_)
            | Behaviour::Fails(0)
            | Behaviour::FailsAsking(0, _)
            | Behaviour::FailsSlowly(0, _) => {}
            Behaviour::HangsUntil(gate) => drop(gate.wait_for(|open| *open).await),
            Behaviour::Fails(times) => {
                *times -= 1;
                let cause = std::io::Error::other("no route to host");
                return Err(SinkError::retry(cause));
            }
            Behaviour::FailsAsking(times, delay) => {
                *times -= 1;
                return Err(SinkError::RetryAfter("too many requests".into(), *delay));
            }
            Behaviour::Slow(pace) => sleep(*pace).await,
            Behaviour::FailsSlowly(times, pace) => {
                *times -= 1;
                sleep(*pace).await;
                return Err(SinkError::retry("no response"));
            }
            Behaviour::Panics => panic!("the sink panics"),
            Behaviour::Restarts(at) if *at == update.seq => {
                self.received.send_modify(|received| received.replica = Replica::default());
                return Err(SinkError::Restart);
            }
            Behaviour::AlwaysRestarts => return Err(SinkError::Restart),
            Behaviour::RestartsAtSource(source) if update.update.source == UpdateSource::One(*source) => {
                return Err(SinkError::Restart);
            }
            Behaviour::Restarts(_) | Behaviour::RestartsAtSource(_) | Behaviour::RestartsWhenIdle => {}
            Behaviour::Fatal => return Err(SinkError::fatal("the pipe is closed")),
        }
        self.received.send_modify(|received| received.replica.take(update));
        Ok(())
    }

    async fn interrupted(&mut self) -> SinkError {
        if let Behaviour::Leaves(gate) = &mut self.behaviour {
            drop(gate.wait_for(|open| *open).await);
            return SinkError::fatal("the reader has gone");
        }
        if let Behaviour::FailsUntil(gate) = &mut self.behaviour {
            drop(gate.wait_for(|open| *open).await);
            return SinkError::Restart;
        }
        if let Behaviour::RestartsWhenIdle = self.behaviour {
            return SinkError::Restart;
        }
        std::future::pending().await
    }

    fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    fn max_bytes(&self) -> usize {
        self.max_bytes
    }
}

/// An update of the file source with these pods.
pub fn update(seq: u64, op: Op, pods: &str) -> SequencedUpdate {
    let mut builder = ListingBuilder::new(SourceName::File);
    let pods = pods.split_whitespace().map(pod).collect();
    builder.put(&Origin::from("test"), pods, Timestamp::UNIX_EPOCH);
    let pods = builder.listing().iter().map(|(_, entry)| entry.pod().clone()).collect();
    let time = "2026-11-21T09:00:00.000123999Z".parse().unwrap();
    let update = PodUpdate { op, source: UpdateSource::One(SourceName::File), pods, sources: Arc::default() };
    SequencedUpdate { seq, run: None, time, update, more: false }
}
