//! Reads a kubeconfig and the files that it names: everything that a client is made from.
//!
//! It blocks, so it never runs on a thread of the runtime.

use std::{
    io, mem,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Uri, uri::Scheme};
use hyper_util::client::proxy::matcher::Intercept;
use kube::config::{AuthInfo, Cluster, ExecAuthCluster, ExecConfig, Kubeconfig as Contents, KubeconfigError};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    error::ConnectError,
    exec_plugin::{ExecPlugin, is_valid_token},
    proxy,
    tls::{CertificateAndKey, PemSource, ServerTrust},
};
use crate::{
    client::{absolute, shown},
    hex::hex,
    host::{Disk, Stamp},
    pem,
    source::api::config::{InCluster, Kubeconfig, Proxies},
};

/// The largest file that is read, in bytes. A kubeconfig or a CA bundle is much smaller.
const MAX_FILE: u64 = 10 * 1024 * 1024;

/// Files, each with its stamp before it was read, or nothing if there was no file.
pub(super) type FileStamps = Vec<(PathBuf, Option<Stamp>)>;

/// The API server, and which certificate of it is trusted.
pub(super) struct ServerPlan {
    pub(super) url: Uri,
    pub(super) trust: ServerTrust,
    /// The name that the server's certificate must have, if it is not the URL's host.
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) identity: ServerIdentity,
}

/// What identifies an API server, so that a stored listing is restored for the same server
/// only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// Its URL, without what may be secret.
    pub url: String,
    /// A digest of the CAs that it is trusted by; empty for the system's.
    pub ca: String,
}

impl ServerIdentity {
    /// The URL, for the log of a change from another server. If that has the same URL, its CA was another.
    pub(crate) fn instead_of(&self, before: &Self) -> String {
        let ca = if self.url == before.url { " with another CA" } else { "" };
        format!("{}{ca}", self.url)
    }
}

/// Everything that a client is made from.
pub(super) struct ClientPlan {
    pub(super) server: ServerPlan,
    pub(super) proxy: Option<Intercept>,
    pub(super) certificate: Option<CertificateAndKey>,
    /// Token, password and impersonation, in the form of kube's layers.
    pub(super) login: AuthInfo,
    /// The plugin that the other credentials are from.
    pub(super) plugin: Option<ExecPlugin>,
    /// Whether the user has credentials that are not used, because the server has no TLS.
    pub(super) withholds: bool,
    /// The files that were read.
    pub(super) files: FileStamps,
}

impl ServerPlan {
    /// Reads the server, and no credentials.
    pub(super) fn read(kubeconfig: &Kubeconfig, disk: &Disk) -> Result<Self, ConnectError> {
        let mut reader = Reader::new(kubeconfig, disk);
        let (cluster, _) = reader.cluster_and_user(kubeconfig)?;
        let authorities = reader.authorities(&cluster)?;
        reader.server(&cluster, authorities.as_ref())
    }
}

impl ClientPlan {
    /// Reads the server and the credentials.
    pub(super) fn read(
        kubeconfig: &Kubeconfig,
        proxies: &Proxies,
        disk: &Disk,
    ) -> Result<Self, ConnectError> {
        let mut reader = Reader::new(kubeconfig, disk);
        let (cluster, mut user) = reader.cluster_and_user(kubeconfig)?;
        let authorities = reader.authorities(&cluster)?;
        let server = reader.server(&cluster, authorities.as_ref())?;
        let withholds = server.url.scheme() == Some(&Scheme::HTTP) && drop_credentials(&mut user);
        let proxy = proxy::choose(&server.url, cluster.proxy_url.as_deref(), proxies);
        let proxy = proxy.map_err(|problem| reader.invalid(problem))?;
        let certificate = reader.client_certificate(&user)?;
        let login = reader.login(&user)?;
        // As in client-go, a plugin is used only without other credentials.
        let has_other = certificate.is_some() || login.token.is_some() || login.username.is_some();
        let exec = user.exec.filter(|_| !has_other);
        let plugin = exec.map(|exec| reader.plugin(exec, cluster, authorities.as_ref())).transpose()?;
        Ok(Self { server, proxy, certificate, login, plugin, withholds, files: reader.files })
    }
}

/// Reads files and notes their stamps.
struct Reader {
    disk: Disk,
    /// The kubeconfig, or the directory of the service account, for messages.
    place: String,
    /// What the paths in the kubeconfig are relative to.
    directory: PathBuf,
    files: FileStamps,
}

impl Reader {
    fn new(kubeconfig: &Kubeconfig, disk: &Disk) -> Self {
        let (place, directory) = match kubeconfig {
            Kubeconfig::File(path) => (path, path.parent().unwrap_or(Path::new(""))),
            Kubeconfig::InCluster(pod) => (&pod.directory, &*pod.directory),
        };
        let (place, directory) = (place.display().to_string(), directory.to_owned());
        Self { disk: disk.clone(), place, directory, files: Vec::new() }
    }

    fn invalid(&self, problem: impl Into<String>) -> ConnectError {
        ConnectError::Invalid { place: self.place.clone(), problem: problem.into() }
    }

    fn read(&mut self, what: &'static str, path: &Path) -> Result<Vec<u8>, ConnectError> {
        self.files.push((path.to_owned(), self.disk.stamp(path).ok()));
        let bytes = match self.disk.is_file(path) {
            Ok(false) => Err(io::Error::other("not a regular file")),
            _ => self.disk.read(path, MAX_FILE),
        };
        bytes.map_err(|error| ConnectError::File { what, path: path.to_owned(), error })
    }

    fn cluster_and_user(&mut self, kubeconfig: &Kubeconfig) -> Result<(Cluster, AuthInfo), ConnectError> {
        match kubeconfig {
            Kubeconfig::File(path) => self.current_context(path),
            Kubeconfig::InCluster(pod) => self.service_account(pod),
        }
    }

    /// The server and the service account of a pod (client-go's `rest.InClusterConfig`).
    fn service_account(&self, pod: &InCluster) -> Result<(Cluster, AuthInfo), ConnectError> {
        let host = if pod.host.contains(':') { format!("[{}]", pod.host) } else { pod.host.clone() };
        let server = format!("https://{host}:{}", pod.port);
        if server.parse::<Uri>().is_err() {
            let variables = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT";
            return Err(self.invalid(format!("{variables} are not the address of a server")));
        }
        let (ca, token) = (Some("ca.crt".to_owned()), Some("token".to_owned()));
        let cluster = Cluster { server: Some(server), certificate_authority: ca, ..Cluster::default() };
        Ok((cluster, AuthInfo { token_file: token, ..AuthInfo::default() }))
    }

    fn server(&self, cluster: &Cluster, authorities: Option<&PemSource>) -> Result<ServerPlan, ConnectError> {
        let url = self.url(cluster)?;
        let authorities = authorities.map(|authorities| authorities.parse(pem::certificates)).transpose()?;
        // Text between the certificates does not count.
        let ca = authorities.as_ref().map(|authorities| {
            let certificates: Vec<u8> = authorities.iter().flat_map(|der| der.to_vec()).collect();
            hex(&Sha256::digest(certificates))
        });
        let identity = ServerIdentity { url: shown(&url), ca: ca.unwrap_or_default() };
        let trust = ServerTrust { authorities, is_any: cluster.insecure_skip_tls_verify == Some(true) };
        let server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());
        let server_name = server_name.map(ServerName::try_from).transpose();
        let server_name =
            server_name.map_err(|_| self.invalid("the cluster's tls-server-name is not a valid name"))?;
        Ok(ServerPlan { url, trust, server_name, identity })
    }

    /// The cluster and the user of the current context.
    fn current_context(&mut self, path: &Path) -> Result<(Cluster, AuthInfo), ConnectError> {
        let text = self.read("kubeconfig", path).map_err(|error| match error {
            ConnectError::File { path, error, .. } if error.kind() == io::ErrorKind::NotFound => {
                ConnectError::Missing(path)
            }
            error => error,
        })?;
        let contents = contents(path, &text)?;
        let current = contents.current_context.as_deref().filter(|name| !name.is_empty());
        let current = current.ok_or_else(|| {
            let known = names(&contents.contexts, |context| &context.name);
            self.invalid(format!("no current-context; set it to one of the contexts, which are: {known}"))
        })?;
        let context = self.find("current-context", "contexts", current, &contents.contexts, |entry| {
            (&entry.name, entry.context.as_ref())
        })?;
        let cluster = self.find("cluster", "clusters", &context.cluster, &contents.clusters, |entry| {
            (&entry.name, entry.cluster.as_ref())
        })?;
        let user = match context.user.as_deref().filter(|name| !name.is_empty()) {
            None => AuthInfo::default(),
            Some(name) => self
                .find("user", "users", name, &contents.auth_infos, |entry| (&entry.name, Some(entry)))?
                .auth_info
                .clone()
                .unwrap_or_default(),
        };
        Ok((cluster.clone(), user))
    }

    /// Finds an entry of the kubeconfig by its name.
    fn find<'c, E, T>(
        &self,
        what: &str,
        all: &str,
        name: &str,
        entries: &'c [E],
        read: impl Fn(&'c E) -> (&'c String, Option<&'c T>),
    ) -> Result<&'c T, ConnectError> {
        let found = entries.iter().map(&read).find(|(known, _)| *known == name);
        found.and_then(|(_, entry)| entry).ok_or_else(|| {
            let known = names(entries, |entry| read(entry).0);
            self.invalid(format!("unknown {what} {name:?}; the {all} are: {known}"))
        })
    }

    fn url(&self, cluster: &Cluster) -> Result<Uri, ConnectError> {
        let expected = "expected https://HOST:PORT";
        let Some(server) = cluster.server.as_deref().filter(|server| !server.is_empty()) else {
            return Err(self.invalid(format!("the cluster has no server; {expected}")));
        };
        let server = absolute(server).ok_or_else(|| {
            let problem = "the cluster's server is not an http or https URL, or has a port above 65535";
            self.invalid(format!("{problem}; {expected}"))
        })?;
        let user = server.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if user || server.query().is_some() {
            return Err(self.invalid(format!("the cluster's server contains a user or a query; {expected}")));
        }
        Ok(server)
    }

    fn authorities(&mut self, cluster: &Cluster) -> Result<Option<PemSource>, ConnectError> {
        let data = cluster.certificate_authority_data.as_deref();
        let file = cluster.certificate_authority.as_deref();
        let authorities = self.pem("certificate-authority", data, file)?;
        if authorities.is_some() && cluster.insecure_skip_tls_verify == Some(true) {
            return Err(self.invalid(
                "the cluster has both certificate-authority and insecure-skip-tls-verify; remove one of them",
            ));
        }
        Ok(authorities)
    }

    fn client_certificate(&mut self, user: &AuthInfo) -> Result<Option<CertificateAndKey>, ConnectError> {
        let (data, file) = (user.client_certificate_data.as_deref(), user.client_certificate.as_deref());
        let certificate = self.pem("client-certificate", data, file)?;
        let data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        let key = self.pem("client-key", data, user.client_key.as_deref())?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(CertificateAndKey { certificate, key })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.invalid("the user has a client-certificate but no client-key")),
            (None, Some(_)) => Err(self.invalid("the user has a client-key but no client-certificate")),
        }
    }

    /// The text of `NAME-data` in the kubeconfig, or else of the file that `NAME` names.
    fn pem(
        &mut self,
        name: &'static str,
        data: Option<&str>,
        file: Option<&str>,
    ) -> Result<Option<PemSource>, ConnectError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let place = format!("{name}-data of {}", self.place);
            let bytes = STANDARD.decode(data.split_ascii_whitespace().collect::<String>());
            let bytes = bytes.map_err(|_| self.invalid(format!("{name}-data is not base64")))?;
            return Ok(Some(PemSource { bytes, place }));
        }
        let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
        let path = self.directory.join(file);
        let bytes = self.read(name, &path)?;
        Ok(Some(PemSource { bytes, place: path.display().to_string() }))
    }

    /// The token or the password, and who is impersonated.
    fn login(&mut self, user: &AuthInfo) -> Result<AuthInfo, ConnectError> {
        if let Some(provider) = &user.auth_provider {
            return Err(self.invalid(format!(
                "the user's auth-provider {:?} is not supported; use an exec plugin",
                provider.name
            )));
        }
        let mut login = AuthInfo { token: self.user_token(user)?, ..user.clone() };
        let is_empty = |password: &SecretString| password.expose_secret().is_empty();
        if user.username.as_deref().is_none_or(str::is_empty) && user.password.as_ref().is_none_or(is_empty) {
            (login.username, login.password) = (None, None);
        } else if login.token.is_some() {
            return Err(
                self.invalid("the user has both a token and a username or password; remove one of them")
            );
        } else {
            login.username.get_or_insert_default();
            login.password.get_or_insert_default();
        }
        Ok(login)
    }

    fn plugin(
        &self,
        mut exec: ExecConfig,
        mut cluster: Cluster,
        authorities: Option<&PemSource>,
    ) -> Result<ExecPlugin, ConnectError> {
        let command = exec.command.take().unwrap_or_default();
        if command.is_empty() {
            return Err(self.invalid("the user's exec has no command"));
        }
        let command =
            if command.contains('/') { self.directory.join(command).display().to_string() } else { command };
        if exec.provide_cluster_info {
            // kube would read the file again.
            cluster.certificate_authority = None;
            cluster.certificate_authority_data = authorities.map(|pem| STANDARD.encode(&pem.bytes));
            exec.cluster = ExecAuthCluster::try_from(&cluster).ok();
        }
        ExecPlugin::new(exec, command).map_err(|problem| self.invalid(problem))
    }

    /// The token of the token file if it can be read, or else the token in the kubeconfig.
    fn user_token(&mut self, user: &AuthInfo) -> Result<Option<SecretString>, ConnectError> {
        let inline = user.token.as_ref().filter(|token| !token.expose_secret().is_empty());
        let file = user.token_file.as_deref().filter(|file| !file.is_empty());
        let from_file = file.map(|file| self.token(&self.directory.join(file))).transpose();
        match (from_file, inline) {
            (Ok(Some(token)), _) => Ok(Some(token)),
            (Err(error), None) => Err(error),
            (_, Some(inline)) if is_valid_token(inline.expose_secret()) => Ok(Some(inline.clone())),
            (_, Some(_)) => Err(self.invalid("the user's token contains characters that no token can have")),
            (Ok(None), None) => Ok(None),
        }
    }

    fn token(&mut self, path: &Path) -> Result<SecretString, ConnectError> {
        let bytes = self.read("token", path)?;
        let token = str::from_utf8(&bytes).unwrap_or_default().trim();
        if token.is_empty() || !is_valid_token(token) {
            let place = path.display().to_string();
            let problem = "no token; expected one line of printable text".to_owned();
            return Err(ConnectError::Invalid { place, problem });
        }
        Ok(SecretString::from(token))
    }
}

/// Drops the credentials of a user, as client-go does for a server without TLS. Returns whether it has some.
fn drop_credentials(user: &mut AuthInfo) -> bool {
    let with = mem::take(user);
    let certificate = with.client_certificate.is_some() || with.client_certificate_data.is_some();
    let token = with.token.is_some() || with.token_file.is_some();
    let password = with.username.is_some() || with.password.is_some();
    *user = AuthInfo {
        impersonate: with.impersonate,
        impersonate_uid: with.impersonate_uid,
        impersonate_groups: with.impersonate_groups,
        impersonate_user_extra: with.impersonate_user_extra,
        ..AuthInfo::default()
    };
    certificate || token || password || with.exec.is_some() || with.auth_provider.is_some()
}

fn contents(path: &Path, text: &[u8]) -> Result<Contents, ConnectError> {
    let bad = |line| ConnectError::Yaml { path: path.to_owned(), line };
    let text = str::from_utf8(text).map_err(|error| {
        let before = &text[..error.valid_up_to()];
        bad(before.iter().fold(1, |line, byte| line + u64::from(*byte == b'\n')))
    })?;
    // The parser's message is not used, because it may quote a secret.
    Contents::from_yaml(text).map_err(|error| match error {
        KubeconfigError::Parse(error) => bad(error.location().map_or(1, |location| location.line())),
        _ => bad(1),
    })
}

fn names<'c, E>(entries: &'c [E], name: impl Fn(&'c E) -> &'c String) -> String {
    let names: Vec<&str> = entries.iter().map(|entry| name(entry).as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
