//! A real kube-apiserver (`tests/kubernetes`) in a machine's network.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdin, Stdio},
};

use serde_json::{Value, json};

use crate::{
    machine::{Machine, output, variable},
    pods::pod,
};

pub struct Apiserver<'a> {
    machine: &'a Machine,
    child: Child,
    /// Closing it ends the server.
    stdin: Option<ChildStdin>,
    at: Value,
}

impl<'a> Apiserver<'a> {
    pub fn start(machine: &'a Machine) -> Self {
        let mut command = machine.in_network(variable("PODMUX_KUBERNETES").join("apiserver"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { machine, child, stdin, at }
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
        let authorization = format!("Authorization: Bearer {}", self.field("token"));
        let (url, body) = (format!("{}{path}", self.url()), body.to_string());
        let mut command = self.machine.in_network("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--cacert", self.field("ca")]);
        command.args(["--header", &authorization, "--header", "Content-Type: application/json"]);
        command.args(["--request", method, "--data-binary", &body, &url]);
        let output = output(&mut command);
        assert_eq!(output.code, 0, "{method} {path}: {output:?}");
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
        self.stdin = None;
        self.child.wait().ok();
    }
}
