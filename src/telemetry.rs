//! The log: to stderr, as text or JSON, never in anybody's way.
//!
//! Field names are the same everywhere: `source`, `op`, `pod`, `path` and
//! `error` speak of pods and manifests, `sink` and `seq` of a stream, `task` of
//! the crew. Header values, tokens and pod environment values are never logged.
//!
//! An event is one line, whatever is in it. Where systemd's journal reads, a
//! line begins with its level as sd-daemon(3) has it (`<4>`), which the journal
//! takes off and keeps as `PRIORITY`; time, level and program are then left out
//! of the text, for the journal notes them by itself. A line of JSON stays whole
//! behind its level, so that what the journal keeps is plain JSON.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use rustix::fs::fstat;
use tracing::{Metadata, level_filters::LevelFilter, subscriber::SetGlobalDefaultError};
use tracing_subscriber::{
    Registry, filter::Targets, fmt, fmt::MakeWriter, layer::SubscriberExt as _, reload,
};

/// The settings of the log, which is always written to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The format of its lines.
    pub format: Format,
    /// 0 logs what an operator must know, 1 also debug events, 2 also traces, 3 also those
    /// of the libraries.
    pub verbosity: u8,
}

/// The format of the log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}

/// The environment variables by name.
type Environment = BTreeMap<String, String>;

/// How many lines wait for a stderr that nobody reads; what comes then is
/// counted and dropped. A thousand lines are about 200 kB.
const WAITING_LINES: usize = 1024;
/// How long the end of the program waits for the last lines.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Why there can be no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The thread that writes it cannot be started.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// There is one already.
    #[error("the log is already set up")]
    Twice(#[source] SetGlobalDefaultError),
}

/// The log of this process. Dropping it writes out what still waits.
#[derive(Debug)]
pub struct Log {
    level: Level,
    lines: Lines,
}

/// How much the log says; it can be set while the log runs.
#[derive(Clone, Debug)]
pub struct Level(reload::Handle<Targets, Registry>);

impl Level {
    /// Says more or less from now on: see [`Config::verbosity`].
    pub fn set(&self, verbosity: u8) {
        // It fails only when there is no log any more.
        let _ = self.0.reload(targets(verbosity));
    }
}

impl Log {
    /// Sets up the log of this process, panics included.
    ///
    /// # Errors
    /// If it is set up already, or its thread cannot be started.
    pub fn start(config: &Config, environment: &Environment) -> Result<Self, LogError> {
        let journal = stderr_is_the_journal(environment);
        let lines = Lines::to(io::stderr(), journal).map_err(LogError::Thread)?;
        let (level, handle) = reload::Layer::new(targets(config.verbosity));
        let form = fmt::layer().with_writer(lines.clone()).log_internal_errors(false);
        let set = match config.format {
            Format::Json => {
                let form = form.json().flatten_event(true).with_span_list(false).with_current_span(false);
                tracing::subscriber::set_global_default(Registry::default().with(level).with(form))
            }
            Format::Text => {
                let form = form.with_ansi(colour(environment)).with_target(config.verbosity > 0);
                let registry = Registry::default().with(level);
                if journal {
                    let form = form.without_time().with_level(false);
                    tracing::subscriber::set_global_default(registry.with(form))
                } else {
                    tracing::subscriber::set_global_default(registry.with(form))
                }
            }
        };
        set.map_err(LogError::Twice)?;
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        Ok(Self { level: Level(handle), lines })
    }

    /// The handle by which it says more or less.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines.flush(LAST_LINES);
    }
}

/// What is said at which verbosity: our own rooms first, the libraries later.
fn targets(verbosity: u8) -> Targets {
    let (ours, others) = match verbosity {
        0 => (LevelFilter::INFO, LevelFilter::WARN),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        2 => (LevelFilter::TRACE, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(others).with_target("podmux", ours)
}

/// Says one line on standard error, for what has no log (yet): with its level if
/// the journal reads it, with the program's name, which the journal notes by
/// itself, if not.
pub fn say(level: tracing::Level, line: &str, environment: &Environment) {
    let line = if stderr_is_the_journal(environment) {
        format!("<{}>{line}\n", priority(level))
    } else {
        format!("podmux: {line}\n")
    };
    // If standard error is closed, the exit code has to say it alone.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// What sd-daemon(3) and syslog call a level.
const fn priority(level: tracing::Level) -> u8 {
    match level {
        tracing::Level::ERROR => 3,
        tracing::Level::WARN => 4,
        tracing::Level::INFO => 6,
        tracing::Level::DEBUG | tracing::Level::TRACE => 7,
    }
}

fn colour(environment: &Environment) -> bool {
    let refused = environment.get("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = environment.get("TERM").is_some_and(|terminal| terminal == "dumb");
    io::stderr().is_terminal() && !refused && !dumb
}

/// systemd names the file that it gave us for stderr; if stderr was redirected
/// since, it is another.
fn stderr_is_the_journal(environment: &Environment) -> bool {
    let stderr = fstat(io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    environment.get("JOURNAL_STREAM").is_some_and(|stream| stderr.is_ok_and(|stderr| *stream == stderr))
}

/// Where the log's lines wait for the thread that writes them, so that a stderr
/// that nobody reads stops no one.
#[derive(Clone, Debug)]
struct Lines {
    queue: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
    /// Whether each begins with its level.
    journal: bool,
}

/// One line on its way to the others.
#[derive(Debug)]
struct Line {
    lines: Lines,
    /// What it begins with.
    priority: Option<u8>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

impl Lines {
    fn to(output: impl Write + Send + 'static, journal: bool) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(WAITING_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let lines = Self { queue, lost: lost.clone(), journal };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_out(output, &waiting, &lost))?;
        Ok(lines)
    }

    fn flush(&self, patience: Duration) {
        let (done, flushed) = sync_channel(1);
        if self.queue.try_send(Entry::Flush(done)).is_ok() {
            // Whether it came in time or not: this is the end.
            let _ = flushed.recv_timeout(patience);
        }
    }
}

impl Write for Line {
    /// Takes one line: the formatter writes each event in one piece.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = one_line(self.priority, event);
        if self.lines.queue.try_send(Entry::Line(line)).is_err() {
            self.lines.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { lines: self.clone(), priority: None }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Line {
        Line { lines: self.clone(), priority: self.journal.then(|| priority(*event.level())) }
    }
}

/// An event as one line, with its level before it if somebody wants that. What
/// had several lines is drawn together: readers of logs, the journal first of
/// all, take each line for an event of its own.
fn one_line(priority: Option<u8>, event: &[u8]) -> Vec<u8> {
    let mut line = priority.map(|priority| format!("<{priority}>").into_bytes()).unwrap_or_default();
    let parts = event.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    for (number, part) in parts.filter(|part| !part.is_empty()).enumerate() {
        if number > 0 {
            line.push(b' ');
        }
        line.extend_from_slice(part);
    }
    line.push(b'\n');
    line
}

/// Writes until nobody can log any more. A stderr that refuses loses lines: there is no one left to tell.
fn write_out(mut output: impl Write, waiting: &Receiver<Entry>, lost: &AtomicU64) {
    for entry in waiting {
        match entry {
            Entry::Line(line) => drop(output.write_all(&line)),
            Entry::Flush(done) => drop(done.try_send(())),
        }
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            // It goes through the queue like any line, and so never waits here.
            lines => tracing::warn!(lines, "a part of the log is lost: nobody read it in time"),
        }
    }
}
