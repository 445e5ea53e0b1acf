//! The real binary, run as a user runs it.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read, Write as _, pipe},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use super::stream::Replica;

/// Longer than anything takes but on a machine that stands still.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// `podmux` with these arguments, and nothing of the environment that could change what it does.
pub fn podmux(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podmux"));
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `podmux run` on a directory of manifests. It takes no port and keeps no
/// state, unless a flag says so: tests run beside each other.
pub fn podmux_run(manifests: &Path, args: &[&str]) -> Command {
    let mut all = vec!["run", "--node-name", "node1", "--pod-manifest-path", manifests.to_str().unwrap()];
    all.extend(args);
    let mut command = podmux(&all);
    command.env("PODMUX_LISTEN", "none").env("PODMUX_STATE_DIR", "none");
    command
}

/// A process that runs.
pub struct Process {
    pid: Pid,
    pub stdout: Lines,
    pub stderr: Lines,
    status: mpsc::Receiver<i32>,
}

impl Process {
    /// Starts it; what it says is read all the time, as far as it goes to pipes of its own.
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

    /// Starts it with a stdout that nobody reads, and waits until it is full.
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
    /// A test that failed leaves nothing behind.
    fn drop(&mut self) {
        if self.status.try_recv() == Err(mpsc::TryRecvError::Empty) {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// Looks until there is something to be seen.
pub fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing to be seen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until whoever writes more to a pipe than it holds has to wait.
fn wait_until_full(writer: &PipeWriter) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    wait_for(|| (poll(&mut [PollFd::new(writer, PollFlags::OUT)], Some(&now)).unwrap() == 0).then_some(()));
}

/// A pipe that does not take another byte.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    for chunk in [4096, 1] {
        while writer.write(&vec![b'\n'; chunk]).is_ok() {}
    }
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// What appears on a terminal to which a command's stdout and stderr go.
pub fn on_a_terminal(mut command: Command) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    let mut child = command.stdout(theirs.try_clone().unwrap()).stderr(theirs).spawn().unwrap();
    // The command keeps the terminal's other end open as long as it lives.
    drop(command);
    let mut text = Vec::new();
    let mut ours = File::from(ours);
    let mut part = [0; 4096];
    // A terminal ends with an error (EIO) when nobody holds its other end.
    while let Ok(count @ 1..) = ours.read(&mut part) {
        text.extend_from_slice(&part[..count]);
    }
    child.wait().unwrap();
    String::from_utf8(text).unwrap()
}

/// The exit code, or 128 and the signal as a shell counts.
fn exit_code(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    let status = child.wait().unwrap();
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// The lines that came out of a pipe so far.
#[derive(Clone, Default)]
pub struct Lines(Arc<(Mutex<Said>, Condvar)>);

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    reading: bool,
}

impl Lines {
    /// Reads a pipe to its end, on a thread of its own.
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
        self.0.0.lock().unwrap().lines.join("\n")
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
