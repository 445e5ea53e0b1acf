//! A fake agent on a Unix socket: a test scripts its responses, and its errors are those of the real server.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use tempfile::TempDir;

use super::process::podmux;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `GET /pods?limit=500`
    pub line: String,
    /// The headers, one a line, names in lower case.
    pub headers: String,
    pub body: Vec<u8>,
}

/// A response: status code, headers, body.
#[derive(Clone, Debug)]
pub struct Reply(pub u16, Vec<(String, String)>, String);

impl Reply {
    pub fn text(code: u16, body: impl Into<String>) -> Self {
        Self(code, Vec::new(), body.into())
    }

    pub fn json(code: u16, body: &serde_json::Value) -> Self {
        Self::text(code, body.to_string()).header("content-type", "application/json")
    }

    /// A response of the real server, from its golden file.
    pub fn golden(name: &str) -> Self {
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (head, body) = text.split_once("\n\n").unwrap();
        let mut lines = head.lines();
        let reply = Self::text(lines.next().unwrap().parse().unwrap(), body);
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        headers.fold(reply, |reply, (name, value)| reply.header(name, value))
    }

    /// The response with another text in its body, such as the name of a pod.
    pub fn with(mut self, old: &str, new: &str) -> Self {
        assert!(self.2.contains(old), "no {old:?} in {}", self.2);
        self.2 = self.2.replace(old, new);
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.1.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The fake agent. It stops when it is dropped.
pub struct Agent {
    dir: TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent. `answer` gets each request and the number of requests before it.
    pub fn start(answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped) = (asked.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // A client may disconnect early.
                let _ = serve(stream.unwrap(), &seen, &answer);
            }
        });
        Self { dir, asked, stop, thread: Some(thread) }
    }

    /// `podmux` with these arguments and the address of this agent.
    pub fn podmux(&self, args: &[&str]) -> Command {
        let mut command = podmux(args);
        command.env("PODMUX_SERVER", self.server());
        command
    }

    /// The address.
    pub fn server(&self) -> String {
        format!("unix:{}", self.dir.path().join("s").display())
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The request lines so far, one a line.
    pub fn lines(&self) -> String {
        self.asked().iter().map(|asked| asked.line.clone() + "\n").collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Ends the wait for the next connection.
        drop(UnixStream::connect(self.dir.path().join("s")));
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the fake agent panicked");
    }
}

/// Serves one request per connection.
fn serve(
    stream: UnixStream,
    asked: &Mutex<Vec<Asked>>,
    answer: &impl Fn(&Asked, usize) -> Reply,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let line = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let (mut headers, mut length) = (String::new(), 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = header.trim_end().split_once(':') {
            let name = name.to_lowercase();
            if name == "content-length" {
                length = value.trim().parse().unwrap();
            }
            headers.extend([&*name, ":", value, "\n"]);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request = Asked { line, headers, body };
    let before = asked.lock().unwrap().len();
    asked.lock().unwrap().push(request.clone());
    let Reply(code, headers, body) = answer(&request, before);
    let mut head = format!("HTTP/1.1 {code} -\r\nconnection: close\r\n");
    for (name, value) in &headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    let mut stream = stream;
    stream.write_all((head + "\r\n" + &body).as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}
