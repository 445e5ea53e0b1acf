//! The command line of the real binary: short help, errors on one line, exit codes, completions.
//! The whole help is compared in `packaged.rs`, as man pages.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "expected output is written by expect-test and long"
)]

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, net::UnixListener},
    process::{Command, Stdio},
    thread,
};

use expect_test::{Expect, expect};
use podmux::settings::settings;
use rustix::process::Signal;

use crate::support::process::{Process, podmux};

/// Runs a command to its end. Returns standard output, standard error after `!`, and the exit code.
pub fn transcript(command: &mut Command, stdin: &[u8]) -> String {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The child may end without reading.
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
fn the_short_help_lists_the_commands() {
    check(
        &["-h"],
        &expect![[r#"
            Merge a node's pod manifests from every source into one ordered stream of updates

            Usage: podmux <COMMAND>

            Commands:
              run         Run the agent: read pod manifests and publish every change as one ordered stream
              validate    Check manifests as the agent does
              get         Show pods, events, sources, sinks or updates of a running agent
              describe    Describe a pod or a source of a running agent
              apply       Create or replace pods on a running agent
              diff        Show what apply would change on a running agent
              delete      Delete pods of a running agent
              logs        Print the output of the containers of a pod
              top         Show the sources, pods and updates of a running agent, live
              kubeconfig  Print a kubeconfig with the agent's address and credentials
              version     Show the versions of this program and of the running agent
              completion  Print completions for a shell
              help        Print this message or the help of the given subcommand(s)

            Options:
              -h, --help     Print help (see more with '--help')
              -V, --version  Print version
            exit 0
        "#]],
    );
    // Without a command, the same goes to standard error.
    let help = transcript(&mut podmux(&["-h"]), b"");
    let help = help.strip_suffix("exit 0\n").unwrap();
    let expected = help.lines().map(|line| "! ".to_owned() + line + "\n").collect::<String>();
    assert_eq!(transcript(&mut podmux(&[]), b""), expected + "exit 2\n");
}

#[test]
fn help_and_version_are_commands_too() {
    let of_flag = transcript(&mut podmux(&["apply", "--help"]), b"");
    assert_eq!(transcript(&mut podmux(&["help", "apply"]), b""), of_flag);
    check(
        &["help", "none"],
        &expect![[r#"
        ! podmux: unrecognized subcommand 'none'; see podmux --help
        exit 2
    "#]],
    );
    check(
        &["version", "--client"],
        &expect![[r#"
        Client Version: v0.1.0
        exit 0
    "#]],
    );
    check(
        &["version", "--client", "-o", "yaml"],
        &expect![[r#"
        clientVersion:
          gitVersion: v0.1.0
        exit 0
    "#]],
    );
    check(
        &["version", "--server", "unix:/none"],
        &expect![[r#"
            Client Version: v0.1.0
            ! podmux: no agent at unix:/none: start "podmux run", or see systemctl status podmux
            exit 1
        "#]],
    );
}

#[test]
fn help_and_version_that_cannot_be_written_fail() {
    for args in [&["--help"][..], &["-h"], &["apply", "--help"], &["help", "get"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = podmux(args).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert_eq!(said, "podmux: cannot write to standard output: No space left on device (os error 28)\n");
    }
}

#[test]
fn an_agent_that_hangs_up_is_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    });
    let said =
        transcript(&mut podmux(&["get", "pods", "--server", &format!("unix:{}", socket.display())]), b"");
    server.join().unwrap();
    expect![[r#"
        ! podmux: s closed the connection before its response was complete (has the agent stopped? see systemctl status podmux)
        exit 1
    "#]].assert_eq(&said.replace(socket.to_str().unwrap(), "s"));
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
fn without_an_agent_the_version_of_the_client_is_printed() {
    for form in [&["version"][..], &["version", "-o", "json"], &["version", "-o", "yaml"]] {
        let args = [form, &["--server", "unix:/none"]].concat();
        let said = transcript(&mut podmux(&args), b"");
        let version = concat!("v", env!("CARGO_PKG_VERSION"));
        assert!(
            said.contains(version) && !said.contains("Agent") && !said.contains("agentVersion"),
            "{said}"
        );
        assert!(said.ends_with("\n! podmux: no agent at unix:/none: start \"podmux run\", or see systemctl status podmux\nexit 1\n"), "{said}");
    }
}

#[test]
fn invalid_arguments_are_one_line() {
    check(
        &["serve"],
        &expect![[r#"
        ! podmux: unrecognized subcommand 'serve'; see podmux --help
        exit 2
    "#]],
    );
    check(
        &["exec", "web", "--", "sh"],
        &expect![[r#"
        ! podmux: there is no podmux exec: podmux does not reach into containers: use a command of their runtime, such as podman exec
        exit 2
    "#]],
    );
    check(
        &["restart"],
        &expect![[r#"
        ! podmux: there is no podmux restart: the agent is a service: use systemctl, or podmux run for one in this terminal
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
            ! podmux: --node-name: a value is required
            exit 2
        "#]],
    );
    check(
        &["run", "--sink", "--listen", "unix:s"],
        &expect![[r#"
            ! podmux: --sink: a value is required
            exit 2
        "#]],
    );
    check(
        &["run", "--notify"],
        &expect![[r#"
            ! podmux: --notify: a value is required: one of incremental, snapshot, snapshot-and-updates
            exit 2
        "#]],
    );
    check(
        &["run", "--anonymous-auth", "true"],
        &expect![[r#"
            ! podmux: unexpected argument 'true' found; a switch has its value after '=', such as --anonymous-auth=true; see podmux run --help
            exit 2
        "#]],
    );
    check(
        &["run", "manifests"],
        &expect![[r#"
            ! podmux: unexpected argument 'manifests' found; manifests are named with --pod-manifest-path manifests; see podmux run --help
            exit 2
        "#]],
    );
    for command in ["apply", "diff"] {
        let refused = transcript(&mut podmux(&[command, "web.yaml"]), b"");
        let hint = "unexpected argument 'web.yaml' found; manifests are named with -f web.yaml";
        assert_eq!(refused, format!("! podmux: {hint}; see podmux {command} --help\nexit 2\n"));
    }
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
            ! podmux: invalid value 'yaml' for '--output <FORMAT>'; [possible values: text, json, sarif, github, junit]; see podmux validate --help
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
fn invalid_settings_are_one_line() {
    check(
        &["run", "--listen", "none"],
        &expect![[r#"
            ! podmux: no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or leave --listen none out
            exit 2
        "#]],
    );
    check(
        &["run", "--pod-manifest-path", "a", "--sink", "no-such"],
        &expect![[r#"
            ! podmux: --sink: unknown sink "no-such"; the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
            exit 2
        "#]],
    );
    check(
        &["run", "--sink", "exec=/p", "--state-dir", "none"],
        &expect![[r#"
            ! podmux: --state-dir: exec=/p needs a state directory, which holds what it has started
            exit 2
        "#]],
    );
    check(
        &["run", "--sink", "jsonl", "--sink-concurrency", "0"],
        &expect![[r#"
            ! podmux: --sink-concurrency: "0" is not a whole number from 1 to 1000
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
        ! podmux: PODMUX_POD_MANIFEST_PATH: the value is not UTF-8 text
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
            | "pod-security"
            | "manifest-url"
            | "manifest-url-header"
            | "manifest-url-sha256"
            | "listen"
            | "anonymous-auth"
            | "sink"
            | "sink-concurrency"
            | "notify"
            | "max-posted-pods"
            | "max-posted-bytes"
            | "log-format" => "bad",
            _ => panic!("no invalid value for {key}"),
        };
        let output = transcript(&mut podmux(&["run", &format!("--{key}={bad}")]), b"");
        assert!(output.starts_with(&format!("! podmux: --{key}: ")), "{output}");
        assert!(output.ends_with("\nexit 2\n") && output.lines().count() == 2, "{output}");
    }
}

#[test]
fn the_kubelets_name_for_the_node_name_is_understood() {
    let output = transcript(&mut podmux(&["run", "--hostname-override=_"]), b"");
    assert!(output.starts_with("! podmux: --node-name: "), "{output}");
}

#[test]
fn there_are_completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = transcript(&mut podmux(&["completion", shell]), b"");
        assert!(script.contains("pod-manifest-path") && script.ends_with("exit 0\n"), "{shell}: {script}");
        // The possible values are offered; elvish and PowerShell complete no values.
        let offered = script.contains("incremental snapshot snapshot-and-updates") // bash, zsh
            || script.contains("\nsnapshot-and-updates\\t"); // fish
        assert!(offered || matches!(shell, "elvish" | "powershell"), "{shell}: {script}");
    }
}

#[test]
fn a_closed_standard_output_is_no_error() {
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
    assert_eq!(log.matches("the other field is ignored").count(), 1, "{log}");
}
