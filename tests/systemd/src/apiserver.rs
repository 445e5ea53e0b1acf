//! A real kube-apiserver (`tests/kubernetes`) in a machine's network.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::Mutex,
};

use rustix::process::Pid;
use serde_json::{Value, json};

use crate::{
    machine::{Machine, children, output, variable},
    pods::pod,
};

/// The timeout of a request, in seconds.
const TIMEOUT: &str = "30";

pub struct Apiserver<'a> {
    machine: &'a Machine,
    child: Child,
    /// Closing the first one ends the server.
    pipes: Mutex<(Option<ChildStdin>, BufReader<ChildStdout>)>,
    at: Value,
}

impl<'a> Apiserver<'a> {
    pub fn start(machine: &'a Machine) -> Self {
        let mut command = machine.in_network(variable("PODMUX_KUBERNETES").join("apiserver"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let at = answer(&mut stdout);
        Self { machine, child, pipes: Mutex::new((stdin, stdout)), at }
    }

    /// Runs a command of `tests/kubernetes/README.md`: `compact`, `kill`, `start`, …
    pub fn command(&self, command: &str) {
        let (stdin, stdout) = &mut *self.pipes.lock().unwrap();
        writeln!(stdin.as_mut().unwrap(), "{command}").unwrap();
        answer(stdout);
    }

    /// The process of the kube-apiserver, if it runs.
    pub fn process(&self) -> Option<Pid> {
        Pid::from_raw(children(self.child.id()).first().copied()?.try_into().unwrap())
    }

    /// A cluster admin's kubeconfig.
    pub fn kubeconfig(&self) -> String {
        std::fs::read_to_string(self.field("kubeconfig")).unwrap()
    }

    /// The token of `node1`'s kubelet.
    pub fn node_token(&self) -> &str {
        self.field("node_token")
    }

    pub fn url(&self) -> &str {
        self.field("url")
    }

    /// The certificate authority.
    pub fn ca(&self) -> String {
        std::fs::read_to_string(self.field("ca")).unwrap()
    }

    /// A request of the cluster admin that must succeed.
    pub fn ask(&self, method: &str, path: &str, body: &Value) {
        self.try_ask(method, path, body).unwrap();
    }

    /// A request of the cluster admin. The error is the response, or why there is none.
    pub fn try_ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let authorization = format!("Authorization: Bearer {}", self.field("token"));
        let url = format!("{}{path}", self.url());
        let mut command = self.machine.in_network("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--cacert", self.field("ca")]);
        let media = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let media = format!("Content-Type: application/{media}");
        command.args(["--header", &authorization, "--header", &media, "--max-time", TIMEOUT]);
        command.args(["--http1.1", "--request", method]);
        if !body.is_null() {
            command.args(["--data-binary", &body.to_string()]);
        }
        command.arg(&url);
        let output = output(&mut command);
        if output.code != 0 {
            return Err(format!("{method} {path}: {output:?}"));
        }
        serde_json::from_str(&output.stdout).map_err(|error| format!("{method} {path}: {error}: {output:?}"))
    }

    /// Creates a pod that is bound to a node.
    pub fn bind(&self, name: &str, node: &str) {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(node);
        self.ask("POST", "/api/v1/namespaces/default/pods", &pod);
    }

    fn field(&self, name: &str) -> &str {
        self.at[name].as_str().unwrap()
    }
}

impl Drop for Apiserver<'_> {
    fn drop(&mut self) {
        if let Ok(pipes) = self.pipes.get_mut() {
            pipes.0 = None;
        }
        self.child.wait().ok();
    }
}

/// The next line of the program.
fn answer(stdout: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}
