//! Notifications to the service manager.
//!
//! They are a part of the agent's own future and not one of its tasks: they report how the
//! tasks end, and end after them. They wake up when something changes, and by the clock only during
//! the start and for the watchdog.

use std::{convert::Infallible, future::pending, pin::pin, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{
    shutdown::Shutdown,
    status::{AgentState, Phase, Reloads, Snapshot},
};
use crate::{
    mux::Mux,
    supervise::Heartbeat,
    systemd::{Manager, State},
};

/// The time that a slow start requests,
const EXTENSION: Duration = Duration::from_mins(1);
/// and how often, well within it.
const EXTEND_EVERY: Duration = Duration::from_secs(20);
/// How long a start may take before it requests no more time: a disk or a network that hangs
/// cannot be distinguished from a slow one. Checking 10 GB of state takes less.
const LONGEST_START: Duration = Duration::from_mins(15);
/// The time that the manager waits beyond the shutdown grace, for the end of the process itself.
const STOP_MARGIN: Duration = Duration::from_secs(5);
/// The shortest time between two status lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits for the agent to be made, and requests more time meanwhile.
pub(super) async fn while_opening<T>(
    manager: &Manager,
    begun: Instant,
    making: impl Future<Output = T>,
) -> T {
    let requesting = async {
        let mut message = vec![State::Status("starting".to_owned())];
        while manager.is_present() && begun.elapsed() < LONGEST_START {
            message.push(State::ExtendTimeout(EXTENSION));
            manager.notify(&message).await;
            message.clear();
            sleep(EXTEND_EVERY).await;
        }
        pending::<Infallible>().await
    };
    tokio::select! {
        // The first message is sent however fast the start is.
        biased;
        never = requesting => match never {},
        made = making => made,
    }
}

/// Sends READY, RELOADING, STOPPING, the status and the keep-alive of the watchdog until it is dropped.
pub(super) struct ServiceNotifier {
    pub(super) manager: Manager,
    pub(super) state: AgentState,
    pub(super) reloads: watch::Receiver<Reloads>,
    /// How long the tasks may take to stop.
    pub(super) grace: watch::Receiver<Duration>,
    pub(super) shutdown: Shutdown,
    /// Cancelled when the start is over, just before the manager is notified.
    pub(super) started: CancellationToken,
    pub(super) sent: Sent,
}

/// Requests more time for a start while the merge loop runs, until `started` is cancelled, for a quarter of an hour at most.
pub async fn extend(manager: &Manager, mux: &Mux, begun: Instant, started: &CancellationToken) {
    let extending = async {
        while begun.elapsed() < LONGEST_START && mux.turns().await {
            manager.notify(&[State::ExtendTimeout(EXTENSION)]).await;
            sleep(EXTEND_EVERY).await;
        }
    };
    tokio::select! {
        // No time is requested once READY is about to be sent.
        biased;
        () = started.cancelled() => {}
        () = extending => {}
    }
}

/// What the manager has received.
#[derive(Clone, Default)]
pub(super) struct Sent {
    ready: bool,
    stopping: bool,
    /// The number of the last reload that it knows to have begun,
    begun: u64,
    /// and to have ended.
    ended: u64,
    status: String,
    status_at: Option<Instant>,
}

/// Everything that a message depends on.
struct Observed {
    at: Instant,
    snapshot: Snapshot,
    reloads: Reloads,
    finishing: bool,
    stopping: bool,
}

impl ServiceNotifier {
    /// Without a manager it does nothing. `begun` is when the start began.
    pub(super) async fn run(self, mux: &Mux, heartbeats: &[Heartbeat], begun: Instant) -> Infallible {
        if !self.manager.is_present() {
            return pending().await;
        }
        let (manager, started) = (self.manager.clone(), self.started.clone());
        let slow_start = extend(&manager, mux, begun, &started);
        let watchdog = async {
            // The mux may wait for the sources first.
            mux.turns().await;
            watchdog(&manager, mux, heartbeats).await;
        };
        let (never, ..) = tokio::join!(self.report(), slow_start, watchdog);
        never
    }

    async fn report(mut self) -> Infallible {
        loop {
            let observed = self.observe();
            let Some((message, sent)) = self.message(&observed) else {
                self.wait(&observed).await;
                continue;
            };
            if sent.ready || sent.stopping {
                // Before it is sent: the manager would add time that is requested after READY to
                // the watchdog's, and notice a frozen agent a minute late.
                self.started.cancel();
            }
            if self.manager.notify(&message).await {
                self.sent = sent;
            } else {
                sleep(PAUSE).await;
            }
        }
    }

    fn observe(&mut self) -> Observed {
        Observed {
            at: Instant::now(),
            snapshot: self.state.snapshot(),
            reloads: self.reloads.borrow_and_update().clone(),
            finishing: self.shutdown.finish.is_cancelled(),
            stopping: self.shutdown.stop.is_cancelled(),
        }
    }

    /// The next message that is due, and what the manager has received with it.
    fn message(&self, observed: &Observed) -> Option<(Vec<State>, Sent)> {
        let (mut sent, reloads) = (self.sent.clone(), &observed.reloads);
        let mut message = Vec::new();
        if observed.finishing {
            if !sent.stopping {
                sent.stopping = true;
                message = vec![State::Stopping, State::ExtendTimeout(*self.grace.borrow() + STOP_MARGIN)];
            }
        } else if !sent.ready {
            if observed.snapshot.is_started() {
                sent.ready = true;
                // A reload that is over is a part of the start.
                (sent.begun, sent.ended) = (reloads.ended, reloads.ended);
                message = vec![State::Ready];
            }
        } else if sent.begun < reloads.begun {
            sent.begun = reloads.begun;
            return Some((vec![State::Reloading], sent));
        } else if sent.ended < sent.begun && reloads.ended >= sent.begun {
            sent.ended = reloads.ended;
            message = vec![State::Ready];
        }
        let status = Self::line(observed, sent.ready);
        if !message.is_empty() || (status != sent.status && self.status_due() <= Instant::now()) {
            sent.status.clone_from(&status);
            sent.status_at = Some(Instant::now());
            message.push(State::Status(status));
            return Some((message, sent));
        }
        None
    }

    /// When the next status may be sent.
    fn status_due(&self) -> Instant {
        self.sent.status_at.map_or_else(Instant::now, |at| at + PAUSE)
    }

    /// Waits until a message may be due.
    async fn wait(&mut self, observed: &Observed) {
        let stale = (Self::line(observed, self.sent.ready) != self.sent.status).then(|| self.status_due());
        let stuck = observed.snapshot.stuck_in().map(|wait| Instant::now() + wait);
        let deadline = stale.into_iter().chain(stuck).min();
        // During the start there is no pause, so that READY is not delayed.
        let pause = if self.sent.ready { PAUSE } else { Duration::ZERO };
        let Self { state, reloads, shutdown, .. } = self;
        tokio::select! {
            () = async { state.changed().await; sleep_until(observed.at + pause).await } => {}
            () = async { if reloads.changed().await.is_err() { pending().await } } => {}
            () = shutdown.finish.cancelled(), if !observed.finishing => {}
            () = shutdown.stop.cancelled(), if !observed.stopping => {}
            () = async { match deadline { Some(at) => sleep_until(at).await, None => pending().await } } => {}
        }
    }

    /// The status line for a manager that knows, or not, that the start is over.
    fn line(observed: &Observed, ready: bool) -> String {
        let phase = match observed {
            Observed { stopping: true, .. } => Phase::Stopping,
            Observed { finishing: true, .. } => Phase::Finishing,
            _ if ready => Phase::Running,
            _ => Phase::Starting,
        };
        observed.snapshot.line(phase, observed.reloads.failure.as_ref())
    }
}

/// Feeds the watchdog twice in its interval, each time after the merge loop and the tasks of
/// all these heartbeats have run once more. A task that does not run is logged. Without a
/// watchdog it does nothing.
pub async fn watchdog(manager: &Manager, mux: &Mux, heartbeats: &[Heartbeat]) {
    let Some(interval) = manager.watchdog() else { return };
    let limit = interval / 4;
    loop {
        let tasks = heartbeats.iter().map(|heartbeat| runs_late(heartbeat.task(), heartbeat.beat(), limit));
        let (mux_late, late) = tokio::join!(runs_late("mux", mux.turns(), limit), join_all(tasks));
        if mux_late || late.contains(&true) {
            info!("task recovered: the watchdog is fed again");
        }
        manager.notify(&[State::Watchdog]).await;
        sleep(interval / 2).await;
    }
}

/// Waits until a task has run once more, or has ended, which is handled elsewhere. Returns whether that
/// took longer than the limit, and logs it then.
async fn runs_late(task: &str, turn: impl Future<Output = bool>, limit: Duration) -> bool {
    let mut turn = pin!(turn);
    let is_late = timeout(limit, &mut turn).await.is_err();
    if is_late {
        error!(task, "task does not run for {limit:?}: the watchdog is not fed");
        turn.await;
    }
    is_late
}
