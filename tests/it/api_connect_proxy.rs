//! Proxies to the API server, from the kubeconfig or from the environment.

use podmux::source::api::{Connector, Kubeconfig, Proxies, describe_failure};
use serde_json::json;

use crate::support::{
    kubeconfig::{SECRET, Scene, connect_error, request},
    proxy::{Proxy, ProxyProtocol},
    web::{Reply, Web, refusing},
};

/// A server with a name that only the proxy can resolve.
async fn hidden() -> (Scene, Web, u16) {
    let scene = Scene::start().await;
    let web = Web::start_tls(scene.authority.server("api.hidden", None), Reply::ok("{}")).await;
    let port = web.url.rsplit(':').next().unwrap().parse().unwrap();
    (scene, web, port)
}

fn connector(scene: &Scene, server: &str, proxy: Option<&str>) -> Connector {
    let mut cluster = json!({ "server": server, "certificate-authority": "ca.pem" });
    if let Some(proxy) = proxy {
        cluster["proxy-url"] = proxy.into();
    }
    Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &json!({ "token": "t" }))))
}

#[tokio::test]
async fn the_proxy_in_the_kubeconfig_is_used_with_each_protocol() {
    let (scene, web, port) = hidden().await;
    let rows = [
        (ProxyProtocol::Http, "http://", "CONNECT api.hidden:6443 HTTP/1.1 -"),
        // dXNlcjpwQHNz is user:p@ss.
        (
            ProxyProtocol::HttpWithPassword,
            "http://user:p%40ss@",
            "CONNECT api.hidden:6443 HTTP/1.1 Basic dXNlcjpwQHNz",
        ),
        (ProxyProtocol::Socks, "socks5://", "api.hidden:6443 -"),
        (ProxyProtocol::Socks, "socks5h://", "api.hidden:6443 -"),
        (ProxyProtocol::SocksWithPassword, "socks5://user:p%40ss@", "api.hidden:6443 user:p@ss"),
    ];
    for (number, (protocol, url, expected)) in rows.into_iter().enumerate() {
        let proxy = Proxy::start(protocol, port).await;
        let url = format!("{url}{}", proxy.address);
        // NO_PROXY does not affect it.
        let environment = Proxies { no: "*".to_owned(), ..Proxies::default() };
        let mut connector =
            connector(&scene, "https://api.hidden:6443", Some(&url)).with_proxies(environment);
        assert_eq!(request(&mut connector).await.unwrap().status(), 200);
        assert_eq!(proxy.asked(), [expected]);
        assert_eq!((web.seen().len(), web.seen()[number].header("authorization")), (number + 1, "Bearer t"));
    }
}

#[tokio::test]
async fn a_proxy_that_rejects_the_connection_is_named_in_the_error() {
    let (scene, _web, port) = hidden().await;
    let proxy = Proxy::start(ProxyProtocol::HttpWithPassword, port).await;
    let url = format!("http://{}", proxy.address);
    let error = request(&mut connector(&scene, "https://api.hidden:6443", Some(&url))).await.unwrap_err();
    assert_eq!(
        describe_failure(&error),
        "cannot connect to the proxy to the API server: tunnel error: proxy authorization required"
    );
    assert_eq!(proxy.was_asked().await, ["CONNECT api.hidden:6443 HTTP/1.1 -"]);
    let (_kept, free) = refusing();
    for scheme in ["http", "socks5"] {
        let url = format!("{scheme}://{free}");
        let error = request(&mut connector(&scene, "https://api.hidden:6443", Some(&url))).await.unwrap_err();
        let failure = describe_failure(&error);
        assert!(failure.contains("the proxy to the API server"), "{failure}");
    }
}

#[tokio::test]
async fn the_proxy_in_the_environment_is_used_unless_no_proxy_matches() {
    let (scene, _web, port) = hidden().await;
    let proxy = Proxy::start(ProxyProtocol::Http, port).await;
    let through = async |server: &str, no: &str| {
        let environment =
            Proxies { https: format!("http://{}", proxy.address), http: String::new(), no: no.to_owned() };
        let before = proxy.asked().len();
        let mut connector = connector(&scene, server, None).with_proxies(environment);
        // Without the proxy the request fails.
        drop(request(&mut connector).await);
        proxy.asked().len() > before
    };
    let hidden = "https://api.hidden:6443";
    // A leading dot or `*.` is for subdomains only.
    for no in
        ["", "hidden.api", "i.hidden", ".api.hidden", "*.api.hidden", "*.API.hidden:6443", "x, *.api.hidden"]
    {
        assert!(through(hidden, no).await, "{no:?}");
    }
    for no in ["api.hidden:443", "10.0.0.0/8", "a, b"] {
        assert!(through(hidden, no).await, "{no:?}");
    }
    for no in [
        "*",
        "api.hidden",
        "API.Hidden",
        "hidden",
        ".hidden",
        "*.hidden",
        "*.hidden:6443",
        "x, api.hidden:6443 ,y",
    ] {
        assert!(!through(hidden, no).await, "{no:?}");
    }
    // This machine is always reached directly.
    assert!(!through(&scene.web.url, "").await);
    assert!(!through(&format!("https://127.0.0.1:{port}"), "").await);
}

#[tokio::test]
async fn the_error_for_an_invalid_proxy_does_not_contain_its_password() {
    let (scene, ..) = hidden().await;
    let rows = [
        (
            format!("ftp://user:{SECRET}@proxy"),
            "proxy-url is not the URL of a proxy; expected http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT",
        ),
        (
            format!("socks4://user:{SECRET}@proxy:1"),
            "proxy-url is socks4://proxy:1/, an unknown kind of proxy; expected http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT",
        ),
        (
            format!("http://user:{SECRET}@proxy:65536"),
            "proxy-url has a port above 65535; expected http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT",
        ),
    ];
    for (url, expected) in rows {
        let error = connect_error(&mut connector(&scene, "https://api.hidden", Some(&url))).await;
        assert_eq!(error, format!("{}: {expected}", scene.at("kubeconfig").display()));
    }
}
