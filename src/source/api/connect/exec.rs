//! Credentials from a plugin: a program that the kubeconfig names
//! (`client.authentication.k8s.io`, v1 and v1beta1).
//!
//! It runs without a terminal, with a time limit, and what it prints is bounded.
//! Nothing of its standard output gets into an error: the credential is in it.

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

use super::ConnectError;

/// How long a plugin may run: those that ask a cloud take seconds.
const TIME_LIMIT: Duration = Duration::from_mins(1);
/// How much it may print, in bytes: a credential is a few thousand.
const MAX_OUTPUT: u64 = 1024 * 1024;
/// How much of what it complains about is shown, in characters.
const MAX_COMPLAINT: usize = 400;
/// What systemd says to the agent alone: nobody else has its sockets, or speaks for it.
const SYSTEMDS: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];
/// The API's versions that are spoken.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// A plugin, and how it is run.
pub(super) struct Plugin {
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    version: &'static str,
    hint: Option<String>,
    /// What it is told about the cluster, if it wants to know.
    cluster: Option<Value>,
}

/// What a plugin gave.
pub(super) struct Credential {
    pub(super) token: Option<SecretString>,
    /// A certificate and its key, as PEM.
    pub(super) pair: Option<(String, String)>,
    pub(super) expires: Option<Timestamp>,
}

/// An `ExecCredential`, as it is printed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Printed {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    /// The plugin that a kubeconfig names; `command` is found from the
    /// kubeconfig's directory already.
    pub(super) fn new(
        said: &ExecConfig,
        command: String,
        cluster: impl FnOnce() -> Value,
    ) -> Result<Self, String> {
        let version = said.api_version.as_deref().unwrap_or_default();
        let version = VERSIONS.into_iter().find(|known| *known == version).ok_or_else(|| {
            format!(
                "exec: the apiVersion {version:?} is not spoken here; {} and {} are",
                VERSIONS[0], VERSIONS[1]
            )
        })?;
        if said.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err(format!(
                "exec: {command} wants a person to talk to (interactiveMode: Always), and an agent has none; use another credential"
            ));
        }
        let variable = |entry: &std::collections::HashMap<String, String>| {
            Some((entry.get("name")?.clone(), entry.get("value").cloned().unwrap_or_default()))
        };
        Ok(Self {
            command,
            args: said.args.clone().unwrap_or_default(),
            env: said.env.iter().flatten().filter_map(variable).collect(),
            version,
            hint: said.install_hint.clone().filter(|hint| !hint.trim().is_empty()),
            cluster: said.provide_cluster_info.then(cluster),
        })
    }

    /// Runs it. If the future is dropped, what it started is killed.
    pub(super) async fn run(&self, now: Timestamp) -> Result<Credential, ConnectError> {
        let run = timeout(TIME_LIMIT, self.printed()).await;
        let printed =
            run.map_err(|_| self.problem(format!("did not end within {TIME_LIMIT:?}, and was killed")))??;
        self.understood(&printed, now)
    }

    /// What it prints.
    async fn printed(&self) -> Result<Vec<u8>, ConnectError> {
        let mut spec = json!({ "interactive": false });
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        let info = json!({ "apiVersion": self.version, "kind": "ExecCredential", "spec": spec });
        let mut command = Command::new(&self.command);
        for name in SYSTEMDS {
            command.env_remove(name);
        }
        command.args(&self.args).envs(&self.env).env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that what it started ends with it.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.no_start(&error))?;
        let group = Group::of(child.id());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = tokio::try_join!(read(stdout), read(stderr), child.wait());
        let (printed, complaint, status) =
            ended.map_err(|error| self.problem(format!("was killed: {error}")))?;
        group.ended();
        if !status.success() {
            let complaint = shortened(&complaint);
            let complaint = if complaint.is_empty() {
                "it said nothing".to_owned()
            } else {
                format!("it said: {complaint}")
            };
            return Err(self.problem(format!("failed ({status}); {complaint}")));
        }
        Ok(printed)
    }

    fn understood(&self, printed: &[u8], now: Timestamp) -> Result<Credential, ConnectError> {
        // The parser's own words may have the credential in them.
        let printed: Printed = serde_json::from_slice(printed).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            self.problem(format!(
                "printed no ExecCredential: JSON with apiVersion, kind and status is expected (see its output at line {line}, column {column})"
            ))
        })?;
        if printed.kind != "ExecCredential" || printed.api_version != self.version {
            return Err(self.problem(format!(
                "printed something else than an ExecCredential of {}; does it know that version?",
                self.version
            )));
        }
        let Some(status) = printed.status else {
            return Err(self.problem("printed an ExecCredential without a status".to_owned()));
        };
        let expires = status.expiration_timestamp.map(|text| text.parse::<Timestamp>()).transpose();
        let expires = expires.map_err(|_| {
            self.problem(
                "printed an expirationTimestamp that is no time like 2026-01-31T12:00:00Z".to_owned(),
            )
        })?;
        if let Some(at) = expires.filter(|at| *at <= now) {
            return Err(self.problem(format!(
                "gave a credential that expired at {at}; log in anew with it (or is this machine's clock wrong?)"
            )));
        }
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (token, pair) =
            (some(status.token), some(status.client_certificate_data).zip(some(status.client_key_data)));
        if token.is_none() && pair.is_none() {
            return Err(self.problem(
                "gave neither a token nor a clientCertificateData with its clientKeyData".to_owned(),
            ));
        }
        Ok(Credential { token: token.map(SecretString::from), pair, expires })
    }

    fn no_start(&self, error: &io::Error) -> ConnectError {
        if error.kind() != io::ErrorKind::NotFound {
            return self.problem(format!("cannot be run: {error}"));
        }
        let hint = self.hint.as_deref().map(|hint| shortened(hint.as_bytes()));
        let hint = hint.unwrap_or_else(|| "install it, or correct exec.command in the kubeconfig".to_owned());
        self.problem(format!("is not there: {hint}"))
    }

    fn problem(&self, problem: String) -> ConnectError {
        ConnectError::Plugin { command: self.command.clone(), problem }
    }

    /// How it is named to people.
    pub(super) fn name(&self) -> &str {
        &self.command
    }
}

/// Reads a pipe to its end, up to a bound.
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

/// A text on one line, without what a terminal would obey, and not for ever.
fn shortened(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(MAX_COMPLAINT) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

/// The processes of a plugin; killed if they have not ended when this goes.
struct Group(Option<Pid>);

impl Group {
    fn of(leader: Option<u32>) -> Self {
        let leader = leader.and_then(|id| i32::try_from(id).ok());
        Self(leader.and_then(Pid::from_raw))
    }

    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended by itself meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
