//! Authenticates callers by token, client certificate or Unix socket; rejects web pages, foreign hosts and impersonation.

use std::net::IpAddr;

use http::{
    HeaderValue, Method, StatusCode,
    header::{AUTHORIZATION, HOST, ORIGIN},
    request::Parts,
    uri::Authority,
};

use super::{
    credentials::{Credentials, TokenDigest},
    limits::HEADERS,
};
use crate::{
    pod::NodeName,
    server::{stats::RejectReason, status::ApiError},
};

/// The paths that a load balancer or a kubelet reads without credentials. Without `?verbose` they
/// answer with one word, which is no secret.
const OPEN_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// The paths to which every authenticated caller posts questions about itself. They change nothing.
pub(crate) const REVIEWS: [&str; 3] = [
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
];

/// Whether a request asks such a question.
pub(super) fn is_review(head: &Parts) -> bool {
    head.method == Method::POST && REVIEWS.contains(&plain_path(head.uri.path()))
}

/// A path without slashes at its end, which do not count.
pub(crate) fn plain_path(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// The caller of a request, in the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Connected to a Unix socket, which the mode of its file permits.
    Unix {
        /// The user. Inside a user namespace all users without a number there look alike.
        uid: u32,
    },
    /// Has the token.
    Token,
    /// Has the token for reading only.
    ReadToken,
    /// Has a valid client certificate.
    Certificate,
    /// Has no credentials: it probes the health, or `--anonymous-auth` permits everything.
    Anonymous,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// A process of this user, over a Unix socket.
    Unix(u32),
    /// Over TCP, connected to this address of the server.
    Tcp(IpAddr),
}

/// A request that is rejected before it is read.
type Denied = (RejectReason, ApiError);

/// Authenticates the caller of a request.
///
/// On a Unix socket the mode of the file decides, and browsers cannot connect: the host is not
/// checked, because clients send any or none.
pub(super) fn authenticate(
    head: &Parts,
    peer: Peer,
    has_certificate: bool,
    node: &NodeName,
    credentials: &Credentials,
) -> Result<Caller, Denied> {
    // Compressed, a header of HTTP/2 is one byte long.
    if head.headers.len() > HEADERS {
        let message = format!("the request has more than {HEADERS} headers: send fewer");
        let code = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err((RejectReason::HeadersSize, ApiError::new(code, "RequestHeaderFieldsTooLarge", message)));
    }
    if head.headers.contains_key(ORIGIN) {
        let message = "requests of web pages are rejected: remove the Origin header";
        return Err((RejectReason::Origin, forbidden(message)));
    }
    // Ignored, the request would have more rights than its caller wants.
    if head.headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        let message = "impersonation is not served: leave out --as, --as-group and --as-uid (the headers Impersonate-*)";
        return Err((RejectReason::Unauthorized, forbidden(message)));
    }
    let local = match peer {
        Peer::Unix(uid) => return Ok(Caller::Unix { uid }),
        Peer::Tcp(local) => local,
    };
    let host = host(head)?;
    if !is_own_host(host.host(), local, node, credentials) {
        let message = format!(
            "the request is for another host, {host}: use localhost, {node}, {local} or a name in the server's certificate"
        );
        return Err((RejectReason::Host, forbidden(message)));
    }
    if has_token(head, credentials.token.as_ref()) {
        return Ok(Caller::Token);
    }
    if has_certificate {
        return Ok(Caller::Certificate);
    }
    let reads = head.method == Method::GET || head.method == Method::HEAD;
    if has_token(head, credentials.read_token.as_ref()) {
        let message = "the read token permits reads only: send the token that permits writes";
        let denied = || (RejectReason::Unauthorized, forbidden(message));
        return (reads || is_review(head)).then_some(Caller::ReadToken).ok_or_else(denied);
    }
    let is_probe = reads && OPEN_PATHS.contains(&head.uri.path()) && head.uri.query().is_none();
    if is_probe || credentials.anonymous {
        return Ok(Caller::Anonymous);
    }
    let why = match (credentials.token.is_some(), credentials.clients.is_some()) {
        (true, _) if head.headers.contains_key(AUTHORIZATION) => {
            "the Authorization header has no token of this agent: \
             send that of auth/token in its state directory, or of its --token-file"
        }
        (_, false) => "send the token as Authorization: Bearer TOKEN",
        (false, true) => "send a client certificate",
        (true, true) => "send the token as Authorization: Bearer TOKEN, or a client certificate",
    };
    let message = format!("the caller is not authenticated: {why}");
    Err((RejectReason::Unauthorized, ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)))
}

fn forbidden(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message)
}

/// The host of a request. A web page that resolves its own name to this machine (DNS
/// rebinding) has that name here.
fn host(head: &Parts) -> Result<Authority, Denied> {
    let rejected = |problem: &str| {
        let message = format!("{problem}: send one Host header with the server's name or address");
        (RejectReason::Host, ApiError::bad_request(message))
    };
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = match (head.uri.authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) => return Err(rejected("the request has several Host headers")),
        // In HTTP/2 and in requests to a proxy the header is to be ignored.
        (Some(authority), ..) => authority.clone(),
        (None, Some(host), None) => {
            Authority::try_from(host.as_bytes()).map_err(|_| rejected("the Host header is invalid"))?
        }
        (None, None, None) => return Err(rejected("the request has no Host header")),
    };
    if host.as_str().contains('@') {
        return Err(rejected("the request's host has a user"));
    }
    Ok(host)
}

/// Whether a host is this server. The port may differ: it may be forwarded.
fn is_own_host(host: &str, local: IpAddr, node: &NodeName, credentials: &Credentials) -> bool {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address == local || is_certified(host, credentials);
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host == node.as_str() || is_certified(&host, credentials)
}

fn is_certified(host: &str, credentials: &Credentials) -> bool {
    credentials.tls.as_ref().is_some_and(|tls| tls.names(host))
}

fn has_token(head: &Parts, expected: Option<&TokenDigest>) -> bool {
    let value = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let Some((scheme, token)) = value.split_at_checked("Bearer ".len()) else { return false };
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer ");
    is_bearer && expected.is_some_and(|digest| digest.matches(token.trim_ascii()))
}
