//! Settings: which layer has the word, what a config file may say, and what is refused in which words.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "golden texts are written by expect-test, and are as long as what a person sees"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use expect_test::{Expect, expect};
use http::{HeaderName, HeaderValue};
use podmux::{
    mux::Notify,
    settings::{
        Environment, FileSettings, Flags, Key, Kubeconfig, Listen, LogFormat, OnInvalid, ProxySettings,
        ServerSettings, Settings, SettingsError, SinkSetting, UrlSettings, default_state_dir,
    },
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
        Key::Kubeconfig => (
            "kubeconfig",
            "PODMUX_KUBECONFIG",
            "kubeconfig",
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
        Key::ManifestUrl => (
            "manifest-url",
            "PODMUX_MANIFEST_URL",
            "manifestUrl",
            [
                ("http://flag", "http://flag/"),
                ("https://env:1/a", "https://env:1/a"),
                ("http://file/", "http://file/"),
                ("", "-"),
            ],
        ),
        Key::ManifestUrlHeader => (
            "manifest-url-header",
            "PODMUX_MANIFEST_URL_HEADER",
            "manifestUrlHeader",
            [
                ("X-A: flag", "x-a=flag"),
                ("X-A: env, too\nX-A: b: c\n", "x-a=env, too+x-a=b: c"),
                ("['X-A: file', 'X-B: b']", "x-a=file+x-b=b"),
                ("", "-"),
            ],
        ),
        Key::ManifestUrlSha256 => (
            "manifest-url-sha256",
            "PODMUX_MANIFEST_URL_SHA256",
            "manifestUrlSha256",
            [(SUM, SUM), (OTHER_SUM, OTHER_SUM), (SUM, SUM), ("", "-")],
        ),
        Key::HttpCheckFrequency => (
            "http-check-frequency",
            "PODMUX_HTTP_CHECK_FREQUENCY",
            "httpCheckFrequency",
            [("1m30s", "90s"), ("500ms", "500ms"), ("1h", "3600s"), ("", "20s")],
        ),
        Key::Listen => (
            "listen",
            "PODMUX_LISTEN",
            "listen",
            [
                ("none", "-"),
                ("unix:/env, localhost:0", "unix:/env+127.0.0.1:0"),
                ("['[::1]:5', '127.1.2.3:4']", "[::1]:5+127.1.2.3:4"),
                ("", "127.0.0.1:10240"),
            ],
        ),
        Key::StateDir => (
            "state-dir",
            "PODMUX_STATE_DIR",
            "stateDir",
            [("none", "-"), ("/env", "/env"), ("/file", "/file"), ("", "/state")],
        ),
        Key::ManifestUrlCaFile => (
            "manifest-url-ca-file",
            "PODMUX_MANIFEST_URL_CA_FILE",
            "manifestUrlCaFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::ManifestUrlClientCertFile => (
            "manifest-url-client-cert-file",
            "PODMUX_MANIFEST_URL_CLIENT_CERT_FILE",
            "manifestUrlClientCertFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::ManifestUrlClientKeyFile => (
            "manifest-url-client-key-file",
            "PODMUX_MANIFEST_URL_CLIENT_KEY_FILE",
            "manifestUrlClientKeyFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::TokenFile => (
            "token-file",
            "PODMUX_TOKEN_FILE",
            "tokenFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::TlsCertFile => (
            "tls-cert-file",
            "PODMUX_TLS_CERT_FILE",
            "tlsCertFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::TlsPrivateKeyFile => (
            "tls-private-key-file",
            "PODMUX_TLS_PRIVATE_KEY_FILE",
            "tlsPrivateKeyFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        Key::ClientCaFile => (
            "client-ca-file",
            "PODMUX_CLIENT_CA_FILE",
            "clientCaFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
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

const SUM: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const OTHER_SUM: &str = "b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2";

/// What a setting cannot be without.
fn needs(key: Key) -> &'static [(&'static str, &'static str)] {
    const MANIFESTS: (&str, &str) = ("PODMUX_POD_MANIFEST_PATH", "/needed");
    const URL: (&str, &str) = ("PODMUX_MANIFEST_URL", "http://needed");
    const URL_CERT: (&str, &str) = ("PODMUX_MANIFEST_URL_CLIENT_CERT_FILE", "/needed");
    const URL_KEY: (&str, &str) = ("PODMUX_MANIFEST_URL_CLIENT_KEY_FILE", "/needed");
    const CERT: (&str, &str) = ("PODMUX_TLS_CERT_FILE", "/needed");
    const KEY: (&str, &str) = ("PODMUX_TLS_PRIVATE_KEY_FILE", "/needed");
    match key {
        Key::FileCheckFrequency | Key::OnInvalidManifest | Key::Listen => &[MANIFESTS],
        Key::ManifestUrlHeader
        | Key::ManifestUrlCaFile
        | Key::ManifestUrlSha256
        | Key::HttpCheckFrequency => &[URL],
        Key::ManifestUrlClientCertFile => &[URL, URL_KEY],
        Key::ManifestUrlClientKeyFile => &[URL, URL_CERT],
        Key::TlsCertFile => &[KEY],
        Key::TlsPrivateKeyFile => &[CERT],
        Key::ClientCaFile => &[CERT, KEY],
        _ => &[],
    }
}

fn value(settings: &Settings, key: Key) -> String {
    let file = |show: fn(&FileSettings) -> String| settings.file.as_ref().map(show);
    let url = |show: fn(&UrlSettings) -> Option<String>| settings.url.as_ref().and_then(show);
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let server = &settings.server;
    let shown = match key {
        Key::PodManifestPath => file(|file| file.path.display().to_string()),
        Key::FileCheckFrequency => file(|file| format!("{:?}", file.check_frequency)),
        Key::OnInvalidManifest => file(|file| format!("{:?}", file.on_invalid)),
        Key::ManifestUrl => url(|url| Some(url.url.uri().to_string())),
        Key::ManifestUrlHeader => url(|url| {
            let header = |(name, value): (&HeaderName, &HeaderValue)| {
                assert!(value.is_sensitive());
                format!("{name}={}", value.to_str().unwrap())
            };
            Some(url.headers.iter().map(header).collect::<Vec<_>>().join("+"))
        }),
        Key::ManifestUrlCaFile => url(|url| Some(url.ca_file.as_ref()?.display().to_string())),
        Key::ManifestUrlClientCertFile => {
            url(|url| Some(url.client_certificate.as_ref()?.certificate.display().to_string()))
        }
        Key::ManifestUrlClientKeyFile => {
            url(|url| Some(url.client_certificate.as_ref()?.key.display().to_string()))
        }
        Key::ManifestUrlSha256 => {
            url(|url| Some(url.sha256?.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()))
        }
        Key::HttpCheckFrequency => url(|url| Some(format!("{:?}", url.check_frequency))),
        Key::Listen => Some(server.listen.iter().map(Listen::to_string).collect::<Vec<_>>().join("+")),
        Key::Kubeconfig => path(&settings.kubeconfig.as_ref().map(|kubeconfig| match kubeconfig {
            Kubeconfig::File(path) => path.clone(),
            Kubeconfig::InCluster { host, port } => format!("{host}:{port}").into(),
        })),
        Key::TokenFile => path(&server.token_file),
        Key::TlsCertFile => path(&server.tls.as_ref().map(|tls| tls.certificate.clone())),
        Key::TlsPrivateKeyFile => path(&server.tls.as_ref().map(|tls| tls.key.clone())),
        Key::ClientCaFile => path(&server.client_ca_file),
        Key::StateDir => path(&settings.state_dir),
        _ => Some(general_value(settings, key)),
    };
    shown.filter(|shown| !shown.is_empty()).unwrap_or_else(|| "-".to_owned())
}

fn general_value(settings: &Settings, key: Key) -> String {
    match key {
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
        _ => unreachable!("{key:?} is shown by value()"),
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
    let flags = Flags { config: Some(path), ..Flags::default() };
    let shown = |text: String| text.replace(dir.to_str().unwrap(), "DIR");
    let environment = environment(&[("PODMUX_NODE_NAME", "node"), ("STATE_DIRECTORY", "/state")]);
    Settings::load(&flags, &environment).map_err(|error| {
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
            // Half a pair cannot do without the other half, and not with it.
            let needs = needs(key).iter().filter(|(name, _)| winner < 3 || !name.ends_with("_FILE"));
            environment.extend(self::environment(&needs.copied().collect::<Vec<_>>()));
            environment.insert("STATE_DIRECTORY".to_owned(), "/state:/other".to_owned());
            let got = Settings::load(&flags, &environment).map(|settings| value(&settings, key));
            let expected = [by_flag, by_variable, by_file, by_default][winner].1.replace("HOST", &host);
            assert_eq!(got.map_err(|error| error.to_string()), Ok(expected), "{key:?}, layer {winner}");
        }
    }
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let settings = Settings::load(
        &flags(&[(Key::PodManifestPath, "manifests"), (Key::NodeName, "node")]),
        &environment(&[("STATE_DIRECTORY", "/state")]),
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
    assert_eq!((settings.url, settings.state_dir), (None, Some("/state".into())));
    let listen = vec![Listen::Tcp(([127, 0, 0, 1], 10240).into())];
    assert_eq!(settings.server, ServerSettings { listen, ..ServerSettings::default() });
}

#[test]
fn a_variable_that_is_empty_says_nothing() {
    let said = environment(&[("PODMUX_FILE_CHECK_FREQUENCY", ""), ("PODMUX_CONFIG", ""), ("HOME", "/h")]);
    let settings = Settings::load(&flags(&[(Key::PodManifestPath, "a")]), &said).unwrap();
    assert_eq!(settings.file.unwrap().check_frequency, Duration::from_secs(20));
}

#[test]
fn variables_that_no_setting_reads_are_one_warning() {
    let said = environment(&[
        ("PODMUX_SINKS", "jsonl"),
        ("PODMUX_NODE_NAME", "a"),
        ("PODMUX_PORT", ""),
        // For the commands that ask an agent.
        ("PODMUX_SERVER", "unix:/s"),
        ("HOME", "/"),
    ]);
    let settings = Settings::load(&flags(&[(Key::PodManifestPath, "a")]), &said).unwrap();
    assert_eq!(settings.warnings, ["no settings of this version, ignored: PODMUX_PORT, PODMUX_SINKS"]);
}

#[test]
fn values_that_cannot_be_used_say_what_is_accepted() {
    let check = |key: Key, value: &str| {
        let mut said =
            vec![(Key::NodeName, "node"), (Key::PodManifestPath, "manifests"), (Key::StateDir, "none")];
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
    for value in ["", "example.org/pods", "ftp://u:secret@h/", "http://", "http://h h/", "https://"] {
        told += &check(Key::ManifestUrl, value);
    }
    for value in ["", "secret", "a b: secret", ": secret", "X-A: sec\u{1}ret", "X-A: ok|sec ret: x"] {
        told += &check(Key::ManifestUrlHeader, value);
    }
    let odd = "1".repeat(63);
    for value in ["", &odd, &odd.replacen('1', "é", 1), &(odd.clone() + "g")] {
        told += &check(Key::ManifestUrlSha256, value);
    }
    for value in ["", "80", "host", "example.org:80", ":80", "127.0.0.1", "127.0.0.1:65536", "::1:80"] {
        told += &check(Key::Listen, value);
    }
    let long = format!("unix:/{}", "a".repeat(107));
    for value in ["unix:", &long, "none|127.0.0.1:1", "none|none", "127.0.0.1:1|localhost:1", "unix:a|unix:a"]
    {
        told += &check(Key::Listen, value);
    }
    told += &check(Key::StateDir, "");
    told += &check(Key::TokenFile, "");
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
        --manifest-url: this is no URL: it is written like https://HOST:PORT/PATH
        --manifest-url: this is no URL: it is written like https://HOST:PORT/PATH
        --manifest-url: the URL does not begin with http:// or https://: it is written like https://HOST:PORT/PATH
        --manifest-url: this is no URL: it is written like https://HOST:PORT/PATH
        --manifest-url: this is no URL: it is written like https://HOST:PORT/PATH
        --manifest-url: this is no URL: it is written like https://HOST:PORT/PATH
        --manifest-url-header: header 1: a header is written 'NAME: VALUE', and this one has no colon
        --manifest-url-header: header 1: a header is written 'NAME: VALUE', and this one has no colon
        --manifest-url-header: header 1: before its colon there is no header's name
        --manifest-url-header: header 1: before its colon there is no header's name
        --manifest-url-header: header 1: the value of x-a has characters that no header may have
        --manifest-url-header: header 2: before its colon there is no header's name
        --manifest-url-sha256: "" is no SHA-256: 64 hexadecimal digits are, as sha256sum prints them
        --manifest-url-sha256: "111111111111111111111111111111111111111111111111111111111111111" is no SHA-256: 64 hexadecimal digits are, as sha256sum prints them
        --manifest-url-sha256: "é11111111111111111111111111111111111111111111111111111111111111" is no SHA-256: 64 hexadecimal digits are, as sha256sum prints them
        --manifest-url-sha256: "111111111111111111111111111111111111111111111111111111111111111g" is no SHA-256: 64 hexadecimal digits are, as sha256sum prints them
        --listen: "" is no address: HOST:PORT, unix:PATH or none is
        --listen: "80" is no address: HOST:PORT, unix:PATH or none is
        --listen: "host" is no address: HOST:PORT, unix:PATH or none is
        --listen: "example.org:80": the host is an IP address or localhost: 127.0.0.1:80, [::1]:80, 0.0.0.0:80
        --listen: ":80": the host is an IP address or localhost: 127.0.0.1:80, [::1]:80, 0.0.0.0:80
        --listen: "127.0.0.1" is no address: HOST:PORT, unix:PATH or none is
        --listen: "127.0.0.1:65536" is no address: HOST:PORT, unix:PATH or none is
        --listen: "::1:80": the host is an IP address or localhost: 127.0.0.1:80, [::1]:80, 0.0.0.0:80
        --listen: "unix:": unix:PATH needs a path
        --listen: "unix:/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": unix:PATH needs a path of at most 107 bytes
        --listen: none stands alone: it says that there is no address
        --listen: none stands alone: it says that there is no address
        --listen: 127.0.0.1:1 is given twice
        --listen: unix:a is given twice
        --state-dir: a path is needed, and it is empty
        --token-file: a path is needed, and it is empty
        --node-name: "my_host" is not a valid node name: use up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit
        --pod-manifest-path: a path is needed, and it is empty
        --on-invalid-manifest: "Keep" is not one of keep, remove
        --notify: "all" is not one of incremental, snapshot, snapshot-and-updates
        --log-format: "xml" is not one of text, json
        --verbose: "true" is not a level: 0, 1, 2 or 3 is
    "#]].assert_eq(&told);
}

#[test]
fn without_a_source_nothing_starts() {
    let said = flags(&[(Key::NodeName, "node"), (Key::Listen, "none"), (Key::StateDir, "none")]);
    let error = Settings::load(&said, &Environment::new()).unwrap_err();
    expect!["no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or do not say --listen none"].assert_eq(&error.to_string());
    for key in [Key::PodManifestPath, Key::ManifestUrl, Key::Kubeconfig] {
        let value = if key == Key::ManifestUrl { "http://localhost/pods" } else { "/m" };
        let said =
            flags(&[(Key::NodeName, "node"), (Key::Listen, "none"), (Key::StateDir, "none"), (key, value)]);
        assert!(Settings::load(&said, &Environment::new()).is_ok(), "{key:?}");
    }
}

fn check_config(text: &str, expected: &Expect) {
    let dir = tempfile::tempdir().unwrap();
    let told = match config(dir.path(), text) {
        Err(error) => error,
        Ok(settings) => {
            let values = Key::ALL.map(|key| (key, value(&settings, key)));
            let set = values.into_iter().filter(|(_, value)| value != "-");
            let values = set.map(|(key, value)| format!("{}: {value}\n", key.field()));
            let warnings = settings.warnings.iter().map(|warning| format!("warning: {warning}\n"));
            values.chain(warnings).collect()
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
manifestUrl: http://example.org
manifestUrlHeader: {X-Token: [secret]}
manifestUrlCaFile: ca.pem
manifestUrlClientCertFile: cert.pem
manifestUrlClientKeyFile: key.pem
manifestUrlSha256: a1A1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1
httpCheckFrequency: 2m
nodeName: edge-7
listen: [unix:podmux.sock, 127.0.0.1:1]
tokenFile: token
tlsCertFile: tls.pem
tlsPrivateKeyFile: /tls.key
clientCaFile: clients.pem
stateDir: state
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
            manifestUrl: http://example.org/
            manifestUrlHeader: x-token=secret
            manifestUrlCaFile: DIR/ca.pem
            manifestUrlClientCertFile: DIR/cert.pem
            manifestUrlClientKeyFile: DIR/key.pem
            manifestUrlSha256: a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1
            httpCheckFrequency: 120s
            nodeName: node
            listen: unix:DIR/podmux.sock+127.0.0.1:1
            tokenFile: DIR/token
            tlsCertFile: DIR/tls.pem
            tlsPrivateKeyFile: /tls.key
            clientCaFile: DIR/clients.pem
            stateDir: DIR/state
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
            listen: 127.0.0.1:10240
            stateDir: /state
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
            "podManifestPath: /m\nmanifest: a\n",
            expect![
                "DIR/config.yaml:2:1: manifest: unknown field; the fields are podManifestPath, fileCheckFrequency, onInvalidManifest, manifestUrl, manifestUrlHeader, manifestUrlCaFile, manifestUrlClientCertFile, manifestUrlClientKeyFile, manifestUrlSha256, httpCheckFrequency, kubeconfig, nodeName, listen, tokenFile, tlsCertFile, tlsPrivateKeyFile, clientCaFile, stateDir, sink, notify, shutdownGrace, logFormat, verbose"
            ],
        ),
        (
            "staticPodPath: /m\n",
            expect![
                "DIR/config.yaml:1:1: staticPodPath: belongs to a kubelet's configuration: say kind: KubeletConfiguration, or podManifestPath and manifestUrl"
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
            expect!["DIR/config.yaml:3:1: a second document: only one is allowed here"],
        ),
        (
            "listen: none\n",
            expect![[
                r#"no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or do not say --listen none"#
            ]],
        ),
        (
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodURL: u\n",
            expect![[
                r#"DIR/config.yaml:3:1: staticPodURL: the URL does not begin with http:// or https://: it is written like https://HOST:PORT/PATH"#
            ]],
        ),
        (
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodURLHeader: {a: b}\n",
            expect![[
                r#"DIR/config.yaml:3:1: staticPodURLHeader: a map of headers to lists of texts is expected, and this is a text"#
            ]],
        ),
        (
            "manifestUrlHeader: 1\n",
            expect![[
                r#"DIR/config.yaml:1:1: manifestUrlHeader: a text or a list of texts is expected, and this is a number; put it in quotes"#
            ]],
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
            listen: 127.0.0.1:10240
            stateDir: /state
            sink: Stdout
            notify: Incremental
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
            warning: DIR/config.yaml: of a KubeletConfiguration staticPodPath, staticPodURL, staticPodURLHeader, fileCheckFrequency and httpCheckFrequency are used; the rest, 24 fields here, is ignored
        "#]],
    );
}

#[test]
fn a_kubelet_configuration_gives_its_url_with_the_headers() {
    let text = "\
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
staticPodPath: manifests
staticPodURL: https://example.org/pods
staticPodURLHeader: {X-Token: [a secret], X-Both: [\"1\", \"2\"]}
httpCheckFrequency: 1m
fileCheckFrequency: 5s
";
    check_config(
        text,
        &expect![[r#"
            podManifestPath: DIR/manifests
            fileCheckFrequency: 5s
            onInvalidManifest: Keep
            manifestUrl: https://example.org/pods
            manifestUrlHeader: x-both=1+x-both=2+x-token=a secret
            httpCheckFrequency: 60s
            nodeName: node
            listen: 127.0.0.1:10240
            stateDir: /state
            sink: Stdout
            notify: Incremental
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
        "#]],
    );
}

#[test]
fn a_config_file_that_cannot_be_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Flags { config: Some(dir.path().join("missing.yaml")), ..Flags::default() };
    let error = Settings::load(&missing, &Environment::new()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let told = format!("{error}: {cause}").replace(dir.path().to_str().unwrap(), "DIR");
    expect!["--config DIR/missing.yaml: cannot be read; does it exist, and may this process read it?: No such file or directory (os error 2)"]
        .assert_eq(&told);
}

#[test]
fn a_reload_takes_what_can_change_and_names_what_needs_a_restart() {
    let load = |said: &[(Key, &str)]| {
        Settings::load(&flags(said), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let before = load(&[
        (Key::PodManifestPath, "/a"),
        (Key::NodeName, "a"),
        (Key::ManifestUrl, "http://a"),
        (Key::ManifestUrlHeader, "X-A: a"),
        (Key::Kubeconfig, "/a"),
        (Key::TokenFile, "/a"),
    ]);
    let fresh = load(&[
        (Key::PodManifestPath, "/b"),
        (Key::ManifestUrl, "http://b"),
        (Key::ManifestUrlHeader, "X-A: b"),
        (Key::ManifestUrlCaFile, "/b"),
        (Key::ManifestUrlClientCertFile, "/b"),
        (Key::ManifestUrlClientKeyFile, "/b"),
        (Key::ManifestUrlSha256, SUM),
        (Key::HttpCheckFrequency, "1s"),
        (Key::Kubeconfig, "/b"),
        (Key::Listen, "none"),
        (Key::TokenFile, "/b"),
        (Key::TlsCertFile, "/b"),
        (Key::TlsPrivateKeyFile, "/b"),
        (Key::ClientCaFile, "/b"),
        (Key::StateDir, "/b"),
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
    let reloads = [
        Key::FileCheckFrequency,
        Key::OnInvalidManifest,
        Key::ManifestUrlHeader,
        Key::ManifestUrlCaFile,
        Key::ManifestUrlClientCertFile,
        Key::ManifestUrlClientKeyFile,
        Key::ManifestUrlSha256,
        Key::HttpCheckFrequency,
        Key::Kubeconfig,
        Key::TokenFile,
        Key::TlsCertFile,
        Key::TlsPrivateKeyFile,
        Key::ClientCaFile,
        Key::ShutdownGrace,
        Key::Verbose,
    ];
    let named = |key: &Key| !reloads.contains(key);
    assert_eq!(stuck, Key::ALL.into_iter().filter(named).collect::<Vec<_>>());
    for key in Key::ALL {
        let from = if reloads.contains(&key) { &fresh } else { &before };
        assert_eq!(value(&after, key), value(from, key), "{key:?}");
    }
    let (same, stuck) = before.reloaded(before.clone());
    assert_eq!((same, stuck), (before, Vec::new()));
}

/// The port that was opened because there was a token is not left without one.
#[test]
fn a_reload_takes_no_protection_off() {
    let load = |said: &[(Key, &str)]| {
        Settings::load(&flags(said), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let protections = [
        (Key::TokenFile, "/a"),
        (Key::TlsCertFile, "/a"),
        (Key::TlsPrivateKeyFile, "/a"),
        (Key::ClientCaFile, "/a"),
    ];
    let mut said = vec![(Key::Listen, "0.0.0.0:1")];
    said.extend(protections);
    let (before, bare) = (load(&said), load(&[(Key::Listen, "127.0.0.1:1")]));
    let (after, stuck) = before.reloaded(bare.clone());
    assert_eq!(after, before);
    assert_eq!(stuck, [Key::Listen, Key::TokenFile, Key::TlsCertFile, Key::ClientCaFile]);
    // To put one on is another thing.
    let (after, stuck) = bare.reloaded(load(&protections));
    assert_eq!(
        (&after.server.token_file, &after.server.tls),
        (&before.server.token_file, &before.server.tls)
    );
    assert_eq!(stuck, [Key::Listen]);
}

#[test]
fn a_source_that_comes_or_goes_needs_a_restart() {
    let load = |said: &[(Key, &str)]| {
        Settings::load(&flags(said), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let file = load(&[(Key::PodManifestPath, "/a")]);
    let url = load(&[(Key::ManifestUrl, "http://a")]);
    for (before, fresh) in [(&file, &url), (&url, &file)] {
        let (after, stuck) = before.reloaded(fresh.clone());
        assert_eq!((&after, stuck), (before, vec![Key::PodManifestPath, Key::ManifestUrl]));
    }
    let api = load(&[(Key::PodManifestPath, "/a"), (Key::Kubeconfig, "/a")]);
    for (before, fresh) in [(&file, &api), (&api, &file)] {
        let (after, stuck) = before.reloaded(fresh.clone());
        assert_eq!((&after, stuck), (before, vec![Key::Kubeconfig]));
    }
}

/// What combinations of flags are refused with.
fn refusal(said: &[(Key, &str)]) -> String {
    let mut flags = flags(said);
    flags.said.entry(Key::NodeName).or_insert_with(|| vec!["node".to_owned()]);
    flags.said.entry(Key::StateDir).or_insert_with(|| vec!["none".to_owned()]);
    match Settings::load(&flags, &Environment::new()) {
        Ok(_) => "accepted\n".to_owned(),
        Err(error) => format!("{error}\n"),
    }
}

#[test]
fn what_has_no_meaning_without_another_setting_is_refused() {
    let mut told = String::new();
    for key in [
        Key::ManifestUrlHeader,
        Key::ManifestUrlCaFile,
        Key::ManifestUrlClientCertFile,
        Key::ManifestUrlClientKeyFile,
        Key::ManifestUrlSha256,
        Key::HttpCheckFrequency,
    ] {
        let value = match key {
            Key::ManifestUrlHeader => "X-Token: secret",
            Key::ManifestUrlSha256 => SUM,
            Key::HttpCheckFrequency => "1s",
            _ => "/f",
        };
        told += &refusal(&[(key, value)]);
        told += &refusal(&[(Key::ManifestUrl, "http://u"), (key, value)]);
    }
    for key in [Key::TlsCertFile, Key::TlsPrivateKeyFile, Key::ClientCaFile, Key::TokenFile] {
        told += &refusal(&[(key, "/f")]);
    }
    expect![[r#"
        --manifest-url-header: it needs a URL to be about: give --manifest-url URL
        accepted
        --manifest-url-ca-file: it needs a URL to be about: give --manifest-url URL
        accepted
        --manifest-url-client-cert-file: a certificate and its key go together: give --manifest-url-client-key-file FILE, too
        --manifest-url-client-cert-file: a certificate and its key go together: give --manifest-url-client-key-file FILE, too
        --manifest-url-client-key-file: a certificate and its key go together: give --manifest-url-client-cert-file FILE, too
        --manifest-url-client-key-file: a certificate and its key go together: give --manifest-url-client-cert-file FILE, too
        --manifest-url-sha256: it needs a URL to be about: give --manifest-url URL
        accepted
        accepted
        accepted
        --tls-cert-file: a certificate and its key go together: give --tls-private-key-file FILE, too
        --tls-private-key-file: a certificate and its key go together: give --tls-cert-file FILE, too
        --client-ca-file: clients show certificates over TLS only: give --tls-cert-file and --tls-private-key-file, too
        accepted
    "#]].assert_eq(&told);
}

#[test]
fn beyond_loopback_there_is_neither_plain_text_nor_a_stranger() {
    let mut told = String::new();
    let (cert, key) = ((Key::TlsCertFile, "/c"), (Key::TlsPrivateKeyFile, "/k"));
    let (token, ca) = ((Key::TokenFile, "/t"), (Key::ClientCaFile, "/ca"));
    for address in ["0.0.0.0:1", "[::]:1", "192.168.0.1:1", "[::ffff:10.0.0.1]:1"] {
        told += &refusal(&[(Key::Listen, "127.0.0.1:1"), (Key::Listen, address)]);
    }
    for more in [&[token][..], &[cert, key], &[cert, key, token], &[cert, key, ca], &[cert, key, token, ca]] {
        told += &refusal(&[&[(Key::Listen, "0.0.0.0:1")], more].concat());
    }
    for address in ["127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1", "unix:/run/p.sock"] {
        told += &refusal(&[(Key::Listen, address)]);
    }
    expect![[r#"
        --listen: 0.0.0.0:1 can be reached from elsewhere and needs TLS and a way to know its clients: give --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on 127.0.0.1
        --listen: [::]:1 can be reached from elsewhere and needs TLS and a way to know its clients: give --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on 127.0.0.1
        --listen: 192.168.0.1:1 can be reached from elsewhere and needs TLS and a way to know its clients: give --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on 127.0.0.1
        --listen: [::ffff:10.0.0.1]:1 can be reached from elsewhere and needs TLS and a way to know its clients: give --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on 127.0.0.1
        --listen: 0.0.0.0:1 can be reached from elsewhere and needs TLS: give --tls-cert-file and --tls-private-key-file; or listen on 127.0.0.1
        --listen: 0.0.0.0:1 can be reached from elsewhere and needs a way to know its clients: give --token-file or --client-ca-file; or listen on 127.0.0.1
        accepted
        accepted
        accepted
        accepted
        accepted
        accepted
        accepted
        accepted
    "#]].assert_eq(&told);
}

#[test]
fn the_urls_secrets_are_never_printed() {
    let said = flags(&[
        (Key::ManifestUrl, "https://user:secret@example.org:8443/pods?token=secret"),
        (Key::ManifestUrlHeader, "Authorization: Bearer secret"),
        (Key::StateDir, "none"),
    ]);
    let settings = Settings::load(&said, &Environment::new()).unwrap();
    let url = settings.url.as_ref().unwrap();
    assert_eq!(url.url.to_string(), "https://***@example.org:8443/pods?***");
    assert_eq!(url.headers["authorization"], "Bearer secret");
    for printed in [format!("{settings:?}"), format!("{said:?}")] {
        assert!(!printed.contains("secret"), "{printed}");
    }
}

#[test]
fn state_is_kept_where_systemd_says_else_where_its_owner_has_state() {
    let dir = |root: bool, variables: &[(&str, &str)]| {
        default_state_dir(&environment(variables), root)
            .map_or_else(|| "-".to_owned(), |path| path.display().to_string())
    };
    let given = ("STATE_DIRECTORY", "/var/lib/private/podmux:/var/lib/other");
    let (home, xdg) = (("HOME", "/home/a"), ("XDG_STATE_HOME", "/home/a/s"));
    assert_eq!(dir(true, &[given, home]), "/var/lib/private/podmux");
    assert_eq!(dir(false, &[given, home, xdg]), "/var/lib/private/podmux");
    assert_eq!(dir(true, &[home, xdg]), "/var/lib/podmux");
    assert_eq!(dir(false, &[home, xdg]), "/home/a/s/podmux");
    assert_eq!(dir(false, &[home]), "/home/a/.local/state/podmux");
    // The specification has it that what is not absolute is to be ignored.
    assert_eq!(dir(false, &[home, ("XDG_STATE_HOME", "s")]), "/home/a/.local/state/podmux");
    assert_eq!(dir(false, &[]), "-");
}

#[test]
fn without_a_place_for_state_there_is_a_way_to_say_so() {
    expect![
        "nowhere to keep state: HOME is not set; give --state-dir DIR, or --state-dir none to keep nothing"
    ]
    .assert_eq(&SettingsError::NoStateDir.to_string());
}

#[test]
fn the_word_in_cluster_is_what_a_pod_is_told_and_a_path_with_a_slash_is_a_path() {
    let told = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    let load = |said: &str, variables: &[(&str, &str)]| {
        let settings = Settings::load(
            &flags(&[(Key::NodeName, "node"), (Key::StateDir, "none"), (Key::Kubeconfig, said)]),
            &environment(variables),
        );
        settings.map(|settings| settings.kubeconfig.unwrap()).map_err(|error| error.to_string())
    };
    let pods = Kubeconfig::InCluster { host: "10.0.0.1".to_owned(), port: 443 };
    assert_eq!(load("in-cluster", &told), Ok(pods.clone()));
    assert_eq!(load("./in-cluster", &told), Ok(Kubeconfig::File("./in-cluster".into())));
    let expected = "--kubeconfig: in-cluster needs KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets in a pod; give the path of a kubeconfig elsewhere (a file of that name is ./in-cluster)";
    for said in [&told[..1], &told[1..], &[]] {
        assert_eq!(load("in-cluster", said), Err(expected.to_owned()));
    }
    let bad = [told[0], ("KUBERNETES_SERVICE_PORT", "tcp://10.0.0.1:443")];
    assert_eq!(load("in-cluster", &bad), Err("--kubeconfig: KUBERNETES_SERVICE_PORT is no port".to_owned()));
    // In a config file it is the same word, and every other text a path from there.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    for (said, expected) in
        [("in-cluster", pods), ("node.conf", Kubeconfig::File(dir.path().join("node.conf")))]
    {
        fs::write(&path, format!("kubeconfig: {said}\nnodeName: node\nstateDir: none\n")).unwrap();
        let flags = Flags { config: Some(path.clone()), ..Flags::default() };
        assert_eq!(Settings::load(&flags, &environment(&told)).unwrap().kubeconfig, Some(expected));
    }
}

#[test]
fn proxies_are_what_go_programs_take_from_the_environment_and_are_not_printed() {
    let load = |variables: &[(&str, &str)]| {
        let flags = flags(&[(Key::NodeName, "node"), (Key::StateDir, "none")]);
        Settings::load(&flags, &environment(variables)).unwrap()
    };
    assert_eq!(load(&[]).proxies, ProxySettings::default());
    let variables = [
        ("HTTPS_PROXY", "http://user:secret@proxy"),
        ("https_proxy", "http://other"),
        ("HTTP_PROXY", ""),
        ("http_proxy", "http://user:secret@plain"),
        ("no_proxy", "10.0.0.0/8"),
    ];
    let settings = load(&variables);
    let expected = ProxySettings {
        https: "http://user:secret@proxy".to_owned(),
        http: "http://user:secret@plain".to_owned(),
        no: "10.0.0.0/8".to_owned(),
    };
    assert_eq!(settings.proxies, expected);
    let printed = format!("{settings:?}");
    assert!(printed.contains("10.0.0.0/8") && !printed.contains("secret"), "{printed}");
}
