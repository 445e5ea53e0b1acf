//! Consumers of `GET /updates` that connect again and again, as lines of JSON and as a browser's `EventSource`.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::replay::{Law, Numbering, Reader};
use crate::support::random::Random;

/// The delay between two attempts to connect.
const RETRY: Duration = Duration::from_millis(5);

/// How a follower reads the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Lines; it continues with a bare number.
    Bare,
    /// Lines; it continues with `RUN-NUMBER` if the server names its run.
    OfRun,
    /// Server-sent events.
    Events,
}

/// A consumer that follows the stream from number to number, over restarts of the agent.
pub struct Follower {
    reader: Arc<Mutex<Reader>>,
    open: Arc<Mutex<Option<UnixStream>>>,
    /// Whether it connects.
    connects: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// With random choices it ends some connections after a few updates, in the middle of a beginning too.
    pub fn start(
        name: &str,
        law: &Arc<Law>,
        socket: &Path,
        style: Style,
        numbering: Numbering,
        ends: Option<Random>,
    ) -> Self {
        let reader = Arc::new(Mutex::new(Reader::new(name, law, numbering)));
        let (open, stop): (Arc<Mutex<Option<UnixStream>>>, Arc<AtomicBool>) = Default::default();
        let mut following = Following {
            reader: reader.clone(),
            open: open.clone(),
            socket: socket.to_owned(),
            style,
            next: None,
            run: None,
            ends,
            left: None,
        };
        let connects = Arc::new(AtomicBool::new(true));
        let (stopped, may_connect) = (stop.clone(), connects.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                if may_connect.load(Ordering::SeqCst) {
                    // It fails without an agent, and at the end of a connection.
                    let _ = following.follow();
                }
                thread::sleep(RETRY);
            }
        });
        Self { reader, open, connects, stop, thread: Some(thread) }
    }

    pub fn reader(&self) -> MutexGuard<'_, Reader> {
        lock(&self.reader)
    }

    /// Whether it connects from now on. An open connection stays.
    pub fn set_connecting(&self, connects: bool) {
        self.connects.store(connects, Ordering::SeqCst);
    }

    /// Breaks the connection.
    pub fn cut(&self) {
        if let Some(stream) = lock(&self.open).take() {
            // It may have ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // A connection that begins now is cut too.
        while let Some(thread) = &self.thread
            && !thread.is_finished()
        {
            self.cut();
            thread::sleep(RETRY);
        }
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(!matches!(ended, Some(Err(_))) || thread::panicking(), "a follower panicked");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread of a follower.
struct Following {
    reader: Arc<Mutex<Reader>>,
    open: Arc<Mutex<Option<UnixStream>>>,
    socket: PathBuf,
    style: Style,
    /// What it continues with: the next number, or the id of the last event.
    next: Option<String>,
    run: Option<String>,
    ends: Option<Random>,
    /// After how many updates it ends this connection.
    left: Option<usize>,
}

impl Following {
    /// Follows one connection to its end.
    fn follow(&mut self) -> io::Result<()> {
        let stream = UnixStream::connect(&self.socket)?;
        *lock(&self.open) = Some(stream.try_clone()?);
        let mut response = Response::ask(stream, &self.request())?;
        match response.code {
            200 => {}
            410 if self.style != Style::Events => {
                lock(&self.reader).begin(&format!("410 for {:?}", self.next.take()));
                return Ok(());
            }
            // The agent is stopping, or has too many watchers.
            429 | 503 => return Ok(()),
            code => {
                lock(&self.reader).wrong(&format!("an EventSource gives up for good at {code}"));
                return Ok(());
            }
        }
        let run = response.header("podmux-run").map(str::to_owned);
        if self.next.is_none() || run != self.run {
            lock(&self.reader).begin(&format!("connected with {:?} to run {run:?}", self.next));
        }
        if run.is_some() {
            lock(&self.reader).run.clone_from(&run);
        }
        self.run = run;
        self.left = self.ends.as_mut().and_then(|ends| ends.once_in(3).then(|| 1 + ends.below(3)));
        if self.style == Style::Events { self.events(&mut response) } else { self.lines(&mut response) }
    }

    fn request(&self) -> String {
        let (path, header) = match (&self.next, self.style) {
            (None, Style::Events) => (String::new(), "Accept: text/event-stream\r\n".to_owned()),
            (Some(id), Style::Events) => {
                (String::new(), format!("Accept: text/event-stream\r\nLast-Event-ID: {id}\r\n"))
            }
            (None, _) => (String::new(), String::new()),
            (Some(next), _) => (format!("?from={next}"), String::new()),
        };
        format!("GET /updates{path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n")
    }

    fn lines(&mut self, response: &mut Response) -> io::Result<()> {
        loop {
            let line = response.text_line()?;
            let mut reader = lock(&self.reader);
            // The last line for a reader that is too slow.
            if line.contains(r#""kind":"Status""#) {
                reader.wrong(&format!("an object that is no update: {line}"));
                self.next = None;
                return Ok(());
            }
            reader.take(&line);
            let Some(last) = reader.last else { continue };
            self.next = Some(match (self.style, &reader.run) {
                (Style::OfRun, Some(run)) => format!("{run}-{}", last + 1),
                _ => (last + 1).to_string(),
            });
            drop(reader);
            self.count()?;
        }
    }

    fn events(&mut self, response: &mut Response) -> io::Result<()> {
        let (mut id, mut event, mut data) = (String::new(), String::new(), String::new());
        loop {
            let line = response.text_line()?;
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => value.clone_into(&mut id),
                "event" => value.clone_into(&mut event),
                "data" => data.push_str(value),
                "" if line.is_empty() && !data.is_empty() => {
                    self.event(&id, &event, &data);
                    self.count()?;
                    event.clear();
                    data.clear();
                }
                // A comment, or the time to wait before a reconnection.
                _ => {}
            }
        }
    }

    /// Counts an update. It fails when the connection has had enough.
    fn count(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.left {
            *left -= 1;
            if *left == 0 {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(())
    }

    fn event(&mut self, id: &str, event: &str, data: &str) {
        let mut reader = lock(&self.reader);
        if event == "error" {
            reader.wrong(&format!("an event of type error: {data}"));
            return;
        }
        reader.take(data);
        let seq = reader.last.unwrap_or_default().to_string();
        let is_id = id == seq || reader.run.as_ref().is_some_and(|run| id == format!("{run}-{seq}"));
        if !is_id || !data.contains(&format!(r#""op":"{event}""#)) {
            reader.wrong(&format!("the event {event} {id} has {data:.100}"));
        }
        self.next = Some(id.to_owned());
    }
}

/// The response of a connection, which is read as it comes.
struct Response {
    stream: BufReader<UnixStream>,
    code: u16,
    headers: Vec<(String, String)>,
    /// What of the body was read and not returned yet.
    read: Vec<u8>,
}

impl Response {
    fn ask(mut stream: UnixStream, request: &str) -> io::Result<Self> {
        stream.write_all(request.as_bytes())?;
        let mut response =
            Self { stream: BufReader::new(stream), code: 0, headers: Vec::new(), read: Vec::new() };
        let status = response.line()?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        response.code = code.ok_or(io::ErrorKind::InvalidData)?;
        while let Some((name, value)) = response.line()?.split_once(": ") {
            response.headers.push((name.to_lowercase(), value.to_owned()));
        }
        Ok(response)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| &*header.1)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// The next complete line of the chunked body.
    fn text_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return String::from_utf8(line[..end].to_vec()).map_err(io::Error::other);
            }
            let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
            let begin = self.read.len();
            self.read.resize(begin + size, 0);
            self.stream.read_exact(&mut self.read[begin..])?;
            self.line()?;
            if size == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
