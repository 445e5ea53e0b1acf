//! One call of the program: its environment, its time limit, its end, and what it prints.

use std::{
    fs::File,
    io::{self, Write as _, pipe},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    net::unix::pipe::Receiver,
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{files::PodFiles, run_id::RunId};
use crate::{
    host::{Cancelled, Host},
    pod::{Op, SourceName},
};

/// The longest UID that the program is given. Linux starts no program with a variable of 128 KiB.
pub(super) const LONGEST_UID: usize = 120_000;
/// The `PATH` of the program: systemd's default for services.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The most bytes of a call's output that are written to its file.
const MAX_OUTPUT: usize = 64 << 10;
/// How much of the output is read at once; a pipe holds as much.
const CHUNK: usize = 64 << 10;
/// The pause between two looks at a process group that is stopping.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Why a call was not acknowledged. Nothing that the program prints is part of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(
        "an earlier call of {} still runs: a process has {} open as its standard input; end it (fuser shows it), \
         or wait for its end",
        .program.display(), .file.display()
    )]
    Busy { program: PathBuf, file: PathBuf },
    #[error("{} cannot be run for {op}; check that it and the interpreter in its first line exist, and its mode", .program.display())]
    Spawn { program: PathBuf, op: Op, source: io::Error },
    #[error("{} {op} failed: {status}; its output is in {}", .program.display(), .output.display())]
    Failed { program: PathBuf, op: Op, status: ExitStatus, output: PathBuf },
    #[error("{} {op} was stopped: it did not end within {limit:?}; its output is in {}", .program.display(), .output.display())]
    TimedOut { program: PathBuf, op: Op, limit: Duration, output: PathBuf },
    #[error(
        "metadata.uid has a NUL or more than {LONGEST_UID} bytes, so no program can be given it; choose another"
    )]
    Uid,
    #[error("the files in {} cannot be used", .directory.display())]
    Files { directory: PathBuf, source: io::Error },
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl CallError {
    /// The reason for programs.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "ExecBusy",
            Self::TimedOut { .. } => "ExecTimeout",
            _ => "ExecFailed",
        }
    }
}

/// A call of the program.
pub(super) struct Call<'a> {
    pub(super) program: &'a Path,
    pub(super) op: Op,
    pub(super) id: &'a RunId,
    pub(super) source: SourceName,
    pub(super) hash: &'a str,
    /// How long it may run.
    pub(super) limit: Duration,
    /// How long it may take to end after SIGTERM.
    pub(super) patience: Duration,
}

impl Call<'_> {
    /// Runs the program with this standard input, and waits for its end.
    ///
    /// # Cancel safety
    /// If the future is dropped, the program gets SIGTERM, as at the end of its time limit. If it goes
    /// on, the lock of its standard input keeps the next call waiting.
    pub(super) async fn run(self, stdin: File, files: &PodFiles, host: &Host) -> Result<(), CallError> {
        let failed = |source| self.spawn_error(source);
        let created = files.clone();
        let created = host.threads.blocking(move || created.create_output()).await?;
        let output =
            created.map_err(|source| CallError::Files { directory: files.directory.clone(), source })?;
        let (reader, writer) = pipe().map_err(failed)?;
        let reader = Receiver::from_owned_fd(reader.into()).map_err(failed)?;
        let mut command = Command::new(self.program);
        command.env_clear().env("PATH", PATH).envs(self.environment()).current_dir("/");
        command.stdin(stdin).stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        // With a process group of its own its children can be stopped, too.
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        // Our copies of the standard input and of the pipe: only the program has them now.
        drop(command);
        let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
        let (ended, mut printed) = (CancellationToken::new(), Output::new(output));
        let end = async {
            let end = self.end(&mut child, &mut group).await;
            ended.cancel();
            end
        };
        let (end, ()) = tokio::join!(end, printed.follow(reader, &ended, host));
        let (program, op, output) = (self.program.to_owned(), self.op, files.output.clone());
        match end {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(CallError::Failed { program, op, status, output }),
            Ok(None) => Err(CallError::TimedOut { program, op, limit: self.limit, output }),
            Err(source) => Err(self.spawn_error(source)),
        }
    }

    fn environment(&self) -> [(&'static str, &str); 6] {
        [
            ("PODMUX_OP", self.op.as_str()),
            ("PODMUX_SOURCE", self.source.as_str()),
            ("PODMUX_POD_NAMESPACE", self.id.key.namespace()),
            ("PODMUX_POD_NAME", self.id.key.name()),
            ("PODMUX_POD_UID", &self.id.uid),
            ("PODMUX_HASH", self.hash),
        ]
    }

    fn spawn_error(&self, source: io::Error) -> CallError {
        CallError::Spawn { program: self.program.to_owned(), op: self.op, source }
    }

    /// Waits for the end of the program; `None` if it had to be stopped.
    async fn end(&self, child: &mut Child, group: &mut Group) -> io::Result<Option<ExitStatus>> {
        if let Ok(status) = timeout(self.limit, child.wait()).await {
            // What it has left running is not stopped.
            group.0 = None;
            return status.map(Some);
        }
        group.signal(Signal::TERM);
        let all_end = async {
            child.wait().await?;
            while group.exists() {
                sleep(LOOK_AGAIN).await;
            }
            io::Result::Ok(())
        };
        if timeout(self.patience, all_end).await.is_err() {
            group.signal(Signal::KILL);
            // A process that hangs in the kernel ends later. It has the lock until then.
            let _ = timeout(self.patience, child.wait()).await;
        }
        group.0 = None;
        Ok(None)
    }
}

/// The process group of the program, while it runs. Dropping it asks the group to end.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }

    fn exists(&self) -> bool {
        self.0.is_some_and(|group| test_kill_process_group(group).is_ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// The file with what a call prints, up to a limit.
struct Output {
    file: Arc<File>,
    written: usize,
    discarded: u64,
}

impl Output {
    fn new(file: File) -> Self {
        Self { file: Arc::new(file), written: 0, discarded: 0 }
    }

    /// Reads what the program prints until it has ended. A process that it has left running, and that has
    /// the pipe open, is not waited for.
    async fn follow(&mut self, pipe: Receiver, ended: &CancellationToken, host: &Host) {
        let mut chunk = vec![0; CHUNK];
        let mut is_open = true;
        while is_open {
            tokio::select! {
                biased;
                () = ended.cancelled() => break,
                _ = pipe.readable() => is_open = self.read(&pipe, &mut chunk, host).await != Some(0),
            }
        }
        // What the program printed last. No more than a pipe holds: it may be filled for ever.
        let mut left = MAX_OUTPUT;
        while let Some(count @ 1..) = self.read(&pipe, &mut chunk, host).await {
            left = left.saturating_sub(count);
            if left == 0 {
                break;
            }
        }
        if self.discarded > 0 {
            let note =
                format!("\n[podmux: the output is longer: {} bytes are not in this file]\n", self.discarded);
            self.write(note.into_bytes(), host).await;
        }
    }

    /// Reads once; `None` if there is nothing now, 0 at the end.
    async fn read(&mut self, pipe: &Receiver, chunk: &mut [u8], host: &Host) -> Option<usize> {
        let count = match pipe.try_read(chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => return Some(0),
        };
        let kept = count.min(MAX_OUTPUT - self.written);
        self.written += kept;
        self.discarded += (count - kept) as u64;
        if kept > 0 {
            self.write(chunk[..kept].to_vec(), host).await;
        }
        Some(count)
    }

    async fn write(&self, bytes: Vec<u8>, host: &Host) {
        let file = self.file.clone();
        // On a full disk the output is lost, and the call goes on.
        let _ = host.threads.blocking(move || (&*file).write_all(&bytes)).await;
    }
}
