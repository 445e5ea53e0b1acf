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

/// The variable with the directory of the programs, which `tests/run` sets.
const VARIABLE: &str = "PODMUX_KUBERNETES";

/// The timeout of a command, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// The path of a program; none if this run has no such programs.
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

/// Reports that a test cannot run here; in CI that is a failure. It writes past the test harness,
/// which shows the output of failed tests only.
pub fn not_tested(why: &str) {
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "NOT TESTED: {why}");
    io::stderr().write_all(format!("NOT TESTED: {why}\n").as_bytes()).unwrap();
}

/// A program that answers each line with a line.
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
        assert!(read > 0, "the program ended without an answer; see its stderr");
        line
    }
}

impl Drop for Talk {
    /// Closes the program's stdin, which ends it.
    fn drop(&mut self) {
        self.stdin = None;
        self.child.wait().unwrap();
    }
}

/// A kube-apiserver of this test run.
pub struct Apiserver {
    /// The URLs and tokens of the server.
    pub at: At,
    talk: Mutex<Talk>,
}

/// The output of the program when the server is ready.
#[derive(Deserialize)]
pub struct At {
    /// The URL, without a slash at the end.
    pub url: String,
    /// A cluster admin's kubeconfig, as `kubectl config` writes it.
    pub kubeconfig: PathBuf,
    /// A cluster admin's token.
    pub token: String,
    /// The token of the kubelet of the node `node1`.
    pub node_token: String,
    /// A token without permissions.
    pub nobody_token: String,
    /// The certificate to trust.
    pub ca: PathBuf,
}

/// A connection to an apiserver.
pub type Tls = Connection<StreamOwned<ClientConnection, TcpStream>>;

impl At {
    /// Connects with a token.
    pub fn connect(&self, token: &str) -> io::Result<Tls> {
        self.connect_with(token, "")
    }

    /// The same, with more headers in each request, as whole lines.
    pub fn connect_with(&self, token: &str, more: &str) -> io::Result<Tls> {
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
        let headers = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n{more}");
        Ok(Connection::over(StreamOwned::new(session, stream), headers))
    }
}

impl Apiserver {
    /// Starts a server for one test, which may stop it.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a server for one test with flags of kube-apiserver.
    pub fn start_with(flags: &[&str]) -> Option<Self> {
        let mut talk = Talk::start(Command::new(program("apiserver")?).arg("--").args(flags));
        let at = serde_json::from_str(&talk.answer()).unwrap();
        Some(Self { at, talk: Mutex::new(talk) })
    }

    /// The server that tests share, each with its own namespaces. It ends with the test
    /// binary, which holds its stdin.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Apiserver>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// Runs a command of `tests/kubernetes/README.md`: `stop`, `start`, `kill`, `token node`,
    /// `compact`, `snapshot`, …
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

    /// Asks one question and returns the answer.
    pub fn ask(&mut self, question: &Value) -> Value {
        self.0.say(&question.to_string());
        serde_json::from_str(&self.0.answer()).unwrap()
    }
}

/// client-go's informer of all pods of a server.
pub struct Mirror(Talk);

impl Mirror {
    /// Starts it, with or without client-go's WatchList, and waits for its first listing.
    pub fn start(server: &str, has_watch_list: bool) -> Option<Self> {
        let mut command = Command::new(program("mirror")?);
        command.args(["--server", server]).env("KUBE_FEATURE_WatchListClient", has_watch_list.to_string());
        let mut mirror = Self(Talk::start(&mut command));
        mirror.store();
        Some(mirror)
    }

    /// What its store holds.
    pub fn store(&mut self) -> Value {
        self.0.say("");
        serde_json::from_str(&self.0.answer()).unwrap()
    }
}

/// client-go, which works on one pod after the other.
pub struct Worker(Talk);

impl Worker {
    /// Starts it. It accepts these media types and sends the first of them; client-go's defaults if there is none.
    pub fn start(server: &str, form: &str) -> Option<Self> {
        let mut command = Command::new(program("mirror")?);
        command.args(["--work", "--server", server, "--form", form]);
        Some(Self(Talk::start(&mut command)))
    }

    /// Creates, reads, changes, lists and deletes a pod, and returns what the server answered.
    pub fn work(&mut self, pod: &Value) -> Value {
        self.0.say(&pod.to_string());
        serde_json::from_str(&self.0.answer()).unwrap()
    }
}

/// kubectl of the kube-apiserver's version.
pub fn kubectl() -> Option<PathBuf> {
    program("kubectl")
}

/// The table that `gotypes` generates.
pub fn go_types() -> Option<String> {
    let output = Command::new(program("gotypes")?).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "gotypes: {}", output.status);
    Some(String::from_utf8(output.stdout).unwrap())
}
