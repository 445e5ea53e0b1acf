//! What the agent makes itself: the authority, the server's certificate, the tokens, and their renewal.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use axum::{Router, routing::get};
use jiff::Timestamp;
use podmux::{
    host::{Clock, Host},
    pod::NodeName,
    server::{Config, Generated, Limits, Listen, Server},
};
use rustix::process::geteuid;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use crate::support::{
    kubernetes::not_tested,
    logs::{Log, logged},
    served::{SOON, loopback, until},
    tls,
};

const FILES: [&str; 6] = ["ca.crt", "ca.key", "read-token", "server.crt", "server.key", "token"];
/// A day, in seconds.
const DAY: i64 = 24 * 3600;

/// A state directory and a clock.
struct Place {
    state: TempDir,
    clock: Arc<AtomicI64>,
}

/// A running server.
struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Place {
    fn new() -> Self {
        let now = Clock::default().now().as_second();
        Self { state: tempfile::tempdir().unwrap(), clock: Arc::new(AtomicI64::new(now)) }
    }

    fn auth(&self, name: &str) -> PathBuf {
        self.state.path().join("auth").join(name)
    }

    /// The files, once they are complete.
    async fn files(&self) -> BTreeMap<&'static str, String> {
        until("all files are made", || FILES.iter().all(|name| self.auth(name).exists())).await;
        FILES.map(|name| (name, fs::read_to_string(self.auth(name)).unwrap())).into()
    }

    async fn start(&self) -> Running {
        self.start_as("node1").await
    }

    async fn start_as(&self, node: &str) -> Running {
        let names = ["127.0.0.1", "localhost", node].map(str::to_owned).to_vec();
        let generated = Some(Generated { directory: self.state.path().join("auth"), names });
        let settings = Config { generated, anonymous: false, ..loopback() };
        let limits = Limits { reload: SOON / 10, ..Limits::default() };
        let server =
            Server::bind(&settings, Vec::new(), NodeName::new("node1").unwrap(), limits).await.unwrap();
        let clock = self.clock.clone();
        let clock = Clock::from_fn(move || Timestamp::from_second(clock.load(Ordering::SeqCst)).unwrap());
        let server = server.on(Host { clock, ..Host::default() });
        let Listen::Tcp(address) = server.addresses()[0] else { panic!() };
        let (stop, router) = (CancellationToken::new(), Router::new().route("/hello", get(async || "hello")));
        Running {
            address,
            stop: stop.clone(),
            task: tokio::spawn(server.run(router, stop.child_token(), stop)),
        }
    }

    /// The status of a request over TLS, with trust in the authority.
    async fn asks(&self, running: &Running, token: &str) -> u16 {
        self.asks_with(running, fs::read_to_string(self.auth(token)).unwrap()).await
    }

    /// The same with the text of a token.
    async fn asks_with(&self, running: &Running, token: String) -> u16 {
        let (address, ca) = (running.address.to_string(), self.auth("ca.crt"));
        spawn_blocking(move || tls::ask(&address, &ca, Some(&token), "GET", "/hello", "").code).await.unwrap()
    }

    fn set_clock(&self, seconds: i64) {
        self.clock.store(seconds, Ordering::SeqCst);
    }

    fn leaf(&self) -> Certificate {
        let der = CertificateDer::from_pem_file(self.auth("server.crt")).unwrap();
        Certificate::from_der(&der).unwrap()
    }

    fn expires(&self) -> i64 {
        self.leaf().tbs_certificate().validity().not_after.to_unix_duration().as_secs().try_into().unwrap()
    }

    /// Waits until the server's certificate is another one.
    async fn renewed(&self, before: &BTreeMap<&'static str, String>) {
        until("the certificate is renewed", || {
            fs::read_to_string(self.auth("server.crt")).is_ok_and(|text| text != before["server.crt"])
        })
        .await;
        let after = self.files().await;
        for name in ["ca.crt", "ca.key", "read-token", "token"] {
            assert_eq!(after[name], before[name], "{name} stays");
        }
    }
}

impl Running {
    async fn ends(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn everything_is_made_at_the_first_start_and_stays() {
    let place = Place::new();
    let running = place.start().await;
    let files = place.files().await;
    assert_eq!(mode(&place.auth("")), 0o700);
    for name in FILES {
        assert_eq!(mode(&place.auth(name)), 0o600, "{name}");
    }
    assert_ne!(files["token"], files["read-token"]);
    for token in ["token", "read-token"] {
        let text = &files[token];
        assert!(text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
        assert_eq!(place.asks(&running, token).await, 200);
    }
    running.ends().await;
    let running = place.start().await;
    assert_eq!(place.asks(&running, "token").await, 200);
    running.ends().await;
    assert_eq!(place.files().await, files);
    let count = fs::read_dir(place.auth("")).unwrap().count();
    assert_eq!(count, FILES.len(), "no temporary file is left");
}

#[tokio::test]
async fn the_certificate_is_renewed_when_a_third_of_its_life_is_left() {
    let place = Place::new();
    let running = place.start().await;
    let files = place.files().await;
    let start = place.clock.load(Ordering::SeqCst);
    assert!((363..=365).contains(&((place.expires() - start) / DAY)), "{}", place.expires());
    running.ends().await;
    // Two thirds, but not all of them.
    place.set_clock(start + 241 * DAY);
    let running = place.start().await;
    assert_eq!(place.asks(&running, "token").await, 200);
    assert_eq!(place.files().await, files);
    // While it runs.
    place.set_clock(start + 245 * DAY);
    place.renewed(&files).await;
    assert!((place.expires() - start) / DAY > 600);
    // The client's clock is the real one, at which the new certificate is valid, too.
    assert_eq!(place.asks(&running, "token").await, 200);
    running.ends().await;
}

/// A clock without a battery starts in 1970.
#[tokio::test]
async fn a_certificate_that_was_made_in_1970_is_renewed_when_the_clock_is_set() {
    let place = Place::new();
    let now = place.clock.load(Ordering::SeqCst);
    place.set_clock(60);
    let running = place.start().await;
    let files = place.files().await;
    assert!(place.expires() < 366 * DAY);
    place.set_clock(now);
    place.renewed(&files).await;
    wait_until_served(&place, &running).await;
    let files = place.files().await;
    running.ends().await;
    // And back: the next boot is in 1970 again.
    place.set_clock(60);
    let running = place.start().await;
    assert_eq!(place.asks(&running, "token").await, 200);
    assert_eq!(place.files().await, files);
    running.ends().await;
}

/// Waits until a client accepts the certificate: the new file is read a moment after it is written.
async fn wait_until_served(place: &Place, running: &Running) {
    loop {
        let (address, ca) = (running.address.to_string(), place.auth("ca.crt"));
        let connect = move || {
            let mut stream = tls::connect(&address, &ca, None);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock)?;
            }
            std::io::Result::Ok(())
        };
        if spawn_blocking(connect).await.unwrap().is_ok() {
            return assert_eq!(place.asks(running, "token").await, 200);
        }
    }
}

#[tokio::test]
async fn the_certificate_follows_its_names_and_the_authority_stays() {
    let place = Place::new();
    let running = place.start_as("node1").await;
    let files = place.files().await;
    running.ends().await;
    let running = place.start_as("other.example").await;
    place.renewed(&files).await;
    let leaf = place.leaf();
    let (_, SubjectAltName(names)) = leaf.tbs_certificate().get_extension().unwrap().unwrap();
    let shown = names.iter().map(|name| match name {
        GeneralName::DnsName(name) => name.to_string(),
        GeneralName::IpAddress(octets) => {
            <[u8; 4]>::try_from(octets.as_bytes()).map(IpAddr::from).unwrap().to_string()
        }
        other => panic!("{other:?}"),
    });
    let shown: Vec<_> = shown.collect();
    assert!(shown.contains(&"other.example".to_owned()) && !shown.contains(&"node1".to_owned()), "{shown:?}");
    assert!(shown.contains(&"127.0.0.1".to_owned()) && shown.contains(&"localhost".to_owned()), "{shown:?}");
    running.ends().await;
}

/// As after a kill between the writes of key and certificate, or by an operator who wants new ones.
#[tokio::test]
async fn what_is_missing_or_does_not_match_is_made_again_while_the_server_runs() {
    let place = Place::new();
    let running = place.start().await;
    let mut files = place.files().await;
    // The key of another certificate.
    fs::write(place.auth("server.key"), &files["ca.key"]).unwrap();
    place.renewed(&files).await;
    files = place.files().await;
    fs::remove_file(place.auth("server.crt")).unwrap();
    place.renewed(&files).await;
    files = place.files().await;
    fs::remove_file(place.auth("token")).unwrap();
    until("a token is made", || place.auth("token").exists()).await;
    assert_ne!(place.files().await["token"], files["token"]);
    // A new authority needs both of its files to be removed.
    fs::remove_file(place.auth("ca.key")).unwrap();
    fs::remove_file(place.auth("ca.crt")).unwrap();
    until("an authority is made", || place.auth("ca.crt").exists()).await;
    wait_until_served(&place, &running).await;
    assert_ne!(place.files().await["ca.crt"], files["ca.crt"]);
    running.ends().await;
}

#[test]
fn without_the_authoritys_key_the_certificate_is_served_as_long_as_it_lasts() {
    logged(async |log: Log| {
        let place = Place::new();
        let running = place.start().await;
        let files = place.files().await;
        running.ends().await;
        fs::remove_file(place.auth("ca.key")).unwrap();
        place.set_clock(place.clock.load(Ordering::SeqCst) + 300 * DAY);
        let running = place.start().await;
        until("the problem is logged", || !log.lines_with("server credentials rejected").is_empty()).await;
        let said = log.lines_with("server credentials rejected").concat();
        assert!(said.contains("ca.key") && said.contains("put it back, or remove ca.crt"), "{said}");
        assert_eq!(place.asks(&running, "token").await, 200);
        assert_eq!(fs::read_to_string(place.auth("server.crt")).unwrap(), files["server.crt"]);
        assert!(!place.auth("ca.key").exists(), "no second authority is made");
        running.ends().await;
    });
}

#[tokio::test]
async fn a_token_is_made_while_no_certificate_can_be_issued() {
    let place = Place::new();
    let running = place.start().await;
    place.files().await;
    for name in ["ca.key", "server.crt", "read-token"] {
        fs::remove_file(place.auth(name)).unwrap();
    }
    until("a read token is made", || place.auth("read-token").exists()).await;
    running.ends().await;
}

#[test]
fn a_read_token_whose_file_cannot_be_looked_up_stays_valid() {
    logged(async |log: Log| {
        let place = Place::new();
        let running = place.start().await;
        let token = place.files().await["read-token"].clone();
        assert_eq!(place.asks(&running, "read-token").await, 200);
        std::os::unix::fs::symlink("read-token", place.auth("loop")).unwrap();
        fs::rename(place.auth("loop"), place.auth("read-token")).unwrap();
        until("the problem is logged", || !log.lines_with("server credentials rejected").is_empty()).await;
        let said = log.lines_with("server credentials rejected").concat();
        assert!(said.contains("auth/read-token") && said.contains("the previous ones stay"), "{said}");
        assert_eq!(place.asks_with(&running, token).await, 200);
        running.ends().await;
    });
}

#[test]
fn files_that_cannot_be_looked_up_are_not_replaced() {
    logged(async |log: Log| {
        let place = Place::new();
        let running = place.start().await;
        place.files().await;
        running.ends().await;
        for name in FILES {
            fs::remove_file(place.auth(name)).unwrap();
            std::os::unix::fs::symlink(name, place.auth(name)).unwrap();
        }
        let running = place.start().await;
        until("the problem is logged", || !log.lines_with("server credentials rejected").is_empty()).await;
        for name in FILES {
            assert!(place.auth(name).is_symlink(), "{name} is replaced");
        }
        running.ends().await;
    });
}

/// The user could have written the tokens.
#[test]
fn files_of_another_user_are_not_read() {
    if !geteuid().is_root() {
        return not_tested("files of another user: only root can make them");
    }
    logged(async |log: Log| {
        let place = Place::new();
        fs::create_dir(place.state.path().join("auth")).unwrap();
        fs::write(place.auth("token"), "made-by-another-user").unwrap();
        chown(place.state.path().join("auth"), Some(61003), None).unwrap();
        let running = place.start().await;
        until("the problem is logged", || !log.lines_with("belongs to the user 61003").is_empty()).await;
        assert_eq!(fs::read_dir(place.state.path().join("auth")).unwrap().count(), 1, "nothing is made");
        chown(place.state.path().join("auth"), Some(0), None).unwrap();
        until("the credentials are made", || !log.lines_with("server credentials recovered").is_empty())
            .await;
        running.ends().await;
    });
}

/// A disk that cannot be written may mend itself: TCP waits for it.
#[test]
fn tcp_is_served_as_soon_as_the_files_can_be_made() {
    logged(async |log: Log| {
        let place = Place::new();
        fs::write(place.state.path().join("auth"), "not a directory").unwrap();
        let running = place.start().await;
        let line = "server credentials rejected, TCP clients are rejected until the credentials are complete";
        until("the problem is logged", || !log.lines_with(line).is_empty()).await;
        fs::remove_file(place.state.path().join("auth")).unwrap();
        until("the credentials are made", || !log.lines_with("server credentials recovered").is_empty())
            .await;
        assert_eq!(place.asks(&running, "token").await, 200);
        running.ends().await;
    });
}
