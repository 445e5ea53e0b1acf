//! The update stream as JSON lines, to stdout or to a file.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fcntl_setfl, fstat, open},
};
use tokio::{io::Interest, net::unix::pipe, sync::watch, task::spawn_blocking};
use tracing::{info, warn};

use super::{
    SequencedUpdate, Sink, SinkError,
    kind::{Kind, OpenError, OpenSink, Opening},
};
use crate::error_chain::chain;

/// The entry of this sink in the registry.
pub(super) const KIND: Kind = Kind {
    name: "jsonl",
    syntax: "jsonl|jsonl=PATH",
    accepts: |target| match target {
        Some("") => Err("jsonl=PATH needs a path; jsonl alone writes to standard output".to_owned()),
        _ => Ok(()),
    },
    check: |target| target.map_or(Ok(()), |path| Jsonl::check(Path::new(path))),
    open: start,
};

fn start(target: Option<&str>, opening: Opening) -> Result<OpenSink, OpenError> {
    let jsonl = target.map_or_else(Jsonl::stdout, |path| Jsonl::file(Path::new(path)))?;
    let reopen = jsonl.reopen();
    let reload = move || reopen.now();
    // The reader of standard output starts from nothing with each run.
    Ok(if target.is_some() { opening.continued(jsonl, reload) } else { opening.fresh(jsonl, reload) })
}

/// How much of a line is put together before it is written. A line of 100,000
/// pods is 300 MB; it never stands in memory as a whole.
const BLOCK: usize = 64 * 1024;

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
///
/// A file can be [opened anew](Reopen) when another has been put in its place,
/// or none. Every line is whole in one of the two.
#[derive(Debug)]
pub struct Jsonl {
    name: Arc<str>,
    // The lock is only ever waited for on the threads for blocking work.
    output: Arc<Mutex<Output>>,
    /// Tells when the reader goes away, if the output is a pipe.
    reader: Option<pipe::Sender>,
    /// How often the file was to be opened anew.
    reopen: watch::Sender<u64>,
    asked: watch::Receiver<u64>,
}

/// Has the file of a [`Jsonl`] opened anew, as logs are rotated. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reopen(watch::Sender<u64>);

impl Reopen {
    /// Asks for it; it happens between two lines: at once while there is nothing
    /// to write, or else when the line in hand is written. If that line fails, it
    /// is the next try that turns to the new file, up to a minute later. If the
    /// path cannot be opened, the updates go on into the old file, and the log
    /// says so. Only a plain file is opened anew: a pipe has its reader, and would
    /// lose it.
    pub fn now(&self) {
        self.0.send_modify(|asked| *asked += 1);
    }
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
        let opened = Opened { file: fd.into(), place: None, cut: false };
        Self::new("stdout".into(), opened).map_err(OpenError::Stdout)
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
        let opened = Opened::at(path)?;
        Self::new(path.display().to_string().into(), opened)
            .map_err(|error| OpenError::File(path.to_owned(), error))
    }

    /// The handle by which its file is opened anew.
    #[must_use]
    pub fn reopen(&self) -> Reopen {
        Reopen(self.reopen.clone())
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
            // Its end is looked at, too: a line may have been cut off there.
            Ok(found) if found.is_file() => may(path, Access::READ_OK | Access::WRITE_OK),
            Ok(_) => may(path, Access::WRITE_OK),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                may(directory.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK)
            }
            Err(error) => return Err(failed(error)),
        };
        may.map_err(|error| failed(error.into()))
    }

    fn new(name: Arc<str>, opened: Opened) -> io::Result<Self> {
        // "Unchecked" leaves stdout in blocking mode: others share it with us.
        let watch = || pipe::Sender::from_owned_fd_unchecked(opened.file.try_clone()?.into());
        let reader = file_type(&opened.file)?.is_fifo().then(watch).transpose()?;
        let output = Output { opened, begun: None, reopen: false };
        let (reopen, asked) = watch::channel(0);
        Ok(Self { name, output: Arc::new(Mutex::new(output)), reader, reopen, asked })
    }
}

impl Sink for Jsonl {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        let (output, update) = (Arc::clone(&self.output), update.clone());
        // Looked at and noted in one step: none that is asked for meanwhile is forgotten.
        let reopen = self.asked.borrow_and_update().has_changed();
        let writing = spawn_blocking(move || {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            if reopen {
                output.reopen();
            }
            output.write(&update)
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
        loop {
            tokio::select! {
                () = reader_gone(self.reader.as_ref()) => {
                    return SinkError::fatal(WriteError::ReaderGone(Arc::clone(&self.name)));
                }
                // A quiet stream lets go of a file that was put aside, too.
                Ok(()) = self.asked.changed() => {
                    let output = Arc::clone(&self.output);
                    let reopening = spawn_blocking(move || {
                        output.lock().unwrap_or_else(PoisonError::into_inner).reopen();
                    });
                    // If it panics, the log has it, and the next line goes where the last one went.
                    let _ = reopening.await;
                }
            }
        }
    }
}

/// Ends when nobody reads the pipe any more; never, if it is none.
async fn reader_gone(reader: Option<&pipe::Sender>) {
    match reader {
        Some(reader) if reader.ready(Interest::ERROR).await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

/// What lines are written to.
#[derive(Debug)]
struct Opened {
    file: File,
    /// Where to look for another, and which one this is, if it is a plain file.
    place: Option<(PathBuf, (u64, u64))>,
    /// The last line is a piece of one, and will stay so.
    cut: bool,
}

impl Opened {
    fn at(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::File(path.to_owned(), error);
        // Not to block on a named pipe without a reader; the writes may block.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd =
            open(path, flags | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
                rustix::io::Errno::NXIO => OpenError::NoReader(path.to_owned()),
                other => failed(other.into()),
            })?;
        fcntl_setfl(&fd, OFlags::APPEND).map_err(|error| failed(error.into()))?;
        let file = File::from(fd);
        let meta = file.metadata().map_err(failed)?;
        let place = meta.is_file().then(|| (path.to_owned(), (meta.dev(), meta.ino())));
        let cut = place.is_some() && ends_within_a_line(path).map_err(failed)?;
        Ok(Self { file, place, cut })
    }

    /// What is at its path now, if that is another plain file.
    fn another(&self) -> Result<Option<Self>, OpenError> {
        let Some((path, this)) = &self.place else { return Ok(None) };
        let found = Self::at(path)?;
        match &found.place {
            Some((_, other)) if other == this => Ok(None),
            Some(_) => Ok(Some(found)),
            None => Err(OpenError::File(path.clone(), io::Error::other("it is no plain file any more"))),
        }
    }
}

/// Where the lines go, and how far the one in hand has got.
#[derive(Debug)]
struct Output {
    opened: Opened,
    /// The line in hand: its `seq`, and how many of its bytes are written.
    begun: Option<(u64, usize)>,
    /// Whether the file is to be opened anew as soon as that line is done with.
    reopen: bool,
}

impl Output {
    /// Opens the file anew, now or after the line in hand.
    fn reopen(&mut self) {
        self.reopen = true;
        if self.begun.is_none() {
            self.turn();
        }
    }

    /// Turns to the file that is at the path now. Returns whether it is another.
    fn turn(&mut self) -> bool {
        self.reopen = false;
        match self.opened.another() {
            Ok(Some(other)) => {
                if let Some((path, _)) = &other.place {
                    info!(path = %path.display(), "updates go on into a new file");
                }
                (self.opened, self.begun) = (other, None);
                true
            }
            Ok(None) => false,
            Err(error) => {
                warn!(error = chain(&error), "the file was not opened anew; updates go on into the old one");
                false
            }
        }
    }

    fn write(&mut self, update: &SequencedUpdate) -> io::Result<()> {
        let written = self.write_line(update);
        if !self.reopen {
            return written;
        }
        // The old file has the line, or has no room for the rest of it: then the
        // new one gets it whole.
        let turned = self.turn();
        if turned && written.is_err() { self.write_line(update) } else { written }
    }

    fn write_line(&mut self, update: &SequencedUpdate) -> io::Result<()> {
        let mut skip = match self.begun {
            Some((seq, written)) if seq == update.seq => written,
            other => {
                self.opened.cut |= other.is_some();
                0
            }
        };
        self.begun = Some((update.seq, skip));
        let cut: &[u8] = if self.opened.cut { b"\n" } else { b"" };
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
        self.opened.cut = false;
        Ok(())
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.opened.file.write(bytes) {
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
                    poll(&mut [PollFd::new(&self.opened.file, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn file_type(fd: &File) -> io::Result<FileType> {
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
