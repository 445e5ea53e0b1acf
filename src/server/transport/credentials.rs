//! Loads the token and the certificates from files, and reloads them when the files change.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore, ServerConfig,
    client::verify_server_name,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    server::{ParsedCertificate, WebPkiClientVerifier},
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::{
    sync::watch,
    time::{Duration, sleep},
};
use tracing::{info, warn};

use crate::{
    certificate_files::CertificateFiles,
    error_chain::chain,
    host::{Disk, Host, Stamp},
    outage::Outage,
    server::config::Config,
};

/// The maximal size of a file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

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
}

/// The current token and certificates.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) token: Option<TokenDigest>,
    pub(super) tls: Option<ServerTls>,
    /// Whether clients can authenticate with a certificate.
    pub(super) certificates: bool,
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
        }
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let pair = self.tls.iter().flat_map(|tls| [&tls.certificate, &tls.key]);
        self.token.iter().chain(pair).chain(&self.client_ca).map(PathBuf::as_path)
    }

    /// Reads all files, after their stamps. It blocks.
    pub(super) fn read(&self, disk: &Disk) -> Result<(Stamps, Credentials), CredentialError> {
        let stamps = self.stamps(disk);
        let (token, tls) = (self.token(disk).transpose()?, self.tls(disk).transpose()?);
        Ok((stamps, Credentials { token, tls, certificates: self.client_ca.is_some() }))
    }

    fn token(&self, disk: &Disk) -> Option<Result<TokenDigest, CredentialError>> {
        self.token.as_deref().map(|path| read_token(disk, path))
    }

    fn tls(&self, disk: &Disk) -> Option<Result<ServerTls, CredentialError>> {
        self.tls.as_ref().map(|files| read_tls(disk, files, self.client_ca.as_deref()))
    }

    /// The stamps of all files. It blocks.
    fn stamps(&self, disk: &Disk) -> Stamps {
        self.paths().map(|path| disk.stamp(path).ok()).collect()
    }
}

/// Returns all errors in the files of the token and the certificates. It reads them, and blocks.
pub fn check(settings: &Config) -> Vec<CredentialError> {
    let (files, disk) = (CredentialFiles::new(settings), Disk::default());
    let (token, tls) = (files.token(&disk).and_then(Result::err), files.tls(&disk).and_then(Result::err));
    token.into_iter().chain(tls).collect()
}

/// The stamps of the files; `None` for a file that does not exist.
pub(super) type Stamps = Vec<Option<Stamp>>;

/// Reloads the files when their stamps change and when `files` is sent. An error leaves the
/// previous credentials in effect: a certificate and its key are not replaced at the same time.
/// Returns when the sender of `files` is dropped.
pub(super) async fn reload_on_change(
    mut files: watch::Receiver<CredentialFiles>,
    mut stamps: Stamps,
    credentials: watch::Sender<Arc<Credentials>>,
    interval: Duration,
    host: &Host,
) {
    let (disk, mut outage) = (host.disk.clone(), Outage::default());
    loop {
        let any = files.borrow().paths().next().is_some();
        let requested = tokio::select! {
            () = sleep(interval), if any => false,
            sent = files.changed() => match sent {
                Ok(()) => true,
                Err(_) => return,
            },
        };
        let failing = outage.since().is_some();
        let (current, last) = (files.borrow_and_update().clone(), stamps.clone());
        if current.paths().next().is_none() {
            continue;
        }
        let disk = disk.clone();
        let read =
            move || (requested || failing || current.stamps(&disk) != last).then(|| current.read(&disk));
        // A network file system may hang. A panic is in the log already.
        match host.threads.blocking(read).await.ok().flatten() {
            None => {}
            Some(Ok((fresh_stamps, fresh))) => {
                stamps = fresh_stamps;
                credentials.send_replace(Arc::new(fresh));
                let recovered = outage.recovered().is_some();
                info!("server credentials {}", if recovered { "recovered" } else { "reloaded" });
            }
            Some(Err(error)) => {
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
    const WHAT: &str = "token file";
    let text = read_file(disk, WHAT, path)?;
    let token = text.trim_ascii();
    let problem = if token.is_empty() {
        "the file is empty: write a token into it, such as the output of openssl rand -hex 32"
    } else if !token.iter().all(u8::is_ascii_graphic) {
        "the token is invalid: it must be one word of printable ASCII"
    } else {
        return Ok(TokenDigest::new(token));
    };
    Err(CredentialError::Unusable { what: WHAT, path: path.to_owned(), problem: problem.to_owned() })
}

fn read_tls(
    disk: &Disk,
    files: &CertificateFiles,
    client_ca: Option<&Path>,
) -> Result<ServerTls, CredentialError> {
    const CERTIFICATE: &str = "TLS certificate";
    const KEY: &str = "TLS private key";
    const CLIENT_CA: &str = "client CA file";
    let unusable = |what, path: &Path, problem: String| CredentialError::Unusable {
        what,
        path: path.to_owned(),
        problem,
    };
    let provider = Arc::new(ring::default_provider());
    let chain = read_certificates(disk, CERTIFICATE, &files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read_file(disk, KEY, &files.key)?).map_err(|_| {
        let problem = "the file has no private key in PEM (encrypted keys are not supported)";
        unusable(KEY, &files.key, problem.to_owned())
    })?;
    let pair = |error: rustls::Error| {
        let problem = format!("the certificate does not match the key in {}: {error}", files.key.display());
        unusable(CERTIFICATE, &files.certificate, problem)
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let rejected = |error: &dyn fmt::Display| unusable(CLIENT_CA, path, error.to_string());
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(disk, CLIENT_CA, path)? {
                roots.add(certificate).map_err(|error| rejected(&error))?;
            }
            // A client without a certificate may have a token or read an open path.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| rejected(&error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certificate = chain[0].clone();
    let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(ServerTls { config: Arc::new(config), certificate })
}

/// The certificates of a file, at least one.
fn read_certificates(
    disk: &Disk,
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let text = read_file(disk, what, path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| {
        CredentialError::Unusable {
            what,
            path: path.to_owned(),
            problem: "the file has no certificate in PEM".to_owned(),
        }
    })
}
