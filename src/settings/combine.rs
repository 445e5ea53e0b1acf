//! Settings that consist of several flags: which need each other, and which exclude each other.

use std::{
    env, mem,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    error::SettingsError,
    flags::Flags,
    layers::{CommandLine, Environment, Layers},
};
use crate::{
    certificate_files::CertificateFiles,
    pod::{NodeName, SecurityLevel, SourceName},
    registry,
    server::{self, Listen, Passed},
    source::{api, url},
};

/// What runs the pods, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The kind, its target and options.
    pub kind: registry::Config,
    /// How many pods are synced at once.
    pub concurrency: usize,
    /// Where the lock of the instance, the marker of the boot and the files of the pods are: a directory that a
    /// reboot empties.
    pub directory: PathBuf,
    /// Where the sockets of the user's own services are, if the agent is not root's.
    pub user_dir: Option<PathBuf>,
}

/// The Unix socket of an agent of the system.
pub const SYSTEM_SOCKET: &str = "/run/podmux/podmux.sock";
/// What TCP needs without a state directory.
const UNPROTECTED: &str = "it needs TLS and credentials: give --state-dir DIR, where they are made and kept, or \
                           --tls-cert-file, --tls-private-key-file, and --token-file or --client-ca-file";
/// The address over TCP by default.
const DEFAULT_TCP: Listen = Listen::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10240));
/// The value of `--kubeconfig` for the service account of a pod; a file of that name is `./in-cluster`.
const IN_CLUSTER: &str = "in-cluster";
/// The variables in a pod with the address of the API server.
const SERVICE: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
/// The flags that configure requests of the URL, and are an error without it.
const URL_FLAGS: [&str; 5] = [
    "manifest-url-header",
    "manifest-url-ca-file",
    "manifest-url-client-cert-file",
    "manifest-url-client-key-file",
    "manifest-url-sha256",
];

pub(super) fn url_config(
    flags: &mut Flags,
    layers: &Layers,
    warnings: &mut Vec<String>,
) -> Result<Option<url::Config>, SettingsError> {
    let pair = (flags.manifest_url_client_cert_file.take(), flags.manifest_url_client_key_file.take());
    let names = ("manifest-url-client-cert-file", "manifest-url-client-key-file");
    let client_certificate = certificate_files(pair, names, layers)?;
    let Some(url) = flags.manifest_url.take() else {
        for flag in URL_FLAGS {
            let problem = "it has no effect without a URL: give --manifest-url URL";
            match layers.get(flag) {
                // A kubelet starts with headers alone.
                Some(given) if given.is_of_kubelet => warnings.push(format!("{}: {problem}", given.place)),
                Some(_) => return Err(layers.invalid(flag, problem)),
                None => {}
            }
        }
        return Ok(None);
    };
    Ok(Some(url::Config {
        url,
        headers: flags.manifest_url_header.drain(..).collect(),
        ca_file: flags.manifest_url_ca_file.take(),
        client_certificate,
        sha256: flags.manifest_url_sha256.take(),
        check_frequency: flags.http_check_frequency,
        pod_security: level(flags, SourceName::Url),
    }))
}

pub(super) fn api_config(
    flags: &mut Flags,
    environment: &Environment,
    layers: &Layers,
) -> Result<Option<api::Config>, SettingsError> {
    let kubeconfig = match flags.kubeconfig.take() {
        None => return Ok(None),
        Some(path) if path.as_os_str() == IN_CLUSTER => {
            in_cluster(environment).map_err(|problem| layers.invalid("kubeconfig", problem))?
        }
        Some(path) => api::Kubeconfig::File(path),
    };
    // Each variable in upper case, or else in lower case, as Go's programs read them.
    let proxy = |name: &str| {
        let value = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
        value(name).or_else(|| value(&name.to_lowercase())).unwrap_or_default()
    };
    let proxies =
        api::Proxies { https: proxy("HTTPS_PROXY"), http: proxy("HTTP_PROXY"), no: proxy("NO_PROXY") };
    Ok(Some(api::Config { kubeconfig, proxies, pod_security: level(flags, SourceName::Api) }))
}

fn in_cluster(environment: &Environment) -> Result<api::Kubeconfig, String> {
    let [host, port] = SERVICE.map(|name| environment.get(name).filter(|value| !value.is_empty()));
    let port = port.map(|port| port.parse::<u16>());
    match (host, port) {
        (Some(host), Some(Ok(port))) => {
            Ok(api::Kubeconfig::InCluster(api::InCluster::new(host.clone(), port)))
        }
        (Some(_), Some(Err(_))) => Err(format!("{} is not a port", SERVICE[1])),
        _ => Err(format!(
            "{IN_CLUSTER} needs {} and {}, which Kubernetes sets in a pod; elsewhere give the path of a kubeconfig (a file of that name is ./{IN_CLUSTER})",
            SERVICE[0], SERVICE[1]
        )),
    }
}

/// The settings of the server.
pub(super) fn server_config(
    flags: &mut Flags,
    (layers, command_line, environment): (&Layers, &CommandLine, &Environment),
    (state_dir, node_name): (Option<&Path>, &NodeName),
) -> Result<server::Config, SettingsError> {
    let pair = (flags.tls_cert_file.take(), flags.tls_private_key_file.take());
    let listen = std::mem::take(&mut flags.listen);
    if listen.len() > 1 && listen.contains(&None) {
        return Err(layers.invalid("listen", "none means no address: give it alone"));
    }
    let mut config = server::Config {
        listen: distinct(listen.into_iter().flatten().collect(), "listen", layers)?,
        passed: command_line.passed.clone(),
        token_file: flags.token_file.take(),
        tls: certificate_files(pair, ("tls-cert-file", "tls-private-key-file"), layers)?,
        client_ca_file: flags.client_ca_file.take(),
        pod_security: level(flags, SourceName::Http),
        generated: None,
        anonymous: flags.anonymous_auth,
        default_socket: default_socket(environment, rustix::process::geteuid().is_root()),
    };
    let is_default = layers.get("listen").is_none();
    if is_default {
        let is_unix = |passed: &Passed| matches!(passed.address, Listen::Unix(_));
        let socket = config.default_socket.clone().filter(|_| !config.passed.iter().any(is_unix));
        config.listen = socket.map(Listen::Unix).into_iter().chain([DEFAULT_TCP]).collect();
    }
    config.listen.retain(|address| !config.passed.iter().any(|passed| passed.serves(address)));
    if config.anonymous {
        return check_anonymous(&config, layers).map(|()| config);
    }
    let is_tcp = |address: &&Listen| matches!(address, Listen::Tcp(_));
    let has_tcp = all_addresses(&config).any(|address| is_tcp(&address));
    if config.client_ca_file.is_some() && config.tls.is_none() && state_dir.is_none() {
        let problem = "client certificates need TLS: give --tls-cert-file and --tls-private-key-file, too";
        return Err(layers.invalid("client-ca-file", problem));
    }
    config.generated = state_dir.filter(|_| has_tcp).map(|state| generated(&config, state, node_name));
    let is_given = config.tls.is_some() && (config.token_file.is_some() || config.client_ca_file.is_some());
    if !is_given && config.generated.is_none() {
        config.listen.retain(|address| !is_default || matches!(address, Listen::Unix(_)));
        check_tcp(&config, layers, |_| true, UNPROTECTED)?;
    }
    Ok(config)
}

/// The addresses that are bound, and those of the sockets that systemd passes.
fn all_addresses(config: &server::Config) -> impl Iterator<Item = &Listen> {
    config.listen.iter().chain(config.passed.iter().map(|passed| &passed.address))
}

/// The first problem with an address over TCP.
fn check_tcp(
    config: &server::Config,
    layers: &Layers,
    is_wrong: impl Fn(&Listen) -> bool,
    problem: &str,
) -> Result<(), SettingsError> {
    let is_wrong = |address: &Listen| matches!(address, Listen::Tcp(_)) && is_wrong(address);
    if let Some(Passed { address, name, .. }) = config.passed.iter().find(|passed| is_wrong(&passed.address))
    {
        let (address, name, problem) = (address.clone(), name.clone(), problem.to_owned());
        return Err(SettingsError::Passed { address, name, problem });
    }
    match config.listen.iter().find(|address| is_wrong(address)) {
        Some(address) => {
            Err(layers.invalid("listen", format!("{address}: {problem}; or listen on unix:PATH")))
        }
        None => Ok(()),
    }
}

/// Plain HTTP without credentials is for loopback, and nothing may look as if it protected it.
fn check_anonymous(config: &server::Config, layers: &Layers) -> Result<(), SettingsError> {
    for flag in ["token-file", "tls-cert-file", "client-ca-file"] {
        if layers.get(flag).is_some() {
            return Err(layers.invalid(flag, "it has no effect with --anonymous-auth: leave one of them out"));
        }
    }
    let problem = "other machines can reach it, and --anonymous-auth is for loopback only: leave that out";
    check_tcp(config, layers, |address| !address.is_local(), problem)
}

/// What the agent makes itself, and the names that its certificate is for.
fn generated(config: &server::Config, state: &Path, node_name: &NodeName) -> server::Generated {
    let mut names = ["localhost", "127.0.0.1", "::1", node_name.as_str()].map(str::to_owned).to_vec();
    for address in all_addresses(config) {
        if let Listen::Tcp(address) = address
            && !address.ip().is_unspecified()
        {
            names.push(address.ip().to_canonical().to_string());
        }
    }
    names.sort();
    names.dedup();
    server::Generated { directory: state.join("auth"), names }
}

/// The Unix socket by default; `None` for a user without a directory for it.
pub fn default_socket(environment: &Environment, is_root: bool) -> Option<PathBuf> {
    // systemd gives its services this, and no XDG_RUNTIME_DIR.
    let is_service = || environment.contains_key("STATE_DIRECTORY").then(|| PathBuf::from(SYSTEM_SOCKET));
    if is_root { Some(SYSTEM_SOCKET.into()) } else { user_socket(environment).or_else(is_service) }
}

/// The Unix socket of a user's own agent.
pub fn user_socket(environment: &Environment) -> Option<PathBuf> {
    Some(absolute(environment, "XDG_RUNTIME_DIR")?.join("podmux/podmux.sock"))
}

/// The absolute path in a variable: the first one of those that systemd separates by colons.
pub(super) fn absolute(environment: &Environment, name: &str) -> Option<PathBuf> {
    let path = environment.get(name)?;
    let path = if name.ends_with("_DIRECTORY") { path.split(':').next()? } else { path };
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

/// The files of a certificate and its key: both or none.
fn certificate_files(
    pair: (Option<PathBuf>, Option<PathBuf>),
    (certificate_flag, key_flag): (&str, &str),
    layers: &Layers,
) -> Result<Option<CertificateFiles>, SettingsError> {
    let alone = |given: &str, missing: &str| {
        let problem = format!("a certificate and its key need each other: give --{missing} FILE, too");
        Err(layers.invalid(given, problem))
    };
    match pair {
        (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
        (Some(_), None) => alone(certificate_flag, key_flag),
        (None, Some(_)) => alone(key_flag, certificate_flag),
        (None, None) => Ok(None),
    }
}

/// The level of the Pod Security Standards that the pods of a source may not exceed.
pub(super) fn level(flags: &Flags, source: SourceName) -> SecurityLevel {
    let given = flags.pod_security.iter().find(|(given, _)| *given == source);
    given.map(|(_, level)| *level).unwrap_or_default()
}

/// Values of which none may be given twice.
pub(super) fn distinct<T: PartialEq + ToString>(
    values: Vec<T>,
    flag: &str,
    layers: &Layers,
) -> Result<Vec<T>, SettingsError> {
    match values.iter().enumerate().find(|(at, value)| values[..*at].contains(value)) {
        Some((_, twice)) => Err(layers.invalid(flag, format!("{} is given twice", twice.to_string()))),
        None => Ok(values),
    }
}

/// The sinks and the runtime.
pub(super) fn consumers(
    flags: &mut Flags,
    layers: &Layers,
    environment: &Environment,
    has_state: bool,
) -> Result<(Vec<registry::Config>, Option<Runtime>), SettingsError> {
    let (mut runtimes, sinks): (Vec<_>, Vec<_>) =
        mem::take(&mut flags.sink).into_iter().partition(registry::Config::is_runtime);
    for (at, sink) in sinks.iter().enumerate() {
        let is_same = |other: &&registry::Config| sink.output().is_some() && other.output() == sink.output();
        if let Some(other) = sinks[..at].iter().find(is_same) {
            let problem = format!("{other} and {sink} have the same output: leave one of them out");
            return Err(layers.invalid("sink", problem));
        }
    }
    let Some(kind) = runtimes.pop() else {
        let none = "it has no effect without a runtime: give --sink podman or --sink exec=PROGRAM";
        return match layers.get("sink-concurrency") {
            Some(_) => Err(layers.invalid("sink-concurrency", none)),
            None => Ok((sinks, None)),
        };
    };
    if let Some(other) = runtimes.pop() {
        let problem = format!("one agent has one runtime, and this is {other} and {kind}");
        return Err(layers.invalid("sink", problem));
    }
    if !has_state {
        let problem = format!("{kind} needs a state directory, which holds what it has started");
        return Err(layers.invalid("state-dir", problem));
    }
    if sinks.is_empty() && layers.get("notify").is_some() {
        let problem = format!("{kind} is a runtime and gets no stream: leave this out, or add a sink");
        return Err(layers.invalid("notify", problem));
    }
    let directory = runtime_dir(environment, rustix::process::geteuid().is_root()).ok_or_else(|| {
        let none = "needs a directory that a reboot empties: set RUNTIME_DIRECTORY or XDG_RUNTIME_DIR";
        layers.invalid("sink", format!("{kind} {none}"))
    })?;
    // A runtime's program is called in another directory.
    let kind = env::current_dir().map_or(kind.clone(), |current| kind.below(&current));
    let concurrency = flags.sink_concurrency.into();
    let user_dir = absolute(environment, "XDG_RUNTIME_DIR");
    let user_dir = user_dir.filter(|_| !rustix::process::geteuid().is_root());
    Ok((sinks, Some(Runtime { kind, concurrency, directory, user_dir })))
}

/// A directory that a reboot empties, and that only this agent's user writes to: systemd's, root's own, or
/// the user's.
pub fn runtime_dir(environment: &Environment, is_root: bool) -> Option<PathBuf> {
    let user = || Some(absolute(environment, "XDG_RUNTIME_DIR")?.join("podmux-agent"));
    absolute(environment, "RUNTIME_DIRECTORY")
        .or_else(|| if is_root { Some("/run/podmux-agent".into()) } else { user() })
}
