//! Makes what the settings do not name: a certificate authority, the server's certificate and the tokens.

use std::{io, path::Path};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, date_time_ymd,
};
use rustls::pki_types::ServerName;
use sha2::{Digest as _, Sha256};
use tracing::info;
use x509_cert::{Certificate, der::Decode as _};

use super::credential_error::{CredentialError, MAX_FILE};
use crate::{
    hex::hex,
    host::{Disk, Host, Open},
    pem,
    server::config::Generated,
};

pub(super) const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
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

impl Generated {
    /// Writes a token unless there is one.
    pub(super) fn make_token(&self, host: &Host, name: &str) -> Result<(), CredentialError> {
        if !self.is_missing(&host.disk, name) {
            return Ok(());
        }
        let mut token = [0; 32];
        host.random.fill(&mut token);
        self.write(&host.disk, name, &hex(&token))
    }

    /// Issues a certificate for the server, unless there is one that is valid for long enough, for
    /// the right names and from the authority.
    pub(super) fn make_certificate(&self, host: &Host) -> Result<(), CredentialError> {
        // The host may be renamed while the agent runs.
        let host_name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let mut names = self.names.clone();
        names.extend((!names.contains(&host_name)).then_some(host_name));
        // A node may be called `1`, and a host without a name is `(none)`: no client asks for these.
        names.retain(|name| ServerName::try_from(&**name).is_ok());
        // The names need not be read back from a certificate whose subject has their digest.
        let subject = digest("podmux server", names.join(" ").as_bytes());
        let now = host.clock.now();
        if self.is_current(&host.disk, &subject, now).unwrap_or(false) {
            return Ok(());
        }
        let issuer = self.authority(&host.disk)?;
        let failed = |error: rcgen::Error| self.unusable(CERTIFICATE, &error);
        let key = KeyPair::generate().map_err(failed)?;
        let mut leaf = params(CertificateParams::new(names).map_err(failed)?, subject);
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
        Ok(())
    }

    /// Whether there is a certificate that can be used; `None` if a file is missing or invalid.
    fn is_current(&self, disk: &Disk, subject: &str, now: Timestamp) -> Option<bool> {
        let certificate = |name| {
            let text = self.read(disk, name).ok()?;
            Certificate::from_der(pem::certificates(text.as_bytes()).ok()?.first()?).ok()
        };
        let (ca, leaf) = (certificate(CA)?, certificate(CERTIFICATE)?);
        let (ca, leaf) = (ca.tbs_certificate(), leaf.tbs_certificate());
        let key = KeyPair::from_pem(&self.read(disk, KEY).ok()?).ok()?;
        let end = leaf.validity().not_after.to_unix_duration().as_secs();
        Some(
            leaf.subject().to_string() == format!("CN={subject}")
                && leaf.issuer() == ca.subject()
                && leaf.subject_public_key_info().subject_public_key.raw_bytes() == key.der_bytes()
                && Timestamp::from_second(end.try_into().ok()?).ok()?.duration_since(now) > RENEWAL,
        )
    }

    /// The certificate authority, made if there is none. It stays: clients trust it.
    fn authority(&self, disk: &Disk) -> Result<Issuer<'static, KeyPair>, CredentialError> {
        let failed = |error: rcgen::Error| self.unusable(CA_KEY, &error);
        if self.is_missing(disk, CA_KEY) {
            if !self.is_missing(disk, CA) {
                return Err(self
                    .unusable(CA_KEY, &"it is missing: put it back, or remove ca.crt for a new authority"));
            }
            self.write(disk, CA_KEY, &KeyPair::generate().map_err(failed)?.serialize_pem())?;
        }
        let key = KeyPair::from_pem(&self.read(disk, CA_KEY)?).map_err(failed)?;
        // The authorities of many agents may be trusted by one client: their names differ.
        let mut ca = params(CertificateParams::default(), digest("podmux", key.der_bytes()));
        ca.not_after = date_time_ymd(9999, 12, 31);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        if self.is_missing(disk, CA) {
            self.write(disk, CA, &ca.self_signed(&key).map_err(failed)?.pem())?;
        }
        Ok(Issuer::new(ca, key))
    }

    /// Checks that no other user has made the files, or can replace them.
    pub(super) fn check(&self, disk: &Disk) -> Result<(), CredentialError> {
        match disk.check_private(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CredentialError::Unreadable("directory", self.directory.clone(), error))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is no such file. One that cannot be looked up now is not replaced.
    pub(super) fn is_missing(&self, disk: &Disk, name: &str) -> bool {
        let found = disk.stamp(&self.directory.join(name));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn read(&self, disk: &Disk, name: &str) -> Result<String, CredentialError> {
        let path = self.directory.join(name);
        let read = disk.read(&path, MAX_FILE).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        read.map_err(|error| CredentialError::Unreadable(WHAT, path, error))
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
            let sync = |directory: &Path| disk.open(directory, Open::Read)?.sync_all();
            sync(&self.directory)?;
            self.directory.parent().map_or(Ok(()), sync)
        };
        written().map_err(|error| CredentialError::Unwritable(path.clone(), error))
    }

    fn unusable(&self, name: &str, error: &impl ToString) -> CredentialError {
        CredentialError::Unusable(WHAT, self.directory.join(name), error.to_string())
    }
}

/// A name with the digest of something.
fn digest(name: &str, bytes: &[u8]) -> String {
    format!("{name} {}", &hex(&Sha256::digest(bytes))[..16])
}

/// A certificate with a subject. It is valid from the beginning of time on, because a clock without
/// a battery starts there.
fn params(mut params: CertificateParams, subject: String) -> CertificateParams {
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.not_before = date_time_ymd(1970, 1, 1);
    params
}
