//! TLS: the server's certificate and its reload, client certificates, and errors.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use expect_test::expect;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use podmux::{
    certificate_files::CertificateFiles,
    host::{Clock, Host},
    server::{Config, Limits, RejectReason},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::support::{
    files::soon,
    logs::logged,
    served::{
        Answer, SOON, Served, ask, ask_http2, bind, chain, get_of, http1, loopback, raw, try_ask, until,
    },
    web::Authority,
};

/// Moves a server's certificate and key to fixed paths.
fn install(directory: &Path, from: (PathBuf, PathBuf)) -> CertificateFiles {
    let files = CertificateFiles { certificate: directory.join("tls.crt"), key: directory.join("tls.key") };
    fs::rename(from.0, &files.certificate).unwrap();
    fs::rename(from.1, &files.key).unwrap();
    files
}

/// A client that trusts one authority, optionally with a certificate.
fn client(trusts: &Authority, own: Option<&(PathBuf, PathBuf)>, protocols: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&trusts.ca_file).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(certificate).unwrap()],
                PrivateKeyDer::from_pem_file(key).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn connect(served: &Served, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("podmux.example").unwrap();
    client.connect(name, served.connect().await).await
}

#[tokio::test]
async fn tls_is_served_with_both_versions_of_http() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let tls = install(dir.path(), ca.server_files("podmux.example"));
    let served = Served::start(&Config { tls: Some(tls), ..loopback() }, Limits::default()).await;
    let stream = connect(&served, &client(&ca, None, &[])).await.unwrap();
    assert_eq!(ask(stream, get_of("/who")).await.line(), "200 Anonymous");
    let stream = connect(&served, &client(&ca, None, &["h2", "http/1.1"])).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    // The names in the certificate are the server's own.
    let mut request = get_of("/hello");
    request.headers_mut().remove("host");
    *request.uri_mut() = "https://podmux.example/hello".parse().unwrap();
    assert_eq!(ask_http2(stream, request).await.line(), "200 hello");
    let stream = connect(&served, &client(&ca, None, &[])).await.unwrap();
    let mut request = get_of("/hello");
    request.headers_mut().insert("host", "other.example".parse().unwrap());
    assert_eq!(ask(stream, request).await.status, 403);
    served.ends().await;
}

#[tokio::test]
async fn a_client_that_does_not_speak_tls_receives_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let tls = install(dir.path(), ca.server_files("podmux.example"));
    let limits = Limits { headers: SOON, ..Limits::default() };
    let served = Served::start(&Config { tls: Some(tls), ..loopback() }, limits).await;
    let answer = raw(served.connect().await, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(!answer.contains("hello"), "{answer}");
    served.rejected(RejectReason::Handshake, 1).await;
    // No data, and the beginning of a handshake.
    for (times, text) in [(2, ""), (3, "\u{16}\u{3}\u{1}")] {
        raw(served.connect().await, text).await;
        served.rejected(RejectReason::Handshake, times).await;
    }
    // A handshake without a request.
    let mut stream = connect(&served, &client(&ca, None, &[])).await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    served.rejected(RejectReason::HeadersTimeout, 1).await;
    served.ends().await;
}

#[tokio::test]
async fn a_client_is_authenticated_by_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, clients, strangers) = (
        Authority::new(dir.path(), "ca"),
        Authority::new(dir.path(), "clients"),
        Authority::new(dir.path(), "strangers"),
    );
    let token = dir.path().join("token");
    fs::write(&token, "s3cret-token").unwrap();
    let settings = Config {
        tls: Some(install(dir.path(), ca.server_files("podmux.example"))),
        client_ca_file: Some(clients.ca_file.clone()),
        token_file: Some(token),
        anonymous: false,
        ..loopback()
    };
    for settings in [Config { token_file: None, ..settings.clone() }, settings] {
        let served = Served::start(&settings, Limits::default()).await;
        let known = client(&ca, Some(&clients.client("alice")), &[]);
        let stream = connect(&served, &known).await.unwrap();
        assert_eq!(ask(stream, get_of("/who")).await.line(), "200 Certificate");

        let stranger = client(&ca, Some(&strangers.client("mallory")), &[]);
        let rejected = match connect(&served, &stranger).await {
            // In TLS 1.3 the client's handshake succeeds, and its first read fails.
            Ok(stream) => try_ask(stream, get_of("/livez")).await.is_err(),
            Err(_) => true,
        };
        assert!(rejected);
        served.rejected(RejectReason::Handshake, 1).await;

        let anonymous = client(&ca, None, &[]);
        let stream = connect(&served, &anonymous).await.unwrap();
        assert_eq!(ask(stream, get_of("/who")).await.status, 401);
        let stream = connect(&served, &anonymous).await.unwrap();
        assert_eq!(ask(stream, get_of("/livez")).await.line(), "200 ok");
        let mut request = get_of("/who");
        request.headers_mut().insert(AUTHORIZATION, "Bearer s3cret-token".parse().unwrap());
        let stream = connect(&served, &anonymous).await.unwrap();
        let with_token = ask(stream, request).await.status;
        assert_eq!(with_token, if settings.token_file.is_some() { 200 } else { 401 });
        served.ends().await;
    }
}

#[tokio::test]
async fn a_client_certificate_has_to_be_valid_at_each_request_of_a_connection() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, clients, others] = ["ca", "clients", "others"].map(|name| Authority::new(dir.path(), name));
    let client_ca = dir.path().join("client-ca");
    fs::copy(&clients.ca_file, &client_ca).unwrap();
    let settings = Config {
        tls: Some(install(dir.path(), ca.server_files("podmux.example"))),
        client_ca_file: Some(client_ca.clone()),
        anonymous: false,
        ..loopback()
    };
    let clock = Arc::new(AtomicI64::new(Clock::default().now().as_second()));
    let now = clock.clone();
    let now = Clock::from_fn(move || Timestamp::from_second(now.load(Ordering::SeqCst)).unwrap());
    let limits = Limits { reload: SOON / 10, ..Limits::default() };
    let on = Host { clock: now, ..Host::default() };
    let served = Served::run(bind(&settings, limits).await.unwrap().on(on));
    let alice = client(&ca, Some(&clients.client("alice")), &[]);
    let mut alice = http1(connect(&served, &alice).await.unwrap()).await;
    let mut asks = async || {
        alice.ready().await.unwrap();
        Answer::read(alice.send_request(get_of("/who")).await.unwrap()).await.status
    };
    assert_eq!(asks().await, 200);
    // Another authority, and the same with both.
    fs::copy(&others.ca_file, &client_ca).unwrap();
    soon(async { while asks().await == 200 {} }).await;
    assert_eq!(asks().await, 401);
    let both = [&others, &clients].map(|authority| fs::read_to_string(&authority.ca_file).unwrap());
    fs::write(&client_ca, both.concat()).unwrap();
    soon(async { while asks().await == 401 {} }).await;
    assert_eq!(asks().await, 200);
    // The time of the certificate is over.
    let day = 24 * 3600;
    clock.store(Timestamp::MAX.as_second() - day, Ordering::SeqCst);
    assert_eq!(asks().await, 401);
    served.ends().await;
}

/// A token that was replaced may have been stolen.
#[test]
fn a_file_that_cannot_be_read_keeps_no_other_from_taking_effect() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let [ca, clients, others] = ["ca", "clients", "others"].map(|name| Authority::new(dir.path(), name));
        let [token, client_ca] = ["token", "client-ca"].map(|name| dir.path().join(name));
        fs::write(&token, "first-token").unwrap();
        fs::copy(&clients.ca_file, &client_ca).unwrap();
        let settings = Config {
            tls: Some(install(dir.path(), ca.server_files("podmux.example"))),
            client_ca_file: Some(client_ca.clone()),
            token_file: Some(token.clone()),
            anonymous: false,
            ..loopback()
        };
        let limits = Limits { reload: SOON / 10, ..Limits::default() };
        let served = Served::start(&settings, limits).await;
        let (anyone, alice) = (client(&ca, None, &[]), client(&ca, Some(&clients.client("alice")), &[]));
        let asks = async |client: &TlsConnector, token: &str| {
            let mut request = get_of("/who");
            request.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
            ask(connect(&served, client).await.unwrap(), request).await.status
        };
        fs::remove_file(&client_ca).unwrap();
        until("the error is logged", || log.lines_with("credentials rejected").len() == 1).await;
        // At once: a reload must not read half of it.
        let staged = dir.path().join("staged");
        fs::write(&staged, "second-token").unwrap();
        fs::rename(&staged, &token).unwrap();
        until("the token is reloaded", || log.lines_with("credentials reloaded").len() == 1).await;
        assert_eq!((asks(&anyone, "first-token").await, asks(&anyone, "second-token").await), (401, 200));
        assert_eq!(asks(&alice, "").await, 200, "its authority stays");

        // Another token file at a reload.
        let other = dir.path().join("other");
        fs::write(&other, "third-token").unwrap();
        served.credentials.now(&Config { token_file: Some(other.clone()), ..settings.clone() });
        until("the token is reloaded", || log.lines_with("credentials reloaded").len() == 2).await;
        assert_eq!((asks(&anyone, "second-token").await, asks(&anyone, "third-token").await), (401, 200));

        // The other way round.
        fs::write(&other, "").unwrap();
        until("the error is logged", || log.lines_with("token file").len() == 1).await;
        fs::copy(&others.ca_file, &client_ca).unwrap();
        until("the authority is reloaded", || log.lines_with("credentials reloaded").len() == 3).await;
        let bob = client(&ca, Some(&others.client("bob")), &[]);
        assert_eq!((asks(&bob, "").await, asks(&anyone, "third-token").await), (200, 200));
        served.ends().await;
    });
}

#[test]
fn a_new_certificate_is_used_when_both_files_are_replaced() {
    logged(async |log| {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (Authority::new(dir.path(), "old"), Authority::new(dir.path(), "new"));
        let tls = install(dir.path(), old.server_files("podmux.example"));
        let limits = Limits { reload: SOON / 10, ..Limits::default() };
        let served = Served::start(&Config { tls: Some(tls.clone()), ..loopback() }, limits).await;
        let (trusts_old, trusts_new) = (client(&old, None, &[]), client(&new, None, &[]));
        let kept = connect(&served, &trusts_old).await.unwrap();
        assert!(connect(&served, &trusts_new).await.is_err());

        // The new certificate does not match the old key.
        let (certificate, key) = new.server_files("podmux.example");
        fs::rename(certificate, &tls.certificate).unwrap();
        until("the error is logged", || log.lines_with("credentials rejected").len() == 1).await;
        assert!(connect(&served, &trusts_old).await.is_ok(), "the old pair stays");
        fs::rename(key, &tls.key).unwrap();
        until("the files are reloaded", || log.lines_with("recovered").len() == 1).await;
        let stream = connect(&served, &trusts_new).await.unwrap();
        assert_eq!(ask(stream, get_of("/hello")).await.line(), "200 hello");
        assert!(connect(&served, &trusts_old).await.is_err());
        // Existing connections stay open.
        assert_eq!(ask(kept, get_of("/hello")).await.line(), "200 hello");

        fs::write(&tls.certificate, "no certificate").unwrap();
        until("the error is logged", || log.lines_with("credentials rejected").len() == 2).await;
        assert!(connect(&served, &trusts_new).await.is_ok());
        served.ends().await;
    });
}

#[tokio::test]
async fn invalid_certificates_are_errors_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let (certificate, key) = ca.server_files("podmux.example");
    let (_, other_key) = ca.client("other");
    let (missing, empty) = (dir.path().join("missing"), dir.path().join("empty"));
    fs::write(&empty, "").unwrap();
    let pair = |certificate: &Path, key: &Path| {
        Some(CertificateFiles { certificate: certificate.to_owned(), key: key.to_owned() })
    };
    let version_1 = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/version_1.pem"));
    let unsupported = dir.path().join("p521.pem");
    let mut made = Command::new("openssl");
    made.args("req -x509 -nodes -subj /CN=a -newkey ec -pkeyopt ec_paramgen_curve:P-521".split(' '));
    let made = made.arg("-keyout").arg(&unsupported).output().expect("openssl is installed");
    // The key is before the certificate.
    fs::write(&unsupported, [fs::read(&unsupported).unwrap(), made.stdout].concat()).unwrap();
    let mut errors = String::new();
    for (tls, client_ca_file) in [
        (pair(version_1, version_1), None),
        (pair(&unsupported, &unsupported), None),
        (pair(&missing, &key), None),
        (pair(&certificate, &missing), None),
        (pair(&empty, &key), None),
        (pair(&certificate, &empty), None),
        (pair(&key, &key), None),
        (pair(&certificate, &certificate), None),
        (pair(&certificate, &other_key), None),
        (pair(&certificate, &key), Some(missing.clone())),
        (pair(&certificate, &key), Some(empty.clone())),
    ] {
        let settings = Config { tls, client_ca_file, ..loopback() };
        let error = bind(&settings, Limits::default()).await.err().unwrap();
        let error = chain(&error).replace(dir.path().to_str().unwrap(), "DIR");
        errors += &error.replace(version_1.parent().unwrap().to_str().unwrap(), "SUPPORT");
        errors += "\n";
    }
    expect![[r#"
        TLS certificate SUPPORT/version_1.pem: the certificate cannot be used with the key in SUPPORT/version_1.pem (the certificate is of an X.509 version before 3, which is not supported; issue it again with an extension (openssl: -extfile))
        TLS certificate DIR/p521.pem: the certificate cannot be used with the key in DIR/p521.pem (is the kind of key supported? use ECDSA with P-256 or P-384, Ed25519, or RSA with 2,048 bits or more)
        cannot read the TLS certificate DIR/missing (does it exist, and may podmux read it?): No such file or directory (os error 2)
        cannot read the TLS private key DIR/missing (does it exist, and may podmux read it?): No such file or directory (os error 2)
        TLS certificate DIR/empty: the file has no certificate in PEM
        TLS private key DIR/empty: the file has no private key in PEM (encrypted keys are not supported)
        TLS certificate DIR/podmux.example.key: the file has no certificate in PEM
        TLS private key DIR/podmux.example.crt: the file has no private key in PEM (encrypted keys are not supported)
        TLS certificate DIR/podmux.example.crt: the certificate cannot be used with the key in DIR/other.key (do they belong together?)
        cannot read the client CA file DIR/missing (does it exist, and may podmux read it?): No such file or directory (os error 2)
        client CA file DIR/empty: the file has no certificate in PEM
    "#]].assert_eq(&errors);
}
