//! Sockets that systemd passes: served beside the agent's own, and a restart under load loses no request.

use std::{
    fs::{self, Permissions},
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{MetadataExt as _, PermissionsExt as _},
            net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use expect_test::expect;
use rustix::process::Signal;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    activated::{activated, activated_for},
    cluster::kubeconfig,
    plain::Connection,
    process::{PATIENCE, Process, podmux, wait_for},
    web::Authority,
};

/// A directory with a listening socket, as systemd creates it for a socket unit.
struct Unit {
    dir: TempDir,
    listener: UnixListener,
}

impl Unit {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("podmux.sock")).unwrap();
        Self { dir, listener }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn path(&self) -> PathBuf {
        self.at("podmux.sock")
    }

    fn fd(&self) -> OwnedFd {
        self.listener.try_clone().unwrap().into()
    }

    /// The agent with its state in the directory, and with the http source only.
    fn command(&self, args: &[&str]) -> Command {
        let state = self.at("state");
        let mut command = podmux(&["run", "--node-name", "node1"]);
        command.env("PODMUX_STATE_DIR", state).args(args);
        command
    }

    fn start(&self, args: &[&str]) -> Process {
        Process::start(&mut activated(&self.command(args), [self.fd()]))
    }

    /// The agent with another socket in the directory, for requests of the test.
    fn start_watched(&self, args: &[&str]) -> Process {
        let listen = format!("unix:{}", self.at("own.sock").display());
        let agent = self.start(&[&["--listen", &listen], args].concat());
        agent.logs("started");
        agent
    }

    /// Waits until so many connections are open, without the one of this request.
    fn has_connections(&self, wanted: usize) {
        wait_for(|| {
            let metrics = own(self, "GET", "/metrics").1;
            let open = metrics.lines().find_map(|line| line.strip_prefix("podmux_connections "))?;
            (open.parse::<usize>().unwrap() == wanted + 1).then_some(())
        });
    }

    /// The pods of the next agent at the socket.
    fn pods(&self) -> Vec<String> {
        let mut names = names(&mut Connection::unix(&self.path()).unwrap());
        names.sort();
        names
    }
}

fn names(connection: &mut Connection) -> Vec<String> {
    let list = connection.ask("GET", "/pods", b"").unwrap().json();
    let items = list["items"].as_array().unwrap();
    items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn ask(path: &Path, method: &str, what: &str) -> (u16, String) {
    let answer = Connection::unix(path).unwrap().ask(method, what, b"").unwrap();
    (answer.code, answer.text())
}

fn own(unit: &Unit, method: &str, what: &str) -> (u16, String) {
    ask(&unit.at("own.sock"), method, what)
}

fn over_tcp(address: std::net::SocketAddr, what: &str) -> u16 {
    let stream = TcpStream::connect(address).unwrap();
    Connection::over(stream, "Host: localhost\r\n".to_owned()).ask("GET", what, b"").unwrap().code
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "registry.example/i:1"}]},
    })
}

/// A POST as bytes, without a header that closes the connection.
fn post(name: &str) -> Vec<u8> {
    let body = pod(name).to_string();
    format!(
        "POST /pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Everything that the server sends until it closes the connection.
fn rest(mut stream: impl io::Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Waits for the end of an agent that received SIGTERM.
fn ends(agent: Process) -> String {
    let (code, log) = agent.ends();
    assert_eq!((code, log.lines().last().unwrap().ends_with("stopped")), (0, true), "{log}");
    log
}

/// The error of an agent that does not start, with the directory as `DIR`.
fn refusal(unit: &Unit, mut command: Command) -> String {
    let (code, log) = Process::start(&mut command).ends();
    assert_eq!((code, log.lines().count()), (2, 1), "{log}");
    log.replace(unit.dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn a_passed_socket_is_served_with_listen_none_and_remains_after_the_agent() {
    let unit = Unit::new();
    let inode = fs::metadata(unit.path()).unwrap().ino();
    for _ in 0..2 {
        let agent = unit.start(&["--listen", "none"]);
        assert_eq!(ask(&unit.path(), "GET", "/livez").0, 200);
        agent.logs(&format!("listening, passed by systemd address=unix:{}", unit.path().display()));
        let sources = ask(&unit.path(), "GET", "/sources").1;
        assert!(sources.contains("posted pods, stored"), "{sources}");
        agent.signal(Signal::TERM);
        ends(agent);
        assert_eq!(fs::metadata(unit.path()).unwrap().ino(), inode);
    }
}

#[test]
fn a_socket_that_all_users_can_use_is_a_warning() {
    let unit = Unit::new();
    for (mode, remarks) in [(0o666, 1), (0o660, 0)] {
        fs::set_permissions(unit.path(), Permissions::from_mode(mode)).unwrap();
        let agent = unit.start(&["--listen", "none"]);
        agent.logs("started");
        agent.signal(Signal::TERM);
        let log = ends(agent);
        assert_eq!(
            log.matches("all users can connect to this socket: set SocketMode=0660").count(),
            remarks,
            "{log}"
        );
    }
}

#[test]
fn several_passed_sockets_are_served_beside_the_agents_own() {
    let unit = Unit::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("unix:{}", unit.at("own.sock").display());
    let command = unit.command(&["--anonymous-auth", "--listen", &listen]);
    let agent = Process::start(&mut activated(&command, [unit.fd(), tcp.try_clone().unwrap().into()]));
    agent.logs("started");
    assert_eq!(ask(&unit.path(), "GET", "/livez").0, 200);
    assert_eq!(over_tcp(tcp.local_addr().unwrap(), "/livez"), 200);
    assert_eq!(own(&unit, "GET", "/livez").0, 200);
    agent.signal(Signal::TERM);
    let log = ends(agent);
    assert_eq!(log.matches("listening, passed by systemd").count(), 2, "{log}");
    assert_eq!(log.matches(" listening address=").count(), 1, "{log}");
    assert!(unit.path().exists() && !unit.at("own.sock").exists());
}

#[test]
fn an_address_of_a_passed_socket_is_not_bound_again() {
    let unit = Unit::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let same = format!("unix:{}", unit.path().display());
    let args = ["--anonymous-auth", "--listen", &address.to_string(), "--listen", &same];
    let command = unit.command(&args);
    let agent = Process::start(&mut activated(&command, [unit.fd(), tcp.try_clone().unwrap().into()]));
    agent.logs("started");
    assert_eq!((over_tcp(address, "/livez"), ask(&unit.path(), "GET", "/livez").0), (200, 200));
    agent.signal(Signal::TERM);
    let log = ends(agent);
    assert_eq!(log.matches("listening, passed by systemd").count(), 2, "{log}");
    assert!(!log.contains(" listening address="), "{log}");
}

/// `ListenStream=10240` creates a socket for all addresses, IPv4 included.
#[test]
fn a_passed_socket_for_all_addresses_replaces_ours_and_needs_tls_and_a_token() {
    let unit = Unit::new();
    let tcp = TcpListener::bind("[::]:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let fd = || OwnedFd::from(tcp.try_clone().unwrap());
    let ours = format!("127.0.0.1:{}", address.port());
    let message = |args: &[&str]| {
        let message = refusal(&unit, activated(&unit.command(args), [fd()]));
        message.replace(&address.port().to_string(), "PORT")
    };
    let stateless = ["--state-dir", "none", "--listen", "none"];
    assert_eq!(message(&stateless[..2]), message(&stateless));
    expect!["podmux: systemd passed the socket [::]:PORT (podmux.socket): it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or write a path in ListenStream= of the .socket unit"].assert_eq(&message(&stateless));
    expect!["podmux: systemd passed the socket [::]:PORT (podmux.socket): other machines can reach it, and --anonymous-auth is for loopback only: leave that out; or write a path in ListenStream= of the .socket unit"].assert_eq(&message(&["--anonymous-auth", "--listen", &ours]));
    let authority = Authority::new(unit.dir.path(), "ca");
    let (cert, key) = authority.server_files("localhost");
    let tls = ["--tls-cert-file", cert.to_str().unwrap(), "--tls-private-key-file", key.to_str().unwrap()];
    expect!["podmux: systemd passed the socket [::]:PORT (podmux.socket): it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or write a path in ListenStream= of the .socket unit"].assert_eq(&message(&[&tls[..], &stateless].concat()));
    fs::write(unit.at("token"), "a-token-that-is-long-enough").unwrap();
    let token = unit.at("token");
    let args = [&tls[..], &["--listen", &ours, "--token-file", token.to_str().unwrap()]].concat();
    let agent = Process::start(&mut activated(&unit.command(&args), [fd()]));
    agent.logs("started");
    agent.signal(Signal::TERM);
    let log = ends(agent);
    assert!(!log.contains(" listening address="), "{log}");
}

#[test]
fn a_passed_descriptor_that_is_not_a_listening_stream_socket_is_an_error() {
    let unit = Unit::new();
    let message = |fd: OwnedFd| refusal(&unit, activated(&unit.command(&[]), [fd]));
    let datagrams = UnixDatagram::bind(unit.at("datagrams")).unwrap();
    expect!["podmux: systemd passed fd 3 (podmux.socket), which is a datagram socket: write ListenStream= in the .socket unit, and no other Listen…="]
        .assert_eq(&message(datagrams.into()));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(message(udp.into()).contains("which is a datagram socket: write ListenStream="));
    let (pipe, _writer) = io::pipe().unwrap();
    expect!["podmux: systemd passed fd 3 (podmux.socket), which is not a stream socket: write ListenStream= in the .socket unit, and no other Listen…="]
        .assert_eq(&message(pipe.into()));
    assert!(message(fs::File::open("/dev/null").unwrap().into()).contains("is not a stream socket"));
    let (connection, _other) = UnixStream::pair().unwrap();
    expect!["podmux: systemd passed fd 3 (podmux.socket), which is a connection, not a listening socket: write Accept=no in the .socket unit"]
        .assert_eq(&message(connection.into()));
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    assert!(message(connection.into()).contains("which is a connection"));
    let name = unit.at("abstract");
    let name = SocketAddr::from_abstract_name(name.to_str().unwrap()).unwrap();
    let without_file = UnixListener::bind_addr(&name).unwrap();
    expect!["podmux: systemd passed fd 3 (podmux.socket), which is an abstract socket: it has no owner and no mode, so every user of this machine could connect; write a path in ListenStream= of the .socket unit"]
        .assert_eq(&message(without_file.into()));
    // The second of two is found, too.
    let (pipe, _writer) = io::pipe().unwrap();
    let both = refusal(&unit, activated(&unit.command(&[]), [unit.fd(), pipe.into()]));
    assert!(both.contains("systemd passed fd 4 (podmux.socket), which is not a stream socket"), "{both}");
}

#[test]
fn sockets_for_another_process_are_ignored() {
    let unit = Unit::new();
    for pid in ["1", "", "me"] {
        let message = refusal(&unit, activated_for(&unit.command(&["--listen", "none"]), pid, [unit.fd()]));
        assert!(message.contains("no source of pods"), "{message}");
    }
}

#[test]
fn a_reload_does_not_change_passed_sockets() {
    let unit = Unit::new();
    let agent = unit.start_watched(&[]);
    agent.signal(Signal::HUP);
    agent.logs("settings reloaded");
    assert_eq!(ask(&unit.path(), "GET", "/livez").0, 200);
    assert_eq!(own(&unit, "GET", "/livez").0, 200);
    agent.signal(Signal::TERM);
    let log = ends(agent);
    assert!(!log.contains("restart"), "{log}");
}

/// A child process cannot notify systemd for the agent, and has none of its sockets.
#[test]
fn a_credential_plugin_inherits_nothing_that_systemd_passed() {
    let unit = Unit::new();
    let inode = |path: &Path| fs::read_link(path).unwrap();
    let ours =
        inode(Path::new(&format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unit.listener))));
    let script = format!(
        "cd '{}'; export -p > said; for fd in /proc/self/fd/*; do readlink $fd; done > fds; mv said heard; exit 1",
        unit.dir.path().display()
    );
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script],
        "interactiveMode": "Never",
    });
    let server = json!({"server": "https://127.0.0.1:1"});
    let kubeconfig = kubeconfig(unit.dir.path(), &server, &json!({"exec": exec}));
    let mut command = unit.command(&["--listen", "none", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    command.env("PATH", "/usr/bin:/bin").env("SEEN", "yes");
    for name in ["NOTIFY_SOCKET", "WATCHDOG_PID"] {
        command.env(name, "/nonexistent");
    }
    let agent = Process::start(&mut activated(&command, [unit.fd()]));
    let heard = wait_for(|| fs::read_to_string(unit.at("heard")).ok());
    assert!(heard.contains("SEEN"), "{heard}");
    for name in ["LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_"] {
        assert!(!heard.contains(name), "{heard}");
    }
    let fds = fs::read_to_string(unit.at("fds")).unwrap();
    assert!(fds.lines().all(|fd| Path::new(fd) != ours), "{fds}");
    agent.signal(Signal::TERM);
    ends(agent);
}

#[test]
fn an_accepted_connection_without_a_request_yet_is_answered() {
    let unit = Unit::new();
    let agent = unit.start_watched(&[]);
    let (mut silent, mut half) = (connect(&unit.path()), connect(&unit.path()));
    let request = post("half");
    half.write_all(&request[..10]).unwrap();
    unit.has_connections(2);
    agent.signal(Signal::TERM);
    agent.logs("stopping");
    silent.write_all(&post("silent")).unwrap();
    half.write_all(&request[10..]).unwrap();
    for stream in [silent, half] {
        let answer = rest(stream);
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    ends(agent);
    let agent = unit.start(&["--listen", "none"]);
    assert_eq!(unit.pods(), ["half", "silent"]);
    agent.signal(Signal::TERM);
    ends(agent);
}

/// TCP with TLS: connections whose handshake has not begun, or is half done.
#[test]
fn a_pending_handshake_is_completed_and_its_request_answered() {
    let unit = Unit::new();
    let authority = Authority::new(unit.dir.path(), "ca");
    let (cert, key) = authority.server_files("localhost");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("unix:{}", unit.at("own.sock").display());
    let token = unit.at("token");
    fs::write(&token, "a-token").unwrap();
    let command = unit.command(&[
        "--shutdown-grace",
        "1h",
        "--listen",
        &listen,
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-private-key-file",
        key.to_str().unwrap(),
        "--token-file",
        token.to_str().unwrap(),
    ]);
    let agent = Process::start(&mut activated(&command, [tcp.try_clone().unwrap().into()]));
    agent.logs("started");
    let clients = ["late", "half", "silent"].map(|name| {
        let mut stream = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hello = Vec::new();
        let mut client = tls_client(&authority);
        client.write_tls(&mut hello).unwrap();
        let begun = if name == "half" { hello.len() / 2 } else { 0 };
        stream.write_all(&hello[..begun]).unwrap();
        (name, stream, client, hello.split_off(begun))
    });
    unit.has_connections(3);
    agent.signal(Signal::TERM);
    agent.logs("stopping");
    let [late, half, (_, silent, ..)] = clients;
    let pending = [late, half];
    // Each of them has a second from the stop on: none waits for the handshake of the other.
    for (_, stream, _, rest) in &pending {
        (&*stream).write_all(rest).unwrap();
    }
    let connections = pending.map(|(name, mut stream, mut client, _)| {
        while client.is_handshaking() {
            client.complete_io(&mut stream).unwrap();
        }
        (name, rustls::StreamOwned::new(client, stream))
    });
    for (name, stream) in connections {
        let headers = "Host: localhost\r\nAuthorization: Bearer a-token\r\n".to_owned();
        let mut connection = Connection::over(stream, headers);
        let answer = connection.ask("POST", "/pods", pod(name).to_string().as_bytes()).unwrap();
        assert_eq!(answer.code / 100, 2, "{}", answer.text());
    }
    // It is given a second to begin, and no more.
    assert_eq!(rest(silent), "");
    let log = ends(agent);
    assert!(!log.contains("not all requests"), "{log}");
}

fn tls_client(trusts: &Authority) -> rustls::ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&trusts.ca_file).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    rustls::ClientConnection::new(Arc::new(config), name).unwrap()
}

/// A shutdown during a request: the request is finished first, and until then everything works.
#[test]
fn a_pending_request_is_finished_before_anything_else_ends() {
    let unit = Unit::new();
    let agent = unit.start_watched(&["--shutdown-grace", "1h"]);
    let part = post("ours").len() - 10;
    let (mut passed, mut ours) = (connect(&unit.path()), connect(&unit.at("own.sock")));
    for (stream, name) in [(&mut passed, "passed"), (&mut ours, "ours")] {
        stream.write_all(&post(name)[..part]).unwrap();
    }
    unit.has_connections(2);
    agent.signal(Signal::TERM);
    agent.logs("stopping");
    // Our own socket says so, and takes what it is given;
    let (code, text) = own(&unit, "GET", "/readyz?verbose");
    assert!(code == 503 && text.contains("the agent is shutting down"), "{text}");
    let meanwhile = Connection::unix(&unit.at("own.sock")).unwrap();
    let answer = { meanwhile }.ask("POST", "/pods", pod("meanwhile").to_string().as_bytes()).unwrap();
    assert_eq!(answer.code / 100, 2, "{}", answer.text());
    // the passed one keeps who comes for the next.
    let mut next = connect(&unit.path());
    next.write_all(&post("next")).unwrap();
    assert!(!own(&unit, "GET", "/pods").1.contains("\"next\""));
    ours.write_all(&post("ours")[part..]).unwrap();
    let mut status = [0; 10];
    ours.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 2");
    passed.write_all(&post("passed")[part..]).unwrap();
    let answer = rest(passed);
    assert!(answer.starts_with("HTTP/1.1 2") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    ends(agent);
    let agent = unit.start(&["--listen", "none"]);
    let mut reader = io::BufReader::new(&mut next);
    let mut status = String::new();
    io::BufRead::read_line(&mut reader, &mut status).unwrap();
    assert!(status.starts_with("HTTP/1.1 2"), "{status}");
    assert_eq!(unit.pods(), ["meanwhile", "next", "ours", "passed"]);
    drop(next);
    agent.signal(Signal::TERM);
    ends(agent);
}

#[test]
fn a_shutdown_closes_idle_connections_and_does_not_wait_for_streams() {
    let unit = Unit::new();
    let agent = unit.start_watched(&["--shutdown-grace", "1h"]);
    let mut idle = connect(&unit.path());
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 15];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    // This one is given a second to begin, and no more.
    let silent = connect(&unit.path());
    let mut stream = connect(&unit.path());
    stream.write_all(b"GET /updates HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.read_exact(&mut first).unwrap();
    unit.has_connections(3);
    agent.signal(Signal::TERM);
    // All ends come from the agent, and no answer is cut off.
    assert_eq!(rest(silent), "");
    let answer = rest(idle);
    assert!(!answer.contains("HTTP/1.1"), "{answer}");
    let updates = rest(stream);
    assert!(updates.contains("\"op\":\"SET\"") && updates.ends_with("\r\n0\r\n\r\n"), "{updates}");
    let log = ends(agent);
    assert!(!log.contains("not all requests"), "{log}");
}

#[test]
fn a_shutdown_waits_a_limited_time_for_a_request() {
    let unit = Unit::new();
    let agent = unit.start_watched(&["--shutdown-grace", "2s"]);
    let mut slow = connect(&unit.path());
    let request = post("slow");
    slow.write_all(&request[..request.len() - 10]).unwrap();
    unit.has_connections(1);
    agent.signal(Signal::TERM);
    agent.logs("requests unfinished when the sources stop");
    assert_eq!(agent.ends().0, 0);
}

/// The POSTs of a load, and their results.
struct Load<'a> {
    path: &'a Path,
    over: &'a AtomicBool,
    acknowledged: &'a Mutex<Vec<String>>,
    answered: &'a AtomicUsize,
}

impl Load<'_> {
    fn note(&self, name: String, answer: &crate::support::plain::Answer) {
        assert!((200..300).contains(&answer.code), "{name}: {} {}", answer.code, answer.text());
        self.acknowledged.lock().unwrap().push(name);
        self.answered.fetch_add(1, Ordering::SeqCst);
    }

    fn names(&self, client: &str) -> impl Iterator<Item = String> {
        let client = client.to_owned();
        (0..).map(move |count| format!("{client}-{count}")).take_while(|_| !self.over.load(Ordering::SeqCst))
    }

    /// Sends each request on its own connection, and asserts that each succeeds.
    fn on_new_connections(&self, client: &str) {
        for name in self.names(client) {
            let answer = Connection::unix(self.path).and_then(|mut connection| {
                connection.ask("POST", "/pods", pod(&name).to_string().as_bytes())
            });
            self.note(name, &answer.unwrap());
        }
    }

    /// Sends all requests on one connection. A request whose connection was closed before the
    /// first byte of its answer is sent again on another one.
    fn on_a_kept_connection(&self, client: &str) {
        let heard = Arc::new(AtomicUsize::new(0));
        let open = || {
            let stream = Counted { stream: connect(self.path), heard: heard.clone() };
            Connection::over(stream, "Host: localhost\r\n".to_owned())
        };
        let mut kept = (open(), false);
        for name in self.names(client) {
            loop {
                let before = heard.load(Ordering::SeqCst);
                match kept.0.ask("POST", "/pods", pod(&name).to_string().as_bytes()) {
                    Ok(answer) => {
                        self.note(name, &answer);
                        kept.1 = true;
                        break;
                    }
                    Err(error) => {
                        let unheard = before == heard.load(Ordering::SeqCst);
                        assert!(kept.1 && unheard, "{name}: {error}");
                        kept = (open(), false);
                    }
                }
            }
        }
    }

    /// The same where the agent may be killed: no connection is refused, and interrupted requests
    /// are sent again.
    fn until_answered(&self, client: &str) {
        for name in self.names(client) {
            loop {
                let mut connection = Connection::unix(self.path).expect("refused");
                if let Ok(answer) = connection.ask("POST", "/pods", pod(&name).to_string().as_bytes()) {
                    self.note(name, &answer);
                    break;
                }
            }
        }
    }
}

/// A connection that counts the bytes it receives.
struct Counted {
    stream: UnixStream,
    heard: Arc<AtomicUsize>,
}

impl io::Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.heard.fetch_add(count, Ordering::SeqCst);
        Ok(count)
    }
}

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Restarts the agent that many times while clients post to it, and then asserts that all
/// acknowledged pods exist.
fn restarted_under_load(restarts: usize, end: Signal, work: impl Fn(&Load<'_>, usize) + Sync) {
    let unit = Unit::new();
    let (over, acknowledged, answered) = (AtomicBool::new(false), Mutex::default(), AtomicUsize::new(0));
    let path = unit.path();
    let load = Load { path: &path, over: &over, acknowledged: &acknowledged, answered: &answered };
    let last = thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (load, work) = (&load, &work);
            scope.spawn(move || work(load, client));
        }
        for _ in 0..restarts {
            let agent = started_under(&unit, &answered);
            agent.signal(end);
            if end == Signal::TERM {
                ends(agent);
            } else {
                agent.ends();
            }
        }
        let last = started_under(&unit, &answered);
        over.store(true, Ordering::SeqCst);
        last
    });
    let there = unit.pods();
    let mut acknowledged = acknowledged.into_inner().unwrap();
    acknowledged.sort();
    assert_eq!(there, acknowledged);
    last.signal(Signal::TERM);
    ends(last);
}

/// Starts the agent, and waits until it has answered some requests.
fn started_under(unit: &Unit, answered: &AtomicUsize) -> Process {
    let before = answered.load(Ordering::SeqCst);
    let agent = unit.start(&["--listen", "none"]);
    wait_for(|| (answered.load(Ordering::SeqCst) > before + 5 * CLIENTS).then_some(()));
    agent
}

/// The number of clients, each on a thread.
const CLIENTS: usize = 12;

#[test]
fn a_restart_under_load_loses_no_request() {
    restarted_under_load(10, Signal::TERM, |load, client| match client {
        0..8 => load.on_new_connections(&format!("n{client}")),
        _ => load.on_a_kept_connection(&format!("k{client}")),
    });
}

#[test]
fn a_kill_under_load_refuses_no_connection_and_loses_no_acknowledged_pod() {
    restarted_under_load(10, Signal::KILL, |load, client| load.until_answered(&format!("u{client}")));
}
