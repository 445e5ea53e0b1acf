//! The token and the certificates: read from files, and read again when these change.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
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
    task::spawn_blocking,
    time::{Duration, sleep},
};
use tracing::{info, warn};

use crate::{certificate_files::CertificateFiles, error_chain::chain, server::config::Config};

/// The largest file of certificates or with a token, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Why token or certificates cannot be used. No text of a file is ever told.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be read.
    #[error("{what} {}: cannot be read; does it exist, and may this process read it?", path.display())]
    Unreadable {
        /// What it is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{what} {}: {problem}", path.display())]
    Unusable {
        /// What it is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is needed.
        problem: String,
    },
}

/// Where token and certificates are.
#[derive(Clone, Debug)]
pub(super) struct CredentialFiles {
    token: Option<PathBuf>,
    tls: Option<CertificateFiles>,
    client_ca: Option<PathBuf>,
}

/// Token and certificates, as they are now.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) token: Option<Token>,
    pub(super) tls: Option<Tls>,
    /// Whether a client may show a certificate.
    pub(super) certificates: bool,
}

/// A token's SHA-256: what is compared has the same length whatever is said, and
/// the token itself is nowhere in memory.
pub(super) struct Token([u8; 32]);

impl Token {
    fn new(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Whether this is the token; it takes as long for any other as for the right one.
    pub(super) fn is(&self, said: &[u8]) -> bool {
        self.0.ct_eq(&Self::new(said).0).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The server's side of TLS.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl Tls {
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

    /// Reads them all, and says what they looked like before they were read. It blocks.
    pub(super) fn read(&self) -> Result<(Stamp, Credentials), CredentialError> {
        let stamp = self.stamp();
        let token = self.token.as_deref().map(read_token).transpose()?;
        let tls = self.tls.as_ref().map(|tls| read_tls(tls, self.client_ca.as_deref())).transpose()?;
        Ok((stamp, Credentials { token, tls, certificates: self.client_ca.is_some() }))
    }

    /// What changes when a file does: a write, a rename, a symbolic link that
    /// leads elsewhere. It blocks.
    fn stamp(&self) -> Stamp {
        let stamp = |path| {
            let file = fs::metadata(path).ok()?;
            Some(FileStamp {
                file: (file.dev(), file.ino()),
                size: file.size(),
                written: (file.mtime(), file.mtime_nsec()),
                changed: (file.ctime(), file.ctime_nsec()),
            })
        };
        self.paths().map(stamp).collect()
    }
}

/// Everything that is wrong with the files of token and certificates. It reads them, and blocks.
#[must_use]
pub fn check(settings: &Config) -> Vec<CredentialError> {
    let CredentialFiles { token, tls, client_ca } = CredentialFiles::new(settings);
    let token = token.and_then(|path| read_token(&path).err());
    let tls = tls.and_then(|files| read_tls(&files, client_ca.as_deref()).err());
    token.into_iter().chain(tls).collect()
}

/// What the files look like from outside; `None` for one that is not there.
pub(super) type Stamp = Vec<Option<FileStamp>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// Reads the files again when they have changed since they looked like that, and
/// when told which they are (others, or the same). What cannot be used leaves
/// everything as it was: the files of a certificate and its key never change in
/// the same instant. Ends when nobody can tell any more.
pub(super) async fn keep_fresh(
    mut named: watch::Receiver<CredentialFiles>,
    mut seen: Stamp,
    credentials: watch::Sender<Arc<Credentials>>,
    every: Duration,
) {
    let mut failing = false;
    loop {
        let any = named.borrow().paths().next().is_some();
        let at_once = tokio::select! {
            () = sleep(every), if any => false,
            told = named.changed() => match told {
                Ok(()) => true,
                Err(_) => return,
            },
        };
        let (files, last) = (named.borrow_and_update().clone(), seen.clone());
        if files.paths().next().is_none() {
            continue;
        }
        let look = move || (at_once || failing || files.stamp() != last).then(|| files.read());
        // The files may stand on a network that hangs. If it panics, the log has it.
        match spawn_blocking(look).await.ok().flatten() {
            None => {}
            Some(Ok((stamp, fresh))) => {
                seen = stamp;
                credentials.send_replace(Arc::new(fresh));
                let how = if failing { "recovered" } else { "read anew" };
                info!("the server's token and certificates: {how}");
                failing = false;
            }
            Some(Err(error)) => {
                // Whoever asked is told, even if it is known.
                if !failing || at_once {
                    let error = chain(&error);
                    warn!(
                        error,
                        "the server's token and certificates cannot be used; those from before stay"
                    );
                }
                failing = true;
            }
        }
    }
}

fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, CredentialError> {
    let failed = |error| CredentialError::Unreadable { what, path: path.to_owned(), error };
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text)).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
    }
    Ok(text)
}

fn read_token(path: &Path) -> Result<Token, CredentialError> {
    const WHAT: &str = "token file";
    let text = read_file(WHAT, path)?;
    let token = text.trim_ascii();
    let problem = if token.is_empty() {
        "it is empty; a token is needed, the output of openssl rand -hex 32 for one"
    } else if !token.iter().all(u8::is_ascii_graphic) {
        "there is more than a token in it: one word of printable ASCII is needed"
    } else {
        return Ok(Token::new(token));
    };
    Err(CredentialError::Unusable { what: WHAT, path: path.to_owned(), problem: problem.to_owned() })
}

fn read_tls(files: &CertificateFiles, client_ca: Option<&Path>) -> Result<Tls, CredentialError> {
    const CERTIFICATE: &str = "TLS certificate";
    const KEY: &str = "TLS private key";
    const CLIENT_CA: &str = "client CA file";
    let unusable = |what, path: &Path, problem: String| CredentialError::Unusable {
        what,
        path: path.to_owned(),
        problem,
    };
    let provider = Arc::new(ring::default_provider());
    let chain = read_certificates(CERTIFICATE, &files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read_file(KEY, &files.key)?).map_err(|_| {
        unusable(
            KEY,
            &files.key,
            "there is no private key in PEM in it (an encrypted one is none)".to_owned(),
        )
    })?;
    let pair = |error: rustls::Error| {
        let problem = format!("it does not go with the key in {}: {error}", files.key.display());
        unusable(CERTIFICATE, &files.certificate, problem)
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let refused = |error: &dyn fmt::Display| unusable(CLIENT_CA, path, error.to_string());
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(CLIENT_CA, path)? {
                roots.add(certificate).map_err(|error| refused(&error))?;
            }
            // Who shows none may have a token, or asks only whether the agent is alive.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| refused(&error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certificate = chain[0].clone();
    let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Tls { config: Arc::new(config), certificate })
}

/// The certificates of a file, at least one.
fn read_certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let text = read_file(what, path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| {
        CredentialError::Unusable {
            what,
            path: path.to_owned(),
            problem: "there is no certificate in PEM in it".to_owned(),
        }
    })
}
