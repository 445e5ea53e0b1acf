//! Credential plugins: they run when needed, within limits of time and output, and no error contains a secret.

use std::{fs, path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use podmux::{
    mux::Mux,
    pod::{NodeName, SecurityLevel, SourceName},
    source::api::{ApiSource, Config, Connector, Kubeconfig, Proxies},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::support::{
    apiserver::{ApiServer, RequestKind},
    cluster::kubeconfig,
    files::soon,
    kubeconfig::{SECRET, Scene, connect_error},
    node::Node,
    process::wait_for,
    reflected::Reflected,
    web::Authority,
};

const V1: &str = "client.authentication.k8s.io/v1";

/// The output of a plugin.
#[expect(clippy::needless_pass_by_value, reason = "a status is written where it is used")]
fn credential(version: &str, status: Value) -> String {
    json!({ "apiVersion": version, "kind": "ExecCredential", "status": status }).to_string()
}

fn in_the_future(time: SignedDuration) -> String {
    (Timestamp::now() + time).to_string()
}

/// A user whose plugin is a script in the scene's directory. The shell reads it, because
/// executing a new file can fail while another test forks.
fn user(scene: &Scene, script: &str) -> Value {
    scene.write(
        "plugin.sh",
        &format!("cd '{}'\necho run >> runs\n{script}", scene.directory.path().display()),
    );
    json!({ "exec": {
        "apiVersion": V1, "command": "/bin/sh", "args": [scene.at("plugin.sh")], "interactiveMode": "IfAvailable",
    } })
}

fn runs(scene: &Scene) -> usize {
    fs::read_to_string(scene.at("runs")).unwrap_or_default().lines().count()
}

/// Waits until something is true.
async fn until(is: impl Fn() -> bool + Send + 'static) {
    spawn_blocking(move || wait_for(|| is().then_some(()))).await.unwrap();
}

#[tokio::test]
async fn a_plugin_runs_once_until_its_credential_is_rejected() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&user(&scene, "cat answer"));
    let answer = |token: &str| {
        credential(
            V1,
            json!({ "token": token, "expirationTimestamp": in_the_future(SignedDuration::from_hours(1)) }),
        )
    };
    scene.write("answer", &answer("one"));
    for _ in 0..3 {
        assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    }
    assert_eq!(runs(&scene), 1);
    // The server rejected the token.
    scene.write("answer", &answer("two"));
    connector.renew();
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
    assert_eq!(runs(&scene), 2);
    // Without an expiration it is used until the server rejects it.
    scene.write("answer", &credential(V1, json!({ "token": "three" })));
    connector.renew();
    for _ in 0..3 {
        assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer three");
    }
    assert_eq!(runs(&scene), 3);
}

/// The output of a plugin: a token without an expiration.
fn token(token: &str) -> String {
    credential(V1, json!({ "token": token }))
}

#[tokio::test]
async fn a_plugin_runs_again_after_a_rejected_token_and_after_a_rescan() {
    let scene = Scene::start().await;
    scene.write("answer", &token("one"));
    let server = ApiServer::start(Some(&scene.authority));
    server.require_token("one");
    let mut source = Reflected::start_with(&server, &user(&scene, "cat answer"), |source| source);
    source.marker("a").await;
    source.wait_for_watch().await;
    assert_eq!(runs(&scene), 1);

    scene.write("answer", &token("two"));
    server.require_token("two");
    server.break_watches();
    source.marker("b").await;
    assert_eq!(runs(&scene), 2);

    // As on SIGHUP.
    source.handle.rescan();
    server.wait_for(2, RequestKind::WatchList).await;
    assert_eq!(runs(&scene), 3);
    source.stop().await;
}

#[tokio::test]
async fn a_plugin_runs_again_after_a_rejected_certificate() {
    let scene = Scene::strict().await;
    let (cert, key) = Authority::new(scene.directory.path(), "stranger").client("node");
    let text = |path| fs::read_to_string(path).unwrap();
    let status = json!({ "clientCertificateData": text(&cert), "clientKeyData": text(&key) });
    scene.write("answer", &credential(V1, status));
    let kubeconfig = Kubeconfig::File(scene.kubeconfig(&scene.cluster(), &user(&scene, "cat answer")));
    let (mux, _turn) = Mux::new(&[SourceName::Api]);
    let config = Config { kubeconfig, proxies: Proxies::default(), pod_security: SecurityLevel::default() };
    let node = NodeName::new("node").unwrap();
    let (source, _handle) = ApiSource::new(config, node, mux.channel(SourceName::Api).unwrap());
    let stop = CancellationToken::new();
    let source = tokio::spawn(source.run(stop.clone()));
    let noted = scene.at("runs");
    until(move || fs::read_to_string(&noted).unwrap_or_default().lines().count() >= 3).await;
    stop.cancel();
    soon(source).await.unwrap();
}

#[tokio::test]
async fn a_credential_is_renewed_before_it_expires() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&user(&scene, "cat answer"));
    let end = Timestamp::now() + SignedDuration::from_secs(8);
    scene.write("answer", &credential(V1, json!({ "token": "one", "expirationTimestamp": end.to_string() })));
    soon(connector.client()).await.unwrap();
    scene.write("answer", &credential(V1, json!({ "token": "two" })));
    while runs(&scene) < 2 {
        assert!(Timestamp::now() < end, "it expired");
        soon(connector.client()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer two");
}

#[tokio::test]
async fn the_previous_credential_is_used_until_it_expires_while_the_plugin_fails() {
    let scene = Scene::start().await;
    let mut connector = scene.connector(&user(&scene, "cat answer"));
    let end = Timestamp::now() + SignedDuration::from_hours(1);
    scene.write("answer", &credential(V1, json!({ "token": "one", "expirationTimestamp": end.to_string() })));
    soon(connector.client()).await.unwrap();
    // The kubeconfig has changed, so the plugin runs again.
    scene.write("answer", "");
    scene.kubeconfig(&scene.cluster(), &user(&scene, "cat answer"));
    assert_eq!(scene.seen(&mut connector).await.header("authorization"), "Bearer one");
    assert_eq!(runs(&scene), 2);

    connector.renew();
    let end = Timestamp::now() + SignedDuration::from_secs(2);
    scene.write("answer", &credential(V1, json!({ "token": "two", "expirationTimestamp": end.to_string() })));
    soon(connector.client()).await.unwrap();
    scene.write("answer", "");
    let error = loop {
        assert!(Timestamp::now() < end + SignedDuration::from_mins(1), "it is used after it expired");
        match soon(connector.client()).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => break error.to_string(),
        }
    };
    assert!(Timestamp::now() >= end, "{error}");
    assert!(error.contains("printed no ExecCredential"), "{error}");
}

#[tokio::test]
async fn a_plugin_may_print_a_certificate_and_use_v1beta1() {
    let scene = Scene::strict().await;
    let (cert, key) = scene.authority.client("node");
    let text = |path| fs::read_to_string(path).unwrap();
    let status = json!({ "clientCertificateData": text(&cert), "clientKeyData": text(&key), "token": "t" });
    let old = "client.authentication.k8s.io/v1beta1";
    scene.write("answer", &credential(old, status));
    let mut user = user(&scene, "cat answer");
    user["exec"]["apiVersion"] = old.into();
    let seen = scene.seen(&mut scene.connector(&user)).await;
    assert_eq!(seen.certificate, CertificateDer::from_pem_file(&cert).unwrap().as_ref());
    assert_eq!(seen.header("authorization"), "Bearer t");
}

/// As with client-go.
#[tokio::test]
async fn a_user_with_a_certificate_needs_no_plugin() {
    let scene = Scene::strict().await;
    let (cert, key) = scene.authority.client("node");
    let mut user = user(&scene, "exit 1");
    (user["client-certificate"], user["client-key"]) = (json!(cert), json!(key));
    let seen = scene.seen(&mut scene.connector(&user)).await;
    assert_eq!(seen.certificate, CertificateDer::from_pem_file(&cert).unwrap().as_ref());
    assert_eq!(runs(&scene), 0);
}

#[tokio::test]
async fn a_plugin_gets_its_arguments_environment_and_cluster() {
    let scene = Scene::start().await;
    scene.write("answer", &credential(V1, json!({ "token": "t" })));
    // A relative command is resolved against the kubeconfig's directory.
    std::os::unix::fs::symlink("/bin/sh", scene.at("plugin")).unwrap();
    let script =
        r#"printf '%s' "$KUBERNETES_EXEC_INFO" > info; echo "$REGION $1" > given; cat > input; cat answer"#;
    let mut user = user(&scene, script);
    user["exec"]["command"] = "./plugin".into();
    user["exec"]["args"] = json!([scene.at("plugin.sh"), "login"]);
    user["exec"]["env"] = json!([{ "name": "REGION", "value": "north" }]);
    user["exec"]["provideClusterInfo"] = true.into();
    let mut cluster = scene.cluster();
    cluster["tls-server-name"] = "localhost".into();
    cluster["extensions"] =
        json!([{ "name": "client.authentication.k8s.io/exec", "extension": { "audience": "a" } }]);
    let path = scene.kubeconfig(&cluster, &user);
    let mut connector = Connector::new(Kubeconfig::File(path));
    scene.seen(&mut connector).await;
    let read = |name: &str| fs::read_to_string(scene.at(name)).unwrap();
    assert_eq!((&*read("given"), &*read("input")), ("north login\n", ""));
    let ca = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        fs::read(&scene.authority.ca_file).unwrap(),
    );
    let expected = json!({ "apiVersion": V1, "kind": "ExecCredential", "spec": {
        "interactive": false,
        "cluster": {
            "server": scene.web.url,
            "tls-server-name": "localhost",
            "certificate-authority-data": ca,
            "config": { "audience": "a" },
        },
    } });
    assert_eq!(serde_json::from_str::<Value>(&read("info")).unwrap(), expected);
}

/// The error for a plugin with this script.
async fn error_of(script: &str) -> String {
    let scene = Scene::start().await;
    connect_error(&mut scene.connector(&user(&scene, script))).await
}

#[tokio::test]
async fn the_errors_of_a_plugin_contain_no_secret() {
    let print = |text: &str| format!("cat <<'END'\n{text}\nEND\n");
    let begin = "the credential plugin /bin/sh ";
    let rows = [
        (
            format!("{}\nexit 1", print(SECRET)),
            "failed (exit status: 1); to see why, run /bin/sh by hand with the args and env of the kubeconfig's exec",
        ),
        (
            print(&format!("token: {SECRET}")),
            "printed no ExecCredential; expected JSON with apiVersion, kind and status (see its output at line 1, column 2)",
        ),
        (
            print(&json!({ "apiVersion": V1, "kind": "ExecCredential", "status": SECRET }).to_string()),
            "printed no ExecCredential; expected JSON with apiVersion, kind and status (see its output at line 1, column 89)",
        ),
        (
            print(&credential("client.authentication.k8s.io/v1alpha1", json!({ "token": SECRET }))),
            "printed something else than an ExecCredential of client.authentication.k8s.io/v1 (does it support that version?)",
        ),
        (print(&credential(V1, Value::Null)), "printed an ExecCredential without a status"),
        (
            print(&credential(V1, json!({ "clientKeyData": SECRET }))),
            "printed neither a token nor a clientCertificateData with its clientKeyData",
        ),
        (
            print(&credential(V1, json!({ "token": SECRET, "expirationTimestamp": "2001-02-03T04:05:06Z" }))),
            "printed a credential that expired at 2001-02-03T04:05:06Z; log in again with it (or is this machine's clock wrong?)",
        ),
        (
            print(&credential(V1, json!({ "token": SECRET, "expirationTimestamp": "soon" }))),
            "printed an expirationTimestamp that is not a time like 2026-01-31T12:00:00Z",
        ),
        (
            print(&credential(V1, json!({ "token": format!("{SECRET}\nX-Other: 1") }))),
            "printed a token with characters that no token can have",
        ),
        ("yes | head -c 1100000".to_owned(), "was killed: it printed more than 1048576 bytes"),
    ];
    for (script, expected) in rows {
        assert_eq!(error_of(&script).await, format!("{begin}{expected}"));
    }
}

#[test]
fn a_plugins_stderr_is_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    // More than fits into a pipe.
    let script = format!("i=0; while [ $i -lt 9999 ]; do echo {SECRET} >&2; i=$((i+1)); done; exit 3");
    let exec =
        json!({ "apiVersion": V1, "command": "/bin/sh", "args": ["-c", script], "interactiveMode": "Never" });
    let path =
        kubeconfig(directory.path(), &json!({ "server": "https://127.0.0.1:1" }), &json!({ "exec": exec }));
    let node = Node::start("node", &path);
    let failed = "the credential plugin /bin/sh failed (exit status: 3); to see why, run /bin/sh by hand";
    node.fails(&[failed]);
    node.process.logs(failed);
    let answers = ["/sources", "/metrics", "/readyz?verbose"].map(|path| node.answer(path).text());
    let shown = answers.concat() + &node.ends();
    assert!(!shown.contains(SECRET), "{shown}");
}

#[tokio::test]
async fn the_error_for_a_plugin_that_cannot_run_names_the_next_step() {
    let scene = Scene::start().await;
    let error_of = async |change: Value| {
        let mut user =
            json!({ "exec": { "apiVersion": V1, "command": "no-such-plugin", "interactiveMode": "Never" } });
        user["exec"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let text = connect_error(&mut scene.connector(&user)).await;
        text.replace(&scene.directory.path().display().to_string(), "DIR")
    };
    let long = format!("the credential plugin no-such-plugin does not exist: run: apt {}", "a".repeat(391));
    let rows = [
        (
            json!({}),
            "the credential plugin no-such-plugin does not exist: install it, or correct exec.command in the kubeconfig",
        ),
        (json!({ "installHint": format!("run:\n\u{1b} apt {}", "a".repeat(2000)) }), &long),
        (
            json!({ "command": "./ca.pem" }),
            "the credential plugin DIR/./ca.pem cannot be run: Permission denied (os error 13)",
        ),
        (json!({ "command": "" }), "DIR/kubeconfig: the user's exec has no command"),
        (
            json!({ "interactiveMode": "Always" }),
            "DIR/kubeconfig: exec: no-such-plugin needs a terminal (interactiveMode: Always), and an agent has none; use another credential",
        ),
        (
            json!({ "apiVersion": "client.authentication.k8s.io/v1alpha1" }),
            "DIR/kubeconfig: exec: unsupported apiVersion \"client.authentication.k8s.io/v1alpha1\"; expected client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
        ),
    ];
    for (change, expected) in rows {
        assert_eq!(error_of(change).await, expected);
    }
}

/// Whether a process is running.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(PathBuf::from("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

#[tokio::test]
async fn a_plugin_that_hangs_is_killed_with_its_children() {
    let scene = Scene::start().await;
    let mut connector = scene
        .connector(&user(&scene, "sleep 1000 & echo $! > child.fresh; mv child.fresh child; sleep 1000"));
    let error = tokio::spawn(async move { connector.client().await.err().unwrap().to_string() });
    let child = scene.at("child");
    let there = child.clone();
    until(move || there.exists()).await;
    tokio::time::pause();
    assert_eq!(error.await.unwrap(), "the credential plugin /bin/sh was killed after running for 60s");
    tokio::time::resume();
    let pid = fs::read_to_string(child).unwrap().trim().to_owned();
    until(move || !is_running(&pid)).await;
}

#[tokio::test]
async fn a_plugin_is_killed_when_the_request_for_it_is_dropped() {
    let scene = Scene::start().await;
    let mut connector =
        scene.connector(&user(&scene, "echo $$ > child.fresh; mv child.fresh child; sleep 1000"));
    let waiting = tokio::spawn(async move { connector.client().await.is_ok() });
    let child = scene.at("child");
    let there = child.clone();
    until(move || there.exists()).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let pid = fs::read_to_string(child).unwrap().trim().to_owned();
    until(move || !is_running(&pid)).await;
}
