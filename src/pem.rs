//! Certificates and private keys in PEM text.

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use x509_cert::{Certificate, der::Decode as _, time::Time};

/// Why a PEM text cannot be used. It quotes nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// There is no certificate, or one of them is damaged.
    #[error(
        "no certificate was found in it; PEM text is expected, which begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// There is no private key, or it is damaged or encrypted.
    #[error(
        "no private key was found in it; PEM text is expected, which begins with -----BEGIN PRIVATE KEY----- (an encrypted key cannot be used)"
    )]
    NoPrivateKey,
}

/// The certificates of a PEM text, in its order; at least one.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    certificates.ok().filter(|found| !found.is_empty()).ok_or(PemError::NoCertificate)
}

/// The first private key of a PEM text.
pub(crate) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|_| PemError::NoPrivateKey)
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    begin: Timestamp,
    pub(crate) end: Timestamp,
}

impl Validity {
    /// That of a certificate; nothing if it is not valid DER.
    pub(crate) fn of(certificate: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let validity = certificate.tbs_certificate().validity();
        // The year 9999 stands for no end, and its last day is beyond the largest time.
        let at = |time: &Time| {
            let seconds = time.to_unix_duration().as_secs().try_into().unwrap_or(i64::MAX);
            Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
        };
        Some(Self { begin: at(&validity.not_before), end: at(&validity.not_after) })
    }

    /// Why the certificate is not valid at a time.
    pub(crate) fn problem(self, now: Timestamp) -> Option<String> {
        let Self { begin, end } = self;
        if end < now {
            return Some(format!(
                "the certificate expired at {end}; replace it (if it has not expired, set this machine's clock)"
            ));
        }
        (now < begin).then(|| {
            format!("the certificate is valid from {begin} to {end} only (is this machine's clock right?)")
        })
    }
}

/// The part of the error's text for a certificate of X.509 version 1: the library's type of it is private.
pub(crate) const UNSUPPORTED_VERSION: &str = "UnsupportedCertVersion";
/// Why such a certificate cannot be used, and what to do.
pub(crate) const OLD_VERSION: &str = "the certificate is of an X.509 version before 3, which is not supported; issue it again with an extension (openssl: -extfile)";

/// Why a certificate cannot be used with a key, as far as it is known.
pub(crate) fn identity_hint(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InconsistentKeys(_) => "do they belong together?",
        error if error.to_string().contains(UNSUPPORTED_VERSION) => OLD_VERSION,
        _ => {
            "is the kind of key supported? use ECDSA with P-256 or P-384, Ed25519, or RSA with 2,048 bits or more"
        }
    }
}
