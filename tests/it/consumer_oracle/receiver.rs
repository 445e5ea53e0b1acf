//! A webhook receiver that fails in every way, and the consumer of what it accepted.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::replay::{Law, Numbering, Reader};
use crate::support::random::Random;

/// Where the receiver's redirects lead. No request may come there.
const ELSEWHERE: &str = "/elsewhere";

/// What the receiver does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Accept,
    /// It accepts the request, and the answer is lost.
    AcceptAndReset,
    Reset,
    /// No answer until the receiver is healed.
    Hang,
    Fail(u16),
    /// 429 or 503, with this `Retry-After`.
    Later(u16, u32),
    Redirect(u16),
}

/// How the receiver fails while it is faulty.
const FAULTS: [Behaviour; 10] = [
    Behaviour::AcceptAndReset,
    Behaviour::Reset,
    Behaviour::Hang,
    Behaviour::Fail(500),
    Behaviour::Fail(404),
    Behaviour::Later(429, 0),
    Behaviour::Later(429, 1),
    Behaviour::Later(503, 1),
    Behaviour::Redirect(307),
    Behaviour::Redirect(302),
];

/// The server. It ends when it is dropped.
pub struct Receiver {
    pub url: String,
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    reader: Mutex<Reader>,
    /// The bodies that were accepted, by their `Idempotency-Key`.
    accepted: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The bodies that were sent, accepted or not.
    sent: Mutex<BTreeMap<String, Vec<u8>>>,
    choice: Mutex<Random>,
    faulty: AtomicBool,
    stop: AtomicBool,
    hanging: Mutex<Vec<TcpStream>>,
}

struct Request {
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

impl Receiver {
    pub fn start(law: &Arc<Law>, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let numbering = Numbering::OverRuns("webhook".to_owned());
        let shared = Arc::new(Shared {
            reader: Mutex::new(Reader::new("webhook", law, numbering)),
            accepted: Mutex::default(),
            sent: Mutex::default(),
            choice: Mutex::new(Random::new(seed)),
            faulty: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            hanging: Mutex::default(),
        });
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.stop.load(Ordering::SeqCst) {
                    return;
                }
                let serving = serving.clone();
                // The agent may be killed in the middle of a request.
                thread::spawn(move || stream.and_then(|stream| serving.serve(stream)));
            }
        });
        Self { url: format!("http://{address}/hook"), address, shared }
    }

    pub fn reader(&self) -> MutexGuard<'_, Reader> {
        lock(&self.shared.reader)
    }

    /// From now on it fails at random, or never. Requests that hang are answered by a reset when it heals.
    pub fn set_faulty(&self, faulty: bool) {
        self.shared.faulty.store(faulty, Ordering::SeqCst);
        if !faulty {
            self.shared.release();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.release();
        // Ends the wait for the next connection.
        drop(TcpStream::connect(self.address));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn release(&self) {
        for stream in lock(&self.hanging).drain(..) {
            // The client may have given up.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Half of the requests are accepted, so that the delays between attempts stay short.
    fn choose(&self) -> Behaviour {
        let mut choice = lock(&self.choice);
        if choice.once_in(2) { Behaviour::Accept } else { *choice.pick(&FAULTS) }
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let request = read(&mut stream)?;
            let is_faulty = self.faulty.load(Ordering::SeqCst);
            let behaviour = if is_faulty { self.choose() } else { Behaviour::Accept };
            self.check(&request);
            if matches!(behaviour, Behaviour::Accept | Behaviour::AcceptAndReset) {
                self.accept(&request);
            }
            let answer = match behaviour {
                Behaviour::Accept => "204 No Content\r\n".to_owned(),
                Behaviour::Fail(code) => format!("{code} Failed\r\nContent-Length: 0\r\n"),
                Behaviour::Later(code, seconds) => {
                    format!("{code} Later\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n")
                }
                Behaviour::Redirect(code) => {
                    format!("{code} Moved\r\nLocation: {ELSEWHERE}\r\nContent-Length: 0\r\n")
                }
                Behaviour::Hang => {
                    lock(&self.hanging).push(stream.get_ref().try_clone()?);
                    // It may have been healed before the connection was noted.
                    if !self.faulty.load(Ordering::SeqCst) {
                        self.release();
                    }
                    stream.read_exact(&mut [0])?;
                    return Ok(());
                }
                Behaviour::Reset | Behaviour::AcceptAndReset => return Ok(()),
            };
            stream.get_mut().write_all(format!("HTTP/1.1 {answer}\r\n").as_bytes())?;
        }
    }

    /// Every attempt is what the contract says, whether it is accepted or not.
    fn check(&self, request: &Request) {
        let key = request.header("idempotency-key").to_owned();
        let is_right = request.path == "/hook"
            && request.header("content-type").starts_with("application/json")
            && !key.is_empty();
        if !is_right {
            lock(&self.reader).wrong(&format!("a request for {}: {:?}", request.path, request.headers));
        }
        let mut sent = lock(&self.sent);
        let known = sent.entry(key.clone()).or_insert_with(|| request.body.clone());
        if *known != request.body {
            lock(&self.reader).wrong(&format!("the key {key} has two bodies"));
        }
    }

    fn accept(&self, request: &Request) {
        let key = request.header("idempotency-key").to_owned();
        let text = String::from_utf8_lossy(&request.body).into_owned();
        // A repetition of what was accepted already.
        if lock(&self.accepted).insert(key.clone(), request.body.clone()).is_some() {
            return;
        }
        let mut reader = lock(&self.reader);
        let (stream, seq) = key.rsplit_once('-').unwrap_or_default();
        if !reader.is_of(stream) {
            reader.begin(&format!("the run of {key}"));
            reader.of(stream);
        }
        let last = reader.last;
        reader.take(text.trim_end());
        if reader.last.map(|seq| seq.to_string()).as_deref() != Some(seq) || reader.last <= last {
            reader.wrong(&format!("after number {last:?} came {:?} with the key {key}", reader.last));
        }
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Request> {
    let first = line(stream)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line(stream)?.split_once(':') {
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let mut request = Request { path, headers, body: Vec::new() };
    if request.header("transfer-encoding") == "chunked" {
        loop {
            let size = usize::from_str_radix(&line(stream)?, 16).map_err(io::Error::other)?;
            take(stream, size, &mut request.body)?;
            line(stream)?;
            if size == 0 {
                return Ok(request);
            }
        }
    }
    let size = request.header("content-length").parse().unwrap_or(0);
    take(stream, size, &mut request.body)?;
    Ok(request)
}

fn take(stream: &mut BufReader<TcpStream>, size: usize, body: &mut Vec<u8>) -> io::Result<()> {
    let begin = body.len();
    body.resize(begin + size, 0);
    stream.read_exact(&mut body[begin..])
}

fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
