//! The Go programs of `tests/kubernetes/`: a real kube-apiserver, and the kubelet's own code.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde::Deserialize;
use serde_json::Value;

use super::plain::Connection;

/// Where the programs are, as `tests/run` says it.
const VARIABLE: &str = "PODMUX_KUBERNETES";

/// Longer than a real apiserver takes for anything, on a machine under load.
const PATIENCE: Duration = Duration::from_mins(2);

/// The path of a program, or nothing if this run has none.
fn program(name: &str) -> Option<PathBuf> {
    if let Some(directory) = env::var_os(VARIABLE) {
        let path = PathBuf::from(directory).join(name);
        assert!(path.is_file(), "{VARIABLE}: there is no {}", path.display());
        return Some(path);
    }
    not_tested(&format!(
        "{name} is not there. Use tests/run, or {VARIABLE}=$(tests/kubernetes/build) cargo test"
    ));
    None
}

/// Says past the harness, which would show it for failed tests only, that a test
/// cannot run here. In CI that is a failure.
pub fn not_tested(why: &str) {
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "NOT TESTED: {why}");
    io::stderr().write_all(format!("NOT TESTED: {why}\n").as_bytes()).unwrap();
}

/// A program that answers a line for a line.
struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Talk {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line).unwrap();
        assert!(read > 0, "it ended before it answered; its stderr says why");
        line
    }
}

impl Drop for Talk {
    /// It ends when its stdin does.
    fn drop(&mut self) {
        self.stdin = None;
        self.child.wait().unwrap();
    }
}

/// A kube-apiserver of this test run.
pub struct Apiserver {
    /// Where and how it is reached.
    pub at: At,
    talk: Mutex<Talk>,
}

/// What it says when it is ready.
#[derive(Deserialize)]
pub struct At {
    /// Without a slash at the end.
    pub url: String,
    /// A cluster admin's, as `kubectl config` writes it.
    pub kubeconfig: PathBuf,
    /// A cluster admin's.
    pub token: String,
    /// The kubelet's of the node `node1`.
    pub node_token: String,
    /// Of somebody who may do nothing.
    pub nobody_token: String,
    /// The certificate to trust.
    pub ca: PathBuf,
}

/// A connection to an apiserver.
pub type Tls = Connection<StreamOwned<ClientConnection, TcpStream>>;

impl At {
    /// A connection as whoever has this token.
    pub fn connect(&self, token: &str) -> io::Result<Tls> {
        let address = self.url.trim_start_matches("https://");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(Arc::new(config), server).unwrap();
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let headers = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
        Ok(Connection::over(StreamOwned::new(session, stream), headers))
    }
}

impl Apiserver {
    /// One of its own for a test that stops it.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same with flags of kube-apiserver's own.
    pub fn start_with(flags: &[&str]) -> Option<Self> {
        let mut talk = Talk::start(Command::new(program("apiserver")?).arg("--").args(flags));
        let at = serde_json::from_str(&talk.answer()).unwrap();
        Some(Self { at, talk: Mutex::new(talk) })
    }

    /// The one that tests share, each in namespaces of its own. It ends with the
    /// test binary, which holds its stdin.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Apiserver>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// Has it do something: `stop`, `start`, `kill`, `token node`, `compact`, `snapshot`
    /// and what else stands in `tests/kubernetes/README.md`.
    pub fn command(&self, command: &str) -> Value {
        let mut talk = self.talk.lock().unwrap();
        talk.say(command);
        serde_json::from_str(&talk.answer()).unwrap()
    }
}

/// The kubelet's own code.
pub struct Oracle(Talk);

impl Oracle {
    pub fn start() -> Option<Self> {
        Some(Self(Talk::start(&mut Command::new(program("oracle")?))))
    }

    /// Its answer to one question.
    pub fn ask(&mut self, question: &Value) -> Value {
        self.0.say(&question.to_string());
        serde_json::from_str(&self.0.answer()).unwrap()
    }
}

/// The table that `gotypes` generates.
pub fn go_types() -> Option<String> {
    let output = Command::new(program("gotypes")?).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "gotypes: {}", output.status);
    Some(String::from_utf8(output.stdout).unwrap())
}
