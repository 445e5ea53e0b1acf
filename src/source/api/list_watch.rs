//! The HTTP form of the reflector's requests, as client-go's `ListWatch` makes them.

use std::fmt::Write as _;

use http::{HeaderValue, header::ACCEPT};
use kube::client::Body;

use super::reflector::{ListVersion, Request};
use crate::{client::escaped, pod::NodeName};

/// Makes the HTTP request; the client adds the server and the credentials.
pub(super) fn http_request(request: &Request, node: &NodeName) -> Result<http::Request<Body>, http::Error> {
    let mut path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", escaped(node.as_str()));
    // Writing to memory cannot fail.
    let _ = match request {
        Request::WatchList { version, timeout } => write!(
            path,
            "&watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={}&timeoutSeconds={}",
            escaped(version.as_deref().unwrap_or_default()),
            timeout.as_secs(),
        ),
        // No pod has the name `-`: only the version matters.
        Request::Probe { version } => write!(
            path,
            "%2Cmetadata.name%3D-&resourceVersion={}&resourceVersionMatch=NotOlderThan",
            escaped(version),
        ),
        Request::Watch { version, timeout } => write!(
            path,
            "&watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            escaped(version),
            timeout.as_secs(),
        ),
        Request::List { at, limit } => {
            if let Some(limit) = limit {
                let _ = write!(path, "&limit={limit}");
            }
            match at {
                ListVersion::Any => write!(path, "&resourceVersion=0"),
                ListVersion::NotOlderThan(version) => {
                    write!(path, "&resourceVersion={}&resourceVersionMatch=NotOlderThan", escaped(version))
                }
                ListVersion::MostRecent => Ok(()),
                ListVersion::Continue(token) => write!(path, "&continue={}", escaped(token)),
            }
        }
    };
    let mut request = http::Request::get(path).body(Body::empty())?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}
