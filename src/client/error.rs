//! What goes wrong between a client and a server, and what to do about it.

use std::{
    error::Error,
    io, iter,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::Uri;
use hyper_util::client::legacy;
use rustls::{AlertDescription, CertificateError};

use super::shown;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no way to fetch this.
    #[error(
        "{url} cannot be fetched: http://HOST/… or https://HOST/… is expected, and http alone through a socket"
    )]
    Url {
        /// It, without its secrets.
        url: String,
    },
    /// A file that the settings name cannot be read.
    #[error("cannot read {}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// A file that the settings name is not what it should be.
    #[error("no {what} in {}: PEM text is expected, which begins with -----BEGIN", .path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should have in it.
        what: &'static str,
    },
    /// A certificate in the CA file cannot be used.
    #[error("a certificate in {} cannot be a CA", .path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: rustls::Error,
    },
    /// Certificate and key cannot be used together.
    #[error("cannot use the certificate {} with the key {}; do they belong together?", .cert_file.display(), .key_file.display())]
    Identity {
        /// The certificate's file.
        cert_file: PathBuf,
        /// The key's file.
        key_file: PathBuf,
        /// Why not.
        #[source]
        error: rustls::Error,
    },
    /// The system's CAs cannot be had.
    #[error("cannot read this system's CA certificates; install them (ca-certificates), or name a CA file")]
    Roots(#[source] io::Error),
    /// Nobody listens there.
    #[error(
        "{to} refused the connection: nothing listens there; is the server running, and is this its address?"
    )]
    Refused {
        /// Host and port, or the socket's path.
        to: Arc<str>,
    },
    /// There is no such socket.
    #[error("there is no socket {}; is the server running, and is this its socket?", .path.display())]
    NoSocket {
        /// Where.
        path: PathBuf,
    },
    /// The socket is not for everyone.
    #[error("no permission to use the socket {}; only its owner and its group may: join the group, or become root", .path.display())]
    Permission {
        /// Which.
        path: PathBuf,
    },
    /// There is no connection for another reason.
    #[error("cannot connect to {to}")]
    Connect {
        /// Host and port, or the socket's path.
        to: Arc<str>,
        /// The reason.
        #[source]
        error: Box<dyn Error + Send + Sync>,
    },
    /// The server's certificate is not to be trusted.
    #[error("the certificate of {to} is not trusted: {why}")]
    Certificate {
        /// Host and port.
        to: Arc<str>,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The server does not accept ours.
    #[error(
        "{to} did not accept the client certificate ({alert}); it wants one of a CA that it trusts: is one configured, and is it still valid?"
    )]
    ClientCertificate {
        /// Host and port.
        to: Arc<str>,
        /// The server's word.
        alert: String,
    },
    /// TLS failed in another way.
    #[error("no TLS with {to}; does it speak TLS there?")]
    Tls {
        /// Host and port.
        to: Arc<str>,
        /// How.
        #[source]
        error: rustls::Error,
    },
    /// It took too long.
    #[error("{to} did not answer completely within {after:?}")]
    Timeout {
        /// Host and port, or the socket's path.
        to: Arc<str>,
        /// How long it was waited.
        after: Duration,
    },
    /// Connecting took too long.
    #[error("no connection to {to} within {after:?}; is the host up, and does a firewall let this pass?")]
    ConnectTimeout {
        /// Host and port.
        to: Arc<str>,
        /// How long it was waited.
        after: Duration,
    },
    /// The answer is too large.
    #[error("{from} sent too much: {limit} bytes are taken at most")]
    TooLarge {
        /// Host and port, or the socket's path.
        from: Arc<str>,
        /// In bytes.
        limit: usize,
    },
    /// The connection broke before the answer was complete.
    #[error("{from} closed the connection before its answer was complete")]
    CutOff {
        /// Host and port, or the socket's path.
        from: Arc<str>,
    },
    /// What came was no answer.
    #[error("{from} did not answer in HTTP/1.1")]
    Protocol {
        /// Host and port, or the socket's path.
        from: Arc<str>,
        /// What is wrong with it.
        #[source]
        error: Box<dyn Error + Send + Sync>,
    },
    /// Redirects without an end.
    #[error("more than {limit} redirects, the last one to {to}")]
    TooManyRedirects {
        /// Where the last one led.
        to: Arc<str>,
        /// How many are followed.
        limit: usize,
    },
    /// A redirect to something that cannot be fetched.
    #[error("{from} redirects to what is no http or https URL")]
    BadRedirect {
        /// The URL that redirects, without its secrets.
        from: String,
    },
    /// A redirect from what is encrypted to what is not.
    #[error("{from} redirects to {location}, which is not encrypted; that is not followed")]
    Downgrade {
        /// The URL that redirects, without its secrets.
        from: String,
        /// Where to, without its secrets.
        location: String,
    },
}

impl ClientError {
    pub(super) fn no_url(url: &Uri) -> Self {
        Self::Url { url: shown(url) }
    }

    /// What an error of another client means that is made of hyper's parts as
    /// this one is: its last one, or the one that a body broke with. Nothing if
    /// it is of another kind.
    pub(crate) fn of(
        to: &Arc<str>,
        connect_timeout: Duration,
        error: &(dyn Error + 'static),
    ) -> Option<Self> {
        match (cause::<legacy::Error>(error), cause::<hyper::Error>(error)) {
            (Some(error), _) => Some(Self::at_peer(to, connect_timeout, error)),
            (None, Some(error)) => Some(Self::in_body(to, error)),
            (None, None) => None,
        }
    }

    /// What an error on the way to a socket means.
    pub(super) fn at_socket(path: &Path, error: &legacy::Error) -> Self {
        let to: Arc<str> = path.to_string_lossy().into();
        let kind = cause::<io::Error>(error).map(io::Error::kind);
        match kind.filter(|_| error.is_connect()) {
            Some(io::ErrorKind::NotFound) => Self::NoSocket { path: path.to_owned() },
            Some(io::ErrorKind::PermissionDenied) => Self::Permission { path: path.to_owned() },
            Some(io::ErrorKind::ConnectionRefused) => Self::Refused { to },
            _ => Self::at(&to, error),
        }
    }

    /// What an error on the way to a host means.
    pub(super) fn at_peer(to: &Arc<str>, connect_timeout: Duration, error: &legacy::Error) -> Self {
        if let Some(error) = cause::<rustls::Error>(error) {
            return Self::in_tls(to, error);
        }
        let kind = cause::<io::Error>(error).map(io::Error::kind);
        match kind.filter(|_| error.is_connect()) {
            Some(io::ErrorKind::ConnectionRefused) => Self::Refused { to: to.clone() },
            Some(io::ErrorKind::TimedOut) => Self::ConnectTimeout { to: to.clone(), after: connect_timeout },
            _ => Self::at(to, error),
        }
    }

    fn at(to: &Arc<str>, error: &legacy::Error) -> Self {
        if error.is_connect() {
            return Self::Connect { to: to.clone(), error: inner(error) };
        }
        match cause::<hyper::Error>(error) {
            Some(hyper) if hyper.is_parse() => Self::Protocol { from: to.clone(), error: inner(error) },
            _ => Self::CutOff { from: to.clone() },
        }
    }

    /// What an error in the middle of a body means.
    pub(super) fn in_body(from: &Arc<str>, error: &hyper::Error) -> Self {
        if let Some(error) = cause::<rustls::Error>(error) {
            return Self::in_tls(from, error);
        }
        if error.is_parse() {
            return Self::Protocol { from: from.clone(), error: causes_of(error) };
        }
        Self::CutOff { from: from.clone() }
    }

    fn in_tls(to: &Arc<str>, error: &rustls::Error) -> Self {
        let to = to.clone();
        match error {
            rustls::Error::InvalidCertificate(error) => Self::Certificate { to, why: distrust(error) },
            rustls::Error::AlertReceived(
                alert @ (AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied),
            ) => Self::ClientCertificate { to, alert: format!("{alert:?}") },
            error => Self::Tls { to, error: error.clone() },
        }
    }
}

/// What is wrong with a server's certificate.
fn distrust(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "it was issued by a CA that is not trusted here; name the file of the right CA".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("it is for another name ({error}); use a name that it is for")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("it has expired ({error}); if that is not so, set this machine's clock")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("it is not valid yet ({error}); is this machine's clock right?")
        }
        error => error.to_string(),
    }
}

/// What a legacy client's error wraps: its own words say nothing more.
fn inner(error: &legacy::Error) -> Box<dyn Error + Send + Sync> {
    error.source().map_or_else(|| error.to_string().into(), causes_of)
}

/// An error with its causes, as one.
fn causes_of(error: &(dyn Error + 'static)) -> Box<dyn Error + Send + Sync> {
    let mut text: Vec<String> = causes(error).map(ToString::to_string).collect();
    text.dedup();
    text.join(": ").into()
}

/// The first cause of a kind.
fn cause<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// An error and its causes, those inside an `io::Error` too, which hides its own.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| {
        let error: &'e (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}
