//! Every invalid kubeconfig gives one line that names the place and the next step.

use std::fs;

use podmux::source::api::{Connector, Kubeconfig};
use serde_json::{Value, json};

use crate::support::{
    kubeconfig::{SECRET, Scene, config, connect_error},
    web::Authority,
};

/// A certificate of X.509 version 1.
const VERSION_1: &str = "
-----BEGIN CERTIFICATE-----
MIIBFjCBvQIUVo2b6ATG0bNW094+jWTbw30hTKYwCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCdjEwIBcNMjYxMTI3MTYwNDM1WhgPMjEyNjExMDMxNjA0MzVaMA0xCzAJ
BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEogC8yQW6+KuONaEi
YRDw+40cvVCsH+rfjdoIhiTJay0nECVPabRRyT/mxUDRdpLu5RD+SDFfZt6KsxmA
o1vXKzAKBggqhkjOPQQDAgNIADBFAiBneFAgd4hIeakOlippG+gJV+GYCFGOECz3
m4I4jOrriQIhAJ9AD188CoCfUK3uGBNhPzF3wLKk/cMdHsy8I7DVBaGz
-----END CERTIFICATE-----
";

/// The error for a kubeconfig of this text, with DIR for its directory.
async fn error_of(scene: &Scene, text: &str) -> String {
    scene.write("kubeconfig", text);
    let mut connector = Connector::new(Kubeconfig::File(scene.at("kubeconfig")));
    connect_error(&mut connector).await.replace(&scene.directory.path().display().to_string(), "DIR")
}

#[tokio::test]
async fn a_file_that_is_not_a_kubeconfig() {
    let scene = Scene::start().await;
    let path = scene.at("kubeconfig");
    let mut connector = Connector::new(Kubeconfig::File(path.clone()));
    let shown = path.display();
    let missing =
        format!("the kubeconfig {shown} does not exist (create it, or set another path with --kubeconfig)");
    assert_eq!(connect_error(&mut connector).await, missing);
    assert_eq!(connector.identity().unwrap_err().to_string(), missing);

    fs::create_dir(&path).unwrap();
    assert_eq!(
        connect_error(&mut connector).await,
        format!(
            "cannot read the kubeconfig {shown} (does it exist, and may this process read it?): not a regular file"
        )
    );
    fs::remove_dir(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(10 * 1024 * 1024 + 1).unwrap();
    assert_eq!(
        connect_error(&mut connector).await,
        format!(
            "cannot read the kubeconfig {shown} (does it exist, and may this process read it?): larger than 10485760 bytes"
        )
    );
    let invalid = |line: u32| {
        format!(
            "DIR/kubeconfig:{line}: not a kubeconfig; expected YAML in UTF-8 with clusters, contexts, users and a current-context"
        )
    };
    assert_eq!(
        error_of(&scene, &format!("kind: Config\nusers:\n- name: a\n  user: {{token: {SECRET}\n")).await,
        invalid(4)
    );
    assert_eq!(error_of(&scene, &format!("kind: Config\nclusters: {SECRET}\n")).await, invalid(2));
    assert_eq!(
        error_of(&scene, &format!("kind: Config\nusers:\n- name: a\n  user:\n    exec: {SECRET}\n")).await,
        invalid(5)
    );
    assert_eq!(
        error_of(&scene, "").await,
        "DIR/kubeconfig: no current-context; set it to one of the contexts, which are: none"
    );
}

#[tokio::test]
async fn a_name_that_does_not_exist() {
    let scene = Scene::start().await;
    let changed = |pointer: &str, value: Value| {
        let mut text = config(&scene.cluster(), &json!({ "token": SECRET }));
        *text.pointer_mut(pointer).unwrap() = value;
        text.to_string()
    };
    let rows = [
        ("/current-context", json!(""), "no current-context; set it to one of the contexts, which are: here"),
        ("/current-context", json!("there"), "unknown current-context \"there\"; the contexts are: here"),
        ("/contexts/0/context/cluster", json!("away"), "unknown cluster \"away\"; the clusters are: home"),
        ("/contexts/0/context/user", json!("nobody"), "unknown user \"nobody\"; the users are: node"),
        ("/clusters", json!([]), "unknown cluster \"home\"; the clusters are: none"),
    ];
    for (pointer, value, expected) in rows {
        assert_eq!(error_of(&scene, &changed(pointer, value)).await, format!("DIR/kubeconfig: {expected}"));
    }
}

#[tokio::test]
async fn an_invalid_server() {
    let scene = Scene::start().await;
    let expected_url = "expected https://HOST:PORT";
    let no_url = format!(
        "the cluster's server is not an http or https URL, or has a port above 65535; {expected_url}"
    );
    let rows = [
        (json!({}), format!("the cluster has no server; {expected_url}")),
        (json!({ "server": "" }), format!("the cluster has no server; {expected_url}")),
        (json!({ "server": "ftp://host" }), no_url.clone()),
        (json!({ "server": "host:6443" }), no_url.clone()),
        (json!({ "server": "https://host:65536" }), no_url.clone()),
        (json!({ "server": "https://[::1]:99999" }), no_url.clone()),
        (json!({ "server": format!("https://{SECRET} x") }), no_url),
        (
            json!({ "server": format!("https://user:{SECRET}@host") }),
            format!("the cluster's server contains a user or a query; {expected_url}"),
        ),
        (
            json!({ "server": "https://host", "certificate-authority": "ca.pem", "insecure-skip-tls-verify": true }),
            "the cluster has both certificate-authority and insecure-skip-tls-verify; remove one of them"
                .to_owned(),
        ),
        (
            json!({ "server": "https://host", "tls-server-name": "a b" }),
            "the cluster's tls-server-name is not a valid name".to_owned(),
        ),
    ];
    for (cluster, expected) in rows {
        let text = config(&cluster, &json!({})).to_string();
        assert_eq!(error_of(&scene, &text).await, format!("DIR/kubeconfig: {expected}"));
    }
}

#[tokio::test]
async fn an_invalid_ca() {
    let scene = Scene::start().await;
    scene.write("text", "no PEM");
    let rows = [
        (
            "certificate-authority",
            "missing",
            "cannot read the certificate-authority DIR/missing (does it exist, and may this process read it?): No such file or directory (os error 2)",
        ),
        (
            "certificate-authority",
            "text",
            "cannot use DIR/text: no certificate was found in it; PEM text is expected, which begins with -----BEGIN CERTIFICATE-----",
        ),
        (
            "certificate-authority-data",
            "bm8=",
            "cannot use certificate-authority-data of DIR/kubeconfig: no certificate was found in it; PEM text is expected, which begins with -----BEGIN CERTIFICATE-----",
        ),
        ("certificate-authority-data", "-", "DIR/kubeconfig: certificate-authority-data is not base64"),
    ];
    for (field, value, expected) in rows {
        let text = config(&json!({ "server": scene.web.url, field: value }), &json!({})).to_string();
        assert_eq!(error_of(&scene, &text).await, expected);
    }
}

#[tokio::test]
async fn invalid_credentials() {
    let scene = Scene::start().await;
    scene.write("text", "no PEM");
    scene.write("empty", "\n");
    scene.authority.client("node");
    scene.authority.outdated_client("old");
    Authority::new(scene.directory.path(), "other").client("stranger");
    scene.write("v1.crt", VERSION_1);
    let pair = |certificate: &str, key: &str| json!({ "client-certificate": certificate, "client-key": key });
    let missing =
        "DIR/missing (does it exist, and may this process read it?): No such file or directory (os error 2)";
    let rows = [
        (json!({ "tokenFile": "missing" }), format!("cannot read the token {missing}")),
        (
            json!({ "tokenFile": "empty" }),
            "DIR/empty: no token; expected one line of printable text".to_owned(),
        ),
        (
            json!({ "token": format!("{SECRET}\nx") }),
            "DIR/kubeconfig: the user's token contains characters that no token can have".to_owned(),
        ),
        (
            json!({ "token": SECRET, "username": "a", "password": SECRET }),
            "DIR/kubeconfig: the user has both a token and a username or password; remove one of them".to_owned(),
        ),
        (
            json!({ "auth-provider": { "name": "gcp", "config": { "access-token": SECRET } } }),
            "DIR/kubeconfig: the user's auth-provider \"gcp\" is not supported; use an exec plugin"
                .to_owned(),
        ),
        (pair("missing", "node.key"), format!("cannot read the client-certificate {missing}")),
        (pair("node.crt", "missing"), format!("cannot read the client-key {missing}")),
        (
            pair("text", "node.key"),
            "cannot use DIR/text: no certificate was found in it; PEM text is expected, which begins with -----BEGIN CERTIFICATE-----".to_owned(),
        ),
        (
            pair("node.crt", "text"),
            "cannot use DIR/text: no private key was found in it; PEM text is expected, which begins with -----BEGIN PRIVATE KEY----- (an encrypted key cannot be used)".to_owned(),
        ),
        (
            pair("node.crt", ""),
            "DIR/kubeconfig: the user has a client-certificate but no client-key".to_owned(),
        ),
        (pair("", "node.key"), "DIR/kubeconfig: the user has a client-key but no client-certificate".to_owned()),
        (
            pair("node.crt", "stranger.key"),
            "cannot use the certificate in DIR/node.crt with the key in DIR/stranger.key (do they belong together?): keys may not be consistent: KeyMismatch".to_owned(),
        ),
        (
            pair("v1.crt", "node.key"),
            "cannot use the certificate in DIR/v1.crt with the key in DIR/node.key (the certificate is of an X.509 version before 3, which is not supported; issue it again with an extension (openssl: -extfile)): invalid peer certificate: Other(OtherError(UnsupportedCertVersion))".to_owned(),
        ),
        (
            pair("old.crt", "old.key"),
            "the client certificate in DIR/old.crt expired at 2000-12-31T00:00:00Z; replace it (if it has not expired, set this machine's clock)".to_owned(),
        ),
    ];
    for (user, expected) in rows {
        assert_eq!(error_of(&scene, &config(&scene.cluster(), &user).to_string()).await, expected);
    }
    // The server's identity does not depend on the credentials.
    let identity = Connector::new(Kubeconfig::File(scene.at("kubeconfig"))).identity().unwrap();
    assert_eq!(identity.url, format!("{}/", scene.web.url));
}
