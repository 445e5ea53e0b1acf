//! Through which proxy the API server is asked, if through any: as kubectl does it.

use std::{fmt, net::IpAddr};

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use crate::client::shown;

/// What the environment says about proxies; empty is as good as unsaid.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For a server with TLS: `HTTPS_PROXY`.
    pub https: String,
    /// For one without: `HTTP_PROXY`.
    pub http: String,
    /// Which servers are asked without: `NO_PROXY`.
    pub no: String,
}

impl fmt::Debug for Proxies {
    /// Without the URLs: there may be passwords in them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies").field("no", &self.no).finish_non_exhaustive()
    }
}

/// The proxy that the kubeconfig or the environment names for a server. What
/// the kubeconfig names is used whatever `NO_PROXY` says, as client-go does it.
pub(super) fn choose(
    server: &Uri,
    named: Option<&str>,
    environment: &Proxies,
) -> Result<Option<Intercept>, String> {
    if let Some(named) = named.filter(|url| !url.is_empty()) {
        return understand(server, named, "proxy-url").map(Some);
    }
    let tls = server.scheme_str() == Some("https");
    let (url, variable) =
        if tls { (&environment.https, "HTTPS_PROXY") } else { (&environment.http, "HTTP_PROXY") };
    if url.is_empty() || bypassed(server, &environment.no) {
        return Ok(None);
    }
    understand(server, url, variable).map(Some)
}

fn understand(server: &Uri, url: &str, place: &str) -> Result<Intercept, String> {
    let expected = "http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT is expected";
    let proxy = Matcher::builder().all(url.to_owned()).build().intercept(server);
    // What cannot be read may have a password in it all the same, so it is not repeated.
    let proxy = proxy.ok_or_else(|| format!("{place} is no URL of a proxy: {expected}"))?;
    match proxy.uri().scheme_str() {
        Some("http" | "https" | "socks5") => Ok(proxy),
        _ => Err(format!("{place} is {}, which is no proxy that is known: {expected}", shown(proxy.uri()))),
    }
}

/// Whether a server is asked directly although there is a proxy: Go's rules
/// (`golang.org/x/net/http/httpproxy`). This machine is never asked through one.
fn bypassed(server: &Uri, no: &str) -> bool {
    let Some(host) = server.host() else { return true };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    if host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("https") { 443 } else { 80 });
    let entries = no.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let entries = entries.filter_map(|entry| without_port(entry, port));
    // The dot says that only names below it are meant.
    let mut entries =
        entries.filter(|entry| entry.strip_prefix('.').is_none_or(|name| !name.eq_ignore_ascii_case(host)));
    entries.any(|entry| {
        let entry = match entry.strip_prefix('*') {
            Some("") => return true,
            Some(name) if name.starts_with('.') => name,
            _ => entry,
        };
        let matcher = Matcher::builder().all("http://proxy").no(entry.to_owned()).build();
        matcher.intercept(server).is_none()
    })
}

/// An entry of `NO_PROXY` without its port; nothing if it is for another one.
fn without_port(entry: &str, port: u16) -> Option<&str> {
    if entry.parse::<IpAddr>().is_ok() {
        return Some(entry);
    }
    match entry.rsplit_once(':').map(|(name, said)| (name, said.parse::<u16>())) {
        Some((name, Ok(said))) => (said == port).then(|| name.trim_start_matches('[').trim_end_matches(']')),
        _ => Some(entry),
    }
}
