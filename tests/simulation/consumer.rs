//! A consumer that outlives the agent, and the sink that delivers to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use podmux::{
    kind::Kind,
    pod::{Op, Pod, PodUpdate, SourceName, UpdateSource},
    sink::{OpenSink, Opening, SequencedUpdate, Sink, SinkError, SinkKind},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{
    node::{World, world},
    truth::SLACK,
};

/// A call that hangs ends so soon after the fault.
pub const NOTICES: Duration = Duration::from_millis(500);

/// The sinks, as the settings of the agent name them.
pub static STEADY: SinkKind = SinkKind { kind: kind("steady"), open: |_, opening| open(opening, 0) };
pub static FLAKY: SinkKind = SinkKind { kind: kind("flaky"), open: |_, opening| open(opening, 1) };

/// A kind without a target and without options.
pub const fn kind(name: &'static str) -> Kind {
    Kind { name, syntax: name, options: &[], shown: str::to_owned, accepts: |_| Ok(()), check: |_, _| Ok(()) }
}

#[expect(clippy::unnecessary_wraps, reason = "other kinds of sinks fail to open")]
fn open(opening: Opening, which: usize) -> Result<OpenSink, podmux::sink::OpenError> {
    let consumer = world().consumers[which].clone();
    let sequence = opening.sequence.clone();
    Ok(opening.deliver(Delivering(consumer), sequence, || {}))
}

/// How the way to the consumer fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinkFaults {
    /// Every delivery fails, some after they were applied.
    pub fails: bool,
    /// A delivery never ends.
    pub hangs: bool,
}

/// A pod that a consumer holds.
#[derive(Clone, Debug)]
pub struct Held {
    pub source: String,
    pub text: Arc<[u8]>,
    uid: String,
    /// When it was first told of the pod.
    told: Instant,
}

/// What a consumer holds.
#[derive(Default)]
pub struct Consumer {
    pub name: &'static str,
    pub faults: Mutex<SinkFaults>,
    held: Mutex<Stream>,
    /// Whether it has lost what it held, and not yet said so.
    has_lost: AtomicBool,
    lost: Notify,
}

#[derive(Default)]
struct Stream {
    pods: BTreeMap<String, Held>,
    run: Option<Arc<str>>,
    /// The number of the last update.
    last: u64,
    /// The sources that had a SET since the stream began. Before it, restored pods may be added that are held.
    begun: BTreeSet<SourceName>,
    /// The number of the last update that was on its way, and when it was first.
    attempted: Option<(u64, Instant)>,
}

impl Stream {
    fn clear(&mut self) {
        self.pods.clear();
        self.begun.clear();
    }

    /// What is wrong with an update of these pods, with what is held.
    fn wrong(&self, update: &PodUpdate) -> Option<String> {
        let UpdateSource::One(source) = update.source else { return None };
        if update.op == Op::Set || !self.begun.contains(&source) {
            return None;
        }
        let is_wrong = |pod: &&Arc<Pod>| {
            let held = self.pods.get(pod.key().as_str());
            let is_held = held.is_some_and(|held| held.source == source.as_str());
            if update.op == Op::Add { is_held } else { held.is_none() }
        };
        let pod = update.pods.iter().find(is_wrong)?;
        Some(format!("{} of {}", update.op, pod.key()))
    }
}

impl Consumer {
    pub fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, ..Self::default() })
    }

    pub fn pods(&self) -> BTreeMap<String, Held> {
        self.held.lock().unwrap().pods.clone()
    }

    /// Loses what it holds, and says so as soon as it can.
    pub fn forget(&self) {
        self.held.lock().unwrap().clear();
        self.has_lost.store(true, Ordering::SeqCst);
        self.lost.notify_one();
    }

    /// Whether it has just noticed that what it held is lost.
    fn notices_loss(&self) -> bool {
        let has_lost = self.has_lost.swap(false, Ordering::SeqCst);
        if has_lost {
            self.held.lock().unwrap().clear();
        }
        has_lost
    }

    /// An update is on its way.
    fn attempted(&self, number: u64) {
        let attempted = &mut self.held.lock().unwrap().attempted;
        if attempted.is_none_or(|(last, _)| last != number) {
            *attempted = Some((number, Instant::now()));
        }
    }

    /// Takes an update, and notes what is wrong with it.
    fn take(&self, update: &SequencedUpdate, world: &World) {
        let World { truth, broken, .. } = world;
        let stream = &mut *self.held.lock().unwrap();
        let line: Vec<u8> = update.line().flat_map(std::borrow::Cow::into_owned).collect();
        let is_new_run = update.run.is_some() && update.run != stream.run;
        stream.run = update.run.clone().or(stream.run.take());
        broken.numbered(self.name, stream.run.as_deref().unwrap_or_default(), update.seq, &line);
        let is_again = update.seq == stream.last && !is_new_run;
        if update.seq < stream.last && !(is_new_run && broken.numbers_may_repeat()) {
            broken.add(format!("{}: number {} after {}", self.name, update.seq, stream.last));
        }
        let came = stream.attempted.map_or_else(Instant::now, |(_, came)| came);
        // It may have waited for its number since the disk began to fail.
        let came = if world.is_quiet_for(SLACK) { came } else { came.min(world.unquiet_since.get()) };
        stream.last = update.seq;
        if is_again {
            // It was applied, and the acknowledgement was lost.
            return;
        }
        if is_new_run {
            stream.begun.clear();
        }
        if let Some(wrong) = stream.wrong(&update.update) {
            broken.add(format!("{}: {} {wrong}", self.name, update.seq));
        }
        let PodUpdate { op, source, pods, sources } = &update.update;
        let mut gone = Vec::new();
        match op {
            Op::Remove => gone.extend(pods.iter().map(|pod| pod.key().to_string())),
            Op::Set => {
                match source {
                    UpdateSource::All => stream.begun.extend(SourceName::ALL),
                    UpdateSource::One(source) => _ = stream.begun.insert(*source),
                }
                let listed = |key: &String| pods.iter().any(|pod| pod.key().as_str() == key);
                let is_replaced = |held: &Held| match source {
                    UpdateSource::All => true,
                    UpdateSource::One(source) => held.source == source.as_str(),
                };
                let of_source = stream.pods.iter().filter(|(_, held)| is_replaced(held));
                gone.extend(of_source.map(|(key, _)| key.clone()).filter(|key| !listed(key)));
            }
            _ => {}
        }
        for key in gone {
            if let Some(held) = stream.pods.remove(&key)
                && !truth.may_be_gone(&key, &held.uid, held.told)
            {
                broken.add(format!("{}: {op} takes {key} away, which is there", self.name));
            }
        }
        if *op == Op::Remove {
            return;
        }
        for (index, pod) in pods.iter().enumerate() {
            let told = stream.pods.get(pod.key().as_str()).map_or(came, |held| held.told);
            let source = sources.get(index).map_or(source.as_str(), |source| source.as_str());
            let (source, uid) = (source.to_owned(), pod.uid().to_string());
            let held = Held { source, uid, text: pod.text().clone(), told };
            stream.pods.insert(pod.key().to_string(), held);
        }
    }
}

/// The sink of one run of the agent.
struct Delivering(Arc<Consumer>);

impl Sink for Delivering {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        if self.0.notices_loss() {
            return Err(SinkError::Restart);
        }
        self.0.attempted(update.seq);
        let faults = || *self.0.faults.lock().unwrap();
        let SinkFaults { fails, hangs } = faults();
        if hangs {
            while faults().hangs {
                sleep(NOTICES).await;
            }
            return Err(SinkError::retry("the connection broke"));
        }
        let is_applied = !fails || update.seq.is_multiple_of(2);
        if is_applied {
            self.0.take(update, &world());
        }
        if fails { Err(SinkError::retry("the simulation")) } else { Ok(()) }
    }

    async fn interrupted(&mut self) -> SinkError {
        while !self.0.notices_loss() {
            self.0.lost.notified().await;
        }
        SinkError::Restart
    }
}
