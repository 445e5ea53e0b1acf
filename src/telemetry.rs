//! The log, on stderr, as text or JSON. Logging never blocks.
//!
//! Field names are the same everywhere: `source`, `op`, `pod`, `path` and `error` for pods
//! and manifests, `sink` and `seq` for a stream, `task` for a task. Header values, tokens and
//! environment values of pods are never logged.
//!
//! Each event is one line. If stderr is systemd's journal, a line starts with its level as in
//! sd-daemon(3), `<4>`, which the journal stores as `PRIORITY`. Time, level and program are
//! left out of the text then, because the journal has them. A line of JSON stays complete
//! after its level, so that the journal stores plain JSON.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::fstat,
};
use tracing::{Metadata, field::Field, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer as _, Registry,
    field::MakeExt as _,
    filter::Targets,
    fmt::{
        self as formatting, MakeWriter,
        format::{Writer, debug_fn},
    },
    layer::SubscriberExt as _,
    reload,
};

use crate::escaped::{Escaped, for_a_terminal};

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

/// The length of the queue to stderr, about 200 kB; further lines are counted and dropped.
const QUEUED_LINES: usize = 1024;
/// Erases the line of the cursor on a terminal.
const ERASE_LINE: &[u8] = b"\r\x1b[K";
/// How long the end of the program waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// Why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the log")]
pub struct LogError(#[from] io::Error);

/// The log of this process. Dropping it writes the queued lines.
#[derive(Debug)]
pub struct Log {
    level: Level,
    lines: Lines,
    /// Whether its lines are read by a user.
    is_for_a_terminal: bool,
}

/// The verbosity of the log; it can be changed at run time.
#[derive(Clone, Debug)]
pub struct Level(reload::Handle<Targets, Registry>);

impl Level {
    /// Changes the verbosity: see [`Config::verbosity`].
    pub fn set(&self, verbosity: u8) {
        // It fails only after the end of the log.
        let _ = self.0.reload(targets(verbosity));
    }
}

impl Log {
    /// Sets up the log of this process; panics are logged too.
    ///
    /// # Errors
    /// If it is set up already, or its thread cannot be started.
    pub fn start(config: &Config, environment: &Environment) -> Result<Self, LogError> {
        let journal = stderr_is_the_journal(environment);
        let lines = Lines::to(io::stderr(), journal)?;
        let (level, handle) = reload::Layer::new(targets(config.verbosity));
        let form = formatting::layer().with_writer(lines.clone()).log_internal_errors(false);
        let form = match config.format {
            Format::Json => {
                form.json().flatten_event(true).with_span_list(false).with_current_span(false).boxed()
            }
            Format::Text => {
                let ansi = colours(&io::stderr(), environment);
                let form = form.with_ansi(ansi).with_target(config.verbosity > 0);
                let form = form.fmt_fields(debug_fn(field).delimited(" "));
                if journal { form.without_time().with_level(false).boxed() } else { form.boxed() }
            }
        };
        let set = tracing::subscriber::set_global_default(Registry::default().with(level).with(form));
        set.map_err(io::Error::other)?;
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        let is_for_a_terminal = config.format == Format::Text && takes_escapes(&io::stderr(), environment);
        Ok(Self { level: Level(handle), lines, is_for_a_terminal })
    }

    /// The line below the log, if it is text on a terminal.
    pub fn progress_line(&self) -> Option<ProgressLine> {
        self.is_for_a_terminal.then(|| ProgressLine(self.lines.queue.clone()))
    }

    /// The handle that changes the verbosity.
    pub fn level(&self) -> Level {
        self.level.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines.flush(FLUSH_TIMEOUT);
    }
}

/// The line below the log that shows what takes time now.
#[derive(Clone, Debug)]
pub struct ProgressLine(SyncSender<Entry>);

impl ProgressLine {
    /// Prints lines above it.
    pub fn print(&self, lines: &str) {
        let is_shown = |character: &char| !character.is_control() || *character == '\n';
        let lines: String = lines.chars().filter(is_shown).collect();
        let _ = self.0.try_send(Entry::Line(lines.into_bytes()));
    }

    /// Shows a text in place of the one before; nothing if it is empty.
    pub fn show(&self, text: &str) {
        let text: String = text.chars().filter(|character| !character.is_control()).collect();
        // The terminal cuts it off at its margin.
        let line = if text.is_empty() { text } else { format!("\x1b[?7l{text}\x1b[?7h") };
        // Without a reader of stderr it is shown nowhere.
        let _ = self.0.try_send(Entry::Progress(line.into_bytes()));
    }
}

/// Writes a field of an event as `name=value`. A name of a file or an error may have any character.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let is_coloured = writer.has_ansi_escapes();
    let (name, equals, end) =
        if is_coloured { ("\x1b[3m", "\x1b[0m\x1b[2m", "\x1b[0m") } else { ("", "", "") };
    if field.name() != "message" {
        write!(writer, "{name}{}{equals}={end}", field.name())?;
    }
    for (number, line) in format!("{value:?}").split('\n').enumerate() {
        let line_break = if number > 0 { "\n" } else { "" };
        write!(writer, "{line_break}{}", Escaped(line))?;
    }
    Ok(())
}

/// The levels of podmux and of the libraries at a verbosity.
fn targets(verbosity: u8) -> Targets {
    let (ours, others) = match verbosity {
        0 => (LevelFilter::INFO, LevelFilter::WARN),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        2 => (LevelFilter::TRACE, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    // A client makes hyper and h2 warn of what it sends, as often as it likes.
    let http = if verbosity < 3 { LevelFilter::ERROR } else { others };
    let targets = Targets::new().with_default(others).with_target("podmux", ours);
    targets.with_target("hyper", http).with_target("h2", http)
}

/// Writes one line to stderr without a log: with its level for the journal, otherwise with the
/// program's name.
pub fn print(level: tracing::Level, line: &str, environment: &Environment) {
    let line = Escaped(line);
    let line = if stderr_is_the_journal(environment) {
        format!("<{}>{line}\n", priority(level))
    } else {
        format!("podmux: {line}\n")
    };
    // If stderr is closed, only the exit code shows the failure.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The level's number in sd-daemon(3) and syslog.
const fn priority(level: tracing::Level) -> u8 {
    match level {
        tracing::Level::ERROR => 3,
        tracing::Level::WARN => 4,
        tracing::Level::INFO => 6,
        tracing::Level::DEBUG | tracing::Level::TRACE => 7,
    }
}

/// Whether a stream gets colours: only a terminal does, and `NO_COLOR` turns them off
/// (<https://no-color.org>).
pub(crate) fn colours(stream: &impl IsTerminal, environment: &Environment) -> bool {
    let disabled = environment.get("NO_COLOR").is_some_and(|value| !value.is_empty());
    takes_escapes(stream, environment) && !disabled
}

/// Whether a stream is a terminal that can erase a line and show colours.
pub(crate) fn takes_escapes(stream: &impl IsTerminal, environment: &Environment) -> bool {
    let is_dumb = environment.get("TERM").is_some_and(|terminal| terminal == "dumb");
    stream.is_terminal() && !is_dumb
}

/// Whether stderr is the file that systemd names; it may have been redirected since.
fn stderr_is_the_journal(environment: &Environment) -> bool {
    let stderr = fstat(io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    environment.get("JOURNAL_STREAM").is_some_and(|stream| stderr.is_ok_and(|stderr| *stream == stderr))
}

/// The queue to the thread that writes to stderr.
#[derive(Clone, Debug)]
struct Lines {
    queue: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
    /// Whether each line starts with its level.
    journal: bool,
}

/// A writer of one line.
#[derive(Debug)]
struct Line {
    lines: Lines,
    /// The number at the start of the line.
    priority: Option<u8>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    Progress(Vec<u8>),
    Flush(SyncSender<()>),
}

impl Lines {
    fn to(output: impl Write + AsFd + Send + 'static, journal: bool) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(QUEUED_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let lines = Self { queue, lost: lost.clone(), journal };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_out(output, &waiting, &lost))?;
        Ok(lines)
    }

    fn flush(&self, timeout: Duration) {
        let (done, flushed) = sync_channel(1);
        if self.queue.try_send(Entry::Flush(done)).is_ok() {
            // After the timeout the process ends without the last lines.
            let _ = flushed.recv_timeout(timeout);
        }
    }
}

impl Write for Line {
    /// Queues one line: the formatter writes each event with one call.
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

/// An event as one line, after its level if there is one. Line breaks become spaces, because
/// readers of logs take each line as an event of its own.
fn one_line(priority: Option<u8>, event: &[u8]) -> Vec<u8> {
    let mut line = priority.map(|priority| format!("<{priority}>").into_bytes()).unwrap_or_default();
    let parts = event.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    for (number, part) in parts.filter(|part| !part.is_empty()).enumerate() {
        if number > 0 {
            line.push(b' ');
        }
        line.extend_from_slice(&for_a_terminal(part));
    }
    line.push(b'\n');
    line
}

/// Writes lines until every logger is dropped. Write errors are ignored: there is no other
/// place to report them.
fn write_out(mut output: impl Write + AsFd, waiting: &Receiver<Entry>, lost: &AtomicU64) {
    let mut progress = Vec::new();
    for entry in waiting {
        let erase: &[u8] = if progress.is_empty() { b"" } else { ERASE_LINE };
        match entry {
            Entry::Line(line) => write_all(&mut output, &[erase, &line, &progress].concat()),
            Entry::Progress(line) => {
                write_all(&mut output, &[erase, &line].concat());
                progress = line;
            }
            Entry::Flush(done) => {
                write_all(&mut output, erase);
                progress.clear();
                let _ = done.try_send(());
            }
        }
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            // It goes through the queue too, so it cannot block this thread.
            lines => tracing::warn!(lines, "log lines lost: stderr was not read in time"),
        }
    }
}

/// Writes all bytes, also if another process that shares the output has made it non-blocking.
fn write_all(output: &mut (impl Write + AsFd), mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(written @ 1..) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(output, PollFlags::OUT)], None);
            }
            _ => return,
        }
    }
}
