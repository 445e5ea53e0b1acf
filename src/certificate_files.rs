//! The files of a certificate and its key.

use std::path::PathBuf;

use crate::{
    host::Host,
    pem::{self, Validity},
};

/// The largest file of certificates that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The files of a certificate and its private key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by the intermediate ones.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// Why the certificate is not valid now, with its path; nothing if it is valid or cannot be read. It blocks.
    pub(crate) fn invalid_now(&self, host: &Host) -> Option<String> {
        let text = host.disk.read(&self.certificate, MAX_FILE).ok()?;
        let chain = pem::certificates(&text).ok()?;
        let problem = Validity::of(chain.first()?)?.problem(host.clock.now())?;
        Some(format!("{}: {problem}", self.certificate.display()))
    }
}
