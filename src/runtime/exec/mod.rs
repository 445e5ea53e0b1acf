//! The exec runtime: a program that is run once for each pod and operation.
//!
//! `docs/exec.md` describes the protocol for those who write such a program.
//!
//! A program cannot be asked what runs, so [`Exec`] keeps a ledger in the database, and in files that a reboot
//! removes, with a row for each `namespace/name` and UID:
//!
//! | when | the row |
//! |---|---|
//! | before each call | says that the pod may run, with the pod that the program is given |
//! | after an acknowledged ADD, UPDATE or RECONCILE | says that it runs |
//! | after an acknowledged REMOVE | is erased |
//!
//! Each of these is durable before the next step, so a crash at any moment leaves a row that says *may*,
//! and the operation is repeated. Rows carry the boot that they were written in. Those of another boot
//! count as not running: what they started has ended with the machine. The pods that are still wanted get
//! ADD, and the others need nothing.
//!
//! A program may outlive the agent that has called it, so calls for a pod wait for each other by a lock
//! that belongs to the program's processes: a `flock` of the file that is their standard input.

mod call;
mod files;
pub(super) mod kind;
mod ledger;
mod run_id;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::{Mutex, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tracing::debug;

pub use self::ledger::State;
use self::{
    call::{Call, CallError, LONGEST_UID},
    files::{Locked, PodFiles, rows, sweep},
    ledger::{Ledger, Run},
    run_id::RunId,
};
use super::contract::{ActualPod, KillPod, LogRequest, NO_LOGS, PodRuntime, RuntimeError, SyncPod};
use crate::{error_chain::chain, host::Host, pod::Op};

/// How long a call waits for the processes of an earlier one, and a program may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pauses between two attempts to lock, which double.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often the files of a pod that is gone are tried to be removed.
const DISCARD_ATTEMPTS: usize = 10;
/// How long a write of the ledger may take.
const DISK_PATIENCE: Duration = Duration::from_secs(30);
/// How long `list` waits for the state before it fails again.
const STATE_PATIENCE: Duration = Duration::from_mins(1);
/// A pod's `spec.terminationGracePeriodSeconds` by default, in seconds.
const DEFAULT_GRACE: u64 = 30;
/// The longest grace that is added to a time limit.
const LONGEST_GRACE: Duration = Duration::from_hours(24);

/// The state that the ledger is in, or why it is not open.
pub type StateWatch = watch::Receiver<Result<State, Arc<str>>>;

/// What is run, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The program: an absolute path.
    pub program: PathBuf,
    /// The longest time of a call. One that stops a pod, also to restart it, has the pod's grace in addition.
    pub timeout: Duration,
}

impl Config {
    /// A program with a time limit of two minutes.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), timeout: Duration::from_mins(2) }
    }
}

/// The exec runtime. See the [module](self).
#[derive(Debug)]
pub struct Exec {
    config: Config,
    directory: PathBuf,
    boot: Arc<str>,
    host: Host,
    patience: Duration,
    /// `None` once the ledger is open.
    state: Mutex<Option<Waiting>>,
    ledger: OnceLock<Ledger>,
}

/// The state that is not open yet.
#[derive(Debug)]
struct Waiting {
    state: StateWatch,
    /// Why it is not open, as the last `list` has said.
    reported: Option<Arc<str>>,
}

impl Exec {
    /// A runtime with its files in this directory, which a reboot empties, and its ledger in this state, in this
    /// boot of the machine.
    ///
    /// It touches nothing before the first `list`. Until the state is open, `list` fails: at once with a new
    /// reason, else after a minute. It ends as soon as the state is open.
    pub fn new(config: Config, directory: PathBuf, state: StateWatch, boot: &str, host: Host) -> Self {
        let state = Mutex::new(Some(Waiting { state, reported: None }));
        let (boot, ledger) = (boot.into(), OnceLock::new());
        Self { config, directory, boot, host, patience: PATIENCE, state, ledger }
    }

    /// Waits so long for the processes of an earlier call, and after SIGTERM; 10 s by default.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The ledger. Opens it if the state is open.
    async fn open(&self) -> Result<&Ledger, RuntimeError> {
        let mut state = self.state.lock().await;
        if let Some(waiting) = &mut *state {
            let open = waiting.open().await.map_err(|error| not_open(&error))?;
            let directory = self.directory.clone();
            let files = self.on_files(move || rows(&directory)).await.map_err(unavailable)?;
            let (ledger, ended) = Ledger::open(&open, &self.boot, &files).map_err(unavailable)?;
            // They are not in the ledger, also if they cannot be erased yet.
            if let Err(error) = in_time(ledger.commit(ended)).await {
                debug!(error = chain(&error), "rows of earlier boots not erased");
            }
            let (directory, kept) = (self.directory.clone(), ledger.ids());
            let swept = self.host.threads.blocking(move || sweep(&directory, &kept)).await;
            if let Err(error) = swept.map_err(unavailable)? {
                debug!(path = %self.directory.display(), %error, "files of removed pods not erased");
            }
            // It is set once: this is under the lock.
            let _ = self.ledger.set(ledger);
            open.release();
            *state = None;
        }
        self.ledger()
    }

    fn ledger(&self) -> Result<&Ledger, RuntimeError> {
        self.ledger.get().ok_or_else(|| not_open("it was not listed yet"))
    }

    /// Waits for the processes of earlier calls for this name, and locks it.
    async fn lock(&self, files: &PodFiles) -> Result<std::fs::File, CallError> {
        let (until, mut pause) = (Instant::now() + self.patience, FIRST_PAUSE);
        loop {
            let (disk, tried) = (self.host.disk.clone(), files.clone());
            match self.on_files(move || tried.try_lock(&disk)).await? {
                Locked::Yes(stdin) => return Ok(stdin),
                Locked::No(file) if Instant::now() >= until => {
                    return Err(CallError::Busy { program: self.config.program.clone(), file });
                }
                Locked::No(_) => sleep(pause).await,
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Removes the files of a pod. Those that a process still has open are removed at the next start.
    async fn discard(&self, id: &RunId) -> Result<(), RuntimeError> {
        for _ in 0..DISCARD_ATTEMPTS {
            let files = PodFiles::new(&self.directory, id);
            if self.on_files(move || files.discard()).await.map_err(unavailable)? {
                break;
            }
            // A program that is being started for another pod has copies of all open files for a moment.
            sleep(FIRST_PAUSE).await;
        }
        Ok(())
    }

    /// Works on the files of pods, on a thread for blocking work.
    async fn on_files<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, CallError> {
        let done = self.host.threads.blocking(work).await?;
        done.map_err(|source| CallError::Files { directory: self.directory.clone(), source })
    }

    /// Makes a row durable.
    async fn put(&self, id: &RunId, run: &Run, files: &PodFiles) -> Result<(), RuntimeError> {
        in_time(self.ledger()?.put(id, run, files, &self.host)).await
    }

    /// Makes it durable that the pod may run, and calls the program.
    async fn call(&self, op: Op, id: &RunId, run: &Run, grace: Duration) -> Result<(), RuntimeError> {
        let files = PodFiles::new(&self.directory, id);
        let stdin = self.lock(&files).await.map_err(failed)?;
        self.put(id, run, &files).await?;
        let (written, pod) = (files.clone(), run.pod.clone());
        self.on_files(move || written.write_stdin(&pod)).await.map_err(failed)?;
        let call = Call {
            program: &self.config.program,
            op,
            id,
            source: run.source,
            hash: &run.hash,
            limit: self.config.timeout.saturating_add(grace),
            patience: self.patience,
        };
        let called = call.run(stdin, &files, &self.host).await;
        let error = called.as_ref().err().map(|error| chain(error));
        debug!(pod = id.key.as_str(), %op, error, "program called");
        called.map_err(failed)
    }
}

impl Waiting {
    /// The state, or why it is not open: the first time at once, then after a change or a minute.
    async fn open(&mut self) -> Result<State, Arc<str>> {
        let reported = self.reported.take();
        let is_news = |state: &Result<State, Arc<str>>| match state {
            Ok(_) => true,
            Err(error) => Some(error) != reported.as_ref(),
        };
        // Without news the reason is the same as before.
        let _ = timeout(STATE_PATIENCE, self.state.wait_for(is_news)).await;
        let state = self.state.borrow().clone();
        self.reported = state.as_ref().err().cloned();
        state
    }
}

impl PodRuntime for Exec {
    async fn list(&self) -> Result<Vec<ActualPod>, RuntimeError> {
        Ok(self.open().await?.list())
    }

    async fn sync(&self, sync: &SyncPod) -> Result<(), RuntimeError> {
        let ledger = self.ledger()?;
        let id = RunId { key: sync.pod.key().clone(), uid: sync.pod.uid().clone() };
        // No row: it could never be given to the program for a REMOVE either.
        if id.uid.len() > LONGEST_UID || id.uid.contains('\0') {
            return Err(failed(CallError::Uid));
        }
        let before = ledger.get(&id);
        // What is restarted for a new hash runs since then, also if the call is cut off and repeated.
        let now = self.host.clock.now();
        let started = before.as_ref().and_then(|before| {
            before.started.map(|started| if before.hash == sync.hash { started } else { now })
        });
        let mut run = Run {
            hash: sync.hash.clone(),
            source: sync.source,
            digest: Run::digest_of(&sync.pod),
            started,
            is_complete: true,
            pod: sync.pod.text().clone(),
        };
        // After a restart of the agent every pod is synced. The source may have published it at another time.
        let is_same = |before: &Run| *before == Run { pod: before.pod.clone(), ..run.clone() };
        let files = PodFiles::new(&self.directory, &id);
        if let Some(same) = before.as_ref().filter(|before| is_same(before)) {
            // Its file may not have been written.
            return self.put(&id, same, &files).await;
        }
        run.is_complete = false;
        // Until an ADD is acknowledged, each attempt is one.
        let op = if started.is_some() { sync.op } else { Op::Add };
        let ran = before.as_ref().filter(|before| before.is_complete && before.hash == sync.hash);
        // A restart stops what runs. After one that failed, the row has the new hash. The same ADD again stops nothing.
        let grace = match (&before, ran) {
            (Some(before), None) if before.started.is_some() || before.hash != sync.hash => {
                grace_of(&before.pod).max(grace_of(&run.pod)).min(LONGEST_GRACE)
            }
            _ => Duration::ZERO,
        };
        self.call(op, &id, &run, grace).await?;
        run.started = ran.and_then(|before| before.started).or_else(|| Some(self.host.clock.now()));
        run.is_complete = true;
        self.put(&id, &run, &files).await
    }

    async fn logs(&self, log: &LogRequest, _: mpsc::Sender<Vec<u8>>) -> Result<(), RuntimeError> {
        let id = RunId { key: log.key.clone(), uid: log.uid.clone() };
        let (program, path) = (&self.config.program, PodFiles::new(&self.directory, &id).output);
        let why = format!(
            "the exec runtime keeps no output of containers; what {} has printed last is in {}",
            program.display(),
            path.display()
        );
        Err(RuntimeError::new(NO_LOGS, why))
    }

    async fn kill(&self, kill: &KillPod) -> Result<(), RuntimeError> {
        let ledger = self.ledger()?;
        let id = RunId { key: kill.actual.key.clone(), uid: kill.actual.uid.clone() };
        // A row that never became durable may have left its file.
        let Some(mut run) = ledger.get(&id) else { return self.discard(&id).await };
        (run.started, run.is_complete) = (None, false);
        if let Some(pod) = &kill.pod {
            (run.pod, run.digest) = (pod.text().clone(), Run::digest_of(pod));
        }
        let grace = kill.grace.unwrap_or_else(|| grace_of(&run.pod)).min(LONGEST_GRACE);
        if kill.pod.is_some() {
            self.call(Op::Delete, &id, &run, grace).await?;
        }
        let grace = if kill.pod.is_some() { Duration::ZERO } else { grace };
        self.call(Op::Remove, &id, &run, grace).await?;
        in_time(ledger.erase(&id)).await?;
        self.discard(&id).await
    }

    fn follows_updates(&self) -> bool {
        true
    }
}

/// The grace that a pod asks for itself.
fn grace_of(pod: &[u8]) -> Duration {
    let pod: Value = serde_json::from_slice(pod).unwrap_or_default();
    Duration::from_secs(pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(DEFAULT_GRACE))
}

/// A write of the ledger, which a disk that hangs must not keep. One that takes longer is repeated: it may
/// become durable meanwhile.
async fn in_time<E: std::error::Error + Send + Sync + 'static>(
    write: impl Future<Output = Result<(), E>>,
) -> Result<(), RuntimeError> {
    match timeout(DISK_PATIENCE, write).await {
        Ok(written) => written.map_err(unavailable),
        Err(_) => Err(unavailable(io::Error::from(io::ErrorKind::TimedOut))),
    }
}

fn failed(error: CallError) -> RuntimeError {
    RuntimeError::new(error.reason(), error)
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> RuntimeError {
    RuntimeError::new("StateUnavailable", error)
}

fn not_open(error: &str) -> RuntimeError {
    let text = format!("the state is not open, and nothing is run until it is mended: {error}");
    RuntimeError::new("StateUnavailable", text)
}
