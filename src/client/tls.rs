//! Whom the client trusts, and who it says it is.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper_rustls::ConfigBuilderExt as _;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};

use super::ClientError;
use crate::certificate_files::CertificateFiles;

/// What was read from the settings' files.
pub(super) struct Tls {
    /// The system's, if there are none.
    roots: Option<RootCertStore>,
    identity: Option<Pair>,
}

/// A certificate and its key, and where they came from.
struct Pair {
    certs: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    files: CertificateFiles,
}

impl Tls {
    pub(super) fn read(
        ca_file: Option<&Path>,
        identity: Option<&CertificateFiles>,
    ) -> Result<Self, ClientError> {
        let roots = ca_file.map(|path| {
            let mut roots = RootCertStore::empty();
            for cert in certificates(path)? {
                roots.add(cert).map_err(|error| ClientError::Ca { path: path.to_owned(), error })?;
            }
            Ok(roots)
        });
        let identity = identity.map(|files| {
            let certs = certificates(&files.certificate)?;
            let key = PrivateKeyDer::from_pem_file(&files.key)
                .map_err(|error| unreadable(&files.key, "private key", error))?;
            Ok(Pair { certs, key, files: files.clone() })
        });
        Ok(Self { roots: roots.transpose()?, identity: identity.transpose()? })
    }

    /// The configuration of TLS. Reads the system's CAs if they are needed, so it may block.
    pub(super) fn config(&self) -> Result<ClientConfig, ClientError> {
        let identity = self.identity.as_ref().map(|pair| (pair.certs.clone(), pair.key.clone_key()));
        config(self.roots.clone(), identity).map_err(|error| match (error, &self.identity) {
            (NoTls::Identity(error), Some(Pair { files, .. })) => {
                let CertificateFiles { certificate: cert_file, key: key_file } = files.clone();
                ClientError::Identity { cert_file, key_file, error }
            }
            (NoTls::Identity(error), None) => ClientError::Roots(io::Error::other(error)),
            (NoTls::Roots(error), _) => ClientError::Roots(error),
        })
    }
}

/// Why there is no TLS.
pub(crate) enum NoTls {
    /// The system's CAs cannot be had.
    Roots(io::Error),
    /// Certificate and key cannot be used together.
    Identity(rustls::Error),
}

/// TLS that trusts these CAs, or else the system's, with a client's certificate
/// if there is one. Reads the system's CAs if they are needed, so it may block.
pub(crate) fn config(
    roots: Option<RootCertStore>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, NoTls> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| NoTls::Roots(io::Error::other(error)))?;
    let builder = match roots {
        Some(roots) => builder.with_root_certificates(roots),
        None => builder.with_native_roots().map_err(NoTls::Roots)?,
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certs, key)) => builder.with_client_auth_cert(certs, key).map_err(NoTls::Identity),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let unreadable = |error| unreadable(path, "certificate", error);
    let certs: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect();
    let certs = certs.map_err(unreadable)?;
    if certs.is_empty() {
        return Err(unreadable(pem::Error::NoItemsFound));
    }
    Ok(certs)
}

fn unreadable(path: &Path, what: &'static str, error: pem::Error) -> ClientError {
    let path: PathBuf = path.to_owned();
    match error {
        pem::Error::Io(error) => ClientError::File { path, error },
        _ => ClientError::Pem { path, what },
    }
}
