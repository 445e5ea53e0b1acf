//! Consumers of the `jsonl` sinks: standard output, and a file that is followed over rotations.

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead as _, BufReader, PipeReader, pipe},
    mem,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::pipe::fcntl_setpipe_size;

use super::replay::{Law, Numbering, Pods, Reader};
use crate::support::appended::Appended;

/// A small pipe is full soon.
const PIPE: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reader of one run's standard output.
pub struct Stdout {
    reader: Arc<Mutex<Reader>>,
    reads: Arc<(Mutex<bool>, Condvar)>,
}

impl Stdout {
    /// A reader, and the end of the pipe for the agent.
    pub fn open(law: &Arc<Law>) -> (Self, Stdio) {
        let (output, input) = pipe().unwrap();
        fcntl_setpipe_size(&input, PIPE).unwrap();
        let reader = Arc::new(Mutex::new(Reader::new("stdout", law, Numbering::Lines)));
        let reads = Arc::new((Mutex::new(true), Condvar::new()));
        let reading = (reader.clone(), reads.clone());
        thread::spawn(move || read(output, &reading.0, &reading.1));
        (Self { reader, reads }, input.into())
    }

    pub fn reader(&self) -> MutexGuard<'_, Reader> {
        lock(&self.reader)
    }

    /// Stops or goes on reading.
    pub fn set_reading(&self, reads: bool) {
        *lock(&self.reads.0) = reads;
        self.reads.1.notify_all();
    }
}

impl Drop for Stdout {
    /// Its thread ends with the agent.
    fn drop(&mut self) {
        self.set_reading(true);
    }
}

fn read(pipe: PipeReader, reader: &Mutex<Reader>, reads: &(Mutex<bool>, Condvar)) {
    let mut pipe = BufReader::new(pipe);
    let mut line = String::new();
    // A line that was begun when the agent was killed has no end.
    while pipe.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
        lock(reader).take(line.trim_end());
        line.clear();
        drop(reads.1.wait_while(lock(&reads.0), |reads| !*reads));
    }
}

/// The reader of a file that is rotated.
pub struct Tail {
    pub reader: Reader,
    /// The files in the order in which they were written.
    files: VecDeque<PathBuf>,
    /// The position in the first one.
    position: Appended,
    rotations: u32,
    /// How many lines may be incomplete.
    torn: u32,
}

impl Tail {
    pub fn new(path: &Path, law: &Arc<Law>) -> Self {
        let reader = Reader::new("file", law, Numbering::InRun("file".to_owned()));
        let files = VecDeque::from([path.to_owned()]);
        Self { reader, files, position: Appended::default(), rotations: 0, torn: 0 }
    }

    pub fn path(&self) -> &Path {
        self.files.back().unwrap()
    }

    /// Every line that may have broken off was read.
    pub fn is_whole(&mut self) {
        self.torn = 0;
    }

    /// A line may break off now.
    pub fn may_tear(&mut self) {
        self.torn += 1;
    }

    /// Renames the file, as logrotate does before its signal.
    pub fn rotate(&mut self) {
        let path = self.path().to_owned();
        self.rotations += 1;
        let old = path.with_extension(format!("jsonl.{}", self.rotations));
        if fs::rename(&path, &old).is_ok() {
            *self.files.back_mut().unwrap() = old;
            self.files.push_back(path);
            self.may_tear();
        }
    }

    /// Reads what has come. A file that was rotated is left when the next one exists.
    pub fn read(&mut self) {
        loop {
            let has_next = self.files.get(1).is_some_and(|next| next.exists());
            for line in self.position.lines(&self.files[0]) {
                self.take(line);
            }
            if !has_next {
                return;
            }
            let rest = mem::take(&mut self.position).rest();
            if !rest.is_empty() {
                self.take(rest);
            }
            let read = self.files.pop_front().unwrap();
            fs::remove_file(read).unwrap();
            self.reader.begin("rotated");
        }
    }

    fn take(&mut self, line: Vec<u8>) {
        let line = String::from_utf8(line).unwrap();
        // A line that was broken off is followed by a line break.
        if is_incomplete(&line) && self.torn > 0 {
            self.torn -= 1;
        } else {
            self.reader.take(line.trim_end());
        }
    }

    /// How the file alone differs from these pods, for one who begins to read it now.
    pub fn alone_differs(&self, wanted: &Pods) -> Option<String> {
        let mut reader =
            Reader::new("a newcomer to the file", &Arc::default(), Numbering::InRun(String::new()));
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        text.lines().filter(|line| !is_incomplete(line)).for_each(|line| reader.take(line));
        reader.differs(wanted)
    }
}

fn is_incomplete(line: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(line).is_err()
}
