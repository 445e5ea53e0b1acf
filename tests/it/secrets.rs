//! Secrets stay where they are: no value of a secret field, header, token or URL comes out anywhere else.
//!
//! The tests plant canaries in manifests, URLs, tokens and the output of plugins, valid and invalid,
//! and search everything that the agent says. A pod's own text in the stream and in `GET /pods` is
//! for those who may read pods, so it is not searched.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use base64::Engine as _;
use podmux::{
    manifest::{self, Preparation},
    pod::{NodeName, Prepared, Problem, SourceName},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    files::pod,
    kubeconfig::config,
    notify::ManagerDouble,
    plain::Connection,
    process::{PATIENCE, Process, podmux, podmux_run},
    tls,
    web::{Reply, Web},
};

/// Part of every canary, as text and as a number.
const MARK: &str = "8675309";
const TEXT: &str = "canary8675309";
const NUMBER: u64 = 8_675_309_421;

/// Fails if a text contains a canary, also in the form of HTTP's basic authentication.
#[track_caller]
fn assert_none(what: &str, text: &str) {
    assert!(!text.contains(MARK), "a canary in {what}: {text}");
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("user:{TEXT}"));
    assert!(!text.contains(basic.trim_end_matches('=')), "a canary in {what}: {text}");
}

/// Everything that is said about a manifest, as a file, a request, a body of a URL and a pod of an
/// API server.
fn said(text: &str) -> String {
    let mut said = String::new();
    for source in [SourceName::File, SourceName::Http, SourceName::Url] {
        let node = NodeName::new("node1").unwrap();
        let preparation = Preparation { source, node, generate: None, namespace: None };
        let problems: Vec<Problem> = match manifest::read(text.as_bytes(), &preparation) {
            Ok(manifest) => manifest.warnings,
            Err(invalid) => {
                said.extend([invalid.to_string(), "\n".to_owned()]);
                invalid.problems
            }
        };
        said.extend(problems.iter().map(|problem| format!("{problem}\n")));
    }
    if let Err(error) = Prepared::from_server(text.as_bytes()) {
        said.push_str(&error.to_string());
    }
    said
}

/// A pod with a value in every field that may hold a secret, and in others.
fn web() -> Value {
    let get = json!({ "port": 80, "path": "/", "httpHeaders": [{ "name": "X-Token", "value": "x" }] });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "web", "annotations": { "a": "x" }, "labels": { "l": "v" } },
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "hostNetwork": false,
            "nodeSelector": { "a": "b" },
            "containers": [{
                "name": "c",
                "image": "i:1",
                "command": ["x"],
                "args": ["x", "y"],
                "env": [
                    { "name": "A", "value": "x" },
                    { "name": "B", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "1" } } },
                ],
                "envFrom": [{ "prefix": "x", "secretRef": { "name": "s", "optional": true } }],
                "livenessProbe": { "httpGet": get, "periodSeconds": 3 },
                "readinessProbe": { "exec": { "command": ["x"] } },
                "lifecycle": { "preStop": { "httpGet": get }, "postStart": { "exec": { "command": ["x"] } } },
                "resources": { "limits": { "cpu": "1" } },
                "ports": [{ "containerPort": 80 }],
            }],
            "volumes": [{ "name": "v", "hostPath": { "path": "/x" } }],
        },
    })
}

/// The JSON pointers of all values below a value, itself included.
fn pointers(value: &Value, at: &str) -> Vec<String> {
    let below: Vec<String> = match value {
        Value::Object(map) => {
            map.iter().flat_map(|(key, value)| pointers(value, &format!("{at}/{key}"))).collect()
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(index, item)| pointers(item, &format!("{at}/{index}")))
            .collect(),
        _ => Vec::new(),
    };
    [at.to_owned()].into_iter().chain(below).collect()
}

/// Whether an error about a field may show its value, as the API's errors do: a name, a number, a
/// word of an enumeration.
fn may_be_shown(pointer: &str, old: &Value, new: &Value) -> bool {
    let secret = ["annotations", "command", "args", "value"];
    let is_secret = pointer.split('/').any(|step| secret.contains(&step));
    // A quantity is a number.
    let is_quantity = pointer.contains("/resources");
    let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
    is_quantity || (!is_secret && is_scalar(old) && is_scalar(new))
}

#[test]
fn no_error_about_a_manifest_shows_a_secret() {
    let canaries = [
        json!(TEXT),
        json!(NUMBER),
        json!(-8_675_309.5),
        json!([TEXT, NUMBER]),
        json!({ "x": TEXT, "name": NUMBER }),
        json!([{ "x": TEXT, "name": NUMBER, "value": [NUMBER] }]),
        json!(format!("\t{TEXT}\u{0}")),
    ];
    let (pod, mut searched) = (web(), 0);
    for pointer in pointers(&pod, "") {
        let old = pod.pointer(&pointer).unwrap();
        for canary in &canaries {
            let mut planted = pod.clone();
            *planted.pointer_mut(&pointer).unwrap() = canary.clone();
            if !may_be_shown(&pointer, old, canary) {
                assert_none(&format!("{pointer} = {canary}"), &said(&planted.to_string()));
                searched += 1;
            }
        }
    }
    assert!(searched > 300, "{searched}");
    // All at once.
    for canary in &canaries {
        let mut planted = pod.clone();
        for pointer in pointers(&pod, "") {
            let old = pod.pointer(&pointer).unwrap();
            if !may_be_shown(&pointer, old, canary)
                && !old.is_object()
                && let Some(value) = planted.pointer_mut(&pointer)
            {
                *value = canary.clone();
            }
        }
        assert_none("a pod full of canaries", &said(&planted.to_string()));
    }
}

#[test]
fn no_error_about_yaml_shows_a_secret() {
    let values = [
        "8675309421",
        "-8675309.5",
        "!!int canary8675309",
        "!!bool canary8675309",
        "!!binary canary8675309",
        "!canary8675309!x y",
        "!<canary8675309> [",
        "&canary8675309",
        "&canary8675309! x",
        "&canary8675309/x y",
        "*canary8675309",
        "@canary8675309",
        "`canary8675309",
        "%canary8675309",
        "canary8675309: x",
        "[canary8675309",
        "{canary8675309",
        "\"canary8675309",
        "'canary8675309",
        "\"\\canary8675309\"",
        "|canary8675309",
        ">8675309",
        "? canary8675309",
        "canary8675309\n\tx",
        "canary8675309\nx",
        "canary8675309\u{1}",
        "- canary8675309",
        "\"canary8675309\" 8675309",
        "{? canary8675309?: x}",
        "8675309e999",
        "0x8675309 8675309",
    ];
    for value in values {
        let fields = format!("    env:\n    - name: A\n      value: {value}\n    command: {value}\n");
        assert_none(value, &said(&format!("{}{fields}", pod("web", "i:1"))));
        assert_none(value, &said(value));
    }
}

/// The answer to a request over a Unix socket, with its head.
fn ask(socket: &Path, request: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\nhost: podmux\r\nconnection: close\r\ncontent-length: {length}\r\n");
    stream.write_all(format!("{head}content-type: application/yaml\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The answers to callers without credentials, over TCP.
fn anonymous(agent: &Process, ca: Option<&Path>) -> String {
    let line = agent.logs("listening address=127.0.0.1:");
    let (_, address) = line.rsplit_once("address=").unwrap();
    let paths = [
        "/metrics",
        "/readyz",
        "/readyz?verbose",
        "/livez?verbose",
        "/healthz",
        "/sources",
        "/version",
        "/credentials",
    ];
    let answers = paths.map(|path| {
        let answer = if let Some(ca) = ca {
            tls::ask(address, ca, None, "GET", path, "")
        } else {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let headers = format!("Host: {address}\r\nConnection: close\r\n");
            Connection::over(stream, headers).ask("GET", path, b"").unwrap()
        };
        format!("{} {}", answer.code, answer.text())
    });
    answers.join("\n")
}

/// A pod whose env variable is a canary; `value` may be of the wrong type.
fn with_env(name: &str, value: &str) -> String {
    format!("{}    env:\n    - name: A\n      value: {value}\n", pod(name, "i:1"))
}

/// Everything that the agent says, but for the pods that it has.
fn everything(socket: &Path) -> String {
    let mut all = String::new();
    for path in
        ["/metrics", "/readyz", "/readyz?verbose", "/livez?verbose", "/healthz", "/sources", "/", "/version"]
    {
        all += &ask(socket, &format!("GET {path}"), "");
    }
    let server = format!("unix:{}", socket.display());
    for output in ["wide", "json", "yaml"] {
        let got = podmux(&["get", "sources", "--server", &server, "-o", output]).output().unwrap();
        all += &String::from_utf8_lossy(&got.stdout);
        all += &String::from_utf8_lossy(&got.stderr);
    }
    all
}

/// A server for a webhook that rejects everything and repeats what it receives, and the settings of the
/// sink.
async fn hub(directory: &Path) -> (Web, String) {
    let hub = Web::start(Reply::ok("")).await;
    hub.play(|seen| {
        let said =
            format!("{} {} {:?}", seen.path, seen.header("authorization"), seen.header("podmux-signature"));
        Reply::new(401, said).header("Content-Type", "text/plain")
    });
    fs::write(directory.join("hub-token"), format!("{TEXT}-hub\n")).unwrap();
    fs::write(directory.join("hub-key"), format!("{TEXT}-key\n")).unwrap();
    let url = hub.at("/hook?key=canary8675309");
    let sink = format!(
        "sink:\n- jsonl\n- {{kind: webhook, target: \"{url}\", tokenFile: hub-token, hmacFile: hub-key}}\n"
    );
    (hub, sink)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_tells_no_secret_of_any_source() {
    tells_no_secret(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_anonymous_auth_tells_no_secret_of_any_source() {
    tells_no_secret(true).await;
}

/// Manifests with a canary each, and a kubeconfig whose plugin tells one.
fn plant(directory: &Path) -> PathBuf {
    let at = |name: &str| directory.join(name);
    let manifests = at("manifests");
    fs::create_dir(&manifests).unwrap();
    for (name, value) in
        [("good", "\"canary8675309\""), ("number", "8675309421"), ("list", "[canary8675309]")]
    {
        fs::write(manifests.join(format!("{name}.yaml")), with_env(name, value)).unwrap();
    }
    fs::write(manifests.join("anchor.yaml"), with_env("anchor", "&canary8675309!")).unwrap();
    fs::write(manifests.join("token.yaml"), TEXT).unwrap();

    // The plugin writes its canary to both outputs, and fails.
    fs::write(at("plugin.sh"), format!("echo {TEXT}\necho {TEXT} >&2\nexit 1\n")).unwrap();
    let plugin = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": [at("plugin.sh"), TEXT],
        "env": [{ "name": "A", "value": TEXT }], "interactiveMode": "Never",
    } });
    let cluster = json!({ "server": format!("https://user:{TEXT}@127.0.0.1:1/{TEXT}"), "insecure-skip-tls-verify": true });
    fs::write(at("kubeconfig"), config(&cluster, &plugin).to_string()).unwrap();
    manifests
}

async fn tells_no_secret(anonymous_auth: bool) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let manifests = plant(directory.path());
    let web = Web::start(Reply::ok(with_env("polled", "8675309421"))).await;
    let url = web.at("/pods?token=canary8675309").replace("http://", "http://user:canary8675309@");
    let (hub, sink) = hub(directory.path()).await;
    let settings = format!(
        "manifestUrl: \"{url}\"\nmanifestUrlHeader: [\"X-Token: {TEXT}\"]\nhttpCheckFrequency: 1h\n\
         {sink}"
    );
    fs::write(at("config.yaml"), settings).unwrap();

    let (socket, mut manager) = (at("socket"), ManagerDouble::new());
    let listen = format!("unix:{}", socket.display());
    let mut command = podmux_run(&manifests, &["-vvv", "--listen", &listen, "--listen", "127.0.0.1:0"]);
    command.env("PODMUX_STATE_DIR", at("state"));
    command.args(anonymous_auth.then_some("--anonymous-auth"));
    let ca = (!anonymous_auth).then(|| at("state/auth/ca.crt"));
    let asked = |agent: &Process| everything(&socket) + &anonymous(agent, ca.as_deref());
    command.args(["--config", at("config.yaml").to_str().unwrap()]);
    command.args(["--kubeconfig", at("kubeconfig").to_str().unwrap()]);
    let agent = Process::start(manager.starts(&mut command));
    agent.holds("the good pod", |held| held.pods.contains_key("default/good-node1"));
    web.asked(1).await;
    agent.logs("source=\"url\"");
    agent.logs("source=\"api\"");
    agent.logs("the server answered 401 Unauthorized (does it accept what is in token-file and hmac-file?)");
    assert_eq!(hub.asked(1).await[0].header("authorization"), format!("Bearer {TEXT}-hub"));
    assert_eq!(web.seen()[0].header("x-token"), TEXT);

    // The answer shows the canary only to the client that sent it.
    for value in ["8675309421", "[canary8675309]", "&canary8675309!", "\"canary8675309"] {
        let answer = ask(&socket, "POST /pods", &with_env("posted", value));
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert_none("the answer to POST /pods", &answer);
    }
    let probes = anonymous(&agent, ca.as_deref());
    assert_eq!(probes.contains("401 "), !anonymous_auth, "{probes}");
    let answer = ask(&socket, "POST /pods", &with_env("posted", "canary8675309"));
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    assert_none("what the agent answers", &asked(&agent));

    // Other credentials, and a kubeconfig that cannot be read.
    let cluster = json!({ "server": "https://127.0.0.1:1" });
    for user in
        [json!({ "token": TEXT, "tokenFile": at(TEXT) }), json!({ "username": "user", "password": TEXT })]
    {
        fs::write(at("kubeconfig"), config(&cluster, &user).to_string()).unwrap();
        agent.signal(Signal::HUP);
        assert_none("what the agent answers", &asked(&agent));
    }
    fs::write(at("kubeconfig"), format!("users:\n- name: a\n  user: {{token: [{TEXT}, {NUMBER}]}}\n"))
        .unwrap();
    agent.signal(Signal::HUP);
    fs::write(
        at("config.yaml"),
        format!("manifestUrl: {TEXT}\nmanifestUrlHeader: {TEXT}\nsink: webhook=https://{TEXT}@h/\n"),
    )
    .unwrap();
    agent.signal(Signal::HUP);
    agent.logs("reload failed");
    assert_none("what the agent answers", &asked(&agent));

    agent.signal(Signal::TERM);
    let (_, log) = agent.ends();
    assert_none("the log", &log);
    assert_none("what the service manager receives", &manager.all().join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_output_of_a_credential_plugin_comes_out() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let socket = at("socket");
    let listen = format!("unix:{}", socket.display());
    let cluster = json!({ "server": "https://127.0.0.1:1" });
    // It fails, its output is no credential, or its credential is invalid.
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": { "token": TEXT, "clientKeyData": TEXT, "clientCertificateData": TEXT },
    });
    for (output, code) in [(TEXT, 1), (TEXT, 0), (&credential.to_string(), 0)] {
        let script = format!("echo '{output}'\necho {TEXT} >&2\nexit {code}\n");
        fs::write(at("plugin.sh"), script).unwrap();
        let plugin = json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/sh",
            "args": [at("plugin.sh"), TEXT],
            "env": [{ "name": "A", "value": TEXT }],
            "interactiveMode": "Never",
        } });
        fs::write(at("kubeconfig"), config(&cluster, &plugin).to_string()).unwrap();
        let mut manager = ManagerDouble::new();
        let mut command = podmux_run(directory.path(), &["-vvv", "--listen", &listen]);
        command.args(["--kubeconfig", at("kubeconfig").to_str().unwrap()]);
        let agent = Process::start(manager.starts(&mut command));
        agent.logs("source=\"api\"");
        assert_none("what the agent answers", &everything(&socket));
        agent.signal(Signal::TERM);
        let (_, log) = agent.ends();
        assert_none("the log", &log);
        assert_none("what the service manager receives", &manager.all().join("\n"));
    }
}
