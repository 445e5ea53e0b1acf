//! TLS to the API server: the trusted CAs and the client certificate.

use std::io;

use jiff::Timestamp;
use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};

use super::error::ConnectError;
use crate::{
    client::{TlsError, tls_config},
    pem::{self, PemError, Validity},
};

/// A PEM text from the kubeconfig, from a file that it names, or from a plugin.
pub(super) struct PemSource {
    pub(super) bytes: Vec<u8>,
    /// Where it is from, for messages.
    pub(super) place: String,
}

impl PemSource {
    /// What is in it.
    pub(super) fn parse<T>(&self, parse: fn(&[u8]) -> Result<T, PemError>) -> Result<T, ConnectError> {
        parse(&self.bytes).map_err(|error| ConnectError::Pem { place: self.place.clone(), error })
    }
}

/// A client certificate and its key.
pub(super) struct CertificateAndKey {
    pub(super) certificate: PemSource,
    pub(super) key: PemSource,
}

/// Which certificate of the API server is trusted.
pub(super) struct ServerTrust {
    /// One from these CAs, or without them from a CA of this system.
    pub(super) authorities: Option<Vec<CertificateDer<'static>>>,
    /// Any (`insecure-skip-tls-verify`).
    pub(super) is_any: bool,
}

/// The configuration of TLS. It may read the system's CAs, so it may block.
pub(super) fn tls(
    trust: &ServerTrust,
    client: Option<&CertificateAndKey>,
    now: Timestamp,
) -> Result<ClientConfig, ConnectError> {
    let roots = trust.authorities.as_deref().map(|authorities| {
        let mut roots = RootCertStore::empty();
        // As Go's client, skip a CA that cannot be parsed.
        roots.add_parsable_certificates(authorities.iter().cloned());
        roots
    });
    let identity = client.map(|client| {
        let chain = client.certificate.parse(pem::certificates)?;
        if let Some(at) = chain.first().and_then(|own| Some(Validity::of(own)?.end)).filter(|at| *at < now) {
            return Err(ConnectError::Expired { place: client.certificate.place.clone(), at });
        }
        Ok((chain, client.key.parse(pem::private_key)?))
    });
    tls_config(roots, identity.transpose()?, trust.is_any).map_err(|error| match (error, client) {
        (TlsError::Identity(error), Some(client)) => {
            let (certificate, key) = (client.certificate.place.clone(), client.key.place.clone());
            ConnectError::CertificateAndKey { certificate, key, error }
        }
        (TlsError::Identity(error), None) => ConnectError::Roots(io::Error::other(error)),
        (TlsError::Roots(error), _) => ConnectError::Roots(error),
    })
}
