//! Makes what the settings do not name: a certificate authority, the server's certificate and the tokens.

use std::{io, path::Path, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, date_time_ymd,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{ServerName, UnixTime},
};
use sha2::{Digest as _, Sha256};
use tracing::info;
use x509_cert::{Certificate, der::Decode as _, ext::pkix::SubjectAltName};

use super::credentials::{CredentialError, MAX_FILE};
use crate::{
    hex::hex,
    host::{Disk, Host, Open},
    pem,
    server::config::Generated,
};

pub(super) const CA: &str = "ca.crt";
pub(super) const CA_KEY: &str = "ca.key";
pub(super) const CERTIFICATE: &str = "server.crt";
pub(super) const KEY: &str = "server.key";
pub(super) const TOKEN: &str = "token";
pub(super) const READ_TOKEN: &str = "read-token";

/// How long a certificate of the server is valid.
const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long before its end it is renewed: a third of its life.
const RENEWAL: SignedDuration = SignedDuration::from_hours(365 * 24 / 3);
/// What messages call a file that is made here.
const WHAT: &str = "generated file";
/// The length of a token, in bytes.
const TOKEN_BYTES: usize = 32;

impl Generated {
    /// The names of the server's certificate. The host may be renamed while the agent runs.
    pub(super) fn names(&self) -> Vec<String> {
        let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let mut names = self.names.clone();
        if !names.contains(&host) {
            names.push(host);
        }
        // A node may be called `1`, and a host without a name is `(none)`: no client asks for these.
        names.retain(|name| ServerName::try_from(&**name).is_ok());
        names
    }

    /// Writes a token unless there is one.
    pub(super) fn make_token(&self, host: &Host, name: &str) -> Result<(), CredentialError> {
        if host.disk.stamp(&self.directory.join(name)).is_ok() {
            return Ok(());
        }
        let mut token = [0; TOKEN_BYTES];
        host.random.fill(&mut token);
        self.write(&host.disk, name, &hex(&token))
    }

    /// Issues a certificate for the server, unless there is one that is valid for long enough and
    /// has the right names. Returns when the certificate is to be renewed.
    pub(super) fn make_certificate(&self, host: &Host) -> Result<Timestamp, CredentialError> {
        let (now, names) = (host.clock.now(), self.names());
        if let Some(renewal) = self.renewal(&host.disk, &names, now) {
            return Ok(renewal);
        }
        let issuer = self.authority(&host.disk)?;
        let failed = |error: rcgen::Error| self.unusable(CERTIFICATE, error.to_string());
        let key = KeyPair::generate().map_err(failed)?;
        let mut leaf = params(CertificateParams::new(names.clone()).map_err(failed)?, "podmux");
        let end = now.checked_add(LIFE).unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date();
        let (month, day) = (end.month().unsigned_abs(), end.day().unsigned_abs());
        leaf.not_after = date_time_ymd(end.year().into(), month, day);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let certificate = leaf.signed_by(&key, &issuer).map_err(failed)?;
        self.write(&host.disk, KEY, &key.serialize_pem())?;
        self.write(&host.disk, CERTIFICATE, &certificate.pem())?;
        info!(path = %self.directory.join(CERTIFICATE).display(), "server certificate issued");
        self.renewal(&host.disk, &names, now).ok_or_else(|| {
            let problem = "it has not signed the certificate that was issued with ca.key: restore both files, or \
                           remove both for a new authority, which all clients have to be given";
            self.unusable(CA, problem.to_owned())
        })
    }

    /// When the server's certificate is to be renewed; `None` if that is now.
    fn renewal(&self, disk: &Disk, names: &[String], now: Timestamp) -> Option<Timestamp> {
        let read = |name| self.read(disk, name).ok();
        let leaf = pem::certificates(read(CERTIFICATE)?.as_bytes()).ok()?.swap_remove(0);
        let parsed = Certificate::from_der(&leaf).ok()?;
        let tbs = parsed.tbs_certificate();
        let key = KeyPair::from_pem(&read(KEY)?).ok()?;
        if tbs.subject_public_key_info().subject_public_key.raw_bytes() != key.der_bytes() {
            return None;
        }
        let mut roots = RootCertStore::empty();
        roots.add(pem::certificates(read(CA)?.as_bytes()).ok()?.swap_remove(0)).ok()?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().ok()?;
        let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().ok()?));
        let is_for = |name: &String| {
            let name = ServerName::try_from(&**name);
            name.is_ok_and(|name| verifier.verify_server_cert(&leaf, &[], &name, &[], time).is_ok())
        };
        let (_, SubjectAltName(certified)) = tbs.get_extension().ok()??;
        let end = tbs.validity().not_after.to_unix_duration().as_secs();
        let renewal = Timestamp::from_second(end.try_into().ok()?).ok()?.checked_sub(RENEWAL).ok()?;
        (renewal > now && certified.len() == names.len() && names.iter().all(is_for)).then_some(renewal)
    }

    /// The certificate authority, made if there is none. It stays: clients trust it.
    fn authority(&self, disk: &Disk) -> Result<Issuer<'static, KeyPair>, CredentialError> {
        let failed = |error: rcgen::Error| self.unusable(CA_KEY, error.to_string());
        let missing = |name| disk.stamp(&self.directory.join(name)).is_err();
        if missing(CA_KEY) && missing(CA) {
            self.write(disk, CA_KEY, &KeyPair::generate().map_err(failed)?.serialize_pem())?;
        }
        let key = KeyPair::from_pem(&self.read(disk, CA_KEY)?).map_err(failed)?;
        // Certificates of many agents may be trusted by one client: their names differ.
        let digest = hex(&Sha256::digest(key.der_bytes()));
        let mut ca = params(CertificateParams::default(), &format!("podmux {}", &digest[..16]));
        ca.not_after = date_time_ymd(9999, 12, 31);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        if missing(CA) {
            self.write(disk, CA, &ca.self_signed(&key).map_err(failed)?.pem())?;
        }
        Ok(Issuer::new(ca, key))
    }

    fn read(&self, disk: &Disk, name: &str) -> Result<String, CredentialError> {
        let path = self.directory.join(name);
        let read = disk.read(&path, MAX_FILE).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        read.map_err(|error| CredentialError::Unreadable { what: WHAT, path, error })
    }

    /// Replaces a file, so that it is always complete.
    fn write(&self, disk: &Disk, name: &str, text: &str) -> Result<(), CredentialError> {
        let (path, new) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
        let written = || -> io::Result<()> {
            disk.create_dir(&self.directory)?;
            let file = disk.open(&new, Open::Create)?;
            file.set_len(0)?;
            file.write_at(0, text.as_bytes())?;
            file.sync_all()?;
            disk.rename(&new, &path)?;
            sync(disk, &self.directory)?;
            self.directory.parent().map_or(Ok(()), |parent| sync(disk, parent))
        };
        written().map_err(|error| CredentialError::Unwritable { path: path.clone(), error })
    }

    fn unusable(&self, name: &str, problem: String) -> CredentialError {
        CredentialError::Unusable { what: WHAT, path: self.directory.join(name), problem }
    }
}

/// A certificate with a name. It is valid from the beginning of time on, because a clock without a
/// battery starts there.
fn params(mut params: CertificateParams, name: &str) -> CertificateParams {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(1970, 1, 1);
    params
}

fn sync(disk: &Disk, directory: &Path) -> io::Result<()> {
    disk.open(directory, Open::Read)?.sync_all()
}
