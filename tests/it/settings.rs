//! Settings: which layer has the word, what a config file may say, and what is refused in which words.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "golden texts are written by expect-test, and are as long as what a person sees"
)]

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use expect_test::{Expect, expect};
use podmux::{
    mux::Notify,
    settings::{Environment, Flags, Key, LogFormat, OnInvalid, Settings, SinkSetting},
};

/// What a setting is, for a row of the table: its text in each layer, and a
/// look at its value. The match is exhaustive, so a new setting has a row.
struct Row {
    flag: &'static str,
    variable: &'static str,
    field: &'static str,
    /// A value for each layer as it is written there, and what comes of it: flag, environment, file, default.
    said: [(&'static str, &'static str); 4],
}

fn row(key: Key) -> Row {
    let (flag, variable, field, said) = match key {
        Key::PodManifestPath => (
            "pod-manifest-path",
            "PODMUX_POD_MANIFEST_PATH",
            "podManifestPath",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::FileCheckFrequency => (
            "file-check-frequency",
            "PODMUX_FILE_CHECK_FREQUENCY",
            "fileCheckFrequency",
            [("1m30s", "90s"), ("500ms", "500ms"), ("1h", "3600s"), ("", "20s")],
        ),
        Key::OnInvalidManifest => (
            "on-invalid-manifest",
            "PODMUX_ON_INVALID_MANIFEST",
            "onInvalidManifest",
            [("keep", "Keep"), ("remove", "Remove"), ("remove", "Remove"), ("", "Keep")],
        ),
        Key::NodeName => (
            "node-name",
            "PODMUX_NODE_NAME",
            "nodeName",
            [("Flag", "flag"), ("env.example", "env.example"), ("file", "file"), ("", "HOST")],
        ),
        Key::Sink => (
            "sink",
            "PODMUX_SINK",
            "sink",
            [
                ("jsonl=/flag", "File(/flag)"),
                ("jsonl, jsonl=/env", "Stdout+File(/env)"),
                ("[jsonl=/a, jsonl=/b]", "File(/a)+File(/b)"),
                ("", "Stdout"),
            ],
        ),
        Key::Notify => (
            "notify",
            "PODMUX_NOTIFY",
            "notify",
            [
                ("snapshot", "Snapshot"),
                ("snapshot-and-updates", "SnapshotAndUpdates"),
                ("snapshot", "Snapshot"),
                ("", "Incremental"),
            ],
        ),
        Key::ShutdownGrace => (
            "shutdown-grace",
            "PODMUX_SHUTDOWN_GRACE",
            "shutdownGrace",
            [("0", "0ns"), ("1.5s", "1.5s"), ("2m", "120s"), ("", "10s")],
        ),
        Key::LogFormat => (
            "log-format",
            "PODMUX_LOG_FORMAT",
            "logFormat",
            [("text", "Text"), ("json", "Json"), ("json", "Json"), ("", "Text")],
        ),
        Key::Verbose => {
            ("verbose", "PODMUX_VERBOSE", "verbose", [("2", "2"), ("1", "1"), ("3", "3"), ("", "0")])
        }
    };
    Row { flag, variable, field, said }
}

fn value(settings: &Settings, key: Key) -> String {
    let file = settings.file.as_ref().unwrap();
    match key {
        Key::PodManifestPath => file.path.display().to_string(),
        Key::FileCheckFrequency => format!("{:?}", file.check_frequency),
        Key::OnInvalidManifest => format!("{:?}", file.on_invalid),
        Key::NodeName => settings.node_name.to_string(),
        Key::Sink => {
            let show = |sink: &SinkSetting| match sink {
                SinkSetting::Stdout => "Stdout".to_owned(),
                SinkSetting::File(path) => format!("File({})", path.display()),
            };
            settings.sinks.iter().map(show).collect::<Vec<_>>().join("+")
        }
        Key::Notify => format!("{:?}", settings.notify),
        Key::ShutdownGrace => format!("{:?}", settings.shutdown_grace),
        Key::LogFormat => format!("{:?}", settings.log.format),
        Key::Verbose => settings.log.verbosity.to_string(),
    }
}

/// Flags and environment from texts like `node-name=a`.
fn flags(said: &[(Key, &str)]) -> Flags {
    let mut flags = Flags::default();
    for (key, value) in said {
        flags.said.entry(*key).or_default().push((*value).to_owned());
    }
    flags
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The settings that a config file of this text gives, with nothing else said.
fn config(dir: &Path, text: &str) -> Result<Settings, String> {
    let path = dir.join("config.yaml");
    fs::write(&path, text).unwrap();
    let flags = Flags { config: Some(path), said: BTreeMap::new() };
    let shown = |text: String| text.replace(dir.to_str().unwrap(), "DIR");
    Settings::load(&flags, &environment(&[("PODMUX_NODE_NAME", "node")])).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        shown(format!("{error}{cause}"))
    })
}

#[test]
fn every_setting_has_the_same_name_in_all_layers() {
    for key in Key::ALL {
        let row = row(key);
        assert_eq!((row.flag, row.variable, row.field), (key.flag(), &*key.variable(), &*key.field()));
    }
}

#[test]
fn a_flag_goes_before_the_environment_that_before_the_file_and_that_before_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    for key in Key::ALL {
        let Row { flag: _, variable, field, said: [by_flag, by_variable, by_file, by_default] } = row(key);
        let path = dir.path().join("config.yaml");
        // Every layer below the one that is meant to win speaks, too.
        for winner in 0..4 {
            let mut flags = flags(&[(key, by_flag.0)][..usize::from(winner == 0)]);
            let mut environment = environment(&[(variable, by_variable.0)][..usize::from(winner <= 1)]);
            if winner <= 2 {
                fs::write(&path, format!("{field}: {}\n", by_file.0)).unwrap();
                flags.config = Some(path.clone());
            }
            if key != Key::PodManifestPath {
                environment.insert("PODMUX_POD_MANIFEST_PATH".to_owned(), "/needed".to_owned());
            }
            let got = Settings::load(&flags, &environment).map(|settings| value(&settings, key));
            let expected = [by_flag, by_variable, by_file, by_default][winner].1.replace("HOST", &host);
            match got {
                Ok(got) => assert_eq!(got, expected, "{key:?}, layer {winner}"),
                Err(error) => {
                    assert!(key == Key::PodManifestPath && winner == 3, "{key:?}, layer {winner}: {error}");
                }
            }
        }
    }
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let settings = Settings::load(
        &flags(&[(Key::PodManifestPath, "manifests"), (Key::NodeName, "node")]),
        &Environment::new(),
    )
    .unwrap();
    let file = settings.file.unwrap();
    assert_eq!(file.check_frequency, Duration::from_secs(20));
    assert_eq!(file.on_invalid, OnInvalid::Keep);
    assert_eq!(settings.sinks, [SinkSetting::Stdout]);
    assert_eq!(settings.notify, Notify::Incremental);
    assert_eq!(settings.shutdown_grace, Duration::from_secs(10));
    assert_eq!((settings.log.format, settings.log.verbosity), (LogFormat::Text, 0));
    assert_eq!((settings.config, settings.warnings), (None, Vec::<String>::new()));
}

#[test]
fn a_variable_that_is_empty_says_nothing() {
    let said = environment(&[("PODMUX_FILE_CHECK_FREQUENCY", ""), ("PODMUX_CONFIG", "")]);
    let settings = Settings::load(&flags(&[(Key::PodManifestPath, "a")]), &said).unwrap();
    assert_eq!(settings.file.unwrap().check_frequency, Duration::from_secs(20));
}

#[test]
fn variables_that_no_setting_reads_are_one_warning() {
    let said = environment(&[
        ("PODMUX_SINKS", "jsonl"),
        ("PODMUX_NODE_NAME", "a"),
        ("PODMUX_PORT", ""),
        ("HOME", "/"),
    ]);
    let settings = Settings::load(&flags(&[(Key::PodManifestPath, "a")]), &said).unwrap();
    assert_eq!(settings.warnings, ["no settings of this version, ignored: PODMUX_PORT, PODMUX_SINKS"]);
}

#[test]
fn values_that_cannot_be_used_say_what_is_accepted() {
    let check = |key: Key, value: &str| {
        let mut said = vec![(Key::NodeName, "node"), (Key::PodManifestPath, "manifests")];
        said.retain(|(other, _)| *other != key);
        said.extend(value.split('|').map(|value| (key, value)));
        match Settings::load(&flags(&said), &Environment::new()) {
            Ok(_) => format!("{value}: accepted\n"),
            Err(error) => format!("{error}\n"),
        }
    };
    let mut told = String::new();
    for value in ["20", "", "abc", "20 s", "-5s", "99ms", "24h1s", "9999999999999h", "1x", ".s", "0"] {
        told += &check(Key::FileCheckFrequency, value);
    }
    for value in ["1h0m1s", "0s"] {
        told += &check(Key::ShutdownGrace, value);
    }
    for value in ["exec=/bin/true", "webhook=http://localhost", "podman", "jsonl=", "", "jsonl|jsonl"] {
        told += &check(Key::Sink, value);
    }
    told += &check(Key::NodeName, "my_host");
    told += &check(Key::PodManifestPath, "");
    told += &check(Key::OnInvalidManifest, "Keep");
    told += &check(Key::Notify, "all");
    told += &check(Key::LogFormat, "xml");
    told += &check(Key::Verbose, "true");
    expect![[r#"
        --file-check-frequency: "20" has no unit: write 20s for seconds, or use ms, m or h
        --file-check-frequency: "" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: "abc" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: "20 s" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: "-5s" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: "99ms" is out of bounds: 100ms to 24h
        --file-check-frequency: "24h1s" is out of bounds: 100ms to 24h
        --file-check-frequency: "9999999999999h" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: "1x" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: ".s" is not a duration: write it like 20s, 1m30s, 500ms or 1h
        --file-check-frequency: "0" is out of bounds: 100ms to 24h
        --shutdown-grace: "1h0m1s" is out of bounds: 0s to 1h
        0s: accepted
        --sink: "exec=/bin/true" is not a sink of this version: jsonl (standard output) and jsonl=PATH are
        --sink: "webhook=http://localhost" is not a sink of this version: jsonl (standard output) and jsonl=PATH are
        --sink: "podman" is not a sink of this version: jsonl (standard output) and jsonl=PATH are
        --sink: jsonl=PATH needs a path; jsonl alone writes to standard output
        --sink: "" is not a sink of this version: jsonl (standard output) and jsonl=PATH are
        --sink: "jsonl" is given twice
        --node-name: "my_host" cannot be a node name: up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit
        --pod-manifest-path: a path is needed, and it is empty
        --on-invalid-manifest: "Keep" is not one of keep, remove
        --notify: "all" is not one of incremental, snapshot, snapshot-and-updates
        --log-format: "xml" is not one of text, json
        --verbose: "true" is not a level: 0, 1, 2 or 3 is
    "#]].assert_eq(&told);
}

#[test]
fn without_a_source_nothing_starts() {
    let error = Settings::load(&flags(&[(Key::NodeName, "node")]), &Environment::new()).unwrap_err();
    expect!["no source of pods: give --pod-manifest-path PATH (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE)"].assert_eq(&error.to_string());
}

fn check_config(text: &str, expected: &Expect) {
    let dir = tempfile::tempdir().unwrap();
    let told = match config(dir.path(), text) {
        Err(error) => error,
        Ok(settings) => {
            let values = Key::ALL.map(|key| format!("{}: {}\n", key.field(), value(&settings, key)));
            let warnings = settings.warnings.iter().map(|warning| format!("warning: {warning}\n"));
            values.into_iter().chain(warnings).collect()
        }
    };
    expected.assert_eq(&told.replace(dir.path().to_str().unwrap(), "DIR"));
}

#[test]
fn a_config_file_of_our_own_sets_everything_and_its_paths_are_relative_to_it() {
    let text = "\
apiVersion: podmux/v1
kind: PodmuxConfiguration
podManifestPath: manifests
fileCheckFrequency: 1m
onInvalidManifest: remove
nodeName: edge-7
sink:
- jsonl
- jsonl=updates.jsonl
notify: snapshot
shutdownGrace: 3s
logFormat: json
verbose: 1
";
    check_config(
        text,
        &expect![[r#"
        podManifestPath: DIR/manifests
        fileCheckFrequency: 60s
        onInvalidManifest: Remove
        nodeName: node
        sink: Stdout+File(DIR/updates.jsonl)
        notify: Snapshot
        shutdownGrace: 3s
        logFormat: Json
        verbose: 1
    "#]],
    );
}

#[test]
fn a_config_file_may_be_json_and_leave_its_kind_away() {
    check_config(
        r#"{"podManifestPath": "/m", "sink": "jsonl=/s"}"#,
        &expect![[r#"
        podManifestPath: /m
        fileCheckFrequency: 20s
        onInvalidManifest: Keep
        nodeName: node
        sink: File(/s)
        notify: Incremental
        shutdownGrace: 10s
        logFormat: Text
        verbose: 0
    "#]],
    );
}

#[test]
fn what_a_config_file_must_not_say_is_named_with_line_and_column() {
    for (text, expected) in [
        (
            "podManifestPath: /m\nnodename: a\n",
            expect!["DIR/config.yaml:2:1: nodename: unknown field; it is spelled nodeName"],
        ),
        (
            "podManifestPath: /m\nmanifestURL: a\n",
            expect![
                "DIR/config.yaml:2:1: manifestURL: unknown field; the fields are podManifestPath, fileCheckFrequency, onInvalidManifest, nodeName, sink, notify, shutdownGrace, logFormat, verbose"
            ],
        ),
        (
            "staticPodPath: /m\n",
            expect![
                "DIR/config.yaml:1:1: staticPodPath: belongs to a kubelet's configuration: say kind: KubeletConfiguration, or podManifestPath"
            ],
        ),
        (
            "podManifestPath: /m\n  nodeName: a\n",
            expect!["DIR/config.yaml:2:11: mapping values are not allowed in this context"],
        ),
        (
            "podManifestPath: /m\nnodeName: yes\n",
            expect![
                "DIR/config.yaml:2:1: nodeName: a text is expected, and this is a boolean; put it in quotes"
            ],
        ),
        (
            "podManifestPath: /m\nnodeName: [a]\n",
            expect!["DIR/config.yaml:2:1: nodeName: a text is expected, and this is a list"],
        ),
        (
            "podManifestPath: /m\nsink: [1]\n",
            expect![
                "DIR/config.yaml:2:1: sink: a list of texts is expected, and this is a number; put it in quotes"
            ],
        ),
        (
            "podManifestPath: /m\nfileCheckFrequency: 20\n",
            expect![[
                r#"DIR/config.yaml:2:1: fileCheckFrequency: "20" has no unit: write 20s for seconds, or use ms, m or h"#
            ]],
        ),
        (
            "podManifestPath: /m\nsink: exec=a\n",
            expect![[
                r#"DIR/config.yaml:2:1: sink: "exec=a" is not a sink of this version: jsonl (standard output) and jsonl=PATH are"#
            ]],
        ),
        (
            "podManifestPath: /m\npodManifestPath: /n\n",
            expect!["DIR/config.yaml:2:1: podManifestPath: said before, in line 1"],
        ),
        (
            "kind: Pod\n",
            expect![
                "DIR/config.yaml:1:1: kind: expected PodmuxConfiguration (or no kind at all) or KubeletConfiguration"
            ],
        ),
        (
            "kind: PodmuxConfiguration\napiVersion: v1\n",
            expect!["DIR/config.yaml:2:1: apiVersion: expected podmux/v1"],
        ),
        (
            "kind: KubeletConfiguration\nstaticPodPath: /m\n",
            expect!["DIR/config.yaml: apiVersion: expected kubelet.config.k8s.io/v1beta1"],
        ),
        ("- a\n", expect!["DIR/config.yaml:1:1: a map of fields is expected"]),
        (
            "podManifestPath: /m\n---\nnodeName: a\n",
            expect!["DIR/config.yaml:3:1: a second document, where only one is read"],
        ),
        (
            "nodeName: a\n",
            expect![
                "no source of pods: give --pod-manifest-path PATH (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE)"
            ],
        ),
        (
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodURL: http://u\n",
            expect![
                "no source of pods: give --pod-manifest-path PATH (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE); DIR/config.yaml:3:1: staticPodURL: this version has no URL source; it is ignored"
            ],
        ),
        (
            "",
            expect![
                "no source of pods: give --pod-manifest-path PATH (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE)"
            ],
        ),
    ] {
        check_config(text, &expected);
    }
}

/// As kubeadm 1.36 writes it to /var/lib/kubelet/config.yaml.
const KUBEADM: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: \"\"
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";

#[test]
fn a_real_kubelet_configuration_gives_its_manifests_and_one_line_about_the_rest() {
    check_config(
        KUBEADM,
        &expect![[r#"
            podManifestPath: /etc/kubernetes/manifests
            fileCheckFrequency: 20s
            onInvalidManifest: Keep
            nodeName: node
            sink: Stdout
            notify: Incremental
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
            warning: DIR/config.yaml: of a KubeletConfiguration staticPodPath and fileCheckFrequency are used; the rest, 24 fields here, is ignored
        "#]],
    );
}

#[test]
fn a_kubelet_configuration_with_a_url_is_told_that_there_is_no_url_source() {
    let text = "\
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
staticPodPath: manifests
staticPodURL: https://example.org/pods
staticPodURLHeader: {X-Token: [secret]}
httpCheckFrequency: 1m
fileCheckFrequency: 5s
";
    check_config(
        text,
        &expect![[r#"
        podManifestPath: DIR/manifests
        fileCheckFrequency: 5s
        onInvalidManifest: Keep
        nodeName: node
        sink: Stdout
        notify: Incremental
        shutdownGrace: 10s
        logFormat: Text
        verbose: 0
        warning: DIR/config.yaml:4:1: staticPodURL: this version has no URL source; it is ignored
    "#]],
    );
}

#[test]
fn a_config_file_that_cannot_be_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Flags { config: Some(dir.path().join("missing.yaml")), said: BTreeMap::new() };
    let error = Settings::load(&missing, &Environment::new()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let told = format!("{error}: {cause}").replace(dir.path().to_str().unwrap(), "DIR");
    expect!["--config DIR/missing.yaml: cannot be read: No such file or directory (os error 2)"]
        .assert_eq(&told);
}

#[test]
fn a_reload_takes_what_can_change_and_names_what_needs_a_restart() {
    let load = |said: &[(Key, &str)]| Settings::load(&flags(said), &Environment::new()).unwrap();
    let before = load(&[(Key::PodManifestPath, "/a"), (Key::NodeName, "a")]);
    let fresh = load(&[
        (Key::PodManifestPath, "/b"),
        (Key::FileCheckFrequency, "1s"),
        (Key::OnInvalidManifest, "remove"),
        (Key::NodeName, "b"),
        (Key::Sink, "jsonl=/s"),
        (Key::Notify, "snapshot"),
        (Key::ShutdownGrace, "1s"),
        (Key::LogFormat, "json"),
        (Key::Verbose, "3"),
    ]);
    let (after, stuck) = before.reloaded(fresh.clone());
    let reloads = [Key::FileCheckFrequency, Key::OnInvalidManifest, Key::ShutdownGrace, Key::Verbose];
    assert_eq!(stuck, Key::ALL.into_iter().filter(|key| !reloads.contains(key)).collect::<Vec<_>>());
    for key in Key::ALL {
        let from = if stuck.contains(&key) { &before } else { &fresh };
        assert_eq!(value(&after, key), value(from, key), "{key:?}");
    }
    let (same, stuck) = before.reloaded(before.clone());
    assert_eq!((same, stuck), (before, Vec::new()));
}
