//! Connecting to the API server: every credential reaches it, and a renewed one is used without a restart.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podmux::source::api::{Connector, InCluster, Kubeconfig, describe_failure};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};

use crate::support::{
    kubeconfig::{Scene, config, connect_error, on_one_line, replace_file, request},
    logs::logged,
    web::{Authority, Reply, Web, refusing},
};

/// The headers that identify the client.
const IDENTITY: [&str; 5] =
    ["authorization", "impersonate-user", "impersonate-group", "impersonate-uid", "user-agent"];

async fn headers(user: Value) -> Vec<String> {
    let scene = Scene::start().await;
    scene.write("token", "from-file\n");
    let mut connector = scene.connector(&user);
    let seen = scene.seen(&mut connector).await;
    assert_eq!((&*seen.method, &*seen.path), ("GET", "/api/v1/pods?watch=1"));
    let lines = IDENTITY.iter().flat_map(|name| {
        seen.headers.get_all(*name).iter().map(move |value| format!("{name}: {}", value.to_str().unwrap()))
    });
    lines.collect()
}

#[tokio::test]
async fn each_credential_reaches_the_server() {
    let agent = concat!("user-agent: podmux/", env!("CARGO_PKG_VERSION"));
    assert_eq!(headers(json!({})).await, [agent]);
    assert_eq!(headers(json!({ "token": "t" })).await, ["authorization: Bearer t", agent]);
    assert_eq!(headers(json!({ "tokenFile": "token" })).await, ["authorization: Bearer from-file", agent]);
    // The token of the file is preferred, because it may be newer.
    let both = json!({ "token": "old", "tokenFile": "token" });
    assert_eq!(headers(both).await, ["authorization: Bearer from-file", agent]);
    let both = json!({ "token": "old", "tokenFile": "missing" });
    assert_eq!(headers(both).await, ["authorization: Bearer old", agent]);
    let basic = json!({ "username": "user", "password": "pass" });
    let expected = format!("authorization: Basic {}", STANDARD.encode("user:pass"));
    assert_eq!(headers(basic).await, [&*expected, agent]);
    let impersonating = json!({ "token": "t", "as": "jane", "as-groups": ["a", "b"], "as-uid": "7" });
    let expected = [
        "authorization: Bearer t",
        "impersonate-user: jane",
        "impersonate-group: a",
        "impersonate-group: b",
        "impersonate-uid: 7",
        agent,
    ];
    assert_eq!(headers(impersonating).await, expected);
}

#[test]
fn without_tls_no_credential_is_used_and_one_line_of_the_log_says_so() {
    logged(|log| async move {
        let scene = Scene::start().await;
        let web = Web::start(Reply::ok("{}")).await;
        let exec = json!({ "apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin" });
        let users = [
            json!({ "token": "t" }),
            json!({ "tokenFile": "missing" }),
            json!({ "username": "user", "password": "pass" }),
            json!({ "client-certificate": "missing", "client-key": "missing" }),
            json!({ "exec": exec }),
        ];
        for mut user in users {
            user["as"] = "jane".into();
            let file = scene.kubeconfig(&json!({ "server": web.url }), &user);
            let mut connector = Connector::new(Kubeconfig::File(file));
            let warnings = || log.lines_with("credentials not used: the API server's URL is http").len();
            let before = warnings();
            for _ in 0..2 {
                request(&mut connector).await.unwrap();
                connector.renew();
            }
            assert_eq!(warnings(), before + 1, "{user}");
        }
        for seen in web.seen() {
            assert_eq!((seen.header("authorization"), seen.header("impersonate-user")), ("", "jane"));
        }
        let file = scene.kubeconfig(&json!({ "server": web.url }), &json!({}));
        request(&mut Connector::new(Kubeconfig::File(file))).await.unwrap();
        assert_eq!(log.lines_with("credentials not used").len(), 5);
    });
}

#[tokio::test]
async fn a_client_certificate_from_files_or_from_the_kubeconfig_reaches_the_server() {
    let scene = Scene::strict().await;
    let (cert, key) = scene.authority.client("node");
    let der = CertificateDer::from_pem_file(&cert).unwrap();
    let user = json!({ "client-certificate": "node.crt", "client-key": key });
    assert_eq!(scene.seen(&mut scene.connector(&user)).await.certificate, der.as_ref());

    let encoded = |path| STANDARD.encode(fs::read(path).unwrap());
    // Data takes precedence over a file.
    let user = json!({
        "client-certificate-data": encoded(&cert), "client-key-data": encoded(&key), "client-key": "missing",
    });
    let cluster =
        json!({ "server": scene.web.url, "certificate-authority-data": encoded(&scene.authority.ca_file) });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &user)));
    assert_eq!(scene.seen(&mut connector).await.certificate, der.as_ref());

    let error = request(&mut scene.connector(&json!({ "token": "t" }))).await.unwrap_err();
    assert_eq!(
        describe_failure(&error),
        "the API server rejected the client certificate (CertificateRequired); is one configured, is it still valid, and does the server trust its CA?"
    );
}

#[tokio::test]
async fn the_server_must_have_the_name_in_the_kubeconfig_unless_verification_is_off() {
    let scene = Scene::start().await;
    let named = scene.authority.server("apiserver.test", None);
    let web = Web::start_tls(named, Reply::ok("{}")).await;
    let ca = "ca.pem";
    let plain = json!({ "server": web.url, "certificate-authority": ca });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&plain, &json!({}))));
    let error = request(&mut connector).await.unwrap_err();
    let failure = describe_failure(&error);
    assert!(
        failure.starts_with("the certificate of the API server is not trusted: it is for another name ("),
        "{failure}"
    );

    let renamed =
        json!({ "server": web.url, "certificate-authority": ca, "tls-server-name": "apiserver.test" });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&renamed, &json!({}))));
    assert_eq!(request(&mut connector).await.unwrap().status(), 200);

    let unverified = json!({ "server": web.url, "insecure-skip-tls-verify": true });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&unverified, &json!({}))));
    assert_eq!(request(&mut connector).await.unwrap().status(), 200);
    assert_eq!(web.seen().len(), 2);

    let web = Web::start_tls(Authority::server_of_version_1(), Reply::ok("{}")).await;
    let unverified = json!({ "server": web.url, "insecure-skip-tls-verify": true });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&unverified, &json!({}))));
    assert_eq!(request(&mut connector).await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_path_of_a_servers_url_is_kept() {
    let scene = Scene::start().await;
    let cluster = json!({ "server": scene.web.at("/k8s/clusters/c-1"), "certificate-authority": "ca.pem" });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &json!({}))));
    assert_eq!(scene.seen(&mut connector).await.path, "/k8s/clusters/c-1/api/v1/pods?watch=1");
}

#[tokio::test]
async fn redirects_are_followed_within_the_origin_of_the_server() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "s3cret" }));
    scene.web.play(|seen| match &*seen.path {
        "/api/v1/pods?watch=1" => Reply::to(307, "/k8s/../k8s/a?watch=1"),
        "/k8s/a?watch=1" => Reply::to(302, "b"),
        _ => Reply::ok("{}"),
    });
    assert_eq!(request(&mut connector).await.unwrap().status(), 200);
    let seen: Vec<_> = scene.web.seen().iter().map(|seen| seen.path.clone()).collect();
    assert_eq!(seen, ["/api/v1/pods?watch=1", "/k8s/a?watch=1", "/k8s/b"]);
    assert!(scene.web.seen().iter().all(|seen| seen.header("authorization") == "Bearer s3cret"));
    // Not to another one, and not without end.
    let other = Web::start(Reply::ok("{}")).await;
    scene.web.say(Reply::to(307, &other.url));
    assert_eq!(request(&mut connector).await.unwrap().status(), 307);
    scene.web.say(Reply::to(307, "/again"));
    assert_eq!(request(&mut connector).await.unwrap().status(), 307);
    assert_eq!((other.seen().len(), scene.web.seen().len()), (0, 3 + 1 + 10));
}

#[tokio::test]
async fn a_renewed_token_file_is_used_by_the_next_request() {
    let scene = Scene::start().await;
    scene.write("token", "one");
    let mut connector = scene.connector(&json!({ "tokenFile": "token" }));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    scene.write("token", "two");
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
    // The previous token stays in use while the file is missing (k#68164).
    fs::remove_file(scene.at("token")).unwrap();
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
    scene.write("token", "three");
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer three");
}

#[tokio::test]
async fn a_renewed_certificate_is_used_by_the_next_request() {
    let scene = Scene::strict().await;
    let shown = |name: &str| CertificateDer::from_pem_file(scene.at(&format!("{name}.crt"))).unwrap();
    scene.authority.client("node");
    let mut connector =
        scene.connector(&json!({ "client-certificate": "node.crt", "client-key": "node.key" }));
    let first = shown("node");
    assert_eq!(scene.seen(&mut connector).await.certificate, first.as_ref());

    let (cert, key) = scene.authority.client("renewed");
    // Between the two steps they do not belong together, and the previous certificate stays in use.
    replace_file(&scene.at("node.crt"), &fs::read_to_string(cert).unwrap());
    assert_eq!(scene.seen(&mut connector).await.certificate, first.as_ref());
    replace_file(&scene.at("node.key"), &fs::read_to_string(key).unwrap());
    assert_eq!(scene.seen(&mut connector).await.certificate, shown("renewed").as_ref());
}

#[tokio::test]
async fn a_changed_kubeconfig_and_a_changed_ca_are_used_by_the_next_request() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "one" }));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    let before = connector.identity().unwrap();

    // Another server with another CA in the same file.
    let other = Authority::new(scene.directory.path(), "other");
    let web = Web::start_tls(other.server("localhost", None), Reply::ok("{}")).await;
    let cluster = json!({ "server": web.url, "certificate-authority": "ca.pem" });
    scene.kubeconfig(&cluster, &json!({ "token": "two" }));
    let error = request(&mut connector).await.unwrap_err();
    assert_eq!(
        describe_failure(&error),
        "the certificate of the API server is not trusted: it was issued by an unknown CA; set the file of the right CA"
    );
    replace_file(&scene.authority.ca_file, &fs::read_to_string(&other.ca_file).unwrap());
    assert_eq!(request(&mut connector).await.unwrap().status(), 200);
    assert_eq!(web.seen()[0].header("authorization"), "Bearer two");

    let after = connector.identity().unwrap();
    assert_eq!((&before.url, &after.url), (&format!("{}/", scene.web.url), &format!("{}/", web.url)));
    assert!(before.ca.len() == 64 && after.ca.len() == 64 && before.ca != after.ca, "{before:?} {after:?}");
}

#[tokio::test]
async fn the_previous_client_is_used_until_it_is_dropped_or_a_new_one_can_be_made() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "one" }));
    scene.seen(&mut connector).await;
    scene.write("kubeconfig", "half of a");
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    connector.renew();
    assert!(connect_error(&mut connector).await.contains("not a kubeconfig"));
    scene.connector(&json!({ "token": "two" }));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
}

#[tokio::test]
async fn the_previous_client_is_used_while_the_kubeconfig_of_a_reload_is_invalid() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "one" }));
    scene.seen(&mut connector).await;
    let other = scene.at("elsewhere");
    connector.switch_to(Kubeconfig::File(other.clone()));
    for _ in 0..2 {
        assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    }
    let valid = config(&scene.cluster(), &json!({ "token": "two" }));
    replace_file(&other, &valid.to_string());
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
    // Switching to the same file reads it again.
    connector.switch_to(Kubeconfig::File(other));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
}

#[tokio::test]
async fn a_pod_in_the_cluster_uses_its_service_account() {
    let scene = Scene::start().await;
    let port = scene.web.url.rsplit(':').next().unwrap().parse().unwrap();
    let account =
        InCluster { directory: scene.at("account"), ..InCluster::new("localhost".to_owned(), port) };
    assert_eq!(
        InCluster::new("10.0.0.1".to_owned(), 443).directory.to_str(),
        Some("/var/run/secrets/kubernetes.io/serviceaccount")
    );
    let mut connector = Connector::new(Kubeconfig::InCluster(account.clone()));
    let missing = scene.at("account/ca.crt");
    let shown = missing.display();
    assert_eq!(
        connect_error(&mut connector).await,
        format!(
            "cannot read the certificate-authority {shown} (does it exist, and may this process read it?): No such file or directory (os error 2)"
        )
    );

    // As the kubelet mounts it: a link that changes when the token is renewed.
    for (version, token) in [("..1", "one"), ("..2", "two")] {
        let directory = scene.at("account").join(version);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("token"), token).unwrap();
        fs::copy(&scene.authority.ca_file, directory.join("ca.crt")).unwrap();
        let link = scene.at("account/..data.fresh");
        std::os::unix::fs::symlink(version, &link).unwrap();
        fs::rename(link, scene.at("account/..data")).unwrap();
        for name in ["token", "ca.crt"] {
            // In the second round it exists.
            drop(std::os::unix::fs::symlink(format!("..data/{name}"), scene.at("account").join(name)));
        }
        assert_eq!(scene.seen(&mut connector).await.header("authorization"), format!("Bearer {token}"));
    }
    assert_eq!(connector.identity().unwrap().url, format!("{}/", scene.web.url));
    let six = InCluster { host: "fd00::1".to_owned(), directory: scene.at("account"), port: 443 };
    let identity = Connector::new(Kubeconfig::InCluster(six)).identity().unwrap();
    assert_eq!(identity.url, "https://[fd00::1]:443/");
}

#[tokio::test]
async fn a_failed_request_names_the_next_step() {
    let scene = Scene::start().await;
    let failure = async |server: &str| {
        let cluster = json!({ "server": server, "certificate-authority": "ca.pem" });
        let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &json!({}))));
        let error = request(&mut connector).await.unwrap_err();
        on_one_line(&error);
        describe_failure(&error)
    };
    let (_kept, free) = refusing();
    assert_eq!(
        failure(&format!("https://{free}")).await,
        "the API server refused the connection (is the server running, and is this its address?)"
    );
    let resolved = failure("https://no-such-host.invalid").await;
    assert!(
        resolved.starts_with("cannot resolve the name of the API server (")
            && resolved
                .ends_with("); is it right in the kubeconfig, and does name resolution work on this node?"),
        "{resolved}"
    );
    let plain = Web::start(Reply::ok("{}")).await;
    assert_eq!(
        failure(&plain.url.replace("http:", "https:")).await,
        "TLS with the API server failed (does the server use TLS at this port?): received corrupt message of type InvalidContentType"
    );
    let outdated = Web::start_tls(scene.authority.outdated_server("localhost"), Reply::ok("{}")).await;
    assert_eq!(
        failure(&outdated.url).await,
        "the certificate of the API server is not trusted: it has expired (at 2000-12-31T00:00:00Z); renew it, or set this machine's clock"
    );
    let ca = Web::start_tls(scene.authority.server_that_is_a_ca("localhost"), Reply::ok("{}")).await;
    assert_eq!(
        failure(&ca.url).await,
        "the certificate of the API server is not trusted: it is that of a CA itself; give the server a certificate of its own (CA:FALSE) that a trusted CA has issued"
    );
}
