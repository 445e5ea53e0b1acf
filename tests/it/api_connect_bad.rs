//! What is wrong with a kubeconfig is one line that says where and what to do.

use std::fs;

use podmux::source::api::{Connector, Kubeconfig};
use serde_json::{Value, json};

use crate::support::{
    kubeconfig::{SECRET, Scene, config, refused},
    web::Authority,
};

/// What is said of a kubeconfig of this text, with DIR for its directory.
async fn said(scene: &Scene, text: &str) -> String {
    scene.write("kubeconfig", text);
    let mut connector = Connector::new(Kubeconfig::File(scene.at("kubeconfig")));
    refused(&mut connector).await.replace(&scene.directory.path().display().to_string(), "DIR")
}

#[tokio::test]
async fn a_file_that_is_no_kubeconfig() {
    let scene = Scene::start().await;
    let path = scene.at("kubeconfig");
    let mut connector = Connector::new(Kubeconfig::File(path.clone()));
    let shown = path.display();
    let missing = format!("there is no kubeconfig {shown}; put one there, or give --kubeconfig another path");
    assert_eq!(refused(&mut connector).await, missing);
    assert_eq!(connector.identity().unwrap_err().to_string(), missing);

    fs::create_dir(&path).unwrap();
    assert_eq!(
        refused(&mut connector).await,
        format!(
            "cannot read the kubeconfig {shown}; does it exist, and may this process read it?: this is no regular file"
        )
    );
    fs::remove_dir(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(10 * 1024 * 1024 + 1).unwrap();
    assert_eq!(
        refused(&mut connector).await,
        format!(
            "cannot read the kubeconfig {shown}; does it exist, and may this process read it?: it is larger than 10485760 bytes"
        )
    );
    let no = |line: u32| {
        format!(
            "DIR/kubeconfig:{line}: this is no kubeconfig: YAML is expected, with clusters, contexts, users and a current-context"
        )
    };
    assert_eq!(
        said(&scene, &format!("kind: Config\nusers:\n- name: a\n  user: {{token: {SECRET}\n")).await,
        no(4)
    );
    assert_eq!(said(&scene, &format!("kind: Config\nclusters: {SECRET}\n")).await, no(2));
    assert_eq!(
        said(&scene, &format!("kind: Config\nusers:\n- name: a\n  user:\n    exec: {SECRET}\n")).await,
        no(5)
    );
    assert_eq!(
        said(&scene, "").await,
        "DIR/kubeconfig: it has no current-context; name one of its contexts, which are: none"
    );
}

#[tokio::test]
async fn a_name_that_names_nothing() {
    let scene = Scene::start().await;
    let changed = |pointer: &str, value: Value| {
        let mut text = config(&scene.cluster(), &json!({ "token": SECRET }));
        *text.pointer_mut(pointer).unwrap() = value;
        text.to_string()
    };
    let rows = [
        (
            "/current-context",
            json!(""),
            "it has no current-context; name one of its contexts, which are: here",
        ),
        (
            "/current-context",
            json!("there"),
            "the current-context \"there\" is not among its contexts, which are: here",
        ),
        (
            "/contexts/0/context/cluster",
            json!("away"),
            "the cluster \"away\" of the context \"here\" is not among its clusters, which are: home",
        ),
        (
            "/contexts/0/context/user",
            json!("nobody"),
            "the user \"nobody\" of the context \"here\" is not among its users, which are: node",
        ),
        (
            "/clusters",
            json!([]),
            "the cluster \"home\" of the context \"here\" is not among its clusters, which are: none",
        ),
    ];
    for (pointer, value, expected) in rows {
        assert_eq!(said(&scene, &changed(pointer, value)).await, format!("DIR/kubeconfig: {expected}"));
    }
}

#[tokio::test]
async fn a_server_that_is_none() {
    let scene = Scene::start().await;
    let written = "it is written like https://HOST:PORT";
    let no_url = format!("the cluster's server is no http or https URL: {written}");
    let rows = [
        (json!({}), format!("the cluster has no server: {written}")),
        (json!({ "server": "" }), format!("the cluster has no server: {written}")),
        (json!({ "server": "ftp://host" }), no_url.clone()),
        (json!({ "server": "host:6443" }), no_url.clone()),
        (json!({ "server": format!("https://{SECRET} x") }), no_url),
        (
            json!({ "server": format!("https://user:{SECRET}@host") }),
            format!("the cluster's server has a user or a query in it: {written}"),
        ),
        (
            json!({ "server": "https://host", "certificate-authority": "ca.pem", "insecure-skip-tls-verify": true }),
            "the cluster has a certificate-authority and insecure-skip-tls-verify; take one of them out"
                .to_owned(),
        ),
        (
            json!({ "server": "https://host", "tls-server-name": "a b" }),
            "the cluster's tls-server-name is no name".to_owned(),
        ),
    ];
    for (cluster, expected) in rows {
        let text = config(&cluster, &json!({})).to_string();
        assert_eq!(said(&scene, &text).await, format!("DIR/kubeconfig: {expected}"));
    }
}

#[tokio::test]
async fn a_ca_that_is_none() {
    let scene = Scene::start().await;
    scene.write("text", "no PEM");
    let rows = [
        (
            "certificate-authority",
            "missing",
            "cannot read the certificate-authority DIR/missing; does it exist, and may this process read it?: No such file or directory (os error 2)",
        ),
        (
            "certificate-authority",
            "text",
            "no certificate in DIR/text: PEM text is expected, which begins with -----BEGIN",
        ),
        (
            "certificate-authority-data",
            "bm8=",
            "no certificate in certificate-authority-data of DIR/kubeconfig: PEM text is expected, which begins with -----BEGIN",
        ),
        ("certificate-authority-data", "-", "DIR/kubeconfig: certificate-authority-data is not base64"),
    ];
    for (field, value, expected) in rows {
        let text = config(&json!({ "server": scene.web.url, field: value }), &json!({})).to_string();
        assert_eq!(said(&scene, &text).await, expected);
    }
}

#[tokio::test]
async fn credentials_that_are_none() {
    let scene = Scene::start().await;
    scene.write("text", "no PEM");
    scene.write("empty", "\n");
    scene.authority.client("node");
    scene.authority.outdated_client("old");
    Authority::new(scene.directory.path(), "other").client("stranger");
    let pair = |certificate: &str, key: &str| json!({ "client-certificate": certificate, "client-key": key });
    let missing =
        "DIR/missing; does it exist, and may this process read it?: No such file or directory (os error 2)";
    let rows = [
        (json!({ "tokenFile": "missing" }), format!("cannot read the token {missing}")),
        (
            json!({ "tokenFile": "empty" }),
            "DIR/empty: there is no token in it: one line of printable text is expected".to_owned(),
        ),
        (
            json!({ "token": format!("{SECRET}\nx") }),
            "DIR/kubeconfig: the user's token has characters in it that no token has".to_owned(),
        ),
        (
            json!({ "token": SECRET, "username": "a", "password": SECRET }),
            "DIR/kubeconfig: the user has a token and a username or password; take one of them out".to_owned(),
        ),
        (
            json!({ "auth-provider": { "name": "gcp", "config": { "access-token": SECRET } } }),
            "DIR/kubeconfig: the user's auth-provider \"gcp\" is not known here; use an exec plugin in its place"
                .to_owned(),
        ),
        (pair("missing", "node.key"), format!("cannot read the client-certificate {missing}")),
        (pair("node.crt", "missing"), format!("cannot read the client-key {missing}")),
        (
            pair("text", "node.key"),
            "no certificate in DIR/text: PEM text is expected, which begins with -----BEGIN".to_owned(),
        ),
        (
            pair("node.crt", "text"),
            "no private key in DIR/text: PEM text is expected, which begins with -----BEGIN".to_owned(),
        ),
        (
            pair("node.crt", ""),
            "DIR/kubeconfig: the user has a client-certificate and no client-key".to_owned(),
        ),
        (pair("", "node.key"), "DIR/kubeconfig: the user has a client-key and no client-certificate".to_owned()),
        (
            pair("node.crt", "stranger.key"),
            "cannot use the certificate of DIR/node.crt with the key of DIR/stranger.key; do they belong together?: keys may not be consistent: KeyMismatch".to_owned(),
        ),
        (
            pair("old.crt", "old.key"),
            "the client certificate of DIR/old.crt expired at 2000-12-31T00:00:00Z; put a new one in its place (if it has not expired, set this machine's clock)".to_owned(),
        ),
    ];
    for (user, expected) in rows {
        assert_eq!(said(&scene, &config(&scene.cluster(), &user).to_string()).await, expected);
    }
    // Where the server is can be said without them.
    let identity = Connector::new(Kubeconfig::File(scene.at("kubeconfig"))).identity().unwrap();
    assert_eq!(identity.url, format!("{}/", scene.web.url));
}
