//! Who may do what: callers of several users, over each kind of listener, with each kind of credentials.

use std::{
    fmt::Write as _,
    fs::{self, Permissions},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{
        fs::{PermissionsExt as _, chown},
        net::{UnixListener, UnixStream},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use expect_test::expect;
use rustix::process::{Signal, geteuid};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    kubernetes::not_tested,
    plain::Connection,
    process::{Process, podmux, wait_for},
    program::write_program,
    tls,
    web::Authority,
};

/// The agent's group, and users without rights of their own.
const GROUP: u32 = 61001;
const ROOT: (u32, u32) = (0, 0);
const MEMBER: (u32, u32) = (61002, GROUP);
const OTHER: (u32, u32) = (61003, 61003);
const CONTAINER: (u32, u32) = (61004, 61004);

/// What callers try.
const VERBS: [(&str, &str); 10] = [
    ("GET", "/pods"),
    ("POST", "/pods"),
    ("PATCH", "/api/v1/namespaces/default/pods/evil"),
    ("DELETE", "/api/v1/namespaces/default/pods/evil?gracePeriodSeconds=0"),
    ("GET", "/readyz"),
    ("GET", "/readyz?verbose"),
    ("GET", "/updates"),
    ("GET", "/sinks"),
    ("GET", "/metrics"),
    ("GET", "/credentials"),
];

/// A pod that is root on the node.
fn evil() -> String {
    let container = json!({
        "name": "c", "image": "i:1", "env": [{"name": "PASSWORD", "value": "canary"}],
        "securityContext": {"privileged": true}, "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    });
    let volumes = json!([{"name": "host", "hostPath": {"path": "/"}}]);
    let spec = json!({"containers": [container], "volumes": volumes});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "evil"}, "spec": spec}).to_string()
}

/// An agent in a directory that all users may enter.
struct Agent {
    directory: TempDir,
    process: Process,
    /// Its address over TCP.
    address: String,
}

impl Agent {
    fn start(args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let listen = format!("unix:{}", directory.path().join("podmux.sock").display());
        let mut command = podmux(&["run", "--node-name", "node1"]);
        command.args(args).args(["--listen", "127.0.0.1:0", "--listen", &listen]);
        command.env("PODMUX_STATE_DIR", directory.path().join("state")).current_dir(directory.path());
        if geteuid().is_root() {
            command.gid(GROUP);
        }
        let process = Process::start(&mut command);
        process.logs("started");
        let line = process.logs("listening address=127.0.0.1:");
        let address = line.rsplit_once("address=").unwrap().1.to_owned();
        Self { directory, process, address }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The credentials, from the socket.
    fn credentials(&self) -> Value {
        let answer =
            Connection::unix(&self.at("podmux.sock")).unwrap().ask("GET", "/credentials", b"").unwrap();
        assert_eq!(answer.code, 200, "{}", answer.text());
        answer.json()
    }

    /// The arguments of curl for a listener.
    fn listener(&self, name: &str) -> Vec<String> {
        match name {
            "unix" => ["--unix-socket", self.at("podmux.sock").to_str().unwrap(), "http://localhost"]
                .map(str::to_owned)
                .to_vec(),
            "http" => vec![format!("http://{}", self.address)],
            _ => {
                // The authority is no secret; its directory is closed.
                wait_for(|| self.at("state/auth/server.crt").exists().then_some(()));
                fs::copy(self.at("state/auth/ca.crt"), self.at("ca.crt")).unwrap();
                fs::set_permissions(self.at("ca.crt"), Permissions::from_mode(0o644)).unwrap();
                vec![
                    "--cacert".to_owned(),
                    self.at("ca.crt").display().to_string(),
                    format!("https://{}", self.address),
                ]
            }
        }
    }

    fn ends(self) -> String {
        self.process.signal(Signal::TERM);
        let (code, log) = self.process.ends();
        assert_eq!(code, 0, "{log}");
        log
    }
}

/// The status of a request of a user, or `-` without an answer.
fn curl((uid, gid): (u32, u32), listener: &[String], more: &[&str], (method, path): (&str, &str)) -> String {
    let (url, options) = listener.split_last().unwrap();
    let mut command = Command::new("curl");
    command.args(["-sNi", "--http1.1", "--noproxy", "*", "-X", method]).args(options).args(more);
    if method == "POST" {
        command.args(["-H", "Content-Type: application/json", "--data-binary", &evil()]);
    }
    if method == "PATCH" {
        let body = r#"{"metadata": {"labels": {"evil": "yes"}}}"#;
        command.args(["-H", "Content-Type: application/merge-patch+json", "--data-binary", body]);
    }
    command.arg(format!("{url}{path}")).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    if geteuid().is_root() {
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The updates have no end.
    let _ = child.kill();
    child.wait().unwrap();
    line.split(' ').nth(1).unwrap_or("-").to_owned()
}

/// A row of the table: the status of each verb.
fn row(table: &mut String, name: &str, user: (u32, u32), listener: &[String], more: &[&str]) {
    let cells = VERBS.map(|verb| format!("{:>5}", curl(user, listener, more, verb)));
    writeln!(table, "{name:32}{}", cells.concat()).unwrap();
}

#[test]
fn each_caller_may_do_what_the_table_says_over_each_listener() {
    if !geteuid().is_root() {
        return not_tested("callers of other users: only root can become them");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let clients = Authority::new(directory.path(), "clients");
    let (certificate, key) = clients.client("operator");
    let agent = Agent::start(&["--client-ca-file", clients.ca_file.to_str().unwrap()]);
    let anonymous = Agent::start(&["--anonymous-auth", "--state-dir", "none"]);
    let credentials = agent.credentials();
    let bearer = |token: &str| format!("Authorization: Bearer {}", credentials[token].as_str().unwrap());
    let (token, read_token) = (bearer("token"), bearer("readToken"));
    let certificate = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let (unix, https) = (agent.listener("unix"), agent.listener("https"));
    let mut table = format!("{:32}{}\n", "", "  get post patc  del   rz  rzv  upd sink  met cred");
    for (name, user) in [("root", ROOT), ("member", MEMBER), ("other", OTHER), ("container", CONTAINER)] {
        row(&mut table, &format!("{name}, unix"), user, &unix, &[]);
        row(&mut table, &format!("{name}, tls"), user, &https, &[]);
        row(
            &mut table,
            &format!("{name}, tls, wrong token"),
            user,
            &https,
            &["-H", "Authorization: Bearer x"],
        );
        row(&mut table, &format!("{name}, tls, token"), user, &https, &["-H", &token]);
        row(&mut table, &format!("{name}, tls, read token"), user, &https, &["-H", &read_token]);
        row(&mut table, &format!("{name}, plain HTTP"), user, &[format!("http://{}", agent.address)], &[]);
        row(&mut table, &format!("{name}, anonymous-auth"), user, &anonymous.listener("http"), &[]);
    }
    // The key is readable for root only.
    row(&mut table, "root, tls, certificate", ROOT, &https, &certificate);
    expect![[r#"
                                          get post patc  del   rz  rzv  upd sink  met cred
        root, unix                        200  201  200  200  200  200  200  200  200  200
        root, tls                         401  401  401  401  200  401  401  401  401  401
        root, tls, wrong token            401  401  401  401  200  401  401  401  401  401
        root, tls, token                  200  201  200  200  200  200  200  200  200  403
        root, tls, read token             200  403  403  403  200  200  200  200  200  403
        root, plain HTTP                    -    -    -    -    -    -    -    -    -    -
        root, anonymous-auth              200  201  200  200  200  200  200  200  200  403
        member, unix                      200  201  200  200  200  200  200  200  200  200
        member, tls                       401  401  401  401  200  401  401  401  401  401
        member, tls, wrong token          401  401  401  401  200  401  401  401  401  401
        member, tls, token                200  201  200  200  200  200  200  200  200  403
        member, tls, read token           200  403  403  403  200  200  200  200  200  403
        member, plain HTTP                  -    -    -    -    -    -    -    -    -    -
        member, anonymous-auth            200  201  200  200  200  200  200  200  200  403
        other, unix                         -    -    -    -    -    -    -    -    -    -
        other, tls                        401  401  401  401  200  401  401  401  401  401
        other, tls, wrong token           401  401  401  401  200  401  401  401  401  401
        other, tls, token                 200  201  200  200  200  200  200  200  200  403
        other, tls, read token            200  403  403  403  200  200  200  200  200  403
        other, plain HTTP                   -    -    -    -    -    -    -    -    -    -
        other, anonymous-auth             200  201  200  200  200  200  200  200  200  403
        container, unix                     -    -    -    -    -    -    -    -    -    -
        container, tls                    401  401  401  401  200  401  401  401  401  401
        container, tls, wrong token       401  401  401  401  200  401  401  401  401  401
        container, tls, token             200  201  200  200  200  200  200  200  200  403
        container, tls, read token        200  403  403  403  200  200  200  200  200  403
        container, plain HTTP               -    -    -    -    -    -    -    -    -    -
        container, anonymous-auth         200  201  200  200  200  200  200  200  200  403
        root, tls, certificate            200  201  200  200  200  200  200  200  200  403
    "#]]
    .assert_eq(&table);
    let log = anonymous.ends();
    assert!(log.contains("WARN anonymous-auth: every user of this machine may read and post pods"), "{log}");
    let log = agent.ends();
    for secret in ["token", "readToken"] {
        assert!(!log.contains(credentials[secret].as_str().unwrap()), "{log}");
    }
}

/// It was possible: the default address asked for no credentials.
#[test]
fn an_unprivileged_user_cannot_post_or_read_over_tcp() {
    if !geteuid().is_root() {
        return not_tested("callers of other users: only root can become them");
    }
    let agent = Agent::start(&[]);
    let https = agent.listener("https");
    let post = curl(ROOT, &agent.listener("unix"), &[], ("POST", "/pods"));
    assert_eq!(post, "201");
    for path in
        ["/pods", "/api/v1/pods", "/updates", "/sources", "/", "/version", "/nothing", "/readyz?verbose"]
    {
        assert_eq!(curl(OTHER, &https, &[], ("GET", path)), "401", "{path}");
    }
    for verb in
        [("POST", "/pods"), ("PUT", "/pods"), ("POST", "/api/v1/namespaces/default/pods"), VERBS[2], VERBS[3]]
    {
        assert_eq!(curl(OTHER, &https, &[], verb), "401", "{verb:?}");
    }
    for name in ["", "token", "read-token", "ca.key", "server.key"] {
        let mut cat = Command::new("cat");
        cat.arg(agent.at("state/auth").join(name)).uid(OTHER.0).gid(OTHER.1).current_dir("/");
        let output = cat.output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("Permission denied"), "{name}");
    }
    // Neither do web pages, nor names that lead here from elsewhere.
    let token = format!("Authorization: Bearer {}", agent.credentials()["token"].as_str().unwrap());
    for header in ["Origin: https://example.org", "Host: example.org"] {
        assert_eq!(curl(OTHER, &https, &["-H", &token, "-H", header], ("GET", "/pods")), "403", "{header}");
    }
    agent.ends();
}

/// It was possible: `/readyz` had the standard error of a credential plugin, its path, and the host of a URL.
#[test]
fn without_credentials_the_health_is_one_word_and_has_no_reason() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("canary-plugin");
    write_program(&plugin, "#!/bin/sh\necho canary-stderr >&2\nexit 1\n");
    let kubeconfig = directory.path().join("kubeconfig");
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never"});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://canary-server.invalid"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": exec}}],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let agent =
        Agent::start(&["--kubeconfig", kubeconfig, "--manifest-url", "http://canary-url.invalid/pods"]);
    let token = agent.credentials()["token"].as_str().unwrap().to_owned();
    let ca = agent.at("state/auth/ca.crt");
    let ask = |token: Option<&str>, path: &str| tls::ask(&agent.address, &ca, token, "GET", path, "");
    // With credentials the reasons are there.
    wait_for(|| {
        let text = ask(Some(&token), "/readyz?verbose").text();
        (text.contains("canary-plugin") && text.contains("canary-url")).then_some(())
    });
    for (path, code, word) in [("/livez", 200, "ok"), ("/readyz", 503, "failed"), ("/healthz", 503, "failed")]
    {
        let answer = ask(None, path);
        assert_eq!((answer.code, &*answer.text()), (code, word), "{path}");
        for more in ["?verbose", "?verbose=1", "?", "/", "?exclude=x"] {
            let answer = ask(None, &format!("{path}{more}"));
            assert_eq!(answer.code, 401, "{path}{more}");
            assert!(!answer.text().contains("canary"), "{}", answer.text());
        }
    }
    for path in ["/sources", "/metrics", "/pods", "/credentials", "/updates"] {
        let answer = ask(None, path);
        assert_eq!((answer.code, answer.text().contains("canary")), (401, false), "{path}");
    }
    agent.ends();
}

#[test]
fn a_user_without_permission_is_not_sent_into_the_group_of_root() {
    if !geteuid().is_root() {
        return not_tested("a socket of root: only root can make it");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("s");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o660)).unwrap();
    let said = |group: u32| {
        chown(&socket, Some(0), Some(group)).unwrap();
        let server = format!("unix:{}", socket.display());
        let output = podmux(&["get", "pods", "--server", &server]).uid(65534).gid(65534).output().unwrap();
        String::from_utf8(output.stderr).unwrap().replace(socket.to_str().unwrap(), "s")
    };
    expect![[r#"
        podmux: no permission to use the socket s: only its owner and the group root may; become root
    "#]]
    .assert_eq(&said(0));
    expect![[r#"
        podmux: no permission to use the socket s: only its owner and the group podmux may; become root, or join the group with usermod -aG podmux USER and log in again
    "#]].assert_eq(&said(GROUP));
}

/// A client without credentials could fill the log.
#[test]
fn what_a_client_sends_makes_no_line_of_the_log() {
    let agent = Agent::start(&[]);
    let mut stream = UnixStream::connect(agent.at("podmux.sock")).unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // GET / as HEADERS, and RST_STREAM, more often than h2 accepts.
    for stream in (1..200_u32).step_by(2).map(u32::to_be_bytes) {
        sent.extend([b"\0\0\x03\x01\x05", &stream[..], b"\x82\x86\x84"].concat());
        sent.extend([b"\0\0\x04\x03\0", &stream[..], b"\0\0\0\x08"].concat());
    }
    stream.write_all(&sent).unwrap();
    // The server ends the connection.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    let log = agent.ends();
    assert!(!log.contains("h2") && !log.contains("streams"), "{log}");
}

/// The kubeconfig of the socket is for kubectl, and not to be had over TCP.
#[test]
fn a_kubeconfig_is_given_over_the_socket_only() {
    // No machine has this address, so the kubeconfig names the next one.
    let agent = Agent::start(&["--listen", "192.0.2.1:10240"]);
    let server = format!("unix:{}", agent.at("podmux.sock").display());
    let run = |args: &[&str]| podmux(&[&["kubeconfig"], args].concat()).output().unwrap();
    for (args, field) in [(&[][..], "token"), (&["--read-only"], "readToken")] {
        let output = run(&[&["--server", &server], args].concat());
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let config = podmux::manifest::yaml::to_json(&text).unwrap();
        let credentials = agent.credentials();
        assert_eq!(config["users"][0]["user"]["token"], credentials[field]);
        let cluster = json!({
            "server": format!("https://{}", agent.address),
            "certificate-authority-data": credentials["certificateAuthorityData"],
        });
        assert_eq!(config["clusters"], json!([{"name": "podmux", "cluster": cluster}]));
        assert_eq!(config["current-context"], "podmux");
    }
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    for (name, wanted) in [
        ("podmux.example.org", json!("podmux.example.org")),
        ("*.example.org", json!("podmux.example.org")),
        ("127.0.0.1", Value::Null),
    ] {
        let (certificate, key) = authority.server_files(name);
        let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
        let agent = Agent::start(&["--tls-cert-file", certificate, "--tls-private-key-file", key]);
        let server = format!("unix:{}", agent.at("podmux.sock").display());
        let config =
            podmux::manifest::yaml::to_json(&String::from_utf8(run(&["--server", &server]).stdout).unwrap());
        assert_eq!(config.unwrap()["clusters"][0]["cluster"]["tls-server-name"], wanted, "{name}");
        agent.ends();
    }
    let (ca, token) = (agent.at("state/auth/ca.crt"), agent.at("state/auth/token"));
    // Only with a state directory there is a read token.
    let (certificate, key) = authority.server_files("127.0.0.1");
    let flags =
        ["--tls-cert-file", certificate.to_str().unwrap(), "--tls-private-key-file", key.to_str().unwrap()];
    let flags = [&flags[..], &["--token-file", token.to_str().unwrap(), "--state-dir", "none"]].concat();
    let stateless = Agent::start(&flags);
    let output =
        run(&["--server", &format!("unix:{}", stateless.at("podmux.sock").display()), "--read-only"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    expect![[r#"
        podmux: the agent has no read token: it needs a state directory whose auth/read-token it can read, and no --anonymous-auth
    "#]]
    .assert_eq(&String::from_utf8(output.stderr).unwrap());
    stateless.ends();
    let tcp = format!("https://{}", agent.address);
    let files = ["--ca-file", ca.to_str().unwrap(), "--token-file", token.to_str().unwrap()];
    let output = run(&[&["--server", &tcp], &files[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    expect![[r#"
        Error from server (Forbidden): credentials are for callers of the agent's Unix socket only: use --server unix:PATH
    "#]].assert_eq(&String::from_utf8(output.stderr).unwrap());
    agent.ends();
}

/// Without the token for reading only, kubectl still gets the other one.
#[test]
fn a_kubeconfig_needs_only_the_files_that_it_is_made_of() {
    let agent = Agent::start(&[]);
    agent.listener("https");
    let auth = agent.at("state/auth");
    std::os::unix::fs::symlink("read-token", auth.join("loop")).unwrap();
    fs::rename(auth.join("loop"), auth.join("read-token")).unwrap();
    let server = format!("unix:{}", agent.at("podmux.sock").display());
    let run =
        |args: &[&str]| podmux(&[&["kubeconfig", "--server", &server], args].concat()).output().unwrap();
    let output = run(&[]);
    let (config, said) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(config.contains(fs::read_to_string(auth.join("token")).unwrap().trim()), "{said}");
    let output = run(&["--read-only"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    expect![[r#"
        podmux: the agent has no read token: it needs a state directory whose auth/read-token it can read, and no --anonymous-auth
    "#]]
    .assert_eq(&String::from_utf8(output.stderr).unwrap());
    agent.ends();
}

/// The server's certificate is renewed, and its authority stays.
#[test]
fn a_kubeconfig_trusts_the_authorities_of_a_given_chain_and_without_one_the_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let server = authority.server_files("127.0.0.1");
    let alone = authority.self_signed_files("localhost");
    let other = authority.server_files("other.example").0;
    let [own, own_alone, other, ca] =
        [&server.0, &alone.0, &other, &authority.ca_file].map(|path| fs::read(path).unwrap());
    for ((certificate, key), chain, trusted) in [
        (&server, [&own[..], &ca].concat(), &ca),
        (&server, [&own[..], &other, &ca].concat(), &ca),
        (&server, [&own[..], &other].concat(), &own),
        (&server, own.clone(), &own),
        (&alone, [&own_alone[..], &ca].concat(), &own_alone),
    ] {
        fs::write(certificate, chain).unwrap();
        let files = [certificate, key].map(|path| path.to_str().unwrap());
        let agent = Agent::start(&["--tls-cert-file", files[0], "--tls-private-key-file", files[1]]);
        let given = agent.credentials()["certificateAuthorityData"].as_str().unwrap().to_owned();
        let given = STANDARD.decode(given).unwrap();
        let all = |text: &[u8]| CertificateDer::pem_slice_iter(text).map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(all(&given), all(trusted));
        agent.ends();
    }
}

#[test]
fn an_agent_for_everybody_has_no_kubeconfig_that_only_reads() {
    let agent = Agent::start(&["--anonymous-auth", "--state-dir", "none"]);
    let server = format!("unix:{}", agent.at("podmux.sock").display());
    let output = podmux(&["kubeconfig", "--read-only", "--server", &server]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    agent.ends();
}

/// Without flags the commands use what the agent of this machine has made.
#[test]
fn commands_find_the_socket_and_the_credentials() {
    let agent = Agent::start(&[]);
    agent.listener("https");
    let get = |server: Option<&str>, variables: &[(&str, &Path)]| {
        let mut command = podmux(&["get", "sources", "-o", "name"]);
        command.envs(server.map(|server| ("PODMUX_SERVER", server))).envs(variables.iter().copied());
        let output = command.output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let found = (0, "source/http\n".to_owned());
    let state = agent.at("state");
    let (https, localhost) =
        (format!("https://{}", agent.address), agent.address.replace("127.0.0.1", "https://localhost"));
    for server in [&https, &localhost] {
        assert_eq!(get(Some(server), &[("STATE_DIRECTORY", &state)]), found);
        // As for the agent, it has precedence.
        let both = [("STATE_DIRECTORY", Path::new("/nowhere")), ("PODMUX_STATE_DIR", &state)];
        assert_eq!(get(Some(server), &both), found);
    }
    let (code, _) =
        get(Some(&https), &[("STATE_DIRECTORY", &state), ("PODMUX_STATE_DIR", Path::new("none"))]);
    assert_eq!(code, 1, "an agent without a state has no files for it");
    // Without a state directory that can be read.
    let (code, text) = get(Some(&https), &[("STATE_DIRECTORY", Path::new("/nowhere"))]);
    assert_eq!(code, 1);
    assert!(text.contains("is not trusted"), "{text}");
    if Path::new("/run/podmux/podmux.sock").exists() {
        return not_tested("commands without an address: an agent of the system runs");
    }
    let runtime = agent.at("runtime");
    fs::create_dir_all(runtime.join("podmux")).unwrap();
    let (code, text) = get(None, &[("XDG_RUNTIME_DIR", &runtime)]);
    assert_eq!(code, 1, "as with an address that is given");
    expect![[r#"
        podmux: no agent at unix:/run/podmux/podmux.sock or unix:DIR/runtime/podmux/podmux.sock: start "podmux run", or see systemctl status podmux, or name another address with --server or PODMUX_SERVER
    "#]].assert_eq(&text.replace(agent.directory.path().to_str().unwrap(), "DIR"));
    std::os::unix::fs::symlink(agent.at("podmux.sock"), runtime.join("podmux/podmux.sock")).unwrap();
    assert_eq!(get(None, &[("XDG_RUNTIME_DIR", &runtime)]), found);
    agent.ends();
}
