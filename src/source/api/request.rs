//! A request for pods as HTTP.

use std::fmt::Write as _;

use http::{HeaderValue, header::ACCEPT};
use kube::client::Body;

use super::reflector::{At, Request};
use crate::{client::escaped, pod::NodeName};

/// Makes the request; the client adds the server and who this is.
pub(super) fn http(request: &Request, node: &NodeName) -> Result<http::Request<Body>, http::Error> {
    let mut path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", escaped(node.as_str()));
    // Writing to memory cannot fail.
    let _ = match request {
        Request::WatchList { version, timeout } => write!(
            path,
            "&watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={}&timeoutSeconds={}",
            escaped(version.as_deref().unwrap_or_default()),
            timeout.as_secs(),
        ),
        // No pod has that name: it is about the version only.
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
                At::Any => write!(path, "&resourceVersion=0"),
                At::NotOlderThan(version) => {
                    write!(path, "&resourceVersion={}&resourceVersionMatch=NotOlderThan", escaped(version))
                }
                At::Newest => Ok(()),
                At::Page(token) => write!(path, "&continue={}", escaped(token)),
            }
        }
    };
    let mut request = http::Request::get(path).body(Body::empty())?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}
