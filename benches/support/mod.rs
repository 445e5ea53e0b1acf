//! Shared parts of the benchmarks of the real binary: manifests, the process, figures.

pub mod pod;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::{Duration, Instant},
};

pub use pod::pod;
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;
use tempfile::TempDir;

/// The timeout of all waits.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Whether to measure (`cargo bench`) or only to check that the benchmark works
/// (`cargo bench -- --test`, `cargo test --benches`).
pub fn wants_figures() -> bool {
    let mut arguments = std::env::args();
    arguments.any(|argument| argument == "--bench") && !std::env::args().any(|argument| argument == "--test")
}

/// The first argument that is a number, if there is one.
pub fn number_argument() -> Option<u64> {
    std::env::args().skip(1).find_map(|argument| argument.parse().ok())
}

/// The format of manifests.
#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    Json,
    Yaml,
}

/// A directory of manifests.
pub struct Manifests {
    directory: TempDir,
    form: Form,
}

impl Manifests {
    pub fn new(count: usize, form: Form) -> Self {
        let manifests = Self { directory: TempDir::new().unwrap(), form };
        fs::create_dir(manifests.path()).unwrap();
        for number in 0..count {
            fs::write(manifests.file(number), manifests.text(number, 0)).unwrap();
        }
        manifests
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    pub fn file(&self, number: usize) -> PathBuf {
        let extension = if self.form == Form::Json { "json" } else { "yaml" };
        self.path().join(format!("pod-{number:05}.{extension}"))
    }

    /// Where a manifest is written before it is renamed into the directory.
    pub fn staged(&self) -> PathBuf {
        self.directory.path().join("staged")
    }

    /// A manifest of about 1.6 kB, the size that was used for the kubelet.
    pub fn text(&self, number: usize, round: usize) -> String {
        let pod = pod(&format!("pod-{number:05}"), round);
        match self.form {
            Form::Json => pod.to_string(),
            Form::Yaml => yaml(&pod),
        }
    }
}

/// YAML in block style. JSON's scalars are valid YAML.
fn yaml(value: &Value) -> String {
    fn block(value: &Value, indent: usize, text: &mut String) {
        let pad = " ".repeat(indent);
        let mut child = |key: String, value: &Value| {
            text.push_str(&key);
            if value.is_object() || value.is_array() {
                text.push('\n');
                block(value, indent + 2, text);
            } else {
                text.extend([" ", &value.to_string(), "\n"]);
            }
        };
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| child(format!("{pad}{key}:"), value)),
            Value::Array(items) => items.iter().for_each(|value| child(format!("{pad}-"), value)),
            scalar => text.push_str(&scalar.to_string()),
        }
    }
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

/// A line of the update stream, and when it was read.
pub struct Line {
    pub at: Instant,
    pub text: String,
}

/// The real binary.
pub struct Agent {
    child: Child,
    lines: Receiver<Line>,
    log: PathBuf,
    /// When the process was started.
    pub started: Instant,
}

impl Agent {
    pub fn start(manifests: &Manifests) -> Self {
        let path = manifests.path();
        let sources =
            ["--listen", "none", "--state-dir", "none", "--pod-manifest-path", path.to_str().unwrap()];
        Self::start_with(manifests.directory.path(), &sources)
    }

    /// Starts it with these flags; its log goes to a file in this directory.
    pub fn start_with(directory: &Path, flags: &[&str]) -> Self {
        let log = directory.join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_podmux"));
        command
            .args(["run", "--node-name", "bench", "--sink", "jsonl", "--max-posted-pods", "10000000"])
            .args(flags)
            .env_clear()
            .env("RUNTIME_DIRECTORY", directory.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap());
        let started = Instant::now();
        let mut child = command.spawn().unwrap();
        let mut stream = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
        // The time is taken before the line is parsed.
        let (sender, lines) = sync_channel(1024);
        thread::spawn(move || {
            let mut text = String::new();
            while stream.read_line(&mut text).unwrap() > 0 {
                let line = Line { at: Instant::now(), text: std::mem::take(&mut text) };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines, log, started }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line.
    pub fn line(&self) -> Line {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            panic!("no line ({error}); the agent's log:\n{}", fs::read_to_string(&self.log).unwrap())
        })
    }

    /// Waits until this many pods have been added; returns when.
    pub fn added(&self, count: usize) -> Instant {
        let mut pods = 0;
        loop {
            let line = self.line();
            let update: Value = serde_json::from_str(&line.text).unwrap();
            assert_eq!(update["op"], "ADD", "{}", line.text);
            pods += update["pods"].as_array().unwrap().len();
            assert!(pods <= count, "{pods} pods of {count}");
            if pods == count {
                return line.at;
            }
        }
    }

    /// Stops it as systemd does, and checks its exit code.
    pub fn stop(mut self) {
        let id = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(id, Signal::TERM).unwrap();
        while self.lines.recv_timeout(PATIENCE).is_ok() {}
        assert!(self.child.wait().unwrap().success(), "{}", fs::read_to_string(&self.log).unwrap());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // After a failed benchmark the process still runs.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Renames a file; returns when that began.
pub fn rename(from: &Path, to: &Path) -> Instant {
    let at = Instant::now();
    fs::rename(from, to).unwrap();
    at
}

/// The durations of appending 4 KiB to a file with `fdatasync`: the cost of durability.
pub fn appends(directory: &Path, rounds: usize) -> Vec<Duration> {
    use std::io::Write as _;
    let mut file = File::create(directory.join("appended")).unwrap();
    let block = [b'x'; 4096];
    let append = |_| {
        let begin = Instant::now();
        file.write_all(&block).unwrap();
        file.sync_data().unwrap();
        begin.elapsed()
    };
    (0..rounds).map(append).collect()
}

/// The median.
pub fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations[durations.len() / 2]
}

/// Prints percentiles of durations.
pub fn figures(name: &str, mut durations: Vec<Duration>) {
    durations.sort_unstable();
    let at =
        |part: usize| durations[(durations.len() * part / 100).min(durations.len() - 1)].as_secs_f64() * 1e3;
    println!(
        "{name:<24} p50 {:>9.3} ms   p99 {:>9.3} ms   max {:>9.3} ms   n {}",
        at(50),
        at(99),
        at(100),
        durations.len()
    );
}

/// A number from `/proc/ID/status`; sizes are in KiB.
pub fn status(id: u32, name: &str) -> u64 {
    field(&fs::read_to_string(format!("/proc/{id}/status")).unwrap(), name)
}

/// A number from the text of such a file.
pub fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap()
}

/// Prints durations beside those of the kubelet's own code in the same run.
pub fn beside(name: &str, mut ours: Vec<Duration>, theirs: &Value) {
    ours.sort_unstable();
    for (part, field) in [(50, "p50_ns"), (99, "p99_ns")] {
        let ours = ours[(ours.len() * part / 100).min(ours.len() - 1)].as_secs_f64();
        let theirs = Duration::from_nanos(theirs[field].as_u64().unwrap()).as_secs_f64();
        println!(
            "{name:<24} p{part} {:>9.4} ms   the kubelet {:>9.3} ms: {:.1} x",
            ours * 1e3,
            theirs * 1e3,
            theirs / ours
        );
    }
}

/// The processor time of a process, ended threads included, in steps of 10 ms.
pub fn cpu_seconds(id: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    // The program's name may contain spaces, so fields are counted from its end.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field - 3].parse::<u64>().unwrap();
    let (user, system) = (ticks(14), ticks(15));
    #[allow(clippy::cast_precision_loss, reason = "these are some ticks")]
    let seconds = (user + system) as f64 / clock_ticks_per_second() as f64;
    seconds
}

/// The number of voluntary sleeps of each thread; each one ends with a wake-up.
pub fn wakeups(id: u32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let counts = threads.filter_map(|thread| {
        let thread = thread.unwrap();
        // The thread may have ended.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        Some((thread.file_name().into_string().unwrap(), field(&status, "voluntary_ctxt_switches")))
    });
    counts.collect()
}

/// The wake-ups since then.
pub fn new_wakeups(id: u32, before: &BTreeMap<String, u64>) -> u64 {
    wakeups(id).iter().map(|(thread, count)| count - before.get(thread).unwrap_or(&0)).sum()
}

/// Prints the wake-ups of the agent's threads for each operation. tests/it/costs.txt has what else is counted.
pub fn wakeups_each(name: &str, woken: u64, operations: usize) {
    #[allow(clippy::cast_precision_loss, reason = "these are some thousand")]
    let each = woken as f64 / operations as f64;
    println!("{name:<24} {each:.1} wake-ups each");
}
