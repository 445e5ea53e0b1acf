//! Starts that fail: one line with the problem, its place and the next step, exit code 2, and no data lost.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use expect_test::{Expect, expect};
use podmux::db::Table;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    files::pod,
    namespace::inside,
    plain::Connection,
    process::{Process, podmux_run, wait_for},
    state::{Disk, State},
    stream::Replica,
    web::Authority,
};

/// A directory with manifests, a state directory and a socket.
struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("manifests")).unwrap();
        Self { directory }
    }

    /// A node whose state has a posted pod.
    fn with_state() -> Self {
        let node = Self::new();
        node.run_once(Signal::TERM);
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.at("state").join("state.redb")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = podmux_run(&self.at("manifests"), args);
        command.env("PODMUX_STATE_DIR", self.at("state"));
        command.env("PODMUX_LISTEN", format!("unix:{}", self.at("podmux.sock").display()));
        command
    }

    fn start(&self, args: &[&str]) -> Process {
        let agent = Process::start(&mut self.command(args));
        agent.logs("listening");
        wait_for(|| (self.ask("GET", "/readyz", "").0 == 200).then_some(()));
        agent
    }

    /// Runs the agent, posts a pod, and ends the agent.
    fn run_once(&self, end: Signal) {
        let agent = self.start(&[]);
        assert_eq!(self.post("posted"), 201);
        agent.signal(end);
        agent.ends();
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let answer = Connection::unix(&self.at("podmux.sock")).unwrap();
        let answer = { answer }.ask(method, path, body.as_bytes()).unwrap();
        (answer.code, answer.text())
    }

    fn post(&self, name: &str) -> u16 {
        self.post_with(name, "i:1").0
    }

    fn post_with(&self, name: &str, image: &str) -> (u16, String) {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": image }] },
        });
        self.ask("POST", "/pods", &pod.to_string())
    }

    /// The names of the agent's pods.
    fn pods(&self) -> Vec<String> {
        let (code, text) = self.ask("GET", "/pods", "");
        assert_eq!(code, 200, "{text}");
        let list: Value = serde_json::from_str(&text).unwrap();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    }

    /// Asserts that a start fails with this one line, in which `@` is this directory.
    fn refused(&self, args: &[&str], expected: &Expect) {
        let kept = fs::read(self.state()).ok();
        let (code, log) = Process::start(&mut self.command(args)).ends();
        expected.assert_eq(&(log.replace(self.directory.path().to_str().unwrap(), "@") + "\n"));
        assert_eq!((code, log.lines().count()), (2, 1));
        assert!(fs::read(self.state()).ok() == kept, "the state is as it was, byte for byte");
    }

    /// Asserts that the next start has all pods.
    fn is_whole(&self) {
        let agent = self.start(&[]);
        assert_eq!(self.pods(), ["posted"]);
        agent.signal(Signal::TERM);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
    }

    /// Mounts a file system of this size for the state.
    fn mount(&self, size: &str) {
        fs::create_dir(self.at("state")).unwrap();
        mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], &self.at("state"));
    }

    fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], &self.at("state"));
    }

    /// Fills the file system of the state.
    fn fill(&self) {
        let mut file = fs::File::create(self.at("state").join("others")).unwrap();
        let error = loop {
            if let Err(error) = std::io::Write::write_all(&mut file, &[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.at("state").join("others")).unwrap();
    }
}

fn mount(args: &[&str], at: &Path) {
    assert!(Command::new("mount").args(args).arg(at).status().unwrap().success());
}

#[tokio::test]
async fn a_state_of_a_newer_version_is_an_error() {
    let disk = Disk::default();
    let state = State::open_with(&disk, &[|_| Vec::new()]).unwrap();
    state.put(Table::Posted, "a", "1").await;
    state.close().await;
    let node = Node::new();
    fs::create_dir(node.at("state")).unwrap();
    fs::write(node.state(), disk.bytes()).unwrap();
    node.refused(&[], &expect![[r#"
        podmux: @/state/state.redb was written by a newer podmux: format 2, this one supports up to 1; run the newer one
    "#]]);
}

#[test]
fn a_file_that_is_not_a_valid_state_is_not_changed() {
    let node = Node::new();
    fs::create_dir(node.at("state")).unwrap();
    fs::write(node.state(), "what somebody else keeps here").unwrap();
    node.refused(&[], &expect![[r#"
        podmux: @/state/state.redb is not a podmux database: it is not a database; it is left as it is: move it away, or name another directory with --state-dir
    "#]]);
    let node = Node::with_state();
    let mut damaged = fs::read(node.state()).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle..].fill(0x55);
    fs::write(node.state(), damaged).unwrap();
    node.refused(&[], &expect![[r#"
        podmux: @/state/state.redb is damaged: DB corrupted: Primary is corrupted despite 2-phase commit; it is left as it is: restore a copy of it, or move it away to start with an empty state
    "#]]);
}

#[test]
fn a_state_directory_of_a_running_agent_is_an_error() {
    let node = Node::with_state();
    let agent = node.start(&[]);
    let (code, log) = Process::start(node.command(&[]).env("PODMUX_LISTEN", "none")).ends();
    expect![
        "podmux: another podmux uses the state directory @/state; stop it, or name another with --state-dir"
    ]
    .assert_eq(&log.replace(node.directory.path().to_str().unwrap(), "@"));
    assert_eq!(code, 2);
    agent.signal(Signal::TERM);
    agent.ends();
    node.is_whole();
}

#[test]
fn a_state_directory_of_another_user_is_an_error() {
    if !inside("-U", "bad_starts::a_state_directory_of_another_user_is_an_error") {
        return;
    }
    let node = Node::with_state();
    let mode = |mode| fs::set_permissions(node.at("state"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state; give it and its content to the user that podmux runs as, or name another with --state-dir: Permission denied (os error 13)
    "#]]);
    mode(0o700);
    fs::set_permissions(node.state(), fs::Permissions::from_mode(0o400)).unwrap();
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state/state.redb; give it and its content to the user that podmux runs as, or name another with --state-dir: Permission denied (os error 13)
    "#]]);
    fs::set_permissions(node.state(), fs::Permissions::from_mode(0o600)).unwrap();
    node.is_whole();
}

#[test]
fn a_read_only_file_system_is_an_error() {
    if !inside("-Urm", "bad_starts::a_read_only_file_system_is_an_error") {
        return;
    }
    let node = Node::new();
    node.mount("9m");
    node.remount("ro");
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state; mount it writable, or name another with --state-dir: Read-only file system (os error 30)
    "#]]);
    node.remount("rw");
    node.run_once(Signal::KILL);
    node.remount("ro");
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state; mount it writable, or name another with --state-dir: Read-only file system (os error 30)
    "#]]);
    node.remount("rw");
    node.is_whole();
}

#[test]
fn a_full_disk_without_state_is_an_error() {
    if !inside("-Urm", "bad_starts::a_full_disk_without_state_is_an_error") {
        return;
    }
    let node = Node::new();
    node.mount("4m");
    node.fill();
    node.refused(&[], &expect![[r#"
        podmux: cannot use the state directory: @/state; free some space, or name another with --state-dir: No space left on device (os error 28)
    "#]]);
    node.make_room();
    node.run_once(Signal::TERM);
    node.is_whole();
}

#[test]
fn with_a_full_disk_all_stored_pods_are_still_published() {
    if !inside("-Urm", "bad_starts::with_a_full_disk_all_stored_pods_are_still_published") {
        return;
    }
    for end in [Signal::TERM, Signal::KILL] {
        let node = Node::new();
        node.mount("4m");
        fs::write(node.at("manifests").join("web.yaml"), pod("web", "i:1")).unwrap();
        node.run_once(end);
        node.fill();
        let out = node.at("updates.jsonl");
        let sink = format!("jsonl={}", out.display());
        let agent = node.start(&["--sink", "jsonl", "--sink", &sink]);
        agent.holds("both pods", |held| held.pods.len() == 2);
        // A sink with durable numbers receives them too: the disk has space for the numbers.
        let both = |text: &String| Replica::of(text).pods.len() == 2;
        wait_for(|| fs::read_to_string(&out).ok().filter(|text| text.ends_with('\n')).filter(both));
        assert_eq!(node.pods(), ["posted", "web-node1"]);
        let mut stored = 0;
        let refusal = loop {
            match node.post_with(&format!("more-{stored:03}"), &"i".repeat(200)) {
                (201, _) => stored += 1,
                refused => break refused,
            }
            assert!(stored < 4_000, "4 MB hold no 4,000 pods");
        };
        assert_eq!(refusal.0, 507, "{}", refusal.1);
        assert!(refusal.1.contains("free disk space for the state directory"), "{}", refusal.1);
        assert_eq!(node.pods().len(), 2 + stored);
        agent.signal(Signal::KILL);
        agent.ends();

        // After a restart with a full disk all acknowledged pods are present.
        let agent = node.start(&[]);
        assert_eq!(node.pods().len(), 2 + stored);
        agent.signal(Signal::TERM);
        let (code, log) = agent.ends();
        assert_eq!(code, 0, "{log}");
        assert!(log.ends_with("stopped"), "the end does not wait for space:\n{log}");

        node.make_room();
        let agent = node.start(&[]);
        assert_eq!(node.post("at-last"), 201);
        assert_eq!(node.pods().len(), 3 + stored);
        agent.signal(Signal::TERM);
        agent.ends();
    }
}

#[test]
fn a_port_in_use_is_an_error() {
    let node = Node::with_state();
    let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = other.local_addr().unwrap().to_string();
    let (code, log) = Process::start(node.command(&[]).env("PODMUX_LISTEN", &address)).ends();
    assert_eq!((code, log.lines().count()), (2, 1), "{log}");
    expect!["podmux: cannot listen on ADDRESS: address in use (is another podmux running? choose another with --listen)"].assert_eq(&log.replace(&address, "ADDRESS"));
    node.is_whole();
}

/// systemd does not restart after exit code 2.
#[test]
fn a_missing_address_or_reader_ends_with_exit_code_1() {
    let node = Node::with_state();
    // An address for documentation, which no machine has.
    let (certificate, key) = Authority::new(node.directory.path(), "ca").server_files("localhost");
    let token = node.at("token");
    fs::write(&token, "s3cret-token").unwrap();
    let mut early = node.command(&["--token-file", token.to_str().unwrap()]);
    early.env("PODMUX_TLS_CERT_FILE", certificate).env("PODMUX_TLS_PRIVATE_KEY_FILE", key);
    let (code, log) = Process::start(early.env("PODMUX_LISTEN", "192.0.2.1:10240")).ends();
    assert_eq!(code, 1, "{log}");
    expect!["podmux: cannot listen on 192.0.2.1:10240: no interface of this machine has this address (choose another with --listen)"].assert_eq(&log);

    let pipe = node.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let sink = format!("jsonl={}", pipe.display());
    let (code, log) = Process::start(&mut node.command(&["--sink", &sink])).ends();
    assert_eq!(code, 1, "{log}");
    let log = log.replace(pipe.to_str().unwrap(), "PIPE");
    let last = log.lines().last().unwrap();
    expect!["podmux: the named pipe PIPE has no reader (start its reader first)"].assert_eq(last);
    node.is_whole();
}

#[test]
fn an_unreadable_token_is_an_error() {
    if !inside("-U", "bad_starts::an_unreadable_token_is_an_error") {
        return;
    }
    let node = Node::with_state();
    let token = node.at("token");
    let args = ["--token-file", token.to_str().unwrap()];
    node.refused(&args, &expect![[r#"
        podmux: cannot read the token file @/token (does it exist, and may podmux read it?): No such file or directory (os error 2)
    "#]]);
    fs::write(&token, "s3cret-token").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o000)).unwrap();
    node.refused(&args, &expect![[r#"
        podmux: cannot read the token file @/token (does it exist, and may podmux read it?): Permission denied (os error 13)
    "#]]);
    fs::remove_file(&token).unwrap();
    fs::create_dir(&token).unwrap();
    node.refused(&args, &expect![[r#"
        podmux: cannot read the token file @/token (does it exist, and may podmux read it?): Is a directory (os error 21)
    "#]]);
    node.is_whole();
}

#[test]
fn a_certificate_without_its_key_is_an_error() {
    if !inside("-U", "bad_starts::a_certificate_without_its_key_is_an_error") {
        return;
    }
    let node = Node::with_state();
    let (certificate, key) = Authority::new(node.directory.path(), "ca").server_files("localhost");
    let args =
        ["--tls-cert-file", certificate.to_str().unwrap(), "--tls-private-key-file", key.to_str().unwrap()];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o000)).unwrap();
    node.refused(&args, &expect![[r#"
        podmux: cannot read the TLS private key @/localhost.key (does it exist, and may podmux read it?): Permission denied (os error 13)
    "#]]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "no key").unwrap();
    node.refused(&args, &expect![[r#"
        podmux: TLS private key @/localhost.key: the file has no private key in PEM (encrypted keys are not supported)
    "#]]);
    node.is_whole();
}

#[test]
fn an_invalid_configuration_is_an_error() {
    let node = Node::with_state();
    let config = node.at("config.yaml");
    let args = ["--config", config.to_str().unwrap()];
    node.refused(
        &args,
        &expect![[r#"
            podmux: --config @/config.yaml: cannot be read; does it exist, and may this process read it?: No such file or directory (os error 2)
        "#]],
    );
    fs::write(&config, "podManifestPaths: /etc\n").unwrap();
    node.refused(&args, &expect![[r#"
        podmux: @/config.yaml:1:1: podManifestPaths: unknown field; the fields are podManifestPath, fileCheckFrequency, onInvalidManifest, manifestUrl, manifestUrlHeader, manifestUrlCaFile, manifestUrlClientCertFile, manifestUrlClientKeyFile, manifestUrlSha256, httpCheckFrequency, kubeconfig, podSecurity, nodeName, listen, tokenFile, tlsCertFile, tlsPrivateKeyFile, clientCaFile, sink, notify, stateDir, shutdownGrace, logFormat, verbose
    "#]]);
    node.is_whole();
}

/// A node that joins a cluster may be given its kubeconfig later: that is no bad start.
#[test]
fn a_kubeconfig_that_is_missing_is_waited_for() {
    let node = Node::with_state();
    let kubeconfig = node.at("kubeconfig");
    let agent = Process::start(&mut node.command(&["--kubeconfig", kubeconfig.to_str().unwrap()]));
    agent.logs("listening");
    let line = agent.logs("the kubeconfig");
    assert!(line.contains(kubeconfig.to_str().unwrap()) && line.contains("create it"), "{line}");
    wait_for(|| (node.pods() == ["posted"]).then_some(()));
    assert_eq!(node.ask("GET", "/readyz", "").0, 503, "what the API server wants is not known");
    agent.signal(Signal::TERM);
    agent.ends();
}
