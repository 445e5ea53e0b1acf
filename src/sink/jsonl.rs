//! The JSON lines sink: writes updates to stdout or to a file.

use std::{
    borrow::Cow,
    fs::{self, File, Metadata},
    io::{self, IoSlice, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _},
    iter, mem,
    os::{
        fd::AsFd as _,
        unix::fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, fcntl_setfl, fstatfs, open},
    io::{ReadWriteFlags, pwritev2},
};
use tokio::{io::Interest, net::unix::pipe, sync::watch};
use tracing::{info, warn};

use super::{
    contract::{Sink, SinkError},
    numbers::Counter,
    opening::{OpenSink, Opening, SinkKind},
    table::row,
};
use crate::{
    error_chain::chain,
    escaped::for_a_terminal,
    host::{Cancelled, Host, OpenFile},
    kind::{Given, Kind, KindOption, OpenError},
    pod::SequencedUpdate,
};

/// The entry of this sink in the registry.
pub(super) const KIND: SinkKind = SinkKind {
    kind: Kind {
        name: "jsonl",
        syntax: "jsonl|jsonl=PATH",
        options: &[],
        shown: str::to_owned,
        accepts: |given| match given.target.as_deref() {
            Some("") => Err("jsonl=PATH needs a path; jsonl alone writes to standard output".to_owned()),
            Some("-") => Err("jsonl alone writes to standard output (a file of that name is ./-)".to_owned()),
            _ => Ok(()),
        },
        check: |given, _| given.target.as_ref().map_or(Ok(()), |path| Jsonl::check(Path::new(path))),
    },
    open: start,
};

/// The entry of the table on standard output, which has no sink of its own.
pub(super) const TABLE: SinkKind = SinkKind {
    kind: Kind {
        name: "table",
        syntax: "table",
        options: &[KindOption {
            name: "color",
            value: "BOOL",
            help: "yes or no: whether the operations are coloured (no)",
        }],
        shown: str::to_owned,
        accepts: |given| match (&given.target, given.options.get("color").map(String::as_str)) {
            (Some(_), _) => Err("table has no target: it writes to standard output".to_owned()),
            (None, None | Some("yes" | "no")) => Ok(()),
            (None, Some(_)) => Err("color is yes or no".to_owned()),
        },
        check: |_, _| Ok(()),
    },
    open: |given, opening| {
        let is_coloured = given.options.get("color").is_some_and(|color| color == "yes");
        let form = if is_coloured { Form::ColouredTable } else { Form::Table };
        let table = Jsonl { form, ..Jsonl::stdout()?.on(opening.host.clone()) };
        Ok(opening.deliver(table, Counter::default(), || ()))
    },
};

/// How an update is written.
#[derive(Clone, Copy, Debug)]
enum Form {
    Json,
    /// JSON that cannot command the terminal.
    TerminalJson,
    Table,
    ColouredTable,
}

impl Form {
    /// The update in pieces.
    fn pieces(self, update: &SequencedUpdate) -> Box<dyn Iterator<Item = Cow<'_, [u8]>> + '_> {
        let row = |colour| Box::new(iter::once(row(update, colour).into_bytes().into()));
        match self {
            Self::Json => Box::new(update.line()),
            Self::TerminalJson => {
                Box::new(update.line().map(|piece| for_a_terminal(&piece).into_owned().into()))
            }
            Self::Table => row(false),
            Self::ColouredTable => row(true),
        }
    }
}

fn start(given: &Given, opening: Opening) -> Result<OpenSink, OpenError> {
    let target = given.target.as_deref();
    let Some(path) = target else {
        let jsonl = Jsonl::stdout()?.on(opening.host.clone());
        // The reader of standard output starts from nothing with each run: `seq` is the line's number.
        return Ok(opening.deliver(jsonl, Counter::default(), || ()));
    };
    let (host, reopen) = (opening.host.clone(), Reopen::default());
    let mut sink = FileSink { path: path.into(), host, jsonl: None, reopen: reopen.clone() };
    match Jsonl::at(&sink.path, reopen.clone()) {
        Ok(jsonl) => sink.jsonl = Some(jsonl.on(sink.host.clone())),
        Err(error) if error.may_pass() => {}
        Err(error) => return Err(error),
    }
    let sequence = opening.sequence.clone();
    Ok(opening.deliver(sink, sequence, move || reopen.now()))
}

/// A [`Jsonl`] on a file, which is opened again and again until that succeeds.
struct FileSink {
    path: PathBuf,
    host: Host,
    jsonl: Option<Jsonl>,
    /// Reopens the file that is open, or the next one.
    reopen: Reopen,
}

impl FileSink {
    /// Closes what cannot be written to any more. A new stream begins in what is opened next. A next reader of a named
    /// pipe that opened it before this is noticed goes on in the old stream.
    fn closed(&mut self, error: SinkError) -> SinkError {
        let (SinkError::Fatal(cause) | SinkError::Retry(cause)) = &error else { return error };
        let event = match cause.downcast_ref() {
            Some(WriteError::ReaderGone(_)) => {
                "the reader of the named pipe or terminal has gone; the next one is waited for"
            }
            Some(WriteError::Lost(_)) => "output file closed; it is opened again",
            _ => return error,
        };
        // Closed first: the next reader would get what the last one has not read, a removed file takes space, and a
        // broken disk cannot be unmounted.
        self.jsonl = None;
        info!(path = %self.path.display(), "{event}");
        SinkError::Restart
    }

    async fn open(&self) -> Result<Jsonl, SinkError> {
        let (path, reopen) = (self.path.clone(), self.reopen.clone());
        let opened = self.host.threads.blocking(move || Jsonl::at(&path, reopen)).await;
        let jsonl = opened.map_err(SinkError::retry)?.map_err(SinkError::retry)?;
        Ok(jsonl.on(self.host.clone()))
    }
}

impl Sink for FileSink {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        let jsonl = match self.jsonl.take() {
            Some(jsonl) => jsonl,
            None => self.open().await?,
        };
        let delivered = self.jsonl.insert(jsonl).deliver(update).await;
        delivered.map_err(|error| self.closed(error))
    }

    async fn interrupted(&mut self) -> SinkError {
        let error = match &mut self.jsonl {
            Some(jsonl) => jsonl.interrupted().await,
            None => std::future::pending().await,
        };
        self.closed(error)
    }
}

/// The size of the blocks in which a line is written. A line of 100,000 pods is 300 MB and
/// is never in memory as a whole.
const BLOCK: usize = 64 * 1024;

const SOCKET: &str = "a Unix socket cannot be opened as a file is";

/// Why a line was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("the reader of {0} has closed it")]
    ReaderGone(Arc<str>),
    #[error("{0} was removed, or cannot be written to as long as it is open")]
    Lost(Arc<str>),
    #[error("cannot write to {0}")]
    Write(Arc<str>, #[source] io::Error),
    #[error("the write to {0} was aborted")]
    Aborted(Arc<str>, #[source] Cancelled),
}

/// A sink that writes each update as one line of JSON. A line is acknowledged when the
/// system has accepted all of it.
///
/// * A short line is written at once if the system can write it without waiting: a pipe or a socket has room for it
///   (Linux 6.4). Otherwise the system calls may block, so they are made on threads for blocking work.
/// * After an error in the middle of a line, the retry continues at the next byte.
/// * If an earlier run has left an incomplete last line, the stream continues on a new line.
/// * A file can be [reopened](Reopen) after it was renamed or removed. The stream begins again in
///   the new file, and in one that was truncated, with its next line or reopening.
/// * Lines for a file that was removed fail until it is reopened.
/// * A plain file is locked (flock) until it is closed: lines of two processes would be one stream for its readers.
#[derive(Debug)]
pub struct Jsonl {
    name: Arc<str>,
    host: Host,
    // Waited for only on threads for blocking work.
    output: Arc<Mutex<Output>>,
    is_stdout: bool,
    /// Whether the last line has failed, and not because there is no space.
    is_broken: bool,
    form: Form,
    /// Reports when the reader goes away, if the output is a pipe or a terminal.
    reader: Option<pipe::Sender>,
    reopen: Reopen,
    /// How many times a reopening was requested.
    requests: watch::Receiver<u64>,
}

/// Reopens the file of a [`Jsonl`], for log rotation. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reopen(watch::Sender<u64>);

impl Reopen {
    /// Requests that the file is opened again, between two lines. The stream begins again in a new
    /// file.
    ///
    /// While a line is written this happens after the line, otherwise at once, also if a line has
    /// failed and its retry is pending. If the path cannot be
    /// opened, the old file stays in use and this is logged. Only a plain file is reopened: a
    /// pipe would lose its reader.
    ///
    /// If the file has to be closed, [`interrupted`](Sink::interrupted) returns a fatal error instead: if a line has
    /// failed for another reason than a lack of space, or the file was removed and the path cannot be opened.
    pub fn now(&self) {
        self.0.send_modify(|requests| *requests += 1);
    }
}

impl Jsonl {
    /// A sink that writes to stdout.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// If stdout's descriptor cannot be duplicated.
    pub fn stdout() -> Result<Self, OpenError> {
        let fd = io::stdout().as_fd().try_clone_to_owned().map_err(OpenError::Stdout)?;
        let opened = Opened { file: fd.into(), place: None, length: 0, incomplete: false, is_prompt: true };
        let stdout = Self::new("stdout".into(), opened).map_err(OpenError::Stdout)?;
        Ok(Self { is_stdout: true, ..stdout })
    }

    /// A sink that appends to a file, a device or a named pipe with a reader. A new file is
    /// readable by its owner only, since pods may contain secrets. It blocks: for a second if another process or sink
    /// has locked the file.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// If the file cannot be opened for appending, is locked, or is a named pipe without a reader.
    pub fn file(path: &Path) -> Result<Self, OpenError> {
        Self::at(path, Reopen::default())
    }

    fn at(path: &Path, reopen: Reopen) -> Result<Self, OpenError> {
        // Before the file is opened, so that no request is lost.
        let requests = reopen.0.subscribe();
        let opened = Opened::at(path)?;
        let jsonl = Self::new(path.display().to_string().into(), opened)
            .map_err(|error| OpenError::File(path.to_owned(), error))?;
        Ok(Self { reopen, requests, ..jsonl })
    }

    /// Runs blocking work on these threads.
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// The handle that reopens the file.
    pub fn reopen(&self) -> Reopen {
        self.reopen.clone()
    }

    /// Checks whether [`file`](Self::file) can open this file, without opening or creating
    /// it. It blocks.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub fn check(path: &Path) -> Result<(), OpenError> {
        let failed = |error| OpenError::File(path.to_owned(), error);
        let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS);
        let may = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(failed(io::ErrorKind::IsADirectory.into())),
            Ok(_) if is_socket(path) => return Err(failed(io::Error::other(SOCKET))),
            // It is read to find out whether its last line is complete.
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
        // "Unchecked" leaves stdout in blocking mode, which other processes may share.
        let watch = || pipe::Sender::from_owned_fd_unchecked(opened.file.try_clone()?.into());
        let is_terminal = opened.file.is_terminal();
        let has_reader = is_terminal || opened.file.metadata()?.file_type().is_fifo();
        let reader = has_reader.then(watch).transpose()?;
        let output = Arc::new(Mutex::new(Output { opened, current: None, reopen: false, is_new: false }));
        let reopen = Reopen::default();
        let requests = reopen.0.subscribe();
        let form = if is_terminal { Form::TerminalJson } else { Form::Json };
        let host = Host::default();
        Ok(Self { name, host, output, is_stdout: false, is_broken: false, form, reader, reopen, requests })
    }
}

impl Sink for Jsonl {
    async fn deliver(&mut self, update: &SequencedUpdate) -> Result<(), SinkError> {
        // Checked and marked as seen in one step, so that no request is lost in between.
        let reopen = !mem::take(&mut self.is_broken) && self.requests.borrow_and_update().has_changed();
        if !reopen
            && let Ok(mut output) = self.output.try_lock()
            && output.write_at_once(update, self.form)
        {
            return Ok(());
        }
        let (output, update, form) = (Arc::clone(&self.output), update.clone(), self.form);
        let writing = self.host.threads.blocking(move || {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            if reopen {
                output.reopen();
            }
            output.write(&update, form)
        });
        let name = Arc::clone(&self.name);
        match writing.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(None)) => Err(SinkError::Restart),
            Ok(Err(Some(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(SinkError::fatal(WriteError::ReaderGone(name)))
            }
            Ok(Err(Some(error))) if error.kind() == io::ErrorKind::NotFound => {
                Err(SinkError::retry(WriteError::Lost(name)))
            }
            Ok(Err(Some(error))) => {
                self.is_broken = !lacks_space(&error);
                Err(SinkError::retry(WriteError::Write(name, error)))
            }
            Err(error) => Err(SinkError::fatal(WriteError::Aborted(name, error))),
        }
    }

    async fn interrupted(&mut self) -> SinkError {
        loop {
            tokio::select! {
                () = reader_gone(self.reader.as_ref()) => {
                    return SinkError::fatal(WriteError::ReaderGone(Arc::clone(&self.name)));
                }
                Ok(()) = self.requests.changed() => {
                    if self.is_broken {
                        return SinkError::fatal(WriteError::Lost(Arc::clone(&self.name)));
                    }
                    let (output, request) = (Arc::clone(&self.output), *self.requests.borrow());
                    let reopening = self.host.threads.blocking(move || {
                        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                        // A line that has failed is not completed in the old file, whose disk may be full.
                        output.switch();
                        (output.is_new, output.opened.is_removed())
                    });
                    // If this future is dropped meanwhile, the next update reopens the file.
                    self.requests.mark_changed();
                    // A panic is logged, and the old file stays in use.
                    let (is_new, is_removed) = reopening.await.unwrap_or_default();
                    if *self.requests.borrow_and_update() != request {
                        self.requests.mark_changed();
                    }
                    if is_new {
                        // Said here. It is said once more if another reopening, of a dropped future, still runs.
                        if let Ok(mut output) = self.output.try_lock() {
                            output.is_new = false;
                        }
                        return SinkError::Restart;
                    }
                    if is_removed {
                        return SinkError::fatal(WriteError::Lost(Arc::clone(&self.name)));
                    }
                }
            }
        }
    }

    fn is_fresh(&self) -> bool {
        self.is_stdout
    }
}

/// Ends when the pipe has no reader any more; never ends without a pipe.
async fn reader_gone(reader: Option<&pipe::Sender>) {
    match reader {
        Some(reader) if reader.ready(Interest::ERROR).await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

/// The file that lines are written to.
#[derive(Debug)]
struct Opened {
    file: File,
    /// The path and the identity, if it is a plain file.
    place: Option<(PathBuf, (u64, u64))>,
    /// The least number of bytes that it has, unless it was truncated.
    length: u64,
    /// Whether the file ends with an incomplete line that is not continued.
    incomplete: bool,
    /// Whether the system may be able to write to it without waiting.
    is_prompt: bool,
}

impl Opened {
    fn at(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::File(path.to_owned(), error);
        // Opening must not block on a named pipe without a reader; writing may block.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd =
            open(path, flags | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
                rustix::io::Errno::NXIO if is_socket(path) => failed(io::Error::other(SOCKET)),
                rustix::io::Errno::NXIO => OpenError::NoReader(path.to_owned()),
                other => failed(other.into()),
            })?;
        fcntl_setfl(&fd, OFlags::APPEND).map_err(|error| failed(error.into()))?;
        let file = File::from(fd);
        let meta = file.metadata().map_err(failed)?;
        let place = meta.is_file().then(|| (path.to_owned(), identity(&meta)));
        if place.is_some() && !lock(&file, path, identity(&meta)) {
            return Err(OpenError::InUse(path.to_owned()));
        }
        let incomplete = place.is_some() && ends_within_a_line(path).map_err(failed)?;
        Ok(Self { file, place, length: meta.len(), incomplete, is_prompt: true })
    }

    /// How much is left of a plain file that was truncated, as by logrotate's `copytruncate`.
    fn left(&self) -> Option<u64> {
        self.place.as_ref()?;
        self.file.metadata().ok().map(|found| found.len()).filter(|left| *left < self.length)
    }

    /// Whether it is a plain file that was removed. A path such as `/proc/self/fd/N` leads to a file without a name, too.
    fn is_removed(&self) -> bool {
        let Some((path, this)) = &self.place else { return false };
        self.file.metadata().is_ok_and(|found| found.nlink() == 0) && !leads_to(path, *this)
    }

    /// Opens the file at the path again, if it is another plain file now.
    fn another(&self) -> Result<Option<Self>, OpenError> {
        let Some((path, this)) = &self.place else { return Ok(None) };
        // Not opened: this process has locked it.
        if leads_to(path, *this) {
            return Ok(None);
        }
        let found = Self::at(path)?;
        match &found.place {
            Some(_) => Ok(Some(found)),
            None => Err(OpenError::File(path.clone(), io::Error::other("not a plain file any more"))),
        }
    }
}

/// The file and the position in the current line.
#[derive(Debug)]
struct Output {
    opened: Opened,
    /// The line that is written partly: its `seq` and the number of written bytes.
    current: Option<(u64, usize)>,
    /// Whether to reopen the file after the current line.
    reopen: bool,
    /// Whether the stream has to begin in this file.
    is_new: bool,
}

impl Output {
    /// Reopens the file, now or after the current line.
    fn reopen(&mut self) {
        self.reopen = true;
        if self.current.is_none() || self.opened.is_removed() {
            self.switch();
        }
    }

    /// Continues with the file that is at the path now.
    fn switch(&mut self) {
        self.reopen = false;
        match self.opened.another() {
            Ok(Some(other)) => {
                if let Some((path, _)) = &other.place {
                    info!(path = %path.display(), "output file reopened");
                }
                (self.opened, self.current, self.is_new) = (other, None, true);
            }
            Ok(None) => self.notice_truncation(),
            Err(_) if self.opened.is_removed() => {}
            Err(error) => {
                warn!(error = chain(&error), "output file not reopened; the old one stays in use");
            }
        }
    }

    /// Begins the stream again if what is left of the file is not what was written: a line would be continued without
    /// its beginning, and the pods of the lines before would be missing.
    fn notice_truncation(&mut self) {
        let (Some(left), Some((path, _))) = (self.opened.left(), &self.opened.place) else { return };
        info!(path = %path.display(), "output file truncated; the stream begins again");
        self.opened.incomplete = left > 0 && ends_within_a_line(path).unwrap_or(true);
        self.opened.length = left;
        (self.current, self.is_new) = (None, true);
    }

    /// Writes a short update if that is possible without waiting. Otherwise a part of it may be written.
    fn write_at_once(&mut self, update: &SequencedUpdate, form: Form) -> bool {
        let is_short = || update.update.pods.iter().map(|pod| pod.text().len()).sum::<usize>() < BLOCK;
        let is_as_written =
            !self.reopen && !self.is_new && self.opened.left().is_none() && !self.opened.is_removed();
        if !self.opened.is_prompt || !is_as_written || !is_short() {
            return false;
        }
        let written = self.write_line(update, form, true);
        // Another error returns when it is written again.
        self.opened.is_prompt = written.as_ref().err().is_none_or(would_block);
        written.is_ok()
    }

    /// Writes an update. The error is `None` if the file is another one now, where the stream has
    /// to begin again, and `NotFound` if it was removed.
    fn write(&mut self, update: &SequencedUpdate, form: Form) -> Result<(), Option<io::Error>> {
        if self.opened.is_removed() {
            return Err(Some(io::ErrorKind::NotFound.into()));
        }
        self.notice_truncation();
        let written = if self.is_new { Ok(()) } else { self.write_line(update, form, false) };
        if self.reopen {
            self.switch();
        }
        if mem::take(&mut self.is_new) { Err(None) } else { written.map_err(Some) }
    }

    fn write_line(&mut self, update: &SequencedUpdate, form: Form, at_once: bool) -> io::Result<()> {
        let mut skip = match self.current {
            Some((seq, written)) if seq == update.seq => written,
            other => {
                self.opened.incomplete |= other.is_some();
                0
            }
        };
        self.current = Some((update.seq, skip));
        let start: &[u8] = if self.opened.incomplete { b"\n" } else { b"" };
        let mut block = Vec::with_capacity(if at_once { 0 } else { BLOCK });
        for piece in std::iter::once(start.into()).chain(form.pieces(update)) {
            let written = skip.min(piece.len());
            skip -= written;
            block.extend_from_slice(&piece[written..]);
            if block.len() >= BLOCK {
                self.put(&block, at_once)?;
                block.clear();
            }
        }
        self.put(&block, at_once)?;
        self.current = None;
        self.opened.incomplete = false;
        Ok(())
    }

    /// Writes bytes; `at_once`, only as many as is possible without waiting.
    fn put(&mut self, mut bytes: &[u8], at_once: bool) -> io::Result<()> {
        while !bytes.is_empty() {
            let file = &mut self.opened.file;
            let written = if at_once {
                // At the current offset.
                pwritev2(&*file, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT).map_err(Into::into)
            } else {
                file.write(bytes)
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.opened.length += count as u64;
                    if let Some((_, written)) = &mut self.current {
                        *written += count;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process that shares the pipe may have made it non-blocking.
                Err(error) if would_block(&error) && !at_once => {
                    poll(&mut [PollFd::new(&self.opened.file, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn leads_to(path: &Path, this: (u64, u64)) -> bool {
    fs::metadata(path).is_ok_and(|found| identity(&found) == this)
}

/// The types of file systems of NFS and SMB. After an outage their locks may be lost, and with them the open file, or
/// readers are refused.
const OF_NETWORK: [u32; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];

/// Locks a plain file, unless it is standard output, which processes may share, or on a network file system. False if
/// another process has it: it keeps the lock, or has rotated the file while the lock was waited for.
fn lock(file: &File, path: &Path, this: (u64, u64)) -> bool {
    let stdout = io::stdout().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    let is_of_network = fstatfs(file)
        .is_ok_and(|found| u32::try_from(found.f_type).is_ok_and(|kind| OF_NETWORK.contains(&kind)));
    if is_of_network || stdout.is_ok_and(|stdout| identity(&stdout) == this) {
        return true;
    }
    match OpenFile::lock(file) {
        Ok(()) => leads_to(path, this),
        // Some file systems have no locks.
        Err(error) => !would_block(&error),
    }
}

fn lacks_space(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
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
