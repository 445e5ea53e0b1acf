//! A relay between an agent and a podman that sees each request, and answers some of them in podman's place.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::json;
use tempfile::TempDir;

use super::{podman::Podman, process::wait_for};

/// How a request is answered.
pub enum Answer {
    /// By podman.
    Podmans,
    /// By podman, when this has become true.
    Later(Arc<AtomicBool>),
    /// With this body.
    Body(String),
    /// It is refused, with these words.
    Refused(&'static str),
    /// With a stream in which nothing comes until it is broken.
    Silence,
}

type Script = Box<dyn FnMut(&str) -> Answer + Send>;

/// The relay. Its threads end with the test binary.
pub struct PodmanRelay {
    directory: TempDir,
    asked: Arc<Mutex<Vec<String>>>,
    silent: Arc<Mutex<Vec<UnixStream>>>,
}

impl PodmanRelay {
    /// A relay to a podman. The script gets the method and the path of each request.
    pub fn to(podman: &Podman, script: impl FnMut(&str) -> Answer + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let (asked, silent) =
            (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<UnixStream>>>::default());
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let (see, target, streams) = (asked.clone(), podman.socket(), silent.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (see, script, target) = (see.clone(), script.clone(), target.clone());
                let streams = streams.clone();
                // Broken connections are expected.
                thread::spawn(move || drop(serve(&stream.unwrap(), &target, &see, &script, &streams)));
            }
        });
        Self { directory, asked, silent }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// The requests so far: their methods and paths.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Breaks the streams in which nothing comes.
    pub fn break_silence(&self) {
        for stream in self.silent.lock().unwrap().drain(..) {
            // It may be broken already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(
    near: &UnixStream,
    target: &Path,
    see: &Mutex<Vec<String>>,
    script: &Mutex<Script>,
    silent: &Mutex<Vec<UnixStream>>,
) -> io::Result<()> {
    let far = UnixStream::connect(target)?;
    let (mut answers, mut to_near) = (far.try_clone()?, near.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut answers, &mut to_near);
        let _ = to_near.shutdown(Shutdown::Both);
    });
    let mut requests = BufReader::new(near);
    while let Some((request, whole)) = read(&mut requests)? {
        let answer = script.lock().unwrap()(&request);
        see.lock().unwrap().push(request);
        // The agent sends a request when it has the whole answer to the one before.
        let mut near = near;
        match answer {
            Answer::Podmans => (&far).write_all(&whole)?,
            Answer::Later(is_time) => {
                wait_for(|| is_time.load(Ordering::SeqCst).then_some(()));
                (&far).write_all(&whole)?;
            }
            Answer::Body(body) => {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ";
                write!(near, "{head}{}\r\n\r\n{body}", body.len())?;
            }
            Answer::Refused(words) => {
                let body = json!({"message": words}).to_string();
                let head = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: ";
                write!(near, "{head}{}\r\n\r\n{body}", body.len())?;
            }
            Answer::Silence => {
                silent.lock().unwrap().push(near.try_clone()?);
                near.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            }
        }
    }
    far.shutdown(Shutdown::Both)
}

/// The next request, if there is one: its method and path, and all of it.
fn read(requests: &mut BufReader<&UnixStream>) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut whole, mut length) = (String::new(), 0);
    loop {
        let begin = whole.len();
        if requests.read_line(&mut whole)? == 0 {
            return Ok(None);
        }
        let line = whole[begin..].trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let request = whole.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    let mut whole = whole.into_bytes();
    requests.take(length).read_to_end(&mut whole)?;
    Ok(Some((request, whole)))
}
