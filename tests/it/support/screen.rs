//! A program on a terminal of its own, with an emulator that shows what a user would see.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    num::NonZero,
    os::fd::AsFd as _,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use super::process::{PATIENCE, Screen, terminal, wait_for};

/// What the emulator shows, and what it has read.
struct Shown {
    parser: vt100::Parser,
    raw: Vec<u8>,
}

/// A program on a terminal.
pub struct OnScreen {
    child: Child,
    keys: File,
    /// The program's end, which keeps the terminal open.
    theirs: File,
    shown: Arc<Mutex<Shown>>,
}

impl OnScreen {
    /// Starts the program in a session of its own, whose terminal has this size.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let (ours, theirs) = terminal();
        resize(&theirs, columns, rows);
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args()).env_clear();
        session.env("PATH", "/usr/bin:/bin");
        session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let end = || theirs.try_clone().unwrap();
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let parser = vt100::Parser::new(cells(rows), cells(columns), 0);
        let shown = Arc::new(Mutex::new(Shown { parser, raw: Vec::new() }));
        let keys = ours.keys();
        let output = shown.clone();
        thread::spawn(move || read(ours, &output));
        Self { child, keys, theirs, shown }
    }

    /// Types keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        self.shown.lock().unwrap().parser.screen_mut().set_size(cells(rows), cells(columns));
        resize(&self.theirs, columns, rows);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What a user sees.
    pub fn text(&self) -> String {
        self.shown.lock().unwrap().parser.screen().contents()
    }

    /// All that the program has written.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap().raw).into_owned()
    }

    /// Waits until the screen shows this.
    pub fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let begun = Instant::now();
        wait_for(|| {
            last = self.text();
            assert!(begun.elapsed() < PATIENCE / 2, "the screen does not show {what}:\n{last}");
            wanted(&last).then(|| last.clone())
        })
    }

    /// Waits for the end of the program. Returns its exit code and what is then on the screen.
    pub fn ends(mut self) -> (Option<i32>, String) {
        let status = wait_for(|| self.child.try_wait().unwrap());
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "the terminal stays raw");
        // Everything is read when this has arrived.
        self.theirs.write_all(b"<end>").unwrap();
        wait_for(|| self.raw().contains("<end>").then_some(()));
        let shown = self.shown.lock().unwrap();
        let screen = shown.parser.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "the screen is not restored");
        (status.code(), screen.contents().replace("<end>", ""))
    }
}

impl Drop for OnScreen {
    /// A failed test leaves no process behind.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

fn resize(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal.as_fd(), size).unwrap();
}

fn read(mut ours: Screen, shown: &Mutex<Shown>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = ours.read(&mut buffer) {
        let mut shown = shown.lock().unwrap();
        shown.parser.process(&buffer[..length]);
        shown.raw.extend_from_slice(&buffer[..length]);
    }
}
