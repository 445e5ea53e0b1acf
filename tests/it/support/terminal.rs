//! A terminal with a screen and keys, in which a program runs as in a user's window.

use std::{
    fs::File,
    io::{ErrorKind, PipeReader, PipeWriter, Write as _, pipe},
    num::NonZeroU16,
    path::Path,
    process::Command,
    sync::{Arc, Condvar, Mutex},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{OFlags, fcntl_setfl},
    termios::{Winsize, tcsetwinsize},
};

use super::process::{PATIENCE, Process, read_terminal, terminal};

/// The rows of a screen: so many that nothing leaves it.
const ROWS: u16 = 500;
/// The key Ctrl-C.
pub const CTRL_C: &str = "\x03";

/// A window with a running program. Dropping it closes the window, which ends what runs in it.
pub struct Window {
    pub process: Process,
    /// The user's end: keys and size.
    ours: File,
    seen: Arc<(Mutex<Seen>, Condvar)>,
    /// Dropped to close the reader's end.
    open: PipeWriter,
}

/// What the program has written.
struct Seen {
    parser: vt100::Parser,
    written: Vec<u8>,
    is_open: bool,
}

impl Window {
    /// Runs a command with these columns. It owns the terminal, so keys like Ctrl-C reach it as signals.
    /// Its environment is that of the command alone.
    pub fn open(command: &Command, columns: u16) -> Self {
        let (ours, theirs) = terminal();
        let ours = ours.into_file();
        let mut owner = Command::new("setsid");
        owner.arg("--ctty").arg(command.get_program()).args(command.get_args()).env_clear();
        owner.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        owner.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
        owner.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let parser = vt100::Parser::new(size(ROWS), size(columns), 0);
        let seen = Seen { parser, written: Vec::new(), is_open: true };
        let seen = Arc::new((Mutex::new(seen), Condvar::new()));
        let (stop, open) = pipe().unwrap();
        let reader = (ours.try_clone().unwrap(), stop, Arc::clone(&seen));
        tcsetwinsize(&ours, winsize(columns)).unwrap();
        let process = Process::start(&mut owner);
        // The program alone holds the other end now.
        drop(owner);
        thread::spawn(move || read(&reader.0, &reader.1, &reader.2));
        Self { process, ours, seen, open }
    }

    /// Presses keys. A program that has ended does not notice them.
    pub fn press(&self, keys: &str) {
        let _ = (&self.ours).write_all(keys.as_bytes());
    }

    /// Gives the window another width.
    pub fn resize(&self, columns: u16) {
        self.seen.0.lock().unwrap().parser.set_size(size(ROWS), size(columns));
        tcsetwinsize(&self.ours, winsize(columns)).unwrap();
    }

    /// Everything that was written.
    pub fn written(&self) -> String {
        self.seen.0.lock().unwrap().text()
    }

    /// The lines that were written, without styles.
    pub fn lines(&self) -> Vec<String> {
        lines(&self.written())
    }

    /// Waits until the lines that were written are as wanted.
    pub fn wrote<T>(&self, what: &str, find: impl Fn(&[String]) -> Option<T>) -> T {
        self.wait(what, |seen| find(&lines(&seen.text())))
    }

    /// Waits until the screen is as wanted.
    pub fn shows<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        self.wait(what, |seen| find(&rows(seen.parser.screen())))
    }

    /// Waits for a line that has a text.
    pub fn wrote_text(&self, text: &str) {
        self.wrote(&format!("{text:?}"), |lines| lines.iter().any(|line| line.contains(text)).then_some(()));
    }

    fn wait<T>(&self, what: &str, find: impl Fn(&Seen) -> Option<T>) -> T {
        let mut found = None;
        let seen = self.seen.0.lock().unwrap();
        let waits = |seen: &mut Seen| {
            found = find(seen);
            found.is_none() && seen.is_open
        };
        let (seen, _) = self.seen.1.wait_timeout_while(seen, PATIENCE, waits).unwrap();
        found.unwrap_or_else(|| panic!("no {what}:\n{}", rows(seen.parser.screen())))
    }

    /// Waits for the end of the program. Returns its exit code and everything that it has written.
    pub fn ends(self) -> (i32, String) {
        let code = self.process.wait().expect("it does not end");
        let seen = self.seen.0.lock().unwrap();
        let (seen, _) = self.seen.1.wait_timeout_while(seen, PATIENCE, |seen| seen.is_open).unwrap();
        (code, seen.text())
    }

    /// Closes the window while the program runs, and returns its exit code.
    pub fn close(self) -> i32 {
        let Self { process, ours, open, .. } = self;
        drop((ours, open));
        process.wait().expect("it does not end")
    }
}

impl Seen {
    fn text(&self) -> String {
        // A character may be written in two parts.
        String::from_utf8_lossy(&self.written).into_owned()
    }
}

/// A screen with a text that a program has written.
pub struct Drawn(vt100::Parser);

impl Drawn {
    pub fn new(written: &str, columns: u16) -> Self {
        let mut parser = vt100::Parser::new(size(ROWS), size(columns), 0);
        parser.process(written.as_bytes());
        Self(parser)
    }

    /// The rows up to the last one with a text.
    pub fn rows(&self) -> String {
        rows(self.0.screen())
    }

    /// The rows with the codes of their styles.
    pub fn styled(&self) -> String {
        let screen = self.0.screen();
        let last = u16::try_from(self.rows().lines().count()).unwrap();
        (0..last).map(|row| styled_row(screen, row) + "\n").collect()
    }
}

/// The rows in an order of their own: those of the log and of the table are written by two threads, and sources are
/// known in any order, which numbers the updates.
pub fn sorted(rows: &str) -> Vec<String> {
    let without_number = |row: &str| {
        let mut row = row.trim().to_owned();
        for number in '1'..='9' {
            row = row.replace(&format!("{number}      202"), "N      202");
        }
        row
    };
    let mut sorted: Vec<String> = rows.lines().map(without_number).filter(|row| !row.is_empty()).collect();
    sorted.sort_unstable();
    sorted
}

/// A text without styles, by line.
fn lines(written: &str) -> Vec<String> {
    let mut parts = written.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(part.len(), |end| end + 1);
        plain += &part[end..];
    }
    plain.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

/// A text with the same times and ages each time, as wide as they were.
pub fn timeless(written: &str) -> String {
    const MOMENT: &str = "2026-11-21T09:00:00";
    let is_moment = |text: &[char]| {
        text.iter()
            .zip(MOMENT.chars())
            .all(|(is, wanted)| if wanted.is_ascii_digit() { is.is_ascii_digit() } else { *is == wanted })
    };
    let text: Vec<char> = written.chars().collect();
    let mut same = String::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let digits = rest.iter().take_while(|letter| letter.is_ascii_digit()).count();
        let begins = at == 0 || text[at - 1].is_whitespace();
        let is_age = begins
            && (1..=2).contains(&digits)
            && rest.get(digits) == Some(&'s')
            && rest.get(digits + 1).is_none_or(|next| next.is_whitespace());
        if rest.len() >= MOMENT.len() && is_moment(&rest[..MOMENT.len()]) {
            same += MOMENT;
            at += MOMENT.len();
            if text.get(at) == Some(&'.') {
                let fraction = text[at + 1..].iter().take_while(|letter| letter.is_ascii_digit()).count();
                same.extend([".", &"0".repeat(fraction)]);
                at += 1 + fraction;
            }
        } else if is_age {
            // The column of an age of one or two digits has the same width.
            let blanks = if rest.get(digits + 1) == Some(&' ') { digits - 1 } else { 0 };
            same.extend(["5s", &" ".repeat(blanks)]);
            at += digits + 1;
        } else {
            same.push(text[at]);
            at += 1;
        }
    }
    same
}

fn size(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn winsize(columns: u16) -> Winsize {
    Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Reads until the program has closed its end, or the window is closed.
fn read(from: &File, stop: &PipeReader, seen: &(Mutex<Seen>, Condvar)) {
    fcntl_setfl(from, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    let mut buffer = [0; 4096];
    loop {
        let mut ready = [PollFd::new(from, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        poll(&mut ready, None).unwrap();
        let is_closed = !ready[1].revents().is_empty();
        match read_terminal(from, &mut buffer) {
            Ok(count @ 1..) if !is_closed => {
                let mut seen = seen.0.lock().unwrap();
                seen.parser.process(&buffer[..count]);
                seen.written.extend_from_slice(&buffer[..count]);
            }
            Err(error) if !is_closed && error.kind() == ErrorKind::WouldBlock => {}
            _ => break,
        }
        seen.1.notify_all();
    }
    seen.0.lock().unwrap().is_open = false;
    seen.1.notify_all();
}

fn rows(screen: &vt100::Screen) -> String {
    let (_, columns) = screen.size();
    let rows: Vec<String> = screen.rows(0, columns.get()).map(|row| row.trim_end().to_owned()).collect();
    let last = rows.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
    rows[..last].join("\n")
}

/// A row with the codes of its styles.
fn styled_row(screen: &vt100::Screen, row: u16) -> String {
    let (_, columns) = screen.size();
    let cells = (0..columns.get()).filter_map(|column| screen.cell(row, column));
    let mut text = String::new();
    let mut current = String::new();
    for cell in cells.filter(|cell| !cell.is_wide_continuation()) {
        let style = style(cell);
        if style != current {
            text.extend(["\x1b[0", &style, "m"]);
            current = style;
        }
        text += if cell.has_contents() { cell.contents() } else { " " };
    }
    let text = text.trim_end().trim_end_matches("\x1b[0m").trim_end().to_owned();
    if current.is_empty() && !text.contains('\x1b') { text } else { text + "\x1b[0m" }
}

/// The numbers of a cell's style, each after a semicolon.
fn style(cell: &vt100::Cell) -> String {
    let flags =
        [(cell.bold(), 1), (cell.dim(), 2), (cell.italic(), 3), (cell.underline(), 4), (cell.inverse(), 7)];
    let mut codes: Vec<u16> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, code)| *code).collect();
    for (colour, [dark, bright]) in [(cell.fgcolor(), [30, 90]), (cell.bgcolor(), [40, 100])] {
        match colour {
            vt100::Color::Default => {}
            vt100::Color::Idx(index @ 0..8) => codes.push(dark + u16::from(index)),
            vt100::Color::Idx(index @ 8..16) => codes.push(bright + u16::from(index) - 8),
            other => panic!("a colour that not every terminal has: {other:?}"),
        }
    }
    codes.iter().map(|code| format!(";{code}")).collect::<Vec<_>>().concat()
}
