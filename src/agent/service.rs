//! The agent as a service: what the service manager is told, and when.
//!
//! All of it is a part of the agent's own future and no task of the crew: it
//! tells how the crew ends, and ends after it. It wakes when something changes,
//! and by the clock only while the start goes on and for the watchdog.

use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{
    levels::Levels,
    status::{Phase, Standing},
};
use crate::{
    clock,
    mux::Mux,
    supervise::Heartbeat,
    systemd::{Manager, State},
};

/// How much more time a slow start asks for,
const EXTENSION: Duration = Duration::from_mins(1);
/// and how often, well within it.
const EXTEND_EVERY: Duration = Duration::from_secs(20);
/// How long a start may take before no more time is asked for: nothing can be
/// seen of a disk or a network that hangs. A check of 10 GB of state takes less.
const LONGEST_START: Duration = Duration::from_mins(15);
/// What the manager waits beyond the shutdown grace: for the end of the process itself.
const STOP_MARGIN: Duration = Duration::from_secs(5);
/// How long the status rests after a change: in a storm it is sent once a second.
const PAUSE: Duration = Duration::from_secs(1);

/// Makes the agent, and asks for more time meanwhile.
pub(super) async fn while_opening<T>(
    manager: &Manager,
    begun: Instant,
    making: impl Future<Output = T>,
) -> T {
    let asking = async {
        if !manager.is_present() {
            return;
        }
        let status = State::Status("starting".to_owned());
        manager.notify(&[status, State::ExtendTimeout(EXTENSION)]).await;
        sleep(EXTEND_EVERY).await;
        while begun.elapsed() < LONGEST_START {
            manager.notify(&[State::ExtendTimeout(EXTENSION)]).await;
            sleep(EXTEND_EVERY).await;
        }
    };
    tokio::select! {
        // The first message is sent however fast the start is.
        biased;
        never = async { asking.await; pending::<Infallible>().await } => match never {},
        made = making => made,
    }
}

/// How many reloads there were, and what became of the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Reloads {
    begun: u64,
    ended: u64,
    trouble: Option<Trouble>,
}

/// What was wrong with the last reload.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// Why the settings were not taken.
    Refused(String),
    /// Why a file that they name was not.
    Unusable(String),
}

/// The reloads, told by who makes them.
pub(super) struct ReloadTeller(watch::Sender<Reloads>);

impl ReloadTeller {
    pub(super) fn new() -> (Self, watch::Receiver<Reloads>) {
        let (teller, reloads) = watch::channel(Reloads::default());
        (Self(teller), reloads)
    }

    pub(super) fn begun(&self) {
        self.0.send_modify(|reloads| reloads.begun += 1);
    }

    /// It is done, with or without trouble.
    pub(super) fn ended(&self, trouble: Option<Trouble>) {
        self.0.send_modify(|reloads| {
            reloads.ended = reloads.begun;
            reloads.trouble = trouble;
        });
    }
}

/// All that the manager is told of.
pub(super) struct Service {
    pub(super) manager: Manager,
    pub(super) levels: Levels,
    pub(super) mux: Mux,
    pub(super) pulses: Vec<Heartbeat>,
    pub(super) reloads: watch::Receiver<Reloads>,
    /// How long the crew may take to stop.
    pub(super) grace: watch::Receiver<Duration>,
    /// The two steps of the end.
    pub(super) finish: CancellationToken,
    pub(super) stop: CancellationToken,
    /// When the start began.
    pub(super) begun: Instant,
}

impl Service {
    /// Tells the manager whatever it should know, for ever. Without a manager it does nothing.
    pub(super) async fn run(self) -> Infallible {
        if !self.manager.is_present() {
            return pending().await;
        }
        let Self { manager, levels, mux, pulses, reloads, grace, finish, stop, begun } = self;
        let started = CancellationToken::new();
        let teller = Teller {
            manager: &manager,
            levels,
            reloads,
            grace,
            finish,
            stop,
            started: started.clone(),
            told: Told::default(),
        };
        // The token first: nothing is asked for once the end of the start is on its way.
        let slow_start = async {
            tokio::select! {
                biased;
                () = started.cancelled() => {}
                () = extend(&manager, &mux, begun) => {}
            }
        };
        let (never, ..) = tokio::join!(teller.run(), slow_start, watchdog(&manager, &mux, &pulses));
        never
    }
}

/// Asks for more time while the start that began then goes on, as long as the
/// merge loop turns; for a quarter of an hour at most.
pub async fn extend(manager: &Manager, mux: &Mux, begun: Instant) {
    while begun.elapsed() < LONGEST_START && mux.turns().await {
        manager.notify(&[State::ExtendTimeout(EXTENSION)]).await;
        sleep(EXTEND_EVERY).await;
    }
}

/// What the manager has been told.
#[derive(Clone, Default)]
struct Told {
    ready: bool,
    stopping: bool,
    /// The last reload of which it knows that it has begun,
    begun: u64,
    /// and that it is done.
    ended: u64,
    status: String,
    status_at: Option<Instant>,
}

/// Tells READY, RELOADING, STOPPING and the status.
struct Teller<'a> {
    manager: &'a Manager,
    levels: Levels,
    reloads: watch::Receiver<Reloads>,
    grace: watch::Receiver<Duration>,
    finish: CancellationToken,
    stop: CancellationToken,
    /// Cancelled when the start is over, just before that is told.
    started: CancellationToken,
    told: Told,
}

/// All that was looked at, before something is told of it.
struct Seen {
    at: Instant,
    standing: Standing,
    reloads: Reloads,
    /// How far the end is.
    finishing: bool,
    stopping: bool,
}

impl Teller<'_> {
    async fn run(mut self) -> Infallible {
        loop {
            let seen = self.look();
            let Some((message, told)) = self.news(&seen) else {
                self.wait(&seen).await;
                continue;
            };
            if told.ready || told.stopping {
                // Before it is told: more time that is asked for after READY would be taken for
                // the watchdog's, too, and a frozen agent would be found a minute late.
                self.started.cancel();
            }
            if self.manager.notify(&message).await {
                self.told = told;
            } else {
                sleep(PAUSE).await;
            }
            // Time may have passed meanwhile, and the next news may be due already.
        }
    }

    fn look(&mut self) -> Seen {
        Seen {
            at: Instant::now(),
            standing: Standing::of(&mut self.levels),
            reloads: self.reloads.borrow_and_update().clone(),
            finishing: self.finish.is_cancelled(),
            stopping: self.stop.is_cancelled(),
        }
    }

    /// The next message that is due, if one is, and what has been told with it.
    fn news(&self, seen: &Seen) -> Option<(Vec<State>, Told)> {
        let (mut told, reloads) = (self.told.clone(), &seen.reloads);
        let mut message = Vec::new();
        if seen.finishing {
            if !told.stopping {
                told.stopping = true;
                message = vec![State::Stopping, State::ExtendTimeout(*self.grace.borrow() + STOP_MARGIN)];
            }
        } else if !told.ready {
            if seen.standing.is_settled() {
                told.ready = true;
                // A reload that is over is a part of the start.
                (told.begun, told.ended) = (reloads.ended, reloads.ended);
                message = vec![State::Ready];
            }
        } else if told.begun < reloads.begun {
            told.begun = reloads.begun;
            return Some((vec![State::Reloading], told));
        } else if told.ended < told.begun && reloads.ended >= told.begun {
            told.ended = reloads.ended;
            message = vec![State::Ready];
        }
        let status = line(seen, told.ready);
        if !message.is_empty() || (status != told.status && self.status_due() <= Instant::now()) {
            told.status.clone_from(&status);
            told.status_at = Some(Instant::now());
            message.push(State::Status(status));
            return Some((message, told));
        }
        None
    }

    /// When the status may be sent again.
    fn status_due(&self) -> Instant {
        self.told.status_at.map_or_else(Instant::now, |at| at + PAUSE)
    }

    /// Waits until there may be news.
    async fn wait(&mut self, seen: &Seen) {
        let stale = (line(seen, self.told.ready) != self.told.status).then(|| self.status_due());
        let stuck = seen.standing.stuck_in(clock::now()).map(|wait| Instant::now() + wait.unsigned_abs());
        let deadline = stale.into_iter().chain(stuck).min();
        // Who starts is looked at with every change, so that READY waits for nobody.
        let rest = if self.told.ready { PAUSE } else { Duration::ZERO };
        let Self { levels, reloads, finish, stop, .. } = self;
        tokio::select! {
            () = async { levels.changed().await; sleep_until(seen.at + rest).await } => {}
            () = async { if reloads.changed().await.is_err() { pending().await } } => {}
            () = finish.cancelled(), if !seen.finishing => {}
            () = stop.cancelled(), if !seen.stopping => {}
            () = async { match deadline { Some(at) => sleep_until(at).await, None => pending().await } } => {}
        }
    }
}

/// The status, told to a manager that knows, or not, that the start is over.
fn line(seen: &Seen, ready: bool) -> String {
    let phase = match seen {
        Seen { stopping: true, .. } => Phase::Stopping,
        Seen { finishing: true, .. } => Phase::Finishing,
        _ if ready => Phase::Running,
        _ => Phase::Starting,
    };
    seen.standing.line(phase, seen.reloads.trouble.as_ref(), clock::now())
}

type Turn<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// A loop that has to turn for the watchdog to be fed.
struct Turning<'a> {
    name: &'a str,
    /// Waits until it has turned once more; also when it has ended, which is the crew's business.
    turn: Box<dyn Fn() -> Turn<'a> + 'a>,
}

impl<'a> Turning<'a> {
    fn all(mux: &'a Mux, pulses: &'a [Heartbeat]) -> Vec<Self> {
        let mux = Self { name: "mux", turn: Box::new(|| Box::pin(mux.turns())) };
        let tasks =
            pulses.iter().map(|pulse| Self { name: pulse.task(), turn: Box::new(|| Box::pin(pulse.beat())) });
        std::iter::once(mux).chain(tasks).collect()
    }
}

/// Gives a sign of life at twice the pace that is asked for, each time after
/// the merge loop and the tasks of all these pulses have turned once more.
/// Whoever does not turn is named in the log. Without a watchdog it does nothing.
pub async fn watchdog(manager: &Manager, mux: &Mux, pulses: &[Heartbeat]) {
    let Some(interval) = manager.watchdog() else { return };
    let loops = Turning::all(mux, pulses);
    loop {
        all_turn(&loops, interval / 4).await;
        manager.notify(&[State::Watchdog]).await;
        sleep(interval / 2).await;
    }
}

/// Waits until every loop has turned once more. Those who take longer than this are named in the log.
async fn all_turn(loops: &[Turning<'_>], patience: Duration) {
    let mut asked: Vec<_> = loops.iter().map(|one| (one.name, (one.turn)())).collect();
    if timeout(patience, answers(&mut asked)).await.is_ok() {
        return;
    }
    for (task, _) in &asked {
        error!(
            task,
            "has not turned for {patience:?}; the service manager gets no sign of life before it does"
        );
    }
    answers(&mut asked).await;
    info!("recovered: every loop turns again");
}

/// Waits until all have answered; those who have not stay in the list.
async fn answers(asked: &mut Vec<(&str, Turn<'_>)>) {
    poll_fn(|context| {
        asked.retain_mut(|(_, turn)| turn.as_mut().poll(context).is_pending());
        if asked.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
