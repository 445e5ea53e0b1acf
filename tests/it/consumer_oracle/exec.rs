//! The runtime beside the consumers: an exec program whose effects are files.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    sync::Arc,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    program::{self, BUSY, FAULTY, JOURNAL, RUNNING, SCRIPT, VIOLATIONS},
    replay::Law,
    runs::{Running, Runs},
};
use crate::support::{program::write_program, random::Random};

/// How many calls a report shows.
const SHOWN: usize = 60;

/// The program of a world, and what it has done.
pub struct Exec {
    directory: PathBuf,
    law: Arc<Law>,
    read: u64,
    heard: VecDeque<String>,
}

impl Exec {
    pub fn new(directory: PathBuf, law: &Arc<Law>, seed: u64) -> Self {
        for part in [RUNNING, BUSY] {
            fs::create_dir_all(directory.join(part)).unwrap();
        }
        let script = directory.join(SCRIPT);
        write_program(&script, &program::script(&directory, seed));
        Self { directory, law: law.clone(), read: 0, heard: VecDeque::new() }
    }

    /// The processes of the program, and whether these are all: one that is just starting has no name yet.
    fn processes(&self, agent: Option<Pid>) -> (Vec<Pid>, bool) {
        let directory = self.directory.as_os_str().as_bytes();
        let names_it = |text: &[u8]| text.windows(directory.len()).any(|part| part == directory);
        let (mut all, mut is_clear) = (Vec::new(), true);
        for entry in fs::read_dir("/proc").unwrap().map_while(Result::ok) {
            let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            let Some(pid) = pid.filter(|pid| Some(*pid) != agent) else { continue };
            // What has ended, or is not ours to read, has no text.
            let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
            let line = read("cmdline");
            if names_it(&line) || names_it(&read("environ")) {
                all.push(pid);
            } else if line.is_empty() {
                is_clear &= is_no_program(&read("stat"));
            }
        }
        (all, is_clear)
    }
}

impl Runs for Exec {
    fn sink(&self) -> String {
        format!("exec={},timeout=1s", self.directory.join(SCRIPT).display())
    }

    fn set_faulty(&mut self, faulty: bool) {
        let file = self.directory.join(FAULTY);
        if faulty {
            File::create(file).unwrap();
        } else {
            // It may not be there.
            let _ = fs::remove_file(file);
        }
    }

    /// Judges the calls that have come since.
    fn read(&mut self) {
        let Ok(mut journal) = File::open(self.directory.join(JOURNAL)) else { return };
        journal.seek(SeekFrom::Start(self.read)).unwrap();
        let mut text = String::new();
        journal.read_to_string(&mut text).unwrap();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            self.read += line.len() as u64;
            let line = line.trim_end();
            if let Some(call) = line.strip_prefix("begin ") {
                let mut words = call.split(' ');
                let mut word = || words.next().unwrap();
                let (op, key, uid) = (word(), word().replacen('_', "/", 1), word());
                self.law.called(op, &key, uid, call);
            } else if let Some(call) = line.strip_prefix("absent ") {
                self.law.called_in_vain(call);
            }
            self.heard.push_back(line.to_owned());
            if self.heard.len() > SHOWN {
                self.heard.pop_front();
            }
        }
        let violations = fs::read_to_string(self.directory.join(VIOLATIONS)).unwrap_or_default();
        violations.lines().for_each(|line| self.law.broken(format!("the program: {line}")));
    }

    /// The image of each UID that runs, by `namespace/name`.
    fn running(&self) -> Running {
        let pods = program::running(&self.directory).into_iter();
        pods.map(|(key, uid, content)| ((key.replacen('_', "/", 1), uid), content)).collect()
    }

    /// What runs, and the last calls.
    fn report(&self) -> String {
        let heard: Vec<&str> = self.heard.iter().map(String::as_str).collect();
        format!("it runs {:?}; the program was called:\n  {}", self.running(), heard.join("\n  "))
    }

    fn kill_one(&mut self, agent: Option<Pid>, random: &mut Random) -> String {
        let (all, _) = self.processes(agent);
        // It may just have ended.
        let is_killed = !all.is_empty() && kill_process(*random.pick(&all), Signal::KILL).is_ok();
        format!("a process of the program: {is_killed}")
    }

    /// Kills all processes of the program, whose agent has ended.
    fn kill_all(&mut self) {
        loop {
            let (all, is_clear) = self.processes(None);
            for pid in &all {
                // It may just have ended.
                let _ = kill_process(*pid, Signal::KILL);
            }
            if all.is_empty() && is_clear {
                return;
            }
        }
    }

    fn reboot(&mut self) {
        self.kill_all();
        for part in [RUNNING, BUSY].map(|part| self.directory.join(part)) {
            // One that began while the others were killed may have written meanwhile.
            while fs::remove_dir_all(&part).is_err() {
                self.kill_all();
            }
            fs::create_dir(part).unwrap();
        }
    }
}

/// Whether a process without a command line has ended with all of its threads, or is one of the kernel.
fn is_no_program(stat: &[u8]) -> bool {
    let stat = String::from_utf8_lossy(stat);
    // PID (NAME) STATE PARENT …
    let words: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let (state, parent, threads) = (word(0), word(1), word(17));
    matches!(parent, "" | "0" | "2") || (matches!(state, "Z" | "X") && matches!(threads, "0" | "1"))
}
