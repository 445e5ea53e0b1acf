//! The client's side of TLS: the trusted CAs, and a client certificate.

use std::{io, path::Path, sync::Arc};

use hyper_rustls::ConfigBuilderExt as _;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
};

use super::error::ClientError;
use crate::{
    certificate_files::CertificateFiles,
    host::Disk,
    pem::{self, PemError},
};

/// The largest file of certificates or of a key that is read, in bytes.
const MAX_FILE: u64 = 10 << 20;

/// What was read from the files of the settings.
pub(super) struct TlsFiles {
    /// The trusted CAs; the system's without.
    roots: Option<RootCertStore>,
    /// A client certificate with its key, and the files that they were read from.
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, CertificateFiles)>,
    /// Whether every certificate of a server is accepted.
    accepts_any: bool,
}

impl TlsFiles {
    pub(super) fn read(
        disk: &Disk,
        ca_file: Option<&Path>,
        identity: Option<&CertificateFiles>,
        accepts_any: bool,
    ) -> Result<Self, ClientError> {
        let roots = ca_file.map(|path| {
            let mut roots = RootCertStore::empty();
            for certificate in read(disk, path, pem::certificates)? {
                roots.add(certificate).map_err(|error| ClientError::Ca(path.to_owned(), error))?;
            }
            Ok(roots)
        });
        let identity = identity.map(|files| {
            let chain = read(disk, &files.certificate, pem::certificates)?;
            let key = read(disk, &files.key, pem::private_key)?;
            Ok((chain, key, files.clone()))
        });
        Ok(Self { roots: roots.transpose()?, identity: identity.transpose()?, accepts_any })
    }

    /// The configuration of TLS. It reads the system's CAs if no others are trusted, so it may block.
    pub(super) fn config(&self) -> Result<ClientConfig, ClientError> {
        let own = self.identity.as_ref().map(|(chain, key, _)| (chain.clone(), key.clone_key()));
        config(self.roots.clone(), own, self.accepts_any).map_err(|error| match (error, &self.identity) {
            (TlsError::Identity(error), Some((.., files))) => ClientError::Identity(files.clone(), error),
            (TlsError::Identity(error), None) => ClientError::Roots(io::Error::other(error)),
            (TlsError::Roots(error), _) => ClientError::Roots(error),
        })
    }
}

fn read<T>(disk: &Disk, path: &Path, parse: fn(&[u8]) -> Result<T, PemError>) -> Result<T, ClientError> {
    let text = disk.read(path, MAX_FILE);
    let text = text.map_err(|error| ClientError::File(path.to_owned(), error))?;
    parse(&text).map_err(|error| ClientError::Pem(path.to_owned(), error))
}

/// Why there is no configuration of TLS.
pub(crate) enum TlsError {
    /// The system's CAs cannot be read.
    Roots(io::Error),
    /// The certificate and the key cannot be used together.
    Identity(rustls::Error),
}

/// A configuration of TLS that trusts these CAs (the system's without) or accepts every certificate of a server, with a
/// client certificate if there is one. It may read the system's CAs, so it may block.
pub(crate) fn config(
    roots: Option<RootCertStore>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    accepts_any: bool,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Roots(io::Error::other(error)))?;
    let builder = match roots.or(accepts_any.then(RootCertStore::empty)) {
        Some(roots) => builder.with_root_certificates(roots),
        None => builder.with_native_roots().map_err(TlsError::Roots)?,
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(TlsError::Identity)?,
    };
    if accepts_any {
        config.dangerous().set_certificate_verifier(Arc::new(AcceptAny));
    }
    Ok(config)
}

/// Accepts every certificate of a server. So the signature of its key proves nothing, and is not verified: the key may be
/// of a kind, or in a certificate, that cannot be read here.
#[derive(Debug)]
struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = ring::default_provider().signature_verification_algorithms.supported_schemes();
        schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        schemes
    }
}
