//! What a kubeconfig says, and the files that it names: everything that a client is made of.
//!
//! Reads files, so nothing here runs on a thread of the runtime.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
use hyper_util::client::proxy::matcher::Intercept;
use kube::config::{AuthInfo, Cluster, Kubeconfig as Contents, KubeconfigError};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    ConnectError, Identity, InCluster, Kubeconfig, Proxies,
    certificate::{Found, Pair, Trust, certificates},
    exec::Plugin,
    proxy,
};
use crate::{client::shown, hex::hex};

/// The largest file that is read, in bytes: a kubeconfig or a CA bundle is far below.
const MAX_FILE: u64 = 10 * 1024 * 1024;
/// What a cluster's extension for plugins is called.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A file as it was when it was read; nothing if it was not there.
pub(super) type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Where the API server is, and who it may be.
pub(super) struct Place {
    pub(super) server: Uri,
    pub(super) trust: Trust,
    /// What the server's certificate has to be for, in place of the URL's host.
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) identity: Identity,
}

/// What a client is made of.
pub(super) struct Plan {
    pub(super) place: Place,
    pub(super) proxy: Option<Intercept>,
    pub(super) pair: Option<Pair>,
    /// Token or password, and whom to act as; kube's layers know what to do with it.
    pub(super) login: AuthInfo,
    /// Where the rest of the credentials comes from.
    pub(super) plugin: Option<Plugin>,
    /// The files that were read, each as it was before that.
    pub(super) files: Vec<(PathBuf, Stamp)>,
}

/// How a file is now.
pub(super) fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
}

impl Place {
    /// Reads what says where the server is, and no credentials.
    pub(super) fn read(kubeconfig: &Kubeconfig) -> Result<Self, ConnectError> {
        let mut reader = Reader::new(kubeconfig);
        match kubeconfig {
            Kubeconfig::File(path) => {
                let (cluster, _) = reader.chosen(path)?;
                let authorities = reader.authorities(&cluster, directory(path))?;
                reader.place(&cluster, authorities.as_ref())
            }
            Kubeconfig::InCluster(found) => reader.service(found),
        }
    }
}

impl Plan {
    /// Reads everything.
    pub(super) fn read(kubeconfig: &Kubeconfig, proxies: &Proxies) -> Result<Self, ConnectError> {
        let reader = Reader::new(kubeconfig);
        match kubeconfig {
            Kubeconfig::File(path) => reader.file(path, proxies),
            Kubeconfig::InCluster(found) => reader.in_cluster(found, proxies),
        }
    }
}

/// From where the paths in a kubeconfig go.
fn directory(kubeconfig: &Path) -> &Path {
    kubeconfig.parent().unwrap_or(Path::new(""))
}

/// Reads files and remembers how they were.
struct Reader {
    /// Where everything begins, for people.
    place: String,
    files: Vec<(PathBuf, Stamp)>,
}

impl Reader {
    fn new(kubeconfig: &Kubeconfig) -> Self {
        let place = match kubeconfig {
            Kubeconfig::File(path) => path,
            Kubeconfig::InCluster(found) => &found.directory,
        };
        Self { place: place.display().to_string(), files: Vec::new() }
    }

    fn said(&self, problem: impl Into<String>) -> ConnectError {
        ConnectError::Said { place: self.place.clone(), problem: problem.into() }
    }

    fn read(&mut self, what: &'static str, path: &Path) -> Result<Vec<u8>, ConnectError> {
        self.files.push((path.to_owned(), stamp(path)));
        bounded(path).map_err(|error| ConnectError::File { what, path: path.to_owned(), error })
    }

    fn file(mut self, path: &Path, proxies: &Proxies) -> Result<Plan, ConnectError> {
        let (cluster, user) = self.chosen(path)?;
        let authorities = self.authorities(&cluster, directory(path))?;
        let place = self.place(&cluster, authorities.as_ref())?;
        let proxy = proxy::choose(&place.server, cluster.proxy_url.as_deref(), proxies);
        let proxy = proxy.map_err(|problem| self.said(problem))?;
        let pair = self.pair(&user, directory(path))?;
        let (login, plugin) = self.login(&user, directory(path), &cluster, authorities.as_ref())?;
        Ok(Plan { place, proxy, pair, login, plugin, files: self.files })
    }

    /// What a pod finds in its place (client-go's `rest.InClusterConfig`).
    fn in_cluster(mut self, found: &InCluster, proxies: &Proxies) -> Result<Plan, ConnectError> {
        let place = self.service(found)?;
        let proxy = proxy::choose(&place.server, None, proxies).map_err(|problem| self.said(problem))?;
        let token = self.token(&found.directory.join("token"))?;
        let login = AuthInfo { token: Some(token), ..AuthInfo::default() };
        Ok(Plan { place, proxy, pair: None, login, plugin: None, files: self.files })
    }

    fn service(&mut self, found: &InCluster) -> Result<Place, ConnectError> {
        let host = if found.host.contains(':') { format!("[{}]", found.host) } else { found.host.clone() };
        let server = format!("https://{host}:{}", found.port).parse::<Uri>();
        let server = server.map_err(|_| {
            self.said("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT give no address of a server")
        })?;
        let ca = found.directory.join("ca.crt");
        let bytes = self.read("CA of the cluster", &ca)?;
        let authorities = Found { bytes, place: ca.display().to_string() };
        let identity = identity(&server, Some(&authorities))?;
        let trust = Trust::Authorities(certificates(&authorities, "certificate")?);
        Ok(Place { server, trust, server_name: None, identity })
    }

    fn place(&self, cluster: &Cluster, authorities: Option<&Found>) -> Result<Place, ConnectError> {
        let server = self.server(cluster)?;
        let identity = identity(&server, authorities)?;
        let trust = match authorities {
            _ if cluster.insecure_skip_tls_verify == Some(true) => Trust::Anybody,
            Some(authorities) => Trust::Authorities(certificates(authorities, "certificate")?),
            None => Trust::System,
        };
        let server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());
        let server_name = server_name.map(ServerName::try_from).transpose();
        let server_name = server_name.map_err(|_| self.said("the cluster's tls-server-name is no name"))?;
        Ok(Place { server, trust, server_name, identity })
    }

    /// The cluster and the user of the current context.
    fn chosen(&mut self, path: &Path) -> Result<(Cluster, AuthInfo), ConnectError> {
        let text = self.read("kubeconfig", path).map_err(|error| match error {
            ConnectError::File { path, error, .. } if error.kind() == io::ErrorKind::NotFound => {
                ConnectError::Missing(path)
            }
            error => error,
        })?;
        let contents = contents(path, &text)?;
        let known = names(contents.contexts.iter().map(|context| &*context.name));
        let current = contents.current_context.as_deref().filter(|name| !name.is_empty());
        let current = current.ok_or_else(|| {
            self.said(format!("it has no current-context; name one of its contexts, which are: {known}"))
        })?;
        let context = contents.contexts.iter().find(|context| context.name == current);
        let context = context.and_then(|context| context.context.as_ref()).ok_or_else(|| {
            self.said(format!(
                "the current-context {current:?} is not among its contexts, which are: {known}"
            ))
        })?;
        let cluster = contents.clusters.iter().find(|cluster| cluster.name == context.cluster);
        let cluster = cluster.and_then(|cluster| cluster.cluster.clone()).ok_or_else(|| {
            let clusters = names(contents.clusters.iter().map(|cluster| &*cluster.name));
            self.said(format!(
                "the cluster {:?} of the context {current:?} is not among its clusters, which are: {clusters}",
                context.cluster
            ))
        })?;
        let Some(name) = context.user.as_deref().filter(|name| !name.is_empty()) else {
            return Ok((cluster, AuthInfo::default()));
        };
        let user = contents.auth_infos.iter().find(|user| user.name == name).ok_or_else(|| {
            let users = names(contents.auth_infos.iter().map(|user| &*user.name));
            self.said(format!(
                "the user {name:?} of the context {current:?} is not among its users, which are: {users}"
            ))
        })?;
        Ok((cluster, user.auth_info.clone().unwrap_or_default()))
    }

    fn server(&self, cluster: &Cluster) -> Result<Uri, ConnectError> {
        let expected = "it is written like https://HOST:PORT";
        let Some(server) = cluster.server.as_deref().filter(|server| !server.is_empty()) else {
            return Err(self.said(format!("the cluster has no server: {expected}")));
        };
        let server: Option<Uri> = server.parse().ok();
        let http = |server: &Uri| {
            matches!(server.scheme_str(), Some("http" | "https"))
                && server.host().is_some_and(|host| !host.is_empty())
        };
        let server = server
            .filter(http)
            .ok_or_else(|| self.said(format!("the cluster's server is no http or https URL: {expected}")))?;
        let user = server.authority().is_some_and(|authority| authority.as_str().contains('@'));
        if user || server.query().is_some() {
            return Err(self.said(format!("the cluster's server has a user or a query in it: {expected}")));
        }
        Ok(server)
    }

    fn authorities(&mut self, cluster: &Cluster, directory: &Path) -> Result<Option<Found>, ConnectError> {
        let data = cluster.certificate_authority_data.as_deref();
        let file = cluster.certificate_authority.as_deref();
        let found = self.found("certificate-authority", data, file, directory)?;
        if found.is_some() && cluster.insecure_skip_tls_verify == Some(true) {
            return Err(self.said(
                "the cluster has a certificate-authority and insecure-skip-tls-verify; take one of them out",
            ));
        }
        Ok(found)
    }

    fn pair(&mut self, user: &AuthInfo, directory: &Path) -> Result<Option<Pair>, ConnectError> {
        let (data, file) = (user.client_certificate_data.as_deref(), user.client_certificate.as_deref());
        let certificate = self.found("client-certificate", data, file, directory)?;
        let data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        let key = self.found("client-key", data, user.client_key.as_deref(), directory)?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(Pair { certificate, key })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.said("the user has a client-certificate and no client-key")),
            (None, Some(_)) => Err(self.said("the user has a client-key and no client-certificate")),
        }
    }

    /// What stands in the kubeconfig as `NAME-data`, or else in the file that it names.
    fn found(
        &mut self,
        name: &'static str,
        data: Option<&str>,
        file: Option<&str>,
        directory: &Path,
    ) -> Result<Option<Found>, ConnectError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let place = format!("{name}-data of {}", self.place);
            let bytes = STANDARD.decode(data.split_ascii_whitespace().collect::<String>());
            let bytes = bytes.map_err(|_| self.said(format!("{name}-data is not base64")))?;
            return Ok(Some(Found { bytes, place }));
        }
        let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
        let path = directory.join(file);
        let bytes = self.read(name, &path)?;
        Ok(Some(Found { bytes, place: path.display().to_string() }))
    }

    /// Who this is, as far as TLS does not say it.
    fn login(
        &mut self,
        user: &AuthInfo,
        directory: &Path,
        cluster: &Cluster,
        authorities: Option<&Found>,
    ) -> Result<(AuthInfo, Option<Plugin>), ConnectError> {
        if let Some(provider) = &user.auth_provider {
            return Err(self.said(format!(
                "the user's auth-provider {:?} is not known here; use an exec plugin in its place",
                provider.name
            )));
        }
        let mut login = AuthInfo {
            impersonate: user.impersonate.clone(),
            impersonate_uid: user.impersonate_uid.clone(),
            impersonate_groups: user.impersonate_groups.clone(),
            impersonate_user_extra: user.impersonate_user_extra.clone(),
            ..AuthInfo::default()
        };
        login.token = self.user_token(user, directory)?;
        let password = user.password.clone().filter(|password| !password.expose_secret().is_empty());
        let name = user.username.clone().filter(|name| !name.is_empty());
        if name.is_some() || password.is_some() {
            if login.token.is_some() {
                return Err(
                    self.said("the user has a token and a username or password; take one of them out")
                );
            }
            login.username = Some(name.unwrap_or_default());
            login.password = Some(password.unwrap_or_default());
        }
        // Who has said who it is needs no plugin for it, as client-go has it.
        let exec = user.exec.as_ref().filter(|_| login.token.is_none() && login.username.is_none());
        let Some(exec) = exec else { return Ok((login, None)) };
        let command = exec.command.clone().unwrap_or_default();
        if command.is_empty() {
            return Err(self.said("the user's exec has no command"));
        }
        let command =
            if command.contains('/') { directory.join(command).display().to_string() } else { command };
        let plugin = Plugin::new(exec, command, || cluster_info(cluster, authorities));
        Ok((login, Some(plugin.map_err(|problem| self.said(problem))?)))
    }

    /// The token of the file, if there is one that can be read, or else the one in the kubeconfig.
    fn user_token(
        &mut self,
        user: &AuthInfo,
        directory: &Path,
    ) -> Result<Option<SecretString>, ConnectError> {
        let said = user.token.as_ref().filter(|token| !token.expose_secret().is_empty());
        let file = user.token_file.as_deref().filter(|file| !file.is_empty());
        let from_file = file.map(|file| self.token(&directory.join(file))).transpose();
        match (from_file, said) {
            (Ok(Some(token)), _) => Ok(Some(token)),
            (Err(error), None) => Err(error),
            (_, Some(said)) if sendable(said.expose_secret()) => Ok(Some(said.clone())),
            (_, Some(_)) => Err(self.said("the user's token has characters in it that no token has")),
            (Ok(None), None) => Ok(None),
        }
    }

    fn token(&mut self, path: &Path) -> Result<SecretString, ConnectError> {
        let bytes = self.read("token", path)?;
        let token = str::from_utf8(&bytes).unwrap_or_default().trim();
        if token.is_empty() || !sendable(token) {
            let place = path.display().to_string();
            let problem = "there is no token in it: one line of printable text is expected".to_owned();
            return Err(ConnectError::Said { place, problem });
        }
        Ok(SecretString::from(token))
    }
}

/// Whether a token can stand in a header.
pub(super) fn sendable(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_graphic())
}

fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // A pipe or a device may never end.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("this is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it is larger than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

fn contents(path: &Path, text: &[u8]) -> Result<Contents, ConnectError> {
    let bad = |line| ConnectError::Yaml { path: path.to_owned(), line };
    let text = str::from_utf8(text).map_err(|error| {
        let before = &text[..error.valid_up_to()];
        bad(before.iter().fold(1, |line, byte| line + u64::from(*byte == b'\n')))
    })?;
    // The parser's own words may have a secret in them.
    Contents::from_yaml(text).map_err(|error| match error {
        KubeconfigError::Parse(error) => bad(error.location().map_or(1, |location| location.line())),
        _ => bad(1),
    })
}

fn names<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn identity(server: &Uri, authorities: Option<&Found>) -> Result<Identity, ConnectError> {
    let mut ca = String::new();
    if let Some(authorities) = authorities {
        let mut digest = Sha256::new();
        // The certificates alone: what is written between them says nothing.
        for certificate in certificates(authorities, "certificate")? {
            digest.update(&certificate);
        }
        ca = hex(&digest.finalize());
    }
    Ok(Identity { url: shown(server), ca })
}

/// What a plugin is told about the cluster, if it asks (`provideClusterInfo`).
fn cluster_info(cluster: &Cluster, authorities: Option<&Found>) -> Value {
    let mut info = json!({ "server": cluster.server });
    if let Some(name) = &cluster.tls_server_name {
        info["tls-server-name"] = json!(name);
    }
    if cluster.insecure_skip_tls_verify == Some(true) {
        info["insecure-skip-tls-verify"] = json!(true);
    }
    if let Some(authorities) = authorities {
        info["certificate-authority-data"] = json!(STANDARD.encode(&authorities.bytes));
    }
    if let Some(proxy) = &cluster.proxy_url {
        info["proxy-url"] = json!(proxy);
    }
    let extension = cluster.extensions.iter().flatten().find(|extension| extension.name == EXTENSION);
    if let Some(extension) = extension {
        info["config"] = extension.extension.clone();
    }
    info
}
