//! The update stream as JSON lines, to stdout or to a file.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fcntl_setfl, fstat, open},
};
use tokio::{io::Interest, net::unix::pipe};

use super::{SequencedUpdate, Sink, SinkError};

/// How much of a line is put together before it is written. A line of 100,000
/// pods is 300 MB; it never stands in memory as a whole.
const BLOCK: usize = 64 * 1024;

/// Why the stream cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened for appending.
    #[error("cannot write updates to {}; name a file that can be created or appended to", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The path is a named pipe without a reader.
    #[error("nobody reads the named pipe {}; start its reader first", .0.display())]
    NoReader(PathBuf),
    /// Stdout cannot be used.
    #[error("cannot write updates to stdout")]
    Stdout(#[source] io::Error),
}

/// Why a line was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the reader of {0} has gone away")]
    ReaderGone(Arc<str>),
    #[error("cannot write to {0}")]
    Write(Arc<str>, #[source] io::Error),
    #[error("writing to {0} broke off")]
    Broken(Arc<str>, #[source] tokio::task::JoinError),
}

/// Writes one JSON object a line; a line is acknowledged when the system has
/// taken all of it.
///
/// The system's call may block for as long as a reader likes; it is made on a
/// thread for blocking work, so that nothing else waits. A write that fails in
/// the middle of a line is taken up again at that very byte: the stream of a
/// full disk is whole again when there is space. A file whose last line was cut
/// off by the end of an earlier run goes on with a line of its own.
#[derive(Debug)]
pub struct Jsonl {
    name: Arc<str>,
    // The lock is only ever waited for on the threads for blocking work.
    output: Arc<Mutex<Output>>,
    /// Tells when the reader goes away, if the output is a pipe.
    reader: Option<pipe::Sender>,
}

impl Jsonl {
    /// The stream on stdout.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// If stdout's descriptor cannot be duplicated.
    pub fn stdout() -> Result<Self, OpenError> {
        let fd = io::stdout().as_fd().try_clone_to_owned().map_err(OpenError::Stdout)?;
        Self::new("stdout".into(), fd, false).map_err(OpenError::Stdout)
    }

    /// The stream in a file, which is created for its owner only (pods may hold
    /// secrets) or appended to. A device or a named pipe with a reader will do too.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// If it cannot be opened for appending, or is a named pipe that nobody reads.
    pub fn file(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::File(path.to_owned(), error);
        // Not to block on a named pipe without a reader; the writes may block.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd =
            open(path, flags | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
                rustix::io::Errno::NXIO => OpenError::NoReader(path.to_owned()),
                other => failed(other.into()),
            })?;
        fcntl_setfl(&fd, OFlags::APPEND).map_err(|error| failed(error.into()))?;
        let cut = file_type(&fd).map_err(failed)?.is_file() && ends_within_a_line(path).map_err(failed)?;
        Self::new(path.display().to_string().into(), fd, cut).map_err(failed)
    }

    /// Whether [`file`](Self::file) could open this file, as far as that can be
    /// told without opening or making it. It blocks.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub fn check(path: &Path) -> Result<(), OpenError> {
        let failed = |error| OpenError::File(path.to_owned(), error);
        let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS);
        let may = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(failed(io::ErrorKind::IsADirectory.into())),
            Ok(_) => may(path, Access::WRITE_OK),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                may(directory.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK)
            }
            Err(error) => return Err(failed(error)),
        };
        may.map_err(|error| failed(error.into()))
    }

    fn new(name: Arc<str>, fd: OwnedFd, cut: bool) -> io::Result<Self> {
        // "Unchecked" leaves stdout in blocking mode: others share it with us.
        let watch = || pipe::Sender::from_owned_fd_unchecked(fd.try_clone()?);
        let reader = file_type(&fd)?.is_fifo().then(watch).transpose()?;
        let output = Output { file: fd.into(), cut, begun: None };
        Ok(Self { name, output: Arc::new(Mutex::new(output)), reader })
    }
}

impl Sink for Jsonl {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        let (output, update) = (Arc::clone(&self.output), update.clone());
        let writing = tokio::task::spawn_blocking(move || {
            output.lock().unwrap_or_else(PoisonError::into_inner).write(&update)
        });
        let name = Arc::clone(&self.name);
        match writing.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(SinkError::fatal(WriteError::ReaderGone(name)))
            }
            Ok(Err(error)) => Err(SinkError::retry(WriteError::Write(name, error))),
            Err(error) => Err(SinkError::fatal(WriteError::Broken(name, error))),
        }
    }

    async fn gone(&mut self) -> SinkError {
        match &self.reader {
            Some(reader) if reader.ready(Interest::ERROR).await.is_ok() => {
                SinkError::fatal(WriteError::ReaderGone(Arc::clone(&self.name)))
            }
            _ => std::future::pending().await,
        }
    }
}

/// Where the lines go, and how far the one in hand has got.
#[derive(Debug)]
struct Output {
    file: File,
    /// The last line is a piece of one, and will stay so.
    cut: bool,
    /// The line in hand: its `seq`, and how many of its bytes are written.
    begun: Option<(u64, usize)>,
}

impl Output {
    fn write(&mut self, update: &SequencedUpdate) -> io::Result<()> {
        let mut skip = match self.begun {
            Some((seq, written)) if seq == update.seq => written,
            other => {
                self.cut |= other.is_some();
                0
            }
        };
        self.begun = Some((update.seq, skip));
        let cut: &[u8] = if self.cut { b"\n" } else { b"" };
        let mut block = Vec::with_capacity(BLOCK);
        for piece in std::iter::once(cut.into()).chain(update.line()) {
            let told = skip.min(piece.len());
            skip -= told;
            block.extend_from_slice(&piece[told..]);
            if block.len() >= BLOCK {
                self.put(&block)?;
                block.clear();
            }
        }
        self.put(&block)?;
        self.begun = None;
        self.cut = false;
        Ok(())
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    if let Some((_, written)) = &mut self.begun {
                        *written += count;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Whoever shares a pipe with us may have made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn file_type(fd: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode))
}

fn ends_within_a_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
