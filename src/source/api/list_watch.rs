//! The HTTP form of the reflector's requests, as client-go's `ListWatch` makes them.

use http::{HeaderValue, header::ACCEPT};
use kube::client::Body;

use super::reflector::{ListVersion, Request};
use crate::{client::escaped, pod::NodeName};

/// Makes the HTTP request, which accepts JSON, and protobuf rather than JSON if the server may answer with it. The
/// client adds the server and the credentials.
pub(super) fn http_request(
    request: &Request,
    node: &NodeName,
    protobuf: bool,
) -> Result<http::Request<Body>, http::Error> {
    let query = match request {
        Request::WatchList { version, timeout } => format!(
            "&watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={}&timeoutSeconds={}",
            escaped(version.as_deref().unwrap_or_default()),
            timeout.as_secs(),
        ),
        // No pod has the name `-`: only the version matters.
        Request::Probe { version } => format!("%2Cmetadata.name%3D-{}", not_older_than(version)),
        Request::Watch { version, timeout } => format!(
            "&watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            escaped(version),
            timeout.as_secs(),
        ),
        Request::List { at, limit } => {
            let limit = limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
            limit
                + &match at {
                    ListVersion::Any => "&resourceVersion=0".to_owned(),
                    ListVersion::NotOlderThan(version) => not_older_than(version),
                    ListVersion::MostRecent => String::new(),
                    ListVersion::Continue(token) => format!("&continue={}", escaped(token)),
                }
        }
    };
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}{query}", escaped(node.as_str()));
    let mut request = http::Request::get(path).body(Body::empty())?;
    let accepted =
        if protobuf { "application/vnd.kubernetes.protobuf,application/json" } else { "application/json" };
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accepted));
    Ok(request)
}

fn not_older_than(version: &str) -> String {
    format!("&resourceVersion={}&resourceVersionMatch=NotOlderThan", escaped(version))
}
