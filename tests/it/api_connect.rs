//! The way to the API server: each credential arrives there, and each that is renewed is used without a restart.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podmux::source::api::{Connector, InCluster, Kubeconfig};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};

use crate::support::{
    kubeconfig::{Scene, ask, config, put, refused, told},
    web::{Authority, Reply, Web},
};

/// The headers that say who asks.
const SAYS_WHO: [&str; 5] =
    ["authorization", "impersonate-user", "impersonate-group", "impersonate-uid", "user-agent"];

async fn headers(user: Value) -> Vec<String> {
    let scene = Scene::start().await;
    scene.write("token", "from-file\n");
    let mut connector = scene.connector(&user);
    let seen = scene.seen(&mut connector).await;
    assert_eq!((&*seen.method, &*seen.path), ("GET", "/api/v1/pods?watch=1"));
    let lines = SAYS_WHO.iter().flat_map(|name| {
        seen.headers.get_all(*name).iter().map(move |value| format!("{name}: {}", value.to_str().unwrap()))
    });
    lines.collect()
}

#[tokio::test]
async fn each_credential_arrives() {
    let agent = concat!("user-agent: podmux/", env!("CARGO_PKG_VERSION"));
    assert_eq!(headers(json!({})).await, [agent]);
    assert_eq!(headers(json!({ "token": "t" })).await, ["authorization: Bearer t", agent]);
    assert_eq!(headers(json!({ "tokenFile": "token" })).await, ["authorization: Bearer from-file", agent]);
    // The file is read again and again, so it is the newer one.
    let both = json!({ "token": "old", "tokenFile": "token" });
    assert_eq!(headers(both).await, ["authorization: Bearer from-file", agent]);
    let both = json!({ "token": "old", "tokenFile": "missing" });
    assert_eq!(headers(both).await, ["authorization: Bearer old", agent]);
    let basic = json!({ "username": "user", "password": "pass" });
    let expected = format!("authorization: Basic {}", STANDARD.encode("user:pass"));
    assert_eq!(headers(basic).await, [&*expected, agent]);
    let acting = json!({ "token": "t", "as": "jane", "as-groups": ["a", "b"], "as-uid": "7" });
    let expected = [
        "authorization: Bearer t",
        "impersonate-user: jane",
        "impersonate-group: a",
        "impersonate-group: b",
        "impersonate-uid: 7",
        agent,
    ];
    assert_eq!(headers(acting).await, expected);
}

#[tokio::test]
async fn a_client_certificate_arrives_from_files_and_from_the_kubeconfig_itself() {
    let scene = Scene::strict().await;
    let (cert, key) = scene.authority.client("node");
    let der = CertificateDer::from_pem_file(&cert).unwrap();
    let user = json!({ "client-certificate": "node.crt", "client-key": key });
    assert_eq!(scene.seen(&mut scene.connector(&user)).await.certificate, der.as_ref());

    let encoded = |path| STANDARD.encode(fs::read(path).unwrap());
    // Data goes before a file.
    let user = json!({
        "client-certificate-data": encoded(&cert), "client-key-data": encoded(&key), "client-key": "missing",
    });
    let cluster =
        json!({ "server": scene.web.url, "certificate-authority-data": encoded(&scene.authority.ca_file) });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &user)));
    assert_eq!(scene.seen(&mut connector).await.certificate, der.as_ref());

    let error = ask(&mut scene.connector(&json!({ "token": "t" }))).await.unwrap_err();
    assert_eq!(
        podmux::source::api::describe_failure(&error),
        "the API server did not accept the client certificate (CertificateRequired); it wants one of a CA that it trusts: is one configured, and is it still valid?"
    );
}

#[tokio::test]
async fn a_servers_name_is_what_the_kubeconfig_says_or_nothing_is_verified() {
    let scene = Scene::start().await;
    let named = scene.authority.server("apiserver.test", None);
    let web = Web::start_tls(named, Reply::ok("{}")).await;
    let ca = "ca.pem";
    let plain = json!({ "server": web.url, "certificate-authority": ca });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&plain, &json!({}))));
    let error = ask(&mut connector).await.unwrap_err();
    let failure = podmux::source::api::describe_failure(&error);
    assert!(
        failure.starts_with("the certificate of the API server is not trusted: it is for another name ("),
        "{failure}"
    );

    let known =
        json!({ "server": web.url, "certificate-authority": ca, "tls-server-name": "apiserver.test" });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&known, &json!({}))));
    assert_eq!(ask(&mut connector).await.unwrap().status(), 200);

    let blind = json!({ "server": web.url, "insecure-skip-tls-verify": true });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&blind, &json!({}))));
    assert_eq!(ask(&mut connector).await.unwrap().status(), 200);
    assert_eq!(web.seen().len(), 2);
}

#[tokio::test]
async fn the_path_of_a_servers_url_is_kept() {
    let scene = Scene::start().await;
    let cluster = json!({ "server": scene.web.at("/k8s/clusters/c-1"), "certificate-authority": "ca.pem" });
    let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &json!({}))));
    assert_eq!(scene.seen(&mut connector).await.path, "/k8s/clusters/c-1/api/v1/pods?watch=1");
}

#[tokio::test]
async fn a_renewed_token_file_is_used_by_the_next_request() {
    let scene = Scene::start().await;
    scene.write("token", "one");
    let mut connector = scene.connector(&json!({ "tokenFile": "token" }));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    scene.write("token", "two");
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
    // The token of before goes on while there is none (k#68164).
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
    // In two steps: between them they do not belong together, and the pair of before goes on.
    put(&scene.at("node.crt"), &fs::read_to_string(cert).unwrap());
    assert_eq!(scene.seen(&mut connector).await.certificate, first.as_ref());
    put(&scene.at("node.key"), &fs::read_to_string(key).unwrap());
    assert_eq!(scene.seen(&mut connector).await.certificate, shown("renewed").as_ref());
}

#[tokio::test]
async fn a_changed_kubeconfig_and_a_changed_ca_are_used_by_the_next_request() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "one" }));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    let before = connector.identity().unwrap();

    // Another server with another CA, whose certificate has the same place.
    let other = Authority::new(scene.directory.path(), "other");
    let web = Web::start_tls(other.server("localhost", None), Reply::ok("{}")).await;
    let cluster = json!({ "server": web.url, "certificate-authority": "ca.pem" });
    scene.kubeconfig(&cluster, &json!({ "token": "two" }));
    let error = ask(&mut connector).await.unwrap_err();
    assert_eq!(
        podmux::source::api::describe_failure(&error),
        "the certificate of the API server is not trusted: it was issued by a CA that is not trusted here; name the file of the right CA"
    );
    put(&scene.authority.ca_file, &fs::read_to_string(&other.ca_file).unwrap());
    assert_eq!(ask(&mut connector).await.unwrap().status(), 200);
    assert_eq!(web.seen()[0].header("authorization"), "Bearer two");

    let after = connector.identity().unwrap();
    assert_eq!((&before.url, &after.url), (&format!("{}/", scene.web.url), &format!("{}/", web.url)));
    assert!(before.ca.len() == 64 && after.ca.len() == 64 && before.ca != after.ca, "{before:?} {after:?}");
}

#[tokio::test]
async fn a_client_from_before_is_used_until_somebody_asks_for_another() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "one" }));
    scene.seen(&mut connector).await;
    scene.write("kubeconfig", "half of a");
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    connector.renew();
    assert!(refused(&mut connector).await.contains("this is no kubeconfig"));
    scene.connector(&json!({ "token": "two" }));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
}

/// What a reload names is taken when it can be used, wherever it stands; until then nothing is lost.
#[tokio::test]
async fn a_reload_that_names_what_cannot_be_used_leaves_the_client_from_before() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&json!({ "token": "one" }));
    scene.seen(&mut connector).await;
    let other = scene.at("elsewhere");
    connector.switch_to(Kubeconfig::File(other.clone()));
    for _ in 0..2 {
        assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    }
    let mended = config(&scene.cluster(), &json!({ "token": "two" }));
    put(&other, &mended.to_string());
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
    // The same one may say the same: it is read all the same.
    connector.switch_to(Kubeconfig::File(other));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
}

#[tokio::test]
async fn a_pod_of_the_cluster_is_told_where_its_server_is() {
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
        refused(&mut connector).await,
        format!(
            "cannot read the CA of the cluster {shown}; does it exist, and may this process read it?: No such file or directory (os error 2)"
        )
    );

    // As the kubelet mounts it: a link that is turned when the token is renewed.
    for (version, token) in [("..1", "one"), ("..2", "two")] {
        let directory = scene.at("account").join(version);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("token"), token).unwrap();
        fs::copy(&scene.authority.ca_file, directory.join("ca.crt")).unwrap();
        let link = scene.at("account/..data.fresh");
        std::os::unix::fs::symlink(version, &link).unwrap();
        fs::rename(link, scene.at("account/..data")).unwrap();
        for name in ["token", "ca.crt"] {
            // There already the second time.
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
async fn what_fails_on_the_way_is_said_with_what_to_do() {
    let scene = Scene::start().await;
    let failure = async |server: &str| {
        let cluster = json!({ "server": server, "certificate-authority": "ca.pem" });
        let mut connector = Connector::new(Kubeconfig::File(scene.kubeconfig(&cluster, &json!({}))));
        let error = ask(&mut connector).await.unwrap_err();
        told(&error);
        podmux::source::api::describe_failure(&error)
    };
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(
        failure(&format!("https://{free}")).await,
        "the API server refused the connection: nothing listens there; is the server running, and is this its address?"
    );
    let resolved = failure("https://no-such-host.invalid").await;
    assert!(
        resolved.starts_with("the API server's name cannot be resolved (")
            && resolved
                .ends_with("); is it right in the kubeconfig, and does name resolution work on this node?"),
        "{resolved}"
    );
    let plain = Web::start(Reply::ok("{}")).await;
    assert_eq!(
        failure(&plain.url.replace("http:", "https:")).await,
        "no TLS with the API server; does it speak TLS there?: received corrupt message of type InvalidContentType"
    );
    let outdated = Web::start_tls(scene.authority.outdated_server("localhost"), Reply::ok("{}")).await;
    let expired = failure(&outdated.url).await;
    assert!(
        expired.starts_with("the certificate of the API server is not trusted: it has expired ("),
        "{expired}"
    );
}
