//! Why a request got no response, and what to do about it.

use std::{
    error::Error,
    io, iter,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy;
use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError, pki_types::UnixTime};

use super::url::shown;
use crate::{
    certificate_files::CertificateFiles,
    pem::{OLD_VERSION, PemError, UNSUPPORTED_VERSION, identity_hint},
};

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL, without its secrets, cannot be requested.
    #[error("cannot request {0}: expected http://HOST/… or https://HOST/… (over a Unix socket only http)")]
    Url(String),
    /// A file of the settings, by its path, cannot be read.
    #[error("cannot read {} (does it exist, and may podmux read it?)", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// A file of the settings, by its path, is not the PEM text that is expected.
    #[error("cannot use {}", .0.display())]
    Pem(PathBuf, #[source] PemError),
    /// A certificate in the CA file of this path cannot be used.
    #[error("cannot use {} as CA: one of its certificates is not valid for that", .0.display())]
    Ca(PathBuf, #[source] rustls::Error),
    /// The certificate and the key cannot be used together.
    #[error("cannot use the certificate {} with the key {} ({})", .0.certificate.display(), .0.key.display(), identity_hint(.1))]
    Identity(CertificateFiles, #[source] rustls::Error),
    /// The system's CAs cannot be read.
    #[error(
        "cannot read the system's CA certificates (install the package ca-certificates, or set a CA file)"
    )]
    Roots(#[source] io::Error),
    /// Nothing listens at the address: host and port, or the path of a socket, as in the other errors.
    #[error("{0} refused the connection (is the server running, and is this its address?)")]
    Refused(Arc<str>),
    /// The Unix socket does not exist.
    #[error("the socket {} does not exist (is the server running, and is this its socket?)", .0.display())]
    NoSocket(PathBuf),
    /// The caller may not use the Unix socket.
    #[error("no permission to use the socket {} (only its owner and its group may use it: join the group, or become root)", .0.display())]
    Permission(PathBuf),
    /// Connecting failed for another reason.
    #[error("cannot connect to {0}")]
    Connect(Arc<str>, #[source] Box<dyn Error + Send + Sync>),
    /// The server's certificate is not trusted: what is wrong with it, and what to do.
    #[error("the certificate of {0} is not trusted: {1}")]
    Certificate(Arc<str>, String),
    /// The server's certificate was not issued by the CA of the settings.
    #[error(
        "the certificate of {0} is not trusted: it was issued by an unknown CA; set the file of the right CA"
    )]
    UnknownCa(Arc<str>),
    /// The server rejected the client certificate, with this alert of TLS.
    #[error(
        "{0} rejected the client certificate ({1}); is one configured, is it still valid, and does the server trust its CA?"
    )]
    ClientCertificate(Arc<str>, String),
    /// TLS failed for another reason.
    #[error("TLS with {to} failed ({})", tls_hint(.1), to = .0)]
    Tls(Arc<str>, #[source] rustls::Error),
    /// The response was not complete in time.
    #[error("{0} sent no complete response within {1:?}")]
    Timeout(Arc<str>, Duration),
    /// The connection was not established in time.
    #[error("no connection to {0} within {1:?} (is the host up, and does a firewall block the port?)")]
    ConnectTimeout(Arc<str>, Duration),
    /// The response is larger than the limit in bytes.
    #[error("{0} sent more than the limit of {1} bytes")]
    TooLarge(Arc<str>, usize),
    /// The connection broke before the response was complete.
    #[error("{0} closed the connection before its response was complete")]
    CutOff(Arc<str>),
    /// The response is not HTTP/1.1.
    #[error("{0} sent no valid HTTP/1.1 response (if the URL begins with http, does the server want https?)")]
    Protocol(Arc<str>, #[source] Box<dyn Error + Send + Sync>),
    /// There are more redirects than the limit. The last one leads to this server.
    #[error("more than {1} redirects, the last one to {0}")]
    TooManyRedirects(Arc<str>, usize),
    /// This URL, without its secrets, redirects to something that is not an http or https URL.
    #[error("{0} redirects to something that is not an http or https URL")]
    BadRedirect(String),
    /// A redirect leads from https to http: the URLs without their secrets.
    #[error("{0} redirects from https to {1}, which is not encrypted, so it is not followed")]
    Downgrade(String, String),
}

impl ClientError {
    /// The file of the settings that the error is about, if it is about one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path, _) | Self::Pem(path, _) | Self::Ca(path, _) => Some(path),
            _ => None,
        }
    }

    pub(super) fn invalid_url(url: &Uri) -> Self {
        Self::Url(shown(url))
    }

    /// Explains an error of another client that is built on hyper, or of the body of its
    /// response. Returns nothing for an error of another kind.
    pub(crate) fn from_hyper(
        to: &Arc<str>,
        connect_timeout: Duration,
        error: &(dyn Error + 'static),
    ) -> Option<Self> {
        match (cause::<legacy::Error>(error), cause::<hyper::Error>(error)) {
            (Some(error), _) => Some(Self::from_client(to, None, connect_timeout, error)),
            (None, Some(error)) => Some(Self::in_body(to, error)),
            (None, None) => None,
        }
    }

    /// A request that got no response from a server, or from the socket at this path.
    pub(super) fn from_client(
        to: &Arc<str>,
        socket: Option<&Path>,
        connect_timeout: Duration,
        error: &legacy::Error,
    ) -> Self {
        if let Some(error) = cause::<rustls::Error>(error) {
            return Self::in_tls(to, error);
        }
        let kind = cause::<io::Error>(error).map(io::Error::kind);
        match (kind.filter(|_| error.is_connect()), socket) {
            (Some(io::ErrorKind::NotFound), Some(path)) => Self::NoSocket(path.to_owned()),
            (Some(io::ErrorKind::PermissionDenied), Some(path)) => Self::Permission(path.to_owned()),
            (Some(io::ErrorKind::ConnectionRefused), _) => Self::Refused(to.clone()),
            (Some(io::ErrorKind::TimedOut), None) => Self::ConnectTimeout(to.clone(), connect_timeout),
            _ if error.is_connect() => Self::Connect(to.clone(), inner(error)),
            _ => match cause::<hyper::Error>(error) {
                Some(hyper) if hyper.is_parse() => Self::Protocol(to.clone(), inner(error)),
                _ => Self::CutOff(to.clone()),
            },
        }
    }

    /// Explains an error in a body.
    pub(super) fn in_body(from: &Arc<str>, error: &hyper::Error) -> Self {
        if let Some(error) = cause::<rustls::Error>(error) {
            return Self::in_tls(from, error);
        }
        if error.is_parse() {
            return Self::Protocol(from.clone(), causes_of(error));
        }
        Self::CutOff(from.clone())
    }

    fn in_tls(to: &Arc<str>, error: &rustls::Error) -> Self {
        let to = to.clone();
        match error {
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => Self::UnknownCa(to),
            rustls::Error::InvalidCertificate(error) => Self::Certificate(to, distrust(error)),
            rustls::Error::AlertReceived(
                alert @ (AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied),
            ) => Self::ClientCertificate(to, format!("{alert:?}")),
            error => Self::Tls(to, error.clone()),
        }
    }
}

fn tls_hint(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::AlertReceived(_) => {
            "does the server require a client certificate, another host name, or another version of TLS?"
        }
        _ => "does the server use TLS at this port?",
    }
}

/// Why a server's certificate is not trusted, and what to do about it.
fn distrust(error: &CertificateError) -> String {
    match error {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("it is for another name ({error}); use a name from the certificate")
        }
        // Their own text has the current time, so it is another error each time.
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("it has expired (at {}); renew it, or set this machine's clock", shown_time(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("it is not valid before {}; is this machine's clock right?", shown_time(*not_before))
        }
        CertificateError::Expired => "its validity ends before it begins; issue it again".to_owned(),
        error => match error.to_string() {
            text if text.contains(UNSUPPORTED_VERSION) => OLD_VERSION.to_owned(),
            text if text.contains("CaUsedAsEndEntity") => {
                "it is that of a CA itself; give the server a certificate of its own (CA:FALSE) that a trusted CA has issued".to_owned()
            }
            text => text,
        },
    }
}

fn shown_time(time: UnixTime) -> String {
    let seconds = time.as_secs().try_into().unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// The cause of a client's error, whose own text adds nothing.
fn inner(error: &legacy::Error) -> Box<dyn Error + Send + Sync> {
    error.source().map_or_else(|| error.to_string().into(), causes_of)
}

/// An error and its causes as one error.
fn causes_of(error: &(dyn Error + 'static)) -> Box<dyn Error + Send + Sync> {
    let mut text: Vec<String> = causes(error).map(ToString::to_string).collect();
    text.dedup();
    text.join(": ").into()
}

/// The first cause of one type.
fn cause<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// An error and its causes. `io::Error::source` skips the error that it wraps; this does not.
pub(crate) fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| {
        let error: &'e (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}
