//! Certificates, keys, and the TLS that is made of them.

use std::{io, sync::Arc};

use jiff::Timestamp;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};

use super::ConnectError;
use crate::client::{self, NoTls};

/// Something that stands in the kubeconfig itself, in a file that it names, or
/// in what a plugin printed.
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    /// Where it was found, for people.
    pub(super) place: String,
}

/// A client certificate and its key.
pub(super) struct Pair {
    pub(super) certificate: Found,
    pub(super) key: Found,
}

/// Whom the API server may be.
pub(super) enum Trust {
    /// Who has a certificate of a CA of this system.
    System,
    /// Who has a certificate of these CAs.
    Authorities(Vec<CertificateDer<'static>>),
    /// Anybody: the kubeconfig says so.
    Anybody,
}

/// The certificates in a PEM text; at least one.
pub(super) fn certificates(
    found: &Found,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&found.bytes).collect();
    let none = || ConnectError::Pem { what, place: found.place.clone() };
    certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(none)
}

/// The TLS to the API server. Reads the system's CAs if those are trusted, so it may block.
pub(super) fn tls(trust: &Trust, pair: Option<&Pair>, now: Timestamp) -> Result<ClientConfig, ConnectError> {
    let roots = match trust {
        Trust::System => None,
        Trust::Authorities(authorities) => {
            let mut roots = RootCertStore::empty();
            // As Go's client has it: one that it does not understand costs only itself.
            roots.add_parsable_certificates(authorities.iter().cloned());
            Some(roots)
        }
        // Nothing is compared with them.
        Trust::Anybody => Some(RootCertStore::empty()),
    };
    let identity = pair.map(|pair| identity(pair, now)).transpose()?;
    let mut config = client::tls_config(roots, identity).map_err(|error| match (error, pair) {
        (NoTls::Identity(error), Some(pair)) => {
            let (certificate, key) = (pair.certificate.place.clone(), pair.key.place.clone());
            ConnectError::Pair { certificate, key, error }
        }
        (NoTls::Identity(error), None) => ConnectError::Roots(io::Error::other(error)),
        (NoTls::Roots(error), _) => ConnectError::Roots(error),
    })?;
    if matches!(trust, Trust::Anybody) {
        config.dangerous().set_certificate_verifier(Arc::new(Unverified(ring::default_provider())));
    }
    Ok(config)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(pair: &Pair, now: Timestamp) -> Result<Identity, ConnectError> {
    let chain = certificates(&pair.certificate, "certificate")?;
    let place = || pair.certificate.place.clone();
    if let Some(at) = chain.first().and_then(|own| not_after(own)).filter(|at| *at < now) {
        return Err(ConnectError::Expired { place: place(), at });
    }
    let key = PrivateKeyDer::from_pem_slice(&pair.key.bytes);
    let key = key.map_err(|_| ConnectError::Pem { what: "private key", place: pair.key.place.clone() })?;
    Ok((chain, key))
}

/// Until when a certificate is valid (RFC 5280, 4.1): the second time of its
/// validity. Nothing if it is not written as a certificate is.
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (_, certificate, _) = element(certificate)?;
    let (_, body, _) = element(certificate)?;
    let (tag, _, after_first) = element(body)?;
    // Version 1 does not say so.
    let mut rest = if tag == VERSION { element(after_first)?.2 } else { after_first };
    // The algorithm and the issuer; then the validity.
    for _ in 0..2 {
        rest = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?.2;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, rest) = element(validity)?;
    let (tag, text, _) = element(rest)?;
    time(tag, str::from_utf8(text).ok()?)
}

/// The first element of DER: its tag, what it has in it, and what comes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // So many bytes say the length.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `260101000000Z` as a `UTCTime`, or `20260101000000Z` as a `GeneralizedTime`.
fn time(tag: u8, text: &str) -> Option<Timestamp> {
    const UTC_TIME: u8 = 0x17;
    let century = match tag {
        UTC_TIME if *text.as_bytes().first()? >= b'5' => "19",
        UTC_TIME => "20",
        _ => "",
    };
    let digits = format!("{century}{}", text.strip_suffix('Z')?);
    if digits.len() != 14 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let part = |at: usize, length: usize| &digits[at..at + length];
    let (year, month, day) = (part(0, 4), part(4, 2), part(6, 2));
    let (hour, minute, second) = (part(8, 2), part(10, 2), part(12, 2));
    format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z").parse().ok()
}

/// Takes whatever certificate the server shows (`insecure-skip-tls-verify`).
#[derive(Debug)]
struct Unverified(CryptoProvider);

impl ServerCertVerifier for Unverified {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
