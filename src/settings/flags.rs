//! The flags of `podmux run`: their one definition.
//!
//! Everything else about a setting follows from its [`clap::Arg`]: the environment variable, the
//! field of a config file, the help text, man page, completions and the table in the documentation.
//! The syntax of its value is its value name: a value that ends with `PATH`, `FILE` or `DIR` is a
//! path, `NAME: VALUE` may be a map in a config file, a `DURATION` may be a number there.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, Args as _, ValueHint};
use http::{HeaderName, HeaderValue, Uri};

use super::values::{
    self, concurrency, frequency, grace, header, listen, number, path, pod_security, sha256, url, word,
};
use crate::{
    camel_case::camel_case,
    mux::Notify,
    pod::{NodeName, SecurityLevel, SourceName, quantity::bytes},
    registry,
    server::Listen,
    source::file::OnInvalid,
    telemetry,
};

/// The settings of `podmux run`. `value_delimiter` separates several values in an environment variable
/// only.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// File or directory of pod manifests; it is watched
    #[arg(long, value_name = "PATH", value_parser = path, value_hint = ValueHint::AnyPath, help_heading = "Sources")]
    pub(super) pod_manifest_path: Option<PathBuf>,

    /// Time between two complete scans of the manifests, in addition to watching
    #[arg(long, value_name = "DURATION", value_parser = frequency, default_value = "20s", help_heading = "Sources")]
    pub(super) file_check_frequency: Duration,

    /// What happens to the pods of a file whose manifest becomes invalid: keep the last valid ones, or remove them
    #[arg(long, value_name = "POLICY", value_parser = word(&values::ON_INVALID), default_value = "keep", help_heading = "Sources")]
    pub(super) on_invalid_manifest: OnInvalid,

    /// URL of pod manifests; it is polled
    #[arg(long, value_name = "URL", value_parser = url, value_hint = ValueHint::Url, help_heading = "Sources")]
    pub(super) manifest_url: Option<Uri>,

    /// A header for each request of the URL; may be repeated. Other users of this machine can read flags:
    /// put a secret in --config FILE
    #[arg(long, value_name = "NAME: VALUE", value_parser = header, value_delimiter = '\n', help_heading = "Sources")]
    pub(super) manifest_url_header: Vec<(HeaderName, HeaderValue)>,

    /// The certificate authorities (PEM) that verify the URL's server, instead of the system's
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Sources")]
    pub(super) manifest_url_ca_file: Option<PathBuf>,

    /// The client certificate (PEM) for the URL's server
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Sources")]
    pub(super) manifest_url_client_cert_file: Option<PathBuf>,

    /// The private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Sources")]
    pub(super) manifest_url_client_key_file: Option<PathBuf>,

    /// Reject content of the URL whose SHA-256 differs from this
    #[arg(long, value_name = "HEX", value_parser = sha256, help_heading = "Sources")]
    pub(super) manifest_url_sha256: Option<String>,

    /// Time between two polls of the URL
    #[arg(long, value_name = "DURATION", value_parser = frequency, default_value = "20s", help_heading = "Sources")]
    pub(super) http_check_frequency: Duration,

    /// The kubeconfig of the API server whose pods for this node are read, or in-cluster for the service
    /// account of a pod
    #[arg(long, value_name = "FILE|in-cluster", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Sources")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// The level of the Pod Security Standards (privileged, baseline or restricted) that the pods of a source
    /// (file, http, url or api) may not exceed; may be repeated [default: privileged]
    #[arg(long, value_name = "SOURCE=LEVEL", value_parser = pod_security, value_delimiter = ',', help_heading = "Sources")]
    pub(super) pod_security: Vec<(SourceName, SecurityLevel)>,

    /// The name of this node, a part of every static pod's name [default: the host name]
    #[arg(long, value_name = "NAME", value_parser = NodeName::new, visible_alias = "hostname-override", help_heading = "Sources")]
    pub(super) node_name: Option<NodeName>,

    /// Its help is no doc comment, because rustdoc would take the default for a link.
    #[arg(
        long,
        value_name = "HOST:PORT|unix:PATH|none",
        value_parser = listen,
        value_delimiter = ',',
        help = "Address of the HTTP server, or none; may be repeated. Sockets from systemd are served in addition. \
                TCP is served over TLS, to clients with a token or a certificate [default: \
                unix:/run/podmux/podmux.sock for root, else unix:$XDG_RUNTIME_DIR/podmux/podmux.sock; and \
                127.0.0.1:10240]",
        help_heading = "Server"
    )]
    pub(super) listen: Vec<Option<Listen>>,

    /// The most posted pods; replacing and deleting them is always allowed
    #[arg(long, value_name = "NUMBER", value_parser = number, default_value = "1000", help_heading = "Server")]
    pub(super) max_posted_pods: u64,

    /// The most bytes of posted pods, as JSON
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "64Mi", help_heading = "Server")]
    pub(super) max_posted_bytes: u64,

    /// Serve TCP as plain HTTP to all users of this machine, without TLS and credentials, on loopback only;
    /// for test rigs
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", help_heading = "Server")]
    pub(super) anonymous_auth: bool,

    /// The file with the token that TCP clients must send [default: auth/token in the state directory, made
    /// at the first start]
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Server")]
    pub(super) token_file: Option<PathBuf>,

    /// The server's certificate (PEM, with its chain) [default: auth/server.crt in the state directory, made
    /// at the first start and renewed]
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Server")]
    pub(super) tls_cert_file: Option<PathBuf>,

    /// The private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Server")]
    pub(super) tls_private_key_file: Option<PathBuf>,

    /// The certificate authorities (PEM) that sign client certificates
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Server")]
    pub(super) client_ca_file: Option<PathBuf>,

    /// Where updates go: jsonl writes JSON lines to standard output or a file, webhook POSTs them to a URL;
    /// or what runs the pods: exec runs a program for each pod, podman runs pods with podman. On a terminal the
    /// default is table, a row for each update. May be repeated
    #[arg(long, value_name = registry::Config::syntax(), value_parser = registry::Config::parse, value_delimiter = ',', default_value = "jsonl", help_heading = "Sinks")]
    pub(super) sink: Vec<registry::Config>,

    /// How many pods a runtime works on at once; podman stops eight times as many that are no longer wanted
    #[arg(long, value_name = "NUMBER", value_parser = concurrency, default_value = "4", help_heading = "Sinks")]
    pub(super) sink_concurrency: u16,

    /// What sinks receive: each change (incremental), all pods at each change (snapshot), or all pods when
    /// pods are added or removed and each change otherwise (snapshot-and-updates)
    #[arg(long, value_name = "MODE", value_parser = word(&values::NOTIFY), default_value = "incremental", help_heading = "Sinks")]
    pub(super) notify: Notify,

    /// Directory for posted pods and last-known-good manifests; none stores nothing [default:
    /// /var/lib/podmux for root, else the user's state directory]
    #[arg(long, value_name = "DIR|none", value_parser = path, value_hint = ValueHint::DirPath, help_heading = "Process")]
    pub(super) state_dir: Option<PathBuf>,

    /// Time limit for shutting down
    #[arg(long, value_name = "DURATION", value_parser = grace, default_value = "10s", help_heading = "Process")]
    pub(super) shutdown_grace: Duration,

    /// Format of the log on standard error
    #[arg(long, value_name = "FORMAT", value_parser = word(&values::LOG_FORMAT), default_value = "text", help_heading = "Process")]
    pub(super) log_format: telemetry::Format,

    /// Log more: -v debug events, -vv traces, -vvv also those of the libraries
    #[arg(short, long, value_name = "LEVEL", action = ArgAction::Count, help_heading = "Process")]
    pub(super) verbose: u8,

    /// Settings in YAML or JSON: podmux's own format, or a KubeletConfiguration
    #[arg(long, value_name = "FILE", value_parser = path, value_hint = ValueHint::FilePath, help_heading = "Process")]
    pub(super) config: Option<PathBuf>,
}

/// The id of the flag that names the config file, which has no field there.
pub(super) const CONFIG: &str = "config";

/// The definitions of all flags, for parsing values of any layer as `--FLAG=VALUE`.
pub(super) fn command() -> clap::Command {
    let command = clap::Command::new("podmux").no_binary_name(true).disable_help_flag(true);
    let command = Flags::augment_args(command);
    // `-vv` on the command line is `2` everywhere else.
    command.mut_arg("verbose", |arg| {
        arg.action(ArgAction::Set).value_parser(values::verbosity).default_value("0")
    })
}

/// A setting, as its flag defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The flag without its dashes: `file-check-frequency`.
    pub flag: String,
    /// The environment variable: `PODMUX_FILE_CHECK_FREQUENCY`.
    pub variable: String,
    /// The field of a config file: `fileCheckFrequency`.
    pub field: String,
    /// The syntax of its value: `DURATION`.
    pub value: String,
    /// The default as it would be written, if it is a constant.
    pub default: Option<String>,
    /// The default for people: the constant, or how it is found.
    pub default_text: Option<String>,
    /// What separates several values in the environment variable, if there may be several.
    pub separator: Option<char>,
    /// The help text.
    pub help: String,
}

impl Setting {
    /// Whether it is a sink, whose options follow its target or are fields of an object.
    pub(super) fn has_options(&self) -> bool {
        self.value == registry::Config::syntax()
    }

    pub(super) fn of(arg: &clap::Arg) -> Self {
        let flag = arg.get_long().unwrap_or_default().to_owned();
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (help, found) = match help.split_once(" [default: ") {
            Some((help, found)) => (help.to_owned(), Some(found.trim_end_matches(']').to_owned())),
            None => (help, None),
        };
        Self {
            variable: format!("PODMUX_{}", flag.replace('-', "_").to_uppercase()),
            field: camel_case(&flag),
            value: arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string).unwrap_or_default(),
            default_text: found.or_else(|| default.clone()),
            default,
            separator: arg.get_value_delimiter(),
            help,
            flag,
        }
    }
}

/// All settings in the order of the help, without `--config`.
pub fn settings() -> Vec<Setting> {
    let command = command();
    command.get_arguments().filter(|arg| arg.get_id() != CONFIG).map(Setting::of).collect()
}

/// Adds the default and the environment variable to the help of a flag that is a setting, and takes its
/// delimiter away, which is for the variable.
pub(crate) fn explain(arg: clap::Arg) -> clap::Arg {
    let Setting { flag, variable, default_text, help, .. } = Setting::of(&arg);
    if command().get_arguments().all(|setting| setting.get_long() != Some(&flag)) {
        return arg;
    }
    let default = default_text.map(|default| format!("[default: {default}] ")).unwrap_or_default();
    let has_default = !arg.get_default_values().is_empty();
    let arg = if has_default { arg.hide_default_value(true) } else { arg };
    undelimited(arg).help(format!("{help}\n{default}[env: {variable}]"))
}

/// A flag holds one value: a path may contain a comma.
pub(super) fn undelimited(arg: clap::Arg) -> clap::Arg {
    if arg.get_value_delimiter().is_some() { arg.value_delimiter(None) } else { arg }
}
