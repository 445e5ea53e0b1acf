//! `podmux run --check`: whether a start or a reload would accept the settings, without changing anything.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::{Path, PathBuf},
    process::Output,
};

use expect_test::{Expect, expect};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    cluster::kubeconfig,
    process::{Process, podmux},
    web::Authority,
};

/// A place with all that settings can name, all of it good.
struct Place {
    directory: TempDir,
    config: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let ca = Authority::new(directory.path(), "ca");
        let (certificate, key) = ca.server_files("localhost");
        fs::rename(certificate, at("tls.crt")).unwrap();
        fs::rename(key, at("tls.key")).unwrap();
        let (certificate, key) = ca.client("node1");
        fs::rename(certificate, at("client.crt")).unwrap();
        fs::rename(key, at("client.key")).unwrap();
        fs::write(at("token"), "s3cret-token\n").unwrap();
        let cluster = json!({ "server": "https://localhost:1", "certificate-authority": "ca.pem" });
        let user = json!({ "client-certificate": "client.crt", "client-key": "client.key" });
        kubeconfig(directory.path(), &cluster, &user);
        let config = at("config.yaml");
        let place = Self { directory, config };
        place.configure("");
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration, with more lines at its end.
    fn configure(&self, more: &str) {
        let at = self.directory.path().display();
        let text = format!(
            "nodeName: node1\npodManifestPath: {at}/manifests\nlisten: ['127.0.0.1:0']\nstateDir: {at}/state\n\
             tokenFile: {at}/token\ntlsCertFile: {at}/tls.crt\ntlsPrivateKeyFile: {at}/tls.key\nclientCaFile: {at}/ca.pem\n\
             manifestUrl: https://localhost:1/\nmanifestUrlCaFile: {at}/ca.pem\n\
             manifestUrlClientCertFile: {at}/client.crt\nmanifestUrlClientKeyFile: {at}/client.key\n\
             kubeconfig: {at}/kubeconfig\nsink: ['jsonl={at}/updates.jsonl']\n{more}\n"
        );
        fs::write(&self.config, text).unwrap();
    }

    fn check(&self) -> Output {
        podmux(&["run", "--check", "--config", self.config.to_str().unwrap()]).output().unwrap()
    }

    /// Asserts the output, with the path of this place as `@`.
    fn says(&self, code: i32, expected: &Expect) {
        let output = self.check();
        assert_eq!(output.stdout, b"");
        let said = String::from_utf8(output.stderr).unwrap();
        expected.assert_eq(&said.replace(self.directory.path().to_str().unwrap(), "@"));
        assert_eq!(output.status.code(), Some(code));
    }

    /// The output and the exit code with one more sink, with the path of this place as `@`.
    fn check_sink(&self, sink: &str) -> String {
        let args = ["run", "--check", "--config", self.config.to_str().unwrap(), "--sink", sink];
        let output = podmux(&args).env("RUNTIME_DIRECTORY", self.at("run")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        format!("{}{:?}", said.replace(self.directory.path().to_str().unwrap(), "@"), output.status.code())
    }

    /// The names, sizes and times of all files.
    fn everything(&self) -> Vec<String> {
        let mut all: Vec<_> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let meta = entry.metadata().unwrap();
                format!("{} {} {:?}", entry.path().display(), meta.len(), meta.modified().unwrap())
            })
            .collect();
        all.sort();
        all
    }
}

#[test]
fn valid_settings_are_accepted_without_output_and_without_a_change() {
    let place = Place::new();
    let before = place.everything();
    place.says(0, &expect![""]);
    assert_eq!(place.everything(), before, "neither state nor updates nor manifests were made");
}

#[test]
fn a_warning_is_not_an_error() {
    let place = Place::new();
    let output = podmux(&["run", "--check", "--config", place.config.to_str().unwrap()])
        .env("PODMUX_LISTENS", "127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stderr).unwrap();
    expect![[r#"
        podmux: unknown variables, ignored: PODMUX_LISTENS
    "#]]
    .assert_eq(&said);
}

/// The clock of the machine may be wrong.
#[test]
fn a_certificate_that_is_not_valid_now_is_a_warning() {
    let place = Place::new();
    let ca = Authority::new(place.directory.path(), "ca");
    let install = |(certificate, key): (PathBuf, PathBuf), name: &str| {
        fs::rename(certificate, place.at(&format!("{name}.crt"))).unwrap();
        fs::rename(key, place.at(&format!("{name}.key"))).unwrap();
    };
    install(ca.outdated_client("node1"), "client");
    install(ca.outdated_server_files("localhost"), "tls");
    // The api source fails with an expired certificate.
    let cluster = json!({ "server": "https://localhost:1", "certificate-authority": "ca.pem" });
    kubeconfig(place.directory.path(), &cluster, &json!({ "token": "t" }));
    place.says(0, &expect![[r#"
        podmux: --tls-cert-file: @/tls.crt: the certificate expired at 2000-12-31T00:00:00Z; replace it (if it has not expired, set this machine's clock)
        podmux: --manifest-url-client-cert-file: @/client.crt: the certificate expired at 2000-12-31T00:00:00Z; replace it (if it has not expired, set this machine's clock)
    "#]]);
    install(ca.client("node1"), "client");
    install(ca.future_server_files("localhost"), "tls");
    place.says(0, &expect![[r#"
        podmux: --tls-cert-file: @/tls.crt: the certificate is valid from 9000-01-01T00:00:00Z to 9000-12-31T00:00:00Z only (is this machine's clock right?)
    "#]]);
}

/// systemd passes sockets to the agent only.
#[test]
fn a_missing_source_is_a_warning_because_systemd_may_pass_a_socket() {
    let args = ["run", "--listen", "none", "--state-dir", "none"];
    let output = podmux(&[&args[..], &["--check"]].concat()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    expect![[r#"
        podmux: no source of pods, unless systemd passes a socket to which pods are posted
    "#]]
    .assert_eq(&said);
    assert_eq!(output.status.code(), Some(0));
    let start = podmux(&args).output().unwrap();
    assert_eq!(start.status.code(), Some(2));
}

#[test]
fn the_error_of_an_invalid_setting_is_that_of_a_start() {
    let place = Place::new();
    place.configure("shutdownGrace: never");
    place.says(2, &expect![[r#"
        podmux: @/config.yaml:15:1: shutdownGrace: "never" is not a duration: write it like 20s, 1m30s, 500ms or 1h
    "#]]);
    let start = podmux(&["run", "--config", place.config.to_str().unwrap()]).output().unwrap();
    assert_eq!((start.status.code(), start.stderr), (Some(2), place.check().stderr));
}

#[test]
fn every_invalid_file_has_its_line() {
    let place = Place::new();
    fs::write(place.at("token"), "").unwrap();
    fs::write(place.at("tls.key"), "no key").unwrap();
    fs::remove_file(place.at("client.crt")).unwrap();
    fs::create_dir(place.at("updates.jsonl")).unwrap();
    place.says(2, &expect![[r#"
        podmux: token file @/token: the file is empty: write a token into it, such as the output of openssl rand -hex 32
        podmux: TLS private key @/tls.key: the file has no private key in PEM (encrypted keys are not supported)
        podmux: --manifest-url-client-cert-file: cannot read @/client.crt (does it exist, and may podmux read it?): No such file or directory (os error 2)
        podmux: cannot read the client-certificate @/client.crt (does it exist, and may this process read it?): No such file or directory (os error 2)
        podmux: cannot write updates to @/updates.jsonl (choose a file that can be created or appended to): is a directory
    "#]]);
    fs::remove_file(place.at("kubeconfig")).unwrap();
    place.configure("verbose: 1");
    place.says(2, &expect![[r#"
        podmux: token file @/token: the file is empty: write a token into it, such as the output of openssl rand -hex 32
        podmux: TLS private key @/tls.key: the file has no private key in PEM (encrypted keys are not supported)
        podmux: --manifest-url-client-cert-file: cannot read @/client.crt (does it exist, and may podmux read it?): No such file or directory (os error 2)
        podmux: the kubeconfig @/kubeconfig does not exist (create it, or set another path with --kubeconfig)
        podmux: cannot write updates to @/updates.jsonl (choose a file that can be created or appended to): is a directory
    "#]]);
}

#[test]
fn each_certificate_must_match_its_key() {
    let place = Place::new();
    let other = place.at("other");
    fs::create_dir(&other).unwrap();
    let (_, key) = Authority::new(&other, "ca").client("node1");
    fs::copy(&key, place.at("tls.key")).unwrap();
    fs::copy(&key, place.at("client.key")).unwrap();
    place.says(2, &expect![[r#"
        podmux: TLS certificate @/tls.crt: the certificate cannot be used with the key in @/tls.key (do they belong together?)
        podmux: --manifest-url-client-cert-file: cannot use the certificate @/client.crt with the key @/client.key (do they belong together?): keys may not be consistent: KeyMismatch
        podmux: cannot use the certificate in @/client.crt with the key in @/client.key (do they belong together?): keys may not be consistent: KeyMismatch
    "#]]);
}

#[test]
fn a_file_that_cannot_be_read_has_its_flag_or_its_option() {
    let place = Place::new();
    let (token, empty) = (place.at("none"), place.at("empty"));
    fs::write(&empty, "").unwrap();
    let webhook = |files: &str| place.check_sink(&format!("webhook=https://localhost:1/,{files}")) + "\n";
    let mut said = webhook(&format!("token-file={}", token.display()));
    said += &webhook(&format!("hmac-file={}", empty.display()));
    said += &webhook(&format!("ca-file={}", place.directory.path().display()));
    expect![[r#"
        podmux: cannot open the sink webhook=https://localhost:1/: token-file: cannot read @/none (does it exist, and may podmux read it?): No such file or directory (os error 2)
        Some(2)
        podmux: cannot open the sink webhook=https://localhost:1/: hmac-file: @/empty is empty
        Some(2)
        podmux: cannot open the sink webhook=https://localhost:1/: ca-file: cannot read @ (does it exist, and may podmux read it?): is a directory
        Some(2)
    "#]].assert_eq(&said);
    fs::remove_file(place.at("client.key")).unwrap();
    place.says(2, &expect![[r#"
        podmux: --manifest-url-client-key-file: cannot read @/client.key (does it exist, and may podmux read it?): No such file or directory (os error 2)
        podmux: cannot read the client-key @/client.key (does it exist, and may this process read it?): No such file or directory (os error 2)
    "#]]);
    fs::remove_file(place.at("ca.pem")).unwrap();
    place.says(2, &expect![[r#"
        podmux: cannot read the client CA file @/ca.pem (does it exist, and may podmux read it?): No such file or directory (os error 2)
        podmux: --manifest-url-ca-file: cannot read @/ca.pem (does it exist, and may podmux read it?): No such file or directory (os error 2)
        podmux: cannot read the certificate-authority @/ca.pem (does it exist, and may this process read it?): No such file or directory (os error 2)
    "#]]);
}

#[test]
fn an_output_file_needs_a_writable_directory() {
    let place = Place::new();
    let with = |path: &Path| {
        let sink = format!("jsonl={}", path.display());
        let args = ["run", "--check", "--config", place.config.to_str().unwrap(), "--sink", &sink];
        let output = podmux(&args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(with(&place.at("new.jsonl")), (0, String::new()));
    assert!(!place.at("new.jsonl").exists());
    let (code, said) = with(&place.at("no/such.jsonl"));
    assert_eq!(code, 2);
    assert!(said.contains("no/such.jsonl") && said.contains("No such file or directory"), "{said}");
}

/// A start does not need it: it may be installed later.
#[test]
fn the_program_of_a_runtime_must_be_executable() {
    let place = Place::new();
    let program = place.at("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    let with = |mode: u32| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        place.check_sink(&format!("exec={}", program.display()))
    };
    assert_eq!(with(0o755), "Some(0)");
    expect![[r#"
        podmux: cannot run pods with exec=@/program: Permission denied (os error 13)
        Some(2)"#]]
    .assert_eq(&with(0o644));
    fs::remove_file(&program).unwrap();
    fs::create_dir(&program).unwrap();
    expect![[r#"
        podmux: cannot run pods with exec=@/program: it is not a file
        Some(2)"#]]
    .assert_eq(&with(0o755));
    assert!(!place.at("run").exists(), "it only reads");
}

/// A start does not need it: podman may be started later.
#[test]
fn the_socket_of_podman_must_be_a_socket() {
    let place = Place::new();
    let socket = place.at("podman.sock");
    let check = || place.check_sink(&format!("podman={}", socket.display()));
    expect![[r#"
        podmux: cannot run pods with podman=@/podman.sock: No such file or directory (os error 2)
        Some(2)"#]]
    .assert_eq(&check());
    fs::write(&socket, "").unwrap();
    expect![[r#"
        podmux: cannot run pods with podman=@/podman.sock: it is not a socket
        Some(2)"#]]
    .assert_eq(&check());
    fs::remove_file(&socket).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(check(), "Some(0)");
}

#[test]
fn a_check_does_not_disturb_a_running_agent() {
    let place = Place::new();
    fs::create_dir(place.at("manifests")).unwrap();
    let socket = place.at("podmux.sock");
    place.configure("verbose: 0");
    let text = fs::read_to_string(&place.config).unwrap();
    let text = text.replace("127.0.0.1:0", &format!("unix:{}", socket.display()));
    fs::write(&place.config, text).unwrap();
    let args = ["run", "--config", place.config.to_str().unwrap()];
    let agent = Process::start(&mut podmux(&args));
    agent.logs("started");
    place.says(0, &expect![""]);
    agent.signal(rustix::process::Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
}

/// The packaged service reloads with a check like this one.
#[test]
fn a_check_has_no_warning_about_addresses_with_generated_credentials() {
    let place = Place::new();
    let mut command = podmux(&["run", "--check", "--node-name", "node1", "--listen", "127.0.0.1:10240"]);
    let output = command.env("PODMUX_STATE_DIR", place.at("state")).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(!place.at("state").exists(), "a check makes nothing");
}
