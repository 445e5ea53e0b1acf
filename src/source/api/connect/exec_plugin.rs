//! Credentials from a plugin, a program that the kubeconfig names
//! (`client.authentication.k8s.io`, v1 and v1beta1).
//!
//! A plugin runs without a terminal, with a time limit and a limit on its output. Errors quote
//! nothing of its standard output, which contains the credential.

use std::{collections::BTreeMap, io, process::Stdio, time::Duration};

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time::timeout,
};

use super::error::ConnectError;

/// How long a plugin may run. Those that call a cloud take seconds.
const TIME_LIMIT: Duration = Duration::from_mins(1);
/// How much it may print, in bytes. A credential has a few thousand.
const MAX_OUTPUT: u64 = 1024 * 1024;
/// How much of its standard error is shown, in characters.
const MAX_STDERR: usize = 400;
/// The environment variables of systemd that are for the agent only.
const SYSTEMD_VARIABLES: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];
/// The supported versions of the API.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// How a plugin is run.
pub(super) struct ExecPlugin {
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    version: &'static str,
    hint: Option<String>,
    /// The cluster as it is passed to the plugin (`provideClusterInfo`).
    cluster: Option<Value>,
}

/// The output of a plugin.
pub(super) struct ExecCredential {
    pub(super) token: Option<SecretString>,
    /// A certificate and its key, as PEM.
    pub(super) certificate: Option<(String, String)>,
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
    pub(super) fn new(
        config: &ExecConfig,
        command: String,
        cluster: impl FnOnce() -> Value,
    ) -> Result<Self, String> {
        let version = config.api_version.as_deref().unwrap_or_default();
        let version = VERSIONS.into_iter().find(|known| *known == version).ok_or_else(|| {
            format!("exec: unsupported apiVersion {version:?}; expected {} or {}", VERSIONS[0], VERSIONS[1])
        })?;
        if config.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err(format!(
                "exec: {command} needs a terminal (interactiveMode: Always), and an agent has none; use another credential"
            ));
        }
        let variable = |entry: &std::collections::HashMap<String, String>| {
            Some((entry.get("name")?.clone(), entry.get("value").cloned().unwrap_or_default()))
        };
        Ok(Self {
            command,
            args: config.args.clone().unwrap_or_default(),
            env: config.env.iter().flatten().filter_map(variable).collect(),
            version,
            hint: config.install_hint.clone().filter(|hint| !hint.trim().is_empty()),
            cluster: config.provide_cluster_info.then(cluster),
        })
    }

    /// Runs the plugin. If the future is dropped, the plugin and its children are killed.
    pub(super) async fn run(&self, now: Timestamp) -> Result<ExecCredential, ConnectError> {
        let run = timeout(TIME_LIMIT, self.output()).await;
        let printed =
            run.map_err(|_| self.problem(format!("was killed after running for {TIME_LIMIT:?}")))??;
        self.parse(&printed, now)
    }

    async fn output(&self) -> Result<Vec<u8>, ConnectError> {
        let mut spec = json!({ "interactive": false });
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        let info = json!({ "apiVersion": self.version, "kind": "ExecCredential", "spec": spec });
        let mut command = Command::new(&self.command);
        for name in SYSTEMD_VARIABLES {
            command.env_remove(name);
        }
        command.args(&self.args).envs(&self.env).env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // With a process group of its own its children can be killed, too.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.spawn_error(&error))?;
        let group = ProcessGroup::of(child.id());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = tokio::try_join!(read(stdout), read(stderr), child.wait());
        let (stdout, stderr, status) = ended.map_err(|error| self.problem(format!("was killed: {error}")))?;
        group.ended();
        if !status.success() {
            let stderr = shortened(&stderr);
            let stderr = if stderr.is_empty() { "its standard error is empty" } else { &stderr };
            return Err(self.problem(format!("failed ({status}): {stderr}")));
        }
        Ok(stdout)
    }

    fn parse(&self, printed: &[u8], now: Timestamp) -> Result<ExecCredential, ConnectError> {
        // The parser's message is not used, because it may quote the credential.
        let printed: PrintedCredential = serde_json::from_slice(printed).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            self.problem(format!(
                "printed no ExecCredential; expected JSON with apiVersion, kind and status (see its output at line {line}, column {column})"
            ))
        })?;
        if printed.kind != "ExecCredential" || printed.api_version != self.version {
            return Err(self.problem(format!(
                "printed something else than an ExecCredential of {} (does it support that version?)",
                self.version
            )));
        }
        let Some(status) = printed.status else {
            return Err(self.problem("printed an ExecCredential without a status".to_owned()));
        };
        let expires = status.expiration_timestamp.map(|text| text.parse::<Timestamp>()).transpose();
        let expires = expires.map_err(|_| {
            self.problem(
                "printed an expirationTimestamp that is not a time like 2026-01-31T12:00:00Z".to_owned(),
            )
        })?;
        if let Some(at) = expires.filter(|at| *at <= now) {
            return Err(self.problem(format!(
                "printed a credential that expired at {at}; log in again with it (or is this machine's clock wrong?)"
            )));
        }
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (token, certificate) =
            (some(status.token), some(status.client_certificate_data).zip(some(status.client_key_data)));
        if token.is_none() && certificate.is_none() {
            return Err(self.problem(
                "printed neither a token nor a clientCertificateData with its clientKeyData".to_owned(),
            ));
        }
        Ok(ExecCredential { token: token.map(SecretString::from), certificate, expires })
    }

    fn spawn_error(&self, error: &io::Error) -> ConnectError {
        if error.kind() != io::ErrorKind::NotFound {
            return self.problem(format!("cannot be run: {error}"));
        }
        let hint = self.hint.as_deref().map(|hint| shortened(hint.as_bytes()));
        let hint = hint.unwrap_or_else(|| "install it, or correct exec.command in the kubeconfig".to_owned());
        self.problem(format!("does not exist: {hint}"))
    }

    fn problem(&self, problem: String) -> ConnectError {
        ConnectError::Plugin { command: self.command.clone(), problem }
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }
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

/// A text on one line, without control characters, up to a limit.
fn shortened(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(MAX_STDERR) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

/// The process group of a plugin. Dropping it kills the group.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(leader: Option<u32>) -> Self {
        let leader = leader.and_then(|id| i32::try_from(id).ok());
        Self(leader.and_then(Pid::from_raw))
    }

    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
