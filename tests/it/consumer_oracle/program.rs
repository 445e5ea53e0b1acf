//! The program of the exec runtime in the oracle: its effects are files, it notes each call, and while it is
//! faulty it fails in every way.
//!
//! The agent runs a script, which runs this test binary again. A pod that runs is a file in `running`, named
//! `NAMESPACE_NAME.UID`. What breaks the contract of the exec runtime is a line in `violations`.

use std::{
    env, fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, exit},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Signal, getpid, kill_process},
};
use serde_json::Value;

use crate::support::random::Random;

/// The variable with the directory of the program. Without it nothing is called.
const DIRECTORY: &str = "PODMUX_TEST_PROGRAM";
/// The variable with the number that its choices begin with.
const SEED: &str = "PODMUX_TEST_SEED";
/// Set for a process that acts for the process that the agent has started.
const CHILD: &str = "PODMUX_TEST_CHILD";

/// The name of the script.
pub const SCRIPT: &str = "program";
/// The files of the pods that run.
pub const RUNNING: &str = "running";
/// A line for the begin, and one for the acknowledged end of each call.
pub const JOURNAL: &str = "journal";
/// A line for each thing that the agent may not do.
pub const VIOLATIONS: &str = "violations";
/// While this file exists, the program fails at random.
pub const FAULTY: &str = "faulty";
/// A file for each name, locked while a process acts on it.
pub const BUSY: &str = "busy";
/// The content of a file whose pod is being started, is being changed, or was stopped.
const STARTING: &str = "starting";
const CHANGING: &str = "changing";
const STOPPED: &str = "stopped";

/// Longer than the time limit of a call.
const LONG: u64 = 2_500;

/// The text of the script.
pub fn script(directory: &Path, seed: u64) -> String {
    let (directory, this) = (directory.display(), env::current_exe().unwrap());
    // The agent may have closed its end of the standard output.
    format!(
        "#!/bin/sh\n\
         export {DIRECTORY}='{directory}' {SEED}={seed}\n\
         if [ -e '{directory}/{FAULTY}' ] && [ $(($$ % 2)) = 0 ]; then trap '' TERM; fi\n\
         exec '{}' --exact consumer_oracle::program::the_program_of_a_pod >/dev/null 2>&1\n",
        this.display(),
    )
}

/// Called by the script, it is the program.
#[test]
fn the_program_of_a_pod() {
    let Some(directory) = env::var_os(DIRECTORY) else { return };
    let call = Call::new(directory.into());
    exit(call.perform());
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    FailBefore,
    CrashBefore,
    CrashBetween,
    FailAfter,
    CrashAfter,
    SlowBefore,
    SlowAfter,
}

/// Most calls succeed, so that the delays between attempts stay short.
const FAULTS: [Fault; 17] = [
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::None,
    Fault::FailBefore,
    Fault::CrashBefore,
    Fault::CrashBetween,
    Fault::FailAfter,
    Fault::CrashAfter,
    Fault::SlowBefore,
    Fault::SlowAfter,
];

/// One call.
struct Call {
    directory: PathBuf,
    op: String,
    key: String,
    uid: String,
    source: String,
    is_faulty: bool,
    random: Random,
}

fn word(variable: &str) -> String {
    env::var(variable).unwrap_or_default()
}

impl Call {
    fn new(directory: PathBuf) -> Self {
        let calls = fs::metadata(directory.join(JOURNAL)).map_or(0, |journal| journal.len());
        let seed: u64 = word(SEED).parse().unwrap();
        Self {
            op: word("PODMUX_OP"),
            key: format!("{}_{}", word("PODMUX_POD_NAMESPACE"), word("PODMUX_POD_NAME")),
            uid: word("PODMUX_POD_UID"),
            source: word("PODMUX_SOURCE"),
            is_faulty: directory.join(FAULTY).exists(),
            random: Random::new((seed << 32) + calls),
            directory,
        }
    }

    /// Acts, by another process at times. Returns the exit code.
    fn perform(mut self) -> i32 {
        if self.is_faulty && env::var_os(CHILD).is_none() && self.random.once_in(3) {
            // It goes on if this process is killed.
            let mut again = Command::new(env::current_exe().unwrap());
            let status = again.args(env::args_os().skip(1)).env(CHILD, "1").status().unwrap();
            return status.code().unwrap_or(1);
        }
        let Some(_busy) = self.lock() else { return 1 };
        let image = self.image();
        self.append(JOURNAL, &format!("begin {} {image}", self.brief()));
        self.check();
        let fault = if self.is_faulty { *self.random.pick(&FAULTS) } else { Fault::None };
        self.pause(fault == Fault::SlowBefore);
        match fault {
            Fault::FailBefore => return 1,
            Fault::CrashBefore => crash(),
            _ => {}
        }
        self.act(&image, fault == Fault::CrashBetween);
        self.pause(fault == Fault::SlowAfter);
        match fault {
            Fault::FailAfter => return 1,
            Fault::CrashAfter => crash(),
            _ => {}
        }
        self.append(JOURNAL, &format!("end {}", self.brief()));
        0
    }

    fn brief(&self) -> String {
        format!("{} {} {} {}", self.op, self.key, self.uid, self.source)
    }

    fn append(&self, file: &str, line: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(self.directory.join(file)).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn violation(&self, what: impl fmt::Display) {
        self.append(VIOLATIONS, &format!("{}: {what}", self.brief()));
    }

    /// Nothing else acts on this name.
    fn lock(&self) -> Option<File> {
        let busy = File::create(self.directory.join(BUSY).join(&self.key)).unwrap();
        let is_free = flock(&busy, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !is_free {
            self.violation("it begins while another call for this name runs");
        }
        is_free.then_some(busy)
    }

    /// The image of the pod on the standard input, which must be that of the environment.
    fn image(&self) -> String {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).unwrap();
        let Ok(pod) = serde_json::from_str::<Value>(&text) else {
            self.violation(format!("its standard input is not a pod: {text:.200}"));
            return "?".to_owned();
        };
        let word = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        if format!("{}_{}", word("namespace"), word("name")) != self.key || word("uid") != self.uid {
            self.violation(format!("its standard input is another pod: {}", pod["metadata"]));
        }
        let is_deleted = !pod["metadata"]["deletionTimestamp"].is_null();
        if self.op != "REMOVE" && is_deleted != (self.op == "DELETE") {
            self.violation(format!("a deletionTimestamp: {is_deleted}"));
        }
        pod["spec"]["containers"][0]["image"].as_str().unwrap_or("?").to_owned()
    }

    /// What may run when this begins.
    fn check(&self) {
        if matches!(&*self.op, "DELETE" | "REMOVE") {
            return;
        }
        let mut runs = false;
        for (key, uid, content) in running(&self.directory) {
            if key == self.key && uid == self.uid {
                runs = content != STARTING && content != STOPPED;
            } else if key == self.key {
                self.violation(format!("{uid} of this name runs"));
            }
        }
        if self.op != "ADD" && !runs {
            self.append(JOURNAL, &format!("absent {}", self.brief()));
        }
    }

    fn act(&self, image: &str, crashes: bool) {
        let file = self.directory.join(RUNNING).join(format!("{}.{}", self.key, self.uid));
        let put = |content: &str| {
            // Its own: another one may act on another UID if the agent breaks the contract.
            let fresh = self.directory.join(BUSY).join(format!("{}.{}", self.key, self.uid));
            fs::write(&fresh, content).unwrap();
            fs::rename(fresh, &file).unwrap();
        };
        match &*self.op {
            "ADD" | "UPDATE" | "RECONCILE" => {
                put(if self.op == "ADD" { STARTING } else { CHANGING });
                if crashes {
                    crash();
                }
                put(image);
            }
            "DELETE" if file.exists() => put(STOPPED),
            "REMOVE" if file.exists() => fs::remove_file(file).unwrap(),
            _ => {}
        }
        if crashes {
            crash();
        }
    }

    fn pause(&mut self, is_long: bool) {
        let most = match self.is_faulty {
            true if self.random.once_in(3) => 500,
            true => 60,
            false => 5,
        };
        let millis = if is_long { LONG } else { self.random.below(most) as u64 };
        thread::sleep(Duration::from_millis(millis));
    }
}

/// Ends at once.
fn crash() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!();
}

/// What runs: `NAMESPACE_NAME`, UID, and the image or in what state it is.
pub fn running(directory: &Path) -> Vec<(String, String, String)> {
    let files = fs::read_dir(directory.join(RUNNING)).unwrap().map(|file| file.unwrap());
    let read = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        let (key, uid) = name.split_once('.').unwrap();
        // It may just have been removed.
        let content = fs::read_to_string(file.path()).ok()?;
        Some((key.to_owned(), uid.to_owned(), content))
    };
    files.filter_map(read).collect()
}
