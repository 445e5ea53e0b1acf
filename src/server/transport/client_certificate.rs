//! The certificate of a client, which may become invalid while the connection is open.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_cert::{Certificate, der::Decode as _};

use super::credentials::Credentials;

/// The certificate that a client has sent in the handshake, with its chain.
pub(super) struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    /// When the first certificate of the chain expires.
    end: Duration,
    /// What it was verified against last.
    verified: Mutex<Arc<Credentials>>,
}

impl ClientCertificate {
    /// A chain that the handshake has verified against these credentials.
    pub(super) fn new(chain: Vec<CertificateDer<'static>>, verified: Arc<Credentials>) -> Self {
        let end = |certificate| {
            let certificate = Certificate::from_der(certificate).ok()?;
            Some(certificate.tbs_certificate().validity().not_after.to_unix_duration())
        };
        let end = chain.iter().map(|certificate| end(certificate).unwrap_or_default()).min();
        Self { end: end.unwrap_or_default(), chain, verified: Mutex::new(verified) }
    }

    /// Whether it is valid now. It is verified again if the credentials have changed or its time is over.
    pub(super) fn is_valid(&self, credentials: &Arc<Credentials>, now: Timestamp) -> bool {
        // A panic under the lock leaves it as it was.
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Duration::from_secs(now.as_second().try_into().unwrap_or_default());
        if Arc::ptr_eq(&verified, credentials) && now < self.end {
            return true;
        }
        let (Some(clients), Some((own, others))) = (&credentials.clients, self.chain.split_first()) else {
            return false;
        };
        let is_valid = clients.verify_client_cert(own, others, UnixTime::since_unix_epoch(now)).is_ok();
        if is_valid {
            *verified = credentials.clone();
        }
        is_valid
    }
}
