//! Loads the tokens and the certificates from files, and reloads them when the files change.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rustls::{
    RootCertStore, ServerConfig,
    client::verify_server_name,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
    server::{ParsedCertificate, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::{
    sync::watch,
    time::{Duration, sleep},
};
use tracing::{info, warn};
use x509_cert::{
    Certificate,
    der::Decode as _,
    ext::pkix::{BasicConstraints, SubjectAltName, name::GeneralName},
};

use super::{
    credential_error::{CredentialError, MAX_FILE},
    generated::{CA, CERTIFICATE, KEY, READ_TOKEN, TOKEN},
};
use crate::{
    certificate_files::CertificateFiles,
    error_chain::chain,
    host::{Disk, Host, Stamp},
    outage::Outage,
    pem::{self, Validity},
    server::{address::Listen, config::Config, stats::ConnectionStats},
};

const TOKEN_FILE: &str = "token file";
const CLIENT_CA: &str = "client CA file";

/// The current token and certificates.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    pub(super) token: Option<TokenDigest>,
    /// For reading only.
    pub(super) read_token: Option<TokenDigest>,
    pub(super) tls: Option<ServerTls>,
    /// Verifies the certificates with which clients can authenticate.
    pub(super) clients: Option<Arc<dyn ClientCertVerifier>>,
    /// Whether callers over TCP need no credentials.
    pub(super) anonymous: bool,
    /// Whether TCP is served without TLS.
    pub(super) plain: bool,
    /// The server's certificate with its chain, and the CAs of clients, to compare them.
    certificates: [Vec<CertificateDer<'static>>; 2],
}

impl Credentials {
    /// Whether others were made of the same settings and files with the same content. The key belongs to the
    /// certificate.
    fn is_same(&self, other: &Self) -> bool {
        fn settings(of: &Credentials) -> (bool, bool, Option<&Path>) {
            (of.anonymous, of.plain, of.tls.as_ref().map(|tls| &*tls.path))
        }
        let has_tokens = self.token == other.token && self.read_token == other.read_token;
        settings(self) == settings(other) && has_tokens && self.certificates == other.certificates
    }

    /// Whether clients over TCP can be served. At the first start with a full disk something may be missing.
    fn are_complete(&self) -> bool {
        let has_callers = self.token.is_some() || self.clients.is_some() || self.anonymous;
        (self.tls.is_some() || self.plain) && has_callers
    }
}

/// The SHA-256 of a token. Digests have equal lengths, and the token is not kept in memory.
#[derive(Clone)]
pub(super) struct TokenDigest([u8; 32]);

impl PartialEq for TokenDigest {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl TokenDigest {
    fn new(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Compares with a token in constant time.
    pub(super) fn matches(&self, token: &[u8]) -> bool {
        *self == Self::new(token)
    }
}

/// The server's TLS configuration.
#[derive(Clone)]
pub(super) struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    /// The file of the certificate.
    path: PathBuf,
}

impl ServerTls {
    /// Whether the server's certificate is for this host.
    pub(super) fn names(&self, host: &str) -> bool {
        names(&self.certificate, host)
    }
}

fn names(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let (Ok(certificate), Ok(name)) = (ParsedCertificate::try_from(certificate), ServerName::try_from(host))
    else {
        return false;
    };
    verify_server_name(&certificate, &name).is_ok()
}

/// The first DNS name of a certificate that does not name the host of an address.
fn other_name(certificate: &CertificateDer<'_>, address: &str) -> Option<String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    if names(certificate, host.trim_matches(['[', ']'])) {
        return None;
    }
    let certificate = Certificate::from_der(certificate).ok()?;
    let (_, SubjectAltName(names)) = certificate.tbs_certificate().get_extension().ok()??;
    let name = names.into_iter().find_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        _ => None,
    });
    // A wildcard stands for any first part.
    name.map(|name| name.replacen('*', "podmux", 1))
}

/// What clients have to trust, as PEM: the CAs of the server's chain, which stay when its certificate is renewed. It is
/// the certificate itself if that is self-signed or there are no CAs.
fn trusted(chain: &[CertificateDer<'_>]) -> String {
    let read = |certificate: &CertificateDer<'_>| {
        Some(Certificate::from_der(certificate).ok()?.tbs_certificate().clone())
    };
    let is_ca = |certificate: &CertificateDer<'_>| {
        let (_, constraints): (_, BasicConstraints) = read(certificate)?.get_extension().ok()??;
        Some(constraints.ca)
    };
    let (own, others) = chain.split_at(chain.len().min(1));
    let is_self_signed = own.iter().filter_map(read).any(|own| own.issuer() == own.subject());
    let authorities = others.iter().filter(|other| !is_self_signed && is_ca(other) == Some(true));
    let authorities: Vec<_> = authorities.collect();
    let trusted = if authorities.is_empty() { own.iter().collect() } else { authorities };
    trusted.into_iter().map(|certificate| pem_text(certificate)).collect()
}

/// A certificate as PEM, in lines of 64 characters.
fn pem_text(certificate: &[u8]) -> String {
    let lines: String = certificate.chunks(48).map(|bytes| STANDARD.encode(bytes) + "\n").collect();
    format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n")
}

/// The files of the token and the certificates.
impl Config {
    /// The path of a file that the agent makes.
    fn made(&self, name: &str) -> Option<PathBuf> {
        self.generated.as_ref().map(|generated| generated.directory.join(name))
    }

    fn token_file(&self) -> Option<PathBuf> {
        self.token_file.clone().or_else(|| self.made(TOKEN))
    }

    fn tls_files(&self) -> Option<CertificateFiles> {
        let made = || Some(CertificateFiles { certificate: self.made(CERTIFICATE)?, key: self.made(KEY)? });
        self.tls.clone().or_else(made)
    }

    /// The CA that is made here, which clients have to trust; none with a given certificate.
    fn ca_file(&self) -> Option<PathBuf> {
        self.made(CA).filter(|_| self.tls.is_none())
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let pair = self.tls_files().into_iter().flat_map(|tls| [tls.certificate, tls.key]);
        let others = [self.token_file(), self.made(READ_TOKEN), self.ca_file(), self.client_ca_file.clone()];
        pair.chain(others.into_iter().flatten())
    }

    /// Reads the files that are given; what has to be made is missing then. It blocks.
    pub(super) fn read_given(&self, disk: &Disk) -> (Stamps, Credentials, Vec<CredentialError>) {
        let given = Self { generated: None, ..self.clone() };
        let plain = self.tls_files().is_none();
        let (credentials, errors) = given.read(disk, &Credentials::default());
        (given.stamps(disk), Credentials { plain, ..credentials }, errors)
    }

    /// Reads the token, the token for reading, and the certificates with the CAs of clients. Each of the three that
    /// cannot be read stays as it was: a token that was replaced must not stay valid because of another file.
    fn read(&self, disk: &Disk, last: &Credentials) -> (Credentials, Vec<CredentialError>) {
        let check = |is_given: bool| match &self.generated {
            Some(generated) if !is_given => generated.check(disk),
            _ => Ok(()),
        };
        let token = |path: Option<PathBuf>| path.map(|path| read_token(disk, &path)).transpose();
        let is_missing = self.generated.as_ref().is_some_and(|made| made.is_missing(disk, READ_TOKEN));
        let read_token = || token(self.made(READ_TOKEN).filter(|_| !is_missing));
        let mut errors = Vec::new();
        let token = check(self.token_file.is_some()).and_then(|()| token(self.token_file()));
        let token = or_last(token, &last.token, &mut errors);
        let read_token = check(false).and_then(|()| read_token());
        let read_token = or_last(read_token, &last.read_token, &mut errors);
        let certificates = check(self.tls.is_some()).and_then(|()| self.read_certificates(disk));
        let certificates = or_last(certificates, last, &mut errors);
        (Credentials { token, read_token, anonymous: self.anonymous, ..certificates }, errors)
    }

    /// The credentials without the tokens.
    fn read_certificates(&self, disk: &Disk) -> Result<Credentials, CredentialError> {
        let authorities = self.client_authorities(disk)?;
        let clients = self.client_verifier(&authorities)?;
        let tls = self.tls_files().map(|files| read_tls(disk, &files, clients.clone())).transpose()?;
        let (tls, chain) = tls.unzip();
        let (plain, certificates) = (tls.is_none(), [chain.unwrap_or_default(), authorities]);
        Ok(Credentials { tls, clients, plain, certificates, ..Credentials::default() })
    }

    /// Makes what is neither given nor there, and renews the certificate. It blocks.
    fn make(&self, host: &Host) -> Result<(), CredentialError> {
        let Some(generated) = &self.generated else { return Ok(()) };
        generated.check(&host.disk)?;
        if self.token_file.is_none() {
            generated.make_token(host, TOKEN)?;
        }
        generated.make_token(host, READ_TOKEN)?;
        if self.tls.is_none() {
            generated.make_certificate(host)?;
        }
        Ok(())
    }

    /// The stamps of all files. It blocks.
    fn stamps(&self, disk: &Disk) -> Stamps {
        self.paths().map(|path| disk.stamp(&path).ok()).collect()
    }

    fn client_authorities(&self, disk: &Disk) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
        let read = |path: &PathBuf| read_certificates(disk, CLIENT_CA, path);
        self.client_ca_file.as_ref().map_or(Ok(Vec::new()), read)
    }

    fn client_verifier(
        &self,
        authorities: &[CertificateDer<'static>],
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, CredentialError> {
        let Some(path) = &self.client_ca_file else { return Ok(None) };
        let rejected = |error: &dyn Display| unusable(CLIENT_CA, path, error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in authorities {
            roots.add(certificate.clone()).map_err(|error| rejected(&error))?;
        }
        // A client without a certificate may have a token or read an open path.
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build();
        verifier.map(Some).map_err(|error| rejected(&error))
    }
}

/// What was read, or else what was read last.
fn or_last<T: Clone>(read: Result<T, CredentialError>, last: &T, errors: &mut Vec<CredentialError>) -> T {
    read.unwrap_or_else(|error| {
        errors.push(error);
        last.clone()
    })
}

/// Returns all errors in the files of the token and the certificates that are given. It reads
/// them, and blocks.
pub fn check(settings: &Config) -> Vec<CredentialError> {
    let (.., errors) = settings.read_given(&Disk::default());
    errors
}

/// Reads the credentials for a caller who may have them.
#[derive(Clone, Debug)]
pub(in crate::server) struct CredentialReader {
    files: watch::Receiver<Config>,
    /// The address over TCP, if there is one.
    address: Option<String>,
}

impl CredentialReader {
    pub(super) fn new(files: watch::Receiver<Config>, addresses: &[Listen]) -> Self {
        let address = addresses.iter().find_map(|address| match address {
            Listen::Tcp(tcp) if tcp.ip().is_unspecified() => Some(format!("localhost:{}", tcp.port())),
            Listen::Tcp(tcp) => Some(tcp.to_string()),
            Listen::Unix(_) => None,
        });
        Self { files, address }
    }

    /// The object that `GET /credentials` answers; `None` without an address over TCP. It blocks.
    pub(in crate::server) fn read(&self, disk: &Disk) -> Option<Result<Value, CredentialError>> {
        let (address, files) = (self.address.as_ref()?, self.files.borrow().clone());
        let scheme = if files.anonymous { "http" } else { "https" };
        let read = |path: Option<PathBuf>| path.map(|path| read_file(disk, "file", &path)).transpose();
        let token =
            |path| Ok(read(path)?.map(|text| String::from_utf8_lossy(text.trim_ascii()).into_owned()));
        let certificates = |tls: &CertificateFiles| read_certificates(disk, "file", &tls.certificate);
        let object = || {
            // One that is made here names the address.
            let chain = files.tls.as_ref().map(certificates).transpose()?;
            let given = chain.as_deref().map(|chain| trusted(chain).into_bytes());
            let authority = given.map_or_else(|| read(files.ca_file()), |given| Ok(Some(given)))?;
            Ok(json!({
                "server": format!("{scheme}://{address}"),
                "tlsServerName": chain.and_then(|chain| other_name(chain.first()?, address)),
                "certificateAuthorityData": authority.map(|ca| STANDARD.encode(ca)),
                "token": token(files.token_file())?,
                // Most clients do without it.
                "readToken": token(files.made(READ_TOKEN)).unwrap_or_default(),
            }))
        };
        Some(object())
    }
}

/// The stamps of the files; `None` for a file that does not exist.
pub(super) type Stamps = Vec<Option<Stamp>>;

/// Keeps the credentials up to date.
pub(super) struct Reloader {
    pub(super) files: watch::Receiver<Config>,
    stamps: Stamps,
    pub(super) credentials: watch::Sender<Arc<Credentials>>,
    stats: ConnectionStats,
    outage: Outage,
    /// Whether this is not the first time.
    begun: bool,
}

impl Reloader {
    /// Reads the files that are given. It blocks.
    pub(super) fn new(
        files: watch::Receiver<Config>,
        stats: ConnectionStats,
    ) -> Result<Self, CredentialError> {
        let (stamps, credentials, errors) = files.borrow().read_given(&Disk::default());
        if let Some(first) = errors.into_iter().next() {
            return Err(first);
        }
        let credentials = watch::Sender::new(Arc::new(credentials));
        Ok(Self { files, stamps, credentials, stats, outage: Outage::default(), begun: false })
    }

    /// Makes what is due, and reads the files when their stamps have changed or on request. After an error the
    /// previous ones stay in effect, because a certificate and its key are not replaced at the same time.
    pub(super) async fn update(&mut self, host: &Host, requested: bool) {
        let begun = std::mem::replace(&mut self.begun, true);
        let current = self.files.borrow_and_update().clone();
        if current.paths().next().is_none() {
            return;
        }
        let forced = requested || self.outage.since().is_some();
        let (stamps, previous, on) = (self.stamps.clone(), self.credentials.borrow().clone(), host.clone());
        let read = move || {
            // A full disk does not take away what was made before.
            let made = current.make(&on).err();
            let now = current.stamps(&on.disk);
            let read = (forced || now != stamps).then(|| current.read(&on.disk, &previous));
            let (fresh, errors) = read.unwrap_or_else(|| (Credentials::clone(&previous), Vec::new()));
            (now, fresh, made.into_iter().chain(errors).collect::<Vec<_>>())
        };
        // A network file system may hang. A panic is in the log already.
        let Ok((stamps, fresh, errors)) = host.threads.blocking(read).await else { return };
        self.stamps = stamps;
        let is_other = !fresh.is_same(&self.credentials.borrow());
        if is_other {
            self.credentials.send_replace(Arc::new(fresh));
        }
        self.log(&errors, host.clock.now(), requested, begun && is_other);
        if requested || is_other || !begun {
            self.report_certificate(host.clock.now());
        }
    }

    /// Logs what could not be read, or that everything could be again, and whether something else is in effect.
    fn log(&mut self, errors: &[CredentialError], now: Timestamp, requested: bool, is_other: bool) {
        let mut texts: Vec<_> = errors.iter().map(|error| chain(error)).collect();
        texts.dedup();
        let error = texts.join("; ");
        let has_recovered = texts.is_empty() && self.outage.recovered().is_some();
        // A requested reload logs its error even if it is known.
        if !texts.is_empty() && (self.outage.failed(&error, now) || requested) {
            // Without an address over TCP nothing has to be made.
            if self.files.borrow().generated.is_none() || self.credentials.borrow().are_complete() {
                warn!(error, "server credentials rejected, the previous ones stay in effect");
            } else {
                warn!(
                    error,
                    "server credentials rejected, TCP clients are rejected until the credentials are complete"
                );
            }
        }
        if has_recovered || is_other {
            info!("server credentials {}", if has_recovered { "recovered" } else { "reloaded" });
        }
    }

    /// Publishes when the server's certificate expires, and warns if it is not valid now. It is used all the same: the
    /// clock may be wrong.
    fn report_certificate(&self, now: Timestamp) {
        let credentials = self.credentials.borrow();
        let Some(tls) = &credentials.tls else { return };
        let Some(validity) = Validity::of(&tls.certificate) else { return };
        self.stats.certificate_end.set(validity.end.as_second());
        if let Some(error) = validity.problem(now) {
            warn!(path = %tls.path.display(), error, "server certificate not valid now");
        }
    }

    /// Updates them at intervals and when other files are sent. Returns when their sender is dropped.
    pub(super) async fn run(mut self, host: &Host, interval: Duration) {
        loop {
            let any = self.files.borrow().paths().next().is_some();
            let requested = tokio::select! {
                () = sleep(interval), if any => false,
                sent = self.files.changed() => match sent {
                    Ok(()) => true,
                    Err(_) => return,
                },
            };
            self.update(host, requested).await;
        }
    }
}

fn read_file(disk: &Disk, what: &'static str, path: &Path) -> Result<Vec<u8>, CredentialError> {
    disk.read(path, MAX_FILE).map_err(|error| CredentialError::Unreadable(what, path.to_owned(), error))
}

fn read_token(disk: &Disk, path: &Path) -> Result<TokenDigest, CredentialError> {
    let text = read_file(disk, TOKEN_FILE, path)?;
    let token = text.trim_ascii();
    let problem = if token.is_empty() {
        "the file is empty: write a token into it, such as the output of openssl rand -hex 32"
    } else if !token.iter().all(u8::is_ascii_graphic) {
        "the token is invalid: it must be one word of printable ASCII"
    } else {
        return Ok(TokenDigest::new(token));
    };
    Err(unusable(TOKEN_FILE, path, problem))
}

fn read_tls(
    disk: &Disk,
    files: &CertificateFiles,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<(ServerTls, Vec<CertificateDer<'static>>), CredentialError> {
    const CERTIFICATE: &str = "TLS certificate";
    const KEY: &str = "TLS private key";
    let chain = read_certificates(disk, CERTIFICATE, &files.certificate)?;
    let key = pem::private_key(&read_file(disk, KEY, &files.key)?).map_err(|_| {
        unusable(KEY, &files.key, "the file has no private key in PEM (encrypted keys are not supported)")
    })?;
    let pair = |error: rustls::Error| {
        let (key, hint) = (files.key.display(), pem::identity_hint(&error));
        let problem = format!("the certificate cannot be used with the key in {key} ({hint})");
        unusable(CERTIFICATE, &files.certificate, problem)
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let certificate = chain[0].clone();
    let mut config = builder.with_single_cert(chain.clone(), key).map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let path = files.certificate.clone();
    Ok((ServerTls { config: Arc::new(config), certificate, path }, chain))
}

fn unusable(what: &'static str, path: &Path, problem: impl Into<String>) -> CredentialError {
    CredentialError::Unusable(what, path.to_owned(), problem.into())
}

/// The certificates of a file, at least one.
fn read_certificates(
    disk: &Disk,
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let text = read_file(disk, what, path)?;
    pem::certificates(&text).map_err(|_| unusable(what, path, "the file has no certificate in PEM"))
}
