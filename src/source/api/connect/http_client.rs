//! An HTTP client of kube's layers over the connections of [`client`](crate::client).
//!
//! kube's own stack is not used, because it retries silently for minutes and has no TCP
//! keepalive.

use std::{error::Error, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderValue, Uri,
    header::{AUTHORIZATION, USER_AGENT},
};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::{
    legacy::connect::proxy::{SocksV5, Tunnel},
    proxy::matcher::Intercept,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
    config::AuthInfo,
};
use rustls::ClientConfig;
use secrecy::ExposeSecret as _;

use super::{error::ConnectError, kubeconfig_file::ClientPlan};
use crate::{
    client::{ClientError, Connector, causes, connector, following, pool, simulated, tcp},
    error_chain::chain,
    host::Network,
};

/// The time limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit until a request can be sent: connecting to each address, the proxy, TLS.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes the client.
pub(super) fn client(
    plan: &ClientPlan,
    tls: ClientConfig,
    network: &Network,
) -> Result<Client, ConnectError> {
    let direct = match network.dial() {
        Some(dial) => return build(plan, tls, simulated(dial)),
        None => tcp(CONNECT_TIMEOUT),
    };
    let Some(proxy) = &plan.proxy else { return build(plan, tls, direct) };
    let proxied = match proxy.uri().scheme_str() {
        // Names are looked up by the proxy with both.
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(socks_address(proxy.uri()), direct);
            connector(match proxy.raw_auth() {
                Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                None => socks,
            })
        }
        Some("https") => {
            // As with kubectl, the cluster's CAs are trusted for the proxy, too.
            let to_proxy = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_only();
            tunnel(proxy, connector(to_proxy.enable_http1().wrap_connector(direct)))
        }
        _ => tunnel(proxy, direct),
    };
    build(plan, tls, proxied)
}

fn tunnel(proxy: &Intercept, to_proxy: Connector) -> Connector {
    let tunnel = Tunnel::new(proxy.uri().clone(), to_proxy);
    connector(match proxy.basic_auth() {
        Some(user) => tunnel.with_auth(user.clone()),
        None => tunnel,
    })
}

/// The address of a SOCKS proxy, whose default port is 1080.
fn socks_address(proxy: &Uri) -> Uri {
    let (Some(host), None) = (proxy.host(), proxy.port()) else { return proxy.clone() };
    let address = Uri::builder().scheme("socks5").authority(format!("{host}:1080")).path_and_query("/");
    address.build().unwrap_or_else(|_| proxy.clone())
}

fn build(plan: &ClientPlan, tls: ClientConfig, transport: Connector) -> Result<Client, ConnectError> {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let builder = match &plan.server.server_name {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone())),
        None => builder,
    };
    let mut limited = TimeoutConnector::new(builder.enable_http1().wrap_connector(transport));
    limited.set_connect_timeout(Some(READY_TIMEOUT));
    let mut config = Config::new(plan.server.url.clone());
    config.auth_info = plan.login.clone();
    let agent = concat!("podmux/", env!("CARGO_PKG_VERSION"));
    config.headers = vec![(USER_AGENT, HeaderValue::from_static(agent))];
    config.headers.extend(authorization(&plan.login)?.map(|login| (AUTHORIZATION, login)));
    let headers = config.extra_headers_layer().map_err(ConnectError::Client)?;
    let builder = ClientBuilder::new(following(pool::<Body>(connector(limited))), "default");
    Ok(builder.with_layer(&headers).with_layer(&config.base_uri_layer()).build())
}

/// The header with the token or the password, which is constant for one client.
fn authorization(login: &AuthInfo) -> Result<Option<HeaderValue>, ConnectError> {
    let text = match (&login.token, &login.username, &login.password) {
        (Some(token), ..) => format!("Bearer {}", token.expose_secret()),
        (None, Some(user), Some(password)) => {
            format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.expose_secret())))
        }
        _ => return Ok(None),
    };
    let value = HeaderValue::from_str(&text);
    let mut value = value.map_err(|error| ConnectError::Client(kube::Error::HttpError(error.into())))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// A failed request or a body that broke, on one line: what is wrong, and what to do about it. It says "the API
/// server" in place of its URL, and contains nothing secret.
pub fn describe_failure(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    let contains = |text: &str| texts.iter().any(|cause| cause.contains(text));
    if contains("dns error") {
        let last = texts.last().map_or("", |last| last.as_str());
        return format!(
            "cannot resolve the name of the API server ({last}); is it right in the kubeconfig, and does name resolution work on this node?"
        );
    }
    // The error types of hyper-util's proxy connectors are private; only their text identifies them.
    let is_proxy = contains("tunnel error") || contains("SOCKS error");
    let to: Arc<str> = if is_proxy { "the proxy to the API server" } else { "the API server" }.into();
    match ClientError::from_hyper(&to, CONNECT_TIMEOUT, error) {
        Some(known) => chain(&known),
        None => chain(error),
    }
}

/// Whether TLS failed, so that newer certificates may help.
pub(crate) fn is_about_credentials(error: &kube::Error) -> bool {
    causes(error).any(<dyn Error>::is::<rustls::Error>)
}
