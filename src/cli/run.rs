//! `podmux run`: the agent, from its flags.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use clap::{ArgAction, ValueHint};

use super::failure::{Failure, one_line};
use crate::{
    agent::{self, AgentError},
    settings::{Environment, Flags, Key, PassedSocket, Settings},
    systemd::{Manager, State},
    telemetry::{self, Log},
};

/// Run the agent: read manifests, tell every change in order
#[derive(Debug, clap::Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// File or directory of pod manifests; it is watched
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, help_heading = "Sources")]
    pod_manifest_path: Option<String>,

    /// How often all manifests are read again, whatever the watch says
    #[arg(long, value_name = "DURATION", help_heading = "Sources")]
    file_check_frequency: Option<String>,

    /// What becomes of a manifest's pods when it turns bad: keep the last good ones, or remove them
    #[arg(long, value_name = "keep|remove", help_heading = "Sources")]
    on_invalid_manifest: Option<String>,

    /// URL of pod manifests; it is polled
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url, help_heading = "Sources")]
    manifest_url: Option<String>,

    /// A header for each request of the URL; may be repeated. Others can see flags: a secret is better kept
    /// in --config FILE
    #[arg(long, value_name = "NAME: VALUE", help_heading = "Sources")]
    manifest_url_header: Vec<String>,

    /// The certificate authorities (PEM) that the URL's server is checked with, instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Sources")]
    manifest_url_ca_file: Option<String>,

    /// The certificate (PEM) that is shown to the URL's server
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Sources")]
    manifest_url_client_cert_file: Option<String>,

    /// The key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Sources")]
    manifest_url_client_key_file: Option<String>,

    /// The SHA-256 that what the URL gives must have
    #[arg(long, value_name = "HEX", help_heading = "Sources")]
    manifest_url_sha256: Option<String>,

    /// How often the URL is polled
    #[arg(long, value_name = "DURATION", help_heading = "Sources")]
    http_check_frequency: Option<String>,

    /// The kubeconfig with which the API server is asked for the pods that are bound to this node, or in-cluster, for what a pod of the cluster finds in its place
    #[arg(long, value_name = "FILE|in-cluster", value_hint = ValueHint::FilePath, help_heading = "Sources")]
    kubeconfig: Option<String>,

    /// This node's name, a part of every static pod's name
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override", help_heading = "Sources")]
    node_name: Option<String>,

    /// Where pods are posted and looked at over HTTP: HOST:PORT, unix:PATH or none; may be repeated.
    /// Sockets that systemd passes are served in any case. Beyond loopback it needs TLS, and a token
    /// or client certificates
    #[arg(long, value_name = "ADDRESS", help_heading = "Server")]
    listen: Vec<String>,

    /// The file with the token that clients over TCP must bear
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    token_file: Option<String>,

    /// The server's certificate (PEM, with its chain); it turns TLS on
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    tls_cert_file: Option<String>,

    /// The key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    tls_private_key_file: Option<String>,

    /// The certificate authorities (PEM) that sign clients' certificates
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    client_ca_file: Option<String>,

    /// Where updates go: jsonl (standard output) or jsonl=PATH; may be repeated
    #[arg(long, value_name = "SINK", help_heading = "Sinks")]
    sink: Vec<String>,

    /// How sinks are told: incremental (each change), snapshot (everything on any change) or
    /// snapshot-and-updates (everything when pods come or go, else the change)
    #[arg(long, value_name = "MODE", help_heading = "Sinks")]
    notify: Option<String>,

    /// Where posted pods and the last good manifests are kept; none keeps nothing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Process")]
    state_dir: Option<String>,

    /// How long stopping may take
    #[arg(long, value_name = "DURATION", help_heading = "Process")]
    shutdown_grace: Option<String>,

    /// The form of the log on standard error: text or json
    #[arg(long, value_name = "text|json", help_heading = "Process")]
    log_format: Option<String>,

    /// Log more; -vv and -vvv more still
    #[arg(short, long, action = ArgAction::Count, help_heading = "Process")]
    verbose: u8,

    /// Settings in YAML or JSON: podmux's own, or a KubeletConfiguration
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Process")]
    config: Option<PathBuf>,

    /// Start nothing: read the settings and the files that they name, say what is wrong with them, and
    /// end with 0 if a start or a reload would take them, else with 2. Addresses, sockets that systemd
    /// passes and the state directory are not tried
    #[arg(long, help_heading = "Process")]
    check: bool,
}

const ABOUT: &str = "\
Run the agent: read manifests, tell every change in order

Every flag can also be given in the environment (--sink is PODMUX_SINK, a comma between several; \
PODMUX_MANIFEST_URL_HEADER has a line for each header) \
and as a field of --config FILE (--file-check-frequency is fileCheckFrequency). A flag has \
precedence over the environment, the environment over the file.

SIGTERM and SIGINT stop it. SIGHUP reads settings, certificates, tokens and manifests anew; --check \
says beforehand whether they can be used.";

const EXAMPLES: &str = "\
Examples:
  Follow a directory, one JSON object a line on standard output:
    podmux run --pod-manifest-path /etc/kubernetes/manifests

  Use the kubelet's own configuration, and append to a file:
    podmux run --config /var/lib/kubelet/config.yaml --sink jsonl=/var/log/podmux.jsonl

  The same settings in a file of podmux's own:
    kind: PodmuxConfiguration
    podManifestPath: /etc/kubernetes/manifests
    sink: [jsonl=/var/log/podmux.jsonl]

Durations are written as in Go: 500ms, 20s, 1m30s, 1h.";

impl Args {
    /// What was said, flag by flag.
    fn flags(self) -> Flags {
        let Self {
            pod_manifest_path,
            file_check_frequency,
            on_invalid_manifest,
            manifest_url,
            manifest_url_header,
            manifest_url_ca_file,
            manifest_url_client_cert_file,
            manifest_url_client_key_file,
            manifest_url_sha256,
            kubeconfig,
            http_check_frequency,
            node_name,
            listen,
            token_file,
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
            state_dir,
            sink,
            notify,
            shutdown_grace,
            log_format,
            verbose,
            config,
            check,
        } = self;
        let verbose = (verbose > 0).then(|| verbose.to_string());
        let said = [
            (Key::PodManifestPath, Vec::from_iter(pod_manifest_path)),
            (Key::FileCheckFrequency, Vec::from_iter(file_check_frequency)),
            (Key::OnInvalidManifest, Vec::from_iter(on_invalid_manifest)),
            (Key::ManifestUrl, Vec::from_iter(manifest_url)),
            (Key::ManifestUrlHeader, manifest_url_header),
            (Key::ManifestUrlCaFile, Vec::from_iter(manifest_url_ca_file)),
            (Key::ManifestUrlClientCertFile, Vec::from_iter(manifest_url_client_cert_file)),
            (Key::ManifestUrlClientKeyFile, Vec::from_iter(manifest_url_client_key_file)),
            (Key::ManifestUrlSha256, Vec::from_iter(manifest_url_sha256)),
            (Key::Kubeconfig, Vec::from_iter(kubeconfig)),
            (Key::HttpCheckFrequency, Vec::from_iter(http_check_frequency)),
            (Key::NodeName, Vec::from_iter(node_name)),
            (Key::Listen, listen),
            (Key::TokenFile, Vec::from_iter(token_file)),
            (Key::TlsCertFile, Vec::from_iter(tls_cert_file)),
            (Key::TlsPrivateKeyFile, Vec::from_iter(tls_private_key_file)),
            (Key::ClientCaFile, Vec::from_iter(client_ca_file)),
            (Key::StateDir, Vec::from_iter(state_dir)),
            (Key::Sink, sink),
            (Key::Notify, Vec::from_iter(notify)),
            (Key::ShutdownGrace, Vec::from_iter(shutdown_grace)),
            (Key::LogFormat, Vec::from_iter(log_format)),
            (Key::Verbose, Vec::from_iter(verbose)),
        ];
        let said: BTreeMap<_, _> = said.into_iter().filter(|(_, values)| !values.is_empty()).collect();
        // Sockets are passed to the agent, not to whoever checks what it would do.
        Flags { config, said, passed: Vec::new(), may_be_passed: check }
    }
}

pub(super) fn run(args: Args, environment: &Environment) -> Result<u8, Failure> {
    if args.check {
        return check(&args.flags(), environment);
    }
    let manager = Manager::from_environment(environment);
    match serve(args.flags(), environment, &manager) {
        Ok(()) => {
            // STOPPING again: an end that is short enough may have come before it was told.
            manager.notify_last(&[State::Stopping, State::Status("stopped".to_owned())]);
            Ok(0)
        }
        Err(Stopped::Early(failure)) => {
            tell_failure(&manager, &failure);
            Err(failure)
        }
        Err(Stopped::Late(error)) => {
            tell_failure(&manager, &Failure::Failed(error));
            Ok(1)
        }
    }
}

/// Says everything that would stand in the way of a start or a reload.
fn check(flags: &Flags, environment: &Environment) -> Result<u8, Failure> {
    let settings = Settings::load(flags, environment).map_err(|error| Failure::Refused(error.into()))?;
    for warning in &settings.warnings {
        telemetry::print(tracing::Level::WARN, warning, environment);
    }
    let problems = agent::check(&settings);
    for problem in &problems {
        telemetry::print(tracing::Level::ERROR, &one_line(problem), environment);
    }
    Ok(if problems.is_empty() { 0 } else { 2 })
}

/// Why the agent ended other than as it was asked to.
enum Stopped {
    /// Before it had a log, or before it had begun.
    Early(Failure),
    /// While it ran; the log has said why.
    Late(anyhow::Error),
}

fn serve(flags: Flags, environment: &Environment, manager: &Manager) -> Result<(), Stopped> {
    let refused = |error: anyhow::Error| Stopped::Early(Failure::Refused(error));
    // Before the log has its thread: this changes the environment.
    let sockets = PassedSocket::take(environment).map_err(|error| refused(error.into()))?;
    let passed = sockets.iter().map(|socket| socket.passed.clone()).collect();
    let flags = Flags { passed, ..flags };
    let settings = Settings::load(&flags, environment).map_err(|error| refused(error.into()))?;
    let log = Log::start(&settings.log, environment)
        .map_err(|error| Stopped::Early(Failure::Failed(error.into())))?;
    let environment = environment.clone();
    let reload = move || Settings::load(&flags, &environment).map_err(anyhow::Error::from);
    agent::run(&settings, sockets, Arc::new(reload), &log, manager).map_err(|error| match error {
        AgentError::Refused(error) => refused(error),
        AgentError::TooEarly(error) => Stopped::Early(Failure::Failed(error)),
        AgentError::Failed(error) => {
            // What runs has a log, and the log has the last word in its own form. It ends here.
            tracing::error!("{error:#}");
            Stopped::Late(error)
        }
    })
}

/// Tells the service manager the line that the person at a terminal would read.
pub(super) fn tell_failure(manager: &Manager, failure: &Failure) {
    let mut message = vec![State::Status(failure.to_string())];
    message.extend(failure.errno().map(State::Errno));
    manager.notify_last(&message);
}
