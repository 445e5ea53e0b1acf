//! Settings that consist of several flags: which need each other, and which exclude each other.

use std::path::PathBuf;

use super::{
    error::SettingsError,
    flags::Flags,
    layers::{Environment, Layers},
};
use crate::{
    certificate_files::CertificateFiles,
    pod::{SecurityLevel, SourceName},
    server::{self, Listen, Passed},
    source::{api, url},
};

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

pub(super) fn url_config(flags: &mut Flags, layers: &Layers) -> Result<Option<url::Config>, SettingsError> {
    let pair = (flags.manifest_url_client_cert_file.take(), flags.manifest_url_client_key_file.take());
    let names = ("manifest-url-client-cert-file", "manifest-url-client-key-file");
    let client_certificate = certificate_files(pair, names, layers)?;
    let Some(url) = flags.manifest_url.take() else {
        let alone = URL_FLAGS.into_iter().find(|flag| layers.get(flag).is_some());
        let error = |flag| layers.invalid(flag, "it has no effect without a URL: give --manifest-url URL");
        return alone.map_or(Ok(None), |flag| Err(error(flag)));
    };
    Ok(Some(url::Config {
        url,
        headers: flags.manifest_url_header.drain(..).collect(),
        ca_file: flags.manifest_url_ca_file.take(),
        client_certificate,
        sha256: flags.manifest_url_sha256,
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

pub(super) fn server_config(
    flags: &mut Flags,
    layers: &Layers,
    passed: &[Passed],
) -> Result<server::Config, SettingsError> {
    let pair = (flags.tls_cert_file.take(), flags.tls_private_key_file.take());
    let mut listen = std::mem::take(&mut flags.listen);
    if listen.len() > 1 && listen.contains(&None) {
        return Err(layers.invalid("listen", "none means no address: give it alone"));
    }
    let mut config = server::Config {
        listen: distinct(listen.drain(..).flatten().collect(), "listen", layers)?,
        passed: passed.to_vec(),
        token_file: flags.token_file.take(),
        tls: certificate_files(pair, ("tls-cert-file", "tls-private-key-file"), layers)?,
        client_ca_file: flags.client_ca_file.take(),
        pod_security: level(flags, SourceName::Http),
    };
    config.listen.retain(|address| !passed.iter().any(|passed| passed.serves(address)));
    if config.client_ca_file.is_some() && config.tls.is_none() {
        let problem = "client certificates need TLS: give --tls-cert-file and --tls-private-key-file, too";
        return Err(layers.invalid("client-ca-file", problem));
    }
    let Some(missing) = missing_protection(&config) else { return Ok(config) };
    for Passed { address, name, .. } in &config.passed {
        if let (Listen::Tcp(socket), false) = (address, address.is_local()) {
            let (address, name, port) = (address.clone(), name.clone(), socket.port());
            return Err(SettingsError::Passed { address, name, port, missing });
        }
    }
    if let Some(address) = config.listen.iter().find(|address| !address.is_local()) {
        let problem =
            format!("other machines can reach {address}: it needs {missing}; or listen on 127.0.0.1");
        return Err(layers.invalid("listen", problem));
    }
    Ok(config)
}

/// What is missing for addresses that other machines can reach.
fn missing_protection(config: &server::Config) -> Option<&'static str> {
    let authenticates = config.token_file.is_some() || config.client_ca_file.is_some();
    match (config.tls.is_some(), authenticates) {
        (true, true) => None,
        (false, true) => Some("TLS: give --tls-cert-file and --tls-private-key-file"),
        (true, false) => Some("authentication: give --token-file or --client-ca-file"),
        (false, false) => Some(
            "TLS and authentication: give --tls-cert-file, --tls-private-key-file, \
             and --token-file or --client-ca-file",
        ),
    }
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
