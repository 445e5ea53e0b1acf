//! Loads the tokens and the certificates from files, and reloads them when the files change.

use std::{
    fmt, io, mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use rustls::{
    RootCertStore, ServerConfig,
    client::verify_server_name,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
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

use super::generated::{CA, CERTIFICATE, KEY, READ_TOKEN, TOKEN};
use crate::{
    certificate_files::CertificateFiles,
    error_chain::chain,
    host::{Disk, Host, Stamp},
    outage::Outage,
    server::{
        address::Listen,
        config::{Config, Generated},
    },
};

/// The maximal size of a file, in bytes.
pub(super) const MAX_FILE: u64 = 1024 * 1024;
/// How long after a failure a certificate that is still valid is renewed.
const RETRY: SignedDuration = SignedDuration::from_hours(1);
const TOKEN_FILE: &str = "token file";

/// Why the token or the certificates are invalid. It never has text of a file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be read.
    #[error("cannot read the {what} {} (does it exist, and may podmux read it?)", path.display())]
    Unreadable {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A file that the agent makes cannot be written.
    #[error("cannot write {} (may podmux write its state directory?)", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A file has invalid content.
    #[error("{what} {}: {problem}", path.display())]
    Unusable {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong and what is needed.
        problem: String,
    },
}

/// The files of the token and the certificates.
#[derive(Clone, Debug)]
pub(super) struct CredentialFiles {
    token: Option<PathBuf>,
    tls: Option<CertificateFiles>,
    client_ca: Option<PathBuf>,
    generated: Option<Generated>,
    anonymous: bool,
}

/// The current token and certificates.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) token: Option<TokenDigest>,
    /// For reading only.
    pub(super) read_token: Option<TokenDigest>,
    pub(super) tls: Option<ServerTls>,
    /// Whether clients can authenticate with a certificate.
    pub(super) certificates: bool,
    /// Whether callers over TCP need no credentials.
    pub(super) anonymous: bool,
    /// Whether what is not given has been made.
    pub(super) complete: bool,
}

impl Credentials {
    /// Whether TCP is served without TLS.
    pub(super) fn is_plain(&self) -> bool {
        self.complete && self.tls.is_none()
    }
}

/// The SHA-256 of a token. Digests have equal lengths, and the token is not kept in memory.
pub(super) struct TokenDigest([u8; 32]);

impl TokenDigest {
    fn new(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Compares with a token in constant time.
    pub(super) fn matches(&self, token: &[u8]) -> bool {
        self.0.ct_eq(&Self::new(token).0).into()
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(…)")
    }
}

/// The server's TLS configuration.
#[derive(Clone, Debug)]
pub(super) struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl ServerTls {
    /// Whether the server's certificate is for this host.
    pub(super) fn names(&self, host: &str) -> bool {
        let (Ok(certificate), Ok(name)) =
            (ParsedCertificate::try_from(&self.certificate), ServerName::try_from(host))
        else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

impl CredentialFiles {
    pub(super) fn new(settings: &Config) -> Self {
        Self {
            token: settings.token_file.clone(),
            tls: settings.tls.clone(),
            client_ca: settings.client_ca_file.clone(),
            generated: settings.generated.clone(),
            anonymous: settings.anonymous,
        }
    }

    /// The path of a file that the agent makes.
    fn made(&self, name: &str) -> Option<PathBuf> {
        self.generated.as_ref().map(|generated| generated.directory.join(name))
    }

    fn token_file(&self) -> Option<PathBuf> {
        self.token.clone().or_else(|| self.made(TOKEN))
    }

    fn tls_files(&self) -> Option<CertificateFiles> {
        let made = || Some(CertificateFiles { certificate: self.made(CERTIFICATE)?, key: self.made(KEY)? });
        self.tls.clone().or_else(made)
    }

    /// The CA that clients have to trust; with a given certificate that itself, with its chain.
    fn ca_file(&self) -> Option<PathBuf> {
        self.tls.as_ref().map(|tls| tls.certificate.clone()).or_else(|| self.made(CA))
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let pair = self.tls_files().into_iter().flat_map(|tls| [tls.certificate, tls.key]);
        let others = [self.token_file(), self.made(READ_TOKEN), self.ca_file(), self.client_ca.clone()];
        pair.chain(others.into_iter().flatten())
    }

    /// Reads the files that are given; what has to be made is missing then. It blocks.
    pub(super) fn read_given(&self, host: &Host) -> Result<(Option<Stamps>, Credentials), CredentialError> {
        let (stamps, mut credentials) = Self { generated: None, ..self.clone() }.read(host)?;
        credentials.complete = self.generated.is_none();
        Ok((credentials.complete.then_some(stamps), credentials))
    }

    /// Makes what is missing and reads all files, after their stamps. It blocks.
    fn read(&self, host: &Host) -> Result<(Stamps, Credentials), CredentialError> {
        let made = self.make(host);
        let disk = &host.disk;
        let (files, names) = self.current(disk);
        let read = || {
            if self.tls_files().is_none() {
                self.client_verifier(disk)?;
            }
            let token = |path: Option<PathBuf>| path.map(|path| read_token(disk, &path)).transpose();
            Ok(Credentials {
                token: token(self.token_file())?,
                read_token: token(self.made(READ_TOKEN).filter(|path| disk.stamp(path).is_ok()))?,
                tls: self.tls_files().map(|files| self.read_tls(disk, &files)).transpose()?,
                certificates: self.client_ca.is_some(),
                anonymous: self.anonymous,
                complete: true,
            })
        };
        match (made, read()) {
            (Ok(renewal), Ok(credentials)) => Ok((Stamps { files, names, renewal }, credentials)),
            // A full disk does not take away what was made before.
            (Err(error), Ok(credentials)) => {
                warn!(error = chain(&error), "server credentials not renewed");
                let renewal = host.clock.now().checked_add(RETRY).ok();
                Ok((Stamps { files, names, renewal }, credentials))
            }
            (Err(error), Err(_)) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// Makes what is not given. Returns when the certificate is to be renewed.
    fn make(&self, host: &Host) -> Result<Option<Timestamp>, CredentialError> {
        let Some(generated) = &self.generated else { return Ok(None) };
        if self.token.is_none() {
            generated.make_token(host, TOKEN)?;
        }
        generated.make_token(host, READ_TOKEN)?;
        if self.tls.is_some() { Ok(None) } else { generated.make_certificate(host).map(Some) }
    }

    /// The stamps of all files and the names of the certificate. It blocks.
    fn current(&self, disk: &Disk) -> (Vec<Option<Stamp>>, Vec<String>) {
        let names = self.generated.as_ref().map(Generated::names).unwrap_or_default();
        (self.paths().map(|path| disk.stamp(&path).ok()).collect(), names)
    }

    /// Whether something has changed since the files were read. It blocks.
    fn is_stale(&self, last: &Stamps, host: &Host) -> bool {
        let (files, names) = self.current(&host.disk);
        let due = last.renewal.is_some_and(|renewal| renewal <= host.clock.now());
        due || files != last.files || names != last.names
    }

    fn client_verifier(&self, disk: &Disk) -> Result<Option<Arc<dyn ClientCertVerifier>>, CredentialError> {
        const CLIENT_CA: &str = "client CA file";
        let Some(path) = &self.client_ca else { return Ok(None) };
        let rejected = |error: &dyn fmt::Display| unusable(CLIENT_CA, path, error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(disk, CLIENT_CA, path)? {
            roots.add(certificate).map_err(|error| rejected(&error))?;
        }
        // A client without a certificate may have a token or read an open path.
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build();
        verifier.map(Some).map_err(|error| rejected(&error))
    }

    fn read_tls(&self, disk: &Disk, files: &CertificateFiles) -> Result<ServerTls, CredentialError> {
        const CERTIFICATE: &str = "TLS certificate";
        const KEY: &str = "TLS private key";
        let chain = read_certificates(disk, CERTIFICATE, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read_file(disk, KEY, &files.key)?).map_err(|_| {
            let problem = "the file has no private key in PEM (encrypted keys are not supported)";
            unusable(KEY, &files.key, problem.to_owned())
        })?;
        let pair = |error: rustls::Error| {
            let problem =
                format!("the certificate does not match the key in {}: {error}", files.key.display());
            unusable(CERTIFICATE, &files.certificate, problem)
        };
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(pair)?;
        let builder = match self.client_verifier(disk)? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let certificate = chain[0].clone();
        let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(ServerTls { config: Arc::new(config), certificate })
    }
}

/// Returns all errors in the files of the token and the certificates that are given. It reads
/// them, and blocks.
pub fn check(settings: &Config) -> Vec<CredentialError> {
    let files = CredentialFiles { generated: None, ..CredentialFiles::new(settings) };
    let (tokens, host) = (CredentialFiles { tls: None, client_ca: None, ..files.clone() }, Host::default());
    let others = CredentialFiles { token: None, ..files };
    [tokens, others].into_iter().filter_map(|files| files.read(&host).err()).collect()
}

/// Reads the credentials for a caller who may have them.
#[derive(Clone, Debug)]
pub(in crate::server) struct CredentialReader {
    files: watch::Receiver<CredentialFiles>,
    /// The address over TCP, if there is one.
    address: Option<SocketAddr>,
}

impl CredentialReader {
    pub(super) fn new(files: watch::Receiver<CredentialFiles>, addresses: Vec<Listen>) -> Self {
        let tcp = addresses.into_iter().find_map(|address| match address {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        });
        let address = tcp.map(|mut address| {
            if address.ip().is_unspecified() {
                let v4 = address.is_ipv4();
                address.set_ip(if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
            }
            address
        });
        Self { files, address }
    }

    /// The object that `GET /credentials` answers; `None` without an address over TCP. It blocks.
    pub(in crate::server) fn read(&self, disk: &Disk) -> Option<Result<Value, CredentialError>> {
        let (address, files) = (self.address?, self.files.borrow().clone());
        let text = |what, path: Option<PathBuf>| {
            path.map(|path| Ok(String::from_utf8_lossy(&read_file(disk, what, &path)?).trim().to_owned()))
                .transpose()
        };
        let object = || {
            let ca = text("certificate authority", files.ca_file())?;
            Ok(json!({
                "server": format!("{}://{address}", if files.anonymous { "http" } else { "https" }),
                "certificateAuthorityData": ca.map(|ca| STANDARD.encode(ca + "\n")),
                "token": text(TOKEN_FILE, files.token_file())?,
                "readToken": text(TOKEN_FILE, files.made(READ_TOKEN))?,
            }))
        };
        Some(object())
    }
}

/// What decides whether the files are read again.
#[derive(Debug)]
pub(super) struct Stamps {
    /// The stamps of the files; `None` for a file that does not exist.
    files: Vec<Option<Stamp>>,
    names: Vec<String>,
    /// When the certificate is to be renewed.
    renewal: Option<Timestamp>,
}

/// Reads the files at once if they are not complete, later when they change and when `files` is
/// sent. An error leaves the previous credentials in effect: a certificate and its key are not
/// replaced at the same time. Returns when the sender of `files` is dropped.
pub(super) async fn reload_on_change(
    mut files: watch::Receiver<CredentialFiles>,
    mut stamps: Option<Stamps>,
    credentials: watch::Sender<Arc<Credentials>>,
    interval: Duration,
    host: &Host,
) {
    let (mut outage, mut begins) = (Outage::default(), stamps.is_none());
    loop {
        let any = files.borrow().paths().next().is_some();
        let requested = tokio::select! {
            () = sleep(if begins { Duration::ZERO } else { interval }), if any => false,
            sent = files.changed() => match sent {
                Ok(()) => true,
                Err(_) => return,
            },
        };
        let failing = outage.since().is_some();
        let (current, last) = (files.borrow_and_update().clone(), stamps.take());
        if current.paths().next().is_none() {
            continue;
        }
        let machine = host.clone();
        let read = move || {
            let stale = last.as_ref().is_none_or(|last| current.is_stale(last, &machine));
            if requested || failing || stale { Ok(current.read(&machine)) } else { Err(last) }
        };
        // A network file system may hang. A panic is in the log already.
        let first = mem::take(&mut begins);
        match host.threads.blocking(read).await.unwrap_or(Err(None)) {
            Err(unchanged) => stamps = unchanged,
            Ok(Ok((fresh_stamps, fresh))) => {
                stamps = Some(fresh_stamps);
                credentials.send_replace(Arc::new(fresh));
                if !first {
                    let recovered = outage.recovered().is_some();
                    info!("server credentials {}", if recovered { "recovered" } else { "reloaded" });
                }
            }
            Ok(Err(error)) => {
                let error = chain(&error);
                // A requested reload logs its error even if it is known.
                if outage.failed(&error, host.clock.now()) || requested {
                    warn!(error, "server credentials rejected, the previous ones stay in effect");
                }
            }
        }
    }
}

fn read_file(disk: &Disk, what: &'static str, path: &Path) -> Result<Vec<u8>, CredentialError> {
    let failed = |error| CredentialError::Unreadable { what, path: path.to_owned(), error };
    disk.read(path, MAX_FILE).map_err(failed)
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
    Err(unusable(TOKEN_FILE, path, problem.to_owned()))
}

fn unusable(what: &'static str, path: &Path, problem: String) -> CredentialError {
    CredentialError::Unusable { what, path: path.to_owned(), problem }
}

/// The certificates of a file, at least one.
fn read_certificates(
    disk: &Disk,
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let text = read_file(disk, what, path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    certificates
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| unusable(what, path, "the file has no certificate in PEM".to_owned()))
}
