//! The settings of the agent: the only module that reads flags, environment and config file.
//!
//! The first layer that sets a value wins: flag, environment (`PODMUX_…`), `--config FILE`, default.
//! All layers are text; the same parser of `flags` reads a value from each of them.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

pub use self::{
    combine::{Runtime, SYSTEM_SOCKET, default_socket, runtime_dir, user_socket},
    error::SettingsError,
    flags::{Setting, settings},
    layers::{CommandLine, Environment, SERVER_VARIABLE},
};
use self::{
    combine::{absolute, api_config, consumers, distinct, level, server_config, url_config},
    file::ConfigFile,
    layers::Layers,
};
pub(crate) use self::{
    flags::{Flags, explain},
    layers::InvalidValue,
    values::security_level,
};
use crate::{
    host::Disk,
    mux::Notify,
    pod::{NodeName, SourceName},
    registry, server, source, telemetry,
};

mod combine;
mod error;
mod file;
mod flags;
mod layers;
mod values;

/// The validated settings of a run of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file source, if it is configured.
    pub file: Option<source::file::Config>,
    /// The url source, if it is configured.
    pub url: Option<source::url::Config>,
    /// The api source, if it is configured.
    pub api: Option<source::api::Config>,
    /// The quota of the http source.
    pub http: source::http::Config,
    /// The server.
    pub server: server::Config,
    /// The state directory; without one nothing is stored.
    pub state_dir: Option<PathBuf>,
    /// The name of this node.
    pub node_name: NodeName,
    /// The sinks, none twice. There is one at least, or a runtime.
    pub sinks: Vec<registry::Config>,
    /// The runtime, if pods run here.
    pub runtime: Option<Runtime>,
    /// What the sinks receive.
    pub notify: Notify,
    /// The time limit for shutting down.
    pub shutdown_grace: Duration,
    /// The log.
    pub log: telemetry::Config,
    /// Warnings about the settings, a line each: ignored fields, unknown variables.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Merges and validates the settings of all layers. It reads the config file at each call:
    /// the agent calls it again for a reload. It blocks.
    ///
    /// # Errors
    /// The first invalid value, with its place.
    pub fn load(
        command_line: &CommandLine,
        environment: &Environment,
        disk: &Disk,
    ) -> Result<Self, SettingsError> {
        let config = config_file(command_line, environment);
        let ConfigFile { given, mut warnings } =
            config.map(|path| file::read(&path, disk)).transpose()?.unwrap_or_default();
        let layers = Layers::new(command_line, environment, given);
        let mut flags = layers.parse()?;
        let state_dir = state_dir(flags.state_dir.take(), environment)?;
        let node_name = flags.node_name.take().map_or_else(host_name, Ok)?;
        distinct(flags.pod_security.iter().map(|(source, _)| *source).collect(), "pod-security", &layers)?;
        if let Some(table) = command_line.terminal_sink.clone().filter(|_| layers.get("sink").is_none()) {
            flags.sink = vec![table];
        }
        // By their names, under which status and metrics show them.
        distinct(flags.sink.iter().map(ToString::to_string).collect(), "sink", &layers)?;
        let (sinks, runtime) = consumers(&mut flags, &layers, environment, state_dir.is_some())?;
        let given = (&layers, command_line, environment);
        let server = server_config(&mut flags, given, (state_dir.as_deref(), &node_name))?;
        if server.anonymous {
            warnings.push("anonymous-auth: every user of this machine may read and post pods over TCP, without credentials".into());
        }
        warnings.extend(unknown_variables(environment));
        let mut settings = Self {
            file: flags.pod_manifest_path.take().map(|path| source::file::Config {
                path,
                check_frequency: flags.file_check_frequency,
                on_invalid: flags.on_invalid_manifest,
                pod_security: level(&flags, SourceName::File),
            }),
            url: url_config(&mut flags, &layers, &mut warnings)?,
            api: api_config(&mut flags, environment, &layers)?,
            http: source::http::Config { max_pods: flags.max_posted_pods, max_bytes: flags.max_posted_bytes },
            server,
            state_dir,
            node_name,
            sinks,
            runtime,
            notify: flags.notify,
            shutdown_grace: flags.shutdown_grace,
            log: telemetry::Config { format: flags.log_format, verbosity: flags.verbose },
            warnings,
        };
        let is_fed = settings.file.is_some() || settings.url.is_some() || settings.api.is_some();
        if !is_fed && !settings.server.listens() {
            if !command_line.may_be_passed {
                return Err(SettingsError::NoSource);
            }
            let warning = "no source of pods, unless systemd passes a socket to which pods are posted";
            settings.warnings.push(warning.to_owned());
        }
        Ok(settings)
    }

    /// The settings after a reload, and the flags whose new values need a restart.
    ///
    /// The identity of sources and sinks needs one: path and URL of manifests, node name, sinks,
    /// addresses, state directory, format of the log. A protection of the server (token, TLS,
    /// client CA) cannot be removed while it runs, because its addresses were accepted with it.
    /// Everything else takes effect at once.
    pub fn reloaded(&self, mut fresh: Self) -> (Self, Vec<&'static str>) {
        let mut stuck = Vec::new();
        if let (Some(fresh), Some(now)) = (&mut fresh.file, &self.file) {
            hold(&mut fresh.path, &now.path, "pod-manifest-path", &mut stuck);
        } else {
            hold(&mut fresh.file, &self.file, "pod-manifest-path", &mut stuck);
        }
        if let (Some(fresh), Some(now)) = (&mut fresh.url, &self.url) {
            hold(&mut fresh.url, &now.url, "manifest-url", &mut stuck);
        } else {
            hold(&mut fresh.url, &self.url, "manifest-url", &mut stuck);
        }
        if fresh.api.is_some() != self.api.is_some() {
            hold(&mut fresh.api, &self.api, "kubeconfig", &mut stuck);
        }
        hold(&mut fresh.node_name, &self.node_name, "node-name", &mut stuck);
        let (server, now) = (&mut fresh.server, &self.server);
        order_as(&mut server.listen, &now.listen);
        hold(&mut server.listen, &now.listen, "listen", &mut stuck);
        hold(&mut server.anonymous, &now.anonymous, "anonymous-auth", &mut stuck);
        // It follows from settings that are held.
        server.generated.clone_from(&now.generated);
        // Only the removal of a protection is not applied.
        if server.token_file.is_none() {
            hold(&mut server.token_file, &now.token_file, "token-file", &mut stuck);
        }
        if server.tls.is_none() {
            hold(&mut server.tls, &now.tls, "tls-cert-file", &mut stuck);
        }
        if server.client_ca_file.is_none() {
            hold(&mut server.client_ca_file, &now.client_ca_file, "client-ca-file", &mut stuck);
        }
        order_as(&mut fresh.sinks, &self.sinks);
        hold(&mut fresh.sinks, &self.sinks, "sink", &mut stuck);
        if let (Some(fresh), Some(now)) = (&mut fresh.runtime, &self.runtime) {
            hold(&mut fresh.kind, &now.kind, "sink", &mut stuck);
            hold(&mut fresh.concurrency, &now.concurrency, "sink-concurrency", &mut stuck);
        } else {
            hold(&mut fresh.runtime, &self.runtime, "sink", &mut stuck);
        }
        hold(&mut fresh.notify, &self.notify, "notify", &mut stuck);
        hold(&mut fresh.state_dir, &self.state_dir, "state-dir", &mut stuck);
        hold(&mut fresh.log.format, &self.log.format, "log-format", &mut stuck);
        (fresh, stuck)
    }
}

/// Orders values as they are now: another order alone is no change. None occurs twice.
fn order_as<T: PartialEq>(fresh: &mut [T], now: &[T]) {
    fresh.sort_by_key(|value| now.iter().position(|other| other == value));
}

/// Keeps the current value, and notes its flag if another one was given.
fn hold<T: Clone + PartialEq>(fresh: &mut T, now: &T, flag: &'static str, stuck: &mut Vec<&'static str>) {
    if fresh != now {
        if !stuck.contains(&flag) {
            stuck.push(flag);
        }
        fresh.clone_from(now);
    }
}

/// The name of this node for a command without other settings: from its flag, the environment or
/// the host.
///
/// # Errors
/// If it is not a valid node name.
pub fn node_name(flag: Option<&str>, environment: &Environment) -> Result<NodeName, SettingsError> {
    let command_line = CommandLine::default();
    let command_line = flag.map_or(command_line.clone(), |name| command_line.with("node-name", name));
    let layers = Layers::new(&command_line, environment, BTreeMap::new()).only("node-name");
    layers.parse()?.node_name.map_or_else(host_name, Ok)
}

fn host_name() -> Result<NodeName, SettingsError> {
    let host = rustix::system::uname();
    NodeName::new(&host.nodename().to_string_lossy()).map_err(SettingsError::HostName)
}

fn config_file(command_line: &CommandLine, environment: &Environment) -> Option<PathBuf> {
    let command = flags::command();
    let arg = command.get_arguments().find(|arg| arg.get_id() == flags::CONFIG)?;
    let given = layers::given(&Setting::of(arg), command_line, environment)?;
    given.texts.into_iter().next().map(PathBuf::from)
}

fn state_dir(given: Option<PathBuf>, environment: &Environment) -> Result<Option<PathBuf>, SettingsError> {
    match given {
        Some(path) if path.as_os_str() == "none" => Ok(None),
        Some(path) => Ok(Some(path)),
        None => {
            let is_root = rustix::process::geteuid().is_root();
            default_state_dir(environment, is_root).map(Some).ok_or(SettingsError::NoStateDir)
        }
    }
}

/// The state directory of an agent with this environment and without a flag for it.
pub fn state_dir_of(environment: &Environment) -> Option<PathBuf> {
    let given = environment.get("PODMUX_STATE_DIR").filter(|given| !given.is_empty());
    state_dir(given.map(PathBuf::from), environment).ok().flatten()
}

/// The state directory by default: systemd's, or the usual place of root or of another user.
pub fn default_state_dir(environment: &Environment, is_root: bool) -> Option<PathBuf> {
    let systemd = absolute(environment, "STATE_DIRECTORY");
    if is_root {
        return systemd.or_else(|| Some("/var/lib/podmux".into()));
    }
    let home = || absolute(environment, "HOME").map(|home| home.join(".local/state"));
    systemd.or_else(|| absolute(environment, "XDG_STATE_HOME").or_else(home).map(|path| path.join("podmux")))
}

/// A warning about variables that look like settings and are not: typing errors, or the variables
/// that Kubernetes sets for a service named podmux.
fn unknown_variables(environment: &Environment) -> Option<String> {
    let command = flags::command();
    let known: Vec<_> = command.get_arguments().map(|arg| Setting::of(arg).variable).collect();
    let ours = environment.keys().filter(|name| name.starts_with("PODMUX_") && *name != SERVER_VARIABLE);
    let unknown: Vec<&str> = ours.filter(|name| !known.contains(name)).map(String::as_str).collect();
    (!unknown.is_empty()).then(|| format!("unknown variables, ignored: {}", unknown.join(", ")))
}
