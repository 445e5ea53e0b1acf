//! The command line of the real binary: help, refusals in one line, exit codes, completions.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "golden texts are written by expect-test, and are as long as what a person sees"
)]

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::Write as _,
    os::unix::ffi::OsStrExt as _,
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use podmux::settings::settings;
use rustix::process::Signal;

use crate::support::process::{Process, podmux};

/// Runs it to its end; what it said as a person sees it, and the exit code.
pub fn transcript(command: &mut Command, stdin: &[u8]) -> String {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The child may refuse without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    let mut text = String::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    for line in String::from_utf8(output.stderr).unwrap().lines() {
        writeln!(text, "! {line}").unwrap();
    }
    writeln!(text, "exit {}", output.status.code().unwrap()).unwrap();
    text
}

fn check(args: &[&str], expected: &Expect) {
    expected.assert_eq(&transcript(&mut podmux(args), b""));
}

#[test]
fn help_says_what_there_is_with_defaults_and_variables() {
    check(
        &["-h"],
        &expect![[r#"
            Pods from every source of a node, as one ordered stream of updates

            Usage: podmux <COMMAND>

            Commands:
              run         Run the agent: read pod manifests and publish every change as one ordered stream
              validate    Check manifests as the agent would take them
              get         Show pods, sources or updates of a running agent
              apply       Create or replace pods on a running agent
              delete      Delete pods of a running agent
              completion  Print completions for a shell

            Options:
              -h, --help     Print help (see more with '--help')
              -V, --version  Print version
            exit 0
        "#]],
    );
    check(
        &["--help"],
        &expect![[r#"
            Pods from every source of a node, as one ordered stream of updates

            podmux collects the pod manifests for one node from files, HTTP, a URL and an API server, merges
            them, and publishes every change once, in order, as JSON lines.

            Usage: podmux <COMMAND>

            Commands:
              run         Run the agent: read pod manifests and publish every change as one ordered stream
              validate    Check manifests as the agent would take them
              get         Show pods, sources or updates of a running agent
              apply       Create or replace pods on a running agent
              delete      Delete pods of a running agent
              completion  Print completions for a shell

            Options:
              -h, --help
                      Print help (see a summary with '-h')

              -V, --version
                      Print version

            Examples:
              podmux run --pod-manifest-path /etc/kubernetes/manifests
              podmux validate /etc/kubernetes/manifests
              podmux apply -f web.yaml
              podmux get pods -A --watch
              podmux completion bash > /etc/bash_completion.d/podmux

            Exit codes: 0 done, or stopped on request; 1 failed; 2 invalid call or settings, with a line that
            says why.
            exit 0
        "#]],
    );
    check(
        &["run", "-h"],
        &expect![[r#"
            Run the agent: read pod manifests and publish every change as one ordered stream

            Usage: podmux run [OPTIONS]

            Options:
              -h, --help  Print help (see more with '--help')

            Sources:
                  --pod-manifest-path <PATH>
                      File or directory of pod manifests; it is watched
                      [env: PODMUX_POD_MANIFEST_PATH]
                  --file-check-frequency <DURATION>
                      Time between two complete scans of the manifests, in addition to watching
                      [default: 20s] [env: PODMUX_FILE_CHECK_FREQUENCY]
                  --on-invalid-manifest <POLICY>
                      What happens to the pods of a manifest that becomes invalid: keep the last valid ones, or
                      remove them
                      [default: keep] [env: PODMUX_ON_INVALID_MANIFEST] [possible values: keep, remove]
                  --manifest-url <URL>
                      URL of pod manifests; it is polled
                      [env: PODMUX_MANIFEST_URL]
                  --manifest-url-header <NAME: VALUE>
                      A header for each request of the URL; may be repeated. Other users of this machine can
                      read flags: put a secret in --config FILE
                      [env: PODMUX_MANIFEST_URL_HEADER]
                  --manifest-url-ca-file <FILE>
                      The certificate authorities (PEM) that verify the URL's server, instead of the system's
                      [env: PODMUX_MANIFEST_URL_CA_FILE]
                  --manifest-url-client-cert-file <FILE>
                      The client certificate (PEM) for the URL's server
                      [env: PODMUX_MANIFEST_URL_CLIENT_CERT_FILE]
                  --manifest-url-client-key-file <FILE>
                      The private key (PEM) of that certificate
                      [env: PODMUX_MANIFEST_URL_CLIENT_KEY_FILE]
                  --manifest-url-sha256 <HEX>
                      Reject content of the URL whose SHA-256 differs from this
                      [env: PODMUX_MANIFEST_URL_SHA256]
                  --http-check-frequency <DURATION>
                      Time between two polls of the URL
                      [default: 20s] [env: PODMUX_HTTP_CHECK_FREQUENCY]
                  --kubeconfig <FILE|in-cluster>
                      The kubeconfig of the API server whose pods for this node are read, or in-cluster for the
                      service account of a pod
                      [env: PODMUX_KUBECONFIG]
                  --node-name <NAME>
                      The name of this node, a part of every static pod's name
                      [default: the host name] [env: PODMUX_NODE_NAME] [alias: --hostname-override]

            Server:
                  --listen <HOST:PORT|unix:PATH|none>
                      Address of the HTTP server, or none; may be repeated. Sockets from systemd are served in
                      addition. An address that other machines can reach needs TLS, and a token or client
                      certificates
                      [default: 127.0.0.1:10240] [env: PODMUX_LISTEN]
                  --token-file <FILE>
                      The file with the token that TCP clients must send
                      [env: PODMUX_TOKEN_FILE]
                  --tls-cert-file <FILE>
                      The server's certificate (PEM, with its chain); it enables TLS
                      [env: PODMUX_TLS_CERT_FILE]
                  --tls-private-key-file <FILE>
                      The private key (PEM) of that certificate
                      [env: PODMUX_TLS_PRIVATE_KEY_FILE]
                  --client-ca-file <FILE>
                      The certificate authorities (PEM) that sign client certificates
                      [env: PODMUX_CLIENT_CA_FILE]

            Sinks:
                  --sink <jsonl|jsonl=PATH>  Where updates go: jsonl writes JSON lines to standard output or a
                                             file; may be repeated
                                             [default: jsonl] [env: PODMUX_SINK]
                  --notify <MODE>            What sinks receive: each change (incremental), all pods at each
                                             change (snapshot), or all pods when pods are added or removed and
                                             each change otherwise (snapshot-and-updates)
                                             [default: incremental] [env: PODMUX_NOTIFY] [possible values:
                                             incremental, snapshot, snapshot-and-updates]

            Process:
                  --state-dir <DIR|none>       Directory for posted pods and last-known-good manifests; none
                                               stores nothing
                                               [default: /var/lib/podmux for root, else the user's state
                                               directory] [env: PODMUX_STATE_DIR]
                  --shutdown-grace <DURATION>  Time limit for shutting down
                                               [default: 10s] [env: PODMUX_SHUTDOWN_GRACE]
                  --log-format <FORMAT>        Format of the log on standard error
                                               [default: text] [env: PODMUX_LOG_FORMAT] [possible values: text,
                                               json]
              -v, --verbose...                 Log more: -v debug events, -vv traces, -vvv also those of the
                                               libraries
                                               [env: PODMUX_VERBOSE]
                  --config <FILE>              Settings in YAML or JSON: podmux's own format, or a
                                               KubeletConfiguration
                                               [env: PODMUX_CONFIG]
                  --check                      Check the settings and the files that they name, print all
                                               errors, and exit without starting: 0 if a start or a reload would
                                               accept them, else 2. Addresses, sockets from systemd and the
                                               state directory are not checked
            exit 0
        "#]],
    );
    check(
        &["run", "--help"],
        &expect![[r#"
            Run the agent: read pod manifests and publish every change as one ordered stream

            Every flag can also be given in the environment (--sink is PODMUX_SINK, with commas between several
            values; PODMUX_MANIFEST_URL_HEADER has one header per line) and as a field of --config FILE
            (--file-check-frequency is fileCheckFrequency). A flag takes precedence over the environment, and
            the environment over the file.

            SIGTERM and SIGINT stop the agent. SIGHUP reloads settings, certificates, tokens and manifests;
            check the settings with --check before.

            Usage: podmux run [OPTIONS]

            Options:
              -h, --help
                      Print help (see a summary with '-h')

            Sources:
                  --pod-manifest-path <PATH>
                      File or directory of pod manifests; it is watched
                      [env: PODMUX_POD_MANIFEST_PATH]

                  --file-check-frequency <DURATION>
                      Time between two complete scans of the manifests, in addition to watching
                      [default: 20s] [env: PODMUX_FILE_CHECK_FREQUENCY]

                  --on-invalid-manifest <POLICY>
                      What happens to the pods of a manifest that becomes invalid: keep the last valid ones, or
                      remove them
                      [default: keep] [env: PODMUX_ON_INVALID_MANIFEST]

                      [possible values: keep, remove]

                  --manifest-url <URL>
                      URL of pod manifests; it is polled
                      [env: PODMUX_MANIFEST_URL]

                  --manifest-url-header <NAME: VALUE>
                      A header for each request of the URL; may be repeated. Other users of this machine can
                      read flags: put a secret in --config FILE
                      [env: PODMUX_MANIFEST_URL_HEADER]

                  --manifest-url-ca-file <FILE>
                      The certificate authorities (PEM) that verify the URL's server, instead of the system's
                      [env: PODMUX_MANIFEST_URL_CA_FILE]

                  --manifest-url-client-cert-file <FILE>
                      The client certificate (PEM) for the URL's server
                      [env: PODMUX_MANIFEST_URL_CLIENT_CERT_FILE]

                  --manifest-url-client-key-file <FILE>
                      The private key (PEM) of that certificate
                      [env: PODMUX_MANIFEST_URL_CLIENT_KEY_FILE]

                  --manifest-url-sha256 <HEX>
                      Reject content of the URL whose SHA-256 differs from this
                      [env: PODMUX_MANIFEST_URL_SHA256]

                  --http-check-frequency <DURATION>
                      Time between two polls of the URL
                      [default: 20s] [env: PODMUX_HTTP_CHECK_FREQUENCY]

                  --kubeconfig <FILE|in-cluster>
                      The kubeconfig of the API server whose pods for this node are read, or in-cluster for the
                      service account of a pod
                      [env: PODMUX_KUBECONFIG]

                  --node-name <NAME>
                      The name of this node, a part of every static pod's name
                      [default: the host name] [env: PODMUX_NODE_NAME]

                      [alias: --hostname-override]

            Server:
                  --listen <HOST:PORT|unix:PATH|none>
                      Address of the HTTP server, or none; may be repeated. Sockets from systemd are served in
                      addition. An address that other machines can reach needs TLS, and a token or client
                      certificates
                      [default: 127.0.0.1:10240] [env: PODMUX_LISTEN]

                  --token-file <FILE>
                      The file with the token that TCP clients must send
                      [env: PODMUX_TOKEN_FILE]

                  --tls-cert-file <FILE>
                      The server's certificate (PEM, with its chain); it enables TLS
                      [env: PODMUX_TLS_CERT_FILE]

                  --tls-private-key-file <FILE>
                      The private key (PEM) of that certificate
                      [env: PODMUX_TLS_PRIVATE_KEY_FILE]

                  --client-ca-file <FILE>
                      The certificate authorities (PEM) that sign client certificates
                      [env: PODMUX_CLIENT_CA_FILE]

            Sinks:
                  --sink <jsonl|jsonl=PATH>
                      Where updates go: jsonl writes JSON lines to standard output or a file; may be repeated
                      [default: jsonl] [env: PODMUX_SINK]

                  --notify <MODE>
                      What sinks receive: each change (incremental), all pods at each change (snapshot), or all
                      pods when pods are added or removed and each change otherwise (snapshot-and-updates)
                      [default: incremental] [env: PODMUX_NOTIFY]

                      [possible values: incremental, snapshot, snapshot-and-updates]

            Process:
                  --state-dir <DIR|none>
                      Directory for posted pods and last-known-good manifests; none stores nothing
                      [default: /var/lib/podmux for root, else the user's state directory] [env:
                      PODMUX_STATE_DIR]

                  --shutdown-grace <DURATION>
                      Time limit for shutting down
                      [default: 10s] [env: PODMUX_SHUTDOWN_GRACE]

                  --log-format <FORMAT>
                      Format of the log on standard error
                      [default: text] [env: PODMUX_LOG_FORMAT]

                      [possible values: text, json]

              -v, --verbose...
                      Log more: -v debug events, -vv traces, -vvv also those of the libraries
                      [env: PODMUX_VERBOSE]

                  --config <FILE>
                      Settings in YAML or JSON: podmux's own format, or a KubeletConfiguration
                      [env: PODMUX_CONFIG]

                  --check
                      Check the settings and the files that they name, print all errors, and exit without
                      starting: 0 if a start or a reload would accept them, else 2. Addresses, sockets from
                      systemd and the state directory are not checked

            Examples:
              Watch a directory, and print one JSON object per line:
                podmux run --pod-manifest-path /etc/kubernetes/manifests

              Use the kubelet's own configuration, and append to a file:
                podmux run --config /var/lib/kubelet/config.yaml --sink jsonl=/var/log/podmux.jsonl

              The same settings in a file of podmux's own:
                kind: PodmuxConfiguration
                podManifestPath: /etc/kubernetes/manifests
                sink: [jsonl=/var/log/podmux.jsonl]

            Durations are written as in Go: 500ms, 20s, 1m30s, 1h.
            exit 0
        "#]],
    );
    check(
        &["validate", "-h"],
        &expect![[r#"
            Check manifests as the agent would take them

            Usage: podmux validate [OPTIONS] <PATH>...

            Arguments:
              <PATH>...  Manifests, directories of them, or - for standard input

            Options:
                  --strict            Take warnings (unknown fields, duplicate keys) for errors
                  --source <SOURCE>   The source whose rules hold [default: file] [possible values: file, http,
                                      url]
                  --node-name <NAME>  This node's name, a part of every static pod's name
                                      [env: PODMUX_NODE_NAME] [alias: --hostname-override]
              -o, --output <FORM>     The form of the output; json prints an object a line for each manifest
                                      [default: text] [possible values: text, json]
              -v, --verbose           Name what is good and what is skipped, too
              -h, --help              Print help (see more with '--help')
            exit 0
        "#]],
    );
    check(
        &["validate", "--help"],
        &expect![[r#"
            Check manifests as the agent would take them

            Decodes, defaults, prepares and validates each manifest like the agent's source does; no agent is
            needed. Prints every problem as FILE:LINE:COLUMN: FIELD: REASON: detail, without the parts that are
            not known, and nothing if all is good.

            Usage: podmux validate [OPTIONS] <PATH>...

            Arguments:
              <PATH>...
                      Manifests, directories of them, or - for standard input

            Options:
                  --strict
                      Take warnings (unknown fields, duplicate keys) for errors

                  --source <SOURCE>
                      The source whose rules hold

                      Possible values:
                      - file: A manifest in a directory
                      - http: A manifest that is sent over HTTP
                      - url:  A manifest that is polled from a URL

                      [default: file]

                  --node-name <NAME>
                      This node's name, a part of every static pod's name
                      [env: PODMUX_NODE_NAME]

                      [alias: --hostname-override]

              -o, --output <FORM>
                      The form of the output; json prints an object a line for each manifest

                      Possible values:
                      - text: A line for each problem
                      - json: An object a line for each manifest

                      [default: text]

              -v, --verbose
                      Name what is good and what is skipped, too

              -h, --help
                      Print help (see a summary with '-h')

            Examples:
              podmux validate /etc/kubernetes/manifests
              podmux validate --strict web.yaml db.yaml
              helm template chart | podmux validate --source http -
              podmux validate -o json manifests | jq -r 'select(.ok | not) | .path'

            Exit codes: 0 all good; 1 some bad; 2 called wrongly, or a PATH is missing.
            exit 0
        "#]],
    );
    check(
        &["completion", "--help"],
        &expect![[r#"
            Print completions for a shell

            Usage: podmux completion <SHELL>

            Arguments:
              <SHELL>
                      The shell

                      [possible values: bash, elvish, fish, powershell, zsh]

            Options:
              -h, --help
                      Print help (see a summary with '-h')

            Examples:
              podmux completion bash > /etc/bash_completion.d/podmux
              podmux completion zsh > "${fpath[1]}/_podmux"
              podmux completion fish > ~/.config/fish/completions/podmux.fish
            exit 0
        "#]],
    );
}

#[test]
fn version_is_the_packages() {
    check(
        &["--version"],
        &expect![[r#"
        podmux 0.1.0
        exit 0
    "#]],
    );
}

#[test]
fn without_a_command_there_is_help_and_a_refusal() {
    check(
        &[],
        &expect![[r#"
            ! Pods from every source of a node, as one ordered stream of updates
            ! 
            ! Usage: podmux <COMMAND>
            ! 
            ! Commands:
            !   run         Run the agent: read pod manifests and publish every change as one ordered stream
            !   validate    Check manifests as the agent would take them
            !   get         Show pods, sources or updates of a running agent
            !   apply       Create or replace pods on a running agent
            !   delete      Delete pods of a running agent
            !   completion  Print completions for a shell
            ! 
            ! Options:
            !   -h, --help     Print help (see more with '--help')
            !   -V, --version  Print version
            exit 2
        "#]],
    );
}

#[test]
fn a_call_that_makes_no_sense_is_refused_in_one_line() {
    check(
        &["serve"],
        &expect![[r#"
        ! podmux: unrecognized subcommand 'serve'; see podmux --help
        exit 2
    "#]],
    );
    check(
        &["run", "--manifest-path", "a"],
        &expect![[r#"
        ! podmux: unexpected argument '--manifest-path' found; tip: a similar argument exists: '--pod-manifest-path'; see podmux run --help
        exit 2
    "#]],
    );
    check(
        &["run", "--notify", "snapshot", "--notify", "incremental"],
        &expect![[r#"
        ! podmux: the argument '--notify <MODE>' cannot be used multiple times; see podmux run --help
        exit 2
    "#]],
    );
    check(
        &["run", "--node-name"],
        &expect![[r#"
            ! podmux: --node-name: "" is not one of
            exit 2
        "#]],
    );
    check(
        &["run", "manifests"],
        &expect![[r#"
        ! podmux: unexpected argument 'manifests' found; see podmux run --help
        exit 2
    "#]],
    );
    check(
        &["validate"],
        &expect![[r#"
        ! podmux: the following required arguments were not provided: <PATH>...; see podmux validate --help
        exit 2
    "#]],
    );
    check(
        &["validate", "--source", "api", "a"],
        &expect![[r#"
        ! podmux: invalid value 'api' for '--source <SOURCE>'; [possible values: file, http, url]; see podmux validate --help
        exit 2
    "#]],
    );
    check(
        &["validate", "-o", "yaml", "a"],
        &expect![[r#"
        ! podmux: invalid value 'yaml' for '--output <FORM>'; [possible values: text, json]; see podmux validate --help
        exit 2
    "#]],
    );
    check(
        &["completion", "csh"],
        &expect![[r#"
        ! podmux: invalid value 'csh' for '<SHELL>'; [possible values: bash, elvish, fish, powershell, zsh]; tip: a similar value exists: 'zsh'; see podmux completion --help
        exit 2
    "#]],
    );
}

#[test]
fn settings_that_cannot_be_used_are_refused_in_one_line() {
    check(
        &["run", "--listen", "none"],
        &expect![[r#"
            ! podmux: no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or leave --listen none out
            exit 2
        "#]],
    );
    check(
        &["run", "--pod-manifest-path", "a", "--sink", "podman"],
        &expect![[r#"
            ! podmux: --sink: unknown sink "podman"; the sinks are jsonl, jsonl=PATH
            exit 2
        "#]],
    );
    check(
        &["run", "--pod-manifest-path", "a", "--config", "missing.yaml"],
        &expect![[r#"
        ! podmux: --config missing.yaml: cannot be read; does it exist, and may this process read it?: No such file or directory (os error 2)
        exit 2
    "#]],
    );
    let mut run = podmux(&["run", "--pod-manifest-path", "a"]);
    run.env("PODMUX_SHUTDOWN_GRACE", "10");
    expect![[r#"
        ! podmux: PODMUX_SHUTDOWN_GRACE: "10" has no unit: write 10s for seconds, or use ms, m or h
        exit 2
    "#]]
    .assert_eq(&transcript(&mut run, b""));
    let mut run = podmux(&["run"]);
    run.env("PODMUX_POD_MANIFEST_PATH", OsStr::from_bytes(b"a\xff"));
    expect![[r#"
        ! podmux: PODMUX_POD_MANIFEST_PATH: its value is not UTF-8 text
        exit 2
    "#]]
    .assert_eq(&transcript(&mut run, b""));
}

#[test]
fn every_setting_has_its_flag_and_every_flag_is_a_setting() {
    let command = podmux::cli::command();
    let run = command.find_subcommand("run").unwrap();
    let flags: BTreeSet<&str> = run.get_arguments().filter_map(|arg| arg.get_long()).collect();
    // These two are flags only.
    let known = settings();
    let settings: BTreeSet<&str> =
        known.iter().map(|setting| &*setting.flag).chain(["config", "check"]).collect();
    assert_eq!(flags, settings);
}

#[test]
fn every_flag_reaches_its_own_setting() {
    for key in settings().into_iter().map(|setting| setting.flag) {
        let bad = match &*key {
            // It is counted, so no value can be bad.
            "verbose" => continue,
            "pod-manifest-path"
            | "manifest-url-ca-file"
            | "manifest-url-client-cert-file"
            | "manifest-url-client-key-file"
            | "kubeconfig"
            | "token-file"
            | "tls-cert-file"
            | "tls-private-key-file"
            | "client-ca-file"
            | "state-dir" => "",
            "file-check-frequency" | "http-check-frequency" | "shutdown-grace" => "1",
            "node-name" => "_",
            "on-invalid-manifest"
            | "manifest-url"
            | "manifest-url-header"
            | "manifest-url-sha256"
            | "listen"
            | "sink"
            | "notify"
            | "log-format" => "bad",
            _ => panic!("no invalid value for {key}"),
        };
        let told = transcript(&mut podmux(&["run", &format!("--{key}={bad}")]), b"");
        assert!(told.starts_with(&format!("! podmux: --{key}: ")), "{told}");
        assert!(told.ends_with("\nexit 2\n") && told.lines().count() == 2, "{told}");
    }
}

#[test]
fn the_kubelets_name_for_the_node_name_is_understood() {
    let told = transcript(&mut podmux(&["run", "--hostname-override=_"]), b"");
    assert!(told.starts_with("! podmux: --node-name: "), "{told}");
}

#[test]
fn there_are_completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = transcript(&mut podmux(&["completion", shell]), b"");
        assert!(script.contains("pod-manifest-path") && script.ends_with("exit 0\n"), "{shell}: {script}");
        // What takes only certain words has them offered; elvish and PowerShell complete no values.
        let offered = script.contains("incremental snapshot snapshot-and-updates") // bash, zsh
            || script.contains("\nsnapshot-and-updates\\t"); // fish
        assert!(offered || matches!(shell, "elvish" | "powershell"), "{shell}: {script}");
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = podmux(&["completion", "bash"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: web
    image: web:1
";

#[test]
fn a_kubelets_configuration_is_all_that_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("manifests")).unwrap();
    fs::write(dir.path().join("manifests/web.yaml"), POD).unwrap();
    let config = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDomain: cluster.local
rotateCertificates: true
staticPodPath: manifests
";
    fs::write(dir.path().join("config.yaml"), config).unwrap();
    let mut command = podmux(&["run", "--config", "config.yaml"]);
    let agent = Process::start(command.current_dir(&dir).envs([
        ("PODMUX_NODE_NAME", "node1"),
        ("PODMUX_LISTEN", "none"),
        ("PODMUX_STATE_DIR", "none"),
    ]));
    agent.holds("the pod", |held| held.pods.contains_key("default/web-node1"));
    agent.signal(Signal::TERM);
    let (code, log) = agent.ends();
    assert_eq!(code, 0, "{log}");
    assert_eq!(log.matches("the other 2 fields are ignored").count(), 1, "{log}");
}
