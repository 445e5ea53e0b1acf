//! Who may ask: no web page, nobody who means another host, nobody without a token or a certificate.

use std::net::IpAddr;

use axum::response::{IntoResponse as _, Response};
use http::{
    HeaderValue, Method, StatusCode,
    header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE},
    request::Parts,
    uri::Authority,
};

use super::{credentials::Credentials, stats::Refusal};
use crate::pod::NodeName;
use crate::server::status::ApiError;

/// What a load balancer or a kubelet asks without having been told a token. What
/// they answer in one word, `?verbose` aside, is no secret.
const OPEN_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Who has sent a request. A handler finds it among the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody who may open the Unix socket: its file says who that is.
    Socket,
    /// Somebody with the token, or with a certificate of ours.
    Known,
    /// Anybody on this machine: there is neither token nor client CA. Sinks that
    /// run things will have to refuse writes of these.
    Anybody,
}

/// How a request came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// The address that the client reached over TCP; `None` on a Unix socket.
    pub(super) reached: Option<IpAddr>,
    /// Whether the client has shown a certificate that the client CA has signed.
    pub(super) certified: bool,
}

/// A request that is turned away at the door.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) why: Refusal,
    pub(super) error: ApiError,
}

impl Denied {
    fn new(why: Refusal, code: StatusCode, reason: &'static str, message: String) -> Self {
        Self { why, error: ApiError::new(code, reason, message) }
    }

    pub(super) fn response(self) -> Response {
        let mut response = self.error.into_response();
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Lets a request in, or says why not.
///
/// On a Unix socket the file's mode decides who may ask, and no browser gets
/// there: clients say any host, or none.
pub(super) fn admit(
    head: &Parts,
    way: Way,
    node: &NodeName,
    credentials: &Credentials,
) -> Result<Caller, Denied> {
    if head.headers.contains_key(ORIGIN) {
        let message = "requests of web pages are refused: this one has an Origin header".to_owned();
        return Err(Denied::new(Refusal::Origin, StatusCode::FORBIDDEN, "Forbidden", message));
    }
    let Some(reached) = way.reached else { return Ok(Caller::Socket) };
    let host = host(head)?;
    if !is_ours(host.host(), reached, node, credentials) {
        let message = format!(
            "the request is for the host {host}, and this is not it: ask for localhost, for {node}, for {reached} or for a name in the server's certificate"
        );
        return Err(Denied::new(Refusal::Host, StatusCode::FORBIDDEN, "Forbidden", message));
    }
    if credentials.token.is_none() && !credentials.certificates {
        return Ok(Caller::Anybody);
    }
    let (token, certificate) = (bears_token(head, credentials), way.certified);
    if token || certificate {
        return Ok(Caller::Known);
    }
    let reads = head.method == Method::GET || head.method == Method::HEAD;
    if reads && OPEN_PATHS.contains(&head.uri.path()) && head.uri.query().is_none() {
        return Ok(Caller::Anybody);
    }
    let ways = match (credentials.token.is_some(), credentials.certificates) {
        (true, false) => "the token, as Authorization: Bearer TOKEN",
        (false, _) => "a client certificate",
        (true, true) => "the token, as Authorization: Bearer TOKEN, or a client certificate",
    };
    let message = format!("the server does not know who asks: it needs {ways}");
    Err(Denied::new(Refusal::Unauthorized, StatusCode::UNAUTHORIZED, "Unauthorized", message))
}

/// The host that a request is for. A name that a web page's author chose, and
/// had lead to this machine, is in it.
fn host(head: &Parts) -> Result<Authority, Denied> {
    let refused = |problem: &str| {
        let message = format!("{problem}: one Host header with this server's name or address is needed");
        Denied::new(Refusal::Host, StatusCode::BAD_REQUEST, "BadRequest", message)
    };
    let mut said = head.headers.get_all(HOST).iter();
    let host = match (head.uri.authority(), said.next(), said.next()) {
        (_, _, Some(_)) => return Err(refused("the request has several Host headers")),
        // HTTP/2, and what is sent to a proxy: the header, if there is one, is to be ignored.
        (Some(authority), ..) => authority.clone(),
        (None, Some(host), None) => Authority::try_from(host.as_bytes())
            .map_err(|_| refused("the request's Host header has no host in it"))?,
        (None, None, None) => return Err(refused("the request has no Host header")),
    };
    if host.as_str().contains('@') {
        return Err(refused("the request's host has a user"));
    }
    Ok(host)
}

/// Whether a host is this server. Ports may differ: somebody may forward one.
fn is_ours(host: &str, reached: IpAddr, node: &NodeName, credentials: &Credentials) -> bool {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address == reached || certified(host, credentials);
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host == node.as_str() || certified(&host, credentials)
}

fn certified(host: &str, credentials: &Credentials) -> bool {
    credentials.tls.as_ref().is_some_and(|tls| tls.names(host))
}

fn bears_token(head: &Parts, credentials: &Credentials) -> bool {
    let said = head.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let Some((scheme, token)) = said.split_at_checked("Bearer ".len()) else { return false };
    let bearer = scheme.eq_ignore_ascii_case(b"Bearer ");
    bearer && credentials.token.as_ref().is_some_and(|ours| ours.is(token.trim_ascii()))
}
