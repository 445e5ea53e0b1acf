//! Settings: the precedence of the layers, config files, and the errors of invalid values.
#![allow(
    clippy::needless_raw_string_hashes,
    clippy::too_many_lines,
    reason = "golden texts are written by expect-test, and are as long as the output that they show"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use expect_test::{Expect, expect};
use http::{HeaderName, HeaderValue};
use podmux::{
    host::Disk,
    mux::Notify,
    pod::SecurityLevel,
    registry,
    server::{self, Listen},
    settings::{
        CommandLine, Environment, Setting, Settings, SettingsError, default_socket, default_state_dir,
        runtime_dir, settings,
    },
    source::{
        api::{InCluster, Kubeconfig, Proxies},
        file::{self, OnInvalid},
        url,
    },
    telemetry::Format,
};

/// A row of the table of settings: the names of a setting, and a value for each layer. A setting
/// without a row fails the tests.
struct Row {
    flag: &'static str,
    variable: &'static str,
    field: &'static str,
    /// The text in each layer and the resulting value: flag, environment, file, default.
    given: [(&'static str, &'static str); 4],
}

fn row(key: &str) -> Row {
    let (flag, variable, field, given) = match key {
        "pod-manifest-path" => (
            "pod-manifest-path",
            "PODMUX_POD_MANIFEST_PATH",
            "podManifestPath",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "kubeconfig" => (
            "kubeconfig",
            "PODMUX_KUBECONFIG",
            "kubeconfig",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "file-check-frequency" => (
            "file-check-frequency",
            "PODMUX_FILE_CHECK_FREQUENCY",
            "fileCheckFrequency",
            [("1m30s", "90s"), ("500ms", "500ms"), ("1h", "3600s"), ("", "20s")],
        ),
        "on-invalid-manifest" => (
            "on-invalid-manifest",
            "PODMUX_ON_INVALID_MANIFEST",
            "onInvalidManifest",
            [("keep", "Keep"), ("remove", "Remove"), ("remove", "Remove"), ("", "Keep")],
        ),
        "pod-security" => (
            "pod-security",
            "PODMUX_POD_SECURITY",
            "podSecurity",
            [
                ("http=baseline", "http=baseline"),
                ("file=restricted, url=baseline", "file=restricted+url=baseline"),
                ("[url=restricted, http=privileged]", "url=restricted"),
                ("", "-"),
            ],
        ),
        "manifest-url" => (
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
        "manifest-url-header" => (
            "manifest-url-header",
            "PODMUX_MANIFEST_URL_HEADER",
            "manifestUrlHeader",
            [
                ("X-A: flag", "x-a=flag"),
                ("X-A: env, too\n\nX-A: b: c\n", "x-a=env, too+x-a=b: c"),
                ("['X-A: file', 'X-B: b']", "x-a=file+x-b=b"),
                ("", "-"),
            ],
        ),
        "manifest-url-sha256" => (
            "manifest-url-sha256",
            "PODMUX_MANIFEST_URL_SHA256",
            "manifestUrlSha256",
            [(SUM, SUM), (OTHER_SUM, OTHER_SUM), (SUM, SUM), ("", "-")],
        ),
        "http-check-frequency" => (
            "http-check-frequency",
            "PODMUX_HTTP_CHECK_FREQUENCY",
            "httpCheckFrequency",
            [("1m30s", "90s"), ("500ms", "500ms"), ("1h", "3600s"), ("", "20s")],
        ),
        "listen" => (
            "listen",
            "PODMUX_LISTEN",
            "listen",
            [
                ("none", "-"),
                ("unix:/env, localhost:0", "unix:/env+127.0.0.1:0"),
                ("['[::1]:5', '127.1.2.3:4']", "[::1]:5+127.1.2.3:4"),
                ("", "SOCKET+127.0.0.1:10240"),
            ],
        ),
        "max-posted-pods" => (
            "max-posted-pods",
            "PODMUX_MAX_POSTED_PODS",
            "maxPostedPods",
            [("5", "5"), ("0", "0"), ("7", "7"), ("", "1000")],
        ),
        "max-posted-bytes" => (
            "max-posted-bytes",
            "PODMUX_MAX_POSTED_BYTES",
            "maxPostedBytes",
            [("1Ki", "1024"), ("2M", "2000000"), ("3", "3"), ("", "67108864")],
        ),
        "anonymous-auth" => (
            "anonymous-auth",
            "PODMUX_ANONYMOUS_AUTH",
            "anonymousAuth",
            [("true", "true"), ("false", "false"), ("true", "true"), ("", "false")],
        ),
        "state-dir" => (
            "state-dir",
            "PODMUX_STATE_DIR",
            "stateDir",
            [("none", "-"), ("/env", "/env"), ("/file", "/file"), ("", "/state")],
        ),
        "manifest-url-ca-file" => (
            "manifest-url-ca-file",
            "PODMUX_MANIFEST_URL_CA_FILE",
            "manifestUrlCaFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "manifest-url-client-cert-file" => (
            "manifest-url-client-cert-file",
            "PODMUX_MANIFEST_URL_CLIENT_CERT_FILE",
            "manifestUrlClientCertFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "manifest-url-client-key-file" => (
            "manifest-url-client-key-file",
            "PODMUX_MANIFEST_URL_CLIENT_KEY_FILE",
            "manifestUrlClientKeyFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "token-file" => (
            "token-file",
            "PODMUX_TOKEN_FILE",
            "tokenFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "tls-cert-file" => (
            "tls-cert-file",
            "PODMUX_TLS_CERT_FILE",
            "tlsCertFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "tls-private-key-file" => (
            "tls-private-key-file",
            "PODMUX_TLS_PRIVATE_KEY_FILE",
            "tlsPrivateKeyFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "client-ca-file" => (
            "client-ca-file",
            "PODMUX_CLIENT_CA_FILE",
            "clientCaFile",
            [("/flag", "/flag"), ("/env", "/env"), ("/file", "/file"), ("", "-")],
        ),
        "node-name" => (
            "node-name",
            "PODMUX_NODE_NAME",
            "nodeName",
            [("Flag", "flag"), ("env.example", "env.example"), ("file", "file"), ("", "HOST")],
        ),
        "sink" => (
            "sink",
            "PODMUX_SINK",
            "sink",
            [
                ("jsonl=/flag", "jsonl=/flag"),
                ("jsonl, jsonl=/env", "jsonl+jsonl=/env"),
                ("[jsonl=/a, jsonl=/b]", "jsonl=/a+jsonl=/b"),
                ("", "jsonl"),
            ],
        ),
        "sink-concurrency" => (
            "sink-concurrency",
            "PODMUX_SINK_CONCURRENCY",
            "sinkConcurrency",
            [("1", "1"), ("7", "7"), ("1000", "1000"), ("", "4")],
        ),
        "notify" => (
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
        "shutdown-grace" => (
            "shutdown-grace",
            "PODMUX_SHUTDOWN_GRACE",
            "shutdownGrace",
            [("0", "0ns"), ("1.5s", "1.5s"), ("2m", "120s"), ("", "10s")],
        ),
        "log-format" => (
            "log-format",
            "PODMUX_LOG_FORMAT",
            "logFormat",
            [("text", "Text"), ("json", "Json"), ("json", "Json"), ("", "Text")],
        ),
        "verbose" => {
            ("verbose", "PODMUX_VERBOSE", "verbose", [("2", "2"), ("1", "1"), ("3", "3"), ("", "0")])
        }
        _ => panic!("the setting {key} has no row"),
    };
    Row { flag, variable, field, given }
}

const SUM: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const OTHER_SUM: &str = "b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2";

/// For a runtime.
const RUNTIME_DIR: (&str, &str) = ("RUNTIME_DIRECTORY", "/run/needed");

/// The settings that a setting needs.
fn needs(key: &str) -> &'static [(&'static str, &'static str)] {
    const MANIFESTS: (&str, &str) = ("PODMUX_POD_MANIFEST_PATH", "/needed");
    const URL: (&str, &str) = ("PODMUX_MANIFEST_URL", "http://needed");
    const URL_CERT: (&str, &str) = ("PODMUX_MANIFEST_URL_CLIENT_CERT_FILE", "/needed");
    const URL_KEY: (&str, &str) = ("PODMUX_MANIFEST_URL_CLIENT_KEY_FILE", "/needed");
    const CERT: (&str, &str) = ("PODMUX_TLS_CERT_FILE", "/needed");
    const KEY: (&str, &str) = ("PODMUX_TLS_PRIVATE_KEY_FILE", "/needed");
    match key {
        "file-check-frequency" | "on-invalid-manifest" | "listen" => &[MANIFESTS],
        "manifest-url-header" | "manifest-url-ca-file" | "manifest-url-sha256" | "http-check-frequency" => {
            &[URL]
        }
        "pod-security" => &[MANIFESTS, URL],
        "manifest-url-client-cert-file" => &[URL, URL_KEY],
        "manifest-url-client-key-file" => &[URL, URL_CERT],
        "tls-cert-file" => &[KEY],
        "tls-private-key-file" => &[CERT],
        "client-ca-file" => &[CERT, KEY],
        "sink-concurrency" => &[("PODMUX_SINK", "exec=/needed"), RUNTIME_DIR],
        _ => &[],
    }
}

fn value(settings: &Settings, key: &str) -> String {
    let file = |show: fn(&file::Config) -> String| settings.file.as_ref().map(show);
    let url = |show: fn(&url::Config) -> Option<String>| settings.url.as_ref().and_then(show);
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let server = &settings.server;
    let shown = match key {
        "pod-manifest-path" => file(|file| file.path.display().to_string()),
        "file-check-frequency" => file(|file| format!("{:?}", file.check_frequency)),
        "on-invalid-manifest" => file(|file| format!("{:?}", file.on_invalid)),
        "pod-security" => {
            let levels = [
                ("file", settings.file.as_ref().map(|file| file.pod_security)),
                ("http", Some(server.pod_security)),
                ("url", settings.url.as_ref().map(|url| url.pod_security)),
                ("api", settings.api.as_ref().map(|api| api.pod_security)),
            ];
            let given = levels.into_iter().filter_map(|(source, level)| Some((source, level?)));
            let given = given.filter(|(_, level)| *level != SecurityLevel::Privileged);
            let given = given.map(|(source, level)| format!("{source}={}", level.as_str()));
            Some(given.collect::<Vec<_>>().join("+"))
        }
        "manifest-url" => url(|url| Some(url.url.to_string())),
        "manifest-url-header" => url(|url| {
            let header = |(name, value): (&HeaderName, &HeaderValue)| {
                assert!(value.is_sensitive());
                format!("{name}={}", value.to_str().unwrap())
            };
            Some(url.headers.iter().map(header).collect::<Vec<_>>().join("+"))
        }),
        "manifest-url-ca-file" => url(|url| Some(url.ca_file.as_ref()?.display().to_string())),
        "manifest-url-client-cert-file" => {
            url(|url| Some(url.client_certificate.as_ref()?.certificate.display().to_string()))
        }
        "manifest-url-client-key-file" => {
            url(|url| Some(url.client_certificate.as_ref()?.key.display().to_string()))
        }
        "manifest-url-sha256" => url(|url| url.sha256.clone()),
        "http-check-frequency" => url(|url| Some(format!("{:?}", url.check_frequency))),
        "max-posted-pods" => Some(settings.http.max_pods.to_string()),
        "max-posted-bytes" => Some(settings.http.max_bytes.to_string()),
        "listen" => {
            let listen = server.listen.iter().map(Listen::to_string).collect::<Vec<_>>().join("+");
            Some(listen.replace("unix:/run/podmux/podmux.sock", "SOCKET"))
        }
        "anonymous-auth" => Some(server.anonymous.to_string()),
        "kubeconfig" => path(&settings.api.as_ref().map(|api| match &api.kubeconfig {
            Kubeconfig::File(path) => path.clone(),
            Kubeconfig::InCluster(InCluster { host, port, .. }) => format!("{host}:{port}").into(),
        })),
        "token-file" => path(&server.token_file),
        "tls-cert-file" => path(&server.tls.as_ref().map(|tls| tls.certificate.clone())),
        "tls-private-key-file" => path(&server.tls.as_ref().map(|tls| tls.key.clone())),
        "client-ca-file" => path(&server.client_ca_file),
        "state-dir" => path(&settings.state_dir),
        _ => Some(general_value(settings, key)),
    };
    shown.filter(|shown| !shown.is_empty()).unwrap_or_else(|| "-".to_owned())
}

fn general_value(settings: &Settings, key: &str) -> String {
    match key {
        "node-name" => settings.node_name.to_string(),
        "sink" => {
            let runtime = settings.runtime.iter().map(|runtime| runtime.kind.to_string());
            let sinks = settings.sinks.iter().map(ToString::to_string);
            sinks.chain(runtime).collect::<Vec<_>>().join("+")
        }
        "sink-concurrency" => {
            settings.runtime.as_ref().map(|runtime| runtime.concurrency.to_string()).unwrap_or_default()
        }
        "notify" => format!("{:?}", settings.notify),
        "shutdown-grace" => format!("{:?}", settings.shutdown_grace),
        "log-format" => format!("{:?}", settings.log.format),
        "verbose" => settings.log.verbosity.to_string(),
        _ => unreachable!("{key} is shown by value()"),
    }
}

/// A command line with these flags.
fn flags(given: &[(&str, &str)]) -> CommandLine {
    given.iter().fold(CommandLine::default(), |flags, (flag, value)| flags.with(flag, value))
}

fn load(command_line: &CommandLine, environment: &Environment) -> Result<Settings, SettingsError> {
    Settings::load(command_line, environment, &Disk::default())
}

/// The names of all settings.
fn keys() -> Vec<String> {
    settings().into_iter().map(|setting| setting.flag).collect()
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The settings of a config file with this text and nothing else.
fn config(dir: &Path, text: &str) -> Result<Settings, String> {
    let path = dir.join("config.yaml");
    fs::write(&path, text).unwrap();
    let flags = flags(&[("config", path.to_str().unwrap())]);
    let shown = |text: String| text.replace(dir.to_str().unwrap(), "DIR");
    let environment = environment(&[("PODMUX_NODE_NAME", "node"), ("STATE_DIRECTORY", "/state")]);
    load(&flags, &environment).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        shown(format!("{error}{cause}"))
    })
}

#[test]
fn every_setting_has_the_same_name_in_all_layers() {
    for Setting { flag, variable, field, .. } in settings() {
        let row = row(&flag);
        assert_eq!((row.flag, row.variable, row.field), (&*flag, &*variable, &*field));
    }
}

#[test]
fn a_flag_precedes_the_environment_the_environment_the_file_and_the_file_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    for key in keys().iter().map(String::as_str) {
        let Row { flag: _, variable, field, given: [by_flag, by_variable, by_file, by_default] } = row(key);
        let path = dir.path().join("config.yaml");
        // Every layer below the expected one has a value, too.
        for winner in 0..4 {
            let mut flags = flags(&[(key, by_flag.0)][..usize::from(winner == 0)]);
            let mut environment = environment(&[(variable, by_variable.0)][..usize::from(winner <= 1)]);
            if winner <= 2 {
                fs::write(&path, format!("{field}: {}\n", by_file.0)).unwrap();
                flags = flags.with("config", path.to_str().unwrap());
            }
            // A certificate needs its key, and the key alone is an error.
            let needs = needs(key).iter().filter(|(name, _)| winner < 3 || !name.ends_with("_FILE"));
            environment.extend(self::environment(&needs.copied().collect::<Vec<_>>()));
            environment.insert("STATE_DIRECTORY".to_owned(), "/state:/other".to_owned());
            let got = load(&flags, &environment).map(|settings| value(&settings, key));
            let expected = [by_flag, by_variable, by_file, by_default][winner].1.replace("HOST", &host);
            assert_eq!(got.map_err(|error| error.to_string()), Ok(expected), "{key}, layer {winner}");
        }
    }
}

#[test]
fn the_defaults_are_as_documented() {
    let settings = load(
        &flags(&[("pod-manifest-path", "manifests"), ("node-name", "node")]),
        &environment(&[("STATE_DIRECTORY", "/state")]),
    )
    .unwrap();
    let file = settings.file.unwrap();
    assert_eq!(file.check_frequency, Duration::from_secs(20));
    assert_eq!(file.on_invalid, OnInvalid::Keep);
    assert_eq!(settings.sinks, [registry::Config::parse("jsonl").unwrap()]);
    assert_eq!(settings.notify, Notify::Incremental);
    assert_eq!(settings.shutdown_grace, Duration::from_secs(10));
    assert_eq!((settings.log.format, settings.log.verbosity), (Format::Text, 0));
    assert_eq!(settings.warnings, Vec::<String>::new());
    assert_eq!((settings.url, settings.state_dir), (None, Some("/state".into())));
    let socket = PathBuf::from("/run/podmux/podmux.sock");
    let listen = vec![Listen::Unix(socket.clone()), Listen::Tcp(([127, 0, 0, 1], 10240).into())];
    let names = ["127.0.0.1", "::1", "localhost", "node"].map(str::to_owned).to_vec();
    let generated = Some(server::Generated { directory: "/state/auth".into(), names });
    let default_socket = Some(socket);
    let expected = server::Config { listen, generated, default_socket, ..server::Config::default() };
    assert_eq!(settings.server, expected);
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let given = environment(&[("PODMUX_FILE_CHECK_FREQUENCY", ""), ("PODMUX_CONFIG", ""), ("HOME", "/h")]);
    let settings = load(&flags(&[("pod-manifest-path", "a")]), &given).unwrap();
    assert_eq!(settings.file.unwrap().check_frequency, Duration::from_secs(20));
}

#[test]
fn unknown_variables_are_one_warning() {
    let given = environment(&[
        ("PODMUX_SINKS", "jsonl"),
        ("PODMUX_NODE_NAME", "a"),
        ("PODMUX_PORT", ""),
        // For the client commands.
        ("PODMUX_SERVER", "unix:/s"),
        ("HOME", "/"),
    ]);
    let settings = load(&flags(&[("pod-manifest-path", "a")]), &given).unwrap();
    assert_eq!(settings.warnings, ["unknown variables, ignored: PODMUX_PORT, PODMUX_SINKS"]);
}

#[test]
fn errors_of_invalid_values_name_the_accepted_ones() {
    let check = |key: &str, value: &str| {
        let mut given =
            vec![("node-name", "node"), ("pod-manifest-path", "manifests"), ("state-dir", "none")];
        given.retain(|(other, _)| *other != key);
        given.extend(value.split('|').map(|value| (key, value)));
        match load(&flags(&given), &Environment::new()) {
            Ok(_) => format!("{value}: accepted\n"),
            Err(error) => format!("{error}\n"),
        }
    };
    let mut shown = String::new();
    for value in ["20", "", "abc", "20 s", "-5s", "99ms", "24h1s", "9999999999999h", "1x", ".s", "0"] {
        shown += &check("file-check-frequency", value);
    }
    for value in ["1h0m1s", "0s"] {
        shown += &check("shutdown-grace", value);
    }
    for value in ["8Ei", "9223372036854775808", "7Ei", "0", "100m", "2000m", "5u", "1.5", "0.5Ki", "xm"] {
        shown += &check("max-posted-bytes", value);
    }
    shown += &check("sink", "webhook=http://localhost,max-bytes=10m");
    for value in ["webhook=http://localhost", "jsonl=", "jsonl=-", "jsonl=./-", "", "no-such", "jsonl|jsonl"]
    {
        shown += &check("sink", value);
    }
    for value in ["jsonl=/a|jsonl=/./a", "jsonl=a|jsonl=./a", "jsonl=/a|jsonl=/b", "jsonl|jsonl=/dev/stdout"]
    {
        shown += &check("sink", value);
    }
    for value in ["exec", "exec=", "exec=true", "exec=./true", "exec=/a|exec=/b", "exec=/a,retries=3"] {
        shown += &check("sink", value);
    }
    for value in ["", "5", "999ms", "1h1s"] {
        shown += &check("sink", &format!("exec=/a,timeout={value}"));
    }
    for value in ["0", "1001", "many", "4"] {
        shown += &check("sink-concurrency", value);
    }
    for value in ["", "x", "-1", "18446744073709551616"] {
        shown += &check("max-posted-pods", value);
    }
    let urls = [
        "",
        "example.org/pods",
        "ftp://u:secret@h/",
        "http://",
        "http://h h/",
        "https://",
        "http://u:secret@h:65536/",
    ];
    for value in urls {
        shown += &check("manifest-url", value);
    }
    for value in ["", "secret", "a b: secret", ": secret", "X-A: sec\u{1}ret", "X-A: ok|sec ret: x"] {
        shown += &check("manifest-url-header", value);
    }
    let odd = "1".repeat(63);
    for value in ["", &odd, &odd.replacen('1', "é", 1), &(odd.clone() + "g")] {
        shown += &check("manifest-url-sha256", value);
    }
    for value in ["", "80", "host", "example.org:80", ":80", "127.0.0.1", "127.0.0.1:65536", "::1:80"] {
        shown += &check("listen", value);
    }
    let long = format!("unix:/{}", "a".repeat(107));
    for value in ["unix:", &long, "none|127.0.0.1:1", "none|none", "127.0.0.1:1|localhost:1", "unix:a|unix:a"]
    {
        shown += &check("listen", value);
    }
    shown += &check("state-dir", "");
    shown += &check("token-file", "");
    shown += &check("node-name", "my_host");
    shown += &check("pod-manifest-path", "");
    shown += &check("on-invalid-manifest", "Keep");
    for value in
        ["baseline", "disk=baseline", "file=strict", "file=Baseline", "http=baseline|http=restricted"]
    {
        shown += &check("pod-security", value);
    }
    shown += &check("notify", "all");
    shown += &check("sink", "jsonl|table");
    shown += &check("log-format", "xml");
    for value in ["true", "4", "9", "-1"] {
        shown += &check("verbose", value);
    }
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
        8Ei: accepted
        --max-posted-bytes: "9223372036854775808" is not a number of bytes: write it like 64Mi
        7Ei: accepted
        0: accepted
        --max-posted-bytes: "100m" is not a number of bytes (m is a thousandth): write it like 100M or 100Mi
        --max-posted-bytes: "2000m" is not a number of bytes (m is a thousandth): write it like 2000M or 2000Mi
        --max-posted-bytes: "5u" is not a number of bytes: write it like 64Mi
        --max-posted-bytes: "1.5" is not a number of bytes: write it like 64Mi
        0.5Ki: accepted
        --max-posted-bytes: "xm" is not a number of bytes: write it like 64Mi
        --sink: max-bytes: "10m" is not a number of bytes (m is a thousandth): write it like 10M or 10Mi
        webhook=http://localhost: accepted
        --sink: jsonl=PATH needs a path; jsonl alone writes to standard output
        --sink: jsonl alone writes to standard output (a file of that name is ./-)
        jsonl=./-: accepted
        --sink: kind is missing; the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
        --sink: unknown sink "no-such"; the sinks are jsonl, jsonl=PATH, table, webhook=URL, exec=PROGRAM, podman, podman=SOCKET
        --sink: jsonl is given twice
        --sink: jsonl=/a and jsonl=/./a have the same output: leave one of them out
        --sink: jsonl=a and jsonl=./a have the same output: leave one of them out
        jsonl=/a|jsonl=/b: accepted
        --sink: jsonl and jsonl=/dev/stdout have the same output: leave one of them out
        --sink: exec=PROGRAM needs the path of a program, with a slash: exec=/usr/local/bin/NAME
        --sink: exec=PROGRAM needs the path of a program, with a slash: exec=/usr/local/bin/NAME
        --sink: exec=PROGRAM needs the path of a program, with a slash: exec=/usr/local/bin/NAME
        --state-dir: exec=./true needs a state directory, which holds what it has started
        --sink: one agent has one runtime, and this is exec=/a and exec=/b
        --sink: unknown option "retries"; the options of exec are timeout
        --sink: "timeout" needs a value: timeout=DURATION
        --sink: timeout: "5" has no unit: write 5s for seconds, or use ms, m or h
        --sink: timeout: "999ms" is out of bounds: 1s to 1h
        --sink: timeout: "1h1s" is out of bounds: 1s to 1h
        --sink-concurrency: "0" is not a whole number from 1 to 1000
        --sink-concurrency: "1001" is not a whole number from 1 to 1000
        --sink-concurrency: "many" is not a whole number from 1 to 1000
        --sink-concurrency: it has no effect without a runtime: give --sink podman or --sink exec=PROGRAM
        --max-posted-pods: "" is not a number of pods: write it like 1000
        --max-posted-pods: "x" is not a number of pods: write it like 1000
        --max-posted-pods: "-1" is not a number of pods: write it like 1000
        --max-posted-pods: "18446744073709551616" is not a number of pods: write it like 1000
        --manifest-url: this is not a URL: write it like https://HOST:PORT/PATH
        --manifest-url: this is not a URL: write it like https://HOST:PORT/PATH
        --manifest-url: the URL does not begin with http:// or https://: write it like https://HOST:PORT/PATH
        --manifest-url: this is not a URL: write it like https://HOST:PORT/PATH
        --manifest-url: this is not a URL: write it like https://HOST:PORT/PATH
        --manifest-url: this is not a URL: write it like https://HOST:PORT/PATH
        --manifest-url: the port of the URL is above 65535: write it like https://HOST:PORT/PATH
        --manifest-url-header: a header is written 'NAME: VALUE', this one has no colon
        --manifest-url-header: a header is written 'NAME: VALUE', this one has no colon
        --manifest-url-header: the text before the colon is not a header name
        --manifest-url-header: the text before the colon is not a header name
        --manifest-url-header: the value of x-a has characters that are not allowed in a header
        --manifest-url-header: value 2: the text before the colon is not a header name
        --manifest-url-sha256: "" is not a SHA-256: write 64 hexadecimal digits, as sha256sum prints them
        --manifest-url-sha256: "111111111111111111111111111111111111111111111111111111111111111" is not a SHA-256: write 64 hexadecimal digits, as sha256sum prints them
        --manifest-url-sha256: "é11111111111111111111111111111111111111111111111111111111111111" is not a SHA-256: write 64 hexadecimal digits, as sha256sum prints them
        --manifest-url-sha256: "111111111111111111111111111111111111111111111111111111111111111g" is not a SHA-256: write 64 hexadecimal digits, as sha256sum prints them
        --listen: "" is not an address: write HOST:PORT, unix:PATH or none
        --listen: "80" is not an address: write HOST:PORT, unix:PATH or none
        --listen: "host" is not an address: write HOST:PORT, unix:PATH or none
        --listen: "example.org:80": the host must be an IP address or localhost: 127.0.0.1:80, [::1]:80, 0.0.0.0:80
        --listen: ":80": the host must be an IP address or localhost: 127.0.0.1:80, [::1]:80, 0.0.0.0:80
        --listen: "127.0.0.1" is not an address: write HOST:PORT, unix:PATH or none
        --listen: "127.0.0.1:65536" is not an address: write HOST:PORT, unix:PATH or none
        --listen: "::1:80": the host must be an IP address or localhost: 127.0.0.1:80, [::1]:80, 0.0.0.0:80
        --listen: "unix:": unix:PATH needs a path
        --listen: "unix:/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": unix:PATH needs a path of at most 107 bytes
        --listen: none means no address: give it alone
        --listen: none means no address: give it alone
        --listen: 127.0.0.1:1 is given twice
        --listen: unix:a is given twice
        --state-dir: the path is empty
        --token-file: the path is empty
        --node-name: "my_host" is not a valid node name: use up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit
        --pod-manifest-path: the path is empty
        --on-invalid-manifest: "Keep" is not one of keep, remove
        --pod-security: "baseline" has no '=': write SOURCE=LEVEL (http=baseline)
        --pod-security: unknown source "disk": use file, http, url or api
        --pod-security: unknown level "strict": use privileged, baseline or restricted
        --pod-security: unknown level "Baseline": use privileged, baseline or restricted
        --pod-security: http is given twice
        --notify: "all" is not one of incremental, snapshot, snapshot-and-updates
        --sink: jsonl and table have the same output: leave one of them out
        --log-format: "xml" is not one of text, json
        --verbose: "true" is not a level: use 0, 1, 2 or 3
        --verbose: "4" is not a level: use 0, 1, 2 or 3
        --verbose: "9" is not a level: use 0, 1, 2 or 3
        --verbose: "-1" is not a level: use 0, 1, 2 or 3
    "#]].assert_eq(&shown);
}

#[test]
fn settings_without_a_source_are_an_error() {
    let given = flags(&[("node-name", "node"), ("listen", "none"), ("state-dir", "none")]);
    let error = load(&given, &Environment::new()).unwrap_err();
    expect!["no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or leave --listen none out"].assert_eq(&error.to_string());
    for key in ["pod-manifest-path", "manifest-url", "kubeconfig"] {
        let value = if key == "manifest-url" { "http://localhost/pods" } else { "/m" };
        let given = flags(&[("node-name", "node"), ("listen", "none"), ("state-dir", "none"), (key, value)]);
        assert!(load(&given, &Environment::new()).is_ok(), "{key}");
    }
}

fn check_config(text: &str, expected: &Expect) {
    expected.assert_eq(&shown_config(text));
}

/// The settings of a configuration file and its warnings, or its error.
fn shown_config(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let shown: String = match config(dir.path(), text) {
        Err(error) => error,
        Ok(settings) => {
            let values = podmux::settings::settings().into_iter();
            let values = values.map(|setting| (value(&settings, &setting.flag), setting.field));
            let set = values.filter(|(value, _)| value != "-");
            let values = set.map(|(value, field)| format!("{field}: {value}\n"));
            let warnings = settings.warnings.iter().map(|warning| format!("warning: {warning}\n"));
            values.chain(warnings).collect()
        }
    };
    shown.replace(dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn a_config_file_has_all_settings_and_its_paths_are_relative_to_it() {
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
            maxPostedPods: 1000
            maxPostedBytes: 67108864
            anonymousAuth: false
            tokenFile: DIR/token
            tlsCertFile: DIR/tls.pem
            tlsPrivateKeyFile: /tls.key
            clientCaFile: DIR/clients.pem
            sink: jsonl+jsonl=DIR/updates.jsonl
            notify: Snapshot
            stateDir: DIR/state
            shutdownGrace: 3s
            logFormat: Json
            verbose: 1
        "#]],
    );
}

#[test]
fn a_config_file_may_be_json_without_a_kind() {
    check_config(
        r#"{"podManifestPath": "/m", "sink": "jsonl=/s"}"#,
        &expect![[r#"
            podManifestPath: /m
            fileCheckFrequency: 20s
            onInvalidManifest: Keep
            nodeName: node
            listen: SOCKET+127.0.0.1:10240
            maxPostedPods: 1000
            maxPostedBytes: 67108864
            anonymousAuth: false
            sink: jsonl=/s
            notify: Incremental
            stateDir: /state
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
        "#]],
    );
}

#[test]
fn a_path_that_begins_with_a_tilde_is_rejected() {
    let problem =
        "a path cannot begin with ~/ here, which only a shell replaces: write the home directory out";
    let home = [
        ("podManifestPath", "pod-manifest-path", "~/m"),
        ("stateDir", "state-dir", "~/s"),
        ("tokenFile", "token-file", "~/t"),
        ("listen", "listen", "unix:~/s"),
        ("sink", "sink", "jsonl=~/u"),
        ("sink", "sink", "exec=~/bin/run"),
        ("sink", "sink", "podman=~/s"),
        ("sink", "sink", "webhook=http://localhost,token-file=~/t"),
    ];
    for (field, flag, value) in home {
        let error = load(&flags(&[(flag, value)]), &Environment::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("--{flag}: {problem}"), "{value}");
        let error = shown_config(&format!("{field}: {value}\n"));
        assert_eq!(error, format!("DIR/config.yaml:1:1: {field}: {problem}"));
    }
}

#[test]
fn an_invalid_field_is_reported_with_line_and_column() {
    for (text, expected) in [
        (
            "podManifestPath: /m\nnodename: a\n",
            expect!["DIR/config.yaml:2:1: nodename: unknown field; it is spelled nodeName"],
        ),
        (
            "podManifestPath: /m\nmanifest: a\n",
            expect![
                "DIR/config.yaml:2:1: manifest: unknown field; the fields are podManifestPath, fileCheckFrequency, onInvalidManifest, manifestUrl, manifestUrlHeader, manifestUrlCaFile, manifestUrlClientCertFile, manifestUrlClientKeyFile, manifestUrlSha256, httpCheckFrequency, kubeconfig, podSecurity, nodeName, listen, maxPostedPods, maxPostedBytes, anonymousAuth, tokenFile, tlsCertFile, tlsPrivateKeyFile, clientCaFile, sink, sinkConcurrency, notify, stateDir, shutdownGrace, logFormat, verbose"
            ],
        ),
        (
            "staticPodPath: /m\n",
            expect![
                "DIR/config.yaml:1:1: staticPodPath: a field of a kubelet's configuration: add kind: KubeletConfiguration and apiVersion: kubelet.config.k8s.io/v1beta1, or use podManifestPath and manifestUrl"
            ],
        ),
        (
            "podManifestPath: /m\n  nodeName: a\n",
            expect![
                "DIR/config.yaml:2:11: mapping values are not allowed in this context: check the indentation, or put a text that contains ': ' in quotes"
            ],
        ),
        (
            "podManifestPath: /m\nnodeName: yes\n",
            expect!["DIR/config.yaml:2:1: nodeName: expected a string, found a boolean; put it in quotes"],
        ),
        (
            "podManifestPath: /m\nverbose: yes\n",
            expect!["DIR/config.yaml:2:1: verbose: expected a number, found a boolean"],
        ),
        (
            "podManifestPath: /m\nnodeName: [a]\n",
            expect!["DIR/config.yaml:2:1: nodeName: expected a string, found a list"],
        ),
        (
            "podManifestPath: /m\nsink: [1]\n",
            expect![
                "DIR/config.yaml:2:1: sink: expected a list of strings, found a number; put it in quotes"
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
            expect![
                "DIR/config.yaml:2:1: sink: exec=PROGRAM needs the path of a program, with a slash: exec=/usr/local/bin/NAME"
            ],
        ),
        (
            "podManifestPath: /m\npodManifestPath: /n\n",
            expect!["DIR/config.yaml:2:1: podManifestPath: given twice, first in line 1"],
        ),
        (
            "podManifestPath: /m\nsink: [{kind: jsonl, target: a},\n  {kind: jsonl,\n  target: b, target: c}]\n",
            expect!["DIR/config.yaml:4:14: target: given twice, first in line 4"],
        ),
        (
            "manifestUrl: http://a\nmanifestUrlHeader:\n  X-A: [a]\n  X-A: [b]\n",
            expect!["DIR/config.yaml:4:3: X-A: given twice, first in line 3"],
        ),
        (
            r#"{"sink": {"kind": "jsonl", "kind": "table"}}"#,
            expect!["DIR/config.yaml:1:28: kind: given twice, first in line 1"],
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
        ("", expect!["DIR/config.yaml: the file is empty: write {} into it for the defaults"]),
        (" \n\n", expect!["DIR/config.yaml: the file is empty: write {} into it for the defaults"]),
        (
            "podManifestPath: /m\n---\nnodeName: a\n",
            expect!["DIR/config.yaml:3:1: a second document: only one is allowed here"],
        ),
        (
            "podManifestPath: /m\nlisten: []\n",
            expect![
                "DIR/config.yaml:2:1: listen: an empty list: write none for no address, or remove the field for the default"
            ],
        ),
        (
            "podManifestPath: /m\nsink: {kind: table, color: [yes]}\n",
            expect![[r#"DIR/config.yaml:2:1: sink: "color": expected a string"#]],
        ),
        (
            "podManifestPath: /m\nsink: [{kind: table, colour: yes}]\n",
            expect![[
                r#"DIR/config.yaml:2:1: sink: unknown option "colour"; the options of table are color"#
            ]],
        ),
        (
            "listen: none\n",
            expect![[
                r#"no source of pods: give --pod-manifest-path PATH, --manifest-url URL or --kubeconfig FILE (or PODMUX_POD_MANIFEST_PATH, or podManifestPath in --config FILE), or leave --listen none out"#
            ]],
        ),
        (
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodURL: u\n",
            expect![[
                r#"DIR/config.yaml:3:1: staticPodURL: the URL does not begin with http:// or https://: write it like https://HOST:PORT/PATH"#
            ]],
        ),
        (
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodURLHeader: {a: b}\n",
            expect![[
                r#"DIR/config.yaml:3:1: staticPodURLHeader: expected a map of headers to lists of strings, found a string"#
            ]],
        ),
        (
            "manifestUrlHeader: 1\n",
            expect![[
                r#"DIR/config.yaml:1:1: manifestUrlHeader: expected a string or a list of strings, found a number; put it in quotes"#
            ]],
        ),
    ] {
        check_config(text, &expected);
    }
}

#[test]
fn a_config_file_of_comments_or_without_fields_has_the_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let defaults = config(dir.path(), "{}").unwrap();
    for text in ["# podManifestPath: /m\n", "---\n", "null\n"] {
        assert_eq!(config(dir.path(), text).as_ref(), Ok(&defaults), "{text:?}");
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
fn the_manifests_of_a_real_kubelet_configuration_are_used_with_one_warning_about_other_fields() {
    check_config(
        KUBEADM,
        &expect![[r#"
            podManifestPath: /etc/kubernetes/manifests
            fileCheckFrequency: 20s
            onInvalidManifest: Keep
            nodeName: node
            listen: SOCKET+127.0.0.1:10240
            maxPostedPods: 1000
            maxPostedBytes: 67108864
            anonymousAuth: false
            sink: jsonl
            notify: Incremental
            stateDir: /state
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
            warning: DIR/config.yaml: of a KubeletConfiguration staticPodPath, staticPodURL, staticPodURLHeader, fileCheckFrequency and httpCheckFrequency are used; the other 24 fields are ignored
        "#]],
    );
}

#[test]
fn a_zero_of_a_kubelet_configuration_is_the_default_in_any_unit() {
    for zero in ["0m", "0h0m0s", "0", "0.0s", "''"] {
        let config = KUBEADM.replace("Frequency: 0s", &format!("Frequency: {zero}"));
        assert_eq!(shown_config(&config), shown_config(KUBEADM), "{zero}");
    }
}

#[test]
fn what_a_kubelet_starts_with_in_its_configuration_is_no_error() {
    let text = "\
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
staticPodPath: other
staticPodPath: manifests
staticPodURLHeader: {X-Token: [a secret]}
httpCheckFrequency: 1ms
fileCheckFrequency: 48h
";
    check_config(
        text,
        &expect![[r#"
            podManifestPath: DIR/manifests
            fileCheckFrequency: 86400s
            onInvalidManifest: Keep
            nodeName: node
            listen: SOCKET+127.0.0.1:10240
            maxPostedPods: 1000
            maxPostedBytes: 67108864
            anonymousAuth: false
            sink: jsonl
            notify: Incremental
            stateDir: /state
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
            warning: DIR/config.yaml:4:1: staticPodPath: given twice, first in line 3; this one is used
            warning: DIR/config.yaml:6:1: httpCheckFrequency: 1ms is out of bounds: 100ms is used
            warning: DIR/config.yaml:7:1: fileCheckFrequency: 48h is out of bounds: 86400s is used
            warning: DIR/config.yaml:5:1: staticPodURLHeader: it has no effect without a URL: give --manifest-url URL
        "#]],
    );
}

#[test]
fn the_url_and_its_headers_of_a_kubelet_configuration_are_used() {
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
            listen: SOCKET+127.0.0.1:10240
            maxPostedPods: 1000
            maxPostedBytes: 67108864
            anonymousAuth: false
            sink: jsonl
            notify: Incremental
            stateDir: /state
            shutdownGrace: 10s
            logFormat: Text
            verbose: 0
        "#]],
    );
}

#[test]
fn an_unreadable_config_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.yaml");
    let missing = flags(&[("config", missing.to_str().unwrap())]);
    let error = load(&missing, &Environment::new()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let shown = format!("{error}: {cause}").replace(dir.path().to_str().unwrap(), "DIR");
    expect!["--config DIR/missing.yaml: cannot be read; does it exist, and may this process read it?: No such file or directory (os error 2)"]
        .assert_eq(&shown);
}

#[test]
fn a_reload_applies_changes_and_names_the_settings_that_need_a_restart() {
    let load = |given: &[(&str, &str)]| {
        super::settings::load(&flags(given), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let before = load(&[
        ("pod-manifest-path", "/a"),
        ("node-name", "a"),
        ("manifest-url", "http://a"),
        ("manifest-url-header", "X-A: a"),
        ("kubeconfig", "/a"),
        ("token-file", "/a"),
    ]);
    let fresh = load(&[
        ("pod-manifest-path", "/b"),
        ("manifest-url", "http://b"),
        ("manifest-url-header", "X-A: b"),
        ("manifest-url-ca-file", "/b"),
        ("manifest-url-client-cert-file", "/b"),
        ("manifest-url-client-key-file", "/b"),
        ("manifest-url-sha256", SUM),
        ("http-check-frequency", "1s"),
        ("kubeconfig", "/b"),
        ("listen", "none"),
        ("token-file", "/b"),
        ("tls-cert-file", "/b"),
        ("tls-private-key-file", "/b"),
        ("client-ca-file", "/b"),
        ("state-dir", "/b"),
        ("file-check-frequency", "1s"),
        ("on-invalid-manifest", "remove"),
        ("pod-security", "file=restricted"),
        ("node-name", "b"),
        ("sink", "jsonl=/s"),
        ("notify", "snapshot"),
        ("shutdown-grace", "1s"),
        ("log-format", "json"),
        ("verbose", "3"),
    ]);
    let (after, stuck) = before.reloaded(fresh.clone());
    let reloads = [
        "file-check-frequency",
        "on-invalid-manifest",
        "pod-security",
        "manifest-url-header",
        "manifest-url-ca-file",
        "manifest-url-client-cert-file",
        "manifest-url-client-key-file",
        "manifest-url-sha256",
        "http-check-frequency",
        "kubeconfig",
        "max-posted-pods",
        "max-posted-bytes",
        "token-file",
        "tls-cert-file",
        "tls-private-key-file",
        "client-ca-file",
        "shutdown-grace",
        "verbose",
    ];
    let keys = keys();
    let keys = || keys.iter().map(String::as_str);
    // The first cannot be given beside a token, the second needs a runtime.
    let others = ["anonymous-auth", "sink-concurrency"];
    let stays = |key: &&str| !reloads.contains(key) && !others.contains(key);
    assert_eq!(stuck, keys().filter(stays).collect::<Vec<_>>());
    for key in keys() {
        let from = if reloads.contains(&key) { &fresh } else { &before };
        assert_eq!(value(&after, key), value(from, key), "{key}");
    }
    let (same, stuck) = before.reloaded(before.clone());
    assert_eq!((same, stuck), (before, Vec::new()));
}

/// The port was accepted because of the token.
#[test]
fn a_reload_removes_no_protection() {
    let load = |given: &[(&str, &str)]| {
        super::settings::load(&flags(given), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let protections = [
        ("token-file", "/a"),
        ("tls-cert-file", "/a"),
        ("tls-private-key-file", "/a"),
        ("client-ca-file", "/a"),
    ];
    let mut given = vec![("listen", "0.0.0.0:1")];
    given.extend(protections);
    let (before, bare) = (load(&given), load(&[("listen", "127.0.0.1:1")]));
    let (after, stuck) = before.reloaded(bare.clone());
    assert_eq!(after, before);
    assert_eq!(stuck, ["listen", "token-file", "tls-cert-file", "client-ca-file"]);
    // Adding one is possible.
    let (after, stuck) = bare.reloaded(load(&protections));
    assert_eq!(
        (&after.server.token_file, &after.server.tls),
        (&before.server.token_file, &before.server.tls)
    );
    assert_eq!(stuck, ["listen"]);
}

#[test]
fn adding_or_removing_a_source_needs_a_restart() {
    let load = |given: &[(&str, &str)]| {
        super::settings::load(&flags(given), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let file = load(&[("pod-manifest-path", "/a")]);
    let url = load(&[("manifest-url", "http://a")]);
    for (before, fresh) in [(&file, &url), (&url, &file)] {
        let (after, stuck) = before.reloaded(fresh.clone());
        assert_eq!((&after, stuck), (before, vec!["pod-manifest-path", "manifest-url"]));
    }
    let api = load(&[("pod-manifest-path", "/a"), ("kubeconfig", "/a")]);
    for (before, fresh) in [(&file, &api), (&api, &file)] {
        let (after, stuck) = before.reloaded(fresh.clone());
        assert_eq!((&after, stuck), (before, vec!["kubeconfig"]));
    }
}

#[test]
fn another_order_of_addresses_and_sinks_is_no_change() {
    let load = |given: &[(&str, &str)]| {
        let given = [given, &[("token-file", "/t"), ("pod-manifest-path", "/a")]].concat();
        super::settings::load(&flags(&given), &environment(&[("STATE_DIRECTORY", "/state")])).unwrap()
    };
    let (unix, tcp) = (("listen", "unix:/a/s"), ("listen", "127.0.0.1:1"));
    let (out, file) = (("sink", "jsonl"), ("sink", "jsonl=/b"));
    let before = load(&[unix, tcp, out, file]);
    assert_eq!(before.reloaded(load(&[tcp, unix, file, out])), (before.clone(), Vec::new()));
    let other = load(&[tcp, unix, ("listen", "127.0.0.1:2"), file]);
    assert_eq!(before.reloaded(other), (before.clone(), vec!["listen", "sink"]));
}

#[test]
fn a_changed_runtime_needs_a_restart() {
    let load = |given: &[(&str, &str)]| {
        let environment = environment(&[("STATE_DIRECTORY", "/state"), RUNTIME_DIR]);
        super::settings::load(&flags(given), &environment).unwrap()
    };
    let given = [("sink", "jsonl"), ("sink", "exec=/a")];
    let before = load(&given);
    for (fresh, expected) in [
        (&[("sink", "jsonl"), ("sink", "exec=/b")][..], &["sink"][..]),
        (&[("sink", "jsonl"), ("sink", "exec=/a,timeout=1m")], &["sink"]),
        (&[("sink", "jsonl"), ("sink", "exec=/a"), ("sink-concurrency", "9")], &["sink-concurrency"]),
        (&[("sink", "exec=/b"), ("sink-concurrency", "9")], &["sink", "sink-concurrency"]),
        (&[("sink", "jsonl")], &["sink"]),
    ] {
        let (after, stuck) = before.reloaded(load(fresh));
        assert_eq!((&after, &*stuck), (&before, expected), "{fresh:?}");
    }
    let without = load(&[("sink", "jsonl")]);
    assert_eq!(without.reloaded(before.clone()), (without.clone(), vec!["sink"]));
}

/// The error of a combination of flags.
fn refusal(given: &[(&str, &str)]) -> String {
    let flags = flags(given).with("node-name", "node").with("state-dir", "none");
    match load(&flags, &Environment::new()) {
        Ok(_) => "accepted\n".to_owned(),
        Err(error) => format!("{error}\n"),
    }
}

#[test]
fn a_setting_that_needs_another_one_is_an_error_without_it() {
    let mut shown = String::new();
    for key in [
        "manifest-url-header",
        "manifest-url-ca-file",
        "manifest-url-client-cert-file",
        "manifest-url-client-key-file",
        "manifest-url-sha256",
        "http-check-frequency",
    ] {
        let value = match key {
            "manifest-url-header" => "X-Token: secret",
            "manifest-url-sha256" => SUM,
            "http-check-frequency" => "1s",
            _ => "/f",
        };
        shown += &refusal(&[(key, value)]);
        shown += &refusal(&[("manifest-url", "http://u"), (key, value)]);
    }
    for key in ["tls-cert-file", "tls-private-key-file", "client-ca-file", "token-file"] {
        shown += &refusal(&[(key, "/f")]);
    }
    expect![[r#"
        --manifest-url-header: it has no effect without a URL: give --manifest-url URL
        accepted
        --manifest-url-ca-file: it has no effect without a URL: give --manifest-url URL
        accepted
        --manifest-url-client-cert-file: a certificate and its key need each other: give --manifest-url-client-key-file FILE, too
        --manifest-url-client-cert-file: a certificate and its key need each other: give --manifest-url-client-key-file FILE, too
        --manifest-url-client-key-file: a certificate and its key need each other: give --manifest-url-client-cert-file FILE, too
        --manifest-url-client-key-file: a certificate and its key need each other: give --manifest-url-client-cert-file FILE, too
        --manifest-url-sha256: it has no effect without a URL: give --manifest-url URL
        accepted
        accepted
        accepted
        --tls-cert-file: a certificate and its key need each other: give --tls-private-key-file FILE, too
        --tls-private-key-file: a certificate and its key need each other: give --tls-cert-file FILE, too
        --client-ca-file: client certificates need TLS: give --tls-cert-file and --tls-private-key-file, too
        accepted
    "#]].assert_eq(&shown);
}

/// What is not given is made and kept in the state directory.
#[test]
fn without_a_state_directory_tcp_needs_a_certificate_and_a_token() {
    let mut shown = String::new();
    let (cert, key) = (("tls-cert-file", "/c"), ("tls-private-key-file", "/k"));
    let (token, ca, none) = (("token-file", "/t"), ("client-ca-file", "/ca"), ("state-dir", "none"));
    for more in [&[][..], &[token], &[cert, key], &[cert, key, token], &[cert, key, ca]] {
        shown += &refusal(&[&[("listen", "127.0.0.1:1")], more].concat());
    }
    shown += &refusal(&[("listen", "unix:/run/p.sock"), ("listen", "0.0.0.0:1")]);
    shown += &refusal(&[("listen", "unix:/run/p.sock")]);
    let kept = flags(&[("state-dir", "/s"), ("node-name", "node"), ("listen", "0.0.0.0:1")]);
    let server = load(&kept, &Environment::new()).unwrap().server;
    assert_eq!(server.generated.unwrap().directory, Path::new("/s/auth"));
    expect![[r#"
        --listen: 127.0.0.1:1: it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on unix:PATH
        --listen: 127.0.0.1:1: it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on unix:PATH
        --listen: 127.0.0.1:1: it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on unix:PATH
        accepted
        accepted
        --listen: 0.0.0.0:1: it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file; or listen on unix:PATH
        accepted
    "#]]
    .assert_eq(&shown);
    // By default there is no TCP then.
    let given = flags(&[none, ("node-name", "node"), ("pod-manifest-path", "/p")]);
    let settings = load(&given, &environment(&[("STATE_DIRECTORY", "/state")])).unwrap();
    assert!(settings.server.listen.iter().all(|address| matches!(address, Listen::Unix(_))));
}

#[test]
fn anonymous_auth_is_for_loopback_and_alone() {
    let mut shown = String::new();
    let anonymous = ("anonymous-auth", "true");
    for address in ["127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1", "unix:/run/p.sock"] {
        shown += &refusal(&[anonymous, ("listen", address)]);
    }
    for address in ["0.0.0.0:1", "[::]:1", "192.168.0.1:1", "[::ffff:10.0.0.1]:1"] {
        shown += &refusal(&[anonymous, ("listen", "127.0.0.1:1"), ("listen", address)]);
    }
    for flag in ["token-file", "client-ca-file"] {
        shown += &refusal(&[anonymous, (flag, "/f")]);
    }
    shown += &refusal(&[anonymous, ("tls-cert-file", "/c"), ("tls-private-key-file", "/k")]);
    shown += &refusal(&[("anonymous-auth", "maybe")]);
    expect![[r#"
        accepted
        accepted
        accepted
        accepted
        accepted
        --listen: 0.0.0.0:1: other machines can reach it, and --anonymous-auth is for loopback only: leave that out; or listen on unix:PATH
        --listen: [::]:1: other machines can reach it, and --anonymous-auth is for loopback only: leave that out; or listen on unix:PATH
        --listen: 192.168.0.1:1: other machines can reach it, and --anonymous-auth is for loopback only: leave that out; or listen on unix:PATH
        --listen: [::ffff:10.0.0.1]:1: other machines can reach it, and --anonymous-auth is for loopback only: leave that out; or listen on unix:PATH
        --token-file: it has no effect with --anonymous-auth: leave one of them out
        --client-ca-file: it has no effect with --anonymous-auth: leave one of them out
        --tls-cert-file: it has no effect with --anonymous-auth: leave one of them out
        --anonymous-auth: "maybe" is not one of true, false
    "#]]
    .assert_eq(&shown);
    let given = flags(&[anonymous, ("node-name", "node"), ("listen", "127.0.0.1:1")]);
    let settings = load(&given, &environment(&[("STATE_DIRECTORY", "/state")])).unwrap();
    assert_eq!((settings.server.anonymous, &settings.server.generated), (true, &None));
    let safe = flags(&[("node-name", "node"), ("listen", "127.0.0.1:1")]);
    let safe = load(&safe, &environment(&[("STATE_DIRECTORY", "/state")])).unwrap();
    let (after, stuck) = safe.reloaded(settings.clone());
    assert_eq!((after.server, stuck), (safe.server, vec!["anonymous-auth"]));
    expect![
        "anonymous-auth: every user of this machine may read and post pods over TCP, without credentials"
    ]
    .assert_eq(&settings.warnings.join("\n"));
}

/// Each is an error at the start: it could never work.
#[test]
fn what_does_not_fit_a_runtime_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut shown = String::new();
    for (given, state) in [
        (&[("sink", "exec=/p")][..], "none"),
        (&[("sink", "exec=/p"), ("notify", "snapshot")], "/state"),
        (&[("sink", "exec=/p"), ("notify", "incremental")], "/state"),
        (&[("sink", "exec=/p"), ("sink", "jsonl"), ("notify", "snapshot")], "/state"),
        (&[("sink", "exec=/p"), ("sink", "exec=/p")], "/state"),
        (&[("sink", "exec=/p"), ("sink", "exec=/p,timeout=1m")], "/state"),
        (&[("sink", "exec=/p"), ("sink", "jsonl"), ("sink", "exec=/q")], "/state"),
        (&[("sink", "jsonl"), ("sink-concurrency", "4")], "/state"),
        (&[("sink", "exec=/p"), ("sink-concurrency", "4")], "/state"),
    ] {
        let flags = flags(given).with("node-name", "node").with("state-dir", state);
        shown += &match load(&flags, &environment(&[RUNTIME_DIR])) {
            Ok(settings) => ["accepted: ", &value(&settings, "sink"), "\n"].concat(),
            Err(error) => error.to_string() + "\n",
        };
    }
    for text in
        ["sink: exec=/p\nstateDir: none\n", "sink: jsonl\nsinkConcurrency: 2\n", "sink: [{kind: exec}]\n"]
    {
        shown += &config(dir.path(), text).map_or_else(|error| error + "\n", |_| "accepted\n".to_owned());
    }
    expect![[r#"
        --state-dir: exec=/p needs a state directory, which holds what it has started
        --notify: exec=/p is a runtime and gets no stream: leave this out, or add a sink
        --notify: exec=/p is a runtime and gets no stream: leave this out, or add a sink
        accepted: jsonl+exec=/p
        --sink: exec=/p is given twice
        --sink: exec=/p is given twice
        --sink: one agent has one runtime, and this is exec=/p and exec=/q
        --sink-concurrency: it has no effect without a runtime: give --sink podman or --sink exec=PROGRAM
        accepted: exec=/p
        DIR/config.yaml:2:1: stateDir: exec=/p needs a state directory, which holds what it has started
        DIR/config.yaml:2:1: sinkConcurrency: it has no effect without a runtime: give --sink podman or --sink exec=PROGRAM
        DIR/config.yaml:1:1: sink: exec=PROGRAM needs the path of a program, with a slash: exec=/usr/local/bin/NAME
    "#]].assert_eq(&shown);
}

#[test]
fn a_program_is_relative_to_the_config_file_and_else_to_the_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bin/pods").display().to_string();
    for text in
        ["sink: exec=bin/pods,timeout=90s\n", "sink: [{kind: exec, target: bin/pods, timeout: 90s}]\n"]
    {
        let settings = config(dir.path(), text).unwrap();
        let expected = registry::Config::parse(&format!("exec={program},timeout=90s")).unwrap();
        let runtime = settings.runtime.unwrap();
        assert_eq!((&runtime.kind, settings.sinks.len(), runtime.concurrency), (&expected, 0, 4), "{text}");
    }
    let given = flags(&[("sink", "exec=bin/pods"), ("state-dir", "/state")]);
    let runtime = load(&given, &environment(&[RUNTIME_DIR])).unwrap().runtime.unwrap();
    // The program is called in another directory than that of the agent.
    let expected = format!("exec={}", std::env::current_dir().unwrap().join("bin/pods").display());
    assert_eq!((runtime.kind.to_string(), runtime.directory), (expected, "/run/needed".into()));
}

#[test]
fn a_variable_may_have_sinks_and_a_runtime() {
    let variables = [
        ("PODMUX_SINK", "jsonl, exec=/p,timeout=5m,webhook=http://localhost/,max-bytes=1Mi"),
        ("PODMUX_STATE_DIR", "/state"),
        RUNTIME_DIR,
    ];
    let settings = load(&CommandLine::default(), &environment(&variables)).unwrap();
    assert_eq!(value(&settings, "sink"), "jsonl+webhook=http://localhost/+exec=/p");
    let expected = registry::Config::parse("exec=/p,timeout=5m").unwrap();
    assert_eq!(settings.runtime.unwrap().kind, expected);
}

#[test]
fn the_runtime_directory_is_systemds_roots_or_the_users() {
    let directory = |root: bool, variables: &[(&str, &str)]| {
        runtime_dir(&environment(variables), root)
            .map_or_else(|| "-".to_owned(), |path| path.display().to_string())
    };
    let given = ("RUNTIME_DIRECTORY", "/run/a:/run/b");
    let user = ("XDG_RUNTIME_DIR", "/run/user/1");
    assert_eq!(directory(true, &[given, user]), "/run/a");
    assert_eq!(directory(false, &[given, user]), "/run/a");
    assert_eq!(directory(true, &[user]), "/run/podmux-agent");
    assert_eq!(directory(false, &[user]), "/run/user/1/podmux-agent");
    assert_eq!(directory(false, &[]), "-");
    for relative in [("RUNTIME_DIRECTORY", "a"), ("RUNTIME_DIRECTORY", ""), ("XDG_RUNTIME_DIR", "a")] {
        assert_eq!(directory(false, &[relative]), "-", "{relative:?}");
    }
}

#[test]
fn the_default_socket_is_that_of_root_the_user_or_the_service() {
    let socket = |root: bool, variables: &[(&str, &str)]| {
        default_socket(&environment(variables), root)
            .map_or_else(|| "-".to_owned(), |path| path.display().to_string())
    };
    let (runtime, state) = (("XDG_RUNTIME_DIR", "/run/user/1"), ("STATE_DIRECTORY", "/var/lib/podmux"));
    assert_eq!(socket(true, &[runtime]), "/run/podmux/podmux.sock");
    assert_eq!(socket(false, &[runtime, state]), "/run/user/1/podmux/podmux.sock");
    assert_eq!(socket(false, &[state]), "/run/podmux/podmux.sock");
    assert_eq!(socket(false, &[("XDG_RUNTIME_DIR", "run")]), "-");
}

#[test]
fn secrets_of_the_url_are_never_printed() {
    let given = flags(&[
        ("manifest-url", "https://user:secret@example.org:8443/pods?token=secret"),
        ("manifest-url-header", "Authorization: Bearer secret"),
        ("state-dir", "none"),
    ]);
    let settings = load(&given, &Environment::new()).unwrap();
    let url = settings.url.as_ref().unwrap();
    assert!(format!("{url:?}").contains("https://example.org:8443/pods"), "{url:?}");
    assert_eq!(url.headers["authorization"], "Bearer secret");
    for printed in [format!("{settings:?}"), format!("{given:?}")] {
        assert!(!printed.contains("secret"), "{printed}");
    }
}

#[test]
fn the_default_state_directory_is_systemds_or_the_users() {
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
    // The XDG specification ignores relative paths.
    assert_eq!(dir(false, &[home, ("XDG_STATE_HOME", "s")]), "/home/a/.local/state/podmux");
    assert_eq!(dir(false, &[]), "-");
}

#[test]
fn without_a_default_state_directory_the_error_names_the_flag() {
    expect![
        "no state directory: HOME is not set; give --state-dir DIR, or --state-dir none to store nothing"
    ]
    .assert_eq(&SettingsError::NoStateDir.to_string());
}

#[test]
fn in_cluster_is_the_service_account_of_a_pod_and_a_path_with_a_slash_is_a_path() {
    let shown = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    let load = |given: &str, variables: &[(&str, &str)]| {
        let settings = super::settings::load(
            &flags(&[("node-name", "node"), ("state-dir", "none"), ("kubeconfig", given)]),
            &environment(variables),
        );
        settings.map(|settings| settings.api.unwrap().kubeconfig).map_err(|error| error.to_string())
    };
    let pods = Kubeconfig::InCluster(InCluster::new("10.0.0.1".to_owned(), 443));
    assert_eq!(load("in-cluster", &shown), Ok(pods.clone()));
    assert_eq!(load("./in-cluster", &shown), Ok(Kubeconfig::File("./in-cluster".into())));
    let expected = "--kubeconfig: in-cluster needs KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets in a pod; elsewhere give the path of a kubeconfig (a file of that name is ./in-cluster)";
    for given in [&shown[..1], &shown[1..], &[]] {
        assert_eq!(load("in-cluster", given), Err(expected.to_owned()));
    }
    let bad = [shown[0], ("KUBERNETES_SERVICE_PORT", "tcp://10.0.0.1:443")];
    assert_eq!(
        load("in-cluster", &bad),
        Err("--kubeconfig: KUBERNETES_SERVICE_PORT is not a port".to_owned())
    );
    // In a config file other values are paths relative to the file.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    for (given, expected) in
        [("in-cluster", pods), ("node.conf", Kubeconfig::File(dir.path().join("node.conf")))]
    {
        fs::write(&path, format!("kubeconfig: {given}\nnodeName: node\nstateDir: none\n")).unwrap();
        let flags = flags(&[("config", path.to_str().unwrap())]);
        let settings = super::settings::load(&flags, &environment(&shown)).unwrap();
        assert_eq!(settings.api.unwrap().kubeconfig, expected);
    }
}

#[test]
fn proxies_are_read_from_the_environment_as_in_go_and_are_not_printed() {
    let load = |variables: &[(&str, &str)]| {
        let flags = flags(&[("node-name", "node"), ("state-dir", "none"), ("kubeconfig", "/k")]);
        super::settings::load(&flags, &environment(variables)).unwrap()
    };
    assert_eq!(load(&[]).api.unwrap().proxies, Proxies::default());
    let variables = [
        ("HTTPS_PROXY", "http://user:secret@proxy"),
        ("https_proxy", "http://other"),
        ("HTTP_PROXY", ""),
        ("http_proxy", "http://user:secret@plain"),
        ("no_proxy", "10.0.0.0/8"),
    ];
    let settings = load(&variables);
    let expected = Proxies {
        https: "http://user:secret@proxy".to_owned(),
        http: "http://user:secret@plain".to_owned(),
        no: "10.0.0.0/8".to_owned(),
    };
    assert_eq!(settings.api.as_ref().unwrap().proxies, expected);
    let printed = format!("{settings:?}");
    assert!(printed.contains("10.0.0.0/8") && !printed.contains("secret"), "{printed}");
}
