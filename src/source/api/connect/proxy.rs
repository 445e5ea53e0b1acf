//! Chooses the proxy to the API server, as kubectl does.

use std::net::IpAddr;

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use crate::{
    client::{has_valid_port, is_loopback, shown},
    source::api::config::Proxies,
};

/// The proxy for a server, from the kubeconfig or the environment. As in client-go,
/// `NO_PROXY` does not affect a proxy from the kubeconfig.
pub(super) fn choose(
    server: &Uri,
    named: Option<&str>,
    environment: &Proxies,
) -> Result<Option<Intercept>, String> {
    if let Some(named) = named.filter(|url| !url.is_empty()) {
        return parse(server, named, "proxy-url").map(Some);
    }
    let tls = server.scheme_str() == Some("https");
    let (url, variable) =
        if tls { (&environment.https, "HTTPS_PROXY") } else { (&environment.http, "HTTP_PROXY") };
    if url.is_empty() || bypassed(server, &environment.no) {
        return Ok(None);
    }
    parse(server, url, variable).map(Some)
}

fn parse(server: &Uri, url: &str, place: &str) -> Result<Intercept, String> {
    let expected = "expected http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT";
    let proxy = Matcher::builder().all(url.to_owned()).build().intercept(server);
    // The value is not repeated, because it may contain a password.
    let proxy = proxy.ok_or_else(|| format!("{place} is not the URL of a proxy; {expected}"))?;
    match proxy.uri().scheme_str() {
        Some("http" | "https" | "socks5" | "socks5h") if has_valid_port(proxy.uri()) => Ok(proxy),
        Some("http" | "https" | "socks5" | "socks5h") => {
            Err(format!("{place} has a port above 65535; {expected}"))
        }
        _ => Err(format!("{place} is {}, an unknown kind of proxy; {expected}", shown(proxy.uri()))),
    }
}

/// Whether a server is reached directly although there is a proxy, by the rules of Go
/// (`golang.org/x/net/http/httpproxy`). This machine always is.
fn bypassed(server: &Uri, no: &str) -> bool {
    let Some(host) = server.host() else { return true };
    if is_loopback(host) {
        return true;
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("https") { 443 } else { 80 });
    let entries = no.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let mut entries = entries.filter_map(|entry| without_port(entry, port));
    entries.any(|entry| {
        let entry = match entry.strip_prefix('*') {
            Some("") => return true,
            Some(name) if name.starts_with('.') => name,
            _ => entry,
        };
        // An entry that begins with a dot matches subdomains only.
        if entry.strip_prefix('.').is_some_and(|name| name.eq_ignore_ascii_case(host)) {
            return false;
        }
        let matcher = Matcher::builder().all("http://proxy").no(entry.to_owned()).build();
        matcher.intercept(server).is_none()
    })
}

/// An entry of `NO_PROXY` without its port; nothing if it is for another port.
fn without_port(entry: &str, port: u16) -> Option<&str> {
    if entry.parse::<IpAddr>().is_ok() {
        return Some(entry);
    }
    match entry.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>())) {
        Some((name, Ok(entry_port))) => {
            (entry_port == port).then(|| name.trim_start_matches('[').trim_end_matches(']'))
        }
        _ => Some(entry),
    }
}
