//! An agent's server that answers as a test tells it to, on a Unix socket.

use std::{
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

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `GET /pods?limit=500`
    pub line: String,
    /// The headers, one a line, names in lower case.
    pub headers: String,
    pub body: Vec<u8>,
}

/// What is answered: a status code, further headers, the body.
#[derive(Clone, Debug)]
pub struct Reply(pub u16, pub Vec<(&'static str, String)>, pub String);

impl Reply {
    pub fn json(code: u16, body: &serde_json::Value) -> Self {
        Self(code, vec![("content-type", "application/json".to_owned())], body.to_string())
    }

    /// A Status as the API writes it.
    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        let status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        Self::json(code, &status)
    }
}

/// The double. It stops when it is dropped.
pub struct Agent {
    dir: TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts one; `answer` is given each request, and how many came before it.
    pub fn start(answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (heard, stopped) = (asked.clone(), stop.clone());
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // A client that has gone away is no concern of the server.
                let _ = serve(stream.unwrap(), &heard, &answer);
            }
        });
        Self { dir, asked, stop, thread: Some(thread) }
    }

    /// `podmux` with these arguments, told where this agent is.
    pub fn podmux(&self, args: &[&str]) -> Command {
        let mut command = podmux(args);
        command.env("PODMUX_SERVER", self.server());
        command
    }

    /// Where it is.
    pub fn server(&self) -> String {
        format!("unix:{}", self.dir.path().join("s").display())
    }

    /// What was asked so far.
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
        // Wakes whoever waits for the next one.
        drop(UnixStream::connect(self.dir.path().join("s")));
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the double panicked");
    }
}

/// One request a connection.
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
    for (name, value) in headers {
        head.extend([name, ": ", &value, "\r\n"]);
    }
    let mut stream = stream;
    stream.write_all((head + "\r\n" + &body).as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}
