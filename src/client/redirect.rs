//! Redirects: the rules of Go's `http.Client`, with two that are stricter.
//!
//! A redirect from https to http is an error, and a redirect to another origin drops
//! every header that may be secret.

use std::error::Error;

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    header::{
        ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, IF_NONE_MATCH,
        LOCATION, TRANSFER_ENCODING, USER_AGENT,
    },
    request::Parts,
    uri::{PathAndQuery, Scheme},
};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy;
use tower::{Service, service_fn};

use super::{
    config::Redirects,
    connection::Pool,
    error::ClientError,
    url::{escaped_path, parse_url, shown},
};

/// How many requests redirects may make of one, as with Go's `http.Client`.
pub(super) const MAX_REQUESTS: usize = 10;
/// The headers that are sent to another origin. Any other header may be a secret of the
/// user for the first origin.
const HARMLESS: [http::HeaderName; 4] = [ACCEPT, ACCEPT_ENCODING, USER_AGENT, CONTENT_TYPE];

/// The target of a redirect, if a response is one.
pub(super) fn location<B>(response: &Response<B>) -> Option<&[u8]> {
    let is_redirect = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    // Without a location it is a response like any other.
    response.headers().get(LOCATION).filter(|_| is_redirect).map(http::HeaderValue::as_bytes)
}

/// Follows redirects of GETs within their origin. Any other is a response like any other, as is the last one of too many.
pub(crate) fn following<B>(
    pool: Pool<B>,
) -> impl Service<Request<B>, Response = Response<Incoming>, Error = legacy::Error, Future: Send> + Send
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + From<Bytes> + Send + Unpin + 'static,
{
    service_fn(move |request: Request<B>| {
        let pool = pool.clone();
        async move {
            let (mut head, mut body) = request.into_parts();
            for _ in 1..MAX_REQUESTS {
                let response = pool.request(Request::from_parts(head.clone(), body)).await?;
                let location = location(&response).and_then(|location| str::from_utf8(location).ok());
                let next = location.and_then(|location| resolve(&head.uri, location));
                let is_followed = |next: &Uri| head.method == Method::GET && same_origin(&head.uri, next);
                let Some(next) = next.filter(is_followed) else { return Ok(response) };
                (head.uri, body) = (next, Bytes::new().into());
            }
            pool.request(Request::from_parts(head, body)).await
        }
    })
}

/// Whether a redirect of a request to this URI is followed. One that leads nowhere is, so that it is an error.
pub(super) fn is_followed(redirects: Redirects, from: &Uri, location: &[u8]) -> bool {
    let next = || str::from_utf8(location).ok().and_then(|location| resolve(from, location));
    match redirects {
        Redirects::None => false,
        Redirects::SameHost => next().is_none_or(|next| next.host() == from.host()),
        Redirects::All => true,
    }
}

/// Changes a request into the one that follows a redirect. A host that is trusted gets everything, whatever its scheme
/// and its port.
pub(super) fn follow(
    head: &mut Parts,
    body: &mut Bytes,
    status: StatusCode,
    location: &[u8],
    trusts_host: bool,
) -> Result<(), ClientError> {
    let bad = || ClientError::BadRedirect(shown(&head.uri));
    let location = str::from_utf8(location).map_err(|_| bad())?;
    let next = resolve(&head.uri, location).ok_or_else(bad)?;
    let is_downgrade = head.uri.scheme() == Some(&Scheme::HTTPS) && next.scheme() != Some(&Scheme::HTTPS);
    // Without a verified server https protects nothing.
    if is_downgrade && !trusts_host {
        return Err(ClientError::Downgrade(shown(&head.uri), shown(&next)));
    }
    if !trusts_host && !same_origin(&head.uri, &next) {
        let kept =
            HARMLESS.into_iter().filter_map(|name| Some((name.clone(), head.headers.get(name)?.clone())));
        head.headers = kept.collect::<HeaderMap>();
    }
    let keeps_method = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    if !keeps_method {
        if head.method != Method::HEAD {
            head.method = Method::GET;
        }
        *body = Bytes::new();
        for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
    }
    // As in Go, a relative redirect is of the same host, whatever the request calls it.
    if head.uri.authority() != next.authority() {
        head.headers.remove(HOST);
    }
    // An entity tag is of one URL.
    head.headers.remove(IF_NONE_MATCH);
    head.uri = next;
    Ok(())
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().or(if uri.scheme() == Some(&Scheme::HTTPS) { Some(443) } else { Some(80) })
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme() == b.scheme() && host(a) == host(b) && port(a) == port(b)
}

/// Resolves a reference against a base URL (RFC 3986, 5.2).
fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    // As with Go, what a URL may not hold is escaped.
    let reference = &*escaped_path(reference.split('#').next().unwrap_or_default());
    if let Some(rest) = reference.strip_prefix("//") {
        return absolute(&format!("{}://{rest}", base.scheme_str()?));
    }
    let scheme_ends = reference.find([':', '/', '?']).filter(|end| reference.as_bytes()[*end] == b':');
    if scheme_ends.is_some() {
        return absolute(reference);
    }
    let path = match reference.as_bytes().first() {
        None => base.path_and_query()?.to_string(),
        Some(b'/') => reference.to_owned(),
        Some(b'?') => format!("{}{reference}", base.path()),
        Some(_) => {
            let directory = base.path().rfind('/').map_or("/", |end| &base.path()[..=end]);
            format!("{directory}{reference}")
        }
    };
    let path = match path.split_once('?') {
        Some((path, query)) => format!("{}?{query}", without_dots(path)),
        None => without_dots(&path),
    };
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
}

/// An http or https URL with a host.
pub(crate) fn absolute(text: &str) -> Option<Uri> {
    let uri = parse_url(text).ok()?;
    let fetched =
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
    fetched.then_some(uri)
}

/// `/a/./b/../c` is `/a/c`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let is_directory = path.ends_with("/.") || path.ends_with("/..");
    let end = if is_directory && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}
