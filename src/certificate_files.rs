//! The files of a certificate and its key.

use std::path::PathBuf;

/// The files of a certificate and its private key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by the intermediate ones.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}
