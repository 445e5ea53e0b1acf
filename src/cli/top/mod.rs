//! `podmux top`: a live screen of the sources, the pods and the updates of a running agent.

use std::{
    io::{self, IsTerminal as _},
    pin::pin,
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use ratatui::crossterm::event;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use self::{
    feed::{Feed, First, Lost},
    guard::Guard,
    model::{Model, News},
    view::View,
};
use super::{
    connection::{Connection, ConnectionArgs, block_on},
    failure::Failure,
};
use crate::{
    host::{Clock, Host},
    settings::Environment,
    telemetry::colours,
};

mod columns;
pub mod details;
mod feed;
pub mod guard;
pub mod keys;
pub mod model;
pub mod rate;
pub mod screen;
pub mod view;

/// The least time between two frames.
const FRAME: Duration = Duration::from_millis(100);
/// How often ages are drawn again.
const TICK: Duration = Duration::from_secs(1);
/// How many changes and keys wait for the screen.
const QUEUE: usize = 256;

/// Show the sources, pods and updates of a running agent, live
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = KEYS)]
pub(super) struct Args {
    #[command(flatten)]
    connection: ConnectionArgs,
}

const ABOUT: &str = "\
Show the sources, pods and updates of a running agent, live

The screen needs a terminal that can position the cursor, of any size. Where there is none, use podmux get pods -A --watch \
or podmux get updates. When the agent restarts or the connection breaks, the command shows it and connects again. NO_COLOR \
turns colours off.";

const KEYS: &str = "\
Keys:
  Up, Down, j, k, PageUp, PageDown, Home, End   move
  Enter                                         open the pod: its status, conditions, containers and events
  /                                             show only pods and updates with a text; Enter keeps it
  s, S, Right, Left                             sort by the next column, or by the one before
  r                                             reverse the order
  Esc                                           go back: close the pod, remove the filter, quit
  q, Ctrl-C                                     quit

Exit codes: 0 quit, or stopped by a signal; 1 a request failed; 2 invalid arguments, or no terminal.";

pub(super) fn run(args: &Args, environment: &Environment) -> Result<u8, Failure> {
    check_terminal(environment).map_err(Failure::Refused)?;
    let host = Host::default();
    let connection = Connection::new(&args.connection, environment)?;
    // The screen is not mixed with lines; it shows which sources wait.
    let connection = connection.without_warnings();
    let has_colours = colours(&io::stdout(), environment);
    block_on(async {
        let first = First::list(&connection).await?;
        let (news, incoming) = mpsc::channel(QUEUE);
        let feed = Feed {
            connection: &connection,
            random: &host.random,
            clock: &host.clock,
            news,
            lost: watch::Sender::new(Lost::default()),
        };
        show(&feed, first, incoming, View::new(has_colours), &host.clock).await
    })
}

/// What to use where there is no terminal.
fn check_terminal(environment: &Environment) -> Result<(), anyhow::Error> {
    let instead = "use podmux get pods -A --watch, or podmux get updates";
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(anyhow!("podmux top needs a terminal: {instead}"));
    }
    match environment.get("TERM").map(String::as_str) {
        None | Some("" | "dumb") => {
            Err(anyhow!("this terminal cannot position the cursor (TERM is dumb or not set): {instead}"))
        }
        Some(_) => Ok(()),
    }
}

/// The signals that end the program.
struct Ends([Signal; 3]);

impl Ends {
    fn new() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(Failure::failed);
        Ok(Self([of(SignalKind::terminate())?, of(SignalKind::interrupt())?, of(SignalKind::hangup())?]))
    }

    async fn wait(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Reads the terminal's events on a thread of its own, which ends with the program.
fn events() -> Result<mpsc::Receiver<io::Result<event::Event>>, Failure> {
    let (sender, events) = mpsc::channel(QUEUE);
    let read = move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".to_owned()).spawn(read).map_err(Failure::failed)?;
    Ok(events)
}

/// Shows the screen until the user quits: one frame for all changes of a tenth of a second.
async fn show(
    feed: &Feed<'_>,
    first: First,
    mut incoming: mpsc::Receiver<News>,
    mut view: View,
    clock: &Clock,
) -> Result<u8, Failure> {
    let mut model = Model::default();
    model.take(News::Pods(first.pods.clone()), clock.now());
    let (open, opened) = watch::channel(None);
    let mut lost = feed.lost.subscribe();
    let mut failed = pin!(feed.run(first, opened));
    let mut ends = Ends::new()?;
    let mut screen = Guard::open().context("cannot use the terminal").map_err(Failure::Failed)?;
    let mut events = events()?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_old, mut next_frame) = (true, Instant::now());
    loop {
        tokio::select! {
            biased;
            () = ends.wait() => return Ok(0),
            Some(event) = events.recv() => {
                let event = event.context("cannot read the terminal").map_err(Failure::Failed)?;
                if let event::Event::Key(key) = event
                    && let Some(action) = keys::action(key, view.is_typing)
                    && !view.act(action, &model)
                {
                    return Ok(0);
                }
                open.send_if_modified(|open| {
                    let is_other = *open != view.open;
                    open.clone_from(&view.open);
                    is_other
                });
            }
            () = sleep_until(next_frame), if is_old => {
                let drawn = screen.draw(|frame| screen::draw(&model, &mut view, clock.now(), frame));
                drawn.context("cannot write to the terminal").map_err(Failure::Failed)?;
                next_frame = Instant::now() + FRAME;
                is_old = false;
                continue;
            }
            Some(news) = incoming.recv() => model.take(news, clock.now()),
            Ok(()) = lost.changed() => {
                let why = lost.borrow_and_update().iter().flatten().next().cloned();
                model.set_lost(why.as_deref(), clock.now());
            }
            failure = &mut failed => return Err(failure),
            _ = tick.tick() => {}
        }
        is_old = true;
    }
}
