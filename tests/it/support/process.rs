//! The real binary, run as a user runs it.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, PipeReader, PipeWriter, Read, Write as _, pipe},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};

use super::stream::Replica;

/// A time limit that only a machine without progress exceeds.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// `podmux` with these arguments and an empty environment.
pub fn podmux(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podmux"));
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `podmux run` on a directory of manifests. It binds no port and stores no state unless a flag
/// asks for it, because tests run in parallel.
pub fn podmux_run(manifests: &Path, args: &[&str]) -> Command {
    let mut all = vec!["run", "--node-name", "node1", "--pod-manifest-path", manifests.to_str().unwrap()];
    all.extend(args);
    let mut command = podmux(&all);
    command.env("PODMUX_LISTEN", "none").env("PODMUX_STATE_DIR", "none");
    command
}

/// A running process.
pub struct Process {
    pid: Pid,
    pub stdout: Lines,
    pub stderr: Lines,
    status: mpsc::Receiver<i32>,
}

impl Process {
    /// Starts it. Output to its own pipes is read all the time.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (Lines::default(), Lines::default());
        if let Some(pipe) = child.stdout.take() {
            stdout.read(pipe);
        }
        if let Some(pipe) = child.stderr.take() {
            stderr.read(pipe);
        }
        let pid = Pid::from_child(&child);
        let (ended, status) = mpsc::sync_channel(1);
        thread::spawn(move || ended.send(exit_code(&mut child)));
        Self { pid, stdout, stderr, status }
    }

    /// Starts it with a stdout that is not read, and waits until the pipe is full.
    pub fn start_unread(mut command: Command) -> (Self, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        let process = Self::start(command.stdout(writer.try_clone().unwrap()));
        wait_until_full(&writer);
        (process, reader)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for a line of the log that contains this text.
    pub fn logs(&self, text: &str) -> String {
        self.stderr.wait_for(&format!("{text:?} in the log"), |lines| {
            lines.iter().find(|line| line.contains(text)).cloned()
        })
    }

    /// Waits until the stream on stdout has led here.
    pub fn holds(&self, what: &str, wanted: impl Fn(&Replica) -> bool) -> Replica {
        self.stdout.wait_for(what, |lines| {
            let mut replica = Replica::default();
            for line in lines {
                replica.take_line(line);
            }
            wanted(&replica).then_some(replica)
        })
    }

    /// Waits for its end. Returns its exit code, once.
    pub fn wait(&self) -> Option<i32> {
        self.status.recv_timeout(PATIENCE).ok()
    }

    /// Waits for its end. Returns its exit code and its log.
    pub fn ends(self) -> (i32, String) {
        let Ok(code) = self.status.recv_timeout(PATIENCE) else {
            panic!("it does not end:\n{}", self.stderr.text());
        };
        self.stdout.wait_for_end();
        self.stderr.wait_for_end();
        (code, self.stderr.text())
    }
}

impl Drop for Process {
    /// A failed test leaves no process behind, and shows what it has logged.
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the log:\n{}", self.stderr.text());
        }
        if self.status.try_recv() == Err(mpsc::TryRecvError::Empty) {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// Repeats a check until it returns a value. Pauses for longer than the check takes: one that starts a program leaves
/// the processor to what it waits for.
#[track_caller]
pub fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        let look_begun = Instant::now();
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "timed out");
        thread::sleep(Duration::from_millis(5).max(2 * look_begun.elapsed()));
    }
}

/// Waits until a pipe is full.
fn wait_until_full(writer: &PipeWriter) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    wait_for(|| (poll(&mut [PollFd::new(writer, PollFlags::OUT)], Some(&now)).unwrap() == 0).then_some(()));
}

/// A full pipe.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    for chunk in [4096, 1] {
        while writer.write(&vec![b'\n'; chunk]).is_ok() {}
    }
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// The test's end of a terminal.
pub struct Screen(File);

impl Screen {
    /// Where keys are typed.
    pub fn keys(&self) -> File {
        self.0.try_clone().unwrap()
    }

    pub fn into_file(self) -> File {
        self.0
    }

    /// Types keys.
    pub fn types(&mut self, keys: &[u8]) {
        self.0.write_all(keys).unwrap();
    }
}

impl Read for Screen {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // It fails with EIO when the other end is closed.
        read_terminal(&self.0, buffer).or(Ok(0))
    }
}

/// Reads what was written on a terminal. The kernel looks whether the other end is closed after it has looked
/// for output, so what was written between the two is found by a second call only.
pub fn read_terminal(mut ours: &File, buffer: &mut [u8]) -> io::Result<usize> {
    ours.read(buffer).or_else(|_| ours.read(buffer))
}

/// The two ends of a terminal: the test's, and that of a process.
pub fn terminal() -> (Screen, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    // Otherwise Ctrl-C also takes away what has been written, and the kernel may do so after the signal.
    let mut modes = tcgetattr(&theirs).unwrap();
    modes.local_modes |= LocalModes::NOFLSH;
    tcsetattr(&theirs, OptionalActions::Now, &modes).unwrap();
    (Screen(File::from(ours)), theirs)
}

/// The output of a command whose stdout and stderr are a terminal that does not tell its width.
pub fn on_a_terminal(command: Command) -> String {
    on_a_terminal_of(0, command)
}

/// The output of a command whose stdout and stderr are a terminal with so many columns.
pub fn on_a_terminal_of(columns: u16, mut command: Command) -> String {
    let (screen, mut theirs) = terminal();
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    let ends = (theirs.try_clone().unwrap(), theirs.try_clone().unwrap());
    let mut child = command.stdout(ends.0).stderr(ends.1).spawn().unwrap();
    let reader = thread::spawn(move || until_end(screen));
    let status = child.wait().unwrap();
    // Nothing depends on what the kernel keeps of a closed terminal: the test holds it open, and says itself
    // where the output ends.
    theirs.write_all(&[END]).unwrap();
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    assert!(status.code().is_some(), "{status}:\n{text}");
    text
}

/// No program writes this byte.
const END: u8 = 0xff;

fn until_end(screen: Screen) -> Vec<u8> {
    let mut text = Vec::new();
    BufReader::new(screen).read_until(END, &mut text).unwrap();
    assert_eq!(text.pop(), Some(END));
    text
}

/// The exit code, or 128 plus the signal, as in a shell.
fn exit_code(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    let status = child.wait().unwrap();
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// The lines of a pipe so far.
#[derive(Clone, Default)]
pub struct Lines(Arc<(Mutex<Said>, Condvar)>);

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    reading: bool,
}

impl Lines {
    /// Reads a pipe to its end on a thread.
    pub fn read(&self, pipe: impl Read + Send + 'static) {
        let lines = self.clone();
        self.0.0.lock().unwrap().reading = true;
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                lines.0.0.lock().unwrap().lines.push(line.unwrap());
                lines.0.1.notify_all();
            }
            lines.0.0.lock().unwrap().reading = false;
            lines.0.1.notify_all();
        });
    }

    pub fn text(&self) -> String {
        // Also after a check that has failed.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).lines.join("\n")
    }

    pub fn wait_for<T>(&self, what: &str, find: impl Fn(&[String]) -> Option<T>) -> T {
        let mut found = None;
        let said = self.0.0.lock().unwrap();
        let waits = |said: &mut Said| {
            found = find(&said.lines);
            found.is_none() && said.reading
        };
        let (said, _) = self.0.1.wait_timeout_while(said, PATIENCE, waits).unwrap();
        found.unwrap_or_else(|| panic!("no {what}:\n{}", said.lines.join("\n")))
    }

    pub fn wait_for_end(&self) {
        let said = self.0.0.lock().unwrap();
        let (said, _) = self.0.1.wait_timeout_while(said, PATIENCE, |said| said.reading).unwrap();
        assert!(!said.reading, "the pipe stays open");
    }
}
