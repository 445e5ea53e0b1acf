//! Credentials from a plugin, a program that the kubeconfig names
//! (`client.authentication.k8s.io`, v1 and v1beta1).
//!
//! A plugin runs without a terminal, with a time limit and a limit on its output. Errors quote
//! nothing that it prints: its standard output contains the credential, and its standard error
//! may.

use std::{io, process::Stdio, time::Duration};

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time::timeout,
};

use super::{
    error::ConnectError,
    tls::{CertificateAndKey, PemSource},
};

/// How long a plugin may run. Those that call a cloud take seconds.
const TIME_LIMIT: Duration = Duration::from_mins(1);
/// How much it may print, in bytes. A credential has a few thousand.
const MAX_OUTPUT: u64 = 1024 * 1024;
/// How much of its install hint is shown, in characters.
const MAX_HINT: usize = 400;
/// The environment variables of systemd that are for the agent only.
const SYSTEMD_VARIABLES: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];
/// The supported versions of the API.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// How a plugin is run.
pub(super) struct ExecPlugin {
    config: ExecConfig,
    command: String,
    version: &'static str,
}

/// The output of a plugin.
pub(super) struct ExecCredential {
    pub(super) token: Option<SecretString>,
    pub(super) certificate: Option<CertificateAndKey>,
    pub(super) expires: Option<Timestamp>,
}

/// An `ExecCredential` as the plugin prints it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PrintedCredential {
    api_version: String,
    kind: String,
    status: Option<CredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ExecPlugin {
    /// The plugin of a kubeconfig. `command` is already resolved against the kubeconfig's
    /// directory.
    pub(super) fn new(config: ExecConfig, command: String) -> Result<Self, String> {
        let version = config.api_version.as_deref().unwrap_or_default();
        let version = VERSIONS.into_iter().find(|known| *known == version).ok_or_else(|| {
            format!("exec: unsupported apiVersion {version:?}; expected {} or {}", VERSIONS[0], VERSIONS[1])
        })?;
        if config.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err(format!(
                "exec: {command} needs a terminal (interactiveMode: Always), and an agent has none; use another credential"
            ));
        }
        Ok(Self { config, command, version })
    }

    /// Runs the plugin. If the future is dropped, the plugin and its children are killed.
    pub(super) async fn run(&self, now: Timestamp) -> Result<ExecCredential, ConnectError> {
        let printed = match timeout(TIME_LIMIT, self.output()).await {
            Ok(printed) => printed.and_then(|printed| self.parse(&printed, now)),
            Err(_) => Err(format!("was killed after running for {TIME_LIMIT:?}")),
        };
        printed.map_err(|problem| ConnectError::Plugin { command: self.command.clone(), problem })
    }

    async fn output(&self) -> Result<Vec<u8>, String> {
        let mut spec = json!({ "interactive": false });
        if let Some(cluster) = &self.config.cluster {
            spec["cluster"] = json!(cluster);
        }
        let info = json!({ "apiVersion": self.version, "kind": "ExecCredential", "spec": spec });
        let mut command = Command::new(&self.command);
        for name in SYSTEMD_VARIABLES {
            command.env_remove(name);
        }
        for variable in self.config.env.iter().flatten() {
            if let Some(name) = variable.get("name") {
                command.env(name, variable.get("value").map_or("", String::as_str));
            }
        }
        command.args(self.config.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // With a process group of its own its children can be killed, too.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.spawn_problem(&error))?;
        let mut group = ProcessGroup(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
        let ended = tokio::try_join!(read(child.stdout.take()), child.wait());
        let (stdout, status) = ended.map_err(|error| format!("was killed: {error}"))?;
        group.0 = None;
        if status.success() {
            return Ok(stdout);
        }
        Err(format!(
            "failed ({status}); to see why, run {} by hand with the args and env of the kubeconfig's exec",
            self.command
        ))
    }

    fn parse(&self, printed: &[u8], now: Timestamp) -> Result<ExecCredential, String> {
        // The parser's message is not used, because it may quote the credential.
        let printed: PrintedCredential = serde_json::from_slice(printed).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!(
                "printed no ExecCredential; expected JSON with apiVersion, kind and status (see its output at line {line}, column {column})"
            )
        })?;
        if printed.kind != "ExecCredential" || printed.api_version != self.version {
            return Err(format!(
                "printed something else than an ExecCredential of {} (does it support that version?)",
                self.version
            ));
        }
        let status = printed.status.ok_or("printed an ExecCredential without a status")?;
        let expires = status.expiration_timestamp.map(|text| text.parse::<Timestamp>()).transpose();
        let expires = expires.map_err(|_| {
            "printed an expirationTimestamp that is not a time like 2026-01-31T12:00:00Z".to_owned()
        })?;
        if let Some(at) = expires.filter(|at| *at <= now) {
            return Err(format!(
                "printed a credential that expired at {at}; log in again with it (or is this machine's clock wrong?)"
            ));
        }
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let token = some(status.token);
        let pair = some(status.client_certificate_data).zip(some(status.client_key_data));
        if token.is_none() && pair.is_none() {
            return Err(
                "printed neither a token nor a clientCertificateData with its clientKeyData".to_owned()
            );
        }
        if token.as_deref().is_some_and(|token| !is_valid_token(token)) {
            return Err("printed a token with characters that no token can have".to_owned());
        }
        let source =
            |text: String| PemSource { bytes: text.into(), place: format!("the plugin {}", self.command) };
        let certificate =
            pair.map(|(cert, key)| CertificateAndKey { certificate: source(cert), key: source(key) });
        Ok(ExecCredential { token: token.map(SecretString::from), certificate, expires })
    }

    fn spawn_problem(&self, error: &io::Error) -> String {
        if error.kind() != io::ErrorKind::NotFound {
            return format!("cannot be run: {error}");
        }
        let hint = self.config.install_hint.as_deref().unwrap_or_default();
        let words = hint.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
        match words.collect::<Vec<_>>().join(" ") {
            hint if hint.is_empty() => {
                "does not exist: install it, or correct exec.command in the kubeconfig".to_owned()
            }
            hint => format!("does not exist: {hint:.MAX_HINT$}"),
        }
    }
}

/// Whether a token can be sent in a header.
pub(super) fn is_valid_token(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reads a pipe to its end, up to a limit.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_OUTPUT + 1).read_to_end(&mut read).await?;
    }
    if read.len() as u64 > MAX_OUTPUT {
        return Err(io::Error::other(format!("it printed more than {MAX_OUTPUT} bytes")));
    }
    Ok(read)
}

/// The process group of a plugin. Dropping it kills the group.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
